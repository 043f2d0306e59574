"""The launchers by name, and what each adds to a folder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from planner.emit import preflight
from planner.errors import EmitError
from planner.job.files import EmittedFile
from planner.job.job import Job
from planner.job.nodes import is_any_node
from planner.job.readme import with_launcher
from planner.launchers import deepspeed, kubernetes, slurm, ssh


@dataclass(frozen=True, slots=True)
class Launcher:
    """What starts the nodes."""

    files: Callable[[Job], tuple[EmittedFile, ...]]
    """Files beside launch.sh; may raise EmitError."""
    readme: Callable[[Job], str]
    needs_names: bool = True
    """False when it gives each node its place, whatever the hosts of nodes.txt are called."""
    runs_here: bool = False
    """True when a job on one node starts where it is called, and needs no name."""


LAUNCHERS: dict[str, Launcher] = {
    "torchrun": Launcher(lambda _: (), lambda _: "", runs_here=True),
    "deepspeed": Launcher(deepspeed.files, deepspeed.readme),
    "slurm": Launcher(slurm.files, slurm.readme),
    "kubernetes": Launcher(kubernetes.files, kubernetes.readme, needs_names=False),
    "ssh": Launcher(ssh.files, ssh.readme),
}
"""Every launcher; all of them run launch.sh on the nodes."""


def check_launcher(name: str) -> None:
    """Raise EmitError for a name that is not known."""
    if name not in LAUNCHERS:
        raise EmitError(f"launcher {name}: not known, expected one of: {', '.join(LAUNCHERS)}")


def launcher_files(name: str, job: Job, files: Sequence[EmittedFile]) -> tuple[EmittedFile, ...]:
    """A target's files with those of the launcher and of preflight, the README telling of both."""
    launcher = LAUNCHERS[name]
    here = launcher.runs_here and is_any_node(job.agents, job.cluster)
    added = (*launcher.files(job), *preflight.preflight_files(job, here))
    return (*(_explained(file, launcher, job) for file in files), *added)


def _explained(file: EmittedFile, launcher: Launcher, job: Job) -> EmittedFile:
    if file.path != "README.md":
        return file
    return replace(file, text=with_launcher(file.text, preflight.README, launcher.readme(job)))
