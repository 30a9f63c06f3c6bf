"""The console that commands print to."""

from rich.console import Console, HighlighterType, JustifyMethod, OverflowMethod
from rich.style import Style
from rich.text import Text

from flows.report.text.visible import one_line


class Terminal(Console):
    """A console that prints every string, including those in tables and trees, as plain text on one line.

    Rich's own console interprets `[red]`, `:bomb:` and `[link=...]`, and passes on escape sequences and line ends.
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
        """Returns the string as plain text; `emoji`, `markup` and `highlight` are ignored."""
        plain = one_line(text)
        return super().render_str(
            plain, style=style, justify=justify, overflow=overflow, emoji=False, markup=False, highlight=False
        )
