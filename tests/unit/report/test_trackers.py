"""Trackers, each the real one: what they wrote is read back; nothing leaves this machine."""

import hashlib
import importlib.util
import os
import struct
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from artifacts.errors import BadInputError
from artifacts.layout import RunLayout
from artifacts.store.store import Store
from flows.lookup.history import read_run
from flows.opening import opened_run
from flows.report.metric_names import before_after_metrics, iteration_metrics
from flows.report.trackers import open_tracker
from stages.context import Profile
from tests.support.made_run import copied_store

TRACK = """
    import sys
    from pathlib import Path
    from artifacts.store.store import Store
    from flows.cli.app import _explain
    from flows.lookup.history import read_run
    from flows.opening import opened_run
    from flows.report.metric_names import iteration_metrics, before_after_metrics
    from flows.report.trackers import open_tracker
    from stages.context import Profile

    store = Store.open(sys.argv[1])
    record = read_run(store, "made")
    profile, refreshes = Profile(tracker="wandb", tracker_folder=sys.argv[2]), int(sys.argv[3])
    try:
        with open_tracker(profile, store, "made", record.recipe, refreshes) as tracker:
            for item in record.iterations:
                figures = iteration_metrics(item)
                tracker.log(item.number, figures | {"reward": figures.get("reward", 0.0) + refreshes})
            tracker.conclude(before_after_metrics(record.evaluations))
    except Exception as error:
        sys.exit(_explain(error)[1])
    assert not {"torch", "tensorflow"} & sys.modules.keys()
"""


def _track(
    made: tuple[Store, RunLayout], folder: Path, refreshes: int = 0, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Logs the run to W&B; each request to refresh stages raises all rewards by 1."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("WANDB_")}
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(TRACK), made[0].url, str(folder), str(refreshes)],
        capture_output=True, text=True, timeout=600, env={**kept, "HOME": str(folder), **variables}, check=False,
    )  # fmt: skip


def _wandb_records(path: Path) -> Iterator[Any]:
    """The records of a W&B file: blocks of 32 KiB, records in pieces, each behind checksum, length and kind."""
    from wandb.proto import wandb_internal_pb2

    data, at, pending = path.read_bytes(), 7, b""
    assert data.startswith(b":W&B")
    while at < len(data):
        left = 32768 - at % 32768
        if left < 7:
            at += left
            continue
        _, length, kind = struct.unpack_from("<IHB", data, at)
        pending += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or the last piece
            record = wandb_internal_pb2.Record()
            record.ParseFromString(pending)
            yield record
            pending = b""


def test_metrics_have_the_names_that_other_trainers_use(made: tuple[Store, RunLayout]) -> None:
    record = read_run(made[0], "made")
    before, first = (iteration_metrics(item) for item in record.iterations[:2])
    assert {"eval/sampled/accuracy", "eval/greedy/accuracy"} <= before.keys()
    assert "reward" not in before, "nothing was sampled before the first update"
    assert {
        "reward", "reward_std", "frac_reward_zero_std", "completions/mean_length", "completions/clipped_ratio",
        "completions/early_stopped_ratio", "entropy", "grad_norm", "learning_rate", "clip_ratio/low_mean",
        "clip_ratio/high_mean",
        "sampling/sampling_logp_difference/mean", "sampling/sampling_logp_difference/max",
        "timing_s/sample", "timing_s/finetune", "timing_s/evaluate", "perf/sampled_tokens_per_s",
    } <= first.keys()  # fmt: skip
    assert first["clip_ratio/low_mean"] == 0.01
    assert {"test/before/sampled/accuracy", "test/after/greedy/exact"} <= before_after_metrics(
        record.evaluations
    ).keys()


def test_tensorboard_reads_each_iteration_once_with_its_values_after_a_refresh(
    made: tuple[Store, RunLayout], tmp_path: Path
) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    record = read_run(made[0], "made")
    profile = Profile(tracker="tensorboard", tracker_folder=str(tmp_path))
    for told, refreshed in ((record.iterations[:3], 0.0), (record.iterations, 1.0)):
        with open_tracker(profile, made[0], "made", record.recipe) as tracker:
            for item in told:
                figures = iteration_metrics(item)
                tracker.log(item.number, figures | {"reward": figures["reward"] + refreshed} if item.number else {})
            tracker.conclude(before_after_metrics(record.evaluations))
    events = EventAccumulator(str(tmp_path / f"made_{_digits(made[0])}"))
    events.Reload()
    read = [(event.step, event.value) for event in events.Scalars("reward")]
    expected = [(item.number, iteration_metrics(item)["reward"] + 1) for item in record.iterations[1:]]
    assert [step for step, _ in read] == [1, 2, 3, 4]
    assert [value for _, value in read] == pytest.approx([value for _, value in expected], rel=1e-6)
    assert [event.step for event in events.Scalars("test/after/sampled/accuracy")] == [0]
    assert "A run for tests" in str(events.Tensors("recipe")[0].tensor_proto.string_val)


@pytest.mark.long
def test_wandb_offline_holds_every_iteration_and_the_values_after_a_refresh(
    made: tuple[Store, RunLayout], tmp_path: Path
) -> None:
    for refreshes in (0, 1):
        done = _track(made, tmp_path, refreshes, WANDB_MODE="offline")
        assert done.returncode == 0, done.stderr
    logged: dict[tuple[str, str, str, str], dict[int, float]] = {}
    for file in tmp_path.glob("wandb/offline-run-*/*.wandb"):
        records = list(_wandb_records(file))
        (run,) = (record.run for record in records if record.WhichOneof("record_type") == "run")
        logged[run.run_id, run.display_name, run.run_group, run.project] = {
            record.history.step.num: float(item.value_json)
            for record in records
            if record.WhichOneof("record_type") == "history"
            for item in record.history.item
            if "reward" in (item.key, *item.nested_key)
        }
    iterations = read_run(made[0], "made").iterations
    rewards = {item.number: iteration_metrics(item).get("reward", 0.0) for item in iterations}
    key = f"made_{_digits(made[0])}"
    assert logged == {
        (key, "made", "made", "deerstalker"): pytest.approx(rewards),
        (f"{key}_refresh_1", "made, refresh 1", "made", "deerstalker"): pytest.approx(
            {number: reward + 1 for number, reward in rewards.items()}
        ),
    }


@pytest.mark.long
def test_a_run_of_which_a_stage_is_refreshed_begins_another_wandb_run(
    made: tuple[Store, RunLayout], tmp_path: Path, request_of_mine: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`request_of_mine` lets a run be opened outside of a flow."""
    monkeypatch.setenv("WANDB_MODE", "offline")
    store, layout = copied_store(made[0], tmp_path / "store"), made[1]
    recipe, profile = read_run(store, "made").typed_recipe(), Profile(tracker="wandb", tracker_folder=str(tmp_path))
    for refresh in ([], ["grade@2"]):
        with opened_run(store, layout, recipe, profile, refresh):
            pass
    runs = sorted(path.name.split("-")[-1] for path in tmp_path.glob("wandb/offline-run-*"))
    assert runs == [f"made_{_digits(store)}", f"made_{_digits(store)}_refresh_1"]


def test_runs_of_one_name_in_two_stores_are_two_runs_of_a_tracker(
    made: tuple[Store, RunLayout], tmp_path: Path
) -> None:
    profile = Profile(tracker="tensorboard", tracker_folder=str(tmp_path))
    for store in (made[0], Store.open(str(tmp_path / "other"))):
        with open_tracker(profile, store, "made", {}) as tracker:
            tracker.log(1, {"reward": 1.0})
    assert len(list(tmp_path.glob("made_*/events*"))) == len(list(tmp_path.glob("made_*"))) == 2


def _digits(store: Store) -> str:
    return hashlib.sha256(store.url.encode()).hexdigest()[:8]


@pytest.mark.long
def test_wandb_without_a_key_says_what_to_do_before_anything_runs(
    made: tuple[Store, RunLayout], tmp_path: Path
) -> None:
    done = _track(made, tmp_path)
    assert done.returncode == 1
    assert "tracker 'wandb': no API key" in done.stderr
    assert "WANDB_MODE=offline" in done.stderr


def test_a_missing_package_is_named_with_its_extra(
    made: tuple[Store, RunLayout], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, profile = importlib.util.find_spec, Profile(tracker="wandb", tracker_folder=str(tmp_path))
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "wandb" else found(name, *rest)
    )
    message = r"tracker 'wandb': its package is not installed; expected deerstalker\[wandb\].*uv sync --extra wandb"
    with pytest.raises(BadInputError, match=message), open_tracker(profile, made[0], "made", {}):
        pass
