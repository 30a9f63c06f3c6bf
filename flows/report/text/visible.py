"""Text that others wrote, so that it can be shown: every character is seen, none is obeyed.

Names, titles, clues, completions and whatever a store holds come from files that anybody may have written. A control
character among them would steer the terminal, a bidirectional mark would reorder the line, and an end of line would
begin a line that looks like ours. Markup is left alone here: the terminal, the page and Prefect each escape their own.
"""


def visible(text: str) -> str:
    """Text in which every character can be seen, line ends kept.

    Controls (C0, C1), bidirectional marks, characters without width, private ones and halves of surrogate pairs become
    `\\u202e`; a tab becomes four spaces.
    """
    text = text.replace("\r\n", "\n").replace("\t", "    ")
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c == "\n" else _escaped(c) for c in text)


def one_line(text: str, longest: int | None = None) -> str:
    """Text as part of a line of ours: `visible`, with a line end as `\\u000a`.

    Args:
        longest: Characters that are shown; longer text loses its middle, and says how much.
    """
    text = visible(text).replace("\n", "\\u000a")
    if longest is None or len(text) <= longest:
        return text
    half = longest // 2
    return f"{text[:half]} [... {len(text) - 2 * half} characters left out ...] {text[-half:]}"


def visible_json(document: str) -> str:
    """The same JSON document with the characters escaped that `visible` escapes, so that a terminal may show it."""
    if document.isascii():  # what json.dumps leaves of ASCII can be seen, all but DEL
        return document.replace("\x7f", "\\u007f")
    return "".join(c if c.isprintable() or c == "\n" else _json_escaped(c) for c in document)


def _escaped(character: str) -> str:
    code = ord(character)
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _json_escaped(character: str) -> str:
    units = character.encode("utf-16-be", errors="surrogatepass")
    return "".join(f"\\u{units[i : i + 2].hex()}" for i in range(0, len(units), 2))
