"""Options that the commands share."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from flows.surroundings import DEFAULT_STORE

_DEPLOYMENTS = Path(__file__).parents[1] / "deployments"

Changes = Annotated[tuple[str, ...], Parameter(negative=(), show_default=False)]
Switch = Annotated[bool, Parameter(show_default=False)]
Wide = Annotated[bool, Parameter(negative=(), show_default=False)]


def shipped(folder: str) -> str:
    """Names of the TOML files of a folder of `deployments`, for a help text.

    `flows.settings.settings_names` says the same; it needs importlib.resources and pydantic, which take longer to
    import than the whole command line may.
    """
    return ", ".join(sorted(path.stem for path in (_DEPLOYMENTS / folder).glob("*.toml")))


@Parameter(name="*")
@dataclass(frozen=True)
class Output:
    """How a command answers.

    Parameters
    ----------
    json
        Print one JSON document on stdout; everything else goes to stderr.
    debug
        Show logs and tracebacks.
    """

    json: Annotated[bool, Parameter(negative=())] = False
    debug: Annotated[bool, Parameter(negative=())] = False


@Parameter(name="*")
@dataclass(frozen=True)
class Stored(Output):
    """The same for a command that reads or writes artifacts.

    Parameters
    ----------
    store
        Where artifacts live: a folder, file://, or s3://bucket/prefix.
    """

    store: str = DEFAULT_STORE


@Parameter(name="*")
@dataclass(frozen=True)
class Answers:
    """How a checkpoint is measured on puzzles.

    Parameters
    ----------
    count
        How many puzzles, from the first.
    samples
        Sampled answers a puzzle.
    temperature
        Temperature of the sampled answers.
    max_tokens
        Longest answer.
    greedy
        Also take the most likely answer, once a puzzle.
    """

    count: int = 64
    samples: int = 4
    temperature: float = 1.0
    max_tokens: int = 256
    greedy: Switch = True

    def config(self) -> dict[str, Any]:
        """Fields of `stages.evaluate.EvaluateConfig`."""
        sampled = {
            "samples_per_prompt": self.samples, "temperature": self.temperature, "max_tokens": self.max_tokens
        }  # fmt: skip
        return {"puzzles": self.count, "sampled": sampled, "greedy": self.greedy}


STORED, OUTPUT, ANSWERS = Stored(), Output(), Answers()
