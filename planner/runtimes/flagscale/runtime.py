"""Launch files for FlagScale: its experiment, its training settings and its hostfile."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from planner.cluster.spec import ClusterSpec
from planner.errors import EmitError
from planner.files.yaml_text import dump
from planner.job.files import EmittedFile
from planner.job.launch import MASTER_PORT, on_sockets
from planner.job.network import Line, job_network, pool_lines
from planner.job.readme import FILL_IN
from planner.model.spec import ModelSpec
from planner.plan.placement import Agent, agents, ranks
from planner.plan.values import Plan
from planner.runtimes.flagscale.readme import readme
from planner.runtimes.flagscale.rules import check_settings
from planner.runtimes.flagscale.settings import Sections, host_types, meshes, settings

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


def files(plan: Plan, cluster: ClusterSpec, model: ModelSpec) -> tuple[EmittedFile, ...]:
    """Every file of the folder."""
    everyone = ranks(plan, cluster)
    launchers = agents(everyone)
    found = meshes(plan)
    sections = settings(plan, model, found)
    check_settings({key: value for part in sections.values() for key, value in part.items()}, plan.devices)
    network = _network(cluster, launchers)
    types = host_types(found, launchers, everyone)
    experiment = _experiment(model, launchers, network)
    return (
        EmittedFile("conf/experiment.yaml", _to_edit(network) + experiment),
        EmittedFile("conf/train/plan.yaml", dump(_nested(sections))),
        EmittedFile("hostfile", _hostfile(launchers, types)),
        EmittedFile("launch.sh", SCRIPT, executable=True),
        EmittedFile("README.md", readme(plan, model, found, launchers, bool(_to_edit(network)))),
    )


def _nested(sections: Sections) -> dict[str, dict[str, Any]]:
    """The settings as FlagScale's file has them, empty sections left out."""
    parts: dict[str, dict[str, Any]] = {"system": {}, "model": {}, "data": {}}
    for name, values in sections.items():
        part, section = name.split(".")
        if values:
            parts[part][section] = values
    return parts


def _hostfile(launchers: Sequence[Agent], types: Mapping[str, str]) -> str:
    return "".join(
        f"{agent.host} slots={len(agent.devices)} type={types[agent.host]}\n" for agent in launchers
    )


def _network(cluster: ClusterSpec, launchers: Sequence[Agent]) -> dict[str, list[Line]]:
    """What the nodes of each used pool need to know of the network."""
    network = job_network(cluster, launchers)
    pools = [pool for pool in cluster.pools if pool.name in network.rdma]
    return {pool.name: pool_lines(cluster, pool, network, on_sockets(network)) for pool in pools}


def _experiment(model: ModelSpec, launchers: Sequence[Agent], network: Mapping[str, Sequence[Line]]) -> str:
    """The experiment, with one environment for each node."""
    nodes = {
        agent.host: {
            "CUDA_VISIBLE_DEVICES": ",".join(map(str, agent.devices)),
            **_variables(network[agent.pool]),
        }
        for agent in launchers
    }
    everywhere: dict[str, Any] = {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}
    if model.training.precision == "tf32":
        everywhere["TORCH_ALLOW_TF32_CUBLAS_OVERRIDE"] = "1"
    document = {
        "defaults": [{"train": "plan"}, "_self_"],
        "experiment": {
            "exp_name": re.sub(r"[^A-Za-z0-9_.-]", "-", model.name),
            "exp_dir": "${oc.env:HETPLAN_FOLDER}/outputs",
            "task": {"type": "train", "backend": "megatron", "entrypoint": ENTRY},
            "runner": {
                "backend": "torchrun",
                "hostfile": "${oc.env:HETPLAN_FOLDER}/hostfile",
                "rdzv_backend": "static",
                "master_addr": launchers[0].host,
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


SCRIPT = r"""#!/usr/bin/env bash
# Starts the job from one node with FlagScale's runner, which reaches the others by ssh:
#   ./launch.sh [action=run|dryrun|stop|query] [OTHER SETTINGS]
set -euo pipefail
folder="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
if [[ -e "$folder/.hetplan-work/journal" ]]; then
  echo "launch.sh: hetplan emit was stopped half-way in this folder, run it again" >&2
  exit 2
fi
: "${FLAGSCALE_PATH:?set FLAGSCALE_PATH to a checkout of FlagScale}"
if [[ "$folder" == *[[:space:]]* ]]; then
  echo "launch.sh: FlagScale's scripts do not take a path with spaces: $folder" >&2
  exit 2
fi
export HETPLAN_FOLDER="$folder"
cd "$FLAGSCALE_PATH"
exec "${PYTHON:-python}" run.py --config-path "$folder/conf" --config-name experiment "$@"
"""
