"""Loads files of models for a benchmark: names, addresses, parameters and prices, never API keys."""

import datetime
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, Self, cast

from pydantic import Field, field_validator, model_validator

from artifacts.config import Config
from artifacts.documents.suggestions import did_you_mean
from artifacts.errors import BadInputError
from flows.config.settings import load_settings
from stages.answer import AskedApi, AskedCheckpoint
from stages.answering.prices import HourPrice, TokenPrice, Tokens
from stages.answering.settings import Access, ApiRequest, refuse_keys
from stages.sampling.config import SamplingConfig
from stages.strategies.config import check_temperatures

_NAME = r"^[A-Za-z0-9][A-Za-z0-9._, -]{0,59}$"
_OLDEST_DAYS = 365
"""Age at which a price is too old for a purchase."""


class ExpectedTokens(Config):
    """Mean token counts of an answer, measured earlier; only estimates use them."""

    prompt: float = Field(ge=0.0, description="Tokens of a prompt.")
    completion: float = Field(ge=0.0, description="Tokens of a completion, reasoning included.")

    def tokens(self) -> Tokens:
        """Returns the counts."""
        return Tokens(self.prompt, self.completion)


class ApiModel(ApiRequest, Access):
    """A model behind an OpenAI-compatible API."""

    name: str = Field(pattern=_NAME, description="Name in tables.")
    kind: Literal["openai"] = Field(description="What the model is.")
    price: TokenPrice | None = Field(default=None, description="Price of tokens; null: costs are not known.")
    expected: ExpectedTokens | None = Field(
        default=None, description="Mean token counts of an answer, for estimates of the cost; null: not known."
    )

    def asked(self) -> AskedApi:
        """Returns the settings that are part of the identity of its answers."""
        return AskedApi(**{name: getattr(self, name) for name in ApiRequest.model_fields})


class CheckpointModel(Config):
    """A checkpoint, which Deerstalker's own engine samples from."""

    name: str = Field(pattern=_NAME, description="Name in tables.")
    kind: Literal["checkpoint"] = Field(description="What the model is.")
    checkpoint: str = Field(
        min_length=1, description="A checkpoint, in any form that `deerstalker evaluate --help` lists."
    )
    parameters: SamplingConfig = Field(
        default_factory=SamplingConfig, description="Sampling settings; `samples_per_prompt` is set by `--samples`."
    )
    price: HourPrice | None = Field(default=None, description="Price of the machine; null: costs are not known.")

    @field_validator("parameters")
    @classmethod
    def _samples_elsewhere(cls, parameters: SamplingConfig) -> SamplingConfig:
        if "samples_per_prompt" in parameters.model_fields_set:
            raise ValueError("samples_per_prompt: the option --samples sets it for all models")
        return parameters

    def asked(self) -> AskedCheckpoint:
        """Returns the settings that, besides the weights, are part of the identity of its answers."""
        return AskedCheckpoint(sampling=self.parameters)


Model = Annotated[ApiModel | CheckpointModel, Field(discriminator="kind")]


class ModelsFile(Config):
    """The models of a benchmark."""

    title: str = Field(default="", description="What the models are, in one line.")
    models: list[Model] = Field(min_length=1, max_length=1000, description="The models, in the order of the table.")

    @model_validator(mode="before")
    @classmethod
    def _without_keys(cls, data: Any) -> Any:
        """Refuses an API key in the file, before any error could repeat its value."""
        models = cast("dict[str, Any]", data).get("models") if isinstance(data, Mapping) else None
        for model in cast("list[Any]", models) if isinstance(models, list) else []:
            if not isinstance(model, Mapping):
                continue
            table = cast("Mapping[str, Any]", model)
            refuse_keys(table, f"model {table.get('name')!r}")
        return data

    @model_validator(mode="after")
    def _names_differ(self) -> Self:
        twice = [name for name, count in Counter(model.name.lower() for model in self.models).items() if count > 1]
        if twice:
            raise ValueError(f"two models have the name {twice[0]!r}")
        return self


def load_models(name: str, only: Sequence[str] = ()) -> list[ApiModel | CheckpointModel]:
    """Loads the models of a file, by its name in the package or by its path.

    Args:
        name: Name of a file in `deployments/models`, or path of a TOML file.
        only: Names of the models to take; all if empty.

    Raises:
        BadInputError: No such file, broken TOML, a wrong setting, two models of one name, an API key in the file, a
            temperature that vLLM does not take, or an unknown name in `only`.
    """
    models = list(load_settings(ModelsFile, "models", name, ()).models)
    check_temperatures(models, f"{name}: models", samples=False)
    names = [model.name for model in models]
    for wanted in only:
        if wanted not in names:
            raise BadInputError(f"--only {wanted}", f"unknown{did_you_mean(wanted, names)}", ", ".join(names))
    return [model for model in models if not only or model.name in only]


def check_purchase(model: ApiModel, *, max_cost: float | None, today: datetime.date, old_prices: bool) -> None:
    """Checks that the cost of a model's answers is bounded if there is a budget, and that its price is not too old.

    Raises:
        BadInputError: A budget is given but the model has no price or no limit of an answer's length, or its price is
            dated more than a year from `today` and `old_prices` is false.
    """
    where, price = f"model {model.name!r}", model.price
    if max_cost is not None and (price is None or model.parameters.limit_tokens is None):
        lacks = "price" if price is None else "parameters.max_tokens"
        raise BadInputError(
            where, f"no {lacks}, so the cost of an answer has no bound", lacks,
            f"set {lacks}, or drop --max-cost",
        )  # fmt: skip
    if price is not None and not old_prices and abs((today - price.date).days) > _OLDEST_DAYS:
        raise BadInputError(
            where, f"a price of {price.date}", f"a price less than a year from today, {today}",
            "update price and date, or add --old-prices",
        )  # fmt: skip
