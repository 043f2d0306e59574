"""What a runtime tells the rest of hetplan; each room has one in ``runtime.py``, called ``RUNTIME``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Protocol

from planner.capabilities import Capabilities
from planner.cluster.spec import ClusterSpec
from planner.errors import EmitError
from planner.job.files import EmittedFile
from planner.job.job import Job
from planner.model.spec import ModelSpec
from planner.plan.placement import Rank, in_fewest_runs, ranks
from planner.plan.values import Plan
from planner.runtimes.log import LogReader
from planner.runtimes.torch.capabilities import CAPABILITIES as PYTORCH
from planner.targets import in_words, target


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkout:
    """A package that jobs take from a folder and not from Python's packages."""

    package: str
    distribution: str
    """Name of its metadata where it is installed all the same."""
    variable: str
    """Environment variable that names the folder."""
    title: str
    version_file: str
    """File of the folder whose ``MAJOR``, ``MINOR`` and ``PATCH`` are the version."""


class Runtime(Protocol):
    """All of a runtime that is more than a capability; subclasses override what is otherwise with them.

    The room also holds ``readme``, a template on ``job/README.md.j2``.
    """

    capabilities: Capabilities
    starts_itself: bool = False
    """True when it reaches the nodes by a launcher of its own, which no other can replace."""
    checkout: Checkout | None = None
    variables: tuple[str, ...] = ()
    """Environment variables of the user's that its start script reads on every node."""
    libraries: Mapping[str, str] = {}
    """What may train over it in place of its example or script, and the module of the room that says how."""
    readme: str = "README.md.j2"

    @property
    def tried(self) -> Mapping[str, str]:
        """Version by package that the launch files were tested with, of what a job imports."""
        return {PYTORCH.name: PYTORCH.version}

    def ranks(self, plan: Plan, cluster: ClusterSpec) -> tuple[Rank, ...]:
        """The plan's processes in the runtime's rank order; raises PlanError when the cluster has too few devices.

        Stages before replicas where stages are dealt over nodes, so that a node is started once.
        """
        usual = ranks(plan, cluster)
        return usual if plan.stage_nodes == 1 else in_fewest_runs(usual)

    def check(self, plan: Plan, model: ModelSpec) -> None:
        """Raise EmitError for what the runtime cannot run although capabilities allow it."""
        return

    def files(self, job: Job) -> tuple[EmittedFile, ...]:
        """Its files of a launch folder; raises EmitError for what it cannot run."""

    def notes(self, job: Job) -> Mapping[str, object]:
        """What its README needs besides the job."""

    def log_reader(self, plan: Plan) -> LogReader | None:
        """A new reader of what the runtime itself prints; None when it prints no times."""
        return None

    def how_to_time(self, plan: Plan) -> str | None:
        """How a run of the plan prints the parts of its steps; None when it cannot."""
        return None


def runtime(name: str, library: str = "") -> Runtime:
    """The runtime of a target, or a library over it.

    Raises UsageError with the known names, and EmitError for a library that does not train over this runtime.
    """
    room = f"planner.runtimes.{target(name).name}"
    own: Runtime = import_module(f"{room}.runtime").RUNTIME
    if not library:
        return own
    if library not in own.libraries:
        known = (
            f"expected {in_words(tuple(own.libraries), 'or')}" if own.libraries else "none is known for it"
        )
        raise EmitError(f"--library {library}: does not train plans for {name}, {known}")
    over: Runtime = import_module(f"{room}.{own.libraries[library]}").RUNTIME
    return over


def runtime_of(job: Job) -> Runtime:
    """What runs a job: its target's runtime, or the library over it."""
    return runtime(job.plan.target, *job.library[:1])
