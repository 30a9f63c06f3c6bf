"""The process of a local worker: `python worker_process.py worker start ...`, like `prefect`, with the flows loaded.

Behind a cancelled run a worker loads its flow, to see whether it has hooks, before it says `Cancelled`. Imported
beforehand, that takes no time.
"""

import importlib

from prefect.cli import app

if __name__ == "__main__":
    for name in ("train", "iterate", "evaluation", "puzzle_set", "compare.comparison", "backfill"):
        importlib.import_module(f"flows.{name}")
    app()
