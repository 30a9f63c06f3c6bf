"""A model server that gives scripted answers, and a store with its puzzles and its model."""

import json
import socket
import socketserver
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from artifacts.address import ArtifactAddress
from artifacts.identity import Identity
from artifacts.reading import Artifact
from artifacts.refs import Batch, Checkpoint, Grades, PassRates, Puzzles, Ref, Report, Rollouts
from artifacts.schemas import GRADES, PUZZLES
from stages.context import StageContext
from stages.curriculum.order import stride
from stages.environments.logic_puzzles.answers import write_answer
from stages.environments.puzzle import Puzzle
from stages.environments.tables import to_table
from stages.evaluate import EvaluateConfig, HeldOutSampling, evaluate
from stages.grade import GradeConfig, grade
from stages.grpo.packing import PackConfig
from stages.models.tokenizers.chat import ChatTokenizer
from stages.pack import pack
from stages.sample import SampleConfig, sample
from stages.sampling.completions import GENERATE_PATH, Completion, Completions, to_bytes
from stages.sampling.config import SamplingConfig
from stages.sampling.counts import COUNTS_PATH, Counts
from stages.sampling.resample import ResampleConfig
from tests.support.serving import Replies, serving

WRONG = "I do not know."
CONFIG = SampleConfig(
    puzzles_per_iteration=4,
    sampling=SamplingConfig(samples_per_prompt=3, max_tokens=64),
    resample=ResampleConfig(max_rounds=2),
)


class Speaker:
    """Answers as an engine does, with scripted texts; fails from a given request on, and refuses a wrong key."""

    def __init__(self, model: Path, script: dict[str, list[str]]) -> None:
        self.tokenizer = ChatTokenizer(model)
        self.texts = {tuple(self.tokenizer.prompt_token_ids(prompt)): texts for prompt, texts in script.items()}
        self.prompts = dict(zip(self.texts, script, strict=True))
        self.version, self.asked, self.fails_after, self.gone = "", list[str](), 10**9, False
        self.key, self.headers = "", list[str]()  # the header of every request; an empty key accepts all requests
        self.seeds: dict[str, set[int | None]] = {}  # of the requests, by prompt
        self.meanwhile: dict[int, Callable[[], object]] = {}  # called before the request of this number is answered

    def answer(self, method: str, path: str, body: Any) -> tuple[int, Any]:
        if path == "/update_weight_version":
            self.version = body["new_version"]
        if path == COUNTS_PATH:
            return 200, Counts(steps=1.0).answer()
        if path != GENERATE_PATH:
            return 200, {"success": True, "version": "0.32.0"}
        ids = tuple(body["token_ids"])
        self.seeds.setdefault(self.prompts[ids], set()).add(body["sampling_params"].get("seed"))
        if len(self.asked) >= self.fails_after:
            return 500, {"error": "out of order"}
        self.asked.append(self.prompts[ids])
        self.meanwhile.pop(len(self.asked), lambda: None)()
        said = [self.completion(text) for text in self.texts[ids][: body["sampling_params"]["n"]]]
        return 200, Completions(said, [self.version])

    def completion(self, text: str) -> Completion:
        return of_tokens(self.tokenizer.answer_ids(text), "length" if text.endswith("...") else "stop")


def of_tokens(ids: list[int], reason: str, stop_reason: str | None = None) -> Completion:
    """A completion of these tokens, each with a log-probability of -0.5."""
    return Completion(np.array(ids, np.int32), np.full(len(ids), -0.5, np.float32), reason, stop_reason)


@contextmanager
def served(speaker: Speaker) -> Generator[str]:
    """Yields the URL of an HTTP server that answers for the speaker."""

    class Handler(Replies):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self.say(None)

        def do_POST(self) -> None:
            self.say(json.loads(self.body() or b"null"))

        def say(self, body: Any) -> None:
            header = self.headers.get("Authorization", "")
            speaker.headers.append(header)
            if speaker.key and header != f"Bearer {speaker.key}":
                status, answer = 401, {"error": f"not welcome: {header}"}
            else:
                status, answer = speaker.answer(self.command, self.path, body)
            if speaker.gone:
                self.connection.shutdown(socket.SHUT_RDWR)
                return
            self.reply(to_bytes(answer) if isinstance(answer, Completions) else answer, status)

    class Server(socketserver.ThreadingTCPServer):
        request_queue_size = 1024  # the requests of a call come at once
        daemon_threads = True

    with serving(Server(("127.0.0.1", 0), Handler)) as server:
        yield f"http://127.0.0.1:{server.server_address[1]}"


class Place:
    """A store with the puzzles and the model published, and a speaker in front of it."""

    def __init__(self, ctx: StageContext, speaker: Speaker, puzzles: list[Puzzle], model: Path) -> None:
        self.ctx, self.speaker = ctx, speaker
        attempt = ArtifactAddress(ctx.store, "puzzles/set", Puzzles).attempt(Identity.of("made", 1, {}))
        attempt.write_table("train.parquet", to_table(puzzles), PUZZLES)
        attempt.write_table("val.parquet", to_table(puzzles), PUZZLES)
        self.puzzles = attempt.publish()
        weights = ArtifactAddress(ctx.store, "models/scratch", Checkpoint).attempt(Identity.of("made", 1, {}))
        for path in model.iterdir():
            weights.write_bytes(path.name, path.read_bytes())
        self.weights = weights.publish()

    def sampled(
        self, config: SampleConfig = CONFIG, pass_rates: Ref[PassRates] | None = None, key: str = "rollouts"
    ) -> Ref[Rollouts]:
        out = ArtifactAddress(self.ctx.store, key, Rollouts)
        return sample(self.ctx, config, self.weights, self.puzzles, pass_rates, iteration=1, out=out)

    def evaluated(self) -> Ref[Report]:
        config = EvaluateConfig(puzzles=4, sampled=HeldOutSampling(samples_per_prompt=3, max_tokens=64), greedy=False)
        out = ArtifactAddress(self.ctx.store, "report", Report)
        return evaluate(self.ctx, config, self.weights, self.puzzles, split="val", out=out)

    def trained(self, rollouts: Ref[Rollouts]) -> tuple[pl.DataFrame, dict[str, Any]]:
        """Grades, and the facts of the packed batch."""
        ctx = self.ctx
        grades = grade(ctx, GradeConfig(), rollouts, self.puzzles, out=ArtifactAddress(ctx.store, "grades", Grades))
        batch = pack(ctx, PackConfig(row_tokens=2048), rollouts, grades, out=ArtifactAddress(ctx.store, "batch", Batch))
        table = Artifact.open(ctx.store, grades).read_tables(GRADES)
        return table, Artifact.open(ctx.store, batch).manifest.facts


Opener = Callable[..., Place]


def taken_order(puzzles: list[Puzzle]) -> list[Puzzle]:
    """The puzzles of iteration 1 in the order in which they are taken."""
    by_id = {puzzle.prompt_id: puzzle for puzzle in puzzles}
    return [by_id[name] for name in stride(to_table(puzzles), CONFIG.stride, 1, CONFIG.seed)["prompt_id"]]


def script(puzzles: list[Puzzle], mixed: set[int]) -> dict[str, list[str]]:
    """Returns the answers by prompt: mixed at these places of the order, else all right (even) or all wrong (odd)."""
    answers: dict[str, list[str]] = {}
    for place, puzzle in enumerate(taken_order(puzzles)):
        right = write_answer(puzzle)
        uniform = [right] * 3 if place % 2 == 0 else [WRONG] * 3
        answers[puzzle.prompt] = [right, WRONG, right] if place in mixed else uniform
    return answers
