"""Settings of environments that a user writes. Quick to import: no library of tables."""

import hashlib
import importlib.metadata
import importlib.util
import json
from pathlib import Path
from typing import ClassVar, Self, TypeVar

from pydantic import Field, JsonValue, model_validator

from artifacts.documents.suggestions import did_you_mean
from artifacts.errors import BadInputError
from artifacts.local.input_files import with_home
from stages.environments.config import SourceConfig
from stages.processes.user_file import changed, digest_of, note_file, noted_digest

ENTRY_POINTS = "deerstalker.environments"
"""Entry point group of packages with environments."""
_LIMIT_S = Field(
    default=1.0,
    gt=0.0,
    le=3600.0,
    description="CPU seconds within which a completion is graded, and ten times as many wall-clock seconds. A "
    "completion whose grading takes longer gets 0.",
)


class FunctionConfig(SourceConfig):
    """An object in a Python file: methods `items(count, seed)` and `grade(completion, item)`, or `reset` and `step`.

    The arguments are given by name, except that of `step`. A completion is graded without its thought; see
    `puzzles.thinking`.
    """

    LOCATIONS: ClassVar[tuple[str, ...]] = ("folder",)

    environment: str = Field(
        pattern=r"\.py:[A-Za-z_][A-Za-z0-9_]*$",
        examples=["FILE.py:OBJECT"],
        description="FILE.py:OBJECT; the path of the file is relative to the recipe. The file is read alone: it can "
        "import installed packages, but no file beside it.",
    )
    folder: str | None = Field(default=None, description="Folder of the recipe; filled in when the recipe is loaded.")
    sha256: str | None = Field(
        default=None, description="Digest of the file, which decides whether a set is made again; filled in likewise."
    )
    limit_s: float = _LIMIT_S

    @model_validator(mode="after")
    def _note_the_file(self) -> Self:
        note_file(self.sha256, self.location)
        return self

    @property
    def location(self) -> str | None:
        """The file."""
        return str(Path(self.folder or ".") / with_home(self.environment.rpartition(":")[0]))

    @property
    def environment_name(self) -> str:
        """The name that is stored with each item; it holds all that grading depends on.

        It names the file without its folder, so that sets of two machines are equal; `file_of` finds the file again.
        """
        file, _, target = self.environment.rpartition(":")
        return f"{Path(file).name}:{target}@{self.sha256}@{self.limit_s:g}"

    def located(self, folder: Path) -> Self:
        """Returns the same settings with the folder and the digest of the file.

        Raises:
            BadInputError: There is no such file, or its digest differs from the one in the recipe.
        """
        config = self if self.folder is not None else self.model_copy(update={"folder": str(folder.resolve())})
        name = self.environment.rpartition(":")[0]
        digest = noted_digest(Path(config.location or ""), self.sha256, name, "the file of the environment")
        return config.model_copy(update={"sha256": digest})


class PackageConfig(SourceConfig):
    """An environment of an installed package, by the name of its entry point (see `ENTRY_POINTS`)."""

    environment: str = Field(min_length=1, max_length=200, examples=["PACKAGE"], description="Name of the entry point.")
    level: str | None = Field(default=None, description="One of its levels of difficulty; null: its own default.")
    version: str | None = Field(
        default=None,
        description="Name and version of the package, which decide whether a set is made again; filled in when the "
        "recipe is loaded.",
    )
    limit_s: float = _LIMIT_S

    @property
    def environment_name(self) -> str:
        """The name that is stored with each item; it holds all that grading depends on."""
        return f"package:{self.environment}@{self.version}@{self.limit_s:g}"

    def located(self, folder: Path) -> Self:
        """Returns the same settings with the version of the package; the folder has no effect."""
        version = version_of(entry_point(self.environment))
        return _of_version(self, version, f"the package of the environment '{self.environment}'")


class VerifiersConfig(SourceConfig):
    """An environment of the package verifiers, which the extra `verifiers` installs.

    Its rubric must need no other model, and its completions no tools. Accuracy is the rubric's reward divided by the
    sum of its positive weights; a reward below 0 counts as 0.
    """

    environment: str = Field(
        pattern=r"^verifiers:[A-Za-z0-9][A-Za-z0-9_./-]*$",
        max_length=200,
        examples=["verifiers:NAME"],
        description="`verifiers:` and the name that `verifiers.load_environment` takes; its package is installed.",
    )
    arguments: dict[str, JsonValue] = Field(
        default={}, description="Arguments of the environment's `load_environment`."
    )
    version: str | None = Field(
        default=None,
        description="Versions of the environment's package and of verifiers, which decide whether a set is made again; "
        "filled in when the recipe is loaded.",
    )
    limit_s: float = _LIMIT_S

    @property
    def name(self) -> str:
        """The name of the environment."""
        return self.environment.partition(":")[2]

    @property
    def environment_name(self) -> str:
        """The name that is stored with each item; it holds all that grading depends on."""
        arguments = f"@{json.dumps(self.arguments, sort_keys=True)}" if self.arguments else ""
        return f"verifiers:{self.name}@{self.version}@{self.limit_s:g}{arguments}"

    def located(self, folder: Path) -> Self:
        """Returns the same settings with the versions of the packages; the folder has no effect."""
        return _of_version(self, verifiers_version(self.name), f"the environment '{self.environment}'")


InstalledT = TypeVar("InstalledT", PackageConfig, VerifiersConfig)


def _of_version(config: InstalledT, version: str, what: str) -> InstalledT:
    """Returns the same settings with the version that is installed now.

    Raises:
        BadInputError: The recipe records another one.
    """
    if config.version not in (None, version):
        raise changed(what, str(config.version), version)
    return config.model_copy(update={"version": version})


def verifiers_version(name: str) -> str:
    """Returns the versions on which an environment of verifiers depends, such as `wordle==0.1+verifiers.0.2.0`.

    The digest of its code stands in place of the version of a module that no package installs.

    Raises:
        BadInputError: verifiers or the module is not installed.
    """
    where, module = f"verifiers:{name}", name.replace("-", "_").rpartition("/")[2]
    try:
        release = importlib.metadata.version("verifiers")
    except importlib.metadata.PackageNotFoundError as error:
        remedy = "uv sync --extra verifiers, or pip install 'deerstalker[verifiers]'"
        raise BadInputError(where, "the package verifiers is not installed", "its release 0.2", remedy) from error
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError):  # the package around a dotted name is missing, or the name is empty
        spec = None
    if spec is None:
        expected = f"an installed module '{module}' with load_environment"
        raise BadInputError(where, "no such module", expected, "install the environment's package")
    distributions = importlib.metadata.packages_distributions().get(module, [])
    installed_as = _version(importlib.metadata.distribution(distributions[0]), module) if distributions else ""
    return f"{installed_as or _code_digest(module)}+verifiers.{release}"


def installed() -> dict[str, importlib.metadata.EntryPoint]:
    """Returns the entry points of installed environments by name."""
    return {item.name: item for item in importlib.metadata.entry_points(group=ENTRY_POINTS)}


def entry_point(name: str) -> importlib.metadata.EntryPoint:
    """Returns the entry point of a name.

    Raises:
        BadInputError: No installed package has it.
    """
    known = installed()
    if name not in known:
        raise BadInputError(
            "environment",
            f"{name[:80]!r}{did_you_mean(name, known)}",
            f"an installed package with this entry point in the group {ENTRY_POINTS}",
            "install the package; `deerstalker environments` lists the installed ones",
        )
    return known[name]


def version_of(point: importlib.metadata.EntryPoint) -> str:
    """Returns name and version of the package of an entry point, such as `countdown-tasks==0.1`.

    An editable install keeps its version when its code changes, so the digest of its code is appended.
    """
    return "unknown" if point.dist is None else _version(point.dist, point.module)


def _version(package: importlib.metadata.Distribution, module: str) -> str:
    version = f"{package.name}=={package.version}"
    origin = json.loads(package.read_text("direct_url.json") or "{}")
    editable = origin.get("dir_info", {}).get("editable", False)
    return f"{version}+editable.{_code_digest(module)}" if editable else version


def _code_digest(module: str) -> str:
    """Returns 16 hex digits of a digest of the Python files of a module's top-level package, names included."""
    spec = importlib.util.find_spec(module.partition(".")[0])
    if spec is None:  # loading it fails with the reason
        return "missing"
    digest = hashlib.sha256()
    for folder in spec.submodule_search_locations or []:
        for file in sorted(Path(folder).rglob("*.py")):
            digest.update(f"{file.relative_to(folder)}\0{digest_of(file)}\n".encode())
    if not spec.submodule_search_locations and spec.origin is not None:
        digest.update(digest_of(Path(spec.origin)).encode())
    return digest.hexdigest()[:16]
