"""The environment of mathematics: sixty verdicts, files of problems, and the suites."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from artifacts.errors import BadInputError
from flows.config.suites import load_suite
from stages.environments import environment
from stages.environments.maths.answers import ANSWERS_IN
from stages.environments.maths.config import MathsConfig, golds_of
from stages.environments.maths.environment import Maths, maths
from stages.environments.puzzle import Puzzle
from stages.environments.tables import graders_of, to_table, unread_counts
from stages.prepare import PrepareConfig, identity_of, source_of
from stages.processes.limited_calls import LimitedCalls
from tests.support.maths_pairs import PAIRS

BENCHMARKS = Path(__file__).parents[4] / "shared" / "data"


def problem(answer: str, name: str = "maths:last_box:0.9.0") -> Puzzle:
    return Puzzle("1", name, "2 + 2 = ?", {"answer": answer}, 0, None, "d", {})


def test_sixty_verdicts_of_two_processes() -> None:
    """Each process imports sympy, which takes seconds."""
    calls = LimitedCalls("stages.environments.maths.verdicts:load", limit_s=10.0, workers=2)
    outcomes = calls.map([(pair.completion, pair.golds, pair.answer_in) for pair in PAIRS])
    calls.close()
    assert len(PAIRS) >= 60
    assert [outcome.failure for outcome in outcomes] == [None] * len(PAIRS)
    assert [outcome.value.reason for outcome in outcomes] == [pair.reason for pair in PAIRS]


def test_slow_imports_cost_no_call_its_time() -> None:
    program = (
        "from stages.environments.maths import verdicts\n"
        "verdicts.LIMIT_CPU_S = 0.1\n"
        "print(verdicts.load()(r'\\boxed{4}', ('4',), 'last_box').reason)"
    )
    assert (
        subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout == "right\n"
    )


def test_every_rule_reads_the_answer_that_it_writes() -> None:
    for answer_in in ANSWERS_IN:
        family = maths(f"maths:{answer_in}:0.9.0")
        for gold in (r"\frac{1}{2}", "$2^{10}$", '["3", "4"]', r"so \boxed{5}", "$3$, $4$", r"18.90\$", r"$\$5$"):
            written = family.write_answer(problem(gold))
            assert family.grade(written, problem(gold)).exact, (answer_in, gold, written)
            ends = family.answer_ends(written, problem(gold))
            assert set(ends) == (set() if answer_in == "anywhere" else {"answer"})
            assert all(0 < end <= len(written) for end in ends.values())


def test_answers_of_one_value_are_one_vote() -> None:
    family = maths("maths:last_box:0.9.0")
    values = [
        [family.grade(rf"\boxed{{{answer}}}", problem("4")).answers["answer"].value for answer in same]
        for same in (("1/2", r"\frac{1}{2}", "0.5", "$0.5$"), ("1,234", "1234"), ("x^2+1", "x^{2} + 1"))
    ]
    assert [len(set(same)) for same in values] == [1, 1, 1] and len({same[0] for same in values}) == 3
    assert family.grade(r"\boxed{4+}", problem("4")).answers["answer"].value is None


def test_an_answer_without_a_verdict_says_why() -> None:
    family = environment.get("maths:last_box:0.9.0")
    assert isinstance(family, Maths)
    answered = ["4", "", r"\boxed{4}", r"\boxed{5}", r"\boxed{4+}"]
    grades = family.grade_many([(text, problem("4")) for text in answered])
    assert [(item.accuracy, item.exact, item.answers["answer"].note) for item in grades] == [
        (0.0, False, "missing"),
        (0.0, False, "missing"),
        (1.0, True, ""),
        (0.0, False, ""),
        (0.0, False, "unparsed_answer"),
    ]
    assert graders_of(to_table([problem("4")])) == ("math-verify 0.9.0",)
    answers = [json.dumps({key: vars(value) for key, value in item.answers.items()}) for item in grades]
    assert unread_counts(pl.Series(answers)) == {"missing": 2, "unparsed_answer": 1}


@pytest.mark.parametrize(
    ("text", "well_formed"),
    [("a\n</think>\nb", True), ("a\n</think>\nb\n</think>\n", False), ("a</think>b", False), ("", False)],
)
def test_the_format_is_one_closing_tag_on_a_line_of_its_own(text: str, well_formed: bool) -> None:
    assert maths("maths").well_formed(text, problem("4")) == well_formed


@pytest.mark.parametrize("name", ["maths:box:1", "maths:last_box", "maths:last_box:cut:1", "maths:1:last_box"])
def test_an_unknown_rule_is_refused(name: str) -> None:
    with pytest.raises(BadInputError, match=r"expected maths:ANSWER_IN:RELEASE with last_box, first_box"):
        environment.get(name)


def test_problems_read_for_another_release_are_not_graded() -> None:
    with pytest.raises(BadInputError, match=r"0\.9\.0 is installed; expected math-verify 0\.8\.1.*pip install"):
        maths("maths:last_box:0.8.1").grade(r"\boxed{4}", problem("4"))


def test_another_release_makes_another_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may read other answers. Its number is imitated, because only one release can be installed."""
    config = PrepareConfig(puzzle=file_of(tmp_path, 1, 2, 3), train=1, val=1, test=1)
    before = identity_of(config)
    monkeypatch.setattr("stages.environments.maths.environment.installed_release", lambda: "0.9.1")
    assert identity_of(config) != before


@pytest.mark.parametrize(
    ("stored", "golds"),
    [("4", ("4",)), ('["3", "4"]', ("3", "4")), ("[1, 2]", ("[1, 2]",)), ('["', ('["',)), ('["a", 1]', ('["a", 1]',))],
)
def test_several_right_answers(stored: str, golds: tuple[str, ...]) -> None:
    assert golds_of(stored) == golds


def file_of(folder: Path, *answers: Any) -> MathsConfig:
    rows = [{"problem": f"What is {number}?", "answer": answer} for number, answer in enumerate(answers)]
    (folder / "problems.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return MathsConfig(path=str(folder / "problems.jsonl"), question="problem")


def test_problems_are_read_from_a_file_with_one_answer_or_several(tmp_path: Path) -> None:
    config = file_of(tmp_path, 1.5, "\\frac12", ["3", 4], ["5"])
    items = maths(config.environment_name).source(config).items({"train": 0, "val": 0, "test": 4}, 0)
    by_id = {item.prompt_id: item for item in items.splits["test"]}
    assert [by_id[str(line)].solution["answer"] for line in (1, 2, 3, 4)] == ["1.5", "\\frac12", '["3", "4"]', "5"]
    assert {item.environment for item in by_id.values()} == {"maths:last_box:0.9.0"}
    assert items.facts["unparsed_gold"] == 0
    assert maths("maths").grade(r"\boxed{4}", by_id["3"]).exact


def test_right_answers_that_cannot_be_read_are_refused_or_dropped_and_counted(tmp_path: Path) -> None:
    config = file_of(tmp_path, "1", "x^2+", "2", "3 +", ["4", "\\frac"])
    sizes = {"train": 0, "val": 0, "test": 2}
    where = r"3 of 5 answers that math-verify cannot read: 'x\^2\+' \(line 2\), '3 \+' \(line 4\)"
    with pytest.raises(BadInputError, match=where):
        maths("maths").source(config).items(sizes, 0)
    items = maths("maths").source(config.model_copy(update={"unreadable": "drop"})).items(sizes, 0)
    assert sorted(item.prompt_id for item in items.splits["test"]) == ["1", "3"]
    assert items.facts["unparsed_gold"] == 3
    assert any("answers of 3 problems; they were dropped" in warning for warning in items.warnings)
    kept = maths("maths").source(config.model_copy(update={"unreadable": "keep"})).items({**sizes, "test": 5}, 0)
    assert (len(kept.splits["test"]), kept.facts["unparsed_gold"]) == (5, 3)
    unread = next(item for item in kept.splits["test"] if item.prompt_id == "2")
    grade = maths("maths").grade(r"\boxed{x^2+}", unread)
    assert (grade.exact, grade.answers["answer"].note) == (False, "unparsed_gold")


def test_an_answer_of_another_type_is_refused(tmp_path: Path) -> None:
    config = file_of(tmp_path, ["1", None])
    with pytest.raises(BadInputError, match=r"line 1, column 'answer': a list"):
        maths("maths").source(config).items({"train": 0, "val": 0, "test": 1}, 0)


SUITES = {"aime24": (30, 0), "amc": (83, 0), "math500": (500, 0), "minerva": (272, 4), "olympiad_bench": (675, 3)}
"""Numbers of problems, and of those whose right answers math-verify 0.9.0 cannot read."""


@pytest.fixture
def benchmarks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    if not (BENCHMARKS / "maths").is_dir():
        pytest.skip("the benchmarks are not part of the project")
    monkeypatch.chdir(BENCHMARKS)
    yield


@pytest.mark.long
@pytest.mark.parametrize("name", SUITES)
@pytest.mark.usefixtures("benchmarks")
def test_a_benchmark_has_all_its_problems(name: str) -> None:
    count, unread = SUITES[name]
    suite = load_suite(name)
    source = source_of(suite.puzzles)
    assert source is not None
    sizes = {"train": 0, "val": 0, "test": suite.puzzles.test}
    items = source.items(sizes, suite.puzzles.seed)
    assert len(items.splits["test"]) == count
    assert (items.facts["repeated"], items.facts["unparsed_gold"]) == (0, unread)
