"""Expert parallelism: experts of a layer divided over devices of consecutive replicas (arXiv:2006.16668, section 3).

Experts are whole on a device, whatever tensor parallelism does to everything else: a group of ``ep`` devices is all
devices of ``ep / tp`` replicas (Megatron's folding, arXiv:2504.14960, with an expert-tensor-parallel degree of 1).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from planner.cluster.spec import ClusterSpec
from planner.cluster.topology import DeviceType
from planner.dims.dimension import Change, Dimension, allowed
from planner.model.spec import ModelSpec
from planner.plan.values import Fault, Plan, ReplicaGroup, groups_of
from planner.runtimes.capabilities import Capabilities
from planner.units import divisors


class ExpertParallelism(Dimension):
    """``Plan.ep``."""

    fields = ("Plan.ep",)

    def traits(self, plan: Plan) -> dict[str, str]:
        """The degree, where experts are divided."""
        return {"ep": str(plan.ep)} if plan.ep > 1 else {}

    def words(self, plan: Plan) -> str:
        """Where experts are divided."""
        return f"ep {plan.ep}" if plan.ep > 1 else ""

    def rules(self, plan: Plan, target: Capabilities, model: ModelSpec) -> Iterator[Fault]:
        """Experts that the degree divides, groups that hold it, and a runtime that has it."""
        path, ep = ("ep",), plan.ep
        if model.experts is None:
            if ep > 1:
                yield Fault(path, f"the model {model.name} has no experts, expected 1, got {ep}")
            return
        degrees = sorted({group.tp for _, group in groups_of(plan)})
        if target.experts != "parallel":
            if ep > 1:
                yield Fault(path, f"{target.name} keeps all experts on every device, expected 1, got {ep}")
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
        if any(ep % tp for tp in degrees):
            what = f"experts are whole on a device, expected a multiple of tp {degrees[-1]}"
            yield Fault(path, f"{what}, got {ep}")
            return
        for where, group in groups_of(plan):
            if group.devices % ep:
                what = f"ep {ep} does not divide the {group.devices} devices of these replicas"
                yield Fault((*where, "count"), f"{what}: the experts of a layer stand on one device type")

    def host_rules(self, plan: Plan, cluster: ClusterSpec) -> Iterator[Fault]:
        """Groups that lie in a node, or fill nodes."""
        if plan.ep == 1:
            return
        per_node = {
            (pool.name, gpu): pool.devices.count(gpu) for pool in cluster.pools for gpu in {*pool.devices}
        }
        for where, group in groups_of(plan):
            if not holds_experts(group, plan.ep, per_node[group.pool, group.gpu]):
                what = f"expected groups of ep {plan.ep} devices that lie in a node or fill nodes of"
                yield Fault((*where, "count"), f"{what} {per_node[group.pool, group.gpu]}")

    def neighbours(
        self, plan: Plan, target: Capabilities, device_types: Sequence[DeviceType]
    ) -> Iterator[Change]:
        """Experts over twice and over half as many devices, where they are divided at all."""
        degrees = [2 * plan.ep] if plan.ep > 1 else []
        degrees += [] if plan.ep % 2 else [plan.ep // 2]
        for ep in degrees:
            yield Change(f"ep {ep}", f"ep {ep} instead of {plan.ep}", replace(plan, ep=ep))


def holds_experts(group: ReplicaGroup, ep: int, per_node: int) -> bool:
    """True when the group's devices are whole expert-parallel groups, each in a node or filling nodes."""
    used = per_node // group.tp * group.tp
    if group.devices % ep:
        return False
    if ep > used:
        return used == per_node and ep % per_node == 0
    return group.devices <= used or used % ep == 0


def expert_degrees(
    target: Capabilities, model: ModelSpec, tp: int | None, dp: int | None, limit: tuple[int, ...] | None
) -> tuple[int, ...]:
    """Degrees worth trying for replicas of ``tp`` devices, ``dp`` of them."""
    if model.experts is None or target.experts != "parallel" or tp is None or dp is None:
        return allowed((1,), limit)
    degrees = (ep * tp for ep in divisors(dp) if model.experts.number % (ep * tp) == 0)
    return allowed(tuple(degrees), limit)
