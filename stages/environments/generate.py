"""Generates a puzzle of the environment that a config names.

Processes of a pool import this module before they generate, so it does not import Polars: 0.1 s instead of 0.8 s.
"""

import hashlib
from typing import Annotated

from pydantic import Discriminator, Tag

from stages.environments import environment
from stages.environments.capabilities import Generates, needs
from stages.environments.config import GeneratorConfig
from stages.environments.maths.config import MathsConfig
from stages.environments.mixture import MixtureConfig
from stages.environments.puzzle import Puzzle
from stages.environments.question_file.config import QuestionFileConfig
from stages.environments.tasks import AnyTask, kind_of
from stages.environments.temporal_clue.config import TIERS, PuzzleConfig
from stages.environments.user_code.config import FunctionConfig, PackageConfig, VerifiersConfig
from stages.environments.zebra.config import ZebraConfig

__all__ = [
    "TIERS", "AnyPuzzleConfig", "GeneratedPuzzleConfig", "MathsConfig", "PuzzleConfig", "QuestionFileConfig",
    "ZebraConfig", "generate", "generate_nth",
]  # fmt: skip


_Generated = AnyTask | Annotated[MixtureConfig, Tag("mixture")]
GeneratedPuzzleConfig = Annotated[_Generated, Discriminator(kind_of)]
"""The config of any environment that generates puzzles, or of a mixture of them; the default is Temporal Clue."""
_Listed = (
    Annotated[QuestionFileConfig, Tag("file")]
    | Annotated[MathsConfig, Tag("maths")]
    | Annotated[FunctionConfig, Tag(environment.FUNCTION)]
    | Annotated[PackageConfig, Tag(environment.PACKAGE)]
    | Annotated[VerifiersConfig, Tag(environment.VERIFIERS)]
)
"""The config of any environment that lists its items, with the word that `kind_of` returns. A new one is added here."""
AnyPuzzleConfig = Annotated[_Generated | _Listed, Discriminator(kind_of)]
"""The config of any environment. Its field `environment` selects the class; the default is Temporal Clue."""


def generate(config: environment.Named, seed: int) -> Puzzle:
    """Returns a puzzle, the same for (config, seed) on every machine.

    A logic puzzle has exactly one solution and a minimal set of clues. Arguments and result can be pickled, so that
    many puzzles can be generated in several processes.

    Args:
        config: Environment and difficulty; `TIERS` has the named difficulties of Temporal Clue (`reduced`, `easy`,
            `small`, `large`, `full`).
        seed: Any integer. With a small config, different seeds may give the same puzzle: compare `Puzzle.digest`.

    Raises:
        BadInputError: The environment lists its items and cannot generate them.
    """
    remedy = "name it in a recipe, below [puzzles.puzzle], and train with it"
    return needs(environment.of(config), Generates, "environment", remedy).generate(config, seed)


def generate_nth(config: environment.Named, seed: int, number: int) -> Puzzle:
    """Returns puzzle `number` of the endless stream that a config and a seed determine."""
    chosen = config.nth(number) if isinstance(config, GeneratorConfig) else config
    return generate(chosen, int.from_bytes(hashlib.sha256(f"{seed}/{number}".encode()).digest()[:6], "big"))
