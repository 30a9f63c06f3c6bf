"""Selection of a teacher's texts: each is counted once, wrong ones never enter, and their tokens stay."""

import json
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from artifacts.address import ArtifactAddress
from artifacts.errors import BadInputError, IdentityMismatchError
from artifacts.identity import Identity
from artifacts.reading import Artifact
from artifacts.refs import Answers, Checkpoint, Puzzles, Ref, Rollouts, Texts
from artifacts.schemas import ANSWERS, ANSWERS_FILE, PUZZLES, ROLLOUTS, TEXTS, TEXTS_FILE, as_table
from stages.context import StageContext
from stages.environments import environment
from stages.environments.generate import TIERS, generate
from stages.environments.logic_puzzles.answers import write_answer
from stages.environments.puzzle import Puzzle
from stages.environments.tables import graded_texts, puzzles_by_id, to_table
from stages.environments.thoughts import ThinkingConfig
from stages.environments.user_code.config import FunctionConfig
from stages.models.from_scratch import ScratchModel
from stages.models.source import materialise
from stages.models.tokenizers.chat import ChatTokenizer
from stages.optional.distil import distil
from stages.optional.sft import SftConfig, learning_rate_of, sft, text_groups
from stages.texts.selection import DistilConfig, TeacherText, TextLimits, select
from tests.support.episodes import game

SMALL = ScratchModel(hidden=32, layers=1, heads=1, kv_heads=1, head_dim=32, intermediate=32)
TRAIN, HELD_OUT = 6, 2


@pytest.fixture(scope="module")
def puzzles() -> list[Puzzle]:
    distinct: dict[str, Puzzle] = {}
    for seed in range(60):
        puzzle = generate(TIERS["reduced"], seed)
        distinct.setdefault(puzzle.digest, puzzle)
    return list(distinct.values())[: TRAIN + 2 * HELD_OUT]


def publish(ctx: StageContext, kind: type[Any], key: str, *, settings: dict[str, Any] | None = None) -> Any:
    """Returns an attempt at an artifact of a kind."""
    identity = Identity.of(kind.__name__.lower(), 1, {"key": key, **(settings or {})})
    return ArtifactAddress(ctx.store, key, kind).attempt(identity)


def a_set(ctx: StageContext, puzzles: Sequence[Puzzle], key: str = "puzzles/set") -> Ref[Puzzles]:
    attempt = publish(ctx, Puzzles, key)
    for split, first, last in (
        ("train", 0, TRAIN),
        ("val", TRAIN, TRAIN + HELD_OUT),
        ("test", TRAIN + HELD_OUT, len(puzzles)),
    ):
        attempt.write_table(f"{split}.parquet", to_table(puzzles[first:last]), PUZZLES)
    return attempt.publish()


def a_model(ctx: StageContext, puzzles: Sequence[Puzzle], *, thinks: bool = False) -> Ref[Checkpoint]:
    """Publishes a model; the chat template of one that thinks opens a thought."""
    attempt = publish(ctx, Checkpoint, "models/thinks" if thinks else "models/small")
    with attempt.folder(ctx.scratch) as folder:
        materialise(SMALL, folder, texts=[text for p in puzzles for text in (p.prompt, write_answer(p))])
        if thinks:
            (folder / "chat_template.jinja").write_text("{{ messages[0]['content'] }}{{ '<think>\\n' }}")
    return attempt.publish()


def rollouts_of(
    ctx: StageContext,
    texts: Sequence[tuple[Puzzle, Sequence[tuple[str, str]]]],
    weights: Ref[Checkpoint],
    key: str = "rollouts",
) -> Ref[Rollouts]:
    """Publishes completions with their finish reasons, by puzzle."""
    tokenizer = ChatTokenizer(ctx.local_folder(weights))
    rows: list[dict[str, Any]] = []
    for group, (puzzle, completions) in enumerate(texts):
        for sample, (text, reason) in enumerate(completions):
            tokens = tokenizer.answer_ids(text) if reason == "stop" else tokenizer.text_ids(text)
            rows.append(
                {
                    "prompt_id": puzzle.prompt_id, "group": group, "sample": sample, "prompt_token_ids": [1],
                    "completion_token_ids": tokens, "sampler_logprobs": [-0.5] * len(tokens), "text": text,
                    "finish_reason": reason, "sampling": "{}", "weights_digest": weights.digest, "engine": "e",
                    "group_s": 1.0,
                }
            )  # fmt: skip
    attempt = publish(ctx, Rollouts, key)
    attempt.write_table("r.parquet", as_table(rows, ROLLOUTS), ROLLOUTS)
    return attempt.publish(weights=weights)


def answers_of(ctx: StageContext, rows: Sequence[dict[str, Any]], *, split: str, **inputs: Ref[Any]) -> Ref[Answers]:
    """Publishes answers, right ones if a row changes nothing; those of a checkpoint have an input `weights`."""
    table = [
        {
            "answer": str(i), "prompt_id": puzzle.prompt_id, "group": i, "sample": 0, "text": write_answer(puzzle),
            "reasoning": None, "outcome": "answered",
            "finish_reason": "stop", "detail": None, "prompt_tokens": 1, "completion_tokens": None, "usage": "{}",
            "response_id": "", "model": "m", "fingerprint": None, "provider": None, "latency_s": 1.0, "attempts": 1,
            "answered_at": "2026-01-01T00:00:00Z", **changes,
        }
        for i, (puzzle, changes) in enumerate((row.pop("puzzle"), row) for row in map(dict, rows))
    ]  # fmt: skip
    attempt = publish(ctx, Answers, "answers/m", settings={"split": split, "rows": len(rows), "inputs": sorted(inputs)})
    attempt.write_table(ANSWERS_FILE, as_table(table, ANSWERS), ANSWERS)
    return attempt.publish(**inputs)


def selected(
    ctx: StageContext,
    config: DistilConfig,
    teacher: Ref[Rollouts] | Ref[Answers] | None,
    own: Ref[Puzzles],
    student: Ref[Checkpoint],
    *,
    key: str = "texts",
    row_tokens: int = 10_000,
) -> Ref[Texts]:
    out = ArtifactAddress(ctx.store, key, Texts)
    return distil(ctx, config, teacher, own, student, row_tokens=row_tokens, out=out)


def one_letter_wrong(puzzle: Puzzle, letter: str = "A") -> str:
    return write_answer(replace(puzzle, solution={**puzzle.solution, letter: "nowhere"}))


def kept_texts(ctx: StageContext, texts: Ref[Texts]) -> pl.DataFrame:
    return Artifact.open(ctx.store, texts).read_table(TEXTS_FILE, TEXTS)


def test_every_text_is_counted_once_by_the_first_reason(puzzles: list[Puzzle]) -> None:
    a, b, c, held = puzzles[0], puzzles[1], puzzles[2], puzzles[TRAIN]
    right = [TeacherText(a, i, f"{i} right", accuracy=1.0, exact=True, tokens=4) for i in range(4)]
    candidates = [
        *right[:2],
        TeacherText(a, 2, " 1   right\n", accuracy=1.0, exact=True),  # equal to sample 1 but for spaces
        *right[2:],
        TeacherText(a, 5, "half", accuracy=0.5),
        TeacherText(b, 0, "half", accuracy=0.5),
        TeacherText(b, 1, "none", accuracy=0.0),
        TeacherText(c, 0, "none", accuracy=0.0),
        TeacherText(b, 2, "", unusable="truncated"),
        TeacherText(b, 3, "long", accuracy=1.0, exact=True, tokens=9),
        TeacherText(held, 0, "right", accuracy=1.0, exact=True),
    ]
    unfit = {"truncated": 1, "contaminated": 1, "long": 1}
    expected: dict[Any, tuple[list[str], dict[str, int]]] = {
        "exact": (["0 right", "1 right", "2 right"], {**unfit, "wrong": 4, "duplicate": 1, "surplus": 1}),
        "wrong": (["half", "half", "none", "none"], {**unfit, "right": 5}),
        "best": (
            ["0 right", "1 right", "2 right", "half"],
            {**unfit, "worse": 2, "wrong": 1, "duplicate": 1, "surplus": 1},
        ),
        "all": (["0 right", "1 right", "2 right", "half", "none", "none"], {**unfit, "duplicate": 1, "surplus": 2}),
    }
    for keep, (texts, rejected) in expected.items():
        kept, reasons = select(candidates, DistilConfig(keep=keep, per_puzzle=3, max_tokens=8), {held.digest})
        assert [item.text for item in kept] == texts, keep
        assert reasons == rejected, keep
        assert len(kept) + sum(reasons.values()) == len(candidates)
    both, _ = select(candidates[:5], DistilConfig(deduplicate=False))
    assert len(both) == 5


def test_an_answer_that_fails_verification_never_enters(ctx: StageContext, puzzles: list[Puzzle]) -> None:
    """A right answer is kept; with any one letter changed it is not."""
    own, model = a_set(ctx, puzzles), a_model(ctx, puzzles)
    train = puzzles[:TRAIN]
    given = [
        (puzzle, [(write_answer(puzzle), "stop"), *((one_letter_wrong(puzzle, x), "stop") for x in puzzle.solution)])
        for puzzle in train
    ]
    texts = selected(ctx, DistilConfig(), rollouts_of(ctx, given, model), own, model)
    assert kept_texts(ctx, texts)["text"].to_list() == [write_answer(puzzle) for puzzle in train]
    facts = Artifact.open(ctx.store, texts).manifest.facts
    letters = sum(len(puzzle.solution) for puzzle in train)
    assert (facts["sampled"], facts["kept"], facts["rejected"]) == (letters + TRAIN, TRAIN, {"wrong": letters})


def test_texts_stand_in_lineage_and_are_found_again(ctx: StageContext, puzzles: list[Puzzle]) -> None:
    own, model = a_set(ctx, puzzles), a_model(ctx, puzzles)
    rollouts = rollouts_of(ctx, [(puzzles[0], [(write_answer(puzzles[0]), "stop")])], model)
    first = selected(ctx, DistilConfig(), rollouts, own, model)
    again = selected(ctx, DistilConfig(written="terse", puzzles=3), rollouts, own, model)  # without effect here
    assert (again, again.reused) == (first, True)
    inputs = Artifact.open(ctx.store, first).manifest.inputs
    assert {role: ref["digest"] for role, ref in inputs.items()} == {
        "teacher": rollouts.digest, "puzzles": own.digest, "student": model.digest,
    }  # fmt: skip
    with pytest.raises(IdentityMismatchError, match="row_tokens: 10000 -> 9999"):
        selected(ctx, DistilConfig(), rollouts, own, model, row_tokens=9999)


def test_only_texts_that_the_student_can_learn_are_kept(ctx: StageContext, puzzles: list[Puzzle]) -> None:
    """With its prompt, the short text of each puzzle fills a row to the last token; one token more is too long."""
    own, model = a_set(ctx, puzzles), a_model(ctx, puzzles)
    tokenizer, puzzle = ChatTokenizer(ctx.local_folder(model)), puzzles[0]
    short = write_answer(puzzle)
    longer = f"{tokenizer.decode(tokenizer.text_ids(short)[:1])}\n{short}"
    size = len(tokenizer.prompt_token_ids(puzzle.prompt)) + len(tokenizer.answer_ids(short))
    rollouts = rollouts_of(ctx, [(puzzle, [(longer, "stop"), (short, "stop")])], model)
    config = DistilConfig(keep="all", per_puzzle=1)
    texts = selected(ctx, config, rollouts, own, model, row_tokens=size)
    assert kept_texts(ctx, texts)["text"].to_list() == [short]
    assert Artifact.open(ctx.store, texts).manifest.facts["rejected"] == {"too_long": 1}
    with pytest.raises(
        BadInputError, match=r"none of 2 texts is left: 2 too_long; .* a higher distil\.sft\.row_tokens"
    ):
        selected(ctx, config, rollouts, own, model, row_tokens=size - 1, key="none")

    refused = selected(ctx, config.model_copy(update={"untrainable": "refuse"}), rollouts, own, model, key="refused")
    assert kept_texts(ctx, refused)["text"].to_list() == [longer]
    with pytest.raises(BadInputError, match=r"1 of 1 prompts .* start a run with another name, with .* \"drop\""):
        out = ArtifactAddress(ctx.store, "checkpoint", Checkpoint)
        sft(ctx, SftConfig(row_tokens=size), model, refused, out=out)


def test_texts_of_another_tokenizer_are_measured_in_the_students_tokens(
    ctx: StageContext, puzzles: list[Puzzle]
) -> None:
    tokenizer = ChatTokenizer(ctx.local_folder(a_model(ctx, puzzles)))
    text, end = write_answer(puzzles[0]), tokenizer.eos_ids[0]
    many = TeacherText(puzzles[0], 0, text, token_ids=[*[0] * 10_000, end])
    assert TextLimits(tokenizer, 10_000, keeps_tokens=True).lacking_for(many) == "too_long"
    assert TextLimits(tokenizer, 10_000, keeps_tokens=False).lacking_for(many) is None


def test_a_text_that_the_student_cannot_write_is_rejected(ctx: StageContext, puzzles: list[Puzzle]) -> None:
    """An API's answer may quote the student's end token, which would end its text."""
    model = a_model(ctx, puzzles)
    folder = ctx.local_folder(model)
    end = json.loads((folder / "tokenizer_config.json").read_text())["eos_token"]
    limits = TextLimits(ChatTokenizer(folder), 10_000, keeps_tokens=False)
    text = write_answer(puzzles[0])
    candidates = [
        TeacherText(puzzles[0], number, words, accuracy=1.0, exact=True)
        for number, words in enumerate((text, f"{end}{text}"))
    ]
    kept, rejected = select(candidates, DistilConfig(), limits=limits)
    assert (kept, rejected) == (candidates[:1], {"unwritable": 1})


def test_a_corruption_that_makes_a_text_too_long_is_counted(ctx: StageContext, puzzles: list[Puzzle]) -> None:
    own, model = a_set(ctx, puzzles), a_model(ctx, puzzles)
    tokenizer = ChatTokenizer(ctx.local_folder(model))
    answers = [write_answer(puzzle) for puzzle in puzzles[:TRAIN]]
    texts = [*answers[:2], *(f"{answer}\n{answer}" for answer in answers[2:])]  # the first two have no steps
    sizes = [
        len(tokenizer.prompt_token_ids(puzzle.prompt)) + len(tokenizer.answer_ids(text))
        for puzzle, text in zip(puzzles, texts, strict=False)
    ]
    given = [(puzzle, [(text, "stop")]) for puzzle, text in zip(puzzles, texts, strict=False)]
    config = DistilConfig.model_validate({"keep": "all", "corruption": {"kind": "insert_steps"}})
    rollouts = rollouts_of(ctx, given, model)
    facts = Artifact.open(ctx.store, selected(ctx, config, rollouts, own, model, row_tokens=max(sizes))).manifest.facts
    assert facts["kept"] + sum(facts["rejected"].values()) == facts["sampled"] == TRAIN
    assert facts["kept"] >= 2
    assert facts["rejected"].keys() == {"too_long"}


def test_nothing_left_is_said_in_one_line(ctx: StageContext, puzzles: list[Puzzle]) -> None:
    own, model = a_set(ctx, puzzles), a_model(ctx, puzzles)
    given = [(puzzles[0], [("A. nobody", "stop"), ("A.", "length"), ("  ", "stop")])]
    key = "runs/r/sft/0001/texts"
    with pytest.raises(BadInputError) as error:
        selected(ctx, DistilConfig(), rollouts_of(ctx, given, model), own, model, key=key)
    said = (
        "distil runs/r/sft/0001/texts: none of {} texts is left: {}; expected at "
        "least one text; the recipe of a run that has begun is fixed: start a run with another name, with another "
        "teacher or more samples{}"
    )
    assert str(error.value) == said.format(3, "1 truncated, 1 empty, 1 wrong", "")
    assert not ctx.store.exists(f"{key}/manifest.json")
    given[0][1].append((one_letter_wrong(puzzles[0]), "stop"))
    rollouts = rollouts_of(ctx, given, model, key="partly")
    with pytest.raises(BadInputError) as error:
        selected(ctx, DistilConfig(), rollouts, own, model, key=key)
    assert str(error.value) == said.format(4, "2 wrong, 1 truncated, 1 empty", ', or distil.texts.keep = "best"')
    best = kept_texts(ctx, selected(ctx, DistilConfig(keep="best"), rollouts, own, model, key=key))
    assert best["text"].to_list() == [one_letter_wrong(puzzles[0])]


def test_stored_answers_of_a_benchmark_teach_only_what_is_not_held_out(
    ctx: StageContext, puzzles: list[Puzzle]
) -> None:
    """The benchmark asked another set, under other ids: the digest without an order tells what is held out."""
    own, model = a_set(ctx, puzzles), a_model(ctx, puzzles)
    asked = [replace(puzzle, prompt_id=f"suite-{i}") for i, puzzle in enumerate(puzzles)]
    suite = publish(ctx, Puzzles, "puzzles/suite")
    suite.write_table("test.parquet", to_table(asked), PUZZLES)
    benchmarked = suite.publish()
    changes = [{"reasoning": "So it was."}, {"outcome": "length"}, *({} for _ in asked[2:])]
    rows = [{"puzzle": puzzle, **change} for puzzle, change in zip(asked, changes, strict=True)]
    answers = answers_of(ctx, rows, split="test", puzzles=benchmarked)
    texts = selected(ctx, DistilConfig(), answers, own, model)
    table = kept_texts(ctx, texts)
    assert set(table["digest"]) == {puzzle.digest for puzzle in puzzles[:TRAIN]} - {puzzles[1].digest}
    assert table["text"][0] == f"<think>\nSo it was.\n</think>\n\n{write_answer(puzzles[0])}"
    assert Artifact.open(ctx.store, texts).manifest.facts["rejected"] == {"contaminated": 4, "truncated": 1}


def test_words_of_a_tool_in_stored_answers_are_not_taught(ctx: StageContext, puzzles: list[Puzzle]) -> None:
    own, model = a_set(ctx, puzzles), a_model(ctx, puzzles)
    told = f"<ask>\nx\n</ask>\n<told>\nThe solver said so\n</told>\n{write_answer(puzzles[0])}"
    answers = answers_of(ctx, [{"puzzle": puzzles[0], "text": told}], split="train", puzzles=own, weights=model)
    with pytest.raises(BadInputError, match=r"distil\.teacher: .*words of a tool, .* tool_calls"):
        selected(ctx, DistilConfig(), answers, own, model)


def test_answers_to_episodes_are_not_taught(ctx: StageContext, puzzles: list[Puzzle], tmp_path: Path) -> None:
    """An API was asked the first turn alone."""
    (tmp_path / "guess.py").write_text(game())
    config = FunctionConfig(environment="guess.py:Guess").located(tmp_path)
    made = environment.of(config).source(config).items({"train": TRAIN + 2 * HELD_OUT, "val": 0, "test": 0}, 7)
    episodes = made.splits["train"]
    own, model = a_set(ctx, episodes), a_model(ctx, puzzles)
    answers = answers_of(ctx, [{"puzzle": episodes[0], "text": "5"}], split="train", puzzles=own)
    with pytest.raises(BadInputError, match=r"distil\.teacher: .*episodes"):
        selected(ctx, DistilConfig(keep="all"), answers, own, model)


def test_an_api_that_hides_its_thoughts_teaches_a_set_that_requires_them(
    ctx: StageContext, puzzles: list[Puzzle]
) -> None:
    required = [replace(puzzle, thinking=ThinkingConfig(rule="required")) for puzzle in puzzles]
    own, model = a_set(ctx, required), a_model(ctx, puzzles)
    rows: list[dict[str, Any]] = [{"puzzle": puzzles[0]}, {"puzzle": puzzles[1], "reasoning": "So it was."}]
    texts = kept_texts(
        ctx, selected(ctx, DistilConfig(), answers_of(ctx, rows, split="train", puzzles=own), own, model)
    )
    assert texts["text"].to_list() == [
        f"\n</think>\n{write_answer(puzzles[0])}",
        f"<think>\nSo it was.\n</think>\n\n{write_answer(puzzles[1])}",
    ]
    graded = graded_texts(
        list(zip(texts["text"], texts["prompt_id"], strict=True)), puzzles_by_id(to_table(required)), "strict"
    )
    assert all(grade.exact for grade in graded)


def test_the_solver_teaches_and_a_corruption_is_a_control(ctx: StageContext, puzzles: list[Puzzle]) -> None:
    own, model = a_set(ctx, puzzles), a_model(ctx, puzzles)
    tables: list[pl.DataFrame] = []
    for name, corruption in (("clean", None), ("cut", {"kind": "delete_steps", "share": 1.0})):
        config = DistilConfig.model_validate({"written": "terse", "puzzles": 4, "corruption": corruption})
        texts = selected(ctx, config, None, own, model, key=name)
        tables.append(kept_texts(ctx, texts))
    clean, cut = tables
    assert len(clean) == 4
    assert clean["prompt_id"].to_list() == cut["prompt_id"].to_list()
    by_id = {puzzle.prompt_id: puzzle for puzzle in puzzles}
    assert cut["text"].to_list() == [write_answer(by_id[name]).strip() for name in cut["prompt_id"]]
    assert all(text.startswith("s1 ") for text in clean["text"])
    with pytest.raises(BadInputError, match=r"distil\.texts\.puzzles: 7, more than the 6 train puzzles"):
        config = DistilConfig(puzzles=7)
        selected(ctx, config, None, own, model, key="more")


@pytest.mark.parametrize("corruption", [None, {"kind": "delete_steps", "share": 1.0}])
def test_texts_end_the_thought_that_the_students_template_opens(
    ctx: StageContext, puzzles: list[Puzzle], corruption: dict[str, Any] | None
) -> None:
    """Those of the solver and of a teacher without thoughts; a thought that a teacher has ended stays ended, also if
    its steps are deleted."""
    own, teacher, student = a_set(ctx, puzzles), a_model(ctx, puzzles), a_model(ctx, puzzles, thinks=True)
    config = DistilConfig.model_validate({"written": "terse", "corruption": corruption})
    thought = f"<think>\nSo it was.\n</think>\n\n{write_answer(puzzles[1])}"
    given = [(puzzles[0], [(write_answer(puzzles[0]), "stop")]), (puzzles[1], [(thought, "stop")])]
    for name, source in (("solver", None), ("rollouts", rollouts_of(ctx, given, teacher))):
        table = kept_texts(ctx, selected(ctx, config, source, own, student, key=f"texts/{name}"))
        known = puzzles_by_id(to_table(puzzles), thought_opened=True)
        pairs = list(zip(table["text"], table["prompt_id"], strict=True))
        assert all(graded.exact for graded in graded_texts(pairs, known, "strict"))
        starts = [text.startswith("\n</think>\n") for text in table["text"]]
        assert starts == ([True] * TRAIN if source is None else [True, False])
        assert [tokens is None for tokens in table["token_ids"]][-1] == (source is None or corruption is not None)
    plain = kept_texts(ctx, selected(ctx, config, source, own, teacher, key="plain"))
    assert not any(text.startswith("\n</think>") for text in plain["text"])


def test_tokens_of_the_same_tokenizer_are_kept_as_they_were_sampled(ctx: StageContext, puzzles: list[Puzzle]) -> None:
    own, model = a_set(ctx, puzzles), a_model(ctx, puzzles)
    tokenizer = ChatTokenizer(ctx.local_folder(model))
    text = write_answer(puzzles[0])
    spelled = [i for c in text for i in tokenizer.text_ids(c)]  # the same text in other tokens
    assert tokenizer.decode(spelled) == text != tokenizer.decode(spelled[:-1])
    assert spelled != tokenizer.text_ids(text)
    rollouts = rollouts_of(ctx, [(puzzles[0], [(text, "stop")])], model)
    table = kept_texts(ctx, selected(ctx, DistilConfig(), rollouts, own, model))
    ended = [*spelled, tokenizer.eos_ids[0]]
    other = table.with_columns(pl.Series("token_ids", [ended], pl.List(pl.Int32)))
    assert list(text_groups(other, tokenizer, keep_tokens=True)[0].branches[0].tokens) == ended
    again = [*tokenizer.text_ids(text), tokenizer.eos_ids[0]]
    assert list(text_groups(other, tokenizer, keep_tokens=False)[0].branches[0].tokens) == again
    unended = table.with_columns(pl.Series("token_ids", [spelled], pl.List(pl.Int32)))
    assert list(text_groups(unended, tokenizer, keep_tokens=True)[0].branches[0].tokens) == again
    assert list(text_groups(table, tokenizer, keep_tokens=True)[0].prompt) == tokenizer.prompt_token_ids(
        puzzles[0].prompt
    )


@pytest.mark.parametrize(
    ("schedule", "rates"),
    [
        ("constant", [0.5, 1.0, 1.0, 1.0, 1.0, 1.0]),
        ("linear", [0.5, 1.0, 1.0, 0.75, 0.5, 0.25]),
        ("cosine", [0.5, 1.0, 1.0, 0.8536, 0.5, 0.1464]),
    ],
)
def test_rates_rise_and_fall(schedule: Any, rates: list[float]) -> None:
    config = SftConfig(learning_rate=1.0, schedule=schedule, warmup_share=0.25)
    assert [round(learning_rate_of(config, step, 6), 4) for step in range(6)] == rates


def test_corruptions_do_not_depend_on_the_other_texts(ctx: StageContext, puzzles: list[Puzzle]) -> None:
    """A further sample changes nothing of those before it."""
    own, model = a_set(ctx, puzzles), a_model(ctx, puzzles)
    config = DistilConfig.model_validate({"keep": "all", "corruption": {"kind": "wrong_answers"}})
    order = random.Random(0).sample(puzzles[:TRAIN], TRAIN)
    made: list[dict[str, str]] = []
    for number in (3, TRAIN):
        given = [(puzzle, [(write_answer(puzzle), "stop")]) for puzzle in order[:number]]
        rollouts = rollouts_of(ctx, given, model, key=f"rollouts-{number}")
        table = kept_texts(ctx, selected(ctx, config, rollouts, own, model, key=f"texts-{number}"))
        made.append(dict(zip(table["prompt_id"], table["text"], strict=True)))
    assert made[0].items() <= made[1].items()
    assert json.dumps(made[0]) != json.dumps({p.prompt_id: write_answer(p) for p in order[:3]})
