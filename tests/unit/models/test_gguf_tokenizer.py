"""The tokenizer out of a GGUF header: the tokens that transformers finds in the same file."""

from pathlib import Path

import pytest

from artifacts.errors import BadInputError
from stages.models.source import GgufPackageModel, find_packaged_file
from stages.models.tokenizers.chat import ChatTokenizer
from stages.models.tokenizers.gguf_tokenizer import words_of, write_tokenizer
from tests.support.smollm2 import divides_digits_off

TEXT = "Mr. Boddy  was\n\tin the Café at 11:30 PM, 漢字?"
IDS = [
    1, 9690, 198, 2683, 359, 253, 5356, 5646, 11173, 3365, 3511, 308, 34519, 28, 7018, 411, 407, 19712, 8182,
    2, 198, 1, 4093, 198, 14086, 30, 23521, 13285, 216, 436, 198, 197, 254, 260, 48031, 2756, 418, 216,
    33, 33, 42, 35, 32, 7715, 28, 17097, 137, 112, 36518, 47, 2, 198, 1, 520, 9531, 198,
]  # fmt: skip
"""What transformers' AutoTokenizer makes of TEXT as a user's message, with the same file."""


def test_tokens_are_those_of_transformers(tmp_path: Path) -> None:
    installed = GgufPackageModel()
    write_tokenizer(find_packaged_file(installed.package, installed.file), tmp_path)
    chat = ChatTokenizer(tmp_path)
    assert chat.prompt_token_ids(TEXT) == IDS
    assert TEXT in chat.decode(IDS)
    assert (chat.vocabulary_size, chat.eos_ids) == (49152, (2,))
    assert divides_digits_off(chat)


def test_other_rules_are_refused(tmp_path: Path) -> None:
    for name, found in (("viking", "viking"), (None, r"\(not named\)")):
        with pytest.raises(BadInputError, match=f"the rules {found}; expected those of gpt-2, phi-2, .*, smollm"):
            words_of(tmp_path, name)


@pytest.mark.parametrize("content", [b"", b"GGUF", b"not a model", b"GGUF\x03\0\0\0" + b"\0" * 8 + b"\1" + b"\0" * 7])
def test_a_file_without_a_tokenizer_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.gguf").write_bytes(content)
    with pytest.raises(BadInputError, match=r"x\.gguf"):
        write_tokenizer(tmp_path / "x.gguf", tmp_path / "out")
