"""What comes from outside: only regular files of a stated largest size are read, whoever reads them."""

import ast
import io
import re
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from types import SimpleNamespace

import pytest

from artifacts.errors import BadInputError, DeerstalkerError
from artifacts.local.input_files import LARGEST_DOCUMENT, UnfitInputError, read_input, read_regular
from artifacts.store.directory import DirectoryBackend
from artifacts.store.store import Store
from flows.cli.console.texts import read_text_argument
from flows.config.models_file import load_models
from flows.config.recipes import load_profile, load_recipe
from flows.config.suites import load_suite
from flows.report.study.benchmark import read_benchmark
from stages.environments.published import read_puzzles
from stages.environments.question_file.config import QuestionFileConfig
from stages.environments.question_file.files import opened_files
from stages.models.folder import check_folder
from stages.models.from_scratch import ScratchModel, make_scratch
from stages.models.source import FolderModel, materialise
from stages.prepare import PrepareConfig, identity_of
from stages.processes.user_file import digest_of
from tests.support.bad_inputs.classes import STRANGE_FILES

ENDLESS = ("a pipe", "a socket", "1 TiB of zeros", "a link to /dev/zero")
READERS: dict[str, Callable[[Path], object]] = {
    "recipe.toml": lambda path: load_recipe(str(path), ()),
    "profile.toml": lambda path: load_profile(str(path), ()),
    "suite.toml": lambda path: load_suite(str(path)),
    "models.toml": lambda path: load_models(str(path)),
    "puzzles.json": read_puzzles,
    "set.json": lambda path: identity_of(PrepareConfig(file=str(path))),
    "questions.jsonl": lambda path: opened_files(QuestionFileConfig(path=str(path))),
    "questions.parquet": lambda path: opened_files(QuestionFileConfig(path=path.as_uri())),
    "task.py": digest_of,
    "completion.txt": lambda path: read_text_argument(str(path), "a text"),
    "benchmark.json": lambda path: read_benchmark(str(path)),
    "manifest.json": lambda path: Store.open(str(path.parent)).read_bytes(path.name),
}
MODEL = ScratchModel(hidden=32, layers=1, heads=1, kv_heads=1, intermediate=32, vocabulary=600, max_positions=512)
OF_MODEL = (
    "config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json", "chat_template.jinja",
    "model.safetensors", "model.safetensors.index.json", "special_tokens_map.json", "vocab.json",
)  # fmt: skip


@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", ENDLESS)
@pytest.mark.parametrize("name", READERS)
def test_a_file_without_an_end_is_refused_at_once(name: str, kind: str, tmp_path: Path) -> None:
    STRANGE_FILES[kind](tmp_path / name)
    began = time.monotonic()
    with pytest.raises(DeerstalkerError, match=_why(kind, name)):
        READERS[name](tmp_path / name)
    assert time.monotonic() - began < 60


def _why(kind: str, name: str) -> str:
    if name == "manifest.json" and "TiB" not in kind:
        return "a symbolic link|neither a file nor a folder"
    return {
        "a pipe": r"cannot be read \(a pipe, not a regular file\)",
        "a socket": r"cannot be read \(No such device or address\)",  # the system's own words
        "1 TiB of zeros": r"1,099,511,627,776 bytes or more, at most [\d,]+ are read",
        "a link to /dev/zero": r"cannot be read \(a character device, not a regular file\)",
    }[kind]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", OF_MODEL)
def test_no_file_of_a_model_folder_can_be_without_an_end(name: str, tmp_path: Path) -> None:
    model, out = tmp_path / "model", tmp_path / "out"
    model.mkdir()
    make_scratch(MODEL, ["Who did it?"], model)
    for kind in ("a pipe", "a link to /dev/zero"):
        (model / name).unlink(missing_ok=True)
        STRANGE_FILES[kind](model / name)
        began = time.monotonic()
        for use in (check_folder, lambda folder: materialise(FolderModel(path=str(folder)), out)):
            with pytest.raises(BadInputError, match=rf"{re.escape(name)}: .*not a regular file"):
                use(model)
        assert time.monotonic() - began < 60


def test_a_file_that_grows_or_states_no_size_is_read_up_to_the_limit(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"12345")
    assert read_regular(tmp_path / "file", 5) == b"12345"
    with pytest.raises(UnfitInputError, match="5 bytes or more, at most 4 are read"):
        read_regular(tmp_path / "file", 4)
    assert Path("/proc/self/pagemap").stat().st_size == 0  # a regular file with 8 bytes for every page of memory
    with pytest.raises(UnfitInputError, match="at most 4,000,000 are read"):
        read_regular("/proc/self/pagemap", 4_000_000)
    with pytest.raises(BadInputError, match="no such file; expected a file"):
        read_input("a\0b", "a file")


def test_stdin_is_read_up_to_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    class Endless(io.RawIOBase):
        read_bytes = 0

        def readinto(self, buffer: bytearray) -> int:  # type: ignore[override]
            self.read_bytes += len(buffer)
            assert self.read_bytes < 2 * LARGEST_DOCUMENT
            return len(buffer)

        def readable(self) -> bool:
            return True

    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BufferedReader(Endless())))
    with pytest.raises(BadInputError, match=r"stdin: cannot be read \(.* at most 67,108,864 are read\)"):
        read_text_argument("-", "a text")


def test_no_file_is_swapped_between_check_and_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The link appears in the worst moment: just before the store opens the folder of the file."""
    store, outside = Store.open(str(tmp_path / "store")), tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_bytes(b"secret")
    open_folder = DirectoryBackend._opened

    def swapped(replaced: str) -> Callable[[DirectoryBackend, str], AbstractContextManager[int]]:
        def opened(self: DirectoryBackend, folder: str) -> AbstractContextManager[int]:
            place = tmp_path / "store" / replaced
            place.rename(tmp_path / "before")
            place.symlink_to(outside / replaced.removeprefix("a/") if "/" in replaced else outside)
            return open_folder(self, folder)

        return opened

    for replaced in ("a", "a/file"):
        for read in (Store.read_bytes, Store.digest):
            store.write_bytes("a/file", b"ours")
            with monkeypatch.context() as patch, pytest.raises(DeerstalkerError):
                patch.setattr(DirectoryBackend, "_opened", swapped(replaced))
                read(store, "a/file")
            (tmp_path / "store" / replaced).unlink()
            (tmp_path / "before").rename(tmp_path / "store" / replaced)
            assert store.read_bytes("a/file") == b"ours"


READ_BY_THEMSELVES = {
    "artifacts/local/input_files.py": "the one module that reads what comes from outside",
    "artifacts/provenance.py": "our sources, and /proc",
    "artifacts/store/": "files that a stage has made, to be stored",
    "flows/cli/console/wheel_tag.py": "an installed package",
    "flows/config/settings.py": "a file of our package",
    "flows/orchestration/installation.py": "a file of our package",
    "flows/orchestration/server/": "logs of our processes, and /proc",
    "flows/report/html/page.py": "a file of our package",
    "stages/environments/temporal_clue/generation/directed.py": "a file of our package",
    "stages/hardware/": "/proc",
    "stages/merge.py": "files of our child process",
    "stages/models/merging/folders.py": "artifacts that were verified",
    "stages/models/tokenizers/chat_template_child.py": "/proc",
    "stages/processes/": "/proc and /sys",
    "stages/sampling/counts.py": "memory that an engine shares with its server",
    "stages/sampling/replicas/": "artifacts that were verified, and logs of our processes",
    "stages/training/": "files of our processes, and artifacts that were verified",
}
"""Modules that open files themselves, or folders of such modules, and what they read."""


def test_one_module_reads_what_comes_from_outside() -> None:
    root = Path(__file__).parents[3]
    found = {
        f"{path.relative_to(root)}:{call.lineno}"
        for package in ("artifacts", "stages", "flows")
        for path in (root / package).rglob("*.py")
        for call in ast.walk(ast.parse(path.read_text()))
        if isinstance(call, ast.Call) and _reads_a_path(call)
    }
    assert {place for place in found if not place.startswith(tuple(READ_BY_THEMSELVES))} == set()
    assert {place for place in READ_BY_THEMSELVES if not any(one.startswith(place) for one in found)} == set()


def _reads_a_path(call: ast.Call) -> bool:
    """Returns whether a call reads a file: `open(path)`, `path.open("rb")`, `path.read_text()`, `shutil.copyfile`."""
    function, mode = call.func, [part.value for part in call.args if isinstance(part, ast.Constant)]
    if isinstance(function, ast.Name):
        return function.id == "open" and not {"x", "a", "ab", "w", "wb", "xb"} & set(mode)
    if not isinstance(function, ast.Attribute):
        return False
    if function.attr in ("read_text", "read_bytes"):
        return not call.args  # `Store.read_bytes` and `Artifact.read_bytes` take a name
    if function.attr == "open":
        return not call.args or mode[:1] in (["r"], ["rb"])
    return function.attr in ("copy", "copyfile", "copytree") and ast.unparse(function.value) == "shutil"
