"""What a solver as a tool adds to a model of the size of `answers_only`: `python -m tests.benchmarks.tools --json`.

Each seed has other puzzles and another model, which three arms teach by a warm start with equal tokens:

* `tool`: transcripts: a call of the solver with the puzzle's clues, then the answers. The solver answers in the tests.
* `derivations`: proofs in the style `terse`, then the answers.
* `answers`: the answers alone.

Only tokens that the model learns to write count; an arm with longer texts has fewer puzzles. The limit of a completion
is the longest text of any arm, without the solver's own tokens. The measurement is the recipe's: test puzzles that no
choice looked at, all answers right. `--iterations` adds GRPO after the warm start.
"""

import argparse
import statistics
from typing import Any

from flows.config.recipes import load_recipe
from stages.environments.generate import generate_nth
from stages.environments.puzzle import Taught
from stages.environments.tables import names_of, taught_passages, to_table
from stages.models.tokenizers.phrase_tokenizer import build_tokenizer
from tests.support.bars import Bar, tell
from tests.support.seeded import joined, parse, run_store, seeded_parser
from tests.support.whole_runs import figures_of, train

SEEDS = (801, 802, 803)
ARMS: dict[str, tuple[Taught | None, list[str]]] = {
    "tool": ("transcripts", ["warm_start.text=transcripts"]),
    "derivations": ("terse", ["warm_start.text=derivations", "warm_start.style=terse"]),
    "answers": (None, ["warm_start.text=answers"]),
}
GAIN_BAR = 20.0
TEXTS_PER_STEP = 16
MEASURED_PUZZLES = 128


def lengths(options: argparse.Namespace) -> dict[str, list[int]]:
    """Tokens that a model writes in the text of each of some puzzles, the end token included, by arm."""
    puzzle = load_recipe(options.recipe, options.settings).puzzles.puzzle
    table = to_table([generate_nth(puzzle, 0, number) for number in range(MEASURED_PUZZLES)])
    own: dict[str, list[int]] = {}
    for arm, (taught, _) in ARMS.items():
        texts = taught_passages(table, taught)
        prompts = [prompt for prompt, passages in zip(table["prompt"], texts, strict=True) for _ in passages]
        written = [passage.text for passages in texts for passage in passages]
        tokenizer = build_tokenizer([*prompts, *written], 4096, names_of(table) if taught else ())
        own[arm] = [
            1 + sum(len(tokenizer.encode(passage.text).ids) for passage in passages if not passage.by_tool)
            for passages in texts
        ]
    return own


def settings_of(arm: str, own: dict[str, list[int]], options: argparse.Namespace) -> list[str]:
    """Settings of an arm: steps for its share of the tokens, and room for the texts of every arm."""
    steps = int(options.tokens / (statistics.mean(own[arm]) * TEXTS_PER_STEP * options.epochs))
    limit = 8 + max(max(of_arm) for of_arm in own.values())
    calls = int(arm == "tool")
    sampled = [
        f"{section}.{name}"
        for section in ("sample.sampling", "evaluate.sampled", "final.sampled")
        for name in (f"max_tokens={limit}", f"tool_calls={calls}")
    ]
    return [
        f"iterations={options.iterations}",
        f"puzzles.train={max(2000, steps * TEXTS_PER_STEP)}",
        f"warm_start.steps={steps}",
        f"warm_start.texts_per_step={TEXTS_PER_STEP}",
        f"warm_start.epochs={options.epochs}",
        "warm_start.row_tokens=512",
        "pack.row_tokens=512",
        *ARMS[arm][1],
        *sampled,
    ]


def measured(arm: str, seed: int, own: dict[str, list[int]], options: argparse.Namespace, store: str) -> dict[str, Any]:
    """Trains an arm with one seed and returns its figures, in percent and tokens."""
    changes = [f"seed={seed}", *settings_of(arm, own, options), *options.settings]
    document = train(options.recipe, f"tools-{seed}-{arm}", store, changes, options.profile)
    tokens = document["test"]["after"]["sampled"]["completion_tokens_mean"]
    return figures_of(document) | {"completion_tokens": tokens}


def bars(rows: dict[str, dict[str, dict[str, Any]]], taught_tokens: dict[str, float]) -> list[Bar]:
    """The bars: the gain over the better arm without the tool, and that the tool's arm learned from no more tokens."""
    found: list[Bar] = []
    for mode in ("sampled_exact_after", "greedy_exact_after"):
        more = statistics.mean(
            arms["tool"][mode] - max(row[mode] for arm, row in arms.items() if arm != "tool") for arms in rows.values()
        )
        name = f"all answers right, {mode.partition('_')[0]}, with the tool more than the best without, mean, points"
        found.append(Bar.at_least(name, more, GAIN_BAR))
    others = [tokens for arm, tokens in taught_tokens.items() if arm != "tool"]
    ratio = taught_tokens["tool"] / min(others)
    return [*found, Bar.at_most("tokens taught with the tool, as a multiple of those without", ratio, 1.02)]


def main() -> None:
    parser = seeded_parser(__doc__, SEEDS)
    parser.add_argument("--recipe", default="answers_only")
    parser.add_argument("--arms", type=lambda text: text.split(","), default=list(ARMS), help="`tool` and others")
    parser.add_argument("--tokens", type=int, default=400_000, help="tokens that each arm learns to write")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--iterations", type=int, default=0, help="GRPO iterations after the warm start")
    parser.add_argument("--set", action="append", default=[], dest="settings", metavar="KEY=VALUE")
    options = parse(parser)
    if "tool" not in options.arms or len(options.arms) < 2 or not set(options.arms) <= set(ARMS):
        parser.error(f"--arms needs `tool` and another of {', '.join(ARMS)}")
    own = {arm: tokens for arm, tokens in lengths(options).items() if arm in options.arms}
    taught_tokens: dict[str, float] = {}
    for arm, tokens in own.items():
        steps = next(int(line.partition("=")[2]) for line in settings_of(arm, own, options) if "start.steps" in line)
        taught_tokens[arm] = steps * TEXTS_PER_STEP * options.epochs * statistics.mean(tokens)
    with run_store(options) as store:
        rows = {seed: {arm: measured(arm, seed, own, options, store) for arm in own} for seed in options.seeds}
    document = joined(options.join, {"taught_tokens": taught_tokens, "seeds": rows})
    tell(document, bars(document["seeds"], taught_tokens), as_json=options.json)


if __name__ == "__main__":
    main()
