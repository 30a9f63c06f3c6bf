"""Finds boxes of LaTeX."""

import re
from collections.abc import Iterator


def closed_boxes(token: re.Pattern[str], text: str, start: int = 0) -> Iterator[tuple[int, int]]:
    """Yields start and end of the content of each closed box; an inner box comes before its outer one.

    Args:
        token: Matches beginnings of boxes with their brace, other braces, and escapes, which are left out.
        text: Any text.
        start: Where the search begins.
    """
    opened: list[int | None] = []  # for each open brace, the start of its box's content; None if it opens no box
    for match in token.finditer(text, start):
        if (found := match.group()) == "}":
            if opened and (begin := opened.pop()) is not None:
                yield begin, match.start()
        elif found.endswith("{") and found != r"\{":
            opened.append(None if found == "{" else match.end())
