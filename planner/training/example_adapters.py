"""Low-rank adapters beside frozen linear layers (arXiv:2106.09685), and such layers in four bits (arXiv:2305.14314)."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any

import torch
import torch.nn.functional as functional
from torch import nn

INITIAL_STD = 0.02
FOUR_BITS = ("nf4", "nf4-double")
"""Bases in four bits; in the second one scales have eight bits."""
BLOCK = 64
"""Elements that share a scale."""
SCALES = 256
"""Scales of eight bits that share one."""
AT_A_TIME = 2**24
"""Elements of experts that plain torch brings from four bits together, of one expert at least."""
NF4 = (
    -1.0,
    -0.6961928009986877,
    -0.5250730514526367,
    -0.39491748809814453,
    -0.28444138169288635,
    -0.18477343022823334,
    -0.09105003625154495,
    0.0,
    0.07958029955625534,
    0.16093020141124725,
    0.24611230194568634,
    0.33791524171829224,
    0.44070982933044434,
    0.5626170039176941,
    0.7229568362236023,
    1.0,
)
"""Values of the sixteen codes, as parts of the largest of a block (arXiv:2305.14314, appendix E)."""


@dataclass(frozen=True)
class AdapterShape:
    """Adapters, as under ``lora`` in ``model.json``."""

    rank: int
    alpha: int
    targets: tuple[str, ...]
    """Linear layers that have adapters: ``q_proj``, ``k_proj`` and so on."""
    base: str | None = None
    """One of ``FOUR_BITS`` for linear layers in four bits."""


class Narrow(nn.Linear):  # type: ignore[misc]
    """The first product of an adapter."""

    def reset_parameters(self) -> None:
        """Initialise while the weight is whole."""
        nn.init.normal_(self.weight, std=INITIAL_STD)


class Wide(nn.Linear):  # type: ignore[misc]
    """The second one: it adds nothing at first."""

    def reset_parameters(self) -> None:
        """Initialise while the weight is whole."""
        nn.init.zeros_(self.weight)


class Adapter(nn.Module):  # type: ignore[misc]
    """Two thin products, scaled."""

    def __init__(self, inputs: int, outputs: int, shape: AdapterShape) -> None:
        super().__init__()
        self.down = Narrow(inputs, shape.rank, bias=False)
        self.up = Wide(shape.rank, outputs, bias=False)
        self.scale = shape.alpha / shape.rank

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.up(self.down(hidden)) * self.scale


class ExpertAdapter(nn.Module):  # type: ignore[misc]
    """Two thin products for each expert, grouped and scaled."""

    def __init__(self, number: int, inputs: int, outputs: int, shape: AdapterShape) -> None:
        super().__init__()
        self.down = nn.Parameter(torch.empty(number, inputs, shape.rank).normal_(std=INITIAL_STD))
        self.up = nn.Parameter(torch.zeros(number, shape.rank, outputs))
        self.scale = shape.alpha / shape.rank

    def forward(self, rows: torch.Tensor, ends: torch.Tensor, own: Callable[[Any], Any]) -> torch.Tensor:
        """What is added to rows in the order of experts, which end where ``ends`` says.

        ``own`` takes this rank's part of what is divided.
        """
        added = _times(rows, own(self.down).to(rows.dtype), ends)
        return _times(added, own(self.up).to(rows.dtype), ends) * self.scale


class ExpertAdapters(nn.Module):  # type: ignore[misc]
    """The adapters of a product of experts, whose parts stand side by side."""

    def __init__(self, number: int, inputs: int, widths: dict[str, int], shape: AdapterShape) -> None:
        """``widths``: outputs of each part, by name."""
        super().__init__()
        self.widths, self.off = widths, False
        self.parts = nn.ModuleDict(
            {
                name: ExpertAdapter(number, inputs, width, shape)
                for name, width in widths.items()
                if f"experts.{name}" in shape.targets
            }
        )

    def forward(
        self, outputs: torch.Tensor, rows: torch.Tensor, ends: torch.Tensor, own: Callable[[Any], Any]
    ) -> torch.Tensor:
        """The outputs of experts with what their adapters make of the same rows."""
        if self.off or not self.parts:
            return outputs
        added = [
            self.parts[name](rows, ends, own)
            if name in self.parts
            else outputs.new_zeros(len(outputs), width)
            for name, width in self.widths.items()
        ]
        return outputs + (added[0] if len(added) == 1 else torch.cat(added, dim=-1))

    def divide(self, part: Callable[[Any], Any]) -> None:
        """Leave this rank its part of them."""
        for each in self.parts.values():
            each.down, each.up = part(each.down), part(each.up)


@contextmanager
def without_adapters(model: nn.Module) -> Iterator[None]:
    """The model as it was before adapters were trained."""
    adapted = [each for each in model.modules() if isinstance(each, (Adapted, ExpertAdapters))]
    for each in adapted:
        each.off = True
    try:
        yield
    finally:
        for each in adapted:
            each.off = False


class Adapted(nn.Module):  # type: ignore[misc]
    """A linear layer with the adapters of its parts: of one, or of keys and values that stand side by side by head."""

    def __init__(
        self,
        base: nn.Module,
        inputs: int,
        heads: int,
        widths: dict[str, int],
        shape: AdapterShape,
    ) -> None:
        """``widths``: outputs that each part has of a head, by name."""
        super().__init__()
        self.base, self.widths = base, widths
        self.off = False
        self.adapters = nn.ModuleDict(
            {
                name: Adapter(inputs, heads * width, shape)
                for name, width in widths.items()
                if name in shape.targets
            }
        )

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        outputs: torch.Tensor = self.base(hidden)
        if self.off:
            return outputs
        if len(self.widths) == 1 or not self.adapters:
            for adapter in self.adapters.values():
                outputs = outputs + adapter(hidden)
            return outputs
        heads = outputs.unflatten(-1, (-1, sum(self.widths.values())))
        added = [self._added(name, hidden, heads) for name in self.widths]
        return (heads + torch.cat(added, dim=-1)).flatten(-2)

    def _added(self, name: str, hidden: torch.Tensor, heads: torch.Tensor) -> torch.Tensor:
        if name not in self.adapters:
            return torch.zeros_like(heads[..., : self.widths[name]])
        added: torch.Tensor = self.adapters[name](hidden).unflatten(-1, (-1, self.widths[name]))
        return added


def quantised(weight: torch.Tensor, double: bool = False) -> tuple[torch.Tensor, ...]:
    """Codes of a matrix, two a byte, [row][block of the row][byte], and the scale of each block as the bits of an fp32
    number; one block a row where those of the matrix are no whole blocks.

    Bits, as runtimes cast all floating-point numbers of a model to its working format. ``double``: see ``_narrow``.
    """
    rows, width = weight.shape
    flat = functional.pad(weight.detach().float().flatten(), (0, -weight.numel() % BLOCK)).view(-1, BLOCK)
    scales = flat.abs().amax(dim=1).clamp(min=torch.finfo(torch.float32).tiny)
    codes = torch.tensor(NF4, device=weight.device)
    kept = _narrow(scales) if double else ()
    if double:
        scales = _wide(*kept)
    indices = torch.bucketize(flat / scales[:, None], (codes[1:] + codes[:-1]) / 2).to(torch.uint8).flatten()
    each = (rows, width // BLOCK) if width % BLOCK == 0 else (-1, 1)
    packed = (indices[0::2] << 4 | indices[1::2]).view(*each, BLOCK // 2)
    return (packed, *kept) if double else (packed, scales.view(torch.int32).view(each))


def _narrow(scales: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Scales less their mean in eight bits, the scale of each ``SCALES`` of them, and the mean, both as bits of fp32
    numbers (arXiv:2305.14314, section 3, which has eight-bit floating-point numbers)."""
    mean = scales.mean()
    flat = functional.pad(scales - mean, (0, -len(scales) % SCALES)).view(-1, SCALES)
    largest = flat.abs().amax(dim=1).clamp(min=torch.finfo(torch.float32).tiny)
    codes = (flat / largest[:, None] * 127).round().add(128).to(torch.uint8)
    return codes.flatten()[: len(scales)], largest.view(torch.int32), mean.view(1).view(torch.int32)


def _wide(codes: torch.Tensor, largest: torch.Tensor, mean: torch.Tensor) -> torch.Tensor:
    """The scales of these, [..., block]."""
    each = largest.view(torch.float32).repeat_interleave(SCALES, dim=-1)[..., : codes.shape[-1]]
    scales: torch.Tensor = (codes.float() - 128) / 127 * each + mean.view(torch.float32)
    return scales.clamp(min=torch.finfo(torch.float32).tiny)


def dequantised(
    packed: torch.Tensor, scales: tuple[torch.Tensor, ...], sizes: tuple[int, ...], form: torch.dtype
) -> torch.Tensor:
    """The matrix of the codes in a working format, or those of experts, [expert, ...], in plain torch."""
    codes = torch.tensor(NF4, device=packed.device, dtype=form)
    pairs = torch.stack((codes.repeat_interleave(16), codes.repeat(16)), dim=1)
    experts = packed.shape[:-3]
    each = _whole_scales(scales)
    values = pairs[packed.int()].view(*experts, -1, BLOCK) * each.to(form).reshape(*experts, -1, 1)
    return values.flatten(-2)[..., : sizes[0] * sizes[1]].view(*experts, *sizes)


def _whole_scales(scales: tuple[torch.Tensor, ...]) -> torch.Tensor:
    return scales[0].view(torch.float32) if len(scales) == 1 else _wide(*scales)


@cache
def fused() -> Any:
    """The kernel of bitsandbytes that brings matrices back in one pass; None where none is installed that has it."""
    with suppress(ImportError):
        import_module("bitsandbytes")
    kernel = getattr(torch.ops.bitsandbytes, "dequantize_4bit", None)
    if kernel is None:
        text = "no bitsandbytes with torch.ops: plain torch brings weights from four bits, in four times the bytes"
        sys.stderr.write(f"{text}\n")
    return kernel


def dequantised_by(
    kernel: Any,
    packed: torch.Tensor,
    scales: tuple[torch.Tensor, ...],
    sizes: tuple[int, ...],
    form: torch.dtype,
) -> torch.Tensor:
    """The same by that kernel; blocks are whole."""
    shape = (*packed.shape[:-3], *sizes)
    codes, each = packed.reshape(-1, 1), _whole_scales(scales).flatten()
    whole: torch.Tensor = kernel(codes, each, BLOCK, "nf4", shape, form)
    return whole


def _brought_back(
    packed: torch.Tensor,
    scales: tuple[torch.Tensor, ...],
    sizes: tuple[int, ...],
    form: torch.dtype,
    ends: torch.Tensor | None,
) -> torch.Tensor:
    """The same by whichever there is; of experts some at a time in plain torch."""
    kernel = fused() if packed.is_cuda and sizes[0] * sizes[1] % BLOCK == 0 else None
    if kernel is not None:
        return dequantised_by(kernel, packed, scales, sizes, form)
    if ends is None:
        return dequantised(packed, scales, sizes, form)
    whole = torch.empty(len(packed), *sizes, device=packed.device, dtype=form)
    step = max(1, AT_A_TIME // (sizes[0] * sizes[1]))
    for begin in range(0, len(packed), step):
        some = slice(begin, begin + step)
        whole[some] = dequantised(packed[some], tuple(each[some] for each in scales), sizes, form)
    return whole


class _Product(torch.autograd.Function):  # type: ignore[misc]
    """A product by a matrix in four bits, or by those of experts, made whole again for the gradient of the inputs."""

    @staticmethod
    def forward(
        context: Any,
        inputs: torch.Tensor,
        ends: torch.Tensor | None,
        sizes: tuple[int, ...],
        packed: torch.Tensor,
        *scales: torch.Tensor,
    ) -> torch.Tensor:
        context.save_for_backward(ends, packed, *scales)
        context.sizes = sizes
        return _times(inputs, _brought_back(packed, scales, sizes, inputs.dtype, ends).mT, ends)

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        ends, packed, *scales = context.saved_tensors
        whole = _brought_back(packed, tuple(scales), context.sizes, gradient.dtype, ends)
        return _times(gradient, whole, ends), None, None, None, *[None for _ in scales]


def _times(rows: torch.Tensor, matrices: torch.Tensor, ends: torch.Tensor | None) -> torch.Tensor:
    return rows @ matrices if ends is None else functional.grouped_mm(rows.contiguous(), matrices, offs=ends)


def nf4_product(
    inputs: torch.Tensor,
    packed: torch.Tensor,
    scales: tuple[torch.Tensor, ...],
    sizes: tuple[int, ...],
    ends: torch.Tensor | None = None,
) -> torch.Tensor:
    """``inputs`` times a matrix in four bits of these (outputs, inputs), or those of experts, whose rows end there."""
    outputs: torch.Tensor = _Product.apply(inputs, ends, sizes, packed, *scales)
    return outputs


STORED = ("packed", "scales", "scales_of_scales", "mean_scale")
"""Names of what ``quantised`` makes."""


class InFourBits(nn.Module):  # type: ignore[misc]
    """What rests in four bits, in buffers, which no runtime shards or casts, until ``shard_codes`` is called."""

    packed: torch.Tensor
    names: tuple[str, ...]
    """Of its scales."""

    def shard_codes(self) -> None:
        """Make codes and scales frozen parameters, for a runtime that shards integers and gathers them as they are."""
        for name in ("packed", *self.names):
            code = self._buffers.pop(name)
            self.register_parameter(name, nn.Parameter(code, requires_grad=False))


class Nf4Linear(InFourBits):
    """A frozen linear layer in four bits."""

    def __init__(self, inputs: int, outputs: int, bias: bool, *, double: bool = False) -> None:
        """``double``: scales have eight bits."""
        super().__init__()
        self.sizes = outputs, inputs
        parts = quantised(torch.empty(self.sizes).normal_(std=INITIAL_STD), double)
        self.names = STORED[1 : len(parts)]
        for name, each in zip(STORED, parts, strict=False):
            self.register_buffer(name, each)
        self.bias = nn.Parameter(torch.zeros(outputs)) if bias else None

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        scales = tuple(getattr(self, name) for name in self.names)
        outputs = nf4_product(hidden, self.packed, scales, self.sizes)
        return outputs if self.bias is None else outputs + self.bias


class Nf4Experts(InFourBits):
    """Frozen matrices of experts in four bits, each with scales of its own."""

    def __init__(self, number: int, inputs: int, outputs: int, *, double: bool = False) -> None:
        """``double``: scales have eight bits."""
        super().__init__()
        self.sizes = outputs, inputs
        drawn = [quantised(torch.empty(self.sizes).normal_(std=INITIAL_STD), double) for _ in range(number)]
        self.names = STORED[1 : len(drawn[0])]
        for name, parts in zip(STORED, zip(*drawn, strict=True), strict=False):
            self.register_buffer(name, torch.stack(parts))

    def divide(self, part: Callable[[torch.Tensor], torch.Tensor]) -> None:
        """Leave this rank its part of the experts."""
        for name in ("packed", *self.names):
            setattr(self, name, part(getattr(self, name)))

    def product(self, rows: torch.Tensor, ends: torch.Tensor, own: Callable[[Any], Any]) -> torch.Tensor:
        """Rows in the order of experts, which end where ``ends`` says, times the matrices of theirs.

        ``own`` takes this rank's part of what is divided.
        """
        scales = tuple(own(getattr(self, name)) for name in self.names)
        return nf4_product(rows, own(self.packed), scales, self.sizes, ends)
