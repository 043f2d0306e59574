"""Optimizers that torch does not have: Lion, and AdamW with moments in bf16 or in eight bits or for bf16 weights."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as functional
from torch.distributed.tensor import DTensor
from torch.utils._pytree import tree_map_only

PIECE = 1 << 24
"""Elements that are updated at a time: temporaries of a whole embedding would not fit beside it."""
BLOCK = 256
"""Elements of an 8-bit moment that share a scale."""
STRIDE = 7919
"""Between the noise of two seeds, in places."""
COMPILED_ON = ("cuda",)
"""Types of devices on which updates are compiled."""
COMPILER: dict[str, Any] = {
    "backend": "inductor",
    "options": {
        "emulate_precision_casts": True,
        "eager_numerics.division_rounding": True,
        "eager_numerics.disable_ftz": True,
    },
}
"""Under these options TorchInductor rounds each operation by itself, as when none is compiled: no fused multiply-add,
divisions to the nearest, denormals kept."""


class InPieces(torch.optim.Optimizer):  # type: ignore[misc]
    """Updates the elements of this rank piece by piece, whatever tensor they are of.

    Weights in bf16 are brought to fp32 for it and rounded up or down in proportion: a step changes most of them by less
    than bf16 resolves.

    On GPUs TorchInductor makes one kernel of a piece's update. It rounds as the operations do one after the other, each
    of which IEEE 754 defines to the bit: replicas agree whatever their devices are and whether these can compile.
    """

    moments: tuple[str, ...] = ()
    format: torch.dtype | None = None
    """Number format of the moments; that of the parameters when None."""
    numbers: Callable[..., list[float]]
    """What updates of a step have in common: group, step."""
    update: Callable[..., None]
    """Updates some elements and their moments in place: numbers, seed, weight, gradient, moments."""

    def __init__(
        self, parameters: Iterable[Any], lr: float, betas: tuple[float, float], weight_decay: float = 0.01
    ) -> None:
        super().__init__(parameters, {"lr": lr, "betas": betas, "weight_decay": weight_decay})
        self._fastest: Callable[..., None] | None = None

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def step(self, closure: Any = None) -> None:
        """Update every parameter that has a gradient."""
        for group in self.param_groups:
            common: dict[Any, tuple[torch.Tensor, torch.Tensor]] = {}
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._step(group, parameter, common)

    def _step(self, group: dict[str, Any], parameter: Any, common: dict[Any, Any]) -> None:
        weight, state = own(parameter).detach(), self.state[parameter]
        if not state:
            state["step"] = 0
            state |= {name: self.packed(name, torch.zeros_like(weight)) for name in self.moments}
        state["step"] += 1
        if not weight.numel():
            return
        key = step, device = state["step"], weight.device
        if key not in common:
            # Tensors, as numbers would be compiled in.
            numbers, seed = torch.tensor(self.numbers(group, step)), seed_of(3 * step)
            common[key] = numbers.to(device, non_blocking=True), seed.to(device, non_blocking=True)
        pieces = [each.view(-1).split(PIECE) for each in (weight, own(parameter.grad))]
        pieces += [self.cut(name, state[name]) for name in self.moments]
        for piece in zip(*pieces, strict=True):
            self.update_piece(*common[key], *piece)

    def update_piece(self, *given: Any) -> None:
        """Update one piece: numbers, seed, weight, gradient, moments."""
        if self._fastest is None:
            compiles = given[0].device.type in COMPILED_ON
            self._fastest = self._compiled(given) if compiles else self._plain
        self._fastest(*given)

    def _compiled(self, given: Any) -> Callable[..., None]:
        """The update of a piece in one kernel, once it has run on copies of one; uncompiled where it does not."""
        try:
            compiled: Callable[..., None] = torch.compile(
                self._plain, fullgraph=True, dynamic=True, **COMPILER
            )
            compiled(*tree_map_only(torch.Tensor, likeness, given))
        except Exception as error:
            # Hints follow behind an empty line.
            reason = " ".join(str(error).split("\n\n")[0].split())
            line = f"{type(self).__name__}: not compiled, so that updates take many times as long"
            print(f"{line}: {type(error).__name__}: {reason}", file=sys.stderr, flush=True)  # noqa: T201
            return self._plain
        return compiled

    def _plain(self, numbers: Any, seed: Any, weight: Any, gradient: Any, *moments: Any) -> None:
        """The update of a piece, one operation after the other."""
        if weight.dtype == torch.float32:
            self.update(numbers, seed, weight, gradient, *moments)
        else:
            exact = weight.float()
            self.update(numbers, seed, exact, gradient, *moments)
            weight.copy_(dithered(exact, seed + 2 * STRIDE))

    def cut(self, name: str, kept: Any) -> Any:
        """The pieces of a moment."""
        return kept.view(-1).split(PIECE)

    def packed(self, name: str, moment: torch.Tensor) -> Any:
        """A moment as it is kept."""
        return moment.to(self.format or moment.dtype)

    def unpacked(self, name: str, kept: Any, weight: torch.Tensor) -> torch.Tensor:
        """A moment as checkpoints have it: of the weight's shape."""
        whole: torch.Tensor = kept
        return whole

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

    def numbers(self, group: dict[str, Any], step: int) -> list[float]:
        """What is kept of a weight, the rate, the shares of the momentum ahead and of the gradient in it."""
        first, second = group["betas"]
        return [1 - group["lr"] * group["weight_decay"], group["lr"], first, 1 - second]

    def update(
        self,
        numbers: torch.Tensor,
        seed: torch.Tensor,
        weight: torch.Tensor,
        gradient: torch.Tensor,
        *moments: Any,
    ) -> None:
        """By the sign of the momentum and some of the gradient; weights decay apart."""
        (momentum,), (kept, rate, ahead, new) = moments, numbers.unbind()
        sign = (momentum - gradient).mul_(ahead).add_(gradient).sign_()
        weight.mul_(kept).sub_(sign.mul_(rate))
        momentum.add_((gradient - momentum).mul_(new))


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

    def numbers(self, group: dict[str, Any], step: int) -> list[float]:
        """What is kept of a weight, the rate without bias, shares of new moments, 1 / bias of the second, eps."""
        bias, square_bias = (1 - beta**step for beta in group["betas"])
        shares = [1 - beta for beta in group["betas"]]
        kept = 1 - group["lr"] * group["weight_decay"]
        return [kept, group["lr"] / bias, *shares, 1 / square_bias, self.eps]

    def update(
        self,
        numbers: torch.Tensor,
        seed: torch.Tensor,
        weight: torch.Tensor,
        gradient: torch.Tensor,
        *moments: Any,
    ) -> None:
        """AdamW in fp32, from and to rounded moments."""
        kept, rate, *shares, unbiased, eps = numbers.unbind()
        gradient = gradient.float()
        first, second = (
            old.add_((new - old).mul_(share))
            for old, new, share in zip(
                map(self.read, moments), (gradient, gradient.square()), shares, strict=True
            )
        )
        scale = (second * unbiased).sqrt_().add_(eps)
        weight.mul_(kept).sub_((first / scale).mul_(rate))
        for place, (name, moment, new) in enumerate(zip(self.moments, moments, (first, second), strict=True)):
            self.write(name, moment, new, seed + place * STRIDE)

    def read(self, kept: Any) -> torch.Tensor:
        """A piece of a moment in fp32."""
        whole: torch.Tensor = kept.float()
        return whole

    def write(self, name: str, kept: Any, new: torch.Tensor, seed: torch.Tensor | None) -> None:
        """Round it and keep it."""
        kept.copy_(dithered(new, seed))


class WideAdamW(NarrowAdamW):
    """AdamW with moments in fp32, for weights in bf16."""

    format = torch.float32

    def write(self, name: str, kept: Any, new: torch.Tensor, seed: torch.Tensor | None) -> None:
        """Keep it."""
        kept.copy_(new)


class EightBitAdamW(NarrowAdamW):
    """AdamW that computes in fp32 and keeps its moments in eight bits, with a scale for each block (arXiv:2110.02861).

    A kept moment is two tensors with a row for each block: codes of the elements, and the scale, which is the element
    that is farthest from zero. They are rounded up or down in proportion, too.
    """

    def update_piece(self, numbers: Any, seed: Any, weight: Any, gradient: Any, *moments: Any) -> None:
        """By rows of a block each; what the last one lacks is zeros."""
        missing = -weight.numel() % BLOCK
        rows = [in_blocks(each) for each in (weight, gradient)]
        super().update_piece(numbers, seed, *rows, *moments)
        if missing:
            weight.copy_(rows[0].view(-1)[:-missing])

    def cut(self, name: str, kept: Any) -> Any:
        """Codes and scales of a piece, and what the codes stand for."""
        known = codes(name == "first", kept[0].device)
        pieces = zip(*(each.split(PIECE // BLOCK) for each in kept), strict=True)
        return [(*piece, known) for piece in pieces]

    def packed(self, name: str, moment: torch.Tensor) -> Any:
        """To the nearest codes."""
        blocks = -(-moment.numel() // BLOCK)
        parts = torch.empty(blocks, BLOCK, dtype=torch.uint8, device=moment.device)
        kept = parts, torch.empty(blocks, 1, device=moment.device)
        for piece, values in zip(self.cut(name, kept), moment.reshape(-1).split(PIECE), strict=True):
            self.write(name, piece, in_blocks(values.float()), None)
        return kept

    def unpacked(self, name: str, kept: Any, weight: torch.Tensor) -> torch.Tensor:
        """In fp32, of which the same codes are made again."""
        pieces = [self.read(piece).view(-1) for piece in self.cut(name, kept)]
        return torch.cat(pieces)[: weight.numel()].view_as(weight)

    def read(self, kept: Any) -> torch.Tensor:
        """What the codes of blocks stand for."""
        parts, scales, known = kept
        values: torch.Tensor = known[parts.int()].mul_(scales)
        return values

    def write(self, name: str, kept: Any, new: torch.Tensor, seed: torch.Tensor | None) -> None:
        """The codes of blocks, to the nearest without ``seed``."""
        parts, scales, known = kept
        least, most = new.aminmax(dim=1, keepdim=True)
        farthest = most.where(most >= -least, least)
        scaled = new / farthest.where(farthest != 0, 1.0)
        below = torch.bucketize(scaled, known[1:-1], right=True, out_int32=True)
        low = known[below]
        above = scaled.sub_(low).div_(known[below + 1] - low)
        place = 0.5 if seed is None else noise(new, seed).float().mul_(2.0**-16)
        found = below.add_(above > place)
        # A second moment of zero under a first one that is not would be a step without bound.
        parts.copy_(found if name == "first" else found.clamp_(min=1))
        scales.copy_(farthest)


def in_blocks(values: torch.Tensor) -> torch.Tensor:
    """A row for each block, the last one filled up with zeros; the same memory where it is whole."""
    missing = -values.numel() % BLOCK
    return (functional.pad(values, (0, missing)) if missing else values).view(-1, BLOCK)


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
    """One of torch's optimizers on tensors that this rank has whole, though they are DTensors.

    Of ``matrices`` of several experts in one tensor each is updated on its own.
    """

    def __init__(
        self, parameters: Iterable[Any], make: Callable[[list[Any]], Any], *, matrices: bool = False
    ) -> None:
        self.matrices = matrices
        self.pairs = [
            (each, [torch.nn.Parameter(part) for part in self.parts(own(each).detach())])
            for each in parameters
        ]
        self.optimizer = make([part for _, mine in self.pairs for part in mine])

    def parts(self, tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """What is updated on its own."""
        return tensor.unbind() if self.matrices and tensor.ndim > 2 else (tensor,)

    def step(self) -> None:
        """Update the parameters that have gradients."""
        for parameter, mine in self.pairs:
            if parameter.grad is not None:
                for part, gradient in zip(mine, self.parts(own(parameter.grad)), strict=True):
                    part.grad = gradient
        self.optimizer.step()

    def zero_grad(self) -> None:
        """Forget the gradients."""
        for parameter, mine in self.pairs:
            parameter.grad = None
            for part in mine:
                part.grad = None


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


def likeness(tensor: torch.Tensor) -> torch.Tensor:
    """A copy to compile for: others may have another first dimension."""
    copy = tensor.clone()
    torch._dynamo.mark_static(copy, list(range(1, copy.ndim)))
    return copy


def seed_of(number: int) -> torch.Tensor:
    """Where the noise of this number begins: 32 bits that wrap around."""
    return torch.tensor((number * STRIDE + 2**31) % 2**32 - 2**31, dtype=torch.int32)


def noise(values: torch.Tensor, seed: torch.Tensor) -> torch.Tensor:
    """Numbers from 0 to 65535 for each of ``values`` that depend on its place and ``seed`` alone."""
    place = torch.arange(values.numel(), dtype=torch.int32, device=values.device).view(values.shape)
    mixed = place.add_(seed).mul_(0x9E3779B1 - 2**32)
    mixed = mixed.bitwise_xor_(mixed >> 15).mul_(0x85EBCA77 - 2**32).bitwise_right_shift_(16)
    return mixed.bitwise_and_(0xFFFF)


def dithered(values: torch.Tensor, seed: Any) -> torch.Tensor:
    """fp32 numbers cut to the 16 bits of bf16 after noise in the other 16, which depends on the place and ``seed``."""
    bits = values.view(torch.int32) + noise(values, seed)
    return bits.bitwise_and_(-0x10000).view(torch.float32)
