"""Plan the training of large models on clusters of unequal GPUs and networks, from scripts and notebooks.

``hetplan.search(cluster, model)`` finds a plan and proves how good it is; ``docs/api.md`` shows the rest. Clusters and
models are values of ``load_cluster`` and ``load_model``, or paths of their files. Times are seconds, sizes bytes.
Whatever is wrong with an input is a HetplanError.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from planner import __version__ as __version__
from planner import api
from planner.api import File, load_cluster, load_model
from planner.calibration.values import Calibration
from planner.cluster.change import changed
from planner.cluster.spec import ClusterSpec
from planner.cost.estimate import Estimator
from planner.cost.failures import Interruptions
from planner.cost.timeline import step_of
from planner.cost.training import TrainingRun, training_run
from planner.cost.values import CAUSES, Estimate
from planner.errors import HetplanError, UsageError
from planner.escaping import visible
from planner.files.writing import write_whole
from planner.model.spec import ModelSpec
from planner.plan.file import PlanFile, write
from planner.plan.values import Plan
from planner.ranges import CHANCE, MONEY, PREDICTED, TOKENS
from planner.report.brief import answer_line, bar, summary_of
from planner.report.compare import of_one_model, uneven
from planner.report.explain import considered
from planner.report.numbers import MISSING, duration, gib, percent, rate
from planner.report.plan_table import groups_of, headline, in_short, micro_batches_text, stage_runs
from planner.report.what_if import Variant, cases
from planner.search.objectives.pareto import front_around, front_objective
from planner.search.values import Goal, Limits, Scored, SearchResult
from planner.search.what_if import searched, shared, worlds

if TYPE_CHECKING:
    from pandas import DataFrame

__all__ = [
    "Comparison",
    "Goal",
    "HetplanError",
    "Interruptions",
    "Limits",
    "Plan",
    "Planned",
    "WhatIf",
    "compare",
    "emit",
    "load_cluster",
    "load_model",
    "predict",
    "report",
    "search",
    "what_if",
]

Cluster = ClusterSpec | File
Model = ModelSpec | File
Row = Mapping[str, Any]
FAMILY = ("family", "step_seconds", "tokens_per_second", "reason")
"""What a row about a family of plans has."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Planned:
    """A plan with its estimate, and the search that found it where one did."""

    cluster: ClusterSpec
    model: ModelSpec
    calibration: Calibration
    scored: Scored | None
    """None where the search found no plan: ``result.diagnosis`` says why."""
    result: SearchResult | None = None
    """What the search says: status, gap, bound_seconds, alternatives, advice; None for a plan by hand."""
    limits: Limits | None = None
    """What was searched; None for all."""

    @property
    def plan(self) -> Plan:
        """What every device does; raises HetplanError where there is no plan."""
        return self._known.plan

    @property
    def estimate(self) -> Estimate:
        """What the cost model says of it: step_seconds, tokens_per_second, breakdown, stages; likewise."""
        return self._known.estimate

    @property
    def _known(self) -> Scored:
        if self.scored is None:
            assert self.result is not None, "a prediction has a plan"
            raise HetplanError(answer_line(self.result, self.model, self.cluster, self.limits or Limits()))
        return self.scored

    def training(self, tokens: float, interruptions: Interruptions | None = None) -> TrainingRun:
        """How long so many tokens take, what they cost, and what failures take of the time."""
        api.number_within("tokens", tokens, TOKENS)
        return training_run(self.estimate, tokens, api.stops(interruptions or Interruptions(), self.model))

    def timeline(self) -> list[Row]:
        """One step in time: what each stage, or each group of replicas, is busy with, by seconds from its begin."""
        step = step_of(self.plan, Estimator(self.cluster, self.model, self.calibration))
        return [
            {
                "stage": lane.stage,
                "group": lane.group,
                "kind": span.kind,
                "start_seconds": span.start,
                "end_seconds": span.end,
                "micro_batch": span.micro_batch,
                "critical": span.critical,
            }
            for lane in step.lanes
            for span in lane.spans
        ]

    def stages(self) -> list[Row]:
        """A row for each group of like replicas: its layers, devices, batch, seconds and memory."""
        return [
            {
                "stage": index,
                "first_layer": stage.first_layer,
                "end_layer": stage.end_layer,
                "pool": group.pool,
                "gpu": group.gpu,
                "replicas": group.count,
                "tp": group.tp,
                "micro_batch": group.micro_batch,
                "steps": group.steps,
                "forward_seconds": group.forward_seconds,
                "backward_seconds": group.backward_seconds,
                "used_bytes": group.memory.used_bytes,
                "capacity_bytes": group.memory.capacity_bytes,
            }
            for index, stage in enumerate(self.estimate.stages)
            for group in stage.groups
        ]

    def alternatives(self) -> list[Row]:
        """Families of plans that were considered, and why they lost; none for a plan by hand."""
        families = considered(self.result.alternatives) if self.result else ()
        return [{name: getattr(entry, name) for name in FAMILY} for entry in families]

    def to_frame(self, what: str = "stages") -> DataFrame:
        """The rows of ``stages``, ``alternatives`` or ``timeline`` as a pandas frame."""
        if what not in ("stages", "alternatives", "timeline"):
            raise UsageError(f"to_frame: expected stages, alternatives or timeline, got {what!r}")
        rows: list[Row] = getattr(self, what)()
        return _frame(rows, FAMILY if what == "alternatives" else None)

    def save(self, path: File) -> None:
        """Write the plan file, for the commands."""
        summary = None if self.result is None else summary_of(self.result)
        write(PlanFile(plan=self.plan, cluster=self.cluster, model=self.model, summary=summary), Path(path))

    def __repr__(self) -> str:
        """The answer in one line."""
        if self.result is not None:
            return answer_line(self.result, self.model, self.cluster, self.limits or Limits())
        estimate = self.estimate
        step = duration(estimate.step_seconds, estimate.spread)
        speed = f"{step} a step, {rate(estimate.tokens_per_second)} tokens/s"
        return f"{self.model.name} on {self.cluster.name}: {speed}{'' if estimate.fits else ', does not fit'}"

    def _repr_html_(self) -> str:
        """What a notebook shows: the answer, and a row for each group with its memory and load."""
        if self.scored is None:
            return f"<p>{_text(str(self))}</p>"
        groups = groups_of(self.estimate)
        slowest = max(group.work_seconds for group in groups)
        rows = []
        for run in stage_runs(self.estimate.stages):
            for members in run.groups:
                group = max(members, key=lambda each: each.work_seconds)
                share = group.work_seconds / slowest
                devices = f"{len(run.stages) * group.tp * group.count} {group.gpu} ({group.pool})"
                memory = f"{gib(group.memory.used_bytes)} of {gib(group.memory.capacity_bytes)}"
                batch = micro_batches_text(group)
                rows.append(
                    (run.indices, run.layers, devices, batch, memory, f"{bar(share)} {percent(share)}")
                )
        heads = ("stage", "layers", "devices", "batch", "memory (GiB)", "load")
        return f"<p><b>{_text(str(self))}</b><br>{_text(headline(self.plan))}</p>{_table(heads, rows)}"


def search(
    cluster: Cluster,
    model: Model,
    *,
    limits: Limits | None = None,
    goal: Goal | None = None,
    safe: float | None = None,
    simple: bool = False,
    calibration: File | None = None,
) -> Planned:
    """The best plan for the goal, the fastest unless it says otherwise, and what is proven of it.

    With ``simple`` a simpler plan wins that is slower by less than the error bar, and ``result.tie`` has the faster
    one. Without ``limits`` it goes on until the plan is proven within 1 %, however long that takes. ``safe`` is the
    largest chance to run out of memory that the plan may have.
    """
    cluster_spec, model_spec = _cluster(cluster), _model(model)
    api.number_within_or_none("safe", safe, CHANCE)
    if safe is not None:
        cluster_spec = changed(cluster_spec, f"safe={safe!r}")
    result = api.search(
        cluster_spec, model_spec, limits=limits, goal=goal, simple=simple, calibration=calibration
    )
    return Planned(
        cluster=cluster_spec,
        model=model_spec,
        calibration=api.constants(calibration),
        scored=result.best,
        result=result,
        limits=limits,
    )


def predict(plan: Plan | File, cluster: Cluster, model: Model, *, calibration: File | None = None) -> Planned:
    """A plan, or that of a plan file or of a short plan, with seconds and bytes of its step."""
    cluster_spec, model_spec = _cluster(cluster), _model(model)
    scored = api.scored(plan, cluster_spec, model_spec, calibration=calibration)
    return Planned(
        cluster=cluster_spec, model=model_spec, calibration=api.constants(calibration), scored=scored
    )


@dataclass(frozen=True, slots=True, repr=False)
class Comparison:
    """Plans side by side; the first is the reference."""

    plans: Mapping[str, Planned]

    def rows(self) -> list[Row]:
        """A row for each plan, with the causes of its step; ``note`` has what else differs from the first plan's."""
        reference = next(iter(self.plans.values()))
        first = reference.estimate
        return [
            {
                "name": name,
                "step_seconds": each.estimate.step_seconds,
                "tokens_per_second": each.estimate.tokens_per_second,
                "times_first": each.estimate.step_seconds / first.step_seconds,
                "fits": each.estimate.fits,
                "peak_memory_bytes": each.estimate.peak_memory_bytes,
                **{cause: float(getattr(each.estimate.breakdown, cause)) for cause in CAUSES},
                "plan": in_short(each.plan),
                "note": uneven(each.cluster, each.model, reference.cluster, reference.model),
            }
            for name, each in self.plans.items()
        ]

    def to_frame(self) -> DataFrame:
        """The rows as a pandas frame, by name."""
        return _frame(self.rows()).set_index("name")

    def __repr__(self) -> str:
        """A line for each plan."""
        return "\n".join(f"{name}: {planned}" for name, planned in self.plans.items())

    def _repr_html_(self) -> str:
        rows = [
            (
                row["name"],
                duration(row["step_seconds"]),
                rate(row["tokens_per_second"]),
                f"{row['times_first']:.2f} x",
                gib(row["peak_memory_bytes"]),
                row["plan"],
                row["note"],
            )
            for row in self.rows()
        ]
        head = ("plan", "step", "tokens/s", "time", "peak (GiB)", "decisions", "note")
        noted = any(row[-1] for row in rows)
        return _table(head, rows) if noted else _table(head[:-1], [row[:-1] for row in rows])


def compare(**plans: Planned) -> Comparison:
    """Plans of one model side by side, by the names they are given."""
    if not plans:
        raise UsageError("compare: expected plans, by name: compare(found=..., by_hand=...)")
    for name, planned in plans.items():
        _require_planned(name, planned)
    first = next(iter(plans.values())).model
    for name, planned in plans.items():
        if not of_one_model(planned.model, first):
            raise UsageError(
                f"compare: {name} is a plan of {planned.model.name}, expected one of {first.name} as the first",
                hint="compare plans of one model; clusters and batches may differ",
            )
    return Comparison(plans)


@dataclass(frozen=True, slots=True, repr=False)
class WhatIf:
    """What the plan becomes with each change; the first case is without one."""

    cases: tuple[Variant, ...]

    def rows(self) -> list[Row]:
        """A row for each case."""
        return [
            {
                "change": case.change or "as it is",
                "status": case.status,
                "step_seconds": case.scored.estimate.step_seconds if case.scored else None,
                "tokens_per_second": case.scored.estimate.tokens_per_second if case.scored else None,
                "faster": case.faster,
                "gap": case.gap,
                "plan": case.plan,
            }
            for case in self.cases
        ]

    def to_frame(self) -> DataFrame:
        """The rows as a pandas frame, by change."""
        return _frame(self.rows()).set_index("change")

    def __repr__(self) -> str:
        """A line for each change."""
        return "\n".join(f"{row['change']}: {row['plan'] or row['status']}" for row in self.rows())

    def _repr_html_(self) -> str:
        rows = [
            (
                row["change"],
                MISSING if row["step_seconds"] is None else duration(row["step_seconds"]),
                MISSING if row["faster"] is None else percent(row["faster"]),
                row["plan"] or row["status"],
            )
            for row in self.rows()
        ]
        return _table(("change", "step", "faster by", "plan"), rows)


def what_if(
    cluster: Cluster,
    model: Model,
    changes: Sequence[str],
    *,
    limits: Limits | None = None,
    calibration: File | None = None,
) -> WhatIf:
    """Search again after each change, as ``links.lan.bandwidth_gbps=100``, ``+8 H100-SXM-80GB`` or ``-titan``.

    A change that allows a plan that was found for another has none that is slower. After Ctrl-C it has the cases so
    far; raises KeyboardInterrupt where there is none.
    """
    if isinstance(changes, str):
        raise UsageError(
            "changes: expected a list of changes, got a text", hint=f"what_if(..., [{changes!r}])"
        )
    cluster_spec, model_spec = _cluster(cluster), _model(model)
    limits = api.checked(limits or Limits(), model_spec)
    variants = worlds(cluster_spec, model_spec, changes)
    constants = api.constants(calibration)
    results = [result for _, result in searched(variants, constants, limits)]
    if not results:
        raise KeyboardInterrupt
    return WhatIf(cases(variants, shared(variants, results, constants, limits)))


def report(
    planned: Planned,
    path: File,
    *,
    tokens: float = 1e11,
    interruptions: Interruptions | None = None,
    deadline_seconds: float | None = None,
    budget: float | None = None,
    pareto: bool = False,
) -> None:
    """Write the page about a plan, one HTML file that loads nothing.

    It says whether a run over so many tokens meets the deadline and the budget, in the currency of the cluster file.
    ``pareto`` also searches growing parts of the cluster for time against cost, or energy without prices.
    """
    from planner.report.page import page
    from planner.report.page import report as page_of

    _require_planned("planned", planned)
    api.number_within("tokens", tokens, TOKENS)
    api.number_within_or_none("deadline_seconds", deadline_seconds, PREDICTED)
    api.number_within_or_none("budget", budget, MONEY)
    summary = None if planned.result is None else summary_of(planned.result)
    saved = PlanFile(plan=planned.plan, cluster=planned.cluster, model=planned.model, summary=summary)
    estimator = Estimator(planned.cluster, planned.model, planned.calibration)
    scored = Scored(plan=planned.plan, estimate=planned.estimate)
    stops = api.stops(interruptions or Interruptions(), planned.model)
    objective = front_objective(planned.cluster) if pareto else None
    if pareto and objective is None:
        raise HetplanError("pareto: the prices, or the powers, of all pools must be known")
    pareto_front = objective and front_around(saved, scored, planned.calibration, objective)
    told = page_of(
        Path(path).name,
        saved,
        scored,
        estimator,
        Goal(tokens=tokens, deadline_seconds=deadline_seconds, budget=budget, interruptions=stops),
        front=pareto_front or None,
    )
    write_whole(page(told), Path(path), "report.html")


def emit(
    planned: Planned, folder: File, *, launcher: str = "torchrun", force: bool = False
) -> tuple[Path, ...]:
    """Write the files that launch a plan into a new or empty folder; their paths."""
    _require_planned("planned", planned)
    return api.emit(planned.plan, planned.cluster, planned.model, folder, launcher=launcher, force=force)


def _cluster(cluster: Cluster) -> ClusterSpec:
    return cluster if isinstance(cluster, ClusterSpec) else load_cluster(cluster)


def _model(model: Model) -> ModelSpec:
    return model if isinstance(model, ModelSpec) else load_model(model)


def _require_planned(name: str, value: object) -> None:
    """Raise UsageError for anything else, as the plan of a Planned."""
    if not isinstance(value, Planned):
        raise UsageError(f"{name}: expected what search or predict gives, got a {type(value).__name__}")


def _frame(rows: Sequence[Row], columns: Sequence[str] | None = None) -> DataFrame:
    """The frame of rows; its columns where there may be no row."""
    try:
        import pandas
    except ImportError:
        raise HetplanError("to_frame needs pandas", hint="pip install 'hetplan[notebook]'") from None
    return pandas.DataFrame(rows, columns=columns)


def _text(text: str) -> str:
    return escape(visible(text))


def _table(heads: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    head = "".join(f"<th>{_text(each)}</th>" for each in heads)
    body = "".join(f"<tr>{''.join(f'<td>{_text(str(cell))}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
