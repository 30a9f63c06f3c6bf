"""The steps of a derivation, and what may stand in them."""

from dataclasses import dataclass

from stages.puzzles.temporal_clue.candidates import piece_ref
from stages.puzzles.temporal_clue.formal import (
    At,
    HasMotive,
    KilledWith,
    MurderedAt,
    MurderedBy,
    MurderedIn,
    Question,
    Ref,
    Shape,
    Statement,
)
from stages.puzzles.temporal_clue.worlds import World, answer


@dataclass(frozen=True)
class Step:
    """A statement and what it follows from.

    Attributes:
        statement: What is concluded.
        clues: Positions (from 0) of the clues it rests on.
        steps: Positions (from 0) of the earlier steps it rests on.
    """

    statement: Statement
    clues: tuple[int, ...]
    steps: tuple[int, ...]


def answer_statements(shape: Shape, world: World, questions: tuple[Question, ...]) -> list[Statement]:
    """The answers to `questions` in `world`, as statements."""
    found: list[Statement] = []
    for question in questions:
        value, ref = answer(shape, world, question), question.ref or Ref("boddy")
        match question.kind:
            case "murderer":
                found.append(MurderedBy(Ref("suspect", value)))
            case "weapon":
                found.append(KilledWith(value))
            case "room":
                found.append(MurderedIn(value))
            case "time":
                found.append(MurderedAt(value))
            case "motive":
                found.append(MurderedBy(Ref("motive", value)))
            case "where":
                found.append(At(ref, value, question.time))
            case "motive_of":
                found.append(HasMotive(ref.index, value))
            case "suspect_of":
                found.append(HasMotive(value, ref.index))
    return found


def facts_of(shape: Shape, world: World) -> list[Statement]:
    """Simple statements that are true in `world`: the stones of a derivation."""
    found: list[Statement] = [
        At(piece_ref(shape, piece), room, time)
        for piece, path in enumerate(world.rooms)
        for time, room in enumerate(path)
    ]
    found += [HasMotive(suspect, motive) for suspect, motive in enumerate(world.motives)]
    found += [KilledWith(world.weapon), MurderedBy(Ref("suspect", world.murderer)), MurderedIn(world.room)]
    return found
