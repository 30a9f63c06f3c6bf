"""The real engine: what it samples, weights exchanged in place, and every way of losing it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Generator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from artifacts.errors import BadInputError, TransientError
from stages.models.exporting.folder import export_folder
from stages.models.from_scratch import ScratchModel, make_scratch
from stages.models.tokenizers.chat import ChatTokenizer
from stages.sampling.client import GroupSamples, Prompt
from stages.sampling.config import EarlyStopConfig, EngineHardware, SamplingConfig
from stages.sampling.counts import COUNTS_PATH
from stages.sampling.early_stop import EarlyStop
from stages.sampling.engine import Engine
from stages.sampling.replicas.weight_exchange import ReloadRefusedError, WeightCheck
from stages.training.trainable import EVERYTHING
from tests.support.engine_facts import facts
from tests.support.engines import TEXTS, core_of, mean_gap, prompts
from tests.support.processes import in_session
from tests.support.trainer_side import FAMILIES, LORA, Trained, lora_of, write_source

DTYPE = "bfloat16"
HARDWARE = EngineHardware(max_num_seqs=64, kv_cache_gib=0.1, max_model_len=512, threads=1, replicas=1, dtype=DTYPE)
OWNER = """
import sys, time
from pathlib import Path
from stages.sampling.config import EngineHardware
from stages.sampling.engine import Engine
from tests.support.engine_facts import facts
engine = Engine(EngineHardware.model_validate_json(sys.argv[1]), Path(sys.argv[2]))
engine.prestart(Path(sys.argv[3]), "owned")
print(facts(engine).process_id, flush=True)
engine.ensure(Path(sys.argv[3]), "owned")
print("ready", flush=True)
time.sleep(600)
"""
GONE_WITHIN_S = 120.0
"""Ends a wait for processes that were killed; one with much memory ends slowly on a busy machine."""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Two small models of one shape, whose output head shares the embedding."""
    folders: dict[str, Path] = {}
    for seed, name in enumerate("ab"):
        folders[name] = tmp_path_factory.mktemp(name)
        make_scratch(ScratchModel(layers=2, vocabulary=300, init_std=0.3, seed=seed), TEXTS, folders[name])
    return folders


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Generator[Engine]:
    """One engine for the whole module, as a flow run has one; TMPDIR is too long for the addresses of its sockets."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", str(tmp_path_factory.mktemp("long-" * 20)))
        with Engine(HARDWARE, tmp_path_factory.mktemp("engine")) as running:
            yield running


def gone(leader: int) -> bool:
    """Whether a session empties."""
    deadline = time.monotonic() + GONE_WITHIN_S
    while in_session(leader):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def drawn(engine: Engine, digest: str) -> list[GroupSamples]:
    """A few short samples at temperature 0.7."""
    groups: list[GroupSamples] = []
    config = SamplingConfig(samples_per_prompt=2, temperature=0.7, max_tokens=8)
    engine.sample_groups(prompts(3), config, groups.append)
    assert {group.weights_digest for group in groups} == {digest}
    return groups


def assert_samples_are_of(folder: Path, engine: Engine, digest: str) -> None:
    """Sample at a temperature that is not 1 and compare the log-probabilities with transformers'."""
    # bfloat16 against float32 on weights this large; a stale head or another temperature is off by 0.5 and more.
    assert mean_gap(folder, drawn(engine, digest), 0.7) < 0.15


def assert_samples_are_trained(engine: Engine, digest: str, trained: Trained, scratch: Path) -> None:
    """The engine's log-probabilities are those of the trained model, and not those of the one before."""
    gap, gap_before = trained.gaps(drawn(engine, digest), 0.7, scratch)
    # bfloat16 against float32, of which 0.19 was drawn; unscaled rotations, norms after them or lost adapters are
    # off by 0.7 and more.
    assert gap < 0.35
    assert gap_before > 0.45  # OLMo 2, which norms the projections, moves least: 0.84 was drawn


@pytest.mark.long
def test_an_engine_that_started_before_its_weights_existed_serves_them(models: dict[str, Path], tmp_path: Path) -> None:
    shape = tmp_path / "shape"
    shape.mkdir()
    for file in models["a"].glob("*.json"):
        shutil.copy(file, shape)
    with Engine(HARDWARE, tmp_path) as engine:
        engine.prestart(shape, "")
        process = facts(engine).process_id
        engine.ensure(models["a"], "digest-a")
        assert_samples_are_of(models["a"], engine, "digest-a")
        engine.ensure(models["b"], "digest-b")
        assert_samples_are_of(models["b"], engine, "digest-b")
        assert (facts(engine).process_id, facts(engine).starts, facts(engine).reloads, facts(engine).refusals) == (
            process,
            1,
            1,
            [],
        )


def test_groups_come_whole_with_logprobs_of_the_distribution_sampled_from(
    engine: Engine, models: dict[str, Path]
) -> None:
    engine.ensure(models["a"], "digest-a")
    assert "rms_norm=['cpu_kernel', 'native']" in engine.log_path.read_text()
    groups: dict[str, GroupSamples] = {}
    config = SamplingConfig(samples_per_prompt=5, max_tokens=12)
    engine.sample_groups(prompts(20), config, lambda group: groups.update({group.prompt_id: group}))
    assert set(groups) == {f"p{number}" for number in range(20)}
    completions = [completion for group in groups.values() for completion in group.completions]
    assert len(completions) == 100
    assert len({tuple(completion.token_ids) for completion in completions}) > 90
    for completion in completions:
        assert 1 <= len(completion.token_ids) == len(completion.logprobs) <= 12
        ended = completion.token_ids[-1] in ChatTokenizer(models["a"]).eos_ids
        assert completion.finish_reason == ("stop" if ended else "length")
        assert ended or len(completion.token_ids) == 12
        assert max(completion.logprobs) <= 0.0
    assert facts(engine).version.startswith("0.")
    assert_samples_are_of(models["a"], engine, "digest-a")


def test_weights_loaded_in_place_are_the_new_ones_down_to_the_shared_output_head(
    engine: Engine, models: dict[str, Path]
) -> None:
    engine.ensure(models["a"], "digest-a")
    starts, reloads = facts(engine).starts, facts(engine).reloads
    for name in ("b", "a", "b"):
        engine.ensure(models[name], f"digest-{name}")
        assert_samples_are_of(models[name], engine, f"digest-{name}")
    assert (facts(engine).starts, facts(engine).reloads, facts(engine).refusals) == (starts, reloads + 3, [])


def test_an_engine_proves_its_weights_at_the_start_and_after_a_reload(
    engine: Engine, models: dict[str, Path], tmp_path: Path
) -> None:
    assert_weights_are_proved(engine, models, DTYPE, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("dtype", [pytest.param("float16", marks=pytest.mark.release), "float32"])
def test_an_engine_of_each_other_compute_type_proves_its_weights_too(
    models: dict[str, Path], tmp_path: Path, dtype: str
) -> None:
    with Engine(HARDWARE.model_copy(update={"dtype": dtype}), tmp_path / "engine") as engine:
        assert_weights_are_proved(engine, models, dtype, tmp_path)
        assert facts(engine).starts == 1


def assert_weights_are_proved(engine: Engine, models: dict[str, Path], dtype: str, folder: Path) -> None:
    """A tensor that differs from what was loaded in one bit of one weight is named, whatever the limit of the check."""
    engine.ensure(models["a"], "digest-a")
    starts, reloads = facts(engine).starts, facts(engine).reloads
    endpoint = facts(engine).sources[0].endpoint
    check, bounded = (WeightCheck(endpoint, models["a"], limit_bytes, dtype) for limit_bytes in (1 << 30, 1))
    engine.ensure(models["b"], "digest-b")
    assert (facts(engine).starts, facts(engine).reloads, facts(engine).refusals) == (starts, reloads + 1, [])
    assert_samples_are_of(models["b"], engine, "digest-b")
    whole, sliced = (one.after_reload(one.expected(models["b"])) for one in (check, bounded))
    assert whole >= 6  # vLLM packs the others, which ones differs by type
    assert sliced == whole, "a small limit leaves no tensor out"
    wrong, name = folder / "wrong", "model.embed_tokens.weight"
    shutil.copytree(models["b"], wrong)
    tensors = load_file(wrong / "model.safetensors")
    tensors[name].view(torch.int16).view(-1)[0] ^= 1
    save_file(tensors, wrong / "model.safetensors", metadata={"format": "pt"})
    for one in (check, bounded):
        with pytest.raises(ReloadRefusedError, match="embed_tokens"):
            one.after_reload(one.expected(wrong))


def test_a_checkpoint_that_the_trainer_wrote_is_what_the_engine_samples_from(
    engine: Engine, models: dict[str, Path], tmp_path: Path
) -> None:
    """Of a scratch model, whose biases are 0 until they are trained."""
    engine.ensure(models["a"], "digest-a")
    starts, reloads = facts(engine).starts, facts(engine).reloads
    trained = Trained(models["a"], tmp_path / "trained", EVERYTHING)
    engine.ensure(trained.folder, "trained")
    assert_samples_are_trained(engine, "trained", trained, tmp_path)
    assert (facts(engine).starts, facts(engine).reloads) == (starts, reloads + 1)


def test_a_request_the_engine_refuses_is_bad_input_and_harms_nothing(engine: Engine, models: dict[str, Path]) -> None:
    engine.ensure(models["a"], "digest-a")
    long = Prompt("long", [5] * 600)
    with pytest.raises(BadInputError, match="max_model_len"):
        engine.sample_groups([*prompts(4), long], SamplingConfig(samples_per_prompt=2, max_tokens=4), lambda _: None)
    assert facts(engine).running
    assert_samples_are_of(models["a"], engine, "digest-a")


@pytest.mark.parametrize("way", ["stop", "stop_token_ids", "template"])
def test_a_special_token_ends_completions(engine: Engine, models: dict[str, Path], tmp_path: Path, way: str) -> None:
    """`<|user|>`, which is no end token of the model: as a stop string, by its id, and named by the chat template only.

    The token is the completion's last, so the trainer learns it, and no part of the text, which is graded.
    """
    shutil.copytree(models["a"], tmp_path / "model")
    if way == "template":
        template = "{% for m in messages %}<|assistant|>{{ m.content }}<|user|>{% endfor %}"
        (tmp_path / "model" / "chat_template.jinja").write_text(template)
    chat = ChatTokenizer(tmp_path / "model")
    (special,) = chat.text_ids("<|user|>")
    stop: dict[str, tuple[str, ...] | tuple[int, ...]] = {"stop": ("<|user|>",), "stop_token_ids": (special,)}
    config = SamplingConfig(samples_per_prompt=64, max_tokens=60, **({way: stop[way]} if way in stop else {}))
    engine.ensure(tmp_path / "model", "digest-a")
    groups = list[GroupSamples]()
    engine.sample_groups(prompts(4), config, groups.append)
    completions = [completion for group in groups for completion in group.completions]
    holding = [completion for completion in completions if special in completion.token_ids]
    assert len(holding) > 10
    for completion in holding:
        assert completion.token_ids.tolist().index(special) == len(completion.token_ids) - 1
        assert completion.finish_reason == "stop"
        assert completion.text == chat.decode(completion.token_ids[:-1].tolist())


def test_hopeless_completions_end_inside_the_engine(engine: Engine, models: dict[str, Path]) -> None:
    """With alpha 1/2 a few unlikely tokens are enough; without the rule the same prompt runs to the limit."""
    engine.ensure(models["a"], "a")
    rule = EarlyStopConfig(alpha=0.5, threshold=-2.0)
    config = SamplingConfig(samples_per_prompt=8, max_tokens=300, early_stop=rule)
    groups = list[GroupSamples]()
    endpoint = facts(engine).sources[0].endpoint
    before = endpoint.call("GET", COUNTS_PATH, timeout_s=60.0)["tokens"]
    engine.sample_groups([Prompt("p", ChatTokenizer(models["a"]).prompt_token_ids(TEXTS[0]))], config, groups.append)
    computed = endpoint.call("GET", COUNTS_PATH, timeout_s=60.0)["tokens"] - before
    completions = groups[0].completions
    reasons = [completion.finish_reason for completion in completions]
    # One completion in 400 draws an end token before; three of eight do in one run in 10 million.
    assert reasons.count("early_stop") > 5 and set(reasons) <= {"early_stop", "stop"}
    for completion in completions:
        mean = EarlyStop(rule.alpha, rule.threshold)
        hopeless = [mean.ends_with(logprob) for logprob in completion.logprobs.tolist()]
        assert not any(hopeless[:-1]) and (hopeless[-1] or completion.finish_reason == "stop")
    kept = sum(len(completion.token_ids) for completion in completions)
    assert computed == kept, "no token was computed that was not kept"


@pytest.mark.long
def test_a_dead_core_is_replaced_and_only_unfinished_groups_are_sampled_again(
    engine: Engine, models: dict[str, Path]
) -> None:
    engine.ensure(models["a"], "digest-a")
    starts, victim, leader = facts(engine).starts, core_of(facts(engine).process_id), facts(engine).process_id
    delivered: list[str] = []

    def deliver(group: GroupSamples) -> None:
        delivered.append(group.prompt_id)
        if len(delivered) == 3:
            os.kill(victim, signal.SIGKILL)

    config = SamplingConfig(samples_per_prompt=16, max_tokens=300)
    engine.sample_groups(prompts(24), config, deliver)
    assert sorted(delivered) == sorted(f"p{number}" for number in range(24))
    assert facts(engine).starts == starts + 1
    assert gone(leader)


@pytest.mark.long
def test_a_hung_core_is_noticed_soon_and_cleared_away(engine: Engine, models: dict[str, Path]) -> None:
    engine.ensure(models["a"], "digest-a")
    leader, core = facts(engine).process_id, core_of(facts(engine).process_id)
    stopped: list[float] = []

    def stop() -> None:
        os.kill(core, signal.SIGSTOP)
        stopped.append(time.monotonic())

    patient = engine.hardware
    engine.hardware = patient.model_copy(update={"restarts": 0, "stall_timeout_s": 600.0})
    timer = threading.Timer(0.5, stop)
    timer.start()
    try:
        with pytest.raises(TransientError, match="stopped for 5 s"):
            engine.sample_groups(prompts(64), SamplingConfig(samples_per_prompt=16, max_tokens=400), lambda _: None)
        assert time.monotonic() - stopped[0] < 300.0, "not by its silence"
    finally:
        timer.cancel()
        engine.hardware = patient
    assert gone(leader)


def test_a_core_does_not_outlive_guard_and_server_killed_together(engine: Engine, models: dict[str, Path]) -> None:
    engine.ensure(models["a"], "digest-a")
    leader, core = facts(engine).process_id, core_of(facts(engine).process_id)
    for pid in in_session(leader).keys() - {core}:
        os.kill(pid, signal.SIGKILL)
    assert gone(leader)


@pytest.mark.parametrize(
    "architecture",
    [
        pytest.param(name, marks=pytest.mark.long if name in ("qwen3-moe", "gemma3") else pytest.mark.release)
        for name in FAMILIES
    ],
)
def test_a_model_of_another_shape_takes_a_new_start_and_its_trained_weights_a_reload(
    engine: Engine, tmp_path: Path, architecture: str
) -> None:
    """What the trainer wrote, with adapters merged, has in the engine the probabilities that the trainer gives it."""
    (tmp_path / "source").mkdir()
    source, starts, reloads = (
        write_source(tmp_path / "source", architecture, TEXTS),
        facts(engine).starts,
        facts(engine).reloads,
    )
    for name, trainable in {"all": EVERYTHING, "lora": lora_of(source).merging()}.items():
        trained = Trained(source, tmp_path / name, trainable)
        engine.ensure(trained.folder, f"{architecture}-{name}")
        assert_samples_are_trained(engine, f"{architecture}-{name}", trained, tmp_path)
    # A CPU packs the weights of experts, so vLLM refuses to reload them, and the engine starts again.
    restarts = int(architecture == "qwen3-moe")
    assert (facts(engine).starts, facts(engine).reloads) == (starts + 1 + restarts, reloads + 1 - restarts)


@pytest.mark.release
@pytest.mark.parametrize("model", ["mistral-sliding", "smollm3", "olmo2", "gemma3", "granite"])
def test_an_engine_gets_adapters_of_each_family(tmp_path: Path, model: str) -> None:
    (tmp_path / "source").mkdir()
    source = write_source(tmp_path / "source", model, TEXTS)
    adapted = lora_of(source)
    with Engine(HARDWARE.with_adapter(adapted.adapter), tmp_path / "engine") as engine:
        trained = Trained(source, tmp_path / "trained", adapted)
        engine.ensure(trained.folder, "a")
        assert_samples_are_trained(engine, "a", trained, tmp_path)


@pytest.mark.long
def test_an_engine_gets_adapters_and_loads_their_base_once(tmp_path: Path) -> None:
    """Adapters of one rank are loaded in place beside a base that came after the start; a larger one restarts it."""
    (tmp_path / "source").mkdir()
    source = write_source(tmp_path / "source", "qwen3", TEXTS)
    small, again, large = (
        Trained(source, tmp_path / name, LORA.model_copy(update=changes))
        for name, changes in {"a": {}, "b": {"rslora": True}, "c": {"rank": 12, "alpha": 24.0}}.items()
    )
    (tmp_path / "shape").mkdir()
    for file in source.glob("*.json"):
        shutil.copy(file, tmp_path / "shape")
    with Engine(HARDWARE.with_adapter(LORA.adapter), tmp_path / "engine") as engine:
        engine.prestart(tmp_path / "shape", "")
        engine.ensure(small.folder, "a")
        assert_samples_are_trained(engine, "a", small, tmp_path)
        engine.ensure(again.folder, "b")
        assert_samples_are_trained(engine, "b", again, tmp_path)
        engine.ensure(source, "base")
        assert_samples_are_of(source, engine, "base")
        assert (facts(engine).starts, facts(engine).reloads, facts(engine).refusals) == (1, 3, [])
        engine.ensure(large.folder, "c")
        assert_samples_are_trained(engine, "c", large, tmp_path)
        export_folder(large.folder, tmp_path / "merged", "", merge=True, dtype="bf16", base=None)
        engine.ensure(tmp_path / "merged", "merged")
        assert_samples_are_trained(engine, "merged", large, tmp_path)
        assert (facts(engine).starts, facts(engine).refusals) == (2, [])


@pytest.mark.long
def test_nothing_outlives_an_owner_that_was_killed(models: dict[str, Path], tmp_path: Path) -> None:
    command = [sys.executable, "-c", OWNER, HARDWARE.model_dump_json(), str(tmp_path), str(models["a"])]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2]) as owner:
        assert owner.stdout is not None
        leader = int(owner.stdout.readline())
        assert owner.stdout.readline() == "ready\n"
        assert any("EngineCore" in command for command in in_session(leader).values())
        owner.kill()
    assert gone(leader)


@pytest.mark.long
def test_an_engine_that_refuses_its_arguments_says_why(models: dict[str, Path], tmp_path: Path) -> None:
    unheard_of = HARDWARE.model_copy(update={"extra_arguments": ("--quantization", "unheard_of")})
    with Engine(unheard_of, tmp_path / "engine") as engine:
        with pytest.raises(BadInputError, match=r"(?s)ended with status [12].*unheard_of"):
            engine.ensure(models["a"], "a")
        assert not facts(engine).running
