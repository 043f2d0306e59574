"""FlagScale: its experiment, its training settings and its hostfile."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from planner.errors import EmitError
from planner.files.yaml_text import dump
from planner.job.files import EmittedFile, rendered
from planner.job.job import MASTER_PORT, Job
from planner.job.network import Line, pool_lines
from planner.job.readme import FILL_IN
from planner.model.spec import ModelSpec
from planner.plan.values import Plan
from planner.runtimes.flagscale.capabilities import CAPABILITIES
from planner.runtimes.flagscale.settings import Sections, check_meshes, host_types, meshes, settings
from planner.runtimes.interface import Runtime
from planner.runtimes.megatron.arguments import differences
from planner.runtimes.megatron.log import MegatronLines
from planner.runtimes.megatron.runtime import RUNTIME as MEGATRON

EXECUTED = ("$(", "`", '"', "'", "\\")
"""What the runner of commit da4935ec6 lets a node's shell run, or take for the end of a quoted text."""


def literal(text: str) -> str:
    """The text as it is to be written so that OmegaConf reads it back and resolves nothing in it."""
    return re.sub(r"(\\*)\$\{", lambda found: found[1] * 2 + r"\${", text)


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
        """Raise EmitError for a model that FlagScale cannot cut so, and meshes that cannot talk."""
        check_meshes(plan)

    def files(self, job: Job) -> tuple[EmittedFile, ...]:
        """The experiment and the plan in FlagScale's words."""
        found = meshes(job.plan)
        network = _network(job)
        types = host_types(found, job.agents, job.ranks)
        return (
            EmittedFile("conf/experiment.yaml", _to_edit(network) + _experiment(job, network)),
            EmittedFile("conf/train/plan.yaml", dump(_nested(settings(job, found)))),
            EmittedFile("hostfile", _hostfile(job, types)),
            EmittedFile("launch.sh", rendered("runtimes/flagscale/launch.sh.j2"), executable=True),
        )

    def notes(self, job: Job) -> Mapping[str, object]:
        """The meshes, where FlagScale differs from the model file, and whether the experiment has open lines."""
        return {
            "meshes": meshes(job.plan),
            "differences": tuple(differences(job.model)),
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
            "CUDA_VISIBLE_DEVICES": ",".join(map(str, agent.devices)),
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


def _variables(lines: Sequence[Line]) -> dict[str, str]:
    """Variables of the network as OmegaConf reads them."""
    found = dict(line for line in lines if not isinstance(line, str))
    for name, value in found.items():
        check_shell(name, value)
    return {name: literal(value) for name, value in found.items()}


def _to_edit(network: Mapping[str, Sequence[Line]]) -> str:
    """What the cluster file does not say of the network, as comments."""
    found: list[str] = []
    for lines in network.values():
        comments = [line for line in lines if isinstance(line, str)]
        for line, following in zip(comments, [*comments[1:], ""], strict=True):
            if line.startswith(FILL_IN):
                found += [line.replace("fill in and uncomment", "add to node_specific"), following]
    return "".join(f"{line}\n" for line in found)


RUNTIME = FlagScale()
