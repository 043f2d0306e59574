"""Plan files: write, and read back with every inconsistency named by its line."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from pathlib import Path

from planner.cluster.checks import check_cluster
from planner.cluster.spec import ClusterSpec
from planner.errors import PlanError
from planner.files.document import Document, fail_on
from planner.files.kinds import read_as
from planner.files.whole import write_whole
from planner.files.yaml_text import dump
from planner.model.file import shape_problems
from planner.model.spec import ModelSpec
from planner.plan.checks import fail_on_faults, faults
from planner.plan.document import (
    FORMAT,
    AlternativeRecord,
    CalibrationRecord,
    Objective,
    PlanRecord,
    ReplicaRecord,
    StageRecord,
    Status,
    SummaryRecord,
    digests_part,
    inputs_part,
    plan_part,
    summary_part,
)
from planner.plan.faults import Fault
from planner.plan.short import short_plan
from planner.plan.values import Plan, ReplicaGroup, Stage

_HEADER = """\
# A plan of hetplan. A stage holds the layers [first, end); each of its replicas is tp devices, takes `share`
# sequences of a step and works through them in `steps` micro-batches of at most `micro_batch` sequences.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative:
    """The best plan of a family that was considered."""

    family: str
    step_seconds: float | None
    """Predicted step; None when the family has no plan."""
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """What the search said of the plan."""

    status: Status
    step_seconds: float
    bound_seconds: float
    gap: float
    tokens_per_second: float
    objective: Objective | None = None
    """None for the time of a step."""
    subclusters: int | None = None
    outside: tuple[str, ...] = ()
    """Plans that the space of the search left out."""
    alternatives: tuple[Alternative, ...] = ()
    advice: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class UsedCalibration:
    """The user's calibration file that a plan was found with."""

    name: str
    """Name of the file, without its folder."""
    digest: str
    """First 16 digits of the SHA-256 of its bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanFile:
    """A plan with the inputs that it was made for."""

    plan: Plan
    cluster: ClusterSpec
    model: ModelSpec
    summary: Summary | None = None
    """None for a plan that no search made, or whose stages were edited since."""
    calibration: UsedCalibration | None = None
    """None for a plan found with the constants that ship with the package."""


def to_text(plan_file: PlanFile) -> str:
    """The file's content; the same for equal plans and inputs, whatever the order of pools."""
    plan, cluster, model = plan_file.plan, plan_file.cluster, plan_file.model
    parts = [_HEADER + dump({"format": FORMAT, **plan_part(plan)})]
    if plan_file.summary is not None:
        parts.append(dump({"summary": summary_part(_summary_record(plan_file.summary))}))
    if plan_file.calibration is not None:
        parts.append(dump({"calibration": asdict(plan_file.calibration)}))
    parts.append(dump({"digests": digests_part(plan, cluster, model)}))
    parts.append(dump({"inputs": inputs_part(cluster, model)}))
    return "\n".join(parts)


def write(plan_file: PlanFile, path: Path) -> None:
    """Write the file whole or not at all; raises OutputError."""
    write_whole(to_text(plan_file), path, "plan.yaml")


def read(path: Path) -> PlanFile:
    """The plan of a file, checked against its inputs and its target.

    Raises SpecError for what is not a plan file, PlanError for another version or an inconsistent plan. The
    summary is dropped when the stages were edited by hand.
    """
    document = read_as(path, "plan")
    record = _record(document)
    plan = _plan(document, record)
    cluster, model = record.inputs.cluster, record.inputs.model
    digests = digests_part(plan, cluster, model)
    given = record.digests.model_dump()
    edited = tuple(_edited(part) for part in ("cluster", "model") if given[part] != digests[part])
    fail_on_faults(document, edited or faults(plan, cluster, model))
    same = given["plan"] == digests["plan"]
    return PlanFile(
        plan=plan,
        cluster=cluster,
        model=model,
        summary=_summary(record.summary) if same else None,
        calibration=_calibration(record.calibration),
    )


def load_plan(path: Path, cluster: ClusterSpec, model: ModelSpec) -> Plan:
    """The plan of a file for these inputs; the file may be a full plan file or a short hand-written plan."""
    document = read_as(path, "plan")
    if "format" not in document.data:
        return short_plan(document, cluster, model)
    plan = _plan(document, _record(document))
    fail_on_faults(document, faults(plan, cluster, model))
    return plan


def read_short(path: Path, cluster: ClusterSpec, model: ModelSpec) -> Plan:
    """The plan of a short hand-written file, all that it leaves out filled in."""
    return short_plan(read_as(path, "plan"), cluster, model)


def _record(document: Document) -> PlanRecord:
    """The file as a record; the cluster and the model in it pass what their own files pass."""
    _check_version(document)
    cluster, model = document.part("inputs", "cluster"), document.part("inputs", "model")
    own = [
        *(check_cluster(cluster, whole=True) if cluster is not None else ()),
        *(shape_problems(model) if model is not None else ()),
    ]
    fail_on([*own, *document.problems(PlanRecord)])
    return document.to(PlanRecord)


def _check_version(document: Document) -> None:
    found = document.data.get("format")
    if found == FORMAT:
        return
    if found is None:
        what = (
            f"missing, expected {FORMAT}; without it this is a short plan, which needs its cluster and model"
        )
        hint = "hetplan predict CLUSTER MODEL PLAN"
    elif str(found).startswith("hetplan-plan/"):
        what = f"the file is {found}, this hetplan reads {FORMAT}"
        hint = "search again, or use the hetplan that wrote the file"
    else:
        what, hint = f"expected {FORMAT}, got {found}", None
    raise PlanError(str(document.problem(("format",), what)), hint=hint)


def _plan(document: Document, record: PlanRecord) -> Plan:
    stages = []
    for number, stage in enumerate(record.stages):
        groups = [
            _group(document, group, ("stages", number, "replicas", index))
            for index, group in enumerate(stage.replicas)
        ]
        stages.append(_stage(document, stage, tuple(groups), ("stages", number, "layers")))
    try:
        return Plan(
            target=record.target,
            zero=record.zero,
            shard_size=record.shard_size,
            stages=tuple(stages),
            interleave=record.interleave,
            sequence_parallel=record.sequence_parallel,
            offload=record.offload.offload(),
        )
    except PlanError as error:
        what = re.sub(r"^(stages\[\d+\]|zero|shard_size|offload): ", "", error.message)
        raise _at(document, _path_in(error.message), what) from None


def _group(document: Document, record: ReplicaRecord, path: tuple[str | int, ...]) -> ReplicaGroup:
    try:
        group = ReplicaGroup(
            pool=record.pool,
            gpu=record.gpu,
            tp=record.tp,
            count=record.count,
            share=record.share,
            steps=record.steps,
        )
    except PlanError as error:
        raise _at(document, path, error.message) from None
    if group.micro_batch != record.micro_batch:
        derived = f"{group.micro_batch} (share {group.share} in {group.steps} steps)"
        what = f"expected {derived}, got {record.micro_batch}"
        raise _at(document, (*path, "micro_batch"), what)
    return group


def _stage(
    document: Document, record: StageRecord, groups: tuple[ReplicaGroup, ...], path: tuple[str | int, ...]
) -> Stage:
    first, end = record.layers
    try:
        return Stage(first_layer=first, end_layer=end, replicas=groups, recompute=record.recompute)
    except PlanError as error:
        raise _at(document, path, error.message) from None


def _path_in(message: str) -> tuple[str | int, ...]:
    """Where a message of Plan points: ``stages[2]: ...``, ``zero: ...``, or else all stages."""
    match = re.match(r"stages\[(\d+)\]: ", message)
    if match:
        return ("stages", int(match[1]), "layers")
    word = re.split(r"[: ]", message, maxsplit=1)[0]
    return (word,) if word in ("zero", "shard_size", "interleave", "offload") else ("stages",)


def _at(document: Document, path: tuple[str | int, ...], what: str) -> PlanError:
    return PlanError(str(document.problem(path, what)))


def _edited(part: str) -> Fault:
    what = f"the {part} under inputs is not the one that the plan was made for"
    return Fault(("digests", part), what)


def _summary_record(summary: Summary) -> SummaryRecord:
    return SummaryRecord(
        status=summary.status,
        step_seconds=summary.step_seconds,
        bound_seconds=summary.bound_seconds,
        gap=summary.gap,
        tokens_per_second=summary.tokens_per_second,
        objective=summary.objective,
        subclusters=summary.subclusters,
        outside=summary.outside,
        alternatives=tuple(
            AlternativeRecord(family=other.family, step_seconds=other.step_seconds, reason=other.reason)
            for other in summary.alternatives
        ),
        advice=summary.advice,
    )


def _calibration(record: CalibrationRecord | None) -> UsedCalibration | None:
    return None if record is None else UsedCalibration(name=record.name, digest=record.digest)


def _summary(record: SummaryRecord | None) -> Summary | None:
    if record is None:
        return None
    return Summary(
        status=record.status,
        step_seconds=record.step_seconds,
        bound_seconds=record.bound_seconds,
        gap=record.gap,
        tokens_per_second=record.tokens_per_second,
        objective=record.objective,
        subclusters=record.subclusters,
        outside=record.outside,
        alternatives=tuple(
            Alternative(family=other.family, step_seconds=other.step_seconds, reason=other.reason)
            for other in record.alternatives
        ),
        advice=record.advice,
    )
