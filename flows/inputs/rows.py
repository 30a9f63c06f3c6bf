"""Rows that no completion exceeds: the number for `pack.row_tokens = "auto"`, and the check of explicit ones."""

from collections.abc import Sequence
from pathlib import Path

from artifacts.documents.run_files import read_recipe
from artifacts.refs import Checkpoint, Puzzles, Ref
from artifacts.store.store import Store
from flows.checks.rows import check_rows
from flows.config.model_size import ModelSize, shape_of_config
from flows.plan.rows import described, with_rows
from flows.plan.workload import Lengths
from flows.session.session import Session
from stages.environments.capabilities import AnswersCalls, needs
from stages.environments.environment import get
from stages.environments.solver_tool import UNREADABLE, write_tool_output
from stages.environments.tables import puzzles_by_id, read_split
from stages.models.json_file import read_json
from stages.models.shape import read_shape
from stages.models.tokenizers.chat import chat_tokenizer
from stages.sampling.collect import longest_sequence

_ASKED_PUZZLES = 64
"""Number of puzzles whose solver is asked for its longest answer."""
_LONGER_NAMES = 1.5
"""Factor for answers with longer names than those of the solution, which a call with false statements may get."""


def settle_rows(session: Session, weights: Ref[Checkpoint], puzzles: Ref[Puzzles], prompts: Sequence[int]) -> None:
    """Decides each `pack.row_tokens` of the run's recipe, and refuses rows that a completion may exceed.

    Call it before the run stores anything. A run that has begun keeps the numbers of its frozen recipe.

    Args:
        weights: The checkpoint whose tokenizer the run uses.
        puzzles: The puzzle set.
        prompts: Tokens of each of its train prompts.

    Raises:
        BadInputError: An explicit one is too small for the longest prompt with a completion of `max_tokens`, the
            memory of this machine is too small for such a row, or the model lacks what adapters or loss need.
    """
    store = session.ctx.store
    if store.exists(session.layout.recipe):
        session.recipe = session.recipe.with_rows_of(read_recipe(store, session.layout))
        return
    folder, written = session.ctx.local_folder(weights), session.recipe
    calls = any(part.sample.sampling.tool_calls for part in written.parts)
    lengths = Lengths(
        max(prompts, default=1),
        _tool_output_tokens(store, puzzles, folder) if calls else 0,
        longest_sequence(folder, session.ctx.profile.engine.max_model_len),
    )
    for finetune in (part.finetune for part in written.parts):
        finetune.loss.check_model(read_shape(folder))
        if finetune.trainable.parameters == "lora":
            finetune.trainable.adapted(read_shape(folder))
    shape = shape_of_config(read_json(folder / "config.json"))
    size = ModelSize(shape.parameters, "by its config.json", shape)
    session.recipe = with_rows(written, session.ctx.profile, lengths=lengths, size=size)
    check_rows(session.recipe, lengths, shortest=min(prompts, default=1))
    for line in described(session.recipe, written):
        session.live.line(line)


def _tool_output_tokens(store: Store, puzzles: Ref[Puzzles], folder: Path) -> int:
    """Returns a bound of the tokens of the solver's answers: to calls with all clues, which answer every question."""
    train = read_split(store, puzzles, "train")
    tokenizer = chat_tokenizer(folder)
    longest = 0
    for puzzle in puzzles_by_id(train.head(_ASKED_PUZZLES)).values():
        solver = needs(get(puzzle.environment), AnswersCalls, "sample.sampling.tool_calls", "set it to 0")
        sentences = [UNREADABLE, *solver.tool_output(solver.asked(puzzle), puzzle)]
        longest = max(longest, len(tokenizer.text_ids(write_tool_output(sentences))))
    return int(_LONGER_NAMES * longest)
