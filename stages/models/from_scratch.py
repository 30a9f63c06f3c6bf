"""Makes a small Qwen2-shaped model: random weights from a seed, and a phrase tokenizer. Needs only numpy."""

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from artifacts.config import Config
from artifacts.errors import BadInputError
from stages.models.json_file import write_json
from stages.models.shape import read_shape
from stages.models.tensor_file import write_floats
from stages.models.tensors import WEIGHTS, tensors_of
from stages.models.tokenizers.phrase_tokenizer import CHAT_TEMPLATE, END_OF_TURN, build_tokenizer

# Sizes that vLLM 0.32's CPU attention backend supports (CPUAttentionBackend.get_supported_head_sizes).
HeadDim = Literal[32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512]
"""Widths of a head that vLLM's attention computes on CPUs."""


class ScratchModel(Config):
    """A small Qwen2-shaped model with random weights and a tokenizer made from the puzzles' own texts."""

    source: Literal["scratch"] = "scratch"
    hidden: Annotated[int, Field(ge=8, le=4096, description="width of the residual stream")] = 64
    layers: Annotated[int, Field(ge=1, le=64, description="transformer layers")] = 3
    heads: Annotated[int, Field(ge=1, le=64, description="query heads")] = 2
    kv_heads: Annotated[int, Field(ge=1, le=64, description="key and value heads; divides heads")] = 2
    head_dim: Annotated[HeadDim, Field(description="width of a head; the engine supports only these")] = 32
    intermediate: Annotated[int, Field(ge=8, le=16384, description="width of the feed-forward layer")] = 256
    vocabulary: Annotated[int, Field(ge=259, le=65536, description="largest number of tokens of the tokenizer")] = 4096
    max_positions: Annotated[int, Field(ge=16, le=131072, description="longest sequence in tokens")] = 1024
    rope_theta: Annotated[float, Field(gt=1, le=1e12, description="base of the rotary position encoding")] = 10_000.0
    tied_embeddings: Annotated[bool, Field(description="the output head shares the embedding's weights")] = True
    init_std: Annotated[float, Field(gt=0, le=1, description="standard deviation of the random weights")] = 0.05
    seed: Annotated[int, Field(ge=0, description="seed of the random weights")] = 0
    tokenizer: Annotated[
        Literal["answers", "taught", "lines"],
        Field(
            description="texts that make the tokenizer, besides the prompts: answers, or those of the warm start; with "
            "lines, each line of these and each clue is one token, which suits a board whose cast is always the same"
        ),
    ] = "taught"

    @model_validator(mode="after")
    def _heads_fit(self) -> Self:
        if self.heads % self.kv_heads:
            raise ValueError(f"heads ({self.heads}) must be a multiple of kv_heads ({self.kv_heads})")
        if self.heads * self.head_dim != self.hidden:
            # vLLM's Qwen2 uses hidden / heads as the width of a head and ignores head_dim in config.json.
            raise ValueError(f"heads x head_dim is {self.heads * self.head_dim}, but hidden is {self.hidden}")
        return self


def _normal(random: np.random.Generator, shape: tuple[int, ...], std: float) -> NDArray[np.float32]:
    return random.standard_normal(shape, dtype=np.float32) * np.float32(std)


def random_weights(model: ScratchModel, vocabulary: int) -> Iterator[tuple[str, NDArray[np.float32]]]:
    """Draws normal weights; projections into the residual stream are scaled by 1/sqrt(2 layers).

    Args:
        model: Shape and seed.
        vocabulary: Number of rows of the embedding.

    Yields:
        Tensors under the names of transformers' Qwen2ForCausalLM; matrices are [out, in].
    """
    random = np.random.default_rng(model.seed)
    std, into_residual = model.init_std, model.init_std / math.sqrt(2 * model.layers)
    width, queries, keys = model.hidden, model.heads * model.head_dim, model.kv_heads * model.head_dim
    yield "model.embed_tokens.weight", _normal(random, (vocabulary, width), std)
    for layer in range(model.layers):
        prefix = f"model.layers.{layer}."
        for name, rows in (("q", queries), ("k", keys), ("v", keys)):
            yield f"{prefix}self_attn.{name}_proj.weight", _normal(random, (rows, width), std)
            yield f"{prefix}self_attn.{name}_proj.bias", np.zeros(rows, np.float32)
        yield f"{prefix}self_attn.o_proj.weight", _normal(random, (width, queries), into_residual)
        yield f"{prefix}mlp.gate_proj.weight", _normal(random, (model.intermediate, width), std)
        yield f"{prefix}mlp.up_proj.weight", _normal(random, (model.intermediate, width), std)
        yield f"{prefix}mlp.down_proj.weight", _normal(random, (width, model.intermediate), into_residual)
        yield f"{prefix}input_layernorm.weight", np.ones(width, np.float32)
        yield f"{prefix}post_attention_layernorm.weight", np.ones(width, np.float32)
    yield "model.norm.weight", np.ones(width, np.float32)
    if not model.tied_embeddings:
        yield "lm_head.weight", _normal(random, (vocabulary, width), std)


def config_of(model: ScratchModel, vocabulary: int, end_id: int | None = None) -> dict[str, Any]:
    """Returns the content of the model's config.json.

    Args:
        model: Its shape.
        vocabulary: Number of tokens.
        end_id: The token that ends a turn; None if it is not known yet.
    """
    return {
        "architectures": ["Qwen2ForCausalLM"],
        "attention_dropout": 0.0,
        "bos_token_id": None,
        "dtype": "bfloat16",
        "eos_token_id": end_id,
        "head_dim": model.head_dim,
        "hidden_act": "silu",
        "hidden_size": model.hidden,
        "initializer_range": model.init_std,
        "intermediate_size": model.intermediate,
        "max_position_embeddings": model.max_positions,
        "max_window_layers": model.layers,
        "model_type": "qwen2",
        "num_attention_heads": model.heads,
        "num_hidden_layers": model.layers,
        "num_key_value_heads": model.kv_heads,
        "pad_token_id": end_id,
        "rms_norm_eps": 1e-6,
        "rope_theta": model.rope_theta,
        "sliding_window": None,
        "tie_word_embeddings": model.tied_embeddings,
        "use_cache": True,
        "use_sliding_window": False,
        "vocab_size": vocabulary,
    }


def make_scratch(
    model: ScratchModel,
    texts: Sequence[str],
    out_dir: Path,
    names: Collection[str] = (),
    shape_known: Callable[[], None] = lambda: None,
) -> None:
    """Writes a complete Hugging Face folder of a new model.

    Args:
        model: Shape and seed.
        texts: Prompts, and answers or derivations, from which the tokenizer is made.
        out_dir: Existing folder.
        names: Names that get tokens of their own (see `phrase_tokenizer.learn_phrases`); empty if `texts` has only
            prompts and answers.
        shape_known: Called once all files but the weights are written.

    Raises:
        BadInputError: There are no texts, or their phrases do not fit the vocabulary.
    """
    if not any(text.strip() for text in texts):
        raise BadInputError("model.source = 'scratch'", "no texts", "puzzle texts from which to make the tokenizer")
    try:
        tokenizer = build_tokenizer(texts, model.vocabulary, names, whole_lines=model.tokenizer == "lines")
    except ValueError as error:
        raise BadInputError(
            "model.vocabulary", str(error), "room for every phrase of the puzzles", "raise it"
        ) from error
    end_id = tokenizer.token_to_id(END_OF_TURN)
    vocabulary = tokenizer.get_vocab_size(with_added_tokens=True)
    tokenizer.save(str(out_dir / "tokenizer.json"))
    write_json(out_dir / "config.json", config_of(model, vocabulary, end_id))
    write_json(
        out_dir / "tokenizer_config.json",
        {
            "tokenizer_class": "Qwen2Tokenizer",
            "chat_template": CHAT_TEMPLATE,
            "eos_token": END_OF_TURN,
            "pad_token": END_OF_TURN,
            "clean_up_tokenization_spaces": False,
            "model_max_length": model.max_positions,
        },
    )
    write_json(out_dir / "generation_config.json", {"eos_token_id": end_id, "pad_token_id": end_id})
    shape_known()
    write_floats(out_dir / WEIGHTS, tensors_of(read_shape(out_dir)), random_weights(model, vocabulary))
