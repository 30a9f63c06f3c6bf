"""How far each family's log-probabilities and gradients are from those of transformers, in float32.

`python -m tests.benchmarks.families` takes a minute on two cores. The models are tiny and random; every parameter has a
gradient. A gradient's distance is divided by its norm, and the largest of all parameters is shown.
"""

import tempfile
from pathlib import Path

from stages.models.shape import read_shape
from tests.support.bars import Bar, parser_of, progress, tell
from tests.support.policies import ARCHITECTURES, parity_with_transformers
from tests.support.trees import save_model

BAR = 1e-5


def main() -> None:
    """Measures each model of `tests.support.policies`."""
    as_json = parser_of(__doc__).parse_args().json
    rows: list[dict[str, str | float]] = []
    for name, (architecture, changes) in sorted(ARCHITECTURES.items()):
        progress(name)
        with tempfile.TemporaryDirectory() as folder:
            save_model(Path(folder), architecture, **changes)
            parity = parity_with_transformers(Path(folder), Path(folder))
            family, gradients = read_shape(Path(folder)).family, max(parity.gradients.values())
        rows.append({"model": name, "family": family, "logprobs": parity.logprobs, "gradients": gradients})
    farthest = {of: max(float(row[of]) for row in rows) for of in ("logprobs", "gradients")}
    bars = [Bar(f"largest distance, {of}", value, BAR, met=value <= BAR) for of, value in farthest.items()]
    tell({"families": rows}, bars, as_json=as_json)


if __name__ == "__main__":
    main()
