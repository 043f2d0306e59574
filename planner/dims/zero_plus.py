"""ZeRO++ (arXiv:2306.10209): what ZeRO 3 gathers from a second copy inside a node, or sends in fewer bits.

The second copy (hpZ) changes no result. Parameters in eight bits (qwZ) and gradients in four (qgZ) are rounded, so that
a search has them only where it is asked to.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

from planner.capabilities import Capabilities
from planner.cluster.spec import ClusterSpec
from planner.cluster.topology import DeviceType
from planner.dims.dimension import Change, Dimension, single_device_faults
from planner.dims.sharding import trains_whole
from planner.errors import PlanError
from planner.model.spec import ModelSpec
from planner.plan.placement import place
from planner.plan.values import PLAIN_ZERO, Fault, Plan, ZeroPlus, with_commas
from planner.units import divisors

ROUNDED = ("bf16", "fp16")
"""Number formats whose parameters and gradients the runtime's kernels round."""


class ZeroPlusPlus(Dimension):
    """``Plan.zero_plus``."""

    fields = ("Plan.zero_plus",)

    def traits(self, plan: Plan) -> dict[str, str]:
        """What of it is on."""
        return {"ZeRO++": zero_plus_text(plan.zero_plus) or "none"}

    def words(self, plan: Plan) -> str:
        """What travels in fewer bits; a second copy is named with the stage."""
        return ", ".join(_rounded(plan.zero_plus))

    def rules(self, plan: Plan, target: Capabilities, model: ModelSpec) -> Iterator[Fault]:
        """A runtime that has it, one stage, and replicas of one device each that train the whole model."""
        if not plan.zero_plus.anything:
            return
        path = ("zero_plus",)
        if not target.zero_plus:
            yield Fault(path, f"{target.name} has no ZeRO++, expected none")
            return
        yield from single_device_faults(plan, "ZeRO++ is", "replicas with ZeRO++")
        if plan.offload.anything:
            yield Fault(("offload",), "with ZeRO++ everything stays on the devices, expected none")
        if not trains_whole(model):
            yield Fault(path, "only models that are trained whole have ZeRO++, expected none")
        if plan.zero_plus.lossy and model.training.precision not in ROUNDED:
            able = with_commas(ROUNDED)
            what = f"what travels in fewer bits is of {able}"
            yield Fault(
                path,
                f"{what}, expected neither int8_weights nor int4_gradients with {model.training.precision}",
            )

    def host_rules(self, plan: Plan, cluster: ClusterSpec) -> Iterator[Fault]:
        """Gradients in four bits are added up node by node: each has as many replicas as a second copy."""
        size = plan.zero_plus.secondary
        if not plan.zero_plus.int4_gradients or plan.pp > 1:
            return
        each: Counter[tuple[str, int]] = Counter()
        try:
            slots = place(plan, cluster)[0]
        except PlanError:
            return  # it does not fit the cluster, which is another fault
        for slot in slots:
            for node in range(slot.first_node, slot.first_node + slot.nodes):
                each[slot.pool, node] += slot.replicas_per_node
        found = sorted({*each.values()} - {size})
        if found:
            what = f"needs {size} replicas on every node, as many as keep a second copy, got {found[0]}"
            yield Fault(("zero_plus", "int4_gradients"), what)

    def neighbours(
        self, plan: Plan, target: Capabilities, device_types: Sequence[DeviceType]
    ) -> Iterator[Change]:
        """Without it."""
        if plan.zero_plus.anything:
            yield Change("ZeRO++", "without ZeRO++", replace(plan, zero_plus=PLAIN_ZERO))


def zero_plus_text(plus: ZeroPlus) -> str:
    """``second copy in groups of 8, parameters in int8``; empty for plain ZeRO."""
    copies = [f"second copy in groups of {plus.secondary}"] if plus.secondary else []
    return ", ".join([*copies, *_rounded(plus)])


def _rounded(plus: ZeroPlus) -> list[str]:
    named = (("parameters in int8", plus.int8_weights), ("gradients in int4", plus.int4_gradients))
    return [text for text, on in named if on]


def zero_pluses(
    target: Capabilities, zero: int, model: ModelSpec, device_types: Sequence[DeviceType], quantised: bool
) -> tuple[ZeroPlus, ...]:
    """Plain ZeRO, and what else is worth trying: second copies on nodes and their parts, where asked ``quantised``.

    Whatever else the cluster has, a type has the same copies.
    """
    if not target.zero_plus or zero != 3 or not trains_whole(model):
        return (PLAIN_ZERO,)
    found = [PLAIN_ZERO]
    sizes = {size for item in device_types for size in divisors(item.per_node)}
    found += [ZeroPlus(secondary=size) for size in sorted(sizes - {1})]
    if quantised and model.training.precision in ROUNDED:
        found += [replace(plus, int8_weights=True) for plus in found]
        found += [replace(plus, int4_gradients=True) for plus in found if plus.secondary]
    return tuple(found)


def holds_copies(device_type: DeviceType, plus: ZeroPlus) -> bool:
    """True when second copies fill nodes of this type, or nodes such copies; nodes alone for gradients in four bits."""
    if plus.secondary is None:
        return True
    whole = device_type.per_node == plus.secondary
    return whole or (device_type.per_node % plus.secondary == 0 and not plus.int4_gradients)
