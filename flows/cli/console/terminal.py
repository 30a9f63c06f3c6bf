"""The console that commands print to."""

from typing import Any

from rich.console import Console
from rich.text import Text

from flows.report.text.visible import one_line


class Terminal(Console):
    """A console that prints every string, including those in tables and trees, as plain text on one line.

    Rich's own console interprets `[red]`, `:bomb:` and `[link=...]`, and passes on escape sequences and line ends.
    """

    def render_str(self, text: str, **options: Any) -> Text:
        """Returns the string as plain text; `emoji`, `markup` and `highlight` are ignored."""
        options |= {"emoji": False, "markup": False, "highlight": False}
        return super().render_str(one_line(text), **options)
