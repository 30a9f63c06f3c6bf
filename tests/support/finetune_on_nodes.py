"""The first node of a trainer with two nodes: an undisturbed finetune, and one whose worker on the second is killed.

Run as `python -m tests.support.finetune_on_nodes FOLDER HARDWARE`; prints what happened as JSON.
"""

import json
import sys
from pathlib import Path

from artifacts.errors import TransientError
from stages.training.worker_group.hardware import TrainHardware
from tests.support.finetuning_machine import STEPS, Machine

KILL_AT = 6


def main() -> None:
    """Entry point."""
    folder, hardware = Path(sys.argv[1]), TrainHardware.model_validate_json(sys.argv[2])
    machine = Machine(folder, "first", str(folder / "store"), hardware, node=1)
    start = machine.start(folder)
    undisturbed = machine.finetune("undisturbed", *start)
    machine.kill_at, machine.done = KILL_AT, []
    try:
        machine.finetune("killed", *start)
        raise AssertionError("nothing was killed")
    except TransientError as error:
        reason = str(error)
    kept = [key for key in machine.kept("killed") if key.endswith("/manifest.json")]
    machine.kill_at, machine.done = 0, []
    resumed = machine.finetune("killed", *start)
    assert undisturbed.state is not None and resumed.state is not None
    report = {
        "reason": reason,
        "kept": [int(key.split("/step-")[1][:6]) for key in kept],
        "steps": STEPS,
        "done": machine.done,
        "same_weights": resumed.checkpoint.digest == undisturbed.checkpoint.digest,
        "same_state": resumed.state.digest == undisturbed.state.digest,
        "same_metrics": machine.steps_of(resumed) == machine.steps_of(undisturbed),
    }
    machine.ctx.close()
    print(json.dumps(report), flush=True)


if __name__ == "__main__":
    main()
