"""What a run says about its settings when it starts."""

from pathlib import Path

import pytest

from artifacts.address import ArtifactAddress
from artifacts.identity import Identity
from artifacts.layout import RunLayout
from artifacts.refs import Puzzles, Ref
from artifacts.schemas import PUZZLES
from artifacts.store.store import Store
from flows.checks.advice import advice
from flows.checks.trained_before import trained_before
from flows.config.recipes import load_recipe
from flows.lookup.splits import set_of_run
from stages.models.merging.config import MergedModel
from stages.models.source import GgufPackageModel, ModelConfig, StoredModel

COSINE = ("finetune.schedule=cosine", "finetune.learning_rate=1e-6", "finetune.schedule_iterations=200")
OWN = ("grade.reward.accuracy_weight=0", "grade.reward.function=mine.py:reward")
PHASES = "phases=[{name='a', iterations=150}, {name='b', iterations=100}, {name='c'}]"


@pytest.mark.parametrize(
    ("recipe", "settings", "last", "said"),
    [
        ("answers_only", (), 48, ["learning rate: from 1.0e-03 to 2.1e-05 in iteration 48 (48 of 48 iterations of"]),
        ("tiny", (), 2, []),
        ("tiny", COSINE, 150, ["learning rate: from 1.0e-06 to 1.5e-07 in iteration 150 (150 of 200 iterations of"]),
        ("tiny", COSINE, 500, ["warning: the schedule of the learning rate has 200 iterations", "6.2e-11 instead of"]),
        ("tiny", (*COSINE, "finetune.frozen_iterations=50"), 250, ["in iteration 250 (200 of 200 iterations of"]),
        ("tiny", ("sample.sampling.temperature=0.6", "finetune.loss.temperature=0.6"), 2,
         ["warning: evaluate.sampled.temperature is 1, but", "warning: final.sampled.temperature is 1, but"]),
        ("tiny", ("sample.sampling.temperature=0.6", "finetune.loss.temperature=0.6",
                  "evaluate.sampled.temperature=1.0", "final.sampled.temperature=0.6"), 2, []),
        ("tiny", OWN, 2, ["warning: checkpoints are promoted by accuracy, for which grade.reward has no term"]),
        ("tiny", (*OWN, "grade.reward.exact_weight=0.5"), 2, []),
        ("tiny", (*OWN, "sample.resample={}"), 2,
         ["promote.tolerance_se = 1000", "sample.resample keeps the groups that differ in accuracy"]),
        ("tiny", (PHASES,), 200, ["warning: phase 'c' does not begin by iteration 200: those before it take 250"]),
        ("tiny", (PHASES,), 251, []),
        ("tiny", ("sample.resample={}", "sample.order={by='ascending', column='num_clues'}"), 2,
         ["sample.resample samples the first puzzles of each stride"]),
        ("dr_grpo", (), 2500, ["questions: 7872 for training, 40.7 passes; 64 of 64 for validation; 64 of 64 for the"]),
        ("dr_grpo", ("puzzles.val=400",), 0, ["questions: 64 of 400 for validation; 64 of 64 for the test"]),
    ],
)  # fmt: skip
def test_settings_whose_effect_is_easily_overlooked(
    recipe: str, settings: tuple[str, ...], last: int, said: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.py").write_text("def reward(completion, item, grade, tokens):\n    return 1.0\n")
    text = "title = 't'\niterations = 2\nmodel = { source = 'gguf_package' }\n"
    (tmp_path / "tiny.toml").write_text(text + "[puzzles]\ntrain = 2048\n")
    monkeypatch.chdir(tmp_path)
    lines = advice(load_recipe("tiny.toml" if recipe == "tiny" else recipe, settings), last)
    assert len(lines) >= (1 if said else 0) and all(any(words in line for line in lines) for words in said), lines
    assert said or not lines


def test_held_out_questions_that_the_first_weights_were_trained_on(made: tuple[Store, RunLayout]) -> None:
    store, layout = made
    own = set_of_run(layout, store)
    train = own.read_table("train.parquet", PUZZLES)
    attempt = ArtifactAddress(store, "puzzles/leaky", Puzzles).attempt(Identity.of("prepare", 1, {"leaky": True}))
    for split, rows in {"train": train, "val": train.head(2), "test": own.read_table("test.parquet", PUZZLES)}.items():
        attempt.write_table(f"{split}.parquet", rows, PUZZLES)
    leaky: Ref[Puzzles] = attempt.publish()
    tests = len(own.read_table("test.parquet", PUZZLES))
    known = f"2 of 2 validation and 0 of {tests} test questions of this run were train questions"
    expected = [f"the weights come from run 'made', for which {known}"]
    key = layout.iteration(2, "checkpoint")
    sources: list[ModelConfig] = [StoredModel(name=name) for name in ("made", "made@2", key)]
    sources.append(MergedModel(models=("models/elsewhere",), base="made@2", method="task_arithmetic"))
    for source in sources:
        assert trained_before(source, leaky, store) == expected
        assert trained_before(source, own.ref, store) == []
    assert trained_before(GgufPackageModel(), leaky, store) == []
