"""Writes a checkpoint as a folder that transformers, PEFT and vLLM read."""

import fcntl
import os
import shutil
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from filecmp import cmp
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal

import numpy as np

from artifacts.errors import BadInputError
from artifacts.local.input_files import LARGEST_WEIGHTS, copy_input
from stages.models.adapter_config import ADAPTER_CONFIG
from stages.models.adapters import ADAPTER_WEIGHTS, base_of, has_adapter, read_adapter_config
from stages.models.exporting.weights import Floats, full_tensors
from stages.models.json_file import read_json, write_json
from stages.models.shape import read_shape
from stages.models.source import SETTINGS_FILES, TOKENIZER_FILES, copy_files
from stages.models.spellings import state_dtype, write_both_spellings
from stages.models.tensor_file import write_floats
from stages.models.tensors import WEIGHTS, check_weights, stored_tensors
from stages.models.value_head import VALUE_HEAD

Dtype = Literal["bf16", "fp16"]
CARD = "README.md"
MODEL_FILES = (
    "*.safetensors", "*.safetensors.index.json", "pytorch_model*", "*.gguf", ADAPTER_CONFIG, *SETTINGS_FILES,
    *TOKENIZER_FILES,
)  # fmt: skip
"""Patterns of all files that a loader takes for the model; those of another export would hide or mix with ours."""
_DRAFT = ".deerstalker-draft"
_STORED_AS = {"bf16": ("BF16", "bfloat16"), "fp16": ("F16", "float16")}
_LARGEST_HALF = 65504.0


def check_empty(out: Path, ours: Sequence[str] = ()) -> None:
    """Checks that a folder can be written: it does not exist or is empty.

    Args:
        out: The folder.
        ours: Patterns of files that do not count.

    Raises:
        BadInputError: It holds other files, is not a folder, or is a broken link.
    """
    if out.exists() or out.is_symlink():
        if not out.is_dir():
            raise _taken(out, "a file")
        if not all(any(fnmatchcase(path.name, pattern) for pattern in ours) for path in out.iterdir()):
            raise _taken(out, "a folder that is not empty")


def check_target(out: Path) -> None:
    """Checks that `draft_of` can write a folder. What a killed export left is allowed, and compared at the end.

    Raises:
        BadInputError: It holds files that no export writes, is not a folder, or is a broken link.
    """
    check_empty(out, (_DRAFT, CARD, *MODEL_FILES))


def _taken(out: Path, found: str) -> BadInputError:
    return BadInputError(str(out), found, "a new or empty folder", "name another one, or remove what is there")


@contextmanager
def draft_of(out: Path) -> Generator[Path]:
    """Yields a folder whose files move to `out` when the block has ended, those by which programs find a model last.

    An export that is interrupted leaves nothing that could be loaded, and the next one begins again. One that was
    killed later left files that are the same now. The draft is in `out` and does not replace it, because that may be a
    mount, a link or the current folder.

    Raises:
        BadInputError: `out` holds other files, or another export is writing it.
    """
    check_target(out)
    out.mkdir(parents=True, exist_ok=True)
    draft, lock = out / _DRAFT, os.open(out, os.O_RDONLY)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise BadInputError(str(out), "another export is writing it", "a folder of its own") from error
        except OSError:  # some network file systems lock no folders
            pass
        if draft.exists():
            shutil.rmtree(draft)
        draft.mkdir()
        try:
            yield draft
            for path in out.iterdir():
                same = draft / path.name
                if path != draft and not (same.is_file() and path.is_file() and cmp(path, same, shallow=False)):
                    raise _taken(out, f"a folder that is not empty: {path.name} is another one")
            for path in sorted(draft.iterdir(), key=lambda path: path.name in ("config.json", ADAPTER_CONFIG)):
                path.rename(out / path.name)
        finally:
            shutil.rmtree(draft, ignore_errors=True)
    finally:
        os.close(lock)


def export_folder(
    source: Path, out: Path, card: str, *, merge: bool, dtype: Dtype, base: str | None, revision: str | None = None
) -> None:
    """Writes a checkpoint, its tokenizer with chat template, its generation config and a model card.

    Args:
        source: Checkpoint folder; one with an adapter has the link `base`.
        out: Folder to make, new or empty.
        card: Text of the model card; empty for none.
        merge: Write full weights also of a checkpoint with an adapter.
        dtype: Type of full weights; an adapter keeps its own.
        base: Id of an adapter's base on the hub; None if it has none.
        revision: Commit, tag or branch of that base; None for the newest.

    Raises:
        BadInputError: The folder is not empty, the checkpoint is damaged or a critic, or a weight is too large for
            float16.
    """
    check_empty(out)
    check_weights(source)
    if read_shape(source).value_head is not None:
        raise BadInputError(str(source), f"a critic ({VALUE_HEAD})", "a language model", "export its policy")
    out.mkdir(parents=True, exist_ok=True)
    copy_files(source, out, (*SETTINGS_FILES, *TOKENIZER_FILES))
    _write_generation_config(out)
    if has_adapter(source) and not merge:
        copy_input(source / ADAPTER_WEIGHTS, out / ADAPTER_WEIGHTS, "a LoRA adapter", most_bytes=LARGEST_WEIGHTS)
        replace(read_adapter_config(source), base=base, revision=revision).write(out)
        (out / "config.json").unlink()  # with one, transformers would look for full weights here
    else:
        stored, name = _STORED_AS[dtype]
        shapes = {tensor: entry.shape for tensor, entry in stored_tensors(base_of(source)).items()}
        write_floats(out / WEIGHTS, shapes, _checked(full_tensors(source), dtype), stored)
        state_dtype(out, name)
    write_both_spellings(out)
    if card:
        (out / CARD).write_text(card, encoding="utf-8")


def full_folder(source: Path, out: Path) -> Path:
    """Returns a folder with full weights: a checkpoint folder itself, or `out`, where an adapter is merged in bf16."""
    if not has_adapter(source):
        return source
    shutil.rmtree(out, ignore_errors=True)
    export_folder(source, out, "", merge=True, dtype="bf16", base=None)
    return out


def _checked(tensors: Iterator[tuple[str, Floats]], dtype: Dtype) -> Iterator[tuple[str, Floats]]:
    for name, values in tensors:
        largest = float(np.abs(values).max(initial=0.0))
        if not np.isfinite(largest) or (dtype == "fp16" and largest > _LARGEST_HALF):
            raise BadInputError(f"--dtype {dtype}", f"a weight of {largest:g} in {name}", "weights in its range")
        yield name, values


def _write_generation_config(out: Path) -> None:
    path = out / "generation_config.json"
    if path.is_file():
        return
    config = read_json(out / "config.json")
    tokens = ("bos_token_id", "eos_token_id", "pad_token_id")
    settings: dict[str, Any] = {name: config[name] for name in tokens if config.get(name) is not None}
    write_json(path, {"do_sample": True, **settings})
