"""``hetplan search``: from two files to a proven plan.

The plan file is written as soon as there is a plan, at every better one, and whole at the end.
"""

from __future__ import annotations

import math
import os
import traceback
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Annotated, cast, get_args

import typer

from planner.capabilities import (
    ASKED_OFFLOAD_PARTS,
    OFFLOAD_PARTS,
    RECOMPUTES,
    OffloadPart,
    Recompute,
    SyncFormat,
)
from planner.cli.answer import show_found
from planner.cli.goal import GoalOptions, LossOptions, require_one_plan
from planner.cli.inputs import (
    Overrides,
    SearchRequest,
    constants_for,
    read_inputs,
    used_calibration,
)
from planner.cli.options import (
    AsJson,
    CalibrationFile,
    ClusterFile,
    ModelFile,
    TargetName,
    choices,
    cores,
    flag,
    integers,
    option,
    proven_gap,
)
from planner.cli.output import failure_of, require_writable
from planner.cli.process import exit_code, started, warn
from planner.cli.progress import History, reporter
from planner.cost.estimate import Estimator
from planner.dims.sync import model_faults
from planner.errors import OutputError, UsageError
from planner.files.messages import within
from planner.lazy import lazy_module
from planner.model.spec import ModelSpec
from planner.plan.file import Summary, write
from planner.plan.values import Sync
from planner.ranges import (
    BATCH,
    COUNT,
    DEVICES,
    EXCHANGE_STEPS,
    KEPT_SHARE,
    NODE_DEVICES,
    PROCESSES,
    STAGES,
    TIME_LIMIT,
    WIDTH,
    ZERO,
    Range,
)
from planner.report.brief import summary_of
from planner.search.allowed import without_plans
from planner.search.deadline import Deadline, Wish, keeping_the_best
from planner.search.milp.export import write_model
from planner.search.objectives.choose import choose
from planner.search.ranking import ranked
from planner.search.space.degrees import degree_faults
from planner.search.values import Goal, Limits, Scored, SearchResult
from planner.targets import TARGETS, in_words, target

if TYPE_CHECKING:
    from planner.cli import front, loss
    from planner.cli.answer import Detail
else:
    front, loss = lazy_module("planner.cli.front"), lazy_module("planner.cli.loss")


PAUSE_SECONDS = 0.5
"""Least time between two plans that are written while better ones keep coming."""


class KeptPlan:
    """A plan file that holds the best plan, whatever ends the program."""

    def __init__(self, request: SearchRequest, path: Path, history: History | None = None) -> None:
        self._request, self._path, self.history = request, path, history
        self._written = -PAUSE_SECONDS
        self._waiting: Scored | None = None

    def better(self, scored: Scored) -> None:
        """A better plan; the first one is written at once."""
        self._waiting = scored
        self.catch_up()

    def catch_up(self) -> None:
        """Write what waits, unless something was written a moment ago."""
        if self._waiting is None or monotonic() - self._written < PAUSE_SECONDS:
            return
        scored, self._waiting = self._waiting, None
        with suppress(OutputError):  # said at the end, where it is tried again
            self._write(scored, self._unproven(scored))
        self._written = monotonic()

    def finish(self, result: SearchResult) -> OutputError | None:
        """Write the answer with what the search says of it; a failure is returned, so that the report comes first."""
        best, summary = result.best, summary_of(result)
        if best is None or summary is None:
            return None
        if self.history:
            moments = self.history.until(summary.step_seconds, summary.bound_seconds)
            summary = replace(summary, history=moments)
        return failure_of(lambda: self._write(best, summary))

    def _unproven(self, scored: Scored) -> Summary:
        """What is known of a plan while the search goes on."""
        objective = self._request.goal.objective
        return Summary(
            status="feasible",
            step_seconds=scored.estimate.step_seconds,
            bound_seconds=0.0,
            gap=1.0,
            tokens_per_second=scored.estimate.tokens_per_second,
            objective=None if objective == "time" else objective,
        )

    def _write(self, scored: Scored, summary: Summary) -> None:
        write(self._request.plan_file(scored, summary), self._path)


def _time_limit(seconds: float) -> float:
    """The option's value; none at all is infinite."""
    if seconds != math.inf:
        within("--time-limit", seconds, TIME_LIMIT, "inf, or a number")
    return seconds


WHOLE_GRADIENTS, EQUAL_SHARDS = (
    "exchanges whole gradients in every step",
    "deals equal shards to all replicas",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SpaceOptions:
    """Which plans are searched."""

    zero: Annotated[str | None, option("--zero", "LIST", "ZeRO stages to allow, e.g. 0,1.")] = None
    tp: Annotated[
        str | None, option("--tp", "LIST", "Tensor-parallel degrees to allow, e.g. 1,2,4 or 1..4.")
    ] = None
    pp: Annotated[str | None, option("--pp", "LIST", "Pipeline depths to allow, e.g. 1..8.")] = None
    cp: Annotated[str | None, option("--cp", "LIST", "Context-parallel degrees to allow, e.g. 1,4.")] = None
    ep: Annotated[str | None, option("--ep", "LIST", "Expert-parallel degrees to allow, e.g. 1,8.")] = None
    etp: Annotated[
        str | None, option("--etp", "LIST", "Expert-tensor-parallel degrees to allow, e.g. 1,2.")
    ] = None
    micro_batch: Annotated[
        str | None,
        option(
            "--micro-batch",
            "LIST",
            "Micro-batch sizes to allow, in sequences. Where each GPU has its own, up to the largest of them.",
        ),
    ] = None
    recompute: Annotated[
        str | None, option("--recompute", "LIST", "Activation recomputation to allow: none, selective, full.")
    ] = None
    offload: Annotated[
        str | None,
        option(
            "--offload",
            "LIST",
            "What plans may keep in host memory: none, optimizer, parameters, activations; add nvme to let "
            "optimizer and parameters go to NVMe, and super for SuperOffload on superchips, which does not clip "
            "gradients. Default: none, unless nothing fits on the devices alone.",
        ),
    ] = None
    allow_local_sgd: Annotated[
        str | None,
        option(
            "--allow-local-sgd",
            "STEPS",
            "Also plans whose islands, joined by slow links, train on their own for this many steps and then "
            "exchange weights (DiLoCo). This changes the training result.",
        ),
    ] = None
    allow_compression: Annotated[
        str | None,
        option(
            "--allow-compression",
            "LIST",
            "Also plans whose islands, joined by slow links, exchange fewer bytes: bf16, fp8, int8, rank=4 "
            "(PowerSGD), ratio=0.01 (the largest elements). This changes the training result.",
        ),
    ] = None
    allow_unequal_shards: Annotated[
        bool,
        flag(
            "--allow-unequal-shards",
            "Also plans in which ZeRO 1 to 3 gives device types shards of different sizes, so that more fits where "
            "memory sizes differ. Torch runs them without FSDP2.",
        ),
    ] = False
    allow_quantised_zero: Annotated[
        bool,
        flag(
            "--allow-quantised-zero",
            "Also plans whose ZeRO 3 sends parameters in eight bits and gradients in four (ZeRO++, DeepSpeed). This "
            "changes the training result.",
        ),
    ] = False
    allow_tensor_grids: Annotated[
        bool,
        flag(
            "--allow-tensor-grids",
            "Also plans whose replicas divide matrices by rows and columns of devices (SUMMA, Optimus, Tesseract).",
        ),
    ] = False
    allow_backup: Annotated[
        int | None,
        option(
            "--allow-backup",
            "N",
            "Also plans with up to N backup replicas: each step drops the gradients of the slowest ones. This pays "
            "where step times vary (calibrate sigma), and changes which sequences are trained on.",
            allowed=DEVICES,
        ),
    ] = None

    def limits(self, target: str | None, gap: float, time_limit: float) -> Limits:
        """The same as numbers; ``time_limit`` in seconds. Raises UsageError."""
        if target is not None:
            self._require(target)
        recompute = choices("--recompute", self.recompute, RECOMPUTES)
        offload = choices("--offload", self.offload, (*OFFLOAD_PARTS, *ASKED_OFFLOAD_PARTS))
        return Limits(
            target=target,
            zero=integers("--zero", self.zero, ZERO),
            tp=integers("--tp", self.tp, NODE_DEVICES),
            pp=integers("--pp", self.pp, STAGES),
            cp=integers("--cp", self.cp, DEVICES),
            ep=integers("--ep", self.ep, DEVICES),
            etp=integers("--etp", self.etp, NODE_DEVICES),
            micro_batch=integers("--micro-batch", self.micro_batch, BATCH),
            recompute=cast("tuple[Recompute, ...] | None", recompute),
            offload=cast("tuple[OffloadPart, ...] | None", offload),
            syncs=_syncs(self.allow_local_sgd, self.allow_compression),
            grids=self.allow_tensor_grids,
            quantised=self.allow_quantised_zero,
            unequal_shards=self.allow_unequal_shards,
            backup=self.allow_backup or 0,
            gap=gap,
            time_limit_seconds=None if time_limit == math.inf else time_limit,
        )

    def _require(self, name: str) -> None:
        """Raise UsageError for an option that allows what the target does not have: it was not meant."""
        for key, given, capability, instead in (
            ("--allow-local-sgd", self.allow_local_sgd, "syncs", WHOLE_GRADIENTS),
            ("--allow-compression", self.allow_compression, "syncs", WHOLE_GRADIENTS),
            ("--allow-tensor-grids", self.allow_tensor_grids, "grids", "divides matrices in one dimension"),
            ("--allow-quantised-zero", self.allow_quantised_zero, "zero_plus", "has no ZeRO++"),
            ("--allow-unequal-shards", self.allow_unequal_shards, "unequal_shards", EQUAL_SHARDS),
            ("--allow-backup", self.allow_backup, "backup_zero", "waits for all replicas"),
        ):
            if given not in (None, False) and not getattr(target(name), capability):
                able = in_words([row.name for row in TARGETS.values() if getattr(row, capability)], "or")
                raise UsageError(f"{key}: {name} {instead}, expected --target {able}")


def _syncs(steps: str | None, narrow: str | None) -> tuple[Sync, ...]:
    """What islands may exchange: weights once in so many steps, in fp32 or a format of the list; or gradients."""
    asked = integers("--allow-local-sgd", steps, Range(2, EXCHANGE_STEPS.most)) or ()
    ways = [_way(part.strip()) for part in narrow.split(",")] if narrow is not None else []
    formats: list[SyncFormat] = ["fp32", *(way.format for way in ways if way.format != "fp32")]
    local = (Sync(every=every, format=each) for every in asked for each in formats)
    return tuple(dict.fromkeys((*local, *ways)))


def _way(part: str) -> Sync:
    """``bf16``, ``fp8``, ``int8``, ``rank=4`` or ``ratio=0.01``."""
    name, _, value = part.partition("=")
    if part in get_args(SyncFormat)[1:]:
        return Sync(format=cast("SyncFormat", part))
    if name == "rank" and value.isdecimal() and len(value) < 10 and WIDTH.holds(int(value)):
        return Sync(rank=int(value))
    with suppress(ValueError):
        if name == "ratio" and KEPT_SHARE.holds(float(value)):
            return Sync(ratio=float(value))
    what = f"expected bf16, fp8, int8, rank=N or ratio=SHARE up to {KEPT_SHARE.most:g}, got {part!r}"
    raise UsageError(f"--allow-compression: {what}")


def _require_degrees(limits: Limits, model: ModelSpec) -> None:
    """Raise UsageError for degrees of which the model allows none, in whatever plan."""
    for name, what in degree_faults(limits, model):
        raise UsageError(f"--{name}: {what}")


def search(
    cluster: ClusterFile,
    model: ModelFile,
    *,
    output: Annotated[
        Path | None,
        option(
            "--output -o",
            "FILE",
            "Write the plan to FILE as soon as one is found, and again whenever a better one is.",
        ),
    ] = None,
    wanted: GoalOptions,
    to_loss: LossOptions,
    advice: Annotated[
        bool,
        flag(
            "--advice",
            "Also search for faster plans of the other runtimes and with offload, and spend what is left of the time "
            "limit on explanations.",
        ),
    ] = False,
    target: TargetName = None,
    top: Annotated[
        int | None,
        option(
            "--top",
            "K",
            "Show only the K best plan families. Default: 6, or all of them with -v.",
            allowed=COUNT,
        ),
    ] = None,
    gap: Annotated[
        float, proven_gap("Stop once the plan is proven to be within this fraction of the optimum.")
    ] = 0.01,
    time_limit: Annotated[
        float,
        option(
            "--time-limit",
            "SECONDS",
            "Total time limit, explanations included; the best plan so far is returned with its gap. inf: no limit.",
            callback=_time_limit,
        ),
    ] = 60.0,
    processes: Annotated[
        int | None,
        option(
            "--processes",
            "N",
            "Processes that search at the same time, which changes no answer. Default: one for each core, at most 8.",
            allowed=PROCESSES,
        ),
    ] = None,
    space: SpaceOptions,
    overrides: Overrides,
    calibration: CalibrationFile = None,
    write_lp: Annotated[
        Path | None,
        option(
            "--write-lp",
            "FILE",
            "Write the ILP of the plan's stages, or of its batches without a pipeline, to FILE, in LP format.",
        ),
    ] = None,
    history: Annotated[
        bool,
        flag(
            "--history",
            "Record in the plan file how the best step and the bound developed, for hetplan report; such files "
            "differ from search to search.",
        ),
    ] = False,
    quiet: Annotated[bool, flag("--quiet -q", "Print only the answer, on one line.")] = False,
    verbose: Annotated[
        bool,
        flag(
            "--verbose -v", "Also print the inputs as understood, all plan families, and what was left out."
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Find the fastest or cheapest plan and prove how good it is.

    Prints the plan, the families of plans that came closest and why they lost, the next command and, last, the
    answer in one line.
    Ctrl-C stops the search and keeps the best plan so far; a second Ctrl-C exits immediately.
    """
    limits = replace(space.limits(target, gap, time_limit), processes=processes or cores())
    require_one_plan(
        wanted.pareto,
        output=output,
        top=top,
        write_lp=write_lp,
        advice=advice or None,
        history=history or None,
    )
    if history and wanted.simple:
        raise UsageError("--history is about the fastest plan: expected no --simple with it")
    if history and output is None:
        raise UsageError("--history is kept in the plan file: expected -o FILE with it")
    detail = _detail(quiet, verbose)
    is_to_loss = to_loss.given(wanted, advice=advice, write_lp=write_lp, history=history)
    run = Goal(interruptions=wanted.run.stops.interruptions()) if is_to_loss else wanted.run.goal()
    cluster_spec, model_spec = read_inputs(cluster, model, overrides)
    run = replace(run, interruptions=run.interruptions.of(model_spec))
    aim = replace(wanted, objective=None, pareto=False) if is_to_loss else wanted
    goal = aim.goal(run, cluster, cluster_spec)
    constants = constants_for(calibration, cluster_spec, model_spec)
    _require_degrees(limits, model_spec)
    for sync in limits.syncs:
        for fault in model_faults(sync, model_spec):
            raise UsageError(f"--allow-compression: {fault.what}")
    families = {gpu.family for gpu in cluster_spec.gpus.values()}
    if limits.backup and not any(constants.family(name).sigma for name in families if name):
        warn(
            "--allow-backup: no device of the cluster is known to vary, so no backup pays: see calibrate sigma"
        )
    if limits.syncs or limits.grids or limits.quantised or limits.unequal_shards or limits.offload:
        for key, need in without_plans(limits, Estimator(ranked(cluster_spec), model_spec, constants)):
            warn(f"{key}: no plan here can use it: {need}")
    request = SearchRequest(
        cluster=cluster_spec,
        model=model_spec,
        calibration=constants,
        used=used_calibration(calibration),
        limits=limits,
        goal=goal,
        advice=advice,
        simple=wanted.simple,
    )
    if is_to_loss:
        reached = loss.requested(to_loss, request, wanted.run.tokens)
        if wanted.pareto:
            loss.answer_sizes(request, reached, as_json, quiet)
        loss.answer_loss(request, reached, top, output, as_json, quiet)
    if wanted.pareto:
        front.answer_front(request, as_json, detail)
    if history and not goal.fastest:
        raise UsageError("--history: only a search for the fastest plan without other limits keeps it")
    _answer(request, top, output, write_lp, as_json, detail, history=History(started()) if history else None)


def _detail(quiet: bool, verbose: bool) -> Detail:
    if quiet and verbose:
        raise UsageError("-q, -v: expected at most one of them")
    return "answer" if quiet else "full" if verbose else "brief"


def _answer(
    request: SearchRequest,
    top: int | None,
    output: Path | None,
    write_lp: Path | None,
    as_json: bool,
    detail: Detail,
    history: History | None,
) -> None:
    """Search, keep the plan, print the report; the exit code says what kind of answer it is."""
    if output is not None:
        require_writable(output)
    if write_lp is not None:
        require_writable(write_lp, "model.lp")
    kept = None if output is None else KeptPlan(request, output, history)
    wish = Wish()
    with keeping_the_best(wish):
        result = _run(request, kept, wish)
        unwritten = kept.finish(result) if kept else None
    if result.reasons_error is not None and not result.interrupted:
        _tell_of_reasons(result.reasons_error)
    show_found(result, request, top, output, as_json, detail)
    if unwritten is not None:
        raise unwritten
    if write_lp is not None and result.best is not None:
        write_model(
            write_lp, result.best, request.cluster, request.model, request.calibration, request.limits
        )
    raise typer.Exit(exit_code(result.interrupted, result.best is not None, result.status == "infeasible"))


def _run(request: SearchRequest, kept: KeptPlan | None, wish: Wish) -> SearchResult:
    deadline = Deadline.after(request.limits.time_limit_seconds, since=started(), flag=wish)
    history = kept.history if kept else None
    with reporter(kept.catch_up if kept else None) as shown:
        if history:
            history.talk = shown
        talk = history or shown

        def better(scored: Scored) -> None:
            talk.better(scored.estimate.step_seconds)
            if kept is not None:
                kept.better(scored)

        return choose(
            *request.inputs,
            talk,
            advice=request.advice,
            simple=request.simple,
            deadline=deadline,
            better=better,
        )


def _tell_of_reasons(error: Exception) -> None:
    """A bug in what is said beside the plan costs no plan."""
    what = str(error).splitlines()[0] if str(error) else "no message"
    warn(
        f"the reasons could not be worked out: {type(error).__name__}: {what}; please report it with your files"
    )
    if os.environ.get("HETPLAN_DEBUG") == "1":
        traceback.print_exception(error)
