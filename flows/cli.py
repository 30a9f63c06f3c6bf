"""The command `deerstalker`. Only what the command line itself needs is imported here; commands import the rest."""

import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Annotated, Literal

from cyclopts import App, CycloptsError, Parameter

from artifacts.errors import BadInputError, DeerstalkerError, IdentityMismatchError
from flows.surroundings import DEFAULT_STORE

OK, FAILED, BAD_USAGE, INTERRUPTED, TERMINATED = 0, 1, 2, 130, 143

app = App(
    name="deerstalker",
    help="Train open-weight language models to deduce: GRPO as a pipeline of discrete, cached, retryable stages.",
    version_flags=["--version"],
)
puzzles = App(name="puzzles", help="Make puzzles.")
app.command(puzzles)


@Parameter(name="*")
@dataclass(frozen=True)
class Common:
    """Options of every command.

    Parameters
    ----------
    store
        Where artifacts live: a folder, file://, or s3://bucket/prefix.
    json
        Print one JSON document on stdout; everything else goes to stderr.
    debug
        Show logs and tracebacks.
    """

    store: str = DEFAULT_STORE
    json: Annotated[bool, Parameter(negative=())] = False
    debug: Annotated[bool, Parameter(negative=())] = False


@app.command
def train(
    *,
    recipe: str = "quickstart",
    run: str | None = None,
    profile: str = "cpu",
    set_: Annotated[tuple[str, ...], Parameter(name="--set", negative=())] = (),
    set_profile: Annotated[tuple[str, ...], Parameter(name="--set-profile", negative=())] = (),
    common: Common = Common(),
) -> int:
    """Train a model by a recipe; the same run name continues where it stopped.

    Parameters
    ----------
    recipe
        Name of a recipe, or path of a TOML file.
    run
        Name of the run; by default the recipe's.
    profile
        Name of a profile (what the machine offers), or path of a TOML file.
    set_
        Change of the recipe, as section.key=value; may be repeated. Recorded with the run.
    set_profile
        Change of the profile, as section.key=value; may be repeated.
    """
    from flows.commands.train import train_command

    return train_command(recipe, run, profile, set_, set_profile, common)


class Terminated(BaseException):
    """SIGTERM, as an exception, so that child processes are ended on the way out."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point of the console script; ends the process with 0, 1 (failed), 2 (bad usage), 130 or 143."""
    signal.signal(signal.SIGTERM, _terminate)
    sys.exit(run(sys.argv[1:] if arguments is None else arguments))


def run(arguments: Sequence[str]) -> int:
    """Runs one command and returns its exit status; errors are one line on stderr."""
    debug = "--debug" in arguments
    try:
        result = app(arguments, exit_on_error=False, print_error=False, result_action="return_value")
        return result if isinstance(result, int) else OK
    except CycloptsError as error:
        return _complain(" ".join(str(error).split()) + "; see `deerstalker --help`", BAD_USAGE)
    except (BadInputError, IdentityMismatchError) as error:
        return _failed(error, BAD_USAGE, debug)
    except DeerstalkerError as error:
        return _failed(error, FAILED, debug)
    except KeyboardInterrupt:
        return _complain("interrupted; run the same command again to go on", INTERRUPTED)
    except Terminated:
        return _complain("terminated; run the same command again to go on", TERMINATED)
    except Exception as error:
        return _failed(error, FAILED, debug, f"internal: {type(error).__name__}: {error}; run with --debug for more")


def _failed(error: Exception, status: int, debug: bool, text: str = "") -> int:
    if debug:
        import traceback

        traceback.print_exception(error)
    return _complain(" ".join((text or str(error)).split()), status)


def _complain(text: str, status: int) -> int:
    print(f"error: {text}", file=sys.stderr)
    return status


def _terminate(number: int, frame: FrameType | None) -> None:
    raise Terminated
