"""Poplar's profiling as published (arXiv:2408.12596, algorithm 1): the whole model, for each ZeRO stage by itself.

For each stage a micro-batch of one sequence tells the memory of a sample, and by a line the largest that fits; from
there micro-batches double until memory ends, and the gap is halved. Every one of them is timed without collectives, and
a cubic spline through (micro-batch, seconds) tells the fastest. ``planner/measure/session.py`` measures one layer and
the update instead, once for all stages.

One device stands for each of those among which ZeRO divides the states: bytes that it would hold are held, and one
layer's weights serve all layers, as they do while they are gathered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from scipy.interpolate import CubicSpline

from planner.calibration.values import LayerPoint
from planner.cost.compute import ELEMENT_BYTES
from planner.cost.memory import optimizer_bytes
from planner.errors import UsageError
from planner.measure.backend import DTYPES, Backend, Mark, out_of_memory, repeated
from planner.measure.layers import numerics, peak_bytes, share_of
from planner.measure.samples import Event, Limit, ProfilePoint, Sample, StageProfile, grow, sample
from planner.model.spec import ModelSpec
from planner.training.example_model import Embedding, Finish, Head, Layer, objective


def state_bytes(model: ModelSpec, zero: int, devices: int) -> float:
    """Bytes of parameters, gradients and optimizer states on one of the devices that divide them."""
    element = ELEMENT_BYTES[model.training.precision]
    optimizer = optimizer_bytes(model.training, model.training.master_weights or "fp32")
    parts = (optimizer, 1), (element, 2), (element, 3)
    return sum(size / (devices if zero >= stage else 1) for size, stage in parts) * model.parameters


class WholeModel:
    """All layers between both ends, on one device, beside the states that a ZeRO stage leaves it."""

    def __init__(
        self, backend: Backend, model: ModelSpec, zero: int, devices: int, memory_bytes: float | None
    ) -> None:
        precision = model.training.precision
        if precision not in DTYPES:
            raise UsageError(
                f"{model.name}: {precision} cannot be measured with plain torch",
                hint="measure with --precision bf16",
            )
        if model.experts is not None or model.tower is not None:
            raise UsageError(
                f"{model.name}: a model with experts or a tower cannot be profiled so: measure its layers"
            )
        self.backend, self.model = backend, model
        self.capacity = backend.memory_bytes() if memory_bytes is None else memory_bytes
        shape = share_of(model, 1)
        place = {"device": backend.kind, "dtype": DTYPES[precision]}
        self.embedding: Any = Embedding(shape).to(**place)
        self.layer: Any = Layer(shape).to(**place)
        self.finish: Any = Finish(shape).to(**place)
        self.head: Any = None if model.tied_embeddings else Head(shape).to(**place)
        self.minimised = objective(shape)
        self.points: list[ProfilePoint] = []
        self.layers: list[LayerPoint] = []
        self.run(1)  # gradients exist from here on
        self.states = state_bytes(model, zero, devices)
        rest = max(0.0, self.states - _bytes(self.held()))
        self.ballast = torch.empty(int(rest), dtype=torch.uint8, device=backend.kind)

    def held(self) -> Iterator[Any]:
        """Tensors that stay."""
        for part in (self.embedding, self.layer, self.finish, self.head):
            for parameter in part.parameters() if part is not None else ():
                yield parameter
                if parameter.grad is not None:
                    yield parameter.grad

    def run(self, micro_batch: int) -> tuple[Mark, Mark, Mark, Mark, Mark, Mark]:
        """Forward and backward; begin, layers begun and ended, their backward begun and ended, end."""
        length, device = self.model.training.sequence_length, self.backend.kind
        tokens = torch.randint(self.model.vocab, (micro_batch, length), device=device)
        marks: dict[str, Mark] = {}

        def at(name: str) -> Callable[[Any], None]:
            def mark(_: Any) -> None:
                marks[name] = self.backend.now()

            return mark

        begin = self.backend.now()
        hidden = self.embedding(tokens)
        hidden.register_hook(at("ended"))
        first = self.backend.now()
        for _ in range(self.model.layers):
            hidden = self.layer(hidden)
        hidden.register_hook(at("begun"))
        last = self.backend.now()
        hidden = self.finish(hidden)
        logits = self.embedding(hidden) if self.head is None else self.head(hidden)
        self.minimised(logits, tokens).backward()
        return begin, first, last, marks["begun"], marks["ended"], self.backend.now()

    def measure(self, micro_batch: int) -> bool:
        """Time a micro-batch; False when memory runs out."""
        try:
            with numerics(self.model):
                used, _ = peak_bytes(
                    self.backend, lambda: self.run(micro_batch), [*self.held(), self.ballast]
                )
                if used > self.capacity:
                    raise MemoryError
                self._time(micro_batch, used)
        except Exception as error:
            if not out_of_memory(error):
                raise
            return False
        finally:
            self.backend.free()
        return True

    def _time(self, micro_batch: int, used: float) -> None:
        def reading() -> tuple[float, float, float]:
            self.backend.synchronize()
            begin, first, last, begun, ended, end = self.run(micro_batch)
            self.backend.synchronize()
            return begin.until(end), first.until(last), begun.until(ended)

        whole, forward, backward = (sample(each) for each in zip(*repeated(reading), strict=True))
        self.points.append(
            ProfilePoint(micro_batch=micro_batch, seconds=whole.seconds, spread=whole.spread, used_bytes=used)
        )
        self.layers.append(self._layer(micro_batch, forward, backward))

    def _layer(self, micro_batch: int, forward: Sample, backward: Sample) -> LayerPoint:
        """What the calibration reads: seconds of one of the layers."""
        return LayerPoint(
            gpu=self.backend.name,
            model=self.model.name,
            tp=1,
            micro_batch=micro_batch,
            forward_seconds=forward.seconds / self.model.layers,
            backward_seconds=backward.seconds / self.model.layers,
            parameters=float(self.model.layer_parameters),
            spread=max(forward.spread, backward.spread),
        )

    def estimated(self) -> int | None:
        """Largest micro-batch by the memory of the first one."""
        if not self.points:
            return None
        fixed = _bytes([*self.held(), self.ballast])
        each = max(1.0, self.points[0].used_bytes - fixed) / self.points[0].micro_batch
        return int((self.capacity - fixed) / each)


def _bytes(tensors: Sequence[Any] | Iterator[Any]) -> float:
    return float(sum(tensor.numel() * tensor.element_size() for tensor in tensors))


def profile_stages(
    backend: Backend,
    model: ModelSpec,
    zeros: Sequence[int],
    devices: int,
    largest: int,
    memory_bytes: float | None,
    keep: Callable[[Sequence[LayerPoint]], None],
    tell: Callable[[Event], None],
) -> tuple[StageProfile, ...]:
    """Algorithm 1 for each ZeRO stage; raises UsageError where no stage has room for one sequence.

    ``keep`` is given the layers of each stage at its end, or those so far where an interrupt or an error ends it.
    """
    profiles: list[StageProfile] = []
    for number, zero in enumerate(zeros):
        profile = _profile(backend, model, zero, devices, largest, memory_bytes, keep)
        profiles.append(profile)
        tell(Event(what=f"ZeRO {zero}: {profile.micro_batch}", done=number + 1, total=len(zeros)))
    if not any(profile.micro_batch for profile in profiles):
        raise UsageError(
            f"{model.name}: out of memory at micro-batch 1 with ZeRO {', '.join(map(str, zeros))} among {devices} "
            f"devices, on {backend.name}",
            hint="profile with more --devices, a higher --zero or a shorter --sequence-length",
        )
    return tuple(profiles)


def _profile(
    backend: Backend,
    model: ModelSpec,
    zero: int,
    devices: int,
    largest: int,
    memory_bytes: float | None,
    keep: Callable[[Sequence[LayerPoint]], None],
) -> StageProfile:
    states = state_bytes(model, zero, devices)
    none = StageProfile(
        zero=zero,
        states_bytes=states,
        estimated=None,
        micro_batch=0,
        out_of_memory=1,
        fastest=None,
        points=(),
    )
    if states > (backend.memory_bytes() if memory_bytes is None else memory_bytes):
        return none
    try:
        bench = WholeModel(backend, model, zero, devices, memory_bytes)
    except Exception as error:
        if not out_of_memory(error):
            raise
        backend.free()
        return none
    try:
        limit: Limit = grow(bench.measure, largest)
    finally:
        # What is measured is kept, whatever ends it.
        if bench.layers:
            keep(bench.layers)
    points = tuple(sorted(bench.points, key=lambda point: point.micro_batch))
    return StageProfile(
        zero=zero,
        states_bytes=states,
        estimated=bench.estimated(),
        micro_batch=limit.fits,
        out_of_memory=limit.fails,
        fastest=fastest(points),
        points=points,
    )


def fastest(points: Sequence[ProfilePoint]) -> int | None:
    """Micro-batch with most sequences a second, by a cubic spline through the points."""
    if not points:
        return None
    if len(points) == 1:
        return points[0].micro_batch
    sizes = [point.micro_batch for point in points]
    seconds = CubicSpline(sizes, [point.seconds for point in points], bc_type="natural")
    between = range(sizes[0], sizes[-1] + 1)
    return max(between, key=lambda size: size / max(1e-12, float(seconds(size))))
