"""Offloading: what is kept in host memory or on NVMe between its uses (arXiv:2101.06840, arXiv:2104.07857)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from itertools import product

from planner.cluster.spec import ClusterSpec
from planner.cluster.topology import DeviceType
from planner.dims.dimension import Change, Dimension
from planner.model.spec import ModelSpec
from planner.plan.values import ON_DEVICE, Fault, Offload, Plan, groups_of, in_words
from planner.runtimes.capabilities import Capabilities, OffloadPart, OffloadTo, Recompute


class OffloadDimension(Dimension):
    """``Plan.offload``."""

    fields = ("Plan.offload",)

    def traits(self, plan: Plan) -> dict[str, str]:
        """What is kept where."""
        return {"offload": offload_text(plan) or "none"}

    def words(self, plan: Plan) -> str:
        """Where anything is."""
        return offload_text(plan)

    def rules(self, plan: Plan, target: Capabilities, model: ModelSpec) -> Iterator[Fault]:
        """What the target cannot keep off the devices, or not in this plan."""
        offload, can = plan.offload, target.offloading
        if not offload.anything:
            return
        if not (can.optimizer_zero or can.activations):
            yield Fault(("offload",), f"hetplan knows no offload of {target.name}, expected none")
            return
        if plan.pp > 1 and not can.in_pipeline:
            yield Fault(
                ("offload",), f"{target.name} offloads without a pipeline only, the plan has {plan.pp} stages"
            )
        for name, where, stages in (
            ("optimizer", offload.optimizer, can.optimizer_zero),
            ("parameters", offload.parameters, can.parameters_zero),
        ):
            able = can.nvme_zero if where == "nvme" else stages
            if where == "none" or plan.zero in able:
                continue
            if able:
                what = f"{target.name} offloads {name} to {where} with ZeRO {in_words(able)}, got ZeRO {plan.zero}"
            else:
                what = f"{target.name} does not offload {name} to {where}, expected none"
            yield Fault(("offload", name), what)
        if can.together and (offload.optimizer == "none") != (offload.parameters == "none"):
            what = f"{target.name} offloads parameters and optimizer states together, expected both"
            yield Fault(("offload",), what)
        if offload.activations != "none":
            yield from _checkpoints(plan, target)
        if offload.optimizer != "none":
            yield from _updates(target, model)
        if offload.optimizer == "nvme" and (what := _swaps(model)):
            yield Fault(("offload", "optimizer"), what)

    def host_rules(self, plan: Plan, cluster: ClusterSpec) -> Iterator[Fault]:
        """What the file must say of the hosts that hold what the devices do not."""
        pools = {pool.name: pool for pool in cluster.pools}
        for name, gpu in sorted({(group.pool, group.gpu) for _, group in groups_of(plan)}):
            pool = pools[name]
            if plan.offload.anything and cluster.host_link_of(pool, gpu) is None:
                what = (
                    f"it is not known how fast {gpu} reaches host memory, expected host: {{link_gBps: ...}}"
                )
                yield Fault(("offload",), f"{what} in the pool {name}")
            if plan.offload.uses_nvme and (pool.host is None or pool.host.nvme_gBps is None):
                what = f"the pool {name} has no NVMe, expected host: {{nvme_gBps: ...}} in it"
                yield Fault(("offload",), what)

    def neighbours(
        self, plan: Plan, target: Capabilities, device_types: Sequence[DeviceType]
    ) -> Iterator[Change]:
        """Nothing kept off the devices."""
        if plan.offload.anything:
            yield Change("offload", "everything on the devices", replace(plan, offload=ON_DEVICE))


def _updates(target: Capabilities, model: ModelSpec) -> Iterator[Fault]:
    """What the processors of a host do not update."""
    training, path = model.training, ("offload", "optimizer")
    if training.optimizer not in ("adamw", "sgd"):
        what = f"{target.name} updates with adamw or sgd on hosts, expected none with {training.optimizer}"
        yield Fault(path, what)
    if training.optimizer_states != "fp32":
        yield Fault(path, f"moments on hosts are in fp32, expected none with {training.optimizer_states}")
    if training.gradient_dtype or training.reduce_dtype:
        yield Fault(path, f"gradients for hosts are in {target.name}'s own format, expected no other")


def _checkpoints(plan: Plan, target: Capabilities) -> Iterator[Fault]:
    path = ("offload", "activations")
    if not target.offloading.activations:
        yield Fault(path, f"{target.name} keeps activations on the device, expected none")
    elif any(stage.recompute != "full" for stage in plan.stages):
        yield Fault(
            path, "only the checkpoints of full recomputation can be offloaded, expected recompute full"
        )


def parts(offload: Offload) -> tuple[OffloadPart, ...]:
    """What is kept off the devices, ``none`` where nothing is, and ``nvme`` where some of it is there."""
    names: list[OffloadPart] = []
    names += ["optimizer"] if offload.optimizer != "none" else []
    names += ["parameters"] if offload.parameters != "none" else []
    names += ["activations"] if offload.activations != "none" else []
    names += ["nvme"] if offload.uses_nvme else []
    return tuple(names) or ("none",)


def allows(limit: tuple[OffloadPart, ...] | None, offload: Offload) -> bool:
    """True when a limit allows it; without one all stays on the devices. Parameters and NVMe go with the optimizer."""
    if limit is None:
        return not offload.anything
    given = {*limit, "optimizer"} if {"parameters", "nvme"} & {*limit} else {*limit}
    return given >= {*parts(offload)}


def offloads(
    target: Capabilities,
    zero: int,
    recompute: Recompute | None,
    limit: tuple[OffloadPart, ...] | None,
    model: ModelSpec,
    device_types: Sequence[DeviceType],
    *,
    stages: bool = False,
) -> tuple[Offload, ...]:
    """What a search may keep off the devices, nothing first; ``stages`` for plans that may be pipelines.

    On NVMe where all device types have some, and where the limit names it.
    """
    able = target.offloading
    places: tuple[OffloadTo, ...] = ("none", "cpu")
    if limit is not None and "nvme" in limit and zero in able.nvme_zero and has_nvme(device_types):
        places = ("none", "cpu", "nvme")
    known = all(device_type.host.bytes_per_second is not None for device_type in device_types)
    known &= not model.quantised and model.training.preference is None
    updated = known and zero in able.optimizer_zero and not any(_updates(target, model))
    choices = [ON_DEVICE]
    if not stages or able.in_pipeline:
        for states, weights, kept in product(places, repeat=3):
            if (
                (states == "none" or (updated and (states != "nvme" or not _swaps(model))))
                and kept != "nvme"
                and (weights == "none" or (states != "none" and zero in able.parameters_zero))
                and (
                    kept == "none"
                    or (known and able.activations and recompute == "full" and not model.frozen)
                )
                and (weights == states or not able.together)
            ):
                choices.append(Offload(optimizer=states, parameters=weights, activations=kept))
    return tuple(offload for offload in dict.fromkeys(choices) if allows(limit, offload))


def has_nvme(device_types: Sequence[DeviceType]) -> bool:
    """True when all hosts have NVMe, and say how fast it is."""
    return all(device_type.host.nvme_bytes_per_second is not None for device_type in device_types)


def _swaps(model: ModelSpec) -> str:
    """Why the optimizer's states cannot be on NVMe; empty where they can."""
    name = model.training.optimizer
    return "" if name == "adamw" else f"states of adamw alone are swapped to NVMe, expected cpu with {name}"


def offload_text(plan: Plan) -> str:
    """What is kept where: ``optimizer + parameters offloaded to cpu``; empty when all is on the devices."""
    places: dict[str, list[str]] = {}
    for name, place in asdict(plan.offload).items():
        if place != "none":
            places.setdefault(place, []).append(name)
    return "; ".join(f"{' + '.join(names)} offloaded to {place}" for place, names in places.items())
