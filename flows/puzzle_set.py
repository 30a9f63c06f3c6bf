"""The `prepare` flow: draws puzzles on all cores, divides them into disjoint splits, and writes a report."""

from prefect import flow
from pydantic import Field

from artifacts.config import Config
from artifacts.documents.document import Document
from artifacts.store.location import DEFAULT_STORE
from artifacts.store.store import Store
from flows.config.recipes import load_profile, located_beside
from flows.inputs.models import fetched
from flows.inputs.puzzle_sets import publish_set
from flows.lookup.checkpoints import check_checkpoint
from flows.opening import ProfileName, ProfileOverrides, StoreAddress, opened_stages
from flows.report.html.puzzle_report import length_measure, write_report
from stages.prepare import PrepareConfig


class PuzzleSetRequest(Config):
    """Parameters of the `prepare` flow."""

    store: StoreAddress = DEFAULT_STORE
    profile: ProfileName = "cpu"
    profile_overrides: ProfileOverrides = Field(default=[])
    puzzles: PrepareConfig = Field(
        default_factory=PrepareConfig, description="Environment, difficulty, sizes and seed."
    )
    tokenizer: str | None = Field(
        default=None,
        description="A checkpoint whose tokenizer measures prompt lengths for the report; null = the installed model.",
    )


class PuzzleSet(Document):
    """A published puzzle set.

    Attributes:
        artifact: Ref of the set, as JSON.
        report: Address of the set's report.
    """

    artifact: dict[str, str]
    report: str


@flow(name="prepare", flow_run_name="prepare {request.puzzles.total} puzzles", persist_result=False)
def make_puzzles(request: PuzzleSetRequest) -> PuzzleSet:
    """Publishes a puzzle set and its report; after a kill, the same request draws only the missing puzzles.

    Args:
        request: Store, profile, difficulty, seed and the sizes of the splits.
    """
    store = Store.open(request.store)
    with opened_stages(store, load_profile(request.profile, request.profile_overrides)) as stages:
        if request.tokenizer is not None:
            check_checkpoint(request.tokenizer, store)  # fails now instead of after hours of drawing
        stages.live.opened(f"{request.puzzles.total} puzzles, seed {request.puzzles.seed}, into {store.url}")
        puzzles = publish_set(stages, located_beside("", request.puzzles))
        tokenizer = None if request.tokenizer is None else fetched(stages, request.tokenizer, puzzles)
        page = write_report(stages, puzzles, length_measure(stages, tokenizer, request.tokenizer))
        return PuzzleSet(artifact=puzzles.as_json(), report=f"{store.url}/{page}")
