"""The steps of a derivation, and the statements that they may conclude."""

from dataclasses import dataclass

from stages.environments.logic_puzzles.answers import letters
from stages.environments.temporal_clue.formal import (
    At,
    HasMotive,
    KilledWith,
    MurderedAt,
    MurderedBy,
    MurderedIn,
    Question,
    Ref,
    Scenario,
    Shape,
    Statement,
)
from stages.environments.temporal_clue.generation.candidates import piece_ref
from stages.environments.temporal_clue.worlds import World, answer


@dataclass(frozen=True)
class ProofStep:
    """A statement and its premises.

    Attributes:
        statement: The conclusion.
        clues: Positions (from 0) of the clues among its premises.
        steps: Positions (from 0) of the earlier steps among its premises.
    """

    statement: Statement
    clues: tuple[int, ...]
    steps: tuple[int, ...]


def answers_in(scenario: Scenario, world: World, questions: tuple[Question, ...]) -> dict[str, str]:
    """Returns the name of each question's answer in a world, by letter."""
    named = scenario.values()
    names = [named[question.answer_type][answer(scenario.shape, world, question)] for question in questions]
    return dict(zip(letters(len(questions)), names, strict=True))


def answer_statements(shape: Shape, world: World, questions: tuple[Question, ...]) -> list[Statement]:
    """Returns the answers to questions in a world, as statements."""
    statements: list[Statement] = []
    for question in questions:
        value, ref = answer(shape, world, question), question.ref or Ref("boddy")
        match question.kind:
            case "murderer":
                statements.append(MurderedBy(Ref("suspect", value)))
            case "weapon":
                statements.append(KilledWith(value))
            case "room":
                statements.append(MurderedIn(value))
            case "time":
                statements.append(MurderedAt(value))
            case "motive":
                statements.append(MurderedBy(Ref("motive", value)))
            case "where":
                statements.append(At(ref, value, question.time))
            case "motive_of":
                statements.append(HasMotive(ref.index, value))
            case "suspect_of":
                statements.append(HasMotive(value, ref.index))
    return statements


def facts_of(shape: Shape, world: World) -> list[Statement]:
    """Returns the simple statements that are true in a world; derivations consist of them."""
    statements: list[Statement] = [
        At(piece_ref(shape, piece), room, time)
        for piece, path in enumerate(world.rooms)
        for time, room in enumerate(path)
    ]
    statements += [HasMotive(suspect, motive) for suspect, motive in enumerate(world.motives)]
    statements += [KilledWith(world.weapon), MurderedBy(Ref("suspect", world.murderer)), MurderedIn(world.room)]
    return statements
