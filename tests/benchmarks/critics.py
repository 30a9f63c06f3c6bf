"""What a critic is worth at small scale, over fresh seeds: `python -m tests.benchmarks.critics --json`.

A seed is a warm start of its own (other puzzles, another model) of `answers_only`, from which several runs learn.

* V1, is it real? A run of GRPO stores 16 iterations of rollouts. Critics learn from the last four or twelve of
  them, without further sampling, and judge the rollouts of another run with other puzzles. Claim: they explain some
  variance of the rewards before the first token, so they know something about the puzzle, and more before the last.
* V2, does one rollout a prompt suffice? Four runs with equal samples, in updates of as many samples as the recipe's:
  `grpo` with groups; and with one rollout of as many prompts `batch_mean` (the mean reward as baseline), `critic` (the
  pretrained critic) and `cold` (a critic that begins at 0). Claim: `critic` has at least 80% of GRPO's greedy
  gain, and more than `batch_mean`. The stored rollouts are samples of another run, which only `critic` uses.
* V3, must the lambdas differ? Derivations of the recipe `deduce`, rewarded by their answers alone, with lambda 0.95 of
  the advantages: `decoupled` has lambda 1 of the targets, `coupled` 0.95. Claim (VC-PPO, arXiv 2503.01491): coupled
  values before the first token fall below the rewards that follow them, and completions become shorter.
* V4, is pretraining worth it? Claim: after eight iterations of V2, `cold` is less accurate than `critic` on the test
  puzzles in at least four of five seeds.

The measurement of V2 and V3 is the recipe's own: test puzzles that no choice looked at, before and after. `--join
FILE...` adds the rows of documents that earlier calls printed.
"""

import argparse
from collections.abc import Sequence
from statistics import mean
from typing import Any

from artifacts.store.store import Store
from flows.config.recipe import Recipe
from flows.config.recipes import load_recipe
from flows.lookup.history import read_run
from tests.support.bars import Bar, tell
from tests.support.boards import evaluated
from tests.support.scaled_recipes import as_toml
from tests.support.seeded import joined, over_seeds, parse, run_store, seeded_parser
from tests.support.whole_runs import from_warm_start, train

SEEDS = (831, 832, 833, 834, 835)
PARTS = ("v1", "v2", "v3")
STORED, USED = 16, (4, 12)
"""Iterations of the run that stores rollouts, and how many of the last of them critics learn on; V2 takes most."""
UNSEEN = 2
"""Iterations whose puzzles a pretrained critic judges; at most STORED - USED, so that they are none of its own."""
VALUE = ["grade.advantage.baseline=none", "grade.advantage.scale=none", "pack.uniform_groups=kept"]
RECOVERED_BAR = 0.8
EARLY = 8
"""Iterations after which V4 compares."""
Rows = dict[str, dict[str, dict[str, float]]]
"""Figures by part and arm."""


def value_settings(rate: float, updates: int, **others: Any) -> list[str]:
    """Returns the settings of a recipe with a critic."""
    optimizer = {"betas": [0.9, 0.99]}
    table = {"learning_rate": rate, "updates": updates, "row_tokens": 512, "optimizer": optimizer, **others}
    return [*VALUE, f"value={as_toml(table)}"]


def updates_for(recipe: Recipe, samples: int) -> int:
    """Returns the updates of an iteration in which each has as many samples as the recipe's, as its rate expects."""
    sample = recipe.sample
    in_recipe = sample.puzzles_per_iteration * sample.sampling.samples_per_prompt
    return max(1, round(recipe.pack.updates * samples / in_recipe))


class Seed:
    """The runs of one seed.

    Args:
        number: The seed.
        options: Sizes of the runs.
        store: Where they are stored.
    """

    def __init__(self, number: int, options: argparse.Namespace, store: str) -> None:
        self._number, self._options, self._store = number, options, store
        self._base = load_recipe(options.base, options.settings)
        self._group = self._base.sample.sampling.samples_per_prompt
        self._updates = updates_for(self._base, options.samples)

    def _run(self, recipe: str, arm: str, settings: Sequence[str]) -> dict[str, Any]:
        name = f"{arm}-{self._number}"
        return train(recipe, name, self._store, [f"seed={self._number}", *settings], self._options.profile)

    def _length(self, iterations: int) -> list[str]:
        schedule = f"finetune.schedule_iterations={self._options.iterations}"
        return [*self._options.settings, f"iterations={iterations}", schedule]

    def _arm(self, samples_per_prompt: int) -> list[str]:
        """Returns the settings of an arm of V2."""
        return [
            *self._length(self._options.iterations),
            f"sample.puzzles_per_iteration={self._options.samples // samples_per_prompt}",
            f"sample.sampling.samples_per_prompt={samples_per_prompt}", f"pack.updates={self._updates}",
        ]  # fmt: skip

    def _stored(self) -> list[str]:
        """Runs GRPO for the stored rollouts; returns the settings by which other runs begin with its warm start."""
        self._run(self._options.base, "stored", self._length(STORED))
        return from_warm_start(f"stored-{self._number}", self._store)

    def _pretrained(self, used: int) -> list[str]:
        """Returns the settings of a critic that learned from the last `used` iterations of the stored run."""
        last = {"first": STORED - used + 1, "last": STORED, "epochs": 4, "updates": 8 * used}
        chosen = {"run": f"stored-{self._number}", **last}
        return value_settings(self._options.value_rate, self._updates, pretrain=chosen)

    def v1(self) -> dict[str, dict[str, float]]:
        """Returns the explained variance of each pretrained critic on puzzles that it never saw."""
        start, rows = self._stored(), dict[str, dict[str, float]]()
        for used in USED:
            settings = [*self._length(UNSEEN), *start, *self._pretrained(used)]
            self._run(self._options.base, f"unseen-{used}", settings)
            facts = self._facts(f"unseen-{used}")
            rows[f"of_{used}"] = {
                name: mean(of_one[f"explained_variance/{name}"] for of_one in facts)
                for name in ("all", "first_token", "last_token")
            }
        return rows

    def v2(self) -> dict[str, dict[str, float]]:
        """Returns accuracy and gain of each arm."""
        start, iterations = self._stored(), self._options.iterations
        one_each = self._arm(1)
        arms = {
            "grpo": self._arm(self._group),
            "batch_mean": [
                *one_each, "grade.advantage.baseline=batch_mean", "grade.advantage.scale=none",
                "pack.uniform_groups=kept",
            ],
            "critic": [*one_each, *self._pretrained(max(USED))],
            "cold": [*one_each, *value_settings(self._options.value_rate, self._updates)],
        }  # fmt: skip
        rows = {
            arm: self._gain(self._run(self._options.base, arm, [*settings, *start])) for arm, settings in arms.items()
        }
        for arm in arms if iterations >= EARLY else ():
            rows[arm]["greedy_early"] = self._greedy(arm, EARLY)
        return rows

    def _greedy(self, arm: str, iteration: int) -> float:
        """Returns the greedy accuracy on the test puzzles after an iteration, in percent."""
        run, final = f"{arm}-{self._number}", self._base.final
        words = ["--puzzles", f"{run}:test", "--count", str(final.puzzles), "--samples", "1"]
        words += ["--max-tokens", str(final.sampled.max_tokens), "--store", self._store]
        words += ["--profile", self._options.profile]
        return evaluated(f"{run}@{iteration}", *words)["greedy_accuracy"]

    def v3(self) -> dict[str, dict[str, float]]:
        """Returns values, rewards and lengths of each arm at the end, and its gain."""
        options, rows = self._options, dict[str, dict[str, float]]()
        deduce = load_recipe(options.derivations, options.derivation_settings)
        updates = updates_for(deduce, options.derivation_puzzles * deduce.sample.sampling.samples_per_prompt)
        small = [
            *options.derivation_settings, f"pack.updates={updates}", f"iterations={options.derivation_iterations}",
            f"finetune.schedule_iterations={options.derivation_iterations}", "grade.advantage.level=outcome",
            "grade.reward.step_rewards={}", f"sample.puzzles_per_iteration={options.derivation_puzzles}",
        ]  # fmt: skip
        start: list[str] = []
        for arm, targets in (("decoupled", 1.0), ("coupled", 0.95)):
            lambdas = {"lambda_policy": 0.95, "lambda_critic": targets}
            settings = [*small, *start, *value_settings(options.value_rate, updates, **lambdas)]
            document = self._run(options.derivations, arm, settings)
            facts = self._facts(arm)[-3:]
            rows[arm] = self._gain(document) | {
                "first_value": mean(of_one["value/first_token_mean"] for of_one in facts),
                "reward": mean(of_one["reward"] for of_one in facts),
                "tokens": mean(of_one["tokens"] for of_one in facts),
            }
            start = start or from_warm_start(f"{arm}-{self._number}", self._store)
        return rows

    def _facts(self, arm: str) -> list[dict[str, float]]:
        """Returns the facts of the critic in each iteration, with mean reward and length of the rollouts."""
        record = read_run(Store.open(self._store, writable=False), f"{arm}-{self._number}")
        return [
            item.facts("value")
            | {"reward": item.facts("grade")["reward/mean"], "tokens": item.facts("grade")["completion_tokens/mean"]}
            for item in record.iterations
            if item.number
        ]

    @staticmethod
    def _gain(document: dict[str, Any]) -> dict[str, float]:
        row: dict[str, float] = {"wall_s": document["wall_s"]}
        for mode in ("sampled", "greedy"):
            before, after = (100 * document["test"][when][mode]["accuracy"]["mean"] for when in ("before", "after"))
            row |= {f"{mode}_before": before, f"{mode}_after": after, f"{mode}_gain": after - before}
        return row


def bars(rows: dict[str, Rows]) -> list[Bar]:
    """The claims of the module as bars, for the parts that were measured."""

    def of(part: str, arm: str, name: str) -> list[float]:
        return [seed[part][arm][name] for seed in rows.values() if part in seed]

    made: list[Bar] = []
    for used in USED:
        if first := of("v1", f"of_{used}", "first_token"):
            last = of("v1", f"of_{used}", "last_token")
            rise = min(end - begin for begin, end in zip(first, last, strict=True))
            name = f"V1, {used} iterations: explained variance before the first token"
            made += [
                Bar.at_least(f"{name}, mean of the seeds", mean(first), 0.05),
                Bar.at_least(f"{name}, least of the seeds", min(first), 0.0),
                Bar.at_least(f"V1, {used} iterations: its rise to the last token, least of the seeds", rise, 0.0),
            ]
    if grpo := of("v2", "grpo", "greedy_gain"):
        critic, batch_mean = of("v2", "critic", "greedy_gain"), of("v2", "batch_mean", "greedy_gain")
        share = mean(critic) / mean(grpo) if mean(grpo) > 0 else 0.0
        better = sum(ours > theirs for ours, theirs in zip(critic, batch_mean, strict=True))
        made += [
            Bar.at_least("V2: share of GRPO's greedy gain that one rollout with a critic has", share, RECOVERED_BAR),
            Bar.at_least("V2: greedy gain over the batch mean, points", mean(critic) - mean(batch_mean), 0.0),
            Bar.at_least("V2: share of seeds in which the critic beats the batch mean", better / len(critic), 0.8),
        ]
        pairs = [
            (seed["v2"]["critic"]["greedy_early"], seed["v2"]["cold"]["greedy_early"])
            for seed in rows.values()
            if "greedy_early" in seed.get("v2", {}).get("cold", {})
        ]
        if pairs:
            warm = sum(ours > theirs for ours, theirs in pairs) / len(pairs)
            made.append(Bar.at_least(f"V4: share of seeds in which pretraining is ahead after {EARLY}", warm, 0.8))
    if coupled := of("v3", "coupled", "first_value"):
        bias = {
            arm: mean(of("v3", arm, "first_value")) - mean(of("v3", arm, "reward")) for arm in ("coupled", "decoupled")
        }
        lengths = {arm: mean(of("v3", arm, "tokens")) for arm in bias}
        gained = mean(of("v3", "decoupled", "greedy_gain")) - mean(of("v3", "coupled", "greedy_gain"))
        made += [
            Bar.at_least(
                f"V3: first values, decoupled minus coupled, each minus its reward ({len(coupled)} seeds)",
                bias["decoupled"] - bias["coupled"],
                0.02,
            ),
            Bar.at_least("V3: tokens, decoupled minus coupled", lengths["decoupled"] - lengths["coupled"], 0.0),
            Bar.at_least("V3: greedy gain, decoupled minus coupled, points", gained, 0.0),
        ]
    return made


def main() -> None:
    parser = seeded_parser(__doc__, SEEDS)
    parser.add_argument("--parts", type=lambda text: text.split(","), default=list(PARTS), help="v1,v2,v3")
    parser.add_argument("--base", default="answers_only", help="recipe of V1 and V2")
    parser.add_argument("--derivations", default="deduce", help="recipe of V3")
    parser.add_argument("--samples", type=int, default=1024, help="completions of an iteration in V2")
    parser.add_argument("--iterations", type=int, default=24, help="iterations of the arms of V2")
    parser.add_argument("--derivation-puzzles", type=int, default=256, help="puzzles of an iteration in V3")
    parser.add_argument("--derivation-iterations", type=int, default=12, help="iterations of the arms of V3")
    parser.add_argument("--value-rate", type=float, default=2e-4, help="learning rate of the critics")
    parser.add_argument("--set", action="append", default=[], dest="settings", metavar="KEY=VALUE", help="of the base")
    parser.add_argument(
        "--set-derivations", action="append", default=[], dest="derivation_settings", metavar="KEY=VALUE"
    )
    options = parse(parser)
    if unknown := set(options.parts) - set(PARTS):
        parser.error(f"--parts has {', '.join(sorted(unknown))}; expected {', '.join(PARTS)}")
    rows: dict[int, Rows] = {}
    with run_store(options) as store:
        for number in options.seeds:
            seed = Seed(number, options, store)
            rows[number] = {part: getattr(seed, part)() for part in options.parts}
    document = joined(options.join, {"seeds": rows})
    seeds = document["seeds"]
    tell(document | {"means": over_seeds(list(seeds.values()))}, bars(seeds), as_json=options.json)


if __name__ == "__main__":
    main()
