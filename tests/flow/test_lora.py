"""A LoRA run as a user runs it, every command that takes its checkpoints, and a run that continues its adapter."""

import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from artifacts.layout import RunLayout
from artifacts.manifest import Manifest
from artifacts.reading import Artifact
from artifacts.store.store import Store
from stages.models.stored import holds_adapter
from stages.models.tensors import check_weights
from tests.support.installed import ONE_ENGINE, TINY
from tests.support.processes import DEERSTALKER
from tests.support.tiny_runs import LORA

ENGINE = ("--profile", str(ONE_ENGINE))


@dataclass(frozen=True)
class LoraRun:
    """A finished run of two iterations, `lora`, in a folder with the store."""

    folder: Path
    api_url: str

    @property
    def url(self) -> str:
        return str(self.folder / "store")

    @property
    def manifests(self) -> list[Manifest]:
        store, layout = Store.open(self.url), RunLayout("lora")
        return [Artifact.at(store, layout.iteration(number, "checkpoint")).manifest for number in (1, 2)]

    def told(self, *arguments: str) -> dict[str, Any]:
        environment = {**os.environ, "PREFECT_API_URL": self.api_url}
        command = [DEERSTALKER, *arguments, "--store", self.url, "--json"]
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
        assert done.returncode == 0, done.stderr[-3000:]
        return json.loads(done.stdout)

    def train(self, run: str, *settings: str) -> dict[str, Any]:
        changed = [word for setting in (*LORA, *settings) for word in ("--set", setting)]
        return self.told("train", "--recipe", str(TINY), *ENGINE, "--run", run, *changed)


@pytest.fixture(scope="module")
def lora(tmp_path_factory: pytest.TempPathFactory, prefect_api_url: str) -> LoraRun:
    made = LoraRun(tmp_path_factory.mktemp("lora"), prefect_api_url)
    made.train("lora")
    return made


@pytest.mark.long
def test_a_run_publishes_adapters_of_one_base_which_are_exported_alone_and_merged(lora: LoraRun) -> None:
    manifests = lora.manifests
    assert all(holds_adapter(manifest) for manifest in manifests)
    assert manifests[0].inputs["base"] == manifests[1].inputs["base"]
    assert [manifest.facts["totals"]["movement_lost"] for manifest in manifests] == pytest.approx([0, 0], abs=0.02)
    lora.told("export", "lora@2", str(lora.folder / "adapter"))
    lora.told("export", "lora@2", str(lora.folder / "merged"), "--merge")
    check_weights(lora.folder / "merged")


@pytest.mark.release
def test_an_adapter_is_measured_solves_and_is_trained_by_another_run(lora: LoraRun) -> None:
    lora.told("evaluate", "--checkpoint", "lora@2", "--puzzles", "lora:test", "--count", "2", *ENGINE)
    lora.told("solve", "--checkpoint", "lora@2", "lora:test", *ENGINE)
    adapter = lora.folder / "again"
    lora.told("export", "lora@2", str(adapter))
    base = lora.manifests[0].inputs["base"]["key"]
    model = f"model={{source='checkpoint', name='{base}', adapter='{adapter}'}}"
    more = lora.train("more", model, "iterations=1", "warm_start=null")
    first = Artifact.at(Store.open(lora.url), RunLayout("more").iteration(1, "checkpoint")).manifest
    assert first.inputs["base"]["key"] == base and first.inputs["weights"]["key"].startswith("models/adapter-")
    assert more["iterations"], more
