"""Experts of a layer divided over replicas: tokens go to the devices that have their experts, and what these make of
them comes back (arXiv:2006.16668, section 3)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

Work = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""What a rank's experts make of rows in the order of experts, given how many rows each of them has."""


class Owners:
    """The consecutive replicas that have some of the experts each; one alone has all of them."""

    def __init__(self, ways: int = 1, group: Any = None) -> None:
        self.ways, self.group = ways, group

    def own(self, weight: Any) -> torch.Tensor:
        """The part of a weight that belongs to this rank's experts.

        All owners' losses are in its gradient. Replicas have means of theirs, and so it has the mean over the owners.
        """
        if self.ways == 1:
            return weight
        part: torch.Tensor = weight.to_local()
        if part.requires_grad:
            part.register_hook(lambda gradient: gradient / self.ways)
        return part

    def apply(self, work: Work, rows: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        """What the experts make of rows in the order of experts, of which each has so many (collective)."""
        if self.ways == 1:
            return work(rows, counts)
        # How many rows each owner sends, [owner][expert of this rank].
        coming = torch.empty_like(counts)
        torch.distributed.all_to_all_single(coming, counts, group=self.group)
        parts = coming.view(self.ways, -1)
        sent, received = counts.view(self.ways, -1).sum(1).tolist(), parts.sum(1).tolist()
        numbers = torch.arange(parts.shape[1], device=counts.device).repeat(self.ways)
        order = numbers.repeat_interleave(coming).argsort(stable=True)
        worked = work(_Dealt.apply(rows, self.group, sent, received)[order], parts.sum(0))
        return _Dealt.apply(worked[order.argsort()], self.group, received, sent)


ALL = Owners()
"""Every rank has all experts."""


class _Dealt(torch.autograd.Function):  # type: ignore[misc]
    """Sends so many rows to each rank of a group and receives others; its gradient goes the other way."""

    @staticmethod
    def forward(
        context: Any, rows: torch.Tensor, group: Any, sent: list[int], received: list[int]
    ) -> torch.Tensor:
        context.arguments = group, received, sent
        return _dealt(rows, group, sent, received)

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> tuple[Any, ...]:
        return _dealt(gradient, *context.arguments), None, None, None


def _dealt(rows: torch.Tensor, group: Any, sent: list[int], received: list[int]) -> torch.Tensor:
    taken = rows.new_empty(sum(received), rows.shape[1])
    torch.distributed.all_to_all_single(taken, rows.contiguous(), received, sent, group=group)
    return taken
