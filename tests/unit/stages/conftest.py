"""Puzzles, a small model that knows their words, and places where a speaker answers for it."""

from collections.abc import Generator
from contextlib import ExitStack
from pathlib import Path

import pytest

from artifacts.store.store import Store
from stages.environments.generate import TIERS, generate
from stages.environments.logic_puzzles.answers import write_answer
from stages.environments.puzzle import Puzzle
from stages.models.from_scratch import ScratchModel, make_scratch
from stages.sampling.config import EngineHardware
from tests.support.contexts import make_context
from tests.support.speaker import WRONG, Opener, Place, Speaker, served


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


@pytest.fixture
def opened(tmp_path: Path, puzzles: list[Puzzle], model: Path) -> Generator[Opener]:
    with ExitStack() as stack:

        def place(name: str, script: dict[str, list[str]], kind: type[Speaker] = Speaker) -> Place:
            speaker = kind(model, script)
            url = stack.enter_context(served(speaker))
            engine = EngineHardware(external_urls=(url,), restarts=0, max_num_seqs=1)
            store, scratch = Store.open(str(tmp_path / name)), tmp_path / f"{name}-scratch-{id(speaker)}"
            ctx = make_context(store, scratch, engine=engine)
            return Place(stack.enter_context(ctx), speaker, puzzles, model)

        yield place
