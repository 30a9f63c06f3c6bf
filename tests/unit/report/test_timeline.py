"""The timeline of an iteration: what the manifests recorded, and nothing else."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from artifacts.activity import Activity
from artifacts.layout import RunLayout
from artifacts.manifest import Manifest
from artifacts.store.store import Store
from flows.cli.app import run_command
from flows.lookup.history import IterationRecord, RunRecord, read_run
from flows.report.html.run_report import PAGE, report_files
from flows.report.run_view import RunView
from flows.report.shown_run import ShownRun
from flows.report.timeline import Timeline, iteration_timeline, run_timeline, store_warning

Spans = Mapping[Activity, Sequence[tuple[float, float]]]
STATE = "optimizer_state"
ITERATION: dict[str, tuple[float, float, Spans]] = {
    "sample": (0, 10, {"loading": [(0, 1)], "engine": [(1, 9.5)]}),
    "grade": (11, 12, {"store": [(0, 0.5)]}),
    "pack": (12, 13, {}),
    "finetune": (13, 20, {"loading": [(0, 1)], "trainer": [(1, 4)], "saving": [(4, 5)], "store": [(5, 7)]}),
    STATE: (13, 20, {"store": [(5, 7)]}),
    "evaluate": (20, 24, {"engine": [(1, 2), (2.5, 3)]}),
    "promote": (24, 25, {"store": [(0, 1)]}),
}
"""Begin and end of each stage of an iteration of 25 s, and its spans from its begin."""
BEGAN_S = -100.0
"""Begin of the process."""


def timed(made: Manifest, begin: float, end: float, spans: Spans, process: float = BEGAN_S) -> Manifest:
    """Returns a manifest with other times, in seconds from 2026."""

    def iso(second: float) -> str:
        return datetime.fromtimestamp(datetime(2026, 1, 1, tzinfo=UTC).timestamp() + second, UTC).isoformat()

    times = {"created_at": iso(end), "process_began": iso(process), "seconds": end - begin, "spans": spans}
    return made.model_copy(update={"provenance": {**made.provenance, **times}})


def run_of(record: RunRecord, *iterations: Mapping[str, tuple[float, float, Spans]], process: float = 0) -> RunRecord:
    """Returns the run with the times of its first iterations, 25 s apart.

    Args:
        process: Begin of the process that made the last stages of the last iteration, from `finetune` on; 0: the same.
    """
    timed_iterations: list[IterationRecord] = [record.iterations[0]]
    for index, times in enumerate(iterations):
        item, shift = record.iterations[index + 1], 25.0 * index
        made = {**item.manifests, STATE: item.manifests["finetune"]}
        manifests: dict[str, Manifest] = {}
        for stage, (begin, end, spans) in times.items():
            later = process and index == len(iterations) - 1 and stage in ("finetune", STATE, "evaluate", "promote")
            began = process if later else BEGAN_S
            manifests[stage] = timed(made[stage], begin + shift, end + shift, spans, began)
        state = manifests.pop(STATE, None)
        timed_iterations.append(replace(item, manifests=manifests, state=state))
    return replace(record, iterations=timed_iterations)


def with_input(run: RunRecord, number: int, key: str) -> None:
    """Adds an input to the `finetune` of an iteration, which has none in made runs."""
    made = run.iterations[number].manifests["finetune"]
    made.inputs["added"] = {"kind": "Batch", "key": key, "digest": "0"}


@pytest.fixture
def record(made: tuple[Store, RunLayout]) -> RunRecord:
    store, layout = made
    return read_run(store, layout.run)


def test_an_iteration_divides_up(record: RunRecord, made: tuple[Store, RunLayout]) -> None:
    run = run_of(record, ITERATION)
    with_input(run, 1, run.layout.iteration(1, "batch"))
    line = run_timeline(run, made[0])
    assert line is not None and line.whole and line.iteration == 1 and line.length_s == pytest.approx(25)
    assert line.by_stage() == pytest.approx({"sample": 8.5 / 25, "finetune": 3 / 25, "evaluate": 1.5 / 25})
    shares = {"computes": 13, "store": 4.5, "loading": 2, "other work": 4.5, "between stages": 1}
    assert line.shares() == pytest.approx({name: seconds / 25 for name, seconds in shares.items()})
    assert [bar.name for bar in line.bars] == [
        "sample", "grade", "pack", "finetune", "weights", STATE, "evaluate", "promote",
    ]  # fmt: skip
    spans = {bar.name: bar.span for bar in line.bars}
    assert spans["weights"] == spans[STATE] == pytest.approx((17, 20)), "from the last step to the store"
    assert line.line() == (
        "engine or trainer computes 52% of iteration 1 (25.0 s): sample 34%, finetune 12%, evaluate 6%; "
        "the rest: store 18%, loading 8%, other work 18%, between stages 4%"
    )
    rows = {row[0]: row[1:] for row in line.rows()}
    assert rows["grade"] == ["11.0", "12.0", "sample 1", "1.0", "", "", "0.5", "0.5"]
    assert rows["finetune"] == ["13.0", "20.0", "pack 1", "0.0", "3.0", "1.0", "3.0", ""]


def test_the_time_after_the_iteration_before_counts(record: RunRecord, made: tuple[Store, RunLayout]) -> None:
    """The second iteration begins a second after the decision of the first."""
    later = {stage: (begin + 1, end + 1, spans) for stage, (begin, end, spans) in ITERATION.items()}
    line = iteration_timeline(run_of(record, ITERATION, later), 2, made[0])
    assert line is not None and line.length_s == pytest.approx(26)
    assert line.shares()["between stages"] == pytest.approx(2 / 26)


def test_a_state_that_is_stored_beside_the_next_iteration(record: RunRecord, made: tuple[Store, RunLayout]) -> None:
    """The next `finetune` begins at 38 s and waits for it until 41 s."""
    late: dict[str, tuple[float, float, Spans]] = {**ITERATION, STATE: (13, 41, {"store": [(8, 28)]})}
    waiting: dict[str, tuple[float, float, Spans]] = {
        **ITERATION, "finetune": (13, 20, {"trainer": [(3, 6)], "store": [(6, 7)]}),
    }  # fmt: skip
    run = run_of(record, late, waiting)
    with_input(run, 2, run.layout.iteration(1, STATE))
    first, second = iteration_timeline(run, 1, made[0]), iteration_timeline(run, 2, made[0])
    assert first is not None and second is not None
    assert first.length_s == pytest.approx(25), "the iteration ends with its decision"
    bar = next(bar for bar in second.bars if bar.name == STATE and bar.iteration == 1)
    assert bar.span == pytest.approx((17 - 25, 41 - 25)) and bar.of("store") == [pytest.approx((-4, 16))]
    trained = next(bar for bar in second.bars if bar.name == "finetune")
    assert trained.ready == (f"{STATE} 1", pytest.approx(16))
    row = second.rows()[second.bars.index(bar)]
    assert row[-2:] == ["16.0", ""], "of the part in this iteration, all is the store's"
    # Of its 25 s: half a second of `grade`, 3 s for the state, 1 s of `finetune`, 1 s of `promote`.
    assert second.shares()["store"] == pytest.approx(5.5 / 25)


def test_sampling_ahead_computes_beside_training(record: RunRecord, made: tuple[Store, RunLayout]) -> None:
    ahead: dict[str, tuple[float, float, Spans]] = {**ITERATION, "sample": (-13, -2, {"engine": [(0, 11)]})}
    line = iteration_timeline(run_of(record, ITERATION, ahead), 1, made[0])
    assert line is not None
    assert [(bar.name, bar.iteration) for bar in line.bars][:2] == [("sample", 1), ("sample", 2)]
    assert line.computing == [pytest.approx((1, 9.5)), pytest.approx((12, 23))], "the second includes the trainer"
    assert line.by_stage()["sample"] == pytest.approx(19.5 / 25)


def test_time_in_which_two_stages_ran_counts_once(record: RunRecord, made: tuple[Store, RunLayout]) -> None:
    """Iteration 0 takes 21 s, iteration 1 24 s; of iteration 2, the last 14 s follow and 11 s of sampling do not."""
    ahead: dict[str, tuple[float, float, Spans]] = {**ITERATION, "sample": (-13, -2, {"engine": [(0, 11)]})}
    run = run_of(record, ITERATION, ahead)
    first = {"evaluate": (-30, -10), "promote": (-10, -9)}
    manifests = {stage: timed(run.iterations[0].manifests[stage], *times, {}) for stage, times in first.items()}
    run = replace(run, iterations=[replace(run.iterations[0], manifests=manifests), *run.iterations[1:]])
    page = report_files(RunView(run, made[0]))[PAGE].decode()
    assert "2 of 4 iterations of GRPO in 59.0 s, 19.0 s each" in page


def test_of_several_attempts_only_the_last_is_drawn(record: RunRecord, made: tuple[Store, RunLayout]) -> None:
    line = run_timeline(run_of(record, ITERATION, process=13), made[0])
    assert line is not None and not line.whole
    assert [bar.name for bar in line.bars] == ["finetune", "weights", STATE, "evaluate", "promote"]
    assert line.length_s == pytest.approx(12), "from the begin of the last attempt's first stage"
    page = report_files(RunView(run_of(record, ITERATION, process=13), made[0]))[PAGE].decode()
    assert "Several attempts made this iteration; only the last one is drawn" in page
    # An iteration that one attempt made is shown instead, if there is one.
    both = run_timeline(run_of(record, ITERATION, ITERATION, process=38), made[0])
    assert both is not None and both.whole and both.iteration == 1
    shards = run_of(record, ITERATION)
    shards.iterations[1].manifests["sample"].facts["groups_reused"] = 2
    line = run_timeline(shards, made[0])
    assert line is not None and not line.whole, "an earlier attempt sampled two groups"


def test_the_page_shows_it_only_if_it_was_recorded(record: RunRecord, made: tuple[Store, RunLayout]) -> None:
    store, _ = made
    assert run_timeline(record, store) is None, "made runs have no engine"
    without = report_files(RunView(record, store))
    assert "timeline.png" not in without and "One iteration in time" not in without[PAGE].decode()
    files = report_files(RunView(run_of(record, ITERATION), store))
    page = files[PAGE].decode()
    assert files["timeline.png"].startswith(b"\x89PNG") and len(files["timeline.png"]) < 150_000
    assert page.index("One iteration in time") < page.index("sample 34%, finetune 12%") < page.index("Who waits for")
    old = run_of(record, ITERATION)
    del old.iterations[1].manifests["grade"].provenance["spans"]
    assert run_timeline(old, store) is None


def test_a_slow_store_is_said_once(
    record: RunRecord, made: tuple[Store, RunLayout], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, layout = made
    slow: dict[str, tuple[float, float, Spans]] = {**ITERATION, "promote": (24, 25, {}), "grade": (11, 12, {})}
    assert store_warning(_line(run_of(record, slow), store), store.url) is None, "12% are not too much"
    slow["promote"] = (24, 32, {"store": [(0, 8)]})
    run = run_of(record, slow)
    warned = store_warning(_line(run, store), store.url)
    assert warned == (
        f"store {store.url}: 34% of iteration 1 (11.0 of 32.0 s) was waiting for it; expected at most 20%; "
        "name a faster one with --store (`deerstalker doctor` measures it)"
    )
    monkeypatch.setattr("flows.report.shown_run.read_run", lambda *_, **__: run)
    monkeypatch.setattr("flows.report.shown_run.show_in_prefect", lambda *_, **__: None)
    shown = ShownRun(layout, store, None, logging.getLogger("timeline"))
    shown.iteration_finished(run.iterations[1], executed=False)
    assert not caplog.messages, "nothing was executed"
    for _ in range(2):
        shown.iteration_finished(run.iterations[1], executed=True)
    assert caplog.messages == [warned]
    assert f"Warning: {warned}" in report_files(RunView(run, store))[PAGE].decode()


def test_show_says_it(
    record: RunRecord,
    made: tuple[Store, RunLayout],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store, layout = made
    command = ["show", layout.run, "--store", store.url, "--wide"]
    assert run_command(command) == 0 and "time:" not in capsys.readouterr().out
    monkeypatch.setattr("flows.lookup.history.read_run", lambda *_: run_of(record, ITERATION))
    assert run_command(command) == 0
    assert "time:     engine or trainer computes 52% of iteration 1 (25.0 s): sample 34%" in capsys.readouterr().out


def _line(record: RunRecord, store: Store) -> Timeline:
    line = iteration_timeline(record, 1, store)
    assert line is not None
    return line
