"""Draws the screen of `show RUN --watch --samples 3`: `python -m tests.support.watch_picture STORE RUN`.

The picture is written to `docs/show_watch.svg`. It shows the run as its store has it at that moment.
"""

import io
import re
import sys
from pathlib import Path

from rich.console import Console

from artifacts.store.store import Store
from flows.report.terminal.watch import RunScreen

PICTURE = Path(__file__).parents[2] / "docs" / "show_watch.svg"


def main(store: str, run: str) -> None:
    """Draws a run's screen in a terminal of 110 columns."""
    screen = RunScreen(Store.open(store), run, samples=3)
    screen.look()
    console = Console(record=True, width=110, height=40, file=io.StringIO(), force_terminal=True)
    console.print(screen)
    picture = console.export_svg(title=f"deerstalker show {run} --watch --samples 3")
    fonts = re.compile(r"\s*@font-face \{.*?\}", re.DOTALL)  # which a reader's browser would ask another server for
    PICTURE.write_text(fonts.sub("", picture), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
