"""Completions in turns, from a server that speaks the solver's transcripts to the packed batch."""

from collections.abc import Callable, Generator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from pydantic import ValidationError

from artifacts.address import ArtifactAddress
from artifacts.errors import BadInputError, TransientError
from artifacts.reading import Artifact
from artifacts.refs import Answers, Batch, Grades, Report
from artifacts.schemas import ANSWERS, ANSWERS_FILE, BY_TOOL, GRADES, GRADES_FILE, RESULTS, ROLLOUTS
from artifacts.store.store import Store
from artifacts.tensors import BATCH_FILE, PackedBatch
from flows.config.recipe import Recipe
from flows.lookup.history import IterationRecord
from flows.lookup.rollouts import sampled_shards
from stages.answer import AnswerConfig, AskedCheckpoint, answer
from stages.environments.generate import TIERS, ZebraConfig, generate
from stages.environments.puzzle import Puzzle
from stages.environments.solver_tool import ANSWER_END, ANSWER_START, CALL_END, NOTHING, Passage
from stages.environments.tables import names_of, taught_passages, to_table
from stages.evaluate import EvaluateConfig, HeldOutSampling, evaluate
from stages.grade import GradeConfig, grade
from stages.grpo.packing import PackConfig, pack_groups
from stages.models.tokenizers.chat import ChatTokenizer
from stages.models.tokenizers.phrase_tokenizer import build_tokenizer
from stages.optional.sft import WarmStartConfig, taught_groups
from stages.pack import pack
from stages.sample import SampleConfig
from stages.sampling.config import EarlyStopConfig, EngineHardware, SamplingConfig
from tests.support.contexts import make_context
from tests.support.speaker import Place, served
from tests.support.transcripts import TranscriptSpeaker, transcript_model, two_calls

TOOL = SampleConfig(
    puzzles_per_iteration=12, sampling=SamplingConfig(samples_per_prompt=2, max_tokens=200, tool_calls=1)
)


def with_sampling(**changes: Any) -> SampleConfig:
    return TOOL.model_copy(update={"sampling": TOOL.sampling.model_copy(update=changes)})


@pytest.fixture(scope="module")
def puzzles() -> list[Puzzle]:
    """Eight of Temporal Clue and four zebra grids."""
    easy = [generate(TIERS["reduced"], seed) for seed in range(8)] + [
        generate(ZebraConfig(), seed) for seed in range(4)
    ]
    assert len({puzzle.digest for puzzle in easy}) == 12
    return easy


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory, puzzles: list[Puzzle]) -> Path:
    folder = tmp_path_factory.mktemp("model")
    transcript_model(folder, puzzles)
    return folder


Opener = Callable[..., Place]


@pytest.fixture
def opened(tmp_path: Path, puzzles: list[Puzzle], model: Path) -> Generator[Opener]:
    """Opens the store `name` in front of a server with these transcripts, by default the solver's."""
    with ExitStack() as stack:

        def place(transcripts: list[list[Passage]] | None = None, name: str = "store", **hardware: Any) -> Place:
            spoken = transcripts or taught_passages(to_table(puzzles), "transcripts")
            speaker = TranscriptSpeaker(model, puzzles, spoken)
            url = stack.enter_context(served(speaker))
            engine = EngineHardware(external_urls=(url,), restarts=0, **hardware)
            scratch = tmp_path / f"{name}-scratch-{id(speaker)}"
            ctx = make_context(Store.open(str(tmp_path / name)), scratch, engine=engine)
            return Place(stack.enter_context(ctx), speaker, puzzles, model)

        yield place


def rollouts_of(place: Place, config: SampleConfig = TOOL) -> pl.DataFrame:
    return Artifact.open(place.ctx.store, place.sampled(config)).read_tables(ROLLOUTS).sort("group", "sample")


def requests_of(place: Place) -> list[dict[str, Any]]:
    assert isinstance(place.speaker, TranscriptSpeaker)
    return place.speaker.requests


def told_words(row: dict[str, Any], tokenizer: ChatTokenizer) -> str:
    """The text of the tokens that the tool wrote."""
    pairs = zip(row["completion_token_ids"], row[BY_TOOL], strict=True)
    return tokenizer.decode([token for token, tool_output in pairs if tool_output])


def test_a_benchmark_and_a_data_set_count_the_tokens_that_the_model_wrote(opened: Opener) -> None:
    place = opened()
    rollouts = place.sampled(TOOL)
    rows = Artifact.open(place.ctx.store, rollouts).read_tables(ROLLOUTS).sort("group", "sample")
    own = [marks.count(False) for marks in rows[BY_TOOL].to_list()]
    assert sum(own) < rows["completion_token_ids"].list.len().sum()
    config = AnswerConfig(puzzles=12, samples=1, asked=AskedCheckpoint(sampling=TOOL.sampling))
    out = ArtifactAddress(place.ctx.store, "answers/x", Answers)
    answers = answer(place.ctx, config, place.puzzles, place.weights, split="val", out=out)
    table = Artifact.open(place.ctx.store, answers).read_table(ANSWERS_FILE, ANSWERS)
    assert dict(table.select("prompt_id", "completion_tokens").iter_rows()) == dict(
        zip(rows["prompt_id"], own, strict=True)
    )
    grades = ArtifactAddress(place.ctx.store, "grades", Grades)
    graded = grade(place.ctx, GradeConfig(), rollouts, place.puzzles, out=grades)
    record = IterationRecord(1, {"grade": Artifact.open(place.ctx.store, graded).manifest})
    shown = pl.concat(sampled_shards(record, place.ctx.store)).sort("group", "sample")
    assert shown["completion_tokens"].to_list() == own


def test_transcripts_through_the_loop_are_all_right(opened: Opener, model: Path, puzzles: list[Puzzle]) -> None:
    """Sampled in turns, the solver's answers come back in the same tokens, and every completion is right."""
    place, tokenizer = opened(), ChatTokenizer(model)
    rollouts = place.sampled(TOOL)
    rows = Artifact.open(place.ctx.store, rollouts).read_tables(ROLLOUTS).sort("group", "sample")
    spoken = {
        puzzle.prompt_id: "".join(passage.text for passage in passages)
        for puzzle, passages in zip(puzzles, taught_passages(to_table(puzzles), "transcripts"), strict=True)
    }
    for row in rows.iter_rows(named=True):
        assert row["text"] == spoken[row["prompt_id"]]
        tool_output = told_words(row, tokenizer)
        assert tool_output.startswith(f"\n{ANSWER_START}\n") and tool_output.endswith(f"\n{ANSWER_END}\n")
        assert all((logprob == 0.0) == by for logprob, by in zip(row["sampler_logprobs"], row[BY_TOOL], strict=True))
        assert row["finish_reason"] == "stop" and not row[BY_TOOL][0] and not row[BY_TOOL][-1]
    out = ArtifactAddress(place.ctx.store, "grades", Grades)
    grades = grade(place.ctx, GradeConfig(), rollouts, place.puzzles, out=out)
    table = Artifact.open(place.ctx.store, grades).read_table(GRADES_FILE, GRADES)
    assert len(table) == 24 and table["exact"].all()
    own = rows.select((~pl.col(BY_TOOL).explode()).sum().alias("own"))["own"][0]
    facts = Artifact.open(place.ctx.store, grades).manifest.facts
    assert facts["completion_tokens/mean"] == pytest.approx(own / len(rows))
    assert Artifact.open(place.ctx.store, rollouts).manifest.facts["completion_tokens"] == own


@pytest.mark.long
def test_two_hundred_transcripts_through_the_loop_are_all_right(tmp_path: Path) -> None:
    many = [generate(TIERS["easy"], seed) for seed in range(100)] + [generate(ZebraConfig(), s) for s in range(100)]
    many = list({puzzle.prompt_id: puzzle for puzzle in many}.values())
    assert len(many) == 200
    (tmp_path / "model").mkdir()
    speaker = TranscriptSpeaker(tmp_path / "model", many, transcript_model(tmp_path / "model", many))
    with served(speaker) as url:
        engine = EngineHardware(external_urls=(url,), restarts=0)
        with make_context(Store.open(str(tmp_path / "store")), tmp_path / "scratch", engine=engine) as ctx:
            place = Place(ctx, speaker, many, tmp_path / "model")
            grades, _ = place.trained(place.sampled(TOOL.model_copy(update={"puzzles_per_iteration": 200})))
    assert len(grades) == 400 and grades["exact"].all()


def test_only_tokens_of_the_model_are_in_the_loss(opened: Opener) -> None:
    place = opened()
    ctx, rollouts = place.ctx, place.sampled(TOOL)
    grades = grade(ctx, GradeConfig(), rollouts, place.puzzles, out=ArtifactAddress(ctx.store, "grades", Grades))
    config = PackConfig(row_tokens=2048, uniform_groups="kept", last_token_advantage="zero")
    batch = pack(ctx, config, rollouts, grades, out=ArtifactAddress(ctx.store, "batch", Batch))
    packed = PackedBatch.from_bytes(Artifact.open(ctx.store, batch).read_bytes(BATCH_FILE), "batch")
    rows = Artifact.open(ctx.store, rollouts).read_tables(ROLLOUTS)
    tool_output = {tuple(row["completion_token_ids"]): row[BY_TOOL] for row in rows.iter_rows(named=True)}
    completions = 0
    for tokens, segments, parents, mask in zip(
        packed.tokens, packed.segment_ids, packed.parent_ids, packed.completion_mask, strict=True
    ):
        for segment in np.unique(segments[(segments >= 0) & (segments != parents)]):
            here = segments == segment
            by_tool = tool_output[tuple(tokens[here].tolist())]
            assert mask[here].tolist() == [int(not by) for by in by_tool]
            completions += 1
    assert completions == 24
    assert Artifact.open(ctx.store, batch).manifest.facts["completion_tokens"] == sum(
        not by for row in rows[BY_TOOL].to_list() for by in row
    )


def test_every_turn_continues_the_very_same_tokens_with_what_is_left(opened: Opener) -> None:
    place = opened()
    rows = rollouts_of(place)
    requests = requests_of(place)
    first = [body for body in requests if body["sampling_params"]["n"] == 2]
    assert (len(first), len(requests)) == (12, 12 + 24)
    prompts = {tuple(row["prompt_token_ids"]): row for row in rows.iter_rows(named=True)}
    for body in requests:
        sampling, ids = body["sampling_params"], body["token_ids"]
        prompt = next(known for known in prompts if tuple(ids[: len(known)]) == known)
        row, before = prompts[prompt], len(ids) - len(prompt)
        assert ids[len(prompt) :] == row["completion_token_ids"][:before]
        assert sampling["max_tokens"] == 200 - sum(not by for by in row[BY_TOOL][:before])
        assert body.get("stop", []) == ([] if before else [CALL_END]), "after the last call nothing ends a turn"
    seeds = [body["sampling_params"]["seed"] for body in requests]
    assert len(set(seeds)) == len(seeds)
    assert sorted(seeds) == sorted(body["sampling_params"]["seed"] for body in again(opened))


def again(opened: Opener) -> list[dict[str, Any]]:
    """The requests of the same sampling in another store, on an engine that decodes one sequence at a time."""
    place = opened(name="another", max_num_seqs=1)
    rollouts_of(place)
    return requests_of(place)


def test_without_a_tool_rollouts_have_no_marks_of_it(opened: Opener) -> None:
    place = opened()
    rows = rollouts_of(place, with_sampling(tool_calls=0))
    assert BY_TOOL not in rows.columns
    assert all("stop" not in body and body["sampling_params"]["seed"] for body in requests_of(place))
    assert rows["text"].str.ends_with(CALL_END).all()


def test_calls_beyond_the_limit_stay_without_an_answer(opened: Opener, puzzles: list[Puzzle]) -> None:
    spoken = taught_passages(to_table(puzzles), "transcripts")
    twice = [two_calls(transcript, [NOTHING]) for transcript in spoken]
    both = rollouts_of(opened(twice, "both"), with_sampling(tool_calls=2))
    assert set(both["text"]) == {"".join(passage.text for passage in transcript) for transcript in twice}
    one = rollouts_of(opened(twice, "one"))
    assert one["text"].str.count_matches(ANSWER_START, literal=True).to_list() == [1] * 24
    assert one["text"].str.ends_with(CALL_END).all(), "nobody answers, so the speaker has nothing to add"


@pytest.mark.parametrize("short", [1, 0])
def test_a_call_that_does_not_end_in_time_is_cut(
    opened: Opener, model: Path, puzzles: list[Puzzle], short: int
) -> None:
    """In the midst of a call, or at its very end, where no token is left for what would follow."""
    calls = [passages[0].text for passages in taught_passages(to_table(puzzles), "transcripts")]
    longest = max(len(ChatTokenizer(model).text_ids(call)) for call in calls)
    place = opened(name=f"store-{short}")
    rows = rollouts_of(place, with_sampling(max_tokens=longest - short))
    cut = rows.filter(pl.col("completion_token_ids").list.len() == longest - short)
    assert len(cut) and set(cut["finish_reason"]) == {"length"}
    assert not any(any(by) for by in cut[BY_TOOL].to_list())
    grades, _ = place.trained(place.sampled(with_sampling(max_tokens=longest - short)))
    assert grades.filter(pl.col("truncated")).height >= len(cut)


def test_an_answer_that_fills_the_context_ends_the_completion(
    opened: Opener, model: Path, puzzles: list[Puzzle]
) -> None:
    tokenizer = ChatTokenizer(model)
    spoken = taught_passages(to_table(puzzles), "transcripts")
    lengths = [
        len(tokenizer.prompt_token_ids(puzzle.prompt))
        + sum(len(tokenizer.text_ids(part.text)) for part in transcript[:2])
        for puzzle, transcript in zip(puzzles, spoken, strict=True)
    ]
    rows = rollouts_of(opened(max_model_len=max(lengths)))
    assert sorted(set(rows["finish_reason"])) == ["length", "stop"]
    full = rows.filter(pl.col("finish_reason") == "length")
    assert full["text"].str.ends_with(CALL_END).all() and not any(any(by) for by in full[BY_TOOL].to_list())


def test_a_killed_sample_goes_on_with_the_groups_that_are_missing(opened: Opener) -> None:
    whole = rollouts_of(opened(name="whole", max_num_seqs=1))
    place = opened(max_num_seqs=1)
    place.speaker.fails_after = 18  # a group takes three requests
    with pytest.raises(TransientError):
        place.sampled(TOOL)
    place.speaker.fails_after, before = 10**9, len(requests_of(place))
    rows = rollouts_of(place)
    later = requests_of(place)[before:]
    assert 0 < sum(body["sampling_params"]["n"] == 2 for body in later) < 12
    same = [name for name in rows.columns if name not in ("group_s", "engine")]
    assert rows.select(same).equals(whole.select(same))


def test_greedy_answers_of_an_evaluation_use_the_tool_too(opened: Opener) -> None:
    place = opened()
    sampled = HeldOutSampling(samples_per_prompt=2, max_tokens=200, tool_calls=1)
    out = ArtifactAddress(place.ctx.store, "report", Report)
    report = evaluate(
        place.ctx, EvaluateConfig(puzzles=12, sampled=sampled), place.weights, place.puzzles, split="val", out=out
    )
    results = Artifact.open(place.ctx.store, report).read_table("results.parquet", RESULTS)
    assert results.group_by("mode").len().sort("mode").rows() == [("greedy", 12), ("sampled", 24)]
    assert results["exact"].all()
    own = [len(place.speaker.tokenizer.text_ids(text)) for text in results["text"]]
    assert (results["completion_tokens"] < pl.Series(own)).all(), "the solver's tokens do not count"


def test_rules_that_would_begin_again_in_every_turn_are_refused() -> None:
    for changes in ({"early_stop": EarlyStopConfig()}, {"presence_penalty": 0.5}, {"frequency_penalty": 0.5}):
        with pytest.raises(ValidationError, match="would begin again after every answer of the tool"):
            SamplingConfig(tool_calls=1, **changes)
        assert not SamplingConfig(tool_calls=0, **changes).tool_calls


@pytest.mark.parametrize("setting", ["sample.sampling.tool_calls", "evaluate.sampled.tool_calls", "warm_start.text"])
def test_a_recipe_that_asks_for_a_solver_of_questions_from_a_file_is_refused(setting: str, tmp_path: Path) -> None:
    value: Any = "transcripts" if setting == "warm_start.text" else 1
    recipe: dict[str, Any] = {
        "title": "t", "iterations": 1, "model": {"source": "gguf_package"},
        "puzzles": {"puzzle": {"environment": "file", "path": "q.jsonl", "prompt": "{question}", "grader": "number"}},
    }  # fmt: skip
    *sections, name = setting.split(".")
    inner = recipe
    for section in sections:
        inner = inner.setdefault(section, {})
    inner[name] = value
    with pytest.raises(
        ValidationError, match=rf"{setting} = '?{value}'?: the environment 'file.*' cannot answer calls"
    ):
        Recipe.model_validate(recipe)


def test_a_warm_start_on_transcripts_leaves_the_solvers_tokens_out(model: Path, puzzles: list[Puzzle]) -> None:
    config, tokenizer, table = WarmStartConfig(text="transcripts"), ChatTokenizer(model), to_table(puzzles)
    groups = taught_groups(config, table, tokenizer)
    batch, facts = pack_groups(groups, PackConfig(row_tokens=config.row_tokens))
    transcripts = taught_passages(table, "transcripts")
    own = sum(len(tokenizer.text_ids(part.text)) for parts in transcripts for part in parts if not part.by_tool)
    assert facts.completion_tokens == int(batch.completion_mask.sum()) == own + len(puzzles)  # and an end token each
    for group, parts in zip(groups, transcripts, strict=True):
        (branch,) = group.branches
        assert tokenizer.decode(list(branch.tokens)) == "".join(part.text for part in parts)
        by_tool = branch.by_tool or []
        tool_output = [token for token, tool_output in zip(branch.tokens, by_tool, strict=True) if tool_output]
        assert tokenizer.decode(tool_output) == parts[1].text
    with pytest.raises(BadInputError, match=r"their transcripts are longer.*max_tokens of \d+"):
        taught_groups(WarmStartConfig(text="transcripts", row_tokens=40), table, tokenizer)


def test_the_end_of_a_call_is_one_token_of_its_own(puzzles: list[Puzzle]) -> None:
    """In the tokenizer of a model made from scratch, so that a call is ended by one decision."""
    table = to_table(puzzles)
    passages = [part for parts in taught_passages(table, "transcripts") for part in parts]
    prompts = [puzzle.prompt for puzzle in puzzles for _ in range(3)]
    tokenizer = build_tokenizer([*prompts, *(part.text for part in passages)], 4096, names_of(table))
    for part in passages:
        tokens = tokenizer.encode(part.text).tokens
        assert tokenizer.decode(tokenizer.encode(part.text).ids) == part.text
        if part.text.endswith(CALL_END):
            assert tokens[-1] == f"\n{CALL_END}"
