"""The command `deerstalker`: its commands by name, and how one is run.

A command stands in the module that does its work, and cyclopts imports that module when the command is used. Modules
of commands import what is slow (Prefect, polars, torch) inside of functions, so that a help page takes no second.
"""

import os
import signal
import sys
from collections.abc import Sequence
from types import FrameType

from cyclopts import App, CycloptsError, Parameter

from artifacts.errors import BadInputError, DeerstalkerError, IdentityMismatchError
from flows.arguments import check_arguments, exact_number
from flows.usage import usage_error
from flows.version import version
from flows.visible import one_line, visible
from flows.wheel_tag import correct_wheel_tag

FAILED, BAD_USAGE, INTERRUPTED, TERMINATED = 1, 2, 130, 143
_LONGEST_ERROR = 4000
"""Characters of an error that are printed."""

app = App(
    name="deerstalker",
    help="Train open-weight language models to deduce: GRPO as a pipeline of discrete, cached, retryable stages.",
    version=version,
    version_flags=["--version"],
    suppress_keyboard_interrupt=False,
    default_parameter=Parameter(converter=exact_number),
)

_COMMANDS = {
    "train:train": "Train a model by a recipe; the same run name goes on where it stopped.",
    "iterate:iterate": "Go on with a run that was begun, by its frozen recipe.",
    "evaluate:evaluate": "Measure a checkpoint on puzzles; each completion is read by the strict and by the published "
    "grader.",
    "solve:solve": "Ask a model one puzzle, and grade the answer where the solution is known.",
    "puzzles:puzzles": "Make puzzles, solve them, and prove what a completion asserts.",
    "recipes:recipes": "List the recipes, show one in full, or compare two.",
    "runs:runs": "List the runs of a store.",
    "runs:show": "Show a run: its iterations, before and after, and how to use what it made.",
    "runs:report": "Write a run's report again: one self-contained page, its pictures, and the same figures as JSON.",
    "compare:compare": """
Learn from one iteration's published rollouts under several recipes, and set what differs side by side.

A recipe for the run's own model and completion length gives its grade, pack and finetune as they stand. Any other was
written for another scale, so only its algorithm is laid over the run: advantages, loss, reference, and what becomes of
groups without a signal. Rewards, learning rate, optimizer, number of updates and lengths stay the run's.
""",
    "backfill:backfill": """
Evaluate checkpoints of runs on another suite of puzzles, and draw its learning curve beside the run's own.

What has a report is not evaluated again; the same command goes on where it stopped.
""",
    "lineage:lineage": "Tell who made an artifact: from what, with which config, code and hardware, and what that was "
    "made from.",
    "lineage:diff": "Set two runs side by side: settings, code and hardware that differ, where they part, and what "
    "came of it.",
    "upkeep:prune": """
List the large files that a rule lets go, and with --yes remove them.

What a promoted checkpoint of any run descends from always stays, and so do figures, reports and lineage: a pruned run
can still be shown, continued and reported on. What lost attempts, a refresh and killed trainings left beside finished
stages is listed too; what an unfinished stage would go on from never is.
""",
    "upkeep:verify": "Read every file of a store again and compare it with its checksum; fails where one is damaged or "
    "gone.",
    "doctor:doctor": """
Check this machine, the store and Prefect, and with --recipe whether that recipe fits; fails on a problem.

Every line is ok, or says what to do. What it writes to try the store is removed; it starts no server.
""",
    "up:up": "Start a Prefect server with its user interface and a worker, and deploy every flow; may be called again.",
    "up:down": "End the server and the worker that `up` started, and nothing else.",
}
"""Each command's function in `flows.commands`, or group of commands, and the text that its help page begins with."""

for _target, _help in _COMMANDS.items():
    app.command(f"flows.commands.{_target}", help=_help)


class Terminated(BaseException):
    """SIGTERM, as an exception, so that child processes are ended on the way out."""


def main() -> None:
    """Entry point of the console script; ends the process with 0, 1 (failed), 2 (bad usage), 130 or 143."""
    signal.signal(signal.SIGTERM, _terminate)
    correct_wheel_tag()
    sys.exit(run_command(sys.argv[1:]))


def run_command(arguments: Sequence[str]) -> int:
    """Runs one command and returns its exit status; an error is one line on stderr."""
    try:
        check_arguments(app, arguments)
        app(arguments, exit_on_error=False, print_error=False, result_action="return_value")
        sys.stdout.flush()
    except BrokenPipeError:  # the reader of our output has left, as `head` does; rich ends the same way
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except (Exception, KeyboardInterrupt, Terminated) as error:
        status, text = _explain(error)
        if "--debug" in arguments:
            import traceback

            print(visible("".join(traceback.format_exception(error))), file=sys.stderr, end="")
        print(f"error: {one_line(text, _LONGEST_ERROR)}", file=sys.stderr)
        return status
    finally:
        _sweep()
    return 0


def _sweep() -> None:
    """Removes the folders that killed commands of this user left; after the work, which has imported what it takes."""
    from stages.scratch import sweep

    sweep()


def _explain(error: BaseException) -> tuple[int, str]:
    match error:
        case CycloptsError():
            return BAD_USAGE, usage_error(error)
        case BadInputError() | IdentityMismatchError():
            return BAD_USAGE, str(error)
        case DeerstalkerError():
            return FAILED, str(error)
        case KeyboardInterrupt():
            return INTERRUPTED, "interrupted; the same command goes on where it stopped"
        case Terminated():
            return TERMINATED, "terminated; the same command goes on where it stopped"
        case _:
            found = " ".join(str(error).split())
            return FAILED, f"internal: {type(error).__name__}: {found}; run again with --debug to see where"


def _terminate(number: int, frame: FrameType | None) -> None:
    raise Terminated
