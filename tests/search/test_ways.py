"""Ways to choose devices, to fill stages with them and to stand, by hand and counted one by one."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from math import inf

import pytest

from planner.catalog import GpuSpec
from planner.cluster.spec import PoolSpec
from planner.cluster.topology import Topology
from planner.cost.estimate import Estimator
from planner.errors import PlanError
from planner.plan.placement import place_stages
from planner.plan.values import Context, Folding, ZeroPlus
from planner.search.data_parallel import DataParallel, Shares
from planner.search.islands import _taking_part
from planner.search.milp.machines import MachineRates
from planner.search.milp.program import added, combined, ones, total
from planner.search.milp.shares import SharesModel
from planner.search.milp.solver import solve
from planner.search.space.choices import (
    Choice,
    Family,
    _fill,
    depths,
    leaves_over,
    most_mixed,
    unequal_steps,
    uniform,
)
from planner.search.space.device_sets import Box, Counts, all_sets
from planner.search.space.stages import StageOptions
from planner.search.values import Limits
from tests.worlds import cluster, gpt, pool


def sets(box: Box, unit: int = 1) -> set[Counts]:
    """All sets of a box."""
    return set(product(*(range(low, high + 1, unit) for low, high in zip(box.low, box.high, strict=True))))


@pytest.mark.parametrize("unit", [1, 2])
def test_halves_of_a_box_share_no_set(unit: int) -> None:
    """And leave none out; both have some."""
    for low, high in product(product((0, 2, 4), repeat=2), product((2, 6, 8), repeat=2)):
        box = Box(low, high)
        if box.single or any(a > b for a, b in zip(low, high, strict=True)):
            continue
        one, two = box.halves([1.0, 2.0], unit)
        assert sets(one, unit) | sets(two, unit) == sets(box, unit)
        assert not sets(one, unit) & sets(two, unit)
        assert sets(one, unit)
        assert sets(two, unit)


def test_boxes_by_hand() -> None:
    """Divided where most is open, by what devices are worth; cut to a part; filled first types first."""
    box = Box((0, 0), (4, 2))
    assert box.halves([1.0, 1.0]) == (Box((0, 0), (2, 2)), Box((3, 0), (4, 2)))
    assert box.halves([1.0, 3.0]) == (Box((0, 0), (4, 1)), Box((0, 2), (4, 2)))
    assert box.halves([1.0, 2.0]) == box.halves([1.0, 1.0])
    assert Box((2, 0), (2, 3)).halves([9.0, 0.0]) == (Box((2, 0), (2, 1)), Box((2, 2), (2, 3)))
    assert Box((1, 1), (4, 2)).halves([1.0, 2.9]) == (Box((1, 1), (2, 2)), Box((3, 1), (4, 2)))
    assert Box((0,), (8,)).halves([1.0], 2) == (Box((0,), (4,)), Box((6,), (8,)))
    assert box.within((1, 0), (3, 9)) == Box((1, 0), (3, 2))
    assert box.within((1, 1), (3, 1), 2) is None
    assert box.within((1, 1), (3, 3), 2) == Box((2, 2), (2, 2))
    assert [Box((1, 0), (4, 2)).fullest(most) for most in (0, 1, 3, 5, 6, 9)] == [
        (1, 0),
        (1, 0),
        (3, 0),
        (4, 1),
        (4, 2),
        (4, 2),
    ]
    assert Box((0, 0), (4, 4)).fullest(7, 2) == (4, 2)
    assert Box((2,), (2,)).single
    assert not box.single


def test_all_sets_of_device_types() -> None:
    """No more than there are sequences, in groups that nodes hold."""
    kinds = Topology(cluster(pool("a", nodes=2, per_node=4), pool("b", "V100", per_node=3))).device_types
    assert all_sets(kinds, 99) == Box((0, 0), (8, 3))
    assert all_sets(kinds, 5) == Box((0, 0), (5, 3))
    assert all_sets(kinds, 7, 4) == Box((0, 0), (4, 0))
    assert all_sets(kinds, 2, 4) == Box((0, 0), (4, 0))


def test_sets_of_a_choice() -> None:
    """Second copies need nodes that hold them; more devices than sequences have no plan, nor has none at all."""
    spec = cluster(pool("a", nodes=2, per_node=4), pool("b", "V100", nodes=3, per_node=2))
    estimator = Estimator(spec, gpt(4, 512, 8, global_batch=10))

    def shares(secondary: int | None) -> Shares:
        plus = ZeroPlus(secondary=secondary)
        choice = DataParallel(target="deepspeed", zero=3, recompute="none", zero_plus=plus)
        return Shares(choice, estimator, Limits())

    assert [shares(secondary).sets.high for secondary in (None, 2, 4)] == [(8, 6), (8, 6), (8, 0)]
    plain = shares(None)
    assert 0 < plain.bound(Box((4, 6), (8, 6))) < inf
    assert plain.bound(Box((5, 6), (8, 6))) == plain.bound(Box((0, 0), (0, 0))) == inf
    assert plain.best((5, 6)) == plain.best((0, 0)) == (inf, None)
    bound, chosen = plain.best((4, 6))
    assert chosen is not None
    assert plain.bound(Box((4, 6), (4, 6))) == bound
    assert plain.best((4, 6), bound) == (bound, None)
    assert plain.best((4, 6), 1.01 * bound) == (bound, chosen)


def test_a_device_alone_needs_no_buffers() -> None:
    """A box that holds it may have larger micro-batches than one whose devices all have company."""
    estimator = Estimator(cluster(pool("a", nodes=2, per_node=4)), gpt(24, 2048, 16, global_batch=512))
    shares = Shares(DataParallel(target="deepspeed", zero=0, recompute="none"), estimator, Limits())
    (kind,) = shares.device_types
    many, alone = (shares.most_sequences(kind, devices) for devices in (8, 1))
    assert many < alone

    def most(low: int, high: int) -> int:
        return shares._most_in(kind, Box((low,), (high,)), once=False)

    assert [most(0, 8), most(1, 8), most(1, 1)] == [alone] * 3
    assert [most(2, 8), most(2, 2), most(8, 8)] == [many] * 3


def test_replicas_over_several_device_types() -> None:
    """In proportion to what there is, one of each at least, and no more than there are."""
    assert _fill([5, 3, 1], 4) == [2, 1, 1]
    assert _fill([5, 3, 1], 8) == [5, 2, 1]
    assert _fill([1, 1, 9], 3) == [1, 1, 1]
    for room in product((1, 2, 5), repeat=3):
        for replicas in range(3, sum(room) + 1):
            counts = _fill(list(room), replicas)
            assert sum(counts) == replicas
            assert all(0 < count <= most for count, most in zip(counts, room, strict=True))


def test_nodes_that_leave_devices_over() -> None:
    """Several nodes whose replicas are no power of two."""
    found = {
        (nodes, per_node, tp): leaves_over(
            Topology(cluster(pool("a", nodes=nodes, per_node=per_node))).device_types[0], tp
        )
        for nodes, per_node, tp in product((1, 2), range(1, 9), (1, 2))
        if tp <= per_node
    }
    assert {key for key, left in found.items() if left} == {
        *((2, per_node, 1) for per_node in (3, 5, 6, 7)),
        *((2, per_node, 2) for per_node in (6, 7)),
    }
    kinds = Topology(cluster(pool("a"), pool("b", "V100"))).device_types
    assert most_mixed(kinds) == 1


@pytest.mark.parametrize(
    "pools",
    [
        (pool("a", nodes=3, per_node=5), pool("b", "V100", per_node=4)),
        (pool("a", nodes=2, per_node=6), pool("b", "V100", nodes=4, per_node=2)),
    ],
)
def test_stages_of_one_kind_that_the_cluster_holds(pools: tuple[PoolSpec, ...]) -> None:
    """As many as can be placed, each part of a node on one."""
    estimator = Estimator(cluster(*pools), gpt(global_batch=24))
    family = Family(target="flagscale", zero=1, recompute=None, tp=None, dp=None, batch=24, micro_batches=1)
    stages = StageOptions(Choice(family=family, depth=3, interleave=1), estimator, Limits())
    assert len(stages.compositions) > 10
    for index, groups in enumerate(stages.compositions):
        most = stages.most_stages(index)
        place_stages([groups] * most, estimator.cluster, whole=True)
        with pytest.raises(PlanError):
            place_stages([groups] * (most + 1), estimator.cluster, whole=True)


def test_depths_by_hand() -> None:
    """As many stages as there are layers, devices, and at most; one alone where the degrees are not for pipelines."""
    wide = cluster(pool("a", nodes=16), pool("b", "V100", per_node=3))
    kinds = Topology(wide).device_types
    family = Family(target="megatron", zero=1, recompute="none", tp=2, dp=4, batch=4, micro_batches=2)

    def found(layers: int, **changes: object) -> tuple[int, ...]:
        return depths(family._replace(**changes), Limits(), gpt(layers), kinds)  # type: ignore[arg-type]

    assert found(40) == tuple(range(1, 17))
    assert found(5) == (1, 2, 3, 4, 5)
    assert found(200, dp=1, tp=1, batch=1) == tuple(range(1, 65))
    assert found(40, dp=65, batch=65) == (1,)
    assert found(40, dp=66, batch=66) == ()
    assert depths(family, Limits(pp=(2, 3, 99)), gpt(40), kinds) == (2, 3)
    # A batch per device holds equal batches.
    assert 1 not in found(40, target="torch", tp=1)
    assert 1 not in found(40, target="torch", tp=2)


def test_unequal_numbers_of_micro_batches() -> None:
    """Some replicas run one less; of the micro-batches that need the same number of steps the smallest."""
    model, limits = gpt(global_batch=30), Limits()
    found = list(unequal_steps(model, 8, limits))
    expected = []
    for replicas in range(2, 9):
        odd = replicas
        while odd % 2 == 0:
            odd //= 2
        known = set()
        for size in (1, 2, 3, 5, 6, 10, 15, 30):
            pieces = 30 // size
            steps = -(-pieces // replicas)
            if odd > 7 or steps in known:
                continue
            known.add(steps)
            waiting = steps * replicas - pieces
            if steps > 1 and waiting and waiting <= 0.1 * steps * replicas:
                expected.append((replicas, replicas * size))
    assert found == expected
    assert len(found) > 4
    few = list(unequal_steps(model, 8, Limits(micro_batch=(2, 3))))
    assert few
    assert all(batch // replicas in (2, 3) for replicas, batch in few)


def test_the_parts_of_a_family_with_one_degree() -> None:
    """Every way to have the same degrees everywhere for which there are devices; one that has them is itself."""
    model, kinds = (
        gpt(global_batch=8),
        Topology(cluster(pool("a", per_node=2), pool("b", "V100", per_node=2))).device_types,
    )
    free = Family(target="flagscale", zero=1, recompute=None, tp=None, dp=None, batch=4, micro_batches=2)
    found = {(family.tp, family.dp) for family in uniform(free, Limits(), model, kinds)}
    assert found == {(1, 1), (1, 2), (1, 4), (2, 1), (2, 2)}
    small = {(family.tp, family.dp) for family in uniform(free, Limits(micro_batch=(2,)), model, kinds)}
    assert small == {(1, 2), (2, 2)}
    one = free._replace(tp=1, dp=2, folding=Folding())
    assert list(uniform(one, Limits(), model, kinds)) == [one]


def test_islands_that_take_part() -> None:
    """Any two or more of a few, most first; all of many."""
    a, b, c = ("a",), ("b", "x"), ("c",)
    assert list(_taking_part((a, b, c))) == [(a, b, c), (a, b), (a, c), (b, c)]
    many = tuple((str(number),) for number in range(9))
    assert list(_taking_part(many)) == [many]
    assert len(list(_taking_part(many[:-1]))) == 2**8 - 1 - 8


def test_expressions_by_hand() -> None:
    """Columns may occur in both."""
    assert added({0: 1.0, 1: 2.0}, {1: 3.0, 2: 4.0}) == {0: 1.0, 1: 5.0, 2: 4.0}
    assert added({0: 1.0, 1: 2.0}, {1: 3.0, 2: 4.0}, -2.0) == {0: 1.0, 1: -4.0, 2: -8.0}
    assert total([(2.0, 0), (0.0, 1), (3.0, 0)]) == {0: 5.0}
    assert ones([4, 4, 5]) == {4: 2.0, 5: 1.0}
    assert combined([(2.0, {0: 1.0, 1: 3.0}), (0.0, {7: 1.0}), (-1.0, {1: 2.0})]) == {0: 2.0, 1: 4.0}


def test_what_machines_do_together() -> None:
    """No more than the sum, nor than what is known of as many of each kind; of one set the least is kept."""
    found = MachineRates(rates=[10.0, 20.0, 40.0], most=[2, 3, 1], kinds=((0, 2), (1,)))
    assert found.everything == (2, 3, 1)
    assert found.by_kind((2, 3, 1)) == (3, 3)
    assert found.rate((1, 2, 1)) == found.most_rate((1, 2, 1)) == 90.0
    found.learn((1, 2, 1), 50.0)
    found.learn((2, 2, 0), 45.0)
    found.learn((2, 2, 0), 60.0)
    assert found.known == {(2, 2): 45.0}
    assert [found.most_rate(machines) for machines in ((1, 2, 1), (2, 1, 0), (0, 2, 0), (2, 3, 0))] == [
        45.0,
        40.0,
        40.0,
        80.0,
    ]
    found.learn((2, 3, 0), 45.0)
    found.learn((0, 3, 0), 44.0)
    assert found._beaten((2, 2), 45.0)
    assert not found._beaten((2, 3), 45.0)
    assert not found._beaten((0, 3), 44.0)


def test_replicas_that_run_a_micro_batch_less() -> None:
    """Ten replicas of three sequences twice do 60: four lack one of 48; none where all have the same."""
    one = Family(target="torch", zero=1, recompute="none", tp=1, dp=10, batch=30, micro_batches=2)
    fewer = one.fewer_steps(gpt(global_batch=48))
    assert (one.micro_batch, fewer, type(fewer)) == (3, 4, int)
    assert one.fewer_steps(gpt(global_batch=60)) == 0
    shared = one._replace(context=Context(ways=2, kind="ring"))
    assert (shared.micro_batch, shared.fewer_steps(gpt(global_batch=48))) == (6, 2)
    own = one._replace(tp=None, dp=None)
    assert (own.micro_batch, own.fewer_steps(gpt(global_batch=48))) == (None, 0)
    assert one.equal_work == one._replace(zero=3, network="x", dp=20, batch=60).equal_work
    assert one.equal_work != shared.equal_work


@pytest.mark.parametrize("zero", [0, 1, 3])
def test_one_micro_batch_may_be_larger_than_several(zero: int) -> None:
    """Its gradients come as activations go: the best of all plans of four devices has one that fits alone."""
    model = gpt(8, 1024, 16, global_batch=32, precision="bf16")
    device = GpuSpec(name="G", memory_gib=1, memory_bandwidth_gBps=2000, tflops={"bf16": 312})

    def on(memory_gib: float) -> Shares:
        gpus = {"G": device.model_copy(update={"memory_gib": memory_gib})}
        spec = cluster(pool("a", "G", per_node=4), gpus=gpus)
        choice = DataParallel(target="torch", zero=zero, recompute="none")
        return Shares(choice, Estimator(spec, model), Limits())

    def most(shares: Shares, *, once: bool) -> int:
        return shares.most_sequences(shares.device_types[0], 4, once=once)

    shares = next(found for tenths in range(20, 400) if most(found := on(tenths / 10), once=True) >= 8)
    assert 0 < most(shares, once=False) < 8
    seconds, chosen = shares.best((4,))
    assert chosen is not None
    fitting = {}
    for steps in range(1, 9):
        (group,) = chosen.stages[0].replicas
        stage = replace(chosen.stages[0], replicas=(replace(group, accumulation_steps=steps),))
        estimate = shares.estimator.estimate(replace(chosen, stages=(stage,)))
        if estimate.fits:
            fitting[steps] = estimate.step_seconds
    assert min(fitting, key=fitting.__getitem__) == chosen.micro_batches == 1
    assert 2 not in fitting or most(shares, once=False) >= 4
    assert seconds == pytest.approx(fitting[1])
    assert shares.bound(Box((0,), (4,))) <= seconds
    model_of_shares = SharesModel(shares.ways((4,), once=True), 32, seconds)
    assert solve(model_of_shares.program, gap=0.0).bound * seconds == pytest.approx(seconds, rel=1e-4)
