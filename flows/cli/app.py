"""The program `deerstalker`: the table of its commands, and the function that runs one.

Each command is a function in the module that does its work. Cyclopts imports the module when the command is used. These
modules import slow packages (Prefect, Polars) inside functions, so that a help page takes less than a second.
"""

import gc
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from cyclopts import App, CycloptsError, Parameter

from artifacts.errors import INDENT, BadInputError, DeerstalkerError, DiskFullError, IdentityMismatchError
from artifacts.local.full_disk import disk_full, folder_of, is_full_disk, is_quota, nearly_full, temporary_folder
from flows.cli.console.arguments import check_arguments, exact_number
from flows.cli.console.interrupts import INTERRUPTED, TERMINATED, Interrupts, Terminated, leave
from flows.cli.console.usage import usage_error
from flows.cli.console.version import version
from flows.cli.console.wheel_tag import correct_wheel_tag
from flows.report.text.visible import one_line, visible

FAILED, BAD_USAGE = 1, 2
_LONGEST_ERROR = 4000
"""Largest number of characters of an error that are printed."""

app = App(
    name="deerstalker",
    help="Train open-weight language models to deduce: GRPO as a pipeline of discrete, cached, retryable stages.",
    version=version,
    version_flags=["--version"],
    suppress_keyboard_interrupt=False,
    default_parameter=Parameter(converter=exact_number),
)

_COMMANDS = {
    "train:train": "Train a model with a recipe; the same run name continues where it stopped.",
    "train:iterate": "Continue a run with its frozen recipe.",
    "evaluate:evaluate": "Measure a checkpoint on puzzles, with every grader of their environment.",
    "evaluate:benchmark": """
Ask checkpoints and models behind APIs the same puzzles, and print their accuracy and cost.

No answer is bought twice: the same command continues where it stopped, and more samples add to those that are stored.
""",
    "solve:solve": "Ask a model one puzzle, and grade the answer if the solution is known.",
    "puzzles:puzzles": "Make puzzles, solve them, and prove the statements of a completion.",
    "environments:environments": "List the environments that are installed, or try one.",
    "recipes:recipes": "List the recipes, show one in full, or compare two.",
    "runs:runs": "List the runs of a store.",
    "runs:show": "Show a run: its iterations, its results before and after training, and how to use its checkpoint.",
    "runs:rollouts": """
Write prompts, completions, rewards and advantages of a run as a data set: FILE.jsonl or FILE.parquet.

The columns have the names of TRL's conversational data sets: `prompt` and `completion` are lists of messages. `step` is
the iteration.
""",
    "runs:report": "Write a run's report again: one self-contained page, its pictures, and its figures as JSON.",
    "runs:study": "Put several runs, and the models of a benchmark, on one page of figures and fits.",
    "compare:compare": """
Train on one iteration's rollouts with several recipes, and show the results side by side.

A recipe for the run's model and completion length is used with its own grade, pack and finetune sections. Any other
recipe was written for another scale, so the run takes only its algorithm: advantages, loss, reference, and the
treatment of groups without a signal. Rewards, learning rate, optimizer, number of updates and lengths are the run's.
""",
    "backfill:backfill": """
Evaluate checkpoints of runs on another suite of puzzles, and draw its learning curve beside the run's own.

A checkpoint that has a report is not evaluated again; the same command continues where it stopped.
""",
    "checkpoints:merge": """
Merge checkpoints of one shape, such as specialists that began with the same model, into one.

A recipe can begin with the result: model.source = "checkpoint" names its key, or "merged" merges as the first stage.
""",
    "checkpoints:export": """
Write a checkpoint for other programs: a Hugging Face folder, a PEFT adapter or GGUF, also to the hub.

The folder has a model card with the licence, the chat template and a generation config.
""",
    "lineage:lineage": "Show how an artifact was made: its stage, config, code, hardware and inputs, and their inputs.",
    "lineage:diff": "Compare two runs: differing settings, code and hardware, the first differing stage, and results.",
    "upkeep:prune": """
List the large files that a rule no longer keeps, and remove them with --yes.

The ancestors of every promoted checkpoint stay, and so do figures, reports and lineage: a pruned run can still be
shown, continued and reported on. The list includes files that lost attempts, refreshed stages and killed trainings left
beside finished stages. It never includes files from which an unfinished stage would continue. Unless runs are named, it
also includes what attempts at shared artifacts left beside those that are a day old.
""",
    "upkeep:verify": "Read every file of a store and compare it with its checksum; fails if one is damaged or missing.",
    "doctor:doctor": """
Check this machine, the store and Prefect, and with --recipe whether that recipe fits; fails on a problem.

Every line is ok, or says what to do. The command removes the files that it writes to test the store, and starts no
server.
""",
    "doctor:plan": """
Plan a recipe on GPUs to rent: what fits, how long an iteration takes and what it costs, by arithmetic.

Memory is the trainer's peak, beside the engine. Times are estimates from data sheets and assumed efficiencies.
""",
    "up:up": "Start a Prefect server with its user interface and a worker, and deploy every flow; may be repeated.",
    "up:down": "Stop the server and the worker that `up` started.",
}
"""Help text of each command, by `module:name` of its function or group of commands in `flows.cli`."""

for _target, _help in _COMMANDS.items():
    app.command(f"flows.cli.{_target}", help=_help)


def main() -> None:
    """Entry point of the console script; ends the process with 0, 1 (failed), 2 (bad usage), 130 or 143."""
    interrupts = Interrupts()
    try:
        interrupts.start()
        gc.set_threshold(100_000)  # with the default threshold, garbage collection takes an eighth of the import time
        correct_wheel_tag()
        status = run_command(sys.argv[1:], interrupts.tell)
        interrupts.command_ended()
    except (KeyboardInterrupt, Terminated) as error:
        status = interrupts.tell(error)
    if status in (INTERRUPTED, TERMINATED):
        leave(status)
    sys.exit(status)


def run_command(arguments: Sequence[str], interrupted: Callable[[], int | None] = lambda: None) -> int:
    """Runs one command and returns its exit status; an error is one line on stderr, with lines of a child below it.

    Args:
        arguments: The command and its arguments.
        interrupted: Function that explains an interruption on stderr and returns the exit status; it returns None if
            there was no interruption. Code that catches everything may have turned the interruption into an error of
            its own.
    """
    try:
        check_arguments(app, arguments)
        app(arguments, exit_on_error=False, print_error=False, result_action="return_value")
        sys.stdout.flush()
    except Exception as error:
        if (status := interrupted()) is not None:
            return status
        if isinstance(error, BrokenPipeError):  # the reader, such as `head`, closed the pipe; rich exits the same way
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return FAILED
        status, text = _explain(error)
        tail = error.tail if isinstance(error, DeerstalkerError) else ()
        if "--debug" in arguments:
            import traceback

            print(visible("".join(traceback.format_exception(error))), file=sys.stderr, end="")
        print(f"error: {one_line(text, _LONGEST_ERROR)}", file=sys.stderr)
        for line in tail:
            print(f"{INDENT}{one_line(line)}", file=sys.stderr)
        if isinstance(error, OSError) and is_full_disk(error):
            # The rest of what the command has printed may not fit either.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return status
    finally:
        # Scratch folders of killed commands go last, because the command has imported the slow modules by now.
        from stages.processes.scratch import sweep

        sweep()
    return 0


def _explain(error: BaseException) -> tuple[int, str]:
    match error:
        case CycloptsError():
            return BAD_USAGE, usage_error(error)
        case BadInputError() | IdentityMismatchError():
            return BAD_USAGE, error.line
        case DeerstalkerError():
            return FAILED, error.line
        case _ if is_full_disk(error):
            return FAILED, _full_disk(error).line
        case _:
            message = " ".join(str(error).split())
            return FAILED, f"internal: {type(error).__name__}: {message}; run again with --debug to see where"


def _full_disk(error: BaseException) -> DiskFullError:
    """Returns the error that names the full disk; an error of the operating system often does not name the file."""
    full = [folder for folder in (Path.cwd(), temporary_folder()) if nearly_full(folder)]
    if folder := folder_of(error) or next(iter(full), None):
        return disk_full(folder, quota=is_quota(error))
    where = "the disk to which this command writes"
    return DiskFullError(where, "no space left", "room for its output", "free some space, or write to another disk")
