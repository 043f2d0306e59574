"""Sequences divided over replicas: each has a part of the tokens, and of attention a part of the heads (Ulysses).

Queries, keys and values of all tokens come together for some of the heads, which attend as usual; what they make of
them goes back to the replicas that have the tokens (arXiv:2309.14509, section 3).
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as functional

from planner.training.hetplan_runtime import RankPlan


class Sharing:
    """The replicas that share this rank's sequences; one alone has all of their tokens."""

    def __init__(self, ways: int = 1, place: int = 0, group: Any = None) -> None:
        self.ways, self.place, self.group = ways, place, group

    def part(self, tokens: torch.Tensor) -> torch.Tensor:
        """This rank's tokens of whole sequences, [sequence][position]."""
        return tokens.chunk(self.ways, dim=1)[self.place].contiguous()

    def first(self, length: int) -> int:
        """Position of the first token of a part of that length."""
        return self.place * length

    def attend(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *, causal: bool
    ) -> torch.Tensor:
        """Attention of this rank's tokens to all, [sequence][head][position][width]; keys have fewer heads perhaps."""
        if self.ways > 1:
            query, key, value = (
                _Exchange.apply(each, self.group, self.ways, 1, 2) for each in (query, key, value)
            )
        sharing = query.shape[1] // key.shape[1]
        key, value = (each.repeat_interleave(sharing, dim=1) for each in (key, value))
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=causal)
        return _Exchange.apply(mixed, self.group, self.ways, 2, 1) if self.ways > 1 else mixed


ALONE = Sharing()
"""Whole sequences."""


def sharing_of(plan: RankPlan) -> Sharing:
    """The replicas that share a rank's sequences; every rank of the job calls it."""
    ways = plan.context_parallel
    if ways == 1:
        return ALONE
    grid = torch.tensor(plan.grid).view(-1, ways, plan.tensor_parallel)
    groups = grid.transpose(1, 2).reshape(-1, ways).tolist()
    group, _ = torch.distributed.new_subgroups_by_enumeration(groups)
    place = next(members.index(plan.rank) for members in groups if plan.rank in members)
    return Sharing(ways, place, group)


class _Exchange(torch.autograd.Function):  # type: ignore[misc]
    """Deals one dimension over the ranks of a group and gathers another one; its gradient goes the other way."""

    @staticmethod
    def forward(
        context: Any, inputs: torch.Tensor, group: Any, ways: int, dealt: int, gathered: int
    ) -> torch.Tensor:
        context.arguments = group, ways, gathered, dealt
        return _exchanged(inputs, group, ways, dealt, gathered)

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> tuple[Any, ...]:
        return _exchanged(gradient, *context.arguments), None, None, None, None


def _exchanged(inputs: torch.Tensor, group: Any, ways: int, dealt: int, gathered: int) -> torch.Tensor:
    parts = torch.stack(inputs.chunk(ways, dim=dealt))
    received = torch.empty_like(parts)
    torch.distributed.all_to_all_single(received, parts, group=group)
    return torch.cat(received.unbind(), dim=gathered)
