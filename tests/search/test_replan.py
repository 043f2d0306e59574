"""The plan that takes over when nodes fail."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest

from planner.calibration.file import shipped
from planner.calibration.values import ASSUMED
from planner.cluster.change import without_hosts
from planner.cluster.spec import ClusterSpec, FabricLinkSpec, HostSpec
from planner.errors import UsageError
from planner.plan.checks import faults
from planner.plan.values import Offload, Plan, Sync
from planner.search.objectives.choose import choose
from planner.search.replan import Replan, Replanner, _of, _refuse, _with, fewer_replicas
from planner.search.solve import search
from planner.search.values import Goal, Limits
from tests.report import examples
from tests.worlds import cluster, gpt, group, plan, pool

pytestmark = pytest.mark.usefixtures("without_reasons")

TRAINED = gpt(8, 1024, 16, precision="bf16", global_batch=48)
DAY = 86400.0


def nodes(number: int, gbps: float = 200.0) -> ClusterSpec:
    """Two devices each."""
    return cluster(pool("a", "A100", number, per_node=2, cards=1, gbps=gbps))


def data_parallel(count: int, zero: int = 1) -> Plan:
    return plan("torch", zero, [8], [(group("a", "A100", count=count, share=48 // count),)])


def stages() -> Plan:
    """Four stages of two replicas, a node each."""
    return plan("torch", 1, [2, 2, 2, 2], [(group("a", "A100", count=2, share=24, steps=12),)] * 4)


def answer(chosen: Plan, where: ClusterSpec, *gone: str, away: float = DAY, **more: Any) -> Replan:
    limits = Limits(target=chosen.target, tp=(1,), time_limit_seconds=60.0)
    return Replanner(chosen, where, TRAINED, shipped(), limits, away_seconds=away, **more).without(gone)


@pytest.mark.slow
def test_it_is_as_fast_as_a_search_of_what_is_left() -> None:
    """Within the gap, for a host that is away for long; and it is a plan for the nodes that are left."""
    where = nodes(4)
    found = answer(data_parallel(8), where, "a-1")
    left = without_hosts(where, ["a-1"])
    alone = choose(left, TRAINED, shipped(), Limits(target="torch", tp=(1,), time_limit_seconds=60.0), Goal())
    assert alone.best is not None
    step = found.chosen.scored.estimate.step_seconds
    assert step <= alone.best.estimate.step_seconds * 1.01
    assert step >= found.result.bound_seconds * (1 - 1e-9)
    assert found.result.best == found.chosen.scored
    assert not faults(found.chosen.scored.plan, found.chosen.cluster, TRAINED)
    assert sorted(found.chosen.cluster.pools[0].hosts) == ["a-0", "a-2", "a-3"]
    assert found.before.estimate.step_seconds < step


def test_a_spare_node_stands_in() -> None:
    """For a moment the same stages, on the idle node what the lost one had; the others keep theirs."""
    where = nodes(5, gbps=1.0)
    found = answer(stages(), where, "a-1", away=0.1)
    assert found.chosen.scored.plan == stages()
    hosts = {entry.host: entry for entry in found.chosen.move.hosts}
    assert {host: entry.kept_bytes > 0 for host, entry in hosts.items()} == {
        "a-0": True,
        "a-2": True,
        "a-3": True,
        "a-4": False,
    }
    assert found.chosen.move.moved_bytes == 0
    assert found.chosen.move.lost_bytes == pytest.approx(hosts["a-4"].needed_bytes)


@pytest.mark.slow
def test_time_away_decides_what_may_move() -> None:
    """For a moment what moves least, for a day what steps fastest; each is the best of both by its own measure."""
    where = nodes(4, gbps=0.1)
    quick, slow = (answer(data_parallel(8, zero=0), where, "a-1", away=away) for away in (1.0, 10 * DAY))
    assert quick.chosen.move.seconds <= slow.chosen.move.seconds
    assert quick.chosen.scored.estimate.step_seconds >= slow.chosen.scored.estimate.step_seconds
    least = quick.fastest.scored.estimate.step_seconds
    assert quick.chosen.lasts(1.0, least) <= slow.chosen.lasts(1.0, least) + 1e-9
    # Whole replicas are everywhere already: nothing has to move for those that are left.
    assert quick.chosen.move.seconds == 0.0


def test_storage_weighs_too() -> None:
    """State that nobody holds any more takes what the storage takes to read it."""
    where = nodes(4)
    found = answer(data_parallel(8, zero=3), where, "a-1", storage_bytes_per_second=1e6)
    assert found.chosen.move.lost_bytes > 0
    assert found.chosen.move.seconds >= found.chosen.move.lost_bytes / 1e6


def test_what_the_plan_has_is_allowed() -> None:
    """Islands at a slow link go on exchanging rarely, and the bound is that of plans that may."""
    where = cluster(
        pool("near", "A100", 3, per_node=1, fabric="here"),
        pool("far", "A100", 2, per_node=1, fabric="there"),
        links=(FabricLinkSpec(between=("here", "there"), bandwidth_gbps=1.0, latency_us=10000.0),),
    )
    sync = Sync(every=100, islands=(("near",), ("far",)))
    groups = (
        group("near", "A100", count=3, share=10, steps=1),
        group("far", "A100", count=2, share=9, steps=1),
    )
    exchanging = plan("torch", 0, [8], [groups], sync=sync)
    whole = Limits(target="torch", pp=(1,), time_limit_seconds=60.0)
    found = Replanner(exchanging, where, TRAINED, shipped(), whole, away_seconds=1.0).without(("near-1",))
    assert replace(found.chosen.scored.plan.sync, islands=()) == replace(sync, islands=())
    assert found.result.bound_seconds <= found.chosen.scored.estimate.step_seconds


def test_backups_stay_with_fewer_replicas() -> None:
    """The same stages with as many backups, and as many sequences in a step."""
    backed = plan("torch", 1, [8], [(group("a", "A100", count=8, share=8, steps=2),)], backup=2)
    fewer = list(fewer_replicas(backed))
    assert [(each.stages[0].dp, each.stages[0].replicas[0].local_batch) for each in fewer] == [
        (6, 12),
        (5, 16),
        (4, 24),
        (3, 48),
    ]
    assert {(each.backup, each.global_batch) for each in fewer} == {(2, 48)}


@pytest.mark.parametrize(
    ("gone", "said", "hint"),
    [
        (("a-9",), "the cluster test has no host 'a-9'", "a-0"),
        (("a-0", "a-1"), "leaves no host", "keep one"),
    ],
)
def test_what_cannot_be_gone(gone: tuple[str, ...], said: str, hint: str) -> None:
    """One error with the nearest names."""
    with pytest.raises(UsageError) as raised:
        answer(data_parallel(4), nodes(2), *gone)
    assert said in str(raised.value)
    assert hint in (raised.value.hint or "")


def test_fewer_nodes_may_keep_more_in_host_memory() -> None:
    """Optimizer states rest on the hosts of two nodes; one holds the parameters no more, where nobody forbade that."""
    host = HostSpec(link_gBps=24, memory_gib=4000)
    where = cluster(pool("a", "A100", 2, per_node=1).model_copy(update={"host": host}))
    trained = gpt(190, 4096, 32, global_batch=8, cross_entropy="plain")
    limits = Limits(gap=0.2, target="deepspeed")
    told = replace(limits, offload=("none", "optimizer"))
    chosen = search(where, trained, limits=told, explain=False).best
    assert chosen is not None
    assert chosen.plan.offload == Offload(optimizer="cpu")
    after = Replanner(chosen.plan, where, trained, ASSUMED, limits, away_seconds=DAY).without(["a-0"])
    assert after.chosen.scored.plan.offload == Offload(optimizer="cpu", parameters="cpu")
    with pytest.raises(UsageError, match="no plan fits"):
        Replanner(chosen.plan, where, trained, ASSUMED, told, away_seconds=DAY).without(["a-0"])


def test_nothing_fits_without_it() -> None:
    """Says why, and what would."""
    where = cluster(pool("a", "A100", 1, per_node=1), pool("b", "T4", 1, per_node=1))
    trained = gpt(24, 2560, 32, precision="bf16", global_batch=8)
    chosen = plan("torch", 0, [24], [(group("a", "A100", share=8, steps=8),)], recompute="full")
    limits = Limits(target="torch", time_limit_seconds=60.0, offload=("none",))
    with pytest.raises(UsageError) as raised:
        Replanner(chosen, where, trained, shipped(), limits, away_seconds=DAY).without(["a-0"])
    assert str(raised.value).startswith("no plan fits without a-0: ")
    assert raised.value.hint


def test_the_plan_that_takes_over_is_the_answer_of_its_search() -> None:
    """With its own gap to the bound that holds for all plans, and without reasons that were another plan's."""
    result = examples.found()
    assert result.best is not None
    assert _with(result, result.best, Limits()) is result
    assert result.alternatives
    slower = examples.scored(16, step_seconds=2 * result.best.estimate.step_seconds)
    taken = _with(result, slower, Limits(gap=0.01))
    step = slower.estimate.step_seconds
    assert (taken.best, taken.status, taken.alternatives) == (slower, "feasible", ())
    assert taken.gap == pytest.approx(1 - result.bound_seconds / step)
    near = examples.scored(16, step_seconds=1.005 * result.bound_seconds)
    assert _with(result, near, Limits(gap=0.01)).status == "optimal"
    below = examples.scored(16, step_seconds=0.5 * result.bound_seconds)
    assert _with(replace(result, best=None), below, Limits()).gap == 0.0


def test_why_nothing_takes_over() -> None:
    """A search that was stopped has proven nothing; else the causes and hints of its diagnosis are told."""
    with pytest.raises(UsageError, match="no plan was found without a, b in the time limit") as stopped:
        _refuse(examples.unknown(), ["a", "b"])
    assert stopped.value.hint == "allow more with --time-limit"
    none = examples.infeasible()
    assert none.diagnosis is not None
    with pytest.raises(UsageError) as refused:
        _refuse(none, ["a"])
    assert str(refused.value).startswith(f"no plan fits without a: {none.diagnosis.causes[0]}")
    assert refused.value.hint == "; ".join(none.diagnosis.hints)
    with pytest.raises(UsageError, match=r"no plan fits without a$") as bare:
        _refuse(replace(none, diagnosis=None), ["a"])
    assert bare.value.hint is None


def test_fewer_replicas_by_hand() -> None:
    """Those that divide the sequences of a step evenly, at the same micro-batch; none where replicas differ."""
    # Of micro-batches of 6 the shares of 4, 2 and 1 replicas consist.
    assert [each.stages[0].dp for each in fewer_replicas(data_parallel(8))] == [4, 2, 1]
    one = group("a", "A100", count=8, share=6, steps=3)
    twos = plan("torch", 1, [8], [(one,)])
    # 2 sequences a micro-batch: 48 over 5 or 7 replicas leave some over.
    assert [(each.stages[0].dp, each.micro_batches) for each in fewer_replicas(twos)] == [
        (6, 4),
        (4, 6),
        (3, 8),
        (2, 12),
        (1, 24),
    ]
    assert list(fewer_replicas(replace(twos, zero=1, shard_size=4))) == []
    mixed = plan("torch", 1, [8], [(replace(one, count=4), replace(one, pool="b", count=4))])
    assert list(fewer_replicas(mixed)) == []


def test_the_part_of_the_time_for_the_same_degrees() -> None:
    """Three tenths, of plans with the degrees and the offloading of the old one; each set of nodes once."""
    chosen, where = stages(), nodes(4)
    limits = Limits(target="torch", time_limit_seconds=100.0)
    planner = Replanner(chosen, where, TRAINED, shipped(), limits, away_seconds=DAY)
    with (
        patch("planner.search.deadline.monotonic", return_value=1000.0),
        patch("planner.search.replan.choose", return_value=examples.found()) as choose,
    ):
        for gone in ("a-1", "a-2"):
            planner._searched(without_hosts(where, [gone]))
    (same, whole) = choose.call_args_list
    assert (same.kwargs["deadline"].at, whole.kwargs["deadline"].at) == (1030.0, 1100.0)
    assert (same.kwargs["explain"], whole.kwargs["explain"]) == (False, True)
    alike = same.args[3]
    assert (alike.zero, alike.pp, alike.tp, alike.cp) == ((1,), (4,), (1,), (1,))
    assert whole.args[3].pp is None


def test_ctrl_c_ends_both_searches() -> None:
    """In the first of them too: the second takes no more time, and the answer says that it was stopped."""
    where = nodes(4)
    planner = Replanner(stages(), where, TRAINED, shipped(), Limits(target="torch"), away_seconds=DAY)
    found = examples.found()
    stopped = replace(found, interrupted=True)
    with patch("planner.search.replan.choose", side_effect=[stopped, found]) as choose:
        result, _ = planner._searched(without_hosts(where, ["a-1"]))
    assert choose.call_args_list[1].kwargs["deadline"].struck
    assert result.interrupted


def test_ctrl_c_ahead_of_the_first_plan() -> None:
    """Nothing is said of time limits, and no other node is looked at."""
    where, nothing = nodes(4), replace(examples.found(), best=None, alternatives=(), status="unknown")
    stopped = replace(nothing, interrupted=True)
    planner = Replanner(stages(), where, TRAINED, shipped(), Limits(target="torch"), away_seconds=DAY)
    with (
        patch.object(Replanner, "_searched", return_value=(stopped, nothing)),
        patch("planner.search.replan._kept", return_value=[]),
        pytest.raises(KeyboardInterrupt),
    ):
        planner.without(["a-1"])


def test_plans_that_a_search_tells_of() -> None:
    """Its answer and what stands beside it, if they fit."""
    result = examples.found()
    told = [each.scored for each in result.alternatives if each.scored is not None]
    assert result.best is not None
    assert list(_of(result)) == [result.best.plan, *(each.plan for each in told if each.estimate.fits)]
    large = examples.scored(activations_gib=60.0)
    assert not large.estimate.fits
    assert list(_of(replace(result, best=large, alternatives=()))) == []
