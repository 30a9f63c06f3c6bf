"""Questions of the hub and of web servers: what is read, what is refused, what is stored."""

import contextlib
import gzip
import io
import json
import random
import ssl
import subprocess
import time
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from artifacts.address import ArtifactAddress
from artifacts.errors import BadInputError
from artifacts.reading import Artifact
from artifacts.refs import Puzzles
from artifacts.schemas import PUZZLES
from flows.config.settings import validate
from flows.inputs.puzzle_sets import made_from_a_lost_file
from stages.context import StageContext
from stages.environments.question_file.config import QuestionFileConfig
from stages.prepare import PrepareConfig, identity_of, prepare
from tests.support.hub_server import TOKEN, Hub, hub_server, use_hub
from tests.support.secrets import holders_of
from tests.support.serving import Replies, http_server, serving


def rows(first: int, count: int) -> list[dict[str, Any]]:
    return [{"question": f"What is {i} + {i}?", "answer": f"Both.\n#### {2 * i}"} for i in range(first, first + count)]


def parquet(table: list[dict[str, Any]]) -> bytes:
    buffer = io.BytesIO()
    pl.DataFrame(table).write_parquet(buffer)
    return buffer.getvalue()


MAIN = {
    "README.md": b"# Sums",
    "main/train-00000-of-00002.parquet": parquet(rows(0, 20)),
    "main/train-00001-of-00002.parquet": parquet(rows(20, 20)),
    "main/test-00000-of-00001.parquet": parquet(rows(90, 5)),
}
CONVERTED = {
    "main/train/0000.parquet": parquet(rows(0, 40)),
    "main/test/0000.parquet": parquet(rows(90, 5)),
    "socratic/train/0000.parquet": parquet(rows(50, 5)),
}
LINES = "".join(json.dumps(row) + "\n" for row in rows(0, 40)).encode()


@pytest.fixture(scope="module")
def shared_hub() -> Iterator[Hub]:
    noise = random.Random(1)
    wide = parquet([{**row, "steps": noise.randbytes(100_000).hex()} for row in rows(0, 40)])
    datasets = {
        "we/sums": {"main": MAIN, "refs/convert/parquet": CONVERTED},
        "we/moving": {"main": MAIN},
        "we/wide": {"main": {"data.parquet": wide, "data.jsonl": LINES}},
        "we/secret": {"main": {"data.jsonl": LINES}},
        "we/gated": {"main": {"data.jsonl": LINES, "data.parquet": parquet(rows(0, 20))}},
    }
    hub = Hub(datasets, private=frozenset({"we/secret"}), gated=frozenset({"we/gated"}), files={"sums.jsonl": LINES})
    with hub_server(hub):
        yield hub


@pytest.fixture
def hub(shared_hub: Hub, monkeypatch: pytest.MonkeyPatch) -> Hub:
    use_hub(shared_hub.url, monkeypatch)
    shared_hub.asked.clear()
    shared_hub.sent_bytes = 0
    return shared_hub


def requested(path: str, train: int = 30, **settings: Any) -> PrepareConfig:
    puzzle = QuestionFileConfig(path=path, grader="number", answer_after="####", **settings)
    return PrepareConfig(puzzle=puzzle, train=train, val=5, test=5)


def made(config: PrepareConfig, ctx: StageContext) -> Artifact:
    key = f"puzzles/set-{identity_of(config).digest[:12]}"
    return Artifact.open(ctx.store, prepare(ctx, config, out=ArtifactAddress(ctx.store, key, Puzzles)))


def test_the_two_forms_of_a_data_set_give_the_same_questions(hub: Hub, ctx: StageContext) -> None:
    files = requested("hf://datasets/we/sums/main/train-*.parquet")
    short = requested("hub:we/sums", config="main", split="train")
    tables = [made(config, ctx).read_table("train.parquet", PUZZLES) for config in (files, short)]
    asked = {f"What is {i} + {i}?": str(2 * i) for i in range(40)}
    for table in tables:
        given = {row["prompt"]: json.loads(row["solution"])["answer"] for row in table.iter_rows(named=True)}
        assert len(given) == 30 and given.items() <= asked.items()
        assert given.keys() == set(tables[0]["prompt"])
    assert identity_of(files).config["commit"] == hub.commit("we/sums", "main")
    assert identity_of(short).config["commit"] == hub.commit("we/sums", "refs/convert/parquet")


def test_a_set_is_pinned_and_read_once(hub: Hub, ctx: StageContext) -> None:
    for config in (requested("hub:we/sums", config="main", split="train"), requested(f"{hub.url}/sums.jsonl")):
        before = identity_of(config)
        assert made_from_a_lost_file(config, ctx.store) is None
        artifact = made(config, ctx)
        hub.asked.clear()
        assert made_from_a_lost_file(config, ctx.store) == artifact.ref
        assert hub.asked == []
        assert made_from_a_lost_file(config.model_copy(update={"seed": 1}), ctx.store) is None
        assert before == artifact.manifest.identity


def test_the_commit_is_part_of_the_identity(hub: Hub) -> None:
    path, first = "hf://datasets/we/moving/main/train-*.parquet", hub.commit("we/moving", "main")
    before = identity_of(requested(path))
    hub.datasets["we/moving"] = {"main": {**MAIN, "main/train-2.parquet": parquet(rows(70, 2))}, "v1": MAIN}
    assert identity_of(requested(path)) != before
    for same in (requested(path, revision=first), requested(path.replace("moving", "moving@v1"))):
        assert identity_of(same) == before


def test_only_the_columns_of_a_recipe_are_downloaded(hub: Hub, ctx: StageContext) -> None:
    config = requested("hf://datasets/we/wide/data.parquet")
    assert len(made(config, ctx).read_table("train.parquet", PUZZLES)) == 30
    assert hub.sent_bytes < len(hub.datasets["we/wide"]["main"]["data.parquet"]) / 2


@pytest.mark.parametrize(
    ("path", "settings", "message"),
    [
        ("hub:we/none", {}, r"^hub:we/none: no such data set, or no access to it; .* HF_TOKEN or use `hf auth login`$"),
        ("hf://datasets/we/gated/data.parquet", {}, "conditions that were not accepted"),
        (
            "hf://datasets/we/gated/data.jsonl",
            {},
            "conditions that were not accepted; expected access; accept its cond",
        ),
        ("hub:we/sums", {}, "2 configs; expected one of: main, socratic; set puzzles.puzzle.config"),
        ("hub:we/sums", {"config": "mian"}, "no config 'mian', did you mean 'main'.*one of: main, socratic; set"),
        ("hub:we/sums", {"config": "main"}, "2 splits; expected one of: test, train; set puzzles.puzzle.split"),
        ("hub:we/sums", {"config": "socratic", "split": "tset"}, "no split 'tset'; expected one of: train; set"),
        ("hub:we/wide", {}, "has not converted to Parquet; .* name its files by hf://datasets/OWNER/NAME/FILE"),
        ("hub:we/sums", {"revision": "v2"}, "no revision 'v2'; expected a commit, tag or branch; set"),
        ("hf://datasets/we/wide/data.parqet", {}, "no file 'data.parqet', did you mean 'data.parquet'.*: data.jsonl, "),
        (
            "hf://datasets/we/sums/main/train-*.parquet",
            {"question": "qestion"},
            "no column 'qestion', did you mean 'qu",
        ),
    ],
)
def test_what_is_not_there_is_refused_before_anything_is_downloaded(
    hub: Hub, path: str, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(BadInputError, match=message) as raised:
        identity_of(requested(path, **settings))
    assert "\n" not in str(raised.value)
    assert hub.sent_bytes < 10_000


def test_a_private_data_set_needs_a_token_which_is_not_stored(
    hub: Hub, ctx: StageContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = requested("hf://datasets/we/secret/data.jsonl")
    with pytest.raises(BadInputError, match="no access to it"):
        identity_of(config)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    assert len(made(config, ctx).read_table("test.parquet", PUZZLES)) == 5
    assert holders_of([TOKEN], [tmp_path], of_at_least=3) == []


def test_web_addresses_that_cannot_be_read(hub: Hub) -> None:
    for url, message in (
        (f"{hub.url}/none.jsonl", "HTTP 401; expected a file .jsonl"),
        ("http://127.0.0.1:9/a.jsonl", "cannot be read .*; check puzzles.puzzle.path and the network"),
        ("https://me:secret@host/a.jsonl", "credentials or options in the address"),
    ):
        with pytest.raises(BadInputError, match=message) as raised:
            identity_of(requested(url))
        assert "secret" not in str(raised.value)


class HostileSite(Replies):
    """Compresses twice, drips, or leads from TLS to an address without it."""

    def do_GET(self) -> None:
        kind = self.path.partition(".")[0].removeprefix("/")
        self.send_response(302 if kind == "leads" else 200)
        if kind == "leads":
            self.send_header("Location", f"http://127.0.0.1:{self.server.server_port}/plain.jsonl")  # type: ignore[attr-defined]
        if kind == "twice":
            self.send_header("Content-Encoding", "gzip, gzip")
        self.end_headers()
        self.wfile.write(gzip.compress(gzip.compress(LINES)) if kind == "twice" else LINES)
        with contextlib.suppress(OSError):
            while kind == "drips":
                self.wfile.write(b"\n")
                time.sleep(0.02)


def test_a_web_server_neither_fills_the_memory_nor_holds_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stages.environments.question_file.files._LONGEST_S", 0.5)
    with http_server(HostileSite) as url:
        for name, message in (("twice", "Content-Encoding 'gzip, gzip', not gzip"), ("drips", r"no end after 0\.5 s")):
            with pytest.raises(BadInputError, match=rf"{name}\.jsonl: cannot be read \({message}\)"):
                identity_of(requested(f"{url}/{name}.jsonl"))


def test_an_address_with_tls_leads_to_none_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    certificate, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
    make = "openssl req -x509 -newkey rsa:2048 -nodes -days 1 -subj /CN=localhost -addext subjectAltName=DNS:localhost"
    subprocess.run([*make.split(), "-keyout", key, "-out", certificate], check=True, capture_output=True)
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    plain, server = (ThreadingHTTPServer(("127.0.0.1", 0), HostileSite) for _ in range(2))
    with serving(plain), serving(server):
        server.socket = context.wrap_socket(server.socket, server_side=True)
        server.server_port = plain.server_port  # where the redirect leads
        url = f"https://localhost:{server.server_address[1]}"
        assert identity_of(requested(f"{url}/plain.jsonl"))
        with pytest.raises(BadInputError, match="a redirect to an address without TLS"):
            identity_of(requested(f"{url}/leads.jsonl"))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"path": "hub:sums"}, "write hub:OWNER/NAME, or hf://datasets/OWNER/NAME/FILE"),
        ({"path": "hf://models/we/sums/a.jsonl"}, "write hub:OWNER/NAME"),
        ({"path": "hf://datasets/we/sums"}, "write hub:OWNER/NAME"),
        ({"path": "a.jsonl", "split": "train"}, "split_column names a column"),
        (
            {"path": "hf://datasets/we/sums/a.csv", "config": "main"},
            "config and split choose a part of a data set hub:",
        ),
        ({"path": "a.jsonl", "revision": "main"}, "revision is that of a data set of the hub"),
        ({"path": "hf://datasets/we/sums@v1/a.csv", "revision": "main"}, "whose path names no other one"),
    ],
)
def test_bad_paths(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInputError, match=message):
        validate(PrepareConfig, {"puzzle": {"environment": "file", "grader": "number", **settings}}, "puzzles")
