"""The kinds of commands that the campaign of kills disturbs, each as small as it gets."""

import shutil
import subprocess
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from random import Random

from artifacts.store.store import Store
from tests.support.installed import ONE_ENGINE, SLOW, SLOWLY, TINY
from tests.support.kills_deployed import DeployedRun
from tests.support.kills_run import LONGEST_WAIT_S, Run
from tests.support.kills_saving import SavingRun
from tests.support.processes import DEERSTALKER
from tests.support.specialists import SHAPE, publish_specialist, write_specialist
from tests.support.tiny_runs import (
    AHEAD,
    CRITIC,
    DISTILLED,
    FIRST,
    LORA,
    PHASES,
    README_TASK,
    SLOW_GRADES,
    TOOL,
)
from tests.support.user_tasks import readme_recipe, readme_task

Words = tuple[str, ...]


def _train(settings: Iterable[str] = (), run: str = "tiny", recipe: str = str(TINY)) -> Words:
    """The words of `train`; every step is checkpointed, so that a kill between two of them repeats none."""
    changes = [word for setting in settings for word in ("--set", setting)]
    profile = ("--profile", str(ONE_ENGINE), "--set-profile", SLOWLY, "--set-profile", "trainer.checkpoint_every_s=0")
    return ("train", "--recipe", recipe, "--run", run, *profile, *changes, "--store", "{store}")


def _write_task(folder: Path) -> None:
    (folder / "my_tasks.py").write_text(readme_task() + SLOW_GRADES)
    (folder / "mine.toml").write_text(readme_recipe())


def _publish_specialists(folder: Path) -> None:
    deep = SHAPE.model_copy(update={"layers": 400})  # enough tensors that a kill meets a merge at work
    for seed in (0, 1):
        made = write_specialist(folder / f"seed{seed}", seed, shape=deep)
        publish_specialist(Store.open(str(folder / "store")), made)


def _write_models(folder: Path) -> None:
    models = [f'[[models]]\nname = "{name}"\nkind = "checkpoint"\ncheckpoint = "tiny@{number}"\n' for number, name in
              enumerate(("before", "after"))]  # fmt: skip
    (folder / "models.toml").write_text("".join(models))


@dataclass(frozen=True)
class Kind:
    """A kind of command.

    Attributes:
        command: Its words; `{folder}` and `{store}` stand for its folder and its store.
        before: Commands that finish before it, undisturbed.
        deterministic: Beginnings of the keys of artifacts that do not depend on sampling, and are equal after kills.
        files: Writes what the commands read.
        output: File or folder that it writes beside the store; it is equal after kills.
        longest_wait_s: Seconds between two kills, at most.
    """

    command: Words
    before: tuple[Words, ...] = ()
    deterministic: Words = ("puzzles/", "models/")
    files: Callable[[Path], None] = lambda folder: None
    output: str | None = None
    longest_wait_s: float = LONGEST_WAIT_S


_MEASURED = ("--profile", str(SLOW), "--store", "{store}")
_WARM = ("puzzles/", "models/")
_SHORT_S, _SHORTEST_S = 5.0, 2.0
KINDS = {
    "critic": Kind(_train(CRITIC), (_train(FIRST, "first"),), _WARM),
    "distilled": Kind(_train(DISTILLED)),
    "phases": Kind(_train(PHASES), deterministic=_WARM),
    "tool": Kind(_train(TOOL), deterministic=_WARM),
    "task": Kind(_train(README_TASK, recipe="{folder}/mine.toml"), files=_write_task),
    "ahead": Kind(_train(AHEAD), deterministic=_WARM),
    "lora": Kind(_train(LORA), deterministic=_WARM),
    "merge": Kind(
        ("merge", "--model", "models/seed1", "--base", "models/seed0", "--store", "{store}"),
        files=_publish_specialists, longest_wait_s=_SHORT_S,
    ),
    "benchmark": Kind(
        ("benchmark", "--models", "{folder}/models.toml", "--puzzles", "tiny:test", "--samples", "4", *_MEASURED),
        (_train(),), _WARM, _write_models,
    ),
    "backfill": Kind(
        ("backfill", "tiny", "--suite", "more", "--puzzles", "tiny:test", "--samples", "4", *_MEASURED),
        (_train(),), _WARM,
    ),
    "puzzles": Kind(
        ("puzzles", "make", "--size", "small", "--count", "128", "--out", "{store}"), longest_wait_s=_SHORT_S
    ),
    "export": Kind(
        ("export", "tiny@2", "{folder}/exported", "--store", "{store}"), (_train(),), _WARM, output="exported",
        longest_wait_s=_SHORTEST_S,
    ),
}  # fmt: skip


class KindRun(Run):
    """One command of a kind in a store of its own, killed now and then."""

    def __init__(self, folder: Path, generator: Random, kind: Kind, prepared: Path) -> None:
        super().__init__(folder, generator)
        self.kind, self.prepared = kind, prepared
        self.longest_wait_s, self.deterministic = kind.longest_wait_s, kind.deterministic

    @property
    def command(self) -> list[str]:
        """The words of the command."""
        return [*self._words(self.kind.command), "--json"]

    def disturb(self, kills: int) -> None:
        """Prepares the store, which is done once for all runs of a kind, then kills as in `Run`."""
        self.scratch.mkdir()
        self.kind.files(self.folder)
        if self.prepared.exists():
            shutil.copytree(self.prepared, self.store)
        elif self.kind.before:
            for words in self.kind.before:
                done = subprocess.run(
                    [DEERSTALKER, *self._words(words)], capture_output=True, text=True, check=False, cwd=self.folder,
                    env=self.environment,
                )  # fmt: skip
                assert done.returncode == 0, done.stderr[-3000:]
            self.nothing_is_left()
            shutil.copytree(self.store, self.prepared)
        super().disturb(kills)

    def digests(self) -> dict[str, str]:
        """Also the content of what the command writes beside the store."""
        if self.kind.output is None:
            return super().digests()
        output = self.folder / self.kind.output
        files = {path.relative_to(self.folder).as_posix(): path for path in output.rglob("*") if path.is_file()}
        return {**super().digests(), **{name: path.read_bytes().hex() for name, path in files.items()}}

    def _words(self, words: Words) -> list[str]:
        return [word.replace("{folder}", str(self.folder)).replace("{store}", self.url) for word in words]


def make_run(name: str, folder: Path, generator: Random, prepared: Path) -> Run:
    """Returns a run of a kind of `EVERY`.

    Args:
        prepared: Where the store of the kind is kept after the commands that come before it.
    """
    folder.mkdir(parents=True)
    if name in KINDS:
        return KindRun(folder, generator, KINDS[name], prepared)
    return {"plain": Run, "deployed": DeployedRun, "saving": SavingRun}[name](folder, generator)


EVERY = ("plain", "deployed", "saving", *KINDS)
