"""The judges of a run: models that assign advantages to tokens. Most recipes have none."""

from dataclasses import dataclass, replace

from artifacts.refs import Checkpoint, Grades, Puzzles, Ref, Rollouts, Values
from flows.inputs.critics import first_critic, valued
from flows.inputs.models import fixed_checkpoint
from flows.session.session import Session
from stages.models.tokenizers.digest import check_same_tokenizer
from stages.optional.teach import POLICY, TeachConfig, teach
from stages.training.launch import Weights


@dataclass(frozen=True)
class Judges:
    """The judges between two iterations.

    Attributes:
        teacher: Model whose probabilities judge tokens; None without one, or if the policy judges itself with a hint.
        critic: Critic with its optimizer state; None without one.
    """

    teacher: Ref[Checkpoint] | None = None
    critic: Weights | None = None


@dataclass(frozen=True)
class Judged:
    """The verdicts on the rollouts of an iteration.

    Attributes:
        grades: The grades, or those with the teacher's advantages.
        values: Values and advantages of tokens; None without a critic.
        judges: The judges after the iteration.
    """

    grades: Ref[Grades]
    values: Ref[Values] | None
    judges: Judges


def first_judges(run: Session, policy: Ref[Checkpoint], puzzles: Ref[Puzzles]) -> Judges:
    """Returns the judges before iteration 1; `policy` is the model that GRPO starts from."""
    teacher = _teacher_of(run, run.recipe.teach, policy, puzzles) if run.recipe.teach else None
    return Judges(teacher, first_critic(run, policy))


def judge(
    run: Session,
    judges: Judges,
    policy: Ref[Checkpoint],
    rollouts: Ref[Rollouts],
    grades: Ref[Grades],
    puzzles: Ref[Puzzles],
    n: int,
) -> Judged:
    """Runs the stages `teach` and `value` of iteration `n` if the recipe has them, and returns the verdicts."""
    if run.recipe.teach is not None:
        out = run.at(n, "taught_grades", Grades)
        teacher = judges.teacher or policy
        grades = run.run(teach, run.recipe.teach, teacher, rollouts, grades, puzzles, out=out)
    values, critic = valued(run, judges.critic, rollouts, grades, n)
    return Judged(grades, values, replace(judges, critic=critic))


def _teacher_of(
    run: Session, config: TeachConfig, policy: Ref[Checkpoint], puzzles: Ref[Puzzles]
) -> Ref[Checkpoint] | None:
    """Returns the model that judges the policy's tokens; None if the policy itself does, with a hint.

    Raises:
        BadInputError: There is no such checkpoint, or it has another tokenizer.
    """
    if config.teacher == POLICY:
        return None
    teacher = fixed_checkpoint(run, config.teacher, "teach.teacher", puzzles)
    check_same_tokenizer(run.ctx.store, teacher, policy, "teach.teacher")
    return teacher
