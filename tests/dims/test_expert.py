"""Expert parallelism: what a plan may say of it, and what it divides."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from planner.calibration.values import ASSUMED, LinkPoint
from planner.cluster.topology import Topology
from planner.cost.communication import all_to_all_seconds, tensor_ring
from planner.cost.compute import expert_imbalance, expert_products, expert_rows, kept_rows
from planner.cost.estimate import Estimator, estimate
from planner.cost.measured_curves import LinkCurves
from planner.cost.shape import shapes_of
from planner.dims.expert import ExpertParallelism, divides_at, holds_experts
from planner.errors import PlanError
from planner.model.spec import ModelSpec, PreferenceSpec
from planner.plan.checks import faults
from planner.plan.values import Folding, Offload, Plan, Sync, ZeroPlus
from planner.search.space.choices import usable_device_types
from planner.targets import TARGETS
from tests.worlds import GPUS, cluster, group, model, plan, pool

EXPERTS = {"number": 8, "top_k": 2, "ffn": 48}
CLUSTER = cluster(pool("a", "A100", 2), pool("b", "T4", 1))


def mixture(**changes: Any) -> ModelSpec:
    """A model with eight experts a layer."""
    return model(16, layers=4, gated_mlp=True, precision="fp16", **{"experts": EXPERTS, **changes})


def spread(*, dp: int = 8, tp: int = 1, target: str = "megatron", gpu: str = "A100", **changes: Any) -> Plan:
    """One stage of equal replicas."""
    where = {"A100": "a", "T4": "b"}[gpu]
    replicas = (group(where, gpu, tp=tp, count=dp, share=16 // dp, steps=16 // dp),)
    zero = changes.pop("zero", 1)
    return plan(target, zero, [4], [replicas], **{"sequence_parallel": tp > 1, **changes})


UNEQUAL = replace(group("b", "T4", count=4, share=2), shard=2)
SOME = replace(TARGETS["torch"], experts_zero=(0, 1), experts_in_pipeline=False)
"""A runtime that divides experts in some plans alone."""


@pytest.mark.parametrize(
    ("zero", "stages", "what"),
    [
        (1, 1, []),
        (2, 1, ["torch divides experts with ZeRO 0, 1 only, expected 1, got 2"]),
        (1, 2, ["torch keeps all experts on every device in a pipeline, expected 1, got 2"]),
    ],
)
def test_where_some_runtimes_divide_experts(zero: int, stages: int, what: list[str]) -> None:
    """Not with all ZeRO stages, nor in pipelines; and a search looks at no others."""
    replicas = (group("a", "A100", count=4, share=4),)
    chosen = plan("torch", zero, [4 // stages] * stages, [replicas] * stages, ep=2)
    assert [fault.what for fault in ExpertParallelism().rules(chosen, SOME, mixture())] == what
    assert divides_at(SOME, zero, chosen.offload) is (zero < 2)


@pytest.mark.parametrize(
    ("chosen", "spec", "what"),
    [
        (spread(ep=2), mixture(experts=None), "the model tiny has no experts, expected 1, got 2"),
        (spread(ep=16, dp=16), mixture(), "ep 16 does not divide the 8 experts of a layer"),
        (
            spread(dp=4, tp=2),
            mixture(),
            "expected whole replicas to share experts, ep x etp a multiple of tp 2, got 1 x 1",
        ),
        (
            spread(dp=4, tp=2, ep=2, sequence_parallel=False),
            mixture(),
            "megatron trains experts with tensor parallelism only where sequence parallelism is on, expected true",
        ),
        (
            spread(dp=2, ep=4),
            mixture(),
            "ep 4 does not divide the 2 devices of these replicas: the experts of a layer stand on one device type",
        ),
        (
            spread(target="flagscale", etp=2),
            mixture(),
            "flagscale keeps all experts on every device, expected 1, got 2",
        ),
        (
            spread(target="torch", etp=2),
            mixture(),
            "torch keeps experts whole on a device, expected 1, got 2",
        ),
        (
            spread(target="torch", ep=2),
            mixture(preference=PreferenceSpec()),
            "torch divides no experts beside a frozen tower or pairs of answers, expected 1, got 2",
        ),
        *(
            (
                spread(target="torch", ep=2, **other),
                mixture(),
                "ep 2 divides experts over replicas that share all else, expected none",
            )
            for other in (
                {"offload": Offload(optimizer="cpu", parameters="cpu")},
                {"sync": Sync(every=8, islands=(("a",), ("b",)))},
            )
        ),
        (
            spread(target="torch", ep=4, shard_size=2),
            mixture(),
            "each copy of the states has all experts, expected a multiple of ep 4, got 2",
        ),
        (
            spread(target="deepspeed", ep=2, zero=0),
            mixture(),
            "deepspeed divides experts with ZeRO 1, 2, 3 only, expected 1, got 2",
        ),
        (
            plan("deepspeed", 1, [2, 2], [(group("a", "A100", count=4, share=4),)] * 2, ep=2),
            mixture(),
            "deepspeed keeps all experts on every device in a pipeline, expected 1, got 2",
        ),
        (
            spread(target="deepspeed", ep=2, zero=3, zero_plus=ZeroPlus(secondary=2)),
            mixture(),
            "ep 2 divides experts over replicas that share all else, expected none",
        ),
        *(
            (
                plan(
                    target,
                    1,
                    [4],
                    [(group("a", "A100", count=4, share=3, steps=3), group("b", "T4", count=4, share=1))],
                    ep=2,
                ),
                mixture(),
                "replicas that share experts run equally many micro-batches with ZeRO 0 and 1, expected 1, got 2",
            )
            for target in ("torch", "deepspeed")
        ),
        (
            plan("torch", 1, [4], [(group("a", "A100", count=4, share=2), UNEQUAL)], ep=2),
            mixture(),
            "experts are divided with equal shards only, expected 1, got 2",
        ),
        (spread(etp=2), mixture(experts=None), "the model tiny has no experts, expected 1, got 2"),
        (spread(etp=5, dp=5), mixture(), "etp 5 does not divide the 48 channels of an expert"),
        (
            spread(dp=4, tp=2, etp=2),
            mixture(experts={**EXPERTS, "bias": True}),
            "megatron keeps experts with biases whole on a device, expected 1, got 2",
        ),
        (
            spread(dp=4, tp=2, ep=4, etp=4),
            mixture(),
            "ep 4 x etp 4 does not divide the 8 devices of these replicas: the experts of a layer stand on one device "
            "type",
        ),
        (
            spread(dp=16, ep=1, etp=16),
            mixture(),
            "expected a divisor of the 8 devices of a node, got 16",
        ),
        (
            spread(target="deepspeed"),
            mixture(experts={**EXPERTS, "capacity_factor": 1.5}),
            "deepspeed drops no tokens of experts, expected no capacity_factor, got 1.5",
        ),
        (
            spread(target="torch", dp=4, tp=2, sequence_parallel=False),
            mixture(),
            "torch trains experts without tensor parallelism, expected tp 1, got 2",
        ),
        (
            spread(target="flagscale"),
            mixture(),
            "hetplan trains no experts with flagscale yet, expected a dense model",
        ),
        (
            spread(target="flagscale"),
            mixture(experts=None, sinks=True),
            "hetplan trains no attention with sinks with flagscale yet, expected none",
        ),
        (
            spread(target="torch", dp=4, tp=2, sequence_parallel=False),
            mixture(experts=None, sinks=True),
            "torch divides no sinks of heads, expected 1, got 2",
        ),
    ],
)
def test_what_breaks_a_rule(chosen: Plan, spec: ModelSpec, what: str) -> None:
    """Each in one sentence."""
    assert what in [fault.what for fault in faults(chosen, CLUSTER, spec)]


@pytest.mark.parametrize("ep", [1, 2, 4, 8])
def test_what_keeps_all_rules(ep: int) -> None:
    """Every divisor of the experts that replicas hold, whole on a device or shared by all of a replica."""
    assert faults(spread(ep=ep), CLUSTER, mixture()) == ()
    for tp in (2, 4):
        shared = spread(dp=16 // tp, tp=tp, ep=ep, etp=tp)
        assert (faults(shared, CLUSTER, mixture()) == ()) is (ep * tp <= 16)


@pytest.mark.parametrize(
    ("count", "tp", "ep", "held"),
    [
        (8, 1, 8, True),
        (16, 1, 16, True),
        (16, 1, 8, True),
        (12, 1, 4, True),
        (12, 1, 8, False),
        (8, 2, 16, True),
        (3, 1, 3, True),
        (11, 1, 3, False),
        (9, 1, 3, False),
        (6, 3, 18, False),
    ],
)
def test_groups_lie_in_a_node_or_fill_nodes(count: int, tp: int, ep: int, held: bool) -> None:
    """Of nodes with eight devices."""
    assert holds_experts(group("a", "A100", count=count, tp=tp, share=1), ep, 8) is held


def test_experts_and_their_states_are_divided() -> None:
    """Weights by ep; the optimizer's states over all devices, whatever ep is, as those with the same experts share."""
    spec = mixture(hidden=512, heads=8, head_dim=64, experts={**EXPERTS, "ffn": 2048})
    found = {ep: estimate(spread(ep=ep), CLUSTER, spec).stages[0].groups[0].memory for ep in (1, 2, 8)}
    experts = 4 * spec.expert_parameters
    dense = spec.parameters - experts
    for ep, memory in found.items():
        assert memory.parameters_bytes == pytest.approx(2 * (dense + experts / ep))
        assert memory.gradients_bytes == pytest.approx(2 * (dense + experts / ep))
        assert memory.optimizer_bytes == pytest.approx(12 * (dense + experts) / 8)


@pytest.mark.parametrize("zero", [2, 3])
def test_what_zero_shards_of_divided_experts(zero: int) -> None:
    """Over the replicas with the same ones, so that a device has as little of them whatever ep is."""
    spec = mixture(hidden=512, heads=8, head_dim=64, experts={**EXPERTS, "ffn": 2048})
    chosen = {ep: replace(spread(target="torch", ep=ep), zero=zero) for ep in (1, 2, 8)}
    found = {ep: estimate(one, CLUSTER, spec).stages[0].groups[0].memory for ep, one in chosen.items()}
    experts = 4 * spec.expert_parameters
    dense = spec.parameters - experts
    for ep, memory in found.items():
        if zero == 2:
            assert memory.parameters_bytes == pytest.approx(2 * (dense + experts / ep))
        assert memory.gradients_bytes == pytest.approx(found[1].gradients_bytes)
        assert memory.gradients_bytes > 0
        assert memory.optimizer_bytes == pytest.approx(12 * (dense + experts) / 8)
        if zero == 3:
            # A layer and the next one, its gradients and their copy, with the experts of a device.
            less = spec.expert_parameters * (1 - 1 / ep)
            assert found[1].buffers_bytes - memory.buffers_bytes == pytest.approx(4 * 2 * less, abs=1)


def test_zero_3_gathers_the_experts_of_a_device_alone() -> None:
    """Over those with the same ones: nobody where each device has others."""
    spec = mixture(hidden=512, heads=8, head_dim=64, experts={**EXPERTS, "ffn": 2048})
    estimator = Estimator(CLUSTER, spec, ASSUMED)
    pricer = estimator.pricer("torch")
    seconds = {}
    for ep in (1, 2, 8):
        chosen = replace(spread(target="torch", ep=ep), zero=3)
        priced = estimator.price(chosen)
        shape, ring = shapes_of(chosen)[0], priced.rings[0]
        seconds[ep] = pricer.traffic.in_micro_batch(shape, ring, 4, True, True, 1, 0.0)
        dense = spec.parameters - 4 * spec.expert_parameters
        others = replace(ring, experts=None)
        wanted = others.gather_seconds(2 * dense, 4)
        if ep == 8:
            assert ring.of_experts.alone
            assert seconds[ep][0] == pytest.approx(wanted)
        if ep == 2:
            wanted += ring.of_experts.gather_seconds(2 * 4 * spec.expert_parameters / 2, 4)
            assert seconds[ep][0] == pytest.approx(wanted)
    assert seconds[1][0] > seconds[2][0] > seconds[8][0]
    assert seconds[1][1] > seconds[2][1] > seconds[8][1]


def test_experts_shared_by_devices_hold_as_much() -> None:
    """An eighth of all experts on each device, however ep and etp make eight; shared ones gather their inputs, of which
    each of four layers keeps copies, and the gradients of their outputs, which one layer at a time has."""
    spec = mixture(hidden=512, heads=8, head_dim=64, experts={**EXPERTS, "ffn": 2048, "imbalance": 1.0})
    plans = [spread(dp=4, tp=2, ep=8 // etp, etp=etp) for etp in (1, 2, 4, 8)]
    found = [estimate(chosen, CLUSTER, spec).stages[0].groups[0].memory for chosen in plans]
    for memory in found[1:]:
        for part in ("parameters_bytes", "gradients_bytes", "optimizer_bytes"):
            assert getattr(memory, part) == getattr(found[0], part)
    rows = kept_rows(spec, tp=2, tokens=spec.training.sequence_length, ep=1)
    more = [memory.activations_bytes - found[0].activations_bytes for memory in found]
    assert more == pytest.approx([(4 + 1) * 2 * 512 * rows * (etp - 1) for etp in (1, 2, 4, 8)])


def test_shared_experts_have_the_rows_of_all_and_a_part_of_each_matrix() -> None:
    """As many products' operations as whole ones, in fewer of more rows and fewer columns."""
    spec = mixture(experts={**EXPERTS, "imbalance": 1.0})
    whole, shared = (
        expert_products(spec, tp=4, tokens=4096, folding=Folding(ep=8 // etp, etp=etp)) for etp in (1, 4)
    )
    assert whole[0] == shared[0]
    for one, other in zip(whole[1:], shared[1:], strict=True):
        sizes = [each.count * each.rows * each.columns * each.inner for each in (one, other)]
        assert sizes[0] == sizes[1]
        assert (other.rows, other.count) == (one.rows, 4 * one.count)
    assert (shared[1].columns, shared[2].inner) == (whole[1].columns / 4, whole[2].inner / 4)


def test_shared_experts_gather_rows_and_scatter_sums() -> None:
    """Instead of a part of the all-to-alls: once more each way, over the devices that share an expert."""
    spec, topology = mixture(hidden=4096, experts={**EXPERTS, "imbalance": 1.0}), Topology(CLUSTER)
    device_type = topology.device_type("a", "A100")
    rows = expert_rows(spec, tp=4, tokens=spec.training.sequence_length, ep=2)
    ring, moved = tensor_ring(device_type, ASSUMED, tp=4), 2 * 4096 * rows
    one = 2 * all_to_all_seconds(device_type, topology, ASSUMED, moved, ep=2, width=4)
    one += ring.gather_seconds(4 * moved) + ring.scatter_seconds(4 * moved)
    chosen = spread(dp=2, tp=4, ep=2, etp=4)
    found = estimate(chosen, CLUSTER, spec)
    steps = chosen.micro_batches
    assert found.breakdown.expert_parallel_seconds == pytest.approx(2 * one * 4 * steps)


def test_only_devices_with_the_same_experts_add_them_up() -> None:
    """The end of a step gets shorter with ep, and tokens travel instead."""
    spec = mixture(hidden=512, heads=8, head_dim=64, experts={**EXPERTS, "ffn": 8192})
    parts = {ep: estimate(spread(ep=ep), CLUSTER, spec).breakdown for ep in (1, 2, 8)}
    syncs = [parts[ep].gradient_sync_seconds for ep in (1, 2, 8)]
    assert syncs[0] > syncs[1] > syncs[2] > 0
    assert parts[1].expert_parallel_seconds == 0 < parts[2].expert_parallel_seconds


def test_the_ring_of_experts() -> None:
    """Devices with the same experts: all replicas at ep = tp, else those of every ep / tp-th."""
    spec = mixture()
    for tp, ep, members in ((1, 2, 8), (1, 8, 2), (1, 16, 1), (2, 2, 8), (2, 8, 2), (2, 16, 1)):
        for etp in {1, tp}:
            chosen = spread(dp=16 // tp, tp=tp, ep=ep // etp, etp=etp)
            (ring,) = Estimator(CLUSTER, spec).price(chosen).rings
            assert ring.of_experts.size == members


def test_all_to_alls_stay_in_a_node_or_share_its_cards() -> None:
    """Half of the bytes leave a node of two; all devices of a node share its eight cards."""
    topology = Topology(CLUSTER)
    device_type = topology.device_type("a", "A100")
    inside = all_to_all_seconds(device_type, topology, ASSUMED, 1e9, ep=8)
    across = all_to_all_seconds(device_type, topology, ASSUMED, 1e9, ep=16)
    link = ASSUMED.link("infiniband")
    rate = 25e9 * link.efficiency * link.rail**3
    assert across == pytest.approx(0.5e9 / rate, rel=1e-3)
    assert inside == pytest.approx(7 / 8 * 1e9 / (300e9 * ASSUMED.family("A100").link_efficiency), rel=1e-2)


def test_deepep_sends_once_to_a_device_and_to_a_node() -> None:
    """Two experts of each token: by count, over two nodes 0.75 of the rows, as often both are on one; then inside."""
    topology = Topology(CLUSTER)
    device_type = topology.device_type("a", "A100")
    link = ASSUMED.link("infiniband")
    rate = 25e9 * link.efficiency * link.rail**3
    inside = 300e9 * ASSUMED.family("A100").link_efficiency
    for once in ((1.0, 0.75), (0.9, 0.01)):
        moved = all_to_all_seconds(device_type, topology, ASSUMED, 1e9, ep=16, once=once)
        slowest = max(once[1] * 0.5e9 / rate, once[0] * 7 / 8 * 1e9 / inside)
        assert moved == pytest.approx(slowest, rel=1e-2)
    spec = mixture(hidden=4096, experts={**EXPERTS, "number": 16, "top_k": 4})
    for chosen in (spread(ep=8), spread(dp=16, ep=16)):
        plain, sent = (
            estimate(chosen, CLUSTER, spec.trained_with(token_dispatcher=name)).breakdown
            for name in ("alltoall", "deepep")
        )
        assert sent.expert_parallel_seconds < plain.expert_parallel_seconds


@pytest.mark.parametrize(
    ("fields", "able"),
    [
        ({}, True),
        ({"compute_capability": 7.0}, False),
        ({"compute_capability": 8.0}, True),
        ({"compute_capability": 10.3}, True),
        ({"compute_capability": 12.0}, False),
        ({"vendor": "amd"}, False),
        ({"vendor": "nvidia"}, True),
    ],
)
def test_devices_that_deepep_runs_on(fields: dict[str, Any], able: bool) -> None:
    """Those of NVIDIA from Ampere to Blackwell, and those of which nothing is told; others have no plan."""
    gpu = GPUS["A100"].model_copy(update=fields)
    spec, sent = cluster(pool("a", "A100", 2), gpus={"A100": gpu}), mixture(token_dispatcher="deepep")
    topology = Topology(spec)
    assert usable_device_types(topology, mixture()) == topology.device_types
    assert bool(usable_device_types(topology, sent)) is able
    if not able:
        with pytest.raises(PlanError, match="A100 in pool a has no deepep"):
            estimate(spread(ep=8), spec, sent)


@pytest.mark.parametrize(
    ("dispatcher", "ep", "changes", "said"),
    [
        ("alltoall", 8, {"per_node": 4, "kind": "ethernet", "shared": True}, []),
        ("deepep", 1, {"per_node": 4, "kind": "ethernet", "shared": True}, []),
        ("deepep", 8, {"per_node": 8}, []),
        ("deepep", 8, {"per_node": 8, "shared": True}, ["deepep needs links between"]),
        ("deepep", 4, {"per_node": 4, "kind": "ethernet"}, []),
        (
            "deepep",
            8,
            {"per_node": 4, "kind": "ethernet"},
            ["deepep needs RDMA", "deepep sends between nodes of 8"],
        ),
        ("hybridep", 8, {"per_node": 4, "kind": "ethernet"}, ["hybridep needs RDMA"]),
        ("hybridep", 8, {"per_node": 4}, []),
    ],
)
def test_what_deepep_needs_of_nodes_and_networks(
    dispatcher: str, ep: int, changes: dict[str, Any], said: list[str]
) -> None:
    """Warnings where its groups of devices have it not; none where no tokens are sent."""
    made = pool("a", "A100", 16 // changes["per_node"], per_node=changes["per_node"])
    intra = made.intra_node.model_copy(update={"shared": changes.get("shared", False)})
    spec = cluster(made.model_copy(update={"intra_node": intra}))
    if kind := changes.get("kind"):
        fabrics = {name: fabric.model_copy(update={"kind": kind}) for name, fabric in spec.fabrics.items()}
        spec = spec.model_copy(update={"fabrics": fabrics})
    found = estimate(spread(dp=16, ep=ep), spec, mixture(token_dispatcher=dispatcher)).warnings
    about = [warning for warning in found if "ep needs" in warning or "ep sends" in warning]
    assert [warning[: len(start)] for warning, start in zip(about, said, strict=True)] == said


WIDE = mixture(hidden=4096, experts={**EXPERTS, "ffn": 4096}).trained_with(sequence_length=2048)
"""Whose devices are busier than their hosts."""
OVERLAPPING = mixture(expert_overlap=True)
ROW = (group("a", "A100", count=4, share=4, steps=4),)


def piped(interleave: int = 2, **changes: Any) -> Plan:
    """Two stages of four replicas each, which divide the experts."""
    return plan("megatron", 1, [2, 2], [ROW, ROW], **{"ep": 4, "interleave": interleave, **changes})


@pytest.mark.parametrize(
    ("chosen", "spec", "what"),
    [
        (piped(), OVERLAPPING, []),
        (piped(recompute="selective"), OVERLAPPING, []),
        (piped(1, ep=1), OVERLAPPING, []),
        (
            piped(1),
            OVERLAPPING,
            [
                "expert_overlap takes pipelines with several chunks of layers on a device, "
                "expected 2 or more, got 1"
            ],
        ),
        (
            piped(recompute="full"),
            OVERLAPPING,
            ["expert_overlap takes recompute none or selective, got full"] * 2,
        ),
        (piped(1, recompute="full"), mixture(), []),
        (
            spread(ep=8),
            OVERLAPPING.trained_with(precision="fp32"),
            ["megatron overlaps no experts in fp32, expected expert_overlap false"],
        ),
        (
            spread(ep=8, target="torch"),
            OVERLAPPING,
            ["torch does not train with expert_overlap true, it can: false"],
        ),
    ],
)
def test_plans_whose_all_to_alls_run_beside_computation(
    chosen: Plan, spec: ModelSpec, what: list[str]
) -> None:
    """Megatron's, of several chunks a stage in a pipeline, whose layers are not recomputed whole."""
    assert [fault.what for fault in faults(chosen, CLUSTER, spec)] == what


@pytest.mark.parametrize("steps", [1, 2, 8])
def test_all_to_alls_beside_another_micro_batch(steps: int) -> None:
    """All but those of the first forward and the last backward, by as much as traffic hides under computation."""
    replicas = (group("a", "A100", count=8, share=steps, steps=steps),)
    chosen = plan("megatron", 1, [4], [replicas], ep=8)
    spec = WIDE.trained_with(global_batch=8 * steps)
    shown, hidden = (Estimator(CLUSTER, spec.trained_with(expert_overlap=on)) for on in (False, True))
    plain, beside = (each.price(chosen).stages[0].micro_batches[0] for each in (shown, hidden))
    overlap = hidden.pricer("megatron").framework.overlap
    work = plain.seconds - plain.routing_seconds
    assert beside.routing_hidden == pytest.approx(overlap * min(plain.routing_seconds, work), rel=0.05)
    before, after = shown.estimate(chosen), hidden.estimate(chosen)
    saved = (steps - 1) * beside.routing_hidden
    assert before.step_seconds - after.step_seconds == pytest.approx(saved, rel=1e-6, abs=1e-12)
    lost = before.breakdown.expert_parallel_seconds - after.breakdown.expert_parallel_seconds
    assert lost == pytest.approx(saved, rel=1e-6, abs=1e-12)


def test_a_pipeline_hides_all_to_alls_once_it_is_full() -> None:
    """As many micro-batches as stages run alone."""
    for count in (2, 16):
        few = tuple(replace(each, local_batch=count, accumulation_steps=count) for each in ROW)
        chosen = plan("megatron", 1, [2, 2], [few, few], ep=4, interleave=2)
        spec = WIDE.trained_with(global_batch=4 * count, expert_overlap=True)
        for stage in Estimator(CLUSTER, spec).price(chosen).stages:
            assert stage.alone_seconds > 0
            assert stage.alone_seconds == pytest.approx(2 * stage.micro_batches[0].routing_hidden)


def test_a_host_is_no_faster_beside_another_micro_batch() -> None:
    """A forward and a backward side by side take what launching both does."""
    for spec, waits in ((mixture(), True), (WIDE, False)):
        shown, hidden = (
            Estimator(CLUSTER, spec.trained_with(expert_overlap=on))
            .price(spread(ep=8))
            .stages[0]
            .micro_batches[0]
            for on in (False, True)
        )
        assert (hidden.routing_hidden < 1e-3 * shown.routing_seconds) is waits
        assert hidden.seconds == pytest.approx(shown.seconds - hidden.routing_hidden)


@pytest.mark.parametrize(
    ("chosen", "more"),
    [(piped(), 1), (piped(1, ep=1), 0), (spread(ep=8), 1), (spread(dp=16, ep=8), 0)],
)
def test_chunks_that_wait_beside_another_micro_batch_are_kept(chosen: Plan, more: int) -> None:
    """One chunk of a pipeline more, a layer of one stage alone, nothing with one micro-batch or whole experts."""
    pricers = [Estimator(CLUSTER, spec).pricer("megatron") for spec in (mixture(), OVERLAPPING)]
    shape, first = shapes_of(chosen)[0], chosen.stages[0].replicas[0]
    plain, beside = (pricer.memory(shape, first, 8.0).activations_bytes for pricer in pricers)
    each = pricers[0].footprint(shape, first, 8.0, first.micro_batch).activation_bytes()
    # The embedding and its masks wait with the layers.
    assert beside - plain == pytest.approx(more * each, rel=0.03)


def test_measured_all_to_alls_win() -> None:
    """In a node and over nodes, where all devices that share an expert use the cards; more members never take less."""
    topology = Topology(CLUSTER)
    device_type = topology.device_type("a", "A100")
    points = tuple(
        LinkPoint(link=link, operation="all-to-all", members=members, size_bytes=size, seconds=size / rate)
        for link, members, rate in (("node:A100", 4, 1e9), ("ib", 8, 1e8))
        for size in (1e6, 1e9, 4e9)
    )
    curves = LinkCurves(replace(ASSUMED, link_points=points))
    moved = partial(all_to_all_seconds, device_type, topology, ASSUMED, 1e9, curves=curves)
    assert moved(ep=4) == pytest.approx(1.0)
    assert moved(ep=8, width=2) == pytest.approx(20.0)
    assert moved(ep=8) == pytest.approx(7 / 8 / (3 / 4))
    assert moved(ep=2) == all_to_all_seconds(device_type, topology, ASSUMED, 1e9, ep=2)


def test_tokens_travel_to_their_experts_and_back() -> None:
    """Twice in the forward and twice in the backward of each layer and micro-batch: a row of the hidden size each."""
    spec, topology = mixture(hidden=4096), Topology(CLUSTER)
    rows = expert_rows(spec, tp=1, tokens=spec.training.sequence_length, ep=8)
    one = all_to_all_seconds(topology.device_type("a", "A100"), topology, ASSUMED, 2 * 4096 * rows, ep=8)
    found = estimate(spread(ep=8), CLUSTER, spec)
    assert found.breakdown.expert_parallel_seconds == pytest.approx(4 * one * 4 * 2)


def test_the_busiest_device_has_more_than_the_mean() -> None:
    """The more, the fewer experts are on it; as the file says where it says so; even where experts have a capacity."""
    usual = mixture(experts={**EXPERTS, "number": 64})
    assert expert_imbalance(usual, 1) == 1.0
    assert 1.0 < expert_imbalance(usual, 2) < expert_imbalance(usual, 8) < expert_imbalance(usual, 64)
    assert expert_imbalance(usual, 64) == pytest.approx(1.86, abs=0.01)
    assert expert_imbalance(mixture(experts={**EXPERTS, "imbalance": 1.0}), 8) == 1.0
    capped = mixture(experts={**EXPERTS, "capacity_factor": 1.25})
    assert expert_rows(capped, tp=1, tokens=100, ep=4) == 250
    # Nothing is padded: one device has no more than there are, all layers what they have without room.
    roomy = mixture(experts={**EXPERTS, "capacity_factor": 5.0})
    assert expert_rows(roomy, tp=1, tokens=100, ep=4) == 800
    assert expert_rows(roomy, tp=1, tokens=100, ep=1) == 200
    assert kept_rows(roomy, tp=1, tokens=100, ep=4) == expert_rows(mixture(), tp=1, tokens=100, ep=4)
    assert kept_rows(capped, tp=1, tokens=100, ep=4) == 250


def test_experts_over_equal_pools() -> None:
    """Equal pools are as good as one: two of their nodes may have the experts together, and no unlike ones."""
    equal = pool("a", "A100", 1, per_node=2), pool("b", "A100", 1, per_node=2)
    groups = tuple(group(name, "A100", count=2, share=4) for name in "ab")
    chosen = plan("megatron", 1, [4], [groups], ep=4)
    assert faults(chosen, cluster(*equal), mixture()) == ()
    other = equal[1].model_copy(update={"reserve_gib": 3.0})
    found = faults(chosen, cluster(equal[0], other), mixture())
    assert {fault.path[:5] for fault in found} == {
        ("stages", 0, "replicas", index, "count") for index in range(2)
    }
    assert all("expected groups of 4 devices" in fault.what for fault in found)
