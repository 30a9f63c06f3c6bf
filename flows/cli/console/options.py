"""Options that several commands share."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from artifacts.store.location import DEFAULT_STORE

_DEPLOYMENTS = Path(__file__).parents[3] / "deployments"

Repeated = Parameter(negative=(), show_default=False)
"""For options that may be given several times."""
Optional = Parameter(show_default=False)
"""For options whose default the help page does not show."""
RefreshedStages = Annotated[
    tuple[str, ...],
    Repeated,
    Parameter(
        help="Stage to run again although it is published, in every iteration, or as STAGE@ITERATION in one; may be "
        "repeated."
    ),
]
RecipeChanges = Annotated[
    tuple[str, ...],
    Repeated,
    Parameter(name="--set", help="Change of the recipe, as section.key=value; may be repeated."),
]
ProfileChanges = Annotated[
    tuple[str, ...],
    Repeated,
    Parameter(name="--set-profile", help="Change of the profile, as section.key=value; may be repeated."),
]
Flag = Annotated[bool, Parameter(negative=())]
"""A switch that is off by default and has no `--no-` form."""
Wide = Annotated[bool, Parameter(negative=(), show_default=False)]


def shipped(folder: str) -> str:
    """Returns the names of the TOML files in a folder of `deployments`, for a help text.

    `flows.config.settings.settings_names` returns the same names. It needs importlib.resources and pydantic,
    which take longer to import than the whole command line may.
    """
    return ", ".join(sorted(path.stem for path in (_DEPLOYMENTS / folder).glob("*.toml")))


ProfileName = Annotated[
    str,
    Parameter(help=f"Name of a profile ({shipped('profiles')}: the machine's resources), or path of a TOML file."),
]


@Parameter(name="*")
@dataclass(frozen=True)
class Output:
    """Options of every command that prints results.

    Parameters
    ----------
    json
        Print one JSON document on stdout; everything else goes to stderr.
    debug
        Show logs and tracebacks.
    """

    json: Flag = False
    debug: Flag = False


@Parameter(name="*")
@dataclass(frozen=True)
class Stored(Output):
    """Options of a command that reads or writes artifacts.

    Parameters
    ----------
    store
        Where artifacts are stored: a folder, file://, or s3://bucket/prefix.
    """

    store: str = DEFAULT_STORE


@Parameter(name="*")
@dataclass(frozen=True)
class Machine(Stored):
    """Options of a command that computes on this machine."""

    profile: ProfileName = "cpu"
    set_profile: ProfileChanges = ()

    def request(self) -> dict[str, Any]:
        """Returns the fields that every flow's request has."""
        return {"store": self.store, "profile": self.profile, "profile_overrides": list(self.set_profile)}


@Parameter(name="*")
@dataclass(frozen=True)
class MeasureOptions:
    """Options of a command that measures checkpoints on puzzles.

    Parameters
    ----------
    count
        Number of puzzles, from the first; by default 64, or all of a suite.
    samples
        Number of sampled answers for each puzzle; several need a temperature above 0.
    temperature
        Temperature of the sampled answers.
    top_p
        Share of probability from which sampled tokens are drawn.
    max_tokens
        Maximum length of an answer, in tokens; by default that of the run's training, or 256 for other models.
    tool_calls
        Number of times that an answer may ask the environment's solver; by default as in the run's training.
    stop
        String that ends an answer; may be repeated; by default as in the run's training.
    stop_token_ids
        Token that ends an answer, besides the model's own; may be repeated; by default as in the run's training.
    greedy
        Also take the most likely answer of each puzzle.
    strategy
        Test-time strategy, as NAME or NAME:key=value,...; may be repeated. single, majority and best_of choose among
        the samples; think_twice, sift, budget_forcing and truncation_probe ask again. If any is named, only those are
        printed.
    """

    count: Annotated[int | None, Optional] = None
    samples: int = 4
    temperature: float = 1.0
    top_p: float = 1.0
    max_tokens: Annotated[int | None, Optional] = None
    tool_calls: Annotated[int | None, Optional] = None
    stop: Annotated[tuple[str, ...], Repeated] = ()
    stop_token_ids: Annotated[tuple[int, ...], Repeated] = ()
    greedy: Annotated[bool, Optional] = True
    strategy: Annotated[tuple[str, ...], Repeated] = ()

    def config(self) -> dict[str, Any]:
        """Returns the fields of `stages.evaluate.EvaluateConfig`.

        Raises:
            BadInputError: There is no such strategy, or a setting of it is not `key=value`.
        """
        strategies: dict[str, Any] = {}
        if self.strategy:
            from flows.config.strategies import strategy_settings

            strategies["strategies"] = [strategy_settings(text) for text in self.strategy]
        sampled: dict[str, Any] = {
            "samples_per_prompt": self.samples,
            "temperature": self.temperature,
            "top_p": self.top_p,
        }
        limits = {
            "max_tokens": self.max_tokens,
            "tool_calls": self.tool_calls,
            "stop": self.stop or None,
            "stop_token_ids": self.stop_token_ids or None,
        }
        sampled |= {name: value for name, value in limits.items() if value is not None}
        count = {} if self.count is None else {"puzzles": self.count}
        return {**count, "sampled": sampled, "greedy": self.greedy, **strategies}


STORED, OUTPUT, MACHINE, ANSWERS = Stored(), Output(), Machine(), MeasureOptions()
