"""Chooses the questions of each split."""

import random
from collections.abc import Mapping, Sequence

from artifacts.errors import BadInputError
from stages.environments.capabilities import Items, divided, in_no_split
from stages.environments.puzzle import Puzzle
from stages.environments.question_file.config import QuestionColumns, place_of
from stages.environments.question_file.graders import folded
from stages.environments.question_file.reading import SPLITS, FileQuestion
from stages.environments.single_answer import ANSWER


def choose_questions(
    questions: Sequence[FileQuestion], empty: int, sizes: Mapping[str, int], seed: int, config: QuestionColumns
) -> Items:
    """Returns the questions of each split.

    One question of each prompt stays, whatever its spaces and letter case; the fact `repeated` counts the others. The
    fact `unusable` counts the rows that `QuestionColumns.unusable` drops. If the file names the splits, a repeated
    question stays in test rather than in val, and in val rather than in train. As in generated sets, held-out questions
    stay the same when `train` grows.

    Args:
        questions: All questions of the file.
        empty: Number of its rows that were dropped because they are empty.
        sizes: Sizes of the splits.
        seed: Seed of the choice.
        config: The file's path, for error messages, and what happens to a prompt with different answers.

    Raises:
        BadInputError: There are too few questions; or a prompt has different answers, and `unusable` is `refuse`.
    """
    path, kept, ambiguous = config.path, dict[str, FileQuestion](), set[str]()
    prompts = {question.puzzle.prompt: folded(question.puzzle.prompt) for question in questions}
    for question in sorted(questions, key=lambda item: SPLITS[::-1].index(item.split) if item.split else 0):
        prompt = prompts[question.puzzle.prompt]
        first = kept.setdefault(prompt, question)
        one, other = (config.compared(item.puzzle.solution[ANSWER]) for item in (first, question))
        if one != other:
            if config.unusable == "refuse":
                raise _ambiguous(path, first, question)
            ambiguous.add(prompt)
    usable = [question for question in questions if prompts[question.puzzle.prompt] not in ambiguous]
    order = [question for question in usable if kept[prompts[question.puzzle.prompt]] is question]
    random.Random(f"questions/{seed}").shuffle(order)
    repeated, unusable = len(usable) - len(order), empty + len(questions) - len(usable)
    reasons = {
        f"{repeated} questions repeat the prompt of another and were dropped": repeated,
        f"{unusable} rows are empty or have a prompt with different answers, and were dropped": unusable,
    }
    warnings = tuple(f"{path}: {reason}" for reason, count in reasons.items() if count)
    if (unused := len(order) - sum(sizes.values())) > 0:
        warnings += (in_no_split(path, unused, f"{len(order)} usable questions", sizes),)
    facts = {"file": config.location, "place": place_of(config.location), "repeated": repeated, "unusable": unusable}
    return Items(_splits(order, sizes, path, repeated + unusable), facts, warnings)


def _ambiguous(path: str, first: FileQuestion, other: FileQuestion) -> BadInputError:
    answers = [f"{item.puzzle.solution[ANSWER][:60]!r} ({item.where})" for item in (first, other)]
    return BadInputError(
        path,
        f"the same prompt with the answers {' and '.join(answers)}",
        "one answer to each prompt",
        "correct one of the rows, add a column to puzzles.puzzle.prompt that tells them apart, or set "
        "puzzles.puzzle.unusable = 'drop'",
    )


def _splits(
    order: Sequence[FileQuestion], sizes: Mapping[str, int], path: str, dropped: int
) -> dict[str, list[Puzzle]]:
    if any(question.split is None for question in order):
        if len(order) < (total := sum(sizes.values())):
            raise _too_few(path, "", len(order), total, dropped)
        return divided([question.puzzle for question in order], sizes)
    chosen: dict[str, list[Puzzle]] = {}
    for split in SPLITS:
        marked = [question.puzzle for question in order if question.split == split]
        if len(marked) < sizes[split]:
            raise _too_few(path, split, len(marked), sizes[split], dropped)
        chosen[split] = marked[: sizes[split]]
    return chosen


def _too_few(path: str, split: str, count: int, expected: int, dropped: int) -> BadInputError:
    of_split = f" of split {split!r}" if split else ""
    left = f" after dropping {dropped} that repeat another prompt or are unusable" if dropped else ""
    setting = f"puzzles.{split}" if split else "puzzles.train, puzzles.val or puzzles.test"
    return BadInputError(
        path, f"{count} questions{of_split}{left}", f"at least {expected}", f"lower {setting}, or add questions"
    )
