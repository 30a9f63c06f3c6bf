"""A LoRA run as a user runs it, every command that takes its checkpoints, and a run that continues its adapter."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from artifacts.layout import RunLayout
from artifacts.reading import Artifact
from artifacts.store.store import Store
from stages.models.stored import holds_adapter
from stages.models.tensors import check_weights
from tests.support.installed import ONE_ENGINE, TINY
from tests.support.processes import DEERSTALKER
from tests.support.tiny_runs import LORA


@pytest.mark.long
def test_a_lora_run_from_its_first_adapter_to_another_run(tmp_path: Path, prefect_api_url: str) -> None:
    url = str(tmp_path / "store")

    def told(*arguments: str) -> dict[str, Any]:
        environment = {**os.environ, "PREFECT_API_URL": prefect_api_url}
        command = [DEERSTALKER, *arguments, "--store", url, "--json"]
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
        assert done.returncode == 0, done.stderr[-3000:]
        return json.loads(done.stdout)

    def train(run: str, *settings: str) -> dict[str, Any]:
        changed = [word for setting in (*LORA, *settings) for word in ("--set", setting)]
        return told("train", "--recipe", str(TINY), "--profile", str(ONE_ENGINE), "--run", run, *changed)

    train("lora")
    store, layout = Store.open(url), RunLayout("lora")
    manifests = [Artifact.at(store, layout.iteration(number, "checkpoint")).manifest for number in (1, 2)]
    assert all(holds_adapter(manifest) for manifest in manifests)
    assert manifests[0].inputs["base"] == manifests[1].inputs["base"]
    assert [manifest.facts["totals"]["movement_lost"] for manifest in manifests] == pytest.approx([0, 0], abs=0.02)
    engine = ["--profile", str(ONE_ENGINE)]
    told("evaluate", "--checkpoint", "lora@2", "--puzzles", "lora:test", "--count", "2", *engine)
    told("solve", "--checkpoint", "lora@2", "lora:test", *engine)
    told("export", "lora@2", str(tmp_path / "adapter"))
    told("export", "lora@2", str(tmp_path / "merged"), "--merge")
    check_weights(tmp_path / "merged")
    base = manifests[0].inputs["base"]["key"]
    model = f"model={{source='checkpoint', name='{base}', adapter='{tmp_path / 'adapter'}'}}"
    more = train("more", model, "iterations=1", "warm_start=null")
    first = Artifact.at(store, RunLayout("more").iteration(1, "checkpoint")).manifest
    assert first.inputs["base"]["key"] == base and first.inputs["weights"]["key"].startswith("models/adapter-")
    assert more["iterations"], more
