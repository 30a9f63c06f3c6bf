"""The folder in which bad inputs are tried, and an environment in which nothing can start or leave the machine."""

import importlib
import io
import json
import os
import tempfile
from collections.abc import Generator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from artifacts.reading import Artifact
from artifacts.schemas import PUZZLES
from artifacts.store.store import Store
from flows.cli.app import run_command
from flows.lookup.splits import named_split
from stages.environments.tables import from_table
from stages.models.from_scratch import ScratchModel, make_scratch
from tests.support.made_run import make_run

NOBODY = "nobody-of-this-name"
"""A name that no run, checkpoint, recipe or profile has."""

_NO_ADDRESS = "http://127.0.0.1:9"  # nothing listens on the port `discard`
_SURROUNDINGS = {
    "PREFECT_API_URL": f"{_NO_ADDRESS}/api",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "AWS_ENDPOINT_URL": _NO_ADDRESS,
    "AWS_ACCESS_KEY_ID": "none",
    "AWS_SECRET_ACCESS_KEY": "none",
    "AWS_EC2_METADATA_DISABLED": "true",
    "HF_HUB_OFFLINE": "1",
    "COLUMNS": "80",
}
_UNSET = ("NO_SUCH_KEY",)
_REFUSED_PROFILE = f'[engine]\nexternal_urls = ["{_NO_ADDRESS}"]\napi_key_env = "NO_SUCH_KEY"\n'
_TINY = ScratchModel(hidden=32, layers=1, heads=1, kv_heads=1, intermediate=32, vocabulary=600, max_positions=512)


@dataclass(frozen=True)
class Ground:
    """Files that all cases share.

    Attributes:
        root: Holds all of it, and the temporary folder of this process.
        store: A store with the finished run `made`.
        model: A complete model folder of a few kilobytes.
        puzzles: Puzzles in the published format, as text.
        profile: A profile with which `solve` gets as far as its engine, whose key is missing.
    """

    root: Path
    store: Path
    model: Path
    puzzles: str
    profile: Path

    @property
    def temporary(self) -> Path:
        """The temporary folder of this process."""
        return self.root / "tmp"

    @property
    def watched(self) -> tuple[Path, ...]:
        """The folders that a refused command must not change."""
        return self.store, self.temporary, self.root / "home", self.root / "cases"


@contextmanager
def made_ground(root: Path) -> Generator[Ground]:
    """Makes the ground in an empty folder, and the environment, and restores what it changed."""
    before, folder, temporary = dict(os.environ), Path.cwd(), tempfile.tempdir
    for name in ("tmp", "home", "cases", "prefect"):
        (root / name).mkdir()
    ground = _furnished(root)  # before TMPDIR changes: multiprocessing keeps its first temporary folder
    os.environ.update(_SURROUNDINGS, TMPDIR=str(root / "tmp"), HOME=str(root / "home"))
    os.environ.update(PREFECT_HOME=str(root / "prefect"), MPLCONFIGDIR=str(root / "prefect"))
    for name in _UNSET:
        os.environ.pop(name, None)
    tempfile.tempdir = str(root / "tmp")
    os.chdir(root / "cases")
    try:
        _warm_up(ground)
        yield ground
    finally:
        os.chdir(folder)
        tempfile.tempdir = temporary
        os.environ.clear()
        os.environ.update(before)


def _warm_up(ground: Ground) -> None:
    """Imports the modules of the commands, so that the first case does not take seconds longer."""
    for words in (["report", "made"], ["train", "--refresh", "x"], ["backfill", NOBODY, "--suite=s", "--puzzles=x"]):
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            run_command([*words, "--store", str(ground.store)])
    for name in ("compare", "evaluation", "iterate", "puzzle_set", "backfill", "merging"):
        importlib.import_module(f"flows.{name}")


def _furnished(root: Path) -> Ground:
    store = Store.open(str(root / "store"))
    make_run(store, iterations=2)
    puzzles, split = named_split("made:val", store, "bad inputs")
    table = Artifact.open(store, puzzles).read_table(f"{split}.parquet", PUZZLES)
    published: list[dict[str, Any]] = [
        {"num_clues": item.num_clues, "prompt": item.prompt, "solution": item.solution}
        for item in from_table(table)[:2]
    ]
    (root / "model").mkdir()
    make_scratch(_TINY, [item["prompt"] for item in published], root / "model")
    profile = root / "refused.toml"
    profile.write_text(_REFUSED_PROFILE)
    return Ground(root, root / "store", root / "model", json.dumps(published, indent=1), profile)
