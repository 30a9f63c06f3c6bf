"""The overlays for 1, 8 and 64 GPUs: what they render to, and whether their profiles and pods agree."""

import shutil
import subprocess
from typing import Any

import kubernetes_validate
import pytest
import yaml

from flows.config.recipes import load_profile
from tests.support.kustomize import FOLDER, OVERLAYS, Object, find, render

KUBERNETES = "1.34"


def gpus(pod: Object) -> int:
    return sum(int(part["resources"].get("limits", {}).get("nvidia.com/gpu", 0)) for part in pod["spec"]["containers"])


def copies(item: Object) -> int:
    return item["spec"].get("parallelism", item["spec"].get("replicas", 1))


def test_there_are_overlays_for_1_8_and_64_gpus() -> None:
    assert OVERLAYS == ["1-gpu", "64-gpus", "8-gpus"]


@pytest.mark.parametrize("name", OVERLAYS)
def test_an_overlay_holds_against_the_schemas_and_has_the_gpus_of_its_name(name: str) -> None:
    objects = render(FOLDER / "overlays" / name)
    for item in objects:
        kubernetes_validate.validate(item, KUBERNETES, strict=True)
    keys = [(item["kind"], item["metadata"]["name"]) for item in objects]
    assert len(set(keys)) == len(keys)
    pods = [item for item in objects if "template" in item.get("spec", {})]
    assert sum(copies(item) * gpus(item["spec"]["template"]) for item in pods) == int(name.partition("-")[0])


@pytest.mark.parametrize("name", OVERLAYS)
def test_the_reader_renders_what_kustomize_renders(name: str) -> None:
    if shutil.which("kubectl") is None:
        pytest.skip("no kubectl here, which has kustomize in it")
    folder = FOLDER / "overlays" / name
    done = subprocess.run(["kubectl", "kustomize", str(folder)], capture_output=True, text=True, check=True)

    def ordered(objects: list[Object]) -> list[Object]:
        return sorted(objects, key=lambda item: (item["kind"], item["metadata"]["name"]))

    assert ordered(list(yaml.safe_load_all(done.stdout))) == ordered(render(folder))


@pytest.mark.parametrize("name", OVERLAYS)
def test_the_profile_of_an_overlay_is_that_of_its_pods(name: str) -> None:
    folder = FOLDER / "overlays" / name
    objects = render(folder)
    file = folder / "profile.toml"
    profile = load_profile(str(file) if file.exists() else "cuda")
    trainer, engine = profile.trainer, profile.engine
    worker = find(objects, "Deployment", "deerstalker-worker")
    assert trainer.processes == gpus(worker["spec"]["template"]) and trainer.device == "cuda"
    assert profile.gpu_slot == "gpu"
    if trainer.nodes == 1:
        assert not engine.external_urls
        return
    job = find(objects, "Job", "trainer")["spec"]
    assert job["completionMode"] == "Indexed" and job["completions"] == job["parallelism"] == trainer.nodes - 1
    assert gpus(job["template"]) == trainer.processes
    engines = find(objects, "StatefulSet", "engine")["spec"]
    hosts = [f"engine-{number}.{engines['serviceName']}" for number in range(engines["replicas"])]
    assert list(engine.external_urls) == [f"http://{host}:8000" for host in hosts]
    service = find(objects, "Service", str(trainer.rendezvous))["spec"]
    assert service["clusterIP"] == "None", "its name is the address of the pod, where node 0 listens"
    assert service["selector"].items() <= worker["spec"]["template"]["metadata"]["labels"].items()
    (container,) = worker["spec"]["template"]["spec"]["containers"]
    variables = {item["name"]: item.get("value") for item in container["env"]}
    assert engine.api_key_env in variables and str(trainer.shared_dir).startswith(f"{variables['TMPDIR']}/")
    for pod in (worker["spec"]["template"], job["template"], engines["template"]):
        assert claim_at(pod, str(variables["TMPDIR"])) == "deerstalker-shared", "all see the same temporary files"


def claim_at(pod: Object, path: str) -> str:
    """The claim that is mounted at a path of a pod's container."""
    (container,) = pod["spec"]["containers"]
    (mount,) = [mount for mount in container["volumeMounts"] if mount["mountPath"] == path]
    volumes: dict[str, Any] = {volume["name"]: volume for volume in pod["spec"]["volumes"]}
    return volumes[mount["name"]]["persistentVolumeClaim"]["claimName"]
