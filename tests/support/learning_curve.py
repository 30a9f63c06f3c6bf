"""Draws the README's learning curve: `python -m tests.support.learning_curve docs/data/quickstart_606.json`.

The file holds fields of what `deerstalker show RUN --json` prints. The picture is written to `docs/learning_curve.svg`,
as text, because one of matplotlib is five times as large.
"""

import json
import sys
from pathlib import Path
from typing import Any

from flows.report.pictures.png import GREEDY, GRID, INK, MUTED, SAMPLED

PICTURE = Path(__file__).parents[2] / "docs" / "learning_curve.svg"
KINDS = {"sampled": SAMPLED, "greedy": GREEDY}
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 640, 320, 50, 30, 44, 44
LOW, HIGH = 0.5, 0.8


def main(path: Path) -> None:
    """Draws held-out accuracy by iteration, and on the test split before and after with 95% intervals."""
    run = json.loads(path.read_text())
    PICTURE.write_text("\n".join(_svg(run)) + "\n", encoding="utf-8")


def _svg(run: dict[str, Any]) -> list[str]:
    iterations = run["iterations"]
    last = iterations[-1]["iteration"]

    def x(number: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * number / last

    def y(share: float) -> float:
        return round(TOP + (HEIGHT - TOP - BOTTOM) * (HIGH - share) / (HIGH - LOW), 1)

    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" '
        f'font-size="12" fill="{MUTED}"><rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>',
        f'<text x="{LEFT}" y="22" fill="{INK}" font-size="14" font-weight="bold">'
        "quickstart: right answers to puzzles that it was not trained on</text>",
        f'<text x="{WIDTH - RIGHT}" y="{HEIGHT - 10}" text-anchor="end">iterations of GRPO</text>',
    ]
    for percent in range(round(100 * LOW), round(100 * HIGH) + 1, 10):
        height = y(percent / 100)
        lines.append(f'<path d="M{LEFT} {height}H{WIDTH - RIGHT}" stroke="{GRID}"/>')
        lines.append(f'<text x="{LEFT - 8}" y="{height + 4}" text-anchor="end">{percent}%</text>')
    for number in range(0, last + 1, 12):
        lines.append(f'<text x="{x(number):.0f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{number}</text>')
    for shift, (kind, colour) in zip((-3, 3), KINDS.items(), strict=True):
        points = " ".join(f"{x(item['iteration']):.0f},{y(item[f'{kind}_accuracy']):.0f}" for item in iterations)
        line = f'stroke="{colour}" stroke-width="1.5" stroke-opacity=".6"'
        lines.append(f'<polyline points="{points}" fill="none" {line}/>')
        for number, moment in ((0, "before"), (last, "after")):
            found = run["test"][moment][kind]["accuracy"]
            at = x(number) + shift
            lines.append(f'<path d="M{at} {y(found["low"])}V{y(found["high"])}" stroke="{colour}" stroke-width="2"/>')
            lines.append(f'<circle cx="{at}" cy="{y(found["mean"])}" r="4.5" fill="{colour}"/>')
        height = y(LOW) - 34 + 5 * (shift + 3)
        lines.append(f'<text x="{WIDTH - RIGHT - 12}" y="{height}" fill="{colour}" text-anchor="end">{kind}</text>')
    return [*lines, "</svg>"]


if __name__ == "__main__":
    main(Path(sys.argv[1]))
