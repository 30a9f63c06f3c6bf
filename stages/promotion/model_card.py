"""The model card of a promoted checkpoint: its results, the stages and settings that made it, base model, licence."""

import json
from dataclasses import dataclass
from typing import Any, get_args

from artifacts.layout import RunLayout
from artifacts.lineage import Node, lineage
from artifacts.manifest import Manifest
from artifacts.reading import Artifact
from artifacts.refs import Checkpoint, Ref
from artifacts.store.store import Store
from stages.environments.puzzle import Grader
from stages.statistics.estimates import Interval
from stages.statistics.records import MeasuredCheckpoint, Measurement, PromotionDecision, ReportFigures

CARD = "README.md"
_LIBRARY = "transformers"
_TAGS = ["deerstalker", "grpo", "reasoning"]
_MEASURES = (("accuracy", "accuracy"), ("exact", "all answers right"))
_MODES = ("sampled", "greedy")
_OF_ITERATIONS = ("Rollouts", "Grades", "Batch", "OptimizerState")
"""Kinds of artifacts that the card's chain leaves out; a run that starts from another run's checkpoint has many."""


def model_card(decision: PromotionDecision, store: Store) -> str:
    """Returns Hugging Face's README.md for the checkpoint that is promoted after a decision."""
    stands, first = decision.standing, decision.first
    checkpoint = Artifact.at(store, stands.checkpoint.key).manifest
    report, start = (
        ReportFigures.of(Artifact.at(store, measured.report.key).manifest.facts, measured.report.key)
        for measured in (stands, first)
    )
    origin = lineage(store, [first.checkpoint])
    base = next((node for node in origin if _stage(node) == "fetch"), None)
    run = _run_of(stands.report.key)
    title = f"{run}, iteration {stands.iteration}" if stands.iteration else f"{run}, before GRPO"
    return "\n".join(
        [
            *_front_matter(title, base, report),
            "",
            f"# {title}",
            "",
            f"Trained with Deerstalker: {stands.iteration} iterations of GRPO (sample, grade, pack, finetune) on "
            + (
                "logic puzzles whose solutions are proved unique."
                if report.grader in get_args(Grader)
                else f"items of one answer each (grader `{report.grader}`)."
            ),
            "",
            f"Why it was selected: {decision.reason}.",
            "",
            "## Results",
            "",
            *_numbers(report, start, stands.iteration),
            "",
            "## How it was made",
            "",
            *_makers(stands, checkpoint, origin, base),
            "",
            "## Limits",
            "",
            "This checkpoint was selected by the numbers above, so they tend to be slightly high. The run's report has "
            "figures on test puzzles, by which nothing was selected. Nothing is known about other tasks.",
            "",
        ]
    )


@dataclass(frozen=True)
class ExportedCard:
    """The model card of an exported checkpoint.

    Attributes:
        text: Hugging Face's README.md.
        base: Hub id of the run's first model; None if it has none, or was trained before the adapter.
        revision: Its commit, tag or branch.
    """

    text: str
    base: str | None = None
    revision: str | None = None


def exported_card(ref: Ref[Checkpoint], store: Store, promoted: str | None, *, adapter: bool) -> ExportedCard:
    """Returns the card of an exported checkpoint.

    Args:
        ref: The checkpoint.
        store: Its store.
        promoted: Its card, if it is promoted; another checkpoint gets one without results.
        adapter: Whether a LoRA adapter is exported without its base.
    """
    origin = lineage(store, [ref])
    base = next((node for node in origin if _stage(node) == "fetch"), None)
    where = f": its results are in the report of {layout.run}" if (layout := RunLayout.of(ref.key)) else ""
    text = promoted or "\n".join(
        [
            *_matter_lines({**_about_base(base), "tags": _TAGS}), "", f"# {ref.key}", "",
            f"Trained with Deerstalker, and not promoted{where}.", "",
            "## What made it", "", *_chain(origin, base), "",
        ]
    )  # fmt: skip
    if not adapter:
        return ExportedCard(text)
    below = Ref(**Artifact.open(store, ref).manifest.inputs["base"])
    fetched = base is not None and base.ref.key == below.key and base.manifest is not None
    source = base.manifest.identity.config if fetched and base and base.manifest else {}
    named, revision = source.get("id"), source.get("revision")
    text = text.replace(f"library_name: {json.dumps(_LIBRARY)}", 'library_name: "peft"', 1)
    where = f"`{named}` of the hub, revision `{revision}`" if named else f"`deerstalker export {below.key} FOLDER`"
    return ExportedCard(f"{text}\nThis is a LoRA adapter. Its base: {where}.\n", named, revision)


def _front_matter(title: str, base: Node | None, report: ReportFigures) -> list[str]:
    matter = {**_about_base(base), "tags": _TAGS}
    metrics = [
        {"type": measure, "name": f"{words}, {mode}", "value": round(_interval(measured, measure).mean, 4)}
        for mode, measured in _measurements(report).items()
        for measure, words in _MEASURES
    ]
    dataset = {"name": f"{report.puzzles} puzzles, {report.split}", "type": "deerstalker"}
    results = [{"task": {"type": "text-generation"}, "dataset": dataset, "metrics": metrics}]
    matter["model-index"] = [{"name": title, "results": results}]
    return _matter_lines(matter)


def _about_base(base: Node | None) -> dict[str, Any]:
    matter: dict[str, Any] = {"library_name": _LIBRARY, "pipeline_tag": "text-generation"}
    if base is not None and base.manifest is not None:
        if hub := base.manifest.identity.config.get("id"):
            matter["base_model"] = hub
        if licence := base.manifest.facts.get("licence"):
            matter["license"] = licence
    return matter


def _matter_lines(matter: dict[str, Any]) -> list[str]:
    # A JSON value is a YAML value, and cannot be misread as another one.
    return ["---", *(f"{name}: {json.dumps(value, ensure_ascii=False)}" for name, value in matter.items()), "---"]


def _numbers(report: ReportFigures, start: ReportFigures, iteration: int) -> list[str]:
    shown = {"before GRPO": start, "this checkpoint": report} if iteration else {"this checkpoint": report}
    measured = [_measurements(item) for item in shown.values()]
    lines = ["| | " + " | ".join(shown) + " |", "|---" * (len(shown) + 1) + "|"]
    for measure, words in _MEASURES:
        for mode in _MODES:
            cells = [_percent(_interval(item[mode], measure)) if mode in item else "" for item in measured]
            if any(cells):
                lines.append(f"| {words}, {mode} | " + " | ".join(cells) + " |")
    return [
        *lines,
        "",
        f"Percent of {report.puzzles} puzzles of split `{report.split}`, read by the {report.grader} grader; "
        "means with 95% intervals.",
    ]


def _makers(stands: MeasuredCheckpoint, checkpoint: Manifest, origin: list[Node], base: Node | None) -> list[str]:
    provenance = checkpoint.provenance
    hardware, code = provenance.get("hardware", {}), provenance.get("code", {})
    gpus = f", {len(hardware['gpus'])} x {hardware['gpus'][0]}" if hardware.get("gpus") else ""
    chain = _chain(origin, base)
    if stands.iteration:
        chain.append(f"* `{stands.checkpoint.key}` ({stands.checkpoint.digest[:12]})")
    return [
        *chain,
        f"* made on {provenance['created_at'][:10]} by stage `{checkpoint.identity.stage}`, revision "
        f"{checkpoint.identity.revision}, from " + (", ".join(f"{role} {ref['digest'][:12]}" for role, ref in
        checkpoint.inputs.items()) or "nothing"),
        f"* code {code.get('commit') or code.get('sources') or 'not recorded'}, "
        f"{', '.join(f'{name} {version}' for name, version in provenance.get('versions', {}).items())}",
        f"* hardware: {hardware.get('cpu', provenance['machine'])}, {hardware.get('cores', '?')} cores{gpus}",
        f"* all of it: `deerstalker lineage {stands.checkpoint.key}`",
        "",
        "```json",
        json.dumps(checkpoint.identity.config, indent=2, ensure_ascii=False),
        "```",
    ]  # fmt: skip


def _chain(origin: list[Node], base: Node | None) -> list[str]:
    """Returns lines about the base and the artifacts between it and a checkpoint."""
    source = json.dumps(base.manifest.identity.config) if base and base.manifest else "not recorded"
    licence = base.manifest.facts.get("licence") if base and base.manifest else None
    shown = [node for node in reversed(origin) if node.ref.kind not in _OF_ITERATIONS]
    links = dict.fromkeys(f"* `{node.ref.key}` ({_stage(node)}, {node.ref.digest[:12]})" for node in shown)
    return [f"* base: `{source}`, licence {licence or 'not stated by its source'}", *links]


def _stage(node: Node) -> str:
    return node.manifest.identity.stage if node.manifest else "gone"


def _run_of(key: str) -> str:
    layout = RunLayout.of(key)
    return layout.run if layout else key


def _measurements(report: ReportFigures) -> dict[str, Measurement]:
    modes = {"sampled": report.sampled, "greedy": report.greedy}
    return {mode: measured for mode, measured in modes.items() if measured is not None}


def _interval(measured: Measurement, measure: str) -> Interval:
    return measured.accuracy if measure == "accuracy" else measured.exact


def _percent(interval: Interval) -> str:
    return f"{interval.mean * 100:.1f} ({max(0.0, interval.low) * 100:.1f} to {min(1.0, interval.high) * 100:.1f})"
