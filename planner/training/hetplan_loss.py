"""The cross-entropy that the plan's memory counts on: beside the logits it keeps a few rows of them in fp32.

In a script of your own, with logits [sequence][token][output] and labels [sequence][token]::

    from hetplan_loss import mean_loss

    loss = mean_loss(logits, labels)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as functional
from torch import distributed
from torch.distributed.tensor import DTensor

IGNORED = -100
"""Label of a token that the loss leaves out."""
CHUNK = 2**24
"""Logits that are in fp32 at a time."""

Losses = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""Of logits, [token][output], and labels: the cross-entropy of each token, 0 where its label is ``IGNORED``."""


def plain_losses(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Cross-entropy of each row of ``logits``, [row][output], by torch's own operations in fp32; 0 where ignored."""
    return functional.cross_entropy(logits.float(), labels, ignore_index=IGNORED, reduction="none")


def chunked_losses(
    logits: torch.Tensor, labels: torch.Tensor, first: int = 0, group: Any = None
) -> torch.Tensor:
    """The same with few rows in fp32 at a time; the backward writes the gradient in the place of ``logits``.

    Each rank of ``group`` has the outputs from ``first`` on (collective), as have those over which a DTensor is split.
    """
    if isinstance(logits, DTensor):
        mesh = logits.device_mesh
        first = -(-logits.shape[1] // mesh.size()) * mesh.get_local_rank()
        logits, group = logits.to_local(), mesh.get_group()
    losses: torch.Tensor = _Chunked.apply(logits, labels, first, group)
    return losses


def mean_loss(logits: torch.Tensor, labels: torch.Tensor, losses: Losses = chunked_losses) -> torch.Tensor:
    """Mean cross-entropy over the tokens that have a label."""
    return losses(logits.flatten(0, 1), labels.flatten()).sum() / (labels != IGNORED).sum()


def causal_loss(
    logits: torch.Tensor,
    labels: torch.Tensor,
    vocab_size: int,
    num_items_in_batch: Any = None,
    ignore_index: int = IGNORED,
    shift_labels: torch.Tensor | None = None,
    **_: Any,
) -> torch.Tensor:
    """``ForCausalLMLoss`` of Hugging Face's transformers, by ``chunked_losses``."""
    if shift_labels is None:
        shift_labels = functional.pad(labels, (0, 1), value=ignore_index)[..., 1:]
    wanted = shift_labels.reshape(-1).to(logits.device)
    wanted = wanted.masked_fill(wanted == ignore_index, IGNORED)
    count = (wanted != IGNORED).sum() if num_items_in_batch is None else num_items_in_batch
    return chunked_losses(logits.view(-1, vocab_size), wanted).sum() / count


class _Chunked(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(
        context: Any, logits: torch.Tensor, labels: torch.Tensor, first: int, group: Any
    ) -> torch.Tensor:
        ignored, own = labels == IGNORED, labels - first
        elsewhere = ignored | (own < 0) | (own >= logits.shape[1])
        own = own.masked_fill(elsewhere, 0).unsqueeze(1)
        wanted = logits.gather(1, own).squeeze(1).float().masked_fill(elsewhere, 0.0)
        totals = torch.empty_like(wanted)
        for rows in _chunks(logits):
            largest = logits[rows].amax(1).float()
            totals[rows] = largest + _exponents(logits[rows], largest).sum(1).log()
        if group is not None:
            largest = totals.clone()
            distributed.all_reduce(largest, distributed.ReduceOp.MAX, group)
            sums = torch.stack(((totals - largest).exp(), wanted))
            distributed.all_reduce(sums, group=group)
            totals, wanted = largest + sums[0].log(), sums[1]
        context.save_for_backward(logits, own, elsewhere, ignored, totals)
        return (totals - wanted).masked_fill(ignored, 0.0)

    @staticmethod
    def backward(context: Any, gradients: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        logits, own, elsewhere, ignored, totals = context.saved_tensors
        gradients = gradients.masked_fill(ignored, 0.0)
        label = -(~elsewhere).to(totals.dtype)
        for rows in _chunks(logits):
            shares = _exponents(logits[rows], totals[rows])
            shares.scatter_add_(1, own[rows], label[rows].unsqueeze(1))
            torch.mul(shares, gradients[rows].unsqueeze(1), out=logits[rows])
            del shares  # ahead of those of the next rows
        return logits, None, None, None


def _exponents(logits: torch.Tensor, less: torch.Tensor) -> torch.Tensor:
    """Of logits less what their row has, in fp32."""
    return torch.sub(logits, less.unsqueeze(1)).exp_()


def _chunks(logits: torch.Tensor) -> list[slice]:
    """Rows of which as many are in fp32 at a time."""
    rows, outputs = logits.shape
    step = max(1, CHUNK // outputs)
    return [slice(begin, begin + step) for begin in range(0, rows, step)]
