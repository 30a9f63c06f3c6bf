"""Training on texts before GRPO: on the solver's, and on those of a teacher."""

from artifacts.address import ArtifactAddress
from artifacts.layout import WARM_START
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


def trained_on_texts(run: Session, student: Ref[Checkpoint], puzzles: Ref[Puzzles]) -> Ref[Checkpoint]:
    """Returns the student after the warm start and the rounds with a teacher; unchanged if the recipe has neither.

    Raises:
        BadInputError: There are too few puzzles, a text cannot be trained on, there is no such teacher, or none of its
            texts is left.
    """
    recipe = run.recipe
    if recipe.warm_start is not None:
        out = run.address(run.layout.sft(WARM_START, "checkpoint"), Checkpoint, label="warm-start")
        limit = recipe.sample.sampling.max_tokens
        student = run.run(sft, recipe.warm_start, student, puzzles, max_tokens=limit, out=out)
    return student if recipe.distil is None else _distilled(run, recipe.distil, student, puzzles)


def _distilled(
    run: Session, config: DistillationConfig, student: Ref[Checkpoint], puzzles: Ref[Puzzles]
) -> Ref[Checkpoint]:
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
    return run.address(run.layout.sft(number, part), kind, label=f"round-{number}")
