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
from planner.dims.dimension import Change, Dimension, allowed, node_devices, runs_of
from planner.model.spec import ModelSpec
from planner.plan.values import (
    WHOLE_EXPERTS,
    Fault,
    Folding,
    Offload,
    Plan,
    ReplicaGroup,
    groups_of,
    with_commas,
)
from planner.units import divisors

SENDS_ONCE = range(8, 11)
"""Generations of compute capability that DeepEP and HybridEP run on, as Megatron-Bridge checks: Ampere to Blackwell."""

ONCE = "it runs on NVIDIA devices of compute capability 8 to 10; token_dispatcher: alltoall on all"
"""Where they run, for who asks for them elsewhere."""


def sends_once(device_type: DeviceType) -> bool:
    """True where DeepEP and HybridEP may run, as far as the cluster file tells."""
    if device_type.compute_capability is None:
        return device_type.library in ("", "NCCL")
    return int(device_type.compute_capability) in SENDS_ONCE


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
        whole = _whole_in(plan, target, model)
        if whole:
            for name, degree in self.traits(plan).items():
                yield Fault((name,), f"{whole}, expected 1, got {degree}")
        if target.experts != "parallel" and degrees != [1]:
            what = f"{target.name} trains experts without tensor parallelism, expected tp 1"
            yield Fault(("stages", 0, "replicas", 0, "tp"), f"{what}, got {degrees[-1]}")
        if whole or (target.experts != "parallel" and degrees != [1]):
            return
        if target.experts == "replicas" and ep > 1:
            yield from _beside_faults(plan)
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
        if overlaps(model, plan.folding):
            yield from _overlap_faults(plan)
        ways = plan.folding.ways
        if any(ways % tp for tp in degrees):
            what = f"expected whole replicas to share experts, ep x etp a multiple of tp {degrees[-1]}"
            yield Fault(path, f"{what}, got {ep} x {etp}")
            return
        for where, group in runs_of(plan):
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
        for where, group in runs_of(plan, cluster):
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


def overlaps(model: ModelSpec, folding: Folding) -> bool:
    """True where all-to-alls of experts run beside the computation of another micro-batch."""
    return model.training.expert_overlap and folding.ways > 1


OVERLAP_CHUNKS = 2
"""Chunks of a stage that a pipeline needs for that, at least: a forward is then independent of the backward next to it
(``TransformerConfig`` of Megatron-Core)."""


def _overlap_faults(plan: Plan) -> Iterator[Fault]:
    """What Megatron-Core does not run forwards and backwards side by side with."""
    what = "expert_overlap takes"
    if plan.pp > 1 and plan.interleave < OVERLAP_CHUNKS:
        needs = f"{what} pipelines with several chunks of layers on a device"
        yield Fault(("interleave",), f"{needs}, expected {OVERLAP_CHUNKS} or more, got {plan.interleave}")
    for number, stage in enumerate(plan.stages):
        if stage.recompute == "full":
            path = ("stages", number, "recompute")
            yield Fault(path, f"{what} recompute none or selective, got full")


def _beside_faults(plan: Plan) -> Iterator[Fault]:
    """What plans do not have beside experts that are divided over replicas of one device each."""
    others = {
        "zero_plus": plan.zero_plus.anything,
        "offload": plan.offload.anything,
        "backup": plan.backup > 0,
        "sync": not plan.sync.exact,
    }
    for name in (name for name, used in others.items() if used):
        yield Fault((name,), f"ep {plan.ep} divides experts over replicas that share all else, expected none")
    if plan.shard_size is not None and plan.shard_size % plan.ep:
        what = f"each copy of the states has all experts, expected a multiple of ep {plan.ep}"
        yield Fault(("shard_size",), f"{what}, got {plan.shard_size}")
    if plan.unequal_shards:
        yield Fault(("ep",), f"experts are divided with equal shards only, expected 1, got {plan.ep}")
    if plan.zero < 2 and len({group.accumulation_steps for _, group in groups_of(plan)}) > 1:
        # With ZeRO 2 and 3 all run as many, some of them without sequences.
        what = "replicas that share experts run equally many micro-batches with ZeRO 0 and 1"
        yield Fault(("ep",), f"{what}, expected 1, got {plan.ep}")


def _whole_in(plan: Plan, target: Capabilities, model: ModelSpec) -> str:
    """Why a target keeps all experts on every device in such a plan; empty where it may divide them."""
    if not divides_experts(target, model):
        able = target.experts == "replicas"
        what = f"{target.name} divides no experts beside a frozen tower or pairs of answers"
        return what if able else f"{target.name} keeps all experts on every device"
    if plan.zero not in target.experts_zero:
        return f"{target.name} divides experts with ZeRO {with_commas(target.experts_zero)} only"
    if plan.pp > 1 and not target.experts_in_pipeline:
        return f"{target.name} keeps all experts on every device in a pipeline"
    return ""


def divides_experts(target: Capabilities, model: ModelSpec) -> bool:
    """True when a target has plans that divide a model's experts."""
    if model.experts is None:
        return False
    if target.experts == "parallel":
        return True
    return target.experts == "replicas" and model.training.preference is None and not model.tower_frozen


def divides_at(target: Capabilities, zero: int, offload: Offload) -> bool:
    """True when it has them with a ZeRO stage, and with what leaves the devices."""
    return zero in target.experts_zero and (target.experts == "parallel" or not offload.anything)


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

    Devices that share an expert are some of one replica. Not every ZeRO stage goes with all of them (``divides_at``).
    """
    found = [WHOLE_EXPERTS]
    experts = model.experts
    able = divides_experts(target, model) and (tp == 1 or target.experts == "parallel")
    if experts is not None and able and tp is not None and dp is not None:
        split = (1,) if whole_because(target, model) else divisors(tp)
        found = [
            Folding(ep=together * tp // etp, etp=etp)
            for etp in split
            if experts.ffn % etp == 0
            for together in divisors(dp)
            if experts.number % (together * tp // etp) == 0
        ]
    return tuple(each for each in found if allowed((each.ep,), eps) and allowed((each.etp,), etps))
