"""A session for tests of flows, whose stages find what they ask for in the store."""

import logging
from collections.abc import Sequence
from pathlib import Path

from artifacts.layout import RunLayout
from artifacts.refresh import Refreshes
from artifacts.store.store import Store
from flows.config.recipes import load_profile, load_recipe
from flows.orchestration.gpu_permit import GpuPermit
from flows.report.shown_run import ShownRun
from flows.report.terminal.live import LiveView
from flows.session.session import Session
from stages.context import StageContext

LOG = logging.getLogger("test")


def made_session(
    store: Store,
    folder: Path,
    layout: RunLayout,
    overrides: Sequence[str],
    profile: Sequence[str] = (),
    *,
    published: int = -1,
) -> Session:
    """Returns a session of `answers_only` with other settings, on a CPU; `published` iterations are in the store."""
    ctx = StageContext(store, folder, load_profile("cpu", profile), lambda *_: None, LOG)
    recipe, permit = load_recipe("answers_only", overrides), GpuPermit(None, "run", LOG)
    shown = ShownRun(layout, store, None, LOG)
    return Session(
        ctx, LiveView(), permit, recipe=recipe, layout=layout, refresh=Refreshes(), shown=shown, published=published
    )
