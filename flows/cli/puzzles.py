"""`deerstalker puzzles make`, `puzzles solve` and `puzzles prove`."""

import json
import shutil
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, Parameter

from artifacts.documents.parsing import exists, is_folder, is_link
from artifacts.documents.suggestions import did_you_mean
from artifacts.errors import BadInputError, StoreError
from artifacts.local.full_disk import disk_full, is_full_disk, is_quota
from artifacts.refs import Ref
from artifacts.store.keys import TEMPORARY_PREFIX, shown
from artifacts.store.store import Store
from flows.cli.console.options import OUTPUT, Flag, Output
from flows.cli.console.output import print_json, print_line
from flows.cli.console.prefect_session import prefect_session
from flows.cli.console.puzzle_checks import not_provable, puzzle_at
from flows.cli.console.texts import read_text_argument
from flows.cli.console.version import version
from flows.config.settings import validate
from stages.environments import environment as environments
from stages.environments.capabilities import HasLevels, Proves, needs
from stages.environments.published import read_puzzles
from stages.environments.puzzle import Checked, DeductionCounts, Puzzle
from stages.processes.cgroups import usable_cores

puzzles = App(name="puzzles", version=version)

_WORK_NAMES = ("puzzles", "models", ".prefect", "written.json", TEMPORARY_PREFIX)
"""Prefixes of all names in the hidden working folder of `puzzles make --out FILE`."""


def split_sizes(count: int, val: int | None, test: int | None) -> dict[str, int]:
    """Returns the number of puzzles by split from the options of `puzzles make`; its help describes the rule."""
    if val is not None or test is not None:
        return {"train": count, "val": val or 0, "test": test or 0}
    held_out = max(1, count // 10) if count >= 3 else 0
    return {"train": count - 2 * held_out, "val": held_out, "test": held_out}


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
    profile: Annotated[
        str,
        Parameter(
            help="Name of a profile, or path of a TOML file. Its `workers` is the number of cores used, by default all."
        ),
    ] = "cpu",
    options: Output = OUTPUT,
) -> None:
    """Make distinct puzzles with one solution each and no needless clue; a killed run continues where it stopped.

    Args:
        out: A store, which gets splits without common puzzles and a report; or a file NAME.json, which gets all
            puzzles in the published format. Until the file is written, a hidden folder beside it keeps the puzzles.
        count: Number of puzzles in all. Of three or more, a tenth (at least one) becomes the validation split and a
            tenth the test split. With --val or --test it is the number of training puzzles.
        val: Number of additional puzzles for validation; 0 if only --test is given.
        test: Number of additional puzzles for the final test; 0 if only --val is given.
        size: temporal_clue: reduced, easy, small, large, full; zebra: easy, medium, full.
        environment: temporal_clue or zebra.
        seed: The same seed gives the same puzzles on every machine.
        tokenizer: A checkpoint, in any form that evaluate takes. The report counts prompt lengths in its tokens; by
            default in those of the installed SmolLM2.
    """
    from stages.prepare import PrepareConfig

    sizes, remedy = split_sizes(count, val, test), "name it in a recipe, below [puzzles.puzzle], and train with it"
    tiers = needs(environments.get(environment), HasLevels, "--environment", remedy).levels
    if size not in tiers:
        unknown = f"unknown to {environment}{did_you_mean(size, tiers)}"
        raise BadInputError(f"--size {size}", unknown, ", ".join(tiers))
    settings = {"puzzle": tiers[size].model_dump(), "seed": seed, **sizes}
    validate(PrepareConfig, settings, "puzzles make")  # checks each split; --out FILE joins them below
    request = {"profile": profile, "tokenizer": tokenizer}
    if not out.endswith(".json"):
        made = _publish(out, settings, request, options)
        if options.json:
            print_json({"store": Store.open(out).url, "tier": size, "seed": seed, **sizes, **made})
        else:
            splits = ", ".join(f"{split} {puzzle_count}" for split, puzzle_count in sizes.items() if puzzle_count)
            print_line(f"{made['artifact']['key']} ({splits})")
            print_line(f"report: {made['report']}")
        return
    if tokenizer is not None:
        raise BadInputError("--tokenizer", f"given with --out {out}, which has no report", "a folder or a bucket there")
    path = Path(out)
    _check_writable(path)
    folder = path.with_name(f".{path.name}.drawn")
    _check_work_folder(folder)
    made = _publish(str(folder), {**settings, "train": 0, "val": 0, "test": sum(sizes.values())}, request, options)
    drawn = _drawn_puzzles(folder, made["artifact"])
    published = [{"num_clues": item.num_clues, "prompt": item.prompt, "solution": item.solution} for item in drawn]
    _write_whole(path, folder / "written.json", json.dumps(published, indent=4) + "\n")
    shutil.rmtree(folder, ignore_errors=True)
    if options.json:
        print_json({"file": str(path), "puzzles": len(drawn), "tier": size, "seed": seed})
    else:
        print_line(f"{len(drawn)} puzzles of tier {size} in {path}")


def _drawn_puzzles(folder: Path, ref: dict[str, Any]) -> list[Puzzle]:
    """Reads the puzzles of a set that has only a test split."""
    from artifacts.reading import Artifact
    from artifacts.schemas import PUZZLES
    from stages.environments.tables import from_table

    return from_table(Artifact.open(Store.open(str(folder)), Ref(**ref)).read_table("test.parquet", PUZZLES))


def _check_work_folder(folder: Path) -> None:
    """Refuses a working folder with other files, because it is removed once the puzzle file is written."""
    if is_link(folder) or (exists(folder) and not is_folder(folder)):
        raise BadInputError(str(folder), "a link or a file", "a folder, or nothing", "move it away")
    names = sorted(path.name for path in folder.iterdir()) if is_folder(folder) else []
    if others := [name for name in names if not name.startswith(_WORK_NAMES)]:
        raise BadInputError(str(folder), f"holds {others[0]!r}", "files of `puzzles make`, or nothing", "move it away")


def _write_whole(path: Path, draft: Path, text: str) -> None:
    """Writes a file completely or not at all, by renaming `draft`; a symbolic link at `path` is not followed."""
    try:
        with draft.open("w", encoding="utf-8") as stream:
            stream.write(text)
        draft.replace(path)
    except OSError as error:
        raise _unwritable(path, error) from error


def _check_writable(path: Path) -> None:
    """Refuses a path that cannot be written, before hours are spent; an existing file keeps its content."""
    if is_link(path):
        target = shown(str(path.readlink()))
        raise BadInputError(f"--out {path}", f"a symbolic link to {target}", "a file", "name the file itself")
    if not is_folder(path.parent):
        raise BadInputError(f"--out {path}", "no such folder", "a file in an existing folder", "make the folder first")
    existed = exists(path)
    try:
        with path.open("ab"):
            pass
        if not existed:
            path.unlink()
    except (OSError, ValueError) as error:  # ValueError: a path with a NUL character
        raise _unwritable(path, error) from error


def _unwritable(path: Path, error: OSError | ValueError) -> StoreError:
    if is_full_disk(error):
        return disk_full(path.parent, quota=is_quota(error))
    reason = error.strerror if isinstance(error, OSError) else error
    return StoreError(f"--out {path}", f"cannot be written ({reason})", "a file to write")


def _publish(url: str, settings: dict[str, Any], request: dict[str, Any], options: Output) -> dict[str, Any]:
    from flows.config.recipes import load_profile
    from stages.prepare import PrepareConfig

    config = validate(PrepareConfig, settings, "puzzles make")
    load_profile(request["profile"])
    if request["tokenizer"] is not None:
        _check_tokenizer(request["tokenizer"], url)
    with prefect_session(Store.open(url), options) as running:
        from flows.puzzle_set import PuzzleSetRequest, make_puzzles

        puzzle_set = PuzzleSetRequest(store=url, puzzles=config, **request)
        with running():
            return make_puzzles(puzzle_set).model_dump(mode="json")


def _check_tokenizer(name: str, url: str) -> None:
    """Refuses a checkpoint that does not exist, before hours are spent on the puzzles.

    Raises:
        BadInputError: There is no such checkpoint.
    """
    from flows.lookup.checkpoints import check_checkpoint

    try:
        check_checkpoint(name, Store.open(url))
    except BadInputError as error:
        raise BadInputError(f"--tokenizer {name}", error.found, error.expected, error.remedy) from error


@puzzles.command
def solve(file: str, /, *, minimal: Flag = False, options: Output = OUTPUT) -> None:
    """Solve the puzzles of a file from their text alone, prove whether each answer is unique, and compare.

    Args:
        file: Puzzles as JSON in the published format.
        minimal: Also prove that every clue is needed.
    """
    puzzles = read_puzzles(file)
    workers = min(len(puzzles), usable_cores())
    with ProcessPoolExecutor(workers) as pool:
        checked = list(pool.map(partial(_check, minimal=minimal), puzzles))
    report: dict[str, Any] = {
        "file": file,
        "count": len(checked),
        "read": sum(not item.unread for item in checked),
        "unique": sum(item.all_unique for item in checked),
        "equal": sum(item.equal for item in checked),
        "same_text": sum(item.same_text for item in checked),
        "minimal": sum(item.needless == () for item in checked) if minimal else None,
        "seconds": sum(item.seconds for item in checked),
        "puzzles": [
            {**asdict(item), "all_unique": item.all_unique, "equal": item.equal, "given": puzzle.solution}
            for item, puzzle in zip(checked, puzzles, strict=True)
        ],
    }
    if options.json:
        print_json(report)
        return
    for item, puzzle in zip(checked, puzzles, strict=True):
        print_line(f"{item.prompt_id}: {_verdict(item, puzzle)}; {item.seconds:.2f} s")
    proved = f", {report['minimal']} minimal" if minimal else ""
    print_line(
        f"{report['count']} puzzles: {report['read']} read, {report['unique']} unique, {report['equal']} equal to the "
        f"given solution{proved}; {report['seconds']:.1f} s of solving"
    )


@puzzles.command
def prove(
    file: str,
    completion: Annotated[str, Parameter(allow_leading_hyphen=True)],
    /,
    *,
    index: int = 0,
    options: Output = OUTPUT,
) -> None:
    """List the statements of a completion about a puzzle: proved, restated from a clue, open, or contradicted.

    Args:
        file: Puzzles as JSON in the published format.
        completion: A text file; - reads stdin.
        index: Number of the puzzle in the file, from 0.
    """
    from stages.environments.tables import assertions

    puzzle = puzzle_at(read_puzzles(file), index, file)
    text = read_text_argument(completion, "a text file, or - for stdin")
    _solver_of(puzzle)  # refuses an environment without one
    statements = assertions(text, puzzle)
    if statements is None:
        raise not_provable(f"{file}[{index}]", _check(puzzle, minimal=False))
    counts = asdict(DeductionCounts.of(statements))
    if options.json:
        listed = [asdict(item) for item in statements]
        print_json({"prompt_id": puzzle.prompt_id, "counts": counts, "statements": listed})
        return
    for item in statements:
        if not item.repeated:
            print_line(f"{item.verdict:<13} {item.text}")
    print_line(", ".join(f"{count} {name}" for name, count in counts.items()))


def _check(puzzle: Puzzle, minimal: bool) -> Checked:
    return _solver_of(puzzle).check(puzzle, minimal=minimal)


def _solver_of(puzzle: Puzzle) -> Proves:
    return needs(environments.get(puzzle.environment), Proves, puzzle.prompt_id, "leave the puzzle out")


def _verdict(item: Checked, puzzle: Puzzle) -> str:
    if item.unread:
        return "not solved, unread: " + "; ".join(item.unread)
    if not item.answers:
        return "the clues contradict one another"
    answers = " ".join(f"{letter} {answer}" for letter, answer in item.answers.items())
    open_letters = ", ".join(letter for letter, unique in item.unique.items() if not unique)
    parts = [answers, f"not unique: {open_letters}" if open_letters else "unique"]
    if item.different:
        given = ", ".join(f"{letter} {puzzle.solution[letter]}" for letter in item.different)
        parts.append(f"differs from the given {given}")
    else:
        parts.append("equal")
    if item.needless is not None:
        numbers = ", ".join(map(str, item.needless))
        parts.append(f"unneeded clues: {numbers}" if numbers else "minimal")
    return "; ".join(parts)
