"""What a training step of one packed row needs at least, beside what an H100 took: computed, not measured.

python -m tests.benchmarks.roofline [--json]        # 10 seconds on any CPU

The trainer's own layer and head run on tensors without data, and each operation is counted: FLOPs, bytes that it reads
and writes, launches. An operation takes at least the longer of FLOPs / matmul peak and bytes / memory bandwidth; the
least time of a part is the sum over its operations. `eager` counts every operation as a kernel. `fused` counts products
and attention alone, with one kernel between the head's logits and its loss: no fusion could do with less. Measured
times are those of docs/gpu.md, for the same rows and shapes, eager.
"""

import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

from stages.models.shape import read_shape
from tests.benchmarks.trainer_gpu import SHAPES, write_config
from tests.support.bars import parser_of, tell
from tests.support.step_work import BANDWIDTH, PEAK_FLOPS, Row, head_work, layer_work

MEASURED_TOKENS_A_SECOND = {"qwen2.5-0.5b": 47_100, "qwen2.5-7b": 8_750}


def measure(name: str, folder: Path) -> dict[str, Any]:
    """Returns the work of a row of one shape, and the times."""
    sizes = SHAPES[name]
    shape = read_shape(write_config(folder / name, sizes))
    row = Row(sizes.prompt, sizes.branches, sizes.completion)
    eager, fused = (work.times(shape.layers) for work in layer_work(shape, row, recomputed=sizes.checkpointing))
    steps, compiled = (head_work(shape, row, compiled=switch) for switch in (False, True))
    measured = row.tokens / MEASURED_TOKENS_A_SECOND[name]
    parts = {
        "layers, eager": eager, "head, eager": steps, "both, eager": eager.plus(steps),
        "layers, fused": fused, "head, compiled": compiled, "both, fused": fused.plus(compiled),
    }  # fmt: skip
    rows = {part: asdict(work) | {"of_measured": work.seconds / measured} for part, work in parts.items()}
    facts = {"shape": name, "tokens": row.tokens, "recomputed": sizes.checkpointing, "measured_s": measured}
    return {**facts, "parts": rows}


def main() -> None:
    parser = parser_of(__doc__)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-roofline-") as folder:
        shapes = [measure(name, Path(folder)) for name in MEASURED_TOKENS_A_SECOND]
    report = {"peak_flops": PEAK_FLOPS, "bandwidth": BANDWIDTH, "shapes": shapes}
    tell(report, [], as_json=options.json)


if __name__ == "__main__":
    main()
