"""Single kernels on one device: products, attention, streams, kernels without work; and exchanges of islands.

An exchange is measured with the runtime's own code on one device and its host: the gradients of some layers, or their
weights, are exchanged in a group of one rank, so that all that is left is what compresses, brings to a format and back,
sums, and updates.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import prod
from typing import Any, Protocol

import torch
import torch.nn.functional as functional
from torch import distributed

from planner.calibration.values import Kernel, KernelPoint
from planner.cost.compute import ELEMENT_BYTES, FORWARD_KERNELS
from planner.dims.sync import matrices
from planner.measure.backend import Backend, Call, tf32_products
from planner.measure.samples import Sample, sample
from planner.model.spec import ModelSpec
from planner.training.example_model import Layer, Shape
from planner.training.hetplan_runtime import SyncPlan

GPU_FORMATS = ("bf16", "fp16", "fp32", "tf32")
CPU_FORMATS = ("fp32", "bf16")
GPU_SIDES = (512, 1024, 2048, 4096, 8192)
CPU_SIDES = (256, 512, 768, 1024, 1536)
GPU_LENGTHS = (512, 1024, 2048, 4096)
CPU_LENGTHS = (64, 128, 256, 512)
GPU_ELEMENTS = (2**25, 2**26, 2**28)
"""From 128 MiB on: less would stay in the caches of recent devices."""
CPU_ELEMENTS = (2**22, 2**23, 2**24)
HEADS, WIDTH = 8, 64
TINY = 64
"""Width of the layer that has no work but its launches."""
REPLAYED = 256
"""Kernels in one captured graph."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelCase:
    """One kernel of one size."""

    kernel: Kernel
    precision: str
    sizes: tuple[int, ...]
    flops: float = 0.0
    moved_bytes: float = 0.0

    @property
    def shape(self) -> str:
        """The sizes as a calibration file writes them."""
        return "x".join(str(size) for size in self.sizes)

    def point(self, backend: Backend, timing: Sample) -> KernelPoint:
        """What the calibration keeps of it."""
        return KernelPoint(
            gpu=backend.name,
            kernel=self.kernel,
            precision=self.precision,
            shape=self.shape,
            flops=self.flops,
            moved_bytes=self.moved_bytes,
            seconds=timing.seconds,
            spread=timing.spread,
        )


def cases(backend: Backend) -> Iterator[KernelCase]:
    """Every kernel that constants are fitted to, cheap ones first."""
    gpu = backend.kind == "cuda"
    yield KernelCase(kernel="floor", precision="fp32", sizes=(TINY,))
    yield KernelCase(kernel="launch", precision="fp32", sizes=(TINY,))
    for elements in GPU_ELEMENTS if gpu else CPU_ELEMENTS:
        yield KernelCase(kernel="copy", precision="fp32", sizes=(elements,), moved_bytes=8.0 * elements)
        yield KernelCase(kernel="triad", precision="fp32", sizes=(elements,), moved_bytes=12.0 * elements)
    for precision in GPU_FORMATS if gpu else CPU_FORMATS:
        for side in GPU_SIDES if gpu else CPU_SIDES:
            yield matmul_case(precision, side)
    for length in GPU_LENGTHS if gpu else CPU_LENGTHS:
        yield _attention_case(backend.precision, length, 4 if gpu else 2)


def matmul_case(precision: str, side: int) -> KernelCase:
    """A product of two square matrices."""
    moved = 3.0 * ELEMENT_BYTES[precision] * side**2
    return KernelCase(
        kernel="matmul", precision=precision, sizes=(side,) * 3, flops=2.0 * side**3, moved_bytes=moved
    )


def optimizer_case(elements: int) -> KernelCase:
    """An AdamW update of fp32 states: four numbers of an element read, three written."""
    return KernelCase(kernel="optimizer", precision="fp32", sizes=(elements,), moved_bytes=28.0 * elements)


def _attention_case(precision: str, length: int, batch: int) -> KernelCase:
    """Causal attention: half of the scores."""
    sizes = (batch, HEADS, length, WIDTH)
    moved = 4.0 * ELEMENT_BYTES[precision] * prod(sizes)
    flops = 2.0 * batch * HEADS * WIDTH * float(length) ** 2
    return KernelCase(kernel="attention", precision=precision, sizes=sizes, flops=flops, moved_bytes=moved)


def measure_kernel(backend: Backend, case: KernelCase) -> KernelPoint:
    """Run and time one kernel; raises what torch raises when memory runs out."""
    return case.point(backend, _launch(backend) if case.kernel == "launch" else _timed(backend, case))


def _timed(backend: Backend, case: KernelCase) -> Sample:
    if case.kernel == "optimizer":
        return backend.time(_update(backend, case))
    if case.kernel == "floor" and backend.kind == "cuda":
        timing = backend.time(_replay(backend))
        return Sample(timing.seconds / REPLAYED, timing.spread)
    with torch.no_grad(), tf32_products(case.precision == "tf32"):
        return backend.time(_call(backend, case))


def _call(backend: Backend, case: KernelCase) -> Call:
    """The kernel with its inputs in place."""
    sizes, precision = case.sizes, case.precision
    if case.kernel == "matmul":
        one, two = (backend.tensor(*sizes[:2], precision=precision) for _ in range(2))
        return lambda: torch.matmul(one, two)
    if case.kernel == "attention":
        query, key, value = (backend.tensor(*sizes, precision=precision) for _ in range(3))
        return lambda: functional.scaled_dot_product_attention(query, key, value, is_causal=True)
    one, two, out = (backend.tensor(*sizes, precision=precision) for _ in range(3))
    if case.kernel == "copy":
        return lambda: out.copy_(one)
    return lambda: torch.add(one, two, alpha=3.0, out=out)


def _update(backend: Backend, case: KernelCase) -> Call:
    """An optimizer step; its states are made by the first call, which is not timed."""
    weight = torch.nn.Parameter(backend.tensor(*case.sizes, precision="fp32"))
    weight.grad = torch.full_like(weight, 1e-3)
    step: Call = torch.optim.AdamW([weight], fused=True).step
    return step


def _replay(backend: Backend) -> Call:
    """Many empty kernels that the host launches at once, so that only the device's own time is left."""
    one, out = (backend.tensor(TINY, precision="fp32") for _ in range(2))
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.add(one, one, out=out)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(REPLAYED):
            torch.add(one, one, out=out)
    replay: Call = graph.replay
    return replay


def _launch(backend: Backend) -> Sample:
    """Host seconds per kernel of a layer that has no work: the host's clock, the device never waited for."""
    layer = Layer(_tiny_shape()).to(backend.kind)
    hidden: Any = backend.tensor(1, 1, TINY, precision="fp32")
    layer(hidden)
    if backend.kind == "cpu":  # its kernels take the host's own time, and in short bursts no slice ends
        timing = backend.time(lambda: layer(hidden))
        return Sample(timing.seconds / FORWARD_KERNELS, timing.spread)
    seconds = []
    for _ in range(50):
        backend.synchronize()
        begin = backend.clock()
        layer(hidden)
        seconds.append((backend.clock() - begin) / FORWARD_KERNELS)
    backend.synchronize()
    return sample(seconds)


def _tiny_shape() -> Shape:
    return Shape(
        name="tiny",
        kind="decoder",
        layers=1,
        hidden=TINY,
        heads=1,
        kv_heads=1,
        head_dim=TINY,
        ffn=TINY,
        gated_mlp=False,
        vocab=TINY,
        tied_embeddings=True,
        learned_positions=1,
        norm="layer",
        layer_norms=2,
        qk_norm=False,
        qkv_bias=True,
        output_bias=True,
        mlp_bias=True,
        embedding_width=TINY,
        token_types=0,
        embedding_norm=False,
        final_norm=True,
        head_transform=False,
        head_bias=False,
        sequence_length=1,
        optimizer="adamw",
    )


RANKS = (1, 4, 16)
"""Of the factors; others lie between or beyond them."""
SHARES = (0.001, 0.01, 0.1)
"""Of the elements that travel."""
MOST_ELEMENTS = 2**24
"""Of the gradients that are exchanged: so many layers as have them, one at least."""


class IslandExchange(Protocol):
    """What exchanges: ``hetplan_exchange.py`` of the torch runtime."""

    def compressor_of(self, sync: SyncPlan, like: Sequence[Any], leads: bool) -> Any:
        """What adds up gradients."""

    def updated(
        self, anchor: Any, row: Any, momentum: Any, sync: SyncPlan, weight: float, group: Any
    ) -> None:
        """Bring weights to what all islands have made of them."""

    def flat(self, tensors: Any) -> Any:
        """Tensors one after the other in host memory."""


def exchange_cases(model: ModelSpec) -> Iterator[tuple[KernelCase, SyncPlan]]:
    """Every way to exchange; sizes are rank or elements that travel, where there is one, and elements."""
    elements = sum(rows * columns for rows, columns in matrices(model)) * _layers(model)
    usual = SyncPlan(islands=((0,),), weights=(1.0,), every=1, format="fp32")

    def case(kernel: Kernel, *sizes: int) -> KernelCase:
        return KernelCase(kernel=kernel, precision="fp32", sizes=(*sizes, elements))

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
    backend: Backend, model: ModelSpec, case: KernelCase, sync: SyncPlan, runtime: IslandExchange
) -> KernelPoint:
    """Run and time one way to exchange; raises what torch raises when memory runs out."""
    shapes = matrices(model) * _layers(model)
    tensors = [backend.tensor(rows, columns, precision="fp32") for rows, columns in shapes]
    made = [torch.empty_like(each) for each in tensors]
    with _alone() as group, torch.no_grad():
        exchange = _weights if sync.every > 1 else _gradients
        timing = backend.time(exchange(tensors, made, sync, runtime, group))
    return case.point(backend, timing)


def _gradients(
    tensors: list[Any], made: list[Any], sync: SyncPlan, runtime: IslandExchange, group: Any
) -> Callable[[], None]:
    compressor = runtime.compressor_of(sync, tensors, leads=True)

    def exchange() -> None:
        _told(compressor.sum([each * 0.5 for each in tensors], group), made)

    return exchange


def _weights(
    tensors: list[Any], made: list[Any], sync: SyncPlan, runtime: IslandExchange, group: Any
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
