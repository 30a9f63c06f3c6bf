"""What sampling ahead saves and costs: `python -m tests.benchmarks.ahead [--json]`, as root, on two cores.

Time: two hosts in network namespaces with a core each and one store. One command on the first host runs `answers_only`
one stage after the other (`alone`); two commands, `--role sampler` on the first and `--role trainer` on the second, run
it with `iterate_ahead = 1` (`ahead`). A third run has one host with both cores, one stage after the other (`both
cores`), because a second machine would also help without overlap. The measured time is that of six iterations, from the
first decision to the seventh, so that starts do not count. Each run begins with the same warm-started model.

Learning: for each seed, `answers_only` with and without `iterate_ahead`, from one warm start, and the gain in sampled
accuracy on the test split. The bar is twice the standard error of a difference of two means, from the spread of the
five gains in the README (4.1 points).

The bars were written down before the first run.
"""

import argparse
import os
import signal
import statistics
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path
from typing import Any

from artifacts.layout import RunLayout
from artifacts.reading import Artifact
from artifacts.store.store import Store
from flows.lookup.stages import PARTS, REQUIRED
from tests.support.bars import Bar, tell
from tests.support.hosts import Host, hosts, require_hosts
from tests.support.prefect_server import without_prefect
from tests.support.processes import DEERSTALKER
from tests.support.seeded import joined, parse, run_store, seeded_parser
from tests.support.whole_runs import figures_of, from_warm_start, train

SEEDS = (821, 822, 823)
ITERATIONS = 6
FASTER_BAR = 1.3
GAIN_SPREAD = 4.1
"""Standard deviation of the gains of the README's five seeds, in points."""
ARMS = {"alone": 0, "ahead": 1}
"""Value of `iterate_ahead` by arm."""
LIMIT_S = 3600.0
Row = dict[str, float]


class Site:
    """Two hosts, and a store that both see.

    Args:
        recipe: The recipe of the runs.
        first, second: The hosts.
    """

    def __init__(self, folder: Path, recipe: str, first: Host, second: Host) -> None:
        self.folder, self.recipe, self.first, self.second = folder, recipe, first, second
        self.store = str(folder / "store")
        self.started: list[subprocess.Popen[bytes]] = []

    def start(self, run: str, host: Host, cores: str, settings: list[str], role: str = "both") -> "Command":
        """Starts a command on a host that computes on some cores."""
        own = self.folder / f"{run}-{role}"
        own.mkdir()
        words = ["taskset", "-c", cores, DEERSTALKER, "train", "--json"]
        words += ["--recipe", self.recipe, "--run", run, "--store", self.store, "--role", role]
        words += [word for setting in settings for word in ("--set", setting)]
        environment = {**without_prefect(), "PREFECT_HOME": str(own), "TMPDIR": str(own)}
        with (own / "log.txt").open("wb") as log:
            process = subprocess.Popen(
                host.command(words), env=environment, stdout=subprocess.DEVNULL, stderr=log, start_new_session=True
            )
        self.started.append(process)
        return Command(process, own / "log.txt")

    def end_all(self) -> None:
        """Ends the commands that still run, as after an error; their guards end the child processes."""
        for process in self.started:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()

    def row(self, run: str) -> Row:
        """Seconds of a run's six iterations, and of their stages on median."""
        store, layout = Store.open(self.store, writable=False), RunLayout(run)
        row: Row = {}
        for stage in REQUIRED:
            manifests = [
                Artifact.at(store, layout.iteration(n, PARTS[stage])).manifest for n in range(1, ITERATIONS + 2)
            ]
            row[f"{stage}_s"] = statistics.median(manifest.provenance["seconds"] for manifest in manifests[1:])
            if stage == "promote":
                made = [datetime.fromisoformat(manifest.provenance["created_at"]) for manifest in manifests]
                row["wall_s"] = (made[-1] - made[0]).total_seconds()
        return row


class Command:
    """A command that runs on a host."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.process, self.log = process, log

    def end(self) -> None:
        """Waits until it succeeds; exits the benchmark otherwise."""
        if self.process.wait(LIMIT_S):
            sys.exit(
                f"a command on a host ended with status {self.process.returncode}:\n{self.log.read_text()[-3000:]}"
            )


def measure_time(seed: int, folder: Path, recipe: str) -> dict[str, Row]:
    """Returns the times of six iterations by arm."""
    cores = sorted(os.sched_getaffinity(0))
    with ExitStack() as stack:
        first, second = stack.enter_context(hosts("sampler", "trainer"))
        site = Site(folder, recipe, first, second)
        stack.callback(site.end_all)
        common = [f"seed={seed}", f"iterations={ITERATIONS + 1}"]
        one, other, all_cores = str(cores[0]), str(cores[1]), f"{cores[0]},{cores[1]}"
        site.start("alone", first, one, common).end()
        common += from_warm_start("alone", site.store)
        commands = [
            site.start("ahead", host, core, [*common, "iterate_ahead=1"], role)
            for host, core, role in ((first, one, "sampler"), (second, other, "trainer"))
        ]
        for command in commands:
            command.end()
        site.start("both-cores", first, all_cores, common).end()
        return {"alone": site.row("alone"), "ahead": site.row("ahead"), "both cores": site.row("both-cores")}


def measure_learning(seed: int, store: str, options: argparse.Namespace) -> dict[str, Row]:
    """Returns percentages on the test split before and after, and the gain, by arm."""
    rows: dict[str, Row] = {}
    for arm, value in ARMS.items():
        start = from_warm_start(f"{seed}-alone", store) if rows else []
        settings = [f"seed={seed}", f"iterations={options.iterations}", f"iterate_ahead={value}", *start]
        settings.append(f"finetune.schedule_iterations={options.iterations}")
        document = train(options.recipe, f"{seed}-{arm}", store, settings, options.profile)
        rows[arm] = figures_of(document)
        lags = [item["iterations_behind"] for item in document["iterations"] if item["iteration"]]
        rows[arm]["most_iterations_behind"] = max(lags)
    return rows


def bars(document: dict[str, Any]) -> list[Bar]:
    """The bars of what was measured."""
    found: list[Bar] = []
    if times := document.get("time"):
        ratio = times["alone"]["wall_s"] / times["ahead"]["wall_s"]
        found.append(Bar.at_least("six iterations: alone / ahead, times", ratio, FASTER_BAR))
        both = times["both cores"]["wall_s"] / times["ahead"]["wall_s"]
        found.append(Bar("six iterations: both cores / ahead, times", both, "above 1", both > 1.0))
    if seeds := document.get("seeds"):
        after, before = "sampled_accuracy_after", "sampled_accuracy_before"
        gains = {arm: [rows[arm][after] - rows[arm][before] for rows in seeds.values()] for arm in ARMS}
        difference = statistics.mean(gains["ahead"]) - statistics.mean(gains["alone"])
        noise = 2 * GAIN_SPREAD * (2 / len(seeds)) ** 0.5
        found.append(Bar.at_least("sampled gain, ahead minus alone, points", difference, -noise))
        behind = max(rows["ahead"]["most_iterations_behind"] for rows in seeds.values())
        found.append(Bar.at_most("iterations behind", behind, 1))
    return found


def main() -> None:
    parser = seeded_parser(__doc__, SEEDS)
    parser.add_argument("--only", choices=["time", "learning"], help="one of the two measurements")
    parser.add_argument("--recipe", default="answers_only", help="another one is a quick look that proves nothing")
    parser.add_argument("--iterations", type=int, default=48, help="of a run that learns")
    options = parse(parser)
    document: dict[str, Any] = {}
    if options.only != "learning" and options.seeds:
        require_hosts()
        with tempfile.TemporaryDirectory(prefix="ahead-") as folder:
            document["time"] = measure_time(options.seeds[0], Path(folder), options.recipe)
    if options.only != "time":
        with run_store(options) as store:
            document["seeds"] = {seed: measure_learning(seed, store, options) for seed in options.seeds}
    document = joined(options.join, document)
    tell(document, bars(document), as_json=options.json)


if __name__ == "__main__":
    main()
