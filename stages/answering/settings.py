"""Settings of a request to a model behind an API, and of the access to this API."""

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self, cast

from pydantic import AfterValidator, Field, field_validator, model_validator

from artifacts.config import Config
from artifacts.errors import BadInputError

_OURS = ("messages", "model", "n", "stream")
"""Fields of a request that the stage sets."""
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,59}")
"""Form of the name of an environment variable."""
_SECRETS = ("api_key", "key", "token", "secret", "password", "authorization", "headers")
"""Names of settings that may hold a key."""


def refuse_keys(table: Mapping[str, Any], where: str) -> None:
    """Refuses settings that may hold a key, before any error could repeat its value.

    Args:
        table: The settings of a model behind an API.
        where: Start of the error.

    Raises:
        BadInputError: One has the name of a key, or `api_key_env` is not the name of a variable.
    """
    if secrets := [setting for setting in table if setting.lower() in _SECRETS]:
        found = f"the setting {secrets[0]!r}, which may hold a key (its value is not shown)"
        remedy = "set api_key_env to the name of the environment variable that holds it"
        raise BadInputError(where, found, "no key in the file", remedy)
    variable = table.get("api_key_env")
    if isinstance(variable, str) and not VARIABLE.fullmatch(variable):
        found = "api_key_env is not the name of a variable (its value is not shown)"
        expected = "the name of an environment variable, such as OPENAI_API_KEY"
        raise BadInputError(where, found, expected, "never the key itself")


class Parameters(Config):
    """Parameters of a request. A parameter that is null is not sent, so the provider's default applies."""

    temperature: float | None = Field(default=None, ge=0.0, le=10.0, description="Softmax temperature.")
    top_p: float | None = Field(default=None, gt=0.0, le=1.0, description="Nucleus mass.")
    max_tokens: int | None = Field(
        default=None, ge=1, le=10_000_000, description="Length limit of an answer in tokens, reasoning included."
    )
    max_completion_tokens: int | None = Field(
        default=None, ge=1, le=10_000_000, description="The same limit by the name that OpenAI's own models require."
    )
    reasoning_effort: str | None = Field(
        default=None, pattern=r"^[a-z_]{1,20}$", description="Effort of a reasoning model, such as low or high."
    )
    reasoning_tokens: int | None = Field(
        default=None,
        ge=1,
        le=10_000_000,
        description="Budget of reasoning tokens, sent as `reasoning.max_tokens`, which is OpenRouter's form.",
    )
    seed: int | None = Field(
        default=None, ge=0, le=2**31, description="Seed of the first sample; sample i is asked with this plus i."
    )
    extra_body: dict[str, Any] = Field(default={}, description="Further fields of the request, sent as they are.")

    @field_validator("extra_body")
    @classmethod
    def _leaves_ours(cls, extra: dict[str, Any]) -> dict[str, Any]:
        if taken := [name for name in extra if name in _OURS]:
            raise ValueError(f"{', '.join(taken)}: set by the benchmark itself")
        if known := [name for name in extra if name in cls.model_fields]:
            raise ValueError(f"{', '.join(known)}: a parameter of its own, set it as one")  # the budget counts with it
        return extra

    @model_validator(mode="after")
    def _one_limit(self) -> Self:
        if self.max_tokens is not None and self.max_completion_tokens is not None:
            raise ValueError("max_tokens and max_completion_tokens are one limit by two names: keep one")
        return self

    @property
    def limit_tokens(self) -> int | None:
        """Length limit of an answer in tokens; None if none is sent."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    def body(self, sample: int) -> dict[str, Any]:
        """Returns the fields of a request for a sample, besides model and messages."""
        fields = self.model_dump(exclude_none=True, exclude={"extra_body", "reasoning_tokens"})
        if self.seed is not None:
            fields["seed"] = self.seed + sample
        if self.reasoning_tokens is not None:
            fields["reasoning"] = {"max_tokens": self.reasoning_tokens}
        return _merged(fields, self.extra_body)


def _merged(fields: Mapping[str, Any], extra: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields of both; `extra` overrides, and a table that both have is merged."""
    merged = dict(fields)
    for name, value in extra.items():
        own = merged.get(name)
        both = isinstance(own, dict) and isinstance(value, dict)
        merged[name] = {**cast("dict[str, Any]", own), **cast("dict[str, Any]", value)} if both else value
    return merged


class ApiRequest(Config):
    """Everything that a request sends besides the prompt. It is part of the identity of answers."""

    model: str = Field(min_length=1, max_length=300, description="Id of the model, as its provider names it.")
    base_url: Annotated[str, AfterValidator(lambda url: url.rstrip("/"))] = Field(
        default="https://api.openai.com/v1",
        pattern=r"^https?://[^@?#\s]+$",
        description="Address of the API, without the path of a method; it holds no password.",
    )
    parameters: Parameters = Field(default_factory=Parameters, description="Parameters of a request.")

    def identity(self) -> dict[str, Any]:
        """Returns the address, the model and all fields that are sent, as JSON."""
        return {"base_url": self.base_url, "model": self.model, **self.parameters.body(0)}


class Access(Config):
    """Access to an API: key, concurrency, limits and retries. It is not part of any identity."""

    api_key_env: str | None = Field(
        default=None,
        pattern=rf"^{VARIABLE.pattern}$",
        description="Name of the environment variable with the key; null: the API requires none. The key itself is "
        "never written anywhere.",
    )
    concurrency: int = Field(default=16, ge=1, le=1000, description="Number of requests at the same time.")
    tokens_per_minute: int | None = Field(
        default=None, ge=1, description="Limit of prompt and completion tokens in a minute; null: none."
    )
    timeout_s: float = Field(
        default=2400.0, gt=0.0, le=86_400.0, description="Seconds after which a request without a reply is lost."
    )
    retries: int = Field(
        default=5, ge=0, le=100, description="Number of retries of a request after a failure that may pass."
    )
    retry_delay_s: float = Field(
        default=1.0,
        ge=0.0,
        le=600.0,
        description="Seconds before the first retry; each further delay is twice as long.",
    )
    failed_calls: Literal["stop", "count"] = Field(
        default="stop",
        description="What follows if a question has no reply after all retries. stop: the benchmark fails after the "
        "other questions, and the same command asks again. count: the outcome `failed` is stored and counts as wrong.",
    )
