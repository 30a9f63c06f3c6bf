"""`deerstalker export`: GGUF that this project reads again, and a push to a hub."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from gguf.gguf_reader import GGUFReader
from safetensors.torch import load_file

from artifacts.address import ArtifactAddress
from artifacts.errors import BadInputError
from artifacts.identity import Identity
from artifacts.refs import Checkpoint
from artifacts.store.store import Store
from stages.models.convert import convert_gguf
from stages.models.exporting.folder import export_folder
from stages.models.exporting.gguf_file import check_gguf, write_gguf
from stages.models.from_scratch import ScratchModel, make_scratch
from stages.models.shape import read_shape
from stages.models.source import GgufPackageModel, materialise
from stages.models.tensors import WEIGHTS
from stages.models.tokenizers.chat import ChatTokenizer
from stages.optional.adopt import adapter_folder
from tests.support.engines import TEXTS
from tests.support.hub_server import use_hub
from tests.support.json_page import check_documented
from tests.support.pushed_hub import TOKEN, PushedHub, pushed_hub
from tests.support.trees import save_model

SHAPES: dict[str, dict[str, Any]] = {
    "Llama": {"tie_word_embeddings": False},
    "Qwen2": {"tie_word_embeddings": True},
    "Qwen3": {"tie_word_embeddings": True, "head_dim": 128},  # transformers 5.19 reads no other from GGUF
}


def source_of(folder: Path, architecture: str) -> Path:
    """A random model with the tokenizer of SmolLM2's size class: byte-level BPE."""
    folder.mkdir()
    make_scratch(ScratchModel(vocabulary=300), TEXTS, folder)
    config = json.loads((folder / "config.json").read_text())
    taken = {name: config[name] for name in ("vocab_size", "eos_token_id", "pad_token_id", "bos_token_id")}
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    for first, second in (("h", "e"), ("t", "he")):
        tokenizer["model"]["vocab"][first + second] = taken["vocab_size"]
        tokenizer["model"]["merges"].append([first, second])
        taken["vocab_size"] += 1
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    save_model(folder, architecture, **taken, **SHAPES[architecture])
    return folder


def alone(file: Path) -> Path:
    """Moves a file to a folder of its own, so that its reader finds no tokenizer beside it."""
    folder = file.parent.with_name("alone")
    folder.mkdir()
    return file.rename(folder / file.name)


@pytest.mark.long
@pytest.mark.parametrize("architecture", sorted(SHAPES))
def test_gguf_is_read_again_with_the_same_weights(tmp_path: Path, architecture: str) -> None:
    source = source_of(tmp_path / "source", architecture)
    export_folder(source, tmp_path / "out", "", merge=False, dtype="bf16", base=None)
    convert_gguf(alone(write_gguf(tmp_path / "out", "bf16")), tmp_path / "again", None)
    before, after = (load_file(folder / WEIGHTS) for folder in (tmp_path / "out", tmp_path / "again"))
    assert before.keys() == after.keys()
    for name, tensor in before.items():
        assert torch.equal(tensor, after[name]), name
    sizes = (
        "embed_dim",
        "layers",
        "heads",
        "kv_heads",
        "head_dim",
        "hidden_dim",
        "rope",
        "tied",
        "max_positions",
    )
    shapes = [read_shape(folder) for folder in (tmp_path / "out", tmp_path / "again")]
    assert [getattr(shapes[0], size) for size in sizes] == [getattr(shapes[1], size) for size in sizes]
    chats = [ChatTokenizer(folder) for folder in (tmp_path / "out", tmp_path / "again")]
    assert chats[1].eos_ids == chats[0].eos_ids[-1:], "the file has room for one"


@pytest.mark.release
def test_smollm2_is_written_as_gguf_and_read_again(tmp_path: Path) -> None:
    materialise(GgufPackageModel(), tmp_path / "model")
    export_folder(tmp_path / "model", tmp_path / "out", "", merge=False, dtype="fp16", base=None)
    convert_gguf(alone(write_gguf(tmp_path / "out", "fp16")), tmp_path / "again", None)
    chats = [ChatTokenizer(tmp_path / name) for name in ("model", "again")]
    for text in ("It's 1,234 o'clock.\n\n  Über-Fall", *TEXTS):
        assert chats[0].prompt_token_ids(text) == chats[1].prompt_token_ids(text)
    before, after = (load_file(tmp_path / name / WEIGHTS) for name in ("model", "again"))
    for name, tensor in before.items():
        torch.testing.assert_close(tensor, after[name], rtol=2**-7, atol=1e-6)


def test_gguf_of_another_kind_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    source = source_of(tmp_path / "source", "Qwen3")
    tokenizer = json.loads((source / "tokenizer.json").read_text())
    tokenizer["model"]["type"] = "Unigram"
    (source / "tokenizer.json").write_text(json.dumps(tokenizer))
    with pytest.raises(BadInputError, match="--gguf: a tokenizer of type Unigram; expected byte-level BPE"):
        check_gguf(source)


def test_gguf_of_ids_that_the_model_lacks_is_refused(tmp_path: Path) -> None:
    source = source_of(tmp_path / "source", "Qwen3")
    tokenizer = json.loads((source / "tokenizer.json").read_text())
    last = read_shape(source).vocab_size - 1
    check_gguf(source)
    tokenizer["added_tokens"][-1]["id"] = last
    (source / "tokenizer.json").write_text(json.dumps(tokenizer))
    check_gguf(source)
    tokenizer["added_tokens"][-1]["id"] = last + 1
    (source / "tokenizer.json").write_text(json.dumps(tokenizer))
    with pytest.raises(BadInputError, match=f"a tokenizer with the id {last + 1}; expected ids below {last + 1}, "):
        check_gguf(source)


WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|DIGITS| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""The rule of Llama 3 and Qwen 2."""
BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}


def in_turn(*rules: dict[str, Any], use_regex: bool = True) -> dict[str, Any]:
    return {"type": "Sequence", "pretokenizers": [*rules, {**BYTES, "use_regex": use_regex}]}


def split(rule: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": rule}, "behavior": "Isolated", "invert": False}


def test_gguf_names_the_rules_of_the_tokenizer_or_refuses_them(tmp_path: Path) -> None:
    source = source_of(tmp_path / "source", "Qwen3")
    whole: dict[str, Any] = json.loads((source / "tokenizer.json").read_text())

    def name_of(rules: dict[str, Any], normalizer: dict[str, Any] | None = None) -> str:
        (source / "tokenizer.json").write_text(json.dumps({**whole, "pre_tokenizer": rules, "normalizer": normalizer}))
        check_gguf(source)
        field = GGUFReader(write_gguf(source, "bf16")).fields["tokenizer.ggml.pre"]
        return str(field.contents())

    qwen = in_turn(split(WORDS.replace("DIGITS", r"\p{N}")), use_regex=False)
    digits = {"type": "Digits", "individual_digits": True}
    assert name_of(BYTES) == "gpt-2"
    assert name_of(in_turn(digits)) == "smollm"
    assert name_of(qwen, {"type": "NFC"}) == "qwen2"
    assert name_of(in_turn(split(WORDS.replace("DIGITS", r"\p{N}{1,3}")), use_regex=False)) == "llama-bpe"
    for rules, normalizer in (
        (in_turn({**digits, "individual_digits": False}), None),
        (in_turn(split(r"\p{N}{1,3}"), use_regex=False), None),
        (in_turn(split(r"(?i:'s|'t)|\p{L}+"), use_regex=False), None),
        ({**BYTES, "add_prefix_space": True}, None),
        (in_turn({"type": "Punctuation", "behavior": "Isolated"}), None),
        (qwen, {"type": "Lowercase"}),
    ):
        with pytest.raises(BadInputError, match=r"--gguf: a tokenizer with the rules .*convert_hf_to_gguf\.py"):
            name_of(rules, normalizer)


def exported(store: Path, *arguments: str, hub: PushedHub, token: str | None) -> subprocess.CompletedProcess[str]:
    """Runs the command in a process, which reads the hub's address and the token from its environment."""
    environment = {**os.environ, "HF_ENDPOINT": hub.url, "HF_HOME": str(store.parent / "hub-cache")}
    environment.pop("HF_TOKEN", None)
    if token is not None:
        environment["HF_TOKEN"] = token
    command = [
        sys.executable,
        "-c",
        "from flows.cli.app import main; main()",
        "export",
        *arguments,
        "--store",
        str(store),
    ]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.release
def test_a_checkpoint_is_pushed_with_the_users_token(tmp_path: Path) -> None:
    """A private repository with all files; without a token, or with a wrong one, one line and nothing pushed."""
    store = Store.open(str(tmp_path / "store"))
    attempt = ArtifactAddress(store, "models/mine", Checkpoint).attempt(Identity.of("fetch", 1, {"id": "owner/base"}))
    with attempt.folder(tmp_path) as folder:
        make_scratch(ScratchModel(vocabulary=300), TEXTS, folder)
    attempt.publish({"licence": "mit"})
    with pushed_hub() as hub:
        for token, found in ((None, "no token of the hub"), ("wrong", "401")):
            refused = exported(tmp_path / "store", "models/mine", "hub:me/mine", hub=hub, token=token)
            assert refused.returncode in (1, 2) and found in refused.stderr and refused.stderr.count("\n") == 1
            assert not hub.files
        wrong = exported(tmp_path / "store", "models/mine", "hub:me/mine/more", hub=hub, token=TOKEN)
        assert wrong.returncode == 2 and wrong.stderr.startswith("error: hub:me/mine/more: ")
        before = {f"me/mine/{name}" for name in ("adapter_config.json", "adapter_model.safetensors", "model.gguf")}
        hub.files.update(dict.fromkeys({*before, "me/mine/notes.md"}, b"of another export, or of a person"))
        done = exported(tmp_path / "store", "models/mine", "hub:me/mine", "--json", hub=hub, token=TOKEN)
        assert done.returncode == 0, done.stderr
        assert not before & hub.files.keys(), "they would be loaded in place of what is exported"
        del hub.files["me/mine/notes.md"]
        check_documented("export", json.loads(done.stdout))
        files = json.loads(done.stdout)["files"]
        assert json.loads(done.stdout)["place"] == f"{hub.url}/me/mine" and hub.private == {"me/mine": True}
        assert {f"me/mine/{name}" for name in files} == hub.files.keys()
        card = hub.files["me/mine/README.md"].decode()
        assert 'license: "mit"' in card and 'base_model: "owner/base"' in card
        assert hub.files["me/mine/model.safetensors"] and TOKEN not in done.stdout + done.stderr
    gone = exported(tmp_path / "store", "models/mine", "hub:me/mine", hub=hub, token=TOKEN)
    assert gone.returncode == 1 and gone.stderr.startswith("error: hub:me/mine: ") and gone.stderr.count("\n") == 1


def test_an_adapter_comes_from_a_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from stages.models.adapter_config import AdapterConfig

    AdapterConfig(4, 8.0, False, ("q_proj",)).write(tmp_path)
    with pushed_hub() as hub:
        use_hub(hub.url, monkeypatch)
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
        hub.files["me/mine/adapter_config.json"] = (tmp_path / "adapter_config.json").read_bytes()
        with pytest.raises(
            BadInputError, match=r"model.adapter: me/mine cannot be fetched .*adapter_model.safetensors"
        ):
            adapter_folder("me/mine")
        hub.files["me/mine/adapter_model.safetensors"] = b"weights"
        assert (adapter_folder("me/mine@main") / "adapter_model.safetensors").read_bytes() == b"weights"
    with pytest.raises(BadInputError, match=r"model\.adapter: no folder \./nowhere"):
        adapter_folder("./nowhere")
