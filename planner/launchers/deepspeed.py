"""DeepSpeed's own launcher on every node, each with its own environment."""

from __future__ import annotations

from planner.errors import EmitError
from planner.job.files import EmittedFile, rendered
from planner.job.job import Job
from planner.launchers import ssh
from planner.runtimes.deepspeed.capabilities import CAPABILITIES as DEEPSPEED
from planner.runtimes.deepspeed.hostfile import include, keeps_kinds

STARTER = "./deepspeed.sh"


def files(job: Job) -> tuple[EmittedFile, ...]:
    """``start.sh`` and ``deepspeed.sh``; raises EmitError for ranks that DeepSpeed's launcher would reorder."""
    _check(job)
    chosen = include(job.agents)
    script = rendered("launchers/deepspeed.sh.j2", include=chosen)
    return (ssh.start_script(job, STARTER), EmittedFile("deepspeed.sh", script, executable=True))


def _check(job: Job) -> None:
    instead = "use --launcher ssh, which starts the same ranks with torchrun"
    if job.plan.target != DEEPSPEED.name:
        raise EmitError(
            f"launcher deepspeed: starts plans for the target deepspeed, this one is for {job.plan.target}",
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
            "launcher deepspeed: it numbers the devices of a node in its own way, and would give some ranks another "
            "device type than the plan does",
            hint=instead,
        )
