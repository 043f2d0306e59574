"""The best-first search without its parts: what is expanded, what is kept, and where it goes on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from planner.cluster.spec import ClusterSpec
from planner.cluster.topology import Topology
from planner.cost.estimate import Estimator
from planner.plan.values import Folding
from planner.search.deadline import NO_LIMIT, Struck
from planner.search.explorer import Explorer, _way, slowest_linked
from planner.search.space.choices import Family
from planner.search.values import Limits, Scored, Silent
from tests.report import examples
from tests.worlds import cluster, gpt, nic, pool

PHASES = (
    "_rule_out",
    "_open",
    "_one_degree",
    "_of_runs",
    "_other_runtimes",
    "_near",
    "_first_plans",
    "_best_first",
)


def explorer(**limits: Any) -> Explorer:
    """A search of the example's cluster that has begun nothing."""
    return Explorer(Estimator(examples.cluster(), examples.model()), Limits(**limits), Silent())


def test_what_is_offered() -> None:
    """What fits, is allowed and is faster is kept, and told once."""
    told: list[Scored] = []
    found = explorer(target="megatron")
    found._better = told.append
    slow, quick = examples.scored(step_seconds=30.0), examples.scored(step_seconds=20.0)
    assert (found.incumbent, found.gap, found.status) == (float("inf"), 1.0, "unknown")
    assert (found.candidates, found.solved, found.interrupted, found.finished) == (0, 0, False, False)
    for scored in (None, slow, examples.scored(step_seconds=30.0), quick, slow):
        found.offer(scored)
    found.offer(examples.scored(step_seconds=10.0, activations_gib=60.0))
    found.offer(replace(quick, plan=replace(quick.plan, target="torch")))
    assert told == [slow, quick]
    assert found.best is quick
    assert found.met.plans == {"megatron: pipeline + tensor": quick}
    found.cutoff_seconds = 15.0
    assert found.incumbent == 15.0
    found.offer(examples.scored(step_seconds=16.0))
    assert found.best is quick


def test_the_least_bound_is_expanded_until_none_may_win() -> None:
    """By more than the gap; what is left says how far the answer may be from the best."""
    found = explorer(gap=0.01)
    found.best = examples.scored(step_seconds=100.0)
    expanded: list[object] = []
    found._raise_bounds = lambda: None  # type: ignore[method-assign]
    found._expand = lambda bound, item: expanded.append(item)  # type: ignore[method-assign]
    for bound, item in ((50.0, "b"), (98.9, "c"), (20.0, "a"), (99.1, "d"), (float("inf"), "never")):
        found._push(bound, item)  # type: ignore[arg-type]
    found._taken_bound = float("inf")
    assert found.bound == 20.0
    assert found.gap == pytest.approx(0.8)
    statuses = [found.status]
    found._rounds = 2
    found._best_first(2)
    assert (expanded, found.finished) == ([], False)
    found._best_first(3)
    assert expanded == ["a", "b", "c"]
    assert found.finished
    assert found.bound == 99.1
    assert [*statuses, found.status] == ["feasible", "optimal"]
    found.closed_bound = 99.05
    assert found.bound == 99.05
    found._heap = []
    found.closed_bound = float("inf")
    assert found.bound == 100.0


def test_what_is_cut_off_is_expanded_again() -> None:
    """Until then its bound is that of the search."""
    found = explorer()
    found._raise_bounds = lambda: None  # type: ignore[method-assign]
    seen: list[float] = []

    def expand(bound: float, item: object) -> None:
        seen.append(found.bound)
        if len(seen) == 1:
            raise Struck

    found._expand = expand  # type: ignore[method-assign]
    found._taken_bound = float("inf")
    for bound in (3.0, 7.0):
        found._push(bound, "item")  # type: ignore[arg-type]
    with pytest.raises(Struck):
        found._best_first(None)
    assert found.bound == 3.0
    found._best_first(None)
    assert seen == [3.0, 3.0, 7.0]
    assert found.bound == float("inf")
    assert found.status == "infeasible"


def test_a_search_goes_on_where_it_was_struck() -> None:
    """Each part runs to its end once, in their order."""
    found, log = explorer(), list[str]()

    def struck_once(name: str) -> Callable[..., None]:
        def part(*_: object) -> None:
            log.append(name)
            if log.count(name) == 1:
                raise Struck

        return part

    for name in PHASES:
        setattr(found, name, struck_once(name))
    for _ in range(len(PHASES) + 1):
        found.go_on(NO_LIMIT, 5.0)
        assert not found.interrupted
    assert log == [name for name in PHASES for _ in range(2)]
    assert found.incumbent == 5.0
    found.run()
    assert len(log) == 2 * len(PHASES)


def test_what_bounds_rule_out_is_never_planned() -> None:
    """A cutoff below all bounds ends the search before any plan, whenever it is struck; others do not."""
    limits, whole = Limits(target="megatron"), explorer(target="megatron")
    whole.run()
    assert whole.best is not None
    best = whole.best.estimate.step_seconds
    for factor, ruled_out in ((0.5, True), (1.2, False)):
        found = Explorer(whole.estimator, limits, Silent(), cutoff_seconds=factor * best)
        expand, calls = found._expand, list[float]()

        def struck(bound: float, item: Any, expand: Any = expand, calls: list[float] = calls) -> None:
            calls.append(bound)
            if len(calls) % 2:
                raise Struck
            expand(bound, item)

        found._expand = struck  # type: ignore[method-assign]
        while not found.finished:
            assert found.bound <= best
            found.go_on(NO_LIMIT, factor * best)
        assert bool(found.met.plans) is not ruled_out
        assert found.bound <= min(best, factor * best)
        assert found.bound >= 0.99 * min(best, factor * best)
        assert found.solved == 0 or not ruled_out
        phase = found._phase
        found.go_on(NO_LIMIT, factor * best)
        assert found._phase == phase


def test_a_long_look_at_what_bounds_rule_out_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then plans are looked for as without a cutoff."""
    limits, whole = Limits(target="megatron"), explorer(target="megatron")
    whole.run()
    assert whole.best is not None
    monkeypatch.setattr("planner.search.explorer.RULE_OUT_WORK", 1)
    found = Explorer(
        whole.estimator, limits, Silent(), cutoff_seconds=0.98 * whole.best.estimate.step_seconds
    )
    found._rule_out()
    assert (found._heap, found._work, found.finished) == ([], 0, False)
    found.run()
    assert found.finished


def logged(devices: int) -> tuple[Explorer, list[str]]:
    """A search on so many devices whose parts do nothing but tell their names."""
    found, log = explorer(), list[str]()
    found._devices = devices
    for name in (*PHASES, "polish"):
        setattr(found._first if name == "polish" else found, name, lambda *_, name=name: log.append(name))
    return found, log


def test_a_whole_search_is_not_polished() -> None:
    """Its own ILPs come soon enough."""
    found, log = logged(256)
    found.run()
    assert log == list(PHASES)


def test_a_quick_search() -> None:
    """Polished on small clusters only: on others the first ILP takes longer than the way to a much better choice."""
    for devices, parts in ((256, ["_open", "_first_plans", "polish"]), (257, ["_open", "_first_plans"])):
        found, log = logged(devices)
        found.best = examples.scored()
        assert found.quick() is found.best
        assert log == parts


def test_families_whose_first_plans_count_together() -> None:
    """Those that differ in their batch, their ZeRO stage or recomputation only."""
    one = Family(target="torch", zero=1, recompute="none", tp=2, dp=4, batch=8, micro_batches=2)
    assert _way(one) == _way(one._replace(zero=3, recompute="full", batch=4, micro_batches=4))
    others = (
        one._replace(tp=1),
        one._replace(dp=2),
        one._replace(network="x"),
        one._replace(target="megatron"),
        one._replace(folding=Folding(ep=2, etp=2)),
    )
    assert len({_way(family) for family in (one, *others)}) == 6


def on_ethernet(*gbps: float) -> ClusterSpec:
    """Pools of one node with cards of these speeds on one Ethernet."""
    return cluster(
        *(pool(f"p{n}", nics=(nic("lan", gbps=each),), per_node=4) for n, each in enumerate(gbps)),
    )


def test_the_pool_with_the_slowest_link() -> None:
    """That all others wait for; of two alike none is the slowest, nor of two nodes."""
    two = cluster(
        pool("p0", nodes=2, nics=(nic("lan", gbps=100.0),), per_node=4),
        pool("p1", nics=(nic("lan", gbps=10.0),), per_node=4),
    )
    assert slowest_linked(Topology(two), ["p0", "p1"]) == "p1"
    for gbps, slowest in (
        ((100.0, 10.0, 100.0), "p1"),
        ((100.0, 10.0, 10.0), None),
        ((100.0, 10.0), None),
        ((100.0, 50.0, 50.0, 25.0), "p3"),
    ):
        spec = on_ethernet(*gbps)
        assert slowest_linked(Topology(spec), [each.name for each in spec.pools]) == slowest
    many = on_ethernet(*[100.0] * 16, 10.0)
    assert slowest_linked(Topology(many), [each.name for each in many.pools]) is None


def test_a_badly_joined_pool_is_left_out_at_once() -> None:
    """Before the search divides the sets of devices: the sums of gradients would take longer than its share of work."""
    found = Explorer(
        Estimator(on_ethernet(100.0, 5.0, 100.0), gpt(global_batch=480)),
        Limits(target="deepspeed", zero=(0,), tp=(1,), pp=(1,)),
        Silent(),
    )
    found._open()
    found._first_shares(found.deadline)
    assert found.best is not None
    assert {group.pool for group in found.best.plan.stages[0].replicas} == {"p0", "p2"}
