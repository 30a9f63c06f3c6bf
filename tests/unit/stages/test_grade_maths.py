"""Grades of mathematics by the recipes that learn it: rewards as published, and reasons of missing verdicts."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from artifacts.address import ArtifactAddress
from artifacts.identity import Identity
from artifacts.reading import Artifact
from artifacts.refs import Grades, Puzzles, Rollouts
from artifacts.schemas import GRADES, GRADES_FILE, PUZZLES, ROLLOUTS, as_table
from artifacts.store.store import Store
from flows.config.recipes import load_recipe
from stages.environments.generate import MathsConfig
from stages.environments.puzzle import Puzzle
from stages.environments.tables import to_table
from stages.grade import grade
from tests.support.contexts import make_context

THOUGHT = "\n</think>\n"
TEXTS = (
    f"I add.{THOUGHT}<answer>\\boxed{{4}}</answer>",  # right and well formed
    f"I guess.{THOUGHT}\\boxed{{5}}",  # wrong
    "I add. \\boxed{4}",  # right without a closing tag
    f"\\boxed{{4}}{THOUGHT}I forget.",  # right only in the thoughts
    f"I add.{THOUGHT}{THOUGHT}\\boxed{{4+}}",  # two closing tags, and no mathematics
)


def graded(recipe: str, folder: Path) -> tuple[list[float], list[bool], dict[str, Any]]:
    """Rewards and verdicts of the texts, graded as a recipe says, and the facts of the stage."""
    settings = load_recipe(recipe)
    assert isinstance(settings.puzzles.puzzle, MathsConfig)
    problem = Puzzle("1", settings.puzzles.puzzle.environment_name, "2 + 2 = ?", {"answer": "4"}, 0, None, "d", {})
    problem = replace(problem, thinking=settings.puzzles.thinking)
    store = Store.open(str(folder / "store"))
    ctx = make_context(store, folder)
    puzzles = ArtifactAddress(store, "puzzles", Puzzles).attempt(Identity.of("prepare", 1, {}))
    puzzles.write_table("train.parquet", to_table([problem]), PUZZLES)
    rows = [
        {
            "prompt_id": "1", "group": 0, "sample": sample, "prompt_token_ids": [1], "completion_token_ids": [3],
            "sampler_logprobs": [-0.5], "text": text, "finish_reason": "stop",
            "sampling": json.dumps({"max_tokens": 4}), "weights_digest": "w", "engine": "e", "group_s": 1.0,
        }
        for sample, text in enumerate(TEXTS)
    ]  # fmt: skip
    sampled = ArtifactAddress(store, "rollouts", Rollouts).attempt(Identity.of("sample", 1, {}))
    sampled.write_shard("rollouts", as_table(rows, ROLLOUTS), ROLLOUTS)
    out = ArtifactAddress(store, "grades", Grades)
    grades = Artifact.open(store, grade(ctx, settings.grade, sampled.publish(), puzzles.publish(), out=out))
    table = grades.read_table(GRADES_FILE, GRADES)
    assert table["grader"].unique().to_list() == ["math-verify 0.9.0"]
    return table["reward"].to_list(), table["exact"].to_list(), grades.manifest.facts


@pytest.mark.parametrize("recipe", ["open_rs1", "open_rs2"])
def test_open_rs_rewards_accuracy_anywhere_and_one_closing_tag(recipe: str, tmp_path: Path) -> None:
    rewards, right, facts = graded(recipe, tmp_path)
    assert right == [True, False, True, True, False]
    assert rewards == [3.0, 1.0, 2.0, 3.0, 0.0]
    assert facts["unread/unparsed_answer"] == 1


def test_open_rs3_rewards_short_right_answers_in_characters(tmp_path: Path) -> None:
    rewards, right, _ = graded("open_rs3", tmp_path)
    waves = [(1.0 + math.cos(math.pi * len(text) / 3584)) / 2 for text in TEXTS]
    lengths = [0.5 + 0.5 * wave if is_right else -0.5 + 0.5 * wave for wave, is_right in zip(waves, right, strict=True)]
    closed = [1.0, 1.0, 0.0, 1.0, 0.0]
    assert rewards == pytest.approx([2.0 * length + tag for length, tag in zip(lengths, closed, strict=True)])


def test_deepscaler_reads_the_last_box_after_the_thoughts(tmp_path: Path) -> None:
    rewards, _, facts = graded("deepscaler", tmp_path)
    assert rewards == [1.0, 0.0, 0.0, 0.0, 0.0]
    assert (facts["unread/missing"], facts["unread/unparsed_answer"]) == (2, 1)


def test_dr_grpo_reads_the_last_box_anywhere(tmp_path: Path) -> None:
    rewards, _, facts = graded("dr_grpo", tmp_path)
    assert rewards == [1.0, 0.0, 1.0, 1.0, 0.0]
    assert facts["unread/unparsed_answer"] == 1
