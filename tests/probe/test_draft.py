"""Drafts are cluster files."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from planner import catalog
from planner.cluster.file import load_cluster
from planner.cluster.spec import ClusterSpec
from planner.probe.devices import SeenGpu, Topo
from planner.probe.draft import assumptions, draft, lacking, unseen
from planner.probe.entries import device_types_of
from planner.probe.hosts import ListedHost
from planner.probe.nics import Interface, Network, Port
from planner.probe.node import SOURCES, ProbedNode, parse_node
from tests.probe.seen import SAMPLES, sample


def node_of(host: str) -> ProbedNode:
    """A sample node."""
    files = {source.name: f"{host}/{source.file}" for source in SOURCES}
    return parse_node(host, {name: sample(file) for name, file in files.items() if (SAMPLES / file).exists()})


def loaded(text: str) -> ClusterSpec:
    """The cluster of a draft."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "cluster.yaml"
        path.write_text(text, encoding="utf-8")
        return load_cluster(path)


def test_the_samples_load() -> None:
    """Two DGX A100, an H100 node, a mixed one and one with T4."""
    names = ("dgx-01", "dgx-02", "h100-01", "lab-01", "t4-01", "login-01")
    text = draft([node_of(name) for name in names], [], "ours")
    assert lacking(text, "cluster.yaml") == ()
    assert unseen(text) == ()
    assert assumptions(text) == 3
    cluster = loaded(text)
    assert cluster.name == "ours"
    assert [(pool.hosts, len(pool.devices)) for pool in cluster.pools] == [
        (("dgx-01", "dgx-02"), 8),
        (("h100-01",), 8),
        (("lab-01",), 4),
        (("t4-01",), 4),
    ]
    assert [pool.intra_node.bandwidth_gBps for pool in cluster.pools] == [300, 450, 15.75, 15.75]
    assert {name: fabric.kind for name, fabric in cluster.fabrics.items()} == {
        "ib": "infiniband",
        "roce": "roce",
        "eth": "ethernet",
    }


def test_a_machine_without_devices_is_a_draft_to_fill_in() -> None:
    """Its card is seen; keys and lines of the rest are named."""
    text = draft([node_of("login-01")], [], "ours")
    (problem,) = lacking(text, "c.yaml")
    assert str(problem) == "c.yaml:4: pools[0]: expected either gpu or devices, one is missing"
    assert unseen(text) == ((6, "gpu"), (7, "gpus_per_node"), (8, "intra_node"))
    assert "- {fabric: eth, bandwidth_gbps: 10, interface: eno1}" in text


def test_an_unknown_device_is_an_entry_to_fill_in() -> None:
    """Filled in, the draft loads."""
    seen = ProbedNode(host="a", gpus=(SeenGpu(index=0, name="NVIDIA X100", memory_mib=96256),))
    text = draft([seen], [], "ours")
    assert [problem.key for problem in lacking(text, "c.yaml")] == [
        "gpus.NVIDIA-X100.memory_bandwidth_gBps",
        "gpus.NVIDIA-X100.tflops",
    ]
    filled = text.replace("# not seen: memory_bandwidth_gBps: of", "memory_bandwidth_gBps: 3900 # of")
    filled = filled.replace("# not seen: tflops: {bf16: N, fp16: N, fp32: N}, ", "tflops: {bf16: 800} # ")
    assert loaded(filled).gpus["NVIDIA-X100"].memory_gib == 94


def test_words_that_yaml_would_read_as_something_else_are_quoted() -> None:
    """A host may be called no, or 1e5."""
    seen = ProbedNode(host="no", gpus=(SeenGpu(index=0, name="Tesla T4"),))
    other = ProbedNode(host="1e5", gpus=(SeenGpu(index=0, name="Tesla T4"),))
    network = Network(interfaces={"eth0": Interface(name="eth0", up=True, gbps=10)})
    nodes = [ProbedNode(host=each.host, gpus=each.gpus, network=network) for each in (seen, other)]
    cluster = loaded(draft(nodes, [ListedHost(name="no"), ListedHost(name="1e5")], "123"))
    assert (cluster.name, cluster.pools[0].hosts) == ("123", ("no", "1e5"))


CONNECTIONS = st.sampled_from(["NV1", "NV2", "NV4", "NV12", "NV18", "PIX", "PXB", "PHB", "NODE", "SYS"])
PRODUCTS = st.sampled_from([alias for name in catalog.gpu_names() for alias in catalog.gpu(name).aliases])


@st.composite
def seen_gpus(draw: st.DrawFn) -> tuple[SeenGpu, ...]:
    """Devices of the catalogue, some with more or less memory than it says."""
    gpus = []
    first = draw(PRODUCTS)
    alike = PRODUCTS.filter(lambda each: catalog.gpu(each).library == catalog.gpu(first).library)
    for index, product in enumerate([first, *draw(st.lists(alike, max_size=3))]):
        factor = draw(st.sampled_from([0.9, 0.99, 1.0, 1.05]))
        gpus.append(
            SeenGpu(
                index=index,
                name=product,
                memory_mib=round(catalog.gpu(product).memory_gib * 1024 * factor),
                pcie_generation=draw(st.sampled_from([1, 2, 3, 4, 5])),
                pcie_width=draw(st.sampled_from([1, 4, 8, 16])),
                ecc=draw(st.sampled_from([None, True, False])),
            )
        )
    return tuple(gpus)


@st.composite
def seen_nodes(draw: st.DrawFn) -> list[ProbedNode]:
    """Nodes of which all was seen: PCIe between their devices, one Ethernet card and any RDMA cards."""
    nodes = []
    for position in range(draw(st.integers(1, 4))):
        gpus = draw(seen_gpus())
        pairs = [(one, other) for one in range(len(gpus)) for other in range(one + 1, len(gpus))]
        same = len({gpu.name for gpu in gpus}) == 1
        connections = (
            CONNECTIONS
            if same and gpus[0].name == "NVIDIA A100-SXM4-80GB"
            else CONNECTIONS.filter(lambda each: not each.startswith("NV"))
        )
        topo = Topo(tuple(range(len(gpus))), {pair: draw(connections) for pair in pairs})
        ports = {
            (f"mlx5_{index}", 1): Port(
                device=f"mlx5_{index}",
                number=1,
                active=draw(st.booleans()),
                gbps=draw(st.sampled_from([None, 100.0, 200.0])),
                link_layer=draw(st.sampled_from(["InfiniBand", "Ethernet", "Unspecified"])),
            )
            for index in range(draw(st.integers(0, 3)))
        }
        card = Interface(name="eno1", up=True, gbps=draw(st.sampled_from([0.1, 2.5, 10.0, 100.0])))
        network = Network(ports=ports, interfaces={"eno1": card})
        nodes.append(ProbedNode(host=f"n{position}", gpus=gpus, topo=topo, network=network))
    return nodes


@settings(max_examples=30, deadline=None)
@given(seen_nodes())
def test_what_was_seen_always_loads(nodes: list[ProbedNode]) -> None:
    """Every host once, with as many devices of the types that were seen."""
    text = draft(nodes, [], "ours")
    assert (lacking(text, "cluster.yaml"), unseen(text)) == ((), ())
    cluster = loaded(text)
    devices = {host: pool.devices for pool in cluster.pools for host in pool.hosts}
    assert devices == {
        node.host: tuple(device_type.name for device_type in device_types_of(node.gpus or ()))
        for node in nodes
    }
    for device_type in (device_type for node in nodes for device_type in device_types_of(node.gpus or ())):
        assert cluster.gpus[device_type.name].tflops
