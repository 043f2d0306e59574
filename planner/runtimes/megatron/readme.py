"""README of a Megatron-LM launch folder."""

from __future__ import annotations

from collections.abc import Sequence

from planner.job.files import EmittedFile
from planner.job.network import JobNetwork
from planner.job.readme import heading, starting, to_edit
from planner.model.spec import ModelSpec
from planner.plan.placement import Agent
from planner.plan.values import Plan
from planner.runtimes.megatron.arguments import differences, layout

VERSION = "core 0.20.0"
"""Megatron-LM whose parser the arguments were tried with."""


def readme(
    plan: Plan,
    model: ModelSpec,
    launchers: Sequence[Agent],
    network: JobNetwork,
    launch: Sequence[EmittedFile],
    network_per_group: bool,
    pipelines_first: bool,
) -> str:
    """The whole text."""
    parts = [
        heading(plan, model, launchers),
        _layout(plan, pipelines_first),
        to_edit(launch),
        starting(launchers, ""),
        _before(model),
        _files(network_per_group),
        _limits(model, network, network_per_group),
    ]
    return "\n".join(part for part in parts if part)


def _layout(plan: Plan, pipelines_first: bool) -> str:
    if plan.pp == 1:
        return ""
    text = f"Pipeline layout (E embedding, t layer, L loss; stages in Megatron's order): `{layout(plan)}`.\n"
    if pipelines_first:
        return f"{text}\nRanks run tensor-parallel fastest, then stage, then replica (`--use-tp-pp-dp-mapping`).\n"
    return f"{text}\nRanks run tensor-parallel fastest, then replica, then stage, Megatron's default order.\n"


def _before(model: ModelSpec) -> str:
    text = "Set `MEGATRON_PATH` to a checkout of Megatron-LM on every node. "
    if model.kind == "encoder":
        text += "Set `DATA_ARGS_FILE` to a file with your data and vocabulary: encoders have no mock data."
    else:
        text += (
            "Without more, it trains on mock data; for yours set `DATA_ARGS_FILE` to a file that sets the "
            "array "
            "`DATA_ARGS` (`--data-path`, `--tokenizer-type`, ...)."
        )
    return (
        f"{text} `TRAIN_ITERS`, `LR` and `CLIP_GRAD` override their defaults; further arguments go after "
        "`--`: "
        "`./launch.sh -- --save checkpoints`.\n"
    )


def _files(network_per_group: bool) -> str:
    lines = [
        "- `args.sh`: Megatron's arguments; the plan in Megatron's words",
        "- `launch.sh`, `nodes.txt`, `env/`: the start of each node with its devices and network",
    ]
    if network_per_group:
        lines += [
            "- `nccl/`: the network of each process group, by pool (`--nccl-communicator-config-path`)",
            "- `start_megatron.py`: gives the group of all ranks sockets, then runs Megatron",
        ]
    return "## Files\n\n" + "\n".join(lines) + "\n"


def _limits(model: ModelSpec, network: JobNetwork, network_per_group: bool) -> str:
    lines = [f"- The arguments were tried with the parser of Megatron-LM {VERSION}."]
    for difference in differences(model):
        lines.append(f"- Megatron cannot build the model file exactly: {difference}.")
    if network_per_group:
        lines.append(
            "- The nodes share no RDMA fabric: groups inside one fabric use RDMA, all others sockets. Do "
            "not set "
            "`NCCL_NET` or `NCCL_IB_DISABLE`: they override `nccl/`. This has not been tried on hardware yet."
        )
    elif network.crosses:
        lines.append(
            "- The nodes share no RDMA fabric, and no process group stays inside one: everything between "
            "nodes uses "
            "sockets (`NCCL_NET=Socket`)."
        )
    return "## Limits\n\n" + "\n".join(lines) + "\n"
