"""Writes zebra grids as text, and reads them."""

import hashlib
import json
import re
from itertools import pairwise

from artifacts.errors import BadInputError
from stages.environments.logic_puzzles.answers import letters
from stages.environments.zebra.formal import Clue, Grid, InHouse, Related, Relation, Thing, ZebraPuzzle, ZebraQuestion

ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth")
PHRASES = {
    "name": "{}",
    "pet": "the keeper of the {}",
    "drink": "the drinker of {}",
    "colour": "the owner of the {} house",
    "hobby": "the lover of {}",
}
"""Words for the person that a value belongs to, by attribute."""
RELATIONS: dict[Relation, tuple[str, str]] = {
    "same": ("is", "is not"),
    "left": ("lives directly to the left of", "does not live directly to the left of"),
    "before": ("lives somewhere to the left of", "does not live anywhere to the left of"),
    "next": ("lives next to", "does not live next to"),
}
CLUES_HEADING = "Clues:"
QUESTIONS_HEADING = "Questions:"
FORMAT_HEADING = "Give your final answers in the following format:"
_HOUSE = re.compile(r"(.+) (lives|does not live) in the (\w+) house")
_WHERE = re.compile(r"In which house does (.+) live\?")
_WHICH = re.compile(r"Which (\w+) belongs to (.+)\?")


def phrase(grid: Grid, thing: Thing) -> str:
    """Returns the words for the person that a value belongs to."""
    return PHRASES[grid.attributes[thing[0]]].format(grid.values[thing[0]][thing[1]])


def write_clue(grid: Grid, clue: Clue) -> str:
    """Returns a clue as a sentence without a full stop."""
    if isinstance(clue, InHouse):
        verb = "does not live" if clue.no else "lives"
        sentence = f"{phrase(grid, clue.thing)} {verb} in the {ORDINALS[clue.house]} house"
    else:
        sentence = f"{phrase(grid, clue.first)} {RELATIONS[clue.relation][clue.no]} {phrase(grid, clue.second)}"
    return sentence[0].upper() + sentence[1:]


def answer_type(grid: Grid, question: ZebraQuestion) -> str:
    """Returns the type of a question's answer: `HOUSE`, or the attribute in capitals."""
    return "HOUSE" if question.attribute is None else grid.attributes[question.attribute].upper()


def write_prompt(puzzle: ZebraPuzzle) -> str:
    """Returns the whole prompt of a puzzle."""
    grid = puzzle.grid
    names = letters(len(puzzle.questions))
    questions = [
        f"In which house does {phrase(grid, question.thing)} live?"
        if question.attribute is None
        else f"Which {grid.attributes[question.attribute]} belongs to {phrase(grid, question.thing)}?"
        for question in puzzle.questions
    ]
    parts = [
        f"There are {grid.houses} houses in a row, the first on the left and the {ORDINALS[grid.houses - 1]} on the "
        "right, each with one person. Everybody has one value of each of the following, and no two people share any:",
        "\n".join(f"- {a}: {', '.join(values)}" for a, values in zip(grid.attributes, grid.values, strict=True)),
        CLUES_HEADING,
        "\n".join(f"- {write_clue(grid, clue)}" for clue in puzzle.clues),
        QUESTIONS_HEADING,
        "\n".join(f"{letter}. {question}" for letter, question in zip(names, questions, strict=True)),
        FORMAT_HEADING,
        "\n".join(f"{letter}. {answer_type(grid, a)}" for letter, a in zip(names, puzzle.questions, strict=True)),
    ]
    return "\n\n".join(parts)


def values_of(grid: Grid, kind: str) -> tuple[str, ...]:
    """Returns the possible answers of an answer type."""
    return ORDINALS[: grid.houses] if kind == "HOUSE" else grid.values[grid.attributes.index(kind.lower())]


def read_prompt(prompt: str) -> ZebraPuzzle:
    """Returns the formal puzzle of a prompt.

    Raises:
        BadInputError: A part is missing, or a clue or question is not in the grammar.
    """
    blocks = prompt.strip().split("\n\n")
    after = dict(pairwise(blocks))
    for heading in (CLUES_HEADING, QUESTIONS_HEADING, FORMAT_HEADING):
        if heading not in after:
            raise BadInputError("prompt", "a part is missing", f"a paragraph that reads {heading!r}")
    rows = [line.removeprefix("- ").partition(": ") for line in blocks[blocks.index(CLUES_HEADING) - 1].splitlines()]
    grid = Grid(tuple(name for name, _, _ in rows), tuple(tuple(values.split(", ")) for _, _, values in rows))
    known = all(attribute in PHRASES for attribute in grid.attributes)
    if not known or any(len(set(v)) != grid.houses or len(v) != grid.houses for v in grid.values):
        raise BadInputError("prompt, attributes", repr(rows)[:120], "known attributes with one value a house")
    if grid.houses > len(ORDINALS):
        raise BadInputError("prompt, attributes", f"{grid.houses} houses", f"at most {len(ORDINALS)} houses")
    people = people_of(grid)
    clues: list[Clue] = []
    for position, line in enumerate(after[CLUES_HEADING].splitlines(), start=1):
        clue = read_clue(people, line.removeprefix("- "))
        if clue is None or (isinstance(clue, InHouse) and clue.house >= grid.houses):
            raise BadInputError(f"prompt, clue {position}", repr(line), "a clue of the known grammar")
        clues.append(clue)
    questions = tuple(_question(grid, people, line[3:]) for line in after[QUESTIONS_HEADING].splitlines())
    return ZebraPuzzle(grid, tuple(clues), questions)


def people_of(grid: Grid) -> dict[str, Thing]:
    """Returns the value that each phrase for a person contains, by the phrase in lower case."""
    return {phrase(grid, (a, v)).lower(): (a, v) for a in range(len(grid.values)) for v in range(grid.houses)}


def read_clue(people: dict[str, Thing], sentence: str) -> Clue | None:
    """Returns the clue of a sentence without its full stop; None if it is not in the grammar."""
    match = _HOUSE.fullmatch(sentence)
    if match and match[1].lower() in people and match[3] in ORDINALS:
        return InHouse(people[match[1].lower()], ORDINALS.index(match[3]), match[2] != "lives")
    for relation, verbs in RELATIONS.items():
        for no, verb in enumerate(verbs):
            first, joint, second = sentence.partition(f" {verb} ")
            if joint and first.lower() in people and second.lower() in people:
                return Related(people[first.lower()], relation, people[second.lower()], bool(no))
    return None


def _question(grid: Grid, people: dict[str, Thing], sentence: str) -> ZebraQuestion:
    if (match := _WHERE.fullmatch(sentence)) and match[1].lower() in people:
        return ZebraQuestion(people[match[1].lower()], None)
    match = _WHICH.fullmatch(sentence)
    if match and match[1] in grid.attributes and match[2].lower() in people:
        return ZebraQuestion(people[match[2].lower()], grid.attributes.index(match[1]))
    raise BadInputError("prompt, questions", repr(sentence), "a question of the known grammar")


def formal_digest(puzzle: ZebraPuzzle) -> str:
    """Returns the SHA-256 (hex) of words and clues. It ignores their order and the questions."""
    rows = zip(puzzle.grid.attributes, puzzle.grid.values, strict=True)
    content = {
        "values": sorted((name, sorted(values)) for name, values in rows),
        "clues": sorted(write_clue(puzzle.grid, clue) for clue in puzzle.clues),
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
