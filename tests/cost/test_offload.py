"""Offload: copies, the optimizer on the host, memory, and what the papers measured."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise, product
from pathlib import Path

import numpy as np
import pytest

from planner.calibration.values import ASSUMED_FRAMEWORK
from planner.capabilities import Recompute
from planner.catalog import gpu_spec
from planner.cluster.spec import ClusterSpec, HostSpec
from planner.cluster.topology import DeviceType, Topology
from planner.cost.compute import model_flops
from planner.cost.estimate import Estimator, estimate
from planner.cost.memory import (
    SUB_GROUPS,
    SWAP_BUFFERS,
    SWAPPED_ELEMENTS,
    SWAPPED_TENSORS,
    largest_tensor,
)
from planner.cost.offload import UPDATES_PER_SECOND, Held, copies, host_optimizer_seconds
from planner.cost.shape import shape_of
from planner.cost.values import Estimate, Memory
from planner.dims.offloading import offloads
from planner.errors import PlanError
from planner.model.file import load_model
from planner.model.spec import ExpertsSpec, ModelSpec
from planner.plan.checks import faults
from planner.plan.values import ON_DEVICE, Offload, Plan, ReplicaGroup, Stage
from planner.targets import target
from tests.worlds import cluster, gpt, group, plan, pool

MODELS = Path(__file__).parents[2] / "model_specs"
V100 = gpu_spec("V100-SXM-32GB")
STATES = Offload(optimizer="cpu")
ALL = Offload(optimizer="cpu", parameters="cpu", activations="cpu")
NVME = Offload(optimizer="nvme", parameters="nvme")
HOST = HostSpec(link_gBps=10, all_links_gBps=20, nvme_gBps=8)
"""Four devices have 5 GB/s each of host memory and 2 of NVMe."""


def machine(host: HostSpec | None = HOST, devices: int = 4) -> ClusterSpec:
    """One node of V100 that keep nothing free."""
    one = pool("a", V100.name, per_node=devices).model_copy(update={"host": host, "reserve_gib": 0.0})
    return cluster(one, gpus={V100.name: V100})


def device_type(host: HostSpec | None = HOST, devices: int = 4) -> DeviceType:
    """Its devices."""
    return Topology(machine(host, devices)).device_types[0]


def held(zero: int = 2, *, ways: int = 4, parameters: float = 4e9) -> Held:
    """A shard of a billion parameters, two layers of fp16, two sequences."""
    return Held(
        shard=parameters / ways,
        gathered=parameters / ways,
        zero=zero,
        gradient_bytes=2,
        layers=2,
        sequences=2,
        token_ways=1,
        recomputes=True,
    )


def moved(offload: Offload, shard: Held, host: HostSpec | None = HOST) -> tuple[float, float, float]:
    """Seconds in a forward, in a backward, at the end of the step."""
    found = copies(offload, shard, device_type(host), gpt(), target("deepspeed"))
    return found.forward_seconds, found.first_backward_seconds, found.step_seconds


def data_parallel(offload: Offload, zero: int = 3, devices: int = 4, batch: int = 16) -> Plan:
    """One stage on all devices, four sequences in a micro-batch, full recomputation."""
    share = batch // devices
    group = ReplicaGroup(
        pool="a", gpu=V100.name, tp=1, count=devices, local_batch=share, accumulation_steps=-(-share // 4)
    )
    stage = Stage(first_layer=0, end_layer=24, replicas=(group,), recompute="full")
    return Plan(target="deepspeed", zero=zero, stages=(stage,), offload=offload)


def priced(offload: Offload, host: HostSpec = HOST, zero: int = 3) -> Estimate:
    """The estimate of such a plan for a model of 1.3 billion parameters."""
    return estimate(data_parallel(offload, zero), machine(host), gpt(global_batch=16))


def memory_of(offload: Offload, zero: int = 3, host: HostSpec = HOST) -> Memory:
    """Its memory."""
    return priced(offload, host, zero).stages[0].groups[0].memory


def test_nothing_offloaded_copies_nothing() -> None:
    """And needs to know no host."""
    assert moved(ON_DEVICE, held(), None) == (0.0, 0.0, 0.0)


def test_gradients_leave_and_new_parameters_come() -> None:
    """Two bytes each at 5 GB/s: 0.4 s; in later micro-batches the sum comes back and leaves again."""
    assert moved(STATES, held()) == pytest.approx((0.0, 0.4, 0.4))
    again = copies(STATES, held(), device_type(), gpt(), target("deepspeed")).backward_seconds
    assert again == pytest.approx(2 * 0.4)
    assert moved(STATES, held(zero=1)) == pytest.approx((0.0, 0.0, 0.8))


def test_parameters_are_read_for_every_gather() -> None:
    """Forward, recomputation, backward; updated where they rest, they do not move after the step."""
    assert moved(Offload(optimizer="cpu", parameters="cpu"), held(zero=3)) == pytest.approx((0.4, 1.2, 0.0))
    once = replace(held(zero=3), recomputes=False)
    assert moved(Offload(optimizer="cpu", parameters="cpu"), once) == pytest.approx((0.4, 0.8, 0.0))
    assert moved(NVME, held(zero=3)) == pytest.approx((1.0, 2.0 + 0.4, 1.0))


def test_checkpoints_leave_in_the_forward_and_return_in_the_backward() -> None:
    """Two bytes for each of 2 x 1024 tokens x 2048, in two layers."""
    seconds = 2 * 2 * 2048 * 2048 / 5e9
    assert moved(Offload(activations="cpu"), held()) == pytest.approx((seconds, seconds, 0.0))


def test_devices_that_deal_tokens_move_parts_of_a_checkpoint() -> None:
    """With sequence parallelism; without it each device of a replica has all of it."""
    kept, one = Offload(activations="cpu"), gpt()
    where = machine(HostSpec(link_gBps=0.01), 2)
    group = ReplicaGroup(pool="a", gpu=V100.name, tp=2, count=1, local_batch=64, accumulation_steps=8)
    stage = Stage(first_layer=0, end_layer=one.layers, replicas=(group,), recompute="full")
    plan = Plan(target="torch", zero=0, stages=(stage,), offload=kept)
    whole, dealt = (
        estimate(replace(plan, sequence_parallel=split), where, one).breakdown.offload_seconds
        for split in (False, True)
    )
    # Eight micro-batches, two ways, two bytes.
    assert whole == pytest.approx(8 * 2 * one.layers * 8 * 1024 * one.hidden * 2 / 0.01e9)
    assert dealt == pytest.approx(whole / 2)


def test_kernels_of_torch_wait_for_checkpoints() -> None:
    """In both directions, however long the work is; DeepSpeed's copies go beside it, and no plan is free of both."""
    seconds = 2 * 2 * 2048 * 2048 / 5e9
    kept, one = Offload(activations="cpu"), device_type(HostSpec(link_gBps=5))
    waited = copies(kept, held(), one, gpt(), target("torch"))
    assert waited.waits(9.0, 9.0, 1.0) == pytest.approx((seconds,) * 3)
    assert waited.hidden(9.0, 9.0, 1.0) == pytest.approx(0.0)
    beside = copies(kept, held(), one, gpt(), target("deepspeed"))
    assert beside.waits(9.0, 9.0, 1.0) == (0.0, 0.0, 0.0)
    assert beside.hidden(9.0, 9.0, 1.0) == pytest.approx(2 * seconds)


def test_the_link_of_a_device_or_the_whole_host_is_the_limit() -> None:
    """The catalogue's wire reaches 12 GB/s on PCIe 3; NVMe lies behind the link."""
    assert device_type(None).host.bytes_per_second == pytest.approx(11.97e9)
    assert device_type(HostSpec(link_gBps=10)).host.bytes_per_second == 10e9
    assert device_type(HostSpec(all_links_gBps=20)).host.bytes_per_second == 5e9
    assert device_type(HostSpec(all_links_gBps=400)).host.bytes_per_second == pytest.approx(11.97e9)
    fast = HostSpec(link_gBps=10, nvme_gBps=400)
    assert moved(NVME, held(zero=3), fast)[0] == pytest.approx(0.2)


def test_unknown_hosts_are_refused() -> None:
    """No number is made up."""
    unknown = replace(device_type(), host=replace(device_type().host, bytes_per_second=None))
    with pytest.raises(PlanError, match="not known how fast V100-SXM-32GB in pool a reaches"):
        copies(STATES, held(), unknown, gpt(), target("deepspeed"))
    with pytest.raises(PlanError, match="the nodes of pool a have no NVMe"):
        moved(NVME, held(zero=3), HostSpec())


def test_adam_on_the_host_of_a_dgx2() -> None:
    """Table 4 of arXiv:2101.06840: CPU-Adam for 1, 2, 4, 8 and 10 billion parameters."""
    seconds = (0.22, 0.51, 1.03, 2.41, 2.57)
    for billions, measured in zip((1, 2, 4, 8, 10), seconds, strict=True):
        shard = held(ways=1, parameters=billions * 1e9)
        found = host_optimizer_seconds(STATES, shard, device_type(devices=1), gpt(), target("deepspeed"))
        assert found == pytest.approx(measured, rel=0.2)


def test_the_host_updates_for_all_its_devices() -> None:
    """Four shards take four times as long as one; the user's own rate wins; SGD has a state less."""
    row, shard = target("deepspeed"), held()
    alone, together = (
        host_optimizer_seconds(STATES, shard, device_type(HOST, n), gpt(), row) for n in (1, 4)
    )
    assert together == pytest.approx(4 * alone)
    own = device_type(HostSpec(adam_billion_per_s=2))
    assert host_optimizer_seconds(STATES, shard, own, gpt(), row) == pytest.approx(2.0)
    sgd = gpt(optimizer="sgd")
    assert host_optimizer_seconds(STATES, shard, own, sgd, row) == pytest.approx(2.0 * 16 / 24)


def test_states_on_nvme_are_read_and_written() -> None:
    """12 bytes each way at 2 GB/s a device, the processors meanwhile."""
    found = host_optimizer_seconds(NVME, held(), device_type(), gpt(), target("deepspeed"))
    assert found == pytest.approx(2 * 12e9 / 2e9)


@pytest.mark.parametrize("offload", [STATES, ALL, NVME])
@pytest.mark.parametrize("link", [0.1, 1.0, 100.0])
def test_causes_add_up(offload: Offload, link: float) -> None:
    """At any speed of the link."""
    found = priced(offload, HostSpec(all_links_gBps=4 * link, nvme_gBps=8))
    assert found.breakdown.step_seconds == pytest.approx(found.step_seconds)


def test_copies_hide_beside_computation() -> None:
    """All on a fast link but what a runtime never hides of gradients; on a slow one a step takes as long as copies."""
    plain, fast = priced(ON_DEVICE), priced(ALL, HostSpec(all_links_gBps=400))
    rate = device_type(HostSpec(all_links_gBps=400)).host.bytes_per_second
    assert rate is not None
    leaving = gpt().parameters / 4 * 2 / rate
    exposed = 2 * (1 - ASSUMED_FRAMEWORK.overlap) * leaving
    assert fast.stages[0].backward_seconds - plain.stages[0].backward_seconds == pytest.approx(exposed)
    assert 0.0 < fast.breakdown.offload_seconds < exposed
    assert fast.breakdown.hidden_seconds > plain.breakdown.hidden_seconds
    assert fast.stages[0].forward_seconds == plain.stages[0].forward_seconds
    slow = priced(ALL, HostSpec(all_links_gBps=0.4))
    shard = gpt().parameters / 4 * 2 / 0.1e9
    assert slow.step_seconds > 4 * shard
    assert slow.breakdown.offload_seconds > 0.5 * slow.step_seconds


def test_what_leaves_a_device_is_in_its_hosts_memory() -> None:
    """ZeRO 3 over four devices: of states, of gradients and their sums, of weights 12, 6 and 2 bytes of a quarter."""
    plain, off = memory_of(ON_DEVICE), memory_of(ALL)
    assert (plain.host_bytes, off.host_capacity_bytes) == (0.0, float("inf"))
    assert (off.parameters_bytes, off.gradients_bytes, off.optimizer_bytes) == (0.0, 0.0, 0.0)
    kept = plain.activations_bytes - off.activations_bytes
    assert kept == pytest.approx(22 * 2 * 4 * 1024 * 2048)
    assert off.host_bytes == pytest.approx(gpt().parameters / 4 * 20 + kept * 24 / 22)
    states = memory_of(STATES)
    assert states.parameters_bytes == plain.parameters_bytes
    assert states.host_bytes == pytest.approx(gpt().parameters / 4 * 18)
    part = largest_tensor(gpt()) / 4
    buffers = 4.0 * SWAP_BUFFERS * (SWAPPED_ELEMENTS + part) + 2.0 * SWAPPED_TENSORS * part
    assert memory_of(NVME).host_bytes == pytest.approx(gpt().parameters / 4 * 2 + buffers)


@pytest.mark.parametrize(
    ("precision", "zero", "held_bytes"),
    [("fp16", 1, 18), ("fp16", 2, 20), ("fp16", 3, 18), ("fp32", 1, 20), ("fp32", 2, 24), ("fp32", 3, 20)],
)
def test_a_host_holds_what_deepspeed_has_there(precision: str, zero: int, held_bytes: int) -> None:
    """Weights, moments and gradients in fp32; of the working format new weights, and sums of gradients in ZeRO 2 and 3.

    As counted in engines of DeepSpeed 0.19.8 whose optimizer is offloaded, with two micro-batches a step.
    """
    trained = gpt(global_batch=16, precision=precision)
    found = estimate(data_parallel(STATES, zero), machine(), trained).stages[0].groups[0].memory
    assert found.host_bytes == pytest.approx(trained.parameters / 4 * held_bytes)


def test_zero_1_keeps_its_gradients_on_the_device() -> None:
    """They leave once, after the last backward; the fp32 copy is the host's."""
    plain, off = memory_of(ON_DEVICE, 1), memory_of(STATES, 1)
    assert off.gradients_bytes == plain.gradients_bytes
    copy, freed = gpt().parameters / 4 * 4, plain.activations_bytes + plain.logits_bytes
    assert plain.buffers_bytes - off.buffers_bytes == pytest.approx(max(0.0, copy - freed))


def test_host_memory_is_checked_when_it_is_given() -> None:
    """Each device has an equal share."""
    small = memory_of(ALL, host=HOST.model_copy(update={"memory_gib": 16.0}))
    assert small.host_capacity_bytes == 4 * 2**30
    assert small.headroom_bytes > 0
    assert not small.fits
    assert memory_of(ALL, host=HOST.model_copy(update={"memory_gib": 64.0})).fits


def fits_alone(model: ModelSpec, offload: Offload, zero: int) -> bool:
    """Whether one V100 with 32 GB trains the model, a sequence at a time.

    DDP has room for all gradients in its buckets, as torch's ZeRO 0 has over several micro-batches.
    """
    name, steps = ("deepspeed", 1) if zero else ("torch", 2)
    model = model.trained_with(global_batch=steps)
    group = ReplicaGroup(pool="a", gpu=V100.name, tp=1, count=1, local_batch=steps, accumulation_steps=steps)
    stage = Stage(first_layer=0, end_layer=model.layers, replicas=(group,), recompute="full")
    plan = Plan(target=name, zero=zero, stages=(stage,), offload=offload)
    return estimate(plan, machine(None, 1), model).fits


def test_the_largest_models_of_one_v100() -> None:
    """Figure 7 of arXiv:2101.06840: 1.4 billion parameters with DDP, 13 with ZeRO-Offload."""
    small, more = (gpt(layers, 2048, 16, global_batch=1) for layers in (26, 32))
    assert (small.parameters / 1e9, more.parameters / 1e9) == pytest.approx((1.4, 1.7), abs=0.05)
    assert fits_alone(small, ON_DEVICE, 0)
    assert not fits_alone(more, ON_DEVICE, 0)
    large, too_large = (gpt(layers, 4096, 32, global_batch=1) for layers in (64, 80))
    assert (large.parameters / 1e9, too_large.parameters / 1e9) == pytest.approx((13.1, 16.3), abs=0.05)
    assert fits_alone(large, STATES, 2)
    assert not fits_alone(large, ON_DEVICE, 2)
    assert not fits_alone(too_large, STATES, 2)


def test_states_of_a_pipeline_in_host_memory() -> None:
    """Megatron updates each stage's shard on the host after the last backward, interleaved or not."""
    stages = tuple(
        Stage(
            first_layer=first,
            end_layer=first + 12,
            replicas=(
                ReplicaGroup(pool="a", gpu=V100.name, tp=1, count=2, local_batch=8, accumulation_steps=8),
            ),
        )
        for first in (0, 12)
    )
    model = gpt(global_batch=16)
    for chunks in (1, 2):
        plain = Plan(target="megatron", zero=1, stages=stages, interleave=chunks)
        before, after = (
            estimate(item, machine(), model)
            for item in (plain, replace(plain, offload=Offload(optimizer="cpu")))
        )
        shard = (12 * model.layer_parameters + model.embedding_parameters) / 2
        update = 4 * shard / UPDATES_PER_SECOND
        assert after.breakdown.optimizer_seconds == pytest.approx(update, rel=0.01)
        assert after.breakdown.offload_seconds == 0.0
        assert after.breakdown.step_seconds == pytest.approx(after.step_seconds)
        assert after.stages[0].forward_seconds == before.stages[0].forward_seconds


HALF = replace(STATES, ratio=0.5)


def test_the_host_updates_its_share_and_takes_all_gradients() -> None:
    """New parameters come from where they were updated to where they rest."""
    quarter, shard = replace(STATES, ratio=0.25), held(zero=3)
    whole, part = (
        host_optimizer_seconds(each, shard, device_type(), gpt(), target("deepspeed"))
        for each in (STATES, quarter)
    )
    assert part == pytest.approx(whole / 4)
    assert moved(quarter, shard) == pytest.approx((0.0, 0.4, 0.1))
    assert moved(replace(quarter, parameters="cpu"), shard) == pytest.approx((0.4, 1.2, 0.3))


def test_the_device_keeps_the_rest() -> None:
    """Weights, gradients and moments in fp32; as whole tensors are dealt, a group and the largest tensor more."""
    shard, part = gpt().parameters / 4, largest_tensor(gpt()) / 4
    plain, half = memory_of(STATES), memory_of(HALF)
    assert half.optimizer_bytes == pytest.approx(16 * (shard / 2 + shard / SUB_GROUPS + part))
    assert half.host_bytes == pytest.approx(shard * (16 / 2 + 2))
    assert (half.parameters_bytes, half.gradients_bytes) == (plain.parameters_bytes, plain.gradients_bytes)
    all_but_nothing = memory_of(replace(STATES, ratio=0.01))
    assert all_but_nothing.optimizer_bytes == pytest.approx(16 * shard)


def test_smaller_shares_take_less_time_and_more_of_the_device() -> None:
    """The device updates beside the host, and long before it is done; nothing else of a step changes."""
    found = [priced(replace(STATES, ratio=tenths / 10)) for tenths in range(1, 11)]
    memories = [each.stages[0].groups[0].memory for each in found]
    for (less, more), (wide, narrow) in zip(pairwise(found), pairwise(memories), strict=True):
        assert less.step_seconds < more.step_seconds
        assert less.breakdown.compute_seconds == more.breakdown.compute_seconds
        assert wide.optimizer_bytes > narrow.optimizer_bytes
        assert wide.host_bytes < narrow.host_bytes
    for number, each in enumerate(found, 1):
        whole = found[-1].breakdown.optimizer_seconds
        assert each.breakdown.optimizer_seconds == pytest.approx(number / 10 * whole)
        assert each.breakdown.step_seconds == pytest.approx(each.step_seconds)
    tiny = priced(replace(STATES, ratio=0.01)).breakdown.optimizer_seconds
    assert tiny > 0.01 * found[-1].breakdown.optimizer_seconds


def test_tensors_are_copied_beside_the_updates_of_others() -> None:
    """Four bytes each way at 5 GB/s, 0.8 s: hidden by a slow host, as long as the step of a fast one."""
    shard, half = held(zero=1), replace(STATES, ratio=0.5)
    row = target("megatron")
    assert copies(half, shard, device_type(), gpt(), row).step_seconds == 0.0
    for rate, seconds in ((1.0, 2.0), (100.0, 0.4)):
        one = device_type(HOST.model_copy(update={"adam_billion_per_s": rate}))
        assert host_optimizer_seconds(half, shard, one, gpt(), row) == pytest.approx(seconds)


@pytest.mark.parametrize(("precision", "states", "gradient"), [("fp16", 12, 4), ("fp32", 8, 0)])
def test_megatrons_device_keeps_no_more_than_its_share(precision: str, states: int, gradient: int) -> None:
    """The host has the tensor with which it passes its own, and what is built for whole parameters first."""
    chosen = replace(data_parallel(STATES, 1), target="megatron")
    found = []
    for ratio in (1.0, 0.4):
        plan = replace(chosen, offload=replace(STATES, ratio=ratio))
        spec = gpt(global_batch=16, precision=precision)
        found.append(estimate(plan, machine(), spec).stages[0].groups[0].memory)
    shard, part = gpt().parameters / 4, largest_tensor(gpt()) / 4
    whole = 4 * (6 if precision == "fp16" else 4)
    assert (found[0].optimizer_bytes, found[0].host_bytes) == pytest.approx((0.0, whole * shard))
    assert found[1].optimizer_bytes == pytest.approx(0.6 * (states + gradient) * shard)
    assert found[1].host_bytes == pytest.approx(max(whole * 0.4 * shard, 16 * (0.4 * shard + part)))
    assert found[1].gradients_bytes == found[0].gradients_bytes


@pytest.mark.parametrize(
    ("routed", "recompute", "able"),
    [(True, "selective", False), (True, "full", True), (False, "selective", True)],
)
def test_weights_in_fp8_alone_are_cast_by_earlier_scales(
    routed: bool, recompute: Recompute, able: bool
) -> None:
    """Megatron's hosts update them so, which what it discards of experts is not; a search proposes no such plan."""
    card = gpu_spec("H100-SXM-80GB")
    where = cluster(pool("a", card.name, per_node=2), gpus={card.name: card})
    spec = gpt(8, 512, 8, global_batch=2, precision="fp8")
    experts = ExpertsSpec(number=2, top_k=1, ffn=512) if routed else None
    spec = spec.model_copy(update={"experts": experts, "mlp_bias": False})
    group = ReplicaGroup(pool="a", gpu=card.name, tp=1, count=2, local_batch=1, accumulation_steps=1)
    stage = Stage(first_layer=0, end_layer=8, replicas=(group,), recompute=recompute)
    chosen = Plan(target="megatron", zero=1, stages=(stage,), offload=STATES)
    what = "megatron updates fp8 weights on hosts with delayed scaling, expected recompute none or full"
    assert (what not in [fault.what for fault in faults(chosen, where, spec)]) == able
    row, devices = target("megatron"), Topology(where).device_types
    assert bool(offloads(row, 1, recompute, ("optimizer",), spec, devices, stages=True)) == able


GH200 = gpu_spec("GH200-96GB")
SMALL = gpt(global_batch=4, precision="bf16")
"""1.3 billion parameters."""


def superchip(offload: Offload, host: HostSpec | None = None, spec: ModelSpec = SMALL) -> Estimate:
    """Such a model on one GH200 with ZeRO 3, four sequences a step."""
    one = pool("a", GH200.name, per_node=1).model_copy(update={"host": host})
    group = ReplicaGroup(pool="a", gpu=GH200.name, tp=1, count=1, local_batch=4, accumulation_steps=1)
    stage = Stage(first_layer=0, end_layer=spec.layers, replicas=(group,), recompute="full")
    chosen = Plan(target="deepspeed", zero=3, stages=(stage,), offload=offload)
    return estimate(chosen, cluster(one, gpus={GH200.name: GH200}), spec)


AHEAD = replace(STATES, super_offload=True)


@pytest.mark.parametrize("rate", [None, 0.5, 3.0])
@pytest.mark.parametrize("ratio", [0.5, 1.0])
def test_superoffload_updates_beside_the_last_backward(rate: float | None, ratio: float) -> None:
    """All but what is longer than the backward, and the last sub-group; what is hidden is told."""
    host = HostSpec(adam_billion_per_s=rate) if rate else None
    plain, ahead = (superchip(replace(each, ratio=ratio), host) for each in (STATES, AHEAD))
    saved = plain.step_seconds - ahead.step_seconds
    update, left = plain.breakdown.optimizer_seconds, ahead.breakdown.optimizer_seconds
    assert saved == pytest.approx(update - left)
    assert ahead.breakdown.hidden_seconds - plain.breakdown.hidden_seconds == pytest.approx(saved)
    assert ahead.breakdown.step_seconds == pytest.approx(ahead.step_seconds)
    assert 0.0 < saved <= ahead.stages[0].backward_seconds
    if rate == 0.5:
        assert left == pytest.approx(update - saved)
        assert saved > 0.9 * ahead.stages[0].backward_seconds
    assert ahead.stages[0].groups[0].memory == plain.stages[0].groups[0].memory


def test_adam_on_a_grace() -> None:
    """Figure 5 of the announcement of SuperOffload, for 1, 2, 4 and 8 billion parameters; two devices share one."""
    for billions, measured in zip((1, 2, 4, 8), (0.082, 0.160, 0.316, 0.608), strict=True):
        shard, updated = held(ways=1, parameters=billions * 1e9), []
        for gpu, count in ((GH200, 1), (GH200, 4), (gpu_spec("GB200"), 4)):
            node = cluster(pool("a", gpu.name, per_node=count), gpus={gpu.name: gpu})
            one = Topology(node).device_types[0]
            updated.append(host_optimizer_seconds(STATES, shard, one, gpt(), target("deepspeed")))
        assert updated == pytest.approx([measured, measured, 2 * measured], rel=0.05)


@pytest.mark.parametrize(
    ("gpu", "shape", "published"),
    [("H100-SXM-80GB", (48, 7168, 56), 6.1), ("A100-SXM-40GB", (40, 5120, 40), 3.0)],
)
def test_announced_gains_of_a_share(gpu: str, shape: tuple[int, int, int], published: float) -> None:
    """ZeRO-Offload++ of OPT-30B and OPT-13B on eight devices; nobody says the batches, and small ones gain more."""
    machines = cluster(pool("a", gpu, per_node=8), gpus={gpu: gpu_spec(gpu)})
    gains = []
    for length, sequences in ((512, 1), (2048, 4)):
        spec = gpt(*shape, global_batch=8 * sequences, sequence_length=length)
        one = ReplicaGroup(pool="a", gpu=gpu, tp=1, count=8, local_batch=sequences, accumulation_steps=1)
        stage = Stage(first_layer=0, end_layer=shape[0], replicas=(one,), recompute="full")
        whole = Plan(target="deepspeed", zero=3, stages=(stage,), offload=STATES)
        shares = (replace(whole, offload=replace(STATES, ratio=r / 100)) for r in range(1, 100))
        found = (estimate(each, machines, spec) for each in shares)
        fastest = next(each.step_seconds for each in found if each.fits)
        gains.append(estimate(whole, machines, spec).step_seconds / fastest)
    assert gains[1] < published < 1.15 * gains[0]


def test_announced_gains_of_superoffload() -> None:
    """Phi-4 with four sequences of 4,096 tokens: about half as much again as ZeRO-Offload, at up to 600 TFLOP/s."""
    spec = load_model(MODELS / "phi_4.yaml")
    training = spec.training.model_copy(update={"global_batch": 4, "sequence_length": 4096})
    spec = spec.model_copy(update={"training": training})
    plain, ahead = (superchip(each, spec=spec) for each in (STATES, AHEAD))
    assert ahead.fits
    assert 1.3 < plain.step_seconds / ahead.step_seconds < 1.7
    assert 4 / 3 * model_flops(spec) / ahead.step_seconds == pytest.approx(600e12, rel=0.1)


def test_divided_experts_have_fewer_hosts_that_update_them() -> None:
    """Two of four devices have the same experts: what is theirs is shared by two, all else by four."""
    experts = ExpertsSpec(number=4, top_k=1, ffn=4096)
    spec = gpt(4, global_batch=4).model_copy(update={"experts": experts})
    group = ReplicaGroup(pool="a", gpu=V100.name, tp=1, count=4, local_batch=1, accumulation_steps=1)
    stage = Stage(first_layer=0, end_layer=4, replicas=(group,))
    plan = Plan(target="megatron", zero=1, stages=(stage,), ep=2, offload=STATES)
    found = estimate(plan, machine(), spec)
    parted = 4 * spec.expert_parameters
    shard = (spec.parameters - parted) / 4 + parted / 2 / 2
    update = 4 * shard / UPDATES_PER_SECOND
    assert found.breakdown.optimizer_seconds == pytest.approx(update, rel=0.01)
    on_device = estimate(replace(plan, offload=ON_DEVICE), machine(), spec).stages[0].groups[0].memory
    # Moments and the copy in fp32; gradients of two bytes beside them.
    assert on_device.optimizer_bytes == pytest.approx(12 * shard)
    # Megatron builds it for the whole parameters of each device first.
    whole = spec.parameters - parted / 2
    assert found.stages[0].groups[0].memory.host_bytes == pytest.approx(max((12 + 4) * shard, 6 * whole))


def test_checkpoints_of_dense_layers_ahead_leave_with_the_others() -> None:
    """Copied like those of layers with experts; on the device two are left in any case."""
    experts = ExpertsSpec(number=4, top_k=1, ffn=4096)
    group = ReplicaGroup(pool="a", gpu=V100.name, tp=1, count=1, local_batch=4, accumulation_steps=1)
    stage = Stage(first_layer=0, end_layer=4, replicas=(group,), recompute="full")
    found = []
    for dense, offload in product((0, 8), (ON_DEVICE, Offload(activations="cpu"))):
        spec = gpt(4, global_batch=4).model_copy(update={"experts": experts, "dense_layers": dense})
        plan = Plan(target="deepspeed", zero=0, stages=(stage,), offload=offload)
        found.append(estimate(plan, machine(HostSpec(link_gBps=0.01), 1), spec))
    bare, bare_kept, ahead, ahead_kept = found
    one = 2 * gpt().hidden * 4 * gpt().training.sequence_length
    memory = [each.stages[0].groups[0].memory for each in found]
    assert memory[2].activations_bytes - memory[0].activations_bytes >= 8 * one
    assert memory[3].host_bytes - memory[1].host_bytes == 8 * one
    assert memory[2].activations_bytes - memory[3].activations_bytes == (8 + 4 - 2) * one
    copied = ahead_kept.breakdown.offload_seconds + ahead_kept.breakdown.hidden_seconds
    copied -= bare_kept.breakdown.offload_seconds + bare_kept.breakdown.hidden_seconds
    copied -= ahead.breakdown.hidden_seconds - bare.breakdown.hidden_seconds
    assert copied == pytest.approx(2 * 8 * one / 0.01e9, rel=1e-6)


def test_full_recomputation_reads_offloaded_parameters_a_third_time() -> None:
    """Forward, forward again and backward; each reading takes as long."""
    slow = HostSpec(link_gBps=0.5, all_links_gBps=1, nvme_gBps=8)
    again = data_parallel(Offload(optimizer="cpu", parameters="cpu"))
    once = replace(again, stages=(replace(again.stages[0], recompute="none"),))
    moved = []
    for each in (again, once):
        causes = estimate(each, machine(slow), gpt(global_batch=16)).breakdown
        moved.append(causes.offload_seconds + causes.hidden_seconds)
    one_reading = 2 * gpt().layer_parameters * 24 / 4 / 0.25e9
    assert moved[0] - moved[1] == pytest.approx(one_reading, rel=0.2)


@pytest.mark.parametrize(
    ("target", "offload", "zero"),
    [
        ("deepspeed", Offload(parameters="cpu", optimizer="cpu"), 3),
        ("deepspeed", Offload(optimizer="cpu"), 2),
        ("torch", Offload(parameters="cpu", optimizer="cpu"), 3),
        ("megatron", Offload(optimizer="cpu"), 1),
    ],
)
def test_copies_of_many_micro_batches_are_those_of_each(target: str, offload: Offload, zero: int) -> None:
    """Of one, two and three sequences at once: as each of them alone, beside the same work without copies."""
    nodes = pool("a", per_node=4).model_copy(update={"host": HostSpec(memory_gib=1000, link_gBps=8)})
    estimator = Estimator(cluster(nodes), gpt(8, 2048, 16, global_batch=32))
    replicas = group("a", "A100", count=4, share=8, steps=2)
    chosen = plan(target, zero, [8], [(replicas,)], offload=offload)
    pricer, (ring,), shape = estimator.pricer_of(chosen), estimator.price(chosen).rings, shape_of(chosen, 0)
    bare, alone = (
        [pricer.micro_batch(each, replicas, size, ring) for size in (1, 2, 3)]
        for each in (replace(shape, offload=Offload()), shape)
    )
    forward, backward = (
        np.array([getattr(each, f"{name}_seconds") for each in bare]) for name in ("forward", "backward")
    )
    found = pricer.each_copied(shape, replicas, 4, forward, backward)
    assert found[0] == pytest.approx([each.forward_seconds for each in alone])
    assert found[1] == pytest.approx([each.backward_seconds for each in alone])
