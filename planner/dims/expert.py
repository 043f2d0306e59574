"""Expert parallelism: experts of a layer divided over devices of consecutive replicas (arXiv:2006.16668, section 3).

Experts have a tensor-parallel degree of their own, whatever divides everything else (Megatron's parallel folding,
arXiv:2504.14960): a group of ``ep x etp`` devices is all devices of some consecutive replicas.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from planner.capabilities import Capabilities
from planner.cluster.spec import ClusterSpec
from planner.cluster.topology import DeviceType
from planner.dims.dimension import Change, Dimension, allowed, node_devices
from planner.model.spec import ModelSpec
from planner.plan.values import WHOLE_EXPERTS, Fault, Folding, Plan, ReplicaGroup, groups_of
from planner.units import divisors


class ExpertParallelism(Dimension):
    """``Plan.ep`` and ``Plan.etp``."""

    fields = ("Plan.ep", "Plan.etp")

    def traits(self, plan: Plan) -> dict[str, str]:
        """The degrees, where experts are divided."""
        return {name: str(degree) for name, degree in plan.folding._asdict().items() if degree > 1}

    def words(self, plan: Plan) -> str:
        """Where experts are divided."""
        return ", ".join(f"{name} {degree}" for name, degree in self.traits(plan).items())

    def rules(self, plan: Plan, target: Capabilities, model: ModelSpec) -> Iterator[Fault]:
        """Experts that the degree divides, groups that hold it, and a runtime that has it."""
        path, (ep, etp) = ("ep",), plan.folding
        if model.experts is None:
            for name, degree in self.traits(plan).items():
                yield Fault((name,), f"the model {model.name} has no experts, expected 1, got {degree}")
            return
        degrees = sorted({group.tp for _, group in groups_of(plan)})
        if target.experts != "parallel":
            for name, degree in self.traits(plan).items():
                what = f"{target.name} keeps all experts on every device"
                yield Fault((name,), f"{what}, expected 1, got {degree}")
            if degrees != [1]:
                what = f"{target.name} trains experts without tensor parallelism, expected tp 1"
                yield Fault(("stages", 0, "replicas", 0, "tp"), f"{what}, got {degrees[-1]}")
            return
        if degrees[-1] > 1 and not plan.sequence_parallel:
            what = (
                f"{target.name} trains experts with tensor parallelism only where sequence parallelism is on"
            )
            yield Fault(("sequence_parallel",), f"{what}, expected true")
        if model.experts.number % ep:
            yield Fault(path, f"ep {ep} does not divide the {model.experts.number} experts of a layer")
        if etp > 1 and (what := whole_because(target, model)):
            yield Fault(("etp",), f"{what}, expected 1, got {etp}")
        elif model.experts.ffn % etp:
            yield Fault(("etp",), f"etp {etp} does not divide the {model.experts.ffn} channels of an expert")
        ways = plan.folding.ways
        if any(ways % tp for tp in degrees):
            what = f"expected whole replicas to share experts, ep x etp a multiple of tp {degrees[-1]}"
            yield Fault(path, f"{what}, got {ep} x {etp}")
            return
        for where, group in groups_of(plan):
            if group.devices % ways:
                named = f"ep {ep} x etp {etp}" if etp > 1 else f"ep {ep}"
                what = f"{named} does not divide the {group.devices} devices of these replicas"
                yield Fault((*where, "count"), f"{what}: the experts of a layer stand on one device type")

    def host_rules(self, plan: Plan, cluster: ClusterSpec) -> Iterator[Fault]:
        """Groups that lie in a node, or fill nodes."""
        folding = plan.folding
        if folding.ways == 1:
            return
        per_node = node_devices(cluster)
        for where, group in groups_of(plan):
            own = per_node[group.pool, group.gpu]
            if not holds_experts(group, folding.ways, own):
                what = f"expected groups of {folding.ways} devices (ep x etp) that lie in a node or fill nodes of"
                yield Fault((*where, "count"), f"{what} {own}")
            elif folding.ways > own and own % folding.etp:
                what = f"expected a divisor of the {own} devices of a node"
                yield Fault(("etp",), f"{what}, got {folding.etp}")

    def neighbours(
        self, plan: Plan, target: Capabilities, device_types: Sequence[DeviceType]
    ) -> Iterator[Change]:
        """Experts over twice and over half as many devices, where they are divided at all; those of a device divided
        as tensor parallelism divides everything else, or whole."""
        ep, etp = plan.folding
        degrees = [2 * ep] if ep > 1 else []
        degrees += [] if ep % 2 else [ep // 2]
        for other in degrees:
            yield Change(f"ep {other}", f"ep {other} instead of {ep}", replace(plan, ep=other))
        for other in sorted({1, *(group.tp for _, group in groups_of(plan))} - {etp}):
            if target.splits_experts and plan.folding.ways % other == 0:
                changed = replace(plan, ep=plan.folding.ways // other, etp=other)
                yield Change(f"etp {other}", f"etp {other} instead of {etp}", changed)


def whole_because(target: Capabilities, model: ModelSpec) -> str:
    """Why a target does not divide the matrices of an expert of a model; empty where it does."""
    if not target.splits_experts:
        return f"{target.name} keeps experts whole on a device"
    if model.mlp_bias or (model.experts is not None and model.experts.bias):
        return f"{target.name} keeps experts with biases whole on a device"
    return ""


def holds_experts(group: ReplicaGroup, ways: int, per_node: int) -> bool:
    """True when the devices are whole groups of ``ways`` that share experts, each in a node or filling nodes."""
    used = per_node // group.tp * group.tp
    if group.devices % ways:
        return False
    if ways > used:
        return used == per_node and ways % per_node == 0
    return group.devices <= used or used % ways == 0


def foldings(
    target: Capabilities,
    model: ModelSpec,
    tp: int | None,
    dp: int | None,
    eps: tuple[int, ...] | None,
    etps: tuple[int, ...] | None,
) -> tuple[Folding, ...]:
    """Ways to divide experts that are worth trying for ``dp`` replicas of ``tp`` devices, of those that limits keep.

    Devices that share an expert are some of one replica.
    """
    found = [WHOLE_EXPERTS]
    experts = model.experts
    if experts is not None and target.experts == "parallel" and tp is not None and dp is not None:
        split = (1,) if whole_because(target, model) else divisors(tp)
        found = [
            Folding(ep=together * tp // etp, etp=etp)
            for etp in split
            if experts.ffn % etp == 0
            for together in divisors(dp)
            if experts.number % (together * tp // etp) == 0
        ]
    return tuple(each for each in found if allowed((each.ep,), eps) and allowed((each.etp,), etps))
