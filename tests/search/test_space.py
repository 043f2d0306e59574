"""Which tensor-parallel degrees are offered: those that share heads and feed-forward width evenly."""

from __future__ import annotations

import pytest

from planner.cluster.topology import Topology
from planner.dims.sharding import shard_sizes
from planner.dims.tensor import splits, tp_degrees
from planner.search.space.choices import families
from planner.search.values import Limits
from planner.targets import TARGETS
from planner.units import divisors
from tests.worlds import cluster, gpt, pool

WIDE = gpt().model_copy(update={"heads": 12, "kv_heads": 12, "head_dim": 64, "ffn": 12 * 256})


@pytest.mark.parametrize(
    ("kv_heads", "offered"),
    [(12, (1, 2, 3, 4, 6)), (6, (1, 2, 3, 6)), (3, (1, 3, 6)), (2, (1, 2, 4, 6)), (1, (1, 2, 3, 4, 6))],
)
def test_degrees_and_key_value_heads_divide_each_other(kv_heads: int, offered: tuple[int, ...]) -> None:
    """Several heads to a device, or a head on several devices; Megatron allows both, the others the first alone."""
    model = WIDE.model_copy(update={"kv_heads": kv_heads})
    device_types = Topology(cluster(pool("p"))).device_types
    assert tp_degrees(TARGETS["megatron"], None, model, device_types) == offered
    for name in ("torch", "deepspeed"):
        assert tp_degrees(TARGETS[name], None, model, device_types) == tuple(
            tp for tp in offered if kv_heads % tp == 0
        )


def test_degrees_stay_in_a_node_and_divide_the_feed_forward_width() -> None:
    """The widest node of a usable kind decides; a width of 7 x 512 is not shared by 3."""
    device_types = Topology(cluster(pool("a", per_node=3), pool("b", per_node=4))).device_types
    assert tp_degrees(TARGETS["megatron"], None, WIDE, device_types) == (1, 2, 3, 4)
    assert tp_degrees(TARGETS["megatron"], (2, 8), WIDE, device_types) == (2,)
    odd = WIDE.model_copy(update={"ffn": 7 * 512})
    assert [tp for tp in range(1, 13) if splits(odd, tp)] == [1, 2, 4]


def test_alone_a_replica_has_two_zero_stages() -> None:
    """The first, and ZeRO-3, which holds no whole fp32 copy of the gradients; SGD's states a target may not shard."""
    device_types = Topology(cluster(pool("p"))).device_types
    found = {(item.dp, item.zero) for item in families(TARGETS["torch"], Limits(), WIDE, device_types)}
    assert {zero for dp, zero in found if dp == 1} == {0, 3}
    assert {zero for dp, zero in found if dp == 2} == {0, 1, 2, 3}
    training = WIDE.training.model_copy(update={"optimizer": "sgd"})
    sgd = WIDE.model_copy(update={"training": training})
    assert {item.zero for item in families(TARGETS["megatron"], Limits(), sgd, device_types)} == {0}


def test_groups_that_share_a_copy_are_whole_nodes() -> None:
    """One node to sixteen, and more that divide the nodes; at least two groups, in nodes that they fill."""
    torch = TARGETS["torch"]
    few = Topology(cluster(pool("p", nodes=5, per_node=2))).device_types
    assert shard_sizes(torch, 1, few) == (2, 4)
    many = Topology(cluster(pool("p", nodes=72, per_node=1))).device_types
    assert shard_sizes(torch, 1, many) == (*range(2, 17), 18, 24, 36)
    assert {18, 24, 36} <= {*divisors(72)}
    assert shard_sizes(TARGETS["megatron"], 1, many) == ()
