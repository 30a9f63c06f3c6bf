"""Processes that descend from a test's command, found by a variable that they inherited."""

from pathlib import Path


def marked(name: str, value: object) -> dict[int, str]:
    """Command lines of the live processes with a variable in their environment, by id."""
    found: dict[int, str] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if f"{name}={value}".encode() in (entry / "environ").read_bytes().split(b"\0"):
                found[int(entry.name)] = (entry / "cmdline").read_text(errors="replace").replace("\0", " ")
        except OSError:
            continue
    return found
