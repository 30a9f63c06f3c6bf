"""Measuring one checkpoint on one set of puzzles, outside any run."""

from typing import Any, get_args

from prefect import flow
from pydantic import BaseModel, ConfigDict, Field

from artifacts.config import Config
from artifacts.identity import Identity, settings_of
from artifacts.layout import shared_key
from artifacts.reading import Artifact
from artifacts.refs import Puzzles, Ref, Report
from artifacts.schemas import PUZZLES, RESULTS
from artifacts.store.store import Store
from flows.config.recipes import load_profile, validate
from flows.lookup.fetching import fetched
from flows.lookup.splits import named_split
from flows.opening import opened_stages
from flows.puzzle_set import publish_set
from flows.session import Stages
from stages.environments.puzzle import Grader
from stages.evaluate import EvaluateConfig, evaluate, regrade
from stages.prepare import PrepareConfig
from stages.statistics.totals import totals


class EvaluationRequest(Config):
    """What a person asks for."""

    checkpoint: str = Field(description="A checkpoint as `flows.lookup.checkpoints` understands it.")
    puzzles: str = Field(description="A JSON file in the published format, or RUN:SPLIT.")
    store: str = Field(default="./deerstalker-data", description="Where artifacts live.")
    profile: str = Field(default="cpu", description="Name of a profile, or path of a TOML file.")
    config: EvaluateConfig = Field(default_factory=EvaluateConfig, description="How many puzzles, and how sampled.")


class Evaluation(BaseModel):
    """What came of it.

    Attributes:
        gradings: Totals of the same completions (see `stages.statistics.totals.totals`) by grader.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    checkpoint: dict[str, Any]
    puzzles: int
    report: str
    gradings: dict[str, dict[str, Any]]


@flow(name="evaluate", flow_run_name="evaluate {request.checkpoint}", persist_result=False)
def evaluate_checkpoint(request: EvaluationRequest) -> Evaluation:
    """Samples answers of a checkpoint, greedy and not, and grades the same completions by every grader.

    Args:
        request: Checkpoint, puzzles, store, profile and settings.
    """
    store = Store.open(request.store)
    with opened_stages(store, load_profile(request.profile)) as stages:
        stages.live.opened(f"evaluating {request.checkpoint} on {request.puzzles}")
        puzzles, split = named_puzzles(request.puzzles, stages)
        checkpoint = fetched(stages, request.checkpoint, puzzles)
        asked = {**settings_of(request.config), "split": split}
        key = shared_key("evaluations", split, Identity.of("evaluation", 1, asked, weights=checkpoint, puzzles=puzzles))
        out = stages.slot(key, Report)
        report = stages.run(evaluate, request.config, checkpoint, puzzles, split=split, out=out)
        results = Artifact.open(store, report).read_table("results.parquet", RESULTS)
        known = Artifact.open(store, puzzles).read_table(f"{split}.parquet", PUZZLES)
        return Evaluation(
            checkpoint=checkpoint.as_json(),
            puzzles=results["puzzle_id"].n_unique(),
            report=f"{store.url}/{report.key}",
            gradings={grader: totals(regrade(results, known, grader)).as_json() for grader in get_args(Grader)},
        )


def named_puzzles(name: str, stages: Stages) -> tuple[Ref[Puzzles], str]:
    """The puzzle set and split that a person means: RUN:SPLIT, KEY:SPLIT of a set in the store, or a JSON file.

    Raises:
        BadInputError: It stands for nothing.
    """
    if ":" not in name or name.endswith(".json"):
        config = validate(PrepareConfig, {"file": name}, f"--puzzles {name}")
        return publish_set(stages, config, "file"), "test"
    return named_split(name, stages.ctx.store, f"--puzzles {name}")
