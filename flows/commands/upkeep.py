"""`deerstalker prune` and `verify`."""

import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.table import Table

from artifacts.errors import BadInputError, IntegrityError
from artifacts.layout import is_ours
from artifacts.store import Store
from artifacts.verification import Damage, verify
from flows.commands.output import print_json, print_line, tell_damage, terminal
from flows.options import Output, Stored
from flows.recipes import validate
from flows.retention import Retention, plan, remove

_SHOWN = 20


def prune_command(runs: Sequence[str], rule: dict[str, Any], yes: bool, options: Stored) -> None:
    """Prints what the rule lets go, and removes it where `yes` says so.

    Args:
        rule: Fields of `flows.retention.Retention`, as given.
    """
    retention = validate(Retention, rule, "prune")
    store, damaged = Store.open(options.store, writable=False), list[Damage]()
    removals = plan(store, retention, runs, damaged)
    total = sum(item.size_bytes for item in removals)
    if yes:
        remove(store, removals, retention)
    if options.json:
        listed = [{"key": item.key, "what": item.what, "size_bytes": item.size_bytes} for item in removals]
        rule = retention.model_dump(mode="json")
        document = {"store": store.url, "rule": rule, "removed": yes, "size_bytes": total, "removals": listed}
        print_json({**document, "damaged": [asdict(damage) for damage in damaged]})
        tell_damage(store, damaged, json=True)
        return
    console = terminal()
    if removals:
        table = Table(title=f"prune {store.url}: {retention}", title_justify="left")
        table.add_column("artifact", overflow="fold")
        table.add_column("what")
        table.add_column("size", justify="right")
        for item in removals:
            table.add_row(item.key, item.what, _size(item.size_bytes))
        console.print(table)
    done = "removed" if yes else "would be removed; --yes removes them"
    console.print(f"{len(removals)} artifacts, {_size(total)}, {done}", soft_wrap=True)
    tell_damage(store, damaged, json=False)


def verify_command(url: str, options: Output) -> None:
    """Hashes a store again and prints what is damaged.

    Raises:
        BadInputError: The folder or bucket is no store of ours.
        IntegrityError: Something is damaged; the document or the list is on stdout then.
    """
    store = Store.open(url, writable=False)
    if not any(map(is_ours, store.list())):
        raise BadInputError(
            store.url, "no run, no puzzle set and no model", "a store that `train` or `puzzles make` has filled",
            "check the address",
        )  # fmt: skip
    found = verify(store, None if options.json else _progress)
    if options.json:
        print_json({"store": store.url, **asdict(found)})
    else:
        for damage in found.damaged:
            print_line(f"damaged: {damage.file}: {damage.found}; expected {damage.expected}")
        for key in found.unchecked[:_SHOWN]:
            print_line(f"no checksum: {key}")
        if len(found.unchecked) > _SHOWN:
            print_line(f"no checksum: {len(found.unchecked) - _SHOWN} more")
        print_line(
            f"{store.url}: {found.artifacts} artifacts ({found.pruned} pruned), {found.files} files, "
            f"{_size(found.size_bytes)}; {len(found.damaged)} damaged, {len(found.unchecked)} without a checksum"
        )
    if found.damaged:
        sys.stdout.flush()
        raise IntegrityError(
            store.url, f"{len(found.damaged)} damaged files, first {found.damaged[0].file}", "",
            "restore them, or delete the folders of their artifacts and run again",
        )  # fmt: skip


def _progress(done: int, total: int) -> None:
    if sys.stderr.isatty() and (done % 50 == 0 or done == total):
        sys.stderr.write(f"\r{done} of {total} files" + ("\n" if done == total else ""))


def _size(size_bytes: int) -> str:
    size, units = float(size_bytes), ["B", "KiB", "MiB", "GiB"]
    while size >= 1024 and len(units) > 1:
        size, units = size / 1024, units[1:]
    return f"{size:.0f} {units[0]}" if units[0] == "B" else f"{size:.1f} {units[0]}"
