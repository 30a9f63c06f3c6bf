"""Compares `docs/reference/json.md` with the documents that commands print: every field is on the page, and no other.

A table row of the page names a field by its path: `a.b` is the field `b` of the object `a`, `a[]` an entry of the list
`a`, and a part in CAPITALS any key. A path that ends in `.*` stands for everything below it. A row whose meaning links
to a section that starts with `Part:` has the fields of that section below it.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "json.md"
_ROW = re.compile(r"\| `(?P<path>[^`]+)` \| (?P<unit>[^|]*) \| (?P<meaning>[^|]*) \|")
_PART = re.compile(r"\]\(#(part-[a-z-]+)\)")
_ANY_KEY = re.compile(r"[A-Z][A-Z_]*")
_STEP = re.compile(r"[^.\[\]]+|\[\]")

Path_ = tuple[str, ...]


@dataclass(frozen=True)
class Field:
    """A row of the page.

    Attributes:
        path: Its steps: keys, `[]` for an entry of a list, capitals for any key, `*` for everything.
        unit: Second column.
        meaning: Third column.
    """

    path: Path_
    unit: str
    meaning: str

    def matches(self, path: Path_) -> bool:
        """Returns whether the row describes the value at `path`."""
        own = self.path
        if own[-1:] == ("*",):
            own = own[:-1]
            path = path[: len(own)]
        return len(own) == len(path) and all(
            ours == given or (given != "[]" and _ANY_KEY.fullmatch(ours)) for ours, given in zip(own, path, strict=True)
        )

    @property
    def rank(self) -> tuple[int, int]:
        """Sort key: a row that names more keys describes a path better than one that takes any key."""
        return -sum(1 for step in self.path if step == "*" or _ANY_KEY.fullmatch(step)), len(self.path)


@cache
def documented() -> dict[str, tuple[Field, ...]]:
    """The fields of each command's document, by the command as it is typed: `puzzles make`."""
    sections = {_heading(text): tuple(_rows(text)) for text in re.split(r"^## ", PAGE.read_text(), flags=re.M)[1:]}
    parts = {_anchor(name): rows for name, rows in sections.items() if name.startswith("Part:")}
    fields: dict[str, tuple[Field, ...]] = {}
    for heading, rows in sections.items():
        for command in re.findall(r"`([^`]+)`", heading):
            fields[command] = tuple(_expanded(rows, parts))
    return fields


def check_documented(command: str, *documents: Any, unmet: Iterable[str] = ()) -> None:
    """Asserts that the page lists the fields of these documents, and no other field.

    Args:
        command: As it is typed: `puzzles make`.
        documents: Documents that the command printed; together they have every field of the page.
        unmet: Steps of paths that no document has, because they need a machine or an event that the command's test
            lacks.
    """
    fields, met = documented()[command], set[Field]()
    for document in documents:
        for path, value in _nodes(document):
            rows = sorted((field for field in fields if field.matches(path)), key=lambda field: field.rank)
            container = isinstance(value, dict | list) and (not value or any(_below(field, path) for field in fields))
            assert rows or container, f"{command}: {shown(path)} is not in docs/reference/json.md"
            if rows:
                met.add(rows[-1])
                nullable = "null" in rows[-1].meaning or rows[-1].path[-1] == "*"
                assert value is not None or nullable, (
                    f"{command}: docs/reference/json.md does not say when {shown(path)} is null"
                )
    excused = set(unmet)
    missing = [shown(field.path) for field in fields if field not in met and excused.isdisjoint(field.path)]
    assert not missing, f"{command}: docs/reference/json.md lists what no document has: {', '.join(missing)}"


def shown(path: Path_) -> str:
    """A path as the page writes it."""
    return ".".join(path).replace(".[]", "[]")


def _below(field: Field, path: Path_) -> bool:
    """Returns whether a row describes something inside the value at `path`."""
    return len(field.path) > len(path) and Field(field.path[: len(path)], "", "").matches(path)


def _nodes(value: Any, path: Path_ = ()) -> Iterator[tuple[Path_, Any]]:
    """Yields every value inside a document, with its path."""
    if path:
        yield path, value
    entries: Iterator[tuple[str, Any]] = iter(())
    if isinstance(value, dict):
        entries = iter(value.items())
    elif isinstance(value, list):
        entries = (("[]", item) for item in value)
    for step, item in entries:
        yield from _nodes(item, (*path, step))


def _heading(section: str) -> str:
    return section.partition("\n")[0].strip()


def _anchor(heading: str) -> str:
    return re.sub(r"[^a-z -]", "", heading.lower()).replace(" ", "-")


def _rows(section: str) -> Iterator[Field]:
    for line in section.splitlines():
        if row := _ROW.fullmatch(line.strip()):
            yield Field(tuple(_STEP.findall(row["path"])), row["unit"].strip(), row["meaning"].strip())


def _expanded(rows: tuple[Field, ...], parts: Mapping[str, tuple[Field, ...]]) -> Iterator[Field]:
    for field in rows:
        yield field
        for anchor in _PART.findall(field.meaning):
            for inner in _expanded(parts[anchor], parts):
                yield Field(field.path + inner.path, inner.unit, inner.meaning)
