"""`deerstalker lineage` and `diff`."""

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rich.tree import Tree

from artifacts.errors import BadInputError
from artifacts.refs import Ref
from artifacts.store.store import Store
from artifacts.verification import Damage
from flows.cli.console.options import STORED, Stored, Wide
from flows.cli.console.output import fail_if_damaged, print_damaged_json, print_differences, print_json, terminal
from flows.cli.console.stores import filled_store
from flows.report.text.wrapping import UNLIMITED, print_labelled

if TYPE_CHECKING:
    from artifacts.lineage import Node

_DEEPEST_TREE = 40
_BRANCH_COLUMNS = 4
"""Columns by which rich indents a branch of a tree."""
_LABEL_COLUMNS = 40
"""Minimum columns of a label; a branch that would leave fewer is not drawn."""


def lineage(artifact: str, /, *, depth: int = 2, wide: Wide = False, options: Stored = STORED) -> None:
    """Prints the facts of an artifact, and a tree of its ancestors.

    Args:
        artifact: A key, such as runs/quickstart/iterations/0003/rollouts; a run (its promoted checkpoint); or
            RUN@ITERATION.
        depth: Number of steps back; 0 for all.
        wide: Print lines of any length. By default lines are as wide as the terminal, or 80 columns if there is none,
            and the tree is only as deep as fits.
    """
    from artifacts.lineage import lineage as ancestry

    if depth < 0:
        raise BadInputError("--depth", str(depth), "0 or more")
    store, damaged = filled_store(options.store), list[Damage]()
    nodes = ancestry(store, [_ref(artifact, store)], depth or None, damaged)
    if options.json:
        print_json({"store": store.url, "artifact": _node(nodes[0]), "ancestors": [_node(node) for node in nodes[1:]]})
        fail_if_damaged(store, damaged, json=True)
        return
    console = terminal(UNLIMITED if wide else None)
    for label, text in _facts(nodes[0]).items():
        print_labelled(console, f"{label:<10}", text)
    deepest = min(_DEEPEST_TREE, max(1, (console.width - _LABEL_COLUMNS) // _BRANCH_COLUMNS))
    known, drawn = {node.ref: node for node in nodes}, set[Ref[Any]]()
    console.print(_tree(nodes[0], known, drawn, deepest), highlight=False)
    if any(node.inputs and node.ref not in drawn for node in nodes):
        more = f", --wide draws {_DEEPEST_TREE} steps" if deepest < _DEEPEST_TREE else ""
        note = f"{len(nodes)} artifacts in all, drawn {deepest} steps deep; --json lists them{more}"
        print_labelled(console, "... ", note)
    fail_if_damaged(store, damaged, json=False)


def diff(a: str, b: str, /, *, options: Stored = STORED) -> None:
    """Prints the differing settings of two runs, the first artifact that differs, and the results of both.

    Args:
        a: Name of a run.
        b: Name of another.
    """
    from flows.compare.run_diff import circumstances, first_parting, paired, settings
    from flows.lookup.history import read_run
    from flows.report.summary import figures_table, measure_rows

    store, damaged = filled_store(options.store), list[Damage]()
    run_a = read_run(store, a, damaged)
    run_b = run_a if a == b else read_run(store, b, damaged)
    differing, parting = settings(run_a, run_b), first_parting(run_a, run_b)
    differing_circumstances, gains = circumstances(run_a, run_b), paired(run_a, run_b, store)
    runs = {a: run_a, b: run_b}
    after = {name: run.evaluations["after"].facts for name, run in runs.items() if "after" in run.evaluations}
    if options.json:
        print_damaged_json(
            {
                "a": a,
                "b": b,
                "settings": [{"setting": item.setting, **item.values} for item in differing],
                "circumstances": differing_circumstances,
                "first_parting": parting,
                "after": after,
                "gain_of_b": {mode: asdict(gain) for mode, gain in gains.items()},
                "promoted": {name: run.promoted and run.promoted.as_json() for name, run in runs.items()},
            },
            store,
            damaged,
        )
        return
    values_by_name = {item.setting: item.values for item in differing} | differing_circumstances
    print_differences(a, b, values_by_name or {"no difference": {}})
    console = terminal()
    where = f"iteration {parting['iteration']}, {parting['stage']}" if parting else "none so far"
    console.print(f"first stage whose artifacts differ: {where}", soft_wrap=True)
    if len(after) == 2:
        console.print(figures_table("after training", [a, b], measure_rows(list(after.values()))))
    for mode, gain in gains.items():
        points = f"{gain.mean * 100:+.1f} points ({gain.low * 100:+.1f} to {gain.high * 100:+.1f})"
        console.print(f"{b} minus {a}, accuracy {mode}, paired by puzzle: {points}", soft_wrap=True)
    fail_if_damaged(store, damaged, json=False)


def _ref(name: str, store: Store) -> Ref[Any]:
    from artifacts.layout import artifact_of
    from artifacts.reading import Artifact
    from flows.lookup.checkpoints import find_checkpoint

    if "/" in name:
        key = name.strip("/")
        return Artifact.at(store, artifact_of(key) or key).ref
    source = find_checkpoint(name, store)
    if not isinstance(source, Ref):
        raise BadInputError(name, "a model outside of the store", "an artifact: its key, a run, or RUN@ITERATION")
    Artifact.at(store, source.key)
    return source


def _node(node: "Node") -> dict[str, Any]:
    manifest = node.manifest
    return {
        **node.ref.as_json(),
        "depth": node.depth,
        "state": _state(node),
        "stage": manifest.identity.stage if manifest else None,
        "revision": manifest.identity.revision if manifest else None,
        "config": manifest.identity.config if manifest else None,
        "inputs": {role: ref.as_json() for role, ref in node.inputs.items()},
        "files": {name: file.model_dump() for name, file in manifest.files.items()} if manifest else {},
        "provenance": manifest.provenance if manifest else None,
        "pruned": manifest.pruned.model_dump() if manifest and manifest.pruned else None,
    }


def _state(node: "Node") -> str:
    if node.manifest is None:
        return "damaged" if node.damaged else "gone"
    if node.replaced:
        return "replaced"
    return "pruned" if node.manifest.pruned else "kept"


def _facts(node: "Node") -> dict[str, str]:
    manifest = node.manifest
    assert manifest is not None  # `_ref` has read it
    provenance, identity = manifest.provenance, manifest.identity
    hardware, code = provenance.get("hardware", {}), provenance.get("code", {})
    size_bytes = sum(file.size_bytes for file in manifest.files.values())
    gpus = "".join(f", {name}" for name in hardware.get("gpus", []))
    compute_dtype = manifest.facts.get("compute_dtype")
    return {
        "artifact": f"{node.ref.kind} {node.ref.key}",
        "content": f"{node.ref.digest}, {len(manifest.files)} files, {size_bytes:,} bytes, {_state(node)}",
        "made by": f"stage {identity.stage}, revision {identity.revision}, in {provenance.get('seconds', 0):.1f} s",
        "when": f"{provenance['created_at']} on {provenance['host']}",
        "hardware": f"{hardware.get('cpu') or provenance['machine']}, {hardware.get('cores', '?')} cores, "
        f"{hardware.get('memory_gib', '?')} GiB{gpus}" + (f", computed in {compute_dtype}" if compute_dtype else ""),
        "code": f"{code.get('commit', '')} sources {code.get('sources', 'not recorded')}",
        "versions": ", ".join(f"{name} {version}" for name, version in provenance["versions"].items()),
        "config": json.dumps(identity.config, ensure_ascii=False),
    }


def _tree(
    node: "Node", known: "dict[Ref[Any], Node]", drawn: set[Ref[Any]], deepest: int, role: str = "", level: int = 0
) -> Tree:
    """Returns the tree of an artifact's inputs, `deepest` branches deep.

    Args:
        known: The artifacts by ref; an input that is missing here becomes a branch without a tree of its own.
        drawn: Artifacts whose inputs have been drawn and are not drawn again; this call adds to it.
        role: Role of the artifact as an input of its parent branch; empty at the root.
    """
    stage = node.manifest.identity.stage if node.manifest and not node.replaced else _state(node)
    state = "" if _state(node) == "kept" else f" [{_state(node)}]"
    label = f"{f'{role}: ' if role else ''}{node.ref.key}  {node.ref.digest[:12]}  by {stage}{state}"
    if (node.ref in drawn or level >= deepest) and node.inputs:
        return Tree(f"{label} ...")
    drawn.add(node.ref)
    tree = Tree(label)
    for name, ref in node.inputs.items():
        branch = _tree(known[ref], known, drawn, deepest, name, level + 1) if ref in known else None
        tree.add(branch or f"{name}: {ref.key}  ...")
    return tree
