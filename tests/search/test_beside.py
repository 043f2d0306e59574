"""What is said beside an answer, by hand: parts of the space, decisions changed, other speeds, what would fit."""

from __future__ import annotations

import re
from dataclasses import replace
from math import hypot, sqrt
from typing import cast
from unittest.mock import patch

import pytest

from planner.calibration.merge import LEAST_SPREAD
from planner.calibration.values import (
    ASSUMED_FAMILY,
    Calibration,
    Constant,
    GpuFamily,
    KernelPoint,
    Link,
    LinkPoint,
    Residual,
)
from planner.cluster.spec import ClusterSpec
from planner.cost.estimate import Estimator
from planner.cost.values import Estimate
from planner.errors import PlanError
from planner.model.spec import ModelSpec
from planner.plan.values import Plan
from planner.search.deadline import Deadline
from planner.search.explain import neighbours
from planner.search.explain.bars import ErrorBar, _constant, _unseen, network_bars, scaled
from planner.search.explain.diagnose import (
    _best_first,
    _larger_devices,
    _more_nodes,
    _smaller_model,
    _Trial,
)
from planner.search.explain.families import families
from planner.search.explain.neighbours import Neighbour, all_neighbours, best_of_each
from planner.search.explorer import Explorer
from planner.search.incumbent import family_of, obeys
from planner.search.values import Goal, Limits, Silent
from planner.targets import target
from tests import worlds
from tests.report import examples
from tests.worlds import cluster, gpt, group, pool

DEEPER, WIDER, ONE = tuple(range(2, 65)), tuple(range(2, 65)), (1,)


def test_the_parts_of_the_space() -> None:
    """Where a runtime gives each device its own batch its ZeRO stages are told apart."""
    found = {name: (part.target, part.zero, part.pp, part.tp) for name, part in families(Limits())}
    expected: dict[str, tuple[object, ...]] = {}
    for name in ("megatron", "deepspeed", "torch"):
        if name != "megatron":
            for zero in range(4):
                expected[f"{name}: ZeRO-{zero}"] = name, (zero,), ONE, ONE
        expected[f"{name}: pipeline"] = name, None, DEEPER, ONE
        if name != "deepspeed":
            expected[f"{name}: pipeline + tensor"] = name, None, DEEPER, WIDER
        expected[f"{name}: data + tensor"] = name, None, ONE, WIDER
        if name == "megatron":
            expected[f"{name}: data parallel"] = name, None, ONE, ONE
    assert found == expected
    assert families(Limits(target="flagscale")) == []
    assert [name for name, _ in families(Limits(target="torch", zero=(3,)))] == [
        "torch: ZeRO-3",
        *(["torch: pipeline", "torch: pipeline + tensor"] if 3 in target("torch").zero_with_pipeline else []),
        "torch: data + tensor",
    ]


def test_a_plan_is_in_the_part_of_its_family_alone() -> None:
    """Of all plans that a search has met."""
    spec = cluster(pool("a", per_node=2), pool("b", "V100", per_node=2))
    explorer = Explorer(Estimator(spec, gpt(4, 512, 8, global_batch=8)), Limits(), Silent())
    explorer.run()
    plans = {scored.plan: scored for scored in explorer.met.plans.values()}
    for scored in plans.values():
        own = [name for name, part in families(Limits()) if obeys(scored.plan, part, Goal())]
        assert own == [family_of(scored)]
    assert len(plans) > 5


def near(decision: str, change: str, seconds: float, *, fits: bool = True) -> Neighbour:
    """A decision changed."""
    return Neighbour(
        decision=decision,
        change=change,
        scored=examples.scored(step_seconds=seconds, activations_gib=6.8 if fits else 60.0),
    )


def test_the_best_change_of_each_decision() -> None:
    """The fastest that fits; where none does the fastest at all, behind all others; equal ones by name."""
    entries = (
        near("ZeRO", "3", 28.0),
        near("ZeRO", "2", 27.0),
        near("ZeRO", "0", 20.0, fits=False),
        near("layers", "more", 19.0, fits=False),
        near("layers", "fewer", 18.0, fits=False),
        near("micro-batch", "b", 26.0),
        near("micro-batch", "a", 26.0),
    )
    assert [not entry.scored.estimate.fits for entry in entries] == [
        False,
        False,
        True,
        True,
        True,
        False,
        False,
    ]
    for order in (entries, entries[::-1]):
        found = [(entry.decision, entry.change) for entry in best_of_each(order)]
        assert found == [("micro-batch", "a"), ("ZeRO", "2"), ("layers", "fewer")]


def test_all_changes_that_the_target_runs() -> None:
    """What it does not run, and what has no price, is left out; what comes behind it is not."""
    spec = cluster(pool("a", nodes=2, per_node=2), pool("b", "V100", per_node=2))
    estimator = Estimator(spec, gpt(4, 512, 8, global_batch=16))
    stages = [(group(name, gpu, count=2, share=8, steps=4),) for name, gpu in (("a", "A100"), ("b", "V100"))]
    plan = worlds.plan("megatron", 1, [2, 2], stages)
    every = [(entry.decision, entry.change) for entry in all_neighbours(plan, estimator)]
    decisions = dict.fromkeys(decision for decision, _ in every)
    assert len(decisions) > 3
    price = Estimator.estimate

    def refused(changed: Plan, model: ModelSpec) -> list[str]:
        return ["no ZeRO 0"] if changed.zero == 0 else []

    def priced(own: Estimator, changed: Plan) -> Estimate:
        if changed.micro_batches != plan.micro_batches:
            raise PlanError("no other micro-batches")
        return price(own, changed)

    with patch.object(neighbours, "target_faults", refused), patch.object(Estimator, "estimate", priced):
        found = all_neighbours(plan, estimator)
    left = [(entry.decision, entry.change) for entry in found]
    gone = [entry for entry in every if entry not in left]
    refusals = {"ZeRO 0", "micro-batch twice", "micro-batch half"}
    assert {decision for decision, _ in gone} == refusals
    assert left == [entry for entry in every if entry not in gone]
    assert {decision for decision, _ in left} == {*decisions} - refusals
    assert all(entry.scored.estimate == estimator.estimate(entry.scored.plan) for entry in found)
    assert all_neighbours(plan, estimator, Deadline.after(0.0)) == ()


def test_another_speed_by_hand() -> None:
    """Shares of peaks and rates are multiplied and overheads divided, of the family under all kernels alone."""
    family = GpuFamily(
        matmul_efficiency=0.5,
        vector_efficiency=0.4,
        attention_efficiency=0.3,
        memory_efficiency=0.2,
        kernel_seconds=4e-6,
        launch_seconds=2e-5,
        link_efficiency=0.6,
        sigma=0.1,
    )
    twice = GpuFamily(
        matmul_efficiency=1.0,
        vector_efficiency=0.8,
        attention_efficiency=0.6,
        memory_efficiency=0.4,
        kernel_seconds=2e-6,
        launch_seconds=1e-5,
        link_efficiency=0.6,
        sigma=0.1,
    )
    points = tuple(
        KernelPoint(
            gpu=name,
            kernel="matmul",
            precision="fp16",
            shape="8x8x8",
            flops=1.0,
            moved_bytes=1.0,
            seconds=3.0,
        )
        for name in ("card", "other")
    )
    known = Calibration(
        families={"F": family, "F.torch": family, "Fx": family},
        kernel_points=points,
        links={"ethernet": Link(efficiency=0.5, host_bytes_per_second=1e9), "roce": Link(efficiency=0.5)},
        link_points=tuple(
            LinkPoint(link=name, operation="all-reduce", members=2, size_bytes=8.0, seconds=3.0)
            for name in ("e", "e+r", "r")
        ),
    )
    device = ErrorBar(section="families", name="F", members=("card",), spread=1.0)
    network = ErrorBar(section="links", name="ethernet", members=("e",), spread=1.0)
    assert device.ends == (0.5, 2.0)
    found = scaled(known, ((device, 2.0),))
    assert found.families == {"F": twice, "F.torch": twice, "Fx": family}
    assert [point.seconds for point in found.kernel_points] == [1.5, 3.0]
    assert (found.links, found.link_points) == (known.links, known.link_points)
    found = scaled(known, ((network, 2.0),))
    assert found.links["ethernet"] == Link(efficiency=1.0, host_bytes_per_second=2e9)
    assert found.links["roce"] == known.links["roce"]
    assert [point.seconds for point in found.link_points] == [1.5, 1.5, 3.0]
    assert found.families == known.families
    assumed = scaled(Calibration(), ((device, 2.0),)).families["F"]
    assert assumed.matmul_efficiency == 2 * ASSUMED_FAMILY.matmul_efficiency


def test_bars_of_networks_by_hand() -> None:
    """Of a kind the share of its rate, and what is left of it for each doubling of its cards; measured ones are narrow
    where all fabrics of the kind are measured; the widest first."""
    spec = cluster(
        pool("a", cards=4),
        pool("b", fabric="roce", cards=1),
        pool("c", fabric="second", cards=2),
        fabrics={"second": "infiniband"},
    )
    spreads = {"infiniband.efficiency": 0.3, "infiniband.rail": 0.2}
    constants = tuple(
        Constant(name=f"links.{name}", value=0.8, provenance="fitted", spread=spread)
        for name, spread in spreads.items()
    )
    known = Calibration(constants=constants, default_spread=0.25)

    def bars(*measured: str) -> dict[str, tuple[tuple[str, ...], float]]:
        points = tuple(
            LinkPoint(link=name, operation="all-reduce", members=2, size_bytes=8.0, seconds=1.0)
            for name in measured
        )
        found = network_bars(Estimator(spec, gpt(), replace(known, link_points=points)))
        return {bar.name: (bar.members, bar.spread) for bar in found}

    found = bars()
    assert list(found) == ["infiniband", "roce"]
    assert [members for members, _ in found.values()] == [("ib", "second"), ("roce",)]
    assert [spread for _, spread in found.values()] == pytest.approx([hypot(0.3, 2 * 0.2), 0.25])
    assert bars("ib")["infiniband"] == found["infiniband"]
    assert bars("ib+second", "roce") == {
        "infiniband": (("ib", "second"), LEAST_SPREAD),
        "roce": (("roce",), LEAST_SPREAD),
    }


def test_what_unknown_families_are_off_by() -> None:
    """Nothing where a run is known; else what is left of the usual error beyond that of the families with runs."""

    def unseen(family: str, *spreads: float) -> float:
        residuals = tuple(
            Residual(family=name, framework="torch", rows=3, spread=spread)
            for name, spread in zip("abc", spreads, strict=False)
        )
        return _unseen(family, Calibration(residuals=residuals, default_spread=0.5))

    assert unseen("a", 0.3, 0.1) == 0.0
    assert unseen("x", 0.3) == pytest.approx(sqrt(0.5**2 - 0.3**2))
    assert unseen("x", 0.4, 0.3, 0.1) == pytest.approx(sqrt(0.5**2 - 0.3**2))
    assert unseen("x") == pytest.approx(0.5)
    assert unseen("x", 0.9) == 0.0


def test_constants_under_a_set_of_kernels() -> None:
    """The user's own measurement holds under all; else what is known under these, or at all."""

    def constant(name: str, measured: bool) -> Constant:
        return Constant(name=f"families.{name}", value=1.0, provenance="measured" if measured else "fitted")

    plain, own = constant("F.sigma", False), constant("F.torch.sigma", False)
    measured = constant("F.sigma", True)

    def found(*known: Constant) -> Constant | None:
        return _constant("F", "torch", "sigma", {item.name: item for item in known})

    assert found(plain, own) is own
    assert found(plain) is plain
    assert found(measured, own) is measured
    assert found(own) is own
    assert found() is None


class Trial:
    """Something fits from so many devices on, on devices of so much memory, or of a model of so few layers."""

    def __init__(self, devices: int = 0, gib: float = 0.0, layers: int = 10**6) -> None:
        self.devices, self.gib, self.layers = devices, gib, layers
        self.asked = 0

    def fits(self, cluster: ClusterSpec, model: ModelSpec, limits: Limits) -> bool:
        """Whether it does."""
        self.asked += 1
        each = [
            cluster.gpus[name].memory_gib
            for pool in cluster.pools
            for _ in pool.hosts
            for name in pool.devices
        ]
        return len(each) >= self.devices and min(each) >= self.gib and model.layers <= self.layers


def test_more_nodes_by_hand() -> None:
    """Of the pool that needs fewest further devices; none for a lone node without cards, nor beyond a factor."""
    estimator = Estimator(cluster(pool("a"), pool("b", nodes=2, per_node=2)), gpt())

    def hint(devices: int, where: Estimator = estimator) -> str | None:
        return _more_nodes(where, Limits(), cast("_Trial", Trial(devices)))

    assert hint(16) == "fits with 2 more nodes in pool b"
    assert hint(17) == "fits with 1 more node in pool a"
    alone = Estimator(cluster(pool("a", nics=())), gpt())
    assert hint(16, alone) is None
    never = Trial(10**9)
    assert _more_nodes(estimator, Limits(), cast("_Trial", never)) is None
    assert never.asked == 14


def test_larger_devices_by_hand() -> None:
    """The one of the catalogue with least memory that does, of those with more than any here."""
    estimator = Estimator(cluster(pool("a", "V100"), pool("b", "T4")), gpt())

    def hint(gib: float) -> str | None:
        return _larger_devices(estimator, Limits(), cast("_Trial", Trial(gib=gib)))

    assert hint(33) == hint(40) == "fits with A100-PCIe-40GB (40 GiB) in place of every device"
    larger = re.fullmatch(r"fits with .* \((.*) GiB\) in place of every device", hint(41) or "")
    assert larger is not None
    assert 41 <= float(larger[1]) <= 48
    assert hint(10**6) is None


def test_smaller_models_by_hand() -> None:
    """The most layers that fit; nothing where not even one does."""
    estimator = Estimator(cluster(pool("a")), gpt(24, 2048))
    for layers in (1, 13, 23):
        hint = _smaller_model(estimator, Limits(), cast("_Trial", Trial(layers=layers)))
        assert hint is not None
        assert hint.startswith(f"a model of {layers} instead of 24 layers (")
    assert _smaller_model(estimator, Limits(), cast("_Trial", Trial(layers=0))) is None


def test_what_fits_is_told_fastest_first() -> None:
    """By tokens a second: other sequences may make other steps."""
    slow, quick = examples.scored(step_seconds=30.0), examples.scored(step_seconds=20.0)
    assert _best_first([("slow", slow), ("never", None), ("quick", quick)]) == [
        "fits with quick: about 20 s a step",
        "fits with slow: about 30 s a step",
    ]
