"""The environment of Temporal Clue."""

import time
from collections import Counter
from dataclasses import replace

from artifacts.errors import BadInputError
from stages.environments.logic_puzzles.answers import write_answer
from stages.environments.logic_puzzles.grading import LetteredAnswers
from stages.environments.puzzle import Asserted, Checked, Kinds, Puzzle, Style
from stages.environments.solver_tool import own_words, shared_sentences
from stages.environments.temporal_clue.config import TIERS, PuzzleConfig
from stages.environments.temporal_clue.formal import FormalPuzzle
from stages.environments.temporal_clue.generation.directed import generate_directed
from stages.environments.temporal_clue.generation.generate import difficulty, generate_formal
from stages.environments.temporal_clue.language.grammar import grammar_of
from stages.environments.temporal_clue.language.reader import read_formal
from stages.environments.temporal_clue.language.sections import cut
from stages.environments.temporal_clue.language.text import formal_digest, write_prompt, write_statement
from stages.environments.temporal_clue.proofs.deductions import judge_of
from stages.environments.temporal_clue.proofs.derivation import derive, write_derivation
from stages.environments.temporal_clue.proofs.solver import needless_clues, shared_answers, solve
from stages.environments.temporal_clue.proofs.steps import answers_in


class TemporalClue(LetteredAnswers):
    """The environment; its methods are its capabilities (see `stages.environments.capabilities`)."""

    name = "temporal_clue"
    mark = "Mr. Boddy"
    levels: dict[str, PuzzleConfig] = TIERS

    def generate(self, config: PuzzleConfig, seed: int) -> Puzzle:
        """Returns a puzzle with one solution and a minimal set of clues, the same for (config, seed) everywhere."""
        level: dict[str, int] = {}
        if config.concepts is None:
            formal, world = generate_formal(config, seed)
        else:
            directed = generate_directed(config, config.concepts, seed)
            formal, world = directed.puzzle, directed.world
            level = {"steps": directed.concepts.steps, "case_splits": directed.concepts.case_splits}
        digest = formal_digest(formal)
        return Puzzle(
            prompt_id=f"temporal-clue-{seed}-{digest[:8]}",
            environment=self.name,
            prompt=write_prompt(formal),
            solution=answers_in(formal.scenario, world, formal.questions + formal.bonus),
            num_clues=len(formal.clues),
            seed=seed,
            digest=digest,
            difficulty={**difficulty(formal.scenario), **level},
        )

    def answer_values(self, puzzle: Puzzle) -> dict[str, tuple[str, ...]]:
        """Returns for each letter the puzzle's suspects, weapons, rooms, times or motives."""
        sections = cut(puzzle.prompt)
        named: dict[str, tuple[str, ...]] = {**sections.scenario.values()}
        form = dict(sections.form)
        return {letter: named.get(form.get(letter, ""), ()) for letter in puzzle.solution}

    def names(self, puzzle: Puzzle) -> tuple[str, ...]:
        """Returns the victim, and the puzzle's suspects, weapons, rooms, times and motives."""
        values = cut(puzzle.prompt).scenario.values()
        return self.mark, *(name for names in values.values() for name in names)

    def read(self, prompt_id: str, num_clues: int, prompt: str, solution: dict[str, str]) -> Puzzle:
        """Returns a puzzle from its text and solution.

        Raises:
            BadInputError: The text is not of this environment, or the solution does not answer its questions.
        """
        sections, reading = cut(prompt), read_formal(prompt)
        form = dict(sections.form)
        if sorted(form) != sorted(solution):
            raise BadInputError("solution", f"letters {', '.join(sorted(solution))}", f"letters {', '.join(form)}")
        if num_clues != len(sections.clues):
            raise BadInputError("num_clues", str(num_clues), f"{len(sections.clues)}, the clues in the text")
        named: dict[str, tuple[str, ...]] = {**sections.scenario.values()}
        for letter, answer in solution.items():
            if answer not in named.get(form[letter], ()):
                raise BadInputError(f"solution.{letter}", repr(answer), f"a {form[letter]} of the puzzle")
        return Puzzle(
            prompt_id=prompt_id,
            environment=self.name,
            prompt=prompt,
            solution=solution,
            num_clues=num_clues,
            seed=None,
            digest=formal_digest(reading.puzzle, tuple(item.text for item in reading.unread if item.part == "clue")),
            difficulty=difficulty(sections.scenario),
        )

    def kinds(self, puzzle: Puzzle) -> Kinds:
        """Returns the numbers of clues by their class in `formal`, and of questions by `Question.kind`."""
        formal = read_formal(puzzle.prompt).puzzle
        questions = Counter[str](question.kind for question in formal.questions + formal.bonus)
        return Kinds(dict(Counter(type(clue).__name__ for clue in formal.clues)), dict(questions))

    def check(self, puzzle: Puzzle, *, minimal: bool = False) -> Checked:
        """Solves the puzzle from its prompt, proves which answers are unique, and compares with the given solution."""
        started = time.perf_counter()
        reading = read_formal(puzzle.prompt)
        if reading.unread:
            unread = tuple(f"{item.part} {item.position}: {item.text}" for item in reading.unread)
            seconds = time.perf_counter() - started
            return Checked(puzzle.prompt_id, unread, {}, {}, tuple(puzzle.solution), False, None, seconds)
        solved = solve(reading.puzzle)
        needless = needless_clues(reading.puzzle, solved.world) if minimal and solved.world is not None else None
        return Checked(
            puzzle.prompt_id,
            unread=(),
            answers=solved.answers,
            unique=solved.unique,
            different=tuple(letter for letter, given in puzzle.solution.items() if solved.answers.get(letter) != given),
            same_text=write_prompt(reading.puzzle, puzzle.prompt.split("\n\n")[0]) == puzzle.prompt,
            needless=needless,
            seconds=time.perf_counter() - started,
        )

    def write_derivation(self, puzzle: Puzzle, style: Style = "plain") -> str:
        """Returns the steps of `derivation.derive`, an empty line and the answers.

        Plain derivations prefer clues to earlier steps as premises, because existing checkpoints learned these.

        Raises:
            BadInputError: The puzzle's text has a clue that cannot be read, or the clues do not determine the answers.
        """
        formal = _fully_read(puzzle)
        try:
            steps = derive(formal, from_steps=style != "plain")
        except ValueError as error:
            raise BadInputError(puzzle.prompt_id, str(error), "clues with one solution") from error
        return f"{write_derivation(formal, steps, style)}\n\n{write_answer(puzzle)}"

    def deductions(self, text: str, puzzle: Puzzle) -> list[Asserted] | None:
        """Returns the statements of a text with verdicts (see `deductions.Judge`)."""
        reading = read_formal(puzzle.prompt)
        judge = None if reading.unread else judge_of(reading.puzzle)
        return None if judge is None else judge.read(own_words(text))

    def premises(self, statement: str, puzzle: Puzzle) -> tuple[int, ...] | None:
        """See `stages.environments.capabilities.Proves.premises`."""
        reading = read_formal(puzzle.prompt)
        judge = None if reading.unread else judge_of(reading.puzzle)
        formal = grammar_of(reading.puzzle.scenario).statement(statement)
        return None if judge is None or formal is None else judge.premises(formal)

    def tool_output(self, statements: list[str], puzzle: Puzzle) -> list[str]:
        """See `stages.environments.capabilities.AnswersCalls`."""
        formal = read_formal(puzzle.prompt).puzzle
        return shared_sentences(
            statements,
            grammar_of(formal.scenario).statement,
            lambda clues: shared_answers(replace(formal, clues=clues)),
        )

    def asked(self, puzzle: Puzzle) -> list[str]:
        """See `stages.environments.capabilities.AnswersCalls`."""
        formal = _fully_read(puzzle)
        return [write_statement(formal.scenario, clue) for clue in formal.clues]


def _fully_read(puzzle: Puzzle) -> FormalPuzzle:
    reading = read_formal(puzzle.prompt)
    if reading.unread:
        first = reading.unread[0]
        raise BadInputError(f"{puzzle.prompt_id}, {first.part} {first.position}", repr(first.text), "the known grammar")
    return reading.puzzle


TEMPORAL_CLUE = TemporalClue()
