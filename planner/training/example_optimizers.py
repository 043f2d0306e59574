"""Optimizers that torch does not have: Lion, and AdamW with moments in bf16 or in eight bits or for bf16 weights."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as functional
from torch.distributed.tensor import DTensor

PIECE = 1 << 24
"""Elements that are updated at a time: temporaries of a whole embedding would not fit beside it."""
BLOCK = 256
"""Elements of an 8-bit moment that share a scale."""


class InPieces(torch.optim.Optimizer):  # type: ignore[misc]
    """Updates the elements of this rank piece by piece, whatever tensor they are of.

    Weights in bf16 are brought to fp32 for it and rounded up or down in proportion: a step changes most of them by less
    than bf16 resolves.
    """

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
            state |= {name: self.packed(name, torch.zeros_like(weight)) for name in self.moments}
        state["step"] += 1
        pieces = [each.view(-1).split(PIECE) for each in (weight, own(parameter.grad))]
        pieces += [self.cut(state[name]) for name in self.moments]
        for weights, *others in zip(*pieces, strict=True):
            exact = weights.float()
            self.update(group, state["step"], exact, *others)
            if exact is not weights:
                weights.copy_(dithered(exact, 3 * state["step"] + 2))

    def cut(self, kept: torch.Tensor) -> Any:
        """The pieces of a moment."""
        return kept.view(-1).split(PIECE)

    def packed(self, name: str, moment: torch.Tensor) -> torch.Tensor:
        """A moment as it is kept."""
        return moment.to(self.format or moment.dtype)

    def unpacked(self, name: str, kept: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """A moment as checkpoints have it: of the weight's shape."""
        return kept

    @property
    def _parameters(self) -> list[Any]:
        return [each for group in self.param_groups for each in group["params"]]

    def state_dict(self) -> dict[str, Any]:
        """With moments spread as their weights are, so that other plans can go on from them."""
        found, parameters = super().state_dict(), self._parameters
        states = {}
        for index, state in found["state"].items():
            weight = parameters[index]
            spread = {
                name: as_spread(self.unpacked(name, state[name], own(weight)), weight)
                for name in self.moments
            }
            states[index] = {**state, **spread}
        return {**found, "state": states}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """The other way round. Torch's own would bring all moments to the format of the weights."""
        super().load_state_dict({**state_dict, "state": {}})
        names = [name for group in state_dict["param_groups"] for name in group["params"]]
        weights = dict(zip(names, self._parameters, strict=True))
        for name, state in state_dict["state"].items():
            weight = weights[name]
            kept = {name: self.packed(name, own(state[name]).to(own(weight).device)) for name in self.moments}
            self.state[weight] = {"step": int(state["step"]), **kept}


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

    def __init__(
        self,
        parameters: Iterable[Any],
        lr: float,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
    ) -> None:
        super().__init__(parameters, lr, betas)
        self.eps = eps

    def update(
        self, group: dict[str, Any], step: int, weight: torch.Tensor, gradient: torch.Tensor, *moments: Any
    ) -> None:
        """AdamW in fp32, from and to rounded moments."""
        gradient = gradient.float()
        first, second = (
            self.read(name, kept)[: gradient.numel()].lerp_(new, 1 - beta)
            for name, kept, new, beta in zip(
                self.moments, moments, (gradient, gradient.square()), group["betas"], strict=True
            )
        )
        bias, square_bias = (1 - beta**step for beta in group["betas"])
        weight.mul_(1 - group["lr"] * group["weight_decay"])
        scale = (second / square_bias).sqrt_().add_(self.eps)
        weight.addcdiv_(first, scale, value=-group["lr"] / bias)
        for seed, (name, kept, new) in enumerate(zip(self.moments, moments, (first, second), strict=True)):
            self.write(name, kept, new, 3 * step + seed)

    def read(self, name: str, kept: torch.Tensor) -> torch.Tensor:
        """A piece of a moment in fp32."""
        return kept.float()

    def write(self, name: str, kept: torch.Tensor, new: torch.Tensor, seed: int) -> None:
        """Round it and keep it."""
        kept.copy_(dithered(new, seed))


class WideAdamW(NarrowAdamW):
    """AdamW with moments in fp32, for weights in bf16."""

    format = torch.float32

    def write(self, name: str, kept: torch.Tensor, new: torch.Tensor, seed: int) -> None:
        """Keep it."""
        kept.copy_(new)


class EightBitAdamW(NarrowAdamW):
    """AdamW that computes in fp32 and keeps its moments in eight bits, with a scale for each block (arXiv:2110.02861).

    A kept moment has a row for each block: a code for each element, and the four bytes of the scale, which is the
    element that is farthest from zero. They are rounded up or down in proportion, too.
    """

    def cut(self, kept: torch.Tensor) -> Any:
        """Whole blocks."""
        return kept.split(PIECE // BLOCK) if len(kept) else (kept,)

    def packed(self, name: str, moment: torch.Tensor) -> torch.Tensor:
        """To the nearest codes."""
        blocks = -(-moment.numel() // BLOCK)
        kept = torch.empty(blocks, BLOCK + 4, dtype=torch.uint8, device=moment.device)
        for row, piece in zip(self.cut(kept), moment.reshape(-1).split(PIECE), strict=True):
            self.write(name, row, piece.float(), None)
        return kept

    def unpacked(self, name: str, kept: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """In fp32, of which the same codes are made again."""
        pieces = [self.read(name, row) for row in self.cut(kept)]
        return torch.cat(pieces)[: weight.numel()].view_as(weight)

    def read(self, name: str, kept: torch.Tensor) -> torch.Tensor:
        """What the codes stand for, up to the end of the last block."""
        scales = kept[:, BLOCK:].contiguous().view(torch.float32)
        values = codes(name == "first", kept.device)[kept[:, :BLOCK].int()]
        return values.mul_(scales).view(-1)

    def write(self, name: str, kept: torch.Tensor, new: torch.Tensor, seed: int | None) -> None:
        """The codes of a piece, to the nearest without ``seed``."""
        known = codes(name == "first", kept.device)
        blocks = functional.pad(new, (0, kept.shape[0] * BLOCK - new.numel())).view(-1, BLOCK)
        scales = blocks.gather(1, blocks.abs().argmax(1, keepdim=True))
        parts = blocks / scales.where(scales != 0, 1.0)
        below = torch.bucketize(parts, known[1:-1], right=True, out_int32=True)
        low = known[below]
        above = parts.sub_(low).div_(known[below + 1] - low)
        place = 0.5 if seed is None else noise(new.numel(), seed, new.device).float().div_(65536.0)
        if seed is not None:
            place = functional.pad(place, (0, blocks.numel() - new.numel())).view(-1, BLOCK)
        found = below.add_(above > place)
        # A second moment of zero under a first one that is not would be a step without bound.
        kept[:, :BLOCK] = found if name == "first" else found.clamp_(min=1)
        kept[:, BLOCK:] = scales.view(torch.uint8)


@lru_cache
def codes(signed: bool, device: torch.device) -> torch.Tensor:
    """What the 256 codes of dynamic tree quantisation stand for, in rising order: more and more of them in each decade.

    As in arXiv:2110.02861, sections 1.3 and 2.2: of numbers without a sign twice as many in each decade.
    """
    values = [0.0, 1.0]
    for decade in range(7):
        count = 2 ** (decade + (0 if signed else 1))
        within = [0.1 + 0.9 * (index + 0.5) / count for index in range(count)]
        values += [
            10.0 ** (decade - 6) * each * sign for each in within for sign in ((1, -1) if signed else (1,))
        ]
    return torch.tensor(sorted(values), device=device)


ADAMW = {"fp32": WideAdamW, "bf16": NarrowAdamW, "int8": EightBitAdamW}
"""By the format of the moments."""


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


def as_spread(local: torch.Tensor, weight: Any) -> torch.Tensor:
    """What this rank has of a tensor that is spread as a weight is."""
    if not isinstance(weight, DTensor):
        return local
    mesh, placements = weight.device_mesh, weight.placements
    whole: torch.Tensor = DTensor.from_local(
        local, mesh, placements, run_check=False, shape=weight.shape, stride=weight.stride()
    )
    return whole


def noise(elements: int, seed: int, device: torch.device) -> torch.Tensor:
    """Numbers from 0 to 65535 that depend on the place and ``seed`` alone."""
    place = torch.arange(elements, dtype=torch.int32, device=device)
    mixed = place.add_(seed * 7919).mul_(0x9E3779B1 - 2**32)
    mixed = mixed.bitwise_xor_(mixed >> 15).mul_(0x85EBCA77 - 2**32).bitwise_right_shift_(16)
    return mixed.bitwise_and_(0xFFFF)


def dithered(values: torch.Tensor, seed: int) -> torch.Tensor:
    """fp32 numbers cut to the 16 bits of bf16 after noise in the other 16, which depends on the place and ``seed``."""
    bits = values.view(torch.int32) + noise(values.numel(), seed, values.device)
    return bits.bitwise_and_(-0x10000).view(torch.float32)
