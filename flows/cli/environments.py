"""`deerstalker environments` and `environments try`."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, cast

from cyclopts import App, Parameter

from artifacts.documents.conversation import readable
from artifacts.errors import BadInputError, DeerstalkerError
from flows.cli.console.options import OUTPUT, Output
from flows.cli.console.output import print_json, print_line
from flows.cli.console.version import version
from flows.report.text.visible import visible

environments = App(name="environments", version=version)

_IN_A_RECIPE = {
    "file": 'environment = "file", path = "questions.jsonl", grader = "exact", "choice", "number", "boxed" or "regex"',
    "FILE.py:OBJECT": 'environment = "my_tasks.py:Countdown": a file beside the recipe, an object with items and grade',
    "maths": 'environment = "maths", path = "problems.jsonl"',
    "mixture": 'environment = "mixture", parts = [{ puzzle = { environment = "zebra" }, weight = 2 }, ...]',
}
"""Settings below [puzzles.puzzle] of environments that take their items, or their parts, from a recipe."""
_GENERATORS, _VERIFIERS = "reasoning_gym:TASK", "verifiers:NAME"


@environments.default
def list_all(*, options: Output = OUTPUT) -> None:
    """List the installed environments, each with its levels of difficulty or the recipe settings that select it."""
    from stages.environments import environment
    from stages.environments.capabilities import HasLevels
    from stages.environments.user_code.config import installed, version_of

    rows: list[dict[str, Any]] = []
    for name in environment.names():
        known = environment.get(name)
        levels = list(known.levels) if isinstance(known, HasLevels) else []
        rows.append(_row(name, "deerstalker", levels))
    rows += [_row(name, "deerstalker", recipe=recipe) for name, recipe in _IN_A_RECIPE.items()]
    rows.append(_generators())
    rows.append(
        _row(_VERIFIERS, "verifiers", recipe='environment = "verifiers:NAME", the name of an installed package')
    )
    for name, point in sorted(installed().items()):
        levels, error = _levels_of(name)
        rows.append(_row(name, version_of(point), levels, error))
    if options.json:
        print_json({"environments": rows})
        return
    for row in rows:
        levels = f"levels {', '.join(row['levels'])}" if row["levels"] else ""
        print_line(f"{row['name']:<18} {row['from']:<21} {visible(row['error'] or levels or row['recipe'])}")


def _row(
    name: str, source: str, levels: Sequence[str] = (), error: str | None = None, *, recipe: str | None = None
) -> dict[str, Any]:
    """Returns the row of one environment; by default a recipe selects it by its name alone."""
    own = f'environment = "{name}"' if recipe is None else recipe
    return {"name": name, "from": source, "recipe": own, "levels": list(levels), "error": error}


def _generators() -> dict[str, Any]:
    """Returns the row of reasoning-gym, whose error says how to install the optional package if it is missing."""
    from stages.environments.reasoning_gym.release import PACKAGE, installed_release

    recipe = 'environment = "reasoning_gym:knights_knaves", level = 0'
    try:
        return _row(_GENERATORS, f"{PACKAGE}=={installed_release()}", recipe=recipe)
    except BadInputError as error:
        return _row(_GENERATORS, PACKAGE, error=str(error), recipe=recipe)


def _levels_of(name: str) -> tuple[list[str], str | None]:
    """Returns the levels of a package's environment, and why it cannot be loaded; None if it can."""
    from stages.environments.user_code.config import PackageConfig
    from stages.environments.user_code.environment import UserEnvironment, user_environment

    try:
        known = user_environment(PackageConfig(environment=name).located(Path()).environment_name)
        assert isinstance(known, UserEnvironment)
        return known.level_names(), None
    except DeerstalkerError as error:
        return [], str(error)


@environments.command(name="try")
def try_one(
    name: str,
    /,
    *,
    count: int = 3,
    level: Annotated[str | None, Parameter(show_default=False)] = None,
    seed: int = 0,
    answer: Annotated[str | None, Parameter(show_default=False, allow_leading_hyphen=True)] = None,
    options: Output = OUTPUT,
) -> None:
    """Print items of an environment, and the grade of an answer to each.

    Args:
        name: An environment that `deerstalker environments` lists, or FILE.py:OBJECT.
        count: Number of items.
        level: One of its levels of difficulty.
        seed: Seed of the items.
        answer: A completion to grade; by default the right answer if the environment can write it, else an empty text.
    """
    from stages.environments import environment
    from stages.environments.capabilities import WritesAnswers
    from stages.environments.tables import grades_of

    if count < 1:
        raise BadInputError(f"--count {count}", "not a number of items", "1 or more")
    items = _items(name, count, level, seed)
    known = environment.get(items[0].environment)
    writer = known if answer is None and isinstance(known, WritesAnswers) else None
    answers = [writer.write_answer(item) if writer else answer or "" for item in items]
    pairs = list(zip(answers, items, strict=True))
    graded = grades_of([*pairs, *pairs])[: len(pairs)]  # graded twice, to refuse a grader whose scores differ
    if options.json:
        rows = [
            {"id": item.prompt_id, "prompt": item.prompt, "solution": item.solution, "answer": text, **asdict(grade)}
            for item, text, grade in zip(items, answers, graded, strict=True)
        ]
        print_json({"environment": known.name, "items": rows})
        return
    for item, text, grade in zip(items, answers, graded, strict=True):
        notes = ", ".join(dict.fromkeys(read.note for read in grade.answers.values() if read.note))
        print_line(f"--- {item.prompt_id}")
        for line in readable(item.prompt).split("\n"):
            print_line(visible(line))
        print_line(f"--- the answer {visible(text)!r} gets {grade.accuracy:g}{f' ({visible(notes)})' if notes else ''}")


def _items(name: str, count: int, level: str | None, seed: int) -> "list[Any]":
    from flows.config.settings import validate
    from stages.environments import environment
    from stages.environments.capabilities import HasLevels, Lists, needs
    from stages.environments.config import GeneratorConfig
    from stages.environments.generate import generate_nth
    from stages.environments.reasoning_gym.config import PREFIX
    from stages.prepare import PrepareConfig

    if (word := name.partition(":")[0]) in _IN_A_RECIPE:
        problem = "its items come from a file or from parts that a recipe names"
        raise BadInputError(name, problem, "an environment with items of its own", f"train with {_IN_A_RECIPE[word]}")
    if name in environment.names():
        levels = needs(environment.get(name), HasLevels, "--level", "choose another environment").levels
        if (chosen := level or next(iter(levels))) not in levels:
            raise BadInputError(f"--level {level}", f"unknown to {name}", ", ".join(levels))
        config = levels[chosen]
    else:
        if environment.kind_of(name) == name:
            environment.get(name)  # refuses an unknown name
        chosen = int(level) if level is not None and word == PREFIX and level.isdecimal() else level
        settings = {"environment": name, **({} if chosen is None else {"level": chosen})}
        config = validate(PrepareConfig, {"puzzle": settings}, "environments try").puzzle
    if isinstance(config, GeneratorConfig):
        return [generate_nth(cast(environment.Named, config), seed, number) for number in range(count)]
    listed = config.located(Path())
    lister = needs(environment.of(listed), Lists, name, "choose another environment")
    return lister.source(listed).items({"train": count, "val": 0, "test": 0}, seed).splits["train"]
