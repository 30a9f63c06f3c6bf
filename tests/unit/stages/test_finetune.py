"""The learning-rate schedule against numbers worked by hand; which model is the reference, with a real trainer."""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from safetensors.numpy import save
from safetensors.torch import load_file, save_file
from torch.distributed.checkpoint.filesystem import FileSystemReader

from artifacts.address import ArtifactAddress, Attempt
from artifacts.errors import BadInputError, TransientError
from artifacts.identity import Identity, sha256_json
from artifacts.manifest import StoredFile, content_digest
from artifacts.reading import Artifact
from artifacts.refs import Batch, Checkpoint, OptimizerState, Ref
from artifacts.store.store import Store
from artifacts.tensors import BATCH_FILE, PackedBatch
from flows.config.recipes import load_recipe
from stages.context import StageContext
from stages.finetune import FinetuneConfig, finetune
from stages.grpo.packing import PackConfig, pack_groups
from stages.models.stored import base_ref, holds_adapter
from stages.models.tensors import WEIGHTS, check_weights
from stages.training.epochs import epoch_steps
from stages.training.job import JobSettings
from stages.training.launch import Weights
from stages.training.saved_state import state_beside
from stages.training.schedules.learning_rates import learning_rate_at, step_rate
from stages.training.trainer_batch import TrainerBatch
from stages.training.worker_group.hardware import TrainHardware
from tests.support.contexts import make_context
from tests.support.trees import VOCAB, save_model, tree_batch


@pytest.mark.parametrize(
    ("settings", "iteration", "expected"),
    [
        ({"schedule": "constant"}, 7, 1.0),
        ({"schedule": "linear", "schedule_iterations": 4}, 1, 1.0),
        ({"schedule": "linear", "schedule_iterations": 4}, 4, 0.25),
        ({"schedule": "linear", "schedule_iterations": 4}, 9, 0.25),  # stays at its last positive value
        ({"schedule": "cosine", "schedule_iterations": 4}, 3, 0.5),  # (1 + cos(pi / 2)) / 2
        ({"schedule": "constant", "warmup_iterations": 4}, 1, 0.25),
        ({"schedule": "linear", "schedule_iterations": 4, "warmup_iterations": 2}, 1, 0.5),
        ({"schedule": "linear", "schedule_iterations": 4, "min_learning_rate": 0.2}, 3, 0.6),  # 0.2 + 0.8 / 2
        ({"schedule": "cosine", "schedule_iterations": 4, "min_learning_rate": 0.1}, 2, 0.868198),  # .1 + .9 x .853553
        ({"schedule": "cosine", "schedule_iterations": 4, "min_learning_rate": 0.1}, 5, 0.1),
        ({"schedule": "cosine", "schedule_iterations": 4, "min_learning_rate": 0.1}, 9, 0.1),
        ({"schedule": "cosine", "schedule_iterations": 6, "warmup_iterations": 2}, 1, 0.5),
        ({"schedule": "cosine", "schedule_iterations": 6, "warmup_iterations": 2}, 2, 1.0),
        ({"schedule": "cosine", "schedule_iterations": 6, "warmup_iterations": 2}, 4, 0.5),  # 2 of the 4 behind it
        ({"schedule": "cosine", "schedule_iterations": 6, "warmup_iterations": 2}, 5, 0.1464466),  # 3 of the 4
        ({"schedule": "cosine", "schedule_iterations": 6, "warmup_iterations": 2}, 9, 0.1464466),
        ({"schedule": "linear", "min_learning_rate": 0.2, "warmup_iterations": 4}, 1, 0.25),
        ({"schedule": "constant", "min_learning_rate": 0.2}, 7, 1.0),
    ],
)
def test_schedules(settings: dict[str, object], iteration: int, expected: float) -> None:
    config = FinetuneConfig.model_validate({"learning_rate": 1.0, **settings})
    assert learning_rate_at(config, iteration) == pytest.approx(expected)


@pytest.mark.parametrize("name", ["open_rs1", "open_rs2", "open_rs3"])
def test_the_rates_of_open_rs(name: str) -> None:
    """What Hugging Face's cosine_with_min_lr gives of 1e-6 with a warm-up of 50 of 500 steps."""
    config = load_recipe(name).finetune
    rates = [learning_rate_at(config, iteration) for iteration in (25, 50, 100, 275, 500)]
    assert rates == pytest.approx([5e-7, 1e-6, 9.728617e-7, 5.5e-7, 1e-7], rel=1e-6)


def test_the_rates_of_answers_only_are_those_that_its_figures_were_measured_with() -> None:
    """Linear from the first iteration on, the warm-up of two over it: 1e-3 (49 - i) / 48, and half of that at first."""
    config = load_recipe("answers_only").finetune
    expected = [1e-3 * (49 - iteration) / 48 * (0.5 if iteration == 1 else 1.0) for iteration in range(1, 49)]
    assert [learning_rate_at(config, iteration) for iteration in range(1, 49)] == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(("steps", "expected"), [(1, 2.4e-6), (24, 2.4e-6), (25, 2.4e-6), (100, 6e-7), (50, 1.2e-6)])
def test_the_steps_of_an_iteration_share_its_rate(steps: int, expected: float) -> None:
    """OpenPipe's dynamic rate: 6e-5 over the steps, over 25 at least; 100 and 400 rows by four are 25 and 100 steps."""
    config = FinetuneConfig(learning_rate=6e-5, learning_rate_of="iteration")
    assert step_rate(config, 3, steps) == pytest.approx(expected)
    assert step_rate(FinetuneConfig(learning_rate=6e-5), 3, steps) == 6e-5
    half = FinetuneConfig(learning_rate=6e-5, learning_rate_of="iteration", warmup_iterations=6)
    assert step_rate(half, 3, steps) == pytest.approx(expected / 2)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"loss": {"kl_coef": 0.1}}, "needs a reference"),
        ({"min_learning_rate": 1.0}, "is above learning_rate"),
        ({"schedule": "cosine", "schedule_iterations": 4, "warmup_iterations": 4}, "must be below"),
    ],
)
def test_settings_that_contradict_themselves(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        FinetuneConfig.model_validate(settings)


HARDWARE = TrainHardware(compute_dtype="fp32", threads=1)


class Run:
    """Iterations of finetune on one batch, from one model."""

    def __init__(self, folder: Path) -> None:
        self.store = Store.open(str(folder / "store"))
        self.ctx = make_context(self.store, folder / "scratch", trainer=HARDWARE)
        attempt = ArtifactAddress(self.store, "model", Checkpoint).attempt(Identity.of("fetch", 1, {}))
        with attempt.folder(folder) as model:
            save_model(model, "Qwen2", tie_word_embeddings=True)
        self.model: Ref[Checkpoint] = attempt.publish()
        empty, _ = pack_groups([], PackConfig(row_tokens=2048))
        self.batch = self.batch_of("batch", save(tree_batch(1, [2, 1])))
        self.empty = self.batch_of("empty", empty.to_bytes())

    def batch_of(self, key: str, data: bytes) -> Ref[Batch]:
        attempt = ArtifactAddress(self.store, key, Batch).attempt(Identity.of("pack", 1, {"key": key}))
        attempt.write_bytes(BATCH_FILE, data)
        return attempt.publish({"minibatches": PackedBatch.from_bytes(data, key).minibatches})

    def step(
        self,
        run: str,
        n: int,
        weights: Weights,
        batch: Ref[Batch] | None = None,
        ctx: StageContext | None = None,
        **settings: Any,
    ) -> Weights:
        return self.unsaved_step(run, n, weights, batch, ctx, **settings).saved(ctx or self.ctx)

    def unsaved_step(
        self,
        run: str,
        n: int,
        weights: Weights,
        batch: Ref[Batch] | None = None,
        ctx: StageContext | None = None,
        **settings: Any,
    ) -> Weights:
        config = FinetuneConfig.model_validate({"learning_rate": 0.01, **settings})
        state_out = ArtifactAddress(self.store, f"{run}/{n}/optimizer_state", OptimizerState)
        out, reference_out = (
            ArtifactAddress(self.store, f"{run}/{n}/{part}", Checkpoint) for part in ("checkpoint", "reference")
        )
        return finetune(
            ctx or self.ctx, config, weights, batch or self.batch,
            iteration=n, out=out, state_out=state_out, reference_out=reference_out,
        )  # fmt: skip

    def steps_of(self, weights: Weights) -> list[dict[str, Any]]:
        return Artifact.open(self.store, weights.checkpoint).manifest.facts["steps"]

    def tensors(self, ref: Ref[Checkpoint] | None) -> dict[str, torch.Tensor]:
        assert ref is not None
        folder = self.ctx.local_folder(ref)
        return {name: tensor.float() for name, tensor in load_file(folder / "model.safetensors").items()}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    run = Run(tmp_path_factory.mktemp("finetune"))
    yield run
    run.ctx.close()


def test_the_base_stays_the_reference_and_is_part_of_the_identity(run: Run) -> None:
    start = Weights(run.model, reference=run.model)
    settings = {"reference": "base", "loss": {"kl_coef": 0.1}}
    first = run.step("base", 1, start, **settings)
    second = run.step("base", 2, first, **settings)
    assert first.reference == second.reference == run.model
    assert run.steps_of(first)[0]["kl"] == pytest.approx(0.0, abs=1e-7)
    assert run.steps_of(second)[0]["kl"] > 1e-6
    manifest = Artifact.open(run.store, second.checkpoint).manifest
    assert manifest.identity.inputs["reference"] == run.model.digest
    again = run.step("base", 2, first, **settings)
    assert again == second and again.reused
    plain = run.step("plain", 1, start)
    assert "reference" not in Artifact.open(run.store, plain.checkpoint).manifest.identity.inputs
    assert run.steps_of(plain)[0]["kl"] is None
    with pytest.raises(BadInputError, match="no reference model"):
        run.step("lost", 1, Weights(run.model), **settings)


def test_other_parameters_are_trained_from_the_stored_state_or_with_a_fresh_optimizer(run: Run) -> None:
    """The workers still hold the state of all parameters, which the next job cannot use as it is."""
    first = run.step("widest", 1, Weights(run.model))
    attention = run.step("fewer", 2, first, trainable={"parameters": "attention"})
    before, after = run.tensors(first.checkpoint), run.tensors(attention.checkpoint)
    moved = {name for name, tensor in after.items() if not torch.equal(tensor, before[name])}
    assert moved == {name for name in after if "self_attn" in name and "_proj" in name}
    fresh = run.step("fresh", 3, Weights(attention.checkpoint), trainable={"parameters": "lora", "rank": 2})
    assert holds_adapter(Artifact.open(run.store, fresh.checkpoint).manifest)
    assert base_ref(run.store, fresh.checkpoint) == attention.checkpoint


def test_a_phase_that_carries_no_state_begins_without_that_of_the_phase_before(run: Run) -> None:
    first = run.step("carried", 1, Weights(run.model))
    assert first.state is not None
    second = run.step("carried", 2, first, carry_state=False)
    assert "optimizer_state" not in Artifact.open(run.store, second.checkpoint).manifest.identity.inputs
    alone = run.step("alone", 2, Weights(first.checkpoint), carry_state=False)
    for name, tensor in run.tensors(alone.checkpoint).items():
        assert torch.equal(tensor, run.tensors(second.checkpoint)[name]), name


@pytest.mark.long
def test_a_lora_run_publishes_adapters_over_one_base(run: Run, tmp_path: Path) -> None:
    """Trained, continued by another trainer, carried over, merged on request: the base is stored once."""
    lora = {"trainable": {"parameters": "lora", "rank": 2}, "reference": "periodic", "reference_iterations": 1}
    first = run.step("lora", 1, Weights(run.model, reference=run.model), **lora)
    second = run.step("lora", 2, first, **lora)
    carried = run.step("lora", 3, second, run.empty, **lora)
    assert second.state is not None and carried.reference == carried.checkpoint
    for weights in (first, second, carried):
        manifest = Artifact.open(run.store, weights.checkpoint).manifest
        assert manifest.inputs["base"] == run.model.as_json() and base_ref(run.store, weights.checkpoint) == run.model
        assert not any(name.startswith("model") for name in manifest.files), "no weights but the adapter"
        assert check_weights(run.ctx.local_folder(weights.checkpoint))
    lost = Artifact.open(run.store, second.checkpoint).manifest.facts["totals"]["movement_lost"]
    assert lost == pytest.approx(0.0, abs=0.02)
    with make_context(run.store, tmp_path, trainer=HARDWARE) as cold:
        alone = run.step("lora-cold", 2, first, ctx=cold, **lora)
        assert alone.checkpoint.digest == second.checkpoint.digest, "a state and a base lead to the same weights"
        begun = Weights(second.checkpoint)
        merged = run.step("lora-merged", 3, begun, ctx=cold, trainable={"parameters": "lora", "merge": True})
    assert not holds_adapter(Artifact.open(run.store, merged.checkpoint).manifest)
    full = run.tensors(merged.checkpoint)
    assert full.keys() == run.tensors(run.model).keys()


def test_weights_are_published_before_their_state(run: Run) -> None:
    start = Weights(run.model)
    first = run.unsaved_step("early", 1, start)
    assert first.state is None and first.saving is not None
    assert Artifact.open(run.store, first.checkpoint).read_bytes("config.json")
    with pytest.raises(BadInputError, match=r"early/1/optimizer_state.*not published yet.*continue the run"):
        state_beside(first.checkpoint, run.store)
    saved = first.saved(run.ctx)
    assert saved.state is not None and saved.state == state_beside(first.checkpoint, run.store)
    assert Artifact.open(run.store, saved.state).manifest.inputs["checkpoint"] == first.checkpoint.as_json()
    assert run.step("early", 1, start).reused


def test_a_finetune_without_its_state_is_repeated_once(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    """As after a kill while the state is written: the published weights stay, and the state says what came of it."""
    start, place = Weights(run.model), "killed"
    first = run.unsaved_step(place, 1, start)
    kept = run.store.list(f"{place}/1/checkpoint")
    again = run.step(place, 1, start)
    assert (again.checkpoint, again.reused) == (first.checkpoint, False)
    assert again.state is not None
    assert Artifact.open(run.store, again.state).manifest.facts == {"repeated": True, "same_weights": True}
    assert run.store.list(f"{place}/1/checkpoint") == kept, "the repetition leaves no files"
    assert run.step(place, 1, start).reused
    assert not caplog.records

    run.store.delete(again.state.key)
    manifest = Artifact.open(run.store, first.checkpoint).manifest
    files = {**manifest.files, WEIGHTS: StoredFile.of(b"other weights")}
    manifest = manifest.model_copy(update={"files": files, "digest": content_digest(files)})
    run.store.write_bytes(f"{first.checkpoint.key}/manifest.json", manifest.to_bytes())
    other = run.step(place, 1, start)
    assert other.checkpoint.digest == manifest.digest, "the published weights stay"
    assert other.state is not None and other.state.digest == again.state.digest
    assert Artifact.open(run.store, other.state).manifest.facts == {"repeated": True, "same_weights": False}
    assert "gave other weights" in caplog.records[-1].getMessage()


def test_a_state_that_another_process_published_first_leaves_no_files(run: Run) -> None:
    first = run.step("race", 1, start := Weights(run.model))
    assert first.state is not None
    manifest, files = f"{first.state.key}/manifest.json", run.store.list("race/1/optimizer_state")
    published = run.store.read_bytes(manifest)
    run.store.delete(manifest)
    second = run.unsaved_step("race", 1, start)
    run.store.write_bytes(manifest, published)
    assert second.saved(run.ctx).state == first.state
    assert run.store.list("race/1/optimizer_state") == files


def test_a_failed_attempt_writes_no_state(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """The workers would write it later, into a folder that nobody removes."""
    publish = Attempt[Any].publish

    def failing(attempt: Attempt[Any], *arguments: Any, **inputs: Any) -> Ref[Any]:
        if attempt.address.kind is Checkpoint:
            raise TransientError("the store", "no answer")
        return publish(attempt, *arguments, **inputs)

    with monkeypatch.context() as patch:
        patch.setattr(Attempt, "publish", failing)
        with pytest.raises(TransientError, match="no answer"):
            run.unsaved_step("failed", 1, Weights(run.model))
    run.ctx.worker_group.wait_until_written()
    folder = run.store.local_path("failed/1/optimizer_state")
    assert folder is not None and not [path for path in folder.rglob("*") if path.is_file()]
    assert run.step("failed", 1, Weights(run.model)).state is not None


def test_damaged_weights_reach_no_trainer(run: Run, tmp_path: Path) -> None:
    """Neither as what is trained nor as the reference; the trainer that there is goes on."""
    attempt = ArtifactAddress(run.store, "damaged", Checkpoint).attempt(Identity.of("fetch", 1, {"damaged": True}))
    with attempt.folder(tmp_path) as folder:
        shutil.copytree(run.ctx.local_folder(run.model), folder, dirs_exist_ok=True)
        tensors = load_file(folder / WEIGHTS)
        tensors.pop("model.layers.1.self_attn.k_proj.bias")
        save_file(tensors, folder / WEIGHTS)
    damaged: Ref[Checkpoint] = attempt.publish()
    with make_context(run.store, tmp_path / "scratch", trainer=HARDWARE) as ctx:
        for name, start in (("trained", Weights(damaged)), ("reference", Weights(run.model, reference=damaged))):
            settings: dict[str, Any] = {"reference": "base", "loss": {"kl_coef": 0.1}} if start.reference else {}
            with pytest.raises(BadInputError, match=r"no tensor model\.layers\.1\.self_attn\.k_proj\.bias"):
                run.step(f"damaged-{name}", 1, start, ctx=ctx, **settings)
        assert not (tmp_path / "scratch/worker_group").exists()


def test_a_shared_rate_reaches_the_optimizer(run: Run) -> None:
    """Two passes over a batch of one step; the rate 0.01 is shared by 4."""
    settings = {"learning_rate_of": "iteration", "least_shares": 4, "epochs": 2}
    trained = run.step("shared", 1, Weights(run.model), **settings)
    assert [step["learning_rate"] for step in run.steps_of(trained)] == [0.0025, 0.0025]


def test_a_frozen_iteration_keeps_the_weights_and_the_next_trains(run: Run) -> None:
    """The trainer is not asked; the identity holds a rate of 0, not the number of frozen iterations."""
    first = run.step("frozen", 1, Weights(run.model), frozen_iterations=1)
    assert first.checkpoint.digest == run.model.digest and first.state is None
    assert Artifact.open(run.store, first.checkpoint).manifest.identity.config["learning_rates"] == [0.0]
    second = run.step("frozen", 2, first, frozen_iterations=1)
    plain = run.step("thawed", 2, Weights(run.model))
    assert second.checkpoint.digest == plain.checkpoint.digest


def test_schedules_begin_after_the_frozen_iterations(run: Run) -> None:
    """Else a warm-up would be over, and the KL term lower, before the weights change for the first time."""
    settings: dict[str, Any] = {
        "learning_rate": 0.01, "warmup_iterations": 2, "frozen_iterations": 3, "reference": "base",
        "loss": {"kl_coef": 0.1}, "kl_schedule": {"iterations": 2},
    }  # fmt: skip
    start = Weights(run.model, reference=run.model)
    trained = [run.step(f"warmed-{n}", n, start, **settings) for n in (4, 5)]
    assert [{step["learning_rate"] for step in run.steps_of(weights)} for weights in trained] == [{0.005}, {0.01}]
    configs = [Artifact.open(run.store, weights.checkpoint).manifest.identity.config for weights in trained]
    assert [config["loss"]["kl_coef"] for config in configs] == pytest.approx([0.1, 0.05])


def test_a_periodic_reference_is_replaced_by_the_policy(run: Run) -> None:
    weights = Weights(run.model, reference=run.model)
    settings = {"reference": "periodic", "reference_iterations": 2}
    first = run.step("periodic", 1, weights, **settings)
    second = run.step("periodic", 2, first, **settings)
    assert first.reference == run.model
    assert second.reference == second.checkpoint


def test_an_average_reference_follows_the_policies(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    """Decay 0.75: reference 0.75 w0 + 0.25 w1 after the first iteration, also when it is found again; the published
    weights are rounded to bf16, the average of the fp32 ones is not."""
    start = Weights(run.model, reference=run.model)
    settings = {"reference": "ema", "reference_decay": 0.75, "loss": {"kl_coef": 0.1, "kl_estimator": "k2"}}
    first = run.step("ema", 1, start, **settings)
    assert first.reference is not None and first.reference.key == "ema/1/reference"
    old, new, mean = (run.tensors(ref) for ref in (run.model, first.checkpoint, first.reference))
    assert any((mean[name] - old[name]).abs().max() > 1e-3 for name in mean)
    for name, tensor in mean.items():
        torch.testing.assert_close(tensor, 0.75 * old[name] + 0.25 * new[name], atol=1e-3, rtol=2**-8)
    assert run.step("ema", 1, start, **settings) == first
    caplog.clear()
    idle = run.step("ema", 2, first, run.empty, **settings)
    assert caplog.messages == ["iteration 2 has nothing to train on: its weights are those before it"]
    assert idle.reference is not None
    assert (idle.reference.key, idle.reference.digest) == ("ema/2/reference", first.reference.digest)
    third = run.step("ema", 3, idle, **settings)
    assert run.steps_of(third)[0]["kl"] > 1e-6


def test_a_single_pass_has_no_order() -> None:
    """So that the setting without effect makes no other identity."""

    def settings(**config: Any) -> JobSettings:
        return JobSettings.of(FinetuneConfig.model_validate(config), learning_rates=[0.1, 0.1], epoch_seed=7)

    assert settings() == settings(epoch_order="same") != settings(epochs=2) != settings(epochs=2, epoch_order="same")
    assert (settings(epochs=2).epoch_order, settings(epochs=2).epoch_seed) == ("shuffled", 7)


def test_later_passes_follow_from_the_batch(run: Run) -> None:
    """Six rows of one group in three mini-batches; their tokens tell which was taken when."""
    batch = run.batch_of("even", save(tree_batch(2, [1] * 6, steps=3, branches=(2, 3))))
    first, again = (run.steps_of(run.step(name, 1, Weights(run.model), batch, epochs=3)) for name in ("one", "two"))
    packed = TrainerBatch(run.ctx.local_folder(batch) / BATCH_FILE, VOCAB)
    passes = epoch_steps(packed, 3, "shuffled", int(batch.digest[:12], 16))
    expected = [sum(packed.row_tokens[row] for row in rows) for steps in passes for rows in steps]
    assert [step["tokens"] for step in first] == expected == [step["tokens"] for step in again]
    assert expected[3:6] != expected[:3] != expected[6:]
    assert [step["loss"] for step in first] == [step["loss"] for step in again]
    same = run.steps_of(run.step("same", 1, Weights(run.model), batch, epochs=3, epoch_order="same"))
    assert [step["tokens"] for step in same] == expected[:3] * 3


def test_a_skipped_step_is_published_without_nan_and_logged(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    columns = tree_batch(3, [1, 1, 1], steps=3)
    columns["advantages"][1][columns["completion_mask"][1] > 0] = torch.finfo(torch.float32).max
    batch = run.batch_of("overflowing", save(columns))
    trained = run.step("overflowing", 1, Weights(run.model), batch)
    steps = run.steps_of(trained)
    assert [step["skipped"] for step in steps] == [False, True, False]
    assert (steps[1]["loss"], steps[1]["grad_norm"]) == (None, None)
    assert "finetune 1: optimizer step 2 of 3 was skipped: its gradient is not finite" in caplog.text
    assert all(tensor.isfinite().all() for tensor in run.tensors(trained.checkpoint).values())


def test_a_state_of_the_other_precision_is_cast_though_the_trainer_holds_it(run: Run) -> None:
    """The first iteration leaves fp32 masters in the trainer's memory; the second keeps its own in bf16."""
    first = run.step("cast", 1, Weights(run.model))
    second = run.step("cast", 2, first, optimizer={"master_dtype": "bf16"})
    third = run.step("cast", 3, second, optimizer={"master_dtype": "bf16"})  # from what the trainer holds
    assert first.state is not None and second.state is not None and third.state is not None
    for state, dtype in ((first.state, torch.float32), (second.state, torch.bfloat16), (third.state, torch.bfloat16)):
        stored = FileSystemReader(run.ctx.local_folder(state)).read_metadata().state_dict_metadata
        names = ("weights.decoder.norm.scale", "exp_avg.decoder.norm.scale", "exp_avg_sq.decoder.norm.scale")
        assert {stored[name].properties.dtype for name in names} == {dtype}  # pyright: ignore[reportAttributeAccessIssue]
    with make_context(run.store, run.ctx.scratch / "cold", trainer=HARDWARE) as cold:
        alone = run.step("cast-cold", 3, second, ctx=cold, optimizer={"master_dtype": "bf16"})
    assert alone.checkpoint.digest == third.checkpoint.digest and alone.state is not None
    assert alone.state.digest == third.state.digest


@pytest.mark.parametrize(
    ("settings", "warned"),
    [
        ({"carry_state": False, "learning_rate": 1e-6}, "lost 100% .* lost for good.* or finetune.carry_state = true$"),
        ({"learning_rate": 1e-6}, "lost 100% .* once later iterations have added enough .* set a higher rate$"),
        (
            {"learning_rate": 1e-6, "trainable": {"parameters": "lora", "merge": True}},
            r"\(LoRA needs about ten times the rate .*\)$",
        ),
        ({"optimizer": {"master_dtype": "bf16"}, "learning_rate": 6e-6}, "rounded to bf16 after each optimizer step"),
        ({"carry_state": False, "learning_rate": 1e-6, "warmup_iterations": 1000}, None),
        ({"learning_rate": 0.01}, None),
        ({"learning_rate": 0.1, "trainable": {"parameters": "lora", "merge": True}}, None),
        ({"learning_rate": 1e-6, "trainable": {"parameters": "lora"}}, None),
    ],
)
def test_a_rate_whose_steps_mostly_round_away_is_warned_of_once(
    run: Run, caplog: pytest.LogCaptureFixture, settings: dict[str, Any], warned: str | None
) -> None:
    """The share that is lost is measured for full weights and LoRA alike, and is a fact of every iteration."""
    name = f"rounding-{sha256_json(settings)[:8]}"
    first = run.step(name, 1, Weights(run.model), **settings)
    lost = Artifact.open(run.store, first.checkpoint).manifest.facts["totals"]["movement_lost"]
    told = [record.getMessage() for record in caplog.records if "rounded to bf16" in record.getMessage()]
    assert len(told) == (warned is not None)
    if "optimizer" in settings:
        assert lost is None, "each step of masters in bf16 is rounded before it can be seen"
    else:
        assert (lost > 0.5) == (warned is not None or "warmup_iterations" in settings)
    if warned:
        assert re.search(warned, told[0]) and f"finetune.learning_rate {settings['learning_rate']:.1e}" in told[0]
        caplog.clear()
        run.step(name, 2, Weights(first.checkpoint), **settings)
        assert not caplog.records
