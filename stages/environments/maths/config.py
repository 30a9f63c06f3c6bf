"""Settings of mathematical problems from a file. Does not import SymPy or Polars."""

import json
from functools import lru_cache
from importlib.metadata import version
from typing import Literal, cast

from pydantic import Field

from stages.environments.maths.answers import AnswerIn
from stages.environments.question_file.config import QuestionColumns, WrittenNumber


@lru_cache(maxsize=1)
def installed_release() -> str:
    """Returns the installed release of math-verify; another one may give other verdicts."""
    return version("math-verify")


class MathsConfig(QuestionColumns):
    r"""Mathematical problems of JSONL, CSV or Parquet files, whose answers are compared by value with math-verify.

    In JSONL and Parquet an answer may be a list: each of its entries is right.
    """

    environment: Literal["maths"] = Field(default="maths", description="Name of the environment.")
    answer_in: AnswerIn = Field(
        default="last_box",
        description="Place of the final answer in a completion. `last_box`, `first_box`: in the last or first "
        "\\boxed{...} that is closed. `answer_tag`: between the last <answer> and </answer>, in the last box there if "
        "there is one. `answer_line`: after the last `Answer:` among the last 300 characters, up to the end of the "
        "line. `anywhere`: where math-verify finds it by the settings of Open-RS, so that several boxes may be a set.",
    )
    unreadable: Literal["refuse", "drop", "keep"] = Field(
        default="refuse",
        description="What happens if math-verify cannot read the right answer of a problem. `refuse`: an error that "
        "lists such problems. `drop`: they are left out. `keep`: no answer to them is right, so that a benchmark keeps "
        "its size. The fact `unparsed_gold` of the set counts those that were dropped or kept.",
    )

    @property
    def environment_name(self) -> str:
        """The name that is stored with each problem; it holds all that grading depends on."""
        return f"maths:{self.answer_in}:{installed_release()}"

    def answer_text(self, value: object) -> object:
        """Returns a list of right answers as one text, which `golds_of` reads; any other value stays as it is."""
        if not isinstance(value, list):
            return value
        items = [item.text if isinstance(item, WrittenNumber) else item for item in cast("list[object]", value)]
        if not items or not all(isinstance(item, str) for item in items):
            return value
        return items[0] if len(items) == 1 else json.dumps(items, ensure_ascii=False)


def golds_of(answer: str) -> tuple[str, ...]:
    """Returns the right answers that a stored text holds: a JSON list of texts, or else the text itself."""
    try:
        listed = json.loads(answer) if answer.startswith('["') else None
    except ValueError:
        listed = None
    if isinstance(listed, list):
        items = cast("list[object]", listed)
        if items and all(isinstance(item, str) for item in items):
            return tuple(cast("list[str]", items))
    return (answer,)
