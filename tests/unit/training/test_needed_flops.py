"""The FLOPs by which `tests.benchmarks.trainer` judges the trainer, by hand."""

from stages.grpo.groups import Branch, Group
from stages.models.shape import DecoderShape
from tests.support.trainer_work import needed_flops

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
