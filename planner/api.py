"""What ``import hetplan`` and ``import planner`` are made of: from files to a proven plan and its launch folder.

Sizes are bytes and times seconds, as in the values themselves. Whatever is wrong with an input is a HetplanError
of planner.errors: SpecError for a file, PlanError for a plan that does not fit its cluster or model, EmitError for
a plan that a runtime or launcher cannot express, OutputError for a folder that cannot be written, UsageError for
a goal, or limits, that cannot be searched for.
"""

from __future__ import annotations

from dataclasses import replace
from numbers import Integral, Real
from os import PathLike
from pathlib import Path
from typing import get_args

from planner.calibration.file import load_calibration, shipped
from planner.calibration.merge import merged, sourced
from planner.calibration.values import Calibration
from planner.capabilities import ASKED_OFFLOAD_PARTS, OFFLOAD_PARTS, RECOMPUTES
from planner.cluster import file as cluster_file
from planner.cluster.spec import ClusterSpec
from planner.cost.estimate import estimate
from planner.cost.failures import NEVER, Interruptions
from planner.cost.values import Estimate
from planner.emit import interface
from planner.errors import UsageError
from planner.files.messages import within
from planner.model import file as model_file
from planner.model.spec import ModelSpec
from planner.plan.file import Objective, load_plan
from planner.plan.values import Plan
from planner.ranges import (
    BATCH,
    DEVICES,
    FAILURES,
    FRACTION,
    MONEY,
    NODE_DEVICES,
    PREDICTED,
    PROCESSES,
    RATE,
    RUN_SECONDS,
    STAGES,
    TIME_LIMIT,
    TOKENS,
    ZERO,
    Range,
)
from planner.search.deadline import Deadline, Wish, keeping_the_best
from planner.search.objectives.choose import choose
from planner.search.space.degrees import degree_faults
from planner.search.values import Goal, Limits, Scored, SearchResult
from planner.targets import TARGETS, in_words, target
from planner.units import bytes_per_second_from_gigabytes

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
    ``calibration`` is a file whose constants win over the shipped ones. Ctrl-C, or an interrupt of the notebook's
    kernel, ends the search with the best plan so far; a second one raises KeyboardInterrupt. Raises UsageError for
    limits that no plan can have, and for a goal that contradicts itself or needs prices or powers that are unknown.
    """
    goal, limits = goal or Goal(), checked(limits or Limits(), model)
    _require(goal, cluster, simple)
    goal = replace(goal, interruptions=stops(goal.interruptions, model))
    wish = Wish()
    with keeping_the_best(wish):
        ends = Deadline.after(limits.time_limit_seconds, flag=wish)
        return choose(cluster, model, constants(calibration), limits, goal, simple=simple, deadline=ends)


NUMBERS = {
    "zero": ZERO,
    "tp": NODE_DEVICES,
    "pp": STAGES,
    "cp": DEVICES,
    "ep": DEVICES,
    "etp": NODE_DEVICES,
    "micro_batch": BATCH,
}
"""Limits with several numbers, and what each may be."""
WORDS = {"recompute": RECOMPUTES, "offload": (*OFFLOAD_PARTS, *ASKED_OFFLOAD_PARTS)}
"""Limits with several words, and which there are."""


def number_within(name: str, value: float, allowed: Range) -> None:
    """Raise UsageError for what is no number of the range; it need not be whole, however it is written."""
    if isinstance(value, bool) or not isinstance(value, Real):
        limits = f"from {allowed.least:g} to {allowed.most:g}"
        raise UsageError(f"{name}: expected a number {limits}, got {value!r}")
    within(name, float(value), allowed)


def number_within_or_none(name: str, value: float | None, allowed: Range) -> None:
    """As ``number_within``, of a value that need not be given."""
    if value is not None:
        number_within(name, value, allowed)


def whole_number_within(name: str, value: int, allowed: Range) -> None:
    """Raise UsageError for what is no whole number of the range."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        limits = f"from {allowed.least:.0f} to {allowed.most:.0f}"
        raise UsageError(f"{name}: expected a whole number {limits}, got {value!r}")
    within(name, int(value), allowed)


ALLOWED = {
    "syncs": "syncs",
    "grids": "grids",
    "quantised": "zero_plus",
    "unequal_shards": "unequal_shards",
    "backup": "backup_zero",
}
"""What limits may allow beyond the usual space, and the capability that a target needs for it."""


def checked(limits: Limits, model: ModelSpec) -> Limits:
    """Limits that were made by hand; raises UsageError for what the options of the command refuse."""
    number_within("gap", limits.gap, FRACTION)
    number_within_or_none("time_limit_seconds", limits.time_limit_seconds, TIME_LIMIT)
    whole_number_within("processes", limits.processes, PROCESSES)
    whole_number_within("backup", limits.backup, Range(0, DEVICES.most))
    for name in (*NUMBERS, *WORDS):
        values = getattr(limits, name)
        if values is None:
            continue
        if not (isinstance(values, tuple | list) and values):
            raise UsageError(f"{name}: expected a tuple with at least one value, got {values!r}")
        for value in values:
            if name in NUMBERS:
                whole_number_within(name, value, NUMBERS[name])
            elif value not in WORDS[name]:
                raise UsageError(f"{name}: expected some of {', '.join(WORDS[name])}, got {value!r}")
    for name, capability in ALLOWED.items():
        if limits.target and getattr(limits, name) and not getattr(target(limits.target), capability):
            able = in_words([row.name for row in TARGETS.values() if getattr(row, capability)], "or")
            raise UsageError(f"{name}: {limits.target} has none of it, expected target {able}")
    for name, what in degree_faults(limits, model):
        raise UsageError(f"{name}: {what}")
    return limits


def stops(interruptions: Interruptions, model: ModelSpec) -> Interruptions:
    """What stops a run of the model, with the time of a checkpoint; raises UsageError for what the options refuse."""
    stop = Range(0, RUN_SECONDS.most)
    number_within("per_gpu_month", interruptions.per_gpu_month, FAILURES)
    number_within("checkpoint_seconds", interruptions.checkpoint_seconds, stop)
    number_within("restart_seconds", interruptions.restart_seconds, stop)
    rates = Range(*map(bytes_per_second_from_gigabytes, RATE))
    number_within_or_none("storage_bytes_per_second", interruptions.storage_bytes_per_second, rates)
    return interruptions.of(model)


GOAL_NUMBERS = {
    "tokens": TOKENS,
    "deadline_seconds": PREDICTED,
    "budget": MONEY,
    "max_cost_per_million_tokens": PREDICTED,
    "min_tokens_per_second": PREDICTED,
}
"""Numbers of a goal, and what each may be."""


def _pairs(use_at_most: tuple[tuple[str, int], ...]) -> tuple[tuple[str, int], ...]:
    """What it is; raises UsageError for anything else."""
    if isinstance(use_at_most, tuple | list) and all(
        isinstance(pair, tuple | list) and len(pair) == 2 for pair in use_at_most
    ):
        return use_at_most
    raise UsageError(f"use_at_most: expected pairs of a pool and a number of devices, got {use_at_most!r}")


def _require(goal: Goal, cluster: ClusterSpec, simple: bool) -> None:
    """What the options of the command are checked for, of a goal that was made by hand."""
    if goal.objective not in (known := get_args(Objective)):
        raise UsageError(f"objective: expected one of {', '.join(known)}, got {goal.objective!r}")
    for name, allowed in GOAL_NUMBERS.items():
        number_within_or_none(name, getattr(goal, name), allowed)
    if goal.robust and goal.objective != "time":
        raise UsageError(f"robust weighs step times: expected no objective {goal.objective} with it")
    if simple and (goal.robust or not goal.fastest):
        raise UsageError(
            "simple is about plans nearly as fast as the fastest: expected no other goal with it"
        )
    if goal.tokens is None and not (goal.deadline_seconds is None and goal.budget is None):
        name = "budget" if goal.deadline_seconds is None else "deadline_seconds"
        raise UsageError(f"{name} is about a whole training run: expected tokens with it")
    if goal.tokens is None and goal.interruptions != NEVER:
        raise UsageError("interruptions are those of a whole training run: expected tokens with them")
    pools = [pool.name for pool in cluster.pools]
    for name, most in _pairs(goal.use_at_most):
        whole_number_within("use_at_most", most, Range(0, DEVICES.most))
        if name and name not in pools:
            hint = f"its pools are {', '.join(pools)}"
            raise UsageError(f"use_at_most: the cluster has no pool {name!r}", hint=hint)
    unused = {name for name, most in goal.use_at_most if not most}
    if "" in unused or unused >= set(pools):
        raise UsageError("use_at_most: leaves no device to use", hint="allow one device at least")
    for pool in (pool for pool in cluster.pools if pool.name not in unused):
        if goal.priced and pool.price_per_gpu_hour is None:
            hint = "write price_per_gpu_hour of each pool into the cluster file"
            raise UsageError(
                f"the goal needs the price of every pool, and pool {pool.name!r} has none", hint=hint
            )
        dark = [gpu for gpu in pool.devices if cluster.watts_of(pool, gpu) is None]
        if goal.objective == "energy" and dark:
            hint = f"write watts_per_gpu of {pool.name} into the cluster file"
            raise UsageError(
                f"objective energy needs the board power of {dark[0]}, which is unknown", hint=hint
            )


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

    ``launcher`` is one of those of ``hetplan emit --launcher``. The folder must be new or empty unless ``force``
    is given, which replaces only files of hetplan and keeps edited ones as NAME.edited. Raises EmitError, PlanError
    and OutputError.
    """
    files = interface.emit(plan, cluster, model, launcher)
    interface.write_folder(files, Path(folder), force)
    return tuple(Path(folder) / file.path for file in files)


def constants(path: File | None) -> Calibration:
    """The constants that ship with the package, and those of a file, which win."""
    return shipped() if path is None else merged(shipped(), sourced(load_calibration(Path(path))))
