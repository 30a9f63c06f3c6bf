"""Markdown for Prefect's interface. What a model wrote is shown letter by letter and never obeyed.

Prefect's two interfaces differ in what they make of HTML, entities and images in running text; both show a fenced block
as it stands. So text of a model goes into fenced blocks only, and a fence is longer than any run of backticks inside.
"""

import base64
import re
import textwrap
from collections.abc import Sequence

from flows.visible import visible

TEXT_LIMIT = 4000
"""Characters of one completion that are shown; an artifact is a row of Prefect's database."""
_LINE_CHARACTERS = 96


def shortened(text: str, limit: int = TEXT_LIMIT) -> str:
    """Text as `flows.visible.visible` shows it; what is longer than `limit` loses its middle, and says how much."""
    if len(text) > limit:
        tail = limit // 3
        left_out = f"\n[... {len(text) - limit} characters left out ...]\n"
        text = text[: limit - tail] + left_out + text[-tail:]
    return visible(text)


def fenced(text: str, limit: int = TEXT_LIMIT) -> str:
    """Untrusted text as a block that is shown as it stands, its long lines wrapped."""
    lines: list[str] = []
    for line in shortened(text, limit).split("\n"):
        lines += textwrap.wrap(line, _LINE_CHARACTERS, replace_whitespace=False, drop_whitespace=False) or [""]
    shown = "\n".join(lines)
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", shown)), default=0))
    return f"{fence}text\n{shown}\n{fence}"


def code(text: str) -> str:
    """A name or an address inside a line or a cell."""
    shown = shortened(text).replace("\n", " ").replace("|", "%7C").replace("`", "'")
    return f"`{shown}`"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of a table; its cells are our own words, numbers or `code`."""
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return [*lines, *("| " + " | ".join(row) + " |" for row in rows)]


def picture(png: bytes, words: str) -> str:
    """An image that travels inside the text."""
    return f"![{words}](data:image/png;base64,{base64.b64encode(png).decode()})"
