"""Markdown for Prefect's interface, in which the text of a model is shown character by character and never interpreted.

Prefect's two interfaces treat HTML, entities and images in running text differently; both show a fenced block as it is.
So the text of a model goes into fenced blocks only, and a fence is longer than any run of backticks inside it.
"""

import base64
import re
import textwrap
from collections.abc import Sequence

from flows.report.text.visible import visible

TEXT_LIMIT = 4000
"""Maximum number of characters of a completion on a page, because each page is a row of Prefect's database."""
_LINE_CHARACTERS = 96


def shortened(text: str, limit: int = TEXT_LIMIT) -> str:
    """Returns the visible text (`flows.report.text.visible`); beyond `limit` characters, a note replaces its middle."""
    if len(text) > limit:
        tail = limit // 3
        left_out = f"\n[... {len(text) - limit} characters left out ...]\n"
        text = text[: limit - tail] + left_out + text[-tail:]
    return visible(text)


def fenced(text: str, limit: int = TEXT_LIMIT) -> str:
    """Returns untrusted text as a fenced block, with long lines wrapped."""
    lines: list[str] = []
    for line in shortened(text, limit).split("\n"):
        lines += textwrap.wrap(line, _LINE_CHARACTERS, replace_whitespace=False, drop_whitespace=False) or [""]
    shown = "\n".join(lines)
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", shown)), default=0))
    return f"{fence}text\n{shown}\n{fence}"


def code(text: str) -> str:
    """Returns a name or an address as code, for use in a line or a table cell."""
    shown = shortened(text).replace("\n", " ").replace("|", "%7C").replace("`", "'")
    return f"`{shown}`"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Returns the lines of a table. Cells are not escaped: they must be words of this program, numbers or `code()`."""
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return [*lines, *("| " + " | ".join(row) + " |" for row in rows)]


def picture(png: bytes, words: str) -> str:
    """Returns an image that is embedded in the text."""
    return f"![{words}]({data_url(png)})"


def data_url(png: bytes) -> str:
    """Returns a picture as an address that contains it."""
    return f"data:image/png;base64,{base64.b64encode(png).decode()}"
