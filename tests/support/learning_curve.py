"""Draws the README's learning curve: `python -m tests.support.learning_curve docs/data/lesson.json`.

The file holds what `python -m tests.benchmarks.lesson --json` prints. The picture is written to
`docs/learning_curve.svg`, as text, because one of matplotlib is five times as large.
"""

import json
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flows.report.pictures.png import GREEDY, GRID, INK, MUTED, SAMPLED
from stages.statistics.beta import t_quantile
from stages.statistics.estimates import standard_error

PICTURE = Path(__file__).parents[2] / "docs" / "learning_curve.svg"
KINDS = {"sampled": SAMPLED, "greedy": GREEDY}
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 640, 320, 50, 30, 44, 44
LOW, HIGH = 30, 90


def main(path: Path) -> None:
    """Draws puzzles with all answers right, means over the seeds with 95% intervals by Student's t."""
    seeds = list(json.loads(path.read_text())["seeds"].values())
    PICTURE.write_text("\n".join(_svg(seeds)) + "\n", encoding="utf-8")


def _interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Returns lower end, mean and upper end."""
    mean, half = statistics.mean(values), t_quantile(0.025, len(values) - 1) * standard_error(values)
    return mean - half, mean, mean + half


def _svg(seeds: Sequence[dict[str, Any]]) -> list[str]:
    last = len(seeds[0]["curve"]["sampled"]) - 1

    def x(number: float) -> float:
        return round(LEFT + (WIDTH - LEFT - RIGHT) * number / last, 1)

    def y(percent: float) -> float:
        return round(TOP + (HEIGHT - TOP - BOTTOM) * (HIGH - percent) / (HIGH - LOW), 1)

    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" '
        f'font-size="12" fill="{MUTED}"><rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>',
        f'<text x="{LEFT}" y="22" fill="{INK}" font-size="14" font-weight="bold">'
        f"quickstart: puzzles with all seven answers right, {len(seeds)} seeds</text>",
        f'<text x="{WIDTH - RIGHT}" y="{HEIGHT - 10}" text-anchor="end">iterations of GRPO</text>',
    ]
    for percent in range(LOW, HIGH + 1, 10):
        lines.append(f'<path d="M{LEFT} {y(percent)}H{WIDTH - RIGHT}" stroke="{GRID}"/>')
        lines.append(f'<text x="{LEFT - 8}" y="{y(percent) + 4}" text-anchor="end">{percent}%</text>')
    for number in range(0, last + 1, 6):
        lines.append(f'<text x="{x(number)}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{number}</text>')
    for shift, (kind, colour) in zip((-3, 3), KINDS.items(), strict=True):
        curve = [_interval(values) for values in zip(*(seed["curve"][kind] for seed in seeds), strict=True)]
        low, mean, high = ([f"{x(i)},{y(point[part])}" for i, point in enumerate(curve)] for part in range(3))
        lines.append(f'<polygon points="{" ".join(low + high[::-1])}" fill="{colour}" fill-opacity=".15"/>')
        lines.append(f'<polyline points="{" ".join(mean)}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
        for number, moment in ((0, "before"), (last, "after")):
            below, centre, above = _interval([seed["grpo"][f"{kind}_{moment}"] for seed in seeds])
            at = x(number) + shift
            lines.append(f'<path d="M{at} {y(below)}V{y(above)}" stroke="{colour}" stroke-width="2"/>')
            lines.append(f'<circle cx="{at}" cy="{y(centre)}" r="4.5" fill="{colour}"/>')
        height = y(LOW) - 8 - 3 * (shift + 3)
        lines.append(f'<text x="{WIDTH - RIGHT - 12}" y="{height}" fill="{colour}" text-anchor="end">{kind}</text>')
    return [*lines, "</svg>"]


if __name__ == "__main__":
    main(Path(sys.argv[1]))
