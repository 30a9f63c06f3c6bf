"""The stages of an iteration."""

from artifacts.refs import Batch, Checkpoint, Decision, Grades, Kind, Levels, Report, Rollouts, Transition, Values

PARTS = {
    "sample": "rollouts",
    "grade": "grades",
    "teach": "taught_grades",
    "value": "values",
    "pack": "batch",
    "finetune": "checkpoint",
    "evaluate": "report",
    "promote": "decision",
    "advance": "transition",
    "fold": "levels",
}
"""The stages of an iteration in order, each with the part of the layout that it publishes."""
OPTIONAL = ("teach", "value", "advance", "fold")
"""The stages that only some recipes have."""
STAGES = {stage: part for stage, part in PARTS.items() if stage not in OPTIONAL}
"""The stages that every iteration has, each with its part."""
KINDS: dict[str, type[Kind]] = {
    "sample": Rollouts,
    "grade": Grades,
    "teach": Grades,
    "value": Values,
    "pack": Batch,
    "finetune": Checkpoint,
    "evaluate": Report,
    "promote": Decision,
    "advance": Transition,
    "fold": Levels,
}
"""The kind of artifact that each stage publishes."""
STATE = "training_state"
"""The part with the training state, which `finetune` publishes beside its checkpoint."""
