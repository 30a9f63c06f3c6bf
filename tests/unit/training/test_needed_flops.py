"""The FLOPs by which `tests.benchmarks.trainer` judges the trainer, by hand."""

from dataclasses import replace

from stages.grpo.groups import Branch, Group
from stages.models.rope import Rope
from stages.models.shape import DecoderShape
from tests.support.step_work import Row, head_work, layer_work
from tests.support.trainer_work import draw_groups, needed_flops

SHAPE = DecoderShape(
    family="llama", vocab_size=5, embed_dim=2, layers=1, heads=1, kv_heads=1, head_dim=2, hidden_dim=3, norm_eps=1e-6,
    rope=Rope(1e4, 2), max_positions=8, tied=True,
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


def test_the_roofline_counts_the_same_products() -> None:
    """Attention's backward computes the scores once more. A compiled head moves few bytes and computes the same."""
    sizes = {"vocab_size": 400, "embed_dim": 128, "layers": 3, "heads": 4, "kv_heads": 2, "head_dim": 32}
    shape, row = replace(SHAPE, **sizes, hidden_dim=384), Row(prompt=44, branches=8, completion=8)
    needed = needed_flops(shape, draw_groups(1, row.prompt, row.branches, row.completion, shape.vocab_size))
    again = 2 * row.pairs * shape.heads * shape.head_dim * shape.layers
    eager, fused = layer_work(shape, row, recomputed=False)
    steps, compiled = (head_work(shape, row, compiled=switch) for switch in (False, True))
    for layer, head in ((eager, steps), (fused, compiled)):
        assert layer.flops * shape.layers + head.flops - again == needed
    assert compiled.bytes < 0.6 * steps.bytes and compiled.launches < steps.launches / 2
    assert fused.bytes < 0.6 * eager.bytes and fused.launches < eager.launches / 2
