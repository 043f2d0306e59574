"""The one door of the package: a plan in, the files that launch it out."""

from __future__ import annotations

from planner.cluster.spec import ClusterSpec
from planner.emit.checks import check_inputs
from planner.emit.folder.write import write_folder
from planner.errors import EmitError
from planner.job.files import EmittedFile
from planner.job.job import Job
from planner.job.readme import readme
from planner.launchers.registry import LAUNCHERS, check_launcher, launcher_files
from planner.model.spec import ModelSpec
from planner.plan.values import Plan
from planner.runtimes.interface import runtime

__all__ = ["LAUNCHERS", "EmittedFile", "emit", "job_of", "unnamed_hosts", "write_folder"]


def emit(
    plan: Plan, cluster: ClusterSpec, model: ModelSpec, launcher: str = "torchrun"
) -> tuple[EmittedFile, ...]:
    """The launch folder of a plan, sorted by path.

    Raises EmitError when the target or the launcher cannot express the plan, and PlanError when the
    cluster has too few devices for it.
    """
    check_launcher(launcher)
    check_inputs(plan, cluster, model)
    own, job = runtime(plan.target), job_of(plan, cluster, model)
    own.check(plan, model)
    files = own.files(job)
    if not own.starts_itself:
        files += launcher_files(launcher, job)
    elif launcher != "torchrun":
        raise EmitError(
            f"launcher {launcher}: {plan.target} starts the nodes by its own runner",
            hint="leave out --launcher",
        )
    text = readme(
        job,
        files,
        {
            **own.notes(job),
            **LAUNCHERS[launcher].notes(job),
            "capabilities": own.capabilities,
            "tried": own.tried,
        },
        placeholders=_unnamed(job, launcher),
        launcher_readme=LAUNCHERS[launcher].readme,
    )
    return tuple(sorted((*files, text), key=lambda file: file.path))


def job_of(plan: Plan, cluster: ClusterSpec, model: ModelSpec) -> Job:
    """The processes of a plan; raises PlanError when the cluster has too few devices for it."""
    ranks = runtime(plan.target).ranks(plan, cluster)
    return Job(plan=plan, cluster=cluster, model=model, ranks=ranks)


def unnamed_hosts(plan: Plan, cluster: ClusterSpec, model: ModelSpec, launcher: str) -> tuple[str, ...]:
    """Placeholders, in short form, that stand in the way of a start by this launcher."""
    return _unnamed(job_of(plan, cluster, model), launcher)


def _unnamed(job: Job, launcher: str) -> tuple[str, ...]:
    chosen = LAUNCHERS[launcher]
    here = chosen.runs_here and not runtime(job.plan.target).starts_itself
    if not chosen.needs_names or (here and job.is_on_any_node):
        return ()
    return job.placeholders
