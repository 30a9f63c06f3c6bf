"""Loads suites: puzzle sets with a name, on which any model can be measured."""

from pathlib import PurePath
from typing import Self

from pydantic import Field, model_validator

from artifacts.config import Config
from artifacts.errors import BadInputError
from flows.config.recipes import located_beside
from flows.config.settings import load_settings, settings_names
from stages.prepare import PrepareConfig


class Suite(Config):
    """A puzzle set that is only measured on; its puzzles are the test split."""

    title: str = Field(description="What the suite measures, in one line.")
    puzzles: PrepareConfig

    @model_validator(mode="after")
    def _measured_only(self) -> Self:
        if self.puzzles.train or self.puzzles.val or not self.puzzles.test:
            raise ValueError("puzzles.train and puzzles.val must be 0, and puzzles.test at least 1")
        if self.puzzles.overlong == "drop":
            raise ValueError("puzzles.overlong must be 'refuse': all models are measured on the same puzzles")
        return self


def suite_names() -> list[str]:
    """Returns the names of the suites in the package."""
    return settings_names("suites")


def load_suite(name: str | None) -> Suite:
    """Loads a suite by name or by path of a TOML file.

    Args:
        name: The suite; None if the user names neither puzzles nor a suite.

    Raises:
        BadInputError: No suite is named, or there is no such suite; broken TOML, an unknown key, no such file beside
            the suite, or a package of an environment is not installed.
    """
    if name is None:
        raise BadInputError("--puzzles", "missing", "--puzzles, or --suite", f"suites: {', '.join(suite_names())}")
    suite = load_settings(Suite, "suites", name, ())
    return suite.model_copy(update={"puzzles": located_beside(name, suite.puzzles)})


def suite_key(suite: str) -> str:
    """Returns the name of a suite in keys and reports: its file's name without folder and `.toml`."""
    return PurePath(suite).stem if suite.endswith(".toml") else suite
