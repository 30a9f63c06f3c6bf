"""`deerstalker solve --tool-calls`, from a server that speaks a transcript with the solver."""

import json
from pathlib import Path

import pytest

from flows.cli.app import run_command
from stages.environments.generate import ZebraConfig, generate
from stages.environments.solver_tool import ANSWER_START
from tests.support.speaker import served
from tests.support.transcripts import TranscriptSpeaker, transcript_model

PUZZLE = generate(ZebraConfig(houses=(2, 2), attributes=(2, 2)), 1)


def test_an_answer_asks_the_solver(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, text, profile, model = (tmp_path / name for name in ("one.json", "one.txt", "served.toml", "model"))
    entry = {"num_clues": PUZZLE.num_clues, "prompt": PUZZLE.prompt, "solution": PUZZLE.solution}
    file.write_text(json.dumps([entry]))
    text.write_text(PUZZLE.prompt)
    model.mkdir()
    (transcript,) = transcript_model(model, [PUZZLE])
    speaker = TranscriptSpeaker(model, [PUZZLE], [transcript])
    command = ["--checkpoint", str(model), "--profile", str(profile), "--json"]
    with served(speaker) as url:
        profile.write_text(f'[engine]\nexternal_urls = ["{url}"]\n')
        for question in (file, text):
            assert run_command(["solve", str(question), *command, "--tool-calls", "1"]) == 0
            document = json.loads(capsys.readouterr().out)
            (answer,) = document["completions"]
            assert answer["text"] == "".join(passage.text for passage in transcript)
            own = [passage.text for passage in transcript if not passage.by_tool]
            lengths = [len(speaker.tokenizer.text_ids(own[0])), len(speaker.tokenizer.answer_ids(own[1]))]
            assert (answer["finish_reason"], answer["tokens"]) == ("stop", sum(lengths))
            assert answer["grade"] is None if question == text else answer["grade"]["exact"]
        assert run_command(["solve", str(file), *command]) == 0
        (alone,) = json.loads(capsys.readouterr().out)["completions"]
        assert ANSWER_START not in alone["text"] and not alone["grade"]["exact"]


def test_a_prompt_that_no_solver_reads_is_refused_before_an_engine_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prompt = tmp_path / "prompt.txt"
    prompt.write_text("What is 2 + 2?")
    (model := tmp_path / "model").mkdir()
    transcript_model(model, [PUZZLE])
    assert run_command(["solve", str(prompt), "--checkpoint", str(model), "--tool-calls", "1"]) != 0
    assert "set --tool-calls 0" in " ".join(capsys.readouterr().err.split())
