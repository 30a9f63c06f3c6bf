"""Base classes of the settings of environments. It does not import Polars, so it loads fast."""

from abc import abstractmethod
from pathlib import Path
from typing import Any, ClassVar, Self

from artifacts.config import Config


class GeneratorConfig(Config):
    """Settings of an environment whose puzzles are generated, each from a seed of its own."""

    @property
    def tasks(self) -> tuple[Any, ...]:
        """The configs of the environments that a mixture consists of; of any other config, itself."""
        return (self,)

    def nth(self, number: int) -> Any:
        """Returns the config that generates puzzle `number` of a stream, counted from 0."""
        return self


class SourceConfig(Config):
    """Settings of an environment that lists its items, such as the questions of a file.

    Attributes:
        LOCATIONS: Names of the settings that say where the items are. They are not part of identities; the content is.
    """

    LOCATIONS: ClassVar[tuple[str, ...]] = ()

    @property
    @abstractmethod
    def environment_name(self) -> str:
        """The name that is stored with each item; it holds all that the grading of stored items depends on."""

    @property
    def location(self) -> str | None:
        """Path or URL of the file from which the items come; None if they come from an installed package."""
        return None

    def located(self, folder: Path) -> Self:
        """Returns the settings with the facts that loading a recipe must record, such as the version of code.

        Args:
            folder: Folder of the recipe.
        """
        return self
