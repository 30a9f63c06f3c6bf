"""Clusters, work, times and plans, by hand."""

import io
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from matplotlib.image import imread
from safetensors.numpy import save_file

from artifacts.errors import BadInputError
from flows.checks.fitting import refuse_undivided, refuse_unfit
from flows.config.model_size import model_size
from flows.config.recipe import Recipe
from flows.config.recipes import load_profile, load_recipe
from flows.doctor.scaling_plot import scaling_plot
from flows.plan.cluster import GPUS, MIB, Cluster, cluster, gpu_of
from flows.plan.page import document, lines, profile_text, verdict
from flows.plan.plan import GIB, Memory, make_plan, memory_of
from flows.plan.time import most_rows
from flows.plan.workload import work_of
from stages.hardware.compute_type import CudaDevice
from stages.training.job import JobSettings
from stages.training.objectives.objective import REFERENCE
from stages.training.objectives.policy import PolicyObjective
from stages.training.trainer_batch import TrainerBatch
from tests.support.doctor import H100
from tests.support.json_page import check_documented
from tests.support.trees import VOCAB, tree_batch


def test_gpus_are_named_by_size_or_name() -> None:
    h100, a40 = cluster("8x80", 2), cluster("4xA40")
    assert (h100.gpu.name, h100.count, a40.gpu.name, a40.count) == ("H100", 16, "A40", 4)
    assert h100.between == 50e9 < cluster("8x80").between  # a ring is as fast as its slowest part
    assert [(one.count, one.nodes) for one in a40.sizes(32)] == [(1, 1), (2, 1), (4, 1), (8, 1), (16, 2), (32, 4)]
    for wrong in ("8", "0x80", "8x81", "x80", "8xTPU"):
        with pytest.raises(BadInputError, match="8x80"):
            cluster(wrong)


def test_gpus_are_known_by_the_names_of_their_driver() -> None:
    kinds = ("NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-40GB", "NVIDIA A100-SXM4-80GB", "NVIDIA A40")
    named = [gpu_of(name, size * 1000 * MIB) for name, size in zip(kinds, (81, 40, 81, 46), strict=True)]
    assert [gpu and gpu.name for gpu in named] == ["H100", "A100", "A100-80", "A40"]
    assert gpu_of("NVIDIA A4000", 16 * GIB) is None


def test_work_by_hand() -> None:
    recipe = load_recipe("openpipe_14b")
    # 14 completions of 1,000 fit beside a prompt of 2,000 into a row of 16,384, so a group of 50 repeats it in 4 rows:
    # 32 x (4 x 2,000 + 50,000) tokens in 114 rows, in steps of 4. The validation adds 64 x 2 completions.
    work = work_of(recipe, completion=1000, prompt=2000)
    assert (work.trained_tokens, work.rows, work.steps) == (1_856_000, 114, 29)
    assert (work.sampled, work.sampled_tokens, work.prompt_tokens) == (1728, 1_728_000, 96 * 2000)
    assert work.forward_passes == 0


@pytest.mark.parametrize(
    ("changes", "passes"),
    [
        ([], 1.0),  # the reference; the only step computes its own old log-probabilities
        (["pack.updates=4"], 1.75),  # and those of three of the four steps
        (["pack.updates=4", "finetune.loss.kl_place=sequence_reward"], 2.0),  # all, before the rewards are known
        (["finetune.reference=none", "finetune.loss.kl_coef=0", "pack.updates=4"], 0.75),
        (["pack.updates=4", "finetune.loss.old_logprobs=sampler", "finetune.loss.temperature_of=sampler",
          "finetune.loss.temperature=0.7"], 1.0),
        (["pack.updates=4", "finetune.loss.kind=cross_entropy"], 1.0),
        (["pack.updates=4", "finetune.loss.kind=cross_entropy",
          "finetune.loss.importance_correction=token_truncate", "finetune.loss.temperature_of=sampler",
          "finetune.loss.temperature=0.7"], 1.75),
    ],
)  # fmt: skip
def test_passes_without_gradients_are_those_that_the_trainer_makes(
    tmp_path: Path, changes: list[str], passes: float
) -> None:
    recipe = load_recipe("open_rs1", changes)
    assert work_of(recipe).forward_passes == passes
    save_file(tree_batch(1, [1] * 4, steps=recipe.pack.updates), tmp_path / "batch.safetensors")
    batch = TrainerBatch(tmp_path / "batch.safetensors", VOCAB)
    settings = JobSettings.of(recipe.finetune, learning_rates=[0.0] * 4, epoch_seed=0)
    with_reference = recipe.finetune.reference != "none"
    objective = PolicyObjective(settings, batch, torch.device("cpu"), with_reference=with_reference)
    assert len(objective.old_steps) / len(batch.steps) + (REFERENCE in objective.numbers) == passes


def test_a_plan_is_refused_or_fits() -> None:
    recipe, profile = load_recipe("openpipe_14b"), load_profile("cuda")
    plan = make_plan(recipe, profile, cluster("8x80"))
    assert not plan.given.fits and plan.given.memory.missing > 60 * GIB
    fitting = plan.fitting
    assert fitting is not None and fitting.fits
    assert (fitting.settings.processes, fitting.settings.nodes) == (8, 1)
    with pytest.raises(BadInputError, match=r"GiB needed on a GPU: trainer .* at most 80.0 GiB"):
        refuse_unfit(recipe, profile, (H100,) * 8)
    refuse_unfit(recipe, fitting.settings.applied(profile), (H100,) * 8)
    refuse_unfit(recipe, profile, ())
    with pytest.raises(BadInputError, match="the GPUs of this machine"):
        refuse_unfit(recipe, fitting.settings.applied(profile), (H100,))
    small = CudaDevice("a GPU", (8, 0), 16 * GIB)
    with pytest.raises(BadInputError, match=r"at most 16.0 GiB"):
        refuse_unfit(recipe, fitting.settings.applied(profile), (small,) * 8)


def test_a_trainer_beside_engines_elsewhere_is_refused_if_it_does_not_fit() -> None:
    recipe, urls = load_recipe("openpipe_14b"), ['engine.external_urls=["http://127.0.0.1:1"]']
    with pytest.raises(BadInputError, match=r"126\.9 GiB needed on a GPU: trainer 126\.9 GiB; expected at most 80\.0"):
        refuse_unfit(recipe, load_profile("cuda", urls), (H100,) * 8)
    refuse_unfit(recipe, load_profile("cuda", [*urls, "trainer.processes=8"]), (H100,) * 8)
    with pytest.raises(BadInputError, match="the GPUs of this machine"):
        refuse_unfit(recipe, load_profile("cuda", [*urls, "trainer.processes=8"]), (H100,) * 4)


@pytest.mark.parametrize("replicas", ["auto", "1"])
def test_engines_that_run_elsewhere_are_not_planned(replicas: str) -> None:
    """The plan would count them on the trainer's GPUs, and the profile that it writes would not name them."""
    changes = ['engine.external_urls=["http://127.0.0.1:1"]', f"engine.replicas={replicas}"]
    with pytest.raises(BadInputError, match=r"^engine.external_urls: 1 engine elsewhere; expected none"):
        make_plan(load_recipe("open_rs1"), load_profile("cuda", changes), cluster("8x80"))


def test_a_model_that_does_not_divide_is_refused() -> None:
    """The 14B model has 40 heads and 8 key-value heads, the 1.5B model 12 and 2."""
    large, small = load_recipe("openpipe_14b"), load_recipe("open_rs1")

    def refuse(recipe: Recipe, *changes: str) -> None:
        profile = load_profile("cuda", changes)
        refuse_undivided(recipe, profile.trainer, profile.engine)

    refuse(large, "trainer.processes=8", "trainer.tensor_parallel=8", "engine.tensor_parallel_size=8")
    with pytest.raises(BadInputError, match=r"tensor_parallel: 4, for a model with 12 heads, 2 key-value .*: 1, 2$"):
        refuse(small, "trainer.processes=4", "trainer.tensor_parallel=4")
    refuse(small, "engine.tensor_parallel_size=4")  # vLLM repeats key-value heads
    with pytest.raises(BadInputError, match=r"engine\.tensor_parallel_size: 8, for a model with 12 heads"):
        refuse(small, "engine.tensor_parallel_size=8")
    refuse(small, "engine.tensor_parallel_size=8", 'engine.external_urls=["http://127.0.0.1:1"]')
    unknown = ["model={source='hub', id='a/b-7B'}", "finetune.trainable.parameters=lora"]
    with pytest.raises(BadInputError, match=r"with finetune\.trainable\.parameters = 'lora'"):
        refuse(load_recipe("open_rs1", unknown), "trainer.processes=2", "trainer.tensor_parallel=2")


@pytest.mark.parametrize(
    ("name", "left_out"),
    [
        ("openpipe_14b", []),
        ("vapo", []),
        ("difficulty_aware", ["rating 3 models on all train puzzles"]),
    ],
)
def test_a_plan_names_the_models_that_it_leaves_out(name: str, left_out: list[str]) -> None:
    made = make_plan(load_recipe(name), load_profile("cuda"), cluster("8x80"))
    assert document(made, 2.0)["not_counted"] == left_out
    assert [line for line in lines(made) if line.startswith("not counted")] == [
        f"not counted, in time or memory: {part}" for part in left_out
    ]


def test_a_plan_says_what_an_iteration_publishes() -> None:
    """Of 14.8 billion weights 30 GB in bf16, or the 48 layers' adapters of rank 16 in fp32: 4 x 68.8 million bytes."""
    lora = ["finetune.trainable.parameters=lora"]
    for overrides, published in ((lora, "275.3 MB"), ([*lora, "finetune.trainable.merge=true"], "29,539.4 MB")):
        made = make_plan(load_recipe("openpipe_14b", overrides), load_profile("cuda"), cluster("8x80"))
        assert any(line.endswith(f"publishes {published}") for line in lines(made)), list(lines(made))


def test_a_plan_divides_heads_only_where_the_engine_can() -> None:
    """The model has 12 heads and 2 key-value heads; vLLM refuses engines of 8 GPUs."""
    made = make_plan(load_recipe("open_rs1"), load_profile("cuda"), cluster("8x80"))
    assert made.fitting is not None and made.fitting.settings.tensor_parallel_size <= 2
    assert all(layout is None or layout.settings.tensor_parallel_size <= 2 for _, layout in made.scaling)


def test_the_cache_holds_the_longest_sequence_of_the_model() -> None:
    """Otherwise vLLM does not start. A token takes 2 x 28 x 256 x 2 bytes, and the model has 131,072 positions."""
    recipe, four = load_recipe("open_rs1"), cluster("4xA40")
    fitting = make_plan(recipe, load_profile("cuda"), four).fitting
    assert fitting is not None
    whole = 28_672 * 131_072 / fitting.settings.tensor_parallel_size
    assert fitting.memory.least_cache == whole <= fitting.memory.cache
    small = ["engine.memory_share=0.15", "trainer.processes=4"]
    assert make_plan(recipe, load_profile("cuda", small), four).given.memory.missing > 0
    short = make_plan(recipe, load_profile("cuda", [*small, "engine.max_model_len=16384"]), four).given
    assert short.fits and short.memory.least_cache == 28_672 * 16_384


@pytest.mark.parametrize(
    ("gpus", "changes", "needs"),
    [
        ("1x80", ["trainer.processes=8"], "it needs 8 GPUs on a machine, there are 1"),
        ("4x80", ["trainer.processes=4", "engine.tensor_parallel_size=8"], "it needs 8 GPUs on a machine, there are 4"),
        ("8x80", ["trainer.processes=8", "trainer.nodes=2", "trainer.rendezvous=a", "trainer.shared_dir=/s"],
         "it needs 2 machines, there are 1"),
    ],
)  # fmt: skip
def test_a_profile_with_more_gpus_than_there_are_does_not_fit(gpus: str, changes: list[str], needs: str) -> None:
    made = make_plan(load_recipe("openpipe_14b"), load_profile("cuda", changes), cluster(gpus))
    assert not made.given.fits and needs in verdict(made.given)
    assert made.fitting is not None and made.fitting.fits and "needs" not in verdict(made.fitting)


def test_rows_of_a_step_leave_processes_idle() -> None:
    """Steps have 4 rows, so eight processes train no faster than four."""
    recipe, profile = load_recipe("openpipe_14b"), load_profile("cuda")
    by_count = {other.count: layout for other, layout in make_plan(recipe, profile, cluster("8x80")).scaling}
    four, eight = by_count[4], by_count[8]
    assert four is not None and eight is not None
    assert eight.times.train == pytest.approx(four.times.train)
    assert eight.times.sample < four.times.sample and eight.times.idle > four.times.idle
    assert (four.times.lost, four.times.lost_divided, eight.times.lost) == (0, 0, 0.5)
    assert eight.times.lost_divided == pytest.approx(1 / 9)  # a prompt is an eighth of a row: 4 of 8 x (1 + 1/8) / 2
    divided = recipe.model_copy(update={"pack": recipe.pack.model_copy(update={"rows_multiple": 8})})
    halves = {other.count: layout for other, layout in make_plan(divided, profile, cluster("8x80")).scaling}[8]
    assert halves is not None and halves.times.lost == halves.times.lost_divided == eight.times.lost_divided
    assert halves.times.train == pytest.approx(0.5625 * eight.times.train)
    one = by_count[1]
    assert one is not None and one.settings.cpu_offload and one.memory.host > 110 * GIB
    assert not four.settings.cpu_offload


def test_offload_waits_for_the_host() -> None:
    """One GPU keeps 14.77 billion weights on the host: 29 rows times 4 steps, and Adam once a step."""
    recipe, weights = load_recipe("openpipe_14b"), 14_769_689_600
    seconds = [
        make_plan(recipe, load_profile("cuda", [f"trainer.cpu_offload={switch}"]), cluster("1x80")).given.times.train
        for switch in ("false", "true")
    ]
    micros, bytes_a_weight = 29 * 4, 2 + 2 + 4  # gathered for forward and backward in bf16, gradients in fp32
    moved, stepped = micros * weights * bytes_a_weight / 25e9, 29 * weights * 28 / 200e9
    assert seconds[1] - seconds[0] == pytest.approx(moved + stepped)


@pytest.mark.long
def test_an_engine_is_never_faster_than_its_own_work() -> None:
    """A step of a small model takes at least 2 ms and 20 µs a sequence."""
    recipe = load_recipe("smollm2", ["sample.sampling.max_tokens=4096"])
    small = make_plan(recipe, load_profile("cuda"), cluster("1x80"), completion=256).given.times
    assert 4096 * 2.02e-3 < small.sample < 4096 * 3e-3 and small.limit in ("decoding", "longest completion")


def test_a_tensor_group_computes_the_same_rows_and_adds_its_sums() -> None:
    recipe, eight = load_recipe("openpipe_14b"), ["trainer.processes=8"]
    plans = [
        make_plan(recipe, load_profile("cuda", [*eight, f"trainer.tensor_parallel={group}"]), cluster("8x80"))
        for group in (1, 8)
    ]
    alone, group = (plan.given for plan in plans)
    assert (alone.times.lost, group.times.lost) == (0.5, 0.0), "4 rows for 8 processes, or for one group"
    assert group.memory.trainer.resident == alone.memory.trainer.resident
    assert group.memory.trainer.gathered < alone.memory.trainer.gathered
    # FSDP2 moves nothing. 48 layers have two sums in each forward and backward pass, of 5,120 numbers for each token;
    # in a ring of eight each process receives 14 eighths of them.
    work, checkpointing = plans[0].work, load_profile("cuda").trainer.activation_checkpointing
    passes = (3 if checkpointing else 2) * work.epochs + work.forward_passes
    assert group.times.link_bytes == pytest.approx(passes * 48 * 2 * 2 * 5120 * work.trained_tokens * 14 / 8)
    assert plans[0].fitting == plans[1].fitting, "no plan chooses it"


def test_rows_of_the_busiest_process_by_hand() -> None:
    assert most_rows(3.9, 8, 1, 0.1) == 1.0 and most_rows(9, 8, 1, 0.1) == 2.0
    assert most_rows(4, 8, 8, 0.1) == pytest.approx(0.55)  # both halves of a row hold a prompt of a tenth
    assert most_rows(5, 8, 8, 0.0) == 1.0  # two rows stay whole
    assert most_rows(5, 8, 16, 0.0) == 0.75  # four halves and twelve quarters, 20 quarters for 8 processes


def test_the_written_profile_is_the_plan(tmp_path: Path) -> None:
    recipe = load_recipe("open_rs1")
    fitting = make_plan(recipe, load_profile("cuda"), cluster("4xA40")).fitting
    assert fitting is not None
    path = tmp_path / "four.toml"
    path.write_text(profile_text(fitting, "open_rs1", "4 x A40", load_profile("cuda")))
    written = load_profile(str(path))
    again = make_plan(recipe, written, cluster("4xA40"))
    assert again.given.settings == fitting.settings
    assert again.given.fits and again.given.times == fitting.times


def test_the_written_profile_keeps_what_the_plan_has_read(tmp_path: Path) -> None:
    changes = [
        "engine.max_num_seqs=64", "engine.max_model_len=16384", "trainer.reshard_after_forward=false",
        "engine.eager=true", "engine.dtype=float32", "trainer.compute_dtype=fp32",
    ]  # fmt: skip
    profile, path = load_profile("cuda", changes), tmp_path / "four.toml"
    fitting = make_plan(load_recipe("open_rs1"), profile, cluster("4xA40")).fitting
    assert fitting is not None
    path.write_text(profile_text(fitting, "open_rs1", "4 x A40", profile))
    given = make_plan(load_recipe("open_rs1"), load_profile(str(path)), cluster("4xA40")).given
    assert (given.settings, given.memory, given.times) == (fitting.settings, fitting.memory, fitting.times)


def test_memory_is_that_of_the_profiles_types() -> None:
    def of(*changes: str) -> Memory:
        return make_plan(load_recipe("open_rs1"), load_profile("cuda", changes), cluster("4xA40")).given.memory

    plain, wide, served = of(), of("trainer.compute_dtype=fp32"), of("engine.dtype=float32")
    assert of("trainer.compute_dtype=bf16", "engine.dtype=bfloat16") == plain
    assert (wide.trainer.activations, wide.trainer.weights) > (plain.trainer.activations, 0)
    assert wide.trainer.weights < plain.trainer.weights, "masters of fp32 compute themselves"
    assert wide.engine_weights == plain.engine_weights
    assert served.engine_weights == 2 * plain.engine_weights and served.least_cache == 2 * plain.least_cache


def test_engine_and_trainer_in_turns_need_the_larger_part_only() -> None:
    """Asleep the engine keeps 1 GiB, and as much for graphs; awake it has the GPU for itself. The trainer reads its
    state again."""
    recipe, profile = load_recipe("open_rs1"), load_profile("cuda", ["engine.memory_share=0.9"])
    turns = load_profile("cuda", ["engine.memory_share=0.9", "engine.takes_turns=true"])
    one = cluster("1x80")
    beside, taken = (make_plan(recipe, told, one).given for told in (profile, turns))
    assert not beside.fits and taken.fits
    assert taken.memory.train == pytest.approx(beside.memory.train - taken.memory.engine + 2 * GIB)
    eager = load_profile("cuda", ["engine.memory_share=0.9", "engine.takes_turns=true", "engine.eager=true"])
    assert make_plan(recipe, eager, one).given.memory.train == pytest.approx(taken.memory.train - GIB)
    assert taken.memory.sample == taken.memory.engine == pytest.approx(0.9 * taken.memory.gpu)
    assert taken.memory.certain == pytest.approx(max(taken.memory.engine, beside.memory.certain - beside.memory.engine))
    assert taken.times.save > beside.times.save and taken.times.train == beside.times.train
    written = profile_text(taken, "open_rs1", "1 x H100", turns)
    assert "takes_turns = true" in written


def test_the_plot_shows_every_number_of_gpus() -> None:
    """As a PNG it has the size that figures have; its content is drawn from the table's numbers."""
    made = make_plan(load_recipe("openpipe_32b"), load_profile("cuda"), cluster("8x80"))
    assert made.scaling[0][1] is None, "one GPU lacks memory, which the plot has to show, too"
    drawn = imread(io.BytesIO(scaling_plot(made, "openpipe_32b")))
    assert drawn.shape[:2] == (540, 840)
    inked = (drawn[:, :, :3].min(axis=2) < 0.7).any(axis=0)
    assert inked[: 840 // 7].any() and inked[-840 // 7 :].any(), "from 1 to 64"


def test_the_document() -> None:
    recipe = load_recipe("open_rs1")
    made = make_plan(recipe, load_profile("cuda"), Cluster(GPUS[0], 2))
    printed = document(made, 3.0)
    check_documented("plan", printed)
    layout = printed["fitting"]
    assert layout["dollars"]["iteration"] == pytest.approx(2 * layout["times"]["iteration"] / 3600 * 3.0)
    assert layout["dollars"]["run"] == pytest.approx(100 * layout["dollars"]["iteration"])


def test_a_run_with_stages_costs_the_sum_of_its_stages() -> None:
    recipe, profile, one = load_recipe("deepscaler"), load_profile("cuda"), cluster("8x80")
    made = make_plan(recipe, profile, one)
    assert [(phase.name, phase.iterations) for phase in made.phases] == [("8K", 1040), ("16K", 480), ("24K", 230)]
    apart = [make_plan(part, profile, one).given for part in recipe.parts]
    seconds = [layout.times.iteration for layout in apart]
    assert [times.iteration for times in made.given.of_phases] == seconds == sorted(seconds)
    assert made.given.run == pytest.approx(sum(n * s for n, s in zip((1040, 480, 230), seconds, strict=True)))
    assert (made.given.times, made.work) == (made.given.of_phases[-1], made.phases[-1].work)
    assert any("'8K' 1040 of " in line for line in lines(made))
    printed = document(made, 2.0)
    check_documented("plan", printed)
    assert printed["given"]["dollars"]["run"] == pytest.approx(8 * made.given.run / 3600 * 2.0)
    plateau = make_plan(load_recipe("difficulty_aware"), profile, one)
    assert [phase.iterations for phase in plateau.phases] == [1200, 1200], "nothing else is known of a plateau"


def test_memory_is_that_of_the_longest_phase() -> None:
    phases = "phases=[{name='short', iterations=2}, {name='long', sample={sampling={max_tokens=200}}}]"
    recipe = load_recipe("answers_only", [phases])
    size = model_size(recipe.model)
    assert size.shape is not None
    unlimited = replace(size, shape=replace(size.shape, positions=None))
    staged, short = (memory_of(one, load_profile("cuda"), unlimited, 80e9) for one in (recipe, recipe.parts[0]))
    assert staged.least_cache > short.least_cache


def test_memory_and_writing_are_those_of_the_phases() -> None:
    """No iteration reads the recipe's own section `finetune`."""
    profile, one, lora = load_profile("cuda"), cluster("8x80"), "{parameters='lora'}"
    for base, trained in (("{parameters='all'}", (lora, lora)), (lora, (lora, "{parameters='all'}"))):
        phases = ", ".join(
            f"{{name='{number}', {'iterations=1, ' if number == 0 else ''}optimizer='fresh', "
            f"finetune={{trainable={trainable}, reference='{'ema' if number else 'none'}'}}}}"
            for number, trainable in enumerate(trained)
        )
        recipe = load_recipe("openpipe_14b", [f"finetune.trainable={base}", f"phases=[{phases}]"])
        made, apart = make_plan(recipe, profile, one), [make_plan(part, profile, one).given for part in recipe.parts]
        peaks = [layout.memory.trainer.peak for layout in apart]
        assert made.given.memory.trainer.peak == max(peaks) > min(peaks)
        assert made.given.memory.save == max(layout.memory.save for layout in apart)
        assert made.given.of_phases == tuple(layout.times for layout in apart)


def test_memory_is_that_of_a_warm_start_which_trains_more() -> None:
    recipes = [
        load_recipe("smollm2", ["finetune.trainable.parameters=lora", change])
        for change in ("warm_start=null", "warm_start.trainable.parameters=lora", "warm_start.steps=2")
    ]
    size = model_size(recipes[0].model)
    none, fewer, more = (memory_of(recipe, load_profile("cuda"), size, 80e9).trainer.optimizer for recipe in recipes)
    assert none == fewer < more / 10


def test_a_critic_is_counted_with_its_passes_and_its_way_to_the_store() -> None:
    recipe, profile = load_recipe("vapo"), load_profile("cuda")
    assert recipe.value is not None
    epochs, passes = recipe.value.epochs, 4 if profile.trainer.activation_checkpointing else 3
    values = [None, recipe.value, recipe.value.model_copy(update={"epochs": 2 * epochs})]
    changed = [recipe.model_copy(update={"value": value}) for value in values]
    alone, once, twice = (make_plan(one, profile, cluster("1x80")).given.times for one in changed)
    a_pass = (twice.train - once.train) / (epochs * passes)
    assert once.train - alone.train == pytest.approx((1 + epochs * passes) * a_pass), "the first one is for the values"
    assert once.sample == alone.sample
    assert once.store_bytes > 2 * alone.store_bytes, "the policy's and the critic's weights and states, there and back"
