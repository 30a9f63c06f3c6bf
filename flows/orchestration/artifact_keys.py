"""Keys of Prefect artifacts: stable, so that the versions under one key are a run's history."""

import hashlib
import re

_KEY = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")


def slug(name: str) -> str:
    """A name as a Prefect artifact key: lower case letters, digits and single dashes.

    A name that is no key by itself gets four digits of its checksum, so that `run.1` and `run-1` do not share one.
    """
    if _KEY.fullmatch(name):
        return name
    plain = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    return "-".join(filter(None, (plain, hashlib.sha256(name.encode()).hexdigest()[:4])))
