"""The layout that ARCHITECTURE.md describes: no cycles, short chains of imports, folders that are not crowded."""

from collections import Counter
from functools import cache
from graphlib import TopologicalSorter

import grimp
import pytest

PACKAGES = ("artifacts", "stages", "flows")
LONGEST = 10
"""Modules in a chain of imports inside a package. Imports inside functions count, imports for types do not."""
REGISTRY = {"flows.cli.app"}
"""It names every command, which is imported when it runs, so it stands on top of each chain."""
MOST_MODULES = 15
"""Modules in a folder, those of its sub-folders not counted."""


@pytest.fixture(scope="module")
def imports() -> dict[str, set[str]]:
    """What each of our modules imports of ours."""
    graph = grimp.build_graph(*PACKAGES, cache_dir=None, exclude_type_checking_imports=True)
    return {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}


def test_no_module_imports_itself_by_way_of_others(imports: dict[str, set[str]]) -> None:
    TopologicalSorter(imports).prepare()  # raises CycleError and names the cycle


@pytest.mark.parametrize("package", PACKAGES)
def test_chains_of_imports_are_short(imports: dict[str, set[str]], package: str) -> None:
    @cache
    def longest(module: str) -> tuple[str, ...]:
        inside = [name for name in imports[module] if name.partition(".")[0] == package]
        return (module, *max(map(longest, sorted(inside)), key=len, default=()))

    modules = {module for module in imports if module.partition(".")[0] == package} - REGISTRY
    chain = max(map(longest, sorted(modules)), key=len)
    assert len(chain) <= LONGEST, " > ".join(chain)


def test_no_folder_is_crowded(imports: dict[str, set[str]]) -> None:
    packages = {module.rpartition(".")[0] for module in imports}
    folders = Counter(module.rpartition(".")[0] for module in imports if module not in packages)
    assert {folder: count for folder, count in folders.items() if count > MOST_MODULES} == {}
