"""The work of an iteration of a recipe: trained parameters, tokens and floating-point operations."""

import math
from dataclasses import dataclass

from flows.config.model_size import LayerSizes, ModelSize
from flows.config.recipe import Recipe
from flows.plan.memory import BYTES
from stages.finetune import FinetuneConfig
from stages.hardware.compute_type import ComputeType
from stages.optional.teach import POLICY
from stages.sampling.config import SamplingConfig
from stages.training.trainable import TrainableConfig
from stages.training.worker_group.hardware import TrainHardware


def learning_parameters(trainable: TrainableConfig, size: ModelSize) -> float:
    """Returns the number of trained parameters; an upper bound if the model's shape is unknown."""
    assert size.parameters is not None
    match trainable.parameters, size.shape:
        case "all", _:
            return size.parameters
        case "attention", LayerSizes() as shape:
            return shape.layers * shape.attention
        case "except_attention", LayerSizes() as shape:
            return size.parameters - shape.layers * shape.attention
        case "top_layers", LayerSizes() as shape:
            return trainable.top_fraction * shape.layers * shape.layer
        case "top_layers", None:
            return trainable.top_fraction * size.parameters
        case "lora", LayerSizes() as shape:
            sides = {
                "q_proj": shape.hidden + shape.queries, "o_proj": shape.hidden + shape.queries,
                "k_proj": shape.hidden + shape.keys, "v_proj": shape.hidden + shape.keys,
            }  # fmt: skip
            feed_forward = shape.hidden + shape.intermediate
            return shape.layers * trainable.rank * sum(sides.get(p, feed_forward) for p in trainable.projections)
        case _:
            return size.parameters


def state_bytes(trainable: TrainableConfig, master: ComputeType, size: ModelSize, trainer: TrainHardware) -> float:
    """Returns the bytes of an optimizer state: masters and two moments of trained weights, and the frozen weights.

    Sharded frozen weights are in the master type, others take 2 bytes each. A state of an adapter that is published
    alone has none.
    """
    assert size.parameters is not None
    learning = learning_parameters(trainable, size)
    frozen = 0.0 if trainable.publishes_adapter else max(0.0, size.parameters - learning)
    return 3 * BYTES[master] * learning + (BYTES[master] if trainer.shards_weights else 2) * frozen


def checkpoint_bytes(trainable: TrainableConfig, size: ModelSize) -> float:
    """Returns the bytes of a checkpoint: an adapter in fp32, or all weights in bf16, also if the shape is unknown."""
    assert size.parameters is not None
    adapter = trainable.publishes_adapter and size.shape is not None
    return 4 * learning_parameters(trainable, size) if adapter else 2 * size.parameters


def written_bytes(recipe: Recipe, size: ModelSize, trainer: TrainHardware) -> tuple[float, float, float]:
    """Returns the bytes that an iteration writes: checkpoint and optimizer state of the policy, state of the critic."""
    policy, critic = recipe.finetune, recipe.value
    return (
        checkpoint_bytes(policy.trainable, size),
        state_bytes(policy.trainable, policy.optimizer.master_dtype, size, trainer) if policy.carry_state else 0.0,
        state_bytes(critic.trainable.merging(), critic.optimizer.master_dtype, size, trainer) if critic else 0.0,
    )


def longest_micro_batch(recipe: Recipe, trainer: TrainHardware) -> int:
    """Returns the largest number of tokens in a micro-batch."""
    rows = [part.pack.row_size for part in recipe.parts]
    rows += [recipe.warm_start.row_tokens] if recipe.warm_start else []
    rows += [recipe.distil.sft.row_tokens] if recipe.distil else []
    rows += [recipe.value.row_tokens] if recipe.value else []
    return max(trainer.micro_batch_tokens, *rows)


SHORT_TOKENS = 256
"""Completions are assumed to have half of a length limit up to this number, and an eighth of a higher limit."""


def typical_completion(sampling: SamplingConfig) -> float:
    """Returns the mean length that completions are assumed to have."""
    longest = sampling.max_tokens
    return longest / (2 if longest <= SHORT_TOKENS else 8)


def longest_prompt(recipe: Recipe, tool_tokens: int = 0) -> float:
    """Returns the assumed maximum length of a prompt.

    It is the part of a row beside a group's completions, or a quarter of the row if that is less than an eighth.

    Args:
        tool_tokens: Tokens of an answer of the solver.
    """
    row, sampling = recipe.pack.row_size, recipe.sample.sampling
    left = row - sampling.samples_per_prompt * (sampling.max_tokens + sampling.tool_calls * tool_tokens)
    return left if left >= row / 8 else row / 4


@dataclass(frozen=True)
class Lengths:
    """Lengths that bound a row, in tokens.

    Attributes:
        prompt: The longest prompt.
        tool_tokens: The longest answer of the solver to a call; 0 if completions call no solver.
        context: Longest sequence of the model; None if it is not known.
    """

    prompt: int
    tool_tokens: int = 0
    context: int | None = None

    def longest(self, sampling: SamplingConfig) -> int:
        """Returns the tokens of the longest prompt with a completion at its longest."""
        tokens = self.prompt + sampling.max_tokens + sampling.tool_calls * self.tool_tokens
        return tokens if self.context is None else min(tokens, self.context)


SHORTEST = Lengths(prompt=1)
"""Bounds that hold for every set of puzzles, before it is prepared."""


@dataclass(frozen=True)
class Work:
    """The work of an iteration.

    Attributes:
        prompt: Tokens of a prompt.
        completion: Mean tokens of a completion.
        sampled: Number of sampled completions, with those of the evaluation.
        sampled_tokens: Their tokens.
        prompt_tokens: Tokens of the prompts that an engine reads, once for each group.
        trained_tokens: Tokens of the packed rows, prompts included.
        loss_tokens: Those of completions.
        row_tokens: Tokens of a row.
        rows: Packed rows.
        steps: Optimizer steps.
        epochs: Passes over the rows.
        forward_passes: Passes over the rows without gradients; a part of one is a fraction.
    """

    prompt: float
    completion: float
    sampled: int
    sampled_tokens: float
    prompt_tokens: float
    trained_tokens: float
    loss_tokens: float
    row_tokens: int
    rows: int
    steps: int
    epochs: int
    forward_passes: float

    @property
    def context(self) -> float:
        """Mean number of tokens to which a token of a completion attends."""
        return self.prompt + self.completion / 2


def work_of(
    recipe: Recipe,
    completion: float | None = None,
    prompt: float | None = None,
    *,
    drawn: int | None = None,
    tool_tokens: int = 0,
) -> Work:
    """Returns the work of an iteration in which every group is trained on.

    Args:
        completion: Mean tokens of a completion; by default half of the limit, an eighth of one above 256.
        prompt: Mean tokens of a prompt; by default half of `longest_prompt`.
        drawn: Number of groups that are sampled; by default those that are trained on.
        tool_tokens: Tokens of an answer of the solver to each call that a completion may make. Engine and trainer read
            them like a part of the prompt.
    """
    sampling, held_out = recipe.sample.sampling, recipe.evaluate.sampled
    length = typical_completion(sampling) if completion is None else min(completion, sampling.max_tokens)
    evaluated = typical_completion(held_out) if completion is None else min(completion, held_out.max_tokens)
    asked = longest_prompt(recipe) / 2 if prompt is None else prompt
    groups, each, row = recipe.sample.puzzles_per_iteration, sampling.samples_per_prompt, recipe.pack.row_size
    drawn = drawn or groups
    answers = recipe.evaluate.puzzles * (held_out.samples_per_prompt + int(recipe.evaluate.greedy))
    in_row = max(1, min(each, int((row - asked) // length)))
    prompts = groups * math.ceil(each / in_row)
    loss_tokens = groups * each * length
    tool_tokens_in_group = tool_tokens * sampling.tool_calls * each
    trained = prompts * asked + loss_tokens + groups * tool_tokens_in_group
    rows = max(1, math.ceil(trained / row))
    steps = min(rows, steps_of(recipe, rows))
    return Work(
        prompt=asked,
        completion=length,
        sampled=drawn * each + answers,
        sampled_tokens=drawn * each * length + answers * evaluated,
        prompt_tokens=(drawn + recipe.evaluate.puzzles) * asked
        + drawn * tool_tokens_in_group
        + answers * held_out.tool_calls * tool_tokens,
        trained_tokens=trained,
        loss_tokens=loss_tokens,
        row_tokens=row,
        rows=rows,
        steps=steps,
        epochs=recipe.finetune.epochs,
        forward_passes=_forward_passes(recipe.finetune, steps),
    )


def _forward_passes(config: FinetuneConfig, steps: int) -> float:
    """Returns the passes over the rows without gradients: for the reference, and for the old log-probabilities.

    The first optimizer step computes its own old ones, unless the rewards need them before (see `PolicyObjective`).
    """
    reference, loss = config.reference != "none", config.loss
    if loss.old_logprobs != "trainer" or not loss.reads_old_logprobs:
        return float(reference)
    return reference + (1.0 if reference and loss.kl_place != "loss" else (steps - 1) / steps)


def most_work_of(recipe: Recipe, tool_tokens: int = 0) -> Work:
    """Returns the work of an iteration whose prompts and completions have their greatest lengths.

    It samples all groups that `sample.resample` allows, and completions call the solver as often as they may.

    Args:
        tool_tokens: Tokens of an answer of the solver.
    """
    return work_of(
        recipe, math.inf, longest_prompt(recipe, tool_tokens), drawn=recipe.sample.stride, tool_tokens=tool_tokens
    )


def steps_of(recipe: Recipe, rows: int) -> int:
    """Returns the number of optimizer steps in one pass over the rows."""
    pack, groups = recipe.pack, recipe.sample.puzzles_per_iteration
    if pack.minibatch_size is None:
        return pack.updates
    of = {"rows": rows, "puzzles": groups, "completions": groups * recipe.sample.sampling.samples_per_prompt}
    return math.ceil(of[pack.minibatch_unit] / pack.minibatch_size)


def not_counted(recipe: Recipe) -> tuple[str, ...]:
    """Returns the parts of a recipe whose time and memory a plan leaves out."""
    teacher = "the model with a hint" if recipe.teach and recipe.teach.teacher == POLICY else "a teacher of tokens"
    rated = "" if recipe.rate is None else f"rating {len(recipe.rate.models)} models on all train puzzles"
    parts = (
        (recipe.teach, teacher),
        (recipe.distil, "texts to train on before GRPO"),
        (recipe.rate, rated),
    )
    return tuple(name for section, name in parts if section is not None)
