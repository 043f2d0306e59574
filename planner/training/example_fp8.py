"""Matrix products in fp8: of each tensor that goes into one, the largest element decides a scale (the tensorwise recipe
of Transformer Engine and torchao, arXiv:2209.05433). Weights rest, are gathered and are updated as they are."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
import torch.nn.functional as functional
from torch import nn
from torch.distributed.tensor import DTensor

MULTIPLE = 16
"""What all sizes of a product in fp8 are a multiple of."""
COMPILED_ON = ("cuda",)
"""Types of devices on which casts are compiled."""
LEAST = 1e-12
"""Scales of a tensor of zeros are of this element."""


def use_fp8(module: nn.Module) -> None:
    """Multiply in fp8 in all linear layers of a module but adapters, and those of other sizes on this rank."""
    for name, part in module.named_modules():
        if isinstance(part, nn.Linear) and "adapters." not in f"{name}.":
            local = part.weight.to_local() if isinstance(part.weight, DTensor) else part.weight
            if not any(size % MULTIPLE for size in local.shape):
                part.__class__ = Fp8Linear


class Fp8Linear(nn.Linear):  # type: ignore[misc]
    """A linear layer that multiplies in fp8, forward and backward."""

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        outputs = fp8_product(hidden, self.weight)
        return outputs if self.bias is None else outputs + self.bias


def fp8_product(inputs: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """``inputs`` [..., width] times a weight [outputs][width]."""
    rows = inputs.reshape(-1, inputs.shape[-1])
    lacking = -len(rows) % MULTIPLE
    outputs: torch.Tensor = _Product.apply(
        functional.pad(rows, (0, 0, 0, lacking)) if lacking else rows, weight
    )
    return outputs[: len(rows)].view(*inputs.shape[:-1], -1)


class _Product(torch.autograd.Function):  # type: ignore[misc]
    """A product and its gradients: E4M3 forward, E5M2 for gradients of outputs.

    Inputs are kept as they came, which other products may share, and cast once more.
    """

    @staticmethod
    def forward(context: Any, inputs: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        first, _, scale = to_fp8(inputs, gradient=False, columns=False)
        second, _, weight_scale = to_fp8(weight, gradient=False, columns=False)
        trained = weight.requires_grad
        context.save_for_backward(inputs if trained else None, scale, weight, weight_scale)
        return _times(first, second.t(), scale, weight_scale, inputs.dtype, fast=True)

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        inputs, scale, weight, weight_scale = context.saved_tensors
        rows, columns, own = to_fp8(gradient, gradient=True, columns=inputs is not None)
        to_inputs = to_weight = None
        if context.needs_input_grad[0]:
            second = columns_in_fp8(weight, weight_scale)
            to_inputs = _times(rows, second.t(), own, weight_scale, gradient.dtype)
        if inputs is not None:
            second = columns_in_fp8(inputs, scale)
            to_weight = _times(columns, second.t(), own, scale, weight.dtype)
        return to_inputs, to_weight


def _times(
    first: torch.Tensor,
    second: torch.Tensor,
    scale: torch.Tensor,
    other: torch.Tensor,
    out: torch.dtype,
    *,
    fast: bool = False,
) -> torch.Tensor:
    """[rows][inner] by rows, times [inner][columns] by columns: as tensor cores take fp8. ``fast``: sums in fewer bits,
    as libraries have them forward."""
    one = functional.ScalingType.TensorWise
    product: torch.Tensor = functional.scaled_mm(
        first, second, scale, one, other, one, output_dtype=out, use_fast_accum=fast
    )
    return product


# Operators of torch's own, so that what watches each operation, as selective recomputation does, sees one and nothing
# of what is compiled.
@torch.library.custom_op("hetplan::to_fp8", mutates_args=())  # type: ignore[untyped-decorator]
def to_fp8(
    tensor: torch.Tensor, gradient: bool, columns: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """A matrix in fp8 by rows, by ``columns`` (transposed) where these are wanted, and its scale."""
    kind = formats(tensor.device)[gradient]
    by_rows, by_columns, scale = _fastest(tensor.device.type)(tensor.detach(), None, kind, True, columns)
    return by_rows, by_columns, scale


@torch.library.custom_op("hetplan::columns_in_fp8", mutates_args=())  # type: ignore[untyped-decorator]
def columns_in_fp8(tensor: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """A matrix in fp8, transposed, whose scale is known."""
    kind = formats(tensor.device)[False]
    by_columns: torch.Tensor = _fastest(tensor.device.type)(tensor.detach(), scale, kind, False, True)[1]
    return by_columns


def cast(
    tensor: torch.Tensor, scale: torch.Tensor | None, kind: torch.dtype, rows: bool, columns: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """What both operators do; empty what is not wanted, and the scale where it was given."""
    largest = torch.finfo(kind).max
    nothing = torch.empty(0, device=tensor.device)
    found = tensor.abs().amax().float().clamp(min=LEAST) / largest if scale is None else scale
    values = (tensor.float() / found).clamp(-largest, largest).to(kind)
    return (
        values if rows else nothing,
        values.t().contiguous() if columns else nothing,
        found if scale is None else nothing,
    )


@cache
def formats(device: torch.device) -> tuple[torch.dtype, torch.dtype]:
    """E4M3 and E5M2 of a device: MI300 has some without negative zero and infinities."""
    if torch.version.hip and torch.cuda.get_device_properties(device).gcnArchName.startswith("gfx94"):
        return torch.float8_e4m3fnuz, torch.float8_e5m2fnuz
    return torch.float8_e4m3fn, torch.float8_e5m2


@cache
def _fastest(device: str) -> Callable[..., Any]:
    """``cast`` in as few kernels as it takes, once it has run on a small matrix; uncompiled where it does not."""
    if device not in COMPILED_ON:
        return cast
    try:
        compiled: Callable[..., Any] = torch.compile(cast, fullgraph=True, dynamic=True)
        compiled(torch.ones(MULTIPLE, 2 * MULTIPLE, device=device), None, torch.float8_e4m3fn, True, True)
    except Exception as error:
        reason = " ".join(str(error).split("\n\n")[0].split())
        line = "casts to fp8: not compiled, so that they take many times as long"
        print(f"{line}: {type(error).__name__}: {reason}", file=sys.stderr, flush=True)  # noqa: T201
        return cast
    return compiled
