"""The batch that reaches a loss first, against a full search of every batch on generated small clusters."""

from __future__ import annotations

from itertools import pairwise, product
from math import inf
from unittest.mock import patch

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from planner.calibration.values import ASSUMED, Calibration
from planner.cluster.spec import ClusterSpec
from planner.cost.convergence import Convergence, CriticalBatch
from planner.cost.estimate import Estimator
from planner.cost.failures import Interruptions
from planner.cost.training import devices_of, training_run
from planner.errors import PlanError
from planner.model.spec import ModelSpec
from planner.plan.checks import faults
from planner.search.deadline import NO_LIMIT, Deadline
from planner.search.explorer import Explorer
from planner.search.objectives.candidates import sub_cluster_candidates
from planner.search.objectives.choose import choose
from planner.search.objectives.loss import LossSearch, batches_around, sizes_to_loss, to_loss
from planner.search.ranking import ranked
from planner.search.values import Goal, Limits, Scored, Silent
from tests.quick import first
from tests.search.exhaustive import plans
from tests.search.test_objectives import rated
from tests.worlds import Problem, cluster, gpt, pool, small_problem

SEEDS = st.integers(0, 10**9)
CRITICAL = st.floats(1, 6).map(lambda power: 10**power)
FEW = settings(max_examples=4, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
BATCHES = (1, 2, 3, 4)
LIMITS = Limits(gap=0.0, target="deepspeed")
FEW_PLANS = Limits(gap=0.0, target="deepspeed", zero=(1,), recompute=("none",))
"""Where the choice among batches is tested, not that among plans."""


def law(critical: float, length: int) -> Convergence:
    """A thousand steps with four sequences."""
    return Convergence(
        critical=CriticalBatch(tokens=critical, spread=0.5, source="here"),
        steps_known=1000.0,
        batch_tokens=4.0 * length,
    )


def least(problem: Problem, steps: Convergence, limits: Limits) -> dict[int, float]:
    """Seconds to the loss of the best plan of each batch, by exhaustion."""
    spec, model, calibration = problem
    found = {}
    for batch in BATCHES:
        estimator = Estimator(ranked(spec), model.trained_with(global_batch=batch), calibration)
        best = inf
        for plan in plans(estimator, limits):
            try:
                estimate = estimator.estimate(plan)
            except PlanError:
                continue
            if estimate.fits and not faults(plan, spec, estimator.model):
                best = min(best, estimate.step_seconds)
        found[batch] = steps.steps(batch * model.training.sequence_length) * best
    return found


@pytest.mark.slow
@given(SEEDS, CRITICAL)
@settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_the_best_of_all_plans_of_all_batches(seed: int, critical: float) -> None:
    """What exhaustion finds, and no bound above what it finds for a batch."""
    against_all(seed, critical)


@pytest.mark.parametrize(("seed", "critical"), first(1, [(8, 1e5), (3, 100.0)]))
def test_the_best_of_all_plans_of_all_batches_of_some(seed: int, critical: float) -> None:
    """The same of one cluster, and of another more slowly."""
    against_all(seed, critical)


def against_all(seed: int, critical: float) -> None:
    """The search for the batch next to all plans of all batches."""
    spec, model = small_problem(seed)
    steps = law(critical, model.training.sequence_length)
    known = least((spec, model, ASSUMED), steps, LIMITS)
    found = to_loss(spec, model, ASSUMED, LIMITS, Goal(), steps, BATCHES, explain=False)
    value = min(known.values())
    if value == inf:
        assert found.best is None
        return
    assert found.best is not None
    assert found.best.seconds == pytest.approx(value, rel=1e-6)
    assert found.status == "optimal"
    assert found.bound_seconds <= value * (1 + 1e-9)
    assert found.model.training.global_batch == found.best.batch
    assert found.search.best is not None
    assert found.search.best.plan.global_batch == found.best.batch
    for point in found.points:
        assert point.bound_seconds <= known[point.batch] * (1 + 1e-9)
        assert point.seconds is None or point.seconds >= known[point.batch] * (1 - 1e-9)


@pytest.mark.slow
@given(SEEDS, CRITICAL)
@settings(FEW, max_examples=1)
def test_on_part_of_the_devices(seed: int, critical: float) -> None:
    """The best batch on sub-clusters is that of a search for each batch."""
    on_part(seed, critical)


@pytest.mark.slow
@given(SEEDS, CRITICAL)
@settings(FEW, max_examples=20)
def test_many_on_part_of_the_devices(seed: int, critical: float) -> None:
    """The same of more of them."""
    on_part(seed, critical)


def on_part(seed: int, critical: float) -> None:
    """The search for the batch on two devices next to a search for each batch."""
    spec, model = small_problem(seed)
    steps = law(critical, model.training.sequence_length)
    goal = Goal(use_at_most=(("", 2),))
    found = to_loss(spec, model, ASSUMED, LIMITS, goal, steps, BATCHES, explain=False)
    each = {
        batch: choose(spec, model.trained_with(global_batch=batch), ASSUMED, LIMITS, goal, explain=False).best
        for batch in BATCHES
    }
    times = [
        steps.steps(batch * model.training.sequence_length) * scored.estimate.step_seconds
        for batch, scored in each.items()
        if scored is not None
    ]
    if not times:
        assert found.best is None
        return
    assert found.best is not None
    assert found.best.seconds == pytest.approx(min(times), rel=1e-5)
    assert found.search.best is not None
    assert sum(devices_of(found.search.best.plan).values()) <= 2


@pytest.mark.slow
def test_a_larger_critical_batch_asks_for_larger_batches() -> None:
    """Steps that a batch does not save are not worth its time, and the other way round."""
    spec, model = small_problem(3)
    length = model.training.sequence_length
    small, large = (
        to_loss(spec, model, ASSUMED, FEW_PLANS, Goal(), law(critical, length), BATCHES, explain=False)
        for critical in (0.1 * length, 1000.0 * length)
    )
    assert small.best is not None
    assert large.best is not None
    assert small.best.batch < large.best.batch
    assert large.best_if_low is not None


def test_most_batches_are_ruled_out_by_their_bound() -> None:
    """Batches far from the best are never searched, and what no plan was found for has a bound above the best."""
    spec, model = small_problem(3)
    steps = law(50.0 * model.training.sequence_length, model.training.sequence_length)
    batches = tuple(1 << power for power in range(14))
    found = to_loss(spec, model, ASSUMED, FEW_PLANS, Goal(), steps, batches, explain=False)
    assert found.best is not None
    assert found.best.seconds is not None
    without = [point for point in found.points if point.scored is None]
    assert len(without) >= 3
    assert all(point.bound_seconds >= found.best.seconds for point in without)
    assert found.best.inside
    assert not any(point.inside for point in without)


def test_sizes_are_a_front_of_time_and_money() -> None:
    """Each the best of its devices, none beaten by another in both; more devices are sooner there."""
    spec, model = small_problem(3)
    spec = rated(spec, 1)
    steps = law(3.0 * model.training.sequence_length, model.training.sequence_length)
    found = sizes_to_loss(spec, model, ASSUMED, FEW_PLANS, Goal(), steps, BATCHES)
    assert found.priced
    free = spec.model_copy(
        update={"pools": tuple(each.model_copy(update={"price_per_gpu_hour": None}) for each in spec.pools)}
    )
    assert not sizes_to_loss(free, model, ASSUMED, FEW_PLANS, Goal(), steps, BATCHES[:1]).priced
    assert found.unfinished == 0
    assert found.subclusters == len(sub_cluster_candidates(ranked(spec), model, ()))
    used = [devices_of(size.point.scored.plan) for size in found.points if size.point.scored]
    assert [size.devices for size in found.points] == used, "plans may leave devices of a sub-cluster idle"
    assert len({frozenset(each.items()) for each in used}) == len(found.points)
    times = [size.point.seconds or inf for size in found.points]
    assert times == sorted(times, reverse=True)
    front = [size for size in found.points if size.front]
    assert all(one.value < other.value for one, other in pairwise(front))
    assert found.worth is not None
    whole = to_loss(spec, model, ASSUMED, FEW_PLANS, Goal(), steps, BATCHES, explain=False)
    assert whole.best is not None
    assert times[-1] == pytest.approx(whole.best.seconds, rel=1e-5)


def test_failures_count_in_the_time_to_a_loss() -> None:
    """Devices that fail so often that fewer reach the loss sooner: these are taken, and the front has no others."""
    spec, model = cluster(pool("a", nodes=2, per_node=2)), gpt(global_batch=4)
    spec, steps = rated(spec, 0), law(3.0 * 1024, 1024)
    goal = Goal(interruptions=Interruptions(per_gpu_month=4000.0))
    batches = BATCHES[1::2]
    times = []
    for batch, most in product(batches, (1, 2, 4)):
        trained = model.trained_with(global_batch=batch)
        few = Goal(use_at_most=(("", most),))
        best = choose(spec, trained, ASSUMED, FEW_PLANS, few, explain=False).best
        assert best is not None
        tokens = steps.steps(batch * 1024) * batch * 1024
        times.append(training_run(best.estimate, tokens, goal.interruptions).seconds)
    found = to_loss(spec, model, ASSUMED, FEW_PLANS, goal, steps, batches, explain=False)
    assert found.best is not None
    assert found.best.run is not None
    assert found.best.scored is not None
    assert found.search.best is not None
    assert found.best.scored.plan.devices == found.search.best.plan.devices < 4
    assert found.best.seconds == pytest.approx(found.best.run.seconds)
    assert found.best.seconds == pytest.approx(min(times), rel=1e-5)
    assert found.bound_seconds <= min(times) * (1 + 1e-9)
    assert found.status == found.search.status == "optimal"
    sizes = sizes_to_loss(spec, model, ASSUMED, FEW_PLANS, goal, steps, batches)
    runs = [(size.point.run.seconds, size.value) for size in sizes.points if size.front and size.point.run]
    assert runs[-1][0] == pytest.approx(min(times), rel=1e-5)
    assert all(one[0] > other[0] and one[1] < other[1] for one, other in pairwise(runs))


def test_batches_around_the_files_own() -> None:
    """Doubled and halved, while they stay whole numbers that a model file may have."""
    assert batches_around(512) == tuple(8 << power for power in range(13))
    assert batches_around(12)[:3] == (3, 6, 12)
    assert batches_around(7)[0] == 7
    assert batches_around(1_000_000)[-1] == 1_000_000


def test_what_is_kept_on_the_way_only_gets_better() -> None:
    """The search for the plan of the best batch begins anew: plans slower than what is kept already are not told."""
    spec, model = small_problem(3)
    steps = law(3.0 * model.training.sequence_length, model.training.sequence_length)
    times: list[float] = []

    def better(scored: Scored, batch: int) -> None:
        times.append(steps.steps(batch * model.training.sequence_length) * scored.estimate.step_seconds)

    found = to_loss(spec, model, ASSUMED, FEW_PLANS, Goal(), steps, BATCHES, explain=False, better=better)
    assert found.best is not None
    assert times
    assert all(later < earlier for earlier, later in pairwise(times))


def test_bounds_end_with_the_time() -> None:
    """However many batches there are, one is looked at without any time; of the others nothing is claimed."""
    spec, model = small_problem(3)
    steps = law(1e5, model.training.sequence_length)
    built: list[ModelSpec] = []
    original = Estimator.__init__

    def counted(
        self: Estimator, cluster: ClusterSpec, trained: ModelSpec, known: Calibration, **options: bool
    ) -> None:
        built.append(trained)
        original(self, cluster, trained, known, **options)

    subs = sub_cluster_candidates(ranked(spec), model)[-1:]
    with patch.object(Estimator, "__init__", counted):
        search = LossSearch(
            subs, spec, model, ASSUMED, LIMITS, Goal(), steps, range(1, 201), Deadline.after(0.0)
        )
    # A batch is a model of its own; replicas that fill several nodes have an estimator too.
    assert built
    assert all(each is built[0] for each in built)
    assert sum(each.bound > 0 for each in search.sub_clusters) == 1
    search.run()
    assert search.seen == 1
    assert search.bound == 0.0


def test_batches_without_a_plan_are_looked_at_when_the_time_of_their_search_is_up() -> None:
    """In a time of its own, all of it where there is no limit; nothing is looked at without any."""
    spec, model = small_problem(3)
    steps = law(1e5, model.training.sequence_length)
    subs = sub_cluster_candidates(ranked(spec), model)[-1:]
    search = LossSearch(subs, spec, model, ASSUMED, LIMITS, Goal(), steps, BATCHES, Deadline.after(0.0))
    search.look(NO_LIMIT)
    assert search.best is None
    one = search.sub_clusters[0]
    search.take(one, Explorer(search.on(one), LIMITS, Silent()).quick())
    search.look(Deadline.after(0.0))
    assert [each.batch for each in search.sub_clusters if each.best] == [one.batch]
    search.look(NO_LIMIT)
    best = search.best
    assert best is not None
    assert best.best is not None
    limit = search.value * (1 + search._bar(best, best.best))
    assert all(each.best or each.bound > limit for each in search.sub_clusters)
    assert sum(each.best is not None for each in search.sub_clusters) > 1


@pytest.mark.slow
def test_devices_without_the_number_format_are_left_idle() -> None:
    """The whole cluster is searched, V100 without bf16 too."""
    spec, model = cluster(pool("a", per_node=2), pool("v", "V100", per_node=2)), gpt(precision="bf16")
    steps = law(1e6, model.training.sequence_length)
    found = to_loss(spec, model, ASSUMED, Limits(), Goal(), steps, BATCHES, explain=False)
    assert found.best is not None
    assert found.best.scored is not None
    assert {pool for pool, _ in devices_of(found.best.scored.plan)} == {"a"}
