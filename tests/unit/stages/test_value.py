"""The stages of a critic with a real trainer: values, advantages of tokens, what is learned, and a kill."""

import json
import logging
import os
import shutil
import signal
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import polars as pl
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load

from artifacts.address import ArtifactAddress
from artifacts.errors import BadInputError, TransientError
from artifacts.identity import Identity
from artifacts.layout import MANIFEST_NAME
from artifacts.lineage import lineage
from artifacts.reading import Artifact
from artifacts.refs import Batch, Checkpoint, Critic, Grades, OptimizerState, Ref, Rollouts, Values
from artifacts.schemas import (
    GRADES,
    GRADES_FILE,
    ROLLOUTS,
    TOKEN_ADVANTAGES,
    TOKEN_ADVANTAGES_FILE,
    VALUES,
    VALUES_FILE,
    as_table,
)
from artifacts.store.store import Store
from artifacts.tensors import BATCH_FILE
from stages.context import Profile, StageContext
from stages.grpo.gae import gae, lambda_of_length, last_token_rewards
from stages.grpo.packing import PackConfig
from stages.models.adapters import BASE_LINK
from stages.models.stored import base_ref
from stages.optional.pretrain import pretrain
from stages.optional.value import Valued, value
from stages.pack import pack
from stages.training.critic import PretrainConfig, ValueConfig, warn_of_bounds
from stages.training.launch import Weights
from stages.training.worker_group.hardware import TrainHardware
from tests.support.adapters import save_adapter
from tests.support.trainer_processes import workers
from tests.support.trees import VOCAB, save_model

CONFIG = ValueConfig(learning_rate=0.01, epochs=6, updates=2)
GOOD, BAD = 7, 8
"""The last tokens of prompts whose completions are right, and wrong."""

LastCompletion = Literal["masked", "absent", "graded"]


class Lab:
    """A store with a model and rollouts, and a trainer that can be killed at a step."""

    def __init__(self, folder: Path) -> None:
        self.store = Store.open(str(folder / "store"))
        self.kill_at = 0
        hardware = TrainHardware(compute_dtype="fp32", threads=1, checkpoint_every_s=0.0)
        log = logging.getLogger("test")
        self.ctx = StageContext(self.store, folder / "scratch", Profile(trainer=hardware), self.progress, log)
        self.model = self.published_model("model", folder, b"{}")
        self.rollouts, self.grades = self.sampled("first", 0, self.model)

    def progress(self, label: str, done: int, total: int, figures: Mapping[str, float]) -> None:
        if done == self.kill_at:
            self.kill_at = 0
            os.kill(workers(self.ctx.worker_group)[-1], signal.SIGKILL)

    def published_model(self, key: str, folder: Path, tokenizer: bytes) -> Ref[Checkpoint]:
        attempt = ArtifactAddress(self.store, key, Checkpoint).attempt(Identity.of("fetch", 1, {"key": key}))
        with attempt.folder(folder) as model:
            save_model(model, "Qwen2", tie_word_embeddings=True)
            (model / "tokenizer.json").write_bytes(tokenizer)
        return attempt.publish()

    def sampled(
        self, key: str, seed: int, model: Ref[Checkpoint], last: LastCompletion = "masked"
    ) -> tuple[Ref[Rollouts], Ref[Grades]]:
        """Six prompts with three completions each; the prompt decides the reward, and one completion is masked.

        Args:
            last: The last completion, whose reward is unlike all others: masked, not there, or with an advantage.
        """
        draw = np.random.default_rng(seed)
        samples: list[dict[str, Any]] = []
        graded: list[dict[str, Any]] = []
        for group in range(6):
            reward = float(group % 2)
            prompt = [*draw.integers(10, VOCAB, size=3).tolist(), GOOD if reward else BAD]
            for sample in range(3):
                tokens = draw.integers(10, VOCAB, size=int(draw.integers(2, 6))).tolist()
                is_last = (group, sample) == (5, 2)
                if is_last and last == "absent":
                    continue
                own: dict[str, Any] = {"prompt_id": f"p{group}", "group": group, "sample": sample}
                samples.append(
                    own | {
                        "prompt_token_ids": prompt, "completion_token_ids": tokens,
                        "sampler_logprobs": [-4.0] * len(tokens), "text": "x", "finish_reason": "stop",
                        "sampling": json.dumps({"max_tokens": 8}), "weights_digest": model.digest, "engine": "none",
                        "group_s": 0.1,
                    }
                )  # fmt: skip
                graded.append(
                    own | {
                        "accuracy": reward, "exact": reward == 1, "truncated": False, "answers": "{}",
                        "reward": 9.0 if is_last else reward, "grader": "strict",
                        "advantage": None if is_last and last == "masked" else reward,
                        "statements": None, "proved": None, "restated": None, "open": None, "contradicted": None,
                    }
                )  # fmt: skip
        attempt = ArtifactAddress(self.store, f"{key}/rollouts", Rollouts).attempt(Identity.of("sample", 1, {"k": key}))
        attempt.write_table("rollouts.parquet", as_table(samples, ROLLOUTS), ROLLOUTS)
        rollouts = attempt.publish({}, weights=model)
        attempt = ArtifactAddress(self.store, f"{key}/grades", Grades).attempt(Identity.of("grade", 1, {"k": key}))
        attempt.write_table(GRADES_FILE, as_table(graded, GRADES), GRADES)
        return rollouts, attempt.publish({}, rollouts=rollouts)

    def value(
        self,
        run: str,
        critic: Weights | None = None,
        config: ValueConfig = CONFIG,
        ctx: StageContext | None = None,
        sampled: tuple[Ref[Rollouts], Ref[Grades]] | None = None,
    ) -> Valued:
        rollouts, grades = sampled or (self.rollouts, self.grades)
        valued = value(
            ctx or self.ctx, config, critic or Weights(self.model), rollouts, grades, iteration=1,
            out=ArtifactAddress(self.store, f"{run}/values", Values),
            critic_out=ArtifactAddress(self.store, f"{run}/critic", Critic),
            state_out=ArtifactAddress(self.store, f"{run}/critic_state", OptimizerState),
        )  # fmt: skip
        return replace(valued, critic=valued.critic.saved(ctx or self.ctx))

    def pretrain(
        self, run: str, rollouts: list[Ref[Rollouts]], grades: list[Ref[Grades]], epochs: int = 8, **settings: Any
    ) -> Weights:
        chosen = PretrainConfig(run="other", epochs=epochs, updates=4)
        config = CONFIG.model_copy(update={"pretrain": chosen, **settings})
        return pretrain(
            self.ctx, config, self.model, rollouts, grades,
            out=ArtifactAddress(self.store, f"{run}/critic", Critic),
            state_out=ArtifactAddress(self.store, f"{run}/critic_state", OptimizerState),
        )  # fmt: skip

    def tables(self, values: Ref[Values]) -> tuple[pl.DataFrame, pl.DataFrame]:
        artifact = Artifact.open(self.store, values)
        return artifact.read_table(VALUES_FILE, VALUES), artifact.read_table(TOKEN_ADVANTAGES_FILE, TOKEN_ADVANTAGES)

    def facts(self, ref: Ref[Any]) -> dict[str, Any]:
        return Artifact.open(self.store, ref).manifest.facts

    def forget(self, key: str) -> None:
        self.store.delete(f"{key}/{MANIFEST_NAME}")


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    made = Lab(tmp_path_factory.mktemp("lab"))
    with made.ctx:
        yield made


def test_values_are_those_before_the_model_learns_and_then_they_explain_the_rewards(lab: Lab) -> None:
    first = lab.value("run/1")
    values, advantages = lab.tables(first.values)
    assert len(values) == len(advantages) == 17, "the masked completion has neither values nor advantages"
    assert values["values"].explode().unique().to_list() == [0.0]
    assert all(set(row) == {reward} for row, reward in zip(advantages["advantages"], values["reward"], strict=True))
    assert lab.facts(first.values)["explained_variance/all"] == 0.0
    assert len(lab.facts(first.critic.checkpoint)["steps"]) == 12
    assert not list(lab.ctx.scratch.rglob("*batch*")), "what was packed for the critic is gone"
    config = CONFIG.model_copy(update={"length_alpha": 1.0, "normalise": "batch"})
    second = lab.value("run/2", first.critic, config)
    assert lab.facts(second.values)["explained_variance/first_token"] > 0.5
    assert lab.facts(second.values)["explained_variance/last_token"] > 0.5
    values, advantages = lab.tables(second.values)
    raw = [
        gae(last_token_rewards(reward, len(row)), np.array(row, np.float64), lambda_of_length(1.0, len(row)))
        for row, reward in zip(values["values"].to_list(), values["reward"], strict=True)
    ]
    pooled = np.concatenate(raw)
    expected = (pooled - pooled.mean()) / pooled.std()
    np.testing.assert_allclose(advantages["advantages"].explode().to_numpy(), expected, rtol=1e-4, atol=1e-5)


def test_the_batch_has_the_advantages_of_the_critic(lab: Lab) -> None:
    valued = lab.value("run/1")
    again = lab.value("run/2", valued.critic, CONFIG.model_copy(update={"length_alpha": 1.0, "normalise": "batch"}))
    assert valued.reused and again.reused
    out = ArtifactAddress(lab.store, "run/2/batch", Batch)
    batch = pack(lab.ctx, PackConfig(row_tokens=2048, mark_right=True), lab.rollouts, lab.grades, again.values, out=out)
    tensors = load(Artifact.open(lab.store, batch).read_bytes(BATCH_FILE))
    in_loss = tensors["completion_mask"] == 1
    _, advantages = lab.tables(again.values)
    np.testing.assert_allclose(
        np.sort(tensors["advantages"][in_loss]), np.sort(advantages["advantages"].explode().to_numpy()), rtol=1e-6
    )
    assert 0 < tensors["right"].sum() < in_loss.sum()
    roles = {node.ref.key for node in lineage(lab.store, [batch])}
    assert {"run/2/values", "run/1/critic", "run/1/values", "first/grades"} <= roles


def test_a_masked_completion_changes_neither_the_batch_of_the_policy_nor_the_critic(lab: Lab) -> None:
    """Its reward is 9: a critic that learned from it would differ, as the graded one shows.

    A pass has one optimizer step. With more, the digest of the rollouts would decide which groups come first.
    """
    config = CONFIG.model_copy(update={"updates": 1, "epochs": 4, "lambda_policy": 0.9})
    losses: dict[str, list[float]] = {}
    values: dict[str, NDArray[np.float64]] = {}
    batches: dict[str, dict[str, NDArray[Any]]] = {}
    kinds: tuple[LastCompletion, ...] = ("masked", "absent", "graded")
    for last in kinds:
        sampled = lab.sampled(f"last/{last}", 7, lab.model, last)
        first = lab.value(f"last/{last}/1", config=config, sampled=sampled)
        losses[last] = [step["loss"] for step in lab.facts(first.critic.checkpoint)["steps"]]
        second = lab.value(f"last/{last}/2", first.critic, config, sampled=sampled)
        table, _ = lab.tables(second.values)
        values[last] = table.head(17)["values"].explode().to_numpy()
        for name, judged in (("grades", None), ("values", second.values)):
            out = ArtifactAddress(lab.store, f"last/{last}/batch/{name}", Batch)
            batch = pack(lab.ctx, PackConfig(row_tokens=2048), *sampled, judged, out=out)
            batches[f"{last}, {name}"] = load(Artifact.open(lab.store, batch).read_bytes(BATCH_FILE))
    np.testing.assert_allclose(losses["masked"], losses["absent"], rtol=1e-5)
    np.testing.assert_allclose(values["masked"], values["absent"], rtol=1e-4, atol=1e-5)
    assert abs(losses["graded"][0] - losses["masked"][0]) > 1.0
    assert np.abs(values["graded"] - values["masked"]).max() > 0.01
    for name, column in batches["masked, grades"].items():
        np.testing.assert_array_equal(column, batches["absent, grades"][name])
        np.testing.assert_allclose(
            batches["masked, values"][name], batches["absent, values"][name], rtol=1e-4, atol=1e-5
        )
    of_graded = batches["graded, grades"]["completion_mask"].sum()
    assert of_graded > batches["masked, grades"]["completion_mask"].sum()


@pytest.mark.long
def test_a_killed_trainer_continues_and_ends_with_the_same_critic(lab: Lab) -> None:
    whole = lab.value("run/1")
    lab.kill_at = 7
    with pytest.raises(TransientError):
        lab.value("killed")
    assert not lab.store.exists(f"killed/critic/{MANIFEST_NAME}")
    assert [key for key in lab.store.list("killed/critic") if "/progress-" in key]
    continued = lab.value("killed")
    assert continued.values.digest == whole.values.digest
    assert continued.critic.checkpoint.digest == whole.critic.checkpoint.digest
    # A kill between the values and the critic, which is published last: the values stay, the job runs again.
    attempt = Artifact.open(lab.store, continued.values).manifest.attempt
    lab.forget("killed/critic")
    repeated = lab.value("killed")
    assert not repeated.reused and repeated.critic.checkpoint.digest == whole.critic.checkpoint.digest
    assert Artifact.open(lab.store, repeated.values).manifest.attempt == attempt


def test_it_is_pretrained_on_stored_rollouts_and_knows_others(lab: Lab) -> None:
    others = [lab.sampled(f"other/{seed}", seed, lab.model) for seed in (1, 2)]
    critic = lab.pretrain("pretrained", [pair[0] for pair in others], [pair[1] for pair in others])
    judged = lab.value("judged", critic, CONFIG.model_copy(update={"warmup_iterations": 2}))
    rates = {step["learning_rate"] for step in lab.facts(judged.critic.checkpoint)["steps"]}
    assert rates == {0.005}, "the critic has the schedule of its own section"
    assert lab.facts(judged.values)["explained_variance/first_token"] > 0.3
    assert lab.pretrain("pretrained", [pair[0] for pair in others], [pair[1] for pair in others]).reused


def test_its_pretraining_shares_a_rate_of_the_iteration(lab: Lab) -> None:
    rollouts, grades = lab.sampled("other/3", 3, lab.model)
    shared: dict[str, Any] = {"learning_rate_of": "iteration", "least_shares": 8}
    critic = lab.pretrain("shared", [rollouts], [grades], epochs=1, **shared)
    assert {step["learning_rate"] for step in lab.facts(critic.checkpoint)["steps"]} == {0.01 / 8}


def test_rewards_beyond_the_bounds_of_a_critic_are_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    table = pl.DataFrame({"reward": [-0.5, 0.0, 1.0, 0.5]})
    for low, warned in ((-0.5, ""), (0.0, "1 of 4 rewards, which are from -0.5 to 1")):
        caplog.clear()
        warn_of_bounds(ValueConfig(head="bounded", reward_low=low), [table], logging.getLogger("critic"))
        assert warned in caplog.text and bool(caplog.records) == bool(warned)


@pytest.mark.long
def test_a_critic_with_another_head_is_refused_though_its_state_would_load(lab: Lab, tmp_path: Path) -> None:
    """Both heads have a weight of one shape, so the state of a linear head would load and mean other values."""
    trained = lab.value("run/1").critic
    assert trained.state is not None
    bounded = CONFIG.model_copy(update={"head": "bounded"})
    with (
        StageContext(lab.store, tmp_path / "cold", lab.ctx.profile, lambda *_: None, lab.ctx.log) as cold,
        pytest.raises(BadInputError, match="a critic with a linear head; expected a bounded head"),
    ):
        lab.value("bounded", trained, bounded, cold)


def test_rollouts_beyond_the_context_of_the_critic_are_refused(lab: Lab, tmp_path: Path) -> None:
    attempt = ArtifactAddress(lab.store, "short", Checkpoint).attempt(Identity.of("fetch", 1, {"key": "short"}))
    with attempt.folder(tmp_path) as model:
        save_model(model, "Qwen2", tie_word_embeddings=True, max_position_embeddings=6)
    with pytest.raises(BadInputError, match=r"value\.source: a prompt .* has 8 tokens; expected at most 6, .* short"):
        lab.value("run/short", Weights(attempt.publish()))


def test_rollouts_of_another_tokenizer_are_refused(lab: Lab, tmp_path: Path) -> None:
    stranger = lab.published_model("stranger", tmp_path, b'{"other": 1}')
    rollouts, grades = lab.sampled("foreign", 3, stranger)
    with pytest.raises(BadInputError, match=r"model has another tokenizer .*; expected that of stranger") as refused:
        lab.pretrain("refused", [rollouts], [grades])
    assert "\n" not in str(refused.value)


def masked_grades(lab: Lab, key: str) -> Ref[Grades]:
    """Grades of the rollouts without any advantage."""
    table = Artifact.open(lab.store, lab.grades).read_table(GRADES_FILE, GRADES)
    attempt = ArtifactAddress(lab.store, f"{key}/grades", Grades).attempt(Identity.of("grade", 1, {}))
    attempt.write_table(GRADES_FILE, table.with_columns(pl.lit(None, pl.Float64).alias("advantage")), GRADES)
    return attempt.publish()


def test_a_critic_that_starts_from_an_adapter_is_kept_with_its_base(lab: Lab, tmp_path: Path) -> None:
    attempt = ArtifactAddress(lab.store, "adapter", Checkpoint).attempt(Identity.of("adopt", 1, {}))
    with attempt.folder(tmp_path) as folder:
        shutil.copytree(save_adapter(tmp_path / "made", lab.ctx.local_folder(lab.model)), folder, dirs_exist_ok=True)
    adapter = attempt.publish(base=lab.model)
    valued = lab.value("kept", Weights(adapter), sampled=(lab.rollouts, masked_grades(lab, "kept")))
    assert base_ref(lab.store, valued.critic.checkpoint) == lab.model
    assert (lab.ctx.local_folder(valued.critic.checkpoint) / BASE_LINK / "config.json").exists()


def test_an_iteration_without_completions_keeps_the_critic(lab: Lab) -> None:
    valued = lab.value("masked", sampled=(lab.rollouts, masked_grades(lab, "masked")))
    assert len(lab.tables(valued.values)[0]) == 0
    assert lab.facts(valued.critic.checkpoint) == {"steps": [], "unchanged": True, "state_follows": False}
