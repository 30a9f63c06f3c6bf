"""`deerstalker runs`, `show`, `rollouts`, `report` and `study`."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number
from rich.table import Table

from artifacts.errors import BadInputError
from artifacts.verification import Damage
from flows.cli.console.options import STORED, Flag, Optional, Repeated, Stored, Wide
from flows.cli.console.output import fail_if_damaged, print_damaged_json, terminal
from flows.cli.console.stores import filled_store


def runs(*, options: Stored = STORED) -> None:
    """Prints the runs of a store."""
    from flows.lookup.history import overview

    store, damaged = filled_store(options.store), list[Damage]()
    listed = overview(store, damaged)
    if options.json:
        print_damaged_json({"store": store.url, "runs": [run.as_json() for run in listed]}, store, damaged)
        return
    table = Table(title=f"runs in {store.url}", title_justify="left")
    table.add_column("run", no_wrap=True)
    for name in ("iterations", "promoted", "held-out"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("recipe")  # the only column that shrinks in a narrow terminal
    for run in listed:
        promoted = run.promoted
        table.add_row(
            run.run,
            f"{run.iterations_done} of {run.iterations}",
            f"iteration {promoted.iteration}" if promoted else "",
            f"{promoted.score:.1%}" if promoted else "",
            run.title,
        )
    terminal().print(table)
    fail_if_damaged(store, damaged, json=False)


def show(
    run: str,
    /,
    *,
    watch: Flag = False,
    samples: Annotated[int, Parameter(validator=Number(gte=0))] = 0,
    wide: Wide = False,
    options: Stored = STORED,
) -> None:
    """Prints a run: its iterations, its results before and after, and how to use its checkpoint.

    Args:
        run: Name of the run.
        watch: Show the table, curves and what is next while the run goes on, until Ctrl-C; this needs a terminal.
        samples: Number of completions of the newest graded iteration to show with their grades, from the best to the
            worst.
        wide: Print every column, and lines of any length. By default lines are as wide as the terminal, or 80 columns
            if there is none.
    """
    from flows.lookup.history import read_run
    from flows.report.figures import iteration_figures
    from flows.report.summary import print_summary, summary
    from flows.report.terminal.live import print_iterations
    from flows.report.terminal.samples import print_samples
    from flows.report.terminal.watch import watch as watch_run
    from flows.report.text.wrapping import UNLIMITED, print_labelled

    if options.json and (watch or samples):
        raise BadInputError(
            "show", "--json with --watch or --samples, which are for people", "one of them",
            "`deerstalker rollouts RUN --out FILE.jsonl` writes completions with their grades",
        )  # fmt: skip
    store, damaged = filled_store(options.store), list[Damage]()
    if watch:
        console = terminal()
        if not console.is_terminal:
            raise BadInputError("--watch", "stdout is no terminal", "a terminal", "leave --watch out")
        watch_run(store, run, samples, console)
    record = read_run(store, run, damaged)
    if options.json:
        print_damaged_json(summary(record, store), store, damaged)
        return
    console = terminal(UNLIMITED if wide else None)
    print_labelled(console, f"{record.layout.run}: ", record.recipe["title"])
    console.print()
    print_iterations(console, [iteration_figures(iteration) for iteration in record.iterations])
    console.print()
    if samples:
        print_samples(record, store, samples, console)
    print_summary(record, store, console)
    fail_if_damaged(store, damaged, json=False)


def rollouts(
    run: str,
    /,
    *,
    out: Path,
    iteration: Annotated[tuple[int, ...], Repeated] = (),
    options: Stored = STORED,
) -> None:
    """Writes the completions of a run and prints how many there are.

    Args:
        run: Name of the run.
        out: File to write, FILE.jsonl or FILE.parquet; it must not exist.
        iteration: An iteration to write; may be repeated; by default all whose completions are still stored.
    """
    from flows.lookup.history import read_run
    from flows.lookup.rollouts import check_dataset_file, graded_rollouts, write_dataset

    check_dataset_file(out)
    store, damaged = filled_store(options.store), list[Damage]()
    record = read_run(store, run, damaged)
    written = write_dataset(graded_rollouts(record, store, iteration), out)
    if options.json:
        document = {"run": run, "file": str(out), "completions": sum(written.values()), "iterations": list(written)}
        print_damaged_json(document, store, damaged)
        return
    numbers = ", ".join(map(str, written))
    terminal().print(f"{sum(written.values())} completions of iterations {numbers}: {out}", soft_wrap=True)
    fail_if_damaged(store, damaged, json=False)


def report(run: str, /, *, options: Stored = STORED) -> None:
    """Writes a run's report again and prints its address.

    Args:
        run: Name of the run.
    """
    from flows.lookup.history import read_run
    from flows.report.html.run_report import store_report
    from flows.report.run_view import RunView

    store, damaged = filled_store(options.store), list[Damage]()
    page = f"{store.url}/{store_report(RunView(read_run(store, run, damaged), store))}"
    if options.json:
        print_damaged_json({"run": run, "report": page}, store, damaged)
        return
    terminal().print(page, soft_wrap=True)
    fail_if_damaged(store, damaged, json=False)


def study(
    *runs: str,
    benchmark: Annotated[str | None, Optional] = None,
    output: str = "./deerstalker-study",
    options: Stored = STORED,
) -> None:
    """Writes the page of a study and prints its path.

    Args:
        runs: Names of the runs.
        benchmark: File with the document of `deerstalker benchmark --json`.
        output: Folder for the page, its pictures and its figures as JSON.
    """
    from flows.lookup.history import read_run
    from flows.report.study.benchmark import read_benchmark
    from flows.report.study.page import study_files, write_study
    from flows.report.study.study import figures, read_run_study

    if not runs and benchmark is None:
        raise BadInputError("study", "no run and no --benchmark", "at least one of them", "see `deerstalker runs`")
    models = None if benchmark is None else read_benchmark(benchmark)
    store, damaged = filled_store(options.store), list[Damage]()
    read = [read_run_study(read_run(store, run, damaged), store) for run in dict.fromkeys(runs)]
    page = write_study(output, study_files(read, models))
    if options.json:
        print_damaged_json({"page": page, **figures(read, models)}, store, damaged)
        return
    terminal().print(page, soft_wrap=True)
    fail_if_damaged(store, damaged, json=False)
