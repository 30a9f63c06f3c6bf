"""Environments that users write: items, scores, every way to fail, changes, packages, and the first rewards."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from artifacts.address import ArtifactAddress
from artifacts.errors import BadInputError, IdentityMismatchError
from artifacts.identity import Identity
from artifacts.layout import RunLayout
from artifacts.reading import Artifact
from artifacts.refs import Grades, Puzzles, Ref, Rollouts
from artifacts.schemas import GRADES, GRADES_FILE, PUZZLES, ROLLOUTS, TOKEN_ADVANTAGES, TOKEN_ADVANTAGES_FILE, as_table
from flows.cli.app import run_command
from flows.config.recipes import load_recipe
from flows.config.suites import load_suite
from flows.lookup.splits import named_split
from flows.session.frozen import check_recipe, freeze_recipe
from stages.context import StageContext
from stages.environments import environment
from stages.environments.puzzle import Graded, Puzzle
from stages.environments.single_answer import single_item
from stages.environments.tables import from_table, graded_texts, to_table, tokenizer_texts
from stages.environments.user_code.config import FunctionConfig, PackageConfig
from stages.environments.user_code.environment import UserSource, user_environment
from stages.grade import GradeConfig, grade
from stages.prepare import SPLITS, PrepareConfig, identity_of, prepare
from stages.processes import user_file
from stages.statistics.first_rewards import check_first_rewards, cut_warning
from stages.strategies.think_twice import last_answer
from tests.support.json_page import check_documented
from tests.support.user_tasks import WILD, readme_recipe, readme_task


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tasks")
    (folder / "my_tasks.py").write_text(readme_task())
    (folder / "wild.py").write_text(WILD)
    (folder / "broken.py").write_text("import no_such_module\n")
    (folder / "mine.toml").write_text(readme_recipe())
    return folder


def function(folder: Path, name: str, **settings: Any) -> FunctionConfig:
    return FunctionConfig(environment=name, **settings).located(folder)


def splits_of(config: PrepareConfig, ctx: StageContext, key: str = "set") -> dict[str, list[Puzzle]]:
    artifact = Artifact.open(ctx.store, prepare(ctx, config, out=ArtifactAddress(ctx.store, key, Puzzles)))
    return {name: from_table(artifact.read_table(f"{name}.parquet", PUZZLES)) for name in SPLITS}


def graded(folder: Path, texts: list[str], **settings: Any) -> list[Graded]:
    """The grades of completions of the first items of `wild.py`."""
    config = function(folder, "wild.py:Wild", **settings)
    source = environment.of(config).source(config)
    items = source.items({"train": len(texts), "val": 0, "test": 0}, 7).splits["train"]
    known = {item.prompt_id: item for item in items}
    return graded_texts(zip(texts, known, strict=True), known, "strict")


def test_the_task_of_the_readme(folder: Path, ctx: StageContext) -> None:
    assert len([line for line in readme_task().splitlines() if line.strip()]) <= 16
    recipe = load_recipe(str(folder / "mine.toml"))
    sizes = {"train": 20, "val": 5, "test": 5}
    config = recipe.puzzles.model_copy(update=sizes)
    splits = splits_of(config, ctx)
    assert {name: len(items) for name, items in splits.items()} == sizes
    assert len({item.prompt for items in splits.values() for item in items}) == 30
    more = splits_of(config.model_copy(update={"train": 40}), ctx, "more")
    assert (more["val"], more["test"], more["train"][:20]) == (splits["val"], splits["test"], splits["train"])
    item = splits["test"][0]
    a, b = (int(word) for word in re.findall("[0-9]+", item.prompt.partition(" from ")[2]))
    target = int(item.prompt.split()[1])
    right, wrong = sorted([f"{a} + {b}", f"{a} - {b}"], key=lambda formula: eval(formula) != target)
    family = environment.get(item.environment)
    scores = [family.grade(text, item).accuracy for text in (right, wrong, "7777", "none")]
    assert scores == [1.0, 0.3, 0.1, 0.0]
    assert family.grade(right, item).exact
    assert tokenizer_texts(to_table([item]), None) == [item.prompt]


def test_the_order_of_the_arguments_does_not_matter(folder: Path, ctx: StageContext) -> None:
    config = PrepareConfig(puzzle=function(folder, "wild.py:Swapped"), train=4, val=2, test=2)
    splits = splits_of(config, ctx)
    assert {name: len(items) for name, items in splits.items()} == {"train": 4, "val": 2, "test": 2}
    item = splits["test"][0]
    assert [environment.get(item.environment).grade(text, item).accuracy for text in (item.prompt, "x")] == [1.0, 0.0]


def test_a_completion_that_cannot_be_graded_gets_0_and_its_reason(folder: Path) -> None:
    texts = ["score 0.25", "raise no\nsuch", "exit 3", "loop", f"memory {1 << 33}", "is 5", "value 1"]
    grades = graded(folder, texts, limit_s=0.5)
    assert [grade.accuracy for grade in grades] == [0.25, 0.0, 0.0, 0.0, 0.0, 1.0, 1.0]
    notes = [grade.answers["answer"].note for grade in grades]
    assert notes == ["", "raised RuntimeError: no such", "crashed: exit code 3", "timeout", "out of memory", "", ""]
    assert [grade.exact for grade in grades] == [False] * 5 + [True] * 2


@pytest.mark.parametrize("value", ["float('nan')", "2", "-0.1", "'1'", "None", "[1]"])
def test_a_score_out_of_range_names_the_completion(folder: Path, value: str) -> None:
    message = r"wild\.py:Wild\.grade, item item-000001, completion .*returned .*; expected a number from 0 to 1"
    with pytest.raises(BadInputError, match=message):
        graded(folder, ["score 1", f"value {value}"])


def test_a_score_that_differs_the_second_time_is_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match=r"item-000000, .*: graded the same completion with 0\.\d+ and then 0\.\d+"):
        graded(folder, ["random", "score 1"])
    with pytest.raises(BadInputError, match=r"graded the same completion with (an error and then 1|1 and then an err)"):
        graded(folder, [f"once {tmp_path / 'asked'}", "score 1"])


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("wild.py:Few", r"Few\.items: 5 different prompts for items\(count=\d+, seed=0\); expected at least 12; lower"),
        ("wild.py:Texts", "Texts.items: raised TypeError: item 0 is 'a', expected a dict"),
        ("wild.py:NoPrompt", "item 0 has the prompt None, expected a text"),
        ("wild.py:NotJson", "item 0 is not JSON"),
        ("wild.py:Tuples", r"item 0 changes when it is stored as JSON: 'pair' is \(1, 2\) and then \[1, 2\]; use"),
        ("wild.py:Numbered", "'by_id' is {1: 'x'} and then {'1': 'x'}; use lists instead of tuples, and texts as keys"),
        ("wild.py:Zero", "stored as JSON: 0 is 'x' and then a text as key; use lists"),
        ("wild.py:Large", r"item 0 has 1,000,\d+ bytes of JSON, expected at most 1,000,000"),
        ("wild.py:Raises", "Raises.items: raised KeyError: 'gone'"),
        ("wild.py:Unsteady", r"Unsteady\.items, item 2: 'drawn' is 0\.\d+ and then 0\.\d+ for items\(count=12, s"),
        ("wild.py:Growing", r"Growing\.items, item \d+: 'prompt' is (nothing|'p\d+') and then (nothing|'p\d+') for"),
        ("wild.py:Half", r"wild\.py:Half: cannot be loaded \(TypeError: Half has no method items; write def items\("),
        ("wild.py:Renamed", r"Renamed\.items\(n, seed\): .*'n'; write def items\(self, count, seed\)\); expected an"),
        ("wild.py:Misgraded", r"Misgraded\.grade\(text, item\): .*'text'; write def grade\(self, completion, item\)"),
        ("wild.py:Wlid", r"AttributeError: wild\.py has no Wlid, did you mean 'Wild'"),
        ("broken.py:Task", r"broken\.py:Task: cannot be loaded \(ModuleNotFoundError: No module named 'no_such"),
    ],
)
def test_bad_items(folder: Path, ctx: StageContext, name: str, message: str) -> None:
    config = PrepareConfig(puzzle=function(folder, name), train=4, val=4, test=4)
    with pytest.raises(BadInputError, match=message) as raised:
        splits_of(config, ctx)
    assert "\n" not in str(raised.value)


ITEMS_OF_A_SET = """
import sys
from pathlib import Path
from stages.environments.user_code.config import FunctionConfig
from stages.environments.user_code.environment import user_environment
name = FunctionConfig(environment="wild.py:Sets").located(Path(sys.argv[1])).environment_name
print([item["prompt"] for item in user_environment(name).items(40, 0, None)[0]])
"""


def test_the_order_of_a_set_is_the_same_in_each_run(folder: Path) -> None:
    """The processes of two commands have seeds of their own, as Python chooses them."""
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONHASHSEED"}
    first, second = (
        subprocess.run(
            [sys.executable, "-c", ITEMS_OF_A_SET, folder], env=environ, check=True, capture_output=True, text=True
        ).stdout
        for _ in range(2)
    )
    assert first == second
    assert "w39" in first


@pytest.mark.parametrize(("answer", "stored"), [("a" * 5000, "a" * 5000), (None, ""), (0, "0"), (["a"], "['a']")])
def test_a_judge_is_told_the_whole_answer(folder: Path, answer: Any, stored: str) -> None:
    config = function(folder, "wild.py:Wild")
    source = environment.of(config).source(config)
    assert isinstance(source, UserSource)
    made = source._puzzle({"prompt": "p", "answer": answer}, 0, episodes=False)
    assert made.solution["answer"] == stored


def test_the_same_episode_in_two_rows_of_a_data_set_is_one(folder: Path) -> None:
    """Otherwise one could be trained, and the other measured."""
    config = function(folder, "wild.py:Wild")
    source = environment.of(config).source(config)
    assert isinstance(source, UserSource)
    rows = [{"prompt": "p", "answer": answer, "example_id": row} for row, answer in enumerate("aab")]
    digests = [source._puzzle(row, 0, episodes=True).digest for row in rows]
    assert digests[0] == digests[1] != digests[2]


def test_a_suite_of_a_users_items_stands_beside_their_file(folder: Path, ctx: StageContext) -> None:
    suite = folder / "wild_suite.toml"
    suite.write_text('title = "Wild"\n[puzzles]\ntrain = 0\nval = 0\ntest = 3\npuzzle.environment = "wild.py:Wild"\n')
    assert len(splits_of(load_suite(str(suite)).puzzles, ctx)["test"]) == 3


def test_scores_are_no_votes(folder: Path) -> None:
    """A vote on scores would look at the solution."""
    name = function(folder, "wild.py:Wild").environment_name
    puzzle = single_item("p", name, "p", {"answer": "3", "item": json.dumps({"answer": 3})})
    graded = user_environment(name).grade_many([("score 0.5", puzzle), ("is 3", puzzle)])
    assert [one.accuracy for one in graded] == [0.5, 1.0]
    assert [answer.value for one in graded for answer in one.answers.values()] == [None, None]


def test_a_further_round_quotes_the_answer_and_not_its_score(folder: Path) -> None:
    text = "score 0.5 is what I say"
    (grade,) = graded(folder, ["score 0.5"])
    assert last_answer(grade, text) == text


def test_names_that_are_no_environment(folder: Path) -> None:
    with pytest.raises(BadInputError, match=r"none\.py: no such file"):
        function(folder, "none.py:Task")
    with pytest.raises(BadInputError, match="environment: 'chess'"):
        environment.get("chess")
    with pytest.raises(BadInputError, match=r"'my_tasks.py:Countdown'; expected FILE\.py:OBJECT below"):
        environment.get("my_tasks.py:Countdown")


def test_the_code_is_the_identity_and_a_change_is_named(tmp_path: Path, ctx: StageContext) -> None:
    recipes: list[Path] = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "my_tasks.py").write_text(readme_task())
        recipes.append(tmp_path / name / "mine.toml")
        recipes[-1].write_text(readme_recipe())
    begun, moved = (load_recipe(str(recipe)) for recipe in recipes)
    assert identity_of(begun.puzzles) == identity_of(moved.puzzles)
    layout = RunLayout("mine")
    freeze_recipe(ctx.store, layout, begun)
    check_recipe(ctx.store, layout, moved)  # the place of the file does not matter
    small, small_moved = (
        recipe.puzzles.model_copy(update={"train": 2, "val": 1, "test": 1}) for recipe in (begun, moved)
    )
    sets = [
        prepare(ctx, config, out=ArtifactAddress(ctx.store, f"set-{number}", Puzzles))
        for number, config in enumerate((small, small_moved))
    ]
    assert sets[0].digest == sets[1].digest, "so the stages that use a set are the same on each machine"
    item = splits_of(small, ctx)["train"][0]
    assert "/" not in item.environment and item.environment.startswith("my_tasks.py:Countdown@")

    (tmp_path / "a" / "my_tasks.py").write_text(readme_task() + "\n")
    with pytest.raises(IdentityMismatchError, match=r"run 'mine': the code that it uses has changed: .*sha256"):
        check_recipe(ctx.store, layout, load_recipe(str(recipes[0])))
    with pytest.raises(BadInputError, match=r"my_tasks\.py: changed since .* \(\w{12} -> \w{12}\); .*restore"):
        identity_of(small)
    (tmp_path / "b" / "my_tasks.py").write_text(readme_task() + "\n")  # the file that was noted last
    user_environment.cache_clear()  # as in a new process
    with pytest.raises(BadInputError, match=r"my_tasks\.py: changed since the run began"):
        environment.get(item.environment).grade("1", item)
    (tmp_path / "b" / "my_tasks.py").write_text(readme_task())
    assert environment.get(item.environment).grade("none", item).accuracy == 0.0


def test_a_stored_item_finds_its_file_again(tmp_path: Path, ctx: StageContext, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "my_tasks.py"
    file.write_text(readme_task())
    config = FunctionConfig(environment="my_tasks.py:Countdown").located(tmp_path)
    sizes = {"train": 1, "val": 0, "test": 1}
    splits_of(PrepareConfig(puzzle=config, **sizes), ctx, "puzzles/set")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)

    def score() -> float:
        reference, split = named_split("puzzles/set:test", ctx.store, "here")
        item = from_table(Artifact.open(ctx.store, reference).read_table(f"{split}.parquet", PUZZLES))[0]
        user_environment.cache_clear()
        return environment.get(item.environment).grade("none", item).accuracy

    monkeypatch.setattr(user_file, "_FILES", {})  # as in a process that has read no recipe
    assert score() == 0.0
    file.rename(elsewhere / "my_tasks.py")  # as on another machine
    monkeypatch.setattr(user_file, "_FILES", {})
    assert score() == 0.0
    (elsewhere / "my_tasks.py").unlink()
    with pytest.raises(BadInputError, match=r"my_tasks\.py: no such file; .* or into the working directory"):
        score()


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package as an installer leaves it: a module, and a folder with its name, version and entry points."""
    site = tmp_path / "site"
    information = site / "wild_tasks-0.1.dist-info"
    information.mkdir(parents=True)
    (site / "wild_tasks.py").write_text(WILD)
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: wild-tasks\nVersion: 0.1\n")
    points = "[deerstalker.environments]\nwild = wild_tasks:Wild\nlost = wild_tasks:Lost\n"
    (information / "entry_points.txt").write_text(points)
    monkeypatch.syspath_prepend(str(site))
    return information


def test_an_installed_package(package: Path, ctx: StageContext, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["environments", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    check_documented("environments", listed)
    by_name = {row["name"]: row for row in listed["environments"]}
    assert by_name["wild"] == {
        "name": "wild", "from": "wild-tasks==0.1", "recipe": 'environment = "wild"', "levels": ["easy", "hard"],
        "error": None,
    }  # fmt: skip
    assert "has no attribute 'Lost'" in by_name["lost"]["error"]
    assert by_name["zebra"]["levels"] == ["easy", "medium", "full"]
    assert run_command(["environments", "try", "wild", "--count", "2", "--level", "hard", "--answer", "is 1"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "--- item-000000", "hard 0 0", "--- the answer 'is 1' gets 0",
        "--- item-000001", "hard 0 1", "--- the answer 'is 1' gets 1",
    ]  # fmt: skip
    assert run_command(["environments", "try", "wild", "--json", "--answer", "raise x"]) == 0
    tried = json.loads(capsys.readouterr().out)
    check_documented("environments try", tried)
    assert tried["items"][0]["answers"]["answer"]["note"] == "raised RuntimeError: x"

    for level, message in (("hrad", "'hrad', did you mean 'hard'.; expected easy, hard"), ("", "expected easy, hard")):
        named = PackageConfig(environment="wild", level=level).located(Path())
        with pytest.raises(BadInputError, match=f"puzzles.puzzle.level: .*{message}"):
            splits_of(PrepareConfig(puzzle=named, train=1, val=1, test=1), ctx, f"set{level}")

    config = PrepareConfig(
        puzzle=PackageConfig(environment="wild", limit_s=2.0).located(Path()), train=1, val=1, test=1
    )
    assert PrepareConfig.model_validate({"puzzle": {"environment": "wild"}}).puzzle == PackageConfig(environment="wild")
    item = splits_of(config, ctx)["train"][0]
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: wild-tasks\nVersion: 0.2\n")
    with pytest.raises(BadInputError, match=r"changed since the run began \(wild-tasks==0.1 -> wild-tasks==0.2\)"):
        config.puzzle.located(Path())
    with pytest.raises(BadInputError, match=r"the package has changed: wild-tasks==0.2, expected wild-tasks==0.1"):
        environment.get(item.environment).grade("is 0", item)


def test_an_editable_package_changes_with_its_code(package: Path) -> None:
    origin = {"url": "file:///home/wild", "dir_info": {"editable": True}}
    (package / "direct_url.json").write_text(json.dumps(origin))
    config = PackageConfig(environment="wild").located(Path())
    item = single_item("item-0", config.environment_name, "p", {"answer": "", "item": '{"prompt": "p", "answer": 0}'})
    assert config.located(Path()) == config
    assert environment.get(item.environment).grade("is 0", item).accuracy == 1.0
    module = package.parent / "wild_tasks.py"
    module.write_text(module.read_text() + "# changed\n")
    with pytest.raises(BadInputError, match=r"changed since the run began \(wild-tasks==0\.1\+editable\.\w{16} -> "):
        config.located(Path())
    user_environment.cache_clear()  # as in a new process
    with pytest.raises(BadInputError, match="the package has changed"):
        environment.get(item.environment).grade("is 0", item)
    module.unlink()
    inner = package.parent / "wild_tasks" / "inner"
    inner.mkdir(parents=True)
    (inner.parent / "__init__.py").write_text(WILD)
    (inner / "rules.py").write_text("LIMIT = 1\n")
    before = PackageConfig(environment="wild").located(Path())
    (inner / "rules.py").write_text("LIMIT = 2\n")
    assert PackageConfig(environment="wild").located(Path()) != before


def stage_grades(
    ctx: StageContext, folder: Path, texts: list[str], number: int, cut: int = 0
) -> tuple[Ref[Rollouts], Ref[Grades]]:
    """Rollouts of one item, of which the first `cut` were cut at the token limit, and their grades."""
    config = PrepareConfig(puzzle=function(folder, "wild.py:Wild"), train=1, val=0, test=0)
    puzzles = prepare(ctx, config, out=ArtifactAddress(ctx.store, "set", Puzzles))
    rows = [
        {
            "prompt_id": "item-000000", "group": 0, "sample": sample, "prompt_token_ids": [1],
            "completion_token_ids": [3], "sampler_logprobs": [-0.5], "text": text,
            "finish_reason": "length" if sample < cut else "stop", "sampling": json.dumps({"max_tokens": 4}),
            "weights_digest": "w", "engine": "e", "group_s": 1.0,
        }
        for sample, text in enumerate(texts)
    ]  # fmt: skip
    attempt = ArtifactAddress(ctx.store, f"rollouts-{number}", Rollouts).attempt(Identity.of("sample", number, {}))
    attempt.write_shard("rollouts", as_table(rows, ROLLOUTS), ROLLOUTS)
    rollouts: Ref[Rollouts] = attempt.publish()
    out = ArtifactAddress(ctx.store, f"grades-{number}", Grades)
    return rollouts, grade(ctx, GradeConfig(), rollouts, puzzles, out=out)


def test_completions_that_were_cut_are_told_of(folder: Path, ctx: StageContext) -> None:
    _, grades = stage_grades(ctx, folder, ["score 0"] * 10, 1, cut=3)
    assert cut_warning(ctx.store, grades, 4) is None, "30% are not many"
    _, grades = stage_grades(ctx, folder, ["score 0"] * 10, 2, cut=4)
    assert cut_warning(ctx.store, grades, 4) == "40% of the completions were cut at sample.sampling.max_tokens = 4"


def test_first_rewards_without_a_signal_are_refused(folder: Path, ctx: StageContext) -> None:
    same = stage_grades(ctx, folder, ["raise no"] * 20 + ["score 0"] * 30 + ["what"] * 10, 1)
    message = r"the reward 0 for all: 'score 0', not right \(40\); raised RuntimeError: no \(20\); the first"
    with pytest.raises(BadInputError, match=message):
        check_first_rewards(ctx.store, *same)
    with pytest.raises(BadInputError, match=r"no answer could be read in 32 completions: raised .*no \(32\)"):
        check_first_rewards(ctx.store, *stage_grades(ctx, folder, ["raise no"] * 32, 2))
    check_first_rewards(ctx.store, *stage_grades(ctx, folder, ["raise no"] * 31, 3))  # too few to tell
    table = Artifact.open(ctx.store, same[1]).read_table(GRADES_FILE, GRADES)
    by_steps = ArtifactAddress(ctx.store, "by-steps", Grades).attempt(Identity.of("grade", 9, {}))
    advantages = pl.Series("advantage", [float(number % 3) for number in range(len(table))])
    by_steps.write_table(GRADES_FILE, table.with_columns(advantages), GRADES)
    check_first_rewards(ctx.store, same[0], by_steps.publish())  # as under process supervision
    unread = table.with_columns(advantages, answers=pl.lit(json.dumps({"answer": {"text": None, "note": "missing"}})))
    judged = ArtifactAddress(ctx.store, "judged", Grades).attempt(Identity.of("grade", 12, {}))
    judged.write_table(GRADES_FILE, unread, GRADES)
    by_judge = judged.publish()
    with pytest.raises(BadInputError, match="no answer could be read"):
        check_first_rewards(ctx.store, same[0], by_judge)
    check_first_rewards(ctx.store, same[0], by_judge, reads_answers=False)
    flat = ArtifactAddress(ctx.store, "flat", Grades).attempt(Identity.of("grade", 10, {}))
    varied = [pl.Series("reward", [float(number % 3) for number in range(len(table))]), pl.lit(0.0).alias("advantage")]
    flat.write_table(GRADES_FILE, table.with_columns(varied), GRADES)
    grades = flat.publish()
    with pytest.raises(BadInputError, match=r"rewards from 0 to 2 that are equal within each group, so that adv"):
        check_first_rewards(ctx.store, same[0], grades)
    check_first_rewards(ctx.store, same[0], grades, by_advantages=False)  # right completions are imitated anyway
    tokens = ArtifactAddress(ctx.store, "tokens", Grades).attempt(Identity.of("grade", 11, {}))
    tokens.write_table(GRADES_FILE, table.with_columns(varied), GRADES)
    rows = [{"group": 0, "sample": number, "advantages": [float(number % 2)]} for number in range(len(table))]
    tokens.write_table(TOKEN_ADVANTAGES_FILE, as_table(rows, TOKEN_ADVANTAGES), TOKEN_ADVANTAGES)
    check_first_rewards(ctx.store, same[0], tokens.publish())  # means are 0, but tokens differ
    good = stage_grades(ctx, folder, ["raise no"] * 31 + ["score 0.5"], 4)
    check_first_rewards(ctx.store, *good)
    table = Artifact.open(ctx.store, good[1]).read_table(GRADES_FILE, GRADES)
    assert table["accuracy"].to_list() == [0.0] * 31 + [0.5]
    assert json.loads(table["answers"][0])["answer"]["note"] == "raised RuntimeError: no"
    assert table["grader"].unique().to_list() == ["function"]
