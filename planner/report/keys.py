"""Values as dictionaries, the parts of which the ``--json`` documents are made."""

from __future__ import annotations

from dataclasses import asdict, fields

from planner.cluster.spec import ClusterSpec
from planner.cluster.topology import Kind, Path
from planner.cost.binding import Binding
from planner.cost.values import Breakdown, Estimate, GroupEstimate, Memory, StageEstimate
from planner.model.spec import ModelSpec
from planner.plan.values import Plan
from planner.report.alternatives import Considered, Neighbour
from planner.report.plan_table import Proof, misfits
from planner.report.ranks import RankRun, idle_devices
from planner.search.values import Advice, Diagnosis, IdleCost, LimitCost, Nearest, Scored

Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]
Document = dict[str, Json]


def plan_keys(scored: Scored, proof: Proof | None) -> Document:
    """What every document says of a plan."""
    estimate = scored.estimate
    return {
        **_proof_keys(proof),
        "step_seconds": estimate.step_seconds,
        "spread": estimate.spread,
        "tokens_per_second": estimate.tokens_per_second,
        "tflops_per_gpu": estimate.tflops_per_gpu,
        "mfu": estimate.mfu,
        "peak_memory_bytes": estimate.peak_memory_bytes,
        **running_cost_keys(estimate),
        "fits": estimate.fits,
        "misfits": list(misfits(estimate)),
        "devices": estimate.devices,
        "plan": _decisions(scored.plan),
        "stages": [
            _stage_keys(priced, stage.recompute)
            for priced, stage in zip(estimate.stages, scored.plan.stages, strict=True)
        ],
        "breakdown": _breakdown_keys(estimate.breakdown),
    }


RUNNING_COST = ("price_per_hour", "watts", "cost_per_step", "cost_per_million_tokens", "joules_per_token")
"""Properties of an estimate that need prices or powers."""
NUMBERS = (
    *("step_seconds", "spread", "tokens_per_second", "tflops_per_gpu", "mfu", "peak_memory_bytes"),
    *RUNNING_COST,
)
"""Keys of a plan that hold one number."""


def running_cost_keys(estimate: Estimate) -> Document:
    """Price and energy of the used devices; null where unknown."""
    return {name: getattr(estimate, name) for name in RUNNING_COST}


def no_plan_keys(proof: Proof) -> Document:
    """The keys of ``plan_keys`` where no plan is known."""
    nothing: Document = dict.fromkeys([*NUMBERS, "fits", "devices", "plan", "breakdown"])
    return {**_proof_keys(proof), **nothing, "misfits": [], "stages": []}


def _proof_keys(proof: Proof | None) -> Document:
    if proof is None:
        return {
            "status": "predicted",
            "bound_seconds": None,
            "gap": None,
            "search_seconds": None,
            "outside": [],
        }
    return {
        "status": proof.status,
        "bound_seconds": proof.bound_seconds,
        "gap": proof.gap,
        "search_seconds": proof.seconds,
        "outside": list(proof.outside),
    }


def nearest_keys(entry: Nearest) -> Document:
    """How near plans come to a limit that none keeps."""
    estimate = entry.scored.estimate
    return {
        "limit": entry.limit,
        "asked": entry.asked,
        "within_other_limits": entry.kept,
        "devices": estimate.devices,
        **_speed_keys(estimate),
        "cost_per_million_tokens": estimate.cost_per_million_tokens,
    }


def _decisions(plan: Plan) -> Document:
    return {
        "target": plan.target,
        "zero": plan.zero,
        "shard_size": plan.shard_size,
        "pp": plan.pp,
        "interleave": plan.interleave,
        "sequence_parallel": plan.sequence_parallel,
        "offload": {name: str(place) for name, place in asdict(plan.offload).items()},
        "global_batch": plan.global_batch,
        "micro_batches": plan.micro_batches,
    }


def _stage_keys(stage: StageEstimate, recompute: str) -> Document:
    return {
        "layers": stage.end_layer - stage.first_layer,
        "first_layer": stage.first_layer,
        "end_layer": stage.end_layer,
        "recompute": recompute,
        "forward_seconds": stage.forward_seconds,
        "backward_seconds": stage.backward_seconds,
        "send_seconds": stage.send_seconds,
        "sync_seconds": stage.sync_seconds,
        "crosses": stage.crosses,
        "copies_cross": stage.copies_cross,
        "link": stage.link,
        "replicas": [_group_keys(group) for group in stage.groups],
    }


def _group_keys(group: GroupEstimate) -> Document:
    return {
        "pool": group.pool,
        "gpu": group.gpu,
        "tp": group.tp,
        "count": group.count,
        "micro_batch": group.micro_batch,
        "share": group.share,
        "steps": group.steps,
        "forward_seconds": group.forward_seconds,
        "backward_seconds": group.backward_seconds,
        "memory_bytes": _memory_keys(group.memory),
    }


def _memory_keys(memory: Memory) -> Document:
    parts = {
        field.name.removesuffix("_bytes"): float(getattr(memory, field.name)) for field in fields(memory)
    }
    return {**parts, "used": memory.used_bytes, "headroom": memory.headroom_bytes}


def _breakdown_keys(breakdown: Breakdown) -> Document:
    return {field.name: float(getattr(breakdown, field.name)) for field in fields(breakdown)}


def alternative_keys(entry: Considered) -> Document:
    """One family of plans that was considered."""
    return {
        "family": entry.family,
        "chosen": entry.chosen,
        "reason": entry.reason,
        "step_seconds": entry.step_seconds,
        "tokens_per_second": entry.tokens_per_second,
    }


def _speed_keys(estimate: Estimate) -> Document:
    return {"step_seconds": estimate.step_seconds, "tokens_per_second": estimate.tokens_per_second}


def advice_keys(entry: Advice) -> Document:
    """A faster plan that another runtime could run."""
    return {
        "target": entry.target,
        "change": entry.change,
        "faster": entry.faster,
        **_speed_keys(entry.scored.estimate),
    }


def idle_cost_keys(entry: IdleCost) -> Document:
    """What using idle devices would take."""
    return {
        "pool": entry.pool,
        "gpu": entry.gpu,
        "idle": entry.idle,
        "taken": entry.taken,
        "slower": entry.slower,
        "reason": entry.reason,
        "step_seconds": entry.scored.estimate.step_seconds if entry.scored else None,
    }


def limit_cost_keys(entry: LimitCost) -> Document:
    """What a limit of the user costs."""
    return {
        "limit": entry.limit,
        "given": list(entry.given),
        "instead": list(entry.instead),
        "costs": entry.costs,
        **_speed_keys(entry.scored.estimate),
    }


def binding_keys(found: Binding) -> Document:
    """The device with least room, and the links that the step waits for."""
    device = found.device
    return {
        "device": {
            "stage": device.stage,
            "pool": device.pool,
            "gpu": device.gpu,
            "headroom_bytes": device.memory.headroom_bytes,
            "next_micro_batch": device.next_micro_batch,
            "next_micro_batch_bytes": device.next_micro_batch_bytes,
            "layer_bytes": device.layer_bytes,
        },
        "links": [asdict(link) for link in found.links],
    }


def diagnosis_keys(diagnosis: Diagnosis | None) -> Document | None:
    """Why nothing fits; None when something does."""
    if diagnosis is None:
        return None
    return {
        "causes": list(diagnosis.causes),
        "nearest_miss": diagnosis.nearest_miss,
        "hints": list(diagnosis.hints),
    }


def neighbour_keys(entry: Neighbour) -> Document:
    """A plan one decision away."""
    return {
        "change": entry.change,
        "fits": entry.scored.estimate.fits,
        **_speed_keys(entry.scored.estimate),
    }


def ranks_keys(run: RankRun) -> Document:
    """Consecutive ranks on equal devices."""
    return {
        "first_rank": run.first_rank,
        "ranks": run.ranks,
        "stage": run.stage,
        "pool": run.pool,
        "gpu": run.gpu,
        "hosts": list(run.hosts),
        "devices": list(run.devices),
        "tp": run.tp,
        "replicas_per_host": run.replicas_per_host,
    }


def idle_keys(plan: Plan, cluster: ClusterSpec) -> list[Json]:
    """Devices without a rank."""
    return [
        {"pool": idle.pool, "gpu": idle.gpu, "hosts": list(idle.hosts), "devices": list(idle.devices)}
        for idle in idle_devices(plan, cluster)
    ]


def understood_keys(cluster: ClusterSpec, model: ModelSpec | None) -> Document:
    """The inputs with every default filled in, in the units of their files."""
    return {
        "cluster": cluster.model_dump(mode="json"),
        "model": None if model is None else {**model.model_dump(mode="json"), "parameters": model.parameters},
    }


def path_keys(first: str, last: str, path: Path) -> Document:
    """How nodes of two pools reach each other; null without a path."""
    return {
        "between": [first, last],
        "path": path.fabric or None,
        "bytes_per_second": path.bytes_per_second if path.connected else None,
        "latency_seconds": path.latency_seconds if path.connected else None,
    }


def kind_keys(kind: Kind) -> Document:
    """Interchangeable devices of one pool."""
    return {
        "pool": kind.pool,
        "gpu": kind.gpu,
        "nodes": kind.nodes,
        "per_node": kind.per_node,
        "memory_bytes": kind.memory_bytes,
        "reserve_bytes": kind.reserve_bytes,
        "peak_flops": dict(sorted(kind.peak_flops.items())),
    }
