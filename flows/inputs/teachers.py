"""Teachers whose texts a run trains on before GRPO."""

from artifacts.address import ArtifactAddress
from artifacts.reading import Artifact
from artifacts.refs import Answers, Checkpoint, K, Puzzles, Ref, Rollouts, Texts
from flows.config.distillation import ANSWERS, SOLVER, STUDENT, DistillationConfig
from flows.inputs.models import fixed_checkpoint
from flows.inputs.prompts import refuse_overlong
from flows.lookup.preparation import selection_line
from flows.session.session import Session
from stages.optional.distil import distil
from stages.optional.sft import sft
from stages.sample import sample


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
            model = (
                student
                if config.teacher == STUDENT
                else fixed_checkpoint(run, config.teacher, "distil.teacher", puzzles)
            )
            if number == 1 and model != student:
                refuse_overlong(run, model, puzzles, "train")
            out = _at(run, number, "rollouts", Rollouts)
            source = run.run(sample, config.sample, model, puzzles, iteration=number, out=out)
        texts = run.run(
            distil,
            config.texts,
            source,
            puzzles,
            student,
            row_tokens=config.sft.row_tokens,
            out=_at(run, number, "texts", Texts),
        )
        run.live.line(selection_line(Artifact.open(run.ctx.store, texts).manifest.facts))
        student = run.run(sft, config.sft, student, texts, out=_at(run, number, "checkpoint", Checkpoint))
    return student


def _at(run: Session, number: int, part: str, kind: type[K]) -> ArtifactAddress[K]:
    return run.address(run.layout.distillation(number, part), kind, label=f"round-{number}")
