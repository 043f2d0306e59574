"""DeepSpeed's own launcher on every node, each with its own environment."""

from __future__ import annotations

from planner.errors import EmitError
from planner.job.files import EmittedFile
from planner.job.job import Job
from planner.launchers import ssh
from planner.runtimes.deepspeed.hostfile import include, keeps_kinds

STARTER = "./deepspeed.sh"


def files(job: Job) -> tuple[EmittedFile, ...]:
    """``start.sh`` and ``deepspeed.sh``; raises EmitError for ranks that DeepSpeed's launcher would reorder."""
    _check(job)
    chosen = include(job.agents)
    script = SCRIPT.replace("@INCLUDE@", f" --include {chosen}" if chosen else "")
    return (ssh.start_script(STARTER), EmittedFile("deepspeed.sh", script, executable=True))


def readme(job: Job) -> str:
    """How to use it."""
    return (
        ssh.readme(job).replace("## Start over ssh", "## Start with DeepSpeed's launcher") + "\n"
        "On each node `launch.sh` calls `deepspeed.sh` in place of torchrun. It gives `hostfile` and the node's rank "
        "to `deepspeed --no_ssh`, so that `env/` holds for each node: the launcher's own way over pdsh forces one "
        "environment on all nodes, and fails on a folder with a blank in its path. Without ssh, run "
        "`TORCHRUN=./deepspeed.sh ./launch.sh` on each node.\n"
    )


def _check(job: Job) -> None:
    instead = "use --launcher ssh, which starts the same ranks with torchrun"
    if job.target != "deepspeed":
        raise EmitError(
            f"launcher deepspeed: starts plans for the target deepspeed, this one is for {job.target}",
            hint=instead,
        )
    if len(job.hosts) < len(job.agents):
        hosts = [agent.host for agent in job.agents]
        twice = next(host for host in hosts if hosts.count(host) > 1)
        raise EmitError(
            f"launcher deepspeed: a hostfile names each host once, and the plan's rank order uses {twice} twice",
            hint=instead,
        )
    if not keeps_kinds(job.agents, job.ranks):
        raise EmitError(
            "launcher deepspeed: it numbers the devices of a node in its own way, and would give some ranks a GPU of "
            "another kind than the plan does",
            hint=instead,
        )


SCRIPT = r"""#!/usr/bin/env bash
# Stands in for torchrun in launch.sh: takes its options and starts this node's ranks with DeepSpeed's launcher.
set -euo pipefail
node="" address="" port=""
while [[ $# -gt 0 ]]; do
  case $1 in
    --node-rank) node=$2 ;;
    --master-addr) address=$2 ;;
    --master-port) port=$2 ;;
    --nnodes | --nproc-per-node | --rdzv-backend) ;;
    *) break ;;
  esac
  shift 2
done
# The launcher makes the devices of its hostfile visible itself.
unset CUDA_VISIBLE_DEVICES
exec "${DEEPSPEED:-deepspeed}" --hostfile hostfile@INCLUDE@ --no_ssh --node_rank "$node" \
  --master_addr "$address" --master_port "$port" "$@"
"""
