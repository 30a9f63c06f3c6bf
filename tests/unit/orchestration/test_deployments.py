"""What lies in `deployments/`: entrypoints that import, requests that their models take, sound images and manifests."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any, get_type_hints

import kubernetes_validate
import pytest
import yaml
from prefect.utilities.callables import parameter_schema
from prefect.utilities.importtools import import_object

from flows.opening import RunRequest
from flows.orchestration.installation import IMAGE_FOLDER, Installation, deployment_file

FOLDER = Path(__file__).parents[3] / "deployments"
MANIFESTS = [path for path in sorted(FOLDER.glob("kubernetes/**/*.yaml")) if path.name != "kustomization.yaml"]
DEPLOYMENTS: list[dict[str, Any]] = yaml.safe_load((FOLDER / "prefect.yaml").read_text())["deployments"]
KUBERNETES = "1.34"


@pytest.mark.parametrize("deployment", DEPLOYMENTS, ids=lambda item: item["name"])
def test_a_deployment_names_a_flow_and_a_request_that_it_takes(deployment: dict[str, Any]) -> None:
    flow = import_object(deployment["entrypoint"])
    model = get_type_hints(flow.fn)["request"]
    model.model_validate(deployment["parameters"]["request"])
    with pytest.raises(ValueError, match="recepi"):
        model.model_validate({**deployment["parameters"]["request"], "recepi": 1})


@pytest.mark.parametrize("deployment", DEPLOYMENTS, ids=lambda item: item["name"])
def test_the_form_describes_every_field_and_allows_no_other(deployment: dict[str, Any]) -> None:
    flow = import_object(deployment["entrypoint"])
    schema = parameter_schema(flow).model_dump()
    request = schema["definitions"][get_type_hints(flow.fn)["request"].__name__]
    assert request["additionalProperties"] is False
    assert [name for name, field in request["properties"].items() if not field.get("description")] == []


def test_an_installation_fills_in_store_pool_and_image() -> None:
    installation = Installation(store="s3://bucket/prefix", folder="/somewhere", pool="gpus", image="deerstalker:cuda")
    filled = deployment_file(installation)
    assert {item["parameters"]["request"]["store"] for item in filled["deployments"]} == {"s3://bucket/prefix"}
    environment = {"PREFECT_FLOWS_HEARTBEAT_FREQUENCY": "30", "DEERSTALKER_STORE": "s3://bucket/prefix"}
    variables = {"env": environment, "image": "deerstalker:cuda"}
    assert all(item["work_pool"] == {"name": "gpus", "job_variables": variables} for item in filled["deployments"])
    assert [item["name"] for item in filled["deployments"]] == [f"{item['name']}-gpus" for item in DEPLOYMENTS]
    (step,) = filled["pull"][0].values()
    assert step == {"directory": IMAGE_FOLDER}
    assert f"WORKDIR {IMAGE_FOLDER}\n" in (FOLDER / "images" / "Dockerfile").read_text()


def test_a_request_without_a_store_gets_that_of_the_installation() -> None:
    """Prefect merges no requests: what a person gives replaces all of the deployed one."""
    (item, *_) = deployment_file(Installation(store="s3://bucket/prefix", folder="."))["deployments"]
    script = "from flows.opening import RunRequest; print(RunRequest(run='mine').store)"
    environment = os.environ | item["work_pool"]["job_variables"]["env"]
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, env=environment)
    assert done.stdout == "s3://bucket/prefix\n"


def test_the_usual_pool_has_the_plain_names_and_runs_that_are_heard_of() -> None:
    filled = deployment_file(Installation(store="/store", folder="."))
    assert [item["name"] for item in filled["deployments"]] == [item["name"] for item in DEPLOYMENTS]
    for item in filled["deployments"]:
        assert float(item["work_pool"]["job_variables"]["env"]["PREFECT_FLOWS_HEARTBEAT_FREQUENCY"]) * 3 < 120
    (step,) = filled["pull"][0].values()
    assert step == {"directory": "."}


def test_the_dockerfile_passes_its_linter() -> None:
    done = _tool("hadolint", "--strict-labels", str(FOLDER / "images" / "Dockerfile"))
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_linter_finds_a_bad_dockerfile(tmp_path: Path) -> None:
    bad = tmp_path / "Dockerfile"
    bad.write_text("FROM python\nRUN cd /tmp\n")
    assert _tool("hadolint", str(bad)).returncode == 1


@pytest.mark.parametrize("manifest", MANIFESTS, ids=lambda path: path.stem)
def test_a_manifest_holds_against_the_schemas_of_kubernetes(manifest: Path) -> None:
    def validate(text: str) -> None:
        for part in yaml.safe_load_all(text):
            kubernetes_validate.validate(part, KUBERNETES, strict=True)

    validate(manifest.read_text())
    with pytest.raises(kubernetes_validate.ValidationError):
        validate(manifest.read_text().replace("  name:", "  nmae:", 1))


def test_the_base_image_is_named_by_a_digest_that_the_build_must_be_given() -> None:
    lines = _dockerfile()
    stages = dict(re.findall(r"^FROM (\S+)(?: AS (\w+))?$", "\n".join(lines), re.MULTILINE))
    assert [name for name in stages if name not in stages.values()] == ["${BASE_IMAGE}@${BASE_DIGEST}"]
    assert "ARG BASE_DIGEST" in lines, "without a default"
    base = next(line.partition("=")[2] for line in lines if line.startswith("ARG BASE_IMAGE="))
    assert base.startswith("python:3.11-") and "@" not in base


def test_the_image_installs_nothing_without_a_hash() -> None:
    steps = [step.strip() for line in _dockerfile() if line.startswith("RUN ") for step in line[4:].split("&&")]
    installing = [step for step in steps if re.match(r"(uv )?pip (install|sync)|uv (sync|build|run|tool|add)", step)]
    assert len(installing) == 4
    for step in installing:
        assert "--require-hashes" in step or {"--no-index", "--no-deps"} <= set(step.split()), step
    assert any(step.startswith("uv export ") and "--frozen" in step for step in steps)
    assert any(step.startswith("uv pip compile ") and "--generate-hashes" in step for step in steps)
    for line in (FOLDER / "images" / "uv.txt").read_text().splitlines():
        assert line.startswith("#") or re.fullmatch(r"uv==[\d.]+ --hash=sha256:[0-9a-f]{64}", line)
    project = tomllib.loads((FOLDER.parent / "pyproject.toml").read_text())
    assert project["tool"]["uv"]["exclude-newer"]
    assert all("==" in item for item in project["project"]["optional-dependencies"]["pools"])


def _dockerfile() -> list[str]:
    """Its instructions, each in one line."""
    text = (FOLDER / "images" / "Dockerfile").read_text()
    whole = re.sub(r"\\\n\s*", "", re.sub(r"^#.*\n", "", text, flags=re.MULTILINE))
    return [line for line in whole.splitlines() if line]


def _tool(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    program = str(Path(sys.executable).with_name(name))
    return subprocess.run([program, *arguments], capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("stage", "fits"), [("sample@1", True), ("promote@12", True), ("sample", False), ("draw@1", False)]
)
def test_a_run_stops_behind_a_stage_of_an_iteration(stage: str, fits: bool) -> None:
    if fits:
        assert RunRequest(stop_after=stage).stop_after == stage
        return
    with pytest.raises(ValueError, match="stop_after"):
        RunRequest(stop_after=stage)
