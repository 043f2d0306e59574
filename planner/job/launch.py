"""One start script for every node, the table of nodes it reads, and each pool's network environment."""

from __future__ import annotations

from planner.job.files import EmittedFile, rendered
from planner.job.job import LOOPBACK, MASTER_PORT, Job
from planner.job.network import pool_environment

FIRST_HOST = "$(awk '$1 == 0 { print $2 }' nodes.txt)"


def launch_files(
    job: Job, command: str, prologue: str = "", *, network_per_group: bool = False
) -> tuple[EmittedFile, ...]:
    """``launch.sh``, ``nodes.txt`` and one environment file for each used pool.

    ``command``: shell words after torchrun's own options; may name shell variables. ``prologue``: shell lines before
    the start, run in the folder. ``network_per_group``: the program itself gives each process group its network.
    """
    script = rendered(
        "job/launch.sh.j2",
        job=job,
        address=LOOPBACK if job.is_on_one_node else FIRST_HOST,
        this_host=FIRST_HOST if job.is_on_any_node else "$(hostname)",
        port=MASTER_PORT,
        prologue=prologue,
        command=command,
    )
    sockets = job.network.needs_sockets and not network_per_group
    return (
        EmittedFile("launch.sh", script, executable=True),
        EmittedFile("nodes.txt", nodes_table(job)),
        *(
            EmittedFile(f"env/{pool.name}.sh", pool_environment(job.cluster, pool, job.network, sockets))
            for pool in job.cluster.pools
            if pool in job.pools
        ),
    )


def number_format(precision: str) -> str:
    """Shell lines of a start script without which PyTorch would not multiply in the model's number format."""
    if precision != "tf32":
        return ""
    return (
        "  # The plan counts on TF32 products of fp32 numbers, which PyTorch leaves off by default.\n"
        "  export TORCH_ALLOW_TF32_CUBLAS_OVERRIDE=1"
    )


def nodes_table(job: Job) -> str:
    """One line an agent in rank order: node rank, host, pool, devices, first rank."""
    lines = ["# node-rank host pool devices first-rank"]
    for index, agent in enumerate(job.agents):
        devices = ",".join(str(device) for device in agent.devices)
        lines.append(f"{index} {agent.host} {agent.pool} {devices} {agent.first_rank}")
    return "\n".join(lines) + "\n"
