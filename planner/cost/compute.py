"""Seconds of a transformer layer, the embedding, the head and the optimizer on one device.

A layer is a list of operators; each takes the longer of its arithmetic at the matrix units' rate and its
traffic at the memory's rate (roofline, Williams et al. 2009). A layer never takes less than its kernels
take to launch.
"""

from __future__ import annotations

from dataclasses import dataclass

from planner.calibration import Calibration
from planner.spec.model import ModelSpec
from planner.targets import Recompute
from planner.topology import Kind

ELEMENT_BYTES = {"bf16": 2, "fp16": 2, "fp32": 4}


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """Work of one kernel, or of a few that run as one, in one forward pass."""

    flops: float
    bytes_moved: float
    backward_flops_factor: float = 2.0
    """Arithmetic of the backward over that of the forward: two products for each one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """Seconds of computation of one micro-batch on one device, without collectives."""

    forward_seconds: float
    backward_seconds: float
    recompute_seconds: float


FORWARD_KERNELS = 18
"""Kernels of one layer's forward in an eager framework: 6 products, attention, norms, element-wise."""


def layer_operators(
    model: ModelSpec, *, tp: int, micro_batch: int, sequence_parallel: bool
) -> list[Operator]:
    """Operators of one layer on one of ``tp`` devices for ``micro_batch`` sequences.

    Products as in Megatron-LM (arXiv:1909.08053, section 3): the attention and MLP matrices are split over
    ``tp``; norms and residuals are split only with sequence parallelism (arXiv:2205.05198).
    """
    tokens = micro_batch * model.training.sequence_length
    size = ELEMENT_BYTES[model.training.precision]
    query, key_value = model.heads * model.head_dim, model.kv_heads * model.head_dim
    ways_in = 2 if model.gated_mlp else 1

    def product(inner: float, outer: float) -> Operator:
        traffic = size * (tokens * (inner + outer) + inner * outer)
        return Operator(flops=2.0 * tokens * inner * outer, bytes_moved=traffic)

    norm_ways = tp if sequence_parallel else 1
    return [
        product(model.hidden, (query + 2 * key_value) / tp),
        *attention_operators(model, tp=tp, micro_batch=micro_batch),
        product(query / tp, model.hidden),
        product(model.hidden, ways_in * model.ffn / tp),
        product(model.ffn / tp, model.hidden),
        Operator(flops=0.0, bytes_moved=size * tokens * (ways_in + 1) * model.ffn / tp),
        Operator(flops=0.0, bytes_moved=size * tokens * 10 * model.hidden / norm_ways),
    ]


def attention_operators(model: ModelSpec, *, tp: int, micro_batch: int) -> list[Operator]:
    """Scores, softmax and weighted sum of one layer; causal kernels skip half of the score matrix."""
    length = model.training.sequence_length
    size = ELEMENT_BYTES[model.training.precision]
    query = model.heads * model.head_dim / tp
    flash = model.training.attention == "flash"
    causal = 0.5 if flash and model.kind == "decoder" else 1.0
    flops = 4.0 * micro_batch * length**2 * query * causal
    vectors = size * micro_batch * length * 4 * query
    if flash:
        return [Operator(flops=flops, bytes_moved=vectors, backward_flops_factor=2.5)]
    scores = size * micro_batch * length**2 * model.heads / tp
    return [
        Operator(flops=flops, bytes_moved=vectors + 2 * scores),
        Operator(flops=0.0, bytes_moved=5 * scores),
    ]


def operator_seconds(
    operators: list[Operator], kind: Kind, precision: str, calibration: Calibration, *, backward: bool
) -> float:
    """Roofline seconds of operators one after the other, forward or backward."""
    flops_rate = kind.peak_flops[precision] * calibration.matmul_efficiency
    bytes_rate = kind.memory_bytes_per_second * calibration.memory_efficiency
    total = 0.0
    for operator in operators:
        flops = operator.flops * (operator.backward_flops_factor if backward else 1.0)
        moved = operator.bytes_moved * (2.0 if backward else 1.0)
        total += max(flops / flops_rate, moved / bytes_rate)
    return total


def layer_pass(
    model: ModelSpec,
    kind: Kind,
    calibration: Calibration,
    *,
    tp: int,
    micro_batch: int,
    recompute: Recompute,
    sequence_parallel: bool,
) -> Pass:
    """Seconds of one layer for one micro-batch; raises KeyError when the device lacks the number format."""
    precision = model.training.precision
    operators = layer_operators(model, tp=tp, micro_batch=micro_batch, sequence_parallel=sequence_parallel)
    floor = FORWARD_KERNELS * calibration.launch_seconds
    forward = max(operator_seconds(operators, kind, precision, calibration, backward=False), floor)
    backward = max(operator_seconds(operators, kind, precision, calibration, backward=True), 2 * floor)
    again = 0.0
    if recompute == "full":
        again = forward
    elif recompute == "selective" and model.training.attention == "unfused":
        core = attention_operators(model, tp=tp, micro_batch=micro_batch)
        again = operator_seconds(core, kind, precision, calibration, backward=False)
    return Pass(forward_seconds=forward, backward_seconds=backward, recompute_seconds=again)


def embedding_pass(
    model: ModelSpec, kind: Kind, calibration: Calibration, *, tp: int, micro_batch: int
) -> Pass:
    """Seconds of the input embedding: a gather of rows, and a scatter of their gradients."""
    tokens = micro_batch * model.training.sequence_length
    moved = 3.0 * ELEMENT_BYTES[model.training.precision] * tokens * model.hidden
    forward = _streamed(moved, kind, calibration)
    return Pass(forward_seconds=forward, backward_seconds=2 * forward, recompute_seconds=0.0)


def head_pass(model: ModelSpec, kind: Kind, calibration: Calibration, *, tp: int, micro_batch: int) -> Pass:
    """Seconds of the output layer and the loss, the vocabulary split over ``tp``."""
    tokens = micro_batch * model.training.sequence_length
    size = ELEMENT_BYTES[model.training.precision]
    columns = model.vocab / tp
    operators = [
        Operator(
            flops=2.0 * tokens * model.hidden * columns,
            bytes_moved=size * (tokens * (model.hidden + columns) + model.hidden * columns),
        ),
        Operator(flops=0.0, bytes_moved=(size + 8.0) * tokens * columns),
    ]
    precision = model.training.precision
    return Pass(
        forward_seconds=operator_seconds(operators, kind, precision, calibration, backward=False),
        backward_seconds=operator_seconds(operators, kind, precision, calibration, backward=True),
        recompute_seconds=0.0,
    )


def optimizer_seconds(parameters: float, kind: Kind, model: ModelSpec, calibration: Calibration) -> float:
    """Seconds to update ``parameters`` elements on one device.

    AdamW reads and writes the fp32 weight and two moments (24 bytes), reads the gradient and writes the
    working copy; SGD with momentum has one moment less.
    """
    states = {"adamw": 24.0, "sgd": 16.0}[model.training.optimizer]
    moved = states + 4.0 + ELEMENT_BYTES[model.training.precision]
    return _streamed(parameters * moved, kind, calibration)


def _streamed(moved_bytes: float, kind: Kind, calibration: Calibration) -> float:
    return moved_bytes / (kind.memory_bytes_per_second * calibration.memory_efficiency)


def model_flops(model: ModelSpec) -> float:
    """Useful FLOPs of one optimizer step: forward and backward of every product, attention causal where it is."""
    length = model.training.sequence_length
    query, key_value = model.heads * model.head_dim, model.kv_heads * model.head_dim
    matrices = model.hidden * (2 * query + 2 * key_value + (3 if model.gated_mlp else 2) * model.ffn)
    causal = 0.5 if model.kind == "decoder" else 1.0
    layer = 2.0 * length * matrices + 4.0 * length**2 * query * causal
    sequence = model.layers * layer + 2.0 * length * model.hidden * model.vocab
    return 3.0 * sequence * model.training.global_batch
