"""Renders the overlays of `deployments/kubernetes` as kustomize does, for machines without `kubectl`.

Only the fields that the overlays use are known: `resources`, `replicas`, patches by JSON path (RFC 6902) with `replace`
only, and config maps of files. Another field is an error.
"""

from pathlib import Path
from typing import Any

import yaml

FOLDER = Path(__file__).parents[2] / "deployments" / "kubernetes"
OVERLAYS = sorted(path.parent.name for path in FOLDER.glob("overlays/*/kustomization.yaml"))
_PLAIN = {"apiVersion", "kind", "generatorOptions"}

Object = dict[str, Any]


def render(folder: Path) -> list[Object]:
    """Returns the objects of a folder with a kustomization.

    Raises:
        AssertionError: A field or an operation is unknown, or a target is missing.
    """
    told: Object = yaml.safe_load((folder / "kustomization.yaml").read_text())
    objects: list[Object] = []
    for name in told.pop("resources"):
        path = folder / name
        objects += render(path) if path.is_dir() else list(yaml.safe_load_all(path.read_text()))
    for entry in told.pop("configMapGenerator", []):
        assert set(entry) == {"name", "files"} and told["generatorOptions"] == {"disableNameSuffixHash": True}
        data = {name: (folder / name).read_text() for name in entry["files"]}
        metadata = {"name": entry["name"]}
        objects.append({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data})
    for entry in told.pop("replicas", []):
        find(objects, "StatefulSet", entry["name"])["spec"]["replicas"] = entry["count"]
    for patch in told.pop("patches", []):
        for operation in yaml.safe_load(patch["patch"]):
            _apply(find(objects, **patch["target"]), **operation)
    assert set(told) <= _PLAIN, f"kustomize knows more than this reader: {set(told) - _PLAIN}"
    return objects


def find(objects: list[Object], kind: str, name: str) -> Object:
    """Returns the only object of a kind and a name."""
    (one,) = [item for item in objects if (item["kind"], item["metadata"]["name"]) == (kind, name)]
    return one


def _apply(target: Any, op: str, path: str, value: Any) -> None:
    *parents, last = [int(key) if key.isdigit() else key for key in path.removeprefix("/").split("/")]
    for key in parents:
        target = target[key]
    assert op == "replace" and (isinstance(last, int) or last in target), (op, path)
    target[last] = value
