"""`deerstalker export` to a folder: full weights, an adapter, and what is refused in one line."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from artifacts.address import ArtifactAddress
from artifacts.errors import BadInputError
from artifacts.identity import Identity
from artifacts.refs import Checkpoint
from artifacts.store.store import Store
from flows.cli.app import run_command
from stages.models.adapter_config import ADAPTER_CONFIG
from stages.models.adapters import ADAPTER_WEIGHTS
from stages.models.exporting.folder import draft_of
from stages.models.from_scratch import ScratchModel, make_scratch
from stages.models.tensors import WEIGHTS, check_weights
from stages.optional.adopt import adopt
from tests.support.adapters import save_adapter
from tests.support.contexts import make_context


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A store with `models/base`, and `models/adopted` over it."""
    tmp_path = tmp_path_factory.mktemp("export")
    store = Store.open(str(tmp_path / "store"))
    attempt = ArtifactAddress(store, "models/base", Checkpoint).attempt(
        Identity.of("fetch", 1, {"id": "owner/base", "revision": "v2"})
    )
    with attempt.folder(tmp_path) as folder:
        make_scratch(ScratchModel(layers=2, vocabulary=300), ["Who was it?"], folder)
    base = attempt.publish({"licence": "mit"})
    with make_context(store, tmp_path / "scratch") as ctx:
        adapter = save_adapter(tmp_path / "adapter", ctx.local_folder(base))
        adopt(ctx, str(adapter), base, out=ArtifactAddress(store, "models/adopted", Checkpoint))
    return str(tmp_path / "store")


def exported(store: str, *arguments: str, status: int = 0) -> None:
    assert run_command(["export", *arguments, "--store", store]) == status


def test_full_weights_and_an_adapter(store: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    exported(store, "models/base", str(tmp_path / "base"))
    assert capsys.readouterr().out.startswith(f"{tmp_path / 'base'}: README.md, config.json, generation_config.json, ")
    exported(store, "models/adopted", str(tmp_path / "merged"), "--merge", "--dtype", "fp16")
    for name in ("base", "merged"):
        check_weights(tmp_path / name)
        card = (tmp_path / name / "README.md").read_text()
        assert (
            'license: "mit"' in card and 'base_model: "owner/base"' in card and 'library_name: "transformers"' in card
        )
    exported(store, "models/adopted", str(tmp_path / "adapter"))
    files = {path.name for path in (tmp_path / "adapter").iterdir()}
    assert {ADAPTER_CONFIG, ADAPTER_WEIGHTS, "README.md", "tokenizer.json"} < files and WEIGHTS not in files
    written = json.loads((tmp_path / "adapter" / ADAPTER_CONFIG).read_text())
    assert (written["base_model_name_or_path"], written["revision"]) == ("owner/base", "v2")
    card = (tmp_path / "adapter" / "README.md").read_text()
    assert 'library_name: "peft"' in card and card.endswith("Its base: `owner/base` of the hub, revision `v2`.\n")


@pytest.mark.parametrize(
    ("arguments", "refused"),
    [
        (("models/base", "FULL"), "FULL: a folder that is not empty; expected a new or empty folder; name another one"),
        (("models/base", "LINK"), "LINK: a file; expected a new or empty folder"),
        (("models/nothing", "new"), "models/nothing: no manifest"),
        (
            ("models/adopted", "new", "--gguf"),
            "--gguf: a checkpoint with a LoRA adapter; expected full weights; add --merge",
        ),
        (("models/adopted", "new", "--dtype", "fp16"), "--dtype fp16: a checkpoint with a LoRA adapter"),
        (("models/base", "hub:a/b/c"), "hub:a/b/c: Repo id must be in the form"),
    ],
)
def test_bad_input_is_one_line_and_nothing_is_written(
    store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...], refused: str,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    (tmp_path / "FULL").mkdir()
    (tmp_path / "FULL" / "file").touch()
    (tmp_path / "LINK").symlink_to("nowhere")
    exported(store, *arguments, status=2)
    told = capsys.readouterr().err
    assert refused in told and told.count("\n") == 1
    assert {path.name for path in tmp_path.rglob("*")} == {"FULL", "file", "LINK"}


_KILLED = """
import os, signal, sys
from stages.models.exporting import folder
folder.write_both_spellings = lambda out: os.kill(os.getpid(), signal.SIGKILL)
from flows.cli.app import run_command
run_command(sys.argv[1:])
"""


def test_a_killed_export_leaves_no_model_and_the_same_command_begins_again(store: str, tmp_path: Path) -> None:
    """It is killed when the weights are complete and the rest is not."""
    (scratch := tmp_path / "tmp").mkdir()
    words = ["export", "models/base", str(tmp_path / "out"), "--store", store]
    command = [sys.executable, "-P", "-c", _KILLED, *words]
    killed = subprocess.run(command, check=False, env={**os.environ, "TMPDIR": str(scratch)}, timeout=600)
    assert killed.returncode == -signal.SIGKILL
    assert not [path for path in (tmp_path / "out").iterdir() if path.is_file()]
    assert all((folder / ".owner").exists() for folder in scratch.iterdir())  # so that the next command removes them
    exported(store, "models/base", str(tmp_path / "out"))
    check_weights(tmp_path / "out")
    assert all(path.is_file() for path in (tmp_path / "out").iterdir())


def test_an_export_that_was_killed_at_its_end_is_the_same_again(
    store: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    exported(store, "models/base", str(out))
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    (out / "config.json").unlink()  # moved last
    for _ in range(2):
        exported(store, "models/base", str(out))
        assert {path.name: path.read_bytes() for path in out.iterdir()} == before
    exported(store, "models/adopted", str(out), "--merge", status=2)
    assert "is another one; expected a new or empty folder" in capsys.readouterr().err
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before


def test_an_export_that_fails_leaves_nothing(tmp_path: Path) -> None:
    for _ in range(2):
        with pytest.raises(TimeoutError), draft_of(tmp_path / "out") as draft:
            (draft / WEIGHTS).touch()
            raise TimeoutError
    assert list((tmp_path / "out").iterdir()) == []


def test_two_exports_do_not_share_a_folder(tmp_path: Path) -> None:
    with draft_of(tmp_path) as draft:
        (draft / "config.json").touch()
        with pytest.raises(BadInputError, match="another export is writing it"), draft_of(tmp_path):
            pass
    assert [path.name for path in tmp_path.iterdir()] == ["config.json"]
