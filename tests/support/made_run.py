"""A finished run for tests: all stages are real except sampling, training and evaluation.

These three need an engine or a trainer. Here their artifacts are written with the same addresses and schemas; the
chance of a right answer rises from iteration to iteration.
"""

import hashlib
import json
import platform
import random
import shutil
import tempfile
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

from artifacts.address import ArtifactAddress
from artifacts.identity import Identity
from artifacts.layout import RunLayout, Shared, shared_key
from artifacts.reading import Artifact
from artifacts.refs import Batch, Checkpoint, Decision, Grades, Puzzles, Ref, Report, Rollouts
from artifacts.schemas import LOGPROB, PUZZLES, RESULTS, ROLLOUTS, as_table
from artifacts.store.store import Store
from flows.config.recipe import Recipe
from flows.config.recipes import validate
from flows.session.frozen import freeze_recipe
from stages.context import StageContext
from stages.environments import environment
from stages.environments.puzzle import Puzzle
from stages.environments.tables import count_deductions, deduction_columns, graded_texts, puzzles_by_id
from stages.grade import grade
from stages.pack import pack
from stages.prepare import PrepareConfig, identity_of, prepare
from stages.promote import promote
from stages.statistics.records import read_decision
from stages.statistics.totals import totals
from stages.strategies.figures import sample_figures
from tests.support import memory_store
from tests.support.contexts import make_context

memory_store.register()
REDUCED = {"connectives": False, "fixed_cast": True, "fixed_rooms": True, "questions": "placements"}
WRONG = "Nobody <b>& co</b>"
NOT_MADE = {
    "compute_dtype", "thought_opened", "dropped", "early_stopped_fraction", "tasks", "points", "faithfulness",
    "texts",
}  # fmt: skip
"""Fields of documents that made runs do not have: they have no engine and no teacher."""


def warm_start_key(run: str) -> str:
    """The key of the weights before the first iteration of a made run."""
    return f"{Shared.MODELS}/warm-start-{hashlib.sha256(run.encode()).hexdigest()[:12]}"


def make_run(
    store: Store, run: str = "made", iterations: int = 4, seed: int = 0, *, derives: bool = False
) -> RunLayout:
    """Publishes a run of `iterations` iterations: 6 puzzles x 4 samples each, accuracy rising by 8 points each.

    With `derives`, completions begin with the steps of a derivation, of which as many are true as answers are right.
    The run is made once a process; stores of equal arguments hold copies of the same artifacts.
    """
    for key, data in _published(run, iterations, seed, derives, platform.node()).items():
        store.write_bytes(key, data)
    return RunLayout(run)


def _set_address(store: Store, config: PrepareConfig) -> ArtifactAddress[Puzzles]:
    return ArtifactAddress(store, shared_key(Shared.PUZZLES, "set", identity_of(config)), Puzzles)


@cache
def _published(run: str, iterations: int, seed: int, derives: bool, host: str) -> dict[str, bytes]:
    """The objects of a run; its manifests name the host."""
    store = Store.open(f"memory://{run}-{iterations}-{seed}-{derives}-{host}")
    with tempfile.TemporaryDirectory() as scratch, make_context(store, Path(scratch)) as ctx:
        _Maker(ctx, RunLayout(run), random.Random(seed), derives).make(iterations)
    return {key: store.read_bytes(key) for key in store.list("")}


@cache
def _drawn(config: PrepareConfig) -> dict[str, bytes]:
    """The objects of the puzzle set, which is the same in every run: it is drawn once a process."""
    store = Store.open("memory://drawn-for-made-runs")
    with tempfile.TemporaryDirectory() as scratch, make_context(store, Path(scratch)) as ctx:
        prepare(ctx, config, out=_set_address(store, config))
    return {key: store.read_bytes(key) for key in store.list("")}


def copied_store(store: Store, folder: Path) -> Store:
    """Copies a directory store to a folder that does not exist, to be changed there."""
    shutil.copytree(Path(store.url.removeprefix("file://")), folder)
    return Store.open(str(folder))


class _Maker:
    def __init__(self, ctx: StageContext, layout: RunLayout, chance: random.Random, derives: bool) -> None:
        self.ctx, self.store, self.layout, self.chance, self.derives = ctx, ctx.store, layout, chance, derives

    def make(self, iterations: int) -> None:
        recipe = validate(
            Recipe,
            {
                "title": "A run for tests, with a title as long as those of the recipes that come with the package",
                "iterations": iterations,
                "model": {"source": "scratch"},
                "puzzles": {"puzzle": REDUCED, "train": 24, "val": 8, "test": 12},
                "sample": {"puzzles_per_iteration": 6, "sampling": {"samples_per_prompt": 4}},
                "pack": {"row_tokens": 2048},
                "evaluate": {"puzzles": 8},
                "final": {"puzzles": 12},
            },
            "made",
        )
        freeze_recipe(self.store, self.layout, recipe)
        for key, data in _drawn(recipe.puzzles).items():
            self.store.write_bytes(key, data)
        puzzles = prepare(self.ctx, recipe.puzzles, out=_set_address(self.store, recipe.puzzles))
        weights = self._checkpoint(warm_start_key(self.layout.run), 0, 0.4)
        report = self._report(self.layout.iteration(0, "report"), puzzles, weights, "val", 0.4)
        decision = self._promote(recipe, weights, report, None, 0)
        self._report(self.layout.evaluation("before"), puzzles, weights, "test", 0.4)
        for n in range(1, iterations + 1):
            skill = min(0.9, 0.4 + 0.08 * n)
            rollouts = self._rollouts(n, puzzles, weights, skill)
            grades = grade(self.ctx, recipe.grade, rollouts, puzzles, out=self._at(n, "grades", Grades))
            pack(self.ctx, recipe.pack, rollouts, grades, out=self._at(n, "batch", Batch))
            weights = self._checkpoint(self.layout.iteration(n, "checkpoint"), n, skill)
            report = self._report(self.layout.iteration(n, "report"), puzzles, weights, "val", skill)
            decision = self._promote(recipe, weights, report, decision, n)
        promoted = read_decision(decision, self.store).standing.checkpoint
        self._report(self.layout.evaluation("after"), puzzles, promoted, "test", 0.4 + 0.08 * iterations)

    def _address(self, key: str, kind: type[Any]) -> ArtifactAddress[Any]:
        return ArtifactAddress(self.store, key, kind)

    def _at(self, n: int, part: str, kind: type[Any]) -> ArtifactAddress[Any]:
        return self._address(self.layout.iteration(n, part), kind)

    def _promote(
        self, recipe: Recipe, weights: Ref[Checkpoint], report: Ref[Report], before: Ref[Decision] | None, n: int
    ) -> Ref[Decision]:
        return promote(
            self.ctx,
            recipe.promote,
            weights,
            report,
            before,
            iteration=n,
            pointer=self.layout.promoted,
            out=self._at(n, "decision", Decision),
        )

    def _answers(self, puzzle: Puzzle, skill: float) -> str:
        said = {letter: right if self.chance.random() < skill else WRONG for letter, right in puzzle.solution.items()}
        answers = "\n".join(f"{letter}. {answer}" for letter, answer in said.items())
        return self._steps(puzzle, skill) + answers if self.derives else answers

    def _steps(self, puzzle: Puzzle, skill: float) -> str:
        true, _, _ = environment.get(puzzle.environment).write_derivation(puzzle).partition("\n\n")
        said = [
            line if self.chance.random() < skill else line.replace(" was ", " was not ", 1)
            for line in true.replace(" was not ", " was ").splitlines()
        ]
        return "\n".join(said) + "\n\n"

    def _rollouts(self, n: int, puzzles: Ref[Puzzles], weights: Ref[Checkpoint], skill: float) -> Ref[Rollouts]:
        table = Artifact.open(self.store, puzzles).read_table("train.parquet", PUZZLES)
        known = puzzles_by_id(table)
        rows: list[dict[str, Any]] = []
        for group, prompt_id in enumerate(self.chance.sample(table["prompt_id"].to_list(), 6)):
            for sample in range(4):
                text = self._answers(known[prompt_id], skill)
                tokens = list(text.encode()[:64])
                rows.append(
                    {
                        "prompt_id": prompt_id,
                        "group": group,
                        "sample": sample,
                        "prompt_token_ids": [1, 2, 3],
                        "completion_token_ids": tokens,
                        "sampler_logprobs": [-0.5] * len(tokens),
                        "text": text,
                        "finish_reason": "length" if sample == 3 and group == 0 else "stop",
                        "sampling": json.dumps({"max_tokens": 64}),
                        "weights_digest": weights.digest,
                        "engine": "made",
                        "group_s": 1.0,
                    }
                )
        attempt = self._at(n, "rollouts", Rollouts).attempt(Identity.of("sample", 1, {"n": n}, weights=weights))
        attempt.write_shard("rollouts", as_table(rows, ROLLOUTS), ROLLOUTS)
        return attempt.publish({"tokens_per_s": 300.0 + n}, weights=weights, puzzles=puzzles)

    def _checkpoint(self, key: str, n: int, skill: float) -> Ref[Checkpoint]:
        attempt = self._address(key, Checkpoint).attempt(Identity.of("finetune", 1, {"n": n}))
        attempt.write_bytes("config.json", json.dumps({"n": n}).encode())
        step = {
            "step": 1,
            "of": 1,
            "loss": 0.1,
            "policy_loss": 0.1,
            "entropy": 1.2 - skill,
            "grad_norm": 0.5,
            "learning_rate": 1e-4 / max(n, 1),
            "ratio_mean": 1.0,
            "ratio_max": 1.1,
            "clip_low_fraction": 0.01,
            "clip_high_fraction": 0.02,
            "sampler_gap_mean": 0.012,
            "sampler_gap_max": 0.1,
            "tokens": 100,
            "loss_tokens": 60,
            "seconds": 1.0,
            "tokens_per_s": 100.0,
        }
        return attempt.publish({"steps": [step] if n else []})

    def _report(
        self, key: str, puzzles: Ref[Puzzles], weights: Ref[Checkpoint], split: str, skill: float
    ) -> Ref[Report]:
        table = Artifact.open(self.store, puzzles).read_table(f"{split}.parquet", PUZZLES)
        known = puzzles_by_id(table)
        rows: list[dict[str, Any]] = []
        for mode, samples in (("sampled", 4), ("greedy", 1)):
            for prompt_id in table["prompt_id"]:
                for sample in range(samples):
                    text = self._answers(known[prompt_id], skill)
                    (graded,) = graded_texts([(text, prompt_id)], known, "strict")
                    answers = {letter: asdict(answer) for letter, answer in graded.answers.items()}
                    rows.append(
                        {
                            "prompt_id": prompt_id,
                            "mode": mode,
                            "sample": sample,
                            "accuracy": graded.accuracy,
                            "exact": graded.exact,
                            "finish_reason": "stop",
                            "completion_tokens": len(text),
                            "text": text,
                            "answers": json.dumps(answers),
                            **deduction_columns(count_deductions(text, known[prompt_id])),
                            LOGPROB: -0.5 * len(text),
                        }
                    )
        results = as_table(rows, RESULTS)
        attempt = self._address(key, Report).attempt(Identity.of("evaluate", 1, {"key": key}, weights=weights))
        attempt.write_table("results.parquet", results, RESULTS)
        figures = {**totals(results).as_json(), **sample_figures(results).as_json()}
        facts = {"puzzles": len(table), "split": split, "grader": "strict", **figures}
        return attempt.publish(facts, weights=weights, puzzles=puzzles)
