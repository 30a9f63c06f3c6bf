"""The command line: results on stdout, one line for an error, and the exit status."""

import json
import shlex
import subprocess
import sys
import tomllib
from io import BytesIO, TextIOWrapper
from pathlib import Path

import polars as pl
import pytest

from artifacts.errors import BadInputError, DeerstalkerError
from artifacts.layout import RunLayout
from artifacts.reading import Artifact
from artifacts.refs import Ref
from artifacts.schemas import PUZZLES
from artifacts.store.store import Store
from flows.cli.app import app, run_command
from flows.cli.console.usage import command_names
from flows.cli.console.version import version
from flows.cli.puzzles import split_sizes
from flows.cli.solve import AskedPrompt, read_question
from flows.config.recipes import load_recipe, recipe_names
from flows.config.settings import settings_names
from flows.lookup.checkpoints import find_checkpoint
from flows.lookup.history import read_run
from flows.report.summary import solve_command
from stages.environments.generate import TIERS, generate
from stages.environments.temporal_clue.language.text import write_prompt
from tests.support.processes import DEERSTALKER
from tests.support.puzzle_cases import TWO_ROOMS

GOOD = {
    "num_clues": 3,
    "prompt": write_prompt(TWO_ROOMS),
    "solution": {
        "A": "Mrs. White", "B": "Lounge", "C": "Billiard Room", "D": "Lounge", "E": "Lounge", "F": "Lounge"
    },
}  # fmt: skip
GIVEN = {"deerstalker-data", "one.txt", "latin.txt", "good.json"}


IMPORTS = """
import sys
from flows.cli.app import app
heavy = {"prefect", "polars", "pandera", "pyarrow", "matplotlib", "ortools", "torch", "vllm"}
def loaded():
    return [name for name in sys.modules if name.startswith("flows.cli.") and ".console" not in name]
print(*loaded(), *heavy & sys.modules.keys())
for name in sys.argv[1:]:
    app[name]
    print(name, *heavy & sys.modules.keys())
print(*sorted(loaded()))
"""


def test_the_command_line_imports_little() -> None:
    """Neither on its own nor with the modules of its commands, which their help pages need."""
    names = command_names(app)
    done = subprocess.run([sys.executable, "-c", IMPORTS, *names], capture_output=True, text=True, check=True)
    alone, *with_command, modules = done.stdout.splitlines()
    assert alone == "flows.cli.app"
    assert with_command == names
    folder = Path(__file__).parents[3] / "flows" / "cli"
    assert modules.split() == sorted(f"flows.cli.{path.stem}" for path in folder.glob("[!_]*.py"))


def test_what_reads_and_opens_runs_loads_no_client_of_apis() -> None:
    """It takes longer to load than all else that `runs` and `show` need."""
    program = "import sys, flows.lookup.history, flows.opening; print('openai' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


ON_MACHINE = (
    ["train"],
    ["iterate", "x", "--more", "1"],
    ["evaluate", "--checkpoint", "x", "--suite", "panel"],
    ["backfill", "x", "--suite", "panel"],
    ["benchmark", "--models", "temporal_clue_2025", "--suite", "panel"],
    ["compare", "x", "--recipes", "own"],
    ["merge", "--model", "x", "--model", "y", "--method", "average"],
    ["solve", "one.txt", "--checkpoint", "x"],
    ["doctor"],
)
"""Every command that takes the resources of a profile."""


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["train", "--bogus"], "--bogus"),
        (["train", "--bogus"], "see `deerstalker train --help`"),
        (["train", "--recipes", "x"], "Did you mean --recipe? See `deerstalker train --help`"),
        (["puzzles", "make"], "see `deerstalker puzzles make --help`"),
        (["show", "a", "b"], "argument 'b': unexpected; see `deerstalker show --help`"),
        (["nothing"], "command 'nothing': unknown; expected backfill, benchmark, compare, diff, doctor, down, "),
        (["nothing"], ", solve, study, train, up, verify; see `deerstalker --help`"),
        (["trian"], "did you mean 'train'? See `deerstalker --help`"),
        (["puzzles", "mkae"], "did you mean 'puzzles make'? See `deerstalker puzzles --help`"),
        (["recipes", "sho"], "did you mean 'recipes show'? See `deerstalker recipes --help`"),
        (["--bogus"], "option '--bogus': unknown; expected a command: "),
        (["train", "--recipe", "nope"], "recipe 'nope': unknown; expected"),
        (["train", "--set", "finetune.nope=1"], "finetune.nope"),
        (["train", "--set", "iterations=-1"], "iterations"),
        (["train", "--set", "iterations"], "section.key=value"),
        (["train", "--set-profile", "retries"], "--set-profile retries: no key=value"),
        (["train", "--profile", "nope"], "profile 'nope'"),
        (["train", "--run", "a/b"], "run name"),
        (["train", "--run", ".a"], "beginning with a letter or a digit"),
        (["train", "--store", "ftp://x"], "scheme 'ftp'"),
        (["train", "--refresh", "smaple"], "refresh.0"),
        (["iterate", "nobody", "--more", "1"], "run 'nobody'"),
        (["up", "--port", "99999"], '--port: "99999"; must be <= 65535'),
        (["up", "--zombie-after", "1"], '--zombie-after: "1.0"; must be >= 60; see `deerstalker up --help`'),
        (["show", "nobody"], "run 'nobody'"),
        (["solve", "absent.json", "--checkpoint", "x"], "absent.json"),
        (["solve", "absent.txt", "--checkpoint", "x"], "absent.txt: no such file"),
        (["solve", "nobody:test", "--checkpoint", "x"], "run 'nobody': not in"),
        (["solve", "nobody:tset", "--checkpoint", "x"], "split 'tset'; expected train, val, test"),
        (["solve", "one.txt", "--checkpoint", "x", "--temperature", "0.001"], "solve.temperature: 0.001; expected 0,"),
        (["solve", "one.txt", "--checkpoint", "x", "--samples", "4"], "solve.samples_per_prompt: 4 at temperature 0;"),
        (["solve", "one.txt", "--checkpoint", "./model"], "--checkpoint ./model: cannot be read as a folder"),
        (["train", "--set", "pack=null"], "pack: Input should be a valid dictionary"),
        (["evaluate", "--checkpoint", "x", "--puzzles", "y", "--samples", "0"], "samples_per_prompt"),
        (["up", "--pool", "docker", "--image", "x", "--no-worker"], "--store: ./deerstalker-data, a folder of this"),
        (["puzzles", "make", "--out", "p.json", "--count", "0"], "are all 0"),
        (["puzzles", "make", "--out", "absent/p.json"], "no such folder"),
        (["puzzles", "make", "--out", "p.json", "--size", "huge"], "reduced, easy, small, large, full"),
        (["puzzles", "make", "--out", "p.json", "--environment", "chess"], "temporal_clue, zebra"),
        (["puzzles", "make", "--out", "p.json", "--environment", "zbra"], "did you mean 'zebra'?"),
        (["puzzles", "make", "--out", "p.json", "--size", "smal"], "did you mean 'small'?"),
        (["puzzles", "make", "--out", "p.json", "--count", "4", "--val", "-1"], "val: Input should be greater than or"),
        (["puzzles", "make", "--out", "p.json", "--count", "-4", "--test", "9"], "train: Input should be greater"),
        (["puzzles", "make", "--out", "p.json", "--tokenizer", "nope"], "--tokenizer: given with --out p.json, which"),
        (["puzzles", "make", "--out", "new", "--tokenizer", "nope"], "--tokenizer nope: no run with a promoted"),
        (["puzzles", "make", "--out", "new", "--tokenizer", "nope@1"], "--tokenizer nope@1: "),
        (["puzzles", "make", "--out", "new", "--tokenizer", "gguf:nope/x.gguf"], "'nope' is not installed"),
        (["puzzles", "make", "--out", "new", "--tokenizer", "./nope"], "--tokenizer ./nope: cannot be read"),
        (["plan", "--recipe", "nope", "--gpus", "8x80", "--plot", "x" * 300], "recipe 'nope': unknown"),
        (["plan", "--recipe", "nope", "--gpus", "8x80", "--plot", "absent/p.png"], "--plot: absent/p.png; expected a"),
        (["puzzles", "make", "--out", "x" * 300 + "/p.json"], "no such folder"),
        (["puzzles", "solve", "absent.json"], "absent.json"),
        (["puzzles", "solve", "x" * 300 + ".json"], "xxx.json: no such file"),
        (["puzzles", "prove", "good.json", "latin.txt"], "latin.txt: byte 2 is not UTF-8"),
        (["puzzles", "prove", "good.json", "x" * 300], "xxx: no such file"),
        (["solve", "latin.txt", "--checkpoint", "x"], "latin.txt: byte 2 is not UTF-8"),
        (["solve", "x" * 300 + ":test", "--checkpoint", "x"], "run name"),
        (["solve", "one.txt", "--checkpoint", "x" * 300], "run name"),
        (["solve", "one.txt", "--checkpoint", "x@" + "9" * 5000], "a number"),
        (["solve", "one.txt", "--checkpoint", "x@²"], "a number"),
        (["evaluate", "--checkpoint", "x", "--puzzles", "x" * 300 + ".json"], "x: no run with a promoted checkpoint"),
        (["evaluate", "--checkpoint", "x"], "--puzzles: missing; expected --puzzles, or --suite; suites: aime24"),
        (["evaluate", "--checkpoint", "x", "--suite", "panl"], "suite 'panl': unknown, did you mean 'panel'?"),
        (["evaluate", "--checkpoint", "x", "--suite", "panel", "--puzzles", "y"], "--suite: given with --puzzles"),
        (["evaluate", "--checkpoint", "x", "--suite", "absent.toml"], "absent.toml: no such file"),
        (["backfill", "made", "--suite", "mine"], "suite 'mine': unknown, did you mean 'minerva'?; expected aime24"),
        (["train", "--run", ""], "run name: ''"),
        (["train", "--run", "x" * 300], "run name"),
        (["train", "--run", "a\nb"], "run name"),
        (["train", "--recipe", "x" * 300], "unknown"),
        (["train", "--recipe", "x" * 300 + ".toml", "--run", "y"], "no such file"),
        (["train", "--refresh", "sample@" + "9" * 5000], "refresh.0"),
        *(
            ([*command, "--set-profile", "engine.dtype=int8"], "engine.dtype: Input should be 'auto'")
            for command in ON_MACHINE
        ),
        (["backfill", "made", "--suite", "x" * 300, "--puzzles", "made:test"], "suite name"),
    ],
)
def test_bad_usage(
    arguments: list[str],
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "deerstalker-data" / "puzzles" / "set").mkdir(parents=True)
    (tmp_path / "deerstalker-data" / "puzzles" / "set" / "manifest.json").touch()  # which makes it a store
    (tmp_path / "one.txt").write_text("Who did it?")
    (tmp_path / "latin.txt").write_bytes(b"A\xe9")
    (tmp_path / "good.json").write_text(json.dumps([GOOD]))
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:9/api")  # no server is started for a bad command
    assert run_command(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = [line for line in captured.err.splitlines() if line.startswith("error: ")]
    assert words in line
    assert not [path.name for path in tmp_path.iterdir() if path.name not in GIVEN]


def test_show_and_runs(
    made: tuple[Store, RunLayout], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    store, _ = made
    assert run_command(["show", "made", "--json", "--store", store.url]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["run"] == "made"
    assert run_command(["runs", "--json", "--store", store.url]) == 0
    (run,) = json.loads(capsys.readouterr().out)["runs"]
    assert run["run"] == "made"
    monkeypatch.setenv("COLUMNS", "80")
    assert run_command(["runs", "--store", store.url]) == 0
    cells = [cell.strip() for cell in capsys.readouterr().out.splitlines()[4].split("│")]
    assert cells[1:3] == ["made", f"{run['iterations_done']} of {run['iterations']}"]
    assert run_command(["show", "made", "--store", store.url]) == 0
    text = capsys.readouterr().out
    assert "before GRPO" in text
    one_line = " ".join(text.replace("\\\n", " ").split())
    assert f"deerstalker solve --checkpoint made --store {store.url} made:test --index 0" in one_line


def test_the_command_that_is_printed_asks_a_puzzle_of_the_store(made: tuple[Store, RunLayout]) -> None:
    store, layout = made
    command = shlex.split(solve_command(read_run(store, layout.run), store))
    assert command[:2] == ["deerstalker", "solve"]
    given = dict(zip(command[2:6:2], command[3:7:2], strict=True)) | {command[7]: command[8]}
    question = read_question(command[6], int(given["--index"]), given["--store"])
    test = _test_split(store, layout)
    assert question.puzzle is not None and (question.prompt, question.puzzle.prompt_id) == test.row(0)[:2]
    assert isinstance(find_checkpoint(given["--checkpoint"], store), Ref)
    assert read_question("made:test", 11, store.url).prompt == test["prompt"][11]


@pytest.mark.parametrize("index", [-100, -1, 12])
def test_a_puzzle_is_counted_from_0(made: tuple[Store, RunLayout], tmp_path: Path, index: int) -> None:
    store, layout = made
    with pytest.raises(BadInputError, match=rf"--index {index}: 12 puzzles in made:test; expected 0 to 11"):
        read_question("made:test", index, store.url)
    path = tmp_path / "one.json"
    prompt, _, solution, clues = _test_split(store, layout).row(0)
    path.write_text(json.dumps([{"num_clues": clues, "prompt": prompt, "solution": json.loads(solution)}]))
    with pytest.raises(BadInputError, match=rf"--index {index}: 1 puzzles in .*one.json; expected 0 to 0"):
        read_question(str(path), index, store.url)


def test_a_file_whose_name_has_a_colon_is_a_file(made: tuple[Store, RunLayout], tmp_path: Path) -> None:
    path = tmp_path / "made:test"
    path.write_text("Who did it?")
    assert read_question(str(path), 0, made[0].url) == AskedPrompt("Who did it?", None)


def _test_split(store: Store, layout: RunLayout) -> pl.DataFrame:
    puzzles = Artifact.at(store, layout.iteration(0, "report")).manifest.inputs["puzzles"]["key"]
    table = Artifact.at(store, puzzles).read_table("test.parquet", PUZZLES)
    return table["prompt", "prompt_id", "solution", "num_clues"]


def test_recipes(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["recipes", "--json"]) == 0
    assert "quickstart" in {recipe["name"] for recipe in json.loads(capsys.readouterr().out)}
    assert run_command(["recipes", "show", "quickstart", "--set", "iterations=7", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["iterations"] == 7


@pytest.mark.parametrize("name", recipe_names())
def test_a_shown_recipe_is_one_to_begin_with(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own = tmp_path / "own.toml"
    assert run_command(["recipes", "show", name]) == 0
    own.write_text(capsys.readouterr().out)
    assert load_recipe(str(own)) == load_recipe(name)


def test_made_puzzles_are_read_solved_and_proved_minimal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`tests/flow/test_puzzle_set.py` has a file that `puzzles make` wrote."""
    path = tmp_path / "made.json"
    made = [generate(TIERS["reduced"], seed) for seed in range(3, 8)]
    texts = [{"num_clues": one.num_clues, "prompt": one.prompt, "solution": one.solution} for one in made]
    path.write_text(json.dumps(texts))
    assert run_command(["puzzles", "solve", str(path), "--minimal", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    counts = {name: report[name] for name in ("count", "read", "unique", "equal", "same_text", "minimal")}
    assert counts == dict.fromkeys(counts, 5)
    assert report["seconds"] == pytest.approx(sum(item["seconds"] for item in report["puzzles"]))

    puzzles = json.loads(path.read_text())
    puzzles[0]["prompt"] = puzzles[0]["prompt"].replace("- The ", "- Perhaps the ", 1)
    puzzles[1]["solution"]["B"] = next(room for room in ("Hall", "Lounge") if room != puzzles[1]["solution"]["B"])
    path.write_text(json.dumps(puzzles))
    assert run_command(["puzzles", "solve", str(path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "made-00000: not solved, unread: clue " in lines[0]
    assert "Perhaps the " in lines[0]
    assert f"differs from the given B {puzzles[1]['solution']['B']}" in lines[1]
    assert lines[-1].startswith("5 puzzles: 4 read, 4 unique, 3 equal to the given solution; ")


def test_prove_names_what_it_cannot_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    puzzle = generate(TIERS["reduced"], 3)
    path, completion = tmp_path / "made.json", tmp_path / "said.txt"
    completion.write_text("A. Hall")
    head, clues, tail = puzzle.prompt.partition("clues are as follows:\n\n")

    def refused(*added: str) -> str:
        lines = "".join(f"- {clue}\n" for clue in added)
        entry = {"num_clues": puzzle.num_clues + len(added), "prompt": head + clues + lines + tail}
        path.write_text(json.dumps([{**entry, "solution": puzzle.solution}]))
        assert run_command(["puzzles", "prove", str(path), str(completion)]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        return line

    two = refused("Perhaps the murderer was in the Hall", "The murderer was in the Hall", "Perhaps not\x1b[2J")
    assert f"{path}[0]: cannot be read: 'clue 1: Perhaps the murderer was in the Hall', 'clue 3: Perhaps not" in two
    assert "\x1b" not in two
    assert f"{path}[0]: the clues contradict one another" in refused(
        "The murderer was in the Hall", "The murderer was in the Lounge"
    )


def test_the_version_is_that_of_the_project(capsys: pytest.CaptureFixture[str]) -> None:
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
    assert project["version"] != "0.0.0"
    for command in ([], ["train"], ["puzzles"], ["puzzles", "make"], ["recipes"], ["show"]):
        assert run_command([*command, "--version"]) == 0
        assert capsys.readouterr().out.strip() == project["version"]


def test_a_version_that_nothing_records_is_a_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flows.cli.console.version.DISTRIBUTION", "not-installed-here")
    with pytest.raises(DeerstalkerError, match=r"not-installed-here: not installed.*uv sync"):
        version()


def test_help_names_every_recipe_profile_and_command(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")

    def words(*command: str) -> str:
        assert run_command([*command, "--help"]) == 0
        return " ".join(capsys.readouterr().out.replace("│", " ").split())

    assert f"({', '.join(recipe_names())};" in words("train")
    assert f"({', '.join(settings_names('profiles'))}:" in words("train")
    assert f"({', '.join(recipe_names())})" in words("doctor")
    assert "Make puzzles, solve them, and prove the statements of a completion." in words("puzzles")


@pytest.mark.parametrize(
    ("count", "val", "test", "sizes"),
    [
        (500, None, None, (400, 50, 50)),
        (64, None, None, (52, 6, 6)),
        (3, None, None, (1, 1, 1)),
        (2, None, None, (2, 0, 0)),
        (40, 8, 8, (40, 8, 8)),
        (40, None, 8, (40, 0, 8)),
        (40, 0, None, (40, 0, 0)),
    ],
)
def test_a_tenth_each_is_held_out_unless_told(
    count: int, val: int | None, test: int | None, sizes: tuple[int, int, int]
) -> None:
    assert tuple(split_sizes(count, val, test).values()) == sizes


@pytest.mark.usefixtures("no_server")
def test_a_file_that_cannot_be_written_is_refused_before_any_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "folder.json"
    folder.mkdir()
    for out in (folder, Path("/proc/made.json")):
        assert run_command(["puzzles", "make", "--out", str(out)]) == 1
        assert f"--out {out}: cannot be written" in capsys.readouterr().err
    kept = tmp_path / "kept.json"
    kept.write_text("[]")
    assert run_command(["puzzles", "make", "--out", str(kept), "--profile", "nope"]) == 2
    assert "profile 'nope'" in capsys.readouterr().err
    assert kept.read_text() == "[]"
    assert sorted(tmp_path.iterdir()) == [folder, kept]


def test_a_reader_that_leaves_early_gets_no_traceback(made: tuple[Store, RunLayout]) -> None:
    command = f"{sys.executable} -c 'from flows.cli.app import main; main()' show made --store {made[0].url} | true"
    done = subprocess.run(["bash", "-c", f"set -o pipefail; {command}"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "")


@pytest.mark.parametrize("command", [["puzzles", "prove", "good.json", "-"], ["solve", "-", "--checkpoint", "x"]])
def test_bytes_on_stdin_that_are_no_text_are_refused(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "good.json").write_text(json.dumps([GOOD]))
    monkeypatch.setattr(sys, "stdin", TextIOWrapper(BytesIO(b"A. \xff")))
    assert run_command(command) == 2
    assert capsys.readouterr().err.startswith("error: stdin: byte 4 is not UTF-8; expected ")
    monkeypatch.setattr(sys, "stdin", None)  # as Python has it where the descriptor is closed
    assert run_command(command) == 2
    assert capsys.readouterr().err.startswith("error: stdin: cannot be read (it is closed); expected ")


@pytest.mark.parametrize(
    "text", ["[" * 100_000, "\\ud800", "9" * 5000, "(" * 20_000 + ")" * 20_000, "If " * 20_000, "\x00\x1b[2J", ""]
)
def test_any_completion_is_looked_through(tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    path, said = tmp_path / "good.json", tmp_path / "said.txt"
    path.write_text(json.dumps([GOOD]))
    said.write_text(f"Mrs. White was in the Lounge. {text}")
    assert run_command(["puzzles", "prove", str(path), str(said)]) == 0
    assert "0 contradicted" in capsys.readouterr().out


def test_results_that_have_no_room_end_in_one_line() -> None:
    with Path("/dev/full").open("w") as full:
        command = [DEERSTALKER, "recipes"]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("error: the disk to which this command writes: no space left; expected room")
    assert len(done.stderr.splitlines()) == 1
