"""Samples of an iteration as lines for the terminal."""

from rich.console import Console
from rich.text import Text

from artifacts.store.store import Store
from flows.lookup.history import RunRecord
from flows.report.example_group import ReadAnswer, Sample, find_samples
from flows.report.text.visible import one_line, visible
from flows.report.text.wrapping import wrapped

_PROMPT_CHARACTERS = 300
_MOST_LINES = 40


def print_samples(record: RunRecord, store: Store, count: int, console: Console) -> None:
    """Prints `count` completions of the newest graded iteration (see `find_samples`)."""
    graded = record.newest_graded
    if graded is None:
        console.print("no iteration has completions and grades yet")
        console.print()
        return
    for sample in find_samples(graded, record.layout, store, count):
        for line in sample_lines(sample, console.width, _MOST_LINES, _PROMPT_CHARACTERS):
            console.print(line, soft_wrap=True)
        console.print()


def sample_lines(sample: Sample, width: int, most_lines: int, prompt_characters: int = 0) -> list[Text]:
    """Returns a completion with its grade in lines of at most `width` columns.

    The first line has reward and advantage; then come the prompt, the completion as the model wrote it, and the answers
    that were read from it.

    Args:
        sample: The completion.
        width: Columns of a line.
        most_lines: Largest number of lines of the completion; a note replaces the rest.
        prompt_characters: Characters of the prompt to show; 0 leaves it out.
    """
    item = sample.completion
    advantage = "not trained on" if item.advantage is None else f"advantage {item.advantage:+.3f}"
    head = f"{item.title}: reward {item.reward:.3f}, {advantage}, {item.finish_reason}"
    asked = f"prompt: {one_line(' '.join(sample.prompt.split()), prompt_characters)}" if prompt_characters else ""
    written = [line for part in visible(item.text).splitlines() for line in wrapped(part, width - 2) or [""]]
    if len(written) > most_lines:
        left = len(written) - most_lines + 1
        written = [*written[: most_lines - 1], f"[... {left} more lines ...]"]
    read = ", ".join(f"{answer.question} {_verdict(answer)}" for answer in item.answers)
    return [
        Text(one_line(head), style="bold"),
        *(Text(line, style="dim") for line in wrapped(asked, width)),
        *(Text(f"  {line}") for line in written),
        *(Text(line, style="dim") for line in wrapped(f"read: {one_line(read)}" if read else "", width)),
    ]


def _verdict(answer: ReadAnswer) -> str:
    if answer.correct:
        return "right"
    return f"{answer.said!r}" + (f" for {answer.right!r}" if answer.right else "")
