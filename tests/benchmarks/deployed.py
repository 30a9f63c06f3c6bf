"""What a user does with deployments, step by step: `python -m tests.benchmarks.deployed [SECTION ...] [--json]`.

Each step is a command as a person types it. The walk ends at a step with a wrong result. The table shows the result
and the time of each step; a second or two of it is the command's own start.

* **deployments**: `up`, twice; a run by its deployment; typos; a flow killed with SIGKILL and retried; one cancelled.
* **lineage**: two runs, a backfill, twice; then all commands that show runs or maintain a store.
"""

import argparse
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tests.support.bars import add_json_option, kept, tell
from tests.support.installed import TINY, Installation

TYPOS = ({"recepi": "quickstart"}, {"refresh": ["smaple"]}, {"overrides": "iterations=1"})
T = TypeVar("T")


@dataclass(frozen=True)
class Step:
    """One row: what was done, what came of it, and the seconds it took."""

    what: str
    outcome: str
    seconds: float


class Walk:
    """Steps of one user on one installation."""

    def __init__(self, place: Installation, recipe: str, iterations: int) -> None:
        self.place, self.recipe, self.iterations = place, recipe, iterations
        self.steps: list[Step] = []

    def step(self, what: str, action: Callable[[], T], outcome: Callable[[T], str]) -> T:
        """Does something and notes what came of it."""
        started = time.perf_counter()
        result = action()
        seconds = time.perf_counter() - started
        self.steps.append(Step(what, outcome(result), seconds))
        print(f"{what}: {self.steps[-1].outcome}, {seconds:.1f} s", file=sys.stderr, flush=True)
        return result

    def command(self, *arguments: str) -> Any:
        """What `deerstalker` says of the store."""
        store = [] if arguments[0] == "verify" else ["--store"]
        return json.loads(self.place.deerstalker(*arguments, *store, str(self.place.store), "--json"))

    def up(self, what: str, *arguments: str) -> dict[str, Any]:
        """Starts what does not run; returns what `up` printed."""
        return self.step(
            what,
            lambda: self.place.up(*arguments),
            lambda record: f"server, worker, {len(record['deployments'])} deployments in pool {record['pool']}",
        )

    def train(self, run: str, *overrides: str) -> str:
        """A new run by its deployment; returns the flow run's id."""
        changes = [f"iterations={self.iterations}", *overrides]
        request = {"run": run, "recipe": self.recipe, "overrides": changes}
        return self.step(
            f"prefect deployment run train/quickstart --watch: {run}",
            lambda: self.place.deploy_run("train/quickstart", request, "--watch"),
            lambda flow: f"{self.place.state(flow)}, {counted(self.place.tasks(flow, 1))}",
        )

    def one_more(self, iteration: int) -> str:
        """Asks for an iteration more, and returns the flow run's id while that iteration is sampled."""
        flow = self.place.deploy_run("iterate/run", {"run": "first", "until": iteration})
        self.place.wait(lambda: self.place.tasks(flow, 1).get(f"sample-{iteration:04d}") == "Running")
        return flow

    def told(self, flow: str, state: str) -> None:
        """Waits until Prefect says how a flow run ended."""
        outcome = f"{state}; stages still open: "
        self.step(
            "  and Prefect says so",
            lambda: self.place.wait_for(flow, state),
            lambda _: outcome + (", ".join(self.place.open_tasks(flow)) or "none"),
        )

    def retry(self, flow: str) -> None:
        """Retries a flow run to its end; nothing of any attempt may be left open."""

        def action() -> None:
            self.place.prefect("flow-run", "retry", flow)
            self.place.wait(lambda: bool(self.place.tasks(flow, 2)))
            self.place.wait_for(flow, "Completed")
            self.place.wait(lambda: not self.place.open_tasks(flow), 60)

        def outcome(_: None) -> str:
            before = sum(state == "Crashed" for state in self.place.tasks(flow, 1).values())
            return f"Completed, {counted(self.place.tasks(flow, 2))}; of the first attempt {before} Crashed, 0 open"

        self.step("prefect flow-run retry", action, outcome)


def counted(tasks: dict[str, str]) -> str:
    """How many task runs ended how."""
    states = list(tasks.values())
    assert states and set(states) <= {"Completed", "Cached"}, tasks
    return f"{states.count('Completed')} stages executed, {states.count('Cached')} Cached"


def deployments(walk: Walk) -> None:
    """Section 1: what is installed, runs, refusals, and how runs end that are killed or cancelled."""
    place, idle = walk.place, set(walk.place.processes())
    before = place.record
    assert walk.up("deerstalker up, again") == before
    walk.train("first")
    for typo in TYPOS:
        given = json.dumps({"request": typo})
        refused = walk.step(
            f"prefect deployment run train/quickstart --params '{given}'",
            lambda given=given: place.attempt("prefect", "deployment", "run", "train/quickstart", "--params", given),
            lambda done: f"refused, exit code {done.returncode}",
        )
        (name,) = typo
        assert refused.returncode != 0 and name in refused.stdout + refused.stderr, refused

    flow = walk.one_more(walk.iterations + 1)
    (process,) = place.flow_processes()

    def kill() -> None:
        os.kill(process, signal.SIGKILL)
        place.wait(lambda: set(place.processes()) <= idle, 60, 0.02)

    walk.step("kill -9 of the flow in sample", kill, lambda _: "no process of it left")
    walk.told(flow, "Crashed")
    walk.retry(flow)

    flow = walk.one_more(walk.iterations + 2)

    def cancel() -> None:
        place.prefect("flow-run", "cancel", flow)
        place.wait(lambda: set(place.processes()) <= idle, 60, 0.02)

    walk.step("prefect flow-run cancel, in sample", cancel, lambda _: "no process of it left")
    walk.told(flow, "Cancelled")
    walk.retry(flow)


def lineage(walk: Walk) -> None:
    """Section 3: two runs, a suite evaluated later, and what can be asked of a store."""
    for run, changes in (("first", []), ("second", ["finetune.learning_rate=1e-4"])):
        if not (walk.place.store / "runs" / run).exists():
            walk.train(run, *changes)
    suite = ["--suite", "again", "--puzzles", "first:val", "--count", "16"]
    for evaluated in (True, False):
        told = walk.step(
            "deerstalker backfill first second",
            lambda: walk.command("backfill", "first", "second", *suite),
            lambda told: f"{told['evaluated']} evaluated, {told['cached']} were there",
        )
        assert (told["evaluated"] > 0, told["cached"] > 0) == (evaluated, not evaluated), told
    walk.step("deerstalker runs", lambda: walk.command("runs"), lambda told: f"{len(told['runs'])} runs")
    walk.step(
        "deerstalker show first",
        lambda: walk.command("show", "first"),
        lambda told: f"{len(told['iterations'])} iterations, {len(told['suites']['again'])} points of suite `again`",
    )
    walk.step(
        "deerstalker lineage first",
        lambda: walk.command("lineage", "first", "--depth", "0"),
        lambda told: f"{told['artifact']['stage']}, from {len(told['ancestors'])} artifacts",
    )
    walk.step(
        "deerstalker diff first second",
        lambda: walk.command("diff", "first", "second"),
        lambda told: (
            f"settings: {', '.join(one['setting'] for one in told['settings'])}; they first differ at "
            f"iteration {told['first_parting']['iteration']}, {told['first_parting']['stage']}"
        ),
    )
    walk.step(
        "deerstalker prune, dry",
        lambda: walk.command("prune", "--keep-last", "1", "--keep-every", "0"),
        lambda told: f"{len(told['removals'])} would go, {told['size_bytes'] / 1e6:.1f} MB",
    )
    walk.step(
        "deerstalker verify",
        lambda: walk.command("verify"),
        lambda told: f"{told['artifacts']} artifacts, {told['files']} files, {len(told['damaged'])} damaged",
    )


SECTIONS = {"deployments": deployments, "lineage": lineage}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sections", nargs="*", metavar="SECTION", help=", ".join(SECTIONS))
    parser.add_argument("--recipe", default="quickstart", help="quickstart, tiny (that of the tests), or a TOML file")
    parser.add_argument("--iterations", type=int, default=2)
    add_json_option(parser)
    options = parser.parse_args()
    recipe = str(TINY) if options.recipe == "tiny" else options.recipe
    sections = options.sections or SECTIONS
    with tempfile.TemporaryDirectory() as scratch:
        walk = Walk(Installation(Path(scratch)), recipe, options.iterations)
        promises = {"steps with another outcome than promised": ""}
        figures, bars = kept(promises, lambda: {"steps": [asdict(step) for step in walked(walk, sections)]})
    tell(figures, bars, lambda: show(walk.steps, options.recipe), as_json=options.json)


def walked(walk: Walk, sections: Iterable[str]) -> list[Step]:
    """Takes the steps of some sections.

    Raises:
        AssertionError: A step had another outcome than it should.
    """
    try:
        walk.up("deerstalker up", "--port", "0")
        for name in sections:
            SECTIONS[name](walk)
    finally:
        walk.step("deerstalker down", walk.place.down, lambda ended: f"ended: {', '.join(ended)}")
    assert not walk.place.processes(), walk.place.processes()
    return walk.steps


def show(steps: list[Step], recipe: str) -> None:
    """Prints a row a step."""
    table = Table(title=f"deployments and lineage, recipe {recipe}", title_justify="left")
    for name in ("what", "outcome", "s"):
        table.add_column(name, justify="right" if name == "s" else "left", overflow="fold")
    for step in steps:
        table.add_row(escape(step.what), escape(step.outcome), f"{step.seconds:.1f}")
    Console().print(table)


if __name__ == "__main__":
    main()
