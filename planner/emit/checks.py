"""Refusals and warnings: a plan that its target or these inputs cannot run is never written.

What a target can run is said in ``planner.plan.checks``; here is only what the launch files add to it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib import metadata

from planner.cluster.spec import ClusterSpec
from planner.dims.tensor import head_faults
from planner.errors import EmitError
from planner.model.spec import ModelSpec
from planner.plan.checks import listed, node_faults, target_faults, unwritten
from planner.plan.faults import groups_of
from planner.plan.values import Plan
from planner.runtimes.interface import runtime
from planner.runtimes.registry import target

HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]*")


def check_inputs(plan: Plan, cluster: ClusterSpec, model: ModelSpec) -> None:
    """Raise EmitError unless the plan is one for this model and target that launch files can hold."""
    heads = (fault for path, group in groups_of(plan) for fault in head_faults(path, group, model))
    found = (*target_faults(plan, model), *heads) or node_faults(plan, cluster)
    if found:
        raise EmitError(listed(found))
    _check_number_format(plan, model)
    _check_sequence(plan)
    _check_hosts(plan, cluster)
    _check_nvme(plan)


def _check_number_format(plan: Plan, model: ModelSpec) -> None:
    row = target(plan.target)
    fault = unwritten(row, model)
    if fault is not None:
        raise EmitError(
            f"target: {fault}",
            hint=None
            if model.training.precision in row.offered_precisions
            else f"{row.name} can be launched in {', '.join(row.offered_precisions)}",
        )


def _check_sequence(plan: Plan) -> None:
    if plan.sequence_parallel and not target(plan.target).sequence_parallel:
        raise EmitError(
            f"sequence_parallel: sequence parallelism with {plan.target} is priced, but hetplan writes no launch files "
            "for it: the example keeps hidden states whole on every rank of a replica",
            hint="without it, or a plan for megatron",
        )


def _check_hosts(plan: Plan, cluster: ClusterSpec) -> None:
    used = {group.pool for stage in plan.stages for group in stage.replicas}
    for pool in cluster.pools:
        for host in pool.hosts:
            if pool.name in used and not HOST.fullmatch(host):
                raise EmitError(f"pool {pool.name}: {host!r} cannot be a host name in a launch file")


def _check_nvme(plan: Plan) -> None:
    if plan.offload.uses_nvme:
        raise EmitError(
            "offload to NVMe is priced, but hetplan writes no launch files for it: they would need a folder on the "
            "NVMe of every node",
            hint="keep it in host memory: offload to cpu",
        )


def is_tried(version: str, tried: str) -> bool:
    """True when a version such as 2.13.0+cpu is the tried one, which may be shorter."""
    return f"{version.split('+')[0]}.".startswith(f"{tried}.")


def installed_versions(target: str) -> dict[str, str]:
    """Versions of a target's packages in this Python; absent ones are left out."""
    own = runtime(target)
    distributions = {own.checkout.package: own.checkout.distribution} if own.checkout else {}
    found = {}
    for name in own.tried:
        try:
            found[name] = metadata.version(distributions.get(name, name))
        except metadata.PackageNotFoundError:
            continue
    return found


def cautions(target: str, installed: Mapping[str, str]) -> tuple[str, ...]:
    """Versions that were not tried."""
    tried = runtime(target).tried
    return tuple(
        f"{name} {version} is installed here, the launch files were tried with {tried[name]}"
        for name, version in installed.items()
        if not is_tried(version, tried[name])
    )
