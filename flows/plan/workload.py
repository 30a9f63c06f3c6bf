"""The work of an iteration of a recipe: parameters that learn, tokens and floating-point operations."""


from flows.config.model_size import ModelSize, Shape
from flows.config.recipe import Recipe
from stages.training.job import TrainHardware
from stages.training.trainable import TrainableConfig


def learning_parameters(trainable: TrainableConfig, size: ModelSize) -> float:
    """Returns the number of trained parameters; an upper bound if the model's shape is unknown."""
    assert size.parameters is not None
    match trainable.parameters, size.shape:
        case "all", _:
            return size.parameters
        case "attention", Shape() as shape:
            return shape.layers * shape.attention
        case "top_layers", Shape() as shape:
            return trainable.top_fraction * shape.layers * shape.layer
        case "top_layers", None:
            return trainable.top_fraction * size.parameters
        case "lora", Shape() as shape:
            sides = {
                "q_proj": shape.hidden + shape.queries, "o_proj": shape.hidden + shape.queries,
                "k_proj": shape.hidden + shape.keys, "v_proj": shape.hidden + shape.keys,
            }  # fmt: skip
            feed_forward = shape.hidden + shape.intermediate
            return shape.layers * trainable.rank * sum(sides.get(p, feed_forward) for p in trainable.projections)
        case _:
            return size.parameters


def longest_micro_batch(recipe: Recipe, trainer: TrainHardware) -> int:
    """Returns the largest number of tokens in a micro-batch."""
    rows = [recipe.pack.row_tokens] + ([recipe.warm_start.row_tokens] if recipe.warm_start else [])
    return max(trainer.micro_batch_tokens, *rows)
