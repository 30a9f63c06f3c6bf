"""Keys of artifacts in a store, and of a run's other files. Elsewhere only names are appended to them."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from artifacts.errors import BadInputError
from artifacts.identity import Identity

MANIFEST_NAME = "manifest.json"
REFRESHED_NAME = "refreshed.json"
"""Name of the manifest of an artifact that a refresh has outdated, beside the artifact's files."""
RUNS = "runs"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_NAME_RULE = "1 to 64 letters, digits, dots, dashes and underscores, beginning with a letter or a digit"
_RECIPE = re.compile(r"runs/[^/]+/recipe\.json")
_SEALED = re.compile(r"runs/[^/]+/(?:promoted\.json|refreshes/[^/]+\.json)")
_STATES = {"checkpoint": "optimizer_state", "critic": "critic_state"}
"""The part that holds the optimizer state, by the part that holds the weights."""
WEIGHTS_PARTS = tuple(_STATES)
"""The parts of an iteration that hold weights that have an optimizer state."""
STATE_PARTS = tuple(_STATES.values())
"""The parts of an iteration that hold optimizer states."""
_STEP = re.compile(r"step-([0-9]{6})")
_NUMBER = re.compile(r"[0-9]{4}|[1-9][0-9]{4,8}")


class Shared(StrEnum):
    """Folders of the artifacts that runs share (see `shared_key`)."""

    PUZZLES = "puzzles"
    DRAWN = "puzzles/drawn"
    MODELS = "models"
    EVALUATIONS = "evaluations"
    ANSWERS = "answers"


TOPS = (RUNS, *(folder for folder in Shared if "/" not in folder))
"""Folders that hold all artifacts of a store."""


def shared_key(folder: Shared, name: str, identity: Identity) -> str:
    """Returns the key of an artifact that runs share, named by its identity: `puzzles/set-0123456789ab`."""
    return f"{folder}/{name}-{identity.digest[:12]}"


def shared_of_name(keys: Iterable[str], folder: Shared, name: str) -> list[str]:
    """Returns the keys of the shared artifacts with a name, among a store's keys."""
    artifacts = (artifact for key in keys if (artifact := artifact_of(key)))
    return [key for key in artifacts if re.fullmatch(f"{folder}/{re.escape(name)}-[0-9a-f]+", key)]


def manifest_key(artifact: str) -> str:
    """Returns the key of an artifact's manifest."""
    return f"{artifact}/{MANIFEST_NAME}"


def artifact_of(key: str) -> str | None:
    """Returns the key of the artifact whose manifest has this key; None for the keys of other files."""
    folder, _, name = key.rpartition("/")
    return folder if folder and name == MANIFEST_NAME else None


def attempt_name(unique: str) -> str:
    """Returns the name of the folder below an artifact's key that holds the files of one attempt."""
    return f"attempt-{unique[:12]}"


def progress_name(identity: Identity, label: str = "") -> str:
    """Returns the name of the folder that all resumable attempts under an identity share.

    Args:
        label: Name of the request to make the artifact again; its attempts adopt no files of earlier ones.
    """
    return f"progress-{identity.digest[:12]}" + (f"-{label}" if label else "")


IN_ATTEMPT = re.compile(r"((?:runs/[^/]+/)?+.+?)/((?:attempt|progress)-[0-9a-f]+(?:-[0-9]{8}T[0-9]+)?)/(.+)")
"""Matches the key of a file of an attempt: artifact, folder of the attempt, and file. Runs may be named like one."""


def step_key(progress: str, step: int) -> str:
    """Returns the key of a step checkpoint in the folder of a job's resumable attempts."""
    return f"{progress}/step-{step:06d}"


def step_of(name: str) -> int | None:
    """Returns the step whose checkpoint's key ends in this name; None for other names."""
    return int(match[1]) if (match := _STEP.fullmatch(name)) else None


def is_ours(key: str) -> bool:
    """Returns whether a key is that of a manifest or a frozen recipe. A folder that holds one of them is a store."""
    first, _, rest = key.partition("/")
    return (first in TOPS and rest.endswith(f"/{MANIFEST_NAME}")) or bool(_RECIPE.fullmatch(key))


def is_within(key: str) -> bool:
    """Returns whether a key is below one of a store's own folders; a bucket or a folder may hold other things."""
    return key.partition("/")[0] in TOPS


def is_sealed(key: str) -> bool:
    """Returns whether a key is that of a file with its own checksum: a run's pointer or a request to refresh stages."""
    return bool(_SEALED.fullmatch(key))


def is_run_name(name: str) -> bool:
    """Returns whether a run may have this name."""
    return bool(_NAME.fullmatch(name))


def probe_key(mark: str) -> str:
    """Returns the key of an object that `deerstalker doctor` writes and removes again; `mark` makes it unique."""
    return f"doctor/{mark}"


def state_key(checkpoint_key: str) -> str | None:
    """Returns the key of the optimizer state beside a trained checkpoint or critic; None for other keys."""
    folder, _, part = checkpoint_key.rpartition("/")
    return f"{folder}/{_STATES[part]}" if part in _STATES else None


@dataclass(frozen=True)
class RunLayout:
    """Keys of one run.

    Raises:
        BadInputError: The run's name cannot be part of a key.
    """

    run: str

    def __post_init__(self) -> None:
        _check_name("run name", self.run)

    @classmethod
    def of(cls, key: str) -> "RunLayout | None":
        """Returns the keys of the run to which a key belongs; None for keys of shared artifacts."""
        top, _, rest = key.partition("/")
        name = rest.partition("/")[0]
        return cls(name) if top == RUNS and is_run_name(name) else None

    @property
    def root(self) -> str:
        """The folder of the run."""
        return f"{RUNS}/{self.run}"

    @property
    def recipe(self) -> str:
        """The frozen recipe."""
        return f"{self.root}/recipe.json"

    @property
    def sums(self) -> str:
        """The file with the checksum of the frozen recipe."""
        return f"{self.root}/SHA256SUMS"

    @property
    def refresh_requests(self) -> str:
        """The folder of the requests to refresh stages."""
        return f"{self.root}/refreshes"

    @property
    def promoted(self) -> str:
        """The run's pointer to its promoted checkpoint."""
        return f"{self.root}/promoted.json"

    @property
    def summary(self) -> str:
        """The folder of the run's report for people."""
        return f"{self.root}/report"

    @property
    def page(self) -> str:
        """The page of the run's report."""
        return f"{self.summary}/report.html"

    def first_critic(self, part: str) -> str:
        """Returns the key of an artifact of the pretrained critic: `critic` or `critic_state`."""
        return f"{self.root}/first_critic/{part}"

    def sft(self, number: int, part: str) -> str:
        """Returns the key of an artifact of a round with a teacher, from 1: `rollouts`, `texts` or `checkpoint`."""
        return f"{self.root}/sft/{number:04d}/{part}"

    def is_texts(self, key: str) -> bool:
        """Returns whether a key is that of a round's texts."""
        number, _, part = key.removeprefix(f"{self.root}/sft/").partition("/")
        return key.startswith(f"{self.root}/sft/") and bool(_NUMBER.fullmatch(number)) and part == "texts"

    @property
    def pass_rates(self) -> str:
        """The pass rates that were measured before the first iteration."""
        return f"{self.root}/pass_rates"

    @property
    def iterations(self) -> str:
        """The folder of the iterations."""
        return f"{self.root}/iterations"

    def iteration(self, number: int, part: str) -> str:
        """Returns the key of an artifact of an iteration, counted from 1; 0 is the state before the first update."""
        return f"{self.iterations}/{number:04d}/{part}"

    def iteration_of(self, key: str) -> int | None:
        """Returns the iteration to which a key belongs; None for other keys, such as those of misnamed folders."""
        number, slash, _ = key.removeprefix(f"{self.iterations}/").partition("/")
        inside = key.startswith(f"{self.iterations}/") and slash and _NUMBER.fullmatch(number)
        return int(number) if inside else None

    def part_of(self, key: str) -> tuple[int, str] | None:
        """Returns the iteration and part of its artifact; None for other keys."""
        number, parts = self.iteration_of(key), key.split("/")
        return (number, parts[4]) if number is not None and len(parts) == 5 else None

    def is_comparison(self, key: str) -> bool:
        """Returns whether a key belongs to a comparison of recipes."""
        return key.startswith(f"{self.root}/comparisons/")

    def is_aside(self, key: str) -> bool:
        """Returns whether a key belongs to a comparison or a suite, which no iteration reads or makes again."""
        return self.is_comparison(key) or key.startswith(f"{self.root}/suites/")

    def comparison(self, number: int, recipe: str, part: str) -> str:
        """Returns the key of an artifact of a recipe that was tried on the rollouts of iteration `number`."""
        return f"{self.root}/comparisons/{number:04d}/{recipe}/{part}"

    def suite(self, suite: str, number: int) -> str:
        """Returns the key of an iteration's report on a suite, which is a puzzle set that a backfill evaluates."""
        _check_name("suite name", suite)
        return f"{self.root}/suites/{suite}/{number:04d}"

    def suite_of(self, key: str) -> tuple[str, int] | None:
        """Returns the suite and the iteration of a report's key; None for any other key."""
        suite, _, number = key.removeprefix(f"{self.root}/suites/").partition("/")
        inside = key.startswith(f"{self.root}/suites/") and _NAME.fullmatch(suite) and _NUMBER.fullmatch(number)
        return (suite, int(number)) if inside else None

    def evaluation(self, part: str) -> str:
        """Returns the key of an evaluation outside the iterations, such as `before` and `after` on the test split."""
        return f"{self.root}/evaluations/{part}"


def _check_name(where: str, name: str) -> None:
    if not _NAME.fullmatch(name):
        raise BadInputError(where, repr(name), _NAME_RULE, "choose another name")
