"""Tasks of reasoning-gym: items, grades, what its scorers may see, and what is refused.

Skipped without the extra `reasoning-gym`, except for the error that says how to install it.
"""

import ast
import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

from artifacts.errors import BadInputError
from flows.cli.app import run_command
from flows.config.recipe import Recipe
from flows.config.recipes import load_recipe
from flows.config.settings import validate
from flows.config.suites import load_suite
from stages.environments import environment
from stages.environments.capabilities import Proves, missing
from stages.environments.generate import generate_nth
from stages.environments.mixture import MixtureConfig
from stages.environments.puzzle import Puzzle
from stages.environments.reasoning_gym import release
from stages.environments.reasoning_gym.config import ReasoningGymConfig
from stages.environments.reasoning_gym.environment import ReasoningGym, read_answer
from stages.environments.reasoning_gym.generators import EVALUATED, entry_at, is_scorable, score
from stages.environments.reasoning_gym.refused import REFUSED
from stages.environments.tables import from_table, to_table
from stages.grading.own_reward import Completion, Grade, Tokens
from stages.prepare import PrepareConfig

needs_package = pytest.mark.skipif(
    importlib.util.find_spec("reasoning_gym") is None,
    reason="reasoning-gym is not installed: uv sync --extra reasoning-gym (needs a C compiler)",
)


def config(task: str, **settings: Any) -> ReasoningGymConfig:
    puzzle = {"environment": f"reasoning_gym:{task}", **settings}
    made = validate(PrepareConfig, {"puzzle": puzzle}, "puzzles").puzzle
    assert isinstance(made, ReasoningGymConfig)
    return made


def item(task: str, number: int = 0, **settings: Any) -> Puzzle:
    return generate_nth(config(task, **settings), 0, number)


def graded(text: str, puzzle: Puzzle) -> tuple[float, bool, str]:
    grade = environment.get(puzzle.environment).grade(text, puzzle)
    return grade.accuracy, grade.exact, grade.answers["answer"].note


def answered(answer: str) -> str:
    return f"I think so. <answer>{answer}</answer>"


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("", None),
        ("42", None),
        ("<answer>42", None),
        ("42</answer>", None),
        ("</answer><answer>", None),
        ("<answer> 42\n</answer> done", "42"),
        ("<answer>1</answer> no: <answer>2</answer>", "2"),
        ("<answer>1 <answer>2</answer>", "2"),
        ("<answer></answer>", ""),
    ],
)
def test_the_last_answer_counts(text: str, answer: str | None) -> None:
    said = read_answer(text)
    assert (None if said is None else said[0]) == answer
    if said is not None:
        assert text[: said[1]].endswith("</answer>")


def test_without_the_package_an_error_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(release, "_installed", lambda: None)
    with pytest.raises(BadInputError, match=r"reasoning-gym is not installed.*uv sync --extra reasoning-gym"):
        config("knights_knaves")
    frozen = config("knights_knaves", release="0.1.25")
    assert frozen.task == "knights_knaves", "reports and continued runs read a frozen recipe without the package"
    with pytest.raises(BadInputError, match=r"not installed; expected reasoning-gym 0\.1\.25"):
        generate_nth(frozen, 0, 0)


@needs_package
def test_a_reward_function_gets_prompt_and_solution_and_nothing_of_the_scorer() -> None:
    made = item("chain_sum")
    given = Completion("x", made, Grade(0.0, False, True, False), Tokens(1, 2)).arguments[1]
    assert given == {"prompt": made.prompt, "solution": {"answer": made.solution["answer"]}}


@needs_package
def test_another_release_neither_asks_nor_grades(monkeypatch: pytest.MonkeyPatch) -> None:
    made, chosen = item("chain_sum"), config("chain_sum")
    assert chosen.model_dump(mode="json")["release"] == release.installed_release(), "part of the set's identity"
    monkeypatch.setattr(release, "_installed", lambda: "9.9.9")
    with pytest.raises(BadInputError, match=r"reasoning-gym 9\.9\.9 is installed; expected reasoning-gym 0\.1\.25"):
        generate_nth(chosen, 0, 0)
    with pytest.raises(BadInputError, match=rf"item {made.prompt_id}.*pip install reasoning-gym==0\.1\.25"):
        graded(answered("1"), made)


@needs_package
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"environment": "reasoning_gym:knight_knaves"}, "no generator 'knight_knaves', did you mean 'knights_knaves'"),
        ({"environment": "reasoning_gym"}, "environment"),
        ({"environment": "reasoning_gym:a/b"}, "environment"),
        ({"environment": "reasoning_gym:composite"}, "composite is refused: .*mixture"),
        ({"environment": "reasoning_gym:puzzle24"}, "puzzle24 is refused: its scorer accepts any four numbers"),
        ({"environment": "reasoning_gym:zebra_puzzles", "level": 99}, r"has the levels 0 to 5 \(found 99\)"),
        ({"environment": "reasoning_gym:gsm_symbolic", "level": 0}, "has no curriculum"),
        ({"environment": "reasoning_gym:chain_sum", "attributes": {"min_term": 3}}, "no 'min_term'.*min_terms"),
        ({"environment": "reasoning_gym:chain_sum", "attributes": {"seed": 3}}, "no 'seed'"),
        ({"environment": "reasoning_gym:chain_sum", "attributes": {"min_terms": 9}}, "refuses these settings: Assert"),
    ],
)
def test_bad_settings(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInputError, match=message):
        validate(PrepareConfig, {"puzzle": settings}, "puzzles")


@needs_package
def test_an_item_is_the_same_wherever_it_is_made_and_can_be_graded_from_its_row() -> None:
    made = item("knights_knaves", level=1)
    assert made == item("knights_knaves", level=1)
    assert made.prompt.endswith("Write your final answer between <answer> and </answer>.")
    assert made.difficulty == {"level": 1}
    stored = from_table(to_table([made]))[0]
    assert stored == made
    right = ReasoningGym(stored.environment).write_answer(stored)
    assert graded(right, stored) == (1.0, True, "")
    assert graded(answered("nobody"), stored) == (0.0, False, "")
    assert graded("no answer", stored) == (0.0, False, "missing")
    numbers = {item("knights_knaves", number, level=1).digest for number in range(20)}
    assert len(numbers) > 10


@needs_package
def test_attributes_override_the_level() -> None:
    people = [
        len(json.loads(item("knights_knaves", **settings).solution["item"])["entry"]["metadata"]["names"])
        for settings in ({}, {"level": 3}, {"level": 3, "attributes": {"n_people": 3}})
    ]
    assert people == [2, 5, 3]


@needs_package
def test_only_a_full_score_counts_unless_partial_credit_is_requested() -> None:
    strict, partial = item("countdown"), item("countdown", partial_credit=True)
    assert strict.digest == partial.digest
    for puzzle, expected in ((strict, 0.0), (partial, 0.05)):
        accuracy, exact, _ = graded(answered(" + ".join(_numbers(puzzle))), puzzle)
        assert (accuracy, exact) == (pytest.approx(expected), False)
    assert graded(ReasoningGym(strict.environment).write_answer(strict), strict)[:2] == (1.0, True)


def _numbers(puzzle: Puzzle) -> list[str]:
    return [str(number) for number in json.loads(puzzle.solution["item"])["entry"]["metadata"]["numbers"]]


ATTACKS = (
    "__import__('pathlib').Path({path!r}).touch()",
    "open({path!r}, 'w')",
    "[open({path!r}, 'w')]",
    "exec(\"open({path!r}, 'w')\")",
    "x.__class__.__base__.__subclasses__()",
    "(lambda: open({path!r}, 'w'))()",
)


@needs_package
@pytest.mark.parametrize("task", sorted(EVALUATED.keys() - REFUSED.keys()))
def test_an_answer_is_never_run(task: str, tmp_path: Path) -> None:
    puzzle, path = item(task), tmp_path / "touched"
    for attack in ATTACKS:
        text = answered(attack.format(path=str(path)))
        assert graded(text, puzzle)[:2] == (0.0, False)
        assert not path.exists(), attack
    assert graded(ReasoningGym(puzzle.environment).write_answer(puzzle), puzzle)[:2] == (1.0, True)


@pytest.mark.parametrize("task", sorted(EVALUATED.keys() & REFUSED.keys()))
def test_stored_items_of_a_refused_task_are_graded_without_running_an_answer(task: str) -> None:
    assert not any(is_scorable(task, attack) for attack in ATTACKS)


@needs_package
@pytest.mark.parametrize("task", ["list_functions", "word_ladder"])
def test_stored_items_of_a_task_that_was_refused_later_keep_their_grades(task: str) -> None:
    entry = entry_at(task, None, {}, 5)
    assert score(task, None, {}, entry["answer"], json.dumps(entry)) == 1.0
    assert score(task, None, {}, "no such answer", json.dumps(entry)) < 1.0


@needs_package
@pytest.mark.long
def test_every_scorer_that_evaluates_answers_is_guarded() -> None:
    """A release that evaluates more than this needs new guards."""
    package = importlib.util.find_spec("reasoning_gym")
    assert package is not None and package.origin is not None
    evaluated: dict[str, set[str]] = {}
    for path in Path(package.origin).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in _EVALUATORS and node.args:
                evaluated.setdefault(path.stem, set()).add(ast.unparse(node.args[0]))
    assert {module for module, texts in evaluated.items() if "answer" in texts} == EVALUATED.keys()
    assert {module: rest for module, texts in evaluated.items() if (rest := texts - {"answer"})} == _OF_THE_GENERATORS


_EVALUATORS = {"eval", "exec", "parse_expr", "sympify", "literal_eval", "system", "Popen"}
_OF_THE_GENERATORS = {
    "basic_arithmetic": {"exp.replace('/', '//')"},
    "bitwise_arithmetic": {"problem", "problem_str"},
    "codeio": {"full_code"},
    "generators_00_49": {"rng.choice(fractions)"},
    "generators_50_99": {"fraction"},
    "intermediate_integration": {"metadata['integrand']"},
    "number_sorting": {"entry['answer']"},
    "polynomial_multiplication": {"entry['answer']"},
    "propositional_logic": {"expr", "expr[1:-1]", "left_expr", "right_expr", "sub_expr"},  # a function of its own
    "simple_integration": {"metadata['integrand']"},
}
"""Texts that come from the generators themselves, by module."""


@needs_package
@pytest.mark.parametrize(
    ("task", "answer", "allowed"),
    [
        ("countdown", "(3 + 4) * 5 - 6 / 2", True),
        ("countdown", "9**9**9**9", False),
        ("countdown", "9* *9", False),
        ("countdown", "3 + x", False),
        ("simple_integration", "x**2*sin(x) + log(Abs(x)) + C", True),
        ("simple_integration", "evalf(x)", False),
        ("simple_integration", "N(x)", False),
        ("n_queens", "_ Q _\nQ _ _", True),
        ("n_queens", "[['_', 'Q']]", True),
        ("n_queens", "exit()", False),
        ("chain_sum", "anything (at all)", True),
        ("chain_sum", "1" * 20_001, False),
    ],
)
def test_what_a_scorer_may_see(task: str, answer: str, allowed: bool) -> None:
    assert is_scorable(task, answer) == allowed


@needs_package
def test_a_scorer_that_does_not_return_costs_one_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    import stages.environments.reasoning_gym.environment as module

    monkeypatch.setattr(module, "_SCORING_S", 2.0)
    module._scorer.cache_clear()
    puzzle = item("simple_integration")
    try:
        assert graded(answered("9**9**9**9**9 * x"), puzzle) == (0.0, False, "timeout")
        assert graded(ReasoningGym(puzzle.environment).write_answer(puzzle), puzzle)[:2] == (1.0, True)
    finally:
        module._scorer.cache_clear()


@needs_package
def test_a_generator_that_does_not_return_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    import stages.environments.reasoning_gym.environment as module

    one_cell = {"min_rows": 1, "max_rows": 1, "min_cols": 1, "max_cols": 1}  # has no room for a second place
    chosen = config("shortest_path", attributes=one_cell)
    monkeypatch.setattr(module, "_MAKING_S", 1.0)
    with pytest.raises(BadInputError, match=r"reasoning_gym:shortest_path, seed \d+: its generator took more than 1 s"):
        generate_nth(chosen, 0, 0)
    assert item("shortest_path").prompt, "the limit is off after an item"


@needs_package
def test_many_completions_are_graded_at_once() -> None:
    puzzles = [item("chain_sum", number) for number in range(3)]
    grader = ReasoningGym("reasoning_gym:chain_sum")
    texts = [grader.write_answer(puzzles[0]), "none", answered("x" * 20_001), grader.write_answer(puzzles[2])]
    grades = grader.grade_many(list(zip(texts, [*puzzles, puzzles[2]], strict=True)))
    assert [grade.accuracy for grade in grades] == [1.0, 0.0, 0.0, 1.0]
    assert [grade.answers["answer"].note for grade in grades] == ["", "missing", "outside", ""]
    assert len(grades[2].answers["answer"].text or "") == 200


@needs_package
def test_a_recipe_may_ask_only_what_the_tasks_can() -> None:
    plain = load_recipe("answers_only").model_dump(mode="json")
    puzzles = {**plain["puzzles"], "puzzle": {"environment": "reasoning_gym:chain_sum"}}
    recipe = Recipe.model_validate({**plain, "puzzles": puzzles})
    assert Recipe.model_validate(recipe.model_dump(mode="json")) == recipe
    asking = {**plain["grade"], "reward": {**plain["grade"]["reward"], "deductions_weight": 0.5}}
    with pytest.raises(ValueError, match=r"deductions_weight.*cannot solve a question or prove a statement"):
        Recipe.model_validate({**plain, "puzzles": puzzles, "grade": asking})
    assert missing(environment.get("reasoning_gym:chain_sum"), Proves) is not None


@needs_package
def test_every_part_of_the_panel_has_items() -> None:
    suite = load_suite("panel")
    assert isinstance(suite.puzzles.puzzle, MixtureConfig)
    tasks = suite.puzzles.puzzle.tasks
    assert len({task.environment for task in tasks}) == len(tasks)
    assert suite.puzzles.test % len(tasks) == 0
    for number, task in enumerate(tasks):
        puzzle = generate_nth(suite.puzzles.puzzle, suite.puzzles.seed, number)
        assert puzzle.environment == task.environment
        grader = ReasoningGym(puzzle.environment)
        assert grader.grade(grader.write_answer(puzzle), puzzle).exact, puzzle.environment


@needs_package
def test_a_task_can_be_tried(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["environments", "try", "reasoning_gym:chain_sum", "--count", "2"]) == 0
    assert capsys.readouterr().out.count("gets 1") == 2
    assert run_command(["environments", "try", "reasoning_gym:chain_sum", "--count", "1", "--level", "1"]) == 0
    assert run_command(["environments", "try", "reasoning_gym:chain_sum", "--count", "1", "--level", "easy"]) != 0
