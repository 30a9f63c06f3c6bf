"""Child process: opens a model with transformers and saves it as a bf16 Hugging Face folder.

``python -m stages.models.convert gguf FILE OUT`` | ``folder DIR OUT`` | ``hub ID REVISION OUT``. The last needs the
network, the others are kept from it by their parent. A failure ends in status 1 and one line on standard error.
"""

import sys
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig


def _save(model: Any, tokenizer: Any, out: Path) -> None:
    model.generation_config.do_sample = True
    model.save_pretrained(out, max_shard_size="1000GB")
    tokenizer.save_pretrained(out, save_jinja_files=False)


def convert_gguf(file: Path, out: Path) -> None:
    """Dequantizes a GGUF file."""
    model = AutoModelForCausalLM.from_pretrained(
        str(file.parent),
        gguf_file=file.name,
        dtype=torch.bfloat16,
        quantization_config=GgufConfig(gguf_file=file.name, dequantize=True),
    )
    tokenizer = AutoTokenizer.from_pretrained(str(file.parent), gguf_file=file.name)
    _save(model, tokenizer, out)


def convert_folder(source: str, out: Path, revision: str | None = None) -> None:
    """Re-saves a Hugging Face folder or hub model in bf16 and one file."""
    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.bfloat16, revision=revision)
    tokenizer = AutoTokenizer.from_pretrained(source, revision=revision)
    _save(model, tokenizer, out)


def main(arguments: list[str]) -> int:
    """Runs one conversion; returns the exit status."""
    match arguments:
        case ["gguf", file, out]:
            convert_gguf(Path(file), Path(out))
        case ["folder", source, out]:
            convert_folder(source, Path(out))
        case ["hub", name, revision, out]:
            convert_folder(name, Path(out), revision)
        case _:
            print("usage: convert gguf FILE OUT | folder DIR OUT | hub ID REVISION OUT", file=sys.stderr)
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
