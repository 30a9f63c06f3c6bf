"""The configs of environments that generate puzzles of one kind, as a recipe names them."""

from typing import Annotated, Any

from pydantic import Discriminator, Tag

from stages.environments import environment
from stages.environments.reasoning_gym.config import PREFIX, ReasoningGymConfig
from stages.environments.temporal_clue.config import PuzzleConfig
from stages.environments.zebra.config import ZebraConfig

DEFAULT = "temporal_clue"
"""The environment of a config that names none."""


def kind_of(config: Any) -> str:
    """Returns the word that selects the class of a config, or of the table from which it is made."""
    plain = isinstance(config, dict)
    name = config.get("environment", DEFAULT) if plain else getattr(config, "environment", DEFAULT)
    return environment.kind_of(name) if isinstance(name, str) else name  # pydantic refuses other types afterwards


AnyTask = (
    Annotated[PuzzleConfig, Tag("temporal_clue")]
    | Annotated[ZebraConfig, Tag("zebra")]
    | Annotated[ReasoningGymConfig, Tag(PREFIX)]
)
"""A union without its discriminator, so that it can be part of a larger one. A new environment is added here."""
TaskConfig = Annotated[AnyTask, Discriminator(kind_of)]
"""The config of any environment that generates puzzles of one kind; the default is Temporal Clue."""
