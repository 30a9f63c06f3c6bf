"""Environments of the package verifiers, of one turn and of several, and those that are refused."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from artifacts.errors import BadInputError
from stages.environments import environment
from stages.environments.capabilities import TakesSteps
from stages.environments.puzzle import Graded, Puzzle
from stages.environments.solver_tool import write_episode
from stages.environments.user_code import config as user_config
from stages.environments.user_code.config import VerifiersConfig
from stages.environments.user_code.environment import user_environment

MODULE = '''
import verifiers as vf
from datasets import Dataset


def rows(size):
    made = ({"question": f"w{i} v{i}", "answer": f"v{i} w{i}", "info": {"i": i}} for i in range(size))
    return Dataset.from_list(list(made))


async def right(parser, completion, answer, info, **kwargs):
    assert info["i"] >= 0
    return 1.0 if parser.parse_answer(completion) == answer else 0.0


def tagged(completion, prompt):
    assert prompt[0].role == "system" and prompt[0].content == "Reverse the words."
    return float("<answer>" in completion[-1].content)


def fails(completion):
    raise KeyError("gone")


class Hints(vf.MultiTurnEnv):
    async def env_response(self, messages, state, **kwargs):
        return [{"role": "user", "content": f"hint {len(state['trajectory'])} for {state['answer']}"}]

    @vf.stop
    async def solved(self, state):
        steps = state["trajectory"]
        return bool(steps) and self.parser.parse_answer(steps[-1]["completion"]) == state["answer"]


def load_environment(size=20, kind="single"):
    parser = vf.XMLParser(["answer"], answer_field="answer")
    functions, weights = [right, tagged, parser.get_format_reward_func()], [1.0, 0.25, 0.0]
    if kind == "penalty":
        functions, weights = [right, tagged], [1.0, -0.5]
    if kind == "failing":
        functions, weights = [right, fails], [1.0, 1.0]
    if kind == "thinking":
        parser = vf.ThinkParser()
        functions, weights = [parser.get_format_reward_func()], [1.0]
    if kind == "grouped":
        def best(completions):
            return [0.0 for _ in completions]
        functions, weights = [best], [1.0]
    rubric = vf.Rubric(funcs=functions, weights=weights, parser=parser)
    if kind == "judged":
        rubric = vf.JudgeRubric(judge_client=object())
        rubric.add_reward_func(right)
    shared = {"dataset": rows(size), "system_prompt": "Reverse the words.", "parser": parser, "rubric": rubric}
    if kind == "tools":
        def look(word: str) -> str:
            """Looks a word up."""
            return word
        return vf.ToolEnv(tools=[look], **shared)
    return Hints(max_turns=3, **shared) if kind == "several" else vf.SingleTurnEnv(**shared)
'''


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    pytest.importorskip("verifiers", reason="the extra verifiers is not installed")
    site = tmp_path_factory.mktemp("site")
    (site / "reverse_words.py").write_text(MODULE)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(site))
        yield site


def items(count: int = 4, **arguments: Any) -> list[Puzzle]:
    config = VerifiersConfig(environment="verifiers:reverse-words", arguments=arguments).located(Path())
    return environment.of(config).source(config).items({"train": count, "val": 1, "test": 1}, 3).splits["train"]


def graded(text: str, item: Puzzle) -> Graded:
    return environment.get(item.environment).grade(text, item)


@pytest.mark.long
def test_data_system_prompt_parser_and_functions_are_the_environments_own(site: Path) -> None:
    """The reward is a share of the sum of the weights, 1.25; an asynchronous function is awaited."""
    first, *others = items(size=20)
    system, asked = json.loads(first.prompt)
    assert (system, asked["role"]) == ({"role": "system", "content": "Reverse the words."}, "user")
    right = " ".join(reversed(asked["content"].split()))
    assert first.solution["answer"] == right and len({item.digest for item in (first, *others)}) == 4
    texts = [f"<answer>{right}</answer>", "<answer>no</answer>", right]
    assert [graded(text, first).accuracy for text in texts] == [1.0, 0.2, 0.0]
    assert items(size=20)[0] == first
    thinker = items(kind="thinking")[0]
    assert [graded(text, thinker).accuracy for text in ("<think>so</think>a", "a")] == [1.0, 0.0], "thoughts are read"
    with pytest.raises(BadInputError, match=r"5 different prompts for items\(count=\d+, seed=3\)"):
        items(size=5)


def test_a_penalty_that_outweighs_the_reward_leaves_0(site: Path) -> None:
    from stages.environments.user_code.verifiers_tasks import VerifiersTask

    task = VerifiersTask("reverse-words", {"kind": "penalty"})
    (row,) = task.items(1, 3)
    assert [task.grade(f"<answer>{said}</answer>", row) for said in (row["answer"], "no")] == [0.5, 0.0]


@pytest.mark.release
def test_an_environment_of_several_turns_replies_until_it_stops(site: Path) -> None:
    first = items(kind="several")[0]
    known, answer = environment.get(first.environment), first.solution["answer"]
    assert isinstance(known, TakesSteps)
    turns = ["what?", "<answer>no</answer>", f"<answer>{answer}</answer>"]
    replies = [f"hint 1 for {answer}", f"hint 2 for {answer}"]
    assert [known.observe(turns[: n + 1], first) for n in range(3)] == [*replies, None]
    assert known.observe([turns[2]], first) is None
    assert [graded(write_episode(turns[:n], replies[: n - 1]), first).accuracy for n in (1, 2, 3)] == [0.0, 0.2, 1.0]


@pytest.mark.release
@pytest.mark.parametrize(
    ("kind", "found"),
    [
        ("tools", r"TypeError: it has tools \(look\), which completions cannot call"),
        ("judged", r"TypeError: its rubric asks another model: use grade\.reward\.judge"),
        ("grouped", r"TypeError: its rubric compares the completions of a group"),
        ("strange", r"RuntimeError: Failed to load environment .* unexpected keyword argument 'strange'"),
    ],
)
def test_what_a_run_does_not_offer_is_refused_in_one_line(site: Path, kind: str, found: str) -> None:
    arguments = {"strange": 1} if kind == "strange" else {"kind": kind}
    with pytest.raises(BadInputError, match=rf"verifiers:reverse-words: cannot be loaded \({found}") as raised:
        items(**arguments)
    assert "\n" not in str(raised.value)


@pytest.mark.release
def test_a_reward_function_that_fails_and_a_module_that_changes_are_named(site: Path) -> None:
    first = items(kind="failing")[0]
    grade = graded("<answer>no</answer>", first)
    note = grade.answers["answer"].note
    assert (grade.accuracy, note) == (0.0, "raised RuntimeError: Error calling reward function fails: 'gone'")
    (site / "reverse_words.py").write_text(MODULE + "# changed\n")
    user_environment.cache_clear()  # as in a new process
    with pytest.raises(BadInputError, match=r"the environment has changed: \w+\+verifiers\.0\.2\.\d+, expected"):
        graded("x", first)
    (site / "reverse_words.py").write_text(MODULE)


def test_a_missing_package_or_environment_is_named_before_anything_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> str:
        raise user_config.importlib.metadata.PackageNotFoundError(name)

    config = VerifiersConfig(environment="verifiers:no-such-environment")
    monkeypatch.setattr(user_config.importlib.metadata, "version", lambda _: "0.2.0")
    for name, module in (("no-such-environment", "no_such_environment"), ("owner/no.such", "no.such"), ("owner/", "")):
        with pytest.raises(BadInputError, match=rf"no such module; expected an installed module '{module}'"):
            VerifiersConfig(environment=f"verifiers:{name}").located(Path())
    monkeypatch.setattr(user_config.importlib.metadata, "version", absent)
    with pytest.raises(BadInputError, match=r"the package verifiers is not installed; .*uv sync --extra verifiers"):
        config.located(Path())
