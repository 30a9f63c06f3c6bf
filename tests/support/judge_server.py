"""A judge behind an OpenAI-compatible API on this machine, which answers by a rule."""

import json
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

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

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self, status: int, body: dict[str, Any]) -> None:
            content = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def refused(self) -> bool:
            if key is None or self.headers["Authorization"] == f"Bearer {key}":
                return False
            self.answer(401, {"error": {"message": "no such key"}})
            return True

        def do_GET(self) -> None:
            if not self.refused():
                self.answer(200, {"data": [{"id": MODEL}]})

        def do_POST(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if self.refused():
                return
            question = request["messages"][-1]["content"]
            judge.asked.append(question)
            if (text := rule(question)) is None:
                self.answer(400, {"error": {"message": "longer than the context"}})
                return
            reason = "length" if text.endswith("...") else "stop"
            reply = {"message": {"role": "assistant", "content": text}, "finish_reason": reason, "index": 0}
            body = {"id": f"reply-{len(judge.asked)}", "model": MODEL, "choices": [reply]}
            usage = {"usage": {"prompt_tokens": 10, "completion_tokens": 2, "total_tokens": 12}}
            self.answer(200, body | usage if states_usage else body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        judge.url = f"http://127.0.0.1:{server.server_port}/v1"
        try:
            yield judge
        finally:
            server.shutdown()
