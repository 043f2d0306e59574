"""What ``import hetplan`` and ``import planner`` are made of: from files to a proven plan and its launch folder.

Sizes are bytes and times seconds, as in the values themselves. Whatever is wrong with an input is a HetplanError
of planner.errors: SpecError for a file, PlanError for a plan that does not fit its cluster or model, EmitError for
a plan that a runtime or launcher cannot express, OutputError for a folder that cannot be written.
"""

from __future__ import annotations

from os import PathLike
from pathlib import Path

from planner.calibration.file import load_calibration, shipped
from planner.calibration.merge import merged, sourced
from planner.calibration.values import Calibration
from planner.cluster import file as cluster_file
from planner.cluster.spec import ClusterSpec
from planner.cost.estimate import estimate
from planner.cost.values import Estimate
from planner.emit import interface
from planner.model import file as model_file
from planner.model.spec import ModelSpec
from planner.plan.file import load_plan
from planner.plan.values import Plan
from planner.search.objectives.choose import choose
from planner.search.values import Goal, Limits, Scored, SearchResult

File = str | PathLike[str]


def load_cluster(path: File) -> ClusterSpec:
    """The cluster of a cluster file; raises SpecError with every problem of it."""
    return cluster_file.load_cluster(Path(path))


def load_model(path: File) -> ModelSpec:
    """The model of a model file or of a Hugging Face ``config.json``; raises SpecError with every problem of it."""
    return model_file.load_model(Path(path))


def search(
    cluster: ClusterSpec,
    model: ModelSpec,
    *,
    limits: Limits | None = None,
    goal: Goal | None = None,
    simple: bool = False,
    calibration: File | None = None,
) -> SearchResult:
    """The best plan for the goal, which is the fastest unless it says otherwise, and what is proven of it.

    Without ``limits`` the space of every runtime but FlagScale is searched until the plan is proven within 1 %,
    however long that takes. With ``simple`` a simpler plan wins that is slower by less than the error bar.
    ``calibration`` is a file whose constants win over the shipped ones.
    """
    return choose(cluster, model, constants(calibration), limits or Limits(), goal or Goal(), simple=simple)


def predict(
    plan: Plan | File, cluster: ClusterSpec, model: ModelSpec, *, calibration: File | None = None
) -> Estimate:
    """Seconds and bytes of one optimizer step of a plan, or of the plan in a file, by cause.

    Raises PlanError for a plan that cannot run here; one that needs more memory than there is gets its estimate,
    whose ``fits`` is False.
    """
    return scored(plan, cluster, model, calibration=calibration).estimate


def scored(
    plan: Plan | File, cluster: ClusterSpec, model: ModelSpec, *, calibration: File | None = None
) -> Scored:
    """A plan, or that of a file, with its estimate; as ``predict``."""
    decided = plan if isinstance(plan, Plan) else load_plan(Path(plan), cluster, model)
    return Scored(plan=decided, estimate=estimate(decided, cluster, model, constants(calibration)))


def emit(
    plan: Plan,
    cluster: ClusterSpec,
    model: ModelSpec,
    folder: File,
    *,
    launcher: str = "torchrun",
    force: bool = False,
) -> tuple[Path, ...]:
    """Write the files that launch a plan; their paths.

    ``launcher`` is torchrun, deepspeed, slurm, kubernetes or ssh. The folder must be new or empty unless ``force``
    is given, which replaces only files of hetplan and keeps edited ones as NAME.edited. Raises EmitError and
    OutputError.
    """
    files = interface.emit(plan, cluster, model, launcher)
    interface.write_folder(files, Path(folder), force)
    return tuple(Path(folder) / file.path for file in files)


def constants(path: File | None) -> Calibration:
    """The constants that ship with the package, and those of a file, which win."""
    return shipped() if path is None else merged(shipped(), sourced(load_calibration(Path(path))))
