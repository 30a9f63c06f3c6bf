"""The environment of zebra grids."""

import itertools
import random
import time
from collections import Counter
from dataclasses import replace

import numpy as np

from artifacts.errors import BadInputError
from stages.environments.logic_puzzles.answers import letters, write_answer
from stages.environments.logic_puzzles.grading import LetteredAnswers
from stages.environments.logic_puzzles.minimal import WorldPool, keep_needed
from stages.environments.puzzle import Asserted, Checked, Kinds, Puzzle, Style
from stages.environments.solver_tool import own_words, shared_sentences
from stages.environments.zebra.config import TIERS, WORDS, ZebraConfig
from stages.environments.zebra.deductions import (
    Reasoner,
    read_statement,
    reasoner_of,
    shared_answers,
    statement_of,
    write_derivation,
)
from stages.environments.zebra.formal import (
    Clue,
    Grid,
    Houses,
    InHouse,
    Related,
    Relation,
    Thing,
    ZebraPuzzle,
    ZebraQuestion,
    holds,
)
from stages.environments.zebra.solver import GridModel
from stages.environments.zebra.text import (
    ORDINALS,
    answer_type,
    formal_digest,
    people_of,
    read_prompt,
    values_of,
    write_clue,
    write_prompt,
)

_OTHERS = 12
"""Number of candidate clues for each value besides its placement."""
_RELATIONS: tuple[Relation, ...] = ("same", "left", "before", "next")


def _candidates(grid: Grid, world: Houses, rng: random.Random) -> list[Clue]:
    """Returns true clues that determine `world`, in random order.

    The first clues are the first to be dropped. Denials and placements tend to come first, relations last.
    """
    things: list[Thing] = [(a, v) for a in range(len(grid.values)) for v in range(grid.houses)]
    clues: list[Clue] = [InHouse(t, house, no) for t in things for house in range(grid.houses) for no in (False, True)]
    for first, second in itertools.permutations(things, 2):
        for relation in _RELATIONS:
            symmetric = relation in ("same", "next")
            if (relation == "same" and first[0] == second[0]) or (symmetric and first > second):
                continue
            clues += (Related(first, relation, second, no) for no in (False, True))
    true = [clue for clue in clues if holds(clue, world)[0]]
    # The placements alone determine the world, so a random part of the many others is enough.
    placed = [clue for clue in true if isinstance(clue, InHouse) and not clue.no]
    others = [clue for clue in true if clue not in set(placed)]
    true = placed + rng.sample(others, min(len(others), _OTHERS * len(things)))
    # A placement gives the most information and a denial the least, so the weights make both likely to be dropped.
    weight = [0.2 * isinstance(clue, Related) - 0.4 * clue.no for clue in true]
    order = sorted(range(len(true)), key=lambda i: (rng.random() + weight[i], i))
    return [true[i] for i in order]


def _swaps(world: Houses) -> Houses:
    """Returns the worlds in which two values of one attribute have exchanged their houses."""
    _, attributes, houses = world.shape
    swaps: list[Houses] = []
    for a in range(attributes):
        for v, w in itertools.combinations(range(houses), 2):
            other = world.copy()
            other[0, a, [v, w]] = world[0, a, [w, v]]
            swaps.append(other)
    return np.concatenate(swaps)


def generate_formal(config: ZebraConfig, seed: int) -> tuple[ZebraPuzzle, Houses]:
    """Returns a formal puzzle and its only solution (proved), the same for (config, seed) on every machine."""
    rng = random.Random(f"zebra:{seed}")
    houses, count = rng.randint(*config.houses), rng.randint(*config.attributes)
    grid = _draw_grid(config, houses, count, rng)
    world = np.array([[rng.sample(range(houses), houses) for _ in range(count)]], dtype=np.int8)
    candidates = _candidates(grid, world, rng)
    model, pool = GridModel(grid, candidates), WorldPool(len(candidates))
    model.exclude(world)

    def find_other(kept: list[int]) -> bool:
        other = model.solve(kept)
        if other is None:
            return False
        near = np.concatenate([other, _swaps(other)])
        near = near[(near != world).any(axis=(1, 2))]
        pool.add([holds(clue, near) for clue in candidates])
        return True

    swaps = _swaps(world)
    pool.add([holds(clue, swaps) for clue in candidates])
    kept = keep_needed(pool, find_other)
    if kept is None:
        raise RuntimeError(f"the clues of seed {seed} do not determine its solution")
    clues = [candidates[i] for i in kept]
    rng.shuffle(clues)
    possible = [ZebraQuestion((0, v), a or None) for v in range(houses) for a in range(count)]
    drawn = rng.sample(possible, min(config.questions, len(possible)))
    questions = sorted(drawn, key=lambda question: (question.thing, question.attribute or 0))
    return ZebraPuzzle(grid, tuple(clues), tuple(questions)), world


def _draw_grid(config: ZebraConfig, houses: int, attributes: int, rng: random.Random) -> Grid:
    if config.fixed_words:
        names = tuple(WORDS)[:attributes]
        return Grid(names, tuple(WORDS[name][:houses] for name in names))
    names = ("name", *rng.sample([name for name in WORDS if name != "name"], attributes - 1))
    return Grid(names, tuple(tuple(rng.sample(WORDS[name], houses)) for name in names))


def _answer(grid: Grid, world: Houses, question: ZebraQuestion) -> str:
    statement = statement_of(grid, world, question)
    if isinstance(statement, InHouse):
        return ORDINALS[statement.house]
    attribute, value = statement.first
    return grid.values[attribute][value]


class Zebra(LetteredAnswers):
    """The environment; its methods are its capabilities (see `stages.environments.capabilities`)."""

    name = "zebra"
    mark = "houses in a row, the first on the left"
    levels: dict[str, ZebraConfig] = TIERS

    def generate(self, config: ZebraConfig, seed: int) -> Puzzle:
        """Returns a puzzle with one solution and a minimal set of clues, the same for (config, seed) everywhere."""
        formal, world = generate_formal(config, seed)
        answers = [_answer(formal.grid, world, question) for question in formal.questions]
        solution = dict(zip(letters(len(answers)), answers, strict=True))
        prompt = write_prompt(formal)
        return self._puzzle(f"zebra-{seed}-{formal_digest(formal)[:8]}", formal, prompt, solution, seed)

    def _puzzle(
        self, prompt_id: str, formal: ZebraPuzzle, prompt: str, solution: dict[str, str], seed: int | None
    ) -> Puzzle:
        return Puzzle(
            prompt_id=prompt_id,
            environment=self.name,
            prompt=prompt,
            solution=solution,
            num_clues=len(formal.clues),
            seed=seed,
            digest=formal_digest(formal),
            difficulty={"houses": formal.grid.houses, "attributes": len(formal.grid.attributes)},
        )

    def answer_values(self, puzzle: Puzzle) -> dict[str, tuple[str, ...]]:
        """Returns for each letter the houses, or the puzzle's values of the attribute in question."""
        formal = read_prompt(puzzle.prompt)
        kinds = [answer_type(formal.grid, question) for question in formal.questions]
        return {letter: values_of(formal.grid, kind) for letter, kind in zip(puzzle.solution, kinds, strict=True)}

    def names(self, puzzle: Puzzle) -> tuple[str, ...]:
        """Returns the words for the puzzle's houses, and its values of all attributes."""
        grid = read_prompt(puzzle.prompt).grid
        return *ORDINALS[: grid.houses], *(value for values in grid.values for value in values)

    def read(self, prompt_id: str, num_clues: int, prompt: str, solution: dict[str, str]) -> Puzzle:
        """Returns a puzzle from its text and solution.

        Raises:
            BadInputError: The text is not a zebra grid of this grammar, or the solution does not answer its questions.
        """
        formal = read_prompt(prompt)
        if sorted(solution) != letters(len(formal.questions)):
            found = f"letters {', '.join(sorted(solution))}"
            raise BadInputError("solution", found, f"one for each of {len(formal.questions)} questions")
        if num_clues != len(formal.clues):
            raise BadInputError("num_clues", str(num_clues), f"{len(formal.clues)}, the clues in the text")
        answers = {letter: solution[letter] for letter in sorted(solution)}
        for (letter, answer), question in zip(answers.items(), formal.questions, strict=True):
            kind = answer_type(formal.grid, question)
            if answer not in values_of(formal.grid, kind):
                raise BadInputError(f"solution.{letter}", repr(answer), f"a {kind} of the puzzle")
        return self._puzzle(prompt_id, formal, prompt, answers, None)

    def kinds(self, puzzle: Puzzle) -> Kinds:
        """Returns the numbers of clues by relation (`house` for a placement), and of questions by answer type."""
        formal = read_prompt(puzzle.prompt)
        clues = Counter[str]("house" if isinstance(clue, InHouse) else clue.relation for clue in formal.clues)
        return Kinds(dict(clues), dict(Counter(answer_type(formal.grid, question) for question in formal.questions)))

    def check(self, puzzle: Puzzle, *, minimal: bool = False) -> Checked:
        """Solves the puzzle from its prompt, proves which answers are unique, and compares with the given solution."""
        started = time.perf_counter()
        formal = read_prompt(puzzle.prompt)
        same_text = write_prompt(formal) == puzzle.prompt
        try:
            reasoner = Reasoner(formal)
        except ValueError:  # the clues contradict one another
            seconds = time.perf_counter() - started
            return Checked(puzzle.prompt_id, (), {}, {}, tuple(puzzle.solution), same_text, None, seconds)
        values = [_answer(formal.grid, reasoner.world, question) for question in formal.questions]
        answers = dict(zip(puzzle.solution, values, strict=True))
        statements = [statement_of(formal.grid, reasoner.world, question) for question in formal.questions]
        unique = [reasoner.entails(statement) for statement in statements]
        return Checked(
            puzzle.prompt_id,
            unread=(),
            answers=answers,
            unique=dict(zip(answers, unique, strict=True)),
            different=tuple(letter for letter, given in puzzle.solution.items() if answers[letter] != given),
            same_text=same_text,
            needless=reasoner.needless() if minimal else None,
            seconds=time.perf_counter() - started,
        )

    def write_derivation(self, puzzle: Puzzle, style: Style = "plain") -> str:
        """Returns the text of `deductions.write_derivation`, an empty line and the answers.

        Raises:
            BadInputError: The puzzle's text has a clue that cannot be read, or the clues do not determine the answers.
        """
        try:
            steps = write_derivation(read_prompt(puzzle.prompt), style)
        except ValueError as error:
            raise BadInputError(puzzle.prompt_id, str(error), "clues with one solution") from error
        return f"{steps}\n\n{write_answer(puzzle)}"

    def deductions(self, text: str, puzzle: Puzzle) -> list[Asserted] | None:
        """Returns the statements of a text with verdicts (see `deductions.Reasoner`)."""
        reasoner = reasoner_of(read_prompt(puzzle.prompt))
        return None if reasoner is None else reasoner.read(own_words(text))

    def premises(self, statement: str, puzzle: Puzzle) -> tuple[int, ...] | None:
        """See `stages.environments.capabilities.Proves.premises`."""
        reasoner = reasoner_of(read_prompt(puzzle.prompt))
        return None if reasoner is None else reasoner.premises(statement)

    def tool_output(self, statements: list[str], puzzle: Puzzle) -> list[str]:
        """See `stages.environments.capabilities.AnswersCalls`."""
        formal = read_prompt(puzzle.prompt)
        people = people_of(formal.grid)
        return shared_sentences(
            statements,
            lambda line: read_statement(formal.grid, people, line),
            lambda clues: shared_answers(replace(formal, clues=clues)),
        )

    def asked(self, puzzle: Puzzle) -> list[str]:
        """See `stages.environments.capabilities.AnswersCalls`."""
        formal = read_prompt(puzzle.prompt)
        return [write_clue(formal.grid, clue) for clue in formal.clues]


ZEBRA = Zebra()
