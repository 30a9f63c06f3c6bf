"""The model card of a promoted checkpoint: what made it, from what, how well it does, and under which licence."""

import json
from collections.abc import Mapping
from typing import Any

from artifacts.lineage import Node, lineage
from artifacts.manifest import Manifest
from artifacts.reading import Artifact
from artifacts.refs import Ref
from artifacts.store import Store

CARD = "README.md"
_MEASURES = (("accuracy", "accuracy"), ("exact", "all answers right"))
_MODES = ("sampled", "greedy")


def model_card(verdict: Mapping[str, Any], store: Store) -> str:
    """Hugging Face's README.md for what stands after a decision.

    Args:
        verdict: Content of the decision (see `stages.gate.judge`): `standing`, `first` and `reason`.
    """
    stands, first = verdict["standing"], verdict["first"]
    checkpoint = Artifact.at(store, stands["checkpoint"]["key"]).manifest
    report, start = (Artifact.at(store, place["report"]["key"]).manifest for place in (stands, first))
    origin = lineage(store, [Ref(**first["checkpoint"])])
    base = next((node for node in origin if _stage(node) == "fetch"), None)
    run = _run(stands["checkpoint"]["key"])
    title = f"{run}, iteration {stands['iteration']}" if stands["iteration"] else f"{run}, before GRPO"
    return "\n".join(
        [
            *_front_matter(title, base, report),
            "",
            f"# {title}",
            "",
            f"Trained with Deerstalker: {stands['iteration']} iterations of GRPO (sample, grade, pack, finetune) on "
            "logic puzzles whose solutions are proved unique.",
            "",
            f"Why it stands: {verdict['reason']}.",
            "",
            "## How well it does",
            "",
            *_numbers(report, start, stands["iteration"]),
            "",
            "## What made it",
            "",
            *_makers(stands, checkpoint, origin, base),
            "",
            "## Limits",
            "",
            "The numbers above decided that this checkpoint stands, so they flatter it a little; a run's report holds "
            "figures on test puzzles that no choice looked at. Nothing is known of it outside such puzzles.",
            "",
        ]
    )


def _front_matter(title: str, base: Node | None, report: Manifest) -> list[str]:
    matter: dict[str, Any] = {"library_name": "transformers", "pipeline_tag": "text-generation"}
    if base is not None and base.manifest is not None:
        if hub := base.manifest.identity.config.get("id"):
            matter["base_model"] = hub
        if licence := base.manifest.facts.get("licence"):
            matter["license"] = licence
    matter["tags"] = ["deerstalker", "grpo", "reasoning"]
    metrics = [
        {"type": measure, "name": f"{words}, {mode}", "value": round(report.facts[mode][measure]["mean"], 4)}
        for mode in _MODES
        for measure, words in _MEASURES
        if mode in report.facts
    ]
    dataset = {"name": f"{report.facts['puzzles']} puzzles, {report.facts['split']}", "type": "deerstalker"}
    results = [{"task": {"type": "text-generation"}, "dataset": dataset, "metrics": metrics}]
    matter["model-index"] = [{"name": title, "results": results}]
    # A JSON value is a YAML value, and cannot be misread as another one.
    return ["---", *(f"{name}: {json.dumps(value, ensure_ascii=False)}" for name, value in matter.items()), "---"]


def _numbers(report: Manifest, start: Manifest, iteration: int) -> list[str]:
    shown = [("this checkpoint", report.facts)] if iteration == 0 else [
        ("before GRPO", start.facts), ("this checkpoint", report.facts),
    ]  # fmt: skip
    lines = ["| | " + " | ".join(name for name, _ in shown) + " |", "|---" * (len(shown) + 1) + "|"]
    for measure, words in _MEASURES:
        for mode in _MODES:
            cells = [_interval(facts[mode][measure]) if mode in facts else "" for _, facts in shown]
            if any(cells):
                lines.append(f"| {words}, {mode} | " + " | ".join(cells) + " |")
    facts = report.facts
    return [
        *lines,
        "",
        f"Percent of {facts['puzzles']} puzzles of split `{facts['split']}`, read by the {facts['grader']} grader; "
        "means with 95% intervals.",
    ]


def _makers(stands: Mapping[str, Any], checkpoint: Manifest, origin: list[Node], base: Node | None) -> list[str]:
    made = checkpoint.provenance
    hardware, code = made.get("hardware", {}), made.get("code", {})
    gpus = f", {len(hardware['gpus'])} x {hardware['gpus'][0]}" if hardware.get("gpus") else ""
    source = json.dumps(base.manifest.identity.config) if base and base.manifest else "not recorded"
    licence = base.manifest.facts.get("licence") if base and base.manifest else None
    chain = [*dict.fromkeys(f"`{node.ref.key}` ({_stage(node)}, {node.ref.digest[:12]})" for node in reversed(origin))]
    if stands["iteration"]:
        chain.append(f"`{stands['checkpoint']['key']}` ({stands['checkpoint']['digest'][:12]})")
    return [
        f"* base: `{source}`, licence {licence or 'not stated by its source'}",
        *(f"* {link}" for link in chain),
        f"* made on {made['created_at'][:10]} by stage `{checkpoint.identity.stage}`, revision "
        f"{checkpoint.identity.revision}, from " + (", ".join(f"{role} {ref['digest'][:12]}" for role, ref in
        checkpoint.inputs.items()) or "nothing"),
        f"* code {code.get('commit') or code.get('sources') or 'not recorded'}, "
        f"{', '.join(f'{name} {version}' for name, version in made.get('versions', {}).items())}",
        f"* hardware: {hardware.get('cpu', made['machine'])}, {hardware.get('cores', '?')} cores{gpus}",
        f"* all of it: `deerstalker lineage {stands['checkpoint']['key']}`",
        "",
        "```json",
        json.dumps(checkpoint.identity.config, indent=2, ensure_ascii=False),
        "```",
    ]  # fmt: skip


def _stage(node: Node) -> str:
    return node.manifest.identity.stage if node.manifest else "gone"


def _run(key: str) -> str:
    parts = key.split("/")
    return parts[1] if len(parts) > 1 else key


def _interval(found: Mapping[str, float]) -> str:
    return f"{found['mean'] * 100:.1f} ({max(0.0, found['low']) * 100:.1f} to {min(1.0, found['high']) * 100:.1f})"
