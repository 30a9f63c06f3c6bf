"""A setting that nothing reads is refused, because whoever sets it expects an effect."""

import pytest

from artifacts.errors import BadInputError
from flows.config.recipes import load_recipe


@pytest.mark.parametrize(
    ("setting", "others", "message"),
    [
        ("finetune.loss.clip_high=0.3", {"finetune.loss.kind": "reinforce"}, "on the loss reinforce, which clips"),
        ("finetune.loss.importance_cap=3", {}, "without importance_correction"),
        ("finetune.loss.kl_estimator=k1", {}, "without a reference"),
        ("finetune.reference_decay=0.5", {"finetune.reference": "base"}, "with reference = 'base'"),
        ("finetune.reference_iterations=5", {"finetune.reference": "ema"}, "with reference = 'ema'"),
        ("finetune.least_shares=5", {}, "with learning_rate_of = 'step'"),
        ("grade.advantage.step_discount=0.5", {}, "with level = 'outcome'"),
        ("grade.reward.truncation_penalty=1", {"grade.reward.truncated": "zero"}, "with truncated = 'zero'"),
        ("warm_start.style=cited", {"warm_start.text": "answers"}, "with text = 'answers'"),
        ("teach.style=cited", {"teach.teacher": "a@3"}, "with hint = 'none'"),
        ("distil.texts.puzzles=5", {}, "on the teacher 'student', only on 'solver'"),
    ],
)
def test_a_setting_without_an_effect_is_refused(setting: str, others: dict[str, str], message: str) -> None:
    rest = [f"{name}={value}" for name, value in others.items()]
    name = setting.partition("=")[0].rpartition(".")[2]
    with pytest.raises(BadInputError, match=rf"{name} would have no effect {message}.*: drop it"):
        load_recipe("answers_only", [*rest, setting])
    load_recipe("answers_only", rest)
