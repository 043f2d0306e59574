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

__all__ = ["LAUNCHERS", "EmittedFile", "emit", "folder_files", "job_of", "unnamed_hosts", "write_folder"]


def emit(
    plan: Plan, cluster: ClusterSpec, model: ModelSpec, launcher: str = "torchrun"
) -> tuple[EmittedFile, ...]:
    """The launch folder of a plan, sorted by path.

    Raises EmitError when the target or the launcher cannot express the plan, and PlanError when the
    cluster has too few devices for it.
    """
    check_launcher(launcher)
    return folder_files(job_of(plan, cluster, model), launcher)


def job_of(plan: Plan, cluster: ClusterSpec, model: ModelSpec) -> Job:
    """The run of a plan; raises EmitError when the target cannot express it, and PlanError for too few devices."""
    check_inputs(plan, cluster, model)
    own = runtime(plan.target)
    job = Job(plan=plan, cluster=cluster, model=model, ranks=own.ranks(plan, cluster))
    own.check(plan, model)
    return job


def folder_files(job: Job, launcher: str) -> tuple[EmittedFile, ...]:
    """The launch folder of a run, sorted by path; raises EmitError when the launcher cannot start it."""
    own, chosen = runtime(job.plan.target), LAUNCHERS[launcher]
    files = own.files(job)
    if not own.starts_itself:
        files += launcher_files(launcher, job)
    elif launcher != "torchrun":
        raise EmitError(
            f"launcher {launcher}: {job.plan.target} starts the nodes by its own runner",
            hint="leave out --launcher",
        )
    text = readme(
        job,
        files,
        {**own.notes(job), **chosen.notes(job), "capabilities": own.capabilities, "tried": own.tried},
        placeholders=unnamed_hosts(job, launcher),
        launcher_readme=chosen.readme,
    )
    return tuple(sorted((*files, text), key=lambda file: file.path))


def unnamed_hosts(job: Job, launcher: str) -> tuple[str, ...]:
    """Placeholders, in short form, that stand in the way of a start by this launcher."""
    chosen = LAUNCHERS[launcher]
    here = chosen.runs_here and not runtime(job.plan.target).starts_itself
    if not chosen.needs_names or (here and job.is_on_any_node):
        return ()
    return job.placeholders
