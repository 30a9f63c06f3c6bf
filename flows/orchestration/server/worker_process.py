"""The process of a local worker: `python worker_process.py worker start ...` is `prefect` with the flows imported.

After a run is cancelled, a worker imports its flow to look for hooks, and only then sets the state `Cancelled`. Flows
that are imported already cost no time then.
"""

import importlib

from prefect.cli import app

if __name__ == "__main__":
    for name in ("train", "iterate", "evaluation", "puzzle_set", "compare.comparison", "backfill"):
        importlib.import_module(f"flows.{name}")
    app()
