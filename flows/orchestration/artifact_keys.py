"""Keys of Prefect artifacts. A name always gives the same key, so the versions under a key are a run's history."""

import hashlib
import re

_KEY = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")


def slug(name: str) -> str:
    """Returns a name as a Prefect artifact key: lower case letters, digits and single dashes.

    A name that is not a valid key gets four digits of its checksum, so that `run.1` and `run-1` have different keys.
    """
    if _KEY.fullmatch(name):
        return name
    plain = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    return "-".join(filter(None, (plain, hashlib.sha256(name.encode()).hexdigest()[:4])))
