"""The texts of one node."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from planner.errors import SpecError
from planner.probe.draft import draft, lacking
from planner.probe.hosts import parse_hostfile, parse_slurm
from planner.probe.node import parse_node
from planner.probe.text import Text
from tests.probe.seen import SAMPLES, sample, text

FILES = {
    "nvidia_smi": "dgx-01/nvidia-smi.csv",
    "topo": "t4-01/topo.txt",
    "ibstat": "dgx-01/ibstat.txt",
    "ethtool": "dgx-01/ethtool.txt",
    "sysfs": "h100-01/sysfs.txt",
}


def test_a_node_of_all_its_texts() -> None:
    """Cards of three sources come together."""
    texts = {name: sample(file) for name, file in FILES.items() if name != "topo"}
    node = parse_node("a", texts)
    assert node.gpus is not None
    assert node.network is not None
    assert (node.host, len(node.gpus), node.topo) == ("a", 8, None)
    assert {"enp226s0", "bond0"} <= set(node.network.interfaces)
    assert node.network.ports["mlx5_0", 1].link_layer == "InfiniBand"


def test_nothing_was_seen() -> None:
    """Which is not the same as nothing being there."""
    node = parse_node(None, {})
    assert (node.gpus, node.topo, node.network) == (None, None, None)


@st.composite
def damaged(draw: st.DrawFn) -> dict[str, Text]:
    """Saved outputs in which a few characters were replaced, lost or put in."""
    texts = {}
    for name, file in FILES.items():
        content = (SAMPLES / file).read_text(encoding="utf-8")
        for _ in range(draw(st.integers(0, 2))):
            at = draw(st.integers(0, len(content)))
            gone = draw(st.integers(0, 9))
            content = content[:at] + draw(st.text(max_size=3)) + content[at + gone :]
        texts[name] = text(content)
    return texts


@settings(max_examples=50, deadline=None)
@given(damaged())
def test_damaged_texts_are_errors_or_drafts(texts: dict[str, Text]) -> None:
    """Whatever is read becomes a file that the checker can speak of."""
    for name in texts:
        try:
            node = parse_node("a", {name: texts[name]})
        except SpecError:
            continue
        assert all(problem.line for problem in lacking(draft([node], [], "ours"), "c.yaml"))


@settings(max_examples=100, deadline=None)
@given(st.text(alphabet="ab[]-,019 #=slot\n", max_size=40))
def test_any_list_of_hosts_is_an_error_or_hosts(content: str) -> None:
    """Each host once."""
    for parse in (parse_hostfile, parse_slurm):
        try:
            names = [host.name for host in parse(text(content))]
        except SpecError:
            continue
        assert names
        assert len(set(names)) == len(names)
