"""Plans inside the error bar that are simpler, and what fp16 gives where devices without bf16 idle."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from planner.calibration.file import shipped
from planner.cluster.file import load_cluster
from planner.cost.estimate import Estimator
from planner.model.file import load_model
from planner.report.goal import format_text, tie_text
from planner.search.explain.ties import _as_simple, _compared, settled, simpler
from planner.search.incumbent import family_of
from planner.search.objectives.choose import choose
from planner.search.values import (
    Advice,
    Alternative,
    Goal,
    IdleCost,
    LimitCost,
    Limits,
    Scored,
    SearchResult,
    Simpler,
)
from tests.cli.running import CLUSTER, MODEL
from tests.report import examples
from tests.worlds import GPUS, cluster, gpt, group, nic, plan, pool


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
    other = found.other_format
    assert (other.precision, other.lacking, other.idle) == ("fp16", "bf16", 2)
    quick = other.scored.estimate.tokens_per_second
    assert other.faster == quick / found.best.estimate.tokens_per_second - 1


def test_bf16_where_devices_lack_fp8() -> None:
    """Eight of ten devices idle in fp8; of both formats that they have the faster one is said."""
    gpus = {
        "H": GPUS["A100"].model_copy(update={"name": "H", "tflops": {"fp8": 700, "bf16": 350, "fp16": 300}})
    }
    pools = pool("new", "H", per_node=2), pool("old", per_node=8)
    where = cluster(*pools, gpus={**GPUS, **gpus})
    asked = Limits(target="megatron", tp=(1,), pp=(1,))
    found = choose(where, gpt(12, 1024, 16, precision="fp8", global_batch=64), shipped(), asked, Goal())
    other = found.other_format
    assert other is not None
    assert (other.precision, other.lacking, other.idle) == ("bf16", "fp8", 8)
    assert other.faster > 0
    assert "without fp8 work: at least" in format_text(other)


def test_what_is_simpler(result: tuple[SearchResult, Estimator]) -> None:
    """Slower by less than the tie, less of something and more of nothing."""
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
        answer = replace(best, estimate=estimate)
        changed = replace(found, best=answer, alternatives=families, by_size=())
        assert changed.best is not None
        return [round(entry.slower, 3) for entry in simpler(changed, estimator)]

    assert among(0.03, 2, 5.0) == [0.03]
    assert among(0.03, 4, 5.0) == [0.03]
    assert among(0.06, 2, 5.0) == []
    assert among(0.03, 4, 10.0) == []
    assert among(0.03, 2, 11.0) == []
    assert among(0.03, 5, 5.0) == []


def test_the_simpler_plan_wins(result: tuple[SearchResult, Estimator]) -> None:
    """It is the answer, with its own gap, and the table says what the fastest gives; limits of a goal keep that one."""
    found, estimator = result
    best = found.best
    assert best is not None
    step = best.estimate.step_seconds
    fast = replace(best, estimate=replace(best.estimate, devices=4))
    other = replace(
        best,
        plan=replace(best.plan, zero=3 - best.plan.zero),
        estimate=replace(best.estimate, devices=2, step_seconds=step * 1.04),
    )
    slow = replace(other, estimate=replace(other.estimate, step_seconds=step * 1.5))
    families = (
        Alternative(family="fast", scored=fast, chosen=True, reason="chosen"),
        Alternative(family="few", scored=other, chosen=False, reason=""),
        Alternative(family="slow", scored=slow, chosen=False, reason=""),
        Alternative(family="none", scored=None, chosen=False, reason="does not fit"),
    )
    before = replace(found, best=fast, bound_seconds=0.99 * step, gap=0.01, alternatives=families, by_size=())
    before = replace(before, simpler=simpler(before, estimator))
    after = settled(before, 0.01)
    assert (after.best, after.status) == (other, "feasible")
    assert after.gap == pytest.approx(1 - 0.99 / 1.04)
    assert after.tie is not None
    assert (after.tie.family, after.tie.scored, after.tie.fewer_devices) == ("fast", fast, 2)
    assert [entry.chosen for entry in after.alternatives] == [False, True, False, False]
    reasons = [entry.reason for entry in after.alternatives]
    assert reasons[:2] == ["3.8 % faster, within the error bar", "chosen"]
    assert reasons[3] == "does not fit"
    told = tie_text(after.tie, 0.33)
    assert told == "3.8 % faster, within the error bar of ±33 %: fast, 2 devices more"
    for goal in (Goal(robust=True), Goal(tokens=1e9, deadline_seconds=1e9)):
        limited = replace(before, goal=goal)
        assert settled(limited, 0.01) is limited
    assert settled(replace(before, simpler=()), 0.01).best is fast
    slower = replace(before.simpler[0], scored=slow, slower=0.5)
    assert settled(replace(before, simpler=(*before.simpler, slower)), 0.01).best is other


def test_what_is_said_beside_is_about_the_plan_that_won(result: tuple[SearchResult, Estimator]) -> None:
    """Limits, advice and the other number format count from its step; what using idle devices costs is left out."""
    found, _ = result
    best = found.best
    assert best is not None
    assert found.other_format is not None
    step = best.estimate.step_seconds
    won = replace(best, estimate=replace(best.estimate, step_seconds=step * 1.04, tokens_per_second=1000.0))
    quick = replace(best, estimate=replace(best.estimate, step_seconds=step / 2, tokens_per_second=2000.0))
    none = IdleCost(pool="p", gpu="V100", idle=2, taken=0, slower=None, reason="no bf16", scored=None)
    simpler = Simpler(
        family="few",
        slower=0.04,
        fewer_devices=1,
        fewer_stages=0,
        less_per_hour=None,
        keeps_rdma=False,
        scored=won,
    )
    before = replace(
        found,
        simpler=(simpler,),
        limit_costs=(LimitCost(limit="tp", given=(1,), instead=(2,), costs=1.0, scored=quick),),
        advice=(Advice(target="megatron", change="tp 2", faster=0.5, scored=quick),),
        idle_costs=(none, replace(none, pool="q", slower=0.1, scored=quick)),
        other_format=replace(found.other_format, faster=0.3, scored=quick),
    )
    after = settled(before, 0.01)
    assert after.limit_costs[0].costs == pytest.approx(1.08)
    assert after.advice[0].faster == pytest.approx(1 - 1 / 2.08)
    assert after.other_format is not None
    assert after.other_format.faster == pytest.approx(1.0)
    assert after.idle_costs == (none,)


def test_no_plan_that_was_met_beats_the_simpler_one(result: tuple[SearchResult, Estimator]) -> None:
    """On as many devices and stages another plan of the fastest one's family may be faster than other families are."""
    found, estimator = result
    best = found.best
    assert best is not None

    def other(slower: float, zero: int, devices: int) -> Scored:
        step = best.estimate.step_seconds * (1 + slower)
        return replace(
            best,
            plan=replace(best.plan, zero=zero),
            estimate=replace(best.estimate, step_seconds=step, devices=devices),
        )

    own, shown = other(0.01, best.plan.zero, 3), other(0.03, 3 - best.plan.zero, 3)
    whole = replace(
        best, plan=replace(best.plan, schedule="zb-v"), estimate=replace(best.estimate, devices=4)
    )
    family = family_of(best)
    alternatives = (
        Alternative(family=family, scored=whole, chosen=True, reason="chosen"),
        Alternative(family=family_of(shown), scored=shown, chosen=False, reason="compute +3 %"),
    )
    changed = replace(found, best=whole, alternatives=alternatives, by_size=(whole, own), goal=Goal())
    changed = replace(changed, simpler=simpler(changed, estimator))
    assert [round(entry.slower, 3) for entry in changed.simpler] == [0.01]
    won = settled(changed, 0.01)
    assert won.best == own
    row = next(each for each in won.alternatives if each.family == family)
    assert (row.scored, row.chosen, row.reason) == (own, True, "chosen")
    assert won.tie is not None
    assert won.tie.scored == whole


def test_what_a_slower_plan_spares() -> None:
    """Devices, stages, money or RDMA; nothing is said of plans that need more of any, or are slower than a bar."""
    best = examples.scored(step_seconds=100.0)
    off: list[int] = []
    estimator = cast("Estimator", SimpleNamespace(without_rdma=lambda plan: ("a",) * (id(plan) in off)))

    def told(step: float = 104.0, **changes: Any) -> list[tuple[int, int, float | None, bool]]:
        other = examples.scored(16, step_seconds=step)
        other = replace(other, estimate=replace(other.estimate, **changes))
        return [
            (each.fewer_devices, each.fewer_stages, each.less_per_hour, each.keeps_rdma)
            for each in _compared("other", other, best, estimator)
        ]

    assert told() == []
    assert told(devices=6) == [(2, 0, 0.0, False)]
    assert told(devices=6, price_per_hour=9.0) == [(2, 0, 1.0, False)]
    assert told(price_per_hour=9.0) == [(0, 0, 1.0, False)]
    assert told(price_per_hour=None) == []
    assert told(devices=6, price_per_hour=None) == [(2, 0, None, False)]
    assert told(devices=6, price_per_hour=11.0) == []
    assert told(devices=9, price_per_hour=9.0) == []
    assert told(105.1, devices=6) == []
    assert told(104.9, devices=6) != []
    off.append(id(best.plan))
    assert told() == [(0, 0, 0.0, True)]
    narrow = replace(best, estimate=replace(best.estimate, spread=0.03))
    assert list(_compared("other", examples.scored(16, step_seconds=104.0), narrow, estimator)) == []
    assert list(_compared("same", best, best, estimator)) == []


@pytest.mark.parametrize(("fabric", "kept"), [("eth", False), ("ib", True)])
def test_rdma_is_kept_where_there_is_some(fabric: str, kept: bool) -> None:
    """Megatron's groups have networks of their own: no merit where Ethernet is all that joins the nodes."""
    here = pool("a", nodes=2, nics=(nic(fabric), nic("eth", gbps=25)), per_node=2)
    spec = cluster(here, pool("b", nodes=1, nics=(nic("eth", gbps=25),), per_node=2))
    estimator = Estimator(spec, gpt(global_batch=6))
    groups = (group("a", "A100", count=4), group("b", "A100", count=2))
    torch, megatron = (
        Scored(plan=(made := plan(runtime, 1, [24], [groups])), estimate=estimator.estimate(made))
        for runtime in ("torch", "megatron")
    )
    slower = replace(megatron.estimate, step_seconds=torch.estimate.step_seconds * 1.02)
    found = list(_compared("megatron", replace(megatron, estimate=slower), torch, estimator))
    assert [entry.keeps_rdma for entry in found] == [True] * kept


def test_one_of_several_simpler_plans() -> None:
    """Those that spare no more than a less slow one are left out."""

    def entry(devices: int, stages: int, hourly: float | None, rdma: bool) -> Simpler:
        return Simpler(
            family="x",
            slower=0.01,
            fewer_devices=devices,
            fewer_stages=stages,
            less_per_hour=hourly,
            keeps_rdma=rdma,
            scored=examples.scored(),
        )

    one = entry(2, 1, 1.0, True)
    for other, beaten in (
        ((2, 1, 1.0, True), True),
        ((1, 0, 0.5, False), True),
        ((2, 1, None, True), True),
        ((3, 0, 0.0, False), False),
        ((0, 2, 0.0, False), False),
        ((0, 0, 1.5, False), False),
    ):
        assert _as_simple(one, entry(*other)) == beaten
    assert not _as_simple(entry(2, 1, 1.0, False), entry(0, 0, None, True))
