"""Devices of two vendors: each job keeps to one, and everything says why."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.catalog import GpuSpec
from planner.cluster.file import load_cluster
from planner.cluster.spec import ClusterSpec, FabricSpec
from planner.cluster.topology import Topology
from planner.cost.estimate import estimate
from planner.errors import PlanError, SpecError
from planner.plan.checks import faults
from planner.report.inputs import unreachable
from planner.search.solve import search
from planner.search.values import Limits
from tests.quick import first
from tests.worlds import GPUS, cluster, gpt, group, plan, pool

AMD = GpuSpec(
    name="MI", memory_gib=64, memory_bandwidth_gBps=1600, tflops={"bf16": 190, "fp16": 190}, vendor="amd"
)
NVIDIA = GPUS["A100"].model_copy(update={"compute_capability": 8.0})
MIXED = cluster(
    pool("green", ("A100",) * 2, 1, nics=pool("x").nics),
    pool("red", ("MI",) * 2, 1, nics=pool("x").nics),
    gpus={"MI": AMD, "A100": NVIDIA},
)
"""Two nodes on one fabric."""
WHY = "green needs NCCL and red RCCL: no communicator holds devices of both"
ISLANDS = "only plans with islands use both in one job (--allow-local-sgd, --allow-compression)"


def test_no_path_between_them() -> None:
    """Whatever joins their nodes; a type of unknown vendor talks to both."""
    topology = Topology(MIXED)
    assert not topology.path("green", "red").connected
    assert list(topology.apart()) == [("green", "red")]
    (told,) = unreachable(topology)
    assert told == f"{WHY}: {ISLANDS}, which need an Ethernet between their hosts"
    unknown = MIXED.model_copy(update={"gpus": {**MIXED.gpus, "A100": GPUS["A100"]}})
    assert Topology(unknown).path("green", "red").connected


def test_islands_use_both_where_their_hosts_share_an_ethernet() -> None:
    """The warning names the options instead of denying that both can be in one job."""
    ethernet = {name: FabricSpec(kind="ethernet", latency_us=30.0) for name in MIXED.fabrics}
    assert unreachable(Topology(MIXED.model_copy(update={"fabrics": ethernet}))) == [f"{WHY}: {ISLANDS}"]


def test_plans_over_both_are_refused() -> None:
    """With the reason, whether priced or checked."""
    model = gpt(4, 512, 8, global_batch=6)
    both = plan("torch", 1, [4], [(group("green", "A100", count=2, share=2), group("red", "MI", count=2))])
    with pytest.raises(PlanError, match=WHY):
        estimate(both, MIXED, model)
    assert any(WHY in str(fault) for fault in faults(both, MIXED, model))


@pytest.mark.parametrize("target", first(1, ["torch", "megatron"]))
def test_searches_keep_to_one(target: str) -> None:
    """The best plan is on one vendor's devices, and the others are said to be idle for that reason."""
    found = search(MIXED, gpt(4, 512, 8, global_batch=8, vocab=1000), limits=Limits(target=target))
    assert found.best is not None
    assert len({each.pool for stage in found.best.plan.stages for each in stage.replicas}) == 1


def test_one_node_with_both_is_refused(tmp_path: Path) -> None:
    """A file, with the line of the second vendor's device."""
    path = tmp_path / "cluster.yaml"
    path.write_text(
        "name: mixed\npools:\n- name: both\n  nodes: 1\n  intra_node: pcie4\n"
        "  devices:\n  - A40\n  - 2 x MI250X-GCD\n"
    )
    with pytest.raises(SpecError, match=r'cluster.yaml:8: .*"A40" needs NCCL and "2 x MI250X-GCD" RCCL'):
        load_cluster(path)


def test_vendor_of_ones_own(tmp_path: Path) -> None:
    """Written beside the numbers."""
    path = tmp_path / "cluster.yaml"
    path.write_text(
        "name: own\ngpus:\n  X: {memory_gib: 8, memory_bandwidth_gBps: 100, tflops: {fp32: 1}, vendor: amd}\n"
        "pools:\n- {name: a, nodes: 1, gpu: X}\n"
    )
    found: ClusterSpec = load_cluster(path)
    assert found.gpus["X"].library == "RCCL"
    path.write_text(path.read_text().replace("vendor: amd", "vendor: acme"))
    with pytest.raises(SpecError, match="vendor"):
        load_cluster(path)
