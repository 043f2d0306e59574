"""Seconds of a transformer layer, the embedding, the head and the optimizer on one device.

A layer is a list of kernels. Each takes the longer of its arithmetic at the matrix units' rate and its traffic at
the memory's rate (roofline, Williams et al. 2009), plus a constant for its ramp. Matrix products are cut into
tiles that fill the multiprocessors in whole waves; a product whose rows do not start on 16 bytes cannot use
the matrix units at all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from math import ceil, log, log2, sqrt

import numpy as np

from planner.calibration.values import Calibration, Framework, GpuFamily
from planner.capabilities import Capabilities, Hooks
from planner.cluster.topology import DeviceType
from planner.cost.arrays import Numbers, as_array, as_number, larger
from planner.frozen import dataclass
from planner.model.spec import NF4_BLOCK, ROW_TARGETS, FrontSpec, ModelSpec, Part, StateSpec, TrainingSpec
from planner.plan.values import WHOLE_EXPERTS, Folding

ELEMENT_BYTES = {"bf16": 2, "fp16": 2, "fp32": 4, "tf32": 4, "fp8": 2}
"""Bytes of a stored element; fp8 is a format of products only, weights and activations stay in bf16."""

MIXED = ("bf16", "fp16", "fp8")
"""Precisions with an fp32 copy of the weights in the optimizer."""

ATTENTION_FORMAT = {"fp8": "bf16"}
"""Format of the attention's products where it is not that of the others."""

FORMAT_SHARES = {"fp8": ((0.0, 0.91),), "tf32": ((0.0, 0.92), (8.6, 0.97))}
"""Share of its peak that a product reaches in a format over that in two bytes, from a compute capability on: means of
measured devices (``planner/measured/data/microbenchmarks.csv``). fp8: 0.88 to 0.93 on Hopper and of AMD (0.95 to 0.99
on Blackwell, where runs are predicted no better by it); tf32: 0.91 to 1.01 from 8.6 on; 0.86, 0.90 and
0.99 on A100, of which BERT's runs want the highest: the most that leaves its products below the best one measured of
every board."""

TILES = ((256, 128, 1.0), (128, 128, 0.94), (128, 64, 0.80), (64, 64, 0.62))
"""Rows and columns of the tiles that libraries choose from, and how fast each is next to the largest."""

TILE_SIZES = np.array(TILES).T
"""The same, each a row."""

TILE_FILL = 256
"""Steps of the inner dimension that a tile costs besides its own: filling the pipeline, writing the result. Memory sets
how long that takes, and steps of a format in which units are slower than in two bytes take longer: it is fewer of
them."""

TWO_BYTES = ("bf16", "fp16")
"""Formats that matrix units were made for first."""

FORWARD_KERNELS = 20
"""Kernels of one layer's forward in an eager framework: products, attention, norms, element-wise, reshapes."""

HOST_JITTER = 0.06
"""Growth of the launch time with each doubling of a node's processes that meet in every layer."""

EXPERT_KERNELS = 65
"""More of them with experts, as ``transformer/moe`` of Megatron-Core 0.20 calls them: router, choice and balancing loss
28, counts and their copies to the host 18, sorting and its inverse 12, all-to-alls of tokens and weights 3, weighted
nonlinearity 4; a backward has about as many."""

DISPATCH_KERNELS = 19
"""Those of them that no graph of a layer has: it ends behind the router and the counts of rows, which differ from pass
to pass (``cuda_graph_scope`` of Megatron Bridge's recipes: attn, moe_router, moe_preprocess)."""

GROUPED_KERNELS = {"fp8": 3.4}
"""Kernels of one expert's two products where each is one of its own: the mean of 2 forward and 4 backward. In fp8 both
inputs are cast as well, in a loop of the library without the framework, which is taken for a fifth of a product each.
The products of eight experts take 33 microseconds each to launch, next to which their scales are reordered for nothing:
0.272 ms with it, 0.267 without (TransformerEngine, pull request 3134, in four bits)."""

FP8_KERNELS = 2
"""More of them for each product in fp8 but those of experts: the largest of its inputs, by which these are scaled, and
their cast (TransformerEngine's current scaling; delayed scaling has the first in the second, and updates scales)."""

APART_KERNELS = 4
"""The same of torch's own casts: forward the largest of inputs and weights and their casts, backward casts of both, and
the largest of gradients and their cast."""

ADAPTER_KERNELS = 3
"""More of them for each adapter: two products and their sum with the layer's."""

ADAPTER_MODULES = 4
"""Modules of an adapter: what stands around the layer and its adapter, two products, and dropout or what scales."""

NORM_TENSORS = {"layer": 2, "rms": 1}
"""Weights of a norm, of those that have any."""

NF4_KERNELS = {"nf4": 1, "nf4-double": 8}
"""More of them for each matrix in four bits: that of bitsandbytes; of scales in eight bits cast, shift, part,
repetition, scale, mean, bound."""

NF4_STREAMED = {"nf4": 0.5 + 4.0 / NF4_BLOCK + 2.0}
NF4_STREAMED["nf4-double"] = NF4_STREAMED["nf4"] + (5.0 + 8.0 + 8.0 + 8.0 + 12.0 + 8.0 + 8.0) / NF4_BLOCK
"""Bytes that are streamed to bring an element from four bits to two bytes: half a byte and its part of a scale read,
two bytes written; of a block's scale in eight bits, what its seven operations read and write."""

UNFUSED_SOFTMAX_KERNELS = 8
"""More kernels where scaling, masking, casts and softmax run one by one."""

UNFUSED_NORM = {2: (32.0, 78.0), 4: (20.0, 64.0)}
"""Bytes of an element that an RMS norm of one operation after the other in fp32 moves beyond a fused kernel each way,
forward and backward, by the bytes of an element: by count (``tests/training/test_transformers_layers.py``)."""

UNFUSED_NORM_WEIGHT = {2: 8.0, 4: 16.0}
"""More of them in the backward where the norm's weight is trained."""

UNFUSED_NORM_KERNELS = (7, 15)
"""Kernels of it beyond a fused one, forward and backward."""

PLAIN_LOSS = (18.0, 14.0)
"""Bytes per logit that torch's own loss streams in fp32, forward and backward, one operation after the other."""

CHUNKED_LOSS = (16.0, 16.0)
"""The same of the examples' loss beside two elements each way: differences (4), exponents (8), and their sum or the
gradient in place (4)."""

LOSS_IN_STEPS = (32.0, 8.0)
"""The same of Megatron's loss of 2021: maximum (4), subtraction (8), exponent (8), sum (4), division (8); the gradient
in place (8)."""


@dataclass(slots=True)
class Product:
    """``count`` products of (rows, inner) by (inner, columns) matrices; not frozen, as that is made thrice as fast."""

    rows: float
    columns: float
    inner: float
    count: float = 1.0
    lines: tuple[float, float] | None = None
    """Elements of the contiguous lines of its matrices; those of inner and columns when absent."""

    def backward(self) -> tuple[Product, Product]:
        """Gradients of both factors: two products with the same number of operations on the same lines."""
        lines = (self.inner, self.columns)
        return (
            Product(self.rows, self.inner, self.columns, self.count, lines),
            Product(self.inner, self.columns, self.rows, self.count, lines),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerPass:
    """Device seconds of one layer for one micro-batch, without collectives and without waiting for the host."""

    forward_seconds: float
    backward_seconds: float
    attention_seconds: float
    """Forward of the attention core alone."""
    host_seconds: float
    """Seconds the host needs to launch one forward; a backward needs as many."""
    host_more_seconds: float = 0.0
    """More of them in the backward, for gradients."""
    product_seconds: float = 0.0
    """Matrix products of the forward outside attention, part of it."""
    product_backward: float = 0.0
    """The same of the backward."""
    again_seconds: float = 0.0
    """What selective recomputation of fused kernels runs again."""
    weight_seconds: float = 0.0
    """The part of the backward that makes the gradients of weights: half of its products outside attention."""
    added_seconds: float = 0.0
    """What adds these gradients up behind their products, part of it; no measurement of a layer has it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndPass:
    """Seconds of the embedding or the head for one micro-batch."""

    forward_seconds: float
    backward_seconds: float
    collective_forward: float = 0.0
    """Blocks and sums between the devices of a grid."""
    collective_backward: float = 0.0
    weight_seconds: float = 0.0
    """The part of the backward for the gradients of weights."""


class Device:
    """One device type in one precision, with the constants of its family under a set of kernels."""

    def __init__(
        self,
        device_type: DeviceType,
        calibration: Calibration,
        precision: str,
        kernels: str = "",
        added_bytes: float = 0.0,
        loss: tuple[float, float] | None = None,
    ) -> None:
        self.device_type = device_type
        self.family: GpuFamily = calibration.family(device_type.family, kernels)
        self.framework: Framework = calibration.framework(kernels)
        self.kernels = kernels
        self.precision = precision
        self.size = ELEMENT_BYTES[precision]
        self.added_bytes = added_bytes
        """Bytes that adding an element of a weight's gradient to its buffer moves; 0 where its product adds it."""
        self.loss_bytes = loss or _from_fp32(PLAIN_LOSS, self.size)
        """Bytes that the loss streams per logit, forward and backward; torch's own unless told."""
        self._bytes_rate = device_type.memory_bytes_per_second * self.family.memory_efficiency
        self._two_bytes = peak_in_two_bytes(device_type.peak_flops)
        self._known: dict[str, tuple[float, float]] = {}
        """Of a format, the share of its peak that products of a training step reach, and steps that fill a tile."""

    def product(self, product: Product, precision: str | None = None) -> float:
        """Seconds of a product and its traffic."""
        name = precision or self.precision
        return self._product(product, name, self._rate(product, name))

    def _product(self, product: Product, precision: str, peak: float) -> float:
        """The same on units of this peak."""
        if precision not in self._known:
            reached = self._share(precision) * self.framework.matmul_factor
            self._known[precision] = reached, self._fill(precision)
        reached, fill = self._known[precision]
        rate = peak * reached
        flops = 2.0 * product.count * product.rows * product.columns * product.inner
        moved = (
            product.count
            * self.size
            * (
                product.rows * product.inner
                + product.inner * product.columns
                + product.rows * product.columns
            )
        )
        filled = product.inner / (product.inner + fill)
        units = self.device_type.multiprocessors
        tiling = tiled(units, product.count, product.rows, product.columns) if units else 1.0
        arithmetic = flops / (rate * tiling * filled)
        return larger(arithmetic, moved / self._bytes_rate) + self.family.kernel_seconds

    def products(self, products: tuple[Product, ...], precision: str | None = None) -> tuple[float, float]:
        """Seconds of the forward and of the backward of some products."""
        name, ahead = precision or self.precision, len(products)
        every = (*products, *(part for item in products for part in item.backward()))
        peaks = [self._rate(item, name) for item in every]
        if any(isinstance(value, np.ndarray) for item in products for value in (item.rows, item.count)):
            stacked = as_number(np.array(peaks)[:, None])
            seconds = list(as_array(self._product(_stacked(every), name, stacked)))
        else:
            seconds = [self._product(item, name, peak) for item, peak in zip(every, peaks, strict=True)]
        return sum(seconds[:ahead]), sum(seconds[ahead:])

    def stream(self, moved_bytes: float, kernels: float = 1) -> float:
        """Seconds of kernels that move these bytes."""
        return moved_bytes / self._bytes_rate + kernels * self.family.kernel_seconds

    def element_wise(self, moved_bytes: float, kernels: float) -> float:
        """Seconds of element-wise kernels of layers, whose bytes are those of unfused ones."""
        return self.stream(self.framework.stream_factor * moved_bytes, kernels)

    def added(self, *elements: float) -> float:
        """Seconds in which gradients of matrices are added to what earlier micro-batches have left, one by one."""
        return self.stream(self.added_bytes * sum(elements), len(elements)) if self.added_bytes else 0.0

    def loss(self, logits: float) -> tuple[float, float]:
        """Seconds of the loss of some logits, forward and backward."""
        forward, backward = self.loss_bytes
        return self.stream(forward * logits, 6), self.stream(backward * logits, 4)

    def flash(self, flops: float) -> float:
        """Seconds of a fused attention kernel."""
        name = ATTENTION_FORMAT.get(self.precision, self.precision)
        peak = self.device_type.peak_flops.get(name, self.device_type.peak_flops[self.precision])
        share: float = self.family.attention_efficiency
        if name == "fp32":
            # On vector units it is no faster than products.
            share = min(share, 0.9 * self._share(name))
        return flops / (peak * share) + self.family.kernel_seconds

    def vectors(self, flops: float) -> float:
        """Seconds of operations on vector units, beside their traffic."""
        name = "fp32" if "fp32" in self.device_type.peak_flops else self.precision
        return flops / (self.device_type.peak_flops[name] * self._share(name))

    def _share(self, precision: str) -> float:
        """Share of a format's peak that large products reach."""
        constant = share_of_products(self.device_type.peak_flops, precision)
        share: float = getattr(self.family, constant)
        if constant != "matmul_efficiency":
            return share
        capability = self.device_type.compute_capability or 0.0
        found = [one for least, one in FORMAT_SHARES.get(precision, ()) if least <= capability]
        return share * found[-1] if found else share

    def _fill(self, precision: str) -> float:
        """Steps of the inner dimension that fill a tile."""
        peaks = self.device_type.peak_flops
        slower = peaks.get(precision, peaks[self.precision]) / self._two_bytes if self._two_bytes else 1.0
        return TILE_FILL * min(1.0, slower)

    def _rate(self, product: Product, precision: str) -> float:
        """Peak FLOP/s of the units that can run a product: vector units when its rows are not aligned to 16 bytes."""
        peaks = self.device_type.peak_flops
        peak = peaks.get(precision, peaks[self.precision])
        first, last = product.lines or (product.inner, product.columns)
        unaligned = first * self.size % 16 or last * self.size % 16
        return min(peak, peaks.get("fp32", peak)) if unaligned and self.size == 2 else peak


def peak_in_two_bytes(peak_flops: Mapping[str, float]) -> float:
    """FLOP/s of products in the formats that matrix units were made for first; 0 without any."""
    return max(peak_flops.get(name, 0.0) for name in TWO_BYTES)


def share_of_products(peak_flops: Mapping[str, float], precision: str) -> str:
    """The constant of a family that products in a format reach a share of their peak by."""
    on_vectors = precision == "fp32" and peak_in_two_bytes(peak_flops) > peak_flops.get("fp32", 0.0)
    return "vector_efficiency" if on_vectors else "matmul_efficiency"


def _stacked(products: Sequence[Product]) -> Product:
    """Products of which some have as many sizes as each other, as one of all sizes, [product][size]."""
    each = [(item.rows, item.columns, item.inner, item.count) for item in products]
    numbers = np.empty((4, len(each), np.broadcast(*each[0]).size))
    for index, values in enumerate(each):
        for row, value in zip(numbers, values, strict=True):
            row[index] = value
    rows, columns, inner, count = map(as_number, numbers)
    return Product(rows, columns, inner, count)


def tiled(units: int, count: float, rows: float, columns: float) -> float:
    """Share of the multiprocessors' time that the best tiling of a product uses for real elements."""
    if isinstance(elements := count * rows * columns, np.ndarray):
        high, wide, speeds = TILE_SIZES.reshape(3, -1, *[1] * elements.ndim)
        tiles = count * np.ceil(rows / high) * np.ceil(columns / wide)
        shares: Numbers = speeds * elements / (np.ceil(tiles / units) * units * high * wide)
        return as_number(shares.max(axis=0))
    return _tiled(units, count, rows, columns)


@lru_cache(maxsize=65_536)
def _tiled(units: int, count: float, rows: float, columns: float) -> float:
    best, elements = 0.0, count * rows * columns
    for high, wide, speed in TILES:
        tiles = count * ceil(rows / high) * ceil(columns / wide)
        best = max(best, speed * elements / (ceil(tiles / units) * units * high * wide))
    return best


def layer_products(
    model: ModelSpec, *, tp: int, tokens: int, folding: Folding = WHOLE_EXPERTS
) -> tuple[Product, ...]:
    """Products of one layer on one of ``tp`` devices (arXiv:1909.08053, section 3: columns, then rows are split)."""
    ways_in = model.mlp_matrices - 1
    attention = tuple(
        Product(
            tokens,
            outputs / tp if split == "columns" else outputs,
            inputs / tp if split == "rows" else inputs,
        )
        for inputs, outputs, split in model.attention_matrices
    )
    if model.cross_matrix is not None:
        width, pairs = model.cross_matrix
        attention = (*attention, Product(tokens * model.pairs_per_token, pairs / tp, width))
    mlp: tuple[Product, ...] = ()
    if model.common_ffn:
        mlp = (
            Product(tokens, ways_in * model.common_ffn / tp, model.hidden),
            Product(tokens, model.hidden, model.common_ffn / tp),
        )
    routed = expert_products(model, tp=tp, tokens=tokens, folding=folding) if model.experts else ()
    return (*attention, *mlp, *routed)


def layer_product_seconds(
    model: ModelSpec, device: Device, *, tp: int, tokens: int, folding: Folding = WHOLE_EXPERTS
) -> tuple[float, float]:
    """Seconds of the products of a layer, forward and backward: weights that are not trained have no gradient.

    Adapters are two thin products beside each of theirs, and their sum (arXiv:2106.09685, section 4.1); the half beside
    what ``tp`` divides of a product is divided too. A base in four bits is brought to the working format for each
    product (arXiv:2305.14314, equation 5).
    """
    products = layer_products(model, tp=tp, tokens=tokens, folding=folding)
    if not model.frozen:
        return device.products(products)
    forward = sum(device.product(item) for item in products)
    backward = 0.0
    for item, trained in zip(products, are_trained(model, products), strict=True):
        into, weight = item.backward()
        backward += device.product(into)
        if trained:
            backward += device.product(weight)
    lora = model.training.lora
    for name, (inputs, outputs) in model.adapted.items():
        assert lora is not None
        rows, columns = (tp, 1) if name in ROW_TARGETS else (1, tp)
        thin = (
            Product(tokens, lora.rank, inputs / rows),
            Product(tokens, outputs / columns, lora.rank),
        )
        ahead, back = device.products(thin)
        forward += ahead + device.stream(3.0 * device.size * tokens * outputs / columns)
        backward += back + device.stream(3.0 * device.size * tokens * inputs / rows)
        if lora.dropout:
            # Elements and a mask of bytes, written forward and read backward.
            dropped = device.stream((2.0 * device.size + 1.0) * tokens * inputs / rows)
            forward, backward = forward + dropped, backward + dropped
    if model.adapted_experts:
        ahead, back = _expert_adapter_seconds(model, device, tp=tp, tokens=tokens, folding=folding)
        forward, backward = forward + ahead, backward + back
    if lora is not None and lora.base in NF4_STREAMED:
        packed = model.quantised_layer_parameters / tp + model.quantised_expert_parameters / folding.ways
        kernels = NF4_KERNELS[lora.base] * nf4_matrices(model)
        again = device.stream(NF4_STREAMED[lora.base] * packed, kernels)
        forward, backward = forward + again, backward + again
    return forward, backward


def _expert_adapter_seconds(
    model: ModelSpec, device: Device, *, tp: int, tokens: int, folding: Folding
) -> tuple[float, float]:
    """Seconds of the adapters of experts, forward and backward: grouped as these, with the rows of each expert.

    Gate and factor are one product, to which what their adapters add is brought side by side.
    """
    lora, experts = model.training.lora, model.experts
    assert lora is not None
    assert experts is not None
    here = experts.number / folding.ep
    rows = expert_rows(model, tp=tp, tokens=tokens, ep=folding.ep) / here
    forward = backward = 0.0
    for inputs, outputs in model.adapted_experts.values():
        thin = (Product(rows, lora.rank, inputs, here), Product(rows, outputs, lora.rank, here))
        ahead, back = device.products(thin)
        forward += ahead + device.stream(3.0 * device.size * rows * here * outputs)
        backward += back + device.stream(3.0 * device.size * rows * here * inputs)
    return forward, backward


def nf4_matrices(model: ModelSpec) -> int:
    """Matrices of a layer that are brought from four bits one after the other; those of all experts are two."""
    return len(model.linears) + 2 * (model.experts is not None)


def trained_matrices(
    model: ModelSpec, *, tp: int, tokens: int, folding: Folding = WHOLE_EXPERTS
) -> tuple[float, ...]:
    """Elements on one device of each matrix of a layer that is trained."""
    products = layer_products(model, tp=tp, tokens=tokens, folding=folding)
    return tuple(
        item.count * item.inner * item.columns
        for item, trained in zip(products, are_trained(model, products), strict=True)
        if trained
    )


def are_trained(model: ModelSpec, products: Sequence[Product]) -> list[bool]:
    """Of each of ``layer_products`` whether its weight has a gradient."""
    attention = len(model.attention_matrices) + (model.cross_matrix is not None)
    return [
        ("attention" if number < attention else "mlp") not in model.frozen for number in range(len(products))
    ]


def expert_products(model: ModelSpec, *, tp: int, tokens: int, folding: Folding) -> tuple[Product, ...]:
    """The router's, and those of the experts that a device has, grouped: each with the rows of its own tokens.

    The devices of a replica have a part of its tokens each; those that share experts work on those of all of them, with
    a part of each matrix, divided as tensor parallelism does. A product of few rows fills few tiles, and still reads
    all weights.
    """
    experts = model.experts
    assert experts is not None
    (ep, etp), own = folding, tokens / tp
    here, width = experts.number / ep, experts.ffn / etp
    rows = etp * expert_rows(model, tp=tp, tokens=tokens, ep=ep) / here
    return (
        *(() if experts.hidden is None else _brought(own, model.hidden, experts.hidden)),
        Product(own, experts.number, model.hidden),
        Product(rows, (model.mlp_matrices - 1) * width, model.expert_width, here),
        Product(rows, model.expert_width, width, here),
    )


def _brought(tokens: float, hidden: int, width: int) -> tuple[Product, ...]:
    """Tokens to the width of the experts, and what these make of them back."""
    return Product(tokens, width, hidden), Product(tokens, hidden, width)


def experts_at_work(model: ModelSpec) -> float:
    """Experts that work on a token, less those that have no room for it."""
    experts = model.experts
    if experts is None:
        return 0.0
    return experts.top_k * min(1.0, experts.capacity_factor or 1.0)


def expert_rows(model: ModelSpec, *, tp: int, tokens: int, ep: int) -> float:
    """Copies of tokens that the experts of the busiest device work on: ``top_k`` of each; with a capacity it is full.

    Which device that is differs from layer to layer, and the others wait for it. Nothing is padded: 256 H800 took 52 s
    with room for twice the mean, 66 s with room for five times as many (``xtuner-experts-7``, ``-8``).
    """
    experts = model.experts
    assert experts is not None
    most = experts.capacity_factor or expert_imbalance(model, ep)
    return tokens / tp * experts.top_k * min(most, ep)


def kept_rows(model: ModelSpec, *, tp: int, tokens: int, ep: int) -> float:
    """Those that a device keeps of a layer, mean over its layers, which are not all busiest: within their capacity."""
    experts = model.experts
    assert experts is not None
    most = expert_imbalance(model, ep)
    return tokens / tp * experts.top_k * min(most, experts.capacity_factor or most)


LOAD_DEVIATION = 0.3
"""Relative standard deviation of the tokens of one expert that a balancing loss leaves: the busiest of 64 gets 72 %
more than the mean (arXiv:2408.15664, table 2), and of 64 normal draws the largest is 2.4 deviations above it."""


def reached(model: ModelSpec, ways: int) -> float:
    """Of ``ways`` equal groups of experts those that a token's experts are in, over these experts: an expectation.

    Experts of a token are unlike each other, and any as likely as others.
    """
    experts = model.experts
    if experts is None:
        return 1.0
    # The chance that none is in a group, expert by expert.
    inside, none = experts.number / ways, 1.0
    for chosen in range(experts.top_k):
        none *= max(0.0, experts.number - inside - chosen) / (experts.number - chosen)
    return ways * (1.0 - none) / experts.top_k


def expert_imbalance(model: ModelSpec, ep: int) -> float:
    """Tokens of the busiest of ``ep`` devices over the mean: the expected largest of sums over its experts."""
    experts = model.experts
    if experts is None or ep == 1:
        return 1.0
    if experts.imbalance is not None:
        return experts.imbalance
    return min(ep, 1.0 + LOAD_DEVIATION * sqrt(ep / experts.number) * sqrt(2.0 * log(ep)))


def attention_seconds(
    model: ModelSpec, device: Device, target: Capabilities, *, tp: int, micro_batch: int, ways: int = 1
) -> tuple[float, float]:
    """Forward and backward of scores, softmax and weighted sum; causal flash kernels skip half of the scores.

    The model's sequences are parts of ones that are ``ways`` times as long, and attend to all of these.
    """
    training, heads, seen = model.training, model.heads / tp, model.seen
    length = training.sequence_length
    if training.packed:
        # A document may be longer than a part.
        seen = training.own_tokens_of(ways * length) / ways
    calls = attention_calls(model, target, micro_batch, ways)
    if model.training.attention == "flash":
        causal = 0.5 if model.causal else 1.0
        width = float(eager_width(model)) if target.eager_layers else core_width(model)
        flops = 4.0 * micro_batch * ways * length * seen * heads * width * causal
        flops *= seen_scores(model, target.windows, ways)
        more = device.stream(0.0, calls - 1)
        return device.flash(flops) + more, device.flash(2.5 * flops) + more
    precision = ATTENTION_FORMAT.get(model.training.precision)
    rows = seen if model.training.packed else length
    count = micro_batch * heads * (length / rows)
    products = (
        Product(rows, seen, model.head_dim, count),
        Product(rows, model.head_dim, seen, count),
    )
    forward, backward = device.products(products, precision)
    scores = device.size * count * rows * seen
    # Softmax and dropout read and write the scores; the products' own traffic is counted with them.
    fused = fused_softmax(model, device, target, tp=tp, micro_batch=micro_batch)
    (streams, kernels), (back, back_kernels) = (
        [plain + fused * (better - plain) for better, plain in zip(*ways, strict=True)]
        for ways in zip(FUSED_SCORES, UNFUSED_SCORES, strict=True)
    )
    dropout = 2.5 if model.drops else 0.0
    forward += device.stream((streams + dropout) * scores, kernels + 1)
    return forward, backward + device.stream((back + dropout) * scores, back_kernels)


def attention_calls(model: ModelSpec, target: Capabilities, micro_batch: int, ways: int = 1) -> float:
    """Kernels of a layer's attention: with packed documents the examples call one for each of whole sequences."""
    mean = None if target.documents_at_once else model.training.mean_document
    tokens = micro_batch * ways * model.training.sequence_length
    return 1.0 if mean is None else larger(1.0, tokens / mean)


CHUNKED = ("mamba2", "delta", "linear")
"""States whose tokens are worked on in chunks, by products."""


TRITON_SCANS = 1.2
"""Seconds of the five kernels of a scan over those of what they compute and stream: 86 ns for a token of 8,192 channels
and a state of 128 on H100 (vllm-project/vllm, pull request 27299), in place of 70."""


def state_seconds(
    state: StateSpec, device: Device, target: Capabilities, *, tp: int, tokens: int, micro_batch: int = 1
) -> tuple[float, float]:
    """Forward and backward of what carries a state: its convolution, its scan, the gate and norm behind it.

    Chunks are products like those of attention, at its rate; the backward makes two gradients of each and does some
    again, in the example all. Kernels written for it stream their inputs, the values twice, and the states between
    chunks; eager torch streams what lies between its operations too.
    """
    again = 3.0 if target.eager_layers else 2.5
    flops = state_flops(state) * tokens / tp
    # The convolution reads and writes its channels; the gate scales what the scan made.
    around = device.size * (2.0 * state.convolved + 3.0 * state.inner)
    scanned = float(device.size * (state.convolved + state.inner))
    scanned += 4.0 * 3.0 * state.inner * state.size / state.chunk if state.kind in CHUNKED else 0.0
    slower, copied = 1.0, 0.0
    if target.eager_layers:
        scanned += eager_state_bytes(state)
    elif state.kind in CHUNKED:
        slower = TRITON_SCANS
        scanned += device.size * state.inner
        # Megatron has sequences inside positions, and the kernels take them the other way round.
        copies = 2 * (micro_batch > 1)
        copied = device.stream(
            copies * device.size * (2.0 * state.inner + state.convolved) * tokens / tp, copies
        )
    streams = device.stream((around + slower * scanned) * tokens / tp, 4)
    if state.kind in CHUNKED:
        forward = device.flash(slower * flops) + streams
        return forward + copied, device.flash(again * slower * flops) + again * streams + copied
    # Scans channel by channel run on vector units.
    scan = device.vectors(flops)
    return scan + streams, again * (scan + streams)


def state_flops(state: StateSpec) -> float:
    """Operations of a token in one forward of a scan.

    State-space duality (arXiv:2405.21060, section 6), and linear attention: scores of a chunk and their sum of inputs,
    inputs into states, states into outputs. Gated delta rule (arXiv:2412.06464, section 3.3, equations 8 and 9): keys
    by keys and queries by keys, a triangular solve for keys and values, and with the state three products. Selective
    scan (arXiv:2312.00752, appendix): nine for an element of the state.
    """
    inner, size, chunk = float(state.inner), float(state.size), float(state.chunk)
    if state.kind in ("mamba2", "linear"):
        return 2.0 * chunk * (size * state.groups + inner) + 4.0 * size * inner
    if state.kind == "delta":
        keys = size * state.heads
        return 2.0 * chunk * (3.0 * keys + 2.0 * inner) + chunk**2 * state.heads + 6.0 * size * inner
    return 9.0 * inner * size if state.kind == "mamba" else 2.0 * inner * state.conv


def eager_state_bytes(state: StateSpec) -> float:
    """Bytes of a token that the example's scan streams beside its inputs and outputs, all in fp32.

    Duality: decays and scores of a chunk, of every head, and products of both; delta rule: the same with a solve;
    selective scan: decays and inputs of every element of the state, in as many rounds as a chunk has bits.
    """
    if state.kind in CHUNKED:
        return 4.0 * (12.0 if state.kind == "delta" else 8.0) * state.chunk * state.heads
    if state.kind == "mamba":
        return 4.0 * (6.0 * log2(max(2, state.chunk)) + 6.0) * state.inner * state.size
    return 0.0


DOCUMENT_KERNELS = 2
"""Operations of a document's attention in a forward: the slice of its queries, keys and values, and the call."""
STATE_KERNELS = {False: 6, True: 60}
"""More kernels of a forward with a state: those written for it, and operations of eager torch."""


def core_width(model: ModelSpec) -> float:
    """Mean width of the two products of attention: with queries and keys, and with values."""
    return (model.head_dim + model.value_width) / 2


SINK_COLUMNS = 8
"""Channels by which sinks widen heads in the example's attention."""


def eager_width(model: ModelSpec) -> int:
    """Width of queries, keys and values in the example's attention, which fills all up to that of the widest."""
    return max(model.head_dim + SINK_COLUMNS * bool(model.sinks), model.value_width)


def seen_scores(model: ModelSpec, windows: bool, ways: int = 1) -> float:
    """Part of the scores of full attention that kernels with sliding windows compute, mean over all layers."""
    length, window = ways * model.training.own_tokens, model.window
    if window is None or window >= length or not windows:
        return 1.0
    # A token sees the window or, at the beginning, all before it; without a mask the window is on both sides.
    pairs = window * length - window * (window - 1) / 2 if model.kind == "decoder" else window * length
    part = pairs / (length * (length + 1) / 2 if model.kind == "decoder" else length**2)
    return 1.0 - model.narrow_share * (1.0 - min(1.0, part))


FUSED_SCORES = ((2.0, 1), (3.0, 2))
UNFUSED_SCORES = ((9.0, 6), (9.0, 6))
"""How often the scores are read or written, and kernels, forward and backward; without fusion, scaling, mask, casts
and softmax go one by one, and each has a backward of its own."""


def fused_softmax(
    model: ModelSpec, device: Device, target: Capabilities, *, tp: int, micro_batch: int
) -> bool:
    """True when a fused softmax takes the score matrices: some work on four of them at a time."""
    if device.kernels not in target.fused_softmax:
        return False
    return not target.softmax_in_fours or micro_batch * model.heads // tp % 4 == 0


def layer_pass(
    model: ModelSpec,
    device: Device,
    target: Capabilities,
    *,
    tp: int,
    micro_batch: int,
    sequence_parallel: bool,
    folding: Folding = WHOLE_EXPERTS,
    ways: int = 1,
    hooks: Hooks | None = None,
    graph: int = 0,
) -> LayerPass:
    """Seconds of one layer for one micro-batch; raises KeyError when the device lacks the number format.

    ``ways`` replicas have a part of each sequence; the model is that of a part. ``hooks`` stand around its modules. Of
    a backward in two parts ``graph`` is the layers of its graph.
    """
    tokens = micro_batch * model.training.sequence_length
    products, back = layer_product_seconds(model, device, tp=tp, tokens=tokens, folding=folding)
    core = core_back = 0.0
    if model.attends:
        core, core_back = attention_seconds(model, device, target, tp=tp, micro_batch=micro_batch, ways=ways)
    if model.carried is not None:
        scan, scan_back = state_seconds(
            model.carried.on(tp * ways), device, target, tp=tp, tokens=tokens, micro_batch=micro_batch
        )
        core, core_back = core + scan, core_back + scan_back
    wide, narrow = element_wise_bytes(model, device.size, tp=tp, tokens=tokens, split=sequence_parallel)
    if model.experts is not None:
        narrow += expert_bytes(model, device.size, tp=tp, tokens=tokens, folding=folding)
    part = model.sublayers / 2
    weights = trained_matrices(model, tp=tp, tokens=tokens, folding=folding) if device.added_bytes else ()
    added = device.added(*weights)
    forward = products + core + device.element_wise(wide + narrow, 7 * part)
    backward = back + core_back + device.element_wise(1.6 * (wide + narrow), 8 * part) + added
    apart = device.kernels in target.casts_apart
    if device.precision == "fp8":
        made = layer_products(model, tp=tp, tokens=tokens, folding=folding)
        inputs, outputs = apart_bytes(model, made) if apart else cast_bytes(model, made)
        forward += device.stream(inputs)
        backward += device.stream(outputs)
    norms = 0.0
    if model.training.norms == "unfused":
        ahead, behind, norms = unfused_norm_seconds(
            model, device, tp=tp, tokens=tokens, split=sequence_parallel
        )
        forward, backward = forward + ahead, backward + behind
    launches = _launches(
        model, device, target, tp=tp, micro_batch=micro_batch, folding=folding, norms=norms, ways=ways
    )
    seconds = device.family.launch_seconds * device.framework.host_factor
    # Every collective waits for the slowest of its members' processes, which share the processors of a node.
    together = min(tp, device.device_type.per_node // device.device_type.nodes_each)
    seconds = seconds * (1.0 + HOST_JITTER * log2(together))
    more, dealing = 0.0, target.dealing
    if tp > 1 and dealing is not None and device.kernels in dealing.kernels:
        dealt, trained = dealt_tensors(model, split=sequence_parallel)
        launches += dealing.collectives * (2 if sequence_parallel else 1) + dealing.tensor * dealt
        # Both parts of a divided backward deal gradients.
        more += dealing.gradient * trained * (2 if graph else 1) * seconds
    if graph and target.dividing is not None:
        each = target.dividing.module + target.dividing.layer * graph
        more += each * modules_with_weights(model) * seconds
    if hooks is not None:
        gathered, trained = layer_tensors(model)
        launches += hooks.module * layer_modules(model) + hooks.tensor * gathered
        more += hooks.gradient * trained * seconds
    return LayerPass(
        forward_seconds=forward,
        backward_seconds=backward,
        attention_seconds=core,
        again_seconds=modules_again(
            model, device, tp=tp, tokens=tokens, split=sequence_parallel, ep=folding.ep
        )
        + (core if model.training.attention == "unfused" else 0.0),
        product_seconds=products,
        weight_seconds=0.5 * back + added,
        added_seconds=added,
        product_backward=back,
        host_seconds=launches * seconds,
        host_more_seconds=more,
    )


def _launches(
    model: ModelSpec,
    device: Device,
    target: Capabilities,
    *,
    tp: int,
    micro_batch: int,
    folding: Folding,
    norms: float,
    ways: int,
) -> float:
    """Kernels that the host launches for the forward of one layer; ``norms`` are those that unfused norms add."""
    training, part = model.training, model.sublayers / 2
    launches = part * (FORWARD_KERNELS + (2 if tp > 1 else 0)) + norms
    if device.precision == "fp8":
        apart = device.kernels in target.casts_apart
        attention = len(model.attention_matrices) + (model.cross_matrix is not None)
        fed = (model.mlp_matrices if apart else 2) * (model.common_ffn > 0)
        launches += (APART_KERNELS if apart else FP8_KERNELS) * (attention + fed)
    lora = training.lora
    drops = lora is not None and lora.dropout
    launches += (ADAPTER_KERNELS + drops) * (len(model.adapted) + len(model.adapted_experts))
    calls = attention_calls(model, target, micro_batch, ways)
    launches += DOCUMENT_KERNELS * (calls - 1) if model.attends else 0
    launches += STATE_KERNELS[target.eager_layers] if model.carried is not None else 0
    base = lora.base if lora else None
    launches += NF4_KERNELS.get(base or "", 0) * nf4_matrices(model)
    if training.attention == "unfused":
        fused = fused_softmax(model, device, target, tp=tp, micro_batch=micro_batch)
        launches += UNFUSED_SOFTMAX_KERNELS * (1 - fused)
    if training.cuda_graphs != "none":
        launches = 0.0
    if model.experts is not None and training.cuda_graphs != "step":
        # A grouped product is a kernel for each expert, or one for all.
        each = GROUPED_KERNELS.get(device.precision, 3.0)
        launches += DISPATCH_KERNELS if training.cuda_graphs == "layers" else EXPERT_KERNELS
        launches += each * (model.experts.number / folding.ep if target.kernel_per_expert else 1)
    return launches


def layer_modules(model: ModelSpec) -> int:
    """Modules that are called in a layer of the examples, or of Hugging Face's Llama, which has as many.

    The layer, what normalises, mixes and activates, its linear layers, and of each adapter four.
    """
    around = 7 if model.sublayers == 2 else 4
    adapters = ADAPTER_MODULES * (len(model.adapted) + len(model.adapted_experts))
    return around + sum(_linear_layers(model)) + adapters


def modules_with_weights(model: ModelSpec) -> int:
    """Modules of a layer whose weights are trained, each of which makes its gradients at once."""
    norms = model.layer_norms + (2 * bool(model.qk_norm) if model.attends else 0)
    return layer_tensors(model)[1] + norms * (model.norm in NORM_TENSORS)


def layer_tensors(model: ModelSpec) -> tuple[int, int]:
    """Tensors of a layer that ZeRO 3 gathers, and those that are trained: norms and biases are whole everywhere.

    What rests in four bits is in buffers, which are whole too.
    """
    dense, experts = dense_tensors(model), expert_tensors(model)
    return dense[0] + experts[0], dense[1] + experts[1]


def dense_tensors(model: ModelSpec) -> tuple[int, int]:
    """The same but of experts that tokens choose, of which devices may hold a part each."""
    if model.runs:
        return _over_runs(model, dense_tensors)
    (mixing, feeding), adapters = _linear_layers(model), 2 * len(model.adapted)
    trained = mixing * ("attention" not in model.frozen) + feeding * ("mlp" not in model.frozen)
    return adapters + (mixing + feeding) * _gathers_base(model), adapters + trained


def dealt_tensors(model: ModelSpec, *, split: bool) -> tuple[int, int]:
    """Tensors of a layer that devices of a replica have in parts, or gradients of, and those that are trained.

    ``split``: each sees its own tokens of what norms take, and of their gradients has a part.
    """
    dealt, trained = dense_tensors(model)
    norms = 2 * bool(model.qk_norm) if model.attends else 0
    norms += model.layer_norms * NORM_TENSORS.get(model.norm, 0) if split else 0
    others: dict[Part, int] = {
        "attention": 2 * model.qkv_bias + model.output_bias if model.attends else 0,
        "mlp": model.mlp_matrices * model.mlp_bias if model.common_ffn else 0,
        "norms": norms,
    }
    tuned = sum(number for part, number in others.items() if part not in model.frozen)
    return dealt + sum(others.values()), trained + tuned


def expert_tensors(model: ModelSpec) -> tuple[int, int]:
    """The same of these experts, which are stacked in two."""
    if model.runs:
        return _over_runs(model, expert_tensors)
    stacks, adapters = 2 * (model.experts is not None), 2 * len(model.adapted_experts)
    return adapters + stacks * _gathers_base(model), adapters + stacks * ("mlp" not in model.frozen)


def _over_runs(model: ModelSpec, tensors: Callable[[ModelSpec], tuple[int, int]]) -> tuple[int, int]:
    each = [(run.layers, tensors(run.kind), run.frozen) for run in model.runs]
    gathered = sum(layers * found[0] for layers, found, _ in each)
    return gathered, sum(layers * found[1] for layers, found, frozen in each if not frozen)


def _gathers_base(model: ModelSpec) -> bool:
    lora = model.training.lora
    return lora is None or lora.base not in NF4_KERNELS


def _linear_layers(model: ModelSpec) -> tuple[int, int]:
    """Those that mix tokens, queries apart from keys and values, and those behind; of experts the router."""
    apart = model.attends and model.latent is None and model.projections is None
    mixing = len(model.attention_matrices) + (model.cross_matrix is not None or apart)
    feeding = model.mlp_matrices if model.common_ffn else 0
    return mixing, feeding + (1 if model.experts is not None else 0)


def modules_again(model: ModelSpec, device: Device, *, tp: int, tokens: int, split: bool, ep: int) -> float:
    """Seconds of what Megatron recomputes of a layer beside unfused attention: modules whose outputs it can discard.

    The norm ahead of experts and their nonlinearity; with latent attention the norm ahead of it and the products that
    widen queries, keys and values (``recompute_modules`` of Megatron-Core: layernorm, moe_act, mla_up_proj).
    """
    norm, seconds = 2.0 * device.size * tokens * model.hidden / (tp if split else 1), 0.0
    if model.experts is not None:
        rows = expert_rows(model, tp=tp, tokens=tokens, ep=ep)
        seconds += device.stream(norm + device.size * rows * model.mlp_matrices * model.experts.ffn, 2)
    if model.latent is not None:
        seconds += device.stream(norm)
        widening = (item for item in model.attention_matrices if item[2] == "columns")
        seconds += sum(
            device.product(Product(tokens, outputs / tp, inputs)) for inputs, outputs, _ in widening
        )
    return seconds


def cast_bytes(model: ModelSpec, products: tuple[Product, ...]) -> tuple[float, float]:
    """Bytes that move when a layer's inputs of products are brought to fp8, and in the backward gradients of outputs.

    Weights stay in fp8.
    """
    forward = backward = 0.0
    for item, trained in zip(products, are_trained(model, products), strict=True):
        moved = (CAST_BYTES if trained else FROZEN_CAST_BYTES) * item.count * item.rows
        forward += moved * item.inner
        backward += moved * item.columns
    return forward, backward


def apart_bytes(model: ModelSpec, products: tuple[Product, ...]) -> tuple[float, float]:
    """The same where each tensor is cast on its own: its largest element is looked for ahead, and inputs of trained
    weights, which are kept as they came, are cast once more.

    Forward inputs and weights by rows, backward gradients by rows and by columns, and weights by columns.
    """
    read, one, both = 2.0, 3.0, 4.0
    forward = backward = 0.0
    for item, trained in zip(products, are_trained(model, products), strict=True):
        inputs, weights = item.count * item.rows * item.inner, item.count * item.inner * item.columns
        forward += (read + one) * (inputs + weights)
        backward += one * (weights + trained * inputs)
        backward += (read + (both if trained else one)) * item.count * item.rows * item.columns
    return forward, backward


CAST_BYTES = 4.0
"""Bytes that bringing an element to fp8 moves: read in two, written by rows and by columns, as both products of the
backward take it in the order of their own (Transformer Engine)."""

FROZEN_CAST_BYTES = 3.0
"""The same where the weight has no gradient, whose product alone takes them by columns."""


def normed_widths(model: ModelSpec) -> tuple[float, float]:
    """Elements of a token that the norms of a layer take: those that are whole on each device of a replica, and those
    of queries and keys, which tensor parallelism divides."""
    whole, divided = float(model.layer_norms * model.hidden), 0.0
    if model.attends and model.latent is not None:
        whole += model.latent.kv_rank + (model.latent.q_rank or 0)
    elif model.attends and model.qk_norm:
        divided = (model.heads + model.kv_heads) * model.head_dim
    return whole, divided


def trains_norms(model: ModelSpec) -> bool:
    """True when norms have weights that are trained."""
    return model.norm != "plain" and "norms" not in model.frozen


def unfused_norm_seconds(
    model: ModelSpec, device: Device, *, tp: int, tokens: int, split: bool
) -> tuple[float, float, float]:
    """Seconds that norms of one operation after the other add to a layer, forward and backward, and kernels of a pass,
    mean of both."""
    whole, divided = normed_widths(model)
    elements = tokens * (whole / (tp if split else 1) + divided / tp)
    ahead, back = UNFUSED_NORM[device.size]
    back += UNFUSED_NORM_WEIGHT[device.size] * trains_norms(model)
    norms = model.layer_norms + 2 * (model.attends and bool(model.latent or model.qk_norm))
    kernels = [norms * each for each in UNFUSED_NORM_KERNELS]
    seconds = [
        device.stream(moved * elements, each) for moved, each in zip((ahead, back), kernels, strict=True)
    ]
    return seconds[0], seconds[1], sum(kernels) / 2


def element_wise_bytes(
    model: ModelSpec, size: int, *, tp: int, tokens: int, split: bool
) -> tuple[float, float]:
    """Bytes of one forward over the hidden width, and over the widths that ``tp`` divides.

    Norms, residual sums and dropout stream the hidden width (9 times, 8 without dropout); the nonlinearity, biases
    and the reshapes of queries, keys and values stream what tensor parallelism splits (arXiv:2205.05198, section 4).
    """
    streams = (9.0 if model.drops else 8.0) * model.sublayers / 2
    ways = tp if split else 1
    heads = (
        (model.heads + 2 * model.kv_heads * model.pairs_per_token) * model.head_dim if model.attends else 0
    )
    inner = model.mlp_matrices * float(model.common_ffn) + 2.0 * heads
    return size * tokens * streams * model.hidden / ways, size * tokens * inner / tp


def expert_bytes(model: ModelSpec, size: int, *, tp: int, tokens: int, folding: Folding) -> float:
    """Bytes of one forward that routing adds on one device: its choice, sorting by expert and back, nonlinearities.

    Copies of tokens are written in the experts' order and read back with their weights; between devices they are
    sorted once more on either side of the experts, those of all devices that share an expert by each of these.
    """
    experts = model.experts
    assert experts is not None
    own, rows = tokens / tp, expert_rows(model, tp=tp, tokens=tokens, ep=folding.ep)
    sorting = 2.0 * own + (2.0 if folding.ways == 1 else 2.0 + 4.0 * folding.etp) * rows
    biases = BIAS_BYTES * rows * model.hidden if experts.bias else 0.0
    return (
        ROUTER_BYTES * own * experts.number
        + size * (sorting * model.hidden + rows * model.mlp_matrices * experts.ffn)
        + biases
    )


BIAS_BYTES = 28.0
"""Bytes of an element of what experts give that their second bias moves: scaled by a token's weight, added and joined
in fp32 (4, 10 and 8), brought back to two bytes (6), one expert after the other (``TEGroupedMLP._apply_bias`` of
Megatron-Core); 40 backward. The first bias is added in the product."""

ROUTER_BYTES = 24.0
"""Bytes of the router's choice for each expert and token: fp32 scores, their softmax, the largest of them."""


def embedding_pass(model: ModelSpec, device: Device, *, tp: int, micro_batch: int) -> EndPass:
    """Seconds of the input embedding: a gather of rows, and a scatter of their gradients.

    With a tower also those of its patches and of its projector, with an encoder those of its own.
    """
    tokens = micro_batch * model.training.sequence_length
    forward = device.stream(4.0 * device.size * tokens * model.hidden, 3)
    backward = 2 * forward * ("embedding" not in model.frozen)
    if device.added_bytes and "embedding" not in model.frozen:
        # A whole table of gradients is written ahead of its sum, of which a micro-batch needs few rows.
        rows = model.vocab * model.embedding_width / tp
        backward += device.stream(device.size * rows) + device.added(rows)
    if model.tower is not None:
        patches, *others = (
            Product(micro_batch * model.tower.images * each, outputs / tp, inputs)
            for each, inputs, outputs in model.tower.matrices
        )
        ahead, back = device.products(tuple(others))
        forward += device.product(patches) + ahead
        backward += 0.0 if model.training.lora else back
        backward += 0.0 if model.tower_frozen else device.product(patches.backward()[1])
    if model.encoder is not None:
        inputs = micro_batch * model.encoder.sequence_length
        ahead = device.stream(4.0 * device.size * inputs * model.encoder_width, 3)
        forward += ahead
        backward += 2 * ahead * ("embedding" not in model.frozen)
    for item in model.beside:
        product = Product(micro_batch * item.tokens, item.outputs, item.inputs)
        forward += item.times * device.product(product)
        if "embedding" not in model.frozen:
            backward += item.times * sum(map(device.product, product.backward()))
    for front in _fronts(model):
        for number, each in enumerate(front):
            product = Product(micro_batch * each.tokens, each.outputs, each.inputs)
            into, weight = product.backward()
            forward += device.product(product)
            if "embedding" not in model.frozen:
                # What is heard or seen has no gradient.
                backward += device.product(weight) + (device.product(into) if number else 0.0)
    return EndPass(forward_seconds=forward, backward_seconds=backward)


def _fronts(model: ModelSpec) -> tuple[tuple[FrontSpec, ...], ...]:
    """Convolutions ahead of the model's own layers, and of an encoder's."""
    return model.front, () if model.encoder is None else model.encoder.front


MASKED = 0.15
"""Part of an encoder's tokens that are masked (arXiv:1810.04805, section 3.1)."""


def predicted_tokens(model: ModelSpec, tokens: int) -> float:
    """Those whose logits are computed: with pooled labels one of each sequence."""
    if model.labels is not None:
        return tokens / model.training.sequence_length if model.pooled else tokens
    return MASKED * tokens if model.training.cross_entropy == "masked" else tokens


def loss_bytes(target: Capabilities, kernels: str, cross_entropy: str, size: int) -> tuple[float, float]:
    """Bytes per logit of ``size`` bytes that the loss streams, forward and backward."""
    if cross_entropy == "fused" and kernels not in target.loss_in_steps:
        ahead, back = target.fused_loss
        return size * ahead, size * back
    if cross_entropy == "chunked":
        ahead, back = CHUNKED_LOSS
        return ahead + 2.0 * size, back + 2.0 * size
    return _from_fp32(LOSS_IN_STEPS if cross_entropy == "fused" else PLAIN_LOSS, size)


def _from_fp32(moved: tuple[float, float], size: int) -> tuple[float, float]:
    """Bytes per logit of a loss in fp32, and of the logits' way to it and their gradient's way back."""
    forward, backward = moved
    copied = size + 4.0 if size < 4 else 0.0
    return forward + copied, backward + copied


def head_pass(model: ModelSpec, device: Device, *, tp: int, micro_batch: int) -> EndPass:
    """Seconds of the output layer and the loss, the vocabulary split over ``tp``, for every token that is predicted."""
    if not model.outputs:
        return EndPass(forward_seconds=0.0, backward_seconds=0.0)
    tokens = predicted_tokens(model, micro_batch * model.training.sequence_length)
    # Runtimes pad the vocabulary, so its columns are always aligned.
    columns = ceil(model.outputs / tp / 64) * 64
    name = ATTENTION_FORMAT.get(model.training.precision)
    product, loss = Product(tokens, columns, model.hidden), device.loss(tokens * columns)
    forward, backward = device.products((product,), name)
    # Both factors' gradients are products with as many operations.
    weight = 0.5 * backward
    if ("embedding" if model.tied_embeddings else "head") in model.frozen:
        backward = device.product(product.backward()[0], name)
    else:
        added = device.added(columns * model.hidden)
        backward, weight = backward + added, weight + added
    forward, backward = forward + loss[0], backward + loss[1]
    more = model.training.mtp_layers
    if more:
        # Each further token has logits of its own; a module embeds, normalises and projects ahead of its layer.
        ahead, back = device.products((Product(tokens, model.hidden / tp, 2 * model.hidden),), name)
        streams = device.stream(14.0 * device.size * tokens * model.hidden, 7)
        forward, backward = (
            forward + more * (forward + ahead + streams),
            backward + more * (backward + back + 2 * streams),
        )
    return EndPass(forward_seconds=forward, backward_seconds=backward, weight_seconds=weight)


PLAIN_UPDATE_BYTES = {("adamw", "bf16"): 328.0, ("adamw", "int8"): 550.0, ("lion", "fp32"): 96.0}
"""Bytes of one element that the operations of the examples' own optimizers read and write where they are not compiled,
without the gradient, by optimizer and format of the moments, by count (``tests/training``). Weights are in fp32:
devices with products in bf16 all compile."""

COMPILES_FROM = {"bf16": 8.0}
"""Compute capability from which TorchInductor compiles what has tensors in a format; Triton asks for 7.0 of any."""


def update_bytes(training: TrainingSpec, capability: float | None) -> float:
    """Bytes read and written for the weight and the moments of one element: once each, as one kernel does.

    With the ``capability`` of an NVIDIA GPU for which the examples' own optimizers are not compiled, by one operation
    after the other.
    """
    fused = 2.0 * ((2.0 if training.master_weights == "bf16" else 4.0) + training.moment_bytes)
    if capability is None or capability >= COMPILES_FROM.get(training.optimizer_states, 7.0):
        return fused
    return PLAIN_UPDATE_BYTES.get((training.optimizer, training.optimizer_states), fused)


def optimizer_seconds(
    parameters: float,
    device: Device,
    model: ModelSpec,
    update_seconds: float | None = None,
    *,
    eager: bool = False,
) -> float:
    """Seconds to update ``parameters`` elements on one device.

    The update reads the gradient and moves the states, or takes ``update_seconds`` where somebody has measured it.
    Besides, the gradient is copied to fp32, measured for clipping and cleared, and the working copy of the weight
    is written; where the optimizer updates bf16 weights, gradients stay as they are and there is no copy. ``eager``
    where the optimizer is one of the examples'.
    """
    copied = model.training.precision in MIXED and model.training.master_weights != "bf16"
    gradient = 2.0 if model.training.master_weights == "bf16" else 4.0
    moved = (2.0 + 4.0 if copied else 0.0) + gradient + gradient
    moved += device.size if copied else 0.0
    if update_seconds is None:
        moved += (
            update_bytes(model.training, device.device_type.compute_capability if eager else None) + gradient
        )
    return device.stream(parameters * moved, kernels=0) + (0.0 if update_seconds is None else update_seconds)


def model_flops(model: ModelSpec) -> float:
    """Useful FLOPs of one optimizer step: forward and backward of every product, attention causal where it is.

    Of what is not trained the backward has the gradient of its inputs alone, and the reference of pairs of answers has
    a forward without one.
    """
    more = model.training.forwards - 1
    return _step_flops(model, 2.0) + (more * _step_flops(model, 0.0) if more else 0.0)


def layer_flops(model: ModelSpec) -> tuple[float, float]:
    """Useful FLOPs of a sequence in one of ``layers``: those of its forward, and of forward and backward."""
    return _layer_flops(model, 0.0), _layer_flops(model, 2.0)


def _step_flops(model: ModelSpec, backward: float) -> float:
    """Of a forward, and a backward of ``backward`` times as much where all is trained: 2, or 0 for a forward alone."""
    passes, half = 1.0 + backward, 1.0 + backward / 2
    length = model.training.sequence_length
    head = "embedding" if model.tied_embeddings else "head"
    sequence = model.layers * _layer_flops(model, backward)
    for run in (*model.first_runs, *model.last_runs):
        sequence += run.layers * run.inputs * _layer_flops(run.kind, 0.0 if run.frozen else backward)
    if model.tower is not None:
        first, *others = (2.0 * tokens * inputs * outputs for tokens, inputs, outputs in model.tower.matrices)
        # Patches have no gradients.
        sequence += model.tower.images * (
            (1.0 if model.tower_frozen else half) * first
            + (1.0 if model.training.lora else passes) * sum(others)
        )
    sequence += (1.0 if "embedding" in model.frozen else passes) * sum(
        each.operations for each in model.beside
    )
    for front in _fronts(model):
        for number, each in enumerate(front):
            trained = passes if number else half
            sequence += (1.0 if "embedding" in model.frozen else trained) * (
                2.0 * each.tokens * each.inputs * each.outputs
            )
    predicted = predicted_tokens(model, length)
    more = model.training.mtp_layers
    sequence += (
        (half if head in model.frozen else passes)
        * 2.0
        * predicted
        * model.hidden
        * model.outputs
        * (1 + more)
    )
    sequence += more * passes * 2.0 * length * 2 * model.hidden**2
    return sequence * model.training.global_batch


def _layer_flops(model: ModelSpec, backward: float) -> float:
    """Those of a sequence in one of ``layers``; a forward alone is without adapters, as the reference is."""
    if model.runs:
        return sum(run.layers * _layer_flops(run.kind, backward) for run in model.runs)
    whole, half = 1.0 + backward, 1.0 + backward / 2
    length = model.training.sequence_length
    attention = float(sum(inputs * outputs for inputs, outputs, _ in model.attention_matrices))
    if model.cross_matrix is not None:
        attention += model.pairs_per_token * model.cross_matrix[0] * model.cross_matrix[1]
    mlp = float(model.hidden * model.mlp_matrices * model.common_ffn)
    if model.experts is not None:
        mlp += model.hidden * (model.experts.number + 2 * (model.experts.hidden or 0))
        mlp += model.mlp_matrices * model.expert_width * experts_at_work(model) * model.experts.ffn
    causal = 0.5 if model.causal else 1.0
    scores = model.heads * core_width(model) * causal * seen_scores(model, True) if model.attends else 0.0
    carried = 0.0 if model.carried is None else whole * length * state_flops(model.carried)
    passes = {part: half if part in model.frozen else whole for part in ("attention", "mlp")}
    matrices = passes["attention"] * attention + passes["mlp"] * mlp
    if backward:
        matrices += whole * model.layer_adapters.parameters
        if model.experts is not None:
            matrices += whole * model.layer_adapters.experts * experts_at_work(model) / model.experts.number
    return 2.0 * length * matrices + whole * 4.0 * length * model.seen * scores + carried
