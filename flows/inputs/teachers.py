"""Training on texts before GRPO: on the solver's, and on those of a teacher."""

from artifacts.address import ArtifactAddress
from artifacts.errors import BadInputError
from artifacts.layout import Shared, shared_key
from artifacts.reading import Artifact
from artifacts.refs import Answers, Checkpoint, K, Puzzles, Ref, Rollouts, Texts
from flows.config.distillation import ANSWERS, SOLVER, STUDENT, DistillationConfig
from flows.inputs.models import fetched_source
from flows.inputs.prompts import refuse_overlong
from flows.lookup.checkpoints import find_fixed
from flows.lookup.preparation import selection_line
from flows.session.session import Session
from stages.environments.tables import are_episodes, read_split
from stages.optional.distil import distil
from stages.optional.sft import identity_of, sft
from stages.sample import sample


def trained_on_texts(session: Session, student: Ref[Checkpoint], puzzles: Ref[Puzzles]) -> Ref[Checkpoint]:
    """Returns the student after the warm start and the rounds with a teacher; unchanged if the recipe has neither.

    Runs share the warm start. A run that trains it freezes its recipe first.

    Raises:
        BadInputError: There are too few puzzles, a text cannot be trained on, there is no such teacher, or none of its
            texts is left.
    """
    recipe = session.recipe
    if recipe.warm_start is not None:
        limit = recipe.parts[0].sample.sampling.max_tokens  # that of the iterations which follow
        key = shared_key(Shared.MODELS, "warm-start", identity_of(recipe.warm_start, student, puzzles, limit))
        out = session.address(key, Checkpoint, label="warm-start")
        out.before_writing = session.before_writing
        student = session.run(sft, recipe.warm_start, student, puzzles, max_tokens=limit, out=out)
    return student if recipe.distil is None else _distilled(session, recipe.distil, student, puzzles)


def _distilled(
    session: Session, config: DistillationConfig, student: Ref[Checkpoint], puzzles: Ref[Puzzles]
) -> Ref[Checkpoint]:
    if config.teacher != SOLVER and not config.teacher.startswith(ANSWERS):
        _refuse_episodes(session, puzzles)
    for number in range(1, config.rounds + 1):
        source: Ref[Rollouts] | Ref[Answers] | None = None
        if config.teacher.startswith(ANSWERS):
            source = Artifact.at(session.ctx.store, config.teacher.rstrip("/"), Answers).ref
        elif config.teacher != SOLVER:
            model = student
            if config.teacher != STUDENT:
                named = find_fixed(config.teacher, "distil.teacher", session.ctx.store)
                model = fetched_source(session, named, puzzles)
            if number == 1 and model != student:
                refuse_overlong(session, model, puzzles)
            out = _at(session, number, "rollouts", Rollouts)
            source = session.run(sample, config.sample, model, puzzles, iteration=number, out=out)
        texts = session.run(
            distil,
            config.texts,
            source,
            puzzles,
            student,
            row_tokens=config.sft.row_tokens,
            out=_at(session, number, "texts", Texts),
        )
        session.live.line(selection_line(Artifact.open(session.ctx.store, texts).manifest.facts))
        student = session.run(sft, config.sft, student, texts, out=_at(session, number, "checkpoint", Checkpoint))
    return student


def _refuse_episodes(session: Session, puzzles: Ref[Puzzles]) -> None:
    if are_episodes(read_split(session.ctx.store, puzzles, "train")):
        raise BadInputError(
            "distil.teacher",
            "puzzles that answer in turns of their own, whose words are not the teacher's",
            "puzzles of one turn",
            "leave distil out, or choose another environment",
        )


def _at(session: Session, number: int, part: str, kind: type[K]) -> ArtifactAddress[K]:
    return session.address(session.layout.sft(number, part), kind, label=f"round-{number}")
