"""The one door of the package: a plan in, the files that launch it out."""

from __future__ import annotations

from planner.emit import deepspeed, megatron, torch_native
from planner.emit.expressible import check_inputs
from planner.emit.files import EmittedFile
from planner.emit.folder import write_folder
from planner.errors import EmitError
from planner.plan import Plan
from planner.spec.cluster import ClusterSpec
from planner.spec.model import ModelSpec

__all__ = ["LAUNCHERS", "EmittedFile", "emit", "write_folder"]

LAUNCHERS = ("torchrun",)
"""Launchers that scripts are written for."""

EMITTERS = {"deepspeed": deepspeed.files, "megatron": megatron.files, "torch": torch_native.files}


def emit(
    plan: Plan, cluster: ClusterSpec, model: ModelSpec, launcher: str = "torchrun"
) -> tuple[EmittedFile, ...]:
    """The launch folder of a plan, sorted by path.

    Raises EmitError when the target or the launcher cannot express the plan, and PlanError when the
    cluster has too few devices for it.
    """
    if launcher not in LAUNCHERS:
        raise EmitError(f"launcher {launcher}: not known, expected one of: {', '.join(LAUNCHERS)}")
    if plan.target not in EMITTERS:
        raise EmitError(
            f"target {plan.target}: hetplan writes no launch files for it",
            hint=f"search again with --target {' or --target '.join(EMITTERS)}",
        )
    check_inputs(plan, cluster, model)
    return tuple(sorted(EMITTERS[plan.target](plan, cluster, model), key=lambda file: file.path))
