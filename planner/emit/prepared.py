"""A launch folder with the plans for the nodes that may fail."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from planner.emit.interface import folder_files, job_of
from planner.job.files import EmittedFile, rendered
from planner.plan.file import PlanFile, to_text
from planner.runtimes.torch.capabilities import CAPABILITIES as PYTORCH
from planner.runtimes.torch.elastic import WITHOUT, elastic_files


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
