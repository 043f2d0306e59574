"""A calibration of the CPU at hand, in small."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from planner.calibration.values import ASSUMED, Calibration, LayerPoint
from planner.errors import UsageError
from planner.model.spec import ModelSpec
from tests.quick import first
from tests.worlds import model

torch = pytest.importorskip("torch")

from planner.measure.backend import Backend, open_backend, out_of_memory  # noqa: E402
from planner.measure.layers import LayerBench  # noqa: E402
from planner.measure.samples import Event, Limit  # noqa: E402
from planner.measure.session import Request, Session  # noqa: E402

pytestmark = pytest.mark.usefixtures("quick")


@pytest.fixture
def small() -> ModelSpec:
    """A model of one thread's size."""
    return model(8, precision="fp32", dropout=False)


@pytest.fixture
def cpu() -> Backend:
    """The processor."""
    return open_backend("cpu")


def session(
    backend: Backend,
    before: Calibration = ASSUMED,
    keep: Callable[[Calibration], None] = lambda found: None,
    tell: Callable[[Event], None] = lambda event: None,
    **request: Any,
) -> Session:
    """A session with a request of these fields."""
    return Session(backend, Request(**request), before, keep, tell)


def test_everything_is_measured_once(cpu: Backend, small: ModelSpec) -> None:
    """Kernels, layers, constants, errors; a second session has nothing left to do."""
    events: list[Event] = []
    first = session(cpu, tell=events.append, model=small, tps=(1, 2), largest=4)
    assert first.run()
    found = first.calibration
    assert {point.kernel for point in found.kernel_points} == {
        "floor",
        "launch",
        "copy",
        "triad",
        "matmul",
        "attention",
        "optimizer",
    }
    assert [(point.tp, point.micro_batch) for point in found.layers] == [
        (tp, size) for tp in (1, 2) for size in (1, 2, 4)
    ]
    assert first.limits == {1: Limit(4, None), 2: Limit(4, None)}
    assert all(point.activation_bytes and point.peak_bytes is None for point in found.layers)
    assert [point.without_collectives for point in found.layers] == [False] * 3 + [True] * 3
    assert found.layers[0].parameters == small.layer_parameters
    assert 0 < found.family(cpu.family).matmul_efficiency <= 1
    assert {item.curve for item in found.curve_errors} >= {f"layers of {small.name} on {cpu.name}, tp 1"}
    assert (events[-1].done, events[-1].total) == (first.total, first.total)

    events.clear()
    second = session(cpu, found, tell=events.append, model=small, tps=(1, 2), largest=4)
    assert second.run()
    assert events == []
    assert second.calibration == found


def test_points_are_kept_as_they_come(
    cpu: Backend, monkeypatch: pytest.MonkeyPatch, small: ModelSpec
) -> None:
    """Ctrl-C in the middle leaves a calibration with constants."""
    kept: list[Calibration] = []

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(LayerBench, "measure", interrupt)
    with pytest.raises(KeyboardInterrupt):
        session(cpu, keep=kept.append, model=small).run()
    assert [len(item.kernel_points) for item in kept[:3]] == [1, 2, 3]
    assert kept[-1].constants
    assert kept[-1].layers == ()


def test_no_time_left(cpu: Backend) -> None:
    """Is no error."""
    one = session(cpu, model=None, seconds=0.0)
    assert not one.run()
    assert one.calibration.kernel_points == ()


def measured_up_to(limit: int, error: Exception) -> Callable[[LayerBench, int], Any]:
    """A layer that runs out of memory beyond a micro-batch."""
    real = LayerBench.measure

    def measure(bench: LayerBench, size: int) -> Any:
        if size > limit:
            raise error
        return real(bench, size)

    return measure


def test_sizes_that_differ_are_read_again_in_turns(
    cpu: Backend, monkeypatch: pytest.MonkeyPatch, small: ModelSpec
) -> None:
    """Drift then falls on all of them; steady ones are left alone, and so are those that an earlier session has."""
    turns: list[int] = []
    drifting = {"spread": 0.05}

    def again(bench: LayerBench, point: LayerPoint) -> LayerPoint:
        turns.append(point.micro_batch)
        return replace(point, spread=drifting["spread"])

    real = LayerBench.measure
    monkeypatch.setattr(
        LayerBench, "measure", lambda bench, size: replace(real(bench, size), spread=drifting["spread"])
    )
    monkeypatch.setattr(LayerBench, "again", again)
    first = session(cpu, model=small, largest=2)
    first.run()
    assert turns == [1, 2] * 3

    turns.clear()
    session(cpu, first.calibration, model=small, largest=4).run()
    assert turns == [4] * 3

    turns.clear()
    drifting["spread"] = 0.01
    session(cpu, model=small, largest=4).run()
    assert turns == []


def test_more_readings_of_a_size_are_added(
    cpu: Backend, monkeypatch: pytest.MonkeyPatch, small: ModelSpec
) -> None:
    """The point is the median of all."""
    bench = LayerBench(cpu, small, 1)
    seconds = {"now": 1.0}
    monkeypatch.setattr(LayerBench, "_reading", lambda *_: (seconds["now"], 2 * seconds["now"]))
    monkeypatch.setattr("planner.measure.backend.MOST_SECONDS", 0.0)
    first = bench.measure(2)
    assert (first.forward_seconds, first.backward_seconds, first.spread) == (1.0, 2.0, 0.0)
    seconds["now"] = 3.0
    second = bench.again(bench.again(first))
    assert (second.forward_seconds, second.backward_seconds) == (3.0, 6.0)
    assert second.spread == pytest.approx(2.0 / 1.349 / 3.0)
    assert second.activation_bytes == first.activation_bytes


@pytest.mark.parametrize(
    "error",
    first(
        2,
        [
            torch.cuda.OutOfMemoryError("CUDA out of memory"),
            RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes"),
            MemoryError(),
        ],
    ),
)
def test_memory_that_runs_out_is_the_limit(
    cpu: Backend, monkeypatch: pytest.MonkeyPatch, small: ModelSpec, error: Exception
) -> None:
    """By bisection; at micro-batch 1 it is an error."""
    monkeypatch.setattr(LayerBench, "measure", measured_up_to(3, error))
    one = session(cpu, model=small)
    one.run()
    assert one.limits == {1: Limit(3, 4)}
    assert [point.micro_batch for point in one.calibration.layers] == [1, 2, 3]
    monkeypatch.setattr(LayerBench, "measure", measured_up_to(0, error))
    with pytest.raises(UsageError, match="out of memory at micro-batch 1, tp 1"):
        session(
            cpu, one.calibration.__class__(kernel_points=one.calibration.kernel_points), model=small
        ).run()


def test_parameters_that_do_not_fit(cpu: Backend, monkeypatch: pytest.MonkeyPatch, small: ModelSpec) -> None:
    """Are the same error."""

    def full(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(LayerBench, "__init__", full)
    with pytest.raises(UsageError, match="out of memory at micro-batch 1, tp 1"):
        session(cpu, model=small).run()


def test_the_context_of_a_gpu_is_a_constant_of_the_stack(
    cpu: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where it exceeds what is shipped, which has collectives too; without new points the old number stays."""
    monkeypatch.setattr(Backend, "context_bytes", lambda self: 5e8)
    less = session(cpu, model=None)
    less.run()
    assert "torch" not in less.calibration.frameworks
    monkeypatch.setattr(Backend, "context_bytes", lambda self: 9e9)
    first = session(cpu, model=None)
    first.run()
    assert first.calibration.framework("torch").runtime_bytes == 9e9
    monkeypatch.setattr(Backend, "context_bytes", lambda self: 1e8)
    second = session(cpu, first.calibration, model=None)
    second.run()
    assert second.calibration.framework("torch").runtime_bytes == 9e9


def test_other_errors_are_not_memory(cpu: Backend, monkeypatch: pytest.MonkeyPatch, small: ModelSpec) -> None:
    """They are not swallowed."""
    monkeypatch.setattr(LayerBench, "measure", measured_up_to(1, RuntimeError("broken")))
    with pytest.raises(RuntimeError, match="broken"):
        session(cpu, model=small).run()
    assert not out_of_memory(ValueError("allocate memory"))


def test_what_cannot_be_measured_is_refused(cpu: Backend, small: ModelSpec) -> None:
    """A degree that does not divide, a format that torch lacks, a GPU that is not there."""
    with pytest.raises(UsageError, match="--tp 3: heads"):
        LayerBench(cpu, small, 3)
    training = small.training.model_copy(update={"precision": "fp8"})
    with pytest.raises(UsageError, match="layers in fp8 cannot be measured"):
        LayerBench(cpu, small.model_copy(update={"training": training}), 1)
    if not torch.cuda.is_available():
        with pytest.raises(UsageError, match="torch sees no GPU"):
            open_backend("cuda")


@pytest.mark.parametrize(
    ("precision", "attention"), [("fp32", "unfused"), ("bf16", "flash"), ("tf32", "flash")]
)
def test_formats_and_attention_of_the_model(cpu: Backend, precision: str, attention: str) -> None:
    """Each is measured as it is, and torch's settings are left as they were."""
    spec = model(8, precision=precision, attention=attention)
    before = torch.backends.cuda.matmul.allow_tf32
    found = LayerBench(cpu, spec, 1).measure(1)
    assert found.forward_seconds > 0
    assert found.backward_seconds > 0
    assert torch.backends.cuda.matmul.allow_tf32 == before


def test_a_device_of_the_catalogue_has_its_peaks(cpu: Backend) -> None:
    """In place of measured ones."""
    from planner import catalog

    known = catalog.gpu("A100-SXM-80GB")
    named = replace(cpu, known=known, name=known.name, family=known.family)
    peaks = session(named, model=None).peaks()
    assert peaks.flops["bf16"] == pytest.approx(312e12)
    assert peaks.multiprocessors == 108
