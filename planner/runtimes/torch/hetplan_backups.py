"""Backup replicas: a step takes the gradients of the ranks that are first, and drops those of the others
(arXiv:1604.00981).

Ranks vote at the job's store. A collective needs all ranks, so that one that comes too late gives up what it computes,
at the next layer, and joins with zeros; whatever holds it up inside a layer is waited for. All have the same weights
after a step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import distributed
from torch.distributed.distributed_c10d import _get_default_store

from planner.runtimes.torch.hetplan_shards import UnequalShards
from planner.training.hetplan_runtime import RankPlan


class TooLateError(Exception):
    """As many ranks as a step needs have their gradients."""


class WithBackups(UnequalShards):
    """A layout that waits for all ranks but some."""

    def __init__(
        self, plan: RankPlan, device: str, working_type: torch.dtype, reduce_type: torch.dtype = torch.float32
    ) -> None:
        super().__init__(plan, device, working_type, reduce_type)
        store = _get_default_store()
        # The same on all ranks: a process may train again.
        number = store.add(f"backups-of-{plan.rank}", 1)
        self.store = distributed.PrefixStore(f"backups-{number}", store)
        self.wanted = plan.data_parallel - plan.backup
        self.computing = False
        self.step = 0
        self._event: Any = None

    def accumulate(self, module: Any, *, last: bool) -> None:
        """Gradients stay whole until it is known whose count."""
        self.last = False

    def begin_backward(self) -> None:
        """Nothing is on its way in a backward."""

    def keep_pace(self) -> None:
        """Give up where the step has its gradients; on a GPU, once the layer before is done."""
        if not self.computing:
            return
        if self.device == "cuda":
            before, self._event = self._event, torch.cuda.Event()
            self._event.record()
            if before is not None:
                before.synchronize()
        if self.store.add(f"in-{self.step}", 0) >= self.wanted:
            raise TooLateError

    def gradients(
        self, step: int, compute: Callable[[int], list[torch.Tensor]]
    ) -> tuple[list[torch.Tensor], list[int]]:
        """Make the mean gradients of the first ranks; returns this one's losses, zero where it is not among them, and
        who is left out (collective)."""
        self.step = step
        # Weights are whole before anybody computes: nobody can wait for them of a rank that gives up.
        for unit in self.units:
            unit.fetch()
        for unit in self.units:
            unit.open()
        losses, counts = [torch.zeros((), device=self.device)], False
        self.computing = True
        try:
            mine = compute(step)
            if self.device == "cuda":
                torch.cuda.synchronize()
            place = self.store.add(f"in-{step}", 1)
            if place == 1:
                self.store.delete_key(f"in-{step - 1}")
            counts = place <= self.wanted
        except TooLateError:
            pass
        self.computing = False
        if counts:
            losses = mine
        for unit in self.units:
            if not counts:
                unit.forget()
            self.scatter(unit)
            unit.close()
        self.receive()
        there = torch.zeros(self.plan.data_parallel)
        there[self.plan.rank] = float(counts)
        distributed.all_reduce(there)
        return losses, [rank for rank, each in enumerate(there.tolist()) if not each]
