"""Memory of one trainer process and of one engine, as functions of sizes.

The formulas follow the trainer's code: `stages/training/model/master_weights.py`, `head.py` and `attention.py`, and
FSDP2. `tests/benchmarks/plan.py` compares them with the trainer itself on tensors without data.
"""

from dataclasses import asdict, dataclass

from flows.config.model_size import LayerSizes, ModelSize
from stages.hardware.compute_type import ComputeType
from stages.models.tensors import FILE_BYTES
from stages.training.worker_group.hardware import TrainHardware

BYTES: dict[ComputeType, int] = {"bf16": 2, "fp32": 4}
"""Bytes of a number."""
_REDUCED = 4
"""Bytes of a gradient while processes add theirs: FSDP2 reduces in fp32."""
_MIN_HEAD_ROWS = 16


@dataclass(frozen=True)
class Precision:
    """Precisions of the trainer.

    Attributes:
        compute: Type of the forward and backward pass.
        master: Type of trained weights, their gradients and AdamW's moments.
    """

    compute: ComputeType
    master: ComputeType


@dataclass(frozen=True)
class TrainerMemory:
    """Bytes of one trainer process at the point of an optimizer step that needs most memory.

    Attributes:
        weights: Masters, and the copy or the frozen weights in the compute type; with several processes, the shard.
        optimizer: AdamW's moments.
        gradients: Sums of the gradients of earlier micro-batches.
        gathered: Full weights that FSDP2 gathers, and full gradients before they are reduced.
        activations: What the backward pass needs, and the temporary tensors of a layer.
        logits: Temporary tensors of the output head.
        moment: Name of that point.
    """

    weights: float
    optimizer: float
    gradients: float
    gathered: float
    activations: float
    logits: float
    moment: str

    @property
    def resident(self) -> float:
        """Bytes that stay between jobs."""
        return self.weights + self.optimizer

    @property
    def peak(self) -> float:
        """Sum of all parts."""
        return sum(value for value in asdict(self).values() if not isinstance(value, str))


def trainer_memory(
    size: ModelSize,
    learning: float,
    hardware: TrainHardware,
    precision: Precision,
    tokens: int,
    *,
    cuda: bool,
    with_reference: bool = False,
) -> TrainerMemory:
    """Returns the memory of one trainer process.

    With N parameters, L of them trained, W processes, c bytes per number in the compute type and m in the master type:

    * one process holds c N, and m L of masters if m and c differ; several hold m N / W each, and so does one with
      `cpu_offload`;
    * moments take 2 m L / W, gradients m L / W;
    * a reference model takes c N / W while its log-probabilities are computed, before the first gradient.

    The rest depends on that point, and is left out if the shape is unknown; see `_Step`.

    Args:
        learning: Number of trained parameters.
        tokens: Tokens of a micro-batch, nearly all of them in the loss.
        cuda: Whether the process computes on a GPU, whose attention and norms need fewer temporary tensors.
        with_reference: Whether the recipe has a reference model.
    """
    assert size.parameters is not None
    total, world = size.parameters, hardware.world
    c, m = BYTES[precision.compute], BYTES[precision.master]
    sharded = hardware.shards_weights
    weights = m * total / world if sharded else c * total + (m * learning if m != c else 0)
    optimizer, gradients = 2 * m * learning / world, m * learning / world
    moments: dict[str, tuple[float, float, float, float]] = {"step": (gradients, 0.0, 0.0, 0.0)}
    if (shape := size.shape) is not None:
        step = _Step(shape, hardware, c, tokens, cuda, sharded)
        moments["head"] = gradients, step.gathered(1) + step.whole_head(), step.saved(), step.head()
        moments["layer"] = gradients, step.gathered(2) + step.gradients_in_layer(), step.in_layer(), 0.0
        if sharded:
            moments["end"] = gradients, step.root * (c + _REDUCED) / hardware.tensor_parallel, 0.0, 0.0
        if with_reference:
            gathered = c * total / world + step.gathered(2) + step.whole_head()
            moments["reference"] = 0.0, gathered, step.in_forward(), step.head_forward()
    elif with_reference:
        moments["reference"] = 0.0, c * total / world, 0.0, 0.0
    name = max(moments, key=lambda moment: sum(moments[moment]))
    return TrainerMemory(weights, optimizer, *moments[name], name)


@dataclass(frozen=True)
class _Step:
    """Sizes of a micro-batch at points of its forward and backward pass.

    Attributes:
        c: Bytes of a number in the compute type.
        tokens: Tokens of the micro-batch.
    """

    shape: LayerSizes
    hardware: TrainHardware
    c: int
    tokens: int
    cuda: bool
    sharded: bool

    @property
    def root(self) -> int:
        """Number of weights outside the layers: embedding and output head."""
        return self.shape.head * (1 if self.shape.tied else 2)

    def gathered(self, layers: int) -> float:
        """Returns bytes of the gathered weights: those outside the layers, and those of some layers.

        Without `reshard_after_forward` all layers stay gathered.
        """
        if not self.sharded:
            return 0.0
        layers = layers if self.hardware.reshard_after_forward else self.shape.layers
        return self.c * (self.root + layers * self.shape.layer) / self.hardware.tensor_parallel

    def whole_head(self) -> float:
        """Returns bytes of the output head that a tensor group gathers for its products."""
        return float(self.c * self.shape.head) if self.hardware.tensor_parallel > 1 else 0.0

    def gradients_in_layer(self) -> float:
        """Returns bytes of full gradients while a layer's are computed.

        The output head's gradient waits for the embedding's until the end of the pass. FSDP2 also holds the layer's
        gradients, and those of the layer after it in fp32, which are being reduced.
        """
        waiting = self.c * self.shape.head if self.sharded or self.shape.tied else 0.0
        layer = self.shape.layer * (self.c + _REDUCED) if self.sharded else 0.0
        return (waiting + layer) / self.hardware.tensor_parallel

    def layer_activations(self) -> float:
        """Returns bytes of a layer's activations: c (2 H + 2 Q + 2 K + 4 I) T, and fp32 numbers of the two norms.

        These are 4 H T in all. On a GPU they are 2 H T, because the fused norm keeps only its input. Further norms add
        as much, with their outputs, and so do those of queries and keys, by their widths. A tensor group divides all
        but H.
        """
        s = self.shape
        heads = s.queries + s.keys
        divided = 2 * heads + 4 * s.intermediate * s.active + (heads if s.norms_heads else 0)
        routed = 3 * s.hidden * s.active if s.experts > 1 else 0  # inputs and outputs of experts, and weighted ones
        norms = s.norms * s.hidden + (heads / self.hardware.tensor_parallel if s.norms_heads else 0)
        return self.tokens * (
            self.c * (s.norms * s.hidden + routed + divided / self.hardware.tensor_parallel)
            + BYTES["fp32"] * norms * (1 if self.cuda else 2)
        )

    def saved(self) -> float:
        """Returns bytes of the activations that the backward pass needs, with those of the last norm."""
        s = self.shape
        last = self.tokens * s.hidden * (self.c + BYTES["fp32"] * (1 if self.cuda else 2))
        if self.hardware.activation_checkpointing:
            return last + self.c * s.hidden * self.tokens * s.layers
        return last + self.layer_activations() * s.layers

    def in_layer(self) -> float:
        """Returns bytes of activations and temporary tensors in the backward pass of the last layer.

        With activation checkpointing its activations have been computed again, beside the inputs of the layers before.
        """
        s = self.shape
        temporary = self.c * self.tokens * (s.active * s.intermediate / self.hardware.tensor_parallel + s.hidden)
        if s.experts > 1 and self.cuda:  # weights in one tensor for a grouped product, and their gradients
            temporary += 2 * self.c * (s.layer - s.attention)
        if self.hardware.activation_checkpointing:
            return self.c * s.hidden * self.tokens * (s.layers - 1) + self.layer_activations() + temporary
        return self.layer_activations() * s.layers + temporary

    def in_forward(self) -> float:
        """Returns bytes of activations without gradients: those of one layer."""
        return self.layer_activations()

    def head_forward(self) -> float:
        """Returns bytes of the head without gradients: logits and probabilities of a chunk in fp32."""
        return 2 * BYTES["fp32"] * self._rows() * self.shape.vocabulary

    def head(self) -> float:
        """Returns bytes of the head's backward pass.

        These are the probabilities of a chunk in the compute type, the gradient of its inputs, and the gradient of the
        head's weights: with several chunks an fp32 sum and two chunks' shares, with one chunk its share and zeros. On a
        GPU, the tensors of `head_forward` are added.
        """
        s, chunk = self.shape, self.hardware.logprob_chunk_tokens
        several = self.tokens > chunk
        shares = (2 * self.c + (_REDUCED if several else 0)) * s.head
        kept = self.c * (min(chunk, self.tokens) * s.vocabulary + self.tokens * s.hidden)
        return shares + kept + (self.head_forward() if self.cuda else 0.0)

    def _rows(self) -> int:
        chunk = min(self.hardware.logprob_chunk_tokens, self.tokens)
        return chunk if self.cuda else min(chunk, max(_MIN_HEAD_ROWS, (1 << 22) // self.shape.vocabulary))


def saving_memory(shape: LayerSizes, hardware: TrainHardware, *, averaged: bool) -> tuple[float, float]:
    """Returns the bytes that the first process takes to save weights, on its GPU and on its host.

    Weights are cast and gathered tensor by tensor; no other process holds more than its own rows of a tensor. The first
    one holds the largest tensor and its rows of it, on the host if its weights are there, and one file of weights.

    Args:
        averaged: Whether an average with the reference is saved too: in fp32, with two more tensors on the host.
    """
    width = BYTES["fp32" if averaged else "bf16"]
    largest = width * shape.head
    rows = largest / hardware.world if hardware.world > 1 else 0.0
    file = min(width * shape.parameters, max(FILE_BYTES, largest))
    host = file + (2 * largest if averaged else 0.0)
    return (0.0, host + rows) if hardware.cpu_offload else (largest + rows, host)


def sequence_cache_bytes(shape: LayerSizes, tokens: float, width: int) -> float:
    """Returns the bytes of a sequence in the KV cache of a whole model: a key and a value of a token in each layer.

    A sliding layer keeps the tokens of its window.
    """
    kept = (shape.layers - shape.sliding_layers) * tokens + shape.sliding_layers * min(tokens, shape.window)
    return 2 * shape.keys * width * kept
