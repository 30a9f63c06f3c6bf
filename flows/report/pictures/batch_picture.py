"""Draws a packed batch: one bar for each row, in which each prompt is followed by its completions."""

import itertools
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from artifacts.layout import RunLayout
from artifacts.reading import Artifact
from artifacts.store.store import Store
from artifacts.tensors import BATCH_FILE, PackedBatch
from flows.lookup.history import IterationRecord
from flows.lookup.stages import PARTS
from flows.report.pictures.png import INK, MUTED, blank_figure, to_png

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ROWS_SHOWN = 32
_PROMPT, _BETTER, _WORSE, _EVEN, _PADDING = "#334155", "#0f766e", "#c2410c", "#9ca3af", "#f1f5f9"
_KINDS = {
    "prompt": _PROMPT,
    "advantage > 0": _BETTER,
    "advantage < 0": _WORSE,
    "advantage 0": _EVEN,
    "padding": _PADDING,
}


@dataclass(frozen=True)
class Segment:
    """A part of a row: a prompt, a completion or the padding.

    Attributes:
        row: Index of the row.
        start: Its first token in the row.
        length: Its number of tokens.
        kind: A key of `_KINDS`; for a completion, the one with the sign of its mean advantage.
    """

    row: int
    start: int
    length: int
    kind: str


@dataclass(frozen=True)
class BatchView:
    """The layout of a batch of R rows.

    Attributes:
        segments: The segments of all rows, in order.
        steps: The optimizer step of each row, from 1; [R].
        row_tokens: Tokens of a row.
        used_tokens: Tokens of all rows without padding.
        unshared_tokens: Number of tokens if completions did not share prompts.
    """

    segments: list[Segment]
    steps: list[int]
    row_tokens: int
    used_tokens: int
    unshared_tokens: int


def read_batch(record: IterationRecord, layout: RunLayout, store: Store) -> BatchView:
    """Returns the layout of the batch of an iteration that is packed.

    Raises:
        IntegrityError: The stored file is damaged.
    """
    key = layout.iteration(record.number, PARTS["pack"])
    return batch_view(
        PackedBatch.from_bytes(Artifact(store, key, record.manifests["pack"]).read_bytes(BATCH_FILE), key)
    )


def batch_view(batch: PackedBatch) -> BatchView:
    """Returns the layout of a batch."""
    segments: list[Segment] = []
    prompt_tokens: dict[int, int] = {}
    unshared = 0
    rows, width = batch.tokens.shape
    for row in range(rows):
        ids = batch.segment_ids[row]
        cuts = [0, *(np.flatnonzero(ids[1:] != ids[:-1]) + 1).tolist(), width]
        for start, end in itertools.pairwise(cuts):
            segment, parent = int(ids[start]), int(batch.parent_ids[row, start])
            if segment < 0:
                kind = "padding"
            elif segment == parent:
                kind = "prompt"
                prompt_tokens[segment] = end - start
            else:
                advantage = float(batch.advantages[row, start:end].mean())
                kind = "advantage > 0" if advantage > 0 else "advantage < 0" if advantage < 0 else "advantage 0"
                unshared += prompt_tokens[parent] + end - start
            segments.append(Segment(row, start, end - start, kind))
    used = int((batch.segment_ids >= 0).sum())
    return BatchView(segments, [int(step) + 1 for step in batch.minibatch], width, used, unshared)


def describe_batch(batch: BatchView) -> str:
    """Returns a description of the batch."""
    rows = len(batch.steps)
    if not rows:
        return "No rows: no group had anything to learn from."
    filled = batch.used_tokens / (rows * batch.row_tokens)
    completions = sum(item.kind.startswith("advantage") for item in batch.segments)
    prompts = sum(item.kind == "prompt" for item in batch.segments)
    return (
        f"Rows: {rows} of {batch.row_tokens} tokens, {filled:.1%} filled. Optimizer steps: {max(batch.steps)}. "
        f"Prompts: {prompts}, completions: {completions}. Tokens: {batch.used_tokens}; "
        f"if completions did not share prompts: {batch.unshared_tokens}."
    )


def draw(batch: BatchView) -> bytes:
    """Draws the first `ROWS_SHOWN` rows, of which there is at least one, as PNG; a gap separates optimizer steps."""
    from matplotlib.patches import Patch

    rows = min(len(batch.steps), ROWS_SHOWN)
    positions = _row_positions(batch.steps[:rows])
    figure = blank_figure(8.4, 1.3 + 0.2 * (positions[-1] + 1))
    axes = figure.subplots()
    bars: defaultdict[tuple[int, str], list[tuple[float, float]]] = defaultdict(list)
    for item in batch.segments:
        if item.row < rows:
            bars[item.row, item.kind].append((item.start, item.length))
    for (row, kind), spans in bars.items():
        axes.broken_barh(spans, (positions[row] - 0.4, 0.8), facecolors=_KINDS[kind], edgecolors="white", linewidth=0.4)
    _finish(axes, batch, positions)
    drawn = {kind for _, kind in bars}
    patches = [Patch(facecolor=colour, label=kind) for kind, colour in _KINDS.items() if kind in drawn]
    figure.legend(
        handles=patches, loc="outside upper right", ncols=len(patches), fontsize=8, frameon=False, labelcolor=INK
    )
    return to_png(figure)


def _row_positions(steps: list[int]) -> list[float]:
    """Returns the vertical middle of each row, in rows from the top; between optimizer steps there is a gap of 0.6."""
    positions = [0.0]
    for previous, step in itertools.pairwise(steps):
        positions.append(positions[-1] + (1.0 if step == previous else 1.6))
    return positions


def _finish(axes: "Axes", batch: BatchView, positions: list[float]) -> None:
    from matplotlib.ticker import MaxNLocator

    rows = len(positions)
    firsts = [row for row in range(rows) if row == 0 or batch.steps[row] != batch.steps[row - 1]]
    axes.set_yticks([positions[row] for row in firsts], [f"step {batch.steps[row]}" for row in firsts])
    axes.set_ylim(positions[-1] + 0.7, -0.7)
    axes.set_xlim(0, batch.row_tokens)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    hidden = f" (the first {rows} of {len(batch.steps)} rows)" if rows < len(batch.steps) else ""
    axes.set_xlabel(f"token of the row{hidden}", fontsize=9, color=MUTED)
    axes.tick_params(labelsize=8, colors=MUTED, length=0)
    for side in ("top", "right", "left", "bottom"):
        axes.spines[side].set_visible(False)
