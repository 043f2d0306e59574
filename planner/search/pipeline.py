"""Solves one outer choice: ILP, estimate of its solution, cut, and again, until nothing faster is left."""

from __future__ import annotations

from dataclasses import field, replace
from heapq import heappop, heappush

from planner.cluster.equal_pools import joined
from planner.cluster.multi_node import widened
from planner.cluster.topology import Topology, sockets_only
from planner.cost.estimate import Estimator
from planner.errors import PlanError
from planner.frozen import dataclass
from planner.plan.equal_pools import on_joined_pools, on_own_pools
from planner.plan.placement import widths
from planner.plan.values import Plan
from planner.search.deadline import NO_LIMIT, Deadline, Struck
from planner.search.milp.branching import Subset
from planner.search.milp.model import PipelineModel
from planner.search.milp.solver import TOLERANCE
from planner.search.space.choices import Choice, Islands, stands
from planner.search.space.stages import Option, StageOptions
from planner.search.values import Limits, Scored

SLACK = 0.95
"""Subset of the gap that a new plan must gain to be of interest; the rest is the solver's."""


EFFORTS = (400, 4000)
"""Nodes of the first solves of an ILP, which a better choice may make needless before it ends; then no limit."""


MOST_TOLD = 32
"""Relaxations that tell stages their devices before one ILP has all that is left, cut by all paths that they found.

Orders of the devices that take alike may be thousands: eleven stages on five sets are 10 % open after 800."""


MANY_SEQUENCES = 50
"""Sequences of islands that are not looked at one by one before the ILP of all of them was tried."""


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class _Node:
    """A part of a choice, and what is known of it."""

    bound: float
    number: int = 0
    part: Subset = field(default=Subset(), compare=False)
    relaxed: bool = field(default=False, compare=False)
    """True when only the ILP can tell more."""
    solved: int = field(default=0, compare=False)
    """How often the ILP was tried."""


def score(estimator: Estimator, stages: StageOptions, chosen: list[Option]) -> Scored | None:
    """The estimate of a choice of options; None when it cannot be placed or started, or does not fit."""
    slots = [option.composition for option in chosen]
    if not stages.obeys(slots) or not stages.stand(slots):
        return None
    return priced_on(estimator, stages.plan(chosen), stages.estimator)


def priced_on(estimator: Estimator, plan: Plan, seen: Estimator) -> Scored | None:
    """A plan of the cluster that ``seen`` has, on that of ``estimator``; None when it cannot be run or does not fit."""
    try:
        own = on_own_pools(plan, seen.cluster, estimator.cluster)
        estimate = estimator.estimate(own)
    except PlanError:
        return None
    return Scored(plan=own, estimate=estimate) if estimate.fits else None


def in_space(scored: Scored, estimator: Estimator) -> Scored | None:
    """The plan as it stands on joined pools, where it is slower there; None where it cannot.

    Written on some of several equal pools, a plan may keep stages apart that one pool puts together, outside the space.
    """
    cluster = sockets_only(estimator.cluster) if estimator.uses_sockets(scored.plan) else estimator.cluster
    cluster = widened(cluster, widths(scored.plan, cluster))
    seen = joined(cluster)
    if seen is cluster or scored.plan.stage_nodes > 1:
        return scored
    plan = on_joined_pools(scored.plan, seen, cluster)
    if not stands([stage.replicas for stage in plan.stages], Topology(seen)):
        return None
    try:
        own = on_own_pools(plan, seen, cluster)
        again = Scored(plan=own, estimate=estimator.estimate(own))
    except PlanError:
        return None
    slower = again.estimate.step_seconds > scored.estimate.step_seconds * (1 + 1e-9)
    return again if slower or not again.estimate.fits else scored


MOST_KEPT = 48
"""Programs that are kept of choices of one relaxation; thousands of these wait on the heap, and few are ever solved."""


class KeptPrograms:
    """The choices that were relaxed last; those before them lose their programs, and build them again if they must."""

    def __init__(self) -> None:
        self._choices: dict[OpenChoice, None] = {}
        """Those relaxed first come first."""

    def __reduce__(self) -> tuple[type[KeptPrograms], tuple[()]]:
        """Another process has its own."""
        return KeptPrograms, ()

    def add(self, choice: OpenChoice) -> None:
        """A choice that was relaxed once."""
        self._choices[choice] = None
        if len(self._choices) > MOST_KEPT:
            first = next(iter(self._choices))
            self.remove(first)
            first.forget()

    def remove(self, choice: OpenChoice) -> None:
        """One that keeps its program anyway, or needs none."""
        self._choices.pop(choice, None)


class OpenChoice:
    """An outer choice being solved: one round at a time, so that the search can turn to a better one."""

    def __init__(
        self,
        choice: Choice,
        estimator: Estimator,
        limits: Limits,
        *,
        cutoff_seconds: float,
        bound_seconds: float,
        once_seconds: float = 0.0,
        islands: Islands = (),
        scorer: Estimator | None = None,
        solver: str | None = None,
        kept: KeptPrograms | None = None,
    ) -> None:
        """``scorer`` knows the whole cluster where ``estimator`` sees a part: only its prices are offered.

        Plans faster than ``cutoff_seconds`` take no less than ``once_seconds`` for one micro-batch alone.
        """
        self.choice = choice
        self.estimator = estimator
        self.scorer = scorer or estimator
        self.gap = max(limits.gap, 2 * TOLERANCE)
        self.stages = StageOptions(choice, estimator, limits, islands, once_seconds)
        self.incumbent = cutoff_seconds
        self.bound = bound_seconds
        """No plan of the choice is faster than the smaller of this and the incumbent."""
        self.best: Scored | None = None
        self.closed = False
        self.solver = solver
        self._kept = kept or KeptPrograms()
        self.rounds = 0
        self._seen: set[tuple[tuple[int, int], ...]] = set()
        self._nodes = [_Node(bound=bound_seconds)]
        self._count = 0
        self._dropped = float("inf")
        self._told = 0
        """Relaxations of parts, where stages have the same degrees and no islands."""
        self._model: PipelineModel | None = None

    @property
    def comes_to_ilp(self) -> bool:
        """True when the next round is the first that solves an ILP."""
        return bool(self._nodes) and self._effort(self._nodes[0]) != 0 and not self._nodes[0].solved

    def step(self, cutoff_seconds: float, deadline: Deadline = NO_LIMIT) -> None:
        """One round: solve, score, cut; ``cutoff_seconds`` is the fastest plan known anywhere.

        Raises ``Struck`` when the deadline comes first; what the choice had known before still holds.
        """
        self.incumbent = min(self.incumbent, cutoff_seconds)
        if not self.stages.compositions:
            self._close(float("inf"))
        elif self.choice.depth == 1:
            self._one_stage()
        else:
            self._round(deadline)

    def _one_stage(self) -> None:
        """Without a pipeline each composition is a plan."""
        family, layers = self.choice.family, self.estimator.model.layers
        alone = self.stages.without_traffic(0, layers)
        for composition in range(len(self.stages.compositions)):
            # Copies to a host may take longer without others that share what is copied.
            if not family.offload.anything and family.micro_batches * alone(composition) >= self.incumbent:
                continue
            if self.stages.most_layers(0, composition) == layers:
                option = self.stages.option(0, composition, layers)
                # T >= m busy + epilogue, but for what the first micro-batch saves of its copies from a host
                least = family.micro_batches * option.busy_seconds + option.tail_seconds
                if family.offload.anything or least < self.incumbent:
                    self._offer(score(self.scorer, self.stages, [option]))
        self._close(self.incumbent)

    def _round(self, deadline: Deadline) -> None:
        """Take the node with the least bound one step further."""
        model = self._prepared(deadline)
        if model is None:
            return
        model.deadline = deadline
        node = heappop(self._nodes)
        self._kept.remove(self)
        self.rounds += 1
        model.branching.assign(node.part)
        try:
            effort = self._effort(node)
            if effort != 0:
                self._solve(model, node, effort)
            else:
                self._relax(model, node)
        except Struck:
            self._push(node)
            raise
        if self.closed:
            return
        least = min([self._dropped, *(node.bound for node in self._nodes[:1])])
        self.bound = max(self.bound, min(least, self.incumbent))
        if not self._nodes or self.bound >= self.incumbent * (1 - self.gap):
            self._close(self.bound)
        elif self.rounds == 1:
            self._kept.add(self)

    def _relax(self, model: PipelineModel, node: _Node) -> None:
        """The linear relaxation: what it leaves open is divided, else the node is left to the ILP."""
        bound = model.relaxed_bound()
        if bound == float("inf"):
            self._dropped = min(self._dropped, self._wanted())
        else:
            bound = max(bound, node.bound)
            parts = model.parts(node.part)
            for part in parts:
                self._push(replace(node, bound=bound, part=part, solved=0))
            if not parts:
                self._push(replace(node, bound=bound, relaxed=True, solved=0))
        self._told += self.choice.family.dp is not None and not self.stages.islands
        if self._told == MOST_TOLD and self._nodes:
            bound, self._nodes = self._nodes[0].bound, []
            self._push(_Node(bound=bound, relaxed=True))

    def _effort(self, node: _Node) -> int | None:
        """Nodes of its ILP to be solved now, None for all; 0 where the relaxation comes first."""
        if node.relaxed:
            return EFFORTS[node.solved] if node.solved < len(EFFORTS) else None
        # Before so many relaxations the ILP has a try of as many nodes.
        many = node.part.divided_into(len(self.stages.islands))
        return many if many >= MANY_SEQUENCES and not node.solved else 0

    def _solve(self, model: PipelineModel, node: _Node, effort: int | None) -> None:
        """The ILP of a node, up to so many nodes of its own."""
        solved = model.solve(gap=(1 - SLACK) * self.gap, nodes=effort)
        if solved.status == "infeasible":
            self._dropped = min(self._dropped, self._wanted())
            return
        known = False
        if solved.values is not None:
            known = self._take(model, model.chosen())
        bound = max(node.bound, solved.bound)
        if known and solved.status == "optimal":
            # The solver's tolerance is reached: it returns a solution that was cut off.
            self._dropped = min(self._dropped, bound)
        else:
            self._push(replace(node, bound=bound, solved=node.solved + 1))

    def _push(self, node: _Node) -> None:
        self._count += 1
        heappush(self._nodes, replace(node, number=self._count))

    def _wanted(self) -> float:
        """Only plans faster than this are of interest."""
        return self.incumbent * (1 - SLACK * self.gap)

    def _prepared(self, deadline: Deadline) -> PipelineModel | None:
        """The model with the newest cutoff; None when no option is left below it."""
        if self._model is not None and self.rounds == 1 and self._wanted() < self._model.scale:
            # Without cuts yet: fewer options are left below the cutoff of now.
            self.forget()
        if self._model is None:
            known = self.incumbent < float("inf")
            cutoff = self._wanted() if known else self._longest()
            self._model = PipelineModel(self.stages, cutoff, self.solver, deadline=deadline)
            if not self._model.feasible:
                self._close(cutoff if known else float("inf"))
                return None
        elif self.incumbent < float("inf"):
            self._model.limit(self._wanted())
        return self._model

    def _longest(self) -> float:
        """All work of all stages one after another, which no plan exceeds."""
        slowest, stages = 0.0, self.stages
        times = stages.pricer.sent_with(1, 0, 3, 1)
        each = times.forward_to_next + times.before
        for stage in range(self.choice.depth):
            for composition in range(len(stages.compositions)):
                most = stages.most_layers(stage, composition)
                if most >= self.choice.interleave:
                    option = stages.option(stage, composition, most)
                    pairs = [stages.sends(composition, other) for other in range(len(stages.compositions))]
                    both = [value for pair in pairs for value in (pair.near_seconds, pair.far_seconds)]
                    sends = max((value for value in both if value < float("inf")), default=0.0)
                    busy = option.busy_seconds + each * self.choice.interleave * sends
                    slowest = max(slowest, self.choice.family.micro_batches * busy + option.tail_seconds)
        return max(self.bound, 1e-9) + (self.choice.depth + 1) * slowest

    def forget(self) -> None:
        """Leave the program, which has no cuts yet or will not be needed again."""
        self._model = None

    def _close(self, bound: float) -> None:
        self.closed = True
        self.bound = max(self.bound, bound)
        self._kept.remove(self)
        self.forget()

    def _offer(self, scored: Scored | None) -> None:
        if scored is not None and scored.estimate.step_seconds < self.incumbent:
            self.incumbent, self.best = scored.estimate.step_seconds, scored

    def _take(self, model: PipelineModel, chosen: list[Option]) -> bool:
        """Score a solution and cut it off; True when it had been cut off before."""
        key = tuple((option.composition, option.layers) for option in chosen)
        if key in self._seen:
            return True
        self._seen.add(key)
        slots = [option.composition for option in chosen]
        if not self.stages.nodes_once(slots):
            model.cut_places(slots)
            return False
        scored = score(self.scorer, self.stages, chosen)
        self._offer(scored)
        if scored is not None:
            model.cut_critical_path()
        model.cut_solution(chosen, scored.estimate.step_seconds if scored else float("inf"), self.bound)
        return False
