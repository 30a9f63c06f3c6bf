"""Child process: merges checkpoint folders tensor by tensor.

``python -P -m stages.models.merging.folders JOB`` reads a `MergeJob` as JSON, writes the merged folder, and writes the
facts of each tensor beside the job. It prints the number of tensors done and of all, a line for each tensor. After bad
input the exit status is 3, and the last line has the parts of the BadInputError as JSON.
"""

import json
import shutil
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel
from safetensors import safe_open
from torch import Tensor

from artifacts.errors import BadInputError
from stages.models.merging import methods
from stages.models.merging.config import MergeConfig
from stages.models.source import BAD_INPUT_STATUS
from stages.models.spellings import write_both_spellings
from stages.models.tensors import EMBEDDING, HEAD, check_weights


class MergeJob(BaseModel):
    """Folders to merge.

    Attributes:
        config: Method and its settings.
        models: The models' folders.
        base: Folder of the base; None for a method without one.
        out: Empty folder for the merged model; it gets the other files of `base` or else of the first model.
        facts: File for the facts of each tensor.
    """

    config: MergeConfig
    models: list[Path]
    base: Path | None
    out: Path
    facts: Path


class _Folder:
    """The tensors of a checkpoint folder, read one at a time."""

    def __init__(self, folder: Path, files: ExitStack) -> None:
        self.path, self.stored, self._files = folder, check_weights(folder), files
        self._open: dict[Path, Any] = {}

    def read(self, name: str) -> Tensor | None:
        """Returns a tensor; None if it is not stored. A head that is tied to the embedding may not be stored."""
        place = self.stored.get(name) or (self.stored[EMBEDDING] if name == HEAD else None)
        if place is None:
            return None
        if place.file not in self._open:
            self._open[place.file] = self._files.enter_context(safe_open(place.file, framework="pt"))
        tensor = self._open[place.file].get_tensor(name if name in self.stored else EMBEDDING)
        if not bool(torch.isfinite(tensor).all()):
            raise BadInputError(
                f"{place.file}: {name}", "values that are not finite", "finite weights", "choose another checkpoint"
            )
        return tensor


def merge_folders(job: MergeJob) -> dict[str, dict[str, float]]:
    """Writes the merged folder with the files, names and types of the first one, and returns facts of each tensor.

    The first folder is the base, or else the first model. The facts are `elements`, their number; `changed`, the share
    of elements in which some model differs from the first folder; `moved`, the share in which the result differs from
    it; and with `arcee_fusion` also `taken`, `threshold` and `kl` (see `methods.Fused`).

    Raises:
        BadInputError: A folder's tensors are not those of its config.json, or not finite.
    """
    facts: dict[str, dict[str, float]] = {}
    with ExitStack() as files:
        folders = [_Folder(path, files) for path in [*([job.base] if job.base else []), *job.models]]
        first = folders[0]
        total = len(first.stored)
        by_file = {tensor.file for tensor in first.stored.values()}
        for file in sorted(first.path.iterdir()):
            if file.is_file() and file not in by_file:
                shutil.copyfile(file, job.out / file.name)
        write_both_spellings(job.out)
        for file in sorted(by_file):
            here = [(name, tensor) for name, tensor in first.stored.items() if tensor.file == file]
            here.sort(key=lambda item: item[1].span)
            with file.open("rb") as source, (job.out / file.name).open("wb") as target:
                target.write(source.read(here[0][1].span[0]))
                for name, stored in here:
                    tensors = [tensor for folder in folders if (tensor := folder.read(name)) is not None]
                    merged, facts[name] = _merged(job.config, tensors)
                    target.write(merged.contiguous().view(torch.uint8).numpy().tobytes())
                    print(len(facts), total, flush=True)
                    assert target.tell() == stored.span[1]
    return facts


def _merged(config: MergeConfig, tensors: list[Tensor]) -> tuple[Tensor, dict[str, float]]:
    """Returns the merge of a tensor in the type of the first one, with its facts."""
    first, *others = tensors
    facts: dict[str, float] = {}
    match config.method:
        case _ if not others:  # a computed constant that the other models do not store
            result = first
        case "arcee_fusion":
            fused = methods.arcee_fusion(first, others[0])
            result = fused.tensor
            facts = {"taken": fused.taken, "threshold": fused.threshold, "kl": fused.kl}
        case "average":
            result = methods.average(tensors)
        case "task_arithmetic":
            result = methods.task_arithmetic(first, others, config.weight)
        case "ties":
            result = methods.ties(first, others, config.weight, config.density)
    changed = torch.zeros(first.shape, dtype=torch.bool)
    for other in others:
        changed |= other != first
    result = result.to(first.dtype)
    shares = {"changed": changed, "moved": result != first}
    return result, {
        "elements": first.numel(), **{name: float(where.double().mean()) for name, where in shares.items()}, **facts
    }  # fmt: skip


if __name__ == "__main__":
    chosen = MergeJob.model_validate_json(Path(sys.argv[1]).read_text())
    try:
        chosen.facts.write_text(json.dumps(merge_folders(chosen)))
    except BadInputError as error:
        print(json.dumps([error.where, error.found, error.expected, error.remedy]), flush=True)
        sys.exit(BAD_INPUT_STATUS)
