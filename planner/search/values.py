"""Requests and results of searches: limits, goals, scored plans and explanations."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal, Protocol

from planner.capabilities import OffloadPart, Recompute
from planner.cost.failures import NEVER, Interruptions
from planner.cost.training import TrainingRun, training_run
from planner.cost.values import Estimate
from planner.field_metadata import json_fields
from planner.frozen import record
from planner.plan.file import Hedge as Hedge
from planner.plan.file import Objective as Objective
from planner.plan.file import Status as Status
from planner.plan.values import Plan, Sync

LimitName = Literal["max_cost_per_million_tokens", "min_tokens_per_second", "deadline_seconds", "budget"]
"""Limits of a goal on the plan, by the name of their field."""
PlanLimit = Literal["target", "zero", "tp", "pp", "cp", "ep", "etp", "micro_batch", "recompute", "offload"]
"""Limits on the plan itself, by the name of their field."""


@record(frozen=True, slots=True, kw_only=True)
class Limits:
    """What the user allows; None allows whatever the target can."""

    target: str | None = None
    zero: tuple[int, ...] | None = None
    tp: tuple[int, ...] | None = None
    pp: tuple[int, ...] | None = None
    cp: tuple[int, ...] | None = None
    ep: tuple[int, ...] | None = None
    etp: tuple[int, ...] | None = None
    micro_batch: tuple[int, ...] | None = None
    recompute: tuple[Recompute, ...] | None = None
    offload: tuple[OffloadPart, ...] | None = None
    """What may be kept in host memory; None: nothing, unless nothing fits without."""
    syncs: tuple[Sync, ...] = ()
    """What islands of replicas may exchange in place of whole gradients in every step; the islands are left open."""
    backup: int = 0
    """Slowest replicas of a step whose gradients may be dropped, at most."""
    unequal_shards: bool = False
    """Whether replicas may hold more or less of what ZeRO shards, by device type."""
    quantised: bool = False
    """Whether ZeRO 3 may round what it gathers and scatters."""
    grids: bool = False
    """Whether the devices of a replica may divide matrices by rows and columns."""
    gap: float = 0.01
    """Stop when no plan of the space can be faster by more than this fraction."""
    time_limit_seconds: float | None = None
    processes: int = 1
    """Processes that may search at the same time; the answer does not depend on it."""


@record(frozen=True, slots=True, kw_only=True)
class Goal:
    """What is wanted of the plan; the default is the fastest."""

    objective: Objective = "time"
    max_cost_per_million_tokens: float | None = None
    """In the currency of the cluster file."""
    min_tokens_per_second: float | None = None
    use_at_most: tuple[tuple[str, int], ...] = ()
    """(pool, devices); an empty name stands for all pools together."""
    robust: bool = False
    """The plan with the least worst-case regret over what speeds may be, instead of the fastest."""
    tokens: float | None = None
    """Tokens of the whole training run."""
    deadline_seconds: float | None = None
    """Longest time for them."""
    budget: float | None = None
    """Most that they may cost, in the currency of the cluster file."""
    interruptions: Interruptions = NEVER
    """What stops the run on its way."""
    whole_run: bool = False
    """Whether the objective is that of the whole run, with its interruptions: fewer devices stop less often."""

    @property
    def priced(self) -> bool:
        """True when prices are needed."""
        return (
            self.objective == "cost"
            or self.max_cost_per_million_tokens is not None
            or self.budget is not None
        )

    @property
    def fastest(self) -> bool:
        """True when the fastest of all plans is wanted, whatever it costs and how long it trains."""
        return replace(self, robust=False, tokens=None, interruptions=NEVER, whole_run=False) == Goal()

    @property
    def fails(self) -> bool:
        """True when a run is interrupted now and then: the less often the fewer devices it has."""
        return self.interruptions.per_gpu_month > 0

    def run_of(self, estimate: Estimate) -> TrainingRun | None:
        """The training run with a plan; None where no tokens were asked about."""
        return None if self.tokens is None else training_run(estimate, self.tokens, self.interruptions)


@json_fields(inline=("estimate",))
@record(frozen=True, slots=True, kw_only=True)
class Scored:
    """A plan with its estimate."""

    plan: Plan
    """What every device does."""
    estimate: Estimate
    """What the cost model says of it."""


@record(frozen=True, slots=True, kw_only=True)
class Alternative:
    """The best plan of one family, or why the family has none."""

    family: str
    """For example ``pipeline``, ``ZeRO-3 data parallel``, ``only a100``, ``even split, equal batches``."""
    scored: Scored | None
    chosen: bool
    reason: str
    """``chosen``, or why it lost: by component, or the limit it breaks."""


@json_fields("scored.estimate.step_seconds", "scored.estimate.tokens_per_second", without=("scored",))
@record(frozen=True, slots=True, kw_only=True)
class Advice:
    """A faster plan that the target cannot run, and the feature it needs."""

    target: str
    """Runtime that could run a faster plan."""
    change: str
    """What differs, e.g. ``tp 4 on the a100 stage only``."""
    faster: float
    """Relative saving of step time, e.g. 0.041."""
    scored: Scored


@json_fields("scored.estimate.step_seconds", without=("scored",))
@record(frozen=True, slots=True, kw_only=True)
class IdleCost:
    """Idle devices of one type, and what a plan that uses them would take."""

    pool: str
    """Pool of devices that the plan leaves idle."""
    gpu: str
    """Their type."""
    idle: int
    """How many the chosen plan leaves idle."""
    taken: int
    """How many of them the best plan found uses."""
    slower: float | None
    """Its step time over that of the chosen plan, minus 1; negative when it is faster, None without a plan."""
    reason: str
    """The cause of most of its loss, or why there is no plan."""
    scored: Scored | None


@json_fields("scored.estimate.step_seconds", "scored.estimate.tokens_per_second", without=("scored",))
@record(frozen=True, slots=True, kw_only=True)
class LimitCost:
    """A limit of the user without which a faster plan was found; there may be faster ones yet."""

    limit: PlanLimit
    """A limit that costs more than 5 %: target, zero, tp, pp, cp, ep, etp, micro_batch, recompute or offload."""
    given: tuple[int | str, ...]
    """The values it allows; none for offload that nobody has asked for."""
    instead: tuple[int | str, ...]
    """The values of the faster plan."""
    costs: float
    """Step with the limit over the step without it, minus 1."""
    scored: Scored


@json_fields("scored.estimate.step_seconds", "scored.estimate.tokens_per_second", without=("scored",))
@record(frozen=True, slots=True, kw_only=True)
class Simpler:
    """A plan that is slower by less than the error bar, and needs less."""

    family: str
    """Its family."""
    slower: float
    """Its step time over that of the answer, minus 1."""
    fewer_devices: int
    """How many fewer devices it uses."""
    fewer_stages: int
    """How many fewer pipeline stages it has."""
    less_per_hour: float | None
    """How much less it costs per hour; null if a device has no price."""
    keeps_rdma: bool
    """Whether it keeps the RDMA of fabrics that the answer switches off."""
    scored: Scored


@json_fields("scored.estimate.step_seconds", "scored.estimate.tokens_per_second", without=("scored",))
@record(frozen=True, slots=True, kw_only=True)
class OtherFormat:
    """What another number format gives where devices idle that lack the one of the training."""

    precision: str
    """The other number format."""
    lacking: str
    """That of the training, which these devices lack."""
    idle: int
    """Devices that idle because they lack the training's number format."""
    faster: float
    """Tokens per second of a quickly found plan over those of the answer, minus 1; faster ones may exist."""
    scored: Scored


@json_fields(without=("scored",))
@record(frozen=True, slots=True, kw_only=True)
class Ratio:
    """A choice between device types that rests on how fast they are next to each other, which is not well known."""

    gpus: tuple[str, ...]
    """Device types of one family, whose speed is less certain."""
    against: tuple[str, ...]
    """Device types of the family whose speed is most certain."""
    bar: float
    """Relative standard error of the ratio of their speeds."""
    measure: tuple[str, ...]
    """Device types to measure, one device of each, to settle it."""
    slower_than: float | None
    """Below this fraction of the assumed speed another plan is best; None if none is within the error bar."""
    faster_than: float | None
    """Above this multiple of the assumed speed another plan is best; None if none is within the error bar."""
    regret: float
    """Its step over that of the best plan known at the worse end of the error bar, minus 1."""
    scored: Scored
    """The best known plan at that end, at the speeds of the cost model."""


@record(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """Why nothing fits and what would."""

    causes: tuple[str, ...]
    """Facts that together rule out every plan."""
    nearest_miss: str
    """The plan that comes closest: which device lacks how many GiB."""
    hints: tuple[str, ...]
    """The smallest single changes that make a plan fit, each with its number."""


@json_fields(
    "scored.estimate.devices",
    "scored.estimate.step_seconds",
    "scored.estimate.tokens_per_second",
    "scored.estimate.cost_per_million_tokens",
    without=("scored",),
    names={"kept": "within_other_limits"},
)
@record(frozen=True, slots=True, kw_only=True)
class Nearest:
    """The best plan once one limit of the goal is lifted, so how far that limit is out of reach."""

    limit: LimitName
    """A limit that no plan meets."""
    asked: float
    """Its value."""
    kept: bool
    """True when it meets the other limits of the goal."""
    proven: bool
    """True when no plan comes nearer by more than the requested gap; false if time ran out before this was proven."""
    scored: Scored


@json_fields(
    "objective",
    inline=("best",),
    without=("alternatives", "goal", "warnings", "by_size", "reasons_error"),
    names={"seconds": "search_seconds"},
)
@record(frozen=True, slots=True, kw_only=True)
class SearchResult:
    """The answer of a search."""

    status: Status
    """optimal (within the requested gap), feasible (a plan, the gap not closed), infeasible (proven), or unknown
    (stopped before any plan was found)."""
    best: Scored | None
    """The best plan."""
    bound_seconds: float
    """No plan of the space is faster; infinite when the space is empty."""
    gap: float
    """(step - bound) / step; 0 when proven optimal, 1 when nothing is known."""
    alternatives: tuple[Alternative, ...]
    """Families of plans."""
    advice: tuple[Advice, ...]
    """Faster plans that another runtime could run."""
    diagnosis: Diagnosis | None
    """Why nothing fits; None when a plan does."""
    candidates: int
    """Outer choices (target, ZeRO, tp, dp, depth, micro-batch, recomputation) considered."""
    solved: int
    """Outer choices that needed the solver; bounds pruned the rest."""
    seconds: float
    """How long the search took."""
    interrupted: bool
    """Whether Ctrl-C stopped the search."""
    warnings: tuple[str, ...] = ()
    goal: Goal = Goal()
    subclusters: int | None = None
    """Sub-clusters that the bound is over; None when the cluster was searched as one."""
    objective_bound: float | None = None
    """Lower bound on the objective over the plans of all sub-clusters: seconds per step, price per million tokens, or
    joules per token; for a time to a loss with failures, seconds of the run per step."""
    idle_costs: tuple[IdleCost, ...] = ()
    """What using the idle devices would take; empty when all work, and under a goal."""
    limit_costs: tuple[LimitCost, ...] = ()
    """Limits that cost more than 5 %."""
    ratios: tuple[Ratio, ...] = ()
    """Choices between device types that rest on speeds which are not well known, the costliest first."""
    simpler: tuple[Simpler, ...] = ()
    """Plans that are slower by less than the error bar, and simpler."""
    tie: Simpler | None = None
    """Where the answer won a tie by being simpler: how it stands next to the fastest plan, of which ``family`` and the
    step are; null for the fastest plan."""
    other_format: OtherFormat | None = None
    """What another number format gives where devices without the training's idle: fp16 for bf16, bf16 or fp16 for
    fp8; null where none do, or no plan was found quickly."""
    hedge: Hedge | None = None
    """What a robust plan gives up and gains; null where none was asked for, or nothing hangs on speeds."""
    outside: tuple[str, ...] = ()
    """Plans outside the space, which the bound does not cover."""
    nearest: tuple[Nearest, ...] = ()
    """What comes nearest where plans fit but none meets the goal."""
    by_size: tuple[Scored, ...] = ()
    """The fastest plans that were met on as many devices, with as many stages."""
    reasons_error: Exception | None = None
    """The bug that kept reasons from being worked out; the plan and its bound hold all the same."""

    @property
    def objective(self) -> Objective:
        """What is minimised: time, cost or energy."""
        return self.goal.objective


PROVEN = 4e-6
"""A gap that floating-point arithmetic in the solvers may leave of one that is none."""


def proven(gap: float, asked: float) -> Status:
    """What a plan with this gap amounts to when another was asked."""
    return "optimal" if gap <= max(asked, PROVEN) + 1e-9 else "feasible"


class Reporter(Protocol):
    """Where a long search talks; the CLI shows it on stderr."""

    def phase(self, name: str) -> None:
        """Called when something else begins, e.g. ``reasons``."""

    def progress(self, *, done: int, total: int, best_seconds: float | None, bound_seconds: float) -> None:
        """Called after each outer choice."""


class Silent:
    """A reporter that says nothing."""

    def phase(self, name: str) -> None:
        """Ignore."""

    def progress(self, *, done: int, total: int, best_seconds: float | None, bound_seconds: float) -> None:
        """Ignore."""
