"""Stores of every released format are read by the commands; a store of any other format is refused in one line.

`python -m tests.support.stores` has made the archive of format 1.
"""

import json
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from artifacts.documents.self_checksum import sealed_json
from artifacts.documents.store_format import FORMAT_VERSION
from flows.cli.app import run_command
from tests.support.stores import archive

RECIPE = "runs/kept/recipe.json"
MANIFEST = "runs/kept/iterations/0001/rollouts/manifest.json"

pytestmark = pytest.mark.usefixtures("no_server")


@pytest.fixture
def unpacked(tmp_path: Path) -> Callable[[int], Path]:
    def unpacked(number: int) -> Path:
        with tarfile.open(archive(number)) as file:
            file.extractall(tmp_path / "store", filter="data")
        return tmp_path / "store"

    return unpacked


@pytest.mark.parametrize("number", range(1, FORMAT_VERSION + 1))
def test_a_store_of_each_released_format_is_read(
    number: int, unpacked: Callable[[int], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    store = str(unpacked(number))
    assert run_command(["verify", store, "--json"]) == 0
    verified = json.loads(capsys.readouterr().out)
    assert (verified["damaged"], verified["artifacts"]) == ([], 8)
    assert run_command(["show", "kept", "--store", store, "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert [item["iteration"] for item in shown["iterations"]] == [1]
    assert shown["promoted"]["iteration"] == 1
    assert run_command(["lineage", "kept", "--store", store]) == 0
    assert run_command(["report", "kept", "--store", store]) == 0


def _altered(path: Path, version: int | None) -> None:
    """Writes a manifest or a recipe again, intact, with another version; None leaves it out."""
    content = json.loads(path.read_bytes())
    del content["format_version"]
    changed = content if version is None else {"format_version": version, **content}
    if "checksum" in changed:
        del changed["checksum"]
        path.write_bytes(sealed_json(changed))
    else:
        path.write_text(json.dumps(changed))


@pytest.mark.parametrize(
    ("version", "words"),
    [
        (
            None,
            "no format_version: made by a commit before release 0.1.0; expected format_version 1; name a new --store",
        ),
        (
            FORMAT_VERSION + 1,
            f"format_version {FORMAT_VERSION + 1}: made by a newer release; expected format_version 1",
        ),
    ],
)
@pytest.mark.parametrize(
    ("file", "commands"),
    [
        (RECIPE, [["runs"], ["show", "kept"], ["report", "kept"]]),
        (MANIFEST, [["show", "kept"], ["report", "kept"], ["verify"]]),
    ],
)
def test_a_store_of_another_format_is_refused_in_one_line(
    unpacked: Callable[[int], Path],
    capsys: pytest.CaptureFixture[str],
    file: str,
    commands: list[list[str]],
    version: int | None,
    words: str,
) -> None:
    store = unpacked(FORMAT_VERSION)
    _altered(store / file, version)
    for command in commands:
        place = [str(store)] if command == ["verify"] else ["--store", str(store)]
        assert run_command([*command, *place]) == 1
        err = capsys.readouterr().err
        assert file in err and words in err and err.count("\n") == 1, err


def test_a_damaged_version_is_damage(unpacked: Callable[[int], Path], capsys: pytest.CaptureFixture[str]) -> None:
    store = unpacked(FORMAT_VERSION)
    path = store / MANIFEST
    path.write_bytes(path.read_bytes().replace(b'"format_version": 1', b'"format_version": 9'))
    assert run_command(["verify", str(store)]) == 1
    assert "1 damaged file" in capsys.readouterr().err
