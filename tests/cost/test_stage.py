"""A stage on given replicas: uneven micro-batches, tied embeddings, what follows the last backward."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import pytest

from planner.calibration.values import ASSUMED, ASSUMED_LINK
from planner.cluster.topology import DeviceType, Topology
from planner.cost.communication import Ring
from planner.cost.memory import parameters_of
from planner.cost.shape import Shape
from planner.cost.stage import Pricer
from planner.cost.stage_price import Replica, common_seconds
from planner.cost.traffic import EndTraffic
from planner.model.spec import LayerRun, ModelSpec
from planner.plan.values import ReplicaGroup
from planner.targets import TARGETS
from tests.worlds import GPUS, cluster, gpt, pool

MODEL = gpt(8, 512, 8)
RING = Ring(size=4, bytes_per_second=1e9, latency_seconds=0.0, crosses="ib")
GROUP = ReplicaGroup(pool="p", gpu="A100", tp=1, count=4, local_batch=10, accumulation_steps=4)
"""Micro-batches of 3, 3, 2 and 2."""
SHAPE = Shape(
    chunks=(8,),
    stage=0,
    depth=1,
    micro_batches=4,
    zero=0,
    recompute="none",
    sequence_parallel=False,
)


def pricer(target: str = "deepspeed", model: ModelSpec = MODEL, nics: int = 4) -> Pricer:
    """Nodes of eight A100 with cards of 100 Gbit/s."""
    spec = cluster(pool("p", nodes=2, gbps=100, cards=nics))
    return Pricer(Topology(spec), model, ASSUMED, TARGETS[target], None)


def test_smaller_micro_batches_take_their_own_time() -> None:
    """Two of 3 and two of 2 sequences; in lock step all wait for the largest."""
    one = pricer()
    three, two = (one.micro_batch(SHAPE, GROUP, size, RING).seconds for size in (3, 2))
    assert three > two
    assert one.price(SHAPE, (GROUP,), RING).work_seconds == pytest.approx(2 * three + 2 * two)
    even = replace(GROUP, local_batch=12)
    assert one.price(SHAPE, (even,), RING).work_seconds == pytest.approx(4 * three)
    step = replace(SHAPE, zero=2)
    lock = one.micro_batch(step, GROUP, 3, RING).seconds
    assert one.price(step, (GROUP,), RING).work_seconds == pytest.approx(4 * lock)


def test_the_end_of_a_group_is_that_of_its_stage() -> None:
    """Synchronisation and optimizer of one group, as in the price of the whole stage."""
    one = pricer()
    whole = one.price(SHAPE, (GROUP,), RING)
    micro = one.micro_batch(SHAPE, GROUP, GROUP.micro_batch, RING)
    assert one.sync_seconds(SHAPE, GROUP, RING, micro) == whole.sync_seconds
    assert one.update_seconds(SHAPE, GROUP, RING) == whole.optimizer_seconds > 0


def test_gradients_of_a_tied_embedding_cross_between_the_ends() -> None:
    """The table over the cards of a node: two bytes of fp16 in every runtime; only on the ends of a pipeline."""
    table = 51200 * 512 * 2
    found = pricer()
    deep = replace(SHAPE, depth=3, zero=0)
    rail = ASSUMED_LINK.rail**2
    expected = table / (4 * 12.5e9) / (ASSUMED_LINK.efficiency * rail)
    for stage, share in ((0, 1), (1, 0), (2, 1)):
        shape = replace(deep, stage=stage)
        assert found.tied_seconds(shape, GROUP) == pytest.approx(share * expected)
    assert found.tied_seconds(deep, replace(GROUP, tp=4)) == pytest.approx(expected / 4)
    assert found.tied_seconds(SHAPE, GROUP) == 0
    untied = MODEL.model_copy(update={"tied_embeddings": False})
    assert pricer(model=untied).tied_seconds(deep, GROUP) == 0
    lonely = cluster(pool("p").model_copy(update={"nics": ()}))
    inside = Pricer(Topology(lonely), MODEL, ASSUMED, TARGETS["deepspeed"], None)
    assert inside.tied_seconds(deep, GROUP) == pytest.approx(table / 300e9)


def test_chunks_add_up_to_the_stage() -> None:
    """Interleaving divides the layers; the embedding is in the first chunk, the head in the last."""
    one = pricer("megatron")
    for stage in (0, 1):
        whole = one.price(replace(SHAPE, depth=2, stage=stage), (GROUP,), RING)
        parts = one.price(replace(SHAPE, chunks=(3, 3, 2), depth=2, stage=stage), (GROUP,), RING)
        assert len(parts.forward) == len(parts.backward) == 3
        host = one.host_seconds(one.topology.device_types[0])
        assert sum(parts.forward) - 2 * host / 2 == pytest.approx(whole.forward[0])
        assert sum(parts.backward) - 2 * host / 2 == pytest.approx(whole.backward[0])
        layers = one.price(replace(SHAPE, chunks=(3, 3, 3), depth=3, stage=1), (GROUP,), RING).forward[0]
        assert (parts.forward[0] > layers) == (stage == 0)
        assert parts.forward[1] == pytest.approx(layers)


def test_what_hides_is_under_the_last_micro_batch() -> None:
    """torch reduces under the last backward, of 2 sequences here, and gathers under the first forward, of 3."""
    one, step = pricer("torch"), replace(SHAPE, zero=1)
    slow = replace(RING, bytes_per_second=1e7)
    first, last = (one.micro_batch(step, GROUP, size, slow) for size in (3, 2))
    count = parameters_of(MODEL, layers=8, first=True, last=True, tp=1)
    end = one.traffic.at_end(step, slow, count, first.forward_seconds, last.backward_seconds)
    other = one.traffic.at_end(step, slow, count, first.forward_seconds, first.backward_seconds)
    assert end.hidden_seconds < other.hidden_seconds
    found = one.price(step, (GROUP,), slow)
    assert found.sync_seconds == pytest.approx(end.seconds)
    assert found.hidden_sync_seconds == pytest.approx(end.hidden_seconds)
    in_step = one.in_step_seconds(step, GROUP, slow, first, last)
    assert in_step == pytest.approx(end.seconds + last.backward_seconds + first.forward_seconds)


def test_work_and_synchronisation_of_replicas() -> None:
    """They add up; in step all take as long as the slowest there, and never less than one of them."""
    end = EndTraffic(reduction_seconds=2.0, gather_seconds=1.0, hidden_seconds=9.0)
    one = Replica(work_seconds=10.0, end=end, tied_seconds=0.5, in_step_seconds=4.0)
    assert (one.sync_seconds, one.seconds) == (3.5, 13.5)
    other = Replica(work_seconds=12.0, end=EndTraffic(), tied_seconds=0.0, in_step_seconds=1.0)
    assert common_seconds([one, other]) == 11.0 + 4.0
    assert common_seconds([one, replace(other, in_step_seconds=0.0)]) == 12.0 + 4.0
    assert common_seconds([one]) == 13.5


def test_the_replica_that_synchronises_longest_can_be_the_slowest() -> None:
    """Equal work; the wider batch of one is not what decides, but work and synchronisation together."""
    one, step = pricer("deepspeed"), replace(SHAPE, zero=1)
    fast = ReplicaGroup(pool="p", gpu="A100", tp=1, count=2, local_batch=12, accumulation_steps=3)
    small = ReplicaGroup(pool="p", gpu="A100", tp=1, count=2, local_batch=12, accumulation_steps=12)
    slow = replace(RING, bytes_per_second=1e7)
    found = one.price(step, (fast, small), slow)
    alone = [one.price(step, (group,), slow) for group in (fast, small)]
    seconds = [price.work_seconds + price.sync_seconds for price in alone]
    assert found.slowest == seconds.index(max(seconds))
    assert found.work_seconds + found.sync_seconds == pytest.approx(max(seconds))


@pytest.mark.parametrize("target", ["megatron", "flagscale", "torch", "deepspeed"])
def test_attention_is_unfused_where_the_runtime_has_no_kernel_for_the_device(target: str) -> None:
    """Transformer Engine fuses attention from compute capability 8.0 on; torch's own kernels are older than V100."""
    gpus = {name: GPUS["A100"].model_copy(update={"compute_capability": at}) for name, at in AGES.items()}
    spec = cluster(*(pool(name, name) for name in gpus), gpus=gpus)
    fused, unfused = (
        Pricer(
            Topology(spec), gpt(8, 512, 8, attention=attention, kernels="megatron"), ASSUMED, TARGETS[target]
        )
        for attention in ("flash", "unfused")
    )
    for name in gpus:
        device_type, one = spec_type(fused, name), replace(GROUP, pool=name, gpu=name)
        lacks = name == "old" and target in ("megatron", "flagscale")
        assert fused.runs_unfused(device_type) == lacks
        assert not unfused.runs_unfused(device_type)
        prices = [each.price(SHAPE, (one,), RING) for each in (fused, unfused)]
        same = prices[0].work_seconds == prices[1].work_seconds
        less = fused.memory(SHAPE, one, 4).used_bytes < unfused.memory(SHAPE, one, 4).used_bytes
        assert (same, less) == (lacks, not lacks)


AGES = {"old": 7.0, "new": 8.0, "untold": None}


def spec_type(pricer: Pricer, gpu: str) -> DeviceType:
    """The only type of that pool."""
    return pricer.topology.device_type(gpu, gpu)


def test_runs_of_other_layers_keep_as_much_as_so_many_of_the_models() -> None:
    """By the elements at their inputs, rounded up; none where nothing is trained, as many where they are alike."""
    training = SimpleNamespace(sequence_length=1000)
    pricer = SimpleNamespace(model=SimpleNamespace(kind="own", hidden=16, training=training))

    def kept(layers: int, inputs: int, *, frozen: bool = False, kind: str = "other") -> int:
        made = SimpleNamespace(kind=kind, hidden=30, training=SimpleNamespace(sequence_length=100))
        run = SimpleNamespace(frozen=frozen, kind=made, layers=layers, inputs=inputs)
        return Pricer._kept_layers(cast("Pricer", pricer), cast("LayerRun", run))

    # 3 x 2 x 100 x 30 of 16,000 elements
    assert kept(3, 2) == 2
    assert kept(8, 2) == 3
    assert kept(16, 1) == 3
    assert kept(16, 1, kind="own") == 16
    assert kept(16, 1, kind="own", frozen=True) == kept(16, 1, frozen=True) == 0
