"""Keys of artifacts in a store. No other module spells a key."""

import re
from dataclasses import dataclass

from artifacts.errors import BadInputError
from artifacts.identity import Identity

RUNS = "runs"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_NAME_RULE = "1 to 64 letters, digits, dots, dashes and underscores, beginning with a letter or a digit"
_SHARED = ("puzzles", "models", "evaluations", "answers")
"""Folders of the artifacts that runs share (see `shared_key`)."""
_RECIPE = re.compile(r"runs/[^/]+/recipe\.json")
_SEALED = re.compile(r"runs/[^/]+/(?:promoted\.json|renewals/[^/]+\.json)")
_STATES = {"checkpoint": "training_state", "critic": "critic_state"}
"""The part that holds the training state, by the part that holds the weights."""
WARM_START = 0
"""Number of the round of `RunLayout.sft` that trains on the solver's texts, before those of a teacher."""
_NUMBER = re.compile(r"[0-9]{4}|[1-9][0-9]{4,8}")


def shared_key(kind: str, name: str, identity: Identity) -> str:
    """Returns the key of an artifact that runs share, named by its identity: `puzzles/quickstart-0123456789ab`."""
    return f"{kind}/{name}-{identity.digest[:12]}"


TOPS = (RUNS, *_SHARED)
"""Folders that hold all artifacts of a store."""


def is_ours(key: str) -> bool:
    """Returns whether a key is that of a manifest or a frozen recipe. A folder that holds one of them is a store."""
    first, _, rest = key.partition("/")
    return (first in TOPS and rest.endswith("/manifest.json")) or bool(_RECIPE.fullmatch(key))


def is_within(key: str) -> bool:
    """Returns whether a key is below one of a store's own folders; a bucket or a folder may hold other things."""
    return key.partition("/")[0] in (RUNS, *_SHARED)


def is_sealed(key: str) -> bool:
    """Returns whether a key is that of a file with its own checksum: a run's pointer or a request to redo stages."""
    return bool(_SEALED.fullmatch(key))


def is_run_name(name: str) -> bool:
    """Returns whether a run may have this name."""
    return bool(_NAME.fullmatch(name))


def probe_key(mark: str) -> str:
    """Returns the key of an object that `deerstalker doctor` writes and removes again; `mark` makes it unique."""
    return f"doctor/{mark}"


def state_key(checkpoint_key: str) -> str | None:
    """Returns the key of the training state beside a trained checkpoint or value model; None for other keys."""
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
        """The folder of the requests to redo stages."""
        return f"{self.root}/renewals"

    @property
    def promoted(self) -> str:
        """The run's pointer to its promoted checkpoint."""
        return f"{self.root}/promoted.json"

    @property
    def summary(self) -> str:
        """The folder of the run's report for people."""
        return f"{self.root}/report"

    def first_critic(self, part: str) -> str:
        """Returns the key of an artifact of the pretrained value model: `critic` or `critic_state`."""
        return f"{self.root}/first_critic/{part}"

    def sft(self, number: int, part: str) -> str:
        """Returns the key of an artifact of round `number` of training on texts: `rollouts`, `texts` or `checkpoint`.

        Rounds on the texts of a teacher count from 1; `WARM_START` is the warm start.
        """
        return f"{self.root}/sft/{number:04d}/{part}"

    def is_texts(self, key: str) -> bool:
        """Returns whether a key is that of a round's texts."""
        number, _, part = key.removeprefix(f"{self.root}/sft/").partition("/")
        return key.startswith(f"{self.root}/sft/") and bool(_NUMBER.fullmatch(number)) and part == "texts"

    @property
    def levels(self) -> str:
        """The pass rates that were measured before the first iteration."""
        return f"{self.root}/levels"

    def iteration(self, number: int, part: str) -> str:
        """Returns the key of an artifact of an iteration, counted from 1; 0 is the state before the first update."""
        return f"{self.root}/iterations/{number:04d}/{part}"

    def iteration_of(self, key: str) -> int | None:
        """Returns the iteration to which a key belongs; None for other keys, such as those of misnamed folders."""
        number, slash, _ = key.removeprefix(f"{self.root}/iterations/").partition("/")
        inside = key.startswith(f"{self.root}/iterations/") and slash and _NUMBER.fullmatch(number)
        return int(number) if inside else None

    def is_aside(self, key: str) -> bool:
        """Returns whether a key belongs to a comparison or a suite, which no iteration reads or makes again."""
        return key.startswith((f"{self.root}/comparisons/", f"{self.root}/suites/"))

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
