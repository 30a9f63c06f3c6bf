"""A reply of an OpenAI-compatible API, and how it is read."""

from dataclasses import dataclass, field
from typing import Any, cast

from artifacts.schemas import Outcome


@dataclass(frozen=True)
class Reply:
    """A reply of a model.

    Attributes:
        outcome: How the answer ended.
        text: The answer; empty if there is none.
        reasoning: The reasoning that the reply shows; None if it shows none.
        finish_reason: The provider's word for the outcome; empty if there is none.
        detail: Words of a refusal or an error; None if there are none.
        usage: The token counts of the reply, all fields as the provider sent them.
        response_id: Id of the reply; empty if it has none.
        model: Name of the model in the reply.
        fingerprint: Fingerprint of the provider's system; None if it has none.
        provider: Provider to which a router passed the question; None if the reply names none.
        latency_s: Seconds of the attempt that succeeded.
        attempts: Number of attempts.
    """

    outcome: Outcome
    text: str = ""
    reasoning: str | None = None
    finish_reason: str = ""
    detail: str | None = None
    usage: dict[str, Any] = field(default_factory=dict[str, Any])
    response_id: str = ""
    model: str = ""
    fingerprint: str | None = None
    provider: str | None = None
    latency_s: float = 0.0
    attempts: int = 1


def objects_in(value: object) -> list[dict[str, Any]]:
    """Returns the objects in a JSON list; an empty list for any other value."""
    entries = cast("list[object]", value) if isinstance(value, list) else []
    return [cast("dict[str, Any]", item) for item in entries if isinstance(item, dict)]


def reply_of(body: dict[str, Any], *, latency_s: float, attempts: int) -> Reply:
    """Returns the first choice of a reply's body; the other arguments are attributes of it."""
    choice = objects_in(body["choices"])[0]
    message = _table(choice.get("message"))
    text, finish_reason = _content(message.get("content")), _text(choice.get("finish_reason")) or ""
    refusal, fault = _text(message.get("refusal")), _table(choice.get("error"))
    outcome: Outcome = "answered"
    if finish_reason == "error" or fault:
        outcome = "error"
    elif refusal or finish_reason == "content_filter":
        outcome = "refusal"
    elif finish_reason == "length":
        outcome = "length"
    elif not text.strip():
        outcome = "empty"
    return Reply(
        text=text,
        reasoning=_text(message.get("reasoning_content")) or _text(message.get("reasoning")),
        outcome=outcome,
        finish_reason=finish_reason,
        detail=refusal or _text(fault.get("message")),
        usage=_table(body.get("usage")),
        response_id=_text(body.get("id")) or "",
        model=_text(body.get("model")) or "",
        fingerprint=_text(body.get("system_fingerprint")),
        provider=_text(body.get("provider")),
        latency_s=latency_s,
        attempts=attempts,
    )


def _table(value: object) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _text(value: object) -> str | None:
    """Returns a string with `?` for lone surrogates, such as half of a cut emoji; None if it is empty or no string."""
    return value.encode(errors="replace").decode() if isinstance(value, str) and value else None


def _content(value: object) -> str:
    """Returns the text of a message, which is a string or a list of parts."""
    if isinstance(value, str):
        return _text(value) or ""
    return "".join(_text(part.get("text")) or "" for part in objects_in(value))
