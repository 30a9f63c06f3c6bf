"""Checks that checkpoints can be merged, from their small files."""

import hashlib
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from artifacts.errors import BadInputError
from artifacts.local.input_files import LARGEST_TOKENIZER, read_input
from stages.models.shape import read_shape

COMPARED = ("config.json", "tokenizer.json")
"""Files that must agree: the shape that `config.json` states, and all of `tokenizer.json`."""


def check_same_shape(folders: Mapping[str, Path]) -> None:
    """Checks that models have one shape and one tokenizer. Only the files `COMPARED` are read.

    Args:
        folders: Folders with these files, by name of the model for error messages; the first is compared with the rest.

    Raises:
        BadInputError: Two models differ, or a file is missing or broken.
    """
    (first, folder), *others = folders.items()
    shape, tokenizer = asdict(read_shape(folder)), _digest(folder)
    for name, other in others:
        for setting, value in asdict(read_shape(other)).items():
            if value != shape[setting]:
                raise BadInputError(
                    f"the model {name}", f"{setting} {value}", f"{shape[setting]}, as in {first}",
                    "merge models that were trained from the same one",
                )  # fmt: skip
        if _digest(other) != tokenizer:
            raise BadInputError(
                f"the model {name}", "another tokenizer.json", f"that of {first}",
                "merge models that were trained from the same one",
            )  # fmt: skip


def _digest(folder: Path) -> str:
    content = read_input(folder / "tokenizer.json", "the model's tokenizer", most_bytes=LARGEST_TOKENIZER)
    return hashlib.sha256(content).hexdigest()
