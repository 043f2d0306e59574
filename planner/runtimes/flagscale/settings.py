"""FlagScale's training settings for a plan, by section: Megatron's arguments with process meshes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from planner.errors import EmitError
from planner.job.job import Job
from planner.model.spec import ModelSpec
from planner.plan.placement import Agent, Rank
from planner.plan.values import Plan, Stage
from planner.runtimes.megatron.arguments import arguments, model_words


@dataclass(frozen=True, slots=True, kw_only=True)
class Mesh:
    """Consecutive stages with one grid of devices of one type."""

    device_type: str
    """Name in the hostfile; FlagScale sorts nodes by the place of their type in the list of types."""
    tp: int
    dp: int
    pp: int

    @property
    def numbers(self) -> list[int]:
        """FlagScale's order: tp, context parallel, expert parallel, dp, pp."""
        return [self.tp, 1, 1, self.dp, self.pp]


def meshes(plan: Plan) -> tuple[Mesh, ...]:
    """The fewest meshes that hold the plan's stages in order.

    FlagScale's commit da4935ec6 mistakes ranks at the border of a mesh that has both replicas and stages, so
    stages with replicas get meshes of their own. Types come in the order of stages and one that comes back gets
    a new name: FlagScale's sort by type then keeps the ranks as hetplan numbers them.
    """
    shapes = [(shape, len(list(stages))) for shape, stages in groupby(plan.stages, key=_shape)]
    found: list[Mesh] = []
    for (gpus, tp, dp), depth in shapes:
        previous = found[-1].device_type if found else ""
        name = previous if previous.split("@")[0] == gpus else _fresh(gpus, found)
        alone = len(shapes) == 1 or dp == 1
        found += [Mesh(device_type=name, tp=tp, dp=dp, pp=depth if alone else 1)] * (1 if alone else depth)
    return tuple(found)


def _shape(stage: Stage) -> tuple[str, int, int]:
    gpus = "+".join(dict.fromkeys(group.gpu for group in stage.replicas))
    return gpus, stage.replicas[0].tp, stage.dp


def _fresh(gpus: str, before: Sequence[Mesh]) -> str:
    """The device kinds of a mesh as a type that no earlier mesh has."""
    names = {mesh.device_type for mesh in before}
    again = sum(name.split("@")[0] == gpus for name in names)
    return f"{gpus}@{again + 1}" if again else gpus


def host_types(found: Sequence[Mesh], launchers: Sequence[Agent], ranks: Sequence[Rank]) -> dict[str, str]:
    """Type of each host: that of the mesh of its first rank."""
    by_stage = [mesh.device_type for mesh in found for _ in range(mesh.pp)]
    return {agent.host: by_stage[ranks[agent.first_rank].stage] for agent in launchers}


Sections = dict[str, dict[str, Any]]
"""Settings by part and section of FlagScale's file, e.g. ``system.hetero``."""


def settings(job: Job, found: Sequence[Mesh]) -> Sections:
    """Every setting of the plan."""
    plan, model = job.plan, job.model
    words = arguments(job)
    first = plan.stages[0].replicas[0]
    return {
        "system.parallel": _parallel(plan, found),
        "system.hetero": _hetero(plan, model, found),
        "system.recompute": _recompute(plan),
        "system.precision": read_words(words["precision"]),
        "system.checkpoint": {"ckpt_format": "torch", "save_interval": 1000},
        "model.shape": read_words(model_words(model)),
        "model.batch": {"micro_batch_size": first.micro_batch, "global_batch_size": plan.global_batch},
        "model.optimizer": read_words(words["training"]),
        "data.tokens": read_words(words["data"]),
    }


def read_words(words: Sequence[str]) -> dict[str, Any]:
    """Settings of Megatron's arguments: ``--num-layers 8 --swiglu`` is num_layers: 8, swiglu: true."""
    found: dict[str, Any] = {}
    name = ""
    for word in words:
        if word.startswith("--"):
            name = word[2:].replace("-", "_")
            found[name] = True
        else:
            found[name] = int(word) if word.isdigit() else word
    return found


def _parallel(plan: Plan, found: Sequence[Mesh]) -> dict[str, Any]:
    made: dict[str, Any] = {
        "tensor_model_parallel_size": found[0].tp,
        "pipeline_model_parallel_size": plan.pp,
    }
    if plan.sequence_parallel and any(mesh.tp > 1 for mesh in found):
        made["sequence_parallel"] = True
    if any(mesh.dp > 1 for mesh in found):
        made["overlap_grad_reduce"] = True
        if plan.zero:
            made |= {"use_distributed_optimizer": True, "overlap_param_gather": True}
    return made


def _hetero(plan: Plan, model: ModelSpec, found: Sequence[Mesh]) -> dict[str, Any]:
    made: dict[str, Any] = {
        "enable_hetero": True,
        "hetero_pipeline_layer_split": [stage.layers for stage in plan.stages],
        "hetero_process_meshes": [number for mesh in found for number in mesh.numbers],
        "hetero_device_types": [mesh.device_type for mesh in found],
        "hetero_current_device_type": found[0].device_type,
    }
    if model.tied_embeddings and plan.zero and found[0].dp != found[-1].dp:
        made["use_partial_reduce_for_shared_embedding"] = True
    return made


def _recompute(plan: Plan) -> dict[str, Any]:
    """Full recomputation of all stages, or a table of [stages, micro-batches, 1 or 0] where they differ."""
    full = [stage.recompute == "full" for stage in plan.stages]
    if not any(full):
        return {}
    made: dict[str, Any] = {
        "recompute_granularity": "full",
        "recompute_method": "uniform",
        "recompute_num_layers": 1,
    }
    if not all(full):
        rows = [[1, plan.micro_batches, int(each)] for each in full]
        made["recompute_granularity_per_stage_micro_batch"] = rows
    return made


def check_meshes(plan: Plan) -> None:
    """Raise EmitError for meshes that cannot pass on activations.

    Between meshes FlagScale cuts activations over the sequence, so those of different tp need it cut inside too.
    """
    degrees = sorted({stage.replicas[0].tp for stage in plan.stages})
    if len(degrees) > 1 and not plan.sequence_parallel:
        shown = ", ".join(map(str, degrees))
        raise EmitError(
            f"meshes of different tp exchange parts of the sequence: tp {shown} need sequence_parallel"
        )
