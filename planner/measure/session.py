"""A calibration of one device: what to measure, in which order, and what becomes of it.

Every point is kept as soon as it is there, so that a time limit or Ctrl-C leaves a calibration of what was measured.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from planner.calibration.file import shipped
from planner.calibration.merge import kernel_key, layer_key, merged, name_key
from planner.calibration.values import Calibration, Constant, Framework, KernelPoint, LayerPoint
from planner.errors import UsageError
from planner.measure.backend import Backend, out_of_memory
from planner.measure.fits import Peaks, fit_family, measured_peaks, with_errors
from planner.measure.kernels import (
    IslandExchange,
    KernelCase,
    cases,
    exchange_cases,
    measure_exchange,
    measure_kernel,
    optimizer_case,
)
from planner.measure.layers import STEADY, LayerBench
from planner.measure.samples import Event, Limit, grow
from planner.model.spec import ModelSpec
from planner.targets import PLAIN_TORCH
from planner.units import format_count

ROUNDS = 3
"""How often all micro-batches are read again, in turns, while their readings differ."""
ZERO_SHARES = (2, 4, 8)
"""Numbers of devices among which ZeRO would divide a layer's states."""

T = TypeVar("T")


class OutOfTimeError(Exception):
    """The time budget is spent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What to measure."""

    model: ModelSpec | None
    tps: tuple[int, ...] = (1,)
    zeros: tuple[int, ...] = (0, 1, 2, 3)
    largest: int | None = None
    """Micro-batch at which the growth ends; None for what is usual on the device."""
    seconds: float = float("inf")
    exchange: IslandExchange | None = None
    """What exchanges between islands, to be measured with the model; None for nothing."""


class Session:
    """Measures what a request asks and what the calibration so far does not hold."""

    def __init__(
        self,
        backend: Backend,
        request: Request,
        before: Calibration,
        keep: Callable[[Calibration], None],
        tell: Callable[[Event], None],
    ) -> None:
        self.backend, self.request = backend, request
        self.calibration = before
        self.limits: dict[int, Limit] = {}
        """By tensor-parallel degree."""
        self._keep, self._tell = keep, tell
        self._deadline = time.monotonic() + request.seconds
        self._kernels = {kernel_key(point) for point in before.kernel_points}
        self._layers = {layer_key(point): point for point in before.layers}
        self._cases = [*cases(backend), *self._optimizer_cases()]
        self._done = 0
        self._fresh = False
        """True once something was measured."""

    @property
    def total(self) -> int:
        """Points that are certain: kernels, and one micro-batch of each degree."""
        model = self.request.model
        exchanges = len([*exchange_cases(model)]) if model and self.request.exchange else 0
        return len(self._cases) + (len(self.request.tps) if model else 0) + exchanges

    def run(self) -> bool:
        """Measure; False when the time budget ended it. Raises UsageError when not even one sequence fits."""
        try:
            for case in self._cases:
                self._kernel(case)
            for tp in self.request.tps if self.request.model else ():
                self._grow(tp)
            self._exchanges()
        except OutOfTimeError:
            return False
        finally:
            self._fit()
        return True

    def peaks(self) -> Peaks:
        """What the device can do at most: by the catalogue, else by measurement."""
        known = self.backend.known
        if known is None:
            return measured_peaks(self._own_kernels())
        return Peaks(
            flops={name: rate * 1e12 for name, rate in known.tflops.items()},
            memory_bytes_per_second=known.memory_bandwidth_gBps * 1e9,
            multiprocessors=known.multiprocessors,
        )

    def _optimizer_cases(self) -> Iterator[KernelCase]:
        """Updates of one layer's states: all of them, and the shares that ZeRO leaves one device."""
        if self.request.model is None:
            return
        parameters = self.request.model.layer_parameters
        shares = (
            *((1,) if 0 in self.request.zeros else ()),
            *(ZERO_SHARES if any(self.request.zeros) else ()),
        )
        for ways in shares:
            yield optimizer_case(-(-parameters // ways))

    def _exchanges(self) -> None:
        """What islands exchange, beside the network."""
        model, runtime = self.request.model, self.request.exchange
        if model is None or runtime is None:
            return
        for case, sync in exchange_cases(model):
            what = f"exchange of {format_count(case.sizes[-1])} elements, {case.kernel}"
            self._kernel(case, partial(measure_exchange, self.backend, model, case, sync, runtime), what)

    def _kernel(
        self, case: KernelCase, measure: Callable[[], KernelPoint] | None = None, what: str | None = None
    ) -> None:
        key = (name_key(self.backend.name), case.kernel, case.precision, case.shape)
        self._done += 1
        if key in self._kernels:
            return
        self._check_time()
        what = what or f"{case.kernel} {case.shape} {case.precision}"
        point = self._tried(measure or partial(measure_kernel, self.backend, case), what)
        if point:
            self._kernels.add(key)
            self._add(Calibration(kernel_points=(point,)), what)

    def _grow(self, tp: int) -> None:
        """Layers at growing micro-batch, to the limit."""
        model = self.request.model
        assert model is not None
        try:
            bench = LayerBench(self.backend, model, tp)
        except Exception as error:
            if out_of_memory(error):
                raise self._too_large(model, tp) from None
            raise
        fresh: list[LayerPoint] = []
        limit = grow(
            lambda size: self._layer(bench, size, fresh), self.request.largest or self.backend.largest(model)
        )
        if not limit.fits:
            raise self._too_large(model, tp)
        self.limits[tp] = limit
        self._settle(bench, fresh)

    def _settle(self, bench: LayerBench, fresh: list[LayerPoint]) -> None:
        """Read the new micro-batches again in turns while they differ: what drifts then falls on all alike."""
        for turn in range(ROUNDS):
            if all((point.spread or 0.0) < STEADY for point in fresh):
                return
            for index, point in enumerate(fresh):
                self._check_time()
                what = f"{_what(point.model, point.tp, point.micro_batch)}, again ({turn + 1} of {ROUNDS})"
                settled = self._tried(partial(bench.again, point), what)
                if settled:
                    fresh[index] = settled
                    self._add(Calibration(layers=(settled,)), what)

    def _too_large(self, model: ModelSpec, tp: int) -> UsageError:
        """Not even one sequence fits."""
        return UsageError(
            f"{model.name}: out of memory at micro-batch 1, tp {tp}, on {self.backend.name}",
            hint="measure with a larger --tp or a shorter --sequence-length, or free the device",
        )

    def _layer(self, bench: LayerBench, size: int, fresh: list[LayerPoint]) -> bool:
        """Measure one micro-batch unless it is known, and add it to the fresh ones; False when memory runs out."""
        key = (name_key(self.backend.name), name_key(bench.model.name), bench.tp, size)
        self._done += size == 1
        if key in self._layers:
            return True
        self._check_time()
        what = _what(bench.model.name, bench.tp, size)
        point = self._tried(lambda: bench.measure(size), what)
        if not point:
            return False
        self._layers[key] = point
        fresh.append(point)
        self._add(Calibration(layers=(point,)), what)
        return True

    def _tried(self, measure: Callable[[], T], what: str) -> T | None:
        """What is measured; None when memory runs out, and says so."""
        try:
            return measure()
        except Exception as error:
            if not out_of_memory(error):
                raise
            self._report(f"{what}: out of memory")
            return None
        finally:
            self.backend.free()

    def _add(self, measured: Calibration, what: str) -> None:
        self.calibration = merged(self.calibration, measured)
        self._fresh = True
        self._keep(self.calibration)
        self._report(what)

    def _report(self, what: str) -> None:
        self._tell(Event(what=what, done=self._done, total=self.total))

    def _check_time(self) -> None:
        if time.monotonic() > self._deadline:
            raise OutOfTimeError

    def _own_kernels(self) -> list[KernelPoint]:
        own = name_key(self.backend.name)
        return [point for point in self.calibration.kernel_points if name_key(point.gpu) == own]

    def _keep_context(self) -> None:
        """What one process takes of the device beside its tensors, once its libraries are loaded."""
        used = self.backend.context_bytes() if self._fresh else None
        # A process alone has no buffers of collectives: the shipped constant, which has them, holds unless exceeded.
        if used is not None and used > shipped().framework(PLAIN_TORCH.name).runtime_bytes:
            constant = Constant(
                name=f"frameworks.{PLAIN_TORCH.name}.runtime_bytes", value=used, provenance="measured"
            )
            more = Calibration(
                frameworks={PLAIN_TORCH.name: Framework(runtime_bytes=used)}, constants=(constant,)
            )
            self.calibration = merged(self.calibration, more)

    def _fit(self) -> None:
        """Constants and errors of all points so far."""
        self._keep_context()
        model = self.request.model
        precision = model.training.precision if model else self.backend.precision
        points = self._own_kernels()
        factor = shipped().framework(PLAIN_TORCH.name).host_factor
        fitted = fit_family(self.backend.family, points, self.peaks(), precision, factor)
        more = Calibration(families={self.backend.family: fitted.family}, constants=fitted.constants)
        self.calibration = with_errors(merged(self.calibration, more), fitted.errors)
        self._keep(self.calibration)


def _what(model: str, tp: int, micro_batch: int) -> str:
    return f"layer of {model}, tp {tp}, micro-batch {micro_batch}"
