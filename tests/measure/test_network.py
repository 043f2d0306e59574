"""Processes that measure together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from planner.calibration.values import LinkPoint
from planner.errors import UsageError

pytest.importorskip("torch")

from planner.measure import network
from planner.measure.backend import open_backend
from planner.measure.network import World, open_world
from planner.measure.process_groups import MeasurementPlan, MeasuringTeam
from planner.measure.samples import Sample

PAIRS = MeasuringTeam("ib", ((0, 1), (2, 3)))
POINT = LinkPoint(link="ib", operation="all-reduce", members=2, size_bytes=1024.0, seconds=0.0)


def test_outside_of_torchrun(monkeypatch: pytest.MonkeyPatch) -> None:
    """One process measures no network."""
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(UsageError, match="started by torchrun"):
        open_world("cpu")


def refused() -> None:
    """What a backend says of an operation that it has no memory for."""
    raise RuntimeError("CUDA error: out of memory")


@pytest.mark.parametrize(
    ("call", "others", "found"),
    [
        (lambda: None, 0.0, 0.25),
        (lambda: None, 1.0, None),
        (refused, 0.0, "all-reduce: CUDA error: out of memory"),
    ],
    ids=["nobody", "the other pair", "this pair"],
)
def test_no_pair_waits_for_one_that_was_refused(
    monkeypatch: pytest.MonkeyPatch, call: Callable[[], None], others: float, found: object
) -> None:
    """All learn of a refusal before any of them is timed; ``others``: what the other pair says after its first call."""
    said = iter((0.0, others))  # of their tensors, then of their first call

    def slowest(world: World, own: float, group: Any) -> float:
        return max(own, next(said))

    monkeypatch.setattr(network, "_slowest", slowest)
    monkeypatch.setattr(network, "_call", lambda *arguments: call)
    monkeypatch.setattr(network, "_time", lambda *arguments: Sample(0.25, 0.0))
    world = World(rank=0, backend=open_backend("cpu"), hosts=("a", "b", "c", "d"), gpus=("x",) * 4)
    work = MeasurementPlan(teams=(PAIRS,), largest_bytes=1024, seconds=60.0, known=frozenset())
    curve = network._Curve(world, work, PAIRS, "all-reduce", (0, 1), None, None)
    answer = curve.measured(POINT)
    assert (answer.seconds if isinstance(answer, LinkPoint) else answer) == found
    assert next(said, None) is None
