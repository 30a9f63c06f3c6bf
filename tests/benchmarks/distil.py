"""What texts and tokens of a teacher add: `python -m tests.benchmarks.distil --json`. Three questions, each by itself.

`rejection` (D1): from one warm start on `answers_only`'s board, fine-tuning on the model's own right answers (96,000
samples, one pass), against GRPO with as many samples. Written down before: the gain of greedy accuracy is above 0 in
each of five seeds, and below GRPO's on average.

`structure` (D2): one model from scratch learns derivations of `deduce`'s board that are whole (`clean`), with all steps
shuffled, with a third of them deleted, with wrong answers, or with names swapped. Sky-T1 (arXiv 2502.07374) predicts
that shuffled and deleted steps cost much and wrong answers little. Our model knows nothing before, so wrong answers may
cost more. Bar: clean texts teach more than each corruption; the order is reported.

`teacher`: a student of 0.16 million parameters learns from `answers_only` after its GRPO, token by token (`tokens`), or
from its rewards (`grpo`), with equal samples from one warm start. Written down before: `tokens` gains greedy accuracy
in each seed, and at least as much as `grpo` on average; the divergence from the teacher falls by half. A model that
judges itself with a derivation in the prompt (`teach.hint`) is not measured: no model from scratch has learned to read
a hint.

In each selection, kept and rejected texts add up to those sampled (D4).

`--scale 0.1` divides puzzles and iterations by ten. `--join FILE...` adds the rows of documents that earlier calls
printed. A seed of all three takes about an hour on one core, of one question 10 to 30 minutes.
"""

from collections.abc import Callable
from statistics import mean

from artifacts.layout import RunLayout
from artifacts.reading import Artifact
from artifacts.refs import Texts
from artifacts.store.store import Store
from flows.lookup.checkpoints import published_checkpoint
from flows.lookup.history import read_run
from flows.report.metrics import number, values_of
from tests.support.bars import Bar, tell
from tests.support.seeded import joined, parse, run_store, seeded_parser
from tests.support.whole_runs import figures_of, from_warm_start, train

SEEDS = (711, 712, 713, 714, 715)
CORRUPTIONS: dict[str, str | None] = {
    "clean": None,
    "shuffled": '{kind = "shuffle_steps"}',
    "deleted": '{kind = "delete_steps", share = 0.33}',
    "wrong_answers": '{kind = "wrong_answers"}',
    "swapped_names": '{kind = "swap_names"}',
}
DERIVATIONS = 6000
STUDENT_ITERATIONS = 24
Row = dict[str, float]


class Scale:
    """Sizes of a measurement, divided.

    Args:
        factor: 1 for the whole measurement.
    """

    def __init__(self, factor: float) -> None:
        self.factor = factor

    def of(self, count: int) -> int:
        """Returns a count after the division, at least 1."""
        return max(1, round(count * self.factor))

    @property
    def board(self) -> list[str]:
        """The settings of a run on the board of `answers_only`."""
        steps, test = self.of(125), max(32, self.of(512))
        return [
            f"puzzles.train={self.of(6000)}", f"puzzles.test={test}", f"final.puzzles={test}",
            f"sample.puzzles_per_iteration={min(128, self.of(6000))}", f"warm_start.steps={steps}",
            f"warm_start.warmup_share={min(steps, 50) / (3 * steps):.4f}",  # of three passes
        ]  # fmt: skip


def rejection(seed: int, scale: Scale, store: str, profile: str) -> dict[str, Row]:
    """D1: the model's own right answers, and GRPO, from one warm start."""
    first, board = f"rejection-{seed}", scale.board
    texts = train(
        "rejection_sampling", first,
        store, [f"seed={seed}", *board, f"distil.sample.puzzles_per_iteration={scale.of(6000)}"], profile,
    )  # fmt: skip
    iterations = max(1, round(47 * scale.factor))
    grpo = train(
        "answers_only", f"grpo-{seed}", store,
        [f"seed={seed}", *board, f"iterations={iterations}", *from_warm_start(first, store)], profile,
    )  # fmt: skip
    before = figures_of(grpo)
    rows = {"rejection": figures_of(texts) | facts_of(first, store), "grpo": figures_of(grpo)}
    # The run of texts measures itself after its texts, so where it began is the other run's beginning.
    rows["rejection"] |= {name: value for name, value in before.items() if name.endswith("_before")}
    return rows


def structure(seed: int, scale: Scale, store: str, profile: str) -> dict[str, Row]:
    """D2: the same derivations, whole and corrupted, taught to the same model from scratch."""
    rows: dict[str, Row] = {}
    count, test = scale.of(DERIVATIONS), max(32, scale.of(256))
    for arm, corruption in CORRUPTIONS.items():
        settings = [
            f"seed={seed}", "iterations=0", "warm_start=null", f"puzzles.train={max(count, 512)}",
            f"puzzles.test={test}", f"final.puzzles={test}", "distil.teacher=solver", "distil.texts.written=terse",
            f"distil.texts.puzzles={count}", "distil.sft.texts_per_step=16", "distil.sft.epochs=3",
            "distil.sft.learning_rate=1.5e-3", "distil.sft.warmup_share=0.04", "distil.sft.row_tokens=512",
            "distil.sft.optimizer.betas=[0.9,0.99]",
        ]  # fmt: skip
        settings += [f"distil.texts.corruption={corruption}"] if corruption else []
        run = f"structure-{arm}-{seed}"
        rows[arm] = figures_of(train("deduce", run, store, settings, profile)) | facts_of(run, store)
    return rows


def teacher(seed: int, scale: Scale, store: str, profile: str) -> dict[str, Row]:
    """A small student: judged by a teacher, and by rewards."""
    board, big = [f"seed={seed}", *scale.board], f"teacher-{seed}"
    iterations = scale.of(STUDENT_ITERATIONS)
    taught = train("answers_only", big, store, [*board, f"iterations={scale.of(48)}"], profile)
    name = f"runs/{big}/iterations/{taught['promoted']['iteration']:04d}/checkpoint"
    if taught["promoted"]["iteration"] == 0:
        name = published_checkpoint(f"{big}@0", Store.open(store, writable=False)).key
    length = [f"iterations={iterations}", f"finetune.schedule_iterations={iterations}"]
    if iterations < 3:
        length += ["finetune.warmup_iterations=0"]
    student = "on_policy_distillation"
    rows: dict[str, Row] = {"big": figures_of(taught)}
    first = f"tokens-{seed}"
    rows["tokens"] = figures_of(train(student, first, store, [*board, *length, f"teach.teacher={name}"], profile))
    rows["tokens"] |= divergences(first, store)
    start = from_warm_start(first, store)
    rows["grpo"] = figures_of(
        train(student, f"rewards-{seed}", store, [*board, *length, *start, "teach=null"], profile)
    )
    return rows


PARTS: dict[str, Callable[[int, Scale, str, str], dict[str, Row]]] = {
    "rejection": rejection,
    "structure": structure,
    "teacher": teacher,
}


def facts_of(run: str, store: str) -> Row:
    """The counts of a run's selection of texts."""
    key = RunLayout(run).distillation(1, "texts")
    facts = Artifact.at(Store.open(store, writable=False), key, Texts).manifest.facts
    rejected = sum(facts["rejected"].values())
    return {"texts_sampled": facts["sampled"], "texts_kept": facts["kept"], "texts_rejected": rejected}


def divergences(run: str, store: str) -> Row:
    """KL(policy || teacher) of a run's first and last rollouts, nats per token."""
    iterations = [one for one in read_run(Store.open(store, writable=False), run).iterations if one.number]
    first, last = (number(values_of(one)["teacher_kl"]) for one in (iterations[0], iterations[-1]))
    assert first is not None and last is not None
    return {"teacher_kl_first": first, "teacher_kl_last": last}


def gains(rows: dict[str, dict[str, Row]], arm: str, figure: str = "greedy_accuracy") -> list[float]:
    """What an arm gained in each seed, in points."""
    return [arms[arm][f"{figure}_after"] - arms[arm][f"{figure}_before"] for arms in rows.values() if arm in arms]


def bars(parts: dict[str, dict[str, dict[str, Row]]]) -> list[Bar]:
    """The bars that were written down before, for the parts that were measured."""
    found: list[Bar] = []
    if rows := parts.get("rejection"):
        own, grpo = gains(rows, "rejection"), gains(rows, "grpo")
        found += [
            Bar.at_least("rejection: gain of greedy accuracy, least of the seeds, points", min(own), 0.01),
            Bar.at_least("rejection: GRPO's gain less that of texts, mean, points", mean(grpo) - mean(own), 0.01),
        ]
    if rows := parts.get("structure"):
        exact = {arm: mean(arms[arm]["greedy_exact_after"] for arms in rows.values()) for arm in CORRUPTIONS}
        found += [  # not 0: a model that learns nothing from any texts would reach it
            Bar.at_least(f"structure: all right, clean less {arm}, mean, points", exact["clean"] - exact[arm], 0.01)
            for arm in CORRUPTIONS
            if arm != "clean"
        ]
    if rows := parts.get("teacher"):
        tokens, grpo = gains(rows, "tokens"), gains(rows, "grpo")
        fell = [1 - arms["tokens"]["teacher_kl_last"] / arms["tokens"]["teacher_kl_first"] for arms in rows.values()]
        found += [
            Bar.at_least("teacher: gain of greedy accuracy, least of the seeds, points", min(tokens), 0.01),
            Bar.at_least("teacher: gain by tokens less that by rewards, mean, points", mean(tokens) - mean(grpo), 0.0),
            Bar.at_least("teacher: share of the divergence that went, mean", mean(fell), 0.5),
        ]
    counted = [row for rows in parts.values() for arms in rows.values() for row in arms.values()]
    lost = sum(
        row["texts_sampled"] - row["texts_kept"] - row["texts_rejected"] for row in counted if "texts_kept" in row
    )
    return [*found, Bar.at_most("texts that are neither kept nor rejected", lost, 0)]


def main() -> None:
    parser = seeded_parser(__doc__, SEEDS)
    parser.add_argument("--parts", type=lambda text: text.split(","), default=list(PARTS), help=",".join(PARTS))
    parser.add_argument("--scale", type=float, default=1.0, help="factor of puzzles and iterations")
    options = parse(parser)
    parts: dict[str, dict[int, dict[str, Row]]] = {}
    with run_store(options) as store:
        for part in options.parts if options.seeds else ():
            scale = Scale(options.scale)
            parts[part] = {seed: PARTS[part](seed, scale, store, options.profile) for seed in options.seeds}
    document = joined(options.join, {"parts": parts})
    tell(document, bars(document["parts"]), as_json=options.json)


if __name__ == "__main__":
    main()
