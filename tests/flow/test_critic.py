"""A critic that learns from another run's rollouts, killed in each of its stages, and a run that continues it.

The run that is killed also rates puzzles, so that a kill falls into that stage as well.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from artifacts.layout import MANIFEST_NAME, RunLayout
from artifacts.manifest import Manifest
from artifacts.reading import Artifact
from artifacts.refs import Critic, PassRates, Rollouts, Values
from artifacts.schemas import PASS_RATES, PASS_RATES_FILE, ROLLOUTS, VALUES, VALUES_FILE
from artifacts.store.store import Store
from artifacts.verification import verify
from flows.cli.app import run_command
from tests.support.pages import versions
from tests.support.prefect_server import prefect_api
from tests.support.tiny_runs import CRITIC, FIRST, FROM_FIRST, VALUE
from tests.support.train_command import LIMIT_S, TrainCommand
from tests.support.waiting import wait_until

pytestmark = pytest.mark.long
PUZZLES, SAMPLED, SAMPLES = 96, 16, 8
"""Train puzzles; puzzles of an iteration; samples of each."""
EACH_STEP = ("trainer.checkpoint_every_s=0",)
STEPS = 8 * 16
"""Optimizer steps of both trainings of the critic."""
SECOND = RunLayout("second")
FIRST_CRITIC, VALUED = SECOND.first_critic("critic"), SECOND.iteration(1, "values")
PAGES = ("iterations", "seconds", "pretrain", "rate-start", "value")
"""Prefect's tables of the run, and the progress of its stages."""


@dataclass(frozen=True)
class Story:
    """A run that stored rollouts, and a finished run with a critic that was killed in two stages.

    Attributes:
        folder: Folder of the commands; the store is in `store`.
        prefect: Address of Prefect's API.
        summary: The document that the finished command printed.
        pretrained: Metrics of the steps that were stored when `pretrain` was killed.
        shards: Rated groups that were stored when `rate` was killed.
    """

    folder: Path
    prefect: str
    summary: dict[str, Any]
    pretrained: list[dict[str, Any]]
    shards: dict[Path, bytes]

    @property
    def store(self) -> Store:
        return Store.open(str(self.folder / "store"), writable=False)

    def command(self, run: str, *settings: str) -> TrainCommand:
        return TrainCommand(self.folder, run, settings, EACH_STEP, PREFECT_API_URL=self.prefect)

    def manifest(self, key: str) -> Manifest:
        return Artifact.at(self.store, key).manifest


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory, prefect_api_url: str) -> Story:
    folder = tmp_path_factory.mktemp("critic")
    TrainCommand(folder, "first", FIRST, PREFECT_API_URL=prefect_api_url).finish()
    second = TrainCommand(folder, "second", CRITIC, EACH_STEP, PREFECT_API_URL=prefect_api_url)

    trained = second.store / FIRST_CRITIC
    second.kill_when(lambda: any(trained.glob(f"progress-*/step-*/{MANIFEST_NAME}")))
    assert not (trained / MANIFEST_NAME).exists(), "it was over before"
    newest = max(trained.glob(f"progress-*/step-*/{MANIFEST_NAME}")).parent
    pretrained = json.loads(next(newest.glob("*/steps.json")).read_text())
    rated = second.store / SECOND.pass_rates
    second.kill_when(lambda: any(rated.glob("progress-*/*.parquet")))
    assert not (rated / MANIFEST_NAME).exists(), "it was over before"
    shards = {path: path.read_bytes() for path in rated.glob("progress-*/*.parquet")}
    return Story(folder, prefect_api_url, second.finish(), pretrained, shards)


def test_each_killed_stage_continues_from_what_it_had_stored(story: Story) -> None:
    assert verify(story.store).damaged == []
    steps, before = story.manifest(FIRST_CRITIC).facts["steps"], story.pretrained
    assert len(steps) == STEPS
    assert 0 < len(before) < STEPS
    assert steps[: len(before)] == before, "the seconds of a step show that it was not repeated"
    assert story.shards
    assert {path: path.read_bytes() for path in story.shards} == story.shards
    folder = next(iter(story.shards)).parent
    groups = pl.concat([pl.read_parquet(path, columns=["prompt_id"]) for path in folder.glob("*.parquet")])
    assert groups["prompt_id"].value_counts()["count"].to_list() == [2] * PUZZLES, "a puzzle was sampled again"


def test_the_puzzles_that_the_rated_model_solves_least_come_first(story: Story) -> None:
    pass_rates = Artifact.at(story.store, SECOND.pass_rates, PassRates).read_table(PASS_RATES_FILE, PASS_RATES)
    rollouts = Artifact.at(story.store, SECOND.iteration(1, "rollouts"), Rollouts)
    chosen = set(rollouts.read_tables(ROLLOUTS)["prompt_id"])
    hard = pass_rates.filter(pl.col("prompt_id").is_in(chosen))["accuracy"].to_list()
    easy = pass_rates.filter(~pl.col("prompt_id").is_in(chosen))["accuracy"].to_list()
    assert (len(hard), len(easy)) == (SAMPLED, PUZZLES - SAMPLED)
    assert max(hard) <= min(easy) < max(easy)
    assert rollouts.manifest.inputs["pass_rates"]["key"] == SECOND.pass_rates


def test_each_token_of_a_completion_has_a_value_of_the_pretrained_model(story: Story) -> None:
    rollouts = Artifact.at(story.store, SECOND.iteration(1, "rollouts"), Rollouts).read_tables(ROLLOUTS)
    values = Artifact.at(story.store, VALUED, Values).read_table(VALUES_FILE, VALUES)
    joined = rollouts.join(values, on=["group", "sample"], validate="1:1")
    assert len(joined) == len(values) == len(rollouts) == SAMPLED * SAMPLES
    assert joined["values"].list.len().to_list() == joined["completion_token_ids"].list.len().to_list()
    assert values["values"].explode().null_count() == 0, "no tool has written a token"
    assert values["values"].explode().n_unique() > 1, "a critic that was not pretrained has 0 everywhere"


def test_the_critic_descends_from_the_rollouts_of_the_other_run(
    story: Story, capsys: pytest.CaptureFixture[str]
) -> None:
    first = RunLayout("first")
    where = ["--depth", "0", "--json", "--store", str(story.folder / "store")]
    ancestors: dict[str, set[str]] = {}
    for key in (SECOND.iteration(1, "critic"), "second@1"):
        assert run_command(["lineage", key, *where]) == 0
        ancestors[key] = {node["key"] for node in json.loads(capsys.readouterr().out)["ancestors"]}
    other = {first.iteration(1, part) for part in ("rollouts", "grades", "checkpoint")}
    own = {FIRST_CRITIC, SECOND.first_critic("critic_state"), SECOND.pass_rates, SECOND.iteration(1, "rollouts")}
    assert ancestors[SECOND.iteration(1, "critic")] >= other | own
    assert ancestors["second@1"] >= other | own | {VALUED}, "the advantages of the policy come from the values"


def test_show_the_report_and_prefect_have_its_figures(story: Story, capsys: pytest.CaptureFixture[str]) -> None:
    facts = story.manifest(VALUED).facts
    shown = story.summary["iterations"][1]
    assert shown["value_explained_variance"] == pytest.approx(facts["explained_variance/all"])
    assert shown["value_explained_last"] == pytest.approx(facts["explained_variance/last_token"])
    assert run_command(["show", "second", "--wide", "--store", str(story.folder / "store")]) == 0
    table = capsys.readouterr().out
    assert " EV " in table
    assert f"{facts['explained_variance/all']:.2f}" in table
    page = story.store.read_bytes(f"{SECOND.summary}/report.html").decode()
    assert "EV, last token" in page
    assert f"{facts['explained_variance/last_token']:.1%}" in page

    newest = {page: versions(story.prefect.removesuffix("/api"), f"second-{page}") for page in PAGES}
    assert all(newest.values())
    row = json.loads(newest["iterations"][-1]["data"])[1]
    assert row["EV"] == pytest.approx(facts["explained_variance/all"], abs=1e-3)
    assert json.loads(newest["seconds"][-1]["data"])[1]["value"] > 0
    expected = {(name, "Completed") for name in ("pretrain", "rate", "value-0001")} | {("pretrain", "Cached")}
    tasks = {"task_runs": {"name": {"any_": sorted({name for name, _ in expected})}}}

    def states() -> set[tuple[str, str]]:
        runs = prefect_api(story.prefect, "POST", "/task_runs/filter", tasks)
        return {(item["name"], item["state_name"]) for item in runs}

    wait_until(lambda: states() >= expected, LIMIT_S, states)


def test_another_run_continues_the_critic(story: Story) -> None:
    story.command("third", *FROM_FIRST, VALUE % 'source="second@1"').finish()
    values = Artifact.at(story.store, RunLayout("third").iteration(1, "values"), Values).manifest
    critic = Artifact.at(story.store, SECOND.iteration(1, "critic"), Critic)
    assert values.inputs["critic"]["digest"] == critic.ref.digest
    assert values.inputs["critic_state"]["key"] == SECOND.iteration(1, "critic_state")
    assert not any("third/first_critic" in key for key in story.store.list("runs/third"))


OTHER_VOCABULARY = ("warm_start=null", "puzzles.puzzle.fixed_cast=false", "puzzles.puzzle.fixed_rooms=false")
"""Settings of a model from scratch whose tokenizer knows other names than that of the other runs."""
REFUSED = {
    "value.source: second@1: runs/second/iterations/0001/critic has another tokenizer": (
        *OTHER_VOCABULARY, VALUE % 'source="second@1"'
    ),
    "value.pretrain.run: runs/first/iterations/0001/rollouts: models/": (
        *OTHER_VOCABULARY, VALUE % 'pretrain={run="first", last=1}'
    ),
    "value.source: second@2: no critic in ": (VALUE % 'source="second@2"',),
    "value.pretrain: first@2: no rollouts in ": (VALUE % 'pretrain={run="first", last=2}',),
}  # fmt: skip


@pytest.mark.parametrize("refusal", REFUSED)
def test_bad_sources_are_refused_in_one_line_before_the_run_has_its_name(refusal: str, story: Story) -> None:
    command = story.command("refused", FROM_FIRST[-1], *REFUSED[refusal])
    assert command.refusal().startswith(f"error: {refusal}")
    assert command.said().count("error: ") == 1
    assert "Traceback" not in command.said()
    assert not story.store.list("runs/refused")
    command.log.unlink()
