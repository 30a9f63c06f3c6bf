"""Credit assignment by models: a teacher and a critic give tokens their advantages. Most recipes have neither."""

from dataclasses import dataclass, replace

from artifacts.refs import Checkpoint, Grades, Puzzles, Ref, Rollouts, Values
from flows.inputs.critics import first_critic, valued
from flows.inputs.models import fetched_source
from flows.inputs.prompts import refuse_overlong
from flows.lookup.checkpoints import find_fixed
from flows.session.session import Session
from stages.models.tokenizers.digest import check_same_tokenizer
from stages.optional.teach import POLICY, TeachConfig, teach
from stages.training.launch import Weights


@dataclass(frozen=True)
class CreditModels:
    """The teacher and the critic between two iterations.

    Attributes:
        teacher: Model whose probabilities credit tokens; None without one, or if it is the policy itself with a hint.
        critic: Critic with its optimizer state; None without one.
    """

    teacher: Ref[Checkpoint] | None = None
    critic: Weights | None = None


@dataclass(frozen=True)
class Credited:
    """What the rollouts of an iteration are credited with.

    Attributes:
        grades: The grades, or those with the teacher's advantages.
        values: Values and advantages of tokens; None without a critic.
        models: Teacher and critic after the iteration.
    """

    grades: Ref[Grades]
    values: Ref[Values] | None
    models: CreditModels


def first_credit_models(session: Session, policy: Ref[Checkpoint], puzzles: Ref[Puzzles]) -> CreditModels:
    """Returns teacher and critic before iteration 1; `policy` is the model that GRPO starts from."""
    teacher = _teacher_of(session, session.recipe.teach, policy, puzzles) if session.recipe.teach else None
    return CreditModels(teacher, first_critic(session, policy))


def assign_credit(
    session: Session,
    models: CreditModels,
    policy: Ref[Checkpoint],
    rollouts: Ref[Rollouts],
    grades: Ref[Grades],
    puzzles: Ref[Puzzles],
    n: int,
) -> Credited:
    """Runs the stages `teach` and `value` of iteration `n` if the recipe has them, and returns the credit."""
    if session.recipe.teach is not None:
        out = session.at(n, "taught_grades", Grades)
        teacher = models.teacher or policy
        grades = session.run(teach, session.recipe.teach, teacher, rollouts, grades, puzzles, out=out)
    values, critic = valued(session, models.critic, rollouts, grades, n)
    return Credited(grades, values, replace(models, critic=critic))


def _teacher_of(
    session: Session, config: TeachConfig, policy: Ref[Checkpoint], puzzles: Ref[Puzzles]
) -> Ref[Checkpoint] | None:
    """Returns the model that credits the policy's tokens; None if the policy itself does, with a hint.

    Raises:
        BadInputError: There is no such checkpoint, it has another tokenizer, or a prompt does not fit into its context.
    """
    if config.teacher == POLICY:
        return None
    store = session.ctx.store
    teacher = fetched_source(session, find_fixed(config.teacher, "teach.teacher", store), puzzles)
    check_same_tokenizer(store, teacher, policy, "teach.teacher")
    refuse_overlong(session, teacher, puzzles)
    return teacher
