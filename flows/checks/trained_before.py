"""Finds held-out questions of a run that its first weights were trained on."""

from artifacts.layout import RunLayout
from artifacts.reading import Artifact
from artifacts.refs import Puzzles, Ref
from artifacts.schemas import PUZZLES
from artifacts.store.store import Store
from flows.lookup.history import read_run
from flows.lookup.splits import set_of_run
from stages.models.merging.config import MergedModel
from stages.models.source import ModelConfig, StoredModel


def trained_before(model: ModelConfig, puzzles: Ref[Puzzles], store: Store) -> list[str]:
    """Returns a line for each run whose checkpoint a run starts from, if it trained on held-out questions of the run.

    Runs from whose checkpoints that run started in turn count, too.

    Args:
        model: Source of the run's first weights.
        puzzles: Its puzzle set.
        store: The store of all runs.
    """
    if not (runs := _ancestors(model, store)):
        return []
    own = Artifact.open(store, puzzles)
    held_out = {split: set(own.read_table(f"{split}.parquet", PUZZLES)["digest"]) for split in ("val", "test")}
    lines: list[str] = []
    for run in runs:
        trained = set(set_of_run(RunLayout(run), store).read_table("train.parquet", PUZZLES)["digest"])
        known = {split: f"{len(digests & trained)} of {len(digests)}" for split, digests in held_out.items()}
        if any(digests & trained for digests in held_out.values()):
            lines.append(
                f"the weights come from run {run!r}, for which {known['val']} validation and {known['test']} test "
                "questions of this run were train questions"
            )
    return lines


def _ancestors(model: ModelConfig, store: Store) -> list[str]:
    """Returns the runs whose checkpoints a model consists of, and theirs, as far as the store has them."""
    found: list[str] = []
    models = [model]
    while models:
        source = models.pop()
        names = (*source.models, source.base) if isinstance(source, MergedModel) else ()
        names = (source.name,) if isinstance(source, StoredModel) else names
        for run in (_run_of(name) for name in names if name is not None):
            if run is not None and run not in found and store.exists(RunLayout(run).recipe):
                found.append(run)
                models.append(read_run(store, run).typed_recipe().model)
    return found


def _run_of(name: str) -> str | None:
    """Returns the run of a checkpoint that is named as a run, RUN@ITERATION or a key; None for a key of no run."""
    first, *rest = name.strip("/").split("/")
    if not rest:
        return first.partition("@")[0]
    return rest[0] if first == "runs" else None
