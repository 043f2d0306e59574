"""Mixers of tokens that carry a state along the sequence: Mamba, Mamba 2, the gated delta rule, lightning attention,
short convolutions.

All in plain torch. Scans work on chunks of a sequence, in fp32. All between the first product and the last runs again
in the backward, which keeps nothing of it. Replicas that share a sequence have a part of the heads each between these
products, and all of the tokens.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as functional
from torch import nn
from torch.utils.checkpoint import checkpoint

from planner.training.example_context import ALONE, Sharing

SMALL = 1e-6
"""Added to squares ahead of a root."""


@dataclass(frozen=True)
class StateShape:
    """Sizes of a state, as under ``state`` in ``model.json``."""

    kind: str
    """``mamba``, ``mamba2``, ``delta``, ``linear`` or ``conv``."""
    heads: int
    head_dim: int
    size: int
    groups: int
    rank: int | None
    conv: int
    conv_bias: bool
    bias: bool
    gates: int
    norm: bool
    chunk: int

    @property
    def inner(self) -> int:
        """Width of what it makes of a token."""
        return self.heads * self.head_dim

    @property
    def sections(self) -> tuple[tuple[int, ...], ...]:
        """Elements of the first product: a gate, what the convolution takes, then what each head needs."""
        inner, keys = self.inner, self.groups * self.size
        if self.kind == "mamba2":
            return (inner,), (inner, keys, keys), (self.heads,)
        if self.kind == "delta":
            return (inner,), (keys, keys, inner), (self.heads,), (self.heads,)
        if self.kind == "linear":
            return (inner,), (keys,), (keys,), (inner,)
        gates = self.gates - 1 if self.kind == "conv" else 0
        return (inner,), (inner,), *gates * ((inner,),)

    def divided(self, ways: int) -> StateShape:
        """The share of one of so many replicas."""
        if self.heads == 1:
            return replace(self, head_dim=self.head_dim // ways)
        return replace(self, heads=self.heads // ways, groups=self.groups // ways)


class State(nn.Module):  # type: ignore[misc]
    """One such mixer. ``linear`` makes its projections of inputs, outputs, bias and the name that adapters go by."""

    def __init__(
        self, hidden: int, shape: StateShape, linear: Callable[..., nn.Module], sharing: Sharing = ALONE
    ) -> None:
        super().__init__()
        self.shape, self.sharing = shape, sharing
        self.own = shape.divided(sharing.ways)
        """What this rank does of it, for all tokens."""
        self.inner, convolved = shape.inner, sum(shape.sections[1])
        with_keys = shape.kind in ("mamba2", "delta")
        self.into = linear(hidden, sum(map(sum, shape.sections)), shape.bias, "in_proj")
        self.out = linear(self.inner, hidden, shape.bias, "out_proj")
        if shape.kind == "linear":
            self.norm = nn.Parameter(torch.ones(self.inner)) if shape.norm else None
            return
        # Vectors: optimizers for matrices leave them alone.
        self.filter = nn.Parameter(torch.empty(convolved * shape.conv).uniform_(-0.5, 0.5))
        self.filter_bias = nn.Parameter(torch.zeros(convolved)) if shape.conv_bias else None
        if shape.kind == "mamba":
            self._add_scan(linear)
        elif with_keys:
            self.decay = nn.Parameter(torch.empty(shape.heads).uniform_(1.0, 16.0).log())
            self.step_bias = nn.Parameter(_steps(shape.heads))
            self.skip = nn.Parameter(torch.ones(shape.heads)) if shape.kind == "mamba2" else None
            width = self.inner if shape.kind == "mamba2" else shape.head_dim
            self.norm = nn.Parameter(torch.ones(width)) if shape.norm else None

    def _add_scan(self, linear: Callable[..., nn.Module]) -> None:
        shape = self.shape
        assert shape.rank is not None
        self.selecting = linear(self.inner, shape.rank + 2 * shape.size, False)
        self.steps = linear(shape.rank, self.inner, False)
        self.step_bias = nn.Parameter(_steps(self.inner))
        self.decay = nn.Parameter(torch.arange(1, shape.size + 1.0).log().repeat(self.inner))
        self.skip = nn.Parameter(torch.ones(self.inner))
        widths = (shape.rank, shape.size, shape.size)
        self.norms = nn.ModuleList(nn.RMSNorm(width) for width in widths) if shape.norm else None

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        first = self.into(hidden)
        shared = self.sharing.ways > 1
        if shared:
            each = [width for section in self.shape.sections for width in section]
            first = self.sharing.gather(first.split(each, dim=-1))
        again = torch.is_grad_enabled()
        mixed = checkpoint(self._mixed, first, use_reentrant=False) if again else self._mixed(first)
        return self.out(self.sharing.scatter(mixed) if shared else mixed)

    def _mine(self, rows: torch.Tensor, sections: Sequence[int] = ()) -> torch.Tensor:
        """This rank's share of what there is of each head, or of each channel of such sections."""
        ways, place = self.sharing.ways, self.sharing.place
        if ways == 1:
            return rows
        return torch.cat([each.chunk(ways)[place] for each in rows.split(sections or len(rows))])

    def _mixed(self, first: torch.Tensor) -> torch.Tensor:
        gate, mixed, *steps = first.split([sum(section) for section in self.own.sections], dim=-1)
        kind = self.shape.kind
        if kind == "linear":
            return self._lightning(mixed, *steps) * gate.sigmoid()
        if kind == "conv":
            for step in steps:
                mixed = mixed * step
            return gate * self._convolved(mixed)
        mixed = functional.silu(self._convolved(mixed))
        if kind == "mamba":
            return self._selected(mixed) * functional.silu(gate)
        outputs = self._by_heads(mixed, steps)
        if kind == "mamba2":
            outputs = outputs.flatten(2) * functional.silu(gate)
            return outputs if self.norm is None else self._normed(outputs, self.own.groups)
        if self.norm is not None:
            outputs = functional.rms_norm(outputs, (self.shape.head_dim,), self.norm.to(outputs.dtype), SMALL)
        return outputs.flatten(2) * functional.silu(gate)

    def _lightning(self, read: torch.Tensor, write: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        """Attention without a softmax, whose heads forget at rates of their own (arXiv:2401.04658)."""
        heads = self.shape.heads
        rates = -torch.exp2(-8.0 * torch.arange(1, heads + 1, device=read.device) / heads)
        read, write, values = (
            functional.silu(each).unflatten(-1, (heads, -1)) for each in (read, write, values)
        )
        outputs = duality(values, rates.expand(values.shape[:3]), write, read, self.shape.chunk)
        mixed = outputs.flatten(2).to(read.dtype)
        return mixed if self.norm is None else self._normed(mixed, 1)

    def _convolved(self, inputs: torch.Tensor) -> torch.Tensor:
        """Each channel's causal convolution."""
        channels, width = self.shape.sections[1], self.shape.conv
        weight = self._mine(self.filter.view(-1, 1, width), channels).to(inputs.dtype)
        bias = None if self.filter_bias is None else self._mine(self.filter_bias, channels).to(inputs.dtype)
        padded = functional.pad(inputs.transpose(1, 2), (width - 1, 0))
        return functional.conv1d(padded, weight, bias, groups=len(weight)).transpose(1, 2)

    def _normed(self, outputs: torch.Tensor, groups: int) -> torch.Tensor:
        own = outputs.unflatten(-1, (groups, -1))
        normed = functional.rms_norm(own, (own.shape[-1],), eps=SMALL).flatten(2)
        assert self.norm is not None
        return normed * self._mine(self.norm).to(normed.dtype)

    def _selected(self, inputs: torch.Tensor) -> torch.Tensor:
        shape = self.shape
        assert shape.rank is not None
        parts = self.selecting(inputs).split([shape.rank, shape.size, shape.size], dim=-1)
        if self.norms is not None:
            parts = [norm(each) for norm, each in zip(self.norms, parts, strict=True)]
        low, write, read = parts
        steps = functional.softplus(self.steps(low).float() + self.step_bias.float())
        decay = -self.decay.float().exp().view(self.inner, shape.size)
        assert self.skip is not None
        outputs = selective_scan(inputs, steps, decay, write, read, shape.chunk)
        return (outputs + inputs * self.skip.float()).to(inputs.dtype)

    def _by_heads(self, mixed: torch.Tensor, steps: list[torch.Tensor]) -> torch.Tensor:
        own = self.own
        parts = mixed.split(own.sections[1], dim=-1)
        values, write, read = parts if own.kind == "mamba2" else parts[::-1]
        values = values.unflatten(-1, (own.heads, -1))
        write, read = (each.unflatten(-1, (own.groups, -1)) for each in (write, read))
        step = functional.softplus(steps[-1].float() + self._mine(self.step_bias).float())
        decay = -self._mine(self.decay).float().exp() * step
        if own.kind == "mamba2":
            assert self.skip is not None
            outputs = duality(values * step.unsqueeze(-1), decay, write, read, own.chunk)
            outputs = outputs + self._mine(self.skip).float().unsqueeze(-1) * values
        else:
            rate = steps[0].float().sigmoid()
            outputs = delta_rule(values, decay, rate, write, read, own.chunk)
        return outputs.to(mixed.dtype)


def _steps(count: int) -> torch.Tensor:
    """Biases whose softplus lies between 0.001 and 0.1."""
    steps = torch.empty(count).uniform_(math.log(1e-3), math.log(0.1)).exp()
    return steps + (-(-steps).expm1()).log()


def _chunks(inputs: torch.Tensor, chunk: int) -> torch.Tensor:
    """[batch, chunk, head, position, ...] in fp32 from [batch, position, head, ...], zeros behind the end."""
    short = -inputs.shape[1] % chunk
    pads = [0, 0] * (inputs.ndim - 2) + [0, short]
    parts = functional.pad(inputs.float(), pads).unflatten(1, (-1, chunk))
    return parts.transpose(2, 3)


def _falls(decay: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Sums of logarithms up to each position of a chunk, and the decay from every position to every later one."""
    sums = decay.cumsum(-1)
    between = sums.unsqueeze(-1) - sums.unsqueeze(-2)
    later = torch.ones(between.shape[-2:], dtype=torch.bool, device=decay.device).tril()
    return sums, between.masked_fill(~later, float("-inf")).exp()


def duality(
    values: torch.Tensor, decay: torch.Tensor, write: torch.Tensor, read: torch.Tensor, chunk: int
) -> torch.Tensor:
    """h = exp(decay) h + write value', output = read h, chunk by chunk (arXiv:2405.21060, section 6).

    [batch, position, head, width]; the decay has no width. Heads of a group share what writes and what reads.
    """
    length, groups = values.shape[1], write.shape[2]
    values, decay, write, read = (_chunks(each, chunk) for each in (values, decay, write, read))
    sums, falls = _falls(decay)
    scores = (read @ write.transpose(-1, -2)).unsqueeze(3) * falls.unflatten(2, (groups, -1))
    outputs = scores.flatten(2, 3) @ values
    # The heads of a group stand side by side in one product.
    added = write.transpose(-1, -2) @ _beside(values * (sums[..., -1:] - sums).exp().unsqueeze(-1), groups)
    whole = _beside(sums[..., -1, None, None].exp().expand(*sums.shape[:3], 1, values.shape[-1]), groups)
    state = torch.zeros_like(added[:, 0])
    carried = []
    for index in range(added.shape[1]):
        carried.append(read[:, index] @ state)
        state = state * whole[:, index] + added[:, index]
    apart = torch.stack(carried, dim=1).unflatten(-1, (-1, values.shape[-1])).transpose(3, 4).flatten(2, 3)
    outputs = outputs + apart * sums.exp().unsqueeze(-1)
    return outputs.transpose(2, 3).flatten(1, 2)[:, :length]


def _beside(values: torch.Tensor, groups: int) -> torch.Tensor:
    """[batch, chunk, group, position, heads of a group x width] from [batch, chunk, head, position, width]."""
    return values.unflatten(2, (groups, -1)).transpose(3, 4).flatten(4)


def delta_rule(
    values: torch.Tensor,
    decay: torch.Tensor,
    rate: torch.Tensor,
    write: torch.Tensor,
    read: torch.Tensor,
    chunk: int,
) -> torch.Tensor:
    """S = exp(decay) S + rate key (value - exp(decay) S'key)', output = S'query (arXiv:2412.06464, section 3.3).

    Keys and queries have length one; queries are divided by the root of their width.
    """
    length, shared = values.shape[1], values.shape[2] // write.shape[2]
    write, read = (
        functional.normalize(each.float(), dim=-1, eps=SMALL).repeat_interleave(shared, 2)
        for each in (write, read)
    )
    read = read * read.shape[-1] ** -0.5
    values, decay, rate, write, read = (_chunks(each, chunk) for each in (values, decay, rate, write, read))
    sums, falls = _falls(decay)
    scaled = write * rate.unsqueeze(-1)
    # What a position writes depends on what those ahead of it in the chunk have written.
    mixed = (scaled @ write.transpose(-1, -2) * falls).tril(-1)
    ones = torch.eye(chunk, device=values.device)
    both = torch.cat((values * rate.unsqueeze(-1), scaled * sums.exp().unsqueeze(-1)), dim=-1)
    solved = torch.linalg.solve_triangular(mixed + ones, both, upper=False, unitriangular=True)
    new, from_state = solved.split([values.shape[-1], write.shape[-1]], dim=-1)
    scores = read @ write.transpose(-1, -2) * falls
    read = read * sums.exp().unsqueeze(-1)
    kept = write * (sums[..., -1:] - sums).exp().unsqueeze(-1)
    state = values.new_zeros(*values.shape[:1], values.shape[2], write.shape[-1], values.shape[-1])
    outputs = []
    for index in range(values.shape[1]):
        own = new[:, index] - from_state[:, index] @ state
        outputs.append(read[:, index] @ state + scores[:, index] @ own)
        state = state * sums[:, index, :, -1, None, None].exp() + kept[:, index].transpose(-1, -2) @ own
    return torch.stack(outputs, dim=1).transpose(2, 3).flatten(1, 2)[:, :length]


def selective_scan(
    inputs: torch.Tensor,
    steps: torch.Tensor,
    decay: torch.Tensor,
    write: torch.Tensor,
    read: torch.Tensor,
    chunk: int,
) -> torch.Tensor:
    """h = exp(step decay) h + step write input, output = read h for every channel (arXiv:2312.00752, section 3.2).

    [batch, position, channel]; write and read [batch, position, state]. Of a chunk only the state at its end is kept.
    """
    state = torch.zeros(inputs.shape[0], 1, *decay.shape, device=inputs.device)
    outputs = []
    for parts in zip(*(each.split(chunk, dim=1) for each in (inputs, steps, write, read)), strict=True):
        if torch.is_grad_enabled():
            output, state = checkpoint(_scanned, state, decay, *parts, use_reentrant=False)
        else:
            output, state = _scanned(state, decay, *parts)
        outputs.append(output)
    return torch.cat(outputs, dim=1)


def _scanned(
    state: torch.Tensor,
    decay: torch.Tensor,
    inputs: torch.Tensor,
    step: torch.Tensor,
    write: torch.Tensor,
    read: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """One chunk, in as many rounds as its length has bits: each joins a position with one twice as far ahead."""
    falls = (step.unsqueeze(-1) * decay).exp()
    added = (step * inputs.float()).unsqueeze(-1) * write.float().unsqueeze(2)
    apart = 1
    while apart < added.shape[1]:
        added = torch.cat((added[:, :apart], added[:, apart:] + falls[:, apart:] * added[:, :-apart]), 1)
        falls = torch.cat((falls[:, :apart], falls[:, apart:] * falls[:, :-apart]), 1)
        apart *= 2
    states = added + falls * state
    return (states * read.float().unsqueeze(2)).sum(-1), states[:, -1:]
