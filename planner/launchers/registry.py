"""The launchers by name, and what each adds to a folder."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from planner.errors import EmitError
from planner.job.files import EmittedFile
from planner.job.job import Job
from planner.launchers import deepspeed, kubernetes, slurm, ssh
from planner.launchers.preflight import preflight_files
from planner.runtimes.deepspeed.capabilities import CAPABILITIES as DEEPSPEED


@dataclass(frozen=True, slots=True)
class Launcher:
    """What starts the nodes."""

    files: Callable[[Job], tuple[EmittedFile, ...]]
    """Files beside launch.sh; may raise EmitError."""
    readme: str = ""
    """Template of how to start by it; empty where launch.sh is all there is."""
    notes: Callable[[Job], Mapping[str, object]] = lambda _: {}
    """What that template needs besides the job."""
    needs_names: bool = True
    """False when it gives each node its place, whatever the hosts of nodes.txt are called."""
    runs_here: bool = False
    """True when a job on one node starts where it is called, and needs no name."""


LAUNCHERS: dict[str, Launcher] = {
    "torchrun": Launcher(lambda _: (), runs_here=True),
    DEEPSPEED.name: Launcher(deepspeed.files, "launchers/deepspeed.md.j2"),
    "slurm": Launcher(slurm.files, "launchers/slurm.md.j2"),
    "kubernetes": Launcher(
        kubernetes.files, "launchers/kubernetes.md.j2", kubernetes.notes, needs_names=False
    ),
    "ssh": Launcher(ssh.files, "launchers/ssh.md.j2"),
}
"""Every launcher; all of them run launch.sh on the nodes."""


def check_launcher(name: str) -> None:
    """Raise EmitError for a name that is not known."""
    if name not in LAUNCHERS:
        raise EmitError(f"launcher {name}: not known, expected one of: {', '.join(LAUNCHERS)}")


def launcher_files(name: str, job: Job) -> tuple[EmittedFile, ...]:
    """The files of the launcher, and those that look at the nodes before a start."""
    launcher = LAUNCHERS[name]
    return (*launcher.files(job), *preflight_files(job, here=launcher.runs_here and job.is_on_any_node))
