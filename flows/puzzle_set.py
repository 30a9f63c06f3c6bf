"""Puzzle sets: drawn by mapped tasks on all cores, divided into splits that share no puzzle, and reported."""

from prefect import flow
from pydantic import BaseModel, ConfigDict, Field

from artifacts.config import Config
from artifacts.store.store import Store
from flows.config.recipes import load_profile
from flows.inputs.models import fetched
from flows.inputs.puzzle_sets import publish_set
from flows.lookup.checkpoints import check_checkpoint
from flows.opening import opened_stages
from flows.report.html.puzzle_report import measure_of, write_report
from stages.prepare import PrepareConfig


class PuzzleSetRequest(Config):
    """What a person asks for."""

    store: str = Field(default="./deerstalker-data", description="Where artifacts live.")
    profile: str = Field(default="cpu", description="Name of a profile, or path of a TOML file.")
    puzzles: PrepareConfig = Field(default_factory=PrepareConfig, description="Family, difficulty, sizes and seed.")
    tokenizer: str | None = Field(
        default=None,
        description="A checkpoint in whose tokens the report measures prompts; None = the model that is installed.",
    )


class PuzzleSet(BaseModel):
    """A published set.

    Attributes:
        artifact: Its ref, as JSON.
        report: Address of the page that describes it.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    artifact: dict[str, str]
    report: str


@flow(name="prepare", flow_run_name="prepare {request.puzzles.total} puzzles", persist_result=False)
def make_puzzles(request: PuzzleSetRequest) -> PuzzleSet:
    """Publishes a puzzle set and a report on it; a run that was killed goes on with the stretches that are missing.

    Args:
        request: Store, profile, difficulty, seed and the sizes of the splits.
    """
    store = Store.open(request.store)
    with opened_stages(store, load_profile(request.profile)) as stages:
        if request.tokenizer is not None:
            check_checkpoint(request.tokenizer, store)  # it is fetched after all drawing
        stages.live.opened(f"{request.puzzles.total} puzzles, seed {request.puzzles.seed}, into {store.url}")
        made = publish_set(stages, request.puzzles)
        tokenizer = None if request.tokenizer is None else fetched(stages, request.tokenizer, made)
        page = write_report(stages, made, measure_of(stages, tokenizer, request.tokenizer))
        return PuzzleSet(artifact=made.as_json(), report=f"{store.url}/{page}")
