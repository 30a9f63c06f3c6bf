"""Child process: opens a model with transformers and saves it as a bf16 Hugging Face folder.

``python -P -m stages.models.convert gguf FILE OUT SHAPE`` | ``folder DIR OUT SHAPE`` | ``hub ID REVISION OUT SHAPE``.
Only ``hub`` uses the network; the parent process disables it for the others. Code from a model folder is never run, and
weights are read only from safetensors and GGUF files. SHAPE is a folder for the files of config and tokenizer; a line
on standard output reports that they are complete, before the weights are read. ``folder`` ignores SHAPE, and if
it is empty, they are not written. After a failure the last line on standard error is the reason. If the exit status is
3, that line has the parts of a BadInputError as JSON.
"""

import functools
import gc
import json
import sys
import traceback
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    # Garbage collection takes a quarter of the time of the imports, and of reading the vocabulary of a GGUF file.
    gc.disable()
    gc.set_threshold(200_000, 50, 100)
    # transformers and gguf import these packages if they find them; no conversion needs them.
    for package in ("mistral_common", "torchao"):
        sys.modules[package] = None  # pyright: ignore[reportArgumentType]
import gguf
import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GgufConfig, modeling_gguf_pytorch_utils
from transformers.integrations.ggml import GGUF_CONFIG_MAPPING
from transformers.integrations.gguf.gguf_tokenizer_mapping import GGUF_PRE_TOKENIZER_SPLITS

from artifacts.documents.suggestions import listed
from artifacts.errors import BadInputError
from stages.models.json_file import read_json, refuse_own_code
from stages.models.shape import families, read_shape, text_part
from stages.models.source import BAD_INPUT_STATUS, SETTINGS_FILES, SHAPE_KNOWN, TOKENIZER_FILES, copy_files
from stages.models.spellings import state_dtype
from stages.models.tensors import check_weights
from stages.models.tokenizers.gguf_tokenizer import words_of

_FILES = ("*.json", "*.safetensors", "*.jinja", "*.txt", "*.model")
_SMALL_FILES = tuple(name for name in _FILES if name != "*.safetensors")
_LOCAL: dict[str, Any] = {"trust_remote_code": False, "local_files_only": True}


def _tell_shape(folder: Path | None) -> None:
    if folder is not None:
        print(SHAPE_KNOWN, flush=True)


def _save_model(model: Any, out: Path) -> None:
    model.generation_config.do_sample = True
    model.save_pretrained(out, max_shard_size="1000GB")


def _open_model(source: str, **options: Any) -> Any:
    """Opens a model and checks that every weight was read; transformers fills in random numbers for missing ones.

    Raises:
        BadInputError: A tensor is missing or has another shape.
    """
    opened: Any = AutoModelForCausalLM.from_pretrained(
        source, dtype=torch.bfloat16, output_loading_info=True, **options, **_LOCAL
    )
    model, loading = opened
    for kind in ("missing_keys", "mismatched_keys"):
        if names := sorted(map(str, loading.get(kind) or ())):
            problem = f"{kind.replace('_keys', '')} tensor {listed(names, 1)}"
            raise BadInputError(source, problem, "the tensors that its config implies", "copy the whole model again")
    return model


def _text_model(whole: Any) -> Any:
    """Returns the text model inside a vision-language model, with the same tensors."""
    with torch.device("meta"):
        text: Any = AutoModelForCausalLM.from_config(whole.config.get_text_config(), dtype=torch.bfloat16)
    text.model, text.lm_head = whole.model.language_model, whole.lm_head
    return text


class PlainReader(gguf.GGUFReader):
    """Reads a GGUF file from a plain array: slices of a memory map are slow to make."""

    def _get(self, *arguments: Any, **keywords: Any) -> Any:
        if type(self.data) is not np.ndarray:
            self.data = self.data.view(np.ndarray)
        return super()._get(*arguments, **keywords)


def by_many_rows(func: Any, arr: Any, otype: Any, oshape: tuple[int, ...]) -> Any:
    """Returns `arr` dequantized by `func`, 256 rows at a time; gguf takes 16."""
    rows = arr.reshape(-1, arr.shape[-1])
    out = np.empty((len(rows), oshape[-1]), dtype=otype)
    for first in range(0, len(rows), 256):
        out[first : first + 256] = func(rows[first : first + 256])
    return out.reshape(oshape)


def speed_up_gguf() -> None:
    """Makes transformers read a GGUF file once, and gguf read and dequantize it in larger pieces.

    transformers 5.19 reads the file for config, tokenizer and weights, parses its vocabulary four times, and makes the
    table of its tensors' names for every module. gguf makes an object of a subclass for each slice, and dequantizes 16
    rows at a time. Parsing once, plain slices and more rows took SmolLM2 from 8.0 to 4.4 s of CPU time, imports left
    out. Remove this function, and what it uses, when transformers and gguf need it no longer.
    """
    parse: Any = modeling_gguf_pytorch_utils._gguf_parse_value  # pyright: ignore[reportPrivateUsage, reportPrivateImportUsage]
    parsed: dict[tuple[int, ...], tuple[Any, Any]] = {}

    def parse_once(value: Any, types: list[int]) -> Any:
        key = (id(value), *types)
        if key not in parsed:
            parsed[key] = value, parse(value, types)  # an id is unique while its object is kept
        return parsed[key][1]

    setattr(gguf, "GGUFReader", functools.cache(PlainReader))  # noqa: B010
    setattr(gguf, "get_tensor_name_map", functools.cache(gguf.get_tensor_name_map))  # noqa: B010
    setattr(gguf.quants, "_apply_over_grouped_rows", by_many_rows)  # noqa: B010
    setattr(modeling_gguf_pytorch_utils, "_gguf_parse_value", parse_once)  # noqa: B010


def refuse_lost_settings(file: Path, reader: gguf.GGUFReader) -> None:
    """Refuses a GGUF file with settings of rotations or attention that transformers 5.19 leaves out without a word.

    Raises:
        BadInputError: Its rotations are scaled or partial, or it has a sliding window that would be lost.
    """
    named = {name: field for name, field in reader.fields.items() if not name.startswith("tokenizer.")}
    stated = {name.partition(".")[2]: field.contents() for name, field in named.items()}
    heads, width = stated.get("attention.head_count"), stated.get("attention.key_length")
    if width is None and isinstance(heads, int):
        width = stated.get("embedding_length", 0) // heads
    mapped = GGUF_CONFIG_MAPPING.get(str(stated.get("architecture")), {})
    for name, kept in (
        ("rope.scaling.type", (None, "none")),
        ("rope.scaling.factor", (None, 0.0, 1.0)),
        ("rope.scale_linear", (None, 0.0, 1.0)),
        ("rope.dimension_count", (None, width)),
        *([] if "attention.sliding_window" in mapped else [("attention.sliding_window", (None, 0))]),
    ):
        if (value := stated.get(name)) not in kept:
            raise _lost(file, f"{name} {value}")


@contextmanager
def unread_tensors_refused(file: Path, reader: gguf.GGUFReader) -> Generator[None]:
    """Makes transformers refuse tensors of the file that no weight of the model is read from; it would drop them.

    They are known when transformers 5.19 maps their names, before the first one is dequantized.
    """
    name_map: Any = modeling_gguf_pytorch_utils.get_gguf_hf_weights_map

    def checked_map(model: Any, processor: Any, *arguments: Any, **keywords: Any) -> dict[str, str]:
        names: dict[str, str] = name_map(model, processor, *arguments, **keywords)
        if not keywords.get("qual_name"):  # the whole model, not a part of it
            known = {*names, *(f"{name}.weight" for name in names)}  # experts are mapped without `.weight`
            for tensor in reader.tensors:
                if tensor.name not in known:
                    raise _lost(file, f"tensor {tensor.name}")
        return names

    setattr(modeling_gguf_pytorch_utils, "get_gguf_hf_weights_map", checked_map)  # noqa: B010
    try:
        yield
    finally:
        setattr(modeling_gguf_pytorch_utils, "get_gguf_hf_weights_map", name_map)  # noqa: B010


def _lost(file: Path, lost: str) -> BadInputError:
    expected = "only what transformers reads from GGUF: neither scaled nor partial rotations, nor other tensors"
    return BadInputError(str(file), lost, expected, "use the model's Hugging Face folder or hub id")


def convert_gguf(file: Path, out: Path, shape: Path | None) -> None:
    """Saves the model of a GGUF file, dequantized to bf16.

    Raises:
        BadInputError: The file holds what transformers would leave out, or its tokenizer has unknown rules.
    """
    folder = str(file.parent)
    speed_up_gguf()
    reader = gguf.GGUFReader(str(file))  # as transformers names it, so that the file is parsed once
    refuse_lost_settings(file, reader)
    stated = [reader.fields.get(f"tokenizer.ggml.{name}") for name in ("model", "pre")]
    kind, rules = (field.contents() if field is not None else None for field in stated)
    words = words_of(file, rules) if kind == "gpt2" and rules not in GGUF_PRE_TOKENIZER_SPLITS else None
    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=file.name, **_LOCAL)
    if words is not None:
        tokenizer.backend_tokenizer.pre_tokenizer = words
    if shape is not None:
        tokenizer.save_pretrained(shape, save_jinja_files=False)
        settings = AutoConfig.from_pretrained(folder, gguf_file=file.name, **_LOCAL)
        family = families().get(settings.model_type)
        settings.architectures = [family.architecture if family else ""]
        settings.save_pretrained(shape)
    _tell_shape(shape)
    config = GgufConfig(gguf_file=file.name, dequantize=True)
    with unread_tensors_refused(file, reader):
        model = _open_model(folder, gguf_file=file.name, quantization_config=config)
    _save_model(model, out)
    tokenizer.save_pretrained(out, save_jinja_files=False)


def convert_folder(folder: Path, out: Path) -> None:
    """Saves a Hugging Face folder again, in bf16 and with one file of weights; its other files are copied.

    Of a vision-language model, the text model is saved. A tokenizer without tokenizer.json is saved by
    transformers, which makes one.

    Raises:
        BadInputError: The tensors are not those of its config.json, or the folder contains code.
    """
    has_pictures = text_part(read_json(folder / "config.json")) is not None
    if not has_pictures:
        check_weights(folder)
    settings = folder / "tokenizer_config.json"
    if settings.is_file():
        refuse_own_code(settings, read_json(settings))
    model = _open_model(str(folder), use_safetensors=True)
    _save_model(_text_model(model) if has_pictures else model, out)
    copy_files(folder, out, [name for name in SETTINGS_FILES if not (has_pictures and name == "config.json")])
    state_dtype(out, "bfloat16")
    if (folder / "tokenizer.json").is_file():
        copy_files(folder, out, TOKENIZER_FILES)
        return
    AutoTokenizer.from_pretrained(str(folder), **_LOCAL).save_pretrained(out, save_jinja_files=False)


def convert_hub(name: str, revision: str, out: Path, shape: Path | None) -> None:
    """Downloads a model from the hub, even if a local folder has the same name, and saves it again in bf16.

    Raises:
        BadInputError: Its config.json states an architecture that is not supported; its weights are not downloaded.
    """
    from huggingface_hub import hf_hub_download, snapshot_download

    config = Path(hf_hub_download(name, "config.json", revision=revision))
    read_shape(config.parent)
    if shape is not None and text_part(read_json(config)) is None:
        small = snapshot_download(name, revision=revision, allow_patterns=list(_SMALL_FILES), ignore_patterns=["*/*"])
        copy_files(Path(small), shape, (*SETTINGS_FILES, *TOKENIZER_FILES))
        _tell_shape(shape)
    folder = snapshot_download(name, revision=revision, allow_patterns=list(_FILES), ignore_patterns=["*/*"])
    convert_folder(Path(folder), out)


def main(arguments: list[str]) -> int:
    """Runs one conversion; returns the exit status."""
    try:
        match arguments:
            case ["gguf", file, out, shape]:
                convert_gguf(Path(file), Path(out), Path(shape) if shape else None)
            case ["folder", source, out, _]:
                convert_folder(Path(source), Path(out))
            case ["hub", name, revision, out, shape]:
                convert_hub(name, revision, Path(out), Path(shape) if shape else None)
            case _:
                usage = "usage: convert gguf FILE OUT SHAPE | folder DIR OUT SHAPE | hub ID REVISION OUT SHAPE"
                print(usage, file=sys.stderr)
                return 2
    except BadInputError as error:
        print(json.dumps([error.where, error.found, error.expected, error.remedy]), file=sys.stderr)
        return BAD_INPUT_STATUS
    except Exception as error:
        traceback.print_exc()
        print(" ".join(f"{type(error).__name__}: {error}".split())[:500], file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    gc.freeze()
    gc.enable()
    sys.exit(main(sys.argv[1:]))
