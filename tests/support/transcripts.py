"""A model server that speaks transcripts with a solver, turn by turn, and the puzzles it knows."""

from pathlib import Path
from typing import Any

from stages.environments.puzzle import Puzzle
from stages.environments.solver_tool import CALL_END, Passage, write_tool_output
from stages.environments.tables import names_of, taught_passages, to_table
from stages.models.from_scratch import ScratchModel, make_scratch
from stages.sampling.completions import GENERATE_PATH, Completion, Completions
from tests.support.speaker import Speaker, of_tokens


class TranscriptSpeaker(Speaker):
    """Answers with the solver's transcripts, as vLLM would if a model had learned them by heart.

    A request must hold the tokens of the turns before it, exactly; otherwise the answer is a complaint.

    Attributes:
        requests: Body of each request that was answered.
    """

    def __init__(self, model: Path, puzzles: list[Puzzle], transcripts: list[list[Passage]]) -> None:
        super().__init__(model, {puzzle.prompt: [] for puzzle in puzzles})
        self.transcripts = dict(zip(self.texts, transcripts, strict=True))
        self.requests: list[dict[str, Any]] = []

    def answer(self, method: str, path: str, body: Any) -> tuple[int, Any]:
        if path != GENERATE_PATH or self.gone:
            return super().answer(method, path, body)
        if len(self.asked) >= self.fails_after:
            return 500, {"error": "out of order"}
        ids = tuple(body["token_ids"])
        prompt = next(known for known in self.transcripts if ids[: len(known)] == known)
        self.asked.append(self.prompts[prompt])
        self.requests.append(body)
        self.meanwhile.pop(len(self.asked), lambda: None)()
        said = self.turn(self.transcripts[prompt], list(ids[len(prompt) :]), body)
        return 200, Completions([said] * body["sampling_params"]["n"], [self.version])

    def turn(self, transcript: list[Passage], before: list[int], body: dict[str, Any]) -> Completion:
        """The passage after the tokens of the turns before it, cut at the limit as vLLM cuts it."""
        said: list[int] = []
        for number, passage in enumerate(transcript):
            last = number == len(transcript) - 1
            ids = self.tokenizer.answer_ids(passage.text) if last else self.tokenizer.text_ids(passage.text)
            if said == before and not passage.by_tool:
                limit = body["sampling_params"]["max_tokens"]
                reason = "stop" if len(ids) <= limit else "length"
                called = reason == "stop" and not last and CALL_END in body.get("stop", [])
                return of_tokens(ids[:limit], reason, CALL_END if called else None)
            said += ids
        return self.completion(f"Unexpected: {self.tokenizer.decode(before)}")


def transcript_model(folder: Path, puzzles: list[Puzzle]) -> list[list[Passage]]:
    """Writes a small model whose tokenizer knows the puzzles' transcripts, and returns the transcripts."""
    table = to_table(puzzles)
    transcripts = taught_passages(table, "transcripts")
    texts = [passage.text for passages in transcripts for passage in passages]
    prompts = [puzzle.prompt for puzzle in puzzles for _ in range(3)]
    make_scratch(ScratchModel(tied_embeddings=False, max_positions=4096), [*prompts, *texts], folder, names_of(table))
    return transcripts


def two_calls(transcript: list[Passage], tool_output_first: list[str]) -> list[Passage]:
    """A transcript with an empty call, and its answer, before it."""
    return [Passage("<ask>\n</ask>"), Passage(write_tool_output(tool_output_first), by_tool=True), *transcript]
