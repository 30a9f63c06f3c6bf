"""Reads the version of the installed package, which `pyproject.toml` states."""

DISTRIBUTION = "deerstalker"


def version() -> str:
    """Returns the version, such as `0.1.0`.

    Raises:
        DeerstalkerError: The package is not installed, so its version is unknown.
    """
    from importlib import metadata

    from artifacts.errors import DeerstalkerError

    try:
        return metadata.version(DISTRIBUTION)
    except metadata.PackageNotFoundError as error:
        raise DeerstalkerError(
            DISTRIBUTION, "not installed", "an installed package", "`uv sync` installs it"
        ) from error
