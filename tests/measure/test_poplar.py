"""Poplar's profiling on the CPU at hand, with a planted end of its memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from planner.calibration.values import LayerPoint
from planner.errors import UsageError
from planner.measure.samples import ProfilePoint
from planner.model.spec import ModelSpec
from tests.worlds import model

torch = pytest.importorskip("torch")

from planner.measure.backend import Backend, open_backend  # noqa: E402
from planner.measure.poplar import (  # noqa: E402
    WholeModel,
    fastest,
    profile_stages,
    state_bytes,
)

pytestmark = pytest.mark.usefixtures("quick")


@pytest.fixture
def small() -> ModelSpec:
    """A model of one thread's size, with states of half a megabyte."""
    return model(8, layers=2, precision="fp32", dropout=False)


@pytest.fixture
def cpu() -> Backend:
    """The processor."""
    return open_backend("cpu")


def test_states_are_divided_stage_by_stage(small: ModelSpec) -> None:
    """fp32: 4 bytes of parameter, 4 of gradient, 8 of moments (arXiv:1910.02054, figure 1, without copies)."""
    whole = small.parameters
    assert [state_bytes(small, zero, 4) / whole for zero in range(4)] == [16.0, 10.0, 7.0, 4.0]
    half = small.model_copy(update={"training": small.training.model_copy(update={"precision": "bf16"})})
    assert [state_bytes(half, zero, 1) / whole for zero in range(4)] == [16.0] * 4
    assert state_bytes(half, 1, 4) / whole == 2 + 2 + 12 / 4


def test_the_end_of_memory_is_found_exactly(cpu: Backend, small: ModelSpec) -> None:
    """As by trying every micro-batch: the planted limit is met by what is measured, states included."""
    memory = state_bytes(small, 0, 8) + 1.2e6
    kept: list[LayerPoint] = []
    stages = profile_stages(cpu, small, (0, 1, 3), 8, 64, memory, kept.extend, lambda event: None)
    assert [stage.zero for stage in stages] == [0, 1, 3]
    limits = [stage.micro_batch for stage in stages]
    assert 1 < limits[0] <= limits[1] <= limits[2] < 64
    for stage in stages:
        assert stage.out_of_memory == stage.micro_batch + 1
        assert all(point.used_bytes <= memory for point in stage.points)
        assert max(point.micro_batch for point in stage.points) == stage.micro_batch
        assert stage.estimated is not None
        assert abs(stage.estimated - stage.micro_batch) <= 0.5 * stage.micro_batch + 1
    bench = WholeModel(cpu, small, 0, 8, memory)
    fits = [size for size in range(1, limits[0] + 2) if bench.measure(size)]
    assert fits == list(range(1, limits[0] + 1))
    assert {(point.model, point.tp) for point in kept} == {(small.name, 1)}
    assert all(point.forward_seconds > 0 and point.backward_seconds > 0 for point in kept)


@pytest.mark.slow
def test_a_stage_that_does_not_fit_is_left_for_the_next(cpu: Backend, small: ModelSpec) -> None:
    """And where none does it is said."""
    deep = small.model_copy(update={"layers": 24})
    memory = 0.9 * state_bytes(deep, 0, 8)
    stages = profile_stages(cpu, deep, (0, 3), 8, 4, memory, lambda found: None, lambda event: None)
    assert [(stage.micro_batch > 0, bool(stage.points)) for stage in stages] == [
        (False, False),
        (True, True),
    ]
    with pytest.raises(UsageError, match="out of memory at micro-batch 1 with ZeRO 0, 1 among 8 devices"):
        profile_stages(cpu, small, (0, 1), 8, 4, 1e4, lambda found: None, lambda event: None)


@pytest.mark.parametrize(("stop", "sizes"), [(4, [[1, 2]]), (1, [])])
def test_an_interrupt_keeps_the_layers_of_its_stage(
    cpu: Backend, small: ModelSpec, monkeypatch: pytest.MonkeyPatch, stop: int, sizes: list[list[int]]
) -> None:
    """Those that were measured before it; a stage without any writes nothing."""
    measure, kept = WholeModel.measure, list[list[int]]()

    def measured(bench: WholeModel, micro_batch: int) -> bool:
        if micro_batch == stop:
            raise KeyboardInterrupt
        return measure(bench, micro_batch)

    def keep(points: Sequence[LayerPoint]) -> None:
        kept.append([point.micro_batch for point in points])

    monkeypatch.setattr(WholeModel, "measure", measured)
    with pytest.raises(KeyboardInterrupt):
        profile_stages(cpu, small, (0, 1), 8, 64, None, keep, lambda event: None)
    assert kept == sizes


def test_the_fastest_lies_on_the_spline() -> None:
    """Between points too, and not always at the end."""
    points = [
        ProfilePoint(micro_batch=size, seconds=seconds, spread=0.0, used_bytes=1.0)
        for size, seconds in ((1, 1.0), (2, 1.2), (4, 1.8), (8, 6.0))
    ]
    assert fastest(points) in (3, 4)
    assert fastest(points[:1]) == 1
    assert fastest(()) is None
    straight = [replace(point, seconds=0.5 + point.micro_batch) for point in points]
    assert fastest(straight) == 8


def test_experts_and_towers_are_refused(cpu: Backend, small: ModelSpec) -> None:
    """Their layers are measured instead."""
    with pytest.raises(UsageError, match="cannot be measured with plain torch"):
        WholeModel(
            cpu,
            small.model_copy(update={"training": small.training.model_copy(update={"precision": "fp8"})}),
            0,
            1,
            None,
        )
