"""Tensor-parallel traffic inside a layer, and how much of it matrix products hide.

A matrix split by columns gathers its input and one split by rows adds up its output, over the devices of a replica
(arXiv:1909.08053, section 3): with sequence parallelism an all-gather and a reduce-scatter, else an all-reduce of the
same bytes (arXiv:2205.05198, section 4.2.2). Transformer Engine's layers hide a part of it under their products, and
nearly all with user buffers.
"""

from __future__ import annotations

from typing import Literal

from planner.capabilities import Capabilities
from planner.cluster.topology import DeviceType
from planner.cost.arrays import smaller
from planner.cost.communication import Ring
from planner.cost.compute import ELEMENT_BYTES, LayerPass, experts_at_work
from planner.frozen import dataclass
from planner.model.spec import ROW_TARGETS, ModelSpec

Hidden = Literal["nothing", "backward", "all"]
"""What of the tensor-parallel traffic meets products: what the backward can do without; all, by user buffers."""

BUFFERED = ("bf16", "fp16", "fp8")
"""Formats of user buffers."""


def has_user_buffers(model: ModelSpec) -> bool:
    """True for models whose divided matrices are the four that buffers are made for (``initialize_ub``)."""
    return (
        model.usual_layers and not model.experts and not model.latent and model.training.precision in BUFFERED
    )


def hidden_by(target: Capabilities, kernels: str, device_type: DeviceType, buffered: bool) -> Hidden:
    """What products hide on such a device; a model may have user buffers between devices that reach each other."""
    if kernels not in target.overlaps_collectives:
        return "nothing"
    least, capability = target.user_buffers_from, device_type.compute_capability
    if not buffered or not device_type.reaches_memory:
        return "backward"
    if least is None or capability is None or capability < least:
        return "backward"
    return "all"


@dataclass(frozen=True, slots=True, kw_only=True)
class Collectives:
    """Seconds of a layer's tensor-parallel traffic for one micro-batch."""

    forward_seconds: float
    """Exposed in the forward."""
    backward_seconds: float
    """Exposed in the backward, without recomputation."""
    hidden_forward: float = 0.0
    """Hidden under products of the forward."""
    hidden_backward: float = 0.0


def collectives(
    one: LayerPass,
    ring: Ring,
    model: ModelSpec,
    sequences: int,
    *,
    split: bool,
    hides: Hidden = "nothing",
    overlap: float = 0.0,
    sums: float | None = None,
) -> Collectives:
    """Two passes around the ring for each joint of a layer and direction, less what products hide.

    A joint is what follows a residual sum and is divided: attention, a feed-forward. Experts are whole on a device and
    have a part of the tokens each (``split``), so that only those that all tokens share are a joint. Layers of
    Transformer Engine scatter the gradient of a column-split matrix's input beside the gradient of its weight; the
    gather for a row-split one waits. User buffers also pass chunks on while a product works on others, forward and
    backward. ``overlap`` of what meets a product is hidden, as of other traffic. What goes into products in fp8 is
    gathered so. Not counted: sums that are hidden without ``split``, and with it the second gather of an input, beside
    the gradient that needs none. So plans that split have no more traffic than those that do not.
    ``sums``: collectives of a backward over those of the forward, where each product adds up its own; adapters then do
    so too, between their halves (``backward_sums``).
    """
    if ring.alone:
        return Collectives(forward_seconds=0.0, backward_seconds=0.0)
    size = ELEMENT_BYTES[model.training.precision]
    both = ring.reduce_seconds(size * sequences * model.training.sequence_length * model.hidden)
    joints = model.sublayers - (split and model.experts is not None and not model.common_ffn)
    scatters = gathers = joints * both / 2
    if sums is not None:
        tokens = sequences * model.training.sequence_length
        rank = 0 if model.training.lora is None else model.training.lora.rank
        narrow = ring.reduce_seconds(size * tokens * rank)
        rows = len(ROW_TARGETS & {*model.adapted})
        return Collectives(
            forward_seconds=gathers + scatters + rows * narrow,
            backward_seconds=sums * (gathers + scatters) + (len(model.adapted) - rows) * narrow,
        )
    if hides == "nothing" or not split:
        return Collectives(forward_seconds=gathers + scatters, backward_seconds=gathers + scatters)
    if model.training.precision == "fp8":
        gathers *= GATHERED_IN_FP8
    divided, columns = _shares(model)
    hidden = 0.0
    if hides == "all":
        hidden = overlap * smaller(gathers + scatters, divided * one.product_seconds)
        hidden_back = overlap * smaller(gathers + scatters, divided * one.product_backward)
    else:
        hidden_back = overlap * smaller(scatters, columns / 2 * one.product_backward)
    return Collectives(
        forward_seconds=gathers + scatters - hidden,
        backward_seconds=gathers + scatters - hidden_back,
        hidden_forward=hidden,
        hidden_backward=hidden_back,
    )


def backward_sums(model: ModelSpec) -> float:
    """All-reduces of a layer's backward over those of its forward, where each product adds up its input's gradient.

    Queries, keys with values, and all matrices of the feed-forward but the last take the gradient of their input alone.
    An adapter adds up what is between its halves: beside columns the gradient, beside rows the products.
    """
    if not model.sublayers:
        return 1.0
    sums = (2 if model.attends else 0) + (model.mlp_matrices - 1 if model.common_ffn else 0)
    return sums / model.sublayers


GATHERED_IN_FP8 = 0.5
"""Bytes of what is gathered for products in fp8: in their format, as sums are not (TransformerEngine's quantizers)."""


def _shares(model: ModelSpec) -> tuple[float, float]:
    """Share of a layer's products that tensor parallelism divides, and that it divides by columns."""
    columns = sum(
        inputs * outputs for inputs, outputs, split in model.attention_matrices if split == "columns"
    )
    rows = sum(inputs * outputs for inputs, outputs, split in model.attention_matrices if split == "rows")
    columns += (model.mlp_matrices - 1) * model.hidden * model.common_ffn
    rows += model.hidden * model.common_ffn
    whole = sum(inputs * outputs for inputs, outputs, split in model.attention_matrices if split == "nothing")
    if model.experts is not None:
        whole += model.hidden * (model.experts.number + 2 * (model.experts.hidden or 0))
        whole += model.mlp_matrices * model.expert_width * model.experts.ffn * round(experts_at_work(model))
    total = columns + rows + whole
    return (columns + rows) / total, columns / total
