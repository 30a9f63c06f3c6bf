"""The commands that look at runs and look after a store; `flows.cli` registers them."""

from typing import Annotated, Literal

from cyclopts import Parameter

from artifacts.errors import BadInputError
from flows.options import ANSWERS, STORED, Answers, Changes, Stored, Wide, shipped
from flows.surroundings import DEFAULT_STORE


def runs(*, options: Stored = STORED) -> None:
    """List the runs of a store."""
    from flows.commands.runs import runs_command

    runs_command(options)


def show(run: str, /, *, wide: Wide = False, options: Stored = STORED) -> None:
    """Show a run: its iterations, before and after, and how to use what it made.

    Parameters
    ----------
    run
        Name of the run.
    wide
        Print whole lines and every column, however wide the terminal; without it lines are as wide as the terminal, or
        80 columns where there is none.
    """
    from flows.commands.runs import show_command

    show_command(run, wide, options)


def report(run: str, /, *, options: Stored = STORED) -> None:
    """Write a run's report again: one self-contained page, its pictures, and the same figures as JSON.

    Parameters
    ----------
    run
        Name of the run.
    """
    from flows.commands.runs import report_command

    report_command(run, options)


def backfill(
    runs: Annotated[tuple[str, ...], Parameter(negative=())],
    /,
    *,
    suite: str,
    puzzles: str,
    checkpoints: Literal["all", "every", "best"] = "all",
    every: int = 10,
    at_once: int = 1,
    profile: str = "cpu",
    answers: Answers = ANSWERS,
    options: Stored = STORED,
) -> None:
    """Evaluate checkpoints of runs on another suite of puzzles, and draw its learning curve beside the run's own.

    What has a report is not evaluated again; the same command goes on where it stopped.

    Parameters
    ----------
    runs
        Names of one or more runs.
    suite
        Name of the suite: of its folder under each run, and of its curve.
    puzzles
        RUN:SPLIT or KEY:SPLIT (of a set made by puzzles make), or a JSON file in the published format.
    checkpoints
        All; every k-th and the last; or the best, which is the one that stands promoted.
    every
        The k of --checkpoints every.
    at_once
        How many checkpoints are evaluated side by side, each with an engine of its own.
    profile
        Name of a profile, or path of a TOML file.
    """
    from flows.commands.backfill import backfill_command

    request = {
        "runs": list(runs),
        "suite": suite,
        "puzzles": puzzles,
        "checkpoints": checkpoints,
        "every": every,
        "config": answers.config(),
        "at_once": at_once,
        "profile": profile,
    }
    backfill_command(request, options)


def lineage(artifact: str, /, *, depth: int = 2, wide: Wide = False, options: Stored = STORED) -> None:
    """Tell who made an artifact: from what, with which config, code and hardware, and what that was made from.

    Parameters
    ----------
    artifact
        Its key, as in runs/quickstart/iterations/0003/rollouts; a run (its promoted checkpoint); or RUN@ITERATION.
    depth
        How many steps back; 0 goes to the beginning.
    wide
        Print whole lines, however wide the terminal; without it lines are as wide as the terminal, or 80 columns where
        there is none, and the tree is as deep as they allow.
    """
    from flows.commands.lineage import lineage_command

    lineage_command(artifact, depth, wide, options)


def diff(a: str, b: str, /, *, options: Stored = STORED) -> None:
    """Set two runs side by side: settings, code and hardware that differ, where they part, and what came of it.

    Parameters
    ----------
    a
        Name of a run.
    b
        Name of another.
    """
    from flows.commands.lineage import diff_command

    diff_command(a, b, options)


def prune(
    runs: Annotated[tuple[str, ...], Parameter(negative=())] = (),
    /,
    *,
    parts: str = "training_state",
    keep_last: int = 2,
    keep_every: int = 10,
    keep_for: Literal["regrade", "retrain"] = "retrain",
    comparisons: Annotated[bool, Parameter(negative=())] = False,
    yes: Annotated[bool, Parameter(negative=())] = False,
    options: Stored = STORED,
) -> None:
    """List the large files that a rule lets go, and with --yes remove them.

    What a promoted checkpoint of any run descends from always stays, and so do figures, reports and lineage: a pruned
    run can still be shown, continued and reported on. What lost attempts, a refresh and killed trainings left beside
    finished stages is listed too; what an unfinished stage would go on from never is.

    Parameters
    ----------
    runs
        Names of runs; all of the store where none is given.
    parts
        What may go from an iteration, with commas between: training_state, checkpoint, reference, batch, rollouts.
    keep_last
        Keep everything of a run's last iterations.
    keep_every
        Keep everything of every so many iterations; 0: of none.
    keep_for
        For retrain, also keep what the kept iterations started from.
    comparisons
        Also remove what compare made.
    yes
        Remove. Without it nothing is touched.
    """
    from flows.commands.upkeep import prune_command

    rule = {
        "parts": parts.split(","),
        "keep_last": keep_last,
        "keep_every": keep_every,
        "keep_for": keep_for,
        "comparisons": comparisons,
    }
    prune_command(runs, rule, yes, options)


def verify(
    address: Annotated[str | None, Parameter(show_default=False)] = None, /, *, options: Stored = STORED
) -> None:
    """Read every file of a store again and compare it with its checksum; fails where one is damaged or gone.

    Parameters
    ----------
    address
        The store; the same as --store.
    """
    from flows.commands.upkeep import verify_command

    if address is not None and options.store not in (DEFAULT_STORE, address):
        raise BadInputError("verify", f"two stores, {address} and --store {options.store}", "one")
    verify_command(options.store if address is None else address, options)


def doctor(
    *,
    recipe: Annotated[
        str | None,
        Parameter(
            show_default=False,
            help=f"Name of a recipe ({shipped('recipes')}), or path of a TOML file: checks its memory, its room in the "
            "store, and the time of an iteration.",
        ),
    ] = None,
    profile: str = "cpu",
    set_: Annotated[Changes, Parameter(name="--set")] = (),
    set_profile: Annotated[Changes, Parameter(name="--set-profile")] = (),
    options: Stored = STORED,
) -> None:
    """Check this machine, the store and Prefect, and with --recipe whether that recipe fits; fails on a problem.

    Every line is ok, or says what to do. What it writes to try the store is removed; it starts no server.

    Parameters
    ----------
    profile
        Name of a profile, or path of a TOML file.
    set_
        Change of the recipe, as section.key=value; may be repeated.
    set_profile
        Change of the profile, as section.key=value; may be repeated.
    """
    from flows.commands.doctor import doctor_command

    doctor_command(recipe, profile, set_, set_profile, options)


COMMANDS = (runs, show, report, backfill, lineage, diff, prune, verify, doctor)
