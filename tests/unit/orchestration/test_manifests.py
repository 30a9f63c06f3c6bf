"""The manifests for Kubernetes: which rights pods have, who reaches whom, and where passwords and keys come from."""

from pathlib import Path
from typing import Any

import pytest
import yaml

FOLDER = Path(__file__).parents[3] / "deployments" / "kubernetes"
OBJECTS: list[dict[str, Any]] = [
    item
    for path in sorted(FOLDER.glob("**/*.yaml"))
    if path.name != "kustomization.yaml"
    for item in yaml.safe_load_all(path.read_text())
]
PODS: dict[str, dict[str, Any]] = {
    item["metadata"]["name"]: item["spec"]["template"] for item in OBJECTS if "template" in item.get("spec", {})
}
POLICIES: dict[str, dict[str, Any]] = {
    item["metadata"]["name"]: item["spec"] for item in OBJECTS if item["kind"] == "NetworkPolicy"
}
FLOW_RUN = {"prefect.io/flow-run-id": "1234"}
"""A label that Prefect gives to the pod of a flow run."""
STRANGER = {"app": "something-else"}


def kinds(kind: str) -> list[dict[str, Any]]:
    return [item for item in OBJECTS if item["kind"] == kind]


def container_of(name: str) -> dict[str, Any]:
    (container,) = PODS[name]["spec"]["containers"]
    return container


def selects(selector: dict[str, Any], labels: dict[str, str]) -> bool:
    """Whether a label selector takes a pod."""
    for rule in selector.get("matchExpressions", []):
        assert rule["operator"] in ("In", "Exists")
        if rule["key"] not in labels or (rule["operator"] == "In" and labels[rule["key"]] not in rule["values"]):
            return False
    return all(labels.get(key) == value for key, value in selector.get("matchLabels", {}).items())


def reaches(source: dict[str, str], target: dict[str, str], port: int) -> bool:
    """Whether the policies let a pod open a connection to another."""
    ruling = [spec for spec in POLICIES.values() if selects(spec["podSelector"], target)]
    if not ruling:
        return True
    rules = [rule for spec in ruling if "Ingress" in spec["policyTypes"] for rule in spec.get("ingress", [])]
    return any(
        any(selects(peer["podSelector"], source) for peer in rule["from"])
        and any(_covers(ports, port) for ports in rule["ports"])
        for rule in rules
    )


def _covers(ports: dict[str, Any], port: int) -> bool:
    return ports["protocol"] == "TCP" and ports["port"] <= port <= ports.get("endPort", ports["port"])


@pytest.mark.parametrize("name", PODS)
def test_a_pod_has_no_rights_that_it_does_not_need(name: str) -> None:
    pod, container = PODS[name]["spec"], container_of(name)
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["runAsUser"] > 0 and pod["securityContext"]["fsGroup"] > 0
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert pod.get("automountServiceAccountToken", True) is (name == "prefect-worker"), "it alone asks Kubernetes"
    assert not {"hostNetwork", "hostPID", "hostIPC"} & set(pod)
    assert not any("hostPath" in volume for volume in pod.get("volumes", []))


@pytest.mark.parametrize("name", PODS)
def test_a_pod_with_a_read_only_root_can_write_where_its_program_does(name: str) -> None:
    written = {mount["mountPath"] for mount in container_of(name)["volumeMounts"] if not mount.get("readOnly")}
    assert "/tmp" in written
    assert ("/var/run/postgresql" if name == "prefect-postgres" else "/home/deerstalker") in written


def test_the_engine_demands_a_key_on_every_path() -> None:
    container = container_of("engine")
    assert container["args"][:3] == ["python", "-m", "stages.sampling.server"]
    variables = {item["name"]: item for item in container["env"]}
    assert variables["VLLM_API_KEY"]["valueFrom"] == {"secretKeyRef": {"name": "deerstalker", "key": "engine-key"}}
    assert not any("key" in argument for argument in container["args"])
    flows = {item["name"]: item for item in container_of("deerstalker-worker")["env"]}
    assert flows["DEERSTALKER_ENGINE_KEY"]["valueFrom"]["secretKeyRef"]["key"] == "engine-key"


@pytest.mark.parametrize("name", PODS)
def test_every_password_comes_from_a_secret(name: str) -> None:
    for item in container_of(name).get("env", []):
        if any(word in item["name"] for word in ("PASSWORD", "KEY", "AUTH_STRING", "TOKEN")):
            assert "value" not in item or item["name"].endswith(("_SECRET_NAME", "_SECRET_KEY")), item


def test_the_server_and_all_who_talk_to_it_have_its_password() -> None:
    holders = {"prefect-server": "PREFECT_SERVER_API_AUTH_STRING"}
    holders |= {"deerstalker-worker": "PREFECT_API_AUTH_STRING", "prefect-worker": "PREFECT_API_AUTH_STRING"}
    for name, variable in holders.items():
        given = {item["name"]: item.get("valueFrom") for item in container_of(name)["env"]}
        assert given[variable] == {"secretKeyRef": {"name": "deerstalker", "key": "prefect-auth"}}
    worker = {item["name"]: item.get("value") for item in container_of("prefect-worker")["env"]}
    prefix = "PREFECT_INTEGRATIONS_KUBERNETES_WORKER_API_AUTH_STRING_SECRET_"
    assert (worker[f"{prefix}NAME"], worker[f"{prefix}KEY"]) == ("deerstalker", "prefect-auth"), "for its Jobs"


def test_the_role_of_the_worker_reads_no_secret() -> None:
    (role,) = kinds("Role")
    resources = {resource for rule in role["rules"] for resource in rule["resources"]}
    assert resources == {"events", "pods", "pods/log", "pods/status", "jobs"}
    assert not any("*" in rule[part] for rule in role["rules"] for part in ("apiGroups", "resources", "verbs"))
    assert kinds("ClusterRole") == kinds("ClusterRoleBinding") == []


@pytest.mark.parametrize(
    ("target", "port", "sources"),
    [
        ("engine", 8000, {"deerstalker-worker", "flow run"}),
        ("prefect-postgres", 5432, {"prefect-server"}),
        ("prefect-server", 4200, {"deerstalker-worker", "prefect-worker", "flow run"}),
        ("deerstalker-worker", 8000, set[str]()),
        ("deerstalker-worker", 60999, {"deerstalker-worker", "trainer"}),
        ("trainer", 60999, {"deerstalker-worker", "trainer"}),
        ("trainer", 8000, set[str]()),
        ("prefect-worker", 8080, set[str]()),
    ],
)
def test_a_pod_is_reached_by_those_only_that_need_it(target: str, port: int, sources: set[str]) -> None:
    labels = {name: pod["metadata"]["labels"] for name, pod in PODS.items()}
    peers = {**labels, "flow run": FLOW_RUN, "stranger": STRANGER}
    assert {name for name, source in peers.items() if reaches(source, labels[target], port)} == sources
    assert not any(reaches(source, labels[target], port + 1) for source in peers.values())
    assert not any(reaches(source, FLOW_RUN, port) for source in peers.values())


def test_policies_cover_every_pod_and_no_pod_of_others() -> None:
    for name, pod in PODS.items():
        assert any(selects(spec["podSelector"], pod["metadata"]["labels"]) for spec in POLICIES.values()), name
    assert not any(selects(spec["podSelector"], STRANGER) for spec in POLICIES.values())
    for name in ("engine", "prefect-postgres"):
        assert "Egress" in POLICIES[name]["policyTypes"] and "egress" not in POLICIES[name], "opens no connection"
