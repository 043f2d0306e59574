"""The entry point of emission: from a plan to its launch files, or to the reason why it is refused.

What a target can run is said in ``planner.plan.checks``; here is only what the launch files add to it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata

from planner.catalog.wheels import wheel_note, wheel_warning
from planner.cluster.spec import ClusterSpec
from planner.dims.tensor import head_faults
from planner.emit.folder import write_folder
from planner.emit.smoke import smoke_files
from planner.errors import EmitError
from planner.job.files import EmittedFile, readme, rendered
from planner.job.job import Job
from planner.launchers.registry import LAUNCHERS, check_launcher, launcher_files
from planner.model.spec import ModelSpec
from planner.plan.checks import listed, node_faults, target_faults, unwritten
from planner.plan.file import PlanFile, to_text
from planner.plan.values import Plan
from planner.runtimes.interface import runtime, runtime_of
from planner.runtimes.torch.capabilities import CAPABILITIES as PYTORCH
from planner.runtimes.torch.runtime import WITHOUT, elastic_files
from planner.targets import target

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


def job_of(
    plan: Plan,
    cluster: ClusterSpec,
    model: ModelSpec,
    script: tuple[str, ...] = (),
    library: tuple[str, ...] = (),
) -> Job:
    """The run of a plan; raises EmitError when the target cannot express it, and PlanError for too few devices.

    ``script`` is a training script of the user's, by its path on the nodes, and its arguments; ``library`` a library
    that trains over the runtime in place of a script, and arguments for it.
    """
    check_inputs(plan, cluster, model)
    own = runtime(plan.target, *library[:1])
    places = own.ranks(plan, cluster)
    job = Job(plan=plan, cluster=cluster, model=model, ranks=places, script=script, library=library)
    if script and own.starts_itself:
        raise EmitError(
            f"--script: {plan.target} starts an entry point of its own checkout",
            hint="name yours as experiment.task.entrypoint in conf/experiment.yaml",
        )
    own.check(plan, model)
    return job


def folder_files(job: Job, launcher: str) -> tuple[EmittedFile, ...]:
    """The launch folder of a run, sorted by path; raises EmitError when the launcher cannot start it."""
    own, chosen = runtime_of(job), LAUNCHERS[launcher]
    files = own.files(job)
    if not own.starts_itself:
        files += launcher_files(launcher, job)
    elif launcher != "torchrun":
        raise EmitError(
            f"launcher {launcher}: {job.plan.target} starts the nodes by its own runner",
            hint="leave out --launcher",
        )
    files += smoke_files(job, (file.path for file in files))
    text = readme(
        job,
        files,
        {
            **own.notes(job),
            **chosen.notes(job),
            "capabilities": own.capabilities,
            "tried": own.tried,
            "wheels": (*filter(None, [wheel_note(ages(job))]), *wheel_cautions(job)),
        },
        template=own.readme,
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


HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]*")


def check_inputs(plan: Plan, cluster: ClusterSpec, model: ModelSpec) -> None:
    """Raise EmitError unless the plan is one for this model and target that launch files can hold."""
    faults = (*target_faults(plan, model), *head_faults(plan, model)) or node_faults(plan, cluster)
    if faults:
        raise EmitError(listed(faults))
    _check_written(plan, model)
    _check_devices(plan, cluster)
    _check_hosts(plan, cluster)


def _check_written(plan: Plan, model: ModelSpec) -> None:
    fault = unwritten(target(plan.target), model)
    if fault is not None:
        raise EmitError(f"target: {fault}")


SERVED = ("NCCL", "RCCL", "")
"""Libraries whose devices launch files make visible, check and start; of a type without a maker none is known."""


def _check_devices(plan: Plan, cluster: ClusterSpec) -> None:
    for gpu in (group.gpu for stage in plan.stages for group in stage.replicas):
        vendor = cluster.gpus[gpu].vendor
        if cluster.gpus[gpu].library not in SERVED:
            raise EmitError(
                f"device type {gpu} (vendor: {vendor}): launch files are for devices of nvidia and amd",
                hint="plans for other devices can be compared, not launched",
            )


def _check_hosts(plan: Plan, cluster: ClusterSpec) -> None:
    used = {group.pool for stage in plan.stages for group in stage.replicas}
    for pool in cluster.pools:
        for host in pool.hosts:
            if pool.name in used and not HOST.fullmatch(host):
                raise EmitError(f"pool {pool.name}: {host!r} cannot be a host name in a launch file")


def ages(job: Job) -> dict[str, float]:
    """Compute capability of each device type of the job, where it is known."""
    gpus = job.cluster.gpus
    used = dict.fromkeys(rank.gpu for rank in job.ranks)
    return {gpu: age for gpu in used if (age := gpus[gpu].compute_capability) is not None}


def wheel_cautions(job: Job) -> tuple[str, ...]:
    """Why no build of PyTorch has kernels for all devices of the job; none where one has."""
    return tuple(filter(None, [wheel_warning(ages(job))]))


def is_tried(version: str, tried: str) -> bool:
    """True when a version such as 2.13.0+cpu is the tried one, which may be shorter."""
    return f"{version.split('+')[0]}.".startswith(f"{tried}.")


def installed_versions(target: str) -> dict[str, str]:
    """Versions of a target's packages in this Python; absent ones are left out."""
    own = runtime(target)
    distributions = {own.checkout.package: own.checkout.distribution} if own.checkout else {}
    versions = {}
    for name in own.tried:
        try:
            versions[name] = metadata.version(distributions.get(name, name))
        except metadata.PackageNotFoundError:
            continue
    return versions


def cautions(target: str, installed: Mapping[str, str]) -> tuple[str, ...]:
    """Versions that were not tested."""
    tried = runtime(target).tried
    return tuple(
        f"{name} {version} is installed here, the launch files were tested with {tried[name]}"
        for name, version in installed.items()
        if not is_tried(version, tried[name])
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A plan that takes over when a node fails."""

    host: str
    """The node."""
    plan_file: PlanFile
    """The plan, for the nodes that are left."""
    step_seconds: float


def prepared_files(
    before: PlanFile, step_seconds: float, prepared: Sequence[Prepared]
) -> tuple[EmittedFile, ...]:
    """The launch folder of a plan, and in ``without/HOST`` those of the plans without a node.

    With PyTorch alone the folder can be started so that it goes from one to the other by itself. Raises EmitError when
    the target cannot express a plan.
    """
    job = job_of(before.plan, before.cluster, before.model)
    files = folder_files(job, "torchrun")
    ordered = sorted(prepared, key=lambda each: each.step_seconds)
    jobs = [(each, job_of(each.plan_file.plan, each.plan_file.cluster, before.model)) for each in ordered]
    folders = [
        (
            each.host,
            other,
            (*folder_files(other, "torchrun"), EmittedFile("plan.yaml", to_text(each.plan_file))),
        )
        for each, other in jobs
    ]
    elastic = before.plan.target == PYTORCH.name
    if elastic:
        files = elastic_files(job, files, folders)
    else:
        more = (
            EmittedFile(f"{WITHOUT}/{host}/{file.path}", file.text, file.executable)
            for host, _, folder in folders
            for file in folder
        )
        files = (*files, *more)
    text = rendered(
        "emit/prepared.md.j2", job=job, elastic=elastic, step_seconds=step_seconds, prepared=ordered
    )
    return tuple(sorted((*files, EmittedFile("PREPARED.md", text)), key=lambda file: file.path))
