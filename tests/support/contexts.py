"""Contexts of stages for tests."""

import logging
from pathlib import Path
from typing import Any

from artifacts.store.store import Store
from stages.context import Profile, StageContext


def make_context(store: Store, scratch: Path, **profile: Any) -> StageContext:
    """Returns a context that reports its progress to nobody.

    Args:
        store: Store of the artifacts.
        scratch: Folder for local files.
        **profile: Settings of the machine; by default it has one worker.
    """
    profile.setdefault("workers", 1)
    return StageContext(store, scratch, Profile(**profile), lambda *_: None, logging.getLogger("test"))
