"""The FLOPs and bytes by which `tests.benchmarks.versus_trl` judges engines, by hand."""

from stages.models.rope import Rope
from stages.models.shape import DecoderShape
from tests.support.engine_work import Sampled, Work, decode_work, prefill_work

SHAPE = DecoderShape(
    family="llama", vocab_size=5, embed_dim=2, layers=1, heads=1, kv_heads=1, head_dim=2, hidden_dim=3, norm_eps=1e-6,
    rope=Rope(1e4, 2), max_positions=8, tied=True,
)  # fmt: skip
# A layer has q, k, v, o of 2 x 2 and three of 2 x 3: 34 weights; the head 2 x 5; a token has 4 numbers in the cache.


def test_prefill_of_one_prompt() -> None:
    work = prefill_work(SHAPE, [Sampled([1, 2, 3], [1, 1])], weight_bytes=2)
    assert work == Work(2 * (3 * 34 + 10) + 4 * 2 * 6, 2 * (34 + 10 + 3 * 4))


def test_decode_reads_weights_a_step_and_each_sequence_its_cache() -> None:
    # After the first token: two tokens that look at 3 and 4, one that looks at 3.
    work = decode_work(SHAPE, [Sampled([1, 2], [3, 2, 1])], batch=8, weight_bytes=2)
    assert work == Work(2 * 3 * 44 + 4 * 2 * 10, 2 * (2 * 44 + 10 * 4))


def test_small_batches_take_more_steps() -> None:
    work = decode_work(SHAPE, [Sampled([1, 2], [2, 2, 2])], batch=2, weight_bytes=2)
    assert work.bytes == 2 * (2 * 44 + 9 * 4)
