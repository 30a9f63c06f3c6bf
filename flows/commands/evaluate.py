"""`deerstalker evaluate`."""

from typing import Any

from rich.console import Console
from rich.table import Table

from artifacts.store import Store
from flows.backend import Backend
from flows.commands.output import local_folder, print_json
from flows.figures import measurement
from flows.options import Stored
from flows.summary import MEASURES, MODES
from flows.surroundings import prepare_surroundings


def evaluate_command(checkpoint: str, puzzles: str, profile: str, settings: dict[str, Any], options: Stored) -> None:
    """Runs the evaluate flow and prints the figures, one column a grader.

    Args:
        settings: Fields of `stages.evaluate.EvaluateConfig`, as given.
    """
    store = Store.open(options.store)
    home = local_folder(store)
    prepare_surroundings(home, debug=options.debug)
    with Backend(home / "server.log") as backend:
        from flows.recipes import load_profile, validate
        from stages.evaluate import EvaluateConfig

        config = validate(EvaluateConfig, settings, "evaluate")
        load_profile(profile)

        from flows.evaluation import EvaluationRequest, evaluate_checkpoint
        from flows.live import choose_view, use_view

        request = EvaluationRequest(
            checkpoint=checkpoint, puzzles=puzzles, store=options.store, profile=profile, config=config
        )
        with backend.ready(), use_view(choose_view(plain=options.json or options.debug)):
            result = evaluate_checkpoint(request)
    if options.json:
        print_json(result.model_dump(mode="json"))
        return
    table = Table(title=f"{checkpoint} on {result.puzzles} puzzles, means with 95% intervals", title_justify="left")
    table.add_column("")
    for grader in result.gradings:
        table.add_column(f"{grader} grading", justify="right")
    for title, cell in MEASURES:
        for mode in MODES:
            found = [measurement(facts, mode) for facts in result.gradings.values()]
            if any(found):
                table.add_row(f"{title}, {mode}", *(cell(item) if item else "" for item in found))
    console = Console()
    console.print(table)
    console.print(f"report: {result.report}", highlight=False, soft_wrap=True)
