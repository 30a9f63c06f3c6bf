"""On-policy distillation: the numbers of a teacher's verdicts, and which token each of them belongs to."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from artifacts.address import ArtifactAddress
from artifacts.errors import BadInputError
from artifacts.identity import Identity
from artifacts.reading import Artifact
from artifacts.refs import Grades, Puzzles, Ref, Rollouts
from artifacts.schemas import GRADES, GRADES_FILE, PUZZLES, ROLLOUTS, as_table
from artifacts.store.store import Store
from stages.context import StageContext
from stages.environments.generate import TIERS, generate
from stages.environments.tables import taught_passages, to_table
from stages.models.from_scratch import make_scratch
from stages.models.tokenizers.chat import ChatTokenizer
from stages.optional.teach import HINT, TeachConfig, Verdicts, teach, teacher_prompts
from stages.training.worker_group.hardware import TrainHardware
from tests.support.contexts import make_context
from tests.support.specialists import SHAPE, publish_specialist

LOG = np.log


def test_a_verdict_is_the_log_ratio_of_that_token_alone() -> None:
    """p_teacher 0.8, 0.1, 0.5 against p_policy 0.4, 0.4, 0.5: log 2, -log 4, 0, whatever comes later."""
    teacher, policy = LOG([0.8, 0.1, 0.5]), LOG([0.4, 0.4, 0.5])
    plain = Verdicts.of(teacher, policy, None, TeachConfig(teacher="t"))
    assert plain.advantages == pytest.approx([LOG(2), -LOG(4), 0.0])
    assert plain.own.all()
    bounded = Verdicts.of(teacher, policy, None, TeachConfig(teacher="t", clamp=1.0, weight=0.5))
    assert bounded.advantages == pytest.approx([0.5 * LOG(2), -0.5, 0.0])
    assert bounded.gaps == pytest.approx([LOG(2), -LOG(4), 0.0])


def test_the_words_of_a_tool_are_not_judged() -> None:
    marks = np.array([False, True, True, False])
    verdicts = Verdicts.of(LOG([0.8, 0.1]), LOG([0.4, 0.9, 0.9, 0.2]), marks, TeachConfig(teacher="t"))
    assert verdicts.advantages == pytest.approx([LOG(2), 0.0, 0.0, -LOG(2)])
    assert verdicts.own.tolist() == [True, False, False, True]


def test_the_expected_update_lowers_the_divergence_at_each_token() -> None:
    """Over the policy's own samples the mean verdict is -KL(policy || teacher), here of one token with three values."""
    policy, teacher = np.array([0.5, 0.3, 0.2]), np.array([0.2, 0.2, 0.6])
    divergence = float((policy * LOG(policy / teacher)).sum())
    verdicts = Verdicts.of(LOG(teacher), LOG(policy), None, TeachConfig(teacher="t")).advantages
    assert float((policy * verdicts).sum()) == pytest.approx(-divergence)
    # One step of the policy gradient on logits: d p_i (A_i - mean A). It moves towards the teacher.
    moved = policy * np.exp(0.5 * (verdicts - (policy * verdicts).sum()))
    moved /= moved.sum()
    assert float((moved * LOG(moved / teacher)).sum()) < divergence


def test_a_hint_is_the_solvers_derivation_in_the_prompt_of_the_teacher_only() -> None:
    table = to_table([generate(TIERS["reduced"], seed) for seed in range(3)])
    asked = set(table["prompt_id"][:2])
    plain = teacher_prompts(TeachConfig(teacher="t"), table, asked)
    assert plain == dict(table.head(2).select("prompt_id", "prompt").iter_rows())
    hinted = teacher_prompts(TeachConfig(hint="derivation", style="terse"), table, asked)
    derivations = ["".join(part.text for part in parts) for parts in taught_passages(table.head(2), "terse")]
    assert list(hinted.values()) == [
        f"{prompt}\n\n{HINT}\n\n{text}" for prompt, text in zip(plain.values(), derivations, strict=True)
    ]


def test_the_teachers_name_and_a_style_without_effect_are_no_part_of_the_identity() -> None:
    a, b = TeachConfig(teacher="a", style="plain"), TeachConfig(teacher="b")
    assert a.effective() == b.effective()
    assert TeachConfig(hint="derivation", style="terse").effective() != TeachConfig(hint="derivation").effective()


def taught(folder: Path, room: int) -> tuple[Ref[Grades], StageContext]:
    """Teaches two completions of six tokens by the policy itself, whose context has the prompt and `room` tokens."""
    table = to_table([generate(TIERS["reduced"], 1)])
    prompt, text = table["prompt_id"][0], table["prompt"][0]
    for name in ("measured", "policy"):
        (folder / name).mkdir()
    make_scratch(SHAPE, [text], folder / "measured")
    prompt_ids = ChatTokenizer(folder / "measured").prompt_token_ids(text)
    shape = SHAPE.model_copy(update={"max_positions": len(prompt_ids) + room})
    make_scratch(shape, [text], folder / "policy")
    trainer = TrainHardware(compute_dtype="fp32", threads=1)
    ctx = make_context(Store.open(str(folder / "store")), folder / "scratch", trainer=trainer)
    model = publish_specialist(ctx.store, folder / "policy")
    samples: list[dict[str, Any]] = []
    graded: list[dict[str, Any]] = []
    for sample in range(2):
        own = {"prompt_id": prompt, "group": 0, "sample": sample}
        samples.append(
            own | {
                "prompt_token_ids": prompt_ids, "completion_token_ids": [5, 6, 7, 8, 9, 10 + sample],
                "sampler_logprobs": [-1.0] * 6, "text": "x", "finish_reason": "stop",
                "sampling": json.dumps({"temperature": 1.0}), "weights_digest": model.digest, "engine": "none",
                "group_s": 0.1,
            }
        )  # fmt: skip
        graded.append(
            own | {
                "accuracy": 0.0, "exact": False, "truncated": False, "answers": "{}", "reward": 0.0, "advantage": 0.0,
                "grader": "strict", "statements": None, "proved": None, "restated": None, "open": None,
                "contradicted": None,
            }
        )  # fmt: skip
    made = ArtifactAddress(ctx.store, "puzzles/p", Puzzles).attempt(Identity.of("prepare", 1, {}))
    made.write_table("train.parquet", table, PUZZLES)
    sampled = ArtifactAddress(ctx.store, "run/rollouts", Rollouts).attempt(Identity.of("sample", 1, {}))
    sampled.write_table("rollouts.parquet", as_table(samples, ROLLOUTS), ROLLOUTS)
    rollouts = sampled.publish({}, weights=model)
    grades = ArtifactAddress(ctx.store, "run/grades", Grades).attempt(Identity.of("grade", 1, {}))
    grades.write_table(GRADES_FILE, as_table(graded, GRADES), GRADES)
    out = ArtifactAddress(ctx.store, "run/taught", Grades)
    config = TeachConfig(teacher="t")
    with ctx:
        return teach(
            ctx, config, model, rollouts, grades.publish({}, rollouts=rollouts), made.publish({}), out=out
        ), ctx


def test_a_completion_beyond_the_teachers_context_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        BadInputError,
        match=r"teach\.teacher: a prompt with its completion has (\d+) tokens; .* the context of models/policy",
    ) as raised:
        taught(tmp_path, room=5)
    assert "\n" not in str(raised.value)


@pytest.mark.long
def test_what_fills_the_teachers_context_is_scored_and_leaves_no_file(tmp_path: Path) -> None:
    grades, ctx = taught(tmp_path, room=6)
    assert np.isfinite(Artifact.open(ctx.store, grades).manifest.facts["teacher/kl/mean"])
    assert not [path for path in ctx.scratch.rglob("*.safetensors") if ctx.downloads not in path.parents]
    assert not list(ctx.scratch.glob("events-*"))
