"""A server on 127.0.0.1 that speaks the routes of Hugging Face's hub by which data sets are read, and serves files."""

import hashlib
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import ThreadingHTTPServer
from typing import Any, cast
from urllib.parse import unquote, urlsplit

import pytest

from tests.support.serving import Replies, serving

Branches = dict[str, dict[str, bytes]]
"""Content of each file, by branch."""
TOKEN = "hf_" + "t" * 30


@dataclass
class Hub:
    """What the server holds, and what it was asked.

    Attributes:
        datasets: Branches of each data set.
        private: Names of those that need `TOKEN`.
        gated: Names of those whose conditions nobody accepted.
        files: Content of other files, by path.
        asked: Method and path of each request.
        sent_bytes: Bytes of contents that were sent.
    """

    datasets: dict[str, Branches]
    private: frozenset[str] = frozenset()
    gated: frozenset[str] = frozenset()
    files: dict[str, bytes] = field(default_factory=dict[str, bytes])
    asked: list[str] = field(default_factory=list[str])
    sent_bytes: int = 0
    url: str = ""

    def commit(self, name: str, branch: str) -> str:
        """Returns the commit of a branch, a digest of its content."""
        content = sorted(self.datasets[name][branch].items())
        return hashlib.sha1(repr(content).encode()).hexdigest()


def use_hub(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes this process ask another hub, without a token: huggingface_hub reads HF_ENDPOINT once, at its import."""
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", url)
    template = f"{url}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
    monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", "/nonexistent")
    monkeypatch.delenv("HF_TOKEN", raising=False)


class _Handler(Replies):
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self._answer(self.command, unquote(urlsplit(self.path).path).strip("/"))

    def do_GET(self) -> None:
        self._answer(self.command, unquote(urlsplit(self.path).path).strip("/"))

    def _answer(self, method: str, path: str) -> None:
        hub = cast("_Server", self.server).hub
        hub.asked.append(f"{method} {path}")
        if (content := hub.files.get(path)) is not None:
            self._send_content(content)
            return
        parts = path.removeprefix("api/").split("/")
        name, route, rest = "/".join(parts[1:3]), parts[3] if len(parts) > 3 else "", "/".join(parts[4:])
        allowed = name not in hub.private or self.headers.get("Authorization") == f"Bearer {TOKEN}"
        if parts[0] != "datasets" or name not in hub.datasets or not allowed:
            self._refuse(401, "RepoNotFound")
        elif name in hub.gated and route == "resolve":  # as on the hub, everybody sees the names of the files
            self._refuse(403, "GatedRepo")
        elif found := self._branch(hub, name, rest):
            branch, rest = found
            self._of_branch(hub, name, branch, route, rest)
        else:
            self._refuse(404, "RevisionNotFound")

    def _branch(self, hub: Hub, name: str, rest: str) -> tuple[str, str] | None:
        """Returns the branch at the beginning of a path, and what follows."""
        for branch in hub.datasets[name]:
            for revision in (branch, hub.commit(name, branch)):
                if f"{rest}/".startswith(f"{revision}/"):
                    return branch, rest[len(revision) + 1 :]
        return None

    def _of_branch(self, hub: Hub, name: str, branch: str, route: str, rest: str) -> None:
        files, commit = hub.datasets[name][branch], hub.commit(name, branch)
        if route == "revision":
            siblings = [{"rfilename": file} for file in sorted(files)]
            self.reply({"id": name, "sha": commit, "private": name in hub.private, "siblings": siblings})
        elif route == "tree":
            prefix = f"{rest}/" if rest else ""
            inside = {file: content for file, content in files.items() if file.startswith(prefix)}
            entries: dict[str, dict[str, Any]] = {}
            for file, content in inside.items():
                first, deeper, _ = file[len(prefix) :].partition("/")
                kind = {"type": "directory"} if deeper else {"type": "file", "size": len(content)}
                entries[first] = {"path": prefix + first, "oid": hashlib.sha1(content).hexdigest(), "size": 0, **kind}
            self.reply([entries[key] for key in sorted(entries)])
        elif route == "resolve" and rest in files:
            self._send_content(files[rest], X_Repo_Commit=commit)
        else:
            self._refuse(404, "EntryNotFound")

    def _send_content(self, content: bytes, **headers: str) -> None:
        headers |= {"ETag": f'"{hashlib.sha256(content).hexdigest()}"', "Accept-Ranges": "bytes"}
        status, span = 200, self.headers.get("Range", "")
        if span.startswith("bytes="):
            first, _, last = span.removeprefix("bytes=").partition("-")
            start, end = int(first), min(int(last) if last else len(content) - 1, len(content) - 1)
            status, headers["Content-Range"] = 206, f"bytes {start}-{end}/{len(content)}"
            content = content[start : end + 1]
        cast("_Server", self.server).hub.sent_bytes += len(content) if self.command == "GET" else 0
        self.reply(content, status, **headers)

    def _refuse(self, status: int, code: str) -> None:
        self.reply({}, status, X_Error_Code=code)


class _Server(ThreadingHTTPServer):
    hub: Hub


@contextmanager
def hub_server(hub: Hub) -> Generator[Hub]:
    """Serves a hub, whose `url` is then its address, for the length of a with block."""
    with serving(_Server(("127.0.0.1", 0), _Handler)) as server:
        server.hub = hub
        hub.url = f"http://127.0.0.1:{server.server_address[1]}"
        yield hub
