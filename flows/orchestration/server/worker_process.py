"""The process of a local worker: `python worker_process.py worker start ...` is `prefect` with the flows imported.

It also applies the changes of `prefect_workarounds.py`. To cancel a run, a worker imports its flow, looks for hooks,
and only then sets the state `Cancelled`. Importing the flows at the start makes this fast.
"""

import importlib

from prefect.cli import app

from flows.orchestration.server.prefect_workarounds import apply_to_worker

if __name__ == "__main__":
    for name in (
        "train",
        "iterate",
        "evaluation",
        "puzzle_set",
        "compare.comparison",
        "backfill",
        "merging",
        "benchmark",
    ):
        importlib.import_module(f"flows.{name}")
    apply_to_worker()
    app()
