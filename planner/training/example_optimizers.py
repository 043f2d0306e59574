"""Optimizers that torch does not have: Lion, and AdamW with moments in bf16."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.distributed.tensor import DTensor

PIECE = 1 << 24
"""Elements that are updated at a time: temporaries of a whole embedding would not fit beside it."""


class InPieces(torch.optim.Optimizer):  # type: ignore[misc]
    """Updates the elements of this rank piece by piece, whatever tensor they are of."""

    moments: tuple[str, ...] = ()
    format: torch.dtype | None = None
    """Number format of the moments; that of the parameters when None."""
    update: Callable[..., None]
    """Updates some elements and their moments in place: group, step, weight, gradient, moments."""

    def __init__(
        self, parameters: Iterable[Any], lr: float, betas: tuple[float, float], weight_decay: float = 0.01
    ) -> None:
        super().__init__(parameters, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def step(self, closure: Any = None) -> None:
        """Update every parameter that has a gradient."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._step(group, parameter)

    def _step(self, group: dict[str, Any], parameter: Any) -> None:
        weight, state = own(parameter), self.state[parameter]
        if not state:
            state["step"] = 0
            state |= {name: torch.zeros_like(weight, dtype=self.format) for name in self.moments}
        state["step"] += 1
        whole = (weight, own(parameter.grad), *(state[name] for name in self.moments))
        for pieces in zip(*(each.view(-1).split(PIECE) for each in whole), strict=True):
            self.update(group, state["step"], *pieces)


class Lion(InPieces):
    """Steps by the sign of an interpolated momentum (arXiv:2302.06675, program 1)."""

    moments = ("momentum",)

    def __init__(self, parameters: Iterable[Any], lr: float) -> None:
        super().__init__(parameters, lr, betas=(0.9, 0.99))

    def update(
        self, group: dict[str, Any], step: int, weight: torch.Tensor, gradient: torch.Tensor, *moments: Any
    ) -> None:
        """By the sign of the momentum and some of the gradient; weights decay apart."""
        (momentum,), (first, second) = moments, group["betas"]
        weight.mul_(1 - group["lr"] * group["weight_decay"])
        weight.add_(torch.lerp(gradient, momentum, first).sign_(), alpha=-group["lr"])
        momentum.lerp_(gradient, 1 - second)


class NarrowAdamW(InPieces):
    """AdamW that computes in fp32 and keeps its moments in bf16.

    They are rounded up or down in proportion: rounded to the nearest, a second moment would stay where it is, as each
    step changes it by less than bf16 resolves. The pattern depends on place and step alone, so that replicas agree.
    """

    moments = ("first", "second")
    format = torch.bfloat16

    def __init__(self, parameters: Iterable[Any], lr: float) -> None:
        super().__init__(parameters, lr, betas=(0.9, 0.999))

    def update(
        self, group: dict[str, Any], step: int, weight: torch.Tensor, gradient: torch.Tensor, *moments: Any
    ) -> None:
        """AdamW in fp32, from and to rounded moments."""
        gradient = gradient.float()
        first, second = (
            kept.float().lerp_(new, 1 - beta)
            for kept, new, beta in zip(moments, (gradient, gradient.square()), group["betas"], strict=True)
        )
        bias, square_bias = (1 - beta**step for beta in group["betas"])
        weight.mul_(1 - group["lr"] * group["weight_decay"])
        scale = (second / square_bias).sqrt_().add_(1e-8)
        weight.addcdiv_(first, scale, value=-group["lr"] / bias)
        for seed, (kept, new) in enumerate(zip(moments, (first, second), strict=True)):
            kept.copy_(dithered(new, 2 * step + seed))


class OnLocals:
    """One of torch's optimizers on tensors that this rank has whole, though they are DTensors."""

    def __init__(self, parameters: Iterable[Any], make: Callable[[list[Any]], Any]) -> None:
        self.pairs = [(each, torch.nn.Parameter(own(each).detach())) for each in parameters]
        self.optimizer = make([mine for _, mine in self.pairs])

    def step(self) -> None:
        """Update the parameters that have gradients."""
        for parameter, mine in self.pairs:
            mine.grad = own(parameter.grad)
        self.optimizer.step()

    def zero_grad(self) -> None:
        """Forget the gradients."""
        for parameter, mine in self.pairs:
            parameter.grad = mine.grad = None


class Together:
    """Several optimizers as one."""

    def __init__(self, *optimizers: Any) -> None:
        self.optimizers = optimizers

    def step(self) -> None:
        """Update the parameters of all."""
        for each in self.optimizers:
            each.step()

    def zero_grad(self) -> None:
        """Forget the gradients of all."""
        for each in self.optimizers:
            each.zero_grad()


def own(tensor: Any) -> Any:
    """What this rank has of a tensor."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def dithered(values: torch.Tensor, seed: int) -> torch.Tensor:
    """fp32 numbers cut to the 16 bits of bf16 after noise in the other 16, which depends on the place and ``seed``."""
    place = torch.arange(values.numel(), dtype=torch.int32, device=values.device)
    noise = place.add_(seed * 7919).mul_(0x9E3779B1 - 2**32)
    noise = noise.bitwise_xor_(noise >> 15).mul_(0x85EBCA77 - 2**32).bitwise_right_shift_(16)
    bits = values.view(torch.int32) + noise.bitwise_and_(0xFFFF)
    return bits.bitwise_and_(-0x10000).view(torch.float32)
