"""A judge behind an OpenAI-compatible API on this machine, which answers by a rule."""

import json
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field

from tests.support.serving import Replies, http_server

MODEL = "judge-1"


@dataclass
class Judge:
    """A running judge.

    Attributes:
        url: Its `base_url`.
        asked: The questions that it was asked, in order.
    """

    url: str = ""
    asked: list[str] = field(default_factory=list[str])


@contextmanager
def judge_server(
    rule: Callable[[str], str | None], key: str | None = None, *, states_usage: bool = True
) -> Generator[Judge]:
    """Serves a judge while the block runs.

    Args:
        rule: Returns the reply to a question, one that was cut if it ends with "..."; None refuses it.
        key: The key that it requires; None for none.
        states_usage: Whether a reply has the numbers of its tokens: 10 of the prompt and 2 of the reply.
    """
    judge = Judge()

    class Handler(Replies):
        protocol_version = "HTTP/1.1"

        def refused(self) -> bool:
            if key is None or self.headers["Authorization"] == f"Bearer {key}":
                return False
            self.reply({"error": {"message": "no such key"}}, 401)
            return True

        def do_GET(self) -> None:
            if not self.refused():
                self.reply({"data": [{"id": MODEL}]})

        def do_POST(self) -> None:
            request = json.loads(self.body())
            if self.refused():
                return
            question = request["messages"][-1]["content"]
            judge.asked.append(question)
            if (text := rule(question)) is None:
                self.reply({"error": {"message": "longer than the context"}}, 400)
                return
            reason = "length" if text.endswith("...") else "stop"
            choice = {"message": {"role": "assistant", "content": text}, "finish_reason": reason, "index": 0}
            body = {"id": f"reply-{len(judge.asked)}", "model": MODEL, "choices": [choice]}
            usage = {"usage": {"prompt_tokens": 10, "completion_tokens": 2, "total_tokens": 12}}
            self.reply(body | usage if states_usage else body)

    with http_server(Handler) as url:
        judge.url = f"{url}/v1"
        yield judge
