"""The one door of the package: a plan in, the files that launch it out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from planner.cluster.spec import ClusterSpec
from planner.emit.checks import check_inputs
from planner.emit.folder.write import write_folder
from planner.errors import EmitError
from planner.files.short_lists import expand_hosts
from planner.job.files import EmittedFile
from planner.job.job import Job
from planner.job.nodes import holders, is_any_node, placeholders, readme
from planner.job.readme import before_start
from planner.launchers.registry import LAUNCHERS, check_launcher, launcher_files
from planner.model.spec import ModelSpec
from planner.plan.placement import Rank, agents, ranks
from planner.plan.values import Plan
from planner.runtimes.deepspeed import runtime as deepspeed
from planner.runtimes.flagscale import runtime as flagscale
from planner.runtimes.megatron import runtime as megatron
from planner.runtimes.torch import runtime as torch_native

__all__ = ["LAUNCHERS", "EmittedFile", "emit", "unnamed_hosts", "write_folder"]


@dataclass(frozen=True, slots=True)
class Emitter:
    """How a target's folder is written."""

    files: Callable[[Plan, ClusterSpec, ModelSpec], tuple[EmittedFile, ...]]
    numbered: Callable[[Plan, ClusterSpec], tuple[Rank, ...]] = ranks
    """The processes in the target's rank order."""
    starts_itself: bool = False
    """True when the runtime reaches the nodes by a launcher of its own, which no other can replace."""


EMITTERS = {
    "deepspeed": Emitter(deepspeed.files),
    "megatron": Emitter(megatron.files, lambda plan, cluster: megatron.numbered(plan, cluster)[0]),
    "torch": Emitter(torch_native.files),
    "flagscale": Emitter(flagscale.files, starts_itself=True),
}


def emit(
    plan: Plan, cluster: ClusterSpec, model: ModelSpec, launcher: str = "torchrun"
) -> tuple[EmittedFile, ...]:
    """The launch folder of a plan, sorted by path.

    Raises EmitError when the target or the launcher cannot express the plan, and PlanError when the
    cluster has too few devices for it.
    """
    check_launcher(launcher)
    check_inputs(plan, cluster, model)
    emitter = EMITTERS[plan.target]
    files = emitter.files(plan, cluster, model)
    if not emitter.starts_itself:
        files = launcher_files(launcher, _job(plan, cluster, model, emitter), files)
    elif launcher != "torchrun":
        raise EmitError(
            f"launcher {launcher}: {plan.target} starts the nodes by its own runner",
            hint="leave out --launcher",
        )
    names = unnamed_hosts(plan, cluster, launcher)
    if names:
        files = _naming_hosts(files, names)
    return tuple(sorted(files, key=lambda file: file.path))


def unnamed_hosts(plan: Plan, cluster: ClusterSpec, launcher: str) -> tuple[str, ...]:
    """Placeholders, in short form, that stand in the way of a start by this launcher."""
    emitter, chosen = EMITTERS[plan.target], LAUNCHERS[launcher]
    here = chosen.runs_here and not emitter.starts_itself
    if not chosen.needs_names or (here and is_any_node(agents(ranks(plan, cluster)), cluster)):
        return ()
    return placeholders(plan, cluster)


def _naming_hosts(files: tuple[EmittedFile, ...], names: tuple[str, ...]) -> tuple[EmittedFile, ...]:
    """The README says which names are placeholders, ahead of how to start."""
    text = readme(names, holders(expand_hosts(names), files))
    return tuple(before_start(file, text) if file.path == "README.md" else file for file in files)


def _job(plan: Plan, cluster: ClusterSpec, model: ModelSpec, emitter: Emitter) -> Job:
    everyone = emitter.numbered(plan, cluster)
    return Job(model=model.name, target=plan.target, agents=agents(everyone), ranks=everyone, cluster=cluster)
