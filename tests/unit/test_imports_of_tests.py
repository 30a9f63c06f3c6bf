"""Tests share code by `tests/support` alone: they import no other test, no benchmark and no fault campaign."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
ALLOWED = {
    "unit": ("support",),
    "contract": ("support",),
    "flow": ("support",),
    "gpu": ("support",),
    "support": ("support",),
    "benchmarks": ("support", "benchmarks"),
    "faults": ("support", "faults"),
}
GOLDEN = "golden"
"""The folder of files that a test compares with has the code that writes them."""


def _imported(path: Path) -> Iterator[str]:
    """Dotted names of the modules of `tests` that a file imports, late imports included."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        yield from (name for name in names if name.partition(".")[0] == "tests")


def test_every_folder_has_its_rule() -> None:
    folders = {path.relative_to(TESTS).parts[0] for path in TESTS.rglob("*.py") if path.parent != TESTS}
    assert folders == set(ALLOWED)
    assert {path.name for path in TESTS.glob("*.py")} == {"__init__.py", "conftest.py"}


@pytest.mark.parametrize("folder", ALLOWED)
def test_shared_code_stands_in_support(folder: str) -> None:
    others = [
        f"{path.relative_to(TESTS)}: {name}"
        for path in (TESTS / folder).rglob("*.py")
        for name in _imported(path)
        if name.split(".")[1] not in ALLOWED[folder] and GOLDEN not in name.split(".")
    ]
    assert others == []
