"""One self-contained page about a plan, for a browser, a phone, a printer or a screen reader.

Everything is in the file: shapes are HTML and SVG that the template draws, and it loads nothing, which its content
security policy holds it to. What comes out of files is escaped by the template engine.
"""

from __future__ import annotations

import base64
import hashlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

from planner import __version__
from planner.cost.estimate import Estimator
from planner.cost.timeline import Lane, SpanKind, Step, step_of
from planner.cost.training import TrainingRun, devices_of
from planner.cost.values import CAUSES, COMPONENTS, Breakdown, Estimate, Memory
from planner.escaping import visible, visible_json
from planner.field_metadata import Json, json_fields, meanings, sentence
from planner.field_metadata import text as document_text
from planner.logs.comparison import Deviation
from planner.plan.file import Considered, Moment, PlanFile, cluster_digest, model_digest
from planner.plan.values import Plan
from planner.report.compare import Contender
from planner.report.document import ComparedPlan, PlanDocument, compare_document, plan_document
from planner.report.explain import SMALLEST, largest_component
from planner.report.goal import devices_text, training_lines
from planner.report.numbers import (
    MISSING,
    at_most,
    chance,
    count,
    count_unit,
    duration,
    gib,
    long_text,
    money,
    percent,
    rate,
    significant,
    span,
    time_unit,
)
from planner.report.observed import ObservedDocument, ObservedRun, observed_document
from planner.report.page.drawing import (
    Course,
    Tornado,
    cluster_map,
    colour,
    course,
    drawing_of,
    lanes_of,
    scatter,
    time_ticks,
    tornado,
)
from planner.report.pareto import FrontDocument, front_document, searched_text, short, worth_text
from planner.report.plan_table import (
    StageRun,
    caveats,
    differences,
    group_text,
    groups_of,
    headline,
    misfits,
    proof_text,
    stage_runs,
)
from planner.report.ranks import rank_rows
from planner.search.explain.neighbours import Neighbour, all_neighbours
from planner.search.objectives.pareto import Front
from planner.search.values import Goal, Scored
from planner.units import format_count

KINDS: dict[SpanKind, str] = {
    "forward": "forward",
    "backward": "backward",
    "weights": "gradients of weights",
    "send": "sends",
    "sync": "gradient sync",
    "copies": "offload copies",
    "optimizer": "optimizer",
}
"""What a stage is busy with, in the words of the page."""

FRONT_UNITS = {"cost": "per million tokens", "energy": "J per token"}
"""What stands against time in a front, by its objective."""

DECISIONS = {
    "cp": "context parallel",
    "ep": "expert parallel",
    "etp": "expert tensor parallel",
    "recompute": "recomputation",
    "sequence": "sequence parallel",
}
"""Decisions by the first word of their names, where it is not how a reader knows them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneTimes:
    """Where the time of one stage goes; without a pipeline, of one group of replicas."""

    stage: int
    """The stage."""
    group: int | None
    """Index of the group in its stage; null for the slowest replica of the stage."""
    forward_seconds: float
    """Forward passes of a step, exposed collectives included."""
    backward_seconds: float
    """Backward passes of a step, exposed collectives included."""
    weights_seconds: float
    """Gradients of weights that the schedule computes apart from the backward passes; 0 where it does not."""
    send_seconds: float
    """Sends that keep it busy."""
    sync_seconds: float
    """Exposed reduction of gradients."""
    copies_seconds: float
    """Copies between device and host after the last backward."""
    optimizer_seconds: float
    """Update of the weights."""
    waiting_seconds: float
    """Waiting for other stages and replicas."""


@json_fields(inline=("plan",), brief=("pareto", "compared", "measured"))
@dataclass(frozen=True, slots=True, kw_only=True)
class ReportDocument:
    """The answer of ``report``, which the page holds too: the plan, and what stands around it."""

    plan: PlanDocument
    """The plan."""
    alternatives: tuple[Considered, ...]
    """Families of plans that were considered."""
    history: tuple[Moment, ...]
    """How the best step and the bound moved in the search; empty where the plan file does not keep it."""
    neighbours: tuple[Neighbour, ...]
    """Plans one decision away."""
    lanes: tuple[LaneTimes, ...]
    """Where the time of each stage goes."""
    training: TrainingRun
    """A run over the tokens that were asked about."""
    deadline_seconds: float | None
    """Longest time of that run; null without a limit."""
    budget: float | None
    """Highest cost, in the currency of the cluster file; null without a limit."""
    pareto: FrontDocument | None
    """Time against cost, or energy, of growing parts of the cluster, with the keys of search --pareto; null unless
    asked for."""
    compared: tuple[ComparedPlan, ...]
    """The plan and those of --compare, with the keys of compare."""
    measured: ObservedDocument | None
    """The run of --log, with the keys of compare --log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """All that the page shows."""

    name: str
    """Of the plan file."""
    saved: PlanFile
    scored: Scored
    step: Step
    around: tuple[Neighbour, ...]
    training: TrainingRun
    contenders: tuple[Contender, ...] = ()
    """The plan and those that it is compared with; empty for no comparison."""
    run: ObservedRun | None = None
    goal: Goal
    """Deadline and budget of the training run."""
    front: Front | None = None
    """Time against cost, where asked for."""

    def document(self) -> ReportDocument:
        """What the page says, as numbers."""
        saved, run = self.saved, self.run
        return ReportDocument(
            plan=plan_document("report", self.scored, saved.cluster, saved.model, saved.summary),
            alternatives=saved.considered,
            history=saved.summary.history if saved.summary else (),
            neighbours=self.around,
            lanes=tuple(_times(self.step, lane) for lane in self.step.lanes),
            training=self.training,
            deadline_seconds=self.goal.deadline_seconds,
            budget=self.goal.budget,
            pareto=front_document(self.front, saved.cluster, saved.model) if self.front else None,
            compared=compare_document(self.contenders).plans,
            measured=observed_document(run) if run else None,
        )


def report(
    name: str,
    saved: PlanFile,
    scored: Scored,
    estimator: Estimator,
    goal: Goal,
    contenders: Sequence[Contender] = (),
    run: ObservedRun | None = None,
    front: Front | None = None,
) -> Report:
    """All that the page shows of a plan; of the goal the training run, its deadline and its budget."""
    training = goal.run_of(scored.estimate)
    assert training is not None, "a page is about a run of so many tokens"
    return Report(
        name=name,
        saved=saved,
        scored=scored,
        step=step_of(saved.plan, estimator),
        around=all_neighbours(saved.plan, estimator),
        training=training,
        contenders=tuple(contenders),
        run=run,
        goal=goal,
        front=front,
    )


def _times(step: Step, lane: Lane) -> LaneTimes:
    return LaneTimes(
        stage=lane.stage,
        group=lane.group,
        forward_seconds=lane.seconds("forward"),
        backward_seconds=lane.seconds("backward"),
        weights_seconds=lane.seconds("weights"),
        send_seconds=lane.seconds("send"),
        sync_seconds=lane.seconds("sync"),
        copies_seconds=lane.seconds("copies"),
        optimizer_seconds=lane.seconds("optimizer"),
        waiting_seconds=step.waiting(lane),
    )


def page(subject: Report) -> str:
    """The file's content."""
    script = _asset("page.js")
    return (
        _templates()
        .get_template("page.html.j2")
        .render(
            view=_View(subject),
            style=Markup(_asset("page.css")),
            script=Markup(script),
            # The browser runs this script alone, whatever else found its way into the page.
            script_digest=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
            document=in_script(visible_json(document_text(subject.document()))),
            version=__version__,
        )
    )


def in_script(json_text: str) -> Markup:
    """JSON that can stand in a script element: no end tag, no comment, no line separator of JavaScript."""
    escapes = {ord(character): f"\\u{ord(character):04x}" for character in "<>&\u2028\u2029"}
    return Markup(json_text.translate(escapes))


def _asset(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


def _shown(value: Any) -> Any:
    """What the template prints: hidden characters of a file as escapes."""
    return visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value


@cache
def _templates() -> Environment:
    environment = Environment(
        loader=FunctionLoader(_asset),
        undefined=StrictUndefined,
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_shown,
    )
    environment.filters |= {
        "amount": format_count,
        "at_most": at_most,
        "duration": duration,
        "gib": gib,
        "money": money,
        "short": short,
        "percent": percent,
        "chance": chance,
        "rate": rate,
        "significant": significant,
        "pc": lambda part: f"{100 * part:.3f}".rstrip("0").rstrip(".") + "%",
        "px": lambda size: f"{size:.1f}".rstrip("0").rstrip("."),
    }
    return environment


@dataclass(frozen=True, slots=True, kw_only=True)
class Colours:
    """One entry of the legend of stages."""

    fill: str
    ink: str
    name: str
    """``stage 0``, or the type and pool of a group."""
    text: str
    """Its layers and devices."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One bar of parts behind each other, in shares of its room."""

    name: str
    text: str
    parts: tuple[tuple[str, str, float], ...]
    """(class, label with its size, share)."""
    mark: float | None = None
    """Share at which a limit stands."""
    low: float = 0.0
    """Where the line of its error begins."""
    high: float = 0.0
    """Where it ends."""


class _View:
    """What the template draws, in the order of the page."""

    def __init__(self, subject: Report) -> None:
        self.subject = subject
        self.saved, self.plan = subject.saved, subject.saved.plan
        self.cluster, self.model = self.saved.cluster, self.saved.model
        self.estimate: Estimate = subject.scored.estimate
        self.summary = self.saved.summary
        self.headline = headline(self.plan)
        self.total = self.cluster.devices
        self.warnings = caveats(self.estimate)
        missed = training_lines(subject.training, subject.goal, self.estimate.spread)[1:]
        self.warnings += [f"the training {line}" for line in missed]
        self.unit = time_unit([self.estimate.step_seconds])
        self.kinds = KINDS
        self.training = subject.training
        self.tokens = format_count(subject.training.tokens)
        self.long = long_text(subject.training.seconds)
        self.digests = {
            "cluster": cluster_digest(self.cluster),
            "model": model_digest(self.model),
        }

    def limits(self) -> list[tuple[str, float, float, str, str]]:
        """(key, value, limit, text of both) of the deadline and the budget, where they are given."""
        goal, run = self.subject.goal, self.training
        limits = []
        if goal.deadline_seconds is not None and math.isfinite(run.seconds):
            texts = self.long, long_text(goal.deadline_seconds)
            limits.append(("deadline_seconds", run.seconds, goal.deadline_seconds, *texts))
        if goal.budget is not None and run.price is not None and math.isfinite(run.price):
            limits.append(("budget", run.price, goal.budget, money(run.price), money(goal.budget)))
        return limits

    @property
    def proof(self) -> str | None:
        """What is proven of the plan; None for one that no search made."""
        return proof_text(self.summary) if self.summary else None

    def bound(self) -> dict[str, float] | None:
        """Step, its bar and the bound as shares of one line; None where nothing is known of the bound."""
        step, spread = self.estimate.step_seconds, self.estimate.spread
        summary = self.summary
        if summary is None or summary.objective is not None or not 0 < summary.bound_seconds <= step * 1.001:
            return None
        end = step * (1 + spread) * 1.02
        return {
            "bound": summary.bound_seconds / end,
            "step": step / end,
            "low": max(0.0, step * (1 - spread)) / end,
            "high": step * (1 + spread) / end,
        }

    def legend(self) -> list[Colours]:
        """Colours of stages, or of groups where there is one stage."""
        lanes = lanes_of(self.plan)
        return [self._colours(stage, group, index, len(lanes)) for index, (stage, group) in enumerate(lanes)]

    def _colours(self, stage: int, group: int | None, index: int, many: int) -> Colours:
        shade = colour(index, many)
        estimate = self.estimate.stages[stage]
        groups = estimate.groups if group is None else (estimate.groups[group],)
        devices = " + ".join(map(group_text, groups))
        layers = f"{self.model.unit} {span(estimate.first_layer, estimate.end_layer)}"
        return Colours(
            fill=shade.fill,
            ink=shade.ink,
            name=f"stage {stage}" if group is None else f"group {index}",
            text=f"{layers}, {devices}" if group is None else devices,
        )

    def map(self) -> Any:
        """The cluster."""
        return cluster_map(self.plan, self.cluster, self.model, self.summary.idle if self.summary else ())

    def ranks(self) -> list[tuple[str, ...]]:
        """Which ranks run where."""
        return rank_rows(self.plan, self.cluster)

    def drawing(self) -> Any:
        """The step, with marks on its axis."""
        return drawing_of(self.subject.step)

    def ticks(self) -> Any:
        """Marks along the step."""
        return time_ticks(self.subject.step.seconds, self.unit)

    def times(self) -> list[LaneTimes]:
        """A row for each lane."""
        return [_times(self.subject.step, lane) for lane in self.subject.step.lanes]

    def kinds_used(self) -> list[tuple[str, str]]:
        """(kind, words) of what the step holds."""
        used = {span.kind for lane in self.subject.step.lanes for span in lane.spans}
        return [(kind, text) for kind, text in KINDS.items() if kind in used]

    def waterfall(self) -> list[tuple[str, str, float, float]]:
        """(cause, what, where it begins, how long it is) as shares of the step."""
        rows, begin, step = [], 0.0, self.estimate.step_seconds
        for name, label in CAUSES.items():
            share = float(getattr(self.estimate.breakdown, name)) / step
            if share >= SMALLEST:
                rows.append((name, label.text, begin, share))
            begin += share
        return rows

    @staticmethod
    def meaning(name: str) -> str:
        """What a cause of step time is."""
        return sentence(meanings(Breakdown)[name])

    def memory(self) -> Iterator[tuple[StageRun, Any, Bar]]:
        """(stages, group, bar) of the fullest device of every group of every run of like stages."""
        most = max(
            max(group.memory.capacity_bytes, group.memory.used_bytes + group.memory.reserve_bytes)
            for group in groups_of(self.estimate)
        )
        for run in stage_runs(self.estimate.stages):
            for groups in run.groups:
                group = max(groups, key=lambda each: each.memory.used_bytes)
                yield run, group, self._memory_bar(group.memory, most)

    @staticmethod
    def _memory_bar(memory: Memory, most: float) -> Bar:
        sizes = [(name, label.text, float(getattr(memory, name))) for name, label in COMPONENTS.items()]
        sizes += [("runtime_bytes", "runtime", memory.runtime_bytes)]
        sizes += [("reserve_bytes", "kept free", memory.reserve_bytes)]
        largest, size = largest_component(memory)
        return Bar(
            name=largest,
            text=f"{gib(size)} GiB",
            parts=tuple(
                (_memory_class(name), f"{text} {gib(size)} GiB", size / most)
                for name, text, size in sizes
                if size
            ),
            mark=memory.capacity_bytes / most,
            low=memory.used_bytes * (1 - memory.spread) / most,
            high=min(1.0, memory.used_bytes * (1 + memory.spread) / most),
        )

    def components(self) -> dict[str, str]:
        """Words by field of the parts of memory bars."""
        names = {name: label.text for name, label in COMPONENTS.items()}
        return names | {"runtime_bytes": "runtime", "reserve_bytes": "kept free"}

    def component_key(self) -> list[tuple[str, str]]:
        """(class, words) of the same."""
        return [(_memory_class(name), text) for name, text in self.components().items()]

    def families(self) -> list[tuple[Considered, float]]:
        """Families with a bar each, as a share of the slowest that is drawn."""
        entries = self.saved.considered
        most = max((entry.step_seconds or 0.0 for entry in entries), default=0.0)
        return [(entry, (entry.step_seconds or 0.0) / most if most else 0.0) for entry in entries]

    def family_rate(self, number: float | None) -> str:
        """Tokens per second in the unit of all families."""
        unit = count_unit(entry.tokens_per_second for entry in self.saved.considered)
        return MISSING if number is None else f"{unit.show(number)} {unit.name}".rstrip()

    def course(self) -> Course:
        """The best step and the bound over the time of the search."""
        moments = self.summary.history if self.summary else ()
        return course([(each.seconds, each.step_seconds, each.bound_seconds) for each in moments], self.unit)

    def tornado(self) -> Tornado:
        """How the step moves with each decision: its best plan, the slowest, and a faster one that does not fit."""
        around, step = self.subject.around, self.estimate.step_seconds
        priced = [entry.scored.estimate for entry in around]
        decisions: dict[str, list[int]] = {}
        for number in sorted(range(len(around)), key=lambda each: priced[each].step_seconds):
            decision = around[number].decision.split()[0]
            decisions.setdefault(DECISIONS.get(decision, decision), []).append(number)
        rows = []
        for decision, own in decisions.items():
            best = next((number for number in own if priced[number].fits), own[0])
            words = {own[-1]: "worst", own[0]: "fastest", best: "best"}
            ends = [
                (
                    number,
                    words[number],
                    around[number].change,
                    priced[number].step_seconds / step - 1,
                    priced[number].fits,
                )
                for number in own
                if number in words
            ]
            rows.append((decision, ends))
        return tornado(rows, self.estimate.spread)

    def scatter(self) -> Any:
        """The plan and all that are one decision away; those that take more than four times as long are left out."""
        step = self.estimate.step_seconds
        plans = [("chosen", "this plan", self.estimate)]
        plans += [
            ("fits" if entry.scored.estimate.fits else "lacks", entry.change, entry.scored.estimate)
            for entry in self.subject.around
            if entry.scored.estimate.step_seconds <= 4 * step
        ]
        told = [
            (
                each.step_seconds,
                each.peak_memory_bytes,
                kind,
                f"{change}: {duration(each.step_seconds)}, {gib(each.peak_memory_bytes)} GiB"
                + ("" if each.fits else f", does not fit: {misfits(each)[0]}"),
            )
            for kind, change, each in plans
        ]
        return scatter(told, (self.unit.seconds, self.unit.name), (2.0**30, "GiB"))

    def front(self) -> Any:
        """Plans of growing parts of the cluster by step and what they cost."""
        front = self.subject.front
        assert front is not None, "the template asks where there is one"
        told = [
            (
                point.seconds,
                point.value,
                "chosen" if index == front.worth else "fits" if point.front else "beaten",
                f"{self.devices(point.scored.plan)}: {duration(point.seconds)}, "
                f"{significant(point.value)} {FRONT_UNITS[front.objective]}",
            )
            for index, point in enumerate(front.points)
        ]
        return scatter(told, (self.unit.seconds, self.unit.name), (1.0, ""))

    def devices(self, plan: Plan) -> str:
        """Those of a plan by pool."""
        return devices_text(devices_of(plan), self.cluster)

    def worth(self) -> str:
        """How many devices are worth using."""
        front = self.subject.front
        return "" if front is None or front.worth is None else worth_text(front, self.cluster)

    def searched(self) -> str:
        """What became of the parts of the cluster that are not shown."""
        assert self.subject.front is not None, "the template asks where there is one"
        return searched_text(self.subject.front)

    def far(self) -> int:
        """Plans that the scatter leaves out."""
        step = self.estimate.step_seconds
        return sum(entry.scored.estimate.step_seconds > 4 * step for entry in self.subject.around)

    def compared(self) -> list[tuple[Contender, Bar | None]]:
        """Contenders with a bar of what their steps are made of, on one scale."""
        known = [entry.scored.estimate for entry in self.subject.contenders if entry.scored]
        most = max((estimate.step_seconds for estimate in known), default=1.0)
        return [
            (entry, self._cause_bar(entry.scored.estimate, most) if entry.scored else None)
            for entry in self.subject.contenders
        ]

    @staticmethod
    def _cause_bar(estimate: Estimate, most: float) -> Bar:
        parts = []
        for name, label in CAUSES.items():
            seconds = float(getattr(estimate.breakdown, name))
            if seconds > 0:
                parts.append((name, f"{label.text} {duration(seconds)}", seconds / most))
        return Bar(name="", text=duration(estimate.step_seconds), parts=tuple(parts))

    def differences(self, entry: Contender) -> list[str]:
        """What a contender decides differently from the plan."""
        return differences(entry.scored.plan, self.plan) if entry.scored else []

    def causes(self) -> list[tuple[str, str]]:
        """(class, words) of the causes of step time."""
        return [(name, label.text) for name, label in CAUSES.items()]

    def measured(self) -> list[tuple[str, str, str, str, float, float, str]]:
        """(what, predicted, observed, error, share, share, unit) of every pair that a log gives."""
        run = self.subject.run
        if run is None:
            return []
        comparison = run.comparison
        pairs: list[tuple[str, Deviation, Any]] = [("step", comparison.step, duration)]
        pairs += [
            (
                f"{part.part}, {f'rank {part.rank}' if part.rank is not None else 'slowest rank'} "
                f"(stage {part.stage}, {part.gpu})",
                part.seconds,
                duration,
            )
            for part in comparison.parts
        ]
        pairs += [
            (
                f"peak of tensors, {f'rank {entry.rank}' if entry.rank is not None else 'fullest rank'} "
                f"(stage {entry.stage}, {entry.gpu})",
                entry.peak,
                lambda size: f"{gib(size)} GiB",
            )
            for entry in comparison.memory[:MOST_RANKS]
        ]
        rows = []
        for what, pair, text in pairs:
            most = max(pair.predicted, pair.observed) or 1.0
            error = f"{100 * pair.error:+.1f} %" if math.isfinite(pair.error) else MISSING
            within = "within" if pair.within(comparison.spread) else "beyond"
            rows.append(
                (
                    what,
                    text(pair.predicted),
                    text(pair.observed),
                    error,
                    pair.predicted / most,
                    pair.observed / most,
                    within,
                )
            )
        return rows

    def ranks_left(self) -> int:
        """Ranks of the log whose memory the page leaves out."""
        run = self.subject.run
        return max(0, len(run.comparison.memory) - MOST_RANKS) if run else 0

    def used_text(self) -> str:
        """``4096 of 16384 devices``."""
        devices = self.estimate.devices
        return (
            f"all {count(devices, 'device')}"
            if devices == self.total
            else f"{devices} of {self.total} devices"
        )

    def inputs(self) -> dict[str, Json]:
        """The training settings."""
        return dict(self.model.training.model_dump(mode="json", exclude_none=True))


def _memory_class(name: str) -> str:
    return f"m-{name.removesuffix('_bytes')}"


MOST_RANKS = 64
"""Ranks whose memory is listed."""
