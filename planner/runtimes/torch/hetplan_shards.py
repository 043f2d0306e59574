"""ZeRO 1 to 3 with unequal shards, which FSDP2 does not have: each rank holds as many rows of every weight as the plan
gives it parts.

Weights are gathered for a module's forward and backward, and its gradients scattered, as FSDP2 does it; what travels is
padded to the largest part. Use it as ``Layout``, whose place it takes where ``plan.shards`` has parts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import distributed, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from planner.runtimes.torch.hetplan_torch import Layout
from planner.training.hetplan_runtime import RankPlan


class Weight:
    """A parameter of which this rank holds some rows."""

    def __init__(
        self, parameter: nn.Parameter, owners: list[tuple[nn.Module, str]], layout: UnequalShards
    ) -> None:
        self.owners = owners
        self.shape = parameter.shape
        self.line: int = parameter[0].numel()
        """Elements of a row."""
        ends = list(accumulate(layout.parts))
        self.cuts: list[int] = [0, *(self.shape[0] * end // ends[-1] for end in ends)]
        self.rows = [slice(first, end) for first, end in pairwise(self.cuts)]
        """Rows of each rank."""
        mine = parameter.detach()[self.rows[layout.own]].to(layout.device, copy=True)
        self.shard = nn.Parameter(mine)
        self.whole = nn.Parameter(torch.empty(self.shape, dtype=layout.working_type, device=layout.device))
        self.whole.untyped_storage().resize_(0)
        self.gradient: torch.Tensor | None = None
        """Whole gradients of micro-batches that have not been scattered."""

    def place(self, parameter: nn.Parameter) -> None:
        """Put a parameter where the modules that use this weight look for it."""
        for module, name in self.owners:
            module._parameters[name] = parameter

    def elements(self, rank: int) -> int:
        """Of a rank's shard."""
        first, end = self.cuts[rank : rank + 2]
        return (end - first) * self.line


class Unit:
    """Weights that are gathered, and whose gradients are scattered, together."""

    def __init__(self, weights: list[Weight], layout: UnequalShards, *, stays_open: bool) -> None:
        """``stays_open``: the backward begins with these weights, so that they stay after the forward."""
        self.weights, self.layout, self.stays_open = weights, layout, stays_open
        sizes = [sum(each.elements(rank) for each in weights) for rank in range(layout.ranks)]
        self.part = max(sizes)
        """Elements of the largest part, to which all are padded."""
        self.is_open = False
        self.next: Unit | None = None
        """What the forward needs after this one."""
        self.before: Unit | None = None
        self.arrived = 0
        """Gradients of this backward."""
        self._coming: tuple[torch.Tensor, Any] | None = None
        self._leaving: tuple[torch.Tensor, torch.Tensor, Any] | None = None
        for each in weights:
            each.place(each.shard)
            each.whole.register_post_accumulate_grad_hook(self._arrive)

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def fetch(self) -> None:
        """Begin to gather the weights (collective)."""
        if self.is_open or self._coming is not None:
            return
        layout = self.layout
        mine = torch.zeros(self.part, dtype=layout.working_type, device=layout.device)
        at = 0
        for each in self.weights:
            mine[at : at + each.shard.numel()].copy_(each.shard.view(-1))
            at += each.shard.numel()
        if layout.ranks == 1:
            self._coming = mine, None
            return
        gathered = mine.new_empty(layout.ranks * self.part)
        work = distributed.all_gather_into_tensor(gathered, mine, group=layout.ring, async_op=True)
        self._coming = gathered, work

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def open(self) -> None:
        """Have the weights whole (collective, unless they are)."""
        if self.is_open:
            return
        self.fetch()
        assert self._coming is not None
        gathered, work = self._coming
        if work is not None:
            work.wait()
        self._coming, self.is_open = None, True
        for each in self.weights:
            each.whole.untyped_storage().resize_(each.whole.numel() * each.whole.itemsize)
            each.place(each.whole)
        for rows, piece in self._pieces(gathered, [each.whole.data for each in self.weights]):
            rows.copy_(piece)

    def enter(self) -> None:
        """Have the weights for a forward, and the next ones on their way."""
        self.layout.keep_pace()
        self.open()
        if self.next is not None:
            self.next.fetch()

    def leave(self, output: torch.Tensor) -> None:
        """Let the weights go after a forward where they are gathered again, and have them for the backward."""
        if self.layout.plan.zero == 3 and not self.stays_open:
            self.close()
        if output.requires_grad:
            output.register_hook(self._return)

    def _return(self, _: torch.Tensor) -> None:
        self.layout.keep_pace()
        self.layout.begin_backward()
        self.open()
        if self.before is not None:
            self.before.fetch()

    def close(self) -> None:
        """Let the whole weights go."""
        if not self.is_open:
            return
        self.is_open = False
        for each in self.weights:
            each.place(each.shard)
            each.whole.untyped_storage().resize_(0)

    def _pieces(self, row: torch.Tensor, wholes: list[torch.Tensor]) -> Iterator[tuple[Any, Any]]:
        """The rows of each rank in each whole tensor, and their place in padded parts."""
        for rank, part in enumerate(row.view(self.layout.ranks, self.part)):
            at = 0
            for each, whole in zip(self.weights, wholes, strict=True):
                count = each.elements(rank)
                yield whole[each.rows[rank]].view(-1), part[at : at + count]
                at += count

    def _arrive(self, whole: nn.Parameter) -> None:
        """A gradient is there; the last one of the unit sends all of them on."""
        self.arrived += 1
        if self.arrived == len(self.weights):
            self.finish()

    def finish(self) -> None:
        """Take the gradients of a backward: kept whole, or scattered (collective)."""
        self.arrived = 0
        layout = self.layout
        for each in self.weights:
            new, each.whole.grad = each.whole.grad, None
            if new is not None:
                new = new.to(layout.reduce_type)
                each.gradient = new if each.gradient is None else each.gradient.add_(new)
            del new  # it would be there until the scatter is over
        if layout.last or layout.plan.zero == 3:
            self.close()
        if layout.last or layout.plan.zero >= 2:
            layout.scatter(self)

    def forget(self) -> None:
        """Drop the gradients that are there."""
        self.arrived = 0
        for each in self.weights:
            each.gradient = each.whole.grad = None

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def scatter(self) -> None:
        """Begin to add up the gradients over the ranks, to each its part (collective)."""
        layout = self.layout
        row = torch.zeros(layout.ranks * self.part, dtype=layout.reduce_type, device=layout.device)
        gradients = [
            torch.zeros(each.shape, dtype=layout.reduce_type, device=layout.device)
            if each.gradient is None
            else each.gradient
            for each in self.weights
        ]
        for rows, piece in self._pieces(row, gradients):
            # A power of two, so that nothing is rounded, and sums in fp16 do not overflow.
            torch.mul(rows, 1.0 / layout.halved, out=piece)
        for each in self.weights:
            each.gradient = None
        del gradients, rows  # ahead of what comes back
        if layout.ranks == 1:
            self._leaving = row, row, distributed.all_reduce(row, group=layout.ring, async_op=True)
            return
        mine = row.new_empty(self.part)
        work = distributed.reduce_scatter_tensor(mine, row, group=layout.ring, async_op=True)
        self._leaving = mine, row, work

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def receive(self) -> None:
        """Add the means of what was scattered to the gradients of the shards."""
        assert self._leaving is not None
        mine, _, work = self._leaving
        work.wait()
        self._leaving, at = None, 0
        for each in self.weights:
            # A tensor of its own: a part of what is padded would keep all of it.
            part = mine[at : at + each.shard.numel()].view(each.shard.shape).float()
            new = (part * (self.layout.halved / self.layout.plan.data_parallel)).to(each.shard.dtype)
            at += each.shard.numel()
            each.shard.grad = new if each.shard.grad is None else each.shard.grad.add_(new)


class UnequalShards(Layout):
    """A layout whose ranks hold unequal parts of what ZeRO shards."""

    def __init__(
        self, plan: RankPlan, device: str, working_type: torch.dtype, reduce_type: torch.dtype = torch.float32
    ) -> None:
        super().__init__(plan, device, working_type, reduce_type)
        self.device, self.reduce_type = device, reduce_type
        self.ring = self.mesh["shard" if plan.zero else "copy"].get_group()
        self.parts = plan.shards or (1,) * self.mesh["shard"].size()
        """Of each rank that holds a shard; with ZeRO 0 a rank holds all."""
        self.ranks, self.own = len(self.parts), self.mesh["shard"].get_local_rank()
        self.halved = 2 ** (plan.data_parallel.bit_length() // 2)
        """What gradients are divided by before they are added up."""
        self.hosts = DeviceMesh("cpu", torch.tensor(plan.grid), mesh_dim_names=("shard",))
        self.units: list[Unit] = []
        self.last = True
        """Whether the next backward is the last one of the step."""
        self._weights: dict[int, Weight] = {}
        self._leaving: Unit | None = None
        self._in_backward = False

    def shard(self, module: nn.Module, *, last: bool = False) -> None:
        """Spread what is not spread yet of a module's parameters over the ranks, by the parts of the plan.

        Those of the ``last`` module and of one that has parts stay after the forward. All replicas start from the first
        one's weights, whatever each has drawn (collective).
        """
        owners: dict[nn.Parameter, list[tuple[nn.Module, str]]] = {}
        for part in module.modules():
            for name, parameter in part.named_parameters(recurse=False):
                if id(parameter) not in self._weights:
                    owners.setdefault(parameter, []).append((part, name))
        self._start_alike(module)
        weights = [Weight(parameter, where, self) for parameter, where in owners.items()]
        outer = any(id(each) in self._weights for each in module.parameters())
        self._weights |= {id(each.shard): each for each in weights}
        unit = Unit(weights, self, stays_open=last or outer)
        if outer:
            unit.next = self.units[0]
        elif self.units:
            self.units[-1].next, unit.before = unit, self.units[-1]
        self.units.append(unit)
        module.register_forward_pre_hook(lambda *_: unit.enter())
        module.register_forward_hook(lambda _, inputs, output: unit.leave(output))

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def _start_alike(self, module: nn.Module) -> None:
        for each in (*module.parameters(), *module.buffers()):
            if id(each) not in self._weights:
                sent = each.detach().to(self.device).contiguous()
                distributed.broadcast(sent, group_src=0, group=self.ring)
                each.copy_(sent)

    def accumulate(self, module: Any, *, last: bool) -> None:
        """Call before each backward: ZeRO 1 scatters gradients, and 1 and 2 let weights go, in the last one."""
        self.last = last

    def keep_pace(self) -> None:
        """Called ahead of each unit's forward and backward."""

    def begin_backward(self) -> None:
        """Have what is on its way received when the backward that begins is done."""
        if not self._in_backward:
            self._in_backward = True
            torch.autograd.Variable._execution_engine.queue_callback(self._end_backward)

    def _end_backward(self) -> None:
        self._in_backward = False
        for unit in self.units:
            if unit.arrived:
                unit.finish()
        self.receive()

    def scatter(self, unit: Unit) -> None:
        """Scatter the gradients of a unit once those before it are there (collective)."""
        self.receive()
        unit.scatter()
        self._leaving = unit

    def receive(self) -> None:
        """Take what was scattered last."""
        if self._leaving is not None:
            self._leaving.receive()
            self._leaving = None

    def _holders(self, gradient: Any) -> float:
        return float(self.plan.data_parallel / self.ranks)

    def spread(self, model: nn.Module, state: Mapping[str, Any]) -> dict[str, Any]:
        """What checkpoints have for a state: shards as equal ones in host memory (collective)."""
        weights = self._by_name(model)
        return {key: self._even(each, _weight_of(key, weights)) for key, each in state.items()}

    def taken(self, model: nn.Module, state: Mapping[str, Any]) -> dict[str, Any]:
        """The other way round (collective)."""
        weights = self._by_name(model)
        found = {}
        for key, each in state.items():
            weight = _weight_of(key, weights)
            found[key] = each
            if weight is not None and isinstance(each, DTensor):
                found[key] = each.full_tensor()[weight.rows[self.own]].to(self.device)
        return found

    def _by_name(self, model: nn.Module) -> dict[str, Weight]:
        named = model.named_parameters(remove_duplicate=False)
        return {name: self._weights[id(each)] for name, each in named}

    def _even(self, mine: Any, weight: Weight | None) -> Any:
        if weight is None or not isinstance(mine, torch.Tensor) or mine.shape != weight.shard.shape:
            return mine
        if self.ranks == 1:
            return distribute_tensor(mine.cpu(), self.hosts, [Shard(0)], src_data_rank=None)
        most = max(weight.elements(rank) for rank in range(self.ranks))
        padded = mine.new_zeros(most)
        padded[: mine.numel()] = mine.reshape(-1)
        row = mine.new_empty(self.ranks * most)
        distributed.all_gather_into_tensor(row, padded, group=self.ring)
        parts = [part[: weight.elements(rank)] for rank, part in enumerate(row.view(self.ranks, most))]
        whole = torch.cat(parts).view(weight.shape).cpu()
        return distribute_tensor(whole, self.hosts, [Shard(0)], src_data_rank=None)


def _weight_of(key: str, weights: Mapping[str, Weight]) -> Weight | None:
    """The weight that an entry of a model's or an optimizer's state belongs to."""
    return weights.get(key) or weights.get(key.removeprefix("state.").rpartition(".")[0])
