"""The stage that publishes a run's first weights, from any source."""

import tempfile
from pathlib import Path

from artifacts.address import ArtifactAddress
from artifacts.identity import Identity
from artifacts.refs import Checkpoint, Puzzles, Ref
from artifacts.store.location import local_folder
from stages.context import StageContext
from stages.environments.puzzle import Taught
from stages.environments.tables import names_of, read_split, tokenizer_texts
from stages.models.folder import content_of
from stages.models.from_scratch import ScratchModel
from stages.models.licence import licence_of
from stages.models.source import EarlyShape, FetchedModel, FolderModel, GgufPackageModel, materialise

REVISION, GGUF_REVISION = 1, 2
"""`GGUF_REVISION` is that of GGUF files: since 2, digits are tokens of their own where the file says so."""
_TOKENIZER_PUZZLES = 512
"""Number of puzzles whose texts make a scratch model's tokenizer."""
_TOKENIZER_DERIVATIONS = 64
"""The same number if the texts are derivations or transcripts; a derivation takes seconds for a large puzzle."""
_TOKENIZER_LINES = 4096
"""Number of prompts whose clues are tokens with `tokenizer = "lines"`: a clue outside them is spelled in bytes."""


def fetch(
    ctx: StageContext,
    config: FetchedModel,
    puzzles: Ref[Puzzles] | None,
    taught: Taught | None = None,
    *,
    out: ArtifactAddress[Checkpoint],
) -> Ref[Checkpoint]:
    """Publishes the model as a checkpoint in Hugging Face layout, bf16.

    If the context starts early, the engine starts as soon as config and tokenizer are known.

    Args:
        config: The source. The tokenizer of a `scratch` model is made from the first train puzzles.
        puzzles: Needed for a `scratch` model only, and part of the identity only then.
        taught: Texts that the warm start teaches; None if it teaches answers or there is no warm start. Used only for a
            `scratch` model whose tokenizer is not made from answers.

    Raises:
        BadInputError: The source is missing, damaged or of an unsupported family.
    """
    identity = identity_of(config, puzzles, taught)
    if published := out.find(identity):
        return published
    attempt = out.attempt(identity)
    with ctx.folder(attempt) as folder:
        shape = Path(tempfile.mkdtemp(prefix="shape-", dir=ctx.scratch))
        early = EarlyShape(shape, lambda: ctx.start_engine_early(shape))
        if isinstance(config, ScratchModel):
            assert puzzles is not None
            texts, names = _tokenizer_texts(config, puzzles, _tokenizer_kind(config, taught), ctx)
            materialise(config, folder, texts=texts, names=names, early=early)
        else:
            materialise(config, folder, early=early)
    facts = {"licence": licence_of(config)}
    if isinstance(config, FolderModel):
        facts["folder"] = config.path
    return attempt.publish(facts, puzzles=puzzles if isinstance(config, ScratchModel) else None)


def identity_of(config: FetchedModel, puzzles: Ref[Puzzles] | None, taught: Taught | None = None) -> Identity:
    """Returns the identity of a fetched model; see `fetch` for the arguments.

    The identity of a `scratch` model contains the puzzles and the kind of the texts that make its tokenizer.

    A local folder enters the identity by its content, not by its path. A folder in an object store enters it by its
    address, and a hub model by its id and revision: to notice a change, every command would have to read the folder or
    query the hub. So put new weights under a new address, and set `revision` to a commit, because `main` is fetched
    once and not updated.

    Raises:
        BadInputError: A local folder is missing or cannot be read.
    """
    if isinstance(config, FolderModel) and (folder := local_folder(config.path)) is not None:
        of_content = {"files": content_of(folder), **config.identity()}
        del of_content["path"]
        return Identity.of("fetch", REVISION, of_content)
    if not isinstance(config, ScratchModel):
        revision = GGUF_REVISION if isinstance(config, GgufPackageModel) else REVISION
        return Identity.of("fetch", revision, config.identity())
    settings = {**config.model_dump(mode="json"), "tokenizer": _tokenizer_kind(config, taught)}
    if config.tokenizer == "lines":
        settings["whole_lines"] = True
    return Identity.of("fetch", REVISION, settings, puzzles=puzzles)


def _tokenizer_kind(config: ScratchModel, taught: Taught | None) -> Taught | None:
    """Returns the kind of the texts that make the tokenizer; None if it is made from answers."""
    return None if config.tokenizer == "answers" else taught


def _tokenizer_texts(
    config: ScratchModel, puzzles: Ref[Puzzles], kind: Taught | None, ctx: StageContext
) -> tuple[list[str], list[str]]:
    """Returns the texts that make a tokenizer, and the names that get tokens of their own: none if `kind` is None."""
    every = read_split(ctx.store, puzzles, "train")
    train, names = every.head(_TOKENIZER_PUZZLES), list[str]()
    if kind is not None:
        names = names_of(train)
    if config.tokenizer == "lines":
        return every["prompt"].head(_TOKENIZER_LINES).to_list() + tokenizer_texts(train, kind), names
    return tokenizer_texts(train if kind is None else train.head(_TOKENIZER_DERIVATIONS), kind), names
