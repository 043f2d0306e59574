"""Plans inside the error bar that are simpler, and what fp16 gives where devices without bf16 idle."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.calibration.file import shipped
from planner.cluster.file import load_cluster
from planner.cost.estimate import Estimator
from planner.model.file import load_model
from planner.search.explain.ties import TIE, simpler
from planner.search.objectives.choose import choose
from planner.search.values import Alternative, Goal, Limits, SearchResult
from tests.cli.running import CLUSTER, MODEL


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> tuple[SearchResult, Estimator]:
    """A search of the small cluster in bf16, which its V100 lack."""
    folder = tmp_path_factory.mktemp("ties")
    (folder / "c.yaml").write_text(CLUSTER)
    (folder / "m.yaml").write_text(MODEL.replace("fp16", "bf16"))
    cluster, model = load_cluster(folder / "c.yaml"), load_model(folder / "m.yaml")
    found = choose(cluster, model, shipped(), Limits(target="torch"), Goal())
    return found, Estimator(cluster, model, shipped())


def test_fp16_where_devices_lack_bf16(result: tuple[SearchResult, Estimator]) -> None:
    """A real plan on devices that were idle, and how much faster it is."""
    found, _ = result
    assert found.best is not None
    assert found.other_format is not None
    assert (found.other_format.precision, found.other_format.idle) == ("fp16", 2)
    quick = found.other_format.scored.estimate.tokens_per_second
    assert found.other_format.faster == quick / found.best.estimate.tokens_per_second - 1


def test_what_is_simpler(result: tuple[SearchResult, Estimator]) -> None:
    """Slower by less than the tie, less of something and more of nothing; the answer stays the fastest."""
    found, estimator = result
    best = found.best
    assert best is not None

    def among(slower: float, devices: int, price: float | None = None) -> list[float]:
        """How much slower the simpler plans are when there is one with these numbers beside a dearer answer."""
        estimate = replace(best.estimate, devices=4, price_per_hour=10.0)
        other = replace(
            best,
            plan=replace(best.plan, zero=3 - best.plan.zero),
            estimate=replace(
                estimate,
                step_seconds=estimate.step_seconds * (1 + slower),
                devices=devices,
                price_per_hour=price,
            ),
        )
        families = (Alternative(family="other", scored=other, chosen=False, reason=""),)
        changed = replace(found, best=replace(best, estimate=estimate), alternatives=families)
        assert changed.best is not None
        return [round(entry.slower, 3) for entry in simpler(changed, estimator)]

    assert among(0.03, 2, 5.0) == [0.03]
    assert among(0.03, 4, 5.0) == [0.03]
    assert among(TIE + 0.01, 2, 5.0) == []
    assert among(0.03, 4, 10.0) == []
    assert among(0.03, 2, 11.0) == []
    assert among(0.03, 5, 5.0) == []
