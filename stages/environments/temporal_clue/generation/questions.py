"""Chooses the questions of a puzzle."""

import random

from stages.environments.temporal_clue.config import PuzzleConfig
from stages.environments.temporal_clue.formal import (
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
from stages.environments.temporal_clue.worlds import World

PUBLISHED_QUESTIONS = 8
"""Largest number of questions of a published puzzle."""


def choose_questions(
    config: PuzzleConfig, shape: Shape, world: World, clues: list[Statement], rng: random.Random
) -> tuple[tuple[Question, ...], tuple[Question, ...]]:
    """Returns the main and the bonus questions.

    Under `published`, questions that a clue answers directly are left out, so a puzzle may have fewer than eight.
    """
    if config.questions == "placements":
        pieces = [Ref("suspect", s) for s in range(shape.suspects)] + [Ref("weapon", w) for w in range(shape.weapons)]
        return (Question("murderer"), Question("room")), tuple(Question("where", ref, 0) for ref in pieces)
    stated = set(clues)
    main: list[tuple[Statement, Question]] = [
        (MurderedBy(Ref("suspect", world.murderer)), Question("murderer")),
        (KilledWith(world.weapon), Question("weapon")),
        (MurderedIn(world.room), Question("room")),
    ]
    if shape.times > 1:
        main.append((MurderedAt(world.time), Question("time")))
    if world.motives:
        main.append((MurderedBy(Ref("motive", world.motives[world.murderer])), Question("motive")))
    questions = tuple(question for clue, question in main if clue not in stated)
    bonus = _bonus(shape, world, rng)
    rng.shuffle(bonus)
    still_allowed = PUBLISHED_QUESTIONS - len(questions)
    return questions, tuple(question for clue, question in bonus[:still_allowed] if clue not in stated)


def _bonus(shape: Shape, world: World, rng: random.Random) -> list[tuple[Statement, Question]]:
    bonus: list[tuple[Statement, Question]] = []
    for time in range(shape.times):
        for piece in range(shape.suspects):
            ref = Ref("suspect", piece)
            bonus.append((At(ref, world.rooms[piece][time], time), Question("where", ref, time)))
            if world.motives and shape.motive_counts[world.motives[piece]] == 1:
                ref = Ref("motive", world.motives[piece])
                bonus.append((At(ref, world.rooms[piece][time], time), Question("where", ref, time)))
        for weapon in range(shape.weapons):
            ref = Ref("weapon", weapon)
            bonus.append((At(ref, world.rooms[shape.suspects + weapon][time], time), Question("where", ref, time)))
    for suspect, motive in enumerate(world.motives):
        alone = shape.motive_counts[motive] == 1
        by_motive = alone and rng.random() < 0.5
        question = (
            Question("suspect_of", Ref("motive", motive))
            if by_motive
            else Question("motive_of", Ref("suspect", suspect))
        )
        bonus.append((HasMotive(suspect, motive), question))
    return bonus
