"""Exchanges weights or gradients of islands of ranks, rarely or in fewer bytes, as a plan's ``sync`` says.

Needs torch and the batch runtime; a launch folder holds it as ``hetplan_exchange.py``::

    exchange = Exchange(layout, model)                     # once, after the model is spread; all start alike
    ...                                                    # the backwards of a step
    exchange.gradients()                                   # then layout.clip and optimizer.step
    exchange.weights(step + 1)                             # once in ``every`` steps

Ranks of an island are exact among themselves. The first of each exchanges with those of the others through the
processors of their hosts, by gloo: islands may have devices of different makers. What all islands count for is their
share of the global batch.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import distributed, nn
from torch.distributed.tensor import DTensor, distribute_tensor

from planner.training.hetplan_runtime import SyncPlan

BLOCK = 1024
"""Elements that share a scale in fp8 and int8."""
BUCKET = 2**24
"""Elements that an island is told in one message."""
SCALED = {"fp8": (torch.float8_e4m3fn, 448.0), "int8": (torch.int8, 127.0)}
"""Formats with a scale, and the largest value of each."""
OUTER = "outer.pt"
"""File of a checkpoint with the outer optimizer's momentum."""

_gather = getattr(distributed, "all_gather_single", distributed.all_gather_into_tensor)
"""torch renamed it in 2.13; the old name warns."""


class Exchange:
    """What one rank does of the exchanges of its island."""

    def __init__(self, layout: Any, model: Any, resume: Path | None = None) -> None:
        """All islands start from the weights of the first (collective)."""
        assert layout.plan.sync is not None
        self.sync: SyncPlan = layout.plan.sync
        self.island = layout.group
        self.alone = distributed.get_world_size(self.island) == 1
        self.parameters = [each for each in model.parameters() if each.requires_grad]
        leaders = [ranks[0] for ranks in self.sync.islands]
        # Every rank takes part in the making of the group.
        self.leaders = distributed.new_group(leaders, backend="gloo")
        rank = layout.plan.rank
        self.leads = rank in leaders
        number = next(index for index, ranks in enumerate(self.sync.islands) if rank in ranks)
        self.weight = self.sync.weights[number]
        self.anchor = self._start()
        self.momentum = torch.zeros_like(self.anchor) if self.leads else self.anchor
        if resume and self.leads and (resume / OUTER).exists():
            self.momentum = torch.load(resume / OUTER)
        self.compressor = compressor_of(self.sync, self.parameters, self.leads)

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def _start(self) -> torch.Tensor:
        """Give all islands the weights of the first one; on first ranks these, in host memory."""
        whole = self._row(self.parameters)
        if self.leads:
            distributed.broadcast(whole, group_src=0, group=self.leaders)
        self._tell(whole, self.parameters)
        return whole

    def _row(self, tensors: Sequence[Any]) -> torch.Tensor:
        """On first ranks what tensors of the island hold, in a row in host memory; nothing on the others."""
        parts = (_whole(each) for each in tensors)
        return flat(parts) if self.leads else _used_up(parts)

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def weights(self, step: int, *, last: bool = False) -> None:
        """Exchange weights after so many steps, once in ``every`` and after the ``last`` one (collective)."""
        if self.sync.every == 1 or not (last or step % self.sync.every == 0):
            return
        row = self._row(self.parameters)
        if self.leads:
            threads = torch.get_num_threads()
            # All other ranks wait; torchrun gives each of several on a node one thread.
            torch.set_num_threads(os.cpu_count() or threads)
            self._update(row)
            torch.set_num_threads(threads)
        self._tell(self.anchor, self.parameters)

    def _update(self, row: torch.Tensor) -> None:
        """Bring the weights of the last exchange to what all islands have made of them since."""
        updated(self.anchor, row, self.momentum, self.sync, self.weight, self.leaders)

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def gradients(self) -> None:
        """Exchange the gradients of a step, where they are exchanged in every step (collective)."""
        if self.sync.every > 1:
            return
        mine = [each.grad for each in self.parameters]
        parts = (_whole(each) for each in mine)
        sums = torch.empty(0)
        if self.leads:
            sums = self.compressor.sum([each * self.weight for each in parts], self.leaders)
        else:
            _used_up(parts)
        self._tell(sums, mine)

    def _tell(self, row: torch.Tensor, tensors: Sequence[Any]) -> None:
        """Copy what the first rank of an island has in a row into the tensors of all its ranks (collective)."""
        begin = 0
        for bucket in _buckets(tensors):
            sizes = [each.numel() for each in bucket]
            end = begin + sum(sizes)
            like = bucket[0].to_local()
            told = like.new_empty(sum(sizes))
            if self.leads:
                told.copy_(row[begin:end])
            if not self.alone:
                distributed.broadcast(told, group_src=0, group=self.island)
            for tensor, part in zip(bucket, told.split(sizes), strict=True):
                whole = part.view(tensor.shape)
                if not _is_whole(tensor):
                    spread = tensor.device_mesh, tensor.placements
                    whole = distribute_tensor(whole, *spread, src_data_rank=None).to_local()
                tensor.to_local().copy_(whole)
            begin = end

    def save(self, folder: Path) -> None:
        """Write what the outer optimizer remembers beside a checkpoint: all islands have the same."""
        if self.leads and distributed.get_rank() == self.sync.islands[0][0]:
            torch.save(self.momentum, folder / OUTER)


def updated(
    anchor: torch.Tensor, row: torch.Tensor, momentum: torch.Tensor, sync: SyncPlan, weight: float, group: Any
) -> None:
    """Bring weights, in place, to what all islands have made of them: this one the ``row`` (collective)."""
    change = anchor - row
    averaged(change.mul_(weight), group, sync.format)
    if sync.method == "diloco":
        # SGD with Nesterov's momentum, as torch.optim.SGD does it.
        momentum.mul_(sync.outer_momentum).add_(change)
        change.add_(momentum, alpha=sync.outer_momentum).mul_(sync.outer_lr)
    anchor -= change


def _buckets(tensors: Iterable[Any]) -> Iterator[list[Any]]:
    """Neighbours of one type that travel together: the largest tensor, or as many as have no more than a bucket."""
    bucket: list[Any] = []
    for tensor in tensors:
        held = sum(each.numel() for each in bucket)
        if bucket and (held + tensor.numel() > BUCKET or tensor.dtype != bucket[0].dtype):
            yield bucket
            bucket = []
        bucket.append(tensor)
    if bucket:
        yield bucket


def _is_whole(tensor: DTensor) -> bool:
    """True when each rank holds all of a tensor: a DTensor that is asked for it would dispatch and copy."""
    spread = zip(tensor.device_mesh.shape, tensor.placements, strict=True)
    return all(size == 1 or placement.is_replicate() for size, placement in spread)


def _whole(tensor: DTensor) -> torch.Tensor:
    """What the ranks of an island hold of a tensor together (collective)."""
    whole: torch.Tensor = tensor.to_local() if _is_whole(tensor) else tensor.detach().full_tensor()
    return whole


def _used_up(parts: Iterable[torch.Tensor]) -> torch.Tensor:
    """Take part in the making of tensors that others need."""
    for _ in parts:
        pass
    return torch.empty(0)


def flat(tensors: Iterable[torch.Tensor]) -> torch.Tensor:
    """Tensors one after the other in host memory, in fp32."""
    return torch.cat([each.detach().float().flatten().cpu() for each in tensors])


def averaged(values: torch.Tensor, group: Any, number_format: str) -> torch.Tensor:
    """Add up what the ranks of a group have, in place, with what travels in a number format (collective).

    What computes is where the values are, what travels goes over the hosts. Each rank adds up a part of the values of
    all in fp32, and sends the sums to all: as many bytes as a ring has. What a rank keeps to itself is rounded like the
    rest, so that all have the same sums.
    """
    if number_format == "fp32":
        distributed.all_reduce(values, group=group)
        return values
    ranks, own = distributed.get_world_size(group), distributed.get_rank(group)
    part = -(-values.numel() // (ranks * BLOCK)) * BLOCK
    row = nn.functional.pad(values, (0, ranks * part - values.numel()))
    received = [
        _dealt(each.cpu(), ranks, own, group).to(values.device) for each in encoded(row, number_format)
    ]
    total = values.new_zeros(part)
    for pieces in zip(*(each.chunk(ranks) for each in received), strict=True):
        total += decoded(pieces)
    sums = []
    for each in encoded(total, number_format):
        whole = torch.empty(ranks * each.numel(), dtype=each.dtype)
        _gather(whole.view(torch.uint8), each.cpu().view(torch.uint8), group=group)
        sums.append(whole.to(values.device))
    return values.copy_(decoded(sums)[: values.numel()])


def _dealt(sent: torch.Tensor, ranks: int, own: int, group: Any) -> torch.Tensor:
    """Send a part to each rank of a group, and receive one from each."""
    taken = torch.empty_like(sent)
    into, parts = taken.chunk(ranks), sent.chunk(ranks)
    into[own].copy_(parts[own])
    steps = []
    for other in (rank for rank in range(ranks) if rank != own):
        # Bytes: gloo sends tensors of any type, but adds up few.
        steps += [
            distributed.P2POp(
                distributed.isend, parts[other].view(torch.uint8), group=group, group_peer=other
            ),
            distributed.P2POp(
                distributed.irecv, into[other].view(torch.uint8), group=group, group_peer=other
            ),
        ]
    for work in distributed.batch_isend_irecv(steps) if steps else ():
        work.wait()
    return taken


def encoded(values: torch.Tensor, number_format: str) -> tuple[torch.Tensor, ...]:
    """Values, a multiple of a block, as they travel: in fp8 and int8 with the scale of each block."""
    if number_format == "bf16":
        return (values.bfloat16(),)
    dtype, largest = SCALED[number_format]
    blocks = values.view(-1, BLOCK)
    scales = torch.linalg.vector_norm(blocks, torch.inf, dim=1, keepdim=True).div_(largest)
    # A block of zeros has no scale.
    scaled = blocks / scales.clamp(min=torch.finfo(torch.float32).tiny)
    if not dtype.is_floating_point:
        scaled.round_()
    # fp8 has NaN above its largest value, which rounding of the scale may pass.
    return scaled.clamp_(-largest, largest).to(dtype).flatten(), scales.flatten()


def decoded(sent: Sequence[torch.Tensor]) -> torch.Tensor:
    """The values of what travelled."""
    if len(sent) == 1:
        return sent[0].float()
    whole, scales = sent
    return whole.view(-1, BLOCK).float().mul_(scales.unsqueeze(1)).flatten()


class Narrow:
    """Gradients in a narrow number format."""

    def __init__(self, number_format: str) -> None:
        self.format = number_format

    def sum(self, gradients: list[torch.Tensor], group: Any) -> torch.Tensor:
        """The sum over a group, in a row (collective)."""
        row = torch.cat([each.float().flatten() for each in gradients])
        return averaged(row, group, self.format)


class Largest:
    """The largest elements of gradients; the others are added to the next ones (arXiv:1809.07599)."""

    def __init__(self, ratio: float, like: Sequence[Any]) -> None:
        self.ratio = ratio
        self.error = torch.zeros(sum(each.numel() for each in like), device=like[0].device)

    def sum(self, gradients: list[torch.Tensor], group: Any) -> torch.Tensor:
        """The sum of what the ranks of a group send, in a row (collective)."""
        whole = torch.cat([each.float().flatten() for each in gradients]).add_(self.error)
        kept = max(1, round(self.ratio * whole.numel()))
        places = whole.abs().topk(kept, sorted=False).indices
        values, places = whole[places].cpu(), places.to("cpu", torch.int32)
        self.error = whole.index_fill(0, places.to(whole.device, torch.int64), 0.0)
        ranks = distributed.get_world_size(group)
        all_values = [torch.empty_like(values) for _ in range(ranks)]
        all_places = [torch.empty_like(places) for _ in range(ranks)]
        distributed.all_gather(all_values, values, group=group)
        distributed.all_gather(all_places, places, group=group)
        taken = torch.cat(all_places).to(whole.device, torch.int64)
        return torch.zeros_like(whole).index_add_(0, taken, torch.cat(all_values).to(whole.device))


class Factors:
    """Two factors of low rank in place of each matrix; what they lack is added to the next gradients
    (PowerSGD, arXiv:1905.13727, algorithms 1 and 2)."""

    def __init__(self, rank: int, like: Sequence[Any]) -> None:
        self.rank = rank
        self.errors: dict[int, torch.Tensor] = {}
        self.factors: dict[int, torch.Tensor] = {}
        generator = torch.Generator().manual_seed(0)
        for index, each in enumerate(like):
            rows, columns = each.shape[0], each.numel() // each.shape[0]
            if rank * (rows + columns) < rows * columns:
                self.errors[index] = torch.zeros(rows, columns, device=each.device)
                # The same on all ranks.
                start = torch.randn(columns, rank, generator=generator)
                self.factors[index] = start.to(each.device)

    def sum(self, gradients: list[torch.Tensor], group: Any) -> torch.Tensor:
        """The sum over a group, in a row (collective)."""
        wanted = {index: _matrix(gradients[index]).float() + error for index, error in self.errors.items()}
        left = {index: wanted[index] @ factor for index, factor in self.factors.items()}
        whole = [each for index, each in enumerate(gradients) if index not in wanted]
        first = _summed([*left.values(), *whole], group)
        bases = [torch.linalg.qr(summed.cpu()).Q for summed in first[: len(left)]]
        # Processors of another make may turn them another way.
        row = flat(bases)
        distributed.broadcast(row, group_src=0, group=group)
        parts = row.split([each.numel() for each in bases])
        for index, part, base in zip(left, parts, bases, strict=True):
            left[index] = part.view(base.shape).to(left[index].device)
        own = {index: wanted[index].T @ factor for index, factor in left.items()}
        self.factors = dict(zip(own, _summed(list(own.values()), group), strict=True))
        for index, factor in left.items():
            self.errors[index] = wanted[index] - factor @ own[index].T
        rest = iter(first[len(left) :])
        return torch.cat(
            [
                (left[index] @ self.factors[index].T if index in left else next(rest)).flatten()
                for index in range(len(gradients))
            ]
        )


def _matrix(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor as a matrix: its first dimension by all others; a vector has one column."""
    return tensor.reshape(tensor.shape[0], -1)


def _summed(tensors: list[torch.Tensor], group: Any) -> list[torch.Tensor]:
    """The sums over a group of tensors that travel together (collective)."""
    if not tensors:
        return []
    row = flat(tensors)
    distributed.all_reduce(row, group=group)
    parts = row.split([each.numel() for each in tensors])
    return [part.view(each.shape).to(each.device) for part, each in zip(parts, tensors, strict=True)]


def compressor_of(sync: SyncPlan, like: Sequence[Any], leads: bool) -> Any:
    """What adds up the gradients of islands; None where weights are exchanged, or on ranks that exchange nothing."""
    if sync.every > 1 or not leads:
        return None
    if sync.rank is not None:
        return Factors(sync.rank, like)
    return Narrow(sync.format) if sync.ratio is None else Largest(sync.ratio, like)
