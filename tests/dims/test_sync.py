"""Islands of replicas that exchange rarely, or little."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from planner.cluster.spec import FabricLinkSpec
from planner.cluster.topology import Topology
from planner.cost.binding import binding
from planner.cost.estimate import Estimator, estimate
from planner.cost.islands import BLOCK, ERROR_BYTES, OUTER_BYTES, SENT_BYTES
from planner.dims.sync import factors, matrices, sync_text
from planner.emit.interface import emit, write_folder
from planner.errors import HetplanError, PlanError
from planner.model.spec import LoraSpec, RunSpec
from planner.plan.checks import check_plan, faults
from planner.plan.file import PlanFile, load_plan, to_text
from planner.plan.values import EXACT, Plan, Sync
from planner.search.solve import search
from planner.search.values import Limits
from planner.targets import TARGETS
from planner.training.hetplan_runtime import load
from tests.worlds import GPUS, cluster, gpt, group, nic, plan, pool

NEAR_AND_FAR = (("near",), ("far",))
MODEL = gpt(global_batch=64, precision="bf16")


def sites(gbps: float | None = 1.0, **gpus: Any) -> Any:
    """Two sites of 16 devices, each on a fabric of its own, with a slow link or none between."""
    return cluster(
        pool("near", "A100", 2, (nic("ib"), nic("eth"))),
        pool("far", "A100", 2, (nic("roce"), nic("wan"))),
        links=()
        if gbps is None
        else (FabricLinkSpec(between=("eth", "wan"), bandwidth_gbps=gbps, latency_us=20_000),),
        gpus=gpus,
    )


CLUSTER = sites()


def spread(sync: Sync = EXACT, target: str = "torch", **changes: Any) -> Plan:
    """Sixteen replicas on either site."""
    both = (group("near", "A100", count=16, share=2), group("far", "A100", count=16, share=2))
    return replace(plan(target, 0, [24], [both]), sync=sync, **changes)


@pytest.mark.parametrize(
    ("values", "what"),
    [
        ({"every": 0}, "at least 1 step"),
        ({"every": 8, "rank": 4}, "gradients are exchanged in every step"),
        ({"every": 8, "ratio": 0.1}, "gradients are exchanged in every step"),
        ({"method": "average"}, "every: 2 or more"),
        ({"rank": 4, "ratio": 0.1}, "expected rank or ratio"),
        ({"rank": 4, "format": "int8"}, "travels in fp32"),
        ({"islands": NEAR_AND_FAR}, "nothing is exchanged rarely"),
    ],
)
def test_what_no_plan_says(values: dict[str, Any], what: str) -> None:
    """Contradictions are named where they stand."""
    with pytest.raises((PlanError, ValidationError), match=what):
        Sync(**values)


@pytest.mark.parametrize(
    ("sync", "changes", "what"),
    [
        (Sync(every=8), {"target": "deepspeed"}, "deepspeed exchanges whole gradients in every step"),
        (Sync(rank=4), {"target": "megatron"}, "expected no powersgd"),
        (Sync(every=8), {"zero": 1, "shard_size": 8}, "over all their replicas, expected none, got 8"),
        (Sync(every=8), {"cp": 2, "cp_kind": "ulysses"}, "whole sequences"),
        (Sync(rank=4000), {}, "have at most rank 2048, expected no more, got 4000"),
        (Sync(every=8, islands=(("near",),)), {}, "missing: far"),
        (Sync(every=8, islands=(("near", "far"), ("near",))), {}, "more than once: near"),
        (Sync(every=8, islands=(*NEAR_AND_FAR, ("moon",))), {}, "pools with replicas of the plan, got moon"),
        (Sync(every=8, islands=(("near", "far"),)), {}, "nobody to exchange with"),
    ],
)
def test_what_breaks_a_rule(sync: Sync, changes: dict[str, Any], what: str) -> None:
    """One fault, in words."""
    found = faults(spread(sync, **changes), CLUSTER, MODEL)
    assert what in found[-1].what
    assert len(found) == 1 or "cp" in changes


def test_half_precision_waits_for_no_error() -> None:
    """What PowerSGD and top-k keep would be of another loss scale."""
    half = gpt(global_batch=64, precision="fp16")
    for sync in (Sync(rank=4), Sync(ratio=0.01)):
        (fault,) = faults(spread(sync), CLUSTER, half)
        assert "loss scale" in fault.what
    assert not faults(spread(Sync(every=8)), CLUSTER, half)


def test_islands_need_a_link() -> None:
    """Their hosts exchange over Ethernet; RDMA inside is enough for an island itself."""
    apart = sites(None)
    (fault,) = faults(spread(Sync(every=8, islands=NEAR_AND_FAR)), apart, MODEL)
    assert "near and far" in fault.what or "far and near" in fault.what
    assert not faults(spread(Sync(every=8, islands=NEAR_AND_FAR)), CLUSTER, MODEL)


def test_devices_of_two_makers_train_one_model() -> None:
    """No communicator holds them, so that they are no plan but in islands; the search finds those when it may."""
    amd = GPUS["A100"].model_copy(update={"name": "MI", "vendor": "amd"})
    nvidia = GPUS["A100"].model_copy(update={"vendor": "nvidia"})
    mixed = sites(gbps=10).model_copy(update={"gpus": {"A100": nvidia, "MI": amd}})
    pools = tuple(
        one.model_copy(update={"devices": ("MI",) * 8}) if one.name == "far" else one for one in mixed.pools
    )
    mixed = mixed.model_copy(update={"pools": pools})
    both = (group("near", "A100", count=16, share=2), group("far", "MI", count=16, share=2))
    exact = plan("torch", 0, [24], [both])
    assert "no communicator holds devices of both" in faults(exact, mixed, MODEL)[0].what
    check_plan(replace(exact, sync=Sync(every=8, islands=NEAR_AND_FAR)), mixed, MODEL)
    limits = Limits(target="torch", zero=(0,), pp=(1,))
    without = search(mixed, MODEL, limits=limits, explain=False).best
    among = search(mixed, MODEL, limits=replace(limits, syncs=(Sync(every=500),)), explain=False).best
    assert without is not None
    assert among is not None
    assert len({one.gpu for one in without.plan.stages[0].replicas}) == 1
    assert {one.gpu for one in among.plan.stages[0].replicas} == {"A100", "MI"}
    assert among.estimate.step_seconds < 0.7 * without.estimate.step_seconds


def test_price_of_an_exchange() -> None:
    """Its bytes on the slow link, once in so many steps; nothing else of a step waits for it."""
    found = {
        every: estimate(spread(Sync(every=every, islands=NEAR_AND_FAR)), CLUSTER, MODEL).breakdown
        for every in (10, 100)
    }
    elements = MODEL.parameters
    assert found[10].exchange_seconds == pytest.approx(10 * found[100].exchange_seconds)
    assert found[10].compute_seconds == found[100].compute_seconds
    wire = elements * 4 / 125e6
    assert wire < 10 * found[10].exchange_seconds < 1.7 * wire
    whole = estimate(spread(), CLUSTER, MODEL).breakdown
    assert whole.exchange_seconds == 0
    assert found[100].gradient_sync_seconds < 0.1 * whole.gradient_sync_seconds


@pytest.mark.parametrize("islands", [NEAR_AND_FAR, ()])
def test_fewer_bytes_take_less_time(islands: tuple[tuple[str, ...], ...]) -> None:
    """In the order of their bytes, between sites and between all nodes."""
    syncs = [Sync(format="bf16"), Sync(format="int8"), Sync(rank=32), Sync(rank=4)]
    found = [
        estimate(spread(replace(sync, islands=islands)), CLUSTER, MODEL).breakdown.exchange_seconds
        for sync in syncs
    ]
    assert found == sorted(found, reverse=True)
    assert found[0] / found[1] == pytest.approx(SENT_BYTES["bf16"] / SENT_BYTES["int8"], rel=0.1)
    assert SENT_BYTES["int8"] == 1 + 4 / BLOCK


def test_memory_of_exchanges() -> None:
    """The outer optimizer is in host memory, a part of it for each device; errors are on the devices."""
    memory = {
        sync: Estimator(CLUSTER, MODEL).estimate(spread(sync)).stages[0].groups[0].memory
        for sync in (EXACT, Sync(every=8), Sync(every=8, method="average"), Sync(rank=4), Sync(format="bf16"))
    }
    outer, averaged = memory[Sync(every=8)], memory[Sync(every=8, method="average")]
    assert outer.host_bytes == pytest.approx(OUTER_BYTES["diloco"] * MODEL.parameters / 8)
    assert averaged.host_bytes == pytest.approx(OUTER_BYTES["average"] * MODEL.parameters / 8)
    kept = memory[Sync(rank=4)].gradients_bytes - memory[EXACT].gradients_bytes
    assert kept == pytest.approx(ERROR_BYTES * MODEL.parameters)
    assert memory[Sync(format="bf16")].used_bytes == pytest.approx(memory[EXACT].used_bytes)


def test_factors_are_counted_matrix_by_matrix() -> None:
    """By hand, with a rank at which the narrow matrices travel whole."""
    shapes = matrices(MODEL)
    assert sorted(shapes) == sorted([(2048, 2048), (2048, 4096), (2048, 2048), (2048, 8192), (2048, 8192)])
    rows, columns, whole = factors(4, MODEL, MODEL.parameters)
    assert rows == 4 * (24 * 5 * 2048 + 51200)
    assert columns == 4 * (24 * (2048 + 4096 + 2048 + 2 * 8192) + 2048)
    assert whole == MODEL.parameters - 24 * sum(a * b for a, b in shapes) - 51200 * 2048
    assert factors(2000, MODEL, MODEL.parameters)[2] > whole


def test_factors_of_unlike_layers() -> None:
    """Each kind has matrices of its own, those that do not attend none of attention; a rank fits the widest kind."""
    block = (RunSpec(layers=1), RunSpec(layers=3, ffn=2048), RunSpec(mixer="none"))
    mixed = gpt(2, 1024, 16, global_batch=64).model_copy(update={"block": block})
    rows, _, whole = factors(4, mixed, mixed.parameters)
    attention, wide, narrow = (
        [(1024, 1024), (1024, 2048), (1024, 1024)],
        [(1024, mixed.ffn)] * 2,
        [(1024, 2048)] * 2,
    )
    layers = [(2, attention + wide), (6, attention + narrow), (2, wide)]
    assert rows == 4 * (sum(count * 1024 * len(shapes) for count, shapes in layers) + mixed.vocab)
    sent = sum(count * sum(high * low for high, low in shapes) for count, shapes in layers)
    assert whole == mixed.parameters - sent - mixed.vocab * 1024


def test_text_and_files(tmp_path: Path) -> None:
    """A short plan, the plan file and back; a plan without islands says nothing of them."""
    assert sync_text(Sync(every=500, format="int8")) == "every 500 steps (diloco, int8)"
    assert sync_text(Sync(rank=4)) == "gradients by rank 4"
    path = tmp_path / "short.yaml"
    pools = "".join(f"- {{pool: {name}, count: 16, micro_batch: 2}}\n" for name in ("near", "far"))
    head = f"target: torch\nreplicas:\n{pools}"
    path.write_text(head + "sync: {every: 500, islands: [[near], [far]]}\n")
    short = load_plan(path, CLUSTER, MODEL)
    assert short.sync == Sync(every=500, islands=NEAR_AND_FAR)
    whole = tmp_path / "plan.yaml"
    whole.write_text(to_text(PlanFile(plan=short, cluster=CLUSTER, model=MODEL)))
    assert load_plan(whole, CLUSTER, MODEL) == short
    assert "sync" not in to_text(PlanFile(plan=spread(), cluster=CLUSTER, model=MODEL))
    path.write_text(head + "sync: {every: 0}\n")
    with pytest.raises(HetplanError, match=r"short.yaml:5: sync.every: expected a whole number from 1"):
        load_plan(path, CLUSTER, MODEL)


def test_divisions_at_slow_links() -> None:
    """The slowest link first, then those inside the parts as well."""
    three = cluster(
        pool("a", "A100", 1, (nic("x"),)),
        pool("b", "A100", 1, (nic("y"),)),
        pool("c", "A100", 1, (nic("z"),)),
        links=(
            FabricLinkSpec(between=("x", "y"), bandwidth_gbps=5, latency_us=50),
            FabricLinkSpec(between=("y", "z"), bandwidth_gbps=1, latency_us=50),
        ),
    )
    found = list(Topology(three).divisions(("a", "b", "c")))
    assert found == [(("a", "b"), ("c",)), (("a",), ("b",), ("c",))]


def test_only_torch_has_islands() -> None:
    """The others refuse with the reason; nothing is offered where nobody asks."""
    for name, row in TARGETS.items():
        assert bool(row.syncs) == (name == "torch")
    best = search(CLUSTER, MODEL, limits=Limits(target="torch", zero=(0,), pp=(1,)), explain=False).best
    assert best is not None
    assert best.plan.sync.exact


def test_every_sequence_counts_alike(tmp_path: Path) -> None:
    """In an island the weights of micro-batches are of its own sequences; islands weigh as much as they process."""
    uneven = replace(
        plan(
            "torch",
            0,
            [24],
            [(group("near", "A100", count=2, share=24, steps=3), group("far", "A100", count=1, share=16))],
        ),
        sync=Sync(every=8),
    )
    write_folder(emit(uneven, CLUSTER, MODEL), tmp_path / "folder")
    table = tmp_path / "folder" / "batches.json"
    ranks = [load(table, rank) for rank in range(3)]
    sync = ranks[0].sync
    assert sync is not None
    assert sync.islands == ((0, 1), (2,))
    assert sync.weights == (0.75, 0.25)
    assert [one.island for one in ranks] == [(0, 1), (0, 1), (2,)]
    for one in ranks:
        assert sum(one.weights) / one.steps == pytest.approx(1.0)


def test_each_island_has_a_network_of_its_own(tmp_path: Path) -> None:
    """RDMA inside where a job without islands would use sockets everywhere; hosts exchange over Ethernet."""
    for sync, rdma in ((EXACT, False), (Sync(every=8, islands=NEAR_AND_FAR), True)):
        files = {file.path: file.text for file in emit(spread(sync), CLUSTER, MODEL)}
        for name in ("near", "far"):
            text = files[f"env/{name}.sh"]
            assert ("NCCL_NET=Socket" in text) != rdma
            assert ("# RDMA" in text) == rdma
            assert "# Sockets: fabric" in text
    both = estimate(spread(Sync(every=8, islands=NEAR_AND_FAR)), CLUSTER, MODEL)
    assert not any("RDMA" in warning for warning in both.warnings)


def test_what_binds_and_when_a_step_ends() -> None:
    """The exchange is a busy link of its own, and part of what follows the last backward in a trace."""
    chosen = spread(Sync(every=10, islands=NEAR_AND_FAR))
    estimator = Estimator(CLUSTER, MODEL)
    priced = estimator.estimate(chosen)
    (link,) = (one for one in binding(chosen, estimator).links if one.traffic == "exchange of islands")
    assert {*link.path.split("+")} == {"eth", "wan"}
    assert link.seconds == pytest.approx(priced.breakdown.exchange_seconds)
    stage = estimator.price(chosen).stages[0]
    assert stage.work_seconds + stage.tail_seconds == pytest.approx(priced.step_seconds)
    assert priced.breakdown.step_seconds == pytest.approx(priced.step_seconds)
    assert priced.stages[0].crosses in ("ib", "roce")


def test_factors_of_adapters_are_refused() -> None:
    """Their matrices are not those of the model."""
    adapters = gpt(global_batch=64, precision="bf16", lora=LoraSpec(rank=4))
    found = faults(spread(Sync(rank=2)), CLUSTER, adapters)
    assert any("whole models only" in fault.what for fault in found)
    assert not faults(spread(Sync(every=8)), CLUSTER, adapters)


def test_islands_without_enough_nodes_are_one_fault() -> None:
    """Too few devices are said with their place; what islands need of nodes is not looked at then."""
    groups = (group("near", "A100", count=99, share=1), group("far", "A100", count=1, share=1))
    one = plan("torch", 0, [2], [groups], sync=Sync(every=8))
    (fault,) = faults(one, cluster(pool("near"), pool("far")), gpt(layers=2, global_batch=100))
    assert fault.what.startswith("more devices than the cluster has")
