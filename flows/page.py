"""The look of the report: one self-contained HTML page, without scripts or anything fetched."""

import base64
from collections.abc import Sequence
from html import escape as html_escape
from importlib.resources import files

from flows.visible import visible

STYLE = files("flows").joinpath("page.css").read_text()


def escape(text: str) -> str:
    """Text of anybody as it may stand in the page: no markup, and every character of it can be seen."""
    return html_escape(visible(text))


def document(title: str, body: Sequence[str]) -> str:
    """A whole page; `title` is escaped, `body` is markup."""
    policy = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        f"<title>{escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<main>\n"
        + "\n".join(body)
        + "\n</main>\n</body>\n</html>\n"
    )


def table(head: Sequence[str], rows: Sequence[Sequence[str]], *, name: str = "", marked: Sequence[bool] = ()) -> str:
    """A table of escaped cells; the rows that are `marked` stand out."""
    top = "".join(f"<th>{escape(cell)}</th>" for cell in head)
    lines: list[str] = []
    for index, row in enumerate(rows):
        mark = ' class="promoted"' if index < len(marked) and marked[index] else ""
        lines.append(f"<tr{mark}>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>")
    header = f"<thead><tr>{top}</tr></thead>" if head else ""
    return f'<table class="{escape(name)}">{header}<tbody>{"".join(lines)}</tbody></table>'


def card(label: str, value: str, note: str, direction: str = "") -> str:
    """One figure in large type; `direction` is `up`, `down` or empty and colours the note."""
    return (
        f'<div class="card"><span class="label">{escape(label)}</span><b>{escape(value)}</b>'
        f'<span class="{escape(direction)}">{escape(note)}</span></div>'
    )


def picture(png: bytes, words: str) -> str:
    """An image that travels inside the page."""
    address = f"data:image/png;base64,{base64.b64encode(png).decode()}"
    return f'<div class="panel"><img alt="{escape(words)}" src="{address}"></div>'
