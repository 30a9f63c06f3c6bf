"""The FLOPs by which `tests.benchmarks.trainer` judges the trainer, by hand."""

from pathlib import Path

from stages.grpo.groups import Branch, Group
from stages.models.shape import DecoderShape, read_shape
from tests.benchmarks.roofline import head_work, layer_work
from tests.benchmarks.trainer_gpu import SHAPES, write_config
from tests.support.trainer_work import draw_groups, needed_flops

SHAPE = DecoderShape(
    family="llama", vocab_size=5, embed_dim=2, layers=1, heads=1, kv_heads=1, head_dim=2, hidden_dim=3, norm_eps=1e-6,
    rope_theta=1e4, rope_scaling=None, max_positions=8, tied=True, qkv_bias=False, output_bias=False, mlp_bias=False,
    qk_norm=False,
)  # fmt: skip


def test_one_short_group() -> None:
    # A layer has q, k, v, o of 2 x 2 and three of 2 x 3: 34 weights; three tokens pass it, one the head of 2 x 5.
    # Pairs: the prompt's 3, the completion's 2 with the prompt and 1 with itself.
    group = Group([1, 2], [Branch([3], [0.0], 1.0)])
    forward = 2 * (3 * 34 + 1 * 10) + 4 * 2 * 6
    assert needed_flops(SHAPE, [group]) == 3 * forward


def test_a_shared_prompt_is_counted_once() -> None:
    branch = Branch([3, 4], [0.0, 0.0], 1.0)
    shared = needed_flops(SHAPE, [Group([1, 2], [branch, branch])])
    apart = needed_flops(SHAPE, [Group([1, 2], [branch])] * 2)
    assert apart - shared == needed_flops(SHAPE, [Group([1, 2], [])])


def test_the_roofline_counts_the_same_products(tmp_path: Path) -> None:
    """Attention's backward computes the scores once more. A compiled head moves few bytes and computes the same."""
    sizes = SHAPES["tiny"]
    shape = read_shape(write_config(tmp_path / "tiny", sizes))
    groups = draw_groups(1, sizes.prompt, sizes.branches, sizes.completion, shape.vocab_size)
    pairs = 44 * 45 // 2 + 8 * (44 * 8 + 8 * 9 // 2)
    again = 2 * pairs * shape.heads * shape.head_dim * shape.layers
    eager, fused = layer_work(shape, sizes)
    steps, compiled = (head_work(shape, sizes, compiled=switch) for switch in (False, True))
    for layer, head in ((eager, steps), (fused, compiled)):
        assert layer.flops * shape.layers + head.flops - again == needed_flops(shape, groups)
    assert compiled.bytes < 0.6 * steps.bytes and compiled.launches < steps.launches / 2
    assert fused.bytes < 0.6 * eager.bytes and fused.launches < eager.launches / 2
