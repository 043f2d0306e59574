"""Searches leave nothing behind: a process may do thousands of them."""

from __future__ import annotations

import gc
import pickle
from collections.abc import Iterator
from unittest.mock import patch
from weakref import WeakSet

import pytest

from planner.cost.estimate import Estimator
from planner.search.milp import solver
from planner.search.solve import search
from planner.search.space.derived import derived
from planner.search.values import Limits
from tests.worlds import cluster, gpt, pool


@pytest.fixture
def made() -> Iterator[WeakSet[object]]:
    """Estimators, and models of HiGHS, that are made and still there."""
    alive: WeakSet[object] = WeakSet()
    estimator, model = Estimator.__init__, solver._Highs.__init__
    count = 0

    def noted_estimator(self: Estimator, *args: object, **more: object) -> None:
        nonlocal count
        count += 1
        alive.add(self)
        estimator(self, *args, **more)  # type: ignore[arg-type]

    def noted_model(self: solver._Highs, *args: object, **more: object) -> None:
        nonlocal count
        count += 1
        model(self, *args, **more)  # type: ignore[arg-type]
        alive.add(self.model)

    with (
        patch.object(Estimator, "__init__", noted_estimator),
        patch.object(solver._Highs, "__init__", noted_model),
    ):
        yield alive
    assert count > 2


def test_a_search_leaves_no_estimator_and_no_program(made: WeakSet[object]) -> None:
    """HiGHS holds what it asks, unseen by the garbage collector: nothing of that leads back to the model."""
    pools = pool("a", "A100", per_node=2), pool("b", "V100", per_node=2)
    result = search(
        cluster(*pools), gpt(5, 1024, 8, global_batch=8), limits=Limits(target="megatron", gap=0.0)
    )
    assert result.best is not None
    del result
    gc.collect()
    assert len(made) == 0


def test_what_is_derived_of_an_estimator() -> None:
    """Once for all searches of it; another estimator, and a copy that goes to another process, know nothing of it."""
    asked = []

    @derived
    def doubled(estimator: Estimator, number: int, *, more: int = 0) -> int:
        asked.append(number)
        return 2 * number + more + estimator.model.layers

    one, other = (Estimator(cluster(pool("a")), gpt(layers)) for layers in (2, 3))
    assert [doubled(one, 1), doubled(one, 1), doubled(one, 1, more=5), doubled(other, 1)] == [4, 4, 9, 5]
    assert asked == [1, 1, 1]
    assert one.with_calibration(one.calibration).derived == {}
    assert pickle.loads(pickle.dumps(one)).derived == {}
    assert len(one.derived) == 2
