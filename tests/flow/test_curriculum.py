"""A run with phases, rated puzzles and pools, killed in its second phase, goes on where it stopped."""

from pathlib import Path

import polars as pl
import pytest

from artifacts.layout import RunLayout
from artifacts.reading import Artifact
from artifacts.refs import Checkpoint, PassRates, Transition
from artifacts.schemas import PASS_RATES, PASS_RATES_FILE
from artifacts.store.store import Store
from artifacts.verification import verify
from flows.lookup.history import read_run
from flows.lookup.preparation import newest_rates
from flows.report.summary import phase_rows
from stages.curriculum.progress import read_progress
from tests.support.tiny_runs import PHASES
from tests.support.train_command import TrainCommand


@pytest.mark.release
def test_a_run_that_is_killed_in_its_second_phase_goes_on(tmp_path: Path, prefect_api_url: str) -> None:
    layout = RunLayout("staged")
    command = TrainCommand(tmp_path, "staged", PHASES, PREFECT_API_URL=prefect_api_url)
    sampled = command.store / layout.iteration(3, "rollouts")
    command.kill_when(lambda: any(sampled.glob("*/*.parquet")))
    shards = {path.name for path in sampled.glob("*/*.parquet")}
    assert layout.iteration(2, "transition") in command.seen
    command.finish()

    store = Store.open(str(command.store), writable=False)
    assert verify(store).damaged == []
    transitions = [Artifact.at(store, layout.iteration(n, "transition"), Transition) for n in (1, 2, 3, 4)]
    told = [read_progress(item.ref, store) for item in transitions]
    assert [(item.phase, item.since, item.ended) for item in told] == [
        (0, 1, False), (0, 1, True), (1, 3, False), (1, 3, False),
    ]  # fmt: skip
    assert phase_rows(read_run(store, "staged")) == [
        ["1. short", "1 to 2", "2 iterations are done"],
        ["2. long", "3 to 4", "with the run"],
    ]

    assert "pass rates of start: 96 puzzles, accuracy " in command.log.read_text(errors="replace")
    record = read_run(store, "staged")
    assert newest_rates(record)["start"]["puzzles"] == 96
    assert [item.facts("sample").get("eligible_puzzles") is None for item in record.iterations[1:]] == [
        True, True, False, False,
    ]  # fmt: skip

    trained = [Artifact.at(store, layout.iteration(n, "checkpoint"), Checkpoint).manifest for n in (1, 2, 3, 4)]
    second = Artifact.at(store, layout.iteration(2, "checkpoint")).ref
    assert [item.inputs["reference"]["digest"] == second.digest for item in trained] == [False, False, True, True]
    assert ["optimizer_state" in item.inputs for item in trained] == [False, True, False, True]

    rollouts = [Artifact.at(store, layout.iteration(n, "rollouts")) for n in (1, 2, 3, 4)]
    assert shards <= set(rollouts[2].manifest.files), "the groups that were stored are in the rollouts"
    assert [item.manifest.identity.config["since"] for item in rollouts] == [1, 1, 3, 3]
    pass_rates = [item.manifest.inputs.get("pass_rates", {}).get("key") for item in rollouts]
    assert pass_rates == [None, None, layout.iteration(2, "pass_rates"), layout.iteration(3, "pass_rates")]
    table = Artifact.at(store, layout.iteration(4, "pass_rates"), PassRates).read_table(PASS_RATES_FILE, PASS_RATES)
    newest = table.filter(pl.col("name") == "run")["iteration"]
    assert set(newest) <= {0, 1, 2, 3, 4}
    assert newest.max() == 4
    assert len(table.filter(pl.col("name") == "start")) == 96
