"""Launch files for Megatron-LM: its arguments, and each process group's network where they differ."""

from __future__ import annotations

from planner.cluster.spec import ClusterSpec
from planner.job.files import EmittedFile, node_file
from planner.job.launch import Program, launch_files, number_format_lines
from planner.job.network import job_network
from planner.model.spec import ModelSpec
from planner.plan.placement import Rank, agents, by_pipeline, ranks
from planner.plan.values import Plan
from planner.runtimes.megatron.arguments import arguments, arguments_script
from planner.runtimes.megatron.network import group_networks
from planner.runtimes.megatron.readme import readme
from planner.runtimes.megatron.rules import check_arguments

ENTRY = {"decoder": "pretrain_gpt.py", "encoder": "examples/bert/pretrain_bert.py"}
"""Megatron's training script of each kind of model, relative to its checkout."""


def files(plan: Plan, cluster: ClusterSpec, model: ModelSpec) -> tuple[EmittedFile, ...]:
    """Every file of the folder."""
    everyone, pipelines_first = numbered(plan, cluster)
    sections = arguments(plan, model, pipelines_first)
    check_arguments([word for section in sections.values() for word in section], plan.devices)
    launchers = agents(everyone)
    network = job_network(cluster, launchers)
    networks = group_networks(everyone, network)
    launch = launch_files(launchers, cluster, _program(model, bool(networks)))
    return (
        EmittedFile("args.sh", arguments_script(sections, model)),
        *launch,
        *(EmittedFile(f"nccl/{pool}.yaml", text) for pool, text in networks.items()),
        *([node_file("planner.runtimes.megatron.start_megatron")] if networks else []),
        EmittedFile(
            "README.md", readme(plan, model, launchers, network, launch, bool(networks), pipelines_first)
        ),
    )


def numbered(plan: Plan, cluster: ClusterSpec) -> tuple[tuple[Rank, ...], bool]:
    """The ranks in that of Megatron's two orders which needs fewer launchers, and True for the second.

    The default order, replicas before stages, keeps nodes of one device kind together; stages before
    replicas those whose device kinds hold different stages.
    """
    usual = ranks(plan, cluster)
    other = by_pipeline(usual)
    return (other, True) if len(agents(other)) < len(agents(usual)) else (usual, False)


def _program(model: ModelSpec, network_per_group: bool) -> Program:
    words = [f'"$MEGATRON_PATH/{ENTRY[model.kind]}"', '"${MEGATRON_ARGS[@]}"']
    if network_per_group:
        words.insert(0, "start_megatron.py")
        words.append('--nccl-communicator-config-path "$PWD/nccl/$pool.yaml"')
    prologue = [
        '  : "${MEGATRON_PATH:?set MEGATRON_PATH to a checkout of Megatron-LM}"',
        '  export PYTHONPATH="$MEGATRON_PATH${PYTHONPATH:+:$PYTHONPATH}"',
        "  # Megatron orders the kernels of tensor parallelism by this before Blackwell.",
        "  export CUDA_DEVICE_MAX_CONNECTIONS=1",
        *number_format_lines(model.training.precision),
        "  source ./args.sh",
    ]
    return Program(command=" ".join(words), prologue="\n".join(prologue), network_per_group=network_per_group)
