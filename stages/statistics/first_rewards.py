"""Refuses first rewards without a signal: usually answers are not read, or the reward is broken."""

import json
from collections import Counter

import numpy as np
from numpy.typing import NDArray

from artifacts.errors import BadInputError
from artifacts.reading import Artifact
from artifacts.refs import Grades, Ref, Rollouts
from artifacts.schemas import GRADES, GRADES_FILE, ROLLOUTS
from artifacts.store.store import Store

_FEWEST = 32
"""Number of completions below which equal rewards may be chance."""
_TOLERANCE = 1e-8
_SHOWN_REASONS, _SHOWN_CHARACTERS = 3, 200


def check_first_rewards(store: Store, rollouts: Ref[Rollouts], grades: Ref[Grades]) -> None:
    """Checks that the rewards of the first iteration differ and that answers could be read.

    A few completions may have equal rewards by chance, so they are not checked. Under process supervision the steps
    have rewards of their own: rewards may then be equal as long as advantages differ, and answers may be missing as
    long as there are statements.

    Args:
        store: The store of both artifacts.
        rollouts: The first iteration's rollouts.
        grades: Their grades.

    Raises:
        BadInputError: All rewards are the same, or no completion has an answer that could be read. It names the three
            most frequent reasons and shows a completion.
    """
    table = Artifact.open(store, grades).read_table(GRADES_FILE, GRADES)
    if len(table) < _FEWEST:
        return
    constant = all(_spread(table[name].drop_nulls().to_numpy()) <= _TOLERANCE for name in ("reward", "advantage"))
    answers = [list(json.loads(row).values()) for row in table["answers"]]
    unread = all(answer["text"] is None for row in answers for answer in row) and not table["statements"].sum()
    if not (constant or unread):
        return
    reasons = Counter(reason for row in answers for reason in {_reason(answer) for answer in row})
    listed = "; ".join(f"{reason} ({count})" for reason, count in reasons.most_common(_SHOWN_REASONS))
    found = (
        f"no answer could be read in {len(table)} completions"
        if unread
        else f"the reward {table['reward'][0]:g} for all"
    )
    sampled = Artifact.open(store, rollouts).read_tables(ROLLOUTS).sort("group", "sample")
    example = sampled["text"][0][:_SHOWN_CHARACTERS]
    raise BadInputError(
        "the first iteration's rewards",
        f"{found}{f': {listed}' if listed else ''}; the first completion is {example!r}",
        "rewards that differ and answers that can be read, or there is nothing to learn from",
        "correct the prompt, the grader or max_tokens and start a new run; to go on with this one, add "
        "--set-profile allow_constant_reward=true",
    )


def _spread(values: NDArray[np.float64]) -> float:
    return float(np.ptp(values)) if len(values) else 0.0


def _reason(answer: dict[str, str | bool | None]) -> str:
    note = answer["note"]
    if note:
        return "no answer" if note == "missing" else str(note)
    return "right" if answer["correct"] else f"{str(answer['value'] or answer['text'])[:40]!r}, not right"
