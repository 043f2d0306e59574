"""FlagScale: its experiment, its training settings with the process meshes, and its hostfile."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from planner.errors import EmitError
from planner.files.writing import dump
from planner.job.files import EmittedFile, rendered
from planner.job.job import FILL_IN, MASTER_PORT, Job, Line, pool_lines
from planner.model.spec import ModelSpec
from planner.plan.placement import Agent, Rank
from planner.plan.values import Plan, Stage
from planner.runtimes.flagscale.capabilities import CAPABILITIES
from planner.runtimes.interface import Runtime
from planner.runtimes.megatron.arguments import arguments, differences, model_words, read_words
from planner.runtimes.megatron.log import MegatronLines
from planner.runtimes.megatron.numerics import unsaid
from planner.runtimes.megatron.runtime import RUNTIME as MEGATRON


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
    blocks: list[Mesh] = []
    for (gpus, tp, dp), depth in shapes:
        previous = blocks[-1].device_type if blocks else ""
        name = previous if previous.split("@")[0] == gpus else _fresh(gpus, blocks)
        alone = len(shapes) == 1 or dp == 1
        blocks += [Mesh(device_type=name, tp=tp, dp=dp, pp=depth if alone else 1)] * (1 if alone else depth)
    return tuple(blocks)


def _shape(stage: Stage) -> tuple[str, int, int]:
    gpus = "+".join(dict.fromkeys(group.gpu for group in stage.replicas))
    return gpus, stage.replicas[0].tp, stage.dp


def _fresh(gpus: str, before: Sequence[Mesh]) -> str:
    """The device types of a mesh as one type that no earlier mesh has."""
    names = {mesh.device_type for mesh in before}
    again = sum(name.split("@")[0] == gpus for name in names)
    return f"{gpus}@{again + 1}" if again else gpus


def host_types(blocks: Sequence[Mesh], launchers: Sequence[Agent], ranks: Sequence[Rank]) -> dict[str, str]:
    """Type of each host: that of the mesh of its first rank."""
    by_stage = [mesh.device_type for mesh in blocks for _ in range(mesh.pp)]
    return {agent.host: by_stage[ranks[agent.first_rank].stage] for agent in launchers}


Sections = dict[str, dict[str, Any]]
"""Settings by part and section of FlagScale's file, e.g. ``system.hetero``."""


def settings(job: Job, blocks: Sequence[Mesh]) -> Sections:
    """Every setting of the plan."""
    plan, model = job.plan, job.model
    words = arguments(job)
    first = plan.stages[0].replicas[0]
    return {
        "system.parallel": _parallel(plan, blocks),
        "system.hetero": _hetero(plan, model, blocks),
        "system.recompute": _recompute(plan),
        "system.precision": read_words(words["precision"]),
        "system.checkpoint": {"ckpt_format": "torch", "save_interval": 1000},
        "model.shape": read_words(model_words(model)),
        "model.batch": {"micro_batch_size": first.micro_batch, "global_batch_size": plan.global_batch},
        "model.optimizer": read_words(words["training"]),
        "data.tokens": read_words(words["data"]),
    }


def _parallel(plan: Plan, blocks: Sequence[Mesh]) -> dict[str, Any]:
    made: dict[str, Any] = {
        "tensor_model_parallel_size": blocks[0].tp,
        "pipeline_model_parallel_size": plan.pp,
    }
    if plan.sequence_parallel and any(mesh.tp > 1 for mesh in blocks):
        made["sequence_parallel"] = True
    if any(mesh.dp > 1 for mesh in blocks):
        made["overlap_grad_reduce"] = True
        if plan.zero:
            made |= {"use_distributed_optimizer": True, "overlap_param_gather": True}
    return made


def _hetero(plan: Plan, model: ModelSpec, blocks: Sequence[Mesh]) -> dict[str, Any]:
    made: dict[str, Any] = {
        "enable_hetero": True,
        "hetero_pipeline_layer_split": [stage.layers for stage in plan.stages],
        "hetero_process_meshes": [number for mesh in blocks for number in mesh.numbers],
        "hetero_device_types": [mesh.device_type for mesh in blocks],
        "hetero_current_device_type": blocks[0].device_type,
    }
    if model.tied_embeddings and plan.zero and blocks[0].dp != blocks[-1].dp:
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


EXECUTED = ("$(", "`", '"', "'", "\\")
"""What the runner of commit da4935ec6 lets a node's shell run, or take for the end of a quoted text."""


def literal(text: str) -> str:
    """The text as it is to be written so that OmegaConf reads it back and resolves nothing in it."""
    return re.sub(r"(\\*)\$\{", lambda match: match[1] * 2 + r"\${", text)


def check_shell(name: str, value: str) -> None:
    """Raise EmitError for a variable that the runner's scripts would execute a part of."""
    bad = next((word for word in EXECUTED if word in value), None)
    if bad is not None:
        raise EmitError(
            f"flagscale: its scripts would have a shell interpret {bad} in {name}, which is {value!r}",
            hint="correct interface: or hca: in the cluster file",
        )


ENTRY = "./flagscale/train/train_gpt.py"
"""FlagScale's training script of decoders, relative to its checkout."""


class FlagScale(Runtime):
    """Trains by FlagScale's Megatron with process meshes, started by its own runner."""

    capabilities = CAPABILITIES
    starts_itself = True

    def check(self, plan: Plan, model: ModelSpec) -> None:
        """Raise EmitError for meshes that cannot pass on activations.

        Between meshes FlagScale cuts activations over the sequence, so those of different tp need it cut inside too.
        """
        degrees = sorted({stage.replicas[0].tp for stage in plan.stages})
        if len(degrees) > 1 and not plan.sequence_parallel:
            shown = ", ".join(map(str, degrees))
            raise EmitError(
                f"meshes of different tp exchange parts of the sequence: tp {shown} need sequence_parallel"
            )

    def files(self, job: Job) -> tuple[EmittedFile, ...]:
        """The experiment and the plan in FlagScale's words."""
        blocks = meshes(job.plan)
        network = _network(job)
        types = host_types(blocks, job.agents, job.ranks)
        return (
            EmittedFile("conf/experiment.yaml", _to_edit(network) + _experiment(job, network)),
            EmittedFile("conf/train/plan.yaml", dump(_nested(settings(job, blocks)))),
            EmittedFile("hostfile", _hostfile(job, types)),
            EmittedFile("launch.sh", rendered("runtimes/flagscale/launch.sh.j2"), executable=True),
        )

    def notes(self, job: Job) -> Mapping[str, object]:
        """The meshes, where FlagScale differs from the model file, and whether the experiment has open lines."""
        return {
            "meshes": meshes(job.plan),
            "differences": tuple(differences(job.model)),
            "unsaid": unsaid(job.model),
            "dispatcher": None,
            "is_open": bool(_to_edit(_network(job))),
        }

    def log_reader(self, plan: Plan) -> MegatronLines:
        """Megatron prints."""
        return MEGATRON.log_reader(plan)

    def how_to_time(self, plan: Plan) -> str:
        """Megatron times."""
        return MEGATRON.how_to_time(plan)


def _nested(sections: Sections) -> dict[str, dict[str, Any]]:
    """The settings as FlagScale's file has them, empty sections left out."""
    parts: dict[str, dict[str, Any]] = {"system": {}, "model": {}, "data": {}}
    for name, values in sections.items():
        part, section = name.split(".")
        if values:
            parts[part][section] = values
    return parts


def _hostfile(job: Job, types: Mapping[str, str]) -> str:
    return "".join(
        f"{agent.host} slots={len(agent.devices)} type={types[agent.host]}\n" for agent in job.agents
    )


def _network(job: Job) -> dict[str, list[Line]]:
    """What the nodes of each used pool need to know of the network."""
    return {
        pool.name: pool_lines(job.cluster, pool, job.network, job.network.needs_sockets)
        for pool in job.cluster.pools
        if pool in job.pools
    }


def _experiment(job: Job, network: Mapping[str, Sequence[Line]]) -> str:
    """The experiment, with one environment for each node."""
    nodes = {
        agent.host: {
            **_visible(job, agent),
            "HETPLAN_HOST": agent.host,
            **_variables(network[agent.pool]),
        }
        for agent in job.agents
    }
    everywhere: dict[str, Any] = {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}
    if job.model.training.precision == "tf32":
        everywhere["TORCH_ALLOW_TF32_CUBLAS_OVERRIDE"] = "1"
    document = {
        "defaults": [{"train": "plan"}, "_self_"],
        "experiment": {
            "exp_name": re.sub(r"[^A-Za-z0-9_.-]", "-", job.model.name),
            "exp_dir": "${oc.env:HETPLAN_FOLDER}/outputs",
            "task": {"type": "train", "backend": "megatron", "entrypoint": ENTRY},
            "runner": {
                "backend": "torchrun",
                "hostfile": "${oc.env:HETPLAN_FOLDER}/hostfile",
                "rdzv_backend": "static",
                "master_addr": job.agents[0].host,
                "master_port": MASTER_PORT,
            },
            "envs": {**everywhere, "node_specific": nodes},
        },
        "action": "run",
        "hydra": {"run": {"dir": "${experiment.exp_dir}/hydra"}},
    }
    return dump(document)


def _visible(job: Job, agent: Agent) -> dict[str, str]:
    """What leaves a node its planned devices: indices are those of nvidia-smi, by PCI slot, or of rocm-smi."""
    devices = ",".join(map(str, agent.devices))
    if job.cluster.gpus[job.ranks[0].gpu].library == "RCCL":
        return {"HIP_VISIBLE_DEVICES": devices}
    return {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": devices}


def _variables(lines: Sequence[Line]) -> dict[str, str]:
    """Variables of the network as OmegaConf reads them."""
    variables = dict(line for line in lines if not isinstance(line, str))
    for name, value in variables.items():
        check_shell(name, value)
    return {name: literal(value) for name, value in variables.items()}


def _to_edit(network: Mapping[str, Sequence[Line]]) -> str:
    """What the cluster file does not say of the network, as comments."""
    names: list[str] = []
    for lines in network.values():
        comments = [line for line in lines if isinstance(line, str)]
        for line, following in zip(comments, [*comments[1:], ""], strict=True):
            if line.startswith(FILL_IN):
                names += [line.replace("fill in and uncomment", "add to node_specific"), following]
    return "".join(f"{line}\n" for line in names)


RUNTIME = FlagScale()
