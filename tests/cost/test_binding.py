"""What binds a plan: the fullest device and the links that a step waits for."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.cost.binding import binding
from planner.cost.estimate import Estimator
from planner.plan.values import Plan, ReplicaGroup, Stage
from tests.cases import CASES
from tests.worlds import cluster, gpt, pool

KINDS = (("a", "A100"), ("b", "V100"))
MODEL = gpt(16, 2048, 16, global_batch=64)


def estimator() -> Estimator:
    """Two pools that share slow Ethernet only."""
    pools = (pool(name, gpu, per_node=4, fabric="eth", gbps=10, cards=1) for name, gpu in KINDS)
    return Estimator(cluster(*pools), MODEL)


def pipeline(share: int = 16, steps: int = 8, first: int = 10) -> Plan:
    """A stage on each pool."""
    groups = [
        ReplicaGroup(pool=name, gpu=gpu, tp=1, count=4, local_batch=share, accumulation_steps=steps)
        for name, gpu in KINDS
    ]
    return Plan(
        target="megatron",
        zero=1,
        stages=(
            Stage(first_layer=0, end_layer=first, replicas=(groups[0],)),
            Stage(first_layer=first, end_layer=16, replicas=(groups[1],)),
        ),
    )


def test_more_work_on_the_fullest_device_is_priced_as_in_a_plan() -> None:
    """The next larger micro-batch, and one layer more: the bytes that the plan changed so would take."""
    device = binding(pipeline(), estimator()).device
    memories = [stage.groups[0].memory for stage in estimator().estimate(pipeline()).stages]
    assert device.memory == min(memories, key=lambda memory: memory.headroom_bytes)
    larger = estimator().estimate(pipeline(steps=4)).stages[device.stage].groups[0]
    assert device.next_micro_batch == larger.micro_batch == 4
    more = larger.memory.used_bytes - device.memory.used_bytes
    assert device.next_micro_batch_bytes == pytest.approx(more)
    deeper = pipeline(first=9 if device.stage else 11)
    held = estimator().estimate(deeper).stages[device.stage].groups[0].memory
    assert device.layer_bytes == pytest.approx(held.used_bytes - device.memory.used_bytes)


def test_without_a_pipeline_there_is_no_layer_to_add_nor_beyond_the_whole_share() -> None:
    """Nothing is said where nothing can grow."""
    group = ReplicaGroup(pool="a", gpu="A100", tp=1, count=4, local_batch=16, accumulation_steps=1)
    plan = Plan(target="megatron", zero=1, stages=(Stage(first_layer=0, end_layer=16, replicas=(group,)),))
    device = binding(plan, estimator()).device
    assert device.next_micro_batch is None
    assert device.next_micro_batch_bytes is None
    assert device.layer_bytes is None


def test_a_link_costs_what_the_step_saves_without_it() -> None:
    """Sends and the tied embedding: a NIC a hundred times as fast saves nearly as much, and never more."""
    slow = estimator()
    found = binding(pipeline(), slow)
    sends = next(link for link in found.links if link.traffic == "sends")
    step = slow.estimate(pipeline()).step_seconds
    assert (sends.path, sends.stage) == ("eth", 0)
    assert sends.share == pytest.approx(sends.seconds / step)
    pools = tuple(
        item.model_copy(
            update={
                "nics": tuple(
                    nic.model_copy(update={"bandwidth_gbps": 100 * nic.bandwidth_gbps}) for nic in item.nics
                )
            }
        )
        for item in slow.cluster.pools
    )
    fast = Estimator(slow.cluster.model_copy(update={"pools": pools}), MODEL)
    saved = step - fast.estimate(pipeline()).step_seconds
    tied = next(link for link in found.links if link.traffic == "tied embedding")
    assert tied.path == "eth"
    assert 0.9 * (sends.seconds + tied.seconds) <= saved <= (sends.seconds + tied.seconds) * (1 + 1e-6)


def test_links_come_with_the_most_expensive_first() -> None:
    """One stage on two nodes: its gradients cost what the breakdown says."""
    spec = cluster(pool("a", per_node=2, nodes=2))
    group = ReplicaGroup(pool="a", gpu="A100", tp=2, count=2, local_batch=32, accumulation_steps=8)
    plan = Plan(target="megatron", zero=1, stages=(Stage(first_layer=0, end_layer=16, replicas=(group,)),))
    plan = replace(plan, sequence_parallel=True)
    found = binding(plan, Estimator(spec, MODEL))
    causes = Estimator(spec, MODEL).estimate(plan).breakdown
    seconds = {link.traffic: link.seconds for link in found.links}
    assert seconds["gradients"] == pytest.approx(causes.gradient_sync_seconds)
    assert seconds["tensor-parallel collectives"] == pytest.approx(causes.tensor_parallel_seconds)
    assert list(seconds.values()) == sorted(seconds.values(), reverse=True)


def test_a_plan_without_traffic_waits_for_no_link() -> None:
    """One device."""
    group = ReplicaGroup(pool="a", gpu="A100", tp=1, count=1, local_batch=64, accumulation_steps=64)
    plan = Plan(target="megatron", zero=0, stages=(Stage(first_layer=0, end_layer=16, replicas=(group,)),))
    assert binding(plan, estimator()).links == ()


def test_a_step_waits_for_its_hosts() -> None:
    """For what they update, and for copies that nothing hides; nothing of either where all is on devices."""
    on_devices, on_hosts = (CASES[name] for name in ("fp32", "optimizer on the host"))
    for case, told in ((on_devices, False), (on_hosts, True)):
        seen = Estimator(case.on, case.model, case.by)
        found = {link.traffic: link for link in binding(case.whole, seen).links if link.path == "host"}
        assert bool(found) is told
        causes = seen.estimate(case.whole).breakdown
        if told:
            assert found["updates on the host"].seconds == pytest.approx(causes.optimizer_seconds)
            assert found["copies to and from the host"].seconds == pytest.approx(causes.offload_seconds)
