"""The stage that publishes a LoRA adapter from outside the store as a checkpoint, so that a run can continue it."""

import re
from contextlib import suppress
from pathlib import Path

from artifacts.address import ArtifactAddress
from artifacts.documents.parsing import is_folder
from artifacts.errors import BadInputError
from artifacts.identity import Identity
from artifacts.local.input_files import LARGEST_WEIGHTS, copy_input, with_home
from artifacts.reading import Artifact
from artifacts.refs import Checkpoint, Ref
from stages.context import StageContext
from stages.models.adapter_config import ADAPTER_CONFIG
from stages.models.adapters import ADAPTER_WEIGHTS, has_adapter, read_adapter_config
from stages.models.folder import content_of
from stages.models.shape import read_shape
from stages.models.source import SETTINGS_FILES, TOKENIZER_FILES, copy_files
from stages.models.stored import BASE
from stages.models.tensors import check_adapter, tensors_of
from stages.models.tokenizers.chat import TEMPLATE_FILES, find_chat_template
from stages.models.tokenizers.own_template import begins_from

REVISION = 1
_HUB_ID = re.compile(r"(?P<id>[\w.-]+/[\w.-]+?)(@(?P<revision>[\w.-]+))?")


def adopt(
    ctx: StageContext, adapter: str, base: Ref[Checkpoint], *, out: ArtifactAddress[Checkpoint]
) -> Ref[Checkpoint]:
    """Publishes a PEFT adapter as a checkpoint over its base.

    Args:
        adapter: A local folder, or a model of the hub as `ID` or `ID@REVISION`.
        base: The model that the adapter was trained on.

    Raises:
        BadInputError: There is no such adapter, it is of another base or of another kind than plain LoRA, or the base
            has an adapter itself.
    """
    identity = identity_of(adapter, base)
    if published := out.find(identity):
        return published
    folder, licence = ctx.local_folder(base), Artifact.open(ctx.store, base).manifest.facts.get("licence")
    attempt = out.attempt(identity)
    with ctx.folder(attempt) as made:
        write_adapted(adapter, folder, base.key, made)
    return attempt.publish({"licence": licence, "adapter": adapter}, **{BASE: base})


def write_adapted(adapter: str, base: Path, name: str, out: Path) -> None:
    """Writes the folder of a checkpoint that is an adapter over a base, without the link to the base.

    Args:
        adapter: As for `adopt`.
        base: Folder of the base.
        name: Name of the base, for the error.
        out: The folder to write into.

    Raises:
        BadInputError: As for `adopt`, or the adapter has another chat template than its base.
    """
    if has_adapter(base):
        remedy = "export it with --merge, and name the folder as the model"
        raise BadInputError("model.adapter", f"a second adapter over {name}", "a base without one", remedy)
    source = adapter_folder(adapter)
    config = check_adapter(source, tensors_of(read_shape(base)))
    own = find_chat_template(source) if any((source / file).is_file() for file in TEMPLATE_FILES) else None
    if own is not None and not begins_from(find_chat_template(base) or "", own):
        remedy = "take that template into a copy of the base, or out of the adapter's folder"
        raise BadInputError("model.adapter", "a chat template of its own", f"that of {name}", remedy)
    copy_files(base, out, (*SETTINGS_FILES, *TOKENIZER_FILES))
    copy_input(source / ADAPTER_WEIGHTS, out / ADAPTER_WEIGHTS, "a LoRA adapter", most_bytes=LARGEST_WEIGHTS)
    config.write(out)


def identity_of(adapter: str, base: Ref[Checkpoint]) -> Identity:
    """Returns the identity of an adopted adapter: a local folder by its content, a hub model by its id and revision.

    Raises:
        BadInputError: A local folder cannot be read.
    """
    local = local_adapter(adapter)
    if local is None:
        return identity_of_hub_adapter(adapter, base)
    return Identity.of("adopt", REVISION, {"files": content_of(local)}, base=base)


def identity_of_hub_adapter(adapter: str, base: Ref[Checkpoint]) -> Identity:
    """Returns the identity of an adopted adapter of the hub."""
    return Identity.of("adopt", REVISION, {"adapter": adapter}, base=base)


def local_adapter(adapter: str) -> Path | None:
    """Returns the local folder that `model.adapter` names; None if it names a model of the hub.

    Raises:
        BadInputError: It names neither.
    """
    folder = with_home(adapter)
    if is_folder(folder):
        return folder
    if adapter.startswith((".", "/", "~")) or not _HUB_ID.fullmatch(adapter):
        raise BadInputError("model.adapter", f"no folder {adapter}", "a folder of a PEFT adapter, or an id of the hub")
    return None


def adapter_folder(adapter: str) -> Path:
    """Returns a local folder with an adapter's files; those of one on the hub are downloaded, its settings first.

    Raises:
        BadInputError: There is no such adapter, or it is of another kind than plain LoRA.
    """
    if (folder := local_adapter(adapter)) is not None:
        return folder
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError, HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    match = _HUB_ID.fullmatch(adapter)
    assert match is not None  # checked by `local_adapter`

    def fetched(name: str) -> Path:
        return Path(hf_hub_download(match["id"], name, revision=match["revision"])).parent

    try:
        folder = fetched(ADAPTER_CONFIG)
        read_adapter_config(folder)
        fetched(ADAPTER_WEIGHTS)
        for name in TEMPLATE_FILES:
            with suppress(EntryNotFoundError):
                fetched(name)
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        problem = f"{adapter} cannot be fetched ({' '.join(str(error).split())[:200]})"
        remedy = "check the name, the network, and the token for a private model"
        raise BadInputError("model.adapter", problem, f"a repository with {ADAPTER_CONFIG}", remedy) from error
    return folder
