"""The stage `sample` beside that of an older commit: `python -m tests.benchmarks.sample_pairs --before FOLDER`.

Each recipe runs for some iterations with the code of each side, in turns, on stores and temporary folders of its own.
Compared are the medians of the tokens a second that `sample` wrote into the manifests of its rollouts, without those of
the first iteration of a run. Both sides use the environment of this command.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from tests.support.bars import Bar, parser_of, progress, tell

HERE = Path(__file__).parents[2]
RECIPES = ("answers_only=quickstart", "deduce")
FASTER = 1.3


def rates(tree: Path, recipe: str, iterations: int) -> list[float]:
    """Runs a recipe with the code of a checkout and returns the tokens a second of each `sample` but the first."""
    with tempfile.TemporaryDirectory(prefix="pairs-") as folder:
        store, log = Path(folder) / "store", Path(folder) / "log.txt"
        command = [
            sys.executable, "-P", "-c", "from flows.cli.app import main; main()", "train", "--recipe", recipe,
            "--run", "pairs", "--store", str(store), "--set", f"iterations={iterations}", "--set", "final.puzzles=2",
        ]  # fmt: skip
        environment = {**os.environ, "PYTHONPATH": str(tree), "TMPDIR": folder}
        with log.open("wb") as output:
            done = subprocess.run(command, cwd=folder, env=environment, stdout=output, stderr=output, check=False)
        if done.returncode:
            sys.exit(f"{recipe} of {tree} failed:\n{log.read_text(errors='replace')[-2000:]}")
        manifests = sorted(store.glob("runs/pairs/iterations/*/rollouts/manifest.json"))
        return [json.loads(manifest.read_text())["facts"]["tokens_per_s"] for manifest in manifests[1:]]


def measured(recipe: str, options: argparse.Namespace) -> dict[str, Any]:
    """Returns the rates of one recipe, of both sides in turns."""
    figures: dict[str, Any] = {"before": [], "now": []}
    name, _, old_name = recipe.partition("=")
    for _ in range(options.rounds):
        for side, tree, named in (("before", options.before.resolve(), old_name or name), ("now", HERE, name)):
            figures[side] += rates(tree, named, options.iterations)
            progress(f"{named} {side}: {figures[side]}")
    return {**figures, "ratio": median(figures["now"]) / median(figures["before"])}


def main() -> int:
    parser = parser_of(__doc__)
    parser.add_argument("--recipes", nargs="+", default=list(RECIPES), help="NEW or NEW=OLD, where a name has changed")
    parser.add_argument("--rounds", type=int, default=1, help="runs of each side")
    parser.add_argument("--iterations", type=int, default=4, help="iterations of each run")
    parser.add_argument("--before", type=Path, required=True, metavar="FOLDER", help="a checkout of an older commit")
    options = parser.parse_args()
    recipes = {recipe: measured(recipe, options) for recipe in options.recipes}
    bars = [
        Bar.at_least(f"{recipe}: tokens a second of sample, over those before", figures["ratio"], FASTER)
        for recipe, figures in recipes.items()
    ]
    tell({"recipes": recipes}, bars, as_json=options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
