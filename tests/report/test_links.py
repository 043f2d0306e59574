"""The link matrix."""

from __future__ import annotations

from pathlib import Path

from planner.catalog import IntraNodeSpec
from planner.cluster.file import load_cluster
from planner.cluster.spec import ClusterSpec, FabricLinkSpec, FabricSpec
from planner.cluster.topology import Topology
from planner.report.inputs import (
    family_warnings,
    inventory_section,
    links_section,
    memory_warnings,
    node_warnings,
    pool_text,
    precision_warnings,
    rack_warnings,
    unit_warnings,
    unreachable,
)
from tests.report import examples
from tests.report.drawing import drawn
from tests.worlds import GPUS, cluster, nic, pool

SHIPPED = Path(__file__).parents[2] / "cluster_specs"


def matrix(cluster: ClusterSpec) -> str:
    """The section of a cluster's links."""
    return drawn(links_section(Topology(cluster)))


def test_cells_carry_bandwidth_and_path() -> None:
    """The legend says what the letters mean."""
    assert matrix(examples.cluster()) == (
        "Links: one node to another (GB/s, path)\n"
        "  pool    a100    v100\n"
        "  ────────────────────\n"
        "  a100   100 b  1.25 a\n"
        "  v100  1.25 a   150 c\n"
        "  a  eth (ethernet, 30 µs)\n"
        "  b  ib (infiniband, 2 µs)\n"
        "  c  inside the one node of the pool\n"
        "\n"
    )


def joined() -> ClusterSpec:
    """The example with the second pool on a fabric of its own behind a gateway."""
    cluster = examples.cluster()
    alone = cluster.pools[1].model_copy(
        update={"nics": (cluster.pools[1].nics[0].model_copy(update={"fabric": "far"}),)}
    )
    fabrics = {**cluster.fabrics, "far": FabricSpec(kind="roce", latency_us=5.0)}
    link = FabricLinkSpec(between=("ib", "far"), bandwidth_gbps=4.0, latency_us=8000.0)
    return cluster.model_copy(
        update={"pools": (cluster.pools[0], alone), "fabrics": fabrics, "links": (link,)}
    )


def test_a_gateway_is_one_path_in_both_directions() -> None:
    """Both directions have the same letter and the latency of all hops."""
    shown = matrix(joined())
    assert "far+ib (roce + infiniband, 8.01 ms)" in shown
    assert shown.count("0.500 a") == 2


def test_pools_without_a_path_are_named() -> None:
    """The matrix says so, and so does a warning."""
    cluster = joined().model_copy(update={"links": ()})
    assert "no path" in matrix(cluster)
    assert unreachable(Topology(cluster)) == [
        "a100 and v100 share no fabric and no link: no plan can use both in one job"
    ]


def test_many_pools_break_into_blocks_of_columns() -> None:
    """Twelve pools still fit 80 columns."""
    cluster = examples.cluster()
    pools = tuple(
        cluster.pools[0].model_copy(
            update={"name": f"pool-{index:02}", "hosts": (f"h{index}a", f"h{index}b")}
        )
        for index in range(12)
    )
    shown = matrix(cluster.model_copy(update={"pools": pools}))
    assert max(len(line) for line in shown.splitlines()) <= 80
    assert shown.count("  pool-11 ") == 3


def test_the_inventory_lists_kinds_and_totals() -> None:
    """A format that a device lacks is a dash."""
    assert drawn(inventory_section(Topology(examples.cluster()).device_types)) == (
        "Devices (memory and dense peak per device)\n"
        "                         usable       bf16       fp16       fp32\n"
        "  pool  device  devices   (GiB)  (TFLOP/s)  (TFLOP/s)  (TFLOP/s)\n"
        "  ──────────────────────────────────────────────────────────────\n"
        "  a100  A100      2 x 4    38.0        312        312       19.5\n"
        "  v100  V100      1 x 8    14.0          -        125       15.7\n"
        "  total: 16 devices, 416 GiB usable, bf16 2.50 PFLOP/s, fp16 3.50 PFLOP/s, fp32\n"
        "  0.282 PFLOP/s\n"
        "\n"
    )


def test_devices_without_the_number_format_are_named() -> None:
    """With bf16 the V100 would stay idle."""
    device_types = Topology(examples.cluster()).device_types
    assert precision_warnings(device_types, examples.model()) == []
    assert precision_warnings(device_types, examples.model(precision="bf16")) == [
        "V100 (v100) does not support bf16 and stays idle; it supports fp16, fp32"
    ]


def test_devices_that_keep_all_memory_free() -> None:
    """Nothing of them is usable, never less."""
    device_types = Topology(examples.cluster().model_copy(update={"reserve_gib": 20.0})).device_types
    assert memory_warnings(device_types) == ["V100 (v100) stays idle: 20.0 GiB are kept free, it has 16.0"]
    assert "v100  V100      1 x 8     0.0 " in drawn(inventory_section(device_types))


def test_numbers_as_if_in_a_smaller_unit_are_asked_about() -> None:
    """No card, memory or device is that fast or large; nothing is said of the catalogue's."""
    assert list(unit_warnings(examples.cluster())) == []
    assert list(unit_warnings(load_cluster(SHIPPED / "three_sites.yaml"))) == []
    odd = {"memory_gib": 81_920.0, "memory_bandwidth_gBps": 2.039, "tflops": {"fp16": 312_000.0}}
    slow = GPUS["A100"].model_copy(update=odd)
    spec = cluster(pool("a", gbps=200_000), gpus={"A100": slow})
    assert list(unit_warnings(spec)) == [
        "a card of a has 200000 Gbit/s on ib: is that in megabit/s, or of all cards together?",
        "A100 has 81920 GiB: is that in MiB?",
        "A100 has 2.039 GB/s of memory bandwidth: is that in TB/s?",
        "A100 has 312000 TFLOP/s in fp16: is that in GFLOP/s?",
    ]


def test_families_that_nobody_knows_are_asked_about() -> None:
    """Their names depend on case, unlike those of devices; one of a calibration counts too."""

    def said(family: str, *calibrated: str) -> list[str]:
        gpus = {"A100": GPUS["A100"].model_copy(update={"family": family})}
        return list(family_warnings(cluster(pool("a"), gpus=gpus), calibrated))

    assert said("a100") == [
        "A100 is of the family a100, whose constants are assumed as none are known: did you mean A100?"
    ]
    assert said("zzz") == ["A100 is of the family zzz, whose constants are assumed as none are known"]
    assert said("A100") == said("") == said("zzz", "zzz") == []


def test_links_inside_nodes_that_are_too_fast_are_asked_about() -> None:
    """Data sheets print the sum of both directions. Nothing is said where the catalogue has no link."""
    gpus = {
        name: GPUS["A100"].model_copy(update={"name": name}) for name in ("H100-SXM-80GB", "MI300X", "L40S")
    }

    def said(gpu: str | tuple[str, ...], gigabytes: float) -> list[str]:
        link = IntraNodeSpec(bandwidth_gBps=gigabytes)
        return list(node_warnings(cluster(pool("a", gpu).model_copy(update={"intra_node": link}), gpus=gpus)))

    assert said("H100-SXM-80GB", 900.0) == [
        "a device of a has 900 GB/s inside, nvlink4 450: is that both directions, or of another device?"
    ]
    assert said("MI300X", 896.0) == [
        "a device of a has 896 GB/s inside, xgmi-mi300x 448: is that both directions, or of another device?"
    ]
    assert said("H100-SXM-80GB", 450.0) == said("MI300X", 450.0) == said("L40S", 900.0) == []
    assert said(("H100-SXM-80GB", "L40S"), 900.0) == []
    assert [*node_warnings(load_cluster(SHIPPED / "three_sites.yaml"))] == []


def test_nodes_of_a_rack_are_asked_for_their_nvlink() -> None:
    """Several nodes of devices that are sold in racks; their NVLink is as fast as it is."""
    gpus = {name: GPUS["A100"].model_copy(update={"name": name}) for name in ("GB200", "A100")}
    nodes = pool("a", "GB200", 2)
    (said,) = rack_warnings(cluster(nodes, pool("b", nodes=2), gpus=gpus))
    assert said == (
        "nodes of GB200 in one rack share NVLink, and a has none between its nodes: "
        "give them a fabric of kind nvlink if they do (docs/formats.md)"
    )
    assert list(rack_warnings(cluster(pool("a", "GB200"), gpus=gpus))) == []
    links = nic("rack", gbps=7200.0).model_copy(update={"count": 8})
    rack = cluster(nodes.model_copy(update={"nics": (*nodes.nics, links)}), gpus=gpus)
    assert [*rack_warnings(rack), *unit_warnings(rack)] == []


def test_a_node_of_one_device_has_no_link_inside() -> None:
    """Whatever a pool has when its file names none."""
    spec = cluster(pool("a", per_node=1, cards=1), pool("b", per_node=2, cards=1))
    alone, pair = (pool_text(spec, each) for each in spec.pools)
    assert "inside" not in alone
    assert "300 GB/s inside" in pair
