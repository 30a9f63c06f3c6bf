"""Refuses first rewards without a signal: usually answers are not read, or the reward is broken."""

import json
from collections import Counter
from typing import cast

import numpy as np
from numpy.typing import NDArray

from artifacts.errors import BadInputError
from artifacts.reading import Artifact
from artifacts.refs import Grades, Ref, Rollouts
from artifacts.schemas import GRADES, GRADES_FILE, ROLLOUTS, TOKEN_ADVANTAGES, TOKEN_ADVANTAGES_FILE
from artifacts.store.store import Store

_FEWEST = 32
"""Number of completions below which equal rewards may be chance."""
_TOLERANCE = 1e-8
_MANY_CUT = 0.3
_SHOWN_REASONS, _SHOWN_CHARACTERS = 3, 200


def check_first_rewards(
    store: Store,
    rollouts: Ref[Rollouts],
    grades: Ref[Grades],
    *,
    by_advantages: bool = True,
    reads_answers: bool = True,
) -> None:
    """Checks that the advantages of the first iteration differ and that answers could be read.

    Rewards that differ between prompts but not within a group give advantages of 0, and nothing is learned. Under
    process supervision the tokens have advantages of their own, and answers may be missing as long as there are
    statements. A few completions may be equal by chance, so they are not checked.

    Args:
        store: The store of both artifacts.
        rollouts: The first iteration's rollouts.
        grades: Their grades.
        by_advantages: Whether the recipe learns from advantages; otherwise rewards must differ.
        reads_answers: Whether rewards depend on answers, and not on a function of the user's or on a judge alone.

    Raises:
        BadInputError: All advantages are the same, or no completion has an answer that could be read. It names the
            three most frequent reasons and shows a completion.
    """
    graded = Artifact.open(store, grades)
    table = graded.read_table(GRADES_FILE, GRADES)
    if len(table) < _FEWEST:
        return
    judged = [table["advantage" if by_advantages else "reward"]]
    if by_advantages and TOKEN_ADVANTAGES_FILE in graded.names():
        judged.append(graded.read_table(TOKEN_ADVANTAGES_FILE, TOKEN_ADVANTAGES)["advantages"].explode())
    constant = all(_spread(values.drop_nulls().to_numpy()) <= _TOLERANCE for values in judged)
    answers = [list(json.loads(row).values()) for row in table["answers"]]
    unread = all(answer["text"] is None for row in answers for answer in row) and not table["statements"].sum()
    if not (constant or (unread and reads_answers)):
        return
    reasons = Counter(reason for row in answers for reason in {_reason(answer) for answer in row})
    listed = "; ".join(f"{reason} ({count})" for reason, count in reasons.most_common(_SHOWN_REASONS))
    lowest, highest = cast(float, table["reward"].min()), cast(float, table["reward"].max())
    found, remedy = f"the reward {lowest:g} for all", "correct the prompt, the grader or max_tokens"
    if unread:
        found = f"no answer could be read in {len(table)} completions"
    elif highest - lowest > _TOLERANCE:
        found = f"rewards from {lowest:g} to {highest:g} that are equal within each group, so that advantages are 0"
        remedy = "raise sample.sampling.samples_per_prompt or temperature, or choose prompts of medium difficulty"
    sampled = Artifact.open(store, rollouts).read_tables(ROLLOUTS).sort("group", "sample")
    example = sampled["text"][0][:_SHOWN_CHARACTERS]
    raise BadInputError(
        "the first iteration's rewards",
        f"{found}{f': {listed}' if listed else ''}; the first completion is {example!r}",
        "rewards that differ within groups, and answers that can be read, or there is nothing to learn from",
        f"{remedy} and start a new run; to continue this one, add --set-profile allow_constant_reward=true",
    )


def cut_warning(store: Store, grades: Ref[Grades], max_tokens: int) -> str | None:
    """Returns a warning if many completions of an iteration were cut at the limit of tokens; None otherwise.

    A cut completion usually has no answer, so the policy learns to be brief, not to be right.
    """
    share = Artifact.open(store, grades).manifest.facts["truncated/fraction"]
    if share <= _MANY_CUT:
        return None
    return f"{share:.0%} of the completions were cut at sample.sampling.max_tokens = {max_tokens}"


def _spread(values: NDArray[np.float64]) -> float:
    return float(np.ptp(values)) if len(values) else 0.0


def _reason(answer: dict[str, str | bool | None]) -> str:
    note = answer["note"]
    if note:
        return "no answer" if note == "missing" else str(note)
    return "right" if answer["correct"] else f"{str(answer['value'] or answer['text'])[:40]!r}, not right"
