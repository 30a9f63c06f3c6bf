"""The timeline of an iteration: which stage waits for which, and how long engine or trainer computes.

Everything is read from the manifests: when each artifact was published, the seconds of its stage, and what they were
spent on (`artifacts.activity`). A failed or killed attempt leaves no manifest, so its time counts as time between
stages.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import chain
from typing import TYPE_CHECKING

from flows.lookup.stages import PARTS, STATE

if TYPE_CHECKING:
    from artifacts.activity import Activity
    from artifacts.manifest import Manifest
    from artifacts.store.store import Store
    from flows.lookup.history import IterationRecord, RunRecord

Span = tuple[float, float]
"""Beginning and end in seconds."""

WEIGHTS = "weights"
_COMPUTES: tuple[Activity, ...] = ("engine", "trainer")
SLOW_STORE_SHARE = 0.2
"""Share of an iteration's time in waiting for the store above which a run warns."""
HEAD = ("", "begins", "ends", "waits for", "waits s", "computes s", "loads s", "store s", "else s")
"""Names of the columns of `Timeline.rows`."""


@dataclass(frozen=True)
class Bar:
    """A stage, or the time from the last optimizer step to the publishing of the weights or of the optimizer state.

    Attributes:
        name: The stage, `weights` or `optimizer_state`.
        iteration: The iteration to which it belongs.
        span: Its beginning and its end.
        spans: What it spent its time on, by activity; the rest is other work.
        ready: The artifact on which it waited longest, and when that was published; None if no input is of this run.
    """

    name: str
    iteration: int
    span: Span
    spans: Mapping[Activity, Sequence[Span]]
    ready: tuple[str, float] | None = None

    def of(self, *activities: Activity) -> list[Span]:
        """Returns the spans of activities."""
        return [span for activity in activities for span in self.spans.get(activity, ())]


@dataclass(frozen=True)
class Timeline:
    """One iteration, in seconds from its beginning: the previous iteration's decision, or else its first stage.

    Attributes:
        iteration: Its number.
        length_s: Time from its beginning to its last artifact, without an optimizer state that is published later.
        bars: All bars in this time, including those of the iterations before and after, in the order of the stages.
        in_folder: Whether the store is a folder, into which the trainer itself writes.
        whole: Whether one attempt made the whole iteration. Otherwise the bars are those of the last attempt.
    """

    iteration: int
    length_s: float
    bars: Sequence[Bar]
    in_folder: bool
    whole: bool

    @property
    def computing(self) -> list[Span]:
        """The times in which the engine or the trainer computes."""
        return merged(self._of(*_COMPUTES), self.length_s)

    def shares(self) -> dict[str, float]:
        """Returns the share of the time by activity; a moment counts for the first activity in this order."""
        waited = self._of(*self._store)
        levels = {
            "computes": self._of(*_COMPUTES),
            "store": waited + self._late_states(),
            "loading": self._of("loading", "saving"),
            "other work": [bar.span for bar in self._stages],
        }
        shares: dict[str, float] = {}
        spans: list[Span] = []
        known = 0.0
        for name, more in levels.items():
            spans = merged([*spans, *more], self.length_s)
            total = length(spans)
            shares[name], known = (total - known) / self.length_s, total
        return {**shares, "between stages": 1 - known / self.length_s}

    def by_stage(self) -> dict[str, float]:
        """Returns the share of the time in which each stage computes, for those that do."""
        names = list(dict.fromkeys(bar.name for bar in self._stages))
        spans = {
            name: [span for bar in self._stages if bar.name == name for span in bar.of(*_COMPUTES)] for name in names
        }
        shares = {name: length(merged(of, self.length_s)) / self.length_s for name, of in spans.items()}
        return {name: share for name, share in shares.items() if share >= 0.0005}

    def line(self) -> str:
        """Returns the shares in words."""
        shares = self.shares()
        stages = ", ".join(f"{name} {share:.0%}" for name, share in self.by_stage().items())
        computes = shares.pop("computes")
        rest = ", ".join(f"{name} {share:.0%}" for name, share in shares.items() if share >= 0.005)
        return (
            f"engine or trainer computes {computes:.0%} of iteration {self.iteration} ({self.length_s:.1f} s): {stages}"
            + (f"; the rest: {rest}" if rest else "")
        )

    def rows(self) -> list[list[str]]:
        """Returns a row for each bar; the columns are those of `HEAD`."""
        rows: list[list[str]] = []
        for bar in self.bars:
            begin, end = bar.span
            total = end - max(0.0, begin)  # the parts are those of the iteration, too
            parts = [bar.of(*_COMPUTES), bar.of("loading", *self._saving), bar.of(*self._store)]
            seconds = [length(merged(part, end)) for part in parts]
            waits_for, ready = bar.ready or ("", begin)
            waits = [waits_for, f"{max(begin, ready) - min(begin, ready):.1f}"] if bar.ready else ["", ""]
            cells = [*seconds, max(0.0, total - length(merged(chain(*parts), end)))]
            named = bar.name.replace("_", " ")
            name = named if bar.iteration == self.iteration else f"{named} of iteration {bar.iteration}"
            rows.append([name, f"{begin:.1f}", f"{end:.1f}", *waits, *(f"{s:.1f}" if s >= 0.05 else "" for s in cells)])
        return rows

    @property
    def _stages(self) -> list[Bar]:
        return [bar for bar in self.bars if bar.name in PARTS]

    @property
    def _store(self) -> tuple[Activity, ...]:
        return ("store", "saving") if self.in_folder else ("store",)

    @property
    def _saving(self) -> tuple[Activity, ...]:
        return () if self.in_folder else ("saving",)

    def _of(self, *activities: Activity) -> list[Span]:
        return [span for bar in self._stages for span in bar.of(*activities)]

    def _late_states(self) -> list[Span]:
        """Returns the times in which a stage waited for the previous iteration's optimizer state."""
        late: list[Span] = []
        for bar in self._stages:
            if bar.ready and bar.ready[0].startswith(STATE):
                before = [other.span[1] for other in self._stages if other.span[1] <= bar.ready[1] and other is not bar]
                late.append((max(before, default=bar.ready[1]), bar.ready[1]))
        return late


def run_timeline(record: RunRecord, store: Store) -> Timeline | None:
    """Returns the timeline with the median computing share; None if no iteration recorded its activities.

    Iterations that several attempts made count only if there are no others; then the newest is returned.
    """
    published = _published(record)
    lines = [line for item in record.iterations if (line := _timeline(record, item.number, store, published))]
    whole = sorted((line for line in lines if line.whole), key=lambda line: line.shares()["computes"])
    return whole[len(whole) // 2] if whole else lines[-1] if lines else None


def iteration_timeline(record: RunRecord, number: int, store: Store) -> Timeline | None:
    """Returns the timeline of one iteration; None if it is not finished, or did not record its activities."""
    return _timeline(record, number, store, _published(record))


def _timeline(
    record: RunRecord, number: int, store: Store, published: Mapping[str, tuple[str, float]]
) -> Timeline | None:
    records = {item.number: item for item in record.iterations}
    item = records.get(number)
    if number == 0 or item is None or not {"finetune", "promote"} <= item.manifests.keys():
        return None
    own = list(item.manifests.values())
    if not all("spans" in made.provenance for made in own) or not any(_computes(made) for made in own):
        return None
    began = max(_time(made.provenance["process_began"]) for made in own)
    of_last = [made for made in own if made.made_at.timestamp() > began]
    if not of_last:  # the clock was set back meanwhile
        return None
    whole = len(of_last) == len(own) and not item.facts("sample").get("groups_reused")
    origin, end = min(map(_begin, of_last)), max(made.made_at.timestamp() for made in of_last)
    if number > 1 and number - 1 in records and records[number - 1].manifests:
        previous = max(made.made_at.timestamp() for made in records[number - 1].manifests.values())
        if whole and began <= previous <= _begin(item.manifests["finetune"]):
            origin = previous
    near = [records[other] for other in (number - 1, number, number + 1) if other in records]
    bars = [bar for other in near for bar in _bars(other, published, origin, began if not whole else 0.0)]
    inside = [bar for bar in bars if bar.span[1] > 0 and bar.span[0] < end - origin]
    order = [*list(PARTS)[: list(PARTS).index("finetune") + 1], WEIGHTS, STATE, *PARTS]
    inside.sort(key=lambda bar: (order.index(bar.name), bar.iteration))
    return Timeline(number, end - origin, inside, store.local_path(record.layout.root) is not None, whole)


def worked_s(iterations: Iterable[IterationRecord]) -> float:
    """Returns the seconds in which stages of iterations ran; those in which two ran at once count once."""
    made = [manifest for item in iterations for manifest in item.manifests.values()]
    return length(merged(((_begin(one), one.made_at.timestamp()) for one in made), math.inf))


def merged(spans: Iterable[Span], end: float) -> list[Span]:
    """Returns the union of spans from 0 to `end`, as spans that do not touch, in order."""
    union: list[Span] = []
    for first, last in sorted((max(0.0, first), min(end, last)) for first, last in spans):
        if union and first <= union[-1][1]:
            union[-1] = union[-1][0], max(last, union[-1][1])
        elif last > first:
            union.append((first, last))
    return union


def length(spans: Sequence[Span]) -> float:
    """Returns the sum of the lengths of spans."""
    return sum(last - first for first, last in spans)


def store_warning(line: Timeline, url: str) -> str | None:
    """Returns a warning if an iteration waited for the store longer than `SLOW_STORE_SHARE` of its time."""
    share = line.shares()["store"]
    if not line.whole or share <= SLOW_STORE_SHARE:
        return None
    waited = f"{share * line.length_s:.1f} of {line.length_s:.1f} s"
    return (
        f"store {url}: {share:.0%} of iteration {line.iteration} ({waited}) was waiting for it; expected at most "
        f"{SLOW_STORE_SHARE:.0%}; name a faster one with --store (`deerstalker doctor` measures it)"
    )


def _bars(item: IterationRecord, published: Mapping[str, tuple[str, float]], origin: float, since: float) -> list[Bar]:
    """Returns the bars of an iteration; artifacts that were published before `since` are left out."""
    bars: list[Bar] = []
    for stage, made in item.manifests.items():
        if "spans" in made.provenance and made.made_at.timestamp() > since:
            bars.append(_bar(stage, item.number, made, _begin(made), published, origin))
    trained = item.manifests.get("finetune")
    if trained is None or not trained.provenance.get("spans", {}).get("trainer"):
        return bars
    stepped = _begin(trained) + trained.provenance["spans"]["trainer"][-1][1]
    for name, made in ((WEIGHTS, trained), (STATE, item.state)):
        if made and "spans" in made.provenance and made.made_at.timestamp() > max(since, stepped):
            bars.append(_bar(name, item.number, made, stepped, {}, origin))
    return bars


def _bar(
    name: str, number: int, made: Manifest, begin: float, published: Mapping[str, tuple[str, float]], origin: float
) -> Bar:
    """Returns the bar of an artifact, from `begin`; times are measured from `origin`."""
    shift, start = _begin(made) - origin, begin - origin
    spans: dict[Activity, list[Span]] = {}
    for activity, of in made.provenance["spans"].items():
        spans[activity] = [(max(start, first + shift), last + shift) for first, last in of if last + shift > start]
    inputs = [published[ref["key"]] for ref in made.inputs.values() if ref["key"] in published]
    earlier = [(input_name, time - origin) for input_name, time in inputs if time < made.made_at.timestamp()]
    ready = max(earlier, key=lambda entry: entry[1], default=None)
    return Bar(name, number, (start, made.made_at.timestamp() - origin), spans, ready)


def _published(record: RunRecord) -> dict[str, tuple[str, float]]:
    """Returns the name and the time of each artifact of the iterations, by key."""
    times: dict[str, tuple[str, float]] = {}
    for item in record.iterations:
        for stage, made in item.manifests.items():
            name = WEIGHTS if stage == "finetune" else stage
            times[record.layout.iteration(item.number, PARTS[stage])] = (
                f"{name} {item.number}",
                made.made_at.timestamp(),
            )
        if item.state:
            key = record.layout.iteration(item.number, STATE)
            times[key] = (f"{STATE} {item.number}", item.state.made_at.timestamp())
    return times


def _computes(made: Manifest) -> bool:
    return not made.provenance["spans"].keys().isdisjoint(_COMPUTES)


def _begin(made: Manifest) -> float:
    return made.made_at.timestamp() - made.provenance["seconds"]


def _time(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()
