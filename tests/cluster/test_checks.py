"""Cluster files that contradict themselves."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from planner.cluster.file import load_cluster
from planner.errors import Problem
from tests.files.writing import CLUSTER, problems, the_problem


def wrong(folder: Path, *changes: tuple[str, str]) -> Problem:
    """What the good file complains about after these changes."""
    return the_problem(load_cluster, changed(folder, *changes))


def changed(folder: Path, *changes: tuple[str, str]) -> Path:
    """The good file with these changes."""
    text = CLUSTER
    for old, new in changes:
        assert old in text
        text = text.replace(old, new, 1)
    path = folder / "cluster.yaml"
    path.write_text(text)
    return path


def test_a_fabric_that_is_not_defined(tmp_path: Path) -> None:
    """The hint knows the near name."""
    problem = wrong(tmp_path, ("fabric: ib, bandwidth_gbps: 200", "fabric: ibb, bandwidth_gbps: 200"))
    assert (problem.line, problem.key) == (8, "pools[0].nics[0].fabric")
    assert problem.what == 'the fabric "ibb" is not defined under fabrics'
    assert problem.hint == "did you mean ib?"


def test_networks_of_a_provider_on_another_kind_of_fabric(tmp_path: Path) -> None:
    """Its launch files would set nothing for it."""
    problem = wrong(tmp_path, ("{kind: infiniband}", "{kind: infiniband, provider: efa}"))
    assert (problem.key, problem.what) == (
        "fabrics.ib.kind",
        "expected roce with provider efa, got infiniband",
    )
    changed(tmp_path, ("{kind: infiniband}", "{kind: infiniband, provider: azure}"))
    assert load_cluster(tmp_path / "cluster.yaml").fabrics["ib"].provider == "azure"


def test_nvlink_has_no_cards_and_no_gateways(tmp_path: Path) -> None:
    """Its links have no names, and lead to no other fabric."""
    switches = ("{kind: infiniband}", "{kind: nvlink}")
    problem = wrong(tmp_path, switches, ("fabric: ib,", "fabric: ib, hca: mlx5_0,"))
    assert (problem.key, problem.what) == ("pools[0].nics[0].hca", "ib is NVLink, whose links have no hca")
    assert problem.hint == "give the cards of Ethernet or RDMA entries of their own"
    link = "links: [{between: [ib, eth], bandwidth_gbps: 25, latency_us: 50}]"
    problem = wrong(tmp_path, (switches[0], f"{switches[1]}\n  eth: {{kind: ethernet}}\n{link}"))
    assert problem.what == "ib is NVLink, which no gateway joins to another fabric"


def test_a_device_without_any_peak(tmp_path: Path) -> None:
    """Nothing is known of such a one."""
    own = "gpus: {X: {memory_gib: 8, memory_bandwidth_gBps: 9, tflops: {}}}\nfabrics:"
    problem = wrong(tmp_path, ("fabrics:", own))
    assert (problem.key, problem.what) == ("gpus.X.tflops", "expected at least 1 key, got a mapping")


def test_no_fabrics_at_all(tmp_path: Path) -> None:
    """The hint shows how to define one."""
    found = problems(load_cluster, changed(tmp_path, ("fabrics:\n  ib: {kind: infiniband}\n", "")))
    assert [problem.line for problem in found] == [8, 14]
    assert found[0].hint == "add it to fabrics: ib: {kind: infiniband}"


def test_a_host_listed_twice(tmp_path: Path) -> None:
    """Within a pool."""
    problem = wrong(tmp_path, ('["v[1-2]"]', '["v[1-3]", v2]'))
    assert (problem.line, problem.key) == (11, "pools[1].hosts[1]")
    assert problem.what == 'the host "v2" is already listed on line 11'


def test_a_host_listed_twice_in_one_pattern(tmp_path: Path) -> None:
    """Ranges may overlap."""
    assert "listed twice" in wrong(tmp_path, ('["v[1-2]"]', '["v[1-3,2]"]')).what


def test_a_host_listed_in_two_pools(tmp_path: Path) -> None:
    """The other line is named."""
    problem = wrong(tmp_path, ("nodes: 2", 'hosts: [x, "v[2-4]"]'))
    assert (problem.line, problem.what) == (11, 'the host "v2" is already listed on line 5')


def test_numbered_nodes_count_as_hosts(tmp_path: Path) -> None:
    """A pool with nodes: 2 owns a-0 and a-1."""
    problem = wrong(tmp_path, ('["v[1-2]"]', "[a-0]"))
    assert problem.what == 'the host "a-0" is a name that nodes: gives on line 5'


def test_a_broken_host_range(tmp_path: Path) -> None:
    """The pattern is shown."""
    problem = wrong(tmp_path, ('["v[1-2]"]', '["v[1-"]'))
    assert (problem.line, '"v[1-"' in problem.what) == (11, True)


def test_a_pool_name_used_twice(tmp_path: Path) -> None:
    """The first line is named."""
    problem = wrong(tmp_path, ("name: b", "name: a"))
    assert (problem.line, problem.what) == (9, 'the pool "a" is already on line 3')


@pytest.mark.parametrize(
    ("name", "what", "hint"),
    [
        ("A100", '"A100" may be any of: A100-SXM-80GB, A100-SXM-40GB, A100-PCIe-80GB', "write one of them"),
        ("H100-SXM-81GB", 'no GPU is known as "H100-SXM-81GB"', "did you mean H100-SXM-80GB"),
        (
            "Trainium2",
            'no GPU is known as "Trainium2": no target runs on AWS Trainium',
            "to compare plans alone, write",
        ),
        (
            "DGX Spark",
            'no GPU is known as "DGX Spark"',
            "hetplan gpus lists all; or write its numbers: {memory_gib: 24",
        ),
        (
            "Gaudi2",
            'no GPU is known as "Gaudi2": no target runs on Intel Gaudi',
            "write its numbers: {memory_gib: 24",
        ),
        ("Ascend 910B", 'no GPU is known as "Ascend 910B": no target runs on Huawei', "write its numbers"),
    ],
)
def test_a_gpu_nobody_knows(tmp_path: Path, name: str, what: str, hint: str) -> None:
    """Near names, and how to write it by its numbers."""
    problem = wrong(tmp_path, ("gpu: A100-SXM-80GB", f"gpu: {name}"))
    assert (problem.line, problem.key) == (4, "pools[0].gpu")
    assert problem.what.startswith(what)
    assert hint in str(problem.hint)
    assert "write its numbers" in str(problem.hint)


def test_devices_of_a_mixed_node_by_number(tmp_path: Path) -> None:
    """As many would write them: one error with the way that is understood, not one for each number that is missing."""
    devices = "devices: [{gpu: T4, count: 2}, {name: T4, count: 1}, RTX-3090]"
    path = changed(tmp_path, ("gpu: V100-SXM-16GB", devices), ("    gpus_per_node: 4\n", ""))
    found = [(problem.key, problem.hint) for problem in problems(load_cluster, path)]
    assert found == [("pools[1].devices[0]", "write 2 x T4"), ("pools[1].devices[1]", "write 1 x T4")]


def test_a_device_nobody_knows(tmp_path: Path) -> None:
    """In the list of a mixed node."""
    problem = wrong(
        tmp_path, ("gpu: V100-SXM-16GB", "devices: [3 x V100-SXM-16GB, V200]"), ("    gpus_per_node: 4\n", "")
    )
    assert problem.key == "pools[1].devices[1]"


def test_two_kinds_of_one_name(tmp_path: Path) -> None:
    """Numbers written in place must not contradict each other."""
    own = "{name: own, memory_gib: %s, memory_bandwidth_gBps: 100, tflops: {fp16: 1}}"
    problem = wrong(tmp_path, ("A100-SXM-80GB", own % 8), ("V100-SXM-16GB", own % 9))
    assert (problem.line, problem.key) == (10, "pools[1].gpu")
    assert problem.what == 'other numbers for "own" are on line 4'


@pytest.mark.parametrize(
    ("old", "new", "key", "what"),
    [
        ("gpu: V100-SXM-16GB\n", "\n", "pools[1]", "expected either gpu or devices, one is missing"),
        (
            "gpus_per_node: 4",
            "devices: [T4, T4]",
            "pools[1]",
            "expected either gpu or devices, both are given",
        ),
        ("    nodes: 2\n", "", "pools[0]", "expected either nodes or hosts, one is missing"),
        (
            "nodes: 2",
            "nodes: 2\n    hosts: [x, y]",
            "pools[0]",
            "expected either nodes or hosts, both are given",
        ),
        ("intra_node: nvlink3", "", "pools[0].intra_node", "missing, the nodes have 8 devices"),
        (
            "intra_node: nvlink3",
            "intra_node: {bandwidth_gBps: 31.5, shared_by: 4}",
            "pools[0].intra_node.shared_by",
            "nothing is shared, expected none",
        ),
        ("nvlink3", "nvlink33", "pools[0].intra_node", 'no link is known as "nvlink33"'),
        ("nics: [{fabric: ib, bandwidth_gbps: 200}]", "", "pools[0].nics", "missing, the pool has 2 nodes"),
        ("nodes: 2", "nodes: 0", "pools[0].nodes", "expected a whole number from 1 to 100000, got 0"),
        (
            "gpus_per_node: 8",
            "gpus_per_node: -8",
            "pools[0].gpus_per_node",
            "expected a whole number from 1 to 1000, got -8",
        ),
    ],
)
def test_contradictions_in_a_pool(tmp_path: Path, old: str, new: str, key: str, what: str) -> None:
    """Each with its key."""
    problem = wrong(tmp_path, (old, new))
    assert (problem.key, problem.what) == (key, what)
    assert problem.line is not None


@pytest.mark.parametrize(
    ("names", "what"),
    [
        (
            "count: 2, hca: 'mlx5_0 mlx5_1'",
            'expected names of cards with commas between them, got "mlx5_0 mlx5_1"',
        ),
        ("hca: ^mlx5_3", 'expected names of cards with commas between them, got "^mlx5_3"'),
        ("count: 2, hca: 'mlx5_0,'", 'expected names of cards with commas between them, got "mlx5_0,"'),
        ("count: 2, hca: 'mlx5_0,mlx5_0'", 'the card "mlx5_0" is named twice'),
        ("count: 2, hca: 'a, b, c'", "expected at most 2 names as count says, got 3"),
        ("interface: 'eth0,eth1'", "expected at most 1 name as count says, got 2"),
    ],
)
def test_names_of_cards(tmp_path: Path, names: str, what: str) -> None:
    """NCCL would find none of them, or use cards that the plan does not count on."""
    problem = wrong(tmp_path, ("bandwidth_gbps: 200", f"bandwidth_gbps: 200, {names}"))
    assert (problem.line, problem.what) == (8, what)
    assert problem.hint


def test_fewer_names_than_cards(tmp_path: Path) -> None:
    """Several begin with one."""
    names = "bandwidth_gbps: 200, count: 3, hca: 'mlx5_0:1, mlx5_1'"
    load_cluster(changed(tmp_path, ("bandwidth_gbps: 200", names)))


@pytest.mark.parametrize("own", ["v100-sxm-16gb", "V100-SXM2-16GB"])
def test_an_own_device_by_another_spelling(tmp_path: Path, own: str) -> None:
    """Its numbers would not be used, and nobody would be told."""
    numbers = "{memory_gib: 12, memory_bandwidth_gBps: 900, tflops: {fp16: 100}}"
    problem = wrong(tmp_path, ("pools:\n", f"gpus: {{{own}: {numbers}}}\npools:\n"))
    assert problem.key == "pools[1].gpu"
    assert problem.what == f'"V100-SXM-16GB" is the catalogue\'s device, and not "{own}" of gpus'
    assert problem.hint == "write the same name in both places"


@pytest.mark.parametrize(
    ("entry", "what"),
    [
        ("compute_capability: 7.5, vendor: amd", "belongs to NVIDIA's devices, not to vendor amd"),
        ("compute_capability: 75", "expected a number from 1 to 30, got 75"),
    ],
)
def test_compute_capabilities_that_are_none(tmp_path: Path, entry: str, what: str) -> None:
    """Those of another maker's device, and the number of a compiler's target (sm_75)."""
    gpu = f"gpu: {{memory_gib: 16, memory_bandwidth_gBps: 900, tflops: {{fp16: 125}}, {entry}}}"
    problem = wrong(tmp_path, ("gpu: V100-SXM-16GB", gpu))
    assert (problem.key, problem.what) == ("pools[1].gpu.compute_capability", what)


def test_a_link_as_a_plain_number(tmp_path: Path) -> None:
    """In quotes it would be the name of a link."""
    problem = wrong(tmp_path, ("intra_node: nvlink3", "intra_node: 300"))
    assert (problem.key, problem.what) == ("pools[0].intra_node", "expected a mapping, got 300")
    assert (
        problem.hint
        == "Network between the devices of a node: a catalogue name, or its numbers; needed from two devices on"
    )


def test_a_format_that_devices_do_not_have(tmp_path: Path) -> None:
    """The known ones are named."""
    gpu = "gpu: {memory_gib: 16, memory_bandwidth_gBps: 900, tflops: {fp16: 125, int8: 60}}"
    problem = wrong(tmp_path, ("gpu: V100-SXM-16GB", gpu))
    assert (problem.key, problem.what) == ("pools[1].gpu.tflops.int8", "unknown key")
    assert problem.hint == "known keys: bf16, fp16, fp32, fp8, tf32"


def test_gpus_per_node_belongs_to_gpu(tmp_path: Path) -> None:
    """Devices are already listed one by one."""
    problem = wrong(tmp_path, ("gpu: V100-SXM-16GB", "devices: [T4, T4]"))
    assert (problem.key, problem.what) == ("pools[1].gpus_per_node", "belongs to gpu, not to devices")


@pytest.mark.parametrize(
    ("link", "key", "what"),
    [
        ("[ib, wan]", "links[0].between[1]", 'the fabric "wan" is not defined under fabrics'),
        ("[ib, ib]", "links[0].between", "expected two different fabrics"),
        ("[ib]", "links[0].between", "expected a list of 2, got a list of 1"),
        ("ib", "links[0].between", 'expected a list, got "ib"'),
    ],
)
def test_links_that_lead_nowhere(tmp_path: Path, link: str, key: str, what: str) -> None:
    """Each with its line."""
    links = f"links:\n  - {{between: {link}, bandwidth_gbps: 1, latency_us: 1}}\n"
    problem = wrong(tmp_path, ("fabrics:\n", f"{links}fabrics:\n"))
    assert (problem.line, problem.key, problem.what) == (16, key, what)


def test_pools_that_share_nothing(tmp_path: Path) -> None:
    """The pools are named, and both cures."""
    problem = wrong(
        tmp_path,
        ("{fabric: ib, bandwidth_gbps: 100}", "{fabric: eth, bandwidth_gbps: 100}"),
        ("kind: infiniband}", "kind: infiniband}\n  eth: {kind: ethernet}"),
    )
    assert (problem.line, problem.key) == (2, "pools")
    assert problem.what == "no two of the pools a, b share a fabric or a chain of links"
    assert "links: [{between:" in str(problem.hint)


def test_too_many_pools_are_refused_quickly(tmp_path: Path) -> None:
    """Nobody has as many kinds of nodes."""
    path = tmp_path / "c.yaml"
    path.write_text("name: c\npools: [" + "{a: 1}, " * 20_000 + "]\n")
    start = time.process_time()
    assert len(problems(load_cluster, path)) == 101
    assert time.process_time() - start < 5


def test_mistakes_of_both_sorts_come_together(tmp_path: Path) -> None:
    """A wrong type does not hide a wrong reference."""
    path = changed(
        tmp_path,
        ("bandwidth_gbps: 200", 'bandwidth_gbps: "200G"'),
        ("fabric: ib, bandwidth_gbps: 100", "fabric: x, bandwidth_gbps: 100"),
    )
    keys = [problem.key for problem in problems(load_cluster, path)]
    assert keys == ["pools[0].nics[0].bandwidth_gbps", "pools[1].nics[0].fabric"]


@pytest.mark.parametrize(
    "text",
    [
        "pools: 3",
        "pools: [1, x, null]",
        "pools: [{name: [1], hosts: {a: 1}, devices: 3, nics: x, gpu: [], gpus_per_node: x}]",
        "pools: [{name: a, hosts: [1, [2]], nics: [1, {fabric: [1]}], gpu: {}, nodes: x}]\nfabrics: [1]",
        "name: c\npools: []\nlinks: {between: 1}\ngpus: [1]",
        "name: c\npools: [{}]\nlinks: [{between: [[1], {a: 2}]}, 3]\nfabrics: {ib: 3}",
        "pools: [{name: a, gpu: T4, nodes: 1, nics: [{fabric: {a: 1}}]}]\nfabrics: {f: {kind: [1]}}",
    ],
)
def test_nonsense_is_an_error_and_not_a_crash(tmp_path: Path, text: str) -> None:
    """Checks skip what has the wrong shape."""
    path = tmp_path / "c.yaml"
    path.write_text(text)
    assert problems(load_cluster, path)
