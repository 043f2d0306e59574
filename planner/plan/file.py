"""Plan files: written from the plan's own fields, and read back with every inconsistency named by its line; and what
differs between the inputs that a plan was made for and those at hand.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from planner.cluster.file import check_cluster
from planner.cluster.spec import ClusterSpec
from planner.errors import PlanError, Problem, SpecError
from planner.field_metadata import json_fields
from planner.files.document import MOST_PROBLEMS, Document, fail_on, read_as, read_list
from planner.files.fields import Fraction, OptionalCount, OptionalPredicted, Predicted, strict, written
from planner.files.writing import Lines, dump, write_whole
from planner.frozen import record
from planner.model.file import shape_problems
from planner.model.spec import ModelSpec
from planner.plan.checks import fail_on_faults, faults
from planner.plan.short import short_plan
from planner.plan.values import Fault, Plan

FORMAT = "hetplan-plan/1"
"""Name and version of the plan file's format."""
Status = Literal["optimal", "feasible", "infeasible", "unknown"]
"""optimal: within the asked gap; feasible: a plan with its gap; infeasible: proven; unknown: time was up first."""
Objective = Literal["time", "cost", "energy"]
"""What is least: seconds of a step, price of a token, or energy of a token."""
CHOSEN = "chosen"
"""Reason of the family that the plan belongs to."""

_HEADER = """\
# A plan of hetplan. A stage holds the layers [first, end); each of its replicas is tp devices, takes `share`
# sequences of a step and works through them in `steps` micro-batches of at most `micro_batch` sequences.
"""


@json_fields("chosen")
@strict()
@record(frozen=True, slots=True, kw_only=True)
class Considered:
    """One family of plans with its best, as a search or a plan file remembers it."""

    family: str
    """A family of plans that was considered."""
    step_seconds: Predicted | None = None
    """Step of its best plan; None when the family has no plan."""
    tokens_per_second: Annotated[OptionalPredicted | None, Field(exclude=True)] = None
    """Throughput of its best plan."""
    reason: str
    """Why it lost."""

    @property
    def chosen(self) -> bool:
        """Whether the answer is of this family."""
        return self.reason == CHOSEN


@strict()
@record(frozen=True, slots=True, kw_only=True)
class Hedge:
    """What a plan with the least worst-case regret gives up, and what it gains."""

    regret: OptionalPredicted
    """Its step time over that of the best plan known at the same speeds, minus 1, at the worst speeds."""
    fastest_regret: OptionalPredicted
    """The same for the plan that is fastest at the speeds of the cost model."""
    slower: OptionalPredicted
    """Its step time over that of the fastest plan at the speeds of the cost model, minus 1."""
    fastest_gap: Fraction
    """(step - bound) / step of that fastest plan."""
    plans: OptionalCount
    """Plans that were compared."""
    speeds: tuple[str, ...]
    """Which speeds were varied, each with its error bar, in words."""


@strict()
@record(frozen=True, slots=True, kw_only=True)
class Moment:
    """What a search knew at a time."""

    seconds: OptionalPredicted
    """Since the command began."""
    step_seconds: Predicted
    """Step of the best plan so far."""
    bound_seconds: OptionalPredicted
    """Lower bound on all plans of the space so far; 0 for none."""


@strict()
@record(frozen=True, slots=True, kw_only=True)
class Summary:
    """What the search said of the plan."""

    status: Status
    """What is proven of the plan."""
    step_seconds: Predicted
    """Predicted time of one optimizer step."""
    bound_seconds: OptionalPredicted
    """No plan of the space is faster."""
    gap: Fraction
    """(step - bound) / step."""
    tokens_per_second: OptionalPredicted
    """Tokens of all devices together."""
    objective: Objective | None = None
    """What was minimised, and what the gap is of; None for the time of a step."""
    subclusters: OptionalCount | None = None
    """Sub-clusters that the gap is over; None for the whole space at once."""
    outside: tuple[str, ...] = ()
    """Plans that the space of the search left out."""
    alternatives: tuple[Considered, ...] = ()
    """Families of plans that were considered."""
    advice: tuple[str, ...] = ()
    """Faster plans that another runtime could run."""
    ratios: tuple[str, ...] = ()
    """Splits between device types that rest on speeds which are not well known."""
    idle: tuple[str, ...] = ()
    """Devices that the plan leaves idle, and what using them would cost."""
    hedge: Hedge | None = None
    """Of a plan with the least worst-case regret; None for the best at the speeds of the cost model."""
    tie: str | None = None
    """The faster plan inside the error bar that lost to this simpler one; None where no such plan was found."""
    history: tuple[Moment, ...] = ()
    """How the best step and the bound moved, of a search that was asked to keep it (``--history``)."""


@strict()
@record(frozen=True, slots=True, kw_only=True)
class UsedCalibration:
    """The user's calibration file that a plan was found with."""

    name: str
    """Name of the file, without its folder."""
    digest: str
    """First 16 digits of the SHA-256 of its bytes."""


@strict()
@record(frozen=True, slots=True, kw_only=True)
class Digests:
    """Fingerprints that show whether a part was edited."""

    plan: str
    """Of the plan's own keys."""
    cluster: str
    """Of the cluster, whatever the order of its pools."""
    model: str
    """Of the model with its training."""


@strict()
@record(frozen=True, slots=True, kw_only=True)
class Inputs:
    """What a plan was made for, with all defaults filled in."""

    cluster: ClusterSpec
    """The cluster."""
    model: ModelSpec
    """The model with its training."""


@strict()
@record(frozen=True, slots=True, kw_only=True)
class WrittenPlan(Plan):
    """The whole file: the plan's own keys, and what stands beside them."""

    format: Literal["hetplan-plan/1"]
    summary: Summary | None = None
    calibration: UsedCalibration | None = None
    digests: Digests
    inputs: Inputs


@record(frozen=True, slots=True, kw_only=True)
class PlanFile:
    """A plan with the inputs that it was made for."""

    plan: Plan
    cluster: ClusterSpec
    model: ModelSpec
    summary: Summary | None = None
    """None for a plan that no search made, or whose stages were edited since."""
    calibration: UsedCalibration | None = None
    """None for a plan found with the constants that ship with the package."""

    @property
    def considered(self) -> tuple[Considered, ...]:
        """The families that the search had considered; none for a plan by hand."""
        if self.summary is None:
            return ()
        tokens = self.plan.global_batch * self.model.training.sequence_tokens
        return tuple(
            replace(entry, tokens_per_second=tokens / entry.step_seconds if entry.step_seconds else None)
            for entry in self.summary.alternatives
        )


def to_text(plan_file: PlanFile) -> str:
    """The file's content; the same for equal plans and inputs, whatever the order of pools."""
    plan, cluster, model = plan_file.plan, plan_file.cluster, plan_file.model
    parts = [_HEADER + dump({"format": FORMAT, **_plan_part(plan)})]
    if plan_file.summary is not None:
        summary = written(plan_file.summary)
        for key in ("idle", "history"):
            if not summary[key]:
                del summary[key]  # as in files of before it was kept
        texts = {
            key: Lines(summary[key]) for key in ("outside", "advice", "ratios", "idle") if key in summary
        }
        parts.append(dump({"summary": {**summary, **texts}}))
    if plan_file.calibration is not None:
        parts.append(dump({"calibration": written(plan_file.calibration)}))
    parts.append(dump({"digests": written(_digests(plan, cluster, model))}))
    parts.append(dump({"inputs": {"cluster": cluster_part(cluster), "model": written(model)}}))
    return "\n".join(parts)


def _plan_part(plan: Plan) -> dict[str, Any]:
    """The plan's own keys; without an offload of nothing and experts in one place, as files had none before."""
    absent: tuple[tuple[str, object], ...] = (
        ("offload", {}),
        ("zero_plus", {}),
        ("sync", {}),
        ("grid", None),
        ("schedule", "1f1b"),
        ("ep", 1),
        ("etp", 1),
        ("cp", 1),
        ("cp_kind", "ring"),
        ("backup", 0),
        ("fewer_steps", 0),
        ("stage_nodes", 1),
    )
    return {key: value for key, value in written(plan).items() if (key, value) not in absent}


def cluster_part(cluster: ClusterSpec) -> dict[str, Any]:
    """The cluster as plain data, its parts sorted."""
    data = written(cluster)
    data["gpus"] = {
        name: {**gpu, "tflops": dict(sorted(gpu["tflops"].items()))}
        for name, gpu in sorted(data["gpus"].items())
    }
    data["fabrics"] = dict(sorted(data["fabrics"].items()))
    data["pools"] = sorted(data["pools"], key=lambda pool: str(pool["name"]))
    data["links"] = sorted(data["links"], key=lambda link: json.dumps(link, sort_keys=True))
    return dict(data)


def _digests(plan: Plan, cluster: ClusterSpec, model: ModelSpec) -> Digests:
    return Digests(plan=_digest(_plan_part(plan)), cluster=cluster_digest(cluster), model=model_digest(model))


def cluster_digest(cluster: ClusterSpec) -> str:
    """Fingerprint of a cluster, whatever the order of its pools."""
    return _digest(cluster_part(cluster))


def model_digest(model: ModelSpec) -> str:
    """Fingerprint of a model with its training."""
    return _digest(written(model))


def _digest(data: dict[str, Any]) -> str:
    text = json.dumps(data, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _of_keys(data: Any, there: Any) -> Any:
    """What a file holds: an earlier version had not all of today's keys, and told its digests without them."""
    if isinstance(data, dict) and isinstance(there, dict):
        return {key: _of_keys(value, there[key]) for key, value in data.items() if key in there}
    if isinstance(data, list | tuple) and isinstance(there, list) and len(data) == len(there):
        return [_of_keys(*pair) for pair in zip(data, there, strict=True)]
    return data


def write(plan_file: PlanFile, path: Path) -> None:
    """Write the file whole or not at all; raises OutputError."""
    write_whole(to_text(plan_file), path, "plan.yaml")


def read(path: Path) -> PlanFile:
    """The plan of a file, checked against its inputs and its target.

    Raises SpecError for what is not a plan file, PlanError for another version or an inconsistent plan. The
    summary is dropped when the stages were edited by hand.
    """
    document = read_as(path, "plan")
    saved, plan = _read(document)
    cluster, model = saved.inputs.cluster, saved.inputs.model
    digests = _digests(plan, cluster, model)
    inputs: Any = document.data["inputs"]
    edited = tuple(
        Fault(("digests", part), f"the {part} under inputs is not the one that the plan was made for")
        for part, data in (("cluster", cluster_part(cluster)), ("model", written(model)))
        if getattr(saved.digests, part) != _digest(_of_keys(data, inputs[part]))
    )
    fail_on_faults(document, edited or faults(plan, cluster, model))
    return PlanFile(
        plan=plan,
        cluster=cluster,
        model=model,
        summary=saved.summary if saved.digests.plan == digests.plan else None,
        calibration=saved.calibration,
    )


def load_plan(path: Path, cluster: ClusterSpec, model: ModelSpec) -> Plan:
    """The plan of a file for these inputs; the file may be a full plan file or a short hand-written plan."""
    document = read_as(path, "plan")
    if "format" not in document.data:
        return short_plan(document, cluster, model)
    _, plan = _read(document)
    fail_on_faults(document, faults(plan, cluster, model))
    return plan


def load_plans(path: Path, cluster: ClusterSpec, model: ModelSpec) -> tuple[Plan, ...]:
    """The short plans of a file; what is wrong with any of them is told at once."""
    plans: list[Plan] = []
    problems: list[Problem] = []
    others: list[str] = []
    for document in read_list(path, "plans", "- {tp: 8, pp: 8}"):
        try:
            plans.append(short_plan(document, cluster, model))
        except SpecError as error:
            problems += error.problems
        except PlanError as error:
            others += error.message.splitlines()
    if others:
        lines = list(dict.fromkeys([*map(str, problems), *others]))
        more = len(lines) - MOST_PROBLEMS
        if more > 0:
            lines = [*lines[:MOST_PROBLEMS], f"{path}: and {more:,} more problems at least"]
        raise PlanError(*lines)
    fail_on(problems)
    return tuple(plans)


def _read(document: Document) -> tuple[WrittenPlan, Plan]:
    """The file and its plan; the cluster and the model in it pass what their own files pass.

    But a model as it was written may be of a configuration of Hugging Face, of which there are shapes that a model file
    cannot say.
    """
    _check_version(document)
    cluster, model = document.part("inputs", "cluster"), document.part("inputs", "model")
    own = [
        *(check_cluster(cluster, whole=True) if cluster is not None else ()),
        *(shape_problems(model) if model is not None and not _as_written(document, model.data) else ()),
    ]
    if own:
        fail_on([*own, *document.problems(WrittenPlan)])
    saved = document.to(WrittenPlan)
    return saved, Plan(**{field.name: getattr(saved, field.name) for field in fields(Plan)})


def _as_written(document: Document, model: dict[str, Any]) -> bool:
    """True for a model whose digest is that of the file."""
    digests = document.data.get("digests")
    try:
        return isinstance(digests, dict) and digests.get("model") == _digest(model)
    except (TypeError, ValueError):
        return False  # keys or values that no plan file has


def _check_version(document: Document) -> None:
    version = document.data.get("format")
    if version == FORMAT:
        return
    if version is None:
        what = (
            f"missing, expected {FORMAT}; without it this is a short plan, which needs its cluster and model"
        )
        hint = "hetplan predict CLUSTER MODEL PLAN"
    elif str(version).startswith("hetplan-plan/"):
        what = f"the file is {version}, this hetplan reads {FORMAT}"
        hint = "search again, or use the hetplan that wrote the file"
    else:
        what, hint = f"expected {FORMAT}, got {version}", None
    raise PlanError(str(document.problem(("format",), what)), hint=hint)


SHOWN = 3
"""Differences that a message names."""
LONGEST = 60
"""Letters of a value that a message shows."""


@record(frozen=True, slots=True)
class Difference:
    """One field with two values; None where a side lacks it."""

    field: str
    """Dotted path; pools by name."""
    planned: Any
    given: Any


def cluster_differences(planned: ClusterSpec, given: ClusterSpec) -> tuple[Difference, ...]:
    """Fields that differ; none when the fingerprints are equal."""
    if cluster_digest(planned) == cluster_digest(given):
        return ()
    return tuple(_differences("", cluster_part(planned), cluster_part(given)))


def model_differences(planned: ModelSpec, given: ModelSpec) -> tuple[Difference, ...]:
    """Fields that differ; none when the fingerprints are equal."""
    if model_digest(planned) == model_digest(given):
        return ()
    return tuple(_differences("", written(planned), written(given)))


def differences_text(differences: tuple[Difference, ...], name: str) -> str:
    """The first differences in words; ``name`` is the file at hand."""
    first = "; ".join(
        f"{each.field} is {_value(each.planned)} in the plan, {_value(each.given)} in {name}"
        for each in differences[:SHOWN]
    )
    more = len(differences) - SHOWN
    return f"{first}; and {more} more" if more > 0 else first


def _value(value: Any) -> str:
    text = "absent" if value is None else str(value)
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 3]}..."


def _differences(path: str, planned: Any, given: Any) -> Iterator[Difference]:
    """Leaves that differ, in the order of the plan's fields."""
    left, right = _children(planned), _children(given)
    if left is None or right is None:
        if planned != given:
            yield Difference(path, planned, given)
        return
    for key in dict.fromkeys((*left, *right)):
        yield from _differences(_joined(path, key), left.get(key), right.get(key))


def _joined(path: str, key: str) -> str:
    return f"{path}{key}" if key.startswith("[") or not path else f"{path}.{key}"


def _children(value: Any) -> dict[str, Any] | None:
    """Parts of a mapping by key, of a list of mappings by name or index; None for what is compared whole."""
    if isinstance(value, dict):
        return value
    if isinstance(value, list) and value and all(isinstance(entry, dict) for entry in value):
        return {f"[{entry.get('name', index)}]": entry for index, entry in enumerate(value)}
    return None
