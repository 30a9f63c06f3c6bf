"""The `benchmark` flow: asks models the same puzzles, and compares their accuracy and cost."""

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import polars as pl
from prefect import flow
from prefect.artifacts import create_table_artifact
from pydantic import Field

from artifacts.config import Config
from artifacts.documents.document import Document
from artifacts.errors import BadInputError, DeerstalkerError
from artifacts.reading import Artifact
from artifacts.refs import Answers, Puzzles, Ref
from artifacts.schemas import ANSWERS, ANSWERS_FILE
from artifacts.store.location import DEFAULT_STORE
from artifacts.store.store import Store
from flows.config.limits import as_trained
from flows.config.models_file import ApiModel, CheckpointModel, check_purchase, load_models
from flows.config.suites import suite_key
from flows.inputs.models import fetched
from flows.inputs.suites import measured_puzzles
from flows.lookup.checkpoints import check_checkpoint, trained_sampling
from flows.opening import ProfileName, ProfileOverrides, StoreAddress, fitting_profile, opened_stages
from flows.orchestration.artifact_keys import slug
from flows.session.calls import Stages
from stages.answer import (
    AnswerConfig,
    answer,
    identity_of,
    questions_of,
)
from stages.answering.client import ApiClient
from stages.answering.estimate import Estimate, estimate_purchase
from stages.answering.limits import Budget
from stages.answering.measured import BenchmarkedModel, check_graders, measured
from stages.answering.prices import dollars
from stages.answering.purchase import REFUSALS, Service
from stages.answering.stored import answers_key, missing_questions, stored_answers
from stages.environments.tables import are_episodes, read_split
from stages.environments.thoughts import thought_opened
from stages.evaluate import EvaluateConfig
from stages.strategies.config import check_temperatures


class BenchmarkRequest(Config):
    """Parameters of the `benchmark` flow."""

    models: str = Field(description="Name of a file of models in the package, or path of a TOML file.")
    only: list[str] = Field(default=[], description="Names of the models to ask; all if empty.")
    puzzles: str | None = Field(
        default=None, description="A JSON file in the published format, or RUN:SPLIT; null: those of the suite."
    )
    suite: str | None = Field(
        default=None, description="Name of a suite in the package, or path of its TOML file; not with `puzzles`."
    )
    count: int | None = Field(
        default=None, ge=1, le=10_000_000, description="Number of puzzles, from the first; null: 64, of a suite all."
    )
    samples: int = Field(default=1, ge=1, le=1024, description="Number of answers of each model to each puzzle.")
    max_cost: float | None = Field(
        default=None, ge=0.0, description="Dollars that this flow run may spend on answers; null: no limit."
    )
    dry_run: bool = Field(default=False, description="Only estimate the cost of the missing answers.")
    old_prices: bool = Field(default=False, description="Buy although a price is more than a year old.")
    store: StoreAddress = DEFAULT_STORE
    profile: ProfileName = "cpu"
    profile_overrides: ProfileOverrides = Field(default=[])


class Benchmark(Document):
    """Result of the `benchmark` flow.

    Attributes:
        puzzles: Name of the puzzles, or of the suite.
        count: Number of puzzles.
        estimates: Cost of the answers that were missing at the start, by model.
        models: Figures of each model; empty after a dry run.
    """

    puzzles: str
    count: int
    estimates: list[Estimate]
    models: list[BenchmarkedModel]


@flow(name="benchmark", flow_run_name="benchmark {request.models}", persist_result=False)
def benchmark(request: BenchmarkRequest) -> Benchmark:
    """Asks every model every puzzle, grades the answers, and compares accuracy, tokens and cost.

    Stored answers are not bought again. Keys, addresses, models and graders are checked before anything is bought;
    each new model is asked its first question before the second of any other; if it refuses that, two more. If a model
    fails, the others are still asked.

    Args:
        request: Models, puzzles, samples, budget, store and profile.

    Raises:
        BadInputError: A model, the puzzles or a key is wrong, or a provider refuses a model's parameters.
        DeerstalkerError: The budget was reached, or a model has unanswered questions; the same request continues.
    """
    store = Store.open(request.store)
    models = load_models(request.models, request.only)
    for model in models:
        if isinstance(model, CheckpointModel):
            check_checkpoint(model.checkpoint, store)
    models = [_as_trained(model, store, request.samples) for model in models]
    samples = any(isinstance(model, CheckpointModel) for model in models)
    with opened_stages(store, fitting_profile(request.profile, request.profile_overrides, samples=samples)) as stages:
        name = request.puzzles or suite_key(request.suite or "")
        stages.live.opened(f"benchmark of {len(models)} models on {name}")
        first = EvaluateConfig() if request.count is None else EvaluateConfig(puzzles=request.count)
        puzzles, split, config = measured_puzzles(request.puzzles, request.suite, first, stages)
        work = _Work(request, stages, puzzles, split, read_split(store, puzzles, split).head(config.puzzles))
        check_graders(work.chosen)
        check_turns(models, work.chosen)
        estimates = work.estimates([model for model in models if isinstance(model, ApiModel)])
        for item in estimates:
            stages.live.line(item.line())
        if request.dry_run:
            return Benchmark(puzzles=name, count=len(work.chosen), estimates=estimates, models=[])
        to_buy = {item.name for item in estimates if item.missing}
        work.check([model for model in models if isinstance(model, ApiModel) and model.name in to_buy])
        result = Benchmark(puzzles=name, count=len(work.chosen), estimates=estimates, models=work.asked(models))
        create_table_artifact(
            [_row(item) for item in result.models],
            key=f"benchmark-{slug(name.replace(':', '-'))}",
            description=f"Benchmark on {result.count} puzzles of {name}",
        )
        work.raise_failures()
        return result


def check_turns(models: Sequence[ApiModel | CheckpointModel], puzzles: pl.DataFrame) -> None:
    """Refuses to ask an API for episodes, of which it would be asked the first turn alone.

    Raises:
        BadInputError: A model is one of an API, and the puzzles are episodes.
    """
    api = next((model for model in models if isinstance(model, ApiModel)), None)
    if api is not None and are_episodes(puzzles):
        raise BadInputError(
            f"model {api.name!r}", "an API, and the puzzles are episodes of several turns",
            "checkpoints, which play them", "name the checkpoints with --only",
        )  # fmt: skip


def _as_trained(model: ApiModel | CheckpointModel, store: Store, samples: int) -> ApiModel | CheckpointModel:
    """Returns a model of the file; a checkpoint of a run has the run's limits where the file sets none.

    Raises:
        BadInputError: A checkpoint is asked for several samples at temperature 0.
    """
    if isinstance(model, ApiModel):
        return model
    parameters = as_trained(model.parameters, trained_sampling(model.checkpoint, store))
    check_temperatures(parameters.model_copy(update={"samples_per_prompt": samples}), f"model {model.name!r}")
    return model.model_copy(update={"parameters": parameters})


class _Work:
    """The models' answers to one split of a puzzle set."""

    def __init__(
        self, request: BenchmarkRequest, stages: Stages, puzzles: Ref[Puzzles], split: str, chosen: pl.DataFrame
    ) -> None:
        self._request, self._stages, self._puzzles, self._split = request, stages, puzzles, split
        self.chosen = chosen
        self._budget = Budget(request.max_cost)
        self._failures: dict[str, DeerstalkerError] = {}
        self._never_asked: set[str] = set()

    def estimates(self, models: Sequence[ApiModel]) -> list[Estimate]:
        """Returns an estimate for each model: the cost of its missing answers."""
        questions = questions_of(self.chosen, self._request.samples)
        items: list[Estimate] = []
        for model in models:
            _, stored = stored_answers(self._stages.ctx.store, model.asked())
            if stored.is_empty():
                self._never_asked.add(model.name)
            expected = model.expected and model.expected.tokens()
            missing = missing_questions(questions, stored)
            items.append(
                estimate_purchase(model.name, missing, len(questions), stored, model.asked(), model.price, expected)
            )
        return items

    def check(self, models: Sequence[ApiModel]) -> None:
        """Runs all checks that are free of charge, then asks each model without stored answers its first question.

        Raises:
            BadInputError: A price, a key, an address, a model or its parameters is wrong.
        """
        today = datetime.now(UTC).date()
        for model in models:
            check_purchase(model, max_cost=self._budget.limit, today=today, old_prices=self._request.old_prices)
        for model in models:
            asyncio.run(_check_api(model))
        for model in models:
            if model.name in self._never_asked:
                self._ask_first(model)

    def _ask_first(self, model: ApiModel) -> None:
        """Asks a question; if it is refused, which the question itself may be the reason for, two more."""
        for count in (1, min(REFUSALS, len(self.chosen))):
            self._noting_failures(model, count=count, samples=1)
            error = self._failures.pop(model.name, None)
            if not isinstance(error, BadInputError):
                return
        raise error

    def asked(self, models: Sequence[ApiModel | CheckpointModel]) -> list[BenchmarkedModel]:
        """Asks the models one after the other and returns the figures of those that have answered everything."""
        figures: list[BenchmarkedModel] = []
        for model in models:
            answers = self._noting_failures(model, count=len(self.chosen), samples=self._request.samples)
            if answers is None:
                self._stages.live.line(f"{model.name}: {self._failures[model.name]}")
                continue
            figures.append(self._measured(model, answers))
            self._stages.live.line(line_of(figures[-1]))
        return figures

    def raise_failures(self) -> None:
        """Raises one error for the models without figures; returns if there are none."""
        if not self._failures:
            return
        errors = list(self._failures.values())
        spent = f"; {dollars(self._budget.spent)} spent" if self._budget.limit is not None else ""
        names, more = ", ".join(self._failures), f"; {len(errors) - 1} more" if len(errors) > 1 else ""
        first = errors[0]
        problem = f"not all answered: {names}{spent}. First {first.where}: {first.found}{more}"
        raise DeerstalkerError("benchmark", problem, first.expected, first.remedy)

    def _noting_failures(self, model: ApiModel | CheckpointModel, *, count: int, samples: int) -> Ref[Answers] | None:
        """Returns the answers of a model; if the model fails, notes the error and returns None."""
        try:
            return self._answers(model, count, samples)
        except DeerstalkerError as error:
            self._failures[model.name] = error
            return None

    def _answers(self, model: ApiModel | CheckpointModel, count: int, samples: int) -> Ref[Answers]:
        config = AnswerConfig(puzzles=count, samples=samples, asked=model.asked())
        stages, name = self._stages, slug(model.name)
        weights = fetched(stages, model.checkpoint, self._puzzles) if isinstance(model, CheckpointModel) else None
        service = None
        if isinstance(model, ApiModel):
            service = Service(model.name, model, model.price, self._budget)
        key = answers_key(name, identity_of(config, self._puzzles, weights, self._split))
        out = stages.address(key, Answers, label=name)
        return stages.run(answer, config, self._puzzles, weights, split=self._split, service=service, out=out)

    def _measured(self, model: ApiModel | CheckpointModel, answers: Ref[Answers]) -> BenchmarkedModel:
        published = Artifact.open(self._stages.ctx.store, answers)
        return measured(
            published.read_table(ANSWERS_FILE, ANSWERS),
            self.chosen,
            name=model.name,
            kind=model.kind,
            model=model.model if isinstance(model, ApiModel) else model.checkpoint,
            key=answers.key,
            price=model.price,
            tokens_per_s=published.manifest.facts.get("tokens_per_s"),
            thought_opened=thought_opened(published.manifest.facts),
        )


async def _check_api(model: ApiModel) -> None:
    async with ApiClient(model.asked(), model, f"model {model.name!r}") as client:
        await client.check()


def line_of(model: BenchmarkedModel) -> str:
    """Returns a model's accuracy and cost in one line."""
    cost = "cost not known" if model.cost_per_answer is None else f"{dollars(model.cost_per_answer)} an answer"
    accuracy = model.accuracy
    return f"{model.name}: {accuracy.mean:.1%} ({accuracy.low:.1%} to {accuracy.high:.1%}), {cost}"


def _row(model: BenchmarkedModel) -> dict[str, Any]:
    accuracies = {
        f"{grader} {what} {bound}": round(getattr(interval, bound), 4)
        for grader, accuracy in model.gradings.items()
        for what, interval in (("letters", accuracy.letters), ("all right", accuracy.all_right))
        for bound in ("mean", "low", "high")
    }
    tokens = {"prompt tokens": model.prompt_tokens, "completion tokens": model.completion_tokens}
    outcomes = ", ".join(f"{count} {outcome}" for outcome, count in model.outcomes.items())
    return {"model": model.name, **accuracies, **tokens, "$ per answer": model.cost_per_answer, "outcomes": outcomes}
