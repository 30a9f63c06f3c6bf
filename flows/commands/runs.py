"""`deerstalker runs`, `show`, `report` and `recipes`."""

import json
from dataclasses import asdict
from typing import Any

from rich.table import Table

from artifacts.store import Store
from artifacts.verification import Damage
from flows.commands.output import print_json, tell_damage, terminal
from flows.options import Output, Stored


def runs_command(options: Stored) -> None:
    """Lists the runs of a store."""
    from flows.history import overview

    store, damaged = Store.open(options.store, writable=False), list[Damage]()
    runs = overview(store, damaged)
    if options.json:
        print_json({"store": store.url, "runs": runs, "damaged": [asdict(damage) for damage in damaged]})
        tell_damage(store, damaged, json=True)
        return
    table = Table(title=f"runs in {store.url}", title_justify="left")
    table.add_column("run", no_wrap=True)
    for name in ("iterations", "promoted", "held-out"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("recipe")  # gives way in a narrow terminal
    for run in runs:
        promoted = run["promoted"]
        table.add_row(
            run["run"],
            f"{run['iterations_done']} of {run['iterations']}",
            f"iteration {promoted['iteration']}" if promoted else "",
            f"{promoted['score']:.1%}" if promoted else "",
            run["title"],
        )
    terminal().print(table)
    tell_damage(store, damaged, json=False)


def show_command(run: str, wide: bool, options: Stored) -> None:
    """Prints one run: its iterations, before and after, and how to use it.

    Args:
        wide: Print whole lines and every column, however wide the terminal.
    """
    from flows.figures import iteration_figures
    from flows.history import read_run
    from flows.live import print_iterations
    from flows.summary import print_summary, summary
    from flows.wrapping import UNLIMITED, print_labelled

    store, damaged = Store.open(options.store, writable=False), list[Damage]()
    record = read_run(store, run, damaged)
    if options.json:
        print_json({**summary(record, store), "damaged": [asdict(damage) for damage in damaged]})
        tell_damage(store, damaged, json=True)
        return
    console = terminal(UNLIMITED if wide else None)
    print_labelled(console, f"{record.layout.run}: ", record.recipe["title"])
    console.print()
    print_iterations(console, [iteration_figures(iteration) for iteration in record.iterations])
    console.print()
    print_summary(record, store, console)
    tell_damage(store, damaged, json=False)


def report_command(run: str, options: Stored) -> None:
    """Writes a run's report again and prints its address."""
    from flows.report import publish_report

    store, damaged = Store.open(options.store, writable=False), list[Damage]()
    page = f"{store.url}/{publish_report(store, run, in_prefect=False, damaged=damaged)}"
    if options.json:
        print_json({"run": run, "report": page, "damaged": [asdict(damage) for damage in damaged]})
    else:
        terminal().print(page, soft_wrap=True)
    tell_damage(store, damaged, json=options.json)


def recipes_command(options: Output) -> None:
    """Lists the recipes that come with the package."""
    from flows.recipes import load_recipe, recipe_names

    recipes = {name: load_recipe(name) for name in recipe_names()}
    if options.json:
        print_json([{"name": name, "title": recipe.title} for name, recipe in recipes.items()])
        return
    table = Table.grid(padding=(0, 2))
    for name, recipe in recipes.items():
        table.add_row(name, recipe.title)
    terminal().print(table)


def show_recipe_command(name: str, changes: tuple[str, ...], options: Output) -> None:
    """Prints a recipe with every default filled in, as a run would freeze it."""
    from flows.recipes import load_recipe

    resolved: dict[str, Any] = load_recipe(name, changes).model_dump(mode="json")
    if options.json:
        print_json(resolved)
        return
    console = terminal()
    for line in _lines(resolved):
        console.print(line, soft_wrap=True)


def diff_recipes_command(a: str, b: str, options: Output) -> None:
    """Prints the settings in which two recipes differ, defaults filled in."""
    from flows.recipe_diff import differences
    from flows.recipes import load_recipe

    found = differences(load_recipe(a), load_recipe(b))
    if options.json:
        print_json({"a": a, "b": b, "settings": [{"setting": one.setting, **one.values} for one in found]})
        return
    if not found:
        terminal().print(f"{a} and {b} have the same settings", soft_wrap=True)
        return
    table = Table()
    table.add_column("setting", no_wrap=True)
    for name in (a, b):
        table.add_column(name, overflow="fold")
    for one in found:
        shown = [json.dumps(one.values[side]) if side in one.values else "" for side in ("a", "b")]
        table.add_row(one.setting, *shown)
    terminal().print(table)


def _lines(value: dict[str, Any], path: str = "") -> list[str]:
    lines: list[str] = []
    for key, item in value.items():
        name = f"{path}.{key}" if path else key
        lines += _lines(item, name) if isinstance(item, dict) and item else [f"{name} = {item!r}"]
    return lines
