"""``preflight.sh``: what is wrong with the nodes of a job, before it is launched."""

from __future__ import annotations

from planner.catalog import driver_names
from planner.job.files import EmittedFile, rendered
from planner.job.job import Job, is_unnamed
from planner.runtimes.interface import runtime
from planner.runtimes.torch.capabilities import CAPABILITIES as PYTORCH


def preflight_files(job: Job, *, here: bool) -> tuple[EmittedFile, ...]:
    """The script, and the devices that each pool's nodes must have; ``here`` means one node, that of the caller."""
    own = runtime(job.plan.target)
    script = rendered(
        "launchers/preflight.sh.j2",
        tried=own.tried,
        checkout=own.checkout,
        packages=[name for name in own.tried if name != PYTORCH.name],
        unnamed=[pool.name for pool in job.pools if is_unnamed(pool)],
        here=here,
    )
    return (
        EmittedFile("preflight.sh", script, executable=True),
        EmittedFile("devices.txt", devices_table(job)),
    )


def devices_table(job: Job) -> str:
    """One line a device of a pool's node: pool, index, the kind, and what the driver may call it."""
    lines = ["# pool index kind|driver's names"]
    for pool in job.pools:
        for index, kind in enumerate(pool.devices):
            lines.append(f"{pool.name} {index} {'|'.join((kind, *driver_names(kind)))}")
    return "\n".join(lines) + "\n"
