"""What an exchange between islands costs beside its network: the runtime's own code on one device and its host.

The gradients of some layers, or their weights, are exchanged in a group of one rank, so that all that is left is what
compresses, brings to a format and back, sums, and updates.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Protocol

import torch
from torch import distributed

from planner.calibration.values import Kernel, KernelPoint
from planner.dims.sync import matrices
from planner.measure.backend import Backend
from planner.measure.kernels import Case
from planner.model.spec import ModelSpec
from planner.training.hetplan_runtime import SyncPlan
from planner.units import format_count

RANKS = (1, 4, 16)
"""Of the factors; others lie between or beyond them."""
SHARES = (0.001, 0.01, 0.1)
"""Of the elements that travel."""
MOST_ELEMENTS = 2**24
"""Of the gradients that are exchanged: so many layers as have them, one at least."""


class Runtime(Protocol):
    """What exchanges: ``hetplan_exchange.py`` of the torch runtime."""

    def compressor_of(self, sync: SyncPlan, like: Sequence[Any], leads: bool) -> Any:
        """What adds up gradients."""

    def updated(
        self, anchor: Any, row: Any, momentum: Any, sync: SyncPlan, weight: float, group: Any
    ) -> None:
        """Bring weights to what all islands have made of them."""

    def flat(self, tensors: Any) -> Any:
        """Tensors one after the other in host memory."""


def exchange_cases(model: ModelSpec) -> Iterator[tuple[Case, SyncPlan]]:
    """Every way to exchange; sizes are rank or elements that travel, where there is one, and elements."""
    elements = sum(rows * columns for rows, columns in matrices(model)) * _layers(model)
    usual = SyncPlan(islands=((0,),), weights=(1.0,), every=1, format="fp32")

    def case(kernel: Kernel, *sizes: int) -> Case:
        return Case(kernel=kernel, precision="fp32", sizes=(*sizes, elements))

    for number_format in ("bf16", "fp8", "int8"):
        yield case(number_format), replace(usual, format=number_format)
    for rank in RANKS:
        if rank <= min(map(min, matrices(model))):
            yield case("factors", rank), replace(usual, rank=rank)
    for share in SHARES:
        yield case("largest", max(1, round(share * elements))), replace(usual, ratio=share)
    for method in ("average", "diloco"):
        yield case(method), replace(usual, every=2, method=method, outer_lr=0.7, outer_momentum=0.9)


def _layers(model: ModelSpec) -> int:
    """Layers whose gradients are exchanged."""
    elements = sum(rows * columns for rows, columns in matrices(model))
    return max(1, min(model.layers, MOST_ELEMENTS // elements))


def measure_exchange(
    backend: Backend, model: ModelSpec, case: Case, sync: SyncPlan, runtime: Runtime
) -> KernelPoint:
    """Run and time one way to exchange; raises what torch raises when memory runs out."""
    shapes = matrices(model) * _layers(model)
    tensors = [backend.tensor(rows, columns, precision="fp32") for rows, columns in shapes]
    made = [torch.empty_like(each) for each in tensors]
    with _alone() as group, torch.no_grad():
        exchange = _weights if sync.every > 1 else _gradients
        timing = backend.time(exchange(tensors, made, sync, runtime, group))
    return KernelPoint(
        gpu=backend.name,
        kernel=case.kernel,
        precision=case.precision,
        shape=case.shape,
        flops=0.0,
        moved_bytes=0.0,
        seconds=timing.seconds,
        spread=timing.spread,
    )


def _gradients(
    tensors: list[Any], made: list[Any], sync: SyncPlan, runtime: Runtime, group: Any
) -> Callable[[], None]:
    compressor = runtime.compressor_of(sync, tensors, leads=True)

    def exchange() -> None:
        _told(compressor.sum([each * 0.5 for each in tensors], group), made)

    return exchange


def _weights(
    tensors: list[Any], made: list[Any], sync: SyncPlan, runtime: Runtime, group: Any
) -> Callable[[], None]:
    anchor = runtime.flat(tensors)
    momentum = torch.zeros_like(anchor)

    def exchange() -> None:
        runtime.updated(anchor, runtime.flat(tensors), momentum, sync, 0.5, group)
        _told(anchor, made)

    return exchange


def _told(row: Any, tensors: list[Any]) -> None:
    """The row in the tensors of the rank."""
    for part, tensor in zip(row.split([each.numel() for each in tensors]), tensors, strict=True):
        tensor.copy_(part.view(tensor.shape))


@contextmanager
def _alone() -> Iterator[Any]:
    """A group of this process alone."""
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    try:
        yield distributed.group.WORLD
    finally:
        distributed.destroy_process_group()


def what(case: Case) -> str:
    """For readers."""
    return f"exchange of {format_count(case.sizes[-1])} elements, {case.kernel}"
