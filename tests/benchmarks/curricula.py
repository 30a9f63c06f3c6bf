"""Do curricula help at this scale? Four claims over fresh seeds: `python -m tests.benchmarks.curricula --json`.

Each seed has a warm start of its own for each claim, from which the claim's arms learn with equal iterations:

* C1, which puzzles: those that the warm-started model solves sometimes (`partial`), `all` of them, or the third with
  the lowest pass rates (`hardest`). Claim of difficulty-aware RL (arXiv 2504.00829): partial >= all > hardest.
* C2, in which order: `ascending` by number of clues over boards of several sizes, or `shuffled`. The measure is the
  area under the validation curve, so that a curriculum that is only faster is not missed.
* C3, with which context: derivations with 96, then 160, then 256 tokens (`grows`), or 256 throughout (`long`). Claim of
  DeepScaleR: the same accuracy, within one standard error, with a quarter fewer sampled tokens.
* C4, by which rates: `pools` that prefer middling puzzles, or dynamic sampling (`resample`). Claim of prime-rl: more
  groups with a signal for each sampled token, once rates are known (after iteration 5).

The hypotheses and bars were written down before the first run. Any of them may fail; the table is published either way.
`--join FILE...` adds the rows of documents that earlier calls printed; `--scale 0.1` is a quick look that proves
nothing.
"""

import argparse
import statistics
from collections.abc import Callable, Sequence

import polars as pl

from artifacts.layout import RunLayout
from artifacts.reading import Artifact
from artifacts.refs import Grades, PassRates, Rollouts
from artifacts.schemas import GRADES, GRADES_FILE, PASS_RATES, PASS_RATES_FILE, ROLLOUTS
from artifacts.store.store import Store
from stages.sampling.turns import own_lengths
from stages.statistics.estimates import standard_error
from tests.support.bars import Bar, tell
from tests.support.seeded import joined, parse, run_store, seeded_parser
from tests.support.whole_runs import figures_of, from_warm_start, train

SEEDS = (811, 812, 813, 814, 815)
CLAIMS = ("C1", "C2", "C3", "C4")
RATES_KNOWN_AFTER = 5
SAVED_BAR = 0.25
BOARDS = "puzzles.puzzle={suspects=[2,4], weapons=[2,2], rooms=[2,4], connectives=false, referents=false, \
fixed_cast=true, fixed_rooms=true, questions='placements'}"
SMALL_BOARD = BOARDS.replace("suspects=[2,4]", "suspects=[3,3]").replace("rooms=[2,4]", "rooms=[2,2]")
Row = dict[str, float]


class Claim:
    """One seed of one claim: its runs in a store.

    Args:
        name: Name of the claim.
        recipe: The recipe that its arms change.
        iterations: Iterations of an arm at full scale.
    """

    def __init__(
        self, name: str, recipe: str, iterations: int, seed: int, store: str, options: argparse.Namespace
    ) -> None:
        self.name, self.recipe, self.seed, self.store, self.profile = name, recipe, seed, store, options.profile
        self.iterations = max(2, round(iterations * options.scale))
        self._first: str | None = None

    def run(self, arm: str, settings: Sequence[str]) -> Row:
        """Trains an arm, from the warm start of the claim's first arm, and returns its figures."""
        run = f"{self.name}-{self.seed}-{arm}"
        start = [] if self._first is None else from_warm_start(self._first, self.store)
        self._first = self._first or run
        common = [f"seed={self.seed}", f"iterations={self.iterations}"]
        common.append(f"finetune.schedule_iterations={self.iterations}")
        document = train(self.recipe, run, self.store, [*common, *settings, *start], self.profile)
        curve = [100 * item["sampled_accuracy"] for item in document["iterations"] if item["iteration"]]
        area = {"area": statistics.mean(curve)}
        return {**figures_of(document), **area, **signal(run, self.store, self.iterations)}


def signal(run: str, store: str, iterations: int) -> Row:
    """Sampled tokens of all iterations; and from iteration 6 on, groups with a signal for 1,000 sampled tokens.

    Tokens are counted in the rollouts: their fact `completion_tokens` leaves out groups that were there before a retry.
    """
    opened, layout = Store.open(store, writable=False), RunLayout(run)
    tokens, late_tokens, informative = 0, 0, 0
    for n in range(1, iterations + 1):
        rollouts = Artifact.at(opened, layout.iteration(n, "rollouts"), Rollouts).read_tables(ROLLOUTS)
        sampled = int(own_lengths(rollouts).sum())
        tokens += sampled
        if n > RATES_KNOWN_AFTER:
            grades = Artifact.at(opened, layout.iteration(n, "grades"), Grades).read_table(GRADES_FILE, GRADES)
            spread = grades.group_by("group").agg(pl.col("accuracy").max() - pl.col("accuracy").min())
            informative += int((spread["accuracy"] > 1e-8).sum())
            late_tokens += sampled
    return {"tokens": tokens, "informative": 1000 * informative / late_tokens if late_tokens else 0.0}


def which_puzzles(claim: Claim) -> dict[str, Row]:
    """C1: all arms rate the warm-started model first, so that they cost the same."""
    settings = ["puzzles.train=2000", "rate={models=[{name='start'}], sampling={samples_per_prompt=8, max_tokens=12}}"]
    rows = {"all": claim.run("all", settings)}
    pass_rates = Artifact.at(
        Store.open(claim.store, writable=False), RunLayout(f"{claim.name}-{claim.seed}-all").pass_rates, PassRates
    )
    third = pass_rates.read_table(PASS_RATES_FILE, PASS_RATES)["accuracy"].quantile(1 / 3, "lower")
    where = {
        "partial": "{column='exact:start', above=0.0, below=1.0}",
        "hardest": f"{{column='accuracy:start', at_most={third}}}",
    }
    for arm, condition in where.items():
        rows[arm] = claim.run(arm, [*settings, f"sample.where=[{{all=[{condition}]}}]"])
    return rows


def which_order(claim: Claim) -> dict[str, Row]:
    """C2: one pass over boards of several sizes; longer answers need more tokens than those of the recipe."""
    lengths = [f"{part}.max_tokens=16" for part in ("sample.sampling", "evaluate.sampled", "final.sampled")]
    settings = [BOARDS, f"puzzles.train={max(2000, 128 * claim.iterations)}", *lengths]
    return {
        "shuffled": claim.run("shuffled", settings),
        "ascending": claim.run("ascending", [*settings, "sample.order={by='ascending', column='num_clues'}"]),
    }


def which_context(claim: Claim) -> dict[str, Row]:
    """C3: derivations of a model that was taught less than in the recipe, so that it is not always brief."""
    settings = ["warm_start.steps=300", "puzzles.train=6000", "sample.puzzles_per_iteration=128", "pack.updates=4"]
    settings += [f"{part}.max_tokens=256" for part in ("sample.sampling", "evaluate.sampled", "final.sampled")]
    third = max(1, claim.iterations // 3)
    phases = [
        f"{{name='{tokens}', iterations={third}, sample={{sampling={{max_tokens={tokens}}}}}}}" for tokens in (96, 160)
    ]
    grows = f"phases=[{', '.join(phases)}, {{name='256'}}]"
    return {"long": claim.run("long", settings), "grows": claim.run("grows", [*settings, grows])}


def which_rates(claim: Claim) -> dict[str, Row]:
    """C4: few puzzles of a small board, so that all are rated soon and many groups are uniform."""
    settings = [SMALL_BOARD, "puzzles.train=512", "puzzles.test=256", "final.puzzles=256", "warm_start.steps=32"]
    settings += ["sample.puzzles_per_iteration=64", "pack.updates=4"]
    return {
        "resample": claim.run("resample", [*settings, "sample.resample.max_rounds=3"]),
        "pools": claim.run("pools", [*settings, "sample.order={by='pools'}"]),
    }


MEASURED: dict[str, tuple[str, int, Callable[[Claim], dict[str, Row]]]] = {
    "C1": ("answers_only", 36, which_puzzles),
    "C2": ("answers_only", 36, which_order),
    "C3": ("deduce", 18, which_context),
    "C4": ("answers_only", 24, which_rates),
}
"""Recipe, iterations and measurement of each claim."""


def bars(seeds: dict[str, dict[str, dict[str, Row]]]) -> list[Bar]:
    """The bar of each claim that all seeds have measured, on means over the seeds."""

    def gain(row: Row) -> float:
        return row["greedy_accuracy_after"] - row["greedy_accuracy_before"]

    def differences(claim: str, a: str, b: str, value: Callable[[Row], float]) -> list[float]:
        return [value(claims[claim][a]) - value(claims[claim][b]) for claims in seeds.values()]

    measured = [name for name in CLAIMS if seeds and all(name in claims for claims in seeds.values())]
    found: list[Bar] = []
    if "C1" in measured:
        partial, hardest = differences("C1", "partial", "all", gain), differences("C1", "all", "hardest", gain)
        found.append(Bar.at_least("C1 greedy gain, partial minus all, points", statistics.mean(partial), 0.0))
        mean = statistics.mean(hardest)
        found.append(Bar("C1 greedy gain, all minus hardest, points", mean, "above 0", mean > 0.0))
    if "C2" in measured:
        area = statistics.mean(differences("C2", "ascending", "shuffled", lambda row: row["area"]))
        found.append(Bar("C2 mean of the curve, ascending minus shuffled, points", area, "above 0", area > 0.0))
    if "C3" in measured:
        lost = differences("C3", "long", "grows", lambda row: row["greedy_accuracy_after"])
        error = standard_error(lost) if len(lost) > 1 else 0.0
        found.append(Bar.at_most("C3 greedy accuracy, long minus grows, points", statistics.mean(lost), error))
        saved = [1 - claims["C3"]["grows"]["tokens"] / claims["C3"]["long"]["tokens"] for claims in seeds.values()]
        found.append(Bar.at_least("C3 share of sampled tokens saved", statistics.mean(saved), SAVED_BAR))
    if "C4" in measured:
        more = statistics.mean(differences("C4", "pools", "resample", lambda row: row["informative"]))
        name = "C4 groups with a signal per 1,000 tokens, pools minus resample"
        found.append(Bar(name, more, "above 0", more > 0.0))
    return found


def main() -> None:
    parser = seeded_parser(__doc__, SEEDS)
    parser.add_argument("--claims", type=lambda text: text.split(","), default=list(CLAIMS), help="such as C1,C3")
    parser.add_argument("--scale", type=float, default=1.0, help="share of the iterations")
    options = parse(parser)
    if unknown := set(options.claims) - set(CLAIMS):
        parser.error(f"--claims: {', '.join(sorted(unknown))} unknown; there are {', '.join(CLAIMS)}")
    rows: dict[int, dict[str, dict[str, Row]]] = {seed: {} for seed in options.seeds}
    with run_store(options) as store:
        for seed in options.seeds:
            for name in options.claims:
                recipe, iterations, measure = MEASURED[name]
                rows[seed][name] = measure(Claim(name, recipe, iterations, seed, store, options))
    document = joined(options.join, {"seeds": rows})
    seeds = document["seeds"]
    tell(document, bars(seeds), as_json=options.json)


if __name__ == "__main__":
    main()
