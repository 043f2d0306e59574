"""Error bars of the speeds of device types and networks, and calibrations with other speeds.

A device type's bar has two parts. The spreads of its family's constants count by how much the plan's micro-batches
depend on each (forward differences). A family that no run and no measurement of the user's own has seen is further off
than its constants say: by what families were off whose runs were left out of the fit, under kernels of others too.
A device type of which its siblings alone tell is so by what device types of a family differ by in one source.
Errors of the kernels themselves slow all devices alike and cancel in a ratio.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from math import hypot, log, log2, sqrt
from statistics import median
from typing import Literal

from planner.calibration.merge import LEAST_SPREAD, name_key
from planner.calibration.values import ASSUMED_FAMILY, Calibration, Constant, GpuFamily, Link
from planner.cluster.spec import ClusterSpec
from planner.cost.estimate import Estimator, work_of
from planner.frozen import dataclass
from planner.plan.values import Plan
from planner.search.space.choices import usable_device_types
from planner.search.values import Scored

DIFFERENCE = 1.01
"""Factor of the forward differences."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorBar:
    """A speed that is not known exactly."""

    section: Literal["families", "links"]
    name: str
    """Family of GPUs, or kind of fabric."""
    members: tuple[str, ...]
    """The cluster's device types of the family, or its fabrics of the kind."""
    spread: float
    """Relative standard error of the speed."""

    @property
    def ends(self) -> tuple[float, float]:
        """Factors on the speed at the slow and the fast end."""
        return 1 / (1 + self.spread), 1 + self.spread


Factors = tuple[tuple[ErrorBar, float], ...]
"""How much faster some things are than the constants say."""


def with_families(cluster: ClusterSpec) -> ClusterSpec:
    """The cluster with a family of its own for each device type that has none, so that each has a speed of its own."""
    gpus = {
        name: gpu if gpu.family else gpu.model_copy(update={"family": f"gpu:{name}"})
        for name, gpu in cluster.gpus.items()
    }
    return cluster.model_copy(update={"gpus": gpus})


def scaled(calibration: Calibration, factors: Factors) -> Calibration:
    """The calibration of a world in which devices compute, or networks carry, so much faster."""
    families, links = dict(calibration.families), dict(calibration.links)
    layers, kernels, points = calibration.layers, calibration.kernel_points, calibration.link_points
    for bar, factor in factors:
        if bar.section == "links":
            links[bar.name] = _wider(calibration.link(bar.name), factor)
            points = tuple(
                replace(item, seconds=item.seconds / factor)
                if {*item.link.split("+")} & {*bar.members}
                else item
                for item in points
            )
            continue
        for owner in _owners(bar.name, families):
            families[owner] = _faster(families.get(owner, ASSUMED_FAMILY), factor)
        gpus = {name_key(name) for name in bar.members}
        layers = tuple(
            replace(
                item,
                forward_seconds=item.forward_seconds / factor,
                backward_seconds=item.backward_seconds / factor,
            )
            if name_key(item.gpu) in gpus
            else item
            for item in layers
        )
        kernels = tuple(
            replace(item, seconds=item.seconds / factor) if name_key(item.gpu) in gpus else item
            for item in kernels
        )
    return replace(
        calibration, families=families, links=links, layers=layers, kernel_points=kernels, link_points=points
    )


def _owners(family: str, known: Iterable[str]) -> list[str]:
    """The family, and what it has under one kernel set each."""
    return [family, *(name for name in known if name.startswith(f"{family}."))]


def _faster(family: GpuFamily, factor: float) -> GpuFamily:
    return replace(
        family,
        matmul_efficiency=family.matmul_efficiency * factor,
        vector_efficiency=family.vector_efficiency * factor,
        attention_efficiency=family.attention_efficiency * factor,
        memory_efficiency=family.memory_efficiency * factor,
        kernel_seconds=family.kernel_seconds / factor,
        launch_seconds=family.launch_seconds / factor,
    )


def _wider(link: Link, factor: float) -> Link:
    return replace(
        link,
        efficiency=link.efficiency * factor,
        host_bytes_per_second=link.host_bytes_per_second * factor,
    )


def device_bars(plans: Sequence[Scored], estimator: Estimator) -> tuple[ErrorBar, ...]:
    """The bars of the families that some plan uses, each by the fastest plan that does; the widest first."""
    gpus: dict[str, dict[str, None]] = {}
    for device_type in usable_device_types(estimator.topology, estimator.model):
        gpus.setdefault(device_type.family, {})[device_type.gpu] = None
    ranked = sorted(plans, key=lambda scored: scored.estimate.step_seconds)
    bars = []
    for family, own in gpus.items():
        user = next((scored.plan for scored in ranked if _uses(scored.plan, own)), None)
        if user is not None:
            spread = _spread(family, own, user, estimator)
            bars.append(ErrorBar(section="families", name=family, members=tuple(own), spread=spread))
    return tuple(sorted(bars, key=lambda bar: (-bar.spread, bar.members)))


def _uses(plan: Plan, gpus: Iterable[str]) -> bool:
    return any(group.gpu in gpus for stage in plan.stages for group in stage.replicas)


def _spread(family: str, gpus: Iterable[str], plan: Plan, estimator: Estimator) -> float:
    calibration = estimator.calibration
    kernels = estimator.pricer(plan.target).kernels
    known = {constant.name: constant for constant in calibration.constants}
    before = _busy(plan, gpus, estimator)
    spreads, measured = [], False
    for field in fields(GpuFamily):
        field_constant = _constant(family, kernels, field.name, known)
        spread = field_constant and (
            field_constant.spread or (LEAST_SPREAD if field_constant.provenance == "measured" else None)
        )
        if spread:
            after = _busy(plan, gpus, estimator.with_calibration(_with(calibration, family, field.name)))
            spreads.append(spread * log(after / before) / log(DIFFERENCE))
            # The share of products in the model's format: that of vector units for fp32 beside faster formats.
            products = field.name in ("matmul_efficiency", "vector_efficiency") and after != before
            measured |= products and field_constant is not None and field_constant.provenance == "measured"
    curves = _layer_spreads(plan, gpus, estimator)
    if curves:
        return hypot(*spreads, max(LEAST_SPREAD, *curves))
    if measured:
        return max(LEAST_SPREAD, hypot(*spreads))
    if calibration.device_spread is not None and _is_unseen(family, calibration):
        # Kernels that nobody has measured here are as unknown on the other devices of the plan.
        return max(hypot(*spreads), calibration.device_spread)
    work = work_of(estimator.model, estimator.pricer_of(plan).target)
    alone = max(calibration.spread_alone(family, kernels, gpu, work) for gpu in gpus)
    return hypot(*spreads, _unseen(family, calibration), alone)


def _constant(family: str, kernels: str, key: str, known: Mapping[str, Constant]) -> Constant | None:
    """What is known of a constant under a kernel set; what the user has measured holds under all of them."""
    plain = known.get(f"families.{family}.{key}")
    if plain is not None and plain.provenance == "measured":
        return plain
    return known.get(f"families.{family}.{kernels}.{key}", plain)


def _with(calibration: Calibration, family: str, key: str) -> Calibration:
    """The calibration with one constant of a family a little larger."""
    families = dict(calibration.families)
    for owner in _owners(family, families):
        part = families.get(owner, ASSUMED_FAMILY)
        families[owner] = replace(part, **{key: getattr(part, key) * DIFFERENCE})
    return replace(calibration, families=families)


def _busy(plan: Plan, gpus: Iterable[str], estimator: Estimator) -> float:
    """Seconds of a micro-batch on the plan's devices of some types."""
    return sum(
        group.forward_seconds + group.backward_seconds
        for stage in estimator.estimate(plan).stages
        for group in stage.groups
        if group.gpu in gpus
    )


def _layer_spreads(plan: Plan, gpus: Iterable[str], estimator: Estimator) -> list[float]:
    """Spreads of the measured layers that the plan is priced with on these devices; empty where one is not measured."""
    pricer, topology = estimator.pricer_of(plan), estimator.of(plan).topology
    groups = [group for stage in plan.stages for group in stage.replicas if group.gpu in gpus]
    measured = [
        pricer.measured(topology.device_type(item.pool, item.gpu), item.tp, item.micro_batch)
        for item in groups
    ]
    known = [times.spread for times in measured if times is not None]
    return known if len(known) == len(groups) else []


def _is_unseen(family: str, calibration: Calibration) -> bool:
    return all(item.family != family for item in calibration.residuals)


def _unseen(family: str, calibration: Calibration) -> float:
    """What a family may be off by that its constants do not say: nothing for one that runs are known of."""
    if not _is_unseen(family, calibration):
        return 0.0
    typical = median(item.spread for item in calibration.residuals) if calibration.residuals else 0.0
    return sqrt(max(0.0, calibration.default_spread**2 - typical**2))


def network_bars(estimator: Estimator) -> tuple[ErrorBar, ...]:
    """The bars of the kinds of fabrics that the cluster has cards on; the widest first."""
    cluster, calibration = estimator.cluster, estimator.calibration
    cards: dict[str, int] = {}
    for nic in (nic for pool in cluster.pools for nic in pool.nics):
        cards[nic.fabric] = max(nic.count, cards.get(nic.fabric, 1))
    measured = {name for point in calibration.link_points for name in point.link.split("+")}
    known = {constant.name: constant.spread for constant in calibration.constants}
    bars = []
    for kind in dict.fromkeys(cluster.fabrics[name].kind for name in cards):
        own = tuple(name for name in cards if cluster.fabrics[name].kind == kind)
        share = known.get(f"links.{kind}.efficiency") or calibration.default_spread
        rail = (known.get(f"links.{kind}.rail") or 0.0) * log2(max(cards[name] for name in own))
        spread = LEAST_SPREAD if {*own} <= measured else hypot(share, rail)
        bars.append(ErrorBar(section="links", name=kind, members=own, spread=spread))
    return tuple(sorted(bars, key=lambda bar: (-bar.spread, bar.name)))
