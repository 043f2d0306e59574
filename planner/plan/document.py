"""The plan file as plain records, and back.

Pools, fabrics, GPUs and links of the embedded cluster are sorted, so that their order in the user's file
leaves no trace.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from typing import Annotated, Any, Literal

from pydantic import Field

from planner.cluster.spec import ClusterSpec
from planner.files.fields import (
    Batch,
    Devices,
    Fraction,
    Frozen,
    Layers,
    NodeDevices,
    OptionalCount,
    OptionalPredicted,
    Predicted,
    ZeroStage,
    whole,
)
from planner.files.yaml_text import Lines
from planner.model.spec import ModelSpec
from planner.plan.values import Offload, Plan, Stage
from planner.ranges import LAYERS, STAGES
from planner.runtimes.capabilities import OffloadTo, Recompute

FORMAT = "hetplan-plan/1"
"""Name and version of the plan file's format."""

Status = Literal["optimal", "feasible", "infeasible", "unknown"]
Objective = Literal["time", "cost", "energy"]


class ReplicaRecord(Frozen):
    """Identical replicas of a stage."""

    pool: str
    """Name of the pool."""
    gpu: str
    """Kind of device in the pool."""
    tp: NodeDevices
    """Devices of one replica."""
    count: Devices
    """Replicas."""
    micro_batch: Batch
    """Sequences of the largest micro-batch of a replica: share / steps, rounded up."""
    share: Batch
    """Sequences of one replica in one optimizer step."""
    steps: Batch
    """Micro-batches of one replica in one optimizer step."""


class StageRecord(Frozen):
    """One pipeline stage."""

    layers: tuple[Annotated[int, whole(LAYERS, least=0)], Layers]
    """First layer, and one past the last."""
    recompute: Recompute
    """none, selective or full."""
    replicas: tuple[ReplicaRecord, ...] = Field(min_length=1)


class OffloadRecord(Frozen):
    """What is kept off the devices."""

    optimizer: OffloadTo = "none"
    """Optimizer states and gradients: none, cpu or nvme."""
    parameters: OffloadTo = "none"
    """Parameters: none, cpu or nvme."""
    activations: OffloadTo = "none"
    """Checkpoints of full recomputation: none or cpu."""

    def offload(self) -> Offload:
        """The plan's value; raises PlanError."""
        return Offload(optimizer=self.optimizer, parameters=self.parameters, activations=self.activations)


class AlternativeRecord(Frozen):
    """The best plan of a family that was considered."""

    family: str
    step_seconds: Predicted | None = None
    """Predicted step, seconds; absent when the family has no plan."""
    reason: str
    """Why it lost, or that it was chosen."""


class SummaryRecord(Frozen):
    """What the search said of the plan."""

    status: Status
    step_seconds: Predicted
    """Predicted time of one optimizer step."""
    bound_seconds: OptionalPredicted
    """No plan of the space is faster."""
    gap: Fraction
    """(step - bound) / step."""
    tokens_per_second: OptionalPredicted
    objective: Objective | None = None
    """What was minimised, and what the gap is of; the time of a step when absent."""
    subclusters: OptionalCount | None = None
    """Sub-clusters that the gap is over; the whole space at once when absent."""
    outside: tuple[str, ...] = ()
    """Plans that the space leaves out."""
    alternatives: tuple[AlternativeRecord, ...] = ()
    advice: tuple[str, ...] = ()


class DigestsRecord(Frozen):
    """Fingerprints that show whether a part was edited."""

    plan: str
    cluster: str
    model: str


class CalibrationRecord(Frozen):
    """The calibration file that the plan was found with."""

    name: str
    """Name of the file, without its folder."""
    digest: str
    """First 16 digits of the SHA-256 of its bytes."""


class InputsRecord(Frozen):
    """The inputs that the plan was made for, with all defaults filled in."""

    cluster: ClusterSpec
    model: ModelSpec


class PlanRecord(Frozen):
    """A plan file."""

    format: Literal["hetplan-plan/1"]
    target: str
    zero: ZeroStage
    shard_size: Devices | None = None
    """Replicas of a stage that share one copy of what ZeRO shards; absent when all of them do."""
    interleave: Layers
    sequence_parallel: bool
    offload: OffloadRecord = OffloadRecord()
    stages: tuple[StageRecord, ...] = Field(min_length=1, max_length=int(STAGES.most))
    summary: SummaryRecord | None = None
    calibration: CalibrationRecord | None = None
    digests: DigestsRecord
    inputs: InputsRecord


def plan_part(plan: Plan) -> dict[str, Any]:
    """The plan as plain data, in the order of the file."""
    return {
        "target": plan.target,
        "zero": plan.zero,
        **shard_part(plan),
        "interleave": plan.interleave,
        "sequence_parallel": plan.sequence_parallel,
        **offload_part(plan.offload),
        "stages": [_stage(stage) for stage in plan.stages],
    }


def shard_part(plan: Plan) -> dict[str, Any]:
    """The replicas of a sharding group as plain data; nothing when all replicas are one, as in files of before it."""
    return {} if plan.shard_size is None else {"shard_size": plan.shard_size}


def offload_part(offload: Offload) -> dict[str, Any]:
    """The offload as plain data; nothing when everything stays on the devices, as in files of before it."""
    kept = {name: place for name, place in asdict(offload).items() if place != "none"}
    return {"offload": kept} if kept else {}


def summary_part(summary: SummaryRecord) -> dict[str, Any]:
    """The summary as plain data."""
    data = summary.model_dump(mode="json", exclude_none=True)
    return {**data, "outside": Lines(data["outside"]), "advice": Lines(data["advice"])}


def inputs_part(cluster: ClusterSpec, model: ModelSpec) -> dict[str, Any]:
    """The inputs as plain data, free of the order of pools, GPUs, fabrics and links."""
    return {"cluster": cluster_part(cluster), "model": model_part(model)}


def digests_part(plan: Plan, cluster: ClusterSpec, model: ModelSpec) -> dict[str, str]:
    """Fingerprint of each part."""
    return {
        "plan": _digest(plan_part(plan)),
        "cluster": cluster_digest(cluster),
        "model": model_digest(model),
    }


def cluster_digest(cluster: ClusterSpec) -> str:
    """Fingerprint of a cluster, whatever the order of its pools."""
    return _digest(cluster_part(cluster))


def model_digest(model: ModelSpec) -> str:
    """Fingerprint of a model with its training."""
    return _digest(model_part(model))


def _digest(data: dict[str, Any]) -> str:
    text = json.dumps(data, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def model_part(model: ModelSpec) -> dict[str, Any]:
    """The model with its training as plain data."""
    return model.model_dump(mode="json", exclude_none=True)


def cluster_part(cluster: ClusterSpec) -> dict[str, Any]:
    """The cluster as plain data, its parts sorted."""
    data = cluster.model_dump(mode="json", exclude_none=True)
    data["gpus"] = {name: _by_key(gpu) for name, gpu in sorted(data["gpus"].items())}
    data["fabrics"] = dict(sorted(data["fabrics"].items()))
    data["pools"] = sorted(data["pools"], key=lambda pool: str(pool["name"]))
    data["links"] = sorted(data["links"], key=lambda link: json.dumps(link, sort_keys=True))
    return data


def _by_key(gpu: dict[str, Any]) -> dict[str, Any]:
    return {**gpu, "tflops": dict(sorted(gpu["tflops"].items()))}


def _stage(stage: Stage) -> dict[str, Any]:
    return {
        "layers": [stage.first_layer, stage.end_layer],
        "recompute": stage.recompute,
        "replicas": [
            {
                "pool": group.pool,
                "gpu": group.gpu,
                "tp": group.tp,
                "count": group.count,
                "micro_batch": group.micro_batch,
                "share": group.share,
                "steps": group.steps,
            }
            for group in stage.replicas
        ],
    }
