"""Options of a stage by hand: the end of any plan with them, what memory leaves, sends, and where stages stand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import chain, islice
from math import comb, inf
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from planner.calibration.values import ASSUMED, Calibration, LinkPoint
from planner.cluster.topology import Topology
from planner.cost.communication import Ring
from planner.cost.estimate import Estimator
from planner.plan.values import Context
from planner.search.pipeline import score
from planner.search.space.choices import (
    Choice,
    Family,
    compositions,
    depths,
    families,
    leaves_over,
    most_types,
    usable_device_types,
)
from planner.search.space.rings import _better
from planner.search.space.stages import Option, StageOptions
from planner.search.values import Limits
from planner.targets import TARGETS
from tests.search.test_greedy import TWO, cuts, options
from tests.worlds import (
    Problem,
    cluster,
    gpt,
    pool,
    with_adapters,
    with_constants,
    with_experts,
    with_measurements,
    with_stragglers,
)


def ends(
    stage: int, once: float, sends: tuple[float, float] | None, *, plain: bool = True, sent: float = 1.0
) -> Any:
    """Of two and three of ten layers on a stage of four, for eight micro-batches."""
    stages = SimpleNamespace(
        choice=SimpleNamespace(depth=4, plain=plain, family=SimpleNamespace(micro_batches=8)),
        estimator=SimpleNamespace(model=SimpleNamespace(layers=10)),
        once_seconds=once,
        least_layer_seconds=0.5,
        _lengths=np.array([2, 3]),
        _sent=lambda *_: sent,
    )
    priced = SimpleNamespace(
        forward=np.array([[2.0], [3.0]]),
        backward=np.array([[4.0], [7.0]]),
        weight=np.array([[0.0], [0.0]]),
        tail_seconds=np.array([0.5, 0.25]),
    )
    return StageOptions._least_ends(
        cast("StageOptions", stages), stage, 0, cast("Any", priced), sends
    ).tolist()


def test_the_end_of_any_plan_with_an_option() -> None:
    """Its own work, or the first micro-batch there and back and what could not be done meanwhile."""
    own = [8 * (6 + 1) + 0.5, 8 * (10 + 1) + 0.25]
    # From the second stage on two forwards come ahead: five others, and seven backwards, follow the first of each.
    trips = [5 * (2 + 1) + 7 * 4, 5 * (3 + 1) + 7 * 7]
    first = [6 + 1 + 8 * 0.5, 10 + 1 + 7 * 0.5]
    both = [one + trip for one, trip in zip(first, trips, strict=True)]
    assert ends(1, 0.0, None) == [max(pair) for pair in zip(own, both, strict=True)]
    assert ends(1, 100.0, None) == [100 + trip for trip in trips]
    # 2 s and 3 s are sent in forward and backward.
    assert ends(1, 100.0, (2.0, 3.0)) == [100 + 5 * 4 + 7 * 7, 100 + 5 * 5 + 7 * 10]
    assert ends(0, 100.0, (2.0, 3.0)) == [100 + 4 * 4 + 7 * 7, 100 + 4 * 5 + 7 * 10]
    assert ends(1, 100.0, None, plain=False) == own
    assert ends(1, 100.0, None, sent=inf) == [inf, inf]


def test_no_plan_ends_before_what_its_options_say() -> None:
    """All orders of two device types and all cuts; the most that an option says is close to some plan's end."""
    stages = options(TWO, 3)
    closest: dict[tuple[int, int], float] = {}
    for slots in ((0, 0, 1), (0, 1, 0), (1, 0, 0), (0, 1, 1), (1, 1, 0)):
        for cut in cuts(7, 3, 1):
            chosen = [stages.option(*place) for place in zip(range(3), slots, cut, strict=True)]
            found = score(stages.estimator, stages, chosen)
            assert found is not None
            for stage, option in enumerate(chosen):
                share = least(stages, stage, option) / found.estimate.step_seconds
                assert share <= 1 + 1e-9
                closest[stage, option.composition] = max(share, closest.get((stage, option.composition), 0.0))
    assert len(closest) == 6
    assert sum(closest.values()) / 6 > 0.85


def least(stages: StageOptions, stage: int, option: Option) -> float:
    """What is known of plans with this option."""
    priced = stages._priced(stage, option.composition, option.recompute)
    return float(stages._least_ends(stage, option.composition, priced.seconds)[option.layers - 1])


def test_options_below_a_cutoff() -> None:
    """Those that may be part of a faster plan, from one layer on, as many as there is room for."""
    stages = options(TWO, 3)
    every = list(stages.options(1, inf))
    assert [(option.composition, option.layers) for option in every] == [
        (composition, layers) for composition in range(2) for layers in range(1, 6)
    ]
    cutoff = least(stages, 1, every[2])
    for edge, layers in ((1.0, 3), (1 - 1e-9, 2)):
        assert (
            max(option.layers for option in stages.options(1, cutoff * edge) if not option.composition)
            == layers
        )
    chunked = options(TWO, 2, chunks=2)
    assert {option.layers for option in chunked.options(0, inf)} == {2, 3, 4, 5}
    assert [stages.most_layers(stage, 0) for stage in range(3)] == [5] * 3
    assert chunked.most_layers(0, 1) == 5


def test_stages_on_what_others_leave_come_behind_those() -> None:
    """As many stand whole before them; options of other compositions are there from the first stage on."""
    stages = options(TWO, 3)
    stages.divided = {0: 2}
    assert [{option.composition for option in stages.options(stage, inf)} for stage in range(3)] == [
        {1},
        {1},
        {0, 1},
    ]


def test_least_sends_of_a_stage() -> None:
    """Of one with two neighbours, of an end, and of a stage alone; for each chunk."""
    hops = (SimpleNamespace(inner_seconds=5.0, outer_seconds=3.0),)

    def sent(depth: int, chunks: int) -> list[float]:
        stages = SimpleNamespace(choice=SimpleNamespace(depth=depth, interleave=chunks), hops=hops)
        return [StageOptions._sent(cast("StageOptions", stages), stage, 0) for stage in range(depth)]

    assert sent(4, 1) == [3.0, 5.0, 5.0, 3.0]
    assert sent(3, 2) == [6.0, 10.0, 6.0]
    assert sent(2, 1) == [3.0, 3.0]
    assert sent(1, 1) == [0.0]


def test_least_sends_forward_and_backward() -> None:
    """To any stage or to those of other islands; a side where nothing is sent may have no neighbour at all."""
    each = SimpleNamespace(forward_to_next=1, forward_from_before=0, backward_to_before=1)

    def sent(slow_next: bool, slow_before: bool, **changes: int) -> tuple[float, float]:
        times = SimpleNamespace(**{**vars(each), **changes})
        stages = SimpleNamespace(
            pricer=SimpleNamespace(sent_at_least=lambda *_: times),
            choice=SimpleNamespace(depth=4, interleave=2),
            _sides=(((1.0, 10.0), (2.0, inf)),),
        )
        place = cast("StageOptions", stages), 1, 0
        return StageOptions.least_sent(*place, slow_next=slow_next, slow_before=slow_before)

    assert sent(False, False) == (2.0, 4.0)
    assert sent(True, False) == (20.0, 4.0)
    assert sent(False, True) == (2.0, inf)
    assert sent(False, True, backward_to_before=0) == (2.0, 0.0)
    assert sent(False, False, forward_from_before=1) == (6.0, 4.0)
    assert sent(True, True, forward_to_next=0, backward_to_before=0) == (0.0, 0.0)


def test_the_least_recomputation_that_fits() -> None:
    """Two chunks of two, four and six layers; the most where nothing does, and less than a chunk each fits always."""
    stages = SimpleNamespace(
        choice=SimpleNamespace(depth=3, interleave=2),
        recomputes=("none", "selective", "full"),
        estimator=SimpleNamespace(model=SimpleNamespace(layers=10)),
    )
    own = cast("StageOptions", stages)

    def fitting(*most: int) -> None:
        stages._fitting = lambda stage, composition: most
        stages._least_recompute = lambda *place: StageOptions._least_recompute(own, *place)

    fitting(2, 4, 6)
    least = [StageOptions._least_recompute(own, 0, 0, layers) for layers in range(1, 8)]
    assert least == ["none", "none", "selective", "selective", "full", "full", None]
    assert [StageOptions._recompute(own, 0, 0, layers) for layers in (2, 3, 7)] == [
        "none",
        "selective",
        "full",
    ]
    # Of ten layers two stages of two chunks have four at least.
    for most, expected in (((2, 4, 5), 5), ((7, 9, 9), 6), ((0, 0, 1), 1), ((), 1)):
        fitting(*most)
        assert StageOptions.most_layers(own, 0, 0) == expected
    stages.recomputes = ("full",)
    assert StageOptions._recompute(own, 0, 0, 3) == "full"


def test_the_seconds_of_each_number_of_layers() -> None:
    """Those of the options, of which the longer ones compute again what the shorter ones keep."""
    estimator = Estimator(cluster(pool("a", per_node=2)), gpt(24, 4096, 32, global_batch=64))
    limits, seen = Limits(tp=(1,)), set[str]()
    every = families(TARGETS["deepspeed"], limits, estimator.model, estimator.topology.device_types)
    for each in [item for item in every if item.dp == 1][:6]:
        stages = StageOptions(Choice(family=each, depth=2, interleave=1), estimator, limits)
        for stage in range(2):
            most = stages.most_layers(stage, 0)
            if most < 1:
                continue
            found = [stages.option(stage, 0, layers) for layers in range(1, most + 1)]
            seen |= {option.recompute for option in found}
            assert stages.by_layers(stage, 0).busy_seconds[:most].tolist() == pytest.approx(
                [one.busy_seconds for one in found]
            )
    assert len(seen) > 1


def family(**changes: Any) -> Family:
    """Of FlagScale's pipelines of equal degrees."""
    known: dict[str, Any] = {"target": "megatron", "zero": 1, "recompute": "none", "tp": 1, "dp": 4}
    return Family(**{**known, "batch": 4, "micro_batches": 8, **changes})


def test_stages_of_many_types_of_device() -> None:
    """Sets of types grow exponentially with their number; how many are looked at does not."""
    assert [most_types(number) for number in (1, 13, 14, 20, 40, 141, 142, 1000)] == [1, 13, 7, 4, 2, 2, 1, 1]
    types = Topology(cluster(*(pool(f"p{each}", per_node=1) for each in range(40)))).device_types
    assert len(compositions(family(dp=2, batch=2), types, gpt(), Limits())) == comb(40, 2)
    assert compositions(family(dp=10, batch=10), types, gpt(), Limits()) == ()


def test_stages_that_devices_make_up() -> None:
    """Whole ones of each type, and mixed ones that use up what those leave over."""
    types = Topology(
        cluster(pool("a", per_node=6), pool("b", "V100", per_node=7), pool("c", "T4", per_node=2))
    ).device_types

    def found(item: Family) -> list[str]:
        mixes = compositions(item._replace(batch=item.dp or 1), types, gpt(), Limits())
        return sorted("+".join(f"{group.count}{group.pool}x{group.tp}" for group in mix) for mix in mixes)

    whole = ["4ax1", "4bx1"]
    assert found(family()) == sorted(
        [*whole, "1ax1+3bx1", "2ax1+2bx1", "2ax1+2cx1", "3bx1+1cx1", "2bx1+2cx1"]
    )
    assert found(family(dp=9)) == sorted(["6ax1+3bx1", "2ax1+7bx1", "7bx1+2cx1"])
    assert found(family(dp=14)) == ["6ax1+7bx1+1cx1"]
    assert found(family(dp=16)) == []
    assert found(family(dp=6, tp=2)) == ["3ax2+3bx2"]


def test_leftovers_of_nodes() -> None:
    """Where several nodes hold replicas whose number is no power of two."""
    for nodes, per_node, tp, expected in (
        (2, 6, 1, True),
        (1, 6, 1, False),
        (2, 4, 1, False),
        (2, 6, 2, True),
    ):
        (device_type,) = Topology(cluster(pool("a", nodes=nodes, per_node=per_node))).device_types
        assert leaves_over(device_type, tp) == expected


def test_depths_of_pipelines() -> None:
    """As many as there are layers, devices, and a limit; one where stages cannot be several."""
    model, many = gpt(100, 512), usable_device_types(Topology(cluster(pool("a", nodes=100))), gpt())
    assert depths(family(dp=1, batch=1), Limits(), model, many) == tuple(range(1, 65))
    assert depths(family(dp=8), Limits(), gpt(5, 512), many) == (1, 2, 3, 4, 5)
    assert depths(family(dp=400), Limits(), model, many) == (1, 2)
    assert depths(family(dp=100), Limits(pp=(3, 8, 9)), model, many) == (3, 8)
    assert depths(family(dp=801), Limits(), model, many) == ()
    assert depths(family(zero=3, dp=8), Limits(), model, many) in ((1,), ())
    ring = family(context=Context(ways=2, kind="ring"), dp=8)
    assert depths(ring, Limits(), model, many)[0] == 1


@pytest.mark.parametrize("measured", [False, True])
def test_the_best_of_two_rings(measured: bool) -> None:
    """Bandwidth and latencies of either, also between copies; where collectives were measured, their best rate."""
    points = tuple(
        LinkPoint(link=link, operation="all-gather", members=2, size_bytes=1e6, seconds=seconds)
        for link, seconds in (("eth", 0.25), ("node:A100", 0.5))
    )
    calibration = Calibration(link_points=points) if measured else ASSUMED
    estimator = Estimator(cluster(pool("a")), gpt(), calibration)
    common: dict[str, Any] = {"curves": estimator.curves, "link": "eth"}
    copies = Ring(size=2, bytes_per_second=5.0, latency_seconds=3.0, crosses="eth", **common)
    inner = Ring(size=4, bytes_per_second=2.0, latency_seconds=1.0, crosses="node", copies=copies, **common)
    outer = replace(inner, bytes_per_second=9.0, latency_seconds=7.0, crosses="eth", around_seconds=0.5)
    inner = replace(inner, link="node:A100")
    best = _better(estimator, inner, replace(outer, copies=replace(copies, latency_seconds=2.0)))
    assert best is not None
    assert best.copies is not None
    found = [
        (round(each.bytes_per_second), each.latency_seconds, each.around_seconds)
        for each in (best, best.copies)
    ]
    assert best.curves is best.copies.curves is None
    # Half of 1 MB goes around in a quarter of a second.
    assert found == ([(2_000_000, 0.0, 0.0)] * 2 if measured else [(9, 1.0, 0.5), (5, 2.0, 2.0)])
    assert _better(estimator, inner, inner) is inner


@pytest.mark.parametrize(
    "make", [with_constants, with_adapters, with_stragglers, with_experts, with_measurements]
)
def test_no_stage_is_faster_than_without_traffic(make: Callable[[int], Problem]) -> None:
    """Plans of one stage that are too slow without any are not priced."""
    priced = 0
    for seed in range(30):
        spec, model, calibration = make(seed)
        estimator = Estimator(spec, model, calibration)
        device_types = usable_device_types(estimator.topology, model)
        listed = (families(row, Limits(), model, device_types) for row in TARGETS.values())
        for family in islice(chain.from_iterable(listed), 0, None, 13):
            stages = StageOptions(Choice(family=family, depth=1, interleave=1), estimator, Limits())
            alone = stages.without_traffic(0, model.layers)
            for composition in range(len(stages.compositions)):
                option = stages.option(0, composition, model.layers)
                assert alone(composition) <= option.busy_seconds * (1 + 1e-9), (seed, family)
                priced += 1
    assert priced > 50
