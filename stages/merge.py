"""The stage that merges checkpoints of one shape into one."""

import json
import os
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from artifacts.address import ArtifactAddress
from artifacts.errors import BadInputError, DeerstalkerError
from artifacts.identity import Identity
from artifacts.local.log_tail import tail_of
from artifacts.reading import Artifact
from artifacts.refs import Checkpoint, Ref
from stages.context import StageContext
from stages.models.exporting.folder import full_folder
from stages.models.merging.config import MergeConfig
from stages.models.merging.same_shape import COMPARED, check_same_shape
from stages.models.source import BAD_INPUT_STATUS
from stages.processes.guarded import GuardedProcess

REVISION = 1
_LOOK_S = 0.1


def merge(
    ctx: StageContext,
    config: MergeConfig,
    models: Sequence[Ref[Checkpoint]],
    base: Ref[Checkpoint] | None = None,
    *,
    out: ArtifactAddress[Checkpoint],
) -> Ref[Checkpoint]:
    """Merges checkpoints tensor by tensor in float32, and publishes the result with the files and types of the base.

    Of a checkpoint with an adapter, full weights are made first, in bf16 like those of every other checkpoint.
    A child process merges, so that this process does not load torch. The facts of the artifact have the shares of
    elements that changed and moved (see `stages.models.merging.folders.merge_folders`), of each tensor and of all.

    Args:
        config: The method.
        models: The models, in the order of summation.
        base: The model that they are compared with; None for `average`, which takes the files of the first model.

    Raises:
        BadInputError: Two models differ in shape or tokenizer (no tensor is read then), two are the same, or one has
            weights that are not finite.
        DeerstalkerError: The child process failed.
    """
    inputs = {**({"base": base} if base else {}), **{f"model_{i}": ref for i, ref in enumerate(models, start=1)}}
    identity = identity_of(config, models, base)
    if published := out.find(identity):
        return published
    _check(ctx, inputs)
    full = ctx.scratch / "merge" / "full"
    folders = {role: full_folder(ctx.local_folder(ref), full / role) for role, ref in inputs.items()}
    attempt = out.attempt(identity)
    with ctx.folder(attempt) as folder:
        facts = _merge_in_child(ctx, config, folders, folder)
    shutil.rmtree(ctx.scratch / "merge", ignore_errors=True)  # a run would keep the full models in it to its end
    first = Artifact.open(ctx.store, next(iter(inputs.values()))).manifest.facts
    return attempt.publish({"licence": first.get("licence"), **_totals(facts), "tensors": facts}, **inputs)


def identity_of(config: MergeConfig, models: Sequence[Ref[Checkpoint]], base: Ref[Checkpoint] | None) -> Identity:
    """Returns the identity of a merge: the settings that have an effect, and the content of all models."""
    roles: dict[str, Ref[Any]] = {f"model_{i}": ref for i, ref in enumerate(models, start=1)}
    return Identity.of("merge", REVISION, config.settings, base=base, **roles)


def _check(ctx: StageContext, inputs: dict[str, Ref[Checkpoint]]) -> None:
    """Refuses models that cannot be merged; only their small files are read from the store."""
    names: dict[str, str] = {}
    for ref in inputs.values():
        if other := names.get(ref.digest):
            raise BadInputError(
                f"the model {ref.key}", f"the same weights as {other}", "different models", "name each model once"
            )
        names[ref.digest] = ref.key
    small: dict[str, Path] = {}
    for role, ref in inputs.items():
        small[ref.key] = folder = ctx.scratch / "merge" / role
        folder.mkdir(parents=True, exist_ok=True)
        artifact = Artifact.open(ctx.store, ref)
        for name in COMPARED:
            (folder / name).write_bytes(artifact.read_bytes(name))
    check_same_shape(small)


def _merge_in_child(
    ctx: StageContext, config: MergeConfig, folders: dict[str, Path], out: Path
) -> dict[str, dict[str, float]]:
    """Runs `stages.models.merging.folders`, reports its progress, and returns the facts of each tensor."""
    work = ctx.scratch / "merge"
    job, facts, log = work / "job.json", work / "facts.json", work / "log.txt"
    paths = {role: str(folder) for role, folder in folders.items()}
    described = {
        "config": config.model_dump(include=set(MergeConfig.model_fields)), "base": paths.pop("base", None),
        "models": list(paths.values()), "out": str(out), "facts": str(facts),
    }  # fmt: skip
    job.write_text(json.dumps(described))
    command = [sys.executable, "-P", "-W", "ignore", "-m", "stages.models.merging.folders", str(job)]
    with log.open("wb") as stream:
        child = GuardedProcess(command, work / "child", stream, os.environ)
        try:
            while (code := child.exit_code()) is None:
                _report(ctx, log)
                time.sleep(_LOOK_S)
        finally:
            child.kill()
    if code:
        output = log.read_text(errors="replace")
        if code == BAD_INPUT_STATUS:
            raise BadInputError(*json.loads(output.splitlines()[-1]))
        raise DeerstalkerError(
            "the merge", f"its process ended with status {code}", "a merged checkpoint", tail=tail_of(output)
        )
    return json.loads(facts.read_text())


def _report(ctx: StageContext, log: Path) -> None:
    match log.read_text(errors="replace").rpartition("\n")[0].rpartition("\n")[2].split():
        case [done, total] if done.isdigit() and total.isdigit():
            ctx.progress("merge", int(done), int(total), {})
        case _:
            pass


def _totals(facts: dict[str, dict[str, float]]) -> dict[str, float]:
    """Returns the facts of all tensors together; `copied` is the number of tensors that a fusion takes whole."""
    elements = sum(tensor["elements"] for tensor in facts.values())
    shares = [name for name in ("changed", "moved", "taken") if all(name in tensor for tensor in facts.values())]
    totals = {name: sum(tensor[name] * tensor["elements"] for tensor in facts.values()) / elements for name in shares}
    copied = sum(tensor.get("threshold") == 0 and tensor["changed"] > 0 for tensor in facts.values())
    return {"elements": elements, **totals, **({"copied": copied} if "taken" in totals else {})}
