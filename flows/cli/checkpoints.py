"""`deerstalker merge` and `deerstalker export`: what is made from checkpoints."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from artifacts.errors import BadInputError, DeerstalkerError
from artifacts.layout import RunLayout
from artifacts.refs import Checkpoint, Ref
from artifacts.store.store import Store
from flows.cli.console.options import MACHINE, STORED, Flag, Machine, Optional, Repeated, Stored
from flows.cli.console.output import print_json, print_line, terminal
from flows.cli.console.prefect_session import prefect_session

if TYPE_CHECKING:
    from huggingface_hub import HfApi

_SHOWN = 12
_HUB = "hub:"


def merge(
    *,
    model: Annotated[tuple[str, ...], Repeated],
    base: Annotated[str | None, Optional] = None,
    method: Literal["arcee_fusion", "average", "task_arithmetic", "ties"] = "arcee_fusion",
    weight: float = 1.0,
    density: float = 0.5,
    options: Machine = MACHINE,
) -> None:
    """Runs the merge flow and prints the key of the merged checkpoint, and the tensors that moved most.

    Args:
        model: A model: a run (its promoted checkpoint), RUN@ITERATION or a checkpoint's key; may be repeated.
        base: The model that the others are compared with, named in the same way; none for average.
        method: The method.
        weight: Factor of the differences from the base (task_arithmetic) or of their mean (ties).
        density: Share of each difference that ties keeps: its largest elements.
    """
    settings = {
        "models": list(model), "base": base, "method": method, "weight": weight, "density": density,
    }  # fmt: skip
    store = Store.open(options.store)
    with prefect_session(store, options) as running:
        from flows.config.recipes import load_profile, validate
        from flows.lookup.checkpoints import published_checkpoint
        from flows.merging import MergeRequest, merge_checkpoints
        from stages.models.merging.config import MergedModel

        source = validate(MergedModel, settings, "merge")
        load_profile(options.profile, options.set_profile)
        for name in (*source.models, *([source.base] if source.base else [])):
            published_checkpoint(name, store)
        with running():
            result = merge_checkpoints(MergeRequest(model=source, **options.request()))
    if options.json:
        print_json(result.model_dump(mode="json"))
        return
    from flows.report.summary import figures_table

    facts = result.facts
    tensors = sorted(facts["tensors"].items(), key=lambda item: -item[1]["moved"])
    rows = [[name, *_cells(tensor)] for name, tensor in [("all", facts), *tensors[:_SHOWN]]]
    console = terminal()
    console.print(figures_table(f"merged by {method}: shares of elements", ["elements", "changed", "moved"], rows))
    if facts.get("copied"):
        console.print(
            f"{facts['copied']} tensors were taken whole: most of their elements are equal in both models, so that the "
            "threshold is 0",
            soft_wrap=True,
        )
    console.print(f"checkpoint: {result.checkpoint['key']}", soft_wrap=True)


def _cells(facts: dict[str, float]) -> list[str]:
    return [f"{facts['elements']:.0f}", f"{facts['changed']:.1%}", f"{facts['moved']:.1%}"]


def export(
    checkpoint: str,
    target: str,
    /,
    *,
    merge: Flag = False,
    dtype: Literal["bf16", "fp16"] = "bf16",
    gguf: Flag = False,
    options: Stored = STORED,
) -> None:
    """Writes a checkpoint of the store as a folder, or pushes it to the hub, and prints where it is.

    Args:
        checkpoint: A run (its promoted checkpoint), RUN@ITERATION or a checkpoint's key.
        target: A new or empty folder, or one with this very export; or hub:OWNER/NAME, a repository of the Hugging Face
            hub, which is made private if it is new; a model in it is replaced. The token is the one of `hf auth login`
            or HF_TOKEN.
        merge: Add the adapter of a LoRA run into full weights; otherwise the folder is a PEFT adapter.
        dtype: Type of full weights.
        gguf: Also write model.gguf, for llama.cpp.
    """
    store = Store.open(options.store, writable=False)
    from flows.lookup.checkpoints import published_checkpoint
    from stages.models.exporting.folder import check_target
    from stages.processes.scratch import scratch_folder

    ref = published_checkpoint(checkpoint, store)
    on_hub = target.startswith(_HUB)
    hub = _hub(target.removeprefix(_HUB)) if on_hub else None
    if hub is None:
        check_target(Path(target))
    with scratch_folder() as scratch:
        out = scratch / "model" if hub else Path(target)
        card = _promoted_card(ref, RunLayout.of(ref.key) or _run_named(checkpoint), store)
        files = _write(ref, card, store, out, scratch, merge=merge, dtype=dtype, gguf=gguf)
        place = str(out.resolve()) if hub is None else _push(hub, target.removeprefix(_HUB), out)
    if options.json:
        print_json({"checkpoint": ref.as_json(), "place": place, "files": files})
        return
    print_line(f"{place}: {', '.join(files)}")


def _run_named(checkpoint: str) -> RunLayout | None:
    """Returns the run in a checkpoint's name; None if the name is a key."""
    return None if "/" in checkpoint else RunLayout(checkpoint.partition("@")[0])


def _write(
    ref: Ref[Checkpoint],
    promoted: str | None,
    store: Store,
    out: Path,
    scratch: Path,
    *,
    merge: bool,
    dtype: Literal["bf16", "fp16"],
    gguf: bool,
) -> list[str]:
    """Writes the folder and returns the names of its files."""
    from stages.models.adapters import has_adapter
    from stages.models.exporting.folder import draft_of, export_folder
    from stages.models.exporting.gguf_file import check_gguf, write_gguf
    from stages.models.stored import local_artifact
    from stages.promotion.model_card import exported_card

    folder = local_artifact(store, ref, scratch / "downloads")[0]
    adapted = has_adapter(folder) and not merge
    if adapted and (gguf or dtype != "bf16"):
        asked = "--gguf" if gguf else f"--dtype {dtype}"
        raise BadInputError(asked, "a checkpoint with a LoRA adapter", "full weights", "add --merge")
    if gguf:
        check_gguf(folder)
    card = exported_card(ref, store, promoted, adapter=adapted)
    with draft_of(out) as draft:
        export_folder(folder, draft, card.text, merge=merge, dtype=dtype, base=card.base, revision=card.revision)
        if gguf:
            write_gguf(draft, dtype)
    return sorted(path.name for path in out.iterdir())


def _promoted_card(ref: Ref[Checkpoint], layout: RunLayout | None, store: Store) -> str | None:
    """Returns the model card of a checkpoint that a run has promoted; None for any other."""
    from stages.promotion.promoted import read_promoted

    promoted = read_promoted(store, layout.promoted) if layout else None
    if promoted is None or promoted.checkpoint != ref:
        return None
    return store.read_bytes(promoted.model_card).decode()


def _hub(name: str) -> "HfApi":
    """Returns the hub's client with the user's token, before anything is written.

    Raises:
        BadInputError: The name is not a repository's, or there is no token.
    """
    from huggingface_hub import HfApi, get_token
    from huggingface_hub.utils import HFValidationError, validate_repo_id

    try:
        validate_repo_id(name)
    except HFValidationError as error:
        raise BadInputError(f"{_HUB}{name}", str(error).splitlines()[0], "hub:OWNER/NAME") from error
    if get_token() is None:
        raise BadInputError(
            f"{_HUB}{name}", "no token of the hub", "one that may write", "run `hf auth login`, or set HF_TOKEN"
        )
    return HfApi()


def _push(hub: "HfApi", name: str, folder: Path) -> str:
    """Uploads a folder as one commit, which removes the model that is there, and returns its address.

    Raises:
        DeerstalkerError: The hub refused it or could not be reached.
    """
    from stages.models.exporting.folder import MODEL_FILES

    try:
        repository = hub.create_repo(name, private=True, exist_ok=True)
        hub.upload_folder(
            folder_path=folder,
            repo_id=repository.repo_id,
            commit_message="Export of Deerstalker",
            delete_patterns=list(MODEL_FILES),
        )
    except Exception as error:  # besides its own errors, the hub's client raises those of the library below it
        problem = " ".join(str(error).split())[:300]
        raise DeerstalkerError(
            f"{_HUB}{name}", problem, "a push", "check the name, and that the token may write"
        ) from error
    return str(repository)
