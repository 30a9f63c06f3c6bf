"""The terminal as our commands print to it."""

from rich.console import Console, HighlighterType, JustifyMethod, OverflowMethod
from rich.style import Style
from rich.text import Text

from flows.visible import one_line


class Terminal(Console):
    """A console that takes every string, also one in a table or a tree, for plain text of one line.

    Rich's own reads markup and emoji codes in strings, and passes control characters and line ends on.
    """

    def render_str(
        self,
        text: str,
        *,
        style: str | Style = "",
        justify: JustifyMethod | None = None,
        overflow: OverflowMethod | None = None,
        emoji: bool | None = None,
        markup: bool | None = None,
        highlight: bool | None = None,
        highlighter: HighlighterType | None = None,
    ) -> Text:
        """Returns the string as text, letter by letter; `emoji`, `markup` and `highlight` are not obeyed."""
        plain = one_line(text)
        return super().render_str(
            plain, style=style, justify=justify, overflow=overflow, emoji=False, markup=False, highlight=False
        )
