"""The one door of the package: a plan in, the files that launch it out."""

from __future__ import annotations

from planner.emit import deepspeed, megatron
from planner.emit.expressible import check_inputs
from planner.emit.files import EmittedFile
from planner.emit.folder import write_folder
from planner.emit.launchers.interface import LAUNCHERS, check_launcher, launcher_files
from planner.emit.launchers.job import Job
from planner.errors import EmitError
from planner.placement import agents, ranks
from planner.plan import Plan
from planner.spec.cluster import ClusterSpec
from planner.spec.model import ModelSpec

__all__ = ["LAUNCHERS", "EmittedFile", "emit", "write_folder"]

EMITTERS = {"deepspeed": deepspeed.files, "megatron": megatron.files}


def emit(
    plan: Plan, cluster: ClusterSpec, model: ModelSpec, launcher: str = "torchrun"
) -> tuple[EmittedFile, ...]:
    """The launch folder of a plan, sorted by path.

    Raises EmitError when the target or the launcher cannot express the plan, and PlanError when the
    cluster has too few devices for it.
    """
    check_launcher(launcher)
    if plan.target not in EMITTERS:
        raise EmitError(
            f"target {plan.target}: hetplan writes no launch files for it",
            hint=f"search again with --target {' or --target '.join(EMITTERS)}",
        )
    check_inputs(plan, cluster, model)
    everyone = ranks(plan, cluster)
    job = Job(
        model=model.name,
        target=plan.target,
        agents=agents(everyone),
        ranks=everyone,
        cluster=cluster,
    )
    files = launcher_files(launcher, job, EMITTERS[plan.target](plan, cluster, model))
    return tuple(sorted(files, key=lambda file: file.path))
