"""Merges of tensors and of model folders, with numbers worked by hand."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from artifacts.errors import BadInputError
from stages.models.merging.config import MergeConfig, MergedModel
from stages.models.merging.folders import MergeJob, merge_folders
from stages.models.merging.methods import arcee_fusion, average, task_arithmetic, ties
from stages.models.merging.same_shape import check_same_shape
from stages.models.tensors import check_weights
from tests.support.specialists import SHAPE, write_specialist


def same(tensor: torch.Tensor, expected: list[float]) -> None:
    assert tensor.tolist() == pytest.approx(expected, abs=1e-6)


def test_fusion_takes_what_differs_most_where_its_row_differs() -> None:
    """Four elements of one row."""
    base, model = torch.tensor([1.0, 1.0, 0.5, 0.0]), torch.tensor([2.0, 1.0, 0.5, 0.1])
    fused = arcee_fusion(base, model)
    # KL = .1189 nats, so importances are .1189, 0, 0, .01189; sorted 0, 0, .01189, .1189 with elements 0, 1 and 2 as
    # quartiles: 0 + 1.5 (.01189 - 0) = .01784. Only the first element is as important.
    assert (fused.kl, fused.threshold) == (pytest.approx(0.1189, abs=1e-4), pytest.approx(0.01784, abs=1e-5))
    same(fused.tensor, [2.0, 1.0, 0.5, 0.0])
    assert fused.taken == 0.25


def test_fusion_weighs_each_row_by_its_own_divergence() -> None:
    """A row that is shifted as a whole has the same distribution, so nothing in it is important."""
    base = torch.tensor([[0.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]])
    model = torch.tensor([[5.0, 5.0, 5.0, 5.0], [4.0, 0.0, 0.0, 0.0]])
    fused = arcee_fusion(base, model).tensor
    assert fused[1].tolist() == [4.0, 0.0, 0.0, 0.0]
    # The sorted importances are seven zeros and that of the 4, so the threshold is 0 and the shifted row is taken too.
    assert fused[0].tolist() == [5.0, 5.0, 5.0, 5.0]


def test_fusion_with_itself_is_the_same_and_a_sparse_change_is_taken_whole() -> None:
    base = torch.tensor([1.0, 2.0, 3.0])
    assert torch.equal(arcee_fusion(base, base.clone()).tensor, base)
    model = torch.zeros(8)
    model[0] = 9.0
    fused = arcee_fusion(torch.zeros(8), model)
    assert (fused.threshold, fused.taken) == (0.0, 1.0)
    assert torch.equal(fused.tensor, model)


def test_fusion_depends_on_which_model_is_the_base() -> None:
    generator = torch.Generator().manual_seed(1)
    first, second = (torch.randn(6, 16, generator=generator) for _ in range(2))
    assert not torch.equal(arcee_fusion(first, second).tensor, arcee_fusion(second, first).tensor)


def test_average_and_task_arithmetic() -> None:
    base, first, second = torch.tensor([1.0, 0.0]), torch.tensor([3.0, 1.0]), torch.tensor([2.0, -4.0])
    same(average([base, first, second]), [2.0, -1.0])
    same(task_arithmetic(base, [first, second], 0.5), [1 + 0.5 * (2 + 1), 0.5 * (1 - 4)])


def test_ties_keeps_the_largest_differences_and_the_sign_of_their_sum() -> None:
    base = torch.zeros(4)
    first, second = torch.tensor([4.0, -1.0, 3.0, 0.5]), torch.tensor([-1.0, 2.0, 5.0, 0.2])
    # Half of each is kept: 4, 0, 3, 0 and 0, 2, 5, 0. Sums 4, 2, 8, 0: all positive; 0 agrees with none.
    same(ties(base, [first, second], 1.0, 0.5), [4.0, 2.0, 4.0, 0.0])
    # All are kept: sums 3, 1, 8, .7; 4 alone, 2 alone, both, both.
    same(ties(base, [first, second], 2.0, 1.0), [8.0, 4.0, 8.0, 0.7])


def job_of(method: str, tmp_path: Path, models: list[Path], base: Path | None) -> MergeJob:
    out = tmp_path / "out"
    out.mkdir()
    settings = {"weight": 0.5} if method in ("task_arithmetic", "ties") else {}
    config = MergeConfig.model_validate({"method": method, **settings})
    return MergeJob(config=config, models=models, base=base, out=out, facts=tmp_path / "facts.json")


def test_a_folder_is_merged_tensor_by_tensor(tmp_path: Path) -> None:
    base, first, second = (write_specialist(tmp_path / f"m{seed}", seed) for seed in range(3))
    job = job_of("task_arithmetic", tmp_path, [first, second], base)
    facts = merge_folders(job)
    check_weights(job.out)
    old, one, two, new = (load_file(folder / "model.safetensors") for folder in (base, first, second, job.out))
    assert set(facts) == set(old)
    for name, tensor in old.items():
        expected = task_arithmetic(tensor, [one[name], two[name]], 0.5).bfloat16()
        assert torch.equal(new[name], expected)
        either = ((one[name] != tensor) | (two[name] != tensor)).double().mean()
        assert facts[name]["changed"] == pytest.approx(float(either))
    assert (job.out / "tokenizer.json").read_bytes() == (base / "tokenizer.json").read_bytes()
    config = json.loads((job.out / "config.json").read_text())
    assert config["torch_dtype"] == config["dtype"], "for transformers 4 and 5"


def test_weights_that_are_not_finite_are_refused(tmp_path: Path) -> None:
    base, model = (write_specialist(tmp_path / f"m{seed}", seed) for seed in range(2))
    content = bytearray((model / "model.safetensors").read_bytes())
    content[-2:] = b"\xc0\x7f"  # NaN in bfloat16
    (model / "model.safetensors").write_bytes(content)
    with pytest.raises(BadInputError, match="not finite"):
        merge_folders(job_of("arcee_fusion", tmp_path, [model], base))


def test_another_shape_or_tokenizer_is_refused_without_its_weights(tmp_path: Path) -> None:
    one = write_specialist(tmp_path / "one", 0)
    wider = write_specialist(tmp_path / "wider", 0, shape=SHAPE.model_copy(update={"intermediate": 64}))
    for folder in (one, wider):
        (folder / "model.safetensors").unlink()  # so nothing can read a tensor
    with pytest.raises(BadInputError, match="the model b: hidden_dim 64; expected 48, as in a; merge models that"):
        check_same_shape({"a": one, "b": wider})
    other = tmp_path / "other"
    shutil.copytree(one, other)
    tokenizer = json.loads((other / "tokenizer.json").read_text())
    (other / "tokenizer.json").write_text(json.dumps({**tokenizer, "version": "2.0"}))
    with pytest.raises(BadInputError, match=r"the model c: another tokenizer\.json"):
        check_same_shape({"a": one, "c": other})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"models": ["a"]}, "arcee_fusion needs a base"),
        ({"models": ["a", "b"], "base": "c"}, "arcee_fusion takes a base and one model, not 2"),
        ({"models": ["a"], "method": "average"}, "average takes two or more models"),
        ({"models": ["a", "b"], "base": "c", "method": "average"}, "and no base"),
        ({"models": ["a", "a"], "base": "c", "method": "ties"}, "'a' is named twice"),
        ({"models": ["a"], "base": "c", "weight": 0.3}, "weight has no effect on the method arcee_fusion"),
        ({"models": ["a"], "base": "c", "method": "task_arithmetic", "density": 0.2}, "density has no effect"),
    ],
)
def test_models_that_a_method_does_not_take_are_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MergedModel.model_validate(settings)


def test_settings_without_effect_are_no_part_of_a_merge() -> None:
    assert MergeConfig(method="average").settings == {"method": "average"}
    assert MergeConfig(method="ties", density=0.1).settings == {"method": "ties", "weight": 1.0, "density": 0.1}
