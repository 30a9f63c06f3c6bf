"""A trainer in a job and a call of a user's code, for a test that lets all of it sleep.

`python -m tests.support.asleep FOLDER`.
"""

import sys
import threading
from pathlib import Path
from typing import Any

from safetensors.numpy import save_file

from stages.processes.limited_calls import LimitedCalls
from stages.training.worker_group.group import WorkerGroup
from stages.training.worker_group.hardware import TrainHardware
from tests.support.jobs import train_job
from tests.support.trees import save_model, tree_batch

LIMIT_S = 3.0
STEPS = 300


def main(folder: Path) -> None:
    """Says when both are at work, and then how each ended."""
    save_model(folder / "model", "Qwen2", tie_word_embeddings=True)
    save_file(tree_batch(1, [2, 1, 3, 1, 2], steps=2), folder / "batch.safetensors")
    hardware = TrainHardware(compute_dtype="fp32", threads=1, no_progress_limit_s=LIMIT_S)
    job = train_job(
        checkpoint_dir=folder / "model", batch_file=folder / "batch.safetensors", hardware=hardware,
        learning_rates=[0.01] * STEPS, epochs=STEPS // 2, out_checkpoint_dir=folder / "out",
        events_file=folder / "events.jsonl",
    )  # fmt: skip
    calls = LimitedCalls("tests.support.unsafe_calls:load", 1, limit_s=LIMIT_S / 10, workers=1)
    calls.call("pid", 0)
    caller = threading.Thread(target=lambda: print("call:", calls.call("sleep", LIMIT_S / 2).failure, flush=True))

    def on_event(event: dict[str, Any]) -> None:
        if event["event"] == "step" and caller.ident is None:
            caller.start()
            print("both at work", flush=True)

    with WorkerGroup(hardware, folder / "group") as group:
        group.run(job, on_event)
        caller.join()
    print("trained", flush=True)
    calls.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
