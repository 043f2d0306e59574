"""A batch script for Slurm: a heterogeneous job with one component for each pool."""

from __future__ import annotations

import re

from planner.job.files import EmittedFile, rendered
from planner.job.job import Job

NOT_A_NAME = re.compile(r"[0-9.]+|.*:.*")
"""Hosts that ``--nodelist`` does not take: addresses."""


def files(job: Job) -> tuple[EmittedFile, ...]:
    """``job.sbatch``."""
    named = [pool for pool in job.pools if not any(map(NOT_A_NAME.fullmatch, job.hosts_of(pool)))]
    return (
        EmittedFile("job.sbatch", rendered("launchers/job.sbatch.j2", job=job, named=named), executable=True),
    )
