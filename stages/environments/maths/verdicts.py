"""Compares the final answer of a completion with the right one, by value, with math-verify.

Call `verdict` in a process of `stages.processes.limited_calls`: SymPy may compute for hours, or take all memory. A
limit inside that process ends most such comparisons, so that the process survives. The limit counts CPU time, because a
limit of wall-clock time, such as math-verify's own, gives other verdicts on a busy machine.
"""

import importlib
import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

from stages.environments.maths.answers import AnswerIn, final_answer, has_dollars, without_dollars
from stages.processes.cpu_limit import CpuLimitError, cpu_limit

Reason = Literal["right", "wrong", "no_answer", "unparsed_answer", "unparsed_gold", "timeout", "failed"]
LIMIT_CPU_S = 3.0
LONGEST_ANSWER = 2000
"""Characters of the longest answer that is parsed; the patterns of math-verify take quadratic time on some texts."""


@dataclass(frozen=True)
class Verdict:
    """The verdict on one completion.

    Attributes:
        reason: `right` or `wrong`; or why the answers could not be compared: `no_answer` (none in its
            place), `unparsed_answer` (it is not mathematics), `unparsed_gold` (the right answer is not; an error in the
            data, never a reward), `timeout`, `failed` (the process that compared them crashed or lacked memory).
        words: The answer as it is written; None if there is none.
        value: The answer as SymPy writes it, by which votes are counted; None if it was not compared.
    """

    reason: Reason
    words: str | None = None
    value: str | None = None

    @property
    def right(self) -> bool:
        """Whether the answer has the value of a right one."""
        return self.reason == "right"


def load() -> Callable[[str, tuple[str, ...], AnswerIn], Verdict]:
    """Imports and warms up math-verify, and returns `verdict`."""
    importlib.import_module("math_verify")  # not within a limit: an import that ends half-way leaves broken modules
    logging.getLogger("math_verify").setLevel(logging.ERROR)  # it warns that its own limits are off
    verdict(r"\boxed{\frac{1}{2}}", ("0.5",), "last_box")
    return verdict


def verdict(completion: str, golds: tuple[str, ...], answer_in: AnswerIn) -> Verdict:
    """Returns whether the final answer of a completion has the value of one of the right answers.

    Args:
        completion: Any text, without thoughts.
        golds: The right answers, in LaTeX or as plain numbers; any one of them is right.
        answer_in: The place of the final answer.

    Raises:
        RuntimeError: The calling thread is not the main thread of its process.
    """
    try:
        with cpu_limit(LIMIT_CPU_S):
            right_answers = [parsed_gold(gold) for gold in golds]
    except CpuLimitError:
        return Verdict("unparsed_gold")
    if not right_answers or not all(right_answers):
        return Verdict("unparsed_gold")
    answer = final_answer(completion, answer_in)
    if answer is None:
        return Verdict("no_answer")
    anywhere = answer_in == "anywhere"
    words = None if anywhere else answer.words.strip()
    try:
        with cpu_limit(LIMIT_CPU_S):
            parsed = _searched(answer.words) if anywhere else _parsed(answer.words)
            if anywhere:
                words = next((item for item in parsed if isinstance(item, str)), None)
            if all(isinstance(item, str) for item in parsed):  # math-verify found no answer, or only words
                return Verdict("no_answer" if anywhere and words is None else "unparsed_answer", words)
            equal = any(_equal(gold, parsed, answer_first=anywhere) for gold in right_answers)
            value = next(str(item) for item in parsed if not isinstance(item, str))
    except CpuLimitError:
        return Verdict("timeout", words)
    return Verdict("right" if equal else "wrong", words, value)


@lru_cache(maxsize=1 << 12)  # the completions of a group have the same right answer
def parsed_gold(gold: str) -> list[Any]:
    """Returns a right answer as math-verify reads it; empty if it cannot.

    In a text with boxes, such as a solution, the last box is read. An answer that math-verify reads but does not find
    equal to itself counts as unreadable.
    """
    boxed = final_answer(gold)
    parsed = _parsed(gold if boxed is None else boxed.words)
    return parsed if parsed and _equal(parsed, parsed) else []


def _parsed(words: str) -> list[Any]:
    """Returns an answer as a list with one SymPy object; empty if the words are not mathematics."""
    from math_verify import LatexExtractionConfig

    plain = words.strip().removesuffix(".").strip("*` ").removesuffix(".")  # bold and code of Markdown
    if len(plain) > LONGEST_ANSWER:
        return []
    inner = without_dollars(plain)
    text = plain if has_dollars(inner) else rf"\boxed{{{inner}}}"
    return _read(text, LatexExtractionConfig(boxed_match_priority=0), fallback_mode="no_fallback")


def _searched(text: str) -> list[Any]:
    """Returns the answer that math-verify finds in a text by the settings of Open-RS: an object and its words.

    Several boxes may become one set, so a completion that corrects its answer later is wrong. Their setting `equations`
    has no effect in math-verify 0.9, which reads equations in any case.
    Source: `accuracy_reward` in knoveleng/open-rs, src/open_r1/rewards.py.
    """
    from latex2sympy2_extended import NormalizationConfig
    from math_verify import LatexExtractionConfig

    normalization = NormalizationConfig(
        nits=False, malformed_operators=False, basic_latex=True, boxed="all", units=True
    )
    config = LatexExtractionConfig(
        normalization_config=normalization, boxed_match_priority=0, try_extract_without_anchor=False
    )
    return _read(text, config, extraction_mode="first_match")


def _read(text: str, config: Any, **modes: Any) -> list[Any]:
    """Returns the objects that math-verify reads in a text; empty if its parser raises, with any kind of error."""
    from math_verify import parse

    try:
        return parse(text, [config], parsing_timeout=0, raise_on_error=True, **modes)
    except MemoryError:
        raise
    except Exception:
        return []


def _equal(gold: list[Any], answer: list[Any], *, answer_first: bool = False) -> bool:
    """Returns whether an answer has the value of a right one; False if SymPy cannot compare the two kinds of objects.

    Args:
        gold: The right answer.
        answer: The answer.
        answer_first: Whether to exchange the two, as Open-RS does; math-verify treats them differently in equations.
    """
    from math_verify import verify

    pair = (answer, gold) if answer_first else (gold, answer)
    try:
        return verify(*pair, timeout_seconds=0, raise_on_error=True)
    except MemoryError:
        raise
    except Exception:
        return False
