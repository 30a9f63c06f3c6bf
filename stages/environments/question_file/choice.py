"""Chooses the questions of each split."""

import random
from collections.abc import Mapping, Sequence

from artifacts.errors import BadInputError
from stages.environments.capabilities import Items
from stages.environments.puzzle import Puzzle
from stages.environments.question_file.reading import SPLITS, FileQuestion
from stages.environments.single_answer import ANSWER


def choose_questions(questions: Sequence[FileQuestion], sizes: Mapping[str, int], seed: int, path: str) -> Items:
    """Returns the questions of each split; the fact `repeated` counts those dropped because they repeat another one.

    One question of each prompt stays. If the file names the splits, a question that is held out stays: one in test
    rather than in val, and in val rather than in train. As in generated sets, held-out questions stay the same when
    `train` grows.

    Args:
        questions: All questions of the file.
        sizes: Sizes of the splits.
        seed: Seed of the choice.
        path: The file, for error messages.

    Raises:
        BadInputError: There are too few questions, or the same prompt has different answers.
    """
    kept: dict[str, FileQuestion] = {}
    for question in sorted(questions, key=lambda item: SPLITS[::-1].index(item.split) if item.split else 0):
        first = kept.setdefault(question.puzzle.digest, question)
        if first.puzzle.solution != question.puzzle.solution:
            answers = [f"{item.puzzle.solution[ANSWER][:60]!r} ({item.where})" for item in (first, question)]
            raise BadInputError(
                path,
                f"the same prompt with the answers {' and '.join(answers)}",
                "one answer to each prompt",
                "correct one of the rows, or add a column to puzzles.puzzle.prompt that tells them apart",
            )
    order = [question for question in questions if kept[question.puzzle.digest] is question]
    random.Random(f"questions/{seed}").shuffle(order)
    repeated = len(questions) - len(order)
    warnings = (f"{path}: {repeated} questions repeat the prompt of another and were dropped",) if repeated else ()
    return Items(_splits(order, sizes, path, repeated), {"file": path, "repeated": repeated}, warnings)


def _splits(
    order: Sequence[FileQuestion], sizes: Mapping[str, int], path: str, repeated: int
) -> dict[str, list[Puzzle]]:
    if any(question.split is None for question in order):
        total, val, test = sum(sizes.values()), sizes["val"], sizes["test"]
        if len(order) < total:
            raise _too_few(path, "", len(order), total, repeated)
        parts = {"train": order[val + test : total], "val": order[:val], "test": order[val : val + test]}
        return {split: [question.puzzle for question in part] for split, part in parts.items()}
    chosen: dict[str, list[Puzzle]] = {}
    for split in SPLITS:
        marked = [question.puzzle for question in order if question.split == split]
        if len(marked) < sizes[split]:
            raise _too_few(path, split, len(marked), sizes[split], repeated)
        chosen[split] = marked[: sizes[split]]
    return chosen


def _too_few(path: str, split: str, count: int, expected: int, repeated: int) -> BadInputError:
    of_split = f" of split {split!r}" if split else ""
    dropped = f" after dropping {repeated} that repeat another prompt" if repeated else ""
    setting = f"puzzles.{split}" if split else "puzzles.train, puzzles.val or puzzles.test"
    return BadInputError(
        path, f"{count} questions{of_split}{dropped}", f"at least {expected}", f"lower {setting}, or add questions"
    )
