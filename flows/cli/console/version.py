"""The version of this package, as `pyproject.toml` states it and the installation records it."""

DISTRIBUTION = "deerstalker"


def version() -> str:
    """The version, `0.1.0`.

    Raises:
        DeerstalkerError: The package runs without being installed, so that nothing records its version.
    """
    from importlib import metadata

    from artifacts.errors import DeerstalkerError

    try:
        return metadata.version(DISTRIBUTION)
    except metadata.PackageNotFoundError as error:
        raise DeerstalkerError(
            DISTRIBUTION, "not installed", "an installed package", "`uv sync` installs it"
        ) from error
