"""On-policy distillation: the numbers of a teacher's verdicts, and which token each of them belongs to."""

import numpy as np
import pytest

from stages.environments.generate import TIERS, generate
from stages.environments.tables import taught_passages, to_table
from stages.grpo.groups import Branch, Group
from stages.grpo.packing import PackConfig, pack_groups
from stages.optional.teach import HINT, TeachConfig, Verdicts, by_completion, teacher_prompts

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


def test_each_log_probability_returns_to_its_completion() -> None:
    """Groups are shuffled, divided and laid into rows; the value of a token tells which one it was."""
    lengths = [[3, 1, 4], [2, 0, 5], [1, 1, 1]]
    marks = {1: [True]}  # the second completion is a tool's word only
    groups: list[Group] = []
    expected: list[list[float]] = []
    for number, of_group in enumerate(lengths):
        branches: list[Branch] = []
        for length in of_group:
            completion = len(expected)
            tokens = [100 * completion + i for i in range(length)]
            by_tool = marks.get(completion)
            branches.append(Branch(tokens, [0.0] * length, float(completion), by_tool))
            expected.append([] if by_tool else [float(token) for token in tokens])
        groups.append(Group([number] * (2 + number), branches))
    for row_tokens in (16, 64):
        batch, _ = pack_groups(groups, PackConfig(row_tokens=row_tokens, seed=row_tokens))
        values = np.where(batch.completion_mask > 0, batch.tokens, np.nan).astype(np.float32)
        assert [found.tolist() for found in by_completion(batch, values, len(expected))] == expected


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
    a, b = TeachConfig(teacher="a", style="terse"), TeachConfig(teacher="b")
    assert a.effective() == b.effective()
    assert TeachConfig(hint="derivation", style="terse").effective() != TeachConfig(hint="derivation").effective()
