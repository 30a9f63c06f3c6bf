"""A loss as a user writes it, in the file of docs/own_loss.md: equal to the built-in one, and refused in one line."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import spawn

from artifacts.errors import BadInputError
from artifacts.identity import settings_of
from stages.processes.user_file import UserFunction
from stages.training.job import LossConfig
from stages.training.objectives.objective import StepLoss
from stages.training.objectives.own_loss import OwnLoss
from stages.training.step_sums import StepSums
from tests.support.training import assert_same, train
from tests.support.trees import tree_batch

pytestmark = pytest.mark.usefixtures("world_of_one")
PAGE = Path(__file__).parents[3] / "docs" / "own_loss.md"
GSPO = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)[0]


def written(folder: Path, code: str = GSPO) -> UserFunction:
    (folder / "mine.py").write_text(code)
    return UserFunction(name="mine.py:loss").located(folder)


@pytest.mark.parametrize("settings", [{}, {"old_logprobs": "trainer", "aggregation": "sequence_mean", "kl_coef": 0.1}])
def test_gspo_as_a_user_writes_it_is_the_built_in_one(
    checkpoint: Path, other: Path, tmp_path: Path, settings: dict[str, Any]
) -> None:
    columns, reference = tree_batch(1, [2, 1, 3, 1], steps=2), other if "kl_coef" in settings else None
    outcomes = [
        train(
            checkpoint, tmp_path, columns, loss=LossConfig.model_validate({**settings, **kind}), reference=reference,
            micro_batch_tokens=40,
        )
        for kind in ({"kind": "gspo"}, {"function": written(tmp_path)})
    ]  # fmt: skip
    first, own_first = outcomes[0][0][0], outcomes[1][0][0]
    assert own_first.loss == pytest.approx(first.loss, abs=1e-6)
    assert own_first.grad_norm == pytest.approx(first.grad_norm, rel=1e-6)
    assert_same(*outcomes)  # later steps add up how sums were rounded
    for built_in, own in zip(outcomes[0][0], outcomes[1][0], strict=True):
        assert own.own.keys() == {"ratio", "moved"} and 0.0 <= (own.own["moved"] or 0.0) <= 1.0
        assert built_in.own == {}


def test_metrics_are_means_over_tokens_or_completions(checkpoint: Path, tmp_path: Path) -> None:
    code = "def loss(x):\n    return -x.new, {'tokens': x.lengths, 'ones': x.mask * 3, 'of': x.advantages}\n"
    columns = tree_batch(5, [1, 2])
    (step,), _ = train(
        checkpoint, tmp_path, columns, epochs=1, loss=LossConfig(function=written(tmp_path, code)), micro_batch_tokens=9
    )
    mask = columns["completion_mask"] > 0
    completions = len(set(columns["segment_ids"][mask].tolist()))
    expected = {"tokens": mask.sum() / completions, "ones": 3.0, "of": columns["advantages"][mask].mean()}
    assert step.own == pytest.approx({name: float(value) for name, value in expected.items()}, rel=1e-5)
    texts, _ = train(checkpoint, tmp_path, columns, epochs=1, loss=LossConfig(kind="cross_entropy"))
    assert step.loss == pytest.approx(texts[0].loss, rel=1e-6)


def _step_of_a_process(rank: int, folder: Path) -> None:
    """Adds what a loss returns whose metrics depend on the data: each process sees other names, in another order."""
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    sums, zero = StepSums(torch.device("cpu"), own_names=True), torch.zeros(())
    for names in ([["loss", "own.a"], ["own.b"]], [["own.b"], ["own.c", "own.a", "loss"]])[rank]:
        values: dict[str, torch.Tensor | int] = {name: torch.tensor(10.0**rank * ord(name[-1])) for name in names}
        sums.add(StepLoss(zero, values, {}), counted=True, tokens=3)
    sums.reduce(zero)
    (folder / f"{rank}.json").write_text(json.dumps(sums.sums))
    dist.destroy_process_group()


def test_metrics_of_several_processes_are_added_up_by_name(tmp_path: Path) -> None:
    spawn(_step_of_a_process, (tmp_path,), nprocs=2)
    both = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    expected = {"loss": 11 * ord("s"), "own.a": 11 * ord("a"), "own.b": 11 * ord("b"), "own.c": 10 * ord("c")}
    assert both == [{**expected, "tokens": 12}] * 2


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("def loss(x):\n    return 1 / 0\n", "raised ZeroDivisionError: division by zero"),
        ("def loss(x):\n    return x.new\n", "returned Tensor"),
        ("def loss(x):\n    return x.new.sum(), {}\n", r"returned a loss \[\], with x.new \["),
        ("def loss(x):\n    return x.old, {}\n", "returned a loss that does not depend on x.new"),
        ("def loss(x):\n    return x.new, {'mean': x.new.mean()}\n", "returned the metric 'mean' of another shape"),
        ("def loss():\n    pass\n", "cannot be loaded .*write def loss"),
        ("import nothing_of_this_name\n", "cannot be loaded .*nothing_of_this_name"),
        ("def los(x):\n    pass\n", "cannot be loaded .*has no loss"),
    ],
)
def test_what_is_no_loss_is_refused_in_one_line(checkpoint: Path, tmp_path: Path, code: str, found: str) -> None:
    with pytest.raises(BadInputError, match=rf"finetune.loss.function mine.py:loss: {found}") as caught:
        train(checkpoint, tmp_path, tree_batch(5, [1]), loss=LossConfig(function=written(tmp_path, code)))
    assert "\n" not in str(caught.value)


def test_a_changed_file_is_refused(tmp_path: Path) -> None:
    function = written(tmp_path)
    OwnLoss(function)
    (tmp_path / "mine.py").write_text(GSPO + "\n")
    with pytest.raises(BadInputError, match=r"mine\.py:loss: changed since the run began"):
        OwnLoss(function)
    with pytest.raises(BadInputError, match=r"mine\.py:loss: changed since the run began"):
        function.located(tmp_path)
    assert settings_of(function) == {"name": "mine.py:loss", "sha256": function.sha256}, "no folder of this machine"


def test_settings_without_effect_on_it_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"clip_high, kind would have no effect on your own loss\.function"):
        LossConfig(function=written(tmp_path), kind="gspo", clip_high=0.3)
