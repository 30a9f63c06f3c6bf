"""Dynamic sampling, through an engine's protocol: which puzzles are sampled, kept and trained on; kills in between."""

import http.server
import io
import json
import logging
import socketserver
import threading
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from artifacts.errors import TransientError
from artifacts.identity import Identity
from artifacts.reading import Artifact
from artifacts.refs import Batch, Checkpoint, Grades, Puzzles, Ref, Rollouts
from artifacts.schemas import GRADES, PUZZLES, ROLLOUTS
from artifacts.slot import Slot
from artifacts.store import Store
from stages.context import Profile, StageContext
from stages.grade import GradeConfig, grade
from stages.grpo.packing import PackConfig
from stages.models.chat import ChatTokenizer
from stages.models.scratch import ScratchModel, make_scratch
from stages.pack import pack
from stages.puzzles.answers import write_answer
from stages.puzzles.generate import TIERS, generate
from stages.puzzles.puzzle import Puzzle
from stages.puzzles.tables import to_table
from stages.sample import SampleConfig, sample, stride
from stages.sampling.config import KEPT_GROUPS_FILE, EngineHardware, SamplingConfig
from stages.sampling.resample import ResampleConfig

WRONG = "I do not know."
CONFIG = SampleConfig(
    puzzles_per_iteration=4,
    sampling=SamplingConfig(samples_per_prompt=3, max_tokens=64),
    resample=ResampleConfig(max_rounds=2),
)


@pytest.fixture(scope="module")
def puzzles() -> list[Puzzle]:
    """Twelve different puzzles: one iteration's stride."""
    different: dict[str, Puzzle] = {}
    seed = 0
    while len(different) < 12:
        puzzle = generate(TIERS["reduced"], seed)
        different.setdefault(puzzle.digest, puzzle)
        seed += 1
    return list(different.values())


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory, puzzles: list[Puzzle]) -> Path:
    folder = tmp_path_factory.mktemp("model")
    texts = [puzzle.prompt for puzzle in puzzles] + [write_answer(puzzle) for puzzle in puzzles] + [WRONG]
    make_scratch(ScratchModel(tied_embeddings=False, max_positions=4096), texts, folder)
    return folder


class Speaker:
    """Answers as vLLM does, with texts it was told; fails from a given request on."""

    def __init__(self, model: Path, script: dict[str, list[str]]) -> None:
        self.tokenizer = ChatTokenizer(model)
        self.texts = {tuple(self.tokenizer.prompt_ids(prompt)): texts for prompt, texts in script.items()}
        self.prompts = dict(zip(self.texts, script, strict=True))
        self.version, self.asked, self.fails_after = "", list[str](), 10**9

    def answer(self, method: str, path: str, body: Any) -> tuple[int, Any]:
        if path == "/update_weight_version":
            self.version = body["new_version"]
        if path != "/inference/v1/generate":
            return 200, {"success": True, "version": "0.32.0"}
        if len(self.asked) >= self.fails_after:
            return 500, {"error": "out of order"}
        ids = tuple(body["token_ids"])
        self.asked.append(self.prompts[ids])
        return 200, {"choices": [self.choice(text) for text in self.texts[ids]]}

    def choice(self, text: str) -> dict[str, Any]:
        token_ids = self.tokenizer.answer_ids(text)
        reason = "length" if text.endswith("...") else "stop"
        logprobs = {"content": [{"token_id": token, "logprob": -0.5} for token in token_ids]}
        span = {"version": self.version, "start": 0, "end": len(token_ids)}
        return {"token_ids": token_ids, "logprobs": logprobs, "finish_reason": reason, "weight_versions": [span]}


@contextmanager
def served(speaker: Speaker) -> Generator[str]:
    """The URL of an HTTP server that speaks."""

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self.reply(None)

        def do_POST(self) -> None:
            self.reply(json.loads(self.rfile.read(int(self.headers.get("Content-Length", "0"))) or b"null"))

        def reply(self, body: Any) -> None:
            status, answer = speaker.answer(self.command, self.path, body)
            content = b"vllm:x_total 1\n" if self.path == "/metrics" else json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            """Keep the test's output clean."""

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


class Place:
    """A store with the puzzles and the model published, and a speaker in front of it."""

    def __init__(self, ctx: StageContext, speaker: Speaker, puzzles: list[Puzzle], model: Path) -> None:
        self.ctx, self.speaker = ctx, speaker
        attempt = Slot(ctx.store, "puzzles/set", Puzzles).attempt(Identity.of("made", 1, {}))
        attempt.write_table("train.parquet", to_table(puzzles), PUZZLES)
        self.puzzles = attempt.publish()
        weights = Slot(ctx.store, "models/scratch", Checkpoint).attempt(Identity.of("made", 1, {}))
        for path in model.iterdir():
            weights.write_bytes(path.name, path.read_bytes())
        self.weights = weights.publish()

    def sampled(self, config: SampleConfig = CONFIG) -> Ref[Rollouts]:
        out = Slot(self.ctx.store, "rollouts", Rollouts)
        return sample(config, self.weights, self.puzzles, iteration=1, out=out, ctx=self.ctx)

    def trained(self, rollouts: Ref[Rollouts]) -> tuple[pl.DataFrame, dict[str, Any]]:
        """Grades, and the facts of the packed batch."""
        ctx = self.ctx
        grades = grade(GradeConfig(), rollouts, self.puzzles, out=Slot(ctx.store, "grades", Grades), ctx=ctx)
        batch = pack(PackConfig(), rollouts, grades, out=Slot(ctx.store, "batch", Batch), ctx=ctx)
        table = Artifact.open(ctx.store, grades).read_tables(GRADES)
        return table, Artifact.open(ctx.store, batch).manifest.facts


Opener = Callable[[str, dict[str, list[str]]], Place]


@pytest.fixture
def opened(tmp_path: Path, puzzles: list[Puzzle], model: Path) -> Generator[Opener]:
    with ExitStack() as stack:

        def place(name: str, script: dict[str, list[str]]) -> Place:
            speaker = Speaker(model, script)
            url = stack.enter_context(served(speaker))
            profile = Profile(engine=EngineHardware(external_urls=(url,), restarts=0, max_num_seqs=1))
            store = Store.open(str(tmp_path / name))
            log = logging.getLogger("test")
            ctx = StageContext(store, tmp_path / f"{name}-scratch", profile, lambda *_: None, log)
            return Place(stack.enter_context(ctx), speaker, puzzles, model)

        yield place


def taken_order(puzzles: list[Puzzle]) -> list[Puzzle]:
    """The puzzles of iteration 1 in the order in which they are taken."""
    by_id = {puzzle.puzzle_id: puzzle for puzzle in puzzles}
    return [by_id[name] for name in stride(to_table(puzzles), CONFIG.stride, 1, CONFIG.seed)["puzzle_id"]]


def script(puzzles: list[Puzzle], mixed: set[int]) -> dict[str, list[str]]:
    """Mixed groups at these places of the order; the others all right (even places) or all wrong (odd ones)."""
    answers: dict[str, list[str]] = {}
    for place, puzzle in enumerate(taken_order(puzzles)):
        right = write_answer(puzzle)
        uniform = [right] * 3 if place % 2 == 0 else [WRONG] * 3
        answers[puzzle.prompt] = [right, WRONG, right] if place in mixed else uniform
    return answers


@pytest.mark.parametrize(
    ("mixed", "groups", "kept", "rounds"),
    [
        ({0, 1, 2, 3}, 4, [0, 1, 2, 3], 1),  # enough at once
        ({1, 3, 4, 5}, 6, [1, 3, 4, 5], 2),  # two missing, two more sampled, both mixed
        ({1, 4, 6, 7, 8}, 8, [1, 4, 6, 7], 3),  # one of 0-3; three missing, 4-6 gives two; one missing, 7
        (set[int](), 12, [], 3),  # 4 + 4 + 4, then the rounds are over
    ],
)
def test_rounds_go_on_until_enough_groups_are_mixed(
    opened: Opener, puzzles: list[Puzzle], mixed: set[int], groups: int, kept: list[int], rounds: int
) -> None:
    place = opened("run", script(puzzles, mixed))
    rollouts = Artifact.open(place.ctx.store, place.sampled())
    table = rollouts.read_tables(ROLLOUTS)
    order = [puzzle.puzzle_id for puzzle in taken_order(puzzles)]
    assert dict(table.select("group", "puzzle_id").unique().iter_rows()) == dict(enumerate(order[:groups]))
    assert len(table) == 3 * groups, "uniform groups stay in the record"
    assert rollouts.read_json(KEPT_GROUPS_FILE) == kept
    assert rollouts.manifest.facts["rounds"] == rounds
    assert (rollouts.manifest.facts["groups"], rollouts.manifest.facts["groups_kept"]) == (groups, len(kept))


def test_a_group_uniform_in_accuracy_is_not_trained_on_though_its_rewards_differ(
    opened: Opener, puzzles: list[Puzzle]
) -> None:
    answers = script(puzzles, {1, 2, 3, 4})
    answers[taken_order(puzzles)[0].prompt] = [WRONG, WRONG, WRONG + "..."]  # one was cut: reward 0, 0, -0.5
    place = opened("run", answers)
    grades, facts = place.trained(place.sampled())
    assert grades.filter(pl.col("group") == 0)["advantage"].abs().max() > 0  # pyright: ignore[reportOperatorIssue, reportOptionalOperand]
    assert (facts["groups"], facts["uniform_groups"]) == (4, 1)


def test_without_resampling_every_group_with_different_rewards_is_trained_on(
    opened: Opener, puzzles: list[Puzzle]
) -> None:
    plain = CONFIG.model_copy(update={"resample": None})
    order = [puzzle.puzzle_id for puzzle in puzzles]
    answers = {puzzle.prompt: [write_answer(puzzle), WRONG, WRONG] for puzzle in puzzles}
    place = opened("run", answers)
    rollouts = place.sampled(plain)
    assert Artifact.open(place.ctx.store, rollouts).names(".json") == []
    grades, facts = place.trained(rollouts)
    expected = stride(to_table(puzzles), 4, 1, 0)["puzzle_id"].to_list()
    assert set(grades["puzzle_id"]) == set(expected) <= set(order)
    assert (facts["groups"], facts["uniform_groups"]) == (4, 0)


@pytest.mark.parametrize("fails_after", [2, 4, 5, 6])
def test_a_stage_cut_short_goes_on_and_ends_with_the_same_puzzles(
    opened: Opener, puzzles: list[Puzzle], fails_after: int
) -> None:
    answers = script(puzzles, {1, 4, 6, 7})
    whole = opened("whole", answers)
    expected = Artifact.open(whole.ctx.store, whole.sampled())
    cut = opened("cut", answers)
    cut.speaker.fails_after = fails_after
    with pytest.raises(TransientError):
        cut.sampled()
    stored = {row for name in cut.ctx.store.list("rollouts") for row in puzzle_ids(cut.ctx.store.read_bytes(name))}
    assert fails_after - 1 <= len(stored) <= fails_after, "two requests are in flight, one of them may be lost too"
    cut.speaker.fails_after = 10**9
    cut.speaker.asked.clear()
    found = Artifact.open(cut.ctx.store, cut.sampled())
    tables = [
        a.read_tables(ROLLOUTS).select("group", "puzzle_id", "text").sort("group", "text") for a in (expected, found)
    ]
    assert tables[0].equals(tables[1])
    assert found.read_json(KEPT_GROUPS_FILE) == expected.read_json(KEPT_GROUPS_FILE) == [1, 4, 6, 7]
    asked_again = {puzzle.puzzle_id for puzzle in puzzles if puzzle.prompt in cut.speaker.asked}
    assert not asked_again & stored
    assert found.manifest.facts["groups_reused"] == len(stored)
    assert len(cut.speaker.asked) == 8 - len(stored)


def puzzle_ids(data: bytes) -> set[str]:
    """Puzzle ids of a stored shard."""
    return set(pl.read_parquet(io.BytesIO(data))["puzzle_id"])
