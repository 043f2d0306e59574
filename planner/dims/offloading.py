"""Offloading: what is kept in host memory or on NVMe between its uses (arXiv:2101.06840, arXiv:2104.07857)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product

from planner.capabilities import Capabilities, OffloadPart, OffloadTo, Recompute
from planner.cluster.spec import SUPERCHIP_GIGABYTES, ClusterSpec
from planner.cluster.topology import DeviceType
from planner.dims.dimension import Change, Dimension
from planner.dims.trained import frozen_text, moves_frozen
from planner.model.spec import ModelSpec
from planner.plan.values import ON_DEVICE, Fault, Offload, Plan, groups_of, with_commas

RATIOS = tuple(number / 10 for number in range(1, 10))
"""Shares of the optimizer in host memory that a search tries beside all of it."""

OPTIMIZER_PARTS: tuple[OffloadPart, ...] = ("optimizer", "parameters", "nvme", "super")
"""Parts that say, each of them, that the optimizer may leave the devices."""


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
                what = f"{target.name} offloads {name} to {where} with ZeRO {with_commas(able)}, got ZeRO {plan.zero}"
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
            if what := next(
                filter(None, (_scaled_anew(target, one.recompute, model) for one in plan.stages)), ""
            ):
                yield Fault(("offload", "optimizer"), what)
        if offload.optimizer == "nvme" and (what := _swaps(model)):
            yield Fault(("offload", "optimizer"), what)
        yield from _divided(plan, target, model)
        yield from _during_backward(plan, target, model)

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
            if plan.offload.super_offload and not cluster.is_superchip(pool, gpu):
                rate = f"{SUPERCHIP_GIGABYTES:g} GB/s and more"
                what = f"SuperOffload is for superchips, whose devices reach host memory at {rate}"
                yield Fault(
                    ("offload", "super_offload"), f"{what}, expected false with {gpu} in the pool {name}"
                )

    def neighbours(
        self, plan: Plan, target: Capabilities, device_types: Sequence[DeviceType]
    ) -> Iterator[Change]:
        """Nothing kept off the devices; another share of the optimizer in host memory."""
        offload, can = plan.offload, target.offloading
        if offload.anything:
            yield Change("offload", "everything on the devices", replace(plan, offload=ON_DEVICE))
        shared = offload.optimizer == "cpu" and offload.parameters == "none"
        if shared and plan.zero in can.ratio_zero:
            around = (
                max((ratio for ratio in RATIOS if ratio < offload.ratio), default=offload.ratio),
                min((ratio for ratio in RATIOS if ratio > offload.ratio), default=1.0),
            )
            for ratio in sorted({*around} - {offload.ratio}):
                what = f"{100 * ratio:.0f} % of the optimizer in host memory"
                yield Change("offload", what, replace(plan, offload=replace(offload, ratio=ratio)))


def _updates(target: Capabilities, model: ModelSpec) -> Iterator[Fault]:
    """What the processors of a host do not update."""
    training, path = model.training, ("offload", "optimizer")
    if training.optimizer not in ("adamw", "sgd"):
        what = f"{target.name} updates with adamw or sgd on hosts, expected none with {training.optimizer}"
        yield Fault(path, what)
    if training.optimizer_states != "fp32":
        yield Fault(path, f"moments on hosts are in fp32, expected none with {training.optimizer_states}")
    if training.master_weights not in (None, "fp32"):
        yield Fault(path, f"weights on hosts are in fp32, expected none with {training.master_weights}")
    if training.gradient_dtype or training.reduce_dtype:
        yield Fault(path, f"gradients for hosts are in {target.name}'s own format, expected no other")


def _scaled_anew(target: Capabilities, recompute: Recompute | None, model: ModelSpec) -> str:
    """Why hosts cannot update weights that are kept in fp8 alone; empty where they can or weights are in bf16 too.

    What selective recomputation discards of experts and latent attention is scaled anew, by another recipe than the one
    whose weights are cast with scales from steps before.
    """
    fp8 = target.offloading.tensor_by_tensor and model.training.precision == "fp8"
    if not fp8 or recompute != "selective" or (model.experts is None and model.latent is None):
        return ""
    return f"{target.name} updates fp8 weights on hosts with delayed scaling, expected recompute none or full"


def _divided(plan: Plan, target: Capabilities, model: ModelSpec) -> Iterator[Fault]:
    """What cannot be updated by the host in part."""
    offload, able, path = plan.offload, target.offloading.ratio_zero, ("offload", "ratio")
    if offload.ratio == 1:
        return
    if not able:
        yield Fault(path, f"{target.name} has all of the optimizer in one place, expected 1")
    elif plan.zero not in able:
        what = f"{target.name} divides the optimizer between host and device with ZeRO {with_commas(able)}"
        yield Fault(path, f"{what}, got ZeRO {plan.zero}")
    if what := _not_adamw(model):
        yield Fault(path, f"{what}, expected 1")


def _during_backward(plan: Plan, target: Capabilities, model: ModelSpec) -> Iterator[Fault]:
    """Why a plan cannot update during the last backward; ``host_rules`` has what it needs of the hosts."""
    offload, able, path = plan.offload, target.offloading.super_zero, ("offload", "super_offload")
    if not offload.super_offload:
        return
    if not able:
        yield Fault(path, f"{target.name} has no SuperOffload, expected false")
    elif plan.zero not in able:
        yield Fault(
            path, f"{target.name} has SuperOffload with ZeRO {with_commas(able)}, got ZeRO {plan.zero}"
        )
    if what := not_ahead(model):
        yield Fault(path, f"{what}, expected false")


def _not_adamw(model: ModelSpec) -> str:
    """Why hosts cannot share the update of the model, nor begin ahead of its end; empty where they can."""
    name = model.training.optimizer
    return "" if name == "adamw" else f"hosts share the update of adamw alone, got {name}"


def not_ahead(model: ModelSpec) -> str:
    """Why a model cannot be updated ahead of the norm of its gradients; empty where it can."""
    if model.training.precision == "fp16":
        return "SuperOffload updates by gradients that are still scaled in fp16"
    return _not_adamw(model)


def _checkpoints(plan: Plan, target: Capabilities) -> Iterator[Fault]:
    path = ("offload", "activations")
    if not target.offloading.activations:
        yield Fault(path, f"{target.name} keeps activations on the device, expected none")
    elif any(stage.recompute != "full" for stage in plan.stages):
        yield Fault(
            path, "only the checkpoints of full recomputation can be offloaded, expected recompute full"
        )


def parts(offload: Offload) -> tuple[OffloadPart, ...]:
    """What is kept off the devices, ``none`` where nothing is; ``nvme`` where some is there, and ``super``."""
    names: list[OffloadPart] = []
    names += ["optimizer"] if offload.optimizer != "none" else []
    names += ["parameters"] if offload.parameters != "none" else []
    names += ["activations"] if offload.activations != "none" else []
    names += ["nvme"] if offload.uses_nvme else []
    names += ["super"] if offload.super_offload else []
    return tuple(names) or ("none",)


def allows(limit: tuple[OffloadPart, ...] | None, offload: Offload) -> bool:
    """True when a limit allows it; without one all stays on the devices. All but checkpoints go with the optimizer."""
    if limit is None:
        return not offload.anything
    given = {*limit, "optimizer"} if {*OPTIMIZER_PARTS} & {*limit} else {*limit}
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

    On NVMe where all device types have some, and where the limit names it. The optimizer is divided where parameters
    stay on the devices, and SuperOffload is on superchips alone.
    """
    able = target.offloading
    places: tuple[OffloadTo, ...] = ("none", "cpu")
    if limit is not None and "nvme" in limit and zero in able.nvme_zero and has_nvme(device_types):
        places = ("none", "cpu", "nvme")
    known = not _stays(target, model, device_types)
    updated = known and zero in able.optimizer_zero and not any(_updates(target, model))
    updated &= not _scaled_anew(target, recompute, model)
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
                whole = Offload(optimizer=states, parameters=weights, activations=kept)
                choices += _shared(whole, zero, target, model, device_types)
    return tuple(offload for offload in dict.fromkeys(choices) if allows(limit, offload))


def moves_nothing(
    limit: Sequence[OffloadPart], target: Capabilities, model: ModelSpec, device_types: Sequence[DeviceType]
) -> str:
    """Why a target keeps nothing of a model off these devices, whatever the plan; empty where it may."""
    able = target.offloading
    if not (able.optimizer_zero or able.activations):
        return f"hetplan knows no offload of {target.name}"
    if what := _stays(target, model, device_types):
        return what
    asked = {*limit}
    if asked <= {*OPTIMIZER_PARTS} and (fault := next(_updates(target, model), None)):
        return fault.what
    if able.together and not asked & {"parameters", "activations"}:
        return f"{target.name} offloads parameters and optimizer states together"
    if asked == {"activations"} and model.frozen:
        return f"{target.name} keeps activations of {frozen_text(model)} on the devices"
    return ""


def _stays(target: Capabilities, model: ModelSpec, device_types: Sequence[DeviceType]) -> str:
    """Why all of a model stays on these devices, whatever is asked for; empty where it need not."""
    if unknown := [each.pool for each in device_types if each.host.bytes_per_second is None]:
        return f"host.link_gBps of {with_commas(list(dict.fromkeys(unknown)))} is not given"
    if not moves_frozen(target, model):
        return f"{target.name} keeps {frozen_text(model)} on the devices"
    if model.training.preference is not None:
        return f"{target.name} keeps what is trained on pairs of answers on the devices"
    return ""


def _shared(
    whole: Offload, zero: int, target: Capabilities, model: ModelSpec, device_types: Sequence[DeviceType]
) -> Iterator[Offload]:
    """The same with shares of the optimizer on hosts, and with updates during the backward."""
    able, host = target.offloading, whole.optimizer == "cpu"
    ratios = [1.0]
    if host and whole.parameters == "none" and zero in able.ratio_zero and not _not_adamw(model):
        ratios += RATIOS
    ahead = host and zero in able.super_zero and are_superchips(device_types) and not not_ahead(model)
    for ratio, now in product(ratios, (False, True) if ahead else (False,)):
        yield replace(whole, ratio=ratio, super_offload=now)


def are_superchips(device_types: Sequence[DeviceType]) -> bool:
    """True when all devices are one package with their processor."""
    return all(device_type.host.superchip for device_type in device_types)


def has_nvme(device_types: Sequence[DeviceType]) -> bool:
    """True when all hosts have NVMe, and say how fast it is."""
    return all(device_type.host.nvme_bytes_per_second is not None for device_type in device_types)


def _swaps(model: ModelSpec) -> str:
    """Why the optimizer's states cannot be on NVMe; empty where they can."""
    name = model.training.optimizer
    return "" if name == "adamw" else f"states of adamw alone are swapped to NVMe, expected cpu with {name}"


def offload_text(plan: Plan) -> str:
    """What is kept where: ``optimizer + parameters offloaded to cpu``; empty when all is on the devices.

    With ``60 % of the optimizer`` where devices have the rest, and ``(SuperOffload)`` behind it.
    """
    places: dict[str, list[str]] = {}
    offload = plan.offload
    optimizer = "optimizer" if offload.ratio == 1 else f"{100 * offload.ratio:.3g} % of the optimizer"
    optimizer += " (SuperOffload)" if offload.super_offload else ""
    for name, place in (
        (optimizer, offload.optimizer),
        ("parameters", offload.parameters),
        ("activations", offload.activations),
    ):
        if place != "none":
            places.setdefault(place, []).append(name)
    return "; ".join(f"{' + '.join(names)} offloaded to {place}" for place, names in places.items())
