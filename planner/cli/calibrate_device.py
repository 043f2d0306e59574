"""``hetplan calibrate device``: the constants and the layers of the device at hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from planner.calibration.file import save_calibration
from planner.calibration.merge import layer_key, merged
from planner.calibration.values import Calibration, LayerPoint
from planner.cli.calibrate import EXAMPLE, Minutes, Output, before, budget_seconds, require_torch
from planner.cli.inputs import Overrides, overridden, with_calibration
from planner.cli.options import (
    AsJson,
    Force,
    Precision,
    SequenceLength,
    choices,
    flag,
    integers,
    option,
    require_name,
)
from planner.cli.output import require_writable, show, show_document, typed
from planner.cli.process import as_typed, warn
from planner.cli.progress import measuring
from planner.errors import UsageError
from planner.measure.resume import facts_of, resumable, with_facts
from planner.model.file import load_model
from planner.model.spec import ModelSpec
from planner.ranges import BATCH, DEVICES, MEMORY_GIB, NODE_DEVICES, ZERO
from planner.report.measured import Told, device_document, device_sections, poplar_document, poplar_section
from planner.units import bytes_from_gib

if TYPE_CHECKING:
    from planner.measure.backend import Backend
    from planner.measure.session import Request, Session


@dataclass(frozen=True, slots=True, kw_only=True)
class PoplarOptions:
    """Whether and how a device is profiled as Poplar does."""

    as_poplar: Annotated[
        bool,
        flag(
            "--as-poplar",
            "Profile the whole --model for each ZeRO stage until memory runs out, as Poplar does.",
        ),
    ] = False
    devices: Annotated[
        int,
        option(
            "--devices",
            "N",
            "With --as-poplar: devices among which ZeRO divides the states.",
            allowed=DEVICES,
        ),
    ] = 8
    memory_gib: Annotated[
        float | None,
        option(
            "--memory-gib",
            "GIB",
            "With --as-poplar: memory that may be filled. Default: all of the device's.",
        ),
    ] = None

    def memory_bytes(self) -> int | None:
        """Memory that may be filled; None for all. Raises UsageError for what is out of range, or of no use."""
        given = self.memory_gib
        if given is not None and not (self.as_poplar and MEMORY_GIB.holds(given)):
            limits = f"a number from {MEMORY_GIB.least:g} to {MEMORY_GIB.most:g}, with --as-poplar"
            raise UsageError(f"--memory-gib: expected {limits}, got {given:g}")
        return None if given is None else bytes_from_gib(given)


@dataclass(slots=True)
class _Writer:
    """Writes the calibration so far under the facts of this run."""

    path: Path
    facts: dict[str, str]
    search: str
    """The command that goes on with it."""
    latest: Calibration | None = field(default=None)

    def keep(self, calibration: Calibration) -> None:
        self.latest = with_facts(calibration, self.facts)
        save_calibration(self.latest, self.path)


def measure_device(
    *,
    output: Output = Path(EXAMPLE),
    model: Annotated[Path | None, option("--model", "FILE", "Also measure layers of this model.")] = None,
    zero: Annotated[
        str, option("--zero", "LIST", "ZeRO stages to measure the optimizer step for.")
    ] = "0,1,2,3",
    tp: Annotated[str, option("--tp", "LIST", "Tensor-parallel degrees to measure the layers at.")] = "1",
    minutes: Minutes = None,
    device: Annotated[
        str | None, option("--device", "NAME", "cuda (also for ROCm) or cpu. Default: cuda if available.")
    ] = None,
    name: Annotated[
        str | None,
        option(
            "--name", "NAME", "Name of the device in the cluster file, if the driver's name does not fit."
        ),
    ] = None,
    largest_micro_batch: Annotated[
        int | None,
        option(
            "--largest-micro-batch",
            "N",
            "Largest micro-batch to try. Default: the model's batch, 16 on a CPU.",
            allowed=BATCH,
        ),
    ] = None,
    poplar: PoplarOptions,
    precision: Precision = None,
    sequence_length: SequenceLength = None,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Measure the device of this machine.

    Kernel benchmarks give the constants of the device's GPU family; with --model, layers at growing micro-batch
    sizes give curves. An existing output file is continued: its points are not measured again unless --force is
    given. Points measured before Ctrl-C or the --minutes limit are kept.
    """
    require_torch()
    require_writable(output, EXAMPLE)
    seconds = budget_seconds(minutes)
    choices("--device", device, ("cuda", "cpu"))
    spec = _model(model, precision, sequence_length)
    from planner.measure.backend import open_backend
    from planner.measure.session import Request, Session
    from planner.runtimes.torch import hetplan_exchange

    memory = poplar.memory_bytes()
    zeros = integers("--zero", zero, ZERO) or ()
    backend = open_backend(device, require_name(name))
    searched = Overrides(precision=precision, sequence_length=sequence_length).words()
    search = typed("hetplan", "search", "CLUSTER", model or "MODEL", *searched)
    writer = _Writer(output, facts_of(backend, spec, as_typed()), with_calibration(search, output))
    known = before(output, force)
    if poplar.as_poplar:
        _profile_as_poplar(
            backend, spec, zeros, poplar.devices, largest_micro_batch, memory, known, writer, as_json
        )
        return
    request = Request(
        model=spec,
        tps=integers("--tp", tp, NODE_DEVICES) or (1,),
        zeros=zeros,
        largest=largest_micro_batch,
        seconds=seconds,
        exchange=hetplan_exchange,
    )
    kept, warnings = resumable(known, writer.facts, backend.name, spec)
    for line in warnings:
        warn(f"{output}: {line}")

    with measuring() as tell:
        session = Session(backend, request, kept, writer.keep, tell)
        ended = _run(session)
    _tell(session, writer, request, backend, ended, as_json)
    if ended == "Ctrl-C":
        raise KeyboardInterrupt


def _profile_as_poplar(
    backend: Backend,
    model: ModelSpec | None,
    zeros: tuple[int, ...],
    devices: int,
    largest: int | None,
    memory: int | None,
    known: Calibration,
    writer: _Writer,
    as_json: bool,
) -> None:
    """Poplar's algorithm 1, into the same calibration file; raises UsageError without a model."""
    if model is None:
        raise UsageError("--as-poplar profiles a whole model: expected --model FILE with it")
    from planner.measure.poplar import profile_stages

    def keep(layers: Sequence[LayerPoint]) -> None:
        nonlocal known
        # Stages that measure the same micro-batch again agree on layers: the first one stays.
        there = {layer_key(point) for point in known.layers}
        new = tuple(point for point in layers if layer_key(point) not in there)
        known = merged(known, Calibration(layers=new))
        writer.keep(known)

    with measuring() as tell:
        stages = profile_stages(
            backend, model, zeros, devices, largest or backend.largest(model), memory, keep, tell
        )
    document = poplar_document(stages, backend.name, devices, writer.path)
    if as_json:
        show_document(document)
    else:
        show(poplar_section(document), then=writer.search)


def _model(path: Path | None, precision: str | None, length: int | None) -> ModelSpec | None:
    if path is None:
        if precision or length:
            raise UsageError("--precision and --sequence-length: expected --model FILE with them")
        return None

    return overridden(load_model(path), Overrides(precision=precision, sequence_length=length))


def _run(session: Session) -> str:
    """Measure; what ended it before its end, empty when nothing did."""
    try:
        return "" if session.run() else "--minutes"
    except KeyboardInterrupt:
        return "Ctrl-C"


def _tell(
    session: Session, writer: _Writer, request: Request, backend: Backend, ended: str, as_json: bool
) -> None:
    assert writer.latest is not None
    told = Told(
        calibration=writer.latest,
        path=writer.path,
        gpu=backend.name,
        family=backend.family,
        peaks=None if backend.known else session.peaks(),
        memory_bytes=backend.memory_bytes(),
        limits=session.limits,
        load=backend.load(),
        ended=ended,
        model=request.model,
    )
    if as_json:
        show_document(device_document(told))
    else:
        show(*device_sections(told), then=writer.search)
