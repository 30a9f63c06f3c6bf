"""Escapes untrusted text, so that a terminal or page shows every character and interprets none.

Names, titles, clues, completions and the contents of stores come from files that anybody may have written. A control
character would steer the terminal, a bidirectional mark would reorder the line, and an end of line would start a line
that looks like the program's own. Markup is not escaped here: the terminal, the page and Prefect each escape their own.
"""


def visible(text: str) -> str:
    """Returns text in which every character is visible; line ends stay.

    Control characters (C0, C1), bidirectional marks, zero-width and private characters and lone surrogates become
    escapes such as `\\u202e`; a tab becomes four spaces.
    """
    text = text.replace("\r\n", "\n").replace("\t", "    ")
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c == "\n" else _escaped(c) for c in text)


def one_line(text: str, longest: int | None = None) -> str:
    """Returns visible text for one line; line ends become `\\u000a`.

    Args:
        longest: Number of characters to keep. In longer text, a note with the number of omitted characters replaces the
            middle. None keeps all.
    """
    text = visible(text).replace("\n", "\\u000a")
    if longest is None or len(text) <= longest:
        return text
    half = longest // 2
    return f"{text[:half]} [... {len(text) - 2 * half} characters left out ...] {text[-half:]}"


def visible_json(document: str) -> str:
    """Returns an equal JSON document in which the characters that `visible` escapes are JSON escapes."""
    if document.isascii():  # json.dumps escapes all invisible ASCII characters but DEL
        return document.replace("\x7f", "\\u007f")
    return "".join(c if c.isprintable() or c == "\n" else _json_escaped(c) for c in document)


def _escaped(character: str) -> str:
    code = ord(character)
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _json_escaped(character: str) -> str:
    units = character.encode("utf-16-be", errors="surrogatepass")
    return "".join(f"\\u{units[i : i + 2].hex()}" for i in range(0, len(units), 2))
