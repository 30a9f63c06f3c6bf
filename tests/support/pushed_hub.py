"""A server on 127.0.0.1 that speaks the hub's routes for pushing a repository and for fetching its files."""

import base64
import json
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256

from tests.support.serving import Replies, http_server

COMMIT = "a" * 40
TOKEN = "hf_only_for_this_test"


@dataclass
class PushedHub:
    """What was pushed.

    Attributes:
        url: Address of the server (`HF_ENDPOINT`).
        files: Content of each file, by `OWNER/NAME/FILE`.
        private: Repositories that were made, and whether they are private.
        refused: Requests without the token.
    """

    url: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    private: dict[str, bool] = field(default_factory=dict)
    refused: list[str] = field(default_factory=list)


@contextmanager
def pushed_hub() -> Generator[PushedHub]:
    """Runs the server for the time of the block."""
    hub = PushedHub()

    class Handler(Replies):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.body()
            if self.headers.get("Authorization") != f"Bearer {TOKEN}":
                hub.refused.append(self.path)
                return self.reply({"error": "Invalid credentials"}, 401)
            match self.path.strip("/").split("/"):
                case ["api", "repos", "create"]:
                    asked = json.loads(body)
                    name = f"{asked['organization']}/{asked['name']}"
                    hub.private[name] = asked["private"] if "private" in asked else asked["visibility"] == "private"
                    answer = {"url": f"{hub.url}/{name}", "id": name}
                case ["api", "validate-yaml"]:
                    answer = {"errors": [], "warnings": []}
                case ["api", "models", _, _, "preupload", "main"]:
                    paths = [file["path"] for file in json.loads(body)["files"]]
                    answer = {"files": [{"path": p, "uploadMode": "regular", "shouldIgnore": False} for p in paths]}
                case ["api", "models", owner, name, "commit", "main"]:
                    for line in map(json.loads, body.splitlines()):
                        if line["key"] == "file":
                            content = base64.b64decode(line["value"]["content"])
                            hub.files[f"{owner}/{name}/{line['value']['path']}"] = content
                        elif line["key"] == "deletedFile":
                            del hub.files[f"{owner}/{name}/{line['value']['path']}"]
                    answer = {
                        "success": True,
                        "commitUrl": f"{hub.url}/{owner}/{name}/commit/{COMMIT}",
                        "commitOid": COMMIT,
                    }
                case _:
                    return self.reply({}, 404)
            return self.reply(answer)

        def do_GET(self) -> None:
            if self.path.startswith("/api/models/") and "/tree/main" in self.path:
                repository = "/".join(self.path.split("/")[3:5])
                names = [name.removeprefix(f"{repository}/") for name in hub.files if name.startswith(repository)]
                tree = [{"type": "file", "path": name, "size": 1, "oid": COMMIT} for name in names]
                return self.reply(tree)
            owner, name, _, _, file = self.path.strip("/").split("/", 4) if self.path.count("/") > 4 else ("",) * 5
            content = hub.files.get(f"{owner}/{name}/{file}")
            if content is None:
                return self.reply(b"", 404, X_Error_Code="EntryNotFound")
            return self.reply(content, ETag=f'"{sha256(content).hexdigest()}"', X_Repo_Commit=COMMIT)

        def do_HEAD(self) -> None:
            self.do_GET()

    with http_server(Handler) as hub.url:
        yield hub
