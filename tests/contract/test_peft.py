"""PEFT and transformers 4, in an environment of their own, read our adapters and what is exported of them."""

import json
import subprocess
from pathlib import Path

import pytest
import torch

from stages.grpo.groups import Branch, Group
from stages.models.exporting.folder import export_folder
from stages.models.spellings import write_both_spellings
from tests.support.engines import TEXTS
from tests.support.isolated import isolated_python
from tests.support.trainer_side import LORA, Trained, write_source
from tests.support.trainer_work import save_batch
from tests.support.training import batch_logits

RSLORA = LORA.model_copy(update={"rslora": True})

READ = """
import json, sys
import torch, transformers, peft
from transformers import AutoModelForCausalLM
ids, pairs = json.loads(sys.argv[1]), json.loads(sys.argv[2])
assert transformers.__version__.startswith("4."), transformers.__version__
for base, adapter in pairs:
    model = AutoModelForCausalLM.from_pretrained(base, torch_dtype=torch.float32)
    if adapter:
        model = peft.PeftModel.from_pretrained(model, adapter)
        if sys.argv[3]:
            model.save_pretrained(sys.argv[3])
    with torch.no_grad():
        print(json.dumps(model(torch.tensor([ids])).logits[0].tolist()))
"""


@pytest.mark.release
@pytest.mark.parametrize("model", ["llama3", "qwen3"])
def test_peft_computes_our_logits_and_we_those_of_what_it_saves(tmp_path: Path, model: str) -> None:
    """rsLoRA on every projection: our checkpoint, its two exports, and the adapter as PEFT saves it again."""
    (tmp_path / "source").mkdir()
    source = write_source(tmp_path / "source", model, TEXTS)
    write_both_spellings(source)
    adapter = Trained(source, tmp_path / "adapter", RSLORA).folder
    export_folder(adapter, tmp_path / "peft", "", merge=False, dtype="bf16", base="owner/base")
    export_folder(adapter, tmp_path / "merged", "", merge=True, dtype="bf16", base=None)
    prompt, completion = torch.randint(250, (2, 20), generator=torch.Generator().manual_seed(0)).tolist()
    pairs = [(source, adapter), (source, tmp_path / "peft"), (tmp_path / "merged", "")]
    named = json.dumps([[str(base), str(on)] for base, on in pairs])
    command = [READ, json.dumps([*prompt, *completion]), named, str(tmp_path / "saved")]
    python = isolated_python(tmp_path, "peft", "transformers>=4.50,<5", "torchao>=0.16.1")
    done = subprocess.run([python, "-c", *command], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    stored, exported, merged = (torch.tensor(json.loads(line))[19:39] for line in done.stdout.splitlines())
    batch_file = save_batch([Group(prompt, [Branch(completion, [0.0] * 20, 1.0)])], tmp_path / "batch.safetensors")
    mine = batch_logits(adapter, batch_file, RSLORA)
    assert (mine - stored).abs().max() < 1e-4 and torch.equal(stored, exported)
    assert (mine - merged).abs().mean() < 0.02 * mine.abs().mean(), "bf16 keeps 8 bits of a weight"
    for file in ("adapter_model.safetensors", "adapter_config.json"):
        (adapter / file).unlink()
        (adapter / file).symlink_to(tmp_path / "saved" / file)
    assert (batch_logits(adapter, batch_file, RSLORA) - stored).abs().max() < 1e-4
