"""The installed release of reasoning-gym, which is an optional package."""

from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version

from artifacts.errors import BadInputError

PACKAGE = "reasoning-gym"
EXTRA = "uv sync --extra reasoning-gym, or pip install 'deerstalker[reasoning-gym]'"


@lru_cache(maxsize=1)
def _installed() -> str | None:
    try:
        return version(PACKAGE)
    except PackageNotFoundError:
        return None


def installed_release() -> str:
    """Returns the number of the installed release.

    Raises:
        BadInputError: The package is not installed.
    """
    if (release := _installed()) is None:
        raise BadInputError("environment", f"the package {PACKAGE} is not installed", "its release 0.1.25", EXTRA)
    return release


def check_release(release: str, where: str) -> None:
    """Checks that a release is the installed one.

    Args:
        release: The release that made an item or that a recipe froze.
        where: The item or the task, for the error.

    Raises:
        BadInputError: Another release is installed, or none.
    """
    if (installed := _installed()) != release:
        found = f"{PACKAGE} {installed} is installed" if installed else f"{PACKAGE} is not installed"
        raise BadInputError(where, found, f"{PACKAGE} {release}, which made it", f"pip install {PACKAGE}=={release}")
