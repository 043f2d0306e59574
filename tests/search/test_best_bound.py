"""Which bounds are asked, and what becomes of their answers: by hand."""

from __future__ import annotations

from math import inf
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

import numpy as np
import pytest

from planner.search.bounds import best
from planner.search.bounds.best import FamilyBounds, UniformBounds
from planner.search.space.choices import Choice, Family

FAMILY = Family(target="megatron", zero=1, recompute="none", tp=1, dp=1, batch=1, micro_batches=8)
FREE = FAMILY._replace(target="flagscale", tp=None, dp=None, recompute=None)


def told(seconds: float) -> SimpleNamespace:
    """A bound that says this of all depths."""
    return SimpleNamespace(bound=lambda depth, known=0.0, cutoff=inf: seconds)


def families() -> FamilyBounds:
    """Of a search that nothing is known of."""
    estimator = SimpleNamespace(model=SimpleNamespace(layers=80))
    with patch.object(best, "Rates"):
        return FamilyBounds(cast("Any", estimator))


def test_bounds_of_stages_with_their_own_degrees() -> None:
    """Prices of devices are for pipelines; one stage alone has the closed form."""
    found = families()
    assert found._most == 64
    with (
        patch.object(found, "_per_stage_degrees", return_value=told(2.0)),
        patch.object(found, "_lagrangian", return_value=told(3.0)),
    ):
        assert list(found.bounds(FREE, (1, 2, 3), 1)) == [2.0, 3.0, 3.0]
        assert found.bound(FREE, 2, 1) == 3.0
        assert found.bound(FREE, 2, 1, cutoff=1.0) == 2.0


def test_when_one_micro_batch_is_bounded() -> None:
    """Of pipelines below a cutoff: by prices, or by layers where they are plain."""
    found = families()
    prices = SimpleNamespace(once=lambda depth, cutoff: 10 * depth + cutoff)
    layers = SimpleNamespace(once=lambda depth, cutoff: 100 * depth + cutoff)
    with (
        patch.object(found, "_lagrangian", return_value=prices),
        patch.object(found, "uniform", return_value=layers),
    ):
        for family, depth, chunks, cutoff, expected in (
            (FREE, 2, 1, 5.0, 25.0),
            (FREE, 2, 1, inf, 0.0),
            (FREE, 1, 1, 5.0, 0.0),
            (FAMILY, 3, 1, 5.0, 305.0),
            (FAMILY, 3, 2, 5.0, 0.0),
            (FAMILY, 3, 1, inf, 0.0),
            (FAMILY, 1, 1, 5.0, 0.0),
        ):
            choice = Choice(family=family, depth=depth, interleave=chunks)
            assert found.once(choice, cutoff) == expected


def test_families_are_looked_at_many_at_once() -> None:
    """256 of them, each with its depth."""
    found = families()
    parts: list[tuple[int, int, int]] = []

    def late(
        work: Any, layers: int, steps: list[int], depths: list[int], cutoff: float, v_shaped: list[bool]
    ) -> Any:
        parts.append((len(steps), depths[0], depths[-1]))
        assert (layers, cutoff, len(v_shaped)) == (80, 7.0, len(steps))
        return np.array(depths, dtype=float)

    with patch.object(best, "late", late):
        assert found.late([FAMILY] * 600, list(range(600)), 7.0) == [float(depth) for depth in range(600)]
    assert parts == [(256, 0, 255), (256, 256, 511), (88, 512, 599)]


def uniform(
    holds: list[bool], free: list[float], sent: list[float], counted: dict[str, float]
) -> UniformBounds:
    """Of ramps and counted layers that say this, [stages - 1]."""
    found = object.__new__(UniformBounds)
    found._holds = np.array(holds)
    ramp = SimpleNamespace(
        bounds=lambda chunks, hops=None, divided=False: np.array(free if hops is None else sent)
    )
    found.__dict__["_ramp"] = ramp
    asked = SimpleNamespace(
        beyond=lambda depths, cutoff: np.array([counted["beyond"]] * len(depths)),
        bound=lambda depth, cutoff=inf: counted["bound"] + depth,
        once=lambda depth, seconds: counted["bound"] + seconds,
    )
    found._counted = lambda *_, **__: asked  # type: ignore[assignment,method-assign]
    found._hops = lambda *_: []  # type: ignore[method-assign]
    return found


@pytest.mark.parametrize(
    ("cutoff", "counted", "expected"),
    [
        # One stage has no sends: its ramp is the free one.
        (inf, {"beyond": 0.0, "bound": 0.0}, [inf, 5.0, 6.0, 7.0]),
        (inf, {"beyond": 0.0, "bound": 4.0}, [inf, 6.0, 7.0, 8.0]),
        (6.5, {"beyond": 0.0, "bound": 4.0}, [inf, 6.0, 7.0, 7.0]),
        (6.5, {"beyond": 9.0, "bound": 4.0}, [inf, 9.0, 9.0, 7.0]),
        (3.5, {"beyond": 9.0, "bound": 40.0}, [inf, 5.0, 4.0, 5.0]),
        (3.0, {"beyond": 9.0, "bound": 40.0}, [inf, 3.0, 4.0, 5.0]),
    ],
)
def test_bounds_of_a_family_by_depth(cutoff: float, counted: dict[str, float], expected: list[float]) -> None:
    """Free ramps first, then sends, quick looks and counted layers of those that are below the cutoff."""
    found = uniform([False, True, True, True], [2.0, 3.0, 4.0, 5.0], [2.5, 5.0, 6.0, 7.0], counted)
    assert list(found.bounds((1, 2, 3, 4), 1, cutoff)) == expected


def test_bounds_of_what_memory_does_not_hold() -> None:
    """Infinite, whatever other bounds say."""
    found = uniform([False, False, True], [1.0] * 3, [1.0] * 3, {"beyond": 0.0, "bound": 1.0})
    assert list(found.bounds((1, 2), 1)) == [inf, inf]
    assert list(found.bounds((2, 3), 1, 0.5)) == [inf, 1.0]
    assert (found.once(2, 5.0), found.once(3, 5.0)) == (inf, 6.0)
    assert [found.holds(depth) for depth in (1, 2, 3)] == [False, False, True]


def test_deep_pipelines_have_no_more_chunks() -> None:
    """Several chunks, and divided backwards, count at no more stages than there are micro-batches."""
    plain, full = np.array([10.0, 6.0, 4.0, 3.0]), np.array([9.0, 5.0, 2.0, 1.0])
    ramp = SimpleNamespace(bounds=lambda chunks, divided=False: plain if chunks == 1 else full)
    for steps, depth, expected in ((1, 4, 3.0), (2, 2, 5.0), (2, 3, 4.0), (3, 3, 2.0), (8, 4, 1.0)):
        bounds = object.__new__(UniformBounds)
        bounds._family, bounds._holds = FAMILY._replace(micro_batches=steps), np.ones(4, dtype=bool)
        bounds.__dict__["_ramp"] = ramp
        assert bounds.least(depth) == expected
        bounds._holds = np.zeros(4, dtype=bool)
        assert bounds.least(depth) == inf
