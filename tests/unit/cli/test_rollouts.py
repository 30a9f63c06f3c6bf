"""`deerstalker rollouts`: the completions of a run as a data set that polars, `datasets` and TRL read."""

import json
import subprocess
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import polars as pl
import pytest

from artifacts.address import ArtifactAddress
from artifacts.documents.conversation import stored_prompt
from artifacts.identity import Identity
from artifacts.layout import RunLayout
from artifacts.reading import Artifact
from artifacts.refresh import Refresh
from artifacts.refs import Grades, Rollouts, Values
from artifacts.schemas import GRADES, PUZZLES, ROLLOUTS, TOKEN_ADVANTAGES, VALUES, as_table
from artifacts.store.store import Store
from flows.cli.app import run_command
from flows.lookup.history import read_run
from flows.lookup.rollouts import COMPLETION, as_dataset, graded_rollouts
from flows.report.run_view import RunView
from tests.support.isolated import isolated_python
from tests.support.json_page import check_documented
from tests.support.made_run import copied_store, make_run

READ_BY_TRL = """
import json, sys
from datasets import load_dataset
from trl import is_conversational

rows = load_dataset(sys.argv[1], data_files=sys.argv[2], split="train", cache_dir=sys.argv[3])
good = rows.filter(lambda row: row["reward"] > 0.5)
print(json.dumps([len(rows), len(good), all(map(is_conversational, good)), rows[0]]))
"""


@pytest.fixture(scope="module")
def written(made: tuple[Store, RunLayout], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The run `made` as a data set, by the file's suffix."""
    folder = tmp_path_factory.mktemp("rollouts")
    files = {suffix: folder / f"made.{suffix}" for suffix in ("jsonl", "parquet")}
    for file in files.values():
        assert run_command(["rollouts", "made", "--out", str(file), "--store", made[0].url]) == 0
    assert sorted(path.name for path in folder.iterdir()) == ["made.jsonl", "made.parquet"]
    return files


def test_a_row_is_a_completion_with_its_prompt_and_its_grade(
    made: tuple[Store, RunLayout], written: dict[str, Path]
) -> None:
    store, layout = made
    rows = [json.loads(line) for line in written["jsonl"].read_text().splitlines()]
    assert [row["step"] for row in rows] == [number for number in (1, 2, 3, 4) for _ in range(24)]
    grades = Artifact.at(store, layout.iteration(2, "grades"))
    puzzles = Artifact.at(store, grades.manifest.inputs["puzzles"]["key"]).read_table("train.parquet", PUZZLES)
    prompts = dict(puzzles.select("prompt_id", "prompt").iter_rows())
    sampled = Artifact.at(store, layout.iteration(2, "rollouts")).read_tables(ROLLOUTS).sort("group", "sample")
    graded = grades.read_table("grades.parquet", GRADES).sort("group", "sample")
    for row, completion, grade in zip(rows[24:48], sampled.to_dicts(), graded.to_dicts(), strict=True):
        assert row == {
            "step": 2,
            "prompt": [{"role": "user", "content": prompts[completion["prompt_id"]]}],
            "completion": [{"role": "assistant", "content": completion["text"]}],
            "completion_tokens": len(completion["completion_token_ids"]),
            "finish_reason": completion["finish_reason"],
            **{name: grade[name] for name in ("reward", "advantage", "accuracy", "exact")},
            **{name: grade[name] for name in ("prompt_id", "group", "sample")},
        }


def test_a_conversation_keeps_its_messages() -> None:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "1 + 1 = ?"}]
    columns = {name: [0] for name in ("reward", "advantage", "accuracy", "exact", *COMPLETION, "completion_tokens")}
    row = {"iteration": [3], "prompt": [stored_prompt(messages)], "text": ["2"], "finish_reason": ["stop"], **columns}
    (written,) = as_dataset(pl.DataFrame(row)).to_dicts()
    assert (written["step"], written["prompt"]) == (3, messages)
    assert written["completion"] == [{"role": "assistant", "content": "2"}]


def test_both_formats_hold_the_same(written: dict[str, Path]) -> None:
    lines, parquet = pl.read_ndjson(written["jsonl"]), pl.read_parquet(written["parquet"])
    assert lines.to_dicts() == parquet.to_dicts()


def test_single_iterations_and_the_document(
    made: tuple[Store, RunLayout], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "some.parquet"
    command = [
        "rollouts",
        "made",
        "--out",
        str(file),
        *("--iteration", "4", "--iteration", "2", "--iteration", "4"),
        "--store",
        made[0].url,
    ]
    assert run_command([*command, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert len(pl.read_parquet(file)) == document["completions"]
    assert document == {"run": "made", "file": str(file), "completions": 48, "iterations": [2, 4], "damaged": []}
    check_documented("rollouts", document, unmet={"damaged"})


@pytest.mark.parametrize(
    ("name", "more", "words"),
    [
        ("made.csv", [], "'made.csv'; expected a name that ends in .jsonl or .parquet"),
        ("there.jsonl", [], "there.jsonl exists; expected a new file"),
        ("nowhere/made.jsonl", [], "no folder"),
        ("made.jsonl", ["--iteration", "9"], "no graded completions of iteration 9; expected iterations 1, 2, 3, 4"),
    ],
)
def test_bad_input_is_one_line_and_writes_nothing(
    made: tuple[Store, RunLayout], tmp_path: Path, capsys: pytest.CaptureFixture[str],
    name: str, more: list[str], words: str,
) -> None:  # fmt: skip
    (tmp_path / "there.jsonl").write_text("mine")
    assert run_command(["rollouts", "made", "--out", str(tmp_path / name), "--store", made[0].url, *more]) == 2
    captured = capsys.readouterr()
    assert (captured.out, captured.err.count("\n")) == ("", 1)
    assert words in captured.err
    assert [path.name for path in tmp_path.iterdir()] == ["there.jsonl"]
    assert (tmp_path / "there.jsonl").read_text() == "mine"


def test_pruned_iterations_are_left_out_and_refused_by_name(
    made: tuple[Store, RunLayout], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    at = ["--store", copied_store(made[0], tmp_path / "store").url]
    rule = ["--parts", "rollouts", "--keep-last", "1", "--keep-every", "0", "--keep-for", "retrain", "--yes"]
    assert run_command(["prune", "made", *rule, *at]) == 0
    capsys.readouterr()
    assert run_command(["rollouts", "made", "--out", str(tmp_path / "a.jsonl"), "--json", *at]) == 0
    assert json.loads(capsys.readouterr().out)["iterations"] == [4]
    assert run_command(["rollouts", "made", "--out", str(tmp_path / "b.jsonl"), "--iteration", "1", *at]) == 2
    assert "no graded completions of iteration 1; expected iterations 4" in capsys.readouterr().err


def test_the_advantage_is_the_one_that_is_trained() -> None:
    """Of a teacher: what `teach` wrote. Of a critic: the mean over the model's tokens, none for a masked completion."""
    store = Store.open("memory://rollouts-credit")
    layout = make_run(store)
    graded = [Artifact.at(store, layout.iteration(number, "grades"), Grades) for number in range(1, 5)]
    table = graded[1].read_table("grades.parquet", GRADES)
    attempt = ArtifactAddress(store, layout.iteration(2, "taught_grades"), Grades).attempt(Identity.of("teach", 1, {}))
    attempt.write_table("grades.parquet", table.with_columns(advantage=pl.lit(-7.5)), GRADES)
    attempt.publish(grades=graded[1].ref)
    names = graded[2].read_table("grades.parquet", GRADES).sort("group", "sample").select("group", "sample").to_dicts()
    values = [{**name, "reward": 1.0, "values": [0.5, None, 0.5]} for name in names[1:]]
    advantages = [{**name, "advantages": [1.0, 0.0, 2.0 * place]} for place, name in enumerate(names[1:])]
    attempt = ArtifactAddress(store, layout.iteration(3, "values"), Values).attempt(Identity.of("value", 1, {}))
    attempt.write_table("values.parquet", as_table(values, VALUES), VALUES)
    attempt.write_table("token_advantages.parquet", as_table(advantages, TOKEN_ADVANTAGES), TOKEN_ADVANTAGES)
    attempt.publish(grades=graded[2].ref)
    first, taught, valued, last = (
        rows["advantage"].to_list() for rows in graded_rollouts(read_run(store, "made"), store)
    )
    assert taught == [-7.5] * 24
    assert valued == [None, *(0.5 + place for place in range(23))]
    for shown, grades in ((first, graded[0]), (last, graded[3])):
        assert shown == grades.read_table("grades.parquet", GRADES).sort("group", "sample")["advantage"].to_list()


def test_an_iteration_waits_for_the_advantages_of_a_critic_or_teacher(made: tuple[Store, RunLayout]) -> None:
    store, layout = made
    record = read_run(store, layout.run)
    *others, last = record.iterations
    graded_only = replace(last, manifests={stage: last.manifests[stage] for stage in ("sample", "grade")})
    again = last.manifests["grade"].model_copy(update={"digest": "f" * 64})
    graded_again = replace(last, manifests={**last.manifests, "grade": again})
    for section, numbers in (("of neither", [1, 2, 3, 4]), ("value", [1, 2, 3]), ("teach", [1, 2, 3])):
        recipe = {**record.recipe, section: {}}
        for newest in (graded_only, graded_again):
            under_way = replace(record, recipe=recipe, iterations=[*others, newest])
            assert [item.number for item in under_way.graded_iterations] == numbers


def test_completions_that_are_sampled_again_are_left_out_until_they_are_graded(tmp_path: Path) -> None:
    store = Store.open(str(tmp_path / "store"))
    layout = make_run(store)
    sampled = Artifact.at(store, layout.iteration(4, "rollouts"))
    later = datetime.now(UTC) + timedelta(hours=1)
    address = ArtifactAddress(store, sampled.key, Rollouts, Refresh({"sample": later}, later))
    assert address.find(sampled.manifest.identity) is None
    attempt = address.attempt(sampled.manifest.identity)
    again = sampled.read_tables(ROLLOUTS).with_columns(text=pl.lit("something else"))
    attempt.write_shard("rollouts", again, ROLLOUTS)
    attempt.publish(sampled.manifest.facts)
    record = read_run(store, "made")
    assert [rows["iteration"][0] for rows in graded_rollouts(record, store)] == [1, 2, 3]
    example = RunView(record, store).example
    assert example is not None and example.iteration == 3
    assert not record.iterations[4].graded
    at = ["--store", store.url]
    assert run_command(["report", "made", *at]) == run_command(["show", "made", "--samples", "1", *at]) == 0


@pytest.mark.release
@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_trl_reads_it(written: dict[str, Path], trl: Path, tmp_path: Path, suffix: str) -> None:
    form = {"jsonl": "json"}.get(suffix, suffix)
    command = [str(trl), "-c", READ_BY_TRL, form, str(written[suffix]), str(tmp_path)]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
    ours = pl.read_parquet(written["parquet"])
    count, good, conversational, first = json.loads(done.stdout)
    assert (count, good, conversational) == (96, len(ours.filter(pl.col("reward") > 0.5)), True)
    assert first == ours.row(0, named=True)


@pytest.fixture(scope="module")
def trl(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return isolated_python(tmp_path_factory.mktemp("trl"), "trl==1.16.0")
