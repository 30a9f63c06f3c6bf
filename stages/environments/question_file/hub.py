"""Files of questions on Hugging Face's hub, read by huggingface_hub at one commit.

The address of the hub (HF_ENDPOINT) and the token (HF_TOKEN, or that of `hf auth login`) are found by huggingface_hub;
neither is stored.
"""

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from fnmatch import fnmatchcase
from functools import partial
from typing import Any, BinaryIO, cast

from artifacts.documents.suggestions import did_you_mean, listed
from artifacts.errors import BadInputError, DeerstalkerError
from stages.environments.question_file.config import FORMATS, READABLE, QuestionColumns

_CONVERTED = "refs/convert/parquet"
"""Branch to which the hub converts data sets: CONFIG/SPLIT/NUMBER.parquet."""
_SHOWN = 20
_BLOCK_BYTES = 1 << 20
"""Bytes that are read at once from a Parquet file, of which only some columns are needed; others are streamed."""


def hub_files(
    config: QuestionColumns,
) -> tuple[dict[str, Any], list[tuple[str, Callable[[], AbstractContextManager[BinaryIO]]]]]:
    """Finds the files of a data set, without reading them.

    Returns:
        The data set, its commit and the names of the files, as parts of an identity; and for each file its name and a
        function that opens it.

    Raises:
        BadInputError: There is no such data set, revision, configuration, split or file, or no access to it.
    """
    from huggingface_hub import HfApi, HfFileSystem

    name, revision, pattern = config.on_the_hub
    revision = revision or ("main" if pattern else _CONVERTED)
    with _explained(config.path, revision):
        info = HfApi().dataset_info(name, revision=revision)
    found = sorted(item.rfilename for item in info.siblings or ())
    names = _converted(config, found) if pattern is None else _matching(config.path, pattern, found)

    @contextmanager
    def opened(file: str) -> Generator[BinaryIO]:
        system = HfFileSystem(skip_instance_cache=True)  # another token or address may be set by now
        place, block_bytes = f"datasets/{name}@{info.sha}/{file}", _BLOCK_BYTES if file.endswith(".parquet") else 0
        with _explained(config.path, revision), system.open(place, block_size=block_bytes) as stream:
            yield cast("BinaryIO", stream)

    identity = {"dataset": name, "commit": info.sha, "files": names}
    return identity, [(f"{config.path}, {file}", partial(opened, file)) for file in names]


def _converted(config: QuestionColumns, files: Sequence[str]) -> list[str]:
    """Returns the files of a configuration and a split."""
    configs: dict[str, dict[str, list[str]]] = {}
    for file in files:
        match file.split("/"):
            case [part, split, last] if last.endswith(".parquet"):
                configs.setdefault(part, {}).setdefault(split, []).append(file)
            case _:
                pass
    splits = configs[_named("config", config.config, configs, config.path)]
    return splits[_named("split", config.split, splits, config.path)]


def _named(kind: str, name: str | None, known: Mapping[str, Any], where: str) -> str:
    """Returns the name of a configuration or split; the only one, or `default`, if none is named."""
    if name is None and (len(known) == 1 or "default" in known):
        return "default" if "default" in known else next(iter(known))
    if name is None or name not in known:
        found = f"{len(known)} {kind}s" if name is None else f"no {kind} {name!r}{did_you_mean(name, known)}"
        raise BadInputError(where, found, f"one of: {listed(sorted(known), _SHOWN)}", f"set puzzles.puzzle.{kind}")
    return name


def _matching(where: str, pattern: str, files: Sequence[str]) -> list[str]:
    """Returns the files that match a pattern."""
    if matching := [file for file in files if fnmatchcase(file, pattern)]:
        return matching
    readable = [file for file in files if file.endswith(READABLE)]
    expected = f"one of: {listed(readable, _SHOWN)}" if readable else f"a data set with files {FORMATS}"
    remedy = "name one, or several with *" if readable else "use hub:OWNER/NAME, whose files the hub has converted"
    raise BadInputError(where, f"no file {pattern!r}{did_you_mean(pattern, readable)}", expected, remedy)


@contextmanager
def _explained(where: str, revision: str) -> Generator[None]:
    """Raises the errors of the hub as errors of one line."""
    from huggingface_hub import errors

    try:
        yield
    except DeerstalkerError:
        raise
    except errors.GatedRepoError as error:
        remedy = "accept its conditions on its page, and set HF_TOKEN or use `hf auth login`"
        raise BadInputError(where, "a data set with conditions that were not accepted", "access", remedy) from error
    except errors.RepositoryNotFoundError as error:
        remedy = "check the name; for a private data set set HF_TOKEN or use `hf auth login`"
        raise BadInputError(where, "no such data set, or no access to it", "a data set of the hub", remedy) from error
    except errors.RevisionNotFoundError as error:
        converted = revision == _CONVERTED
        found = "a data set that the hub has not converted to Parquet" if converted else f"no revision {revision!r}"
        remedy = "name its files by hf://datasets/OWNER/NAME/FILE" if converted else "set puzzles.puzzle.revision"
        raise BadInputError(where, found, "a commit, tag or branch", remedy) from error
    except Exception as error:  # of whichever HTTP client huggingface_hub uses
        reason = str(error).strip().partition("\n")[0][:200] or type(error).__name__
        expected, remedy = "an answer of the hub", "check the network and HF_ENDPOINT"
        raise BadInputError(where, f"the hub cannot be read ({reason})", expected, remedy) from error
