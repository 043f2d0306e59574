"""Real transformer layers of a model on one device, forward and backward; bytes of tensors at their peak."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from itertools import accumulate
from math import ceil
from typing import Any, TypeVar

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.profiler import ProfilerActivity, profile

from planner.calibration.values import LayerPoint
from planner.errors import UsageError
from planner.measure.backend import DTYPES, LEAST_SECONDS, Backend, Call, Mark, repeated, tf32_products
from planner.measure.samples import sample
from planner.model.spec import ModelSpec
from planner.training.example_model import Layer, Shape

T = TypeVar("T")


def peak_bytes(backend: Backend, call: Call, held: Any) -> tuple[float, float | None]:
    """Bytes allocated at the peak of a call, and bytes that torch had reserved; None where nothing is reserved.

    ``held`` are the tensors that exist before, during and after: on a CPU only what the call adds can be seen.
    """
    if backend.kind == "cpu":
        return _storage_bytes(held) + _added_on_host(call), None
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    call()
    torch.cuda.synchronize()
    return float(torch.cuda.max_memory_allocated()), float(torch.cuda.max_memory_reserved())


def _storage_bytes(held: Any) -> float:
    """Bytes of the tensors' storages, each once."""
    storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in held}
    return float(sum(storages.values()))


def kept_bytes(backend: Backend, call: Callable[[], T]) -> tuple[float, T]:
    """Bytes that are allocated after a call and were not before, with what it returned."""
    if backend.kind == "cpu":
        changes, returned = _changes_on_host(call)
        return float(sum(changes)), returned
    before = torch.cuda.memory_allocated()
    returned = call()
    return float(torch.cuda.memory_allocated() - before), returned


def _added_on_host(call: Call) -> float:
    """The most that a call allocates on the host and has not given back yet."""
    changes, _ = _changes_on_host(call)
    return float(max(accumulate(changes), default=0))


def _changes_on_host(call: Callable[[], T]) -> tuple[list[int], T]:
    """Bytes that a call took of the host and, negative, gave back, in their order, with what it returned."""
    # The profiler's library would tell on stderr that it starts and stops.
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as trace:
        returned = call()
    records = [each for each in trace.profiler.kineto_results.events() if each.name() == "[memory]"]
    return [each.nbytes() for each in sorted(records, key=lambda each: each.start_ns())], returned


LEAST_DEPTH = 2
"""Layers in a row: a single one would find its inputs and weights in the caches."""
MOST_DEPTH = 8
"""Layers in a row where few would keep all that they keep in the caches, which a whole model does not."""
CACHES = 2.0
"""How many times the last cache the layers in a row should keep."""
STEADY = 0.02
"""Spread of readings from which drift may favour one micro-batch over another."""

Readings = list[tuple[float, float]]
"""Seconds of forwards, and of their backwards, of one layer."""


class LayerBench:
    """Layers of a model, cut into ``tp`` shares, of which one device runs one."""

    def __init__(self, backend: Backend, model: ModelSpec, tp: int) -> None:
        precision = model.training.precision
        if precision not in DTYPES:
            raise UsageError(
                f"{model.name}: layers in {precision} cannot be measured with plain torch",
                hint="measure with --precision bf16",
            )
        self.backend, self.model, self.tp = backend, model, tp
        self._readings: dict[int, Readings] = {}
        """By micro-batch."""
        self._layers: Any = nn.Sequential()
        self._extend(min(LEAST_DEPTH, model.layers))

    def _extend(self, depth: int) -> None:
        """Make layers until there are so many."""
        dtype = DTYPES[self.model.training.precision]
        while len(self._layers) < depth:
            self._layers.append(
                Layer(share_of(self.model, self.tp)).to(device=self.backend.kind, dtype=dtype)
            )

    @property
    def parameters(self) -> int:
        """Elements of one layer on the device."""
        return sum(item.numel() for item in self._layers[0].parameters())

    def measure(self, micro_batch: int) -> LayerPoint:
        """Time one micro-batch (sequences); raises what torch raises when memory runs out."""
        with numerics(self.model):
            hidden, gradient = self._ends(micro_batch)
            kept = self._kept_bytes(hidden, gradient)
            peak, reserved = self._peaks()
            self._readings[micro_batch] = self._timed(self._in_a_row(kept), hidden, gradient)
        point = LayerPoint(
            gpu=self.backend.name,
            model=self.model.name,
            tp=self.tp,
            micro_batch=micro_batch,
            forward_seconds=0.0,
            backward_seconds=0.0,
            activation_bytes=kept,
            parameters=float(self.parameters),
            peak_bytes=peak,
            reserved_bytes=reserved,
            without_collectives=self.tp > 1,
        )
        return self._read(point)

    def again(self, point: LayerPoint) -> LayerPoint:
        """The point from more readings, added to those that ``measure`` took of it."""
        with numerics(self.model):
            hidden, gradient = self._ends(point.micro_batch)
            layers = self._in_a_row(point.activation_bytes or 0.0)
            self._readings[point.micro_batch] += self._timed(layers, hidden, gradient)
        return self._read(point)

    def _read(self, point: LayerPoint) -> LayerPoint:
        forward, backward = (sample(each) for each in zip(*self._readings[point.micro_batch], strict=True))
        return replace(
            point,
            forward_seconds=forward.seconds,
            backward_seconds=backward.seconds,
            spread=max(forward.spread, backward.spread),
        )

    def _ends(self, micro_batch: int) -> tuple[Any, Any]:
        """What goes into the first layer, and the gradient that comes back to the last."""
        training = self.model.training
        sizes = (micro_batch, training.sequence_length, self.model.hidden)
        hidden = self.backend.tensor(*sizes, precision=training.precision).requires_grad_()
        return hidden, self.backend.tensor(*sizes, precision=training.precision) * 1e-3

    def _in_a_row(self, kept: float) -> Any:
        """As many layers as overflow the caches; two when a layer keeps much."""
        wanted = ceil(CACHES * self.backend.cache_bytes() / max(kept, 1.0))
        depth = min(max(wanted, LEAST_DEPTH), MOST_DEPTH, self.model.layers)
        self._extend(depth)
        return self._layers[:depth]

    def _timed(self, layers: Any, hidden: Any, gradient: Any) -> Readings:
        """Forward and backward of one of the layers, which run in a row."""
        once = sum(self._reading(layers, hidden, gradient, 1)) * len(layers)
        passes = max(1, ceil(LEAST_SECONDS[self.backend.kind] / max(once, 1e-9)))
        return repeated(lambda: self._reading(layers, hidden, gradient, passes))

    def _reading(self, layers: Any, hidden: Any, gradient: Any, passes: int) -> tuple[float, float]:
        """Mean seconds of a forward, and of its backward, of one layer."""
        self.backend.synchronize()
        marks = [self._pass(layers, hidden, gradient) for _ in range(passes)]
        self.backend.synchronize()
        forward = sum(begin.until(middle) for begin, middle, _ in marks)
        backward = sum(middle.until(end) for _, middle, end in marks)
        times = passes * len(layers)
        return forward / times, backward / times

    def _pass(self, layers: Any, hidden: Any, gradient: Any) -> tuple[Mark, Mark, Mark]:
        begin = self.backend.now()
        output = layers(hidden)
        middle = self.backend.now()
        output.backward(gradient)
        return begin, middle, self.backend.now()

    def _kept_bytes(self, hidden: Any, gradient: Any) -> float:
        """Bytes that a layer keeps for its backward, from runs that also warm up."""
        layers = self._layers[:LEAST_DEPTH]
        layers(hidden).backward(gradient)  # gradients exist from here on
        if self.backend.kind == "cuda":
            torch.cuda.reset_peak_memory_stats()
        kept, output = kept_bytes(self.backend, lambda: layers(hidden))
        output.backward(gradient)
        return kept / len(layers)

    def _peaks(self) -> tuple[float | None, float | None]:
        if self.backend.kind == "cpu":
            return None, None
        return float(torch.cuda.max_memory_allocated()), float(torch.cuda.max_memory_reserved())


@contextmanager
def numerics(model: ModelSpec) -> Iterator[None]:
    """The products' format and the attention that the model asks for."""
    unfused = model.training.attention == "unfused"
    attention = sdpa_kernel([SDPBackend.MATH]) if unfused else nullcontext()
    with tf32_products(model.training.precision == "tf32"), attention:
        yield


def share_of(model: ModelSpec, tp: int) -> Shape:
    """One of ``tp`` equal shares of a layer; raises UsageError when the model cannot be cut so."""
    if model.block or model.behind or not model.usual_layers:
        raise UsageError(f"{model.name}: layers of several kinds, or with a state, cannot be measured yet")
    for what, count in (("heads", model.heads), ("kv_heads", model.kv_heads), ("ffn", model.ffn)):
        if count % tp:
            raise UsageError(f"--tp {tp}: {what} {count} of {model.name} cannot be divided by {tp}")
    if model.projections is not None or model.beside:
        raise UsageError(
            f"{model.name}: layers with matrices of their own or of several sizes cannot be measured yet"
        )
    shape = model.model_dump(exclude={"training", "numerics", "projections", "beside"})
    shape |= {"heads": model.heads // tp, "kv_heads": model.kv_heads // tp, "ffn": model.ffn // tp}
    training = model.training
    return Shape(**shape, sequence_length=training.sequence_length, optimizer=training.optimizer)
