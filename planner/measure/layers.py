"""Real transformer layers of a model on one device, forward and backward."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from planner.calibration import LayerPoint
from planner.errors import UsageError
from planner.measure.backend import DTYPES, MOST_SECONDS, REPEATS, Backend
from planner.measure.peak import kept_bytes
from planner.measure.samples import sample
from planner.runtime.example_model import Layer, Shape
from planner.spec.model import ModelSpec

DEPTH = 2
"""Layers in a row: a single one would find its inputs and weights in the caches."""


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
        self.depth = min(DEPTH, model.layers)
        layers = [Layer(share_of(model, tp)) for _ in range(self.depth)]
        self._layers: Any = nn.Sequential(*layers).to(device=backend.kind, dtype=DTYPES[precision])

    @property
    def parameters(self) -> int:
        """Elements of one layer on the device."""
        return sum(item.numel() for item in self._layers[0].parameters())

    def measure(self, micro_batch: int) -> LayerPoint:
        """Time one micro-batch (sequences); raises what torch raises when memory runs out."""
        with numerics(self.model):
            return self._measure(micro_batch)

    def _measure(self, micro_batch: int) -> LayerPoint:
        training = self.model.training
        sizes = (micro_batch, training.sequence_length, self.model.hidden)
        hidden = self.backend.tensor(*sizes, precision=training.precision).requires_grad_()
        gradient = self.backend.tensor(*sizes, precision=training.precision) * 1e-3
        kept = self._kept_bytes(hidden, gradient)
        peak, reserved = self._peaks()
        pairs: list[tuple[float, float]] = []
        begin = time.perf_counter()
        while len(pairs) < REPEATS and (len(pairs) < 3 or time.perf_counter() - begin < MOST_SECONDS):
            pairs.append(self._once(hidden, gradient))
        forward, backward = (sample(each) for each in zip(*pairs, strict=True))
        return LayerPoint(
            gpu=self.backend.name,
            model=self.model.name,
            tp=self.tp,
            micro_batch=micro_batch,
            forward_seconds=forward.seconds / self.depth,
            backward_seconds=backward.seconds / self.depth,
            activation_bytes=kept,
            parameters=float(self.parameters),
            spread=max(forward.spread, backward.spread),
            peak_bytes=peak,
            reserved_bytes=reserved,
            without_collectives=self.tp > 1,
        )

    def _once(self, hidden: Any, gradient: Any) -> tuple[float, float]:
        """Seconds of a forward and of its backward."""
        self.backend.synchronize()
        begin = self.backend.now()
        output = self._layers(hidden)
        middle = self.backend.now()
        output.backward(gradient)
        end = self.backend.now()
        self.backend.synchronize()
        return begin.until(middle), middle.until(end)

    def _kept_bytes(self, hidden: Any, gradient: Any) -> float:
        """Bytes that a layer keeps for its backward, from runs that also warm up."""
        self._layers(hidden).backward(gradient)  # gradients exist from here on
        if self.backend.kind == "cuda":
            torch.cuda.reset_peak_memory_stats()
        kept, output = kept_bytes(self.backend, lambda: self._layers(hidden))
        output.backward(gradient)
        return kept / self.depth

    def _peaks(self) -> tuple[float | None, float | None]:
        if self.backend.kind == "cpu":
            return None, None
        return float(torch.cuda.max_memory_allocated()), float(torch.cuda.max_memory_reserved())


@contextmanager
def numerics(model: ModelSpec) -> Iterator[None]:
    """The products' format and the attention that the model asks for."""
    allowed = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = model.training.precision == "tf32"
    unfused = model.training.attention == "unfused"
    try:
        with sdpa_kernel([SDPBackend.MATH]) if unfused else nullcontext():
            yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = allowed


def share_of(model: ModelSpec, tp: int) -> Shape:
    """One of ``tp`` equal shares of a layer; raises UsageError when the model cannot be cut so."""
    for what, count in (("heads", model.heads), ("kv_heads", model.kv_heads), ("ffn", model.ffn)):
        if count % tp:
            raise UsageError(f"--tp {tp}: {what} {count} of {model.name} cannot be divided by {tp}")
    shape = model.model_dump(exclude={"training"})
    shape |= {"heads": model.heads // tp, "kv_heads": model.kv_heads // tp, "ffn": model.ffn // tp}
    training = model.training
    return Shape(**shape, sequence_length=training.sequence_length, optimizer=training.optimizer)
