"""`deerstalker puzzles make`."""

import json
import logging
import os
import sys
import tempfile
from pathlib import Path

from artifacts.errors import BadInputError, StoreError
from artifacts.reading import Artifact
from artifacts.refs import Puzzles
from artifacts.schemas import PUZZLES
from artifacts.slot import Slot
from artifacts.store import Store
from flows.commands.output import print_json
from flows.live import choose_view, use_view
from flows.options import Output
from flows.recipes import validate
from stages.context import Profile, StageContext
from stages.prepare import PrepareConfig, prepare
from stages.puzzles.generate import TIERS
from stages.puzzles.tables import from_table


def make_command(count: int, tier: str, seed: int, out: str, options: Output) -> None:
    """Writes `count` different puzzles as JSON in the published format; the same for (tier, seed) everywhere."""
    if tier not in TIERS:
        raise BadInputError(f"--tier {tier}", "unknown", ", ".join(TIERS))
    path = Path(out)
    if not path.parent.is_dir():
        raise BadInputError(f"--out {out}", "no such folder", "a file in an existing folder", "make the folder first")
    settings = {"puzzle": TIERS[tier], "train": 0, "val": 0, "test": count, "seed": seed}
    config = validate(PrepareConfig, settings, "puzzles make")
    store = Store.open("memory://puzzles")
    view = choose_view(plain=options.json or options.debug)
    with tempfile.TemporaryDirectory(prefix="deerstalker-") as scratch, use_view(view):
        view.opened(f"making {count} puzzles of tier {tier}")
        profile = validate(Profile, {"workers": len(os.sched_getaffinity(0))}, "profile")
        ctx = StageContext(store, Path(scratch), profile, view.progress, logging.getLogger(__name__))
        made = prepare(config, out=Slot(store, "puzzles", Puzzles), ctx=ctx)
    puzzles = from_table(Artifact.open(store, made).read_table("test.parquet", PUZZLES))
    published = [{"num_clues": item.num_clues, "prompt": item.prompt, "solution": item.solution} for item in puzzles]
    try:
        path.write_text(json.dumps(published, indent=4) + "\n", encoding="utf-8")
    except OSError as error:
        raise StoreError(f"--out {out}", f"cannot be written ({error.strerror})", "a file to write") from error
    if options.json:
        print_json({"file": str(path), "puzzles": len(puzzles), "tier": tier, "seed": seed})
    else:
        sys.stdout.write(f"{len(puzzles)} puzzles of tier {tier} in {path}\n")
