"""transformers 4, in an environment of its own, reads our checkpoints as we do."""

import json
import subprocess
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from stages.grpo.groups import Branch, Group
from stages.models.from_scratch import ScratchModel
from stages.models.source import FolderModel, materialise
from stages.models.tensors import WEIGHTS
from stages.models.tokenizers.chat import ChatTokenizer
from stages.training.trainable import EVERYTHING
from tests.support.isolated import isolated_python
from tests.support.policies import ARCHITECTURES
from tests.support.trainer_side import Trained
from tests.support.trainer_work import save_batch
from tests.support.training import batch_logits
from tests.support.trees import save_model

RELEASE = "transformers>=4.50,<5"
TEXT = "Who was it? The cook, in the hall, with the rope, at nine."
MODELS = (
    "qwen2-yarn", "qwen3", "llama3", "mistral-sliding", "phi3", "phi4-mini", "smollm3", "olmo2", "olmo3",
    "gemma3-linear", "granite", "qwen3-moe",
)  # fmt: skip
"""Models of `tests.support.policies`, one of every family or two."""
READ = """
import json, sys
import torch, transformers
from transformers import AutoModelForCausalLM, AutoTokenizer
assert transformers.__version__.startswith("4."), transformers.__version__
for folder in sys.argv[2:]:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, torch_dtype="auto")
    assert model.dtype == torch.bfloat16, model.dtype
    ids = json.loads(sys.argv[1])
    with torch.no_grad():
        logits = model.float()(torch.tensor([ids])).logits[0]
    question = [{"role": "user", "content": "Who?"}]
    print(json.dumps({
        "logits": logits.tolist(), "ids": tokenizer("TEXT").input_ids, "special": tokenizer.additional_special_tokens,
        "prompt": tokenizer.apply_chat_template(question, add_generation_prompt=True),
    }))
""".replace("TEXT", TEXT)


def saved_by_transformers_5(folder: Path, model: str) -> Path:
    """A random model in float32, as transformers 5 saves model and tokenizer."""
    import transformers

    materialise(ScratchModel(vocabulary=300), folder, texts=[TEXT])
    config = json.loads((folder / "config.json").read_text())
    taken = {name: config[name] for name in ("eos_token_id", "pad_token_id", "bos_token_id")}
    architecture, changes = ARCHITECTURES[model]
    save_model(folder, architecture, **{"hidden_size": 64, **changes, **taken, "vocab_size": config["vocab_size"] + 8})
    tensors = {name: tensor.float() for name, tensor in load_file(folder / WEIGHTS).items()}
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
    template = json.loads((folder / "tokenizer_config.json").read_text())["chat_template"]
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(folder / "tokenizer.json"), eos_token="<|end|>", chat_template=template,
        additional_special_tokens=["<|user|>"],
    )  # fmt: skip
    tokenizer.save_pretrained(folder)
    stated = json.loads((folder / "tokenizer_config.json").read_text())
    assert (stated["tokenizer_class"], stated["extra_special_tokens"]) == ("TokenizersBackend", ["<|user|>"])
    return folder


@pytest.mark.release
def test_transformers_4_computes_the_logits_of_our_checkpoints_with_their_tokens(tmp_path: Path) -> None:
    """Of every supported family: as fetched, and as published by the trainer."""
    folders: dict[str, Path] = {}
    for model in MODELS:
        source = saved_by_transformers_5(tmp_path / f"{model}-source", model)
        fetched = tmp_path / f"{model}-fetched"
        materialise(FolderModel(path=str(source)), fetched)
        folders[f"{model}, fetched"] = fetched
        trained = Trained(fetched, tmp_path / f"{model}-trained", EVERYTHING)
        folders[f"{model}, trained"] = trained.folder
    prompt, completion = torch.randint(250, (2, 60), generator=torch.Generator().manual_seed(0)).tolist()
    read = [READ, json.dumps([*prompt, *completion]), *map(str, folders.values())]
    done = subprocess.run(
        [isolated_python(tmp_path, RELEASE), "-c", *read], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    batch_file = save_batch([Group(prompt, [Branch(completion, [0.0] * 60, 1.0)])], tmp_path / "batch.safetensors")
    for (name, folder), line in zip(folders.items(), done.stdout.splitlines(), strict=True):
        theirs, chat = json.loads(line), ChatTokenizer(folder)
        assert theirs["ids"] == chat.text_ids(TEXT) and theirs["prompt"] == chat.prompt_token_ids("Who?"), name
        assert theirs["special"] == ["<|user|>"]
        difference = (batch_logits(folder, batch_file) - torch.tensor(theirs["logits"])[59:119]).abs().max()
        assert difference < 1e-4, f"{name}: logits differ by {difference:.1e}"
