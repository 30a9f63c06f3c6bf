"""Teachers of a run: texts to train on before GRPO, and the model that judges tokens in on-policy distillation."""

from artifacts.address import ArtifactAddress
from artifacts.errors import BadInputError
from artifacts.layout import is_run_name
from artifacts.reading import Artifact
from artifacts.refs import Answers, Checkpoint, K, Puzzles, Ref, Rollouts, Texts
from flows.config.recipe import ANSWERS, SOLVER, STUDENT, DistillationConfig
from flows.inputs.models import fetched
from flows.lookup.history import selection_line
from flows.session import Session
from stages.distil import distil
from stages.sample import sample
from stages.sft import sft
from stages.teach import POLICY, TeachConfig, check_same_tokenizer


def distilled(
    run: Session, config: DistillationConfig, student: Ref[Checkpoint], puzzles: Ref[Puzzles]
) -> Ref[Checkpoint]:
    """Returns the student after supervised fine-tuning on the texts of its teacher.

    Raises:
        BadInputError: There is no such teacher, or none of its texts is left.
    """
    for number in range(1, config.rounds + 1):
        source: Ref[Rollouts] | Ref[Answers] | None = None
        if config.teacher.startswith(ANSWERS):
            source = Artifact.at(run.ctx.store, config.teacher.rstrip("/"), Answers).ref
        elif config.teacher != SOLVER:
            model = student if config.teacher == STUDENT else _fixed(run, config.teacher, "distil.teacher", puzzles)
            out = _at(run, number, "rollouts", Rollouts)
            source = run.run(sample, config.sample, model, puzzles, iteration=number, out=out)
        texts = run.run(distil, config.texts, source, puzzles, out=_at(run, number, "texts", Texts))
        run.live.line(selection_line(Artifact.open(run.ctx.store, texts).manifest.facts))
        student = run.run(sft, config.sft, student, texts, out=_at(run, number, "checkpoint", Checkpoint))
    return student


def teacher_of(
    run: Session, config: TeachConfig, policy: Ref[Checkpoint], puzzles: Ref[Puzzles]
) -> Ref[Checkpoint] | None:
    """Returns the model that judges the policy's tokens; None if the policy itself does, with a hint.

    Raises:
        BadInputError: There is no such checkpoint, or it has another tokenizer.
    """
    if config.teacher == POLICY:
        return None
    teacher = _fixed(run, config.teacher, "teach.teacher", puzzles)
    check_same_tokenizer(run.ctx, teacher, policy)
    return teacher


def _at(run: Session, number: int, part: str, kind: type[K]) -> ArtifactAddress[K]:
    return run.address(run.layout.distillation(number, part), kind, label=f"round-{number}")


def _fixed(run: Session, name: str, setting: str, puzzles: Ref[Puzzles]) -> Ref[Checkpoint]:
    """Returns a checkpoint whose name always means the same one, so that a continued run has the same teacher."""
    teacher = fetched(run, name, puzzles)
    if is_run_name(name) and teacher.key.startswith(f"runs/{name}/"):
        raise BadInputError(
            setting,
            f"{name!r}, whose promoted checkpoint may change",
            "a name that always means the same checkpoint",
            f"write {teacher.key}",
        )
    return teacher
