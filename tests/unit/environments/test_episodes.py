"""Environments with steps: items, observations, rewards, texts of episodes, and every way to fail."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from artifacts.errors import BadInputError
from flows.benchmark import check_turns
from flows.config.models_file import ApiModel, CheckpointModel
from stages.environments import environment
from stages.environments.capabilities import TakesSteps
from stages.environments.puzzle import Puzzle
from stages.environments.solver_tool import own_words, read_episode, without_marks, write_episode, write_tool_output
from stages.environments.tables import graded_texts, observed_by_id, to_table
from stages.environments.user_code.config import FunctionConfig
from stages.grading.completions import GradedCompletion, reward_inputs
from stages.grading.judge import JudgeConfig
from stages.grpo.rewards import RewardConfig, reward_terms
from stages.sampling.collect import tool_of
from stages.sampling.config import SamplingConfig
from stages.sampling.turns import Steps
from stages.strategies.config import ThinkTwice
from stages.strategies.rounds import refuse_episodes
from tests.support.api_side import question
from tests.support.episodes import WILD, game


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("episodes")
    (folder / "guess.py").write_text(game())
    (folder / "wild.py").write_text(WILD)
    return folder


def episodes(folder: Path, name: str, count: int = 1, **settings: Any) -> list[Puzzle]:
    config = FunctionConfig(environment=name, **settings).located(folder)
    return environment.of(config).source(config).items({"train": count, "val": 0, "test": 0}, 7).splits["train"]


def graded(text: str, puzzle: Puzzle) -> Any:
    (grade,) = graded_texts([(text, puzzle.prompt_id)], {puzzle.prompt_id: puzzle}, "strict")
    return grade


def test_the_game_of_the_page_is_played_and_graded(folder: Path) -> None:
    """Episodes that begin alike are different items; a binary search finds every number in four guesses."""
    assert len([line for line in game().splitlines() if line.strip()]) <= 25
    items = episodes(folder, "guess.py:Guess", 12)
    assert len({item.prompt for item in items}) == 1
    assert len({item.digest for item in items}) == 12 == len({item.seed for item in items})
    observe = observed_by_id(to_table(items))
    assert observe is not None
    numbers: set[int] = set()
    for item in items:
        low, high = 1, 9
        turns, observations = list[str](), list[str]()
        while True:
            turns.append(str((low + high) // 2))
            if (said := observe(item.prompt_id, turns)) is None:
                break
            observations.append(said)
            low, high = ((low + high) // 2 + 1, high) if said == "Higher" else (low, (low + high) // 2 - 1)
        text = write_episode(turns, observations)
        assert read_episode(text) == (turns, observations)
        assert own_words(text, filler="").split() == turns
        assert (graded(text, item).accuracy, graded(text, item).exact) == (1.0, True)
        numbers.add(int(turns[-1]))
    assert len(numbers) > 4
    assert [graded(text, items[0]).accuracy for text in ("", "x", "12")] == pytest.approx([0.0, 0.0, 0.15])


def test_a_benchmark_asks_no_api_for_an_episode(folder: Path) -> None:
    """It would be asked the first turn alone."""
    api = ApiModel(name="api", kind="openai", model="m", base_url="https://example.org/v1")
    ours = CheckpointModel(name="ours", kind="checkpoint", checkpoint="run")
    items = to_table(episodes(folder, "guess.py:Guess"))
    check_turns([ours], items)
    check_turns([api, ours], to_table([question("Who?", "x")]))
    with pytest.raises(BadInputError, match=r"model 'api': .*episodes .*--only"):
        check_turns([ours, api], items)


@pytest.mark.parametrize("name", ["wild.py:Count", "wild.py:Gym"])
def test_rewards_of_the_attribute_and_of_gymnasiums_five_values_are_the_same(folder: Path, name: str) -> None:
    (item,) = episodes(folder, name)
    known = environment.get(item.environment)
    assert isinstance(known, TakesSteps)
    turns = ["a", "b", "c"]
    observations = [known.observe(turns[: n + 1], item) for n in range(3)]
    assert observations == ["a heard, 2 left", "b heard, 1 left", None]
    texts = [write_episode(turns[:n], ["a heard, 2 left", "b heard, 1 left"][: n - 1]) for n in (1, 2, 3)]
    assert [graded(text, item).accuracy for text in texts] == [0.25, 0.5, 0.75]


def test_thoughts_are_left_out_of_each_turn_and_marks_of_the_model_mean_nothing(folder: Path) -> None:
    (item,) = episodes(folder, "wild.py:Count")
    known = environment.get(item.environment)
    assert isinstance(known, TakesSteps)
    assert known.observe(["<think>what</think>a", "<think>not yet"], item) == " heard, 1 left"
    turns = [without_marks("x\n<told>\na heard, 9 left\n</told>\n"), "<think>b</think>b"]
    first = known.observe(turns[:1], item)
    assert first is not None
    text = write_episode(turns, [without_marks(first)])
    assert read_episode(text)[0] == turns
    assert graded(text, item).accuracy == 0.5


def test_a_judge_reads_the_answers_of_all_turns(folder: Path) -> None:
    (item,) = episodes(folder, "wild.py:Count")
    judge = JudgeConfig(base_url="http://127.0.0.1:9/v1", model="m", prompt="{completion}", best=5.0)
    turns = ["<think>what</think>a", "<think>b</think>b"]
    assert judge.question(write_episode(turns, ["a heard"]), item) == "assistant: a\n\nuser: a heard\n\nassistant: b"
    cut = ["<think>what</think>a", "<think>b is"]
    assert str(judge.question(write_episode(cut, ["a heard"]), item)).startswith("assistant: a\n\nuser: a heard")
    assert judge.question("<think>what</think>a", item) == "a"
    assert judge.question("<think>what", item) is None


def test_what_an_episode_reads_counts_against_its_limit(folder: Path) -> None:
    """The sampler cuts at max_tokens of both together, so that the last tokens before it are those of both, too."""
    (item,) = episodes(folder, "wild.py:Count")
    config = RewardConfig(truncated="soft_overlong", overlong_buffer_tokens=4, truncation_penalty=1.0)
    row = {"completion_token_ids": [5] * 8, "sampling": '{"max_tokens": 10}', "text": "a"}
    for end, share in (("stop", 0.5), ("length", 1.0)):
        one = GradedCompletion({**row, "finish_reason": end}, item, graded("a", item), None)
        (inputs,) = reward_inputs([one], [3], config, "strict", None)
        assert reward_terms(inputs, config)["truncated"] == -share
    marked = {**row, "text": f"{write_tool_output('x x')}y", "finish_reason": "stop"}
    for by_tool, own in ((None, marked["text"]), ([False] * 8, marked["text"]), ([True] * 6 + [False] * 2, "\n\ny")):
        one = GradedCompletion({**marked, "by_tool": by_tool}, question("Who?", "x"), graded("a", item), None)
        assert reward_inputs([one], [2], config, "strict", None)[0].text == own, "only a tool's words are left out"
    plain = GradedCompletion({**row, "finish_reason": "stop"}, question("Who?", "x"), graded("a", item), None)
    assert reward_inputs([plain], [3], config, "strict", None)[0].tokens == 3, "the answers of a tool do not count"
    cut = GradedCompletion({**row, "finish_reason": "length"}, question("Who?", "x"), graded("a", item), None)
    (inputs,) = reward_inputs([cut], [8], config, "strict", None)
    assert reward_terms(inputs, config)["truncated"] == -1.0, "the model's context, of 8 tokens, cut it"


@pytest.mark.parametrize(
    ("name", "lost"),
    [("OnlyOnSuccess", (0.0, "raised AttributeError: 'OnlyOnSuccess' object has no attribute 'reward'")),
     ("Default", (0.25, ""))],
)  # fmt: skip
def test_an_episode_gets_no_reward_of_the_one_before(folder: Path, name: str, lost: tuple[float, str]) -> None:
    item, *_ = episodes(folder, f"wild.py:{name}")
    grades = [graded(text, item) for text in ("right", "wrong", "right", "worse")]
    right = (1.0, "")
    assert [(grade.accuracy, grade.answers["answer"].note) for grade in grades] == [right, lost, right, lost]


def test_seeds_are_different_and_fit_where_games_put_them(folder: Path) -> None:
    config = FunctionConfig(environment="wild.py:Count").located(folder)
    for seed in (0, 1, 2**31, 2**63 - 1):
        made = environment.of(config).source(config).items({"train": 3, "val": 3, "test": 0}, seed).splits
        seeds = [item.seed for items in made.values() for item in items]
        assert len({*seeds}) == 6
        assert all(isinstance(number, int) and 0 <= number < 2**31 for number in seeds)


@pytest.mark.parametrize(
    ("name", "note"),
    [
        ("Raises", "raised KeyError: 'a'"),
        ("Single", "raised TypeError: step returned 'b', expected (observation, done), the first of them a text"),
        ("NoReward", "raised AttributeError: 'NoReward' object has no attribute 'reward'"),
        ("Loops", "timeout"),
    ],
)
def test_an_episode_whose_step_fails_ends_and_gets_0_and_its_reason(folder: Path, name: str, note: str) -> None:
    (item,) = episodes(folder, f"wild.py:{name}", limit_s=0.2 if note == "timeout" else 30.0)
    known = environment.get(item.environment)
    assert isinstance(known, TakesSteps)
    assert known.observe(["a"], item) is None
    grade = graded("a", item)
    assert (grade.accuracy, grade.answers["answer"].note) == (0.0, note)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("NoStep", r"NoStep has no method step; write def step\(self, completion\)"),
        ("Seedless", r"Seedless\.reset\(\): .*; write def reset\(self, seed\)"),
        ("NoPrompt", r"has the prompt None, expected a text"),
        ("Prompts", r"'prompt' is '0\.\d+' and then '0\.\d+'.* expected the same items each time"),
    ],
)
def test_an_object_that_cannot_be_played_is_refused_in_one_line(folder: Path, name: str, message: str) -> None:
    with pytest.raises(BadInputError, match=message):
        episodes(folder, f"wild.py:{name}", 3)


def test_an_environment_that_says_something_else_the_second_time_is_refused(folder: Path) -> None:
    (item,) = episodes(folder, "wild.py:Random")
    expected = r"wild\.py:Random\.step, .*returned '0\.\d+' after turn 1, where it had returned '5'; .*the same observ"
    with pytest.raises(BadInputError, match=expected):
        graded(write_episode(["a", "b"], ["5"]), item)
    (item,) = episodes(folder, "wild.py:Rich")
    with pytest.raises(BadInputError, match=r"returned 7; expected a reward from 0 to 1"):
        graded("a", item)


@pytest.mark.parametrize("setting", [{"presence_penalty": 1.0}, {"tool_calls": 2}])
def test_settings_that_would_begin_again_in_each_turn_are_refused(folder: Path, setting: dict[str, Any]) -> None:
    table = to_table(episodes(folder, "wild.py:Count"))
    assert isinstance(tool_of(table, SamplingConfig(), thought_opened=False), Steps)
    with pytest.raises(BadInputError, match=rf"sampling\.{next(iter(setting))}: set, but .*; leave it out"):
        tool_of(table, SamplingConfig(**setting), thought_opened=False)


@pytest.mark.parametrize(
    ("solution", "answer"),
    [
        ({"answer": "4", "item": '{"answer": "4"}'}, "4"),
        ({"answer": "", "item": '{"target": 24}'}, '{"target": 24}'),
        ({"A": "Mrs. White", "B": "Lounge"}, "A. Mrs. White\nB. Lounge"),
    ],
)
def test_a_judge_is_told_the_right_answer(folder: Path, solution: dict[str, str], answer: str) -> None:
    (item,) = episodes(folder, "wild.py:Count")
    judge = JudgeConfig(base_url="http://127.0.0.1:9/v1", model="m", prompt="{answer}|{completion}", best=5.0)
    assert judge.question("a", replace(item, solution=solution)) == f"{answer}|a"


def test_a_strategy_that_asks_in_rounds_is_refused_before_anything_is_sampled(folder: Path) -> None:
    table = to_table(episodes(folder, "guess.py:Guess"))
    refuse_episodes([], table)
    refuse_episodes([ThinkTwice(strategy="think_twice")], to_table([question("Who?", "x")]))
    with pytest.raises(
        BadInputError, match="strategy think_twice: asks in rounds, but the environment answers in turns"
    ):
        refuse_episodes([ThinkTwice(strategy="think_twice")], table)
