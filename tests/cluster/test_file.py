"""Cluster files that are right."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner import catalog
from planner.cluster.file import load_cluster
from planner.cluster.spec import ClusterSpec
from planner.errors import SpecError
from tests.files.writing import CLUSTER


def loaded(folder: Path, text: str) -> ClusterSpec:
    """The cluster of this text."""
    path = folder / "cluster.yaml"
    path.write_text(text)
    return load_cluster(path)


def one_pool(lines: str, rest: str = "") -> str:
    """A file of one pool."""
    body = "".join(f"    {line}\n" for line in lines.splitlines())
    return f"name: c\npools:\n  - name: p\n{body}{rest}"


def test_two_pools(tmp_path: Path) -> None:
    """Every default is filled in."""
    cluster = loaded(tmp_path, CLUSTER)
    a, b = cluster.pools
    assert a.hosts == ("a-0", "a-1")
    assert b.hosts == ("v1", "v2")
    assert a.devices == ("A100-SXM-80GB",) * 8
    assert (a.intra_node.bandwidth_gBps, a.intra_node.shared) == (300.0, False)
    assert cluster.fabrics["ib"].latency_us == 2.0
    assert (cluster.reserve_gib, a.reserve_gib, a.price_per_gpu_hour) == (2.0, None, None)
    assert set(cluster.gpus) == {"A100-SXM-80GB", "V100-SXM-16GB"}
    assert "bf16" not in cluster.gpus["V100-SXM-16GB"].tflops


def test_node_names_are_padded(tmp_path: Path) -> None:
    """So that they sort."""
    text = one_pool(
        "gpu: T4\nnodes: 11\nnics: [{fabric: f, bandwidth_gbps: 1}]", "fabrics: {f: {kind: roce}}\n"
    )
    hosts = loaded(tmp_path, text).pools[0].hosts
    assert (hosts[0], hosts[-1]) == ("p-00", "p-10")


@pytest.mark.parametrize(
    "name", ["A100-SXM-80GB", "a100-sxm-80gb", "A100 SXM 80GB", "NVIDIA A100-SXM4-80GB", "A100-SXM-80"]
)
def test_gpu_names_are_forgiving(tmp_path: Path, name: str) -> None:
    """What nvidia-smi prints works too."""
    assert loaded(tmp_path, one_pool(f"gpu: {name}\nnodes: 1")).pools[0].devices == ("A100-SXM-80GB",)


def test_catalogue_numbers_are_copied(tmp_path: Path) -> None:
    """A cluster spec stands on its own."""
    spec = loaded(tmp_path, one_pool("gpu: T4\nnodes: 1")).gpus["T4"]
    facts = catalog.gpu("T4")
    assert (spec.memory_gib, spec.memory_bandwidth_gBps, spec.tdp_watts) == (15.0, 320.0, 70.0)
    assert spec.tflops == dict(facts.tflops)


def test_an_unknown_gpu_by_its_numbers(tmp_path: Path) -> None:
    """It takes the pool's name."""
    text = one_pool(
        "gpu: {memory_gib: 96, memory_bandwidth_gBps: 2000, tflops: {bf16: 300}, source: me}\nnodes: 1"
    )
    cluster = loaded(tmp_path, text)
    assert cluster.pools[0].devices == ("p-gpu",)
    assert cluster.gpus["p-gpu"].memory_gib == 96.0


def test_mixed_nodes(tmp_path: Path) -> None:
    """Names, counts and numbers in one list."""
    own = "{name: own, memory_gib: 8, memory_bandwidth_gBps: 100, tflops: {fp32: 1}}"
    text = one_pool(f"devices: [2 x RTX-3090, rtx 2080 ti, {own}]\nhosts: [h]\nintra_node: pcie4")
    assert loaded(tmp_path, text).pools[0].devices == ("RTX-3090", "RTX-3090", "RTX-2080-Ti", "own")


def test_own_kinds_win_over_the_catalogue(tmp_path: Path) -> None:
    """A measured or limited device keeps its name."""
    rest = "gpus:\n  T4: {memory_gib: 7.5, memory_bandwidth_gBps: 300, tflops: {fp16: 40}, reserve_gib: 1}\n"
    cluster = loaded(tmp_path, one_pool("gpu: T4\nnodes: 1", rest))
    assert (cluster.gpus["T4"].memory_gib, cluster.gpus["T4"].reserve_gib) == (7.5, 1.0)


def test_a_kind_of_gpus_is_called_by_its_key(tmp_path: Path) -> None:
    """Another name in it would be a second one."""
    numbers = "memory_gib: 8, memory_bandwidth_gBps: 100, tflops: {fp16: 10}"
    own = one_pool("gpu: T4\nnodes: 1", f"gpus: {{T4: {{name: t4, {numbers}}}}}\n")
    with pytest.raises(SpecError, match=r'gpus\.T4\.name: expected T4, got "t4"'):
        loaded(tmp_path, own)


def test_intra_node_by_its_numbers(tmp_path: Path) -> None:
    """With the default latency."""
    text = one_pool("gpu: T4\nnodes: 1\ngpus_per_node: 2\nintra_node: {bandwidth_gBps: 6, shared: true}")
    link = loaded(tmp_path, text).pools[0].intra_node
    assert (link.bandwidth_gBps, link.latency_us, link.shared) == (6.0, 3.0, True)


def test_fabric_latency_follows_its_kind(tmp_path: Path) -> None:
    """Unless given."""
    kinds = "a: {kind: infiniband}, b: {kind: roce}, c: {kind: ethernet}, d: {kind: roce, latency_us: 0}"
    fabrics = loaded(tmp_path, one_pool("gpu: T4\nnodes: 1", f"fabrics: {{{kinds}}}\n")).fabrics
    assert [fabric.latency_us for fabric in fabrics.values()] == [2.0, 4.0, 30.0, 0.0]


def test_a_chain_of_links_connects(tmp_path: Path) -> None:
    """Through a fabric that no pool is on."""
    text = CLUSTER.replace("{fabric: ib, bandwidth_gbps: 100}", "{fabric: eth, bandwidth_gbps: 100}")
    text += """\
  wan: {kind: ethernet, latency_us: 100}
  eth: {kind: ethernet}
links:
  - {between: [ib, wan], bandwidth_gbps: 100, latency_us: 50, source: contract}
  - {between: [eth, wan], bandwidth_gbps: 100, latency_us: 50}
"""
    assert len(loaded(tmp_path, text).links) == 2


def test_a_third_pool_may_stand_alone(tmp_path: Path) -> None:
    """Two that can talk are enough."""
    text = CLUSTER.replace("fabrics:", "  - {name: c, gpu: T4, nodes: 1}\nfabrics:")
    assert len(loaded(tmp_path, text).pools) == 3


def test_anchors_save_typing(tmp_path: Path) -> None:
    """Lines and values come from where they are written."""
    text = """\
name: c
pools:
  - &first {name: a, gpu: T4, nodes: 1, nics: [{fabric: f, bandwidth_gbps: 10}]}
  - {<<: *first, name: b}
fabrics: {f: {kind: ethernet}}
"""
    assert [pool.name for pool in loaded(tmp_path, text).pools] == ["a", "b"]


def test_hosts(tmp_path: Path) -> None:
    """The pool's own numbers, 0.76 of the wire of a catalogue device, or of the user's own."""
    found = loaded(tmp_path, one_pool("gpu: V100-SXM-32GB\nnodes: 1\nhost: {memory_gib: 500}"))
    (one,) = found.pools
    assert found.host_link_of(one, "V100-SXM-32GB") == pytest.approx(0.76 * 15.75)
    assert one.host is not None
    assert (one.host.memory_gib, one.host.nvme_gBps) == (500, None)
    text = "gpu: V100-SXM-32GB\ngpus_per_node: 16\nintra_node: nvlink2\nnodes: 1\nhost: {all_links_gBps: 48}"
    found = loaded(tmp_path, one_pool(text))
    assert found.host_link_of(found.pools[0], "V100-SXM-32GB") == 3.0
    numbers = "memory_gib: 94, memory_bandwidth_gBps: 3900, tflops: {bf16: 800}"
    for more, wanted in (("", None), (", host_link_gBps: 100", 76.0)):
        found = loaded(tmp_path, one_pool(f"gpu: {{name: X, {numbers}{more}}}\nnodes: 1"))
        assert found.host_link_of(found.pools[0], "X") == wanted
