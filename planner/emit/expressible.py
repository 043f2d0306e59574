"""Refusals: a plan that its target or these inputs cannot run is never written."""

from __future__ import annotations

import re
from collections.abc import Iterable

from planner.errors import EmitError
from planner.plan import Plan, ReplicaGroup
from planner.plan_check import offload_faults
from planner.spec.cluster import ClusterSpec
from planner.spec.model import ModelSpec
from planner.targets import Target, target

HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]*")


def check_inputs(plan: Plan, cluster: ClusterSpec, model: ModelSpec) -> None:
    """Raise EmitError unless the plan is for this model, hosts have plain names, and the target takes both."""
    if plan.layers != model.layers:
        raise EmitError(f"the plan has {plan.layers} layers, the model {model.name} has {model.layers}")
    if plan.global_batch != model.training.global_batch:
        raise EmitError(
            f"the plan has a global batch of {plan.global_batch} sequences, the model file "
            f"says {model.training.global_batch}"
        )
    used = {group.pool for stage in plan.stages for group in stage.replicas}
    for pool in cluster.pools:
        for host in pool.hosts:
            if pool.name in used and not HOST.fullmatch(host):
                raise EmitError(f"pool {pool.name}: {host!r} cannot be a host name in a launch file")
    row = target(plan.target)
    check_number_format(model, row)
    check_target(plan, row)
    degree = max(group.tp for group in _groups(plan))
    if not row.copies_kv_heads and model.kv_heads % degree:
        raise EmitError(
            f"{row.name} needs a tp that divides the {model.kv_heads} key/value heads: the plan has tp {degree}"
        )


def check_number_format(model: ModelSpec, row: Target) -> None:
    """Raise EmitError when the target does not train in the model's number format."""
    wanted = model.training.precision
    if wanted not in row.precisions:
        raise EmitError(
            f"{row.name} does not train in {wanted}, which the model file asks for",
            hint=f"it trains in {', '.join(row.precisions)}",
        )


def check_target(plan: Plan, row: Target) -> None:
    """Raise EmitError when a plan asks more than the capability row of its target gives."""
    _check_tensor_parallel(plan, row)
    _check_zero(plan, row)
    _check_batches(plan, row)
    if plan.interleave > 1 and not row.interleave:
        raise EmitError(
            f"{row.name} cannot interleave: the plan has {plan.interleave} chunks of layers per device"
        )
    if plan.interleave > 1 and plan.pp == 1:
        raise EmitError("interleaving needs a pipeline of at least 2 stages")
    if plan.sequence_parallel and not row.sequence_parallel:
        raise EmitError(f"{row.name} has no sequence parallelism")
    _check_offload(plan, row)
    for index, stage in enumerate(plan.stages):
        if stage.recompute not in row.recomputes:
            raise EmitError(f"stages[{index}]: {row.name} has no recompute {stage.recompute}")


def _check_offload(plan: Plan, row: Target) -> None:
    for fault in offload_faults(plan, row):
        raise EmitError(f"{'.'.join(map(str, fault.path))}: {fault.what}")
    if plan.offload.uses_nvme:
        raise EmitError(
            "offload to NVMe is priced, but hetplan writes no launch files for it: they would need a folder on the "
            "NVMe of every node",
            hint="keep it in host memory: offload to cpu",
        )


def _groups(plan: Plan) -> list[ReplicaGroup]:
    return [group for stage in plan.stages for group in stage.replicas]


def _check_tensor_parallel(plan: Plan, row: Target) -> None:
    degrees = sorted({group.tp for group in _groups(plan)})
    if row.tensor_parallel == "none" and degrees != [1]:
        raise EmitError(f"{row.name} runs without tensor parallelism: the plan has tp {degrees[-1]}")
    if row.tensor_parallel == "one-degree" and len(degrees) > 1:
        raise EmitError(
            f"{row.name} has one tensor-parallel degree for all: the plan has tp {_listed(degrees)}"
        )


def _check_zero(plan: Plan, row: Target) -> None:
    allowed = row.zero_without_pipeline if plan.pp == 1 else row.zero_with_pipeline
    if plan.zero not in allowed:
        pipeline = "without a pipeline" if plan.pp == 1 else "in a pipeline"
        raise EmitError(f"{row.name} runs ZeRO {_listed(allowed)} {pipeline}: the plan has ZeRO {plan.zero}")


def _check_batches(plan: Plan, row: Target) -> None:
    widths = [stage.dp for stage in plan.stages]
    if not row.dp_per_stage and len(set(widths)) > 1:
        raise EmitError(f"{row.name} needs as many replicas in every stage: the plan has {_listed(widths)}")
    rule = row.batch_without_pipeline if plan.pp == 1 else row.batch_with_pipeline
    if rule != "equal":
        return
    batches = sorted({(group.share, group.steps) for group in _groups(plan)})
    if len(batches) > 1:
        shown = ", ".join(f"{share} sequences in {steps} micro-batches" for share, steps in batches)
        raise EmitError(f"{row.name} needs the same batch on every replica here: the plan has {shown}")
    share, steps = batches[0]
    if share % steps:
        raise EmitError(
            f"{row.name} needs equal micro-batches here: {share} sequences do not divide into {steps} "
            "micro-batches"
        )


def _listed(values: Iterable[int]) -> str:
    return ", ".join(str(value) for value in values)
