"""`deerstalker doctor` and `deerstalker plan`: whether a recipe fits this machine, or one to rent."""

import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from artifacts.documents.parsing import exists
from artifacts.errors import BadInputError, DeerstalkerError
from artifacts.local.full_disk import disk_full, is_full_disk, is_quota
from artifacts.store.location import DATA_FOLDER
from flows.cli.console.options import (
    MACHINE,
    OUTPUT,
    Machine,
    Optional,
    Output,
    ProfileChanges,
    ProfileName,
    RecipeChanges,
    shipped,
)
from flows.cli.console.output import print_json, print_line, terminal
from flows.doctor import checks
from flows.doctor.checks import Check
from flows.doctor.facts import machine_facts, prefect_facts, speed_facts
from flows.doctor.hardware import Hardware, choice_of, device_of, load_hardware
from flows.doctor.store_facts import store_facts, store_folder
from flows.report.text.visible import one_line

if TYPE_CHECKING:
    from flows.config.model_size import ModelSize
    from flows.config.recipe import Recipe
    from flows.plan.plan import Plan

_NEW_FILE = "a new file in a folder that exists"


def doctor(
    *,
    recipe: Annotated[
        str | None,
        Parameter(
            show_default=False,
            help=f"Name of a recipe ({shipped('recipes')}), or path of a TOML file. Also opens its file of questions, "
            "checks the memory and disk space that it needs, and estimates the time of an iteration.",
        ),
    ] = None,
    set_: RecipeChanges = (),
    options: Machine = MACHINE,
) -> None:
    """Prints a line for each check as soon as it is done, or with `--json` one document at the end.

    Raises:
        DeerstalkerError: A check found a problem; the lines or the document have been printed.
        BadInputError: There is no such recipe or profile, the store's address is invalid, or the recipe's model is a
            checkpoint that the store does not have.
    """
    if set_ and recipe is None:
        raise BadInputError("--set", "no --recipe", "the recipe that it changes", "name it, or drop --set")
    done: list[Check] = []
    hardware = load_hardware(options.profile, options.set_profile)
    for check in _checks(recipe, set_, hardware, options.store):
        done.append(check)
        if not options.json:
            sys.stdout.write(page_line(check))
            sys.stdout.flush()
    if options.json:
        worst = checks.worst(done)
        print_json(
            {"status": worst, "recipe": recipe, "profile": options.profile, "checks": [asdict(check) for check in done]}
        )
        sys.stdout.flush()
    if problems := [check.name for check in done if check.status == "problem"]:
        summary = f"{len(problems)} of {len(done)} checks failed: {', '.join(problems)}"
        raise DeerstalkerError("doctor", summary, "", "do what their lines say")


def page_line(check: Check) -> str:
    """Returns a check as text: one line, and a second one with the remedy if there is one."""
    remedy = f"\n{'':28}-> {one_line(check.remedy)}" if check.remedy else ""
    return f"{check.status:<9}{check.name:<19}{one_line(check.found)}{remedy}\n"


def _checks(recipe: str | None, changes: Sequence[str], hardware: Hardware, url: str) -> Iterator[Check]:
    """Yields each check as soon as its facts are known; slow ones are gathered in parallel."""
    with ThreadPoolExecutor(thread_name_prefix="doctor") as pool:
        pending_speeds = pool.submit(speed_facts)
        pending_store = pool.submit(store_facts, url)
        pending_prefect = pool.submit(prefect_facts, (store_folder(url) or Path(DATA_FOLDER)) / ".prefect")
        machine = machine_facts()
        yield checks.cpu_check(machine)
        yield checks.memory_check(machine)
        yield checks.gpu_check(machine, hardware)
        yield checks.engine_check(machine, hardware)
        yield from filter(None, [checks.cache_check(machine, hardware)])
        yield checks.extras_check(machine, hardware)
        yield checks.prefect_check(pending_prefect.result())
        store = pending_store.result()
        yield checks.store_check(store)
        yield from filter(None, (checks.space_check(store), checks.creates_check(store)))
        # Submitted only now, because its slow imports would delay the lines above.
        pending_recipe = pool.submit(_load_sized, recipe, changes, hardware, url) if recipe else None
        devices = device_of("trainer", hardware, machine), device_of("engine", hardware, machine)
        speeds = pending_speeds.result()
        resolved, size = pending_recipe.result() if pending_recipe else (None, None)
        hidden = size.shape.hidden if size and size.shape else None
        choices = choice_of("trainer", hardware, devices[0], hidden), choice_of("engine", hardware, devices[1])
        yield checks.type_check("trainer", devices[0], choices[0], speeds, hardware.explicit_type("trainer"))
        if not hardware.engine.elsewhere:
            yield checks.type_check("engine", devices[1], choices[1], speeds, hardware.explicit_type("engine"))
    if recipe is None or resolved is None or size is None:
        return
    from flows.config.recipes import load_recipe
    from flows.doctor.fit import fit_checks, model_checks, puzzles_checks, settings_checks

    yield from settings_checks(load_recipe(recipe, changes))
    yield from model_checks(resolved)
    yield from puzzles_checks(resolved)
    gflops = speeds.gflops.get(choices[0].type) if devices == ("cpu", "cpu") else None
    types = choices[0].type, choices[1].type
    yield from fit_checks(resolved, hardware, size, machine, store, types, devices, gflops)


def _load_sized(name: str, changes: Sequence[str], hardware: Hardware, url: str) -> "tuple[Recipe, ModelSize]":
    """Returns a recipe and the size of its model, which may be a checkpoint of the store."""
    from artifacts.store.store import Store
    from flows.config.model_size import model_size
    from flows.config.recipes import load_recipe
    from flows.plan.rows import with_rows
    from stages.context import Profile
    from stages.models.merging.config import MergedModel
    from stages.models.source import StoredModel

    profile = Profile(engine=hardware.engine, trainer=hardware.trainer)
    recipe = with_rows(load_recipe(name, changes), profile, refuse=False)
    if not isinstance(recipe.model, StoredModel | MergedModel):
        return recipe, model_size(recipe.model)
    from flows.inputs.models import stored_size  # loads the stages, which only this needs

    return recipe, stored_size(recipe.model, Store.open(url, writable=False))


def plan(
    *,
    recipe: Annotated[str, Parameter(help=f"Name of a recipe ({shipped('recipes')}), or path of a TOML file.")],
    gpus: str,
    profile: ProfileName = "cuda",
    nodes: int = 1,
    price: float = 2.5,
    completion_tokens: Annotated[int | None, Optional] = None,
    prompt_tokens: Annotated[int | None, Optional] = None,
    write: Annotated[Path | None, Optional] = None,
    plot: Annotated[Path | None, Optional] = None,
    set_: RecipeChanges = (),
    set_profile: ProfileChanges = (),
    options: Output = OUTPUT,
) -> None:
    """Prints the plan of a recipe on GPUs that this machine need not have.

    Args:
        gpus: GPUs of a machine, as 8x80 (gigabytes) or 4xA40.
        nodes: Number of machines.
        price: Dollars for an hour of one GPU.
        completion_tokens: Mean length of a completion; by default half of the limit, or an eighth of a limit above 256.
        prompt_tokens: Mean length of a prompt; by default half of the space that the recipe's rows leave.
        write: File in which the fastest profile that fits is written; it must not exist.
        plot: PNG file in which the seconds for 1 to 64 GPUs are drawn, with the limiting term; it must not exist.
    """
    from flows.checks.fitting import refuse_undivided
    from flows.config.recipes import load_profile, load_recipe
    from flows.plan.cluster import cluster
    from flows.plan.page import document, profile_text
    from flows.plan.plan import make_plan
    from flows.plan.rows import planned_rows

    for name, value in (("nodes", nodes), ("completion-tokens", completion_tokens), ("prompt-tokens", prompt_tokens)):
        if value is not None and value < 1:
            raise BadInputError(f"--{name}", str(value), "at least 1")
    if not 0 <= price < 1e6:
        raise BadInputError("--price", str(price), "dollars, from 0")
    for name, path in (("write", write), ("plot", plot)):
        if path is not None and exists(path):
            raise BadInputError(f"--{name}", str(path), "a file that does not exist")
        if path is not None and not exists(path.parent):
            raise BadInputError(f"--{name}", str(path), _NEW_FILE)
    loaded, rented = load_profile(profile, set_profile), cluster(gpus, nodes)
    written = load_recipe(recipe, set_)
    refuse_undivided(written, loaded.trainer, loaded.engine)
    settings = planned_rows(written, loaded, rented)
    made = make_plan(settings, loaded, rented, completion_tokens, prompt_tokens)
    if write is not None:
        if made.fitting is None:
            raise BadInputError("--write", str(write), "a plan that fits", "no setting of the profile fits these GPUs")
        _write("--write", write, profile_text(made.fitting, recipe, str(made.cluster), loaded).encode())
    if plot is not None:
        from flows.doctor.scaling_plot import scaling_plot

        _write("--plot", plot, scaling_plot(made, recipe))
    if options.json:
        print_json(document(made, price))
    else:
        _print_plan(made, price)


def _write(option: str, path: Path, content: bytes) -> None:
    try:
        path.write_bytes(content)
    except (OSError, ValueError) as error:  # ValueError: a path with a NUL character
        if is_full_disk(error):
            raise disk_full(path.parent, len(content), quota=is_quota(error)) from error
        reason = error.strerror if isinstance(error, OSError) else error
        raise BadInputError(option, f"{path} ({reason})", _NEW_FILE) from error


def _print_plan(made: "Plan", price: float) -> None:
    from rich.table import Table

    from flows.plan.page import dollars, lines

    for line in lines(made):
        print_line(line)
    table = Table("GPUs", "sample s", "train s", "save s", "idle", "$/iteration", "$/run", "limit")
    for other, layout in made.scaling:
        if layout is None:
            table.add_row(str(other.count), *["-"] * 6, "memory")
            continue
        times, costs = layout.times, [dollars(s, other.count, price) for s in (layout.times.iteration, layout.run)]
        row = [f"{times.sample:.0f}", f"{times.train:.0f}", f"{times.save:.0f}", f"{times.idle:.0%}"]
        table.add_row(str(other.count), *row, f"{costs[0]:.2f}", f"{costs[1]:.0f}", times.limit)
    terminal().print(table)
