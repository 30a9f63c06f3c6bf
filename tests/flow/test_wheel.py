"""The wheel by itself: built, installed with the extra `cpu` into a new environment, and run from a foreign folder."""

import json
import subprocess
import sys
import tomllib
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

from tests.support.installed import ONE_ENGINE, TINY
from tests.support.prefect_server import without_prefect

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
ENGINES = ("cpu", "cuda")
LIMIT_S = 1200


def ran(*command: str | Path, folder: Path = ROOT, **variables: str) -> str:
    """Returns the output of a command, which must succeed; it knows nothing of the environment of the tests."""
    kept = {name: value for name, value in without_prefect().items() if name not in {"VIRTUAL_ENV", "PYTHONPATH"}}
    done = subprocess.run(
        [str(word) for word in command],
        cwd=folder, env={**kept, **variables}, capture_output=True, text=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, (command, done.stdout[-2000:], done.stderr[-2000:])
    return done.stdout


@pytest.mark.release
def test_the_wheel_trains_in_an_environment_of_its_own(tmp_path: Path) -> None:
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    ran("uv", "build", "--wheel", "--out-dir", tmp_path)
    (wheel,) = tmp_path.glob("*.whl")

    # Everything that git has in the packages is inside, and the engines are extras.
    inside = set(zipfile.ZipFile(wheel).namelist())
    packages = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    assert set(ran("git", "ls-files", "--", *packages).split()) <= inside
    metadata = zipfile.ZipFile(wheel).read(f"{'-'.join(wheel.name.split('-')[:2])}.dist-info/METADATA").decode()
    required = Parser().parsestr(metadata).get_all("Requires-Dist", [])
    for extra, (engine,) in (
        item for item in PROJECT["project"]["optional-dependencies"].items() if item[0] in ENGINES
    ):
        assert f"{engine}; extra == '{extra}'" in required

    # The other packages are those of the clone's lock with the extra `cpu`, without the default groups; uv links them.
    venv = tmp_path / "venv"
    python = ("--python", sys.executable)
    sync = ("uv", "sync", "--no-default-groups", "--extra", "cpu", "--no-install-project", *python)
    ran(*sync, UV_PROJECT_ENVIRONMENT=str(venv))
    ran("uv", "pip", "install", "--python", venv, "--no-deps", wheel)
    place = ran(venv / "bin" / "python", "-c", "import flows.train; print(flows.train.__file__)", folder=foreign)
    assert Path(place).is_relative_to(venv)

    program = venv / "bin" / "deerstalker"
    store = ("--store", foreign / "store", "--json")
    train = ("train", "--recipe", TINY, "--run", "wheel", "--profile", ONE_ENGINE, *store)
    home = {"HOME": str(foreign), "PREFECT_HOME": str(foreign / ".prefect")}
    trained = json.loads(ran(program, *train, folder=foreign, **home))
    assert (foreign / "store" / "runs" / "wheel" / "report" / "report.html").is_file(), trained
    listed = json.loads(ran(program, "recipes", "--json", folder=foreign, **home))
    assert len(listed) == len(list((ROOT / "deployments" / "recipes").glob("*.toml")))
