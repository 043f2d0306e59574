"""Context parallelism: what a plan may say of it, what it divides, and what it costs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from planner.calibration.values import ASSUMED, LinkPoint
from planner.capabilities import Recompute
from planner.cluster.topology import Topology
from planner.cost.communication import all_to_all_seconds, pass_on_seconds
from planner.cost.compute import Device, attention_seconds
from planner.cost.estimate import Estimator, estimate
from planner.cost.measured_curves import LinkCurves
from planner.dims.context import ContextParallelism, contexts
from planner.emit.interface import emit
from planner.model.spec import DocumentsSpec, ModelSpec, RunSpec, StateSpec
from planner.plan.checks import faults
from planner.plan.file import PlanFile, load_plan, read, write
from planner.plan.values import Context, Plan
from planner.targets import TARGETS
from tests.worlds import cluster, group, model, plan, pool

CLUSTER = cluster(pool("a", "A100", 2), pool("b", "T4", 1))
LENGTH = 65_536


def long(**changes: Any) -> ModelSpec:
    """A model of sixteen sequences of 64k tokens."""
    shape = {"hidden": 1024, "heads": 16, "kv_heads": 8, "head_dim": 64, "ffn": 4096, "vocab": 32_000}
    length, batch = changes.pop("sequence_length", LENGTH), changes.pop("global_batch", 16)
    values = {"layers": 4, "gated_mlp": True, "precision": "fp16", "attention": "flash", **shape, **changes}
    made = model(batch, **values)
    training = made.training.model_copy(update={"sequence_length": length})
    return made.model_copy(update={"training": training})


def divided(*, dp: int = 8, tp: int = 1, cp: int = 4, gpu: str = "A100", **changes: Any) -> Plan:
    """One stage of replicas that share their sequences."""
    where = {"A100": "a", "T4": "b"}[gpu]
    share = 16 * cp // dp
    replicas = (group(where, gpu, tp=tp, count=dp, share=share, steps=share),)
    values = {"sequence_parallel": tp > 1, "cp": cp, **changes}
    return plan(values.pop("target", "megatron"), values.pop("zero", 1), [4], [replicas], **values)


@pytest.mark.parametrize(
    ("chosen", "spec", "what"),
    [
        (divided(target="flagscale"), long(), "flagscale keeps sequences whole, expected 1, got 4"),
        (
            divided(cp=1, dp=4, cp_kind="ulysses"),
            long(),
            "nothing is divided at cp 1, expected none, got ulysses",
        ),
        (
            divided(),
            long(sequence_length=LENGTH + 4),
            "8 pieces for cp 4 do not divide the sequence length 65540",
        ),
        (
            divided(dp=4, tp=4, cp=2),
            long(sequence_length=LENGTH + 4),
            "tp 4 does not divide the 32770 tokens that cp 2 leaves of a sequence",
        ),
        (
            divided(cp_kind="ulysses", dp=8, tp=2, cp=8),
            long(),
            "cp 8 x tp 2 does not divide the 8 key/value heads, expected cp_kind ring",
        ),
        (
            divided(target="torch", cp_kind="ulysses", dp=16, cp=16),
            long(),
            "cp 16 x tp 1 does not divide the 8 key/value heads, expected cp_kind ring",
        ),
        (
            divided(target="deepspeed", cp_kind="ulysses", dp=16, cp=16),
            long(),
            "cp 16 x tp 1 does not divide the 8 key/value heads, expected a divisor",
        ),
        (
            divided(),
            long(attention="unfused"),
            "divided sequences need fused attention, expected attention flash in the model's training",
        ),
        (
            divided(),
            long(window=4096),
            "sliding windows are not passed around a ring, expected cp_kind ulysses",
        ),
        (divided(), long(sinks=True), "sinks are not passed around a ring, expected cp_kind ulysses"),
        (
            divided(target="torch"),
            long(documents=DocumentsSpec(mean_length=1000)),
            "packed documents are not passed around a ring, expected cp_kind ulysses",
        ),
        (
            divided(),
            long(documents=DocumentsSpec(mean_length=1000)),
            "megatron keeps sequences of documents whole, expected cp 1",
        ),
        (
            divided(target="torch", cp_kind="ulysses"),
            long(documents=DocumentsSpec(mean_length=1000, packing=False)),
            "padded documents and pairs of answers stay whole, expected cp 1",
        ),
        (divided(), long(kind="encoder"), "divided sequences need a causal mask, expected a decoder"),
        (
            divided(dp=4, cp=4, gpu="T4"),
            long(),
            "megatron has no fused attention on T4, which divided sequences need",
        ),
        (
            divided(dp=16, cp=16, tp=1, zero=0),
            long(sequence_length=LENGTH + 16),
            "32 pieces for cp 16 do not divide the sequence length 65552",
        ),
    ],
)
def test_what_breaks_a_rule(chosen: Plan, spec: ModelSpec, what: str) -> None:
    """Each in one sentence."""
    old = CLUSTER.gpus["T4"].model_copy(update={"compute_capability": 7.5})
    where = CLUSTER.model_copy(update={"gpus": {**CLUSTER.gpus, "T4": old}})
    assert what in [fault.what for fault in faults(chosen, where, spec)]


@pytest.mark.parametrize(("cp", "tp", "dp"), [(1, 1, 16), (2, 1, 16), (4, 2, 8), (8, 2, 8), (16, 1, 16)])
def test_what_keeps_all_rules(cp: int, tp: int, dp: int) -> None:
    """Groups in a node, and over both."""
    assert faults(divided(cp=cp, tp=tp, dp=dp), CLUSTER, long()) == ()


def test_groups_on_one_device_type() -> None:
    """A sequence stays on devices of one type."""
    both = (group("a", "A100", count=6, share=2), group("b", "T4", count=2, share=2))
    chosen = plan("megatron", 1, [4], [both], cp=4)
    found = [fault.what for fault in faults(chosen, CLUSTER, long(global_batch=4))]
    assert "cp 4 does not divide these 6 replicas: a sequence stays on one device type" in found


def test_which_degrees_are_tried() -> None:
    """Where a device has 8,192 tokens or more; any that was asked for; all-to-alls as far as heads go."""
    row = TARGETS["megatron"]
    assert contexts(row, long(sequence_length=8192), 1, None) == (Context(),)
    ways = [one.ways for one in contexts(row, long(), 1, None)]
    assert ways == [1, 2, 2, 4, 4, 8, 8]
    assert [(one.ways, one.kind) for one in contexts(row, long(), 2, (8,))] == [(8, "ring")]
    assert contexts(TARGETS["flagscale"], long(), 1, (2,)) == ()


def test_activations_are_divided_and_states_sharded_over_all() -> None:
    """A device of 8 has a part of the tokens, and of the optimizer as without context parallelism."""
    whole, ring = (estimate(divided(cp=cp), CLUSTER, long()).stages[0].groups[0].memory for cp in (1, 4))
    assert ring.parameters_bytes == whole.parameters_bytes
    assert ring.optimizer_bytes == whole.optimizer_bytes
    # Keys, values and outputs of the other parts go around while a layer attends to them.
    turns = 2 * LENGTH * (16 * 64 + 2 * 8 * 64)
    assert ring.activations_bytes == pytest.approx(whole.activations_bytes / 4 + turns)
    assert ring.logits_bytes == pytest.approx(whole.logits_bytes / 4 - turns)


def test_attention_takes_as_long_on_all_devices() -> None:
    """Four devices for a sequence need a fourth of the time, but for small products, rings and all-to-alls."""
    parts = {
        (cp, kind): estimate(divided(cp=cp, cp_kind=kind), CLUSTER, long()).breakdown
        for cp, kind in ((1, "ring"), (4, "ring"), (4, "ulysses"))
    }
    whole, ring, ulysses = parts.values()
    assert ring.compute_seconds == ulysses.compute_seconds
    assert ring.compute_seconds == pytest.approx(whole.compute_seconds, rel=0.02)
    assert whole.context_parallel_seconds == 0 < ring.context_parallel_seconds
    assert ulysses.context_parallel_seconds > 0
    assert ring.hidden_seconds > ulysses.hidden_seconds


def test_a_ring_is_hidden_by_long_parts_only() -> None:
    """Attention grows with the square of a part, sends with the part itself."""

    def exposed(length: int) -> float:
        causes = estimate(divided(), CLUSTER, long(sequence_length=length)).breakdown
        return causes.context_parallel_seconds / causes.step_seconds

    assert exposed(2048) > 3 * exposed(131_072)


def test_sends_between_nodes_share_their_cards() -> None:
    """The two devices of a replica send at once; in a node each has its own way."""
    topology = Topology(CLUSTER)
    device_type = topology.device_type("a", "A100")
    link = ASSUMED.link("infiniband")
    cards = 8 * 25e9 * link.efficiency * link.rail**3
    across = pass_on_seconds(device_type, topology, ASSUMED, 1e9, ways=8, width=2)
    inside = pass_on_seconds(device_type, topology, ASSUMED, 1e9, ways=4, width=2)
    assert across == pytest.approx(1e9 / (cards / 2), rel=1e-3)
    assert inside == pytest.approx(1e9 / (300e9 * ASSUMED.family("A100").link_efficiency), rel=1e-2)
    exchanged = all_to_all_seconds(device_type, topology, ASSUMED, 1e9, ep=8, width=2)
    assert exchanged == pytest.approx(0.5e9 / (cards / 8), rel=1e-3)


def test_measured_sends_win() -> None:
    """All wait for the slowest: those in the node, or those that share the cards between nodes."""
    topology = Topology(CLUSTER)
    device_type = topology.device_type("a", "A100")
    points = [
        LinkPoint(link=link, operation="send", members=2, size_bytes=size, seconds=size / rate)
        for link, rate in (("node:A100", 1e9), ("ib", 4e9))
        for size in (1e6, 1e10)
    ]
    for known, across in ((points, 2 * 1e9 / 4e9), (points[2:], 2 * 1e9 / 4e9), (points[:2], 0.0)):
        curves = LinkCurves(replace(ASSUMED, link_points=tuple(known)))
        found = pass_on_seconds(device_type, topology, ASSUMED, 1e9, ways=8, width=2, curves=curves)
        assert found == pytest.approx(max(1.0 if points[0] in known else 0.0, across))


@pytest.mark.parametrize(("mean", "own"), [(2048, 2048), (40_000, 40_000), (100_000, LENGTH)])
def test_documents_attend_to_themselves_in_parts_too(mean: int, own: int) -> None:
    """Whatever part of a sequence a device has: also to documents that are longer than a part."""

    def attention(cp: int, **documents: Any) -> float:
        spec = long(**documents).trained_with(sequence_length=LENGTH // cp)
        device = Device(Topology(CLUSTER).device_type("a", "A100"), ASSUMED, "fp16")
        target = replace(TARGETS["torch"], documents_at_once=True)
        return attention_seconds(spec, device, target, tp=1, micro_batch=1, ways=cp)[0]

    packed = {"documents": DocumentsSpec(mean_length=mean, spread=0)}
    for cp in (1, 4):
        assert attention(cp, **packed) == pytest.approx(own / LENGTH * attention(cp), rel=2e-2)
    assert faults(divided(target="torch", cp_kind="ulysses"), CLUSTER, long(**packed)) == ()


def hybrid(kind: str = "mamba2", **changes: Any) -> ModelSpec:
    """Such a model of four blocks, each a layer with a state and one that attends."""
    shape = {"heads": 16, "head_dim": 128, "size": 64, "groups": 4, "chunk": 128}
    state = StateSpec.model_validate({"kind": kind, **shape, **changes})
    return long(state=state, block=(RunSpec(mixer="state"), RunSpec()))


@pytest.mark.parametrize(
    ("target", "kind", "cp", "calls", "groups"),
    [("megatron", "mamba2", 4, 5, 4), ("megatron", "mamba2", 8, 5, 8), ("torch", "delta", 4, 1, 4)],
)
def test_tokens_are_exchanged_for_heads_of_states(
    target: str, kind: str, cp: int, calls: int, groups: int
) -> None:
    """The first product and what the state makes, in either direction; keys of a group once for each of its devices."""
    spec = hybrid(kind)

    def seconds(model: ModelSpec) -> float:
        chosen = divided(target=target, cp=cp)
        return Estimator(CLUSTER, model).estimate(chosen).breakdown.context_parallel_seconds

    topology = Topology(CLUSTER)
    among = topology.device_type("a", "A100"), topology, Estimator(CLUSTER, spec).calibration
    sent_bytes, inner = 2 * LENGTH / cp, 16 * 128
    steps = 2 if kind == "delta" else 1
    first, made = sent_bytes * (2 * inner + 2 * groups * 64 + steps * 16), sent_bytes * inner
    sent = [first, *(calls - 1) * [0.0], made]
    moved = sum(all_to_all_seconds(*among, size, ep=cp) for size in sent)
    wide = long(block=(RunSpec(mixer="none"), RunSpec()))
    # Forward and backward of four layers, in every micro-batch.
    exchanged = (seconds(spec) - seconds(wide)) / (2 * 4 * 16 * cp / 8)
    kernels = TARGETS[target].kernels_of(None, "flash")
    device = Device(among[0], among[2], "fp16", kernels)
    assert exchanged == pytest.approx(moved + device.stream(6 * first + 4 * made, calls + 4))


@pytest.mark.parametrize(
    ("target", "changes", "what"),
    [
        ("megatron", {"heads": 6, "groups": 2}, "cp 4 x tp 1 does not divide the 6 heads of a state"),
        ("megatron", {"heads": 24, "groups": 6}, "cp 4 x tp 1 does not divide the 6 groups of a state"),
        ("torch", {"groups": 1}, "cp 4 x tp 1 does not divide the 1 group of a state"),
        (
            "torch",
            {"kind": "conv", "heads": 1, "head_dim": 1022},
            "cp 4 x tp 1 does not divide the 1022 channels of a state",
        ),
        ("megatron", {"kind": "delta", "groups": 2}, "cp 4 x tp 1 does not divide the 2 groups of a state"),
    ],
)
def test_states_that_replicas_do_not_share(target: str, changes: dict[str, Any], what: str) -> None:
    """Each in one sentence; Mamba 2 in one group goes with Megatron."""
    said = [fault.what for fault in faults(divided(target=target), CLUSTER, hybrid(**changes))]
    assert f"{what}, expected a divisor" in said
    assert faults(divided(), CLUSTER, hybrid(groups=1)) == ()


def test_gradients_go_over_all_replicas() -> None:
    """Those that share sequences are among them."""
    (ring,) = Estimator(CLUSTER, long()).price(divided(dp=16, cp=4)).rings
    assert ring.size == 16


def test_short_plans_count_replicas_that_share_once(tmp_path: Path) -> None:
    """``dp`` is the number of model copies that have sequences of their own; files count all replicas."""
    path = tmp_path / "plan.yaml"
    path.write_text("tp: 2\ncp: 4\ncp_kind: ulysses\nmicro_batch: 2\n")
    spec = long(heads=16, kv_heads=16)
    only = CLUSTER.model_copy(update={"pools": CLUSTER.pools[:1]})
    found = load_plan(path, only, spec)
    (replicas,) = found.stages[0].replicas
    assert (replicas.count, replicas.tp, replicas.local_batch, replicas.micro_batch) == (8, 2, 8, 2)
    assert (found.cp, found.cp_kind, found.global_batch) == (4, "ulysses", 16)
    whole = tmp_path / "whole.yaml"
    write(PlanFile(plan=found, cluster=only, model=spec), whole)
    assert read(whole).plan == found
    assert "cp: 4\ncp_kind: ulysses\n" in whole.read_text()


def test_replicas_that_share_get_the_same_sequences() -> None:
    """The batch table deals them once, and their losses are means of their parts."""
    both = (group("a", "A100", count=4, share=5, steps=3), group("a", "A100", count=2, share=6, steps=2))
    chosen = plan("torch", 1, [4], [both], cp=2, cp_kind="ulysses")
    spec = long(global_batch=16)
    files = {file.path: file.text for file in emit(chosen, CLUSTER, spec)}
    table = json.loads(files["batches.json"])
    assert table["context_parallel"] == 2
    assert [row["first_sequence"] for row in table["ranks"]] == [0, 0, 5, 5, 10, 10]
    parts = [table["batches"][row["batch"]] for row in table["ranks"]]
    counted = sum(sum(part["loss_weights"]) / len(part["loss_weights"]) for part in parts)
    assert counted / len(parts) == pytest.approx(1)
    assert "## Context parallelism" in files["README.md"]
    assert "sharing.attend(query, key, value, causal=True)" in files["README.md"]


def test_sequences_over_more_or_fewer_replicas() -> None:
    """The other way, twice and half as many: a replica then has as many more sequences, in as many more steps."""
    row, dimension = TARGETS["megatron"], ContextParallelism()

    def near(chosen: Plan) -> dict[tuple[int, str], tuple[int, int]]:
        changes = dimension.neighbours(chosen, row, Topology(CLUSTER).device_types)
        found: dict[tuple[int, str], tuple[int, int]] = {}
        for change in changes:
            (replicas,) = change.plan.stages[0].replicas
            found[change.plan.cp, change.plan.cp_kind] = replicas.local_batch, replicas.accumulation_steps
        return found

    assert near(divided(cp=4, dp=8)) == {(4, "ulysses"): (8, 8), (8, "ring"): (16, 16), (2, "ring"): (4, 4)}
    assert near(divided(cp=2, dp=8, cp_kind="ulysses")) == {
        (2, "ring"): (4, 4),
        (4, "ulysses"): (8, 8),
        (1, "ring"): (2, 2),
    }
    # Six sequences in two steps: half of the replicas would have three in one, a third of them nothing.
    six = plan("megatron", 1, [4], [(group("a", "A100", count=4, share=6, steps=2),)], cp=2)
    assert near(six) == {(2, "ulysses"): (6, 2), (4, "ring"): (12, 4), (1, "ring"): (3, 1)}
    odd = plan("megatron", 1, [4], [(group("a", "A100", count=4, share=5, steps=5),)], cp=2)
    assert {cp for cp, _ in near(odd)} == {2, 4}
    one = plan("megatron", 1, [4], [(group("a", "A100", count=4, share=2, steps=1),)], cp=2)
    assert {cp for cp, _ in near(one)} == {2, 4}
    assert near(divided(cp=1, dp=8)) == {}


@pytest.mark.parametrize(
    ("target", "recompute", "exchanges"),
    [
        ("megatron", "none", 2),
        ("megatron", "selective", 2),
        ("megatron", "full", 3),
        ("torch", "selective", 3),
        ("deepspeed", "full", 3),
    ],
)
def test_what_is_recomputed_is_exchanged_again(target: str, recompute: Recompute, exchanges: int) -> None:
    """All-to-alls forward and backward, and those of the forward once more; kernels of their own keep their results."""

    def seconds(target: str, recompute: Recompute) -> float:
        chosen = divided(target=target, cp_kind="ulysses")
        stage = replace(chosen.stages[0], recompute=recompute)
        return estimate(replace(chosen, stages=(stage,)), CLUSTER, long()).breakdown.context_parallel_seconds

    assert seconds(target, recompute) == pytest.approx(exchanges / 2 * seconds(target, "none"))
