"""A script that starts every node over ssh from one place."""

from __future__ import annotations

from planner.job.files import EmittedFile, rendered
from planner.job.job import Job
from planner.runtimes.interface import runtime


def files(job: Job) -> tuple[EmittedFile, ...]:
    """``start.sh``."""
    return (start_script(job),)


def start_script(job: Job, starter: str = "") -> EmittedFile:
    """The script; ``starter`` is a script of the folder that takes the place of torchrun."""
    variables = runtime(job.plan.target).variables
    text = rendered("launchers/start.sh.j2", starter=starter, variables=variables)
    return EmittedFile("start.sh", text, executable=True)
