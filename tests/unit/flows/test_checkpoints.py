"""What a person may call a checkpoint."""

from pathlib import Path

import pytest

from artifacts.errors import BadInputError
from artifacts.layout import RunLayout
from artifacts.reading import Artifact
from artifacts.refs import Ref
from artifacts.store.store import Store
from flows.lookup.checkpoints import find_checkpoint, find_fixed, published_checkpoint, with_fixed_names
from flows.lookup.history import read_run
from flows.lookup.splits import named_split
from stages.models.merging.config import MergedModel
from stages.models.source import FolderModel, GgufPackageModel, HubModel, StoredModel
from tests.support.made_run import make_run, warm_start_key


def test_a_run_is_its_promoted_checkpoint(made: tuple[Store, RunLayout]) -> None:
    store, layout = made
    promoted = read_run(store, layout.run).promoted
    assert promoted is not None
    assert find_checkpoint("made", store) == promoted.checkpoint


def test_iterations_and_keys(made: tuple[Store, RunLayout]) -> None:
    store, layout = made
    third = Artifact.at(store, layout.iteration(3, "checkpoint")).ref
    assert find_checkpoint("made@3", store) == third
    assert find_checkpoint("runs/made/iterations/0003/checkpoint", store) == third
    assert find_checkpoint("made@0", store) == Artifact.at(store, warm_start_key("made")).ref


def test_a_name_that_is_published_wins_over_a_folder_of_that_name(
    made: tuple[Store, RunLayout], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, _ = made
    monkeypatch.chdir(tmp_path)
    for name in ("made", "model"):
        (tmp_path / name).mkdir()
    assert isinstance(find_checkpoint("made", store), Ref)
    with pytest.raises(BadInputError, match=rf"--checkpoint model: no config.json in {tmp_path}/model"):
        find_checkpoint("model", store)
    (tmp_path / "model/config.json").write_text("{}")
    for name in ("model", "./model", "../" + tmp_path.name + "/model"):
        assert find_checkpoint(name, store) == FolderModel(path=str(tmp_path / "model"))


def test_what_looks_like_a_path_is_checked_as_a_folder(
    made: tuple[Store, RunLayout], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").touch()
    for name, problem in (
        ("./model", r"--checkpoint ./model: cannot be read as a folder \(No such file or directory\)"),
        (f"{tmp_path}/model", "No such file or directory"),
        ("~/model", "No such file or directory"),
        ("~nobody-here/model", "No such file or directory"),
        ("./file", "Not a directory"),
        ("./empty", f"no config.json in {tmp_path}/empty"),
        ("~/empty", f"no config.json in {tmp_path}/empty"),
    ):
        with pytest.raises(BadInputError, match=problem):
            find_checkpoint(name, made[0])


def test_sources(made: tuple[Store, RunLayout], tmp_path: Path) -> None:
    store, _ = made
    (tmp_path / "config.json").write_text("{}")
    assert find_checkpoint(str(tmp_path), store) == FolderModel(path=str(tmp_path))
    assert find_checkpoint("hub:Qwen/Qwen2.5-0.5B", store) == HubModel(id="Qwen/Qwen2.5-0.5B")
    assert find_checkpoint("hub:Qwen/Qwen2.5-0.5B@v1", store) == HubModel(id="Qwen/Qwen2.5-0.5B", revision="v1")
    assert find_checkpoint("gguf:a/b.gguf", store) == GgufPackageModel(package="a", file="b.gguf")


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("nobody", "no run"),
        ("made@x", "iteration 'x'"),
        ("made@9", r"no measured iteration 9; expected another iteration \(the run has begun 0 to \d\)"),
        ("nobody@1", "run 'nobody': not in .*; expected made"),
        ("runs/made/iterations/0003/report", "kind Report"),
        ("hub:one", "pattern"),
        ("hub:one/two@", "revision"),
        ("a b", "run name"),
    ],
)
def test_what_stands_for_nothing_is_refused(made: tuple[Store, RunLayout], name: str, problem: str) -> None:
    with pytest.raises(BadInputError, match=problem):
        find_checkpoint(name, made[0])


def test_an_error_lists_the_forms_that_its_command_takes(made: tuple[Store, RunLayout]) -> None:
    with pytest.raises(BadInputError, match=r"^nobody: no run .*; expected a run, .*, a Hugging Face folder, hub:ID"):
        find_checkpoint("nobody", made[0])
    with pytest.raises(
        BadInputError, match=r"^nobody: no run .*; expected a run, RUN@ITERATION or a checkpoint's key;"
    ):
        published_checkpoint("nobody", made[0])
    with pytest.raises(BadInputError, match=r"run 'nobody': not in .*; expected made"):
        named_split("nobody:test", made[0], "--puzzles nobody:test")


def test_a_run_keeps_the_checkpoint_that_its_name_meant_when_it_began(made: tuple[Store, RunLayout]) -> None:
    """The other run may promote another checkpoint before this one is continued."""
    store, layout = made
    promoted, first = find_checkpoint("made", store), layout.iteration(1, "checkpoint")
    assert isinstance(promoted, Ref) and promoted.key != first
    named = StoredModel(name="made")
    begun = with_fixed_names(named, store, None)
    assert begun == StoredModel(name=promoted.key)
    assert with_fixed_names(named, store, {"source": "checkpoint", "name": first}) == StoredModel(name=first)
    shared = warm_start_key("made")  # promoted until an iteration is better
    assert with_fixed_names(named, store, {"source": "checkpoint", "name": shared}) == StoredModel(name=shared)
    for other in ("made", "runs/other/iterations/0001/checkpoint"):  # frozen by hand, or of another recipe
        assert with_fixed_names(named, store, {"source": "checkpoint", "name": other}) == named
    for name in ("made@1", first):
        assert with_fixed_names(StoredModel(name=name), store, None).name == name
    merged = MergedModel(models=("made@1",), base="made")
    assert with_fixed_names(merged, store, None) == MergedModel(models=("made@1",), base=promoted.key)
    frozen = {"source": "merged", "models": ["made@1"], "base": first}
    assert with_fixed_names(merged, store, frozen) == MergedModel(models=("made@1",), base=first)


def test_a_run_that_still_promotes_its_shared_warm_start_is_named_by_that(tmp_path: Path) -> None:
    store = Store.open(str(tmp_path))
    make_run(store, iterations=0)
    shared = warm_start_key("made")
    promoted = find_checkpoint("made", store)
    assert isinstance(promoted, Ref) and promoted.key == shared
    assert with_fixed_names(StoredModel(name="made"), store, None) == StoredModel(name=shared)
    with pytest.raises(BadInputError, match=f"'made', whose promoted checkpoint may change; .*; write {shared}"):
        find_fixed("made", "teach.teacher", store)
