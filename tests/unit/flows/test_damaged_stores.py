"""One artifact that is damaged is named in one line, and everything else of the store can be used."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from artifacts.errors import BadInputError, IntegrityError
from artifacts.layout import RunLayout
from artifacts.store.store import Store
from flows.cli.app import run_command
from flows.lookup.history import last_iteration, overview, read_run
from tests.support.made_run import copied_store, make_run, warm_start_key
from tests.support.tiers import long_except

DAMAGE = {
    "empty": b"",
    "half": b'{"title": "A run for te',
    "foreign": b'{"name": "manifest of a web page", "icons": []}',
    "list": b"[1, 2]",
    "bytes": b"\xff\xfe\x00PNG",
    "deep": b"[" * 100_000,
    "digits": b'{"title": "x", "iterations": ' + b"9" * 5_000 + b"}",
    "surrogate": b'{"title": "\\ud800", "iterations": 1}',
}
FILES = ("runs/made/recipe.json", "runs/made/promoted.json", "runs/made/iterations/0001/rollouts/manifest.json")
Run = Callable[..., tuple[int, str, str]]

pytestmark = pytest.mark.usefixtures("no_server")


@pytest.fixture(scope="module")
def two_runs(made: tuple[Store, RunLayout], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with the runs `made` and `other`; read it only."""
    folder = tmp_path_factory.mktemp("two") / "store"
    make_run(copied_store(made[0], folder), run="other", iterations=2, seed=1)
    return folder


@pytest.fixture
def folder(two_runs: Path, tmp_path: Path) -> Path:
    """The same, to be damaged."""
    shutil.copytree(two_runs, tmp_path / "store")
    return tmp_path / "store"


@pytest.fixture
def run(folder: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs a command on the store: status, stdout, stderr."""

    def run(*command: str) -> tuple[int, str, str]:
        status = run_command([*command, "--store", str(folder)])
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return run


def _one_line(told: tuple[int, str, str], *words: str) -> str:
    """Checks the rule of a refusal, and returns what was shown all the same."""
    status, out, err = told
    assert status in (1, 2), err
    assert err.startswith("error: ") and err.count("\n") == 1 and err[:-1].isprintable() and "internal" not in err, err
    assert all(word in err for word in words), err
    return out


@pytest.mark.parametrize("kind", long_except(DAMAGE, "empty", "surrogate"))
@pytest.mark.parametrize("file", FILES)
def test_a_damaged_file_is_named_and_the_other_run_is_usable(folder: Path, run: Run, file: str, kind: str) -> None:
    (folder / file).write_bytes(DAMAGE[kind])
    artifact = file.removesuffix("/manifest.json")
    shown = run("show", "made", "--json")
    if file.endswith("recipe.json"):
        assert _one_line(shown, file) == ""
    else:
        document = json.loads(_one_line(shown, artifact))
        assert [damage["file"] for damage in document["damaged"]] == [artifact]
        assert len(document["iterations"]) == 5
    listed = run("runs", "--json")
    if file.endswith("manifest.json"):  # a listing of runs does not look into them
        assert listed[0] == 0
    else:
        names = {item["run"] for item in json.loads(_one_line(listed, file))["runs"]}
        assert names == ({"other"} if file.endswith("recipe.json") else {"made", "other"})
    _one_line(run("diff", "made", "other"), artifact)
    for command in (["show", "other"], ["diff", "other", "other"], ["lineage", "other"], ["prune", "other"]):
        assert run(*command)[::2] == (0, ""), command
    rule = ["--parts", "batch", "--keep-last", "1", "--keep-every", "0", "--keep-for", "regrade", "--yes", "--json"]
    before = sorted((folder / "runs/made").rglob("*"))
    removed = json.loads(_one_line(run("prune", *rule), artifact))["removals"]
    assert [item["key"] for item in removed] == ["runs/other/iterations/0001/batch"]
    assert sorted((folder / "runs/made").rglob("*")) == before, "nothing goes where it cannot be told what is needed"
    assert artifact in _one_line(run("verify"), "damaged files")


@pytest.mark.parametrize("file", long_except(FILES, FILES[0]))
def test_reports_of_what_is_left(folder: Path, run: Run, file: str) -> None:
    (folder / file).write_bytes(b"")
    out = _one_line(run("report", "made"), file.removesuffix("/manifest.json"))
    assert ("report.html" in out) == (not file.endswith("recipe.json"))
    assert run("report", "other")[0] == 0


def test_the_manifest_of_another_artifact_is_no_manifest(folder: Path, run: Run) -> None:
    iteration = folder / "runs/made/iterations/0002"
    shutil.copyfile(iteration / "decision/manifest.json", iteration / "report/manifest.json")
    words = ("the manifest of a Decision", "expected that of a Report")
    _one_line(run("show", "made"), "iterations/0002/report", *words)
    _one_line(run("evaluate", "--checkpoint", "made@2", "--puzzles", "made:test"), *words)
    assert run("show", "other")[0] == 0


def test_folders_of_others_are_named_and_left_alone(folder: Path, run: Run) -> None:
    foreign = {
        "runs/notes": "runs/notes/todo.txt",
        "runs/two words": "runs/two words/recipe.json",
        "runs/two\\nlines": "runs/two\nlines/recipe.json",
        f"runs/{'long' * 20}": f"runs/{'long' * 20}/recipe.json",
    }
    for file in (*foreign.values(), "runs/README.txt", "runs/.hidden/x"):
        (folder / file).parent.mkdir(exist_ok=True)
        (folder / file).write_text("{}")
    (folder / "runs/link").symlink_to("/etc")
    document = json.loads(_one_line(run("runs", "--json"), "4 more"))
    assert {item["run"] for item in document["runs"]} == {"made", "other"}
    assert {item["file"] for item in document["damaged"]} == {*foreign, "runs/link"}
    for command in (["show", "made"], ["prune", "made"], ["lineage", "made"]):
        assert run(*command)[0] == 0, command
    with pytest.raises(IntegrityError):
        (folder / "runs/made/recipe.json").write_bytes(b"")
        overview(Store.open(str(folder)))


@pytest.mark.parametrize("name", ["notes", "1", "00001", "-001", "0001x", "9" * 50])
def test_a_folder_among_the_iterations_that_is_none(folder: Path, run: Run, name: str) -> None:
    iterations = folder / "runs/made/iterations"
    shutil.copytree(iterations / "0001", iterations / name)
    document = json.loads(_one_line(run("show", "made", "--json"), f"iterations/{name}", "as 0001"))
    assert [item["iteration"] for item in document["iterations"]] == [0, 1, 2, 3, 4]
    store = Store.open(str(folder))
    assert last_iteration(store, RunLayout("made")) == 4
    assert len(read_run(store, "made").iterations) == 5, "a run that goes on does not look at it"
    assert [item.iterations_done for item in overview(store)] == [4, 2]


def test_prune_leaves_links_and_what_is_behind_them(folder: Path, run: Run, tmp_path: Path) -> None:
    thesis = tmp_path / "thesis"
    thesis.mkdir()
    (thesis / "text").write_text("years of work")
    attempt = next((folder / "runs/made/iterations/0001/batch").glob("attempt-*"))
    shutil.rmtree(attempt)
    attempt.symlink_to(thesis)
    key = attempt.relative_to(folder).as_posix()
    rule = ["--parts", "batch", "--keep-last", "1", "--keep-every", "0", "--keep-for", "regrade", "--yes", "--json"]
    removed = json.loads(_one_line(run("prune", *rule), key, "a symbolic link"))["removals"]
    assert [item["key"] for item in removed] == ["runs/other/iterations/0001/batch"]
    assert (thesis / "text").read_text() == "years of work" and attempt.is_symlink()


def test_a_damaged_ancestor_is_shown_as_such(folder: Path, run: Run) -> None:
    first = warm_start_key("made")
    (folder / first / "manifest.json").write_bytes(b"{")
    report = "runs/made/iterations/0000/report"
    out = _one_line(run("lineage", report), first)
    assert "[damaged]" in out and "puzzles: puzzles/set-" in out
    document = json.loads(_one_line(run("lineage", report, "--json"), first))
    assert {item["key"].split("/")[0]: item["state"] for item in document["ancestors"]} == {
        "models": "damaged", "puzzles": "kept",
    }  # fmt: skip


def test_each_command_that_looks_wants_a_store(
    folder: Path, run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("verify")[0] == 0
    assert run_command(["verify", str(folder)]) == 0
    capsys.readouterr()
    (tmp_path / "empty").mkdir()
    (tmp_path / "page" / "app").mkdir(parents=True)
    (tmp_path / "page" / "app" / "manifest.json").write_text("{}")
    looking = [
        ["verify"], ["prune"], ["prune", "made", "--yes"], ["runs"], ["runs", "--json"], ["show", "made"],
        ["report", "made"], ["lineage", "made"], ["diff", "made", "made"], ["study", "made"],
        ["iterate", "made", "--more", "1"], ["compare", "made", "--recipes", "own"],
        ["backfill", "made", "--suite", "s", "--puzzles", "made:val"],
    ]  # fmt: skip
    for address in (tmp_path / "empty", tmp_path / "page", "memory://empty"):
        for command in looking:
            assert run_command([*command, "--store", str(address)]) == 2, command
            said = capsys.readouterr()
            assert "no run, no puzzle set and no model; expected a store" in said.err and not said.out, command
    for command in (["verify", ""], ["verify", "--store", ""], ["runs", "--store", ""]):
        assert run_command(command) == 2
        assert "address of a store: ''" in capsys.readouterr().err
    assert run_command(["verify", str(folder), "--store", str(tmp_path / "empty")]) == 2
    assert "two stores" in capsys.readouterr().err


def test_a_link_in_the_place_of_a_server_log_is_not_written_through(
    folder: Path, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PREFECT_HOME", raising=False)
    profile = tmp_path / "profile"
    profile.write_text("export PATH")
    (folder / ".prefect").mkdir()
    (folder / ".prefect" / "server.log").symlink_to(profile)
    _one_line(run("evaluate", "--checkpoint", "made", "--puzzles", "made:test"), "server.log: a symbolic link")
    (folder / ".prefect" / "server.log").unlink()
    (folder / ".prefect").rmdir()
    (folder / ".prefect").symlink_to(tmp_path)
    _one_line(run("evaluate", "--checkpoint", "made", "--puzzles", "made:test"), ".prefect is a symbolic link")
    assert profile.read_text() == "export PATH"


def _made(**settings: Any) -> list[str]:
    options = {"size": "reduced", "count": "1", **settings}
    return ["puzzles", "make", *(word for name, value in options.items() for word in (f"--{name}", str(value)))]


def test_puzzles_are_not_written_through_a_link(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    thesis = tmp_path / "thesis"
    thesis.mkdir()
    (thesis / "text").write_text("years of work")
    (tmp_path / "made.json").symlink_to(thesis / "text")
    assert run_command(_made(out=tmp_path / "made.json")) == 2
    assert f"made.json: a symbolic link to {thesis / 'text'}; expected a file" in capsys.readouterr().err
    (tmp_path / "made.json").unlink()
    for drawn in (".made.json.drawn", ".own.json.drawn"):
        if drawn.startswith(".made"):
            (tmp_path / drawn).symlink_to(thesis)
        else:
            shutil.copytree(thesis, tmp_path / drawn)
        assert run_command(_made(out=tmp_path / drawn[1:].removesuffix(".drawn"))) == 2
        assert "move it away" in capsys.readouterr().err
        assert (tmp_path / drawn / "text").read_text() == "years of work"


def test_a_checkpoint_whose_pointer_is_damaged_is_refused(folder: Path, run: Run) -> None:
    (folder / "runs/made/promoted.json").write_bytes(b"")
    _one_line(run("lineage", "made"), "promoted.json: empty")
    with pytest.raises(BadInputError):
        read_run(Store.open(str(folder)), "nobody")


ABSENT = "typo: no such folder; expected an existing store"


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (["backfill", "made", "--suite", "s", "--puzzles", "made:test"], ABSENT),
        (["iterate", "made", "--more", "1"], ABSENT),
        (["compare", "made", "--recipes", "own"], ABSENT),
        (["report", "made"], ABSENT),
        (["verify"], ABSENT),
        (["train", "--recipe", "nobody"], "nobody"),
        (["train", "--set", "sample.sampling.temperature=hot"], "temperature"),
        (["evaluate", "--checkpoint", "nobody", "--puzzles", "made:test"], "nobody"),
        (["solve", __file__, "--checkpoint", "nobody"], "nobody"),
    ],
)
def test_a_refused_command_makes_no_store(
    command: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command([*command, "--store", str(tmp_path / "typo")]) == 2
    assert words in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
