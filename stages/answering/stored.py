"""The answers of a model that were bought, which are stored by address, model, parameters, prompt and sample."""

from collections.abc import Iterable

import polars as pl

from artifacts.address import ArtifactAddress, Attempt
from artifacts.identity import Identity
from artifacts.layout import Shared, shared_key
from artifacts.refs import Answers, Ref, Rollouts
from artifacts.schemas import ANSWERS, as_table
from artifacts.store.store import Store
from stages.answering.purchase import STEM, PuzzleSample
from stages.answering.settings import ApiRequest

REVISION = 1  # not that of the stage `answer`: bought answers stay known when its figures change


def answers_key(name: str, identity: Identity) -> str:
    """Returns the key of a model's answers; `name` must be fit for keys."""
    return shared_key(Shared.ANSWERS, name, identity)


def stored_answers(
    store: Store, asked: ApiRequest, rollouts: Ref[Rollouts] | None = None
) -> tuple[Attempt[Answers], pl.DataFrame]:
    """Returns the attempt that holds a model's answers to such requests, and the table of these answers, each once.

    Args:
        store: The store.
        asked: Address, model and parameters.
        rollouts: The completions that are asked about; None for questions that do not depend on any. They limit the
            number of answers that are read, however many iterations a run has.
    """
    inputs = {} if rollouts is None else {"rollouts": rollouts}
    identity = Identity.of("answer", REVISION, {"asked": asked.identity()}, **inputs)
    attempt = ArtifactAddress(store, answers_key("bought", identity), Answers).attempt(identity, resumable=True)
    stored = attempt.adopt_shards(STEM, ANSWERS, by="answer", rows=1)
    return attempt, as_table([], ANSWERS) if stored is None else stored


def missing_questions(questions: Iterable[PuzzleSample], stored: pl.DataFrame) -> list[PuzzleSample]:
    """Returns the questions without a stored answer; of several with the same prompt and sample, the first."""
    known, missing = set(stored["answer"]), list[PuzzleSample]()
    for question in questions:
        if question.answer not in known:
            known.add(question.answer)
            missing.append(question)
    return missing
