"""The command `deerstalker`. Only what the command line itself needs is imported here; commands import the rest."""

import os
import signal
import sys
from collections.abc import Sequence
from types import FrameType
from typing import Annotated

from cyclopts import App, CycloptsError, Parameter

from artifacts.errors import BadInputError, DeerstalkerError, IdentityMismatchError
from flows import cli_deployed, cli_store
from flows.arguments import check_arguments, exact_number
from flows.options import ANSWERS, OUTPUT, STORED, Answers, Changes, Output, Stored, shipped
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
puzzles = App(name="puzzles", help="Make puzzles, solve them, and prove what a completion asserts.", version=version)
recipes = App(name="recipes", help="List the recipes, show one in full, or compare two.", version=version)
app.command(puzzles)
app.command(recipes)
for command in (*cli_store.COMMANDS, cli_deployed.iterate, cli_deployed.up, cli_deployed.down):
    app.command(command)


@app.command
def train(
    *,
    recipe: Annotated[
        str,
        Parameter(
            help=f"Name of a recipe ({shipped('recipes')}; `deerstalker recipes` tells more), or path of a TOML file."
        ),
    ] = "quickstart",
    run: Annotated[str | None, Parameter(show_default=False)] = None,
    profile: Annotated[
        str,
        Parameter(help=f"Name of a profile ({shipped('profiles')}: what the machine offers), or path of a TOML file."),
    ] = "cpu",
    set_: Annotated[Changes, Parameter(name="--set")] = (),
    set_profile: Annotated[Changes, Parameter(name="--set-profile")] = (),
    refresh: Changes = (),
    options: Stored = STORED,
) -> None:
    """Train a model by a recipe; the same run name goes on where it stopped.

    Parameters
    ----------
    run
        Name of the run; by default the recipe's.
    set_
        Change of the recipe, as section.key=value; may be repeated. Recorded with the run.
    set_profile
        Change of the profile, as section.key=value; may be repeated.
    refresh
        Stage to redo though published, in every iteration or as STAGE@ITERATION in one; may be repeated.
    """
    from flows.commands.train import train_command

    train_command(recipe, run, profile, changes=set_, profile_changes=set_profile, refresh=refresh, options=options)


@app.command
def evaluate(
    *,
    checkpoint: str,
    puzzles: str,
    profile: str = "cpu",
    answers: Answers = ANSWERS,
    options: Stored = STORED,
) -> None:
    """Measure a checkpoint on puzzles; each completion is read by the strict and by the published grader.

    Parameters
    ----------
    checkpoint
        A run, RUN@ITERATION, a checkpoint's key, a Hugging Face folder, hub:ID, gguf:PACKAGE/FILE or recipe:NAME.
    puzzles
        A JSON file in the published format, or RUN:SPLIT with train, val or test.
    profile
        Name of a profile, or path of a TOML file.
    """
    from flows.commands.evaluate import evaluate_command

    evaluate_command(checkpoint, puzzles, profile, answers.config(), options)


@app.command
def solve(
    file: Annotated[str, Parameter(allow_leading_hyphen=True)],
    /,
    *,
    checkpoint: str,
    index: int = 0,
    samples: int = 1,
    temperature: float = 0.0,
    max_tokens: int = 256,
    profile: str = "cpu",
    options: Stored = STORED,
) -> None:
    """Ask a model one puzzle, and grade the answer where the solution is known.

    Parameters
    ----------
    file
        Puzzles as JSON in the published format, RUN:SPLIT with train, val or test, or a prompt as plain text; - reads a
        prompt from stdin.
    checkpoint
        A run (its promoted checkpoint), RUN@ITERATION, a checkpoint's key, or any other form that evaluate takes.
    index
        Which puzzle of the file or split, from 0.
    samples
        How many answers.
    temperature
        0 takes the most likely answer.
    max_tokens
        Longest answer.
    profile
        Name of a profile, or path of a TOML file.
    """
    from flows.commands.solve import solve_command

    settings = {"samples_per_prompt": samples, "temperature": temperature, "max_tokens": max_tokens}
    solve_command(checkpoint, file, index, profile, settings=settings, options=options)


@app.command
def compare(
    run: str,
    /,
    *,
    recipes: str,
    iteration: int = 1,
    set_: Annotated[Changes, Parameter(name="--set")] = (),
    profile: str = "cpu",
    options: Stored = STORED,
) -> None:
    """Learn from one iteration's published rollouts under several recipes, and set what differs side by side.

    A recipe for the run's own model and completion length gives its grade, pack and finetune as they stand. Any other
    was written for another scale, so only its algorithm is laid over the run: advantages, loss, reference, and what
    becomes of groups without a signal. Rewards, learning rate, optimizer, number of updates and lengths stay the run's.

    Parameters
    ----------
    run
        The run whose rollouts are used.
    recipes
        Names of recipes or paths of TOML files, with commas between; `own` stands for the run's own settings.
    iteration
        Which iteration of the run.
    set_
        Change of every recipe, as section.key=value; may be repeated.
    profile
        Name of a profile, or path of a TOML file.
    """
    from flows.commands.compare import compare_command

    compare_command(run, iteration, recipes.split(","), profile, changes=set_, options=options)


@puzzles.command
def make(
    *,
    out: str,
    count: int = 64,
    val: int | None = None,
    test: int | None = None,
    size: Annotated[str, Parameter(name=["--size", "--tier"])] = "easy",
    environment: str = "temporal_clue",
    seed: int = 0,
    tokenizer: Annotated[str | None, Parameter(show_default=False)] = None,
    profile: str = "cpu",
    options: Output = OUTPUT,
) -> None:
    """Make different puzzles with one solution each and no clue to spare; a killed run goes on where it stopped.

    Parameters
    ----------
    out
        A store, for splits that share no puzzle and a report; or a file that ends in .json, in the published format.
        What is drawn for a file stands in a hidden folder beside it until the file is written.
    count
        How many puzzles. A tenth each, at least one of three or more, is held out for validation and test; with --val
        or --test this is the number for training alone. A file holds all of them.
    val
        How many more for validation; with --test alone none.
    test
        How many more for the final test; with --val alone none.
    size
        temporal_clue: reduced, easy, small, large, full; zebra: easy, medium, full.
    environment
        The puzzle family: temporal_clue or zebra.
    seed
        The same seed gives the same puzzles on every machine.
    tokenizer
        A checkpoint, in any form that evaluate takes, in whose tokens the report measures prompts; by default
        the installed SmolLM2.
    profile
        Name of a profile, or path of a TOML file; `workers` of it says how many cores are used, by default all.
    """
    from flows.commands.puzzles import make_command, split_sizes

    make_command(split_sizes(count, val, test), size, environment, seed, out, tokenizer, profile, options)


@puzzles.command(name="solve")
def solve_puzzles(
    file: str, /, *, minimal: Annotated[bool, Parameter(negative=())] = False, options: Output = OUTPUT
) -> None:
    """Solve the puzzles of a file from their text alone, prove each answer unique or not, and compare.

    Parameters
    ----------
    file
        Puzzles as JSON in the published format.
    minimal
        Also prove of every clue that it is needed.
    """
    from flows.commands.puzzles import solve_command

    solve_command(file, minimal, options)


@puzzles.command
def prove(
    file: str,
    completion: Annotated[str, Parameter(allow_leading_hyphen=True)],
    /,
    *,
    index: int = 0,
    options: Output = OUTPUT,
) -> None:
    """List what a completion asserts about a puzzle: proved, restating a clue, left open, or contradicted.

    Parameters
    ----------
    file
        Puzzles as JSON in the published format.
    completion
        A text file; - reads stdin.
    index
        Which puzzle of the file, from 0.
    """
    from flows.commands.puzzles import prove_command

    prove_command(file, completion, index, options)


@recipes.default
def list_recipes(*, options: Output = OUTPUT) -> None:
    """List the recipes that come with the package."""
    from flows.commands.runs import recipes_command

    recipes_command(options)


@recipes.command(name="show")
def show_recipe(
    name: str, /, *, set_: Annotated[Changes, Parameter(name="--set")] = (), options: Output = OUTPUT
) -> None:
    """Show a recipe with every default filled in, as a run would freeze it.

    Parameters
    ----------
    name
        Name of a recipe, or path of a TOML file.
    set_
        Change of the recipe, as section.key=value; may be repeated.
    """
    from flows.commands.runs import show_recipe_command

    show_recipe_command(name, set_, options)


@recipes.command(name="diff")
def diff_recipes(a: str, b: str, /, *, options: Output = OUTPUT) -> None:
    """List the settings in which two recipes differ, every default filled in.

    Parameters
    ----------
    a
        Name of a recipe, or path of a TOML file.
    b
        Name of another.
    """
    from flows.commands.runs import diff_recipes_command

    diff_recipes_command(a, b, options)


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
