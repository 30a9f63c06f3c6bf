"""Grades and batches of two groups of completions, worked by hand: uniform groups, masked completions, reward terms."""

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from pydantic import ValidationError

from artifacts.address import ArtifactAddress
from artifacts.errors import BadInputError, IntegrityError
from artifacts.identity import Identity
from artifacts.reading import Artifact
from artifacts.refs import Batch, Checkpoint, Grades, Puzzles, Ref, Rollouts
from artifacts.schemas import BY_TOOL, GRADES, GRADES_FILE, PUZZLES, ROLLOUTS, STEPS, STEPS_FILE, as_table
from artifacts.store.store import Store
from artifacts.tensors import BATCH_FILE, PackedBatch
from flows.checks.judge import check_judge
from flows.config.recipes import load_recipe
from stages.answering.limits import BudgetReachedError
from stages.environments.puzzle import Puzzle
from stages.environments.solver_tool import write_tool_output
from stages.environments.tables import to_table
from stages.grade import GradeConfig, grade
from stages.grading.judge import JudgeConfig, Verdicts, verdicts
from stages.grpo.packing import PackConfig
from stages.models.tokenizers.chat import ChatTokenizer
from stages.models.tokenizers.phrase_tokenizer import CHAT_TEMPLATE, END_OF_TURN, build_tokenizer
from stages.pack import pack
from stages.processes.user_file import UserFunction
from tests.support.contexts import make_context
from tests.support.judge_server import MODEL, Judge, judge_server
from tests.support.puzzle_cases import FIVE_LETTERS

LINES = [f"{letter}. {answer}" for letter, answer in FIVE_LETTERS.solution.items()]
GROUPS = [[5, 0, 0, 0], [2, 2]]
"""Right answers of five, by group; the last completion of the first group is cut at the limit."""


class Stages:
    def __init__(
        self,
        folder: Path,
        counts: Sequence[Sequence[int]] = GROUPS,
        cut: str = "length",
        puzzle: Puzzle = FIVE_LETTERS,
    ) -> None:
        self.store = Store.open(str(folder / "store"))
        self.ctx = make_context(self.store, folder)
        attempt = ArtifactAddress(self.store, "puzzles", Puzzles).attempt(Identity.of("prepare", 1, {}))
        attempt.write_table("train.parquet", to_table([puzzle]), PUZZLES)
        self.puzzles: Ref[Puzzles] = attempt.publish()
        rows = [
            {
                "prompt_id": FIVE_LETTERS.prompt_id, "group": group, "sample": sample, "prompt_token_ids": [1, 2],
                "completion_token_ids": [3] * (sample + 1), "sampler_logprobs": [-0.5] * (sample + 1),
                "text": "\n".join(LINES[:right]), "finish_reason": cut if sample == 3 else "stop",
                "sampling": json.dumps({"max_tokens": 4}), "weights_digest": "w", "engine": "e", "group_s": 1.0,
            }
            for group, in_group in enumerate(counts)
            for sample, right in enumerate(in_group)
        ]  # fmt: skip
        sampled = ArtifactAddress(self.store, "rollouts", Rollouts).attempt(Identity.of("sample", 1, {}))
        sampled.write_shard("rollouts", as_table(rows, ROLLOUTS), ROLLOUTS)
        self.rollouts: Ref[Rollouts] = sampled.publish()

    def run(self, grading: dict[str, Any], packing: dict[str, Any]) -> tuple[pl.DataFrame, dict[str, Any], Any, Any]:
        """Grades, their facts, the batch, its facts."""
        config = GradeConfig.model_validate(grading)
        grades = grade(self.ctx, config, self.rollouts, self.puzzles, out=ArtifactAddress(self.store, "grades", Grades))
        batch = pack(
            self.ctx,
            PackConfig.model_validate({"row_tokens": 2048, **packing}),
            self.rollouts,
            grades,
            out=ArtifactAddress(self.store, "batch", Batch),
        )
        graded, packed = Artifact.open(self.store, grades), Artifact.open(self.store, batch)
        tensors = PackedBatch.from_bytes(packed.read_bytes(BATCH_FILE), "batch")
        return graded.read_table(GRADES_FILE, GRADES), graded.manifest.facts, tensors, packed.manifest.facts


@pytest.fixture
def stages(tmp_path: Path) -> Stages:
    return Stages(tmp_path)


PLAIN = {"scale": "none"}


def test_uniform_groups_are_dropped(stages: Stages) -> None:
    grades, facts, batch, packed = stages.run({"advantage": PLAIN, "reward": {"truncated": "graded"}}, {})
    assert grades["advantage"].to_list() == pytest.approx([0.75, -0.25, -0.25, -0.25, 0.0, 0.0])
    assert (packed["groups"], packed["uniform_groups"], packed["masked_completions"]) == (1, 1, 0)
    assert int(batch.completion_mask.sum()) == 1 + 2 + 3 + 4
    assert facts["reward/accuracy/mean"] == pytest.approx((1.0 + 0.4 + 0.4) / 6) == facts["reward/mean"]


def test_uniform_groups_are_kept(stages: Stages) -> None:
    settings = {"advantage": PLAIN, "reward": {"truncated": "graded"}}
    _, _, batch, packed = stages.run(settings, {"uniform_groups": "kept"})
    assert (packed["groups"], packed["uniform_groups"], packed["completions"]) == (2, 1, 6)
    assert int(batch.completion_mask.sum()) == 10 + 1 + 2
    assert int((batch.advantages != 0).sum()) == 10


def test_a_masked_completion_is_in_no_baseline_and_in_no_batch(stages: Stages) -> None:
    grades, _, batch, packed = stages.run({"advantage": PLAIN, "reward": {"truncated": "masked"}}, {})
    assert grades["advantage"].to_list() == pytest.approx([2 / 3, -1 / 3, -1 / 3, None, 0.0, 0.0])
    assert grades["truncated"].to_list()[3]
    assert (packed["completions"], packed["masked_completions"]) == (3, 1)
    assert int(batch.completion_mask.sum()) == 1 + 2 + 3


def test_a_group_that_differs_in_a_masked_completion_only_is_uniform(tmp_path: Path) -> None:
    stages = Stages(tmp_path, counts=[[5, 0, 0, 0], [0, 0, 0, 5]])
    _, facts, _, packed = stages.run({"advantage": PLAIN, "reward": {"truncated": "masked"}}, {})
    assert (facts["groups/uniform_fraction"], packed["uniform_groups"]) == (0.5, 1)
    assert facts["reward/std_within_group"] == pytest.approx(3**-0.5 / 2)


def test_rejection_sampling_trains_only_on_right_completions(stages: Stages) -> None:
    _, _, batch, packed = stages.run({"advantage": PLAIN}, {"completions": "right", "uniform_groups": "kept"})
    assert (packed["groups"], packed["completions"], int(batch.completion_mask.sum())) == (1, 1, 1)


def test_grades_of_other_rollouts_are_refused(stages: Stages, tmp_path: Path) -> None:
    other = Stages(tmp_path / "other", counts=[[5, 0, 0, 0]])
    out = ArtifactAddress(stages.store, "grades", Grades)
    grades = grade(stages.ctx, GradeConfig(), stages.rollouts, stages.puzzles, out=out)
    few = ArtifactAddress(stages.store, "few", Rollouts).attempt(Identity.of("sample", 1, {"of": "others"}))
    few.write_shard("rollouts", Artifact.open(other.store, other.rollouts).read_tables(ROLLOUTS), ROLLOUTS)
    config, out = PackConfig(row_tokens=2048), ArtifactAddress(stages.store, "batch", Batch)
    with pytest.raises(IntegrityError, match="grades: 4 of its 6 rows belong to one of the 4 completions"):
        pack(stages.ctx, config, few.publish(), grades, out=out)


def test_equally_right_completions_teach_no_length_where_dynamic_sampling_is_asked_for(stages: Stages) -> None:
    """The second group has 2 of 5 right twice, in 1 and 2 tokens: its shaped rewards differ, its accuracies do not."""
    reward = {"truncated": "soft_overlong", "overlong_buffer_tokens": 3}
    grading = {"advantage": {"scale": "sample_std"}, "reward": reward}
    grades, _, batch, packed = stages.run(grading, {})
    assert grades["advantage"].to_list()[4:] == pytest.approx([0.5**0.5, -(0.5**0.5)], rel=1e-4)
    assert (packed["groups"], int(batch.completion_mask.sum())) == (2, 10 + 1 + 2)
    graded: Ref[Grades] = Artifact.at(stages.store, "grades").ref
    for uniform_groups in ("dropped", "kept"):
        config, out = (
            PackConfig(row_tokens=2048, uniform_groups=uniform_groups),
            ArtifactAddress(stages.store, f"mixed-{uniform_groups}", Batch),
        )
        mixed = pack(stages.ctx, config, stages.rollouts, graded, out=out, mixed_only=True)
        manifest = Artifact.open(stages.store, mixed).manifest
        assert (manifest.facts["groups"], manifest.facts["uniform_groups"]) == (1, 1)
        assert manifest.identity.config["mixed_only"] is True


@pytest.mark.parametrize(
    ("policy", "reward", "advantage"),
    [("penalty", -0.1, -0.325), ("zero", 0.0, -0.25), ("masked", 0.4, None), ("graded", 0.4, 0.05)],
)
def test_a_completion_stopped_early_is_as_unfinished_as_one_at_the_limit(
    tmp_path: Path, policy: str, reward: float, advantage: float | None
) -> None:
    """The last of rewards 1, 0, 0 and its own has two of five right; only the facts tell the two ends apart."""
    settings, counts = {"advantage": PLAIN, "reward": {"truncated": policy}}, [[5, 0, 0, 2], [2, 2]]
    at_limit, facts, _, _ = Stages(tmp_path / "limit", counts).run(settings, {})
    assert (facts["truncated/fraction"], facts["early_stopped/fraction"]) == pytest.approx((1 / 6, 0.0))
    early, facts, batch, packed = Stages(tmp_path / "early", counts, "early_stop").run(settings, {})
    assert (facts["truncated/fraction"], facts["early_stopped/fraction"]) == pytest.approx((0.0, 1 / 6))
    assert early.equals(at_limit)
    assert (early["reward"][3], early["advantage"][3]) == (pytest.approx(reward), pytest.approx(advantage))
    assert packed["masked_completions"] == (policy == "masked")
    assert int(batch.completion_mask.sum()) == 1 + 2 + 3 + (0 if policy == "masked" else 4)


def test_the_terms_are_in_the_facts(stages: Stages) -> None:
    reward = {
        "exact_weight": 0.6, "format_weight": 0.5, "repetition_weight": 1.0, "repetition_words": 1,
        "length_cosine": {"wrong": "long_is_worse"}, "truncated": "soft_overlong", "overlong_buffer_tokens": 2,
    }  # fmt: skip
    grades, facts, _, _ = stages.run({"reward": reward, "advantage": PLAIN}, {})
    named = {
        name.split("/")[1]: value
        for name, value in facts.items()
        if name.startswith("reward/") and name.count("/") == 2
    }
    assert named["accuracy"] == pytest.approx(1.8 / 6)
    assert named["exact"] == pytest.approx(0.1)
    assert named["format"] == pytest.approx(0.5 / 6)
    # Lengths 1 2 3 4 and 1 2 of limit 4. Over the last two tokens the penalty of 0.5 grows: 0.25 at 3, 0.5 at 4.
    assert named["truncated"] == pytest.approx(-0.75 / 6)
    # Right with 1 of 4: 0.75 + 0.25 cos(pi / 4) = 0.926777; wrong: -(1 - cos(pi p)) / 4 for p = .5 .75 1 and .25 .5.
    assert named["length_cosine"] == pytest.approx((0.926777 - 0.25 - 0.426777 - 0.5 - 0.073223 - 0.25) / 6, abs=1e-6)
    assert sum(named.values()) == pytest.approx(facts["reward/mean"]) == pytest.approx(grades["reward"].mean())


def speaking(stages: Stages, texts: Sequence[str], finish_reason: str = "stop") -> list[list[str]]:
    """Makes rollouts of one group with these texts, sampled from a model with a tokenizer; returns their tokens."""
    tokenizer = build_tokenizer([*texts, *texts], 4096)
    attempt = ArtifactAddress(stages.store, "model", Checkpoint).attempt(Identity.of("fetch", 1, {}))
    attempt.write_bytes("tokenizer.json", tokenizer.to_str().encode())
    attempt.write_json("tokenizer_config.json", {"chat_template": CHAT_TEMPLATE, "eos_token": END_OF_TURN})
    model: Ref[Checkpoint] = attempt.publish()
    rows: list[dict[str, Any]] = []
    for sample, text in enumerate(texts):
        ids = [*tokenizer.encode(text).ids, tokenizer.token_to_id(END_OF_TURN)]
        rows.append(
            {
                "prompt_id": FIVE_LETTERS.prompt_id, "group": 0, "sample": sample, "prompt_token_ids": [1, 2],
                "completion_token_ids": ids, "sampler_logprobs": [-0.5] * len(ids), "text": text,
                "finish_reason": finish_reason, "sampling": json.dumps({"max_tokens": 999}), "weights_digest": "w",
                "engine": "e", "group_s": 1.0,
            }
        )  # fmt: skip
    sampled = ArtifactAddress(stages.store, "speaking", Rollouts).attempt(Identity.of("sample", 1, {}))
    sampled.write_shard("rollouts", as_table(rows, ROLLOUTS), ROLLOUTS)
    stages.rollouts = sampled.publish(weights=model)
    return [[tokenizer.decode([token]) for token in row["completion_token_ids"]] for row in rows]


TRUE, FALSE = "Miss Scarlet is motivated by Greed", "Miss Scarlet is motivated by Fear"
SOUND, UNSOUND = f"{TRUE}.\nSo {TRUE}.\n\nA. Miss Peach", f"{FALSE}.\n\nA. Miss Scarlet"
BY_PROCESS: dict[str, Any] = {
    "advantage": {"level": "process", "scale": "none"},
    "reward": {"accuracy_weight": 0.0, "truncated": "graded"},
}


def test_each_token_has_the_advantage_of_the_steps_from_it_on(tmp_path: Path) -> None:
    """Steps 1, 0 (repeated), 1 (right) and -1, -1 (wrong) have mean 0, so that their sums are the advantages."""
    stages = Stages(tmp_path)
    tokens = speaking(stages, [SOUND, UNSOUND])
    grades, facts, batch, _ = stages.run(BY_PROCESS, {})
    second, last = SOUND.rindex(TRUE) + len(TRUE), len(SOUND)
    sums = [[(len(TRUE), 2.0), (second, 1.0), (last, 1.0)], [(len(FALSE), -2.0), (len(UNSOUND), -1.0)]]
    expected: list[list[float]] = []
    for pieces, steps in zip(tokens, sums, strict=True):
        starts = [len("".join(pieces[:i])) for i in range(len(pieces) - 1)]
        expected.append([next(value for end, value in steps if start < end) for start in starts] + [0.0])  # end of turn
    packed = [batch.advantages[batch.segment_ids == segment].tolist() for segment in (1, 2)]
    assert packed == [pytest.approx(values) for values in expected]
    assert grades["advantage"].to_list() == pytest.approx([sum(values) / len(values) for values in expected])
    assert (grades["proved"].to_list(), grades["contradicted"].to_list()) == ([1, 0], [0, 1])
    steps = Artifact.at(stages.store, "grades").read_table(STEPS_FILE, STEPS)
    assert steps["verdict"].to_list() == ["proved", "repeated", "right", "contradicted", "wrong"]
    assert steps["reward"].to_list() == [1.0, 0.0, 1.0, -1.0, -1.0]
    ends = [[len(SOUND[: sums[0][i][0]]) for i in range(3)], [len(FALSE), len(UNSOUND)]]
    for row, of_completion, characters in zip((0, 1), tokens, ends, strict=True):
        counts = steps.filter(pl.col("sample") == row)["end_token"].to_list()
        texts = [("".join(of_completion[: count - 1]), "".join(of_completion[:count])) for count in counts]
        assert all(len(before) < end <= len(upto) for (before, upto), end in zip(texts, characters, strict=True))
    assert (facts["steps/proved/mean"], facts["steps/wrong/mean"]) == (0.5, 0.5)


def test_what_a_tool_wrote_is_no_step_and_has_no_advantage(tmp_path: Path) -> None:
    """The solver says what is false between two steps; the model's tokens are rewarded as if it had said nothing."""
    stages = Stages(tmp_path)
    told = write_tool_output([FALSE, "B. Lounge"])
    speaking(stages, [SOUND.replace(".\n", f".{told}", 1), UNSOUND])
    rows = Artifact.open(stages.store, stages.rollouts).read_tables(ROLLOUTS)
    tokenizer = ChatTokenizer(stages.ctx.local_folder(Artifact.at(stages.store, "model").ref))
    marks: list[list[bool]] = []
    for text, ids in rows.select("text", "completion_token_ids").iter_rows():
        start = text.find(told) if told in text else len(text) + 1
        marks.append([start < end <= start + len(told) for end in tokenizer.token_ends(ids)])
    attempt = ArtifactAddress(stages.store, "told", Rollouts).attempt(Identity.of("sample", 1, {"tool": True}))
    attempt.write_shard("rollouts", rows.with_columns(pl.Series(BY_TOOL, marks, pl.List(pl.Boolean))), ROLLOUTS)
    stages.rollouts = attempt.publish(weights=Artifact.at(stages.store, "model").ref)
    grades, facts, batch, packed = stages.run(BY_PROCESS, {})
    steps = Artifact.at(stages.store, "grades").read_table(STEPS_FILE, STEPS)
    assert steps["verdict"].to_list() == ["proved", "repeated", "right", "contradicted", "wrong"]
    own = [len(of_completion) - sum(of_completion) for of_completion in marks]
    assert sum(marks[0]) > 2 and not any(marks[1])
    assert (packed["completion_tokens"], facts["completion_tokens/mean"]) == (sum(own), sum(own) / 2)
    first = batch.segment_ids == 1
    in_loss = batch.completion_mask[first] == 1
    assert (~in_loss).tolist() == marks[0]
    assert batch.advantages[first][~in_loss].tolist() == [0.0] * sum(marks[0])
    values = batch.advantages[first][in_loss]
    assert list(dict.fromkeys(values.tolist())) == [2.0, 1.0, 0.0]
    assert grades["advantage"][0] == pytest.approx(float(values.mean()))


def test_steps_whose_reward_is_null_count_nowhere(tmp_path: Path) -> None:
    """Without answers the rewards 1, 0 and -1 have mean 0; the words of an answer get no advantage."""
    stages = Stages(tmp_path)
    speaking(stages, [SOUND, UNSOUND])
    reward = {**BY_PROCESS["reward"], "step_rewards": {"right": None, "wrong": None}}
    _, _, batch, _ = stages.run({**BY_PROCESS, "reward": reward}, {})
    values = [list(dict.fromkeys(batch.advantages[batch.segment_ids == segment].tolist())) for segment in (1, 2)]
    assert values == [[1.0, 0.0], [-1.0, 0.0]]
    steps = Artifact.at(stages.store, "grades").read_table(STEPS_FILE, STEPS)
    assert steps["reward"].to_list() == [1.0, 0.0, None, -1.0, None]


def test_the_advantage_of_the_outcome_is_added(tmp_path: Path) -> None:
    """Accuracies 1/5 and 0 are 0.1 above and below their mean."""
    stages = Stages(tmp_path)
    tokens = speaking(stages, [SOUND, UNSOUND])
    _, _, batch, _ = stages.run({**BY_PROCESS, "reward": {"truncated": "graded"}}, {"last_token_advantage": "zero"})
    first = batch.advantages[batch.segment_ids == 1]
    assert first[0] == pytest.approx(2.1)
    assert first[len(tokens[0]) - 2 :].tolist() == pytest.approx([1.1, 0.0])


def test_a_masked_completion_is_in_no_baseline_of_steps(tmp_path: Path) -> None:
    stages = Stages(tmp_path)
    speaking(stages, [SOUND, UNSOUND], finish_reason="length")
    grades, _, batch, packed = stages.run({**BY_PROCESS, "reward": {"truncated": "masked"}}, {})
    assert grades["advantage"].to_list() == [None, None]
    assert (packed["masked_completions"], batch.tokens.shape[0]) == (2, 0)


def test_the_outcome_level_writes_no_steps(tmp_path: Path) -> None:
    stages = Stages(tmp_path)
    speaking(stages, [SOUND, UNSOUND])
    stages.run({"advantage": PLAIN}, {})
    assert Artifact.at(stages.store, "grades").names() == ["grades.parquet"]


def test_process_supervision_of_a_puzzle_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    unread = replace(FIVE_LETTERS, prompt=FIVE_LETTERS.prompt.replace("is motivated by Fear", "has a motive"))
    stages = Stages(tmp_path, puzzle=unread)
    speaking(stages, [SOUND, UNSOUND])
    with pytest.raises(BadInputError, match=r"puzzle five-letters: .*a clue cannot be read"):
        stages.run(BY_PROCESS, {})


def test_process_supervision_of_completions_that_say_nothing_is_refused(tmp_path: Path) -> None:
    stages = Stages(tmp_path)
    speaking(stages, ["A. Miss Peach", "A. Miss Scarlet"])
    with pytest.raises(BadInputError, match=r"no statement in any of 2 completions, such as \['A. Miss Peach'\]"):
        stages.run(BY_PROCESS, {})


def test_surprise_ends_with_the_last_answer(tmp_path: Path) -> None:
    """Two of five answers in tokens of log-probability -2, then noise at -9 that must not pay: s = 2, so that the
    term is b (s - 1) a = 0.1 x 1 x 0.4; the other completion answers nothing, and nothing is what it gets."""
    stages = Stages(tmp_path)
    answers, noise = "\n".join(LINES[:2]), "\nqx zv jk"
    tokenizer = build_tokenizer([answers, noise, noise + "."], 4096)
    attempt = ArtifactAddress(stages.store, "model", Checkpoint).attempt(Identity.of("fetch", 1, {}))
    settings = {"chat_template": CHAT_TEMPLATE, "eos_token": END_OF_TURN}
    attempt.write_bytes("tokenizer.json", tokenizer.to_str().encode())
    attempt.write_json("tokenizer_config.json", settings)
    model: Ref[Checkpoint] = attempt.publish()
    counted = tokenizer.encode(answers).ids
    rows: list[dict[str, Any]] = []
    for sample, ids in enumerate(([*counted, *tokenizer.encode(noise).ids], tokenizer.encode(noise).ids)):
        quiet = len(counted) if sample == 0 else 0
        rows.append(
            {
                "prompt_id": FIVE_LETTERS.prompt_id, "group": 0, "sample": sample, "prompt_token_ids": [1, 2],
                "completion_token_ids": [*ids, tokenizer.token_to_id(END_OF_TURN)],
                "sampler_logprobs": [-2.0] * quiet + [-9.0] * (len(ids) - quiet + 1),
                "text": tokenizer.decode(ids), "finish_reason": "stop", "sampling": json.dumps({"max_tokens": 99}),
                "weights_digest": "w", "engine": "e", "group_s": 1.0,
            }
        )  # fmt: skip
    sampled = ArtifactAddress(stages.store, "surprising", Rollouts).attempt(Identity.of("sample", 1, {}))
    sampled.write_shard("rollouts", as_table(rows, ROLLOUTS), ROLLOUTS)
    stages.rollouts = sampled.publish(weights=model)
    grades, facts, _, _ = stages.run({"reward": {"surprise_weight": 0.1}, "advantage": PLAIN}, {})
    assert grades["reward"].to_list() == pytest.approx([0.44, 0.0])
    assert facts["reward/surprise/mean"] == pytest.approx(0.02)


REWARD = re.findall(r"```python\n(.*?)```", (Path(__file__).parents[3] / "docs/own_loss.md").read_text(), re.DOTALL)[1]


def own_reward(folder: Path, code: str) -> dict[str, Any]:
    (folder / "mine.py").write_text(code)
    return {"accuracy_weight": 0.0, "function": UserFunction(name="mine.py:reward").located(folder).model_dump()}


def test_a_length_reward_as_a_user_writes_it_is_the_built_in_one(tmp_path: Path) -> None:
    rewards: list[list[float]] = []
    for number, settings in enumerate(({"accuracy_weight": 0.0, "length_cosine": {}}, own_reward(tmp_path, REWARD))):
        grades, facts, _, _ = Stages(tmp_path / f"{number}").run({"reward": {"truncated": "graded", **settings}}, {})
        rewards.append(grades["reward"].to_list())
        term = "function" if number else "length_cosine"
        assert facts[f"reward/{term}/mean"] == pytest.approx(facts["reward/mean"])
    assert rewards[1] == pytest.approx(rewards[0], abs=1e-6) and len(set(rewards[0])) == 5


def test_a_reward_of_ones_own_gets_item_grade_and_tokens_and_may_fail(
    stages: Stages, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The completions without an answer fail, which is said; the identity holds the code, not its folder."""
    code = (
        "def reward(completion, item, grade, tokens):\n"
        "    assert completion, item['prompt'] and item['solution']\n"
        "    return len(completion.splitlines()) + grade.accuracy + 10 * tokens.completion + 100 * tokens.limit\n"
    )
    settings = own_reward(tmp_path, code)
    grades, facts, _, _ = stages.run({"reward": {"truncated": "graded", **settings}}, {})
    assert grades["reward"].to_list()[:2] == [5 + 1.0 + 10 + 400, 0.0]
    assert facts["function/failed"] == 3
    assert [record.message for record in caplog.records] == ["grading failed for 3 of 6 completions: mine.py:reward"]
    held = Artifact.at(stages.store, "grades").manifest.identity.config["reward"]["function"]
    assert held == {"name": "mine.py:reward", "sha256": settings["function"]["sha256"]}


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("def reward(completion, item, grade, tokens):\n    return 'high'\n", "returned 'high'"),
        ("def reward(completion, item, grade, tokens):\n    return float('nan')\n", "returned nan"),
        ("def reward(text):\n    return 1.0\n", "cannot be loaded .*write def reward"),
        (
            "def reward(completion, item, grade, tokens):\n    return item['level']\n",
            r"fails for each of 6 completions \(raised KeyError: 'level'\)",
        ),
        (
            "import os\ndef reward(completion, item, grade, tokens):\n    return int.from_bytes(os.urandom(4))\n",
            r"returned [0-9.]+ and then [0-9.]+ for the same completion",
        ),
    ],
)
def test_what_is_no_reward_is_refused_in_one_line(stages: Stages, tmp_path: Path, code: str, found: str) -> None:
    with pytest.raises(BadInputError, match=rf"grade.reward.function mine.py:reward: {found}"):
        stages.run({"reward": own_reward(tmp_path, code)}, {})
    settings = own_reward(tmp_path, REWARD)
    (tmp_path / "mine.py").write_text(REWARD + "\n")
    with pytest.raises(BadInputError, match="changed since the run began"):
        stages.run({"reward": settings}, {})


QUESTION = "Count the answers.\n{completion}\nRight would be:\n{answer}\nEnd with a number from 0 to 5, such as {1}."


def counted(question: str) -> str:
    """A judge's reply: the number of answers, out of five."""
    lines = [line for line in question.partition("Right would be")[0].splitlines() if line[1:3] == ". "]
    return f"I counted 99 and again.\nScore: {len(lines)} / 5"


def judged(judge: Judge, **settings: Any) -> dict[str, Any]:
    asked = {"base_url": judge.url, "model": MODEL, "prompt": QUESTION, "best": 5.0, "weight": 2.0, "retries": 0}
    return {"accuracy_weight": 0.0, "truncated": "graded", "judge": {**asked, **settings}}


def test_a_judge_scores_completions_and_is_asked_each_question_once(
    stages: Stages, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is stored holds neither the key nor where it comes from; other advantages ask nothing again."""
    monkeypatch.setenv("JUDGES_KEY", "sesame-4711")
    with judge_server(counted, key="sesame-4711") as judge:
        settings = judged(judge, api_key_env="JUDGES_KEY")
        grades, facts, _, _ = stages.run({"reward": settings, "advantage": PLAIN}, {})
        assert grades["reward"].to_list() == [2.0, 0.0, 0.0, 0.0, 0.8, 0.8]
        assert (facts["judge/bought"], facts["judge/unread"], facts["reward/judge/mean"]) == (3, 0, 3.6 / 6)
        assert len(judge.asked) == 3, "three completions are different"
        assert all("Right would be:\nA. " in question and "such as {1}." in question for question in judge.asked)
        again = GradeConfig.model_validate({"reward": {**settings, "judge": {**settings["judge"], "concurrency": 2}}})
        out = ArtifactAddress(stages.store, "graded-again", Grades)
        once_more = grade(stages.ctx, again, stages.rollouts, stages.puzzles, out=out)
        assert Artifact.open(stages.store, once_more).manifest.facts["judge/bought"] == 0
        assert len(judge.asked) == 3
    held = Artifact.at(stages.store, "grades").manifest.identity.config["reward"]["judge"]
    assert held == {"base_url": judge.url, "model": MODEL, "prompt": QUESTION, "worst": 0.0, "best": 5.0, "weight": 2.0}
    assert not [file for file in tmp_path.rglob("*") if file.is_file() and b"sesame" in file.read_bytes()]


def test_a_reply_without_a_score_earns_nothing_and_none_with_one_is_an_error(
    stages: Stages, caplog: pytest.LogCaptureFixture
) -> None:
    """A score above the best is none."""
    with judge_server(lambda question: "many" if "A. " in question.partition("Right")[0] else "2 of 5: 2") as judge:
        grades, facts, _, _ = stages.run({"reward": judged(judge), "advantage": PLAIN}, {})
        assert (grades["reward"].to_list(), facts["judge/unread"]) == ([0.0, 0.8, 0.8, 0.8, 0.0, 0.0], 3)
        assert caplog.messages == ["grading failed for 3 of 6 completions: no score in the judge's reply"]
        with pytest.raises(BadInputError, match=r"grade\.reward\.judge: no score in any of 3 replies, such as 'many'"):
            verdicts(
                JudgeConfig.model_validate(judged(judge, best=1.0, prompt="{completion}")["judge"]),
                [(f"A. {number}", FIVE_LETTERS) for number in range(3)],
                stages.rollouts,
                stages.store,
                lambda *_: None,
            )


def test_one_reply_without_a_score_does_not_end_a_run_whose_other_completions_were_cut(stages: Stages) -> None:
    with judge_server(lambda _: "many") as judge:
        config = JudgeConfig.model_validate(judged(judge)["judge"])
        texts = [(text, FIVE_LETTERS) for text in ("A. 1", "<think>cut", "<think>also")]
        given = verdicts(config, texts, stages.rollouts, stages.store, lambda *_: None)
    assert (given.rewards, given.unread, given.bought) == ([0.0, 0.0, 0.0], 1, 1)


@pytest.mark.parametrize(
    ("reply", "score"),
    [
        ("8 out of 10", 8.0),
        ("Rating: 4 of 10.", 4.0),
        ("I give it 2 (on a scale of 0-10)", 2.0),
        ("2 points (max. 10 points)", 2.0),
        ("From 0 to 10, this is worth 7.5", 7.5),
        ("7 / 10", 7.0),
        ("a score of 7", 7.0),
        ("proof 3", 3.0),
        ("Score: 7\n- 2 typos", 7.0),
        ("**Score:** 7, because of 3 errors", 7.0),
        ("Score: 4. No: score = 5", 5.0),
        ('{"score": 7, "reason": "2 errors", "max_score": 10}', 7.0),
        ("The score is 3 because step 9 is right", 3.0),
        ("Score: 7 \u2013 none", 7.0),
        ("7\u204410", 7.0),
        ("1 to 10", None),
        ("none", None),
    ],
)
def test_numbers_of_the_scale_are_no_scores(reply: str, score: float | None) -> None:
    settings = {"base_url": "http://127.0.0.1:1/v1", "model": "m", "prompt": "{completion}", "weight": 10.0}
    assert JudgeConfig.model_validate(settings).score(reply) == score


def test_a_reply_that_was_cut_has_no_score(stages: Stages) -> None:
    """It may end with any number."""
    with judge_server(lambda question: "4" if "A. 1" in question else "Adding 1 and 2, it gets 3...") as judge:
        given = ask_judge(stages, judge)
    assert (given.rewards, given.unread) == ([0.0, 1.6, 1.6], 1)


def ask_judge(stages: Stages, judge: Judge, **settings: Any) -> Verdicts:
    """The judge's verdicts on three completions of 0, 1 and 2 answers, asked about in this order."""
    config = JudgeConfig.model_validate(judged(judge, concurrency=1, **settings)["judge"])
    texts = ["none", "A. 1", "A. 1\nB. 2"]
    puzzles = [(text, FIVE_LETTERS) for text in texts]
    return verdicts(config, puzzles, stages.rollouts, stages.store, lambda *_: None)


def test_a_question_that_the_judge_refuses_earns_nothing_though_it_is_the_first(stages: Stages) -> None:
    with judge_server(lambda question: None if "none" in question else counted(question)) as judge:
        assert (found := ask_judge(stages, judge)).rewards == [0.0, 0.4, 0.8]
        assert (found.unread, found.bought, len(judge.asked)) == (1, 3, 3)
        assert ask_judge(stages, judge).bought == 0, "the refusal is stored"
        with pytest.raises(BadInputError, match="it refuses the request: HTTP 400: longer than"):
            ask_judge(stages, judge, parameters={"temperature": 0.5}, prompt="none of {completion}")
        assert len(judge.asked) == 6, "three refusals and no answer: it is not the questions"


def test_the_dollars_of_a_judge_are_those_of_all_attempts(stages: Stages) -> None:
    """A reply costs 2 dollars, and might cost 4."""
    price = {"input": 0.0, "output": 1e6, "source": "this test", "date": "2026-11-28"}
    paid = {"price": price, "parameters": {"max_tokens": 4}}
    with judge_server(counted) as judge:
        for _ in range(2):
            with pytest.raises(
                BudgetReachedError, match=r"\$4\.0000 of \$7\.0000 is spent.*raise grade\.reward\.judge\.max_cost"
            ):
                ask_judge(stages, judge, max_cost=7.0, **paid)
            assert len(judge.asked) == 2
        found = ask_judge(stages, judge, max_cost=8.0, **paid)
        assert (found.bought, found.dollars) == (1, 6.0)


def test_a_reply_without_the_number_of_its_tokens_takes_the_most_from_a_budget(stages: Stages) -> None:
    price = {"input": 0.0, "output": 1e6, "source": "this test", "date": "2026-11-28"}
    with judge_server(counted, states_usage=False) as judge:
        with pytest.raises(BudgetReachedError, match=r"\$4\.0000 of \$7\.0000 is spent; 1 of 3"):
            ask_judge(stages, judge, max_cost=7.0, price=price, parameters={"max_tokens": 4})
        assert len(judge.asked) == 1


@pytest.mark.parametrize(
    ("settings", "found"),
    [
        ({"prompt": "Is it good?"}, "write {completion} in it"),
        ({"worst": 5.0}, "worst and best are the same score"),
        ({"max_cost": 1.0}, r"max_cost needs price and parameters\.max_tokens"),
        ({"api_key": "sk-4711"}, r"the setting 'api_key', which may hold a key \(its value is not shown\)"),
        ({"api_key_env": "sk-4711"}, r"api_key_env is not the name of a variable"),
    ],
)
def test_settings_of_a_judge_that_cannot_work_are_refused(settings: dict[str, Any], found: str) -> None:
    with pytest.raises((ValidationError, BadInputError), match=found) as raised:
        GradeConfig.model_validate({"reward": judged(Judge("http://127.0.0.1:1/v1"), **settings)})
    assert "4711" not in str(raised.value)


@pytest.mark.timeout(300)
def test_a_judges_reply_of_blanks_is_read_in_linear_time() -> None:
    judge = JudgeConfig.model_validate(judged(Judge("http://127.0.0.1:1/v1"))["judge"])
    assert judge.score("4" + " " * 1_000_000 + "of five") == 1.6
    assert judge.score("4 \n / 5") == judge.score("4/5") == 1.6, "what follows a slash is no score"


def test_a_judge_is_looked_for_before_a_run_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    def check(judge: Judge, **settings: Any) -> None:
        recipe = load_recipe("answers_only")
        check_judge(
            recipe.model_copy(update={"grade": GradeConfig.model_validate({"reward": judged(judge, **settings)})})
        )

    monkeypatch.delenv("JUDGES_KEY", raising=False)
    with judge_server(counted, key="sesame-4711") as judge:
        for settings, found in (
            ({}, r"HTTP 401: it requires a key: no such key.*set api_key_env"),
            ({"api_key_env": "JUDGES_KEY"}, "the environment variable JUDGES_KEY is not set"),
        ):
            with pytest.raises(BadInputError, match=found):
                check(judge, **settings)
    with judge_server(counted) as judge:
        check(judge)
        with pytest.raises(BadInputError, match=r"has no model 'judge-2', did you mean 'judge-1'"):
            check(judge, model="judge-2")
    with pytest.raises(BadInputError, match=r"grade\.reward\.judge: http://127\.0\.0\.1:\d+/v1 cannot be reached"):
        check(judge)
