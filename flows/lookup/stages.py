"""The stages of a run: the table in which their names, kinds and parts are looked up."""

from dataclasses import dataclass

from artifacts.refs import (
    Batch,
    Checkpoint,
    Critic,
    Decision,
    Grades,
    Kind,
    OptimizerState,
    PassRates,
    Report,
    Rollouts,
    Texts,
    Transition,
    Values,
)


@dataclass(frozen=True)
class Stage:
    """A stage of a run.

    Attributes:
        name: Name of its function, with which the names of its task runs begin.
        kind: Kind of the artifact that it publishes.
        part: The part of an iteration's layout that it publishes; None for a stage before the first iteration.
        optional: Whether only some recipes have it.
        named: Whether a person may name it, to run it again (`--refresh`) or to stop after it.
    """

    name: str
    kind: type[Kind]
    part: str | None = None
    optional: bool = False
    named: bool = True


TABLE = (
    Stage("sft", Checkpoint, optional=True),
    Stage("distil", Texts, optional=True),
    Stage("pretrain", Critic, optional=True),
    Stage("rate", PassRates, optional=True),
    Stage("sample", Rollouts, "rollouts"),
    Stage("grade", Grades, "grades"),
    Stage("teach", Grades, "taught_grades", optional=True),
    Stage("value", Values, "values", optional=True),
    Stage("pack", Batch, "batch"),
    Stage("finetune", Checkpoint, "checkpoint"),
    Stage("evaluate", Report, "report"),
    Stage("promote", Decision, "decision"),
    Stage("advance", Transition, "transition", optional=True, named=False),
    Stage("update_rates", PassRates, "pass_rates", optional=True, named=False),
)
"""The stages in the order in which a run calls them."""
PARTS = {stage.name: stage.part for stage in TABLE if stage.part}
"""The stages of an iteration, each with the part of the layout that it publishes."""
REQUIRED = tuple(stage.name for stage in TABLE if not stage.optional)
"""The stages that every iteration has."""
REFRESHABLE = tuple(stage.name for stage in TABLE if stage.named)
"""The stages that `--refresh` may name."""
STOPPABLE = tuple(stage.name for stage in TABLE if stage.named and stage.part)
"""The stages that `stop_after` may name."""
MEASURING = ("evaluate", "promote")
"""The stages that measure the model from which iterations start, as iteration 0."""
STATE = "optimizer_state"
"""The part with the optimizer state, which `finetune` publishes beside its checkpoint."""
KINDS = {**{stage.part: stage.kind for stage in TABLE if stage.part}, STATE: OptimizerState}
"""The parts of an iteration, each with the kind of its artifact."""
