"""Which node holds what of the state, and what moves when the plan changes."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import permutations, product

import pytest

from planner.calibration.values import ASSUMED
from planner.cluster.change import without_hosts
from planner.cluster.spec import ClusterSpec
from planner.cost.failures import checkpoint_bytes
from planner.cost.state import (
    CHECKPOINT,
    Held,
    LinkMove,
    Move,
    Region,
    Weigher,
    _less,
    _union,
    _within,
    held_by,
    layer_spans,
    move,
    settled,
)
from planner.model.spec import ExpertsSpec, ModelSpec
from planner.plan.placement import ranks
from planner.plan.values import Plan
from tests.worlds import cluster, group, model, plan, pool

Cell = tuple[int, int]


def data_parallel(count: int, zero: int = 3, **changes: object) -> Plan:
    """So many replicas in pool a."""
    return plan("torch", zero, [4], [(group("a", "A100", count=count, share=24 // count),)], **changes)


def pipeline(layers: list[int], dp: int, zero: int = 1, tp: int = 1) -> Plan:
    """Stages of as many replicas."""
    one = (group("a", "A100", count=dp, share=24 // dp, steps=24 // dp, tp=tp),)
    return plan("megatron", zero, layers, [one] * len(layers))


def nodes(number: int, per_node: int = 2) -> ClusterSpec:
    """Alike."""
    return cluster(pool("a", "A100", number, per_node=per_node))


GRID = 48
"""Parts of a layer: a multiple of all shards and tensor-parallel degrees here."""


def cells(chosen: Plan, where: ClusterSpec, trained: ModelSpec) -> dict[str, set[Cell]]:
    """(layer, part of it) of each node, counted one by one from the ranks."""
    found: dict[str, set[Cell]] = {}
    for rank in ranks(chosen, where):
        stage = chosen.stages[rank.stage]
        tp = stage.replicas[rank.group].tp
        shards = (chosen.shard_size or stage.dp) if chosen.zero else 1
        size = GRID // tp // shards
        first = rank.tp_rank * (GRID // tp) + rank.replica % shards * size
        for low, high in layer_spans(chosen, rank.stage, trained):
            found.setdefault(rank.host, set()).update(product(range(low, high), range(first, first + size)))
    return found


CASES = [
    (data_parallel(8), data_parallel(6)),
    (data_parallel(8, zero=0), data_parallel(6, zero=0)),
    (data_parallel(8, zero=1, shard_size=4), data_parallel(6, zero=2)),
    (pipeline([2, 2], 4), pipeline([1, 3], 3)),
    (pipeline([2, 2], 2, tp=2), pipeline([1, 1, 2], 2)),
    (pipeline([1, 1, 2], 2, zero=0), data_parallel(6, zero=1)),
]


@pytest.mark.parametrize(("before", "after"), CASES)
def test_every_byte_is_kept_moved_or_lost(before: Plan, after: Plan) -> None:
    """Next to a count of single parts of layers; what only the lost node held comes from the checkpoint."""
    trained, where = model(24), nodes(4)
    left = without_hosts(where, ["a-1"])
    held, weigher = held_by(before, where, trained), Weigher(trained)
    found = move(after, left, trained, held, ASSUMED)
    had = cells(before, where, trained)
    have = set().union(*(parts for host, parts in had.items() if host != "a-1"))

    def size(parts: set[Cell]) -> float:
        return sum(weigher.between(False, layer, layer + 1) / GRID for layer, _ in parts)

    for entry in found.hosts:
        wanted, own = cells(after, left, trained)[entry.host], had.get(entry.host, set())
        assert entry.needed_bytes == pytest.approx(size(wanted))
        assert entry.kept_bytes == pytest.approx(size(wanted & own))
        assert entry.moved_bytes == pytest.approx(size((wanted - own) & have))
        assert entry.lost_bytes == pytest.approx(size(wanted - have))
    crossing = {entry.link: entry.moved_bytes for entry in found.links}
    assert sum(size for link, size in crossing.items() if link != CHECKPOINT) == pytest.approx(
        found.moved_bytes
    )
    assert crossing.get(CHECKPOINT, 0.0) == pytest.approx(found.lost_bytes)


def test_all_nodes_hold_a_checkpoint_once() -> None:
    """With states that are sharded over all replicas, whatever the layers are cut into."""
    trained = model(24, tied_embeddings=False)
    for chosen in (data_parallel(8), data_parallel(8, zero=1), pipeline([2, 2], 4), pipeline([1, 1, 2], 2)):
        held = held_by(chosen, nodes(4), trained).values()
        held_bytes = sum(Weigher(trained).of(region) for regions in held for region in regions)
        assert held_bytes == pytest.approx(checkpoint_bytes(trained))


def test_experts_are_held_once() -> None:
    """Whole experts on groups of devices, sharded over those that have the same."""
    trained = model(24, experts=ExpertsSpec(number=4, top_k=2, ffn=64))
    for ep, zero in ((1, 1), (2, 1), (4, 3)):
        held = held_by(data_parallel(8, zero=zero, ep=ep), nodes(4), trained).values()
        total = sum(Weigher(trained).of(region) for regions in held for region in regions)
        assert total == pytest.approx(checkpoint_bytes(trained))
    copies = held_by(data_parallel(8, zero=0, ep=2), nodes(4), trained)["a-0"]
    assert sum(Weigher(trained).of(region) for region in copies) == pytest.approx(checkpoint_bytes(trained))


def interleaved() -> Iterator[Plan]:
    one = (group("a", "A100", count=2, share=12, steps=12),)
    yield plan("megatron", 0, [4, 4], [one] * 2, interleave=2)


def test_chunks_of_a_stage_are_apart() -> None:
    """With two chunks a device, the first stage has the first and the third quarter of the layers."""
    (chosen,) = interleaved()
    trained = model(24, 8)
    assert list(layer_spans(chosen, 0, trained)) == [(0, 1), (1, 3), (5, 7)]
    assert list(layer_spans(chosen, 1, trained)) == [(3, 5), (7, 10), (0, 1)]


def test_hosts_take_the_places_that_keep_most() -> None:
    """No other order of the hosts keeps more."""
    draw = random.Random(5)
    trained, where = model(24), nodes(4)
    for before, after in CASES:
        hosts = list(where.pools[0].hosts)
        draw.shuffle(hosts)
        mixed = where.model_copy(
            update={"pools": (where.pools[0].model_copy(update={"hosts": tuple(hosts)}),)}
        )
        left = without_hosts(where, ["a-2"])
        held = held_by(before, mixed, trained)

        def kept(
            order: tuple[str, ...], after: Plan = after, left: ClusterSpec = left, held: Held = held
        ) -> float:
            there = left.pools[0].model_copy(update={"hosts": order})
            there_all = left.model_copy(update={"pools": (there,)})
            moved = move(after, there_all, trained, held, ASSUMED)
            return sum(entry.kept_bytes for entry in moved.hosts)

        chosen = settled(after, left, trained, held)
        assert sorted(chosen.pools[0].hosts) == sorted(left.pools[0].hosts)
        best = max(map(kept, permutations(left.pools[0].hosts)))
        assert kept(chosen.pools[0].hosts) == pytest.approx(best)


def test_links_take_their_time() -> None:
    """One node sends half of the model to another: bytes over what its cards carry; half the cards, twice the time."""
    trained = model(24)
    before, after = data_parallel(2, zero=0), data_parallel(6, zero=0)

    def seconds(cards: int) -> float:
        where = cluster(pool("a", "A100", 3, per_node=2, cards=cards, gbps=100))
        found = move(after, where, trained, held_by(before, where, trained), ASSUMED)
        (link,) = found.links
        assert link.link == "ib"
        assert found.moved_bytes == pytest.approx(2 * checkpoint_bytes(trained))
        assert found.seconds == link.seconds
        return found.seconds

    rate = ASSUMED.link("infiniband").efficiency * 100e9 / 8
    assert seconds(1) == pytest.approx(2 * checkpoint_bytes(trained) / rate)


def test_storage_reads_what_is_lost() -> None:
    """Nothing else holds it; without its speed nobody knows how long."""
    trained, where = model(24), nodes(4)
    held = held_by(data_parallel(8), where, trained)
    left = without_hosts(where, ["a-1"])
    unknown = move(data_parallel(6), left, trained, held, ASSUMED).links[-1]
    assert (unknown.link, unknown.seconds) == (CHECKPOINT, None)
    assert unknown.moved_bytes == pytest.approx(checkpoint_bytes(trained) / 4)
    known = move(data_parallel(6), left, trained, held, ASSUMED, 1e6).links[-1]
    assert known.seconds == pytest.approx(unknown.moved_bytes / 1e6)


def test_unequal_shards_follow_each_other() -> None:
    """One, two, four and one eighths of each layer, of which a node of two devices holds the first three."""
    (one,) = data_parallel(4).stages[0].replicas
    parts = tuple(replace(one, count=1, shard=part) for part in (1, 2, 4, 1))
    chosen = plan("torch", 3, [4], [parts])
    held = held_by(chosen, nodes(2), model(24))
    assert {(each.first, each.end, each.low, each.high) for each in held["a-0"]} == {(0, 1, 0.0, 0.375)} | {
        (1, 6, 0.0, 0.375)
    }
    assert {(each.low, each.high) for each in held["a-1"]} == {(0.375, 1.0)}


def test_parts_by_hand() -> None:
    """Spans that touch are one, and what is beyond others is what lies between them and at both ends."""
    assert _union([(0.5, 0.75), (0.0, 0.25), (0.25, 0.5), (0.9, 1.0), (0.1, 0.2)]) == [
        (0.0, 0.75),
        (0.9, 1.0),
    ]
    assert list(_less(0.0, 1.0, [(0.2, 0.4), (0.4, 0.5)])) == [(0.0, 0.2), (0.5, 1.0)]
    assert list(_less(0.25, 0.5, [(0.0, 0.3), (0.6, 0.9)])) == [(0.3, 0.5)]
    assert list(_less(0.25, 0.5, [(0.0, 0.1), (0.25, 0.5)])) == []
    assert list(_less(0.25, 0.5, [(0.0, 0.6), (0.7, 0.9)])) == []
    assert list(_less(0.25, 0.5, [])) == [(0.25, 0.5)]
    regions = [Region(False, 1, 3, 0.0, 0.5), Region(False, 2, 4, 0.5, 0.75), Region(True, 1, 3, 0.8, 1.0)]
    assert list(_within(regions, False, 1, 2)) == [(0.0, 0.5)]
    assert list(_within(regions, False, 2, 3)) == [(0.0, 0.75)]
    assert list(_within(regions, False, 3, 4)) == [(0.5, 0.75)]
    assert list(_within(regions, True, 1, 3)) == [(0.8, 1.0)]


def test_nodes_that_have_the_same_take_turns_to_send() -> None:
    """Of four nodes two hold everything: each sends to one of the others, at the same time."""
    trained, where = model(24), cluster(pool("a", "A100", 4, per_node=2, cards=1, gbps=100))
    held = held_by(data_parallel(4, zero=0), where, trained)
    found = move(data_parallel(8, zero=0), where, trained, held, ASSUMED)
    rate = ASSUMED.link("infiniband").efficiency * 100e9 / 8
    one = checkpoint_bytes(trained)
    assert found.moved_bytes == pytest.approx(2 * one)
    assert [entry.kept_bytes for entry in found.hosts] == pytest.approx([one, one, 0.0, 0.0])
    (link,) = found.links
    assert link.seconds is not None
    # Runs of layers are sent one after the other: the two senders differ by less than the largest.
    assert one / rate <= link.seconds <= 1.3 * one / rate


def test_links_work_side_by_side() -> None:
    """Until the last of them has brought all; a checkpoint whose speed nobody knows counts for nothing."""
    links = [
        LinkMove(link=name, moved_bytes=1.0, seconds=seconds) for name, seconds in (("x", 2.0), ("y", 3.0))
    ]
    assert Move(hosts=(), links=tuple(links)).seconds == 3.0
    unknown = LinkMove(link=CHECKPOINT, moved_bytes=1.0, seconds=None)
    assert Move(hosts=(), links=(unknown,)).seconds == Move(hosts=(), links=()).seconds == 0.0
