"""What was seen of one node."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from planner.probe.nics import Network, parse_ethtool, parse_ibstat, parse_sysfs
from planner.probe.nvidia_smi import SeenGpu, parse_gpus, parse_mig
from planner.probe.text import Text
from planner.probe.topo import Topo, parse_topo


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One machine."""

    host: str | None
    """None when its name is not known."""
    gpus: tuple[SeenGpu, ...] | None = None
    """None when they could not be seen, empty when there are none."""
    topo: Topo | None = None
    network: Network | None = None
    """None when nothing was seen of its cards."""


def parse_node(host: str | None, texts: Mapping[str, Text]) -> Node:
    """The node of texts by the names of their sources (see sources.py); raises SpecError."""
    gpus = parse_gpus(texts["nvidia_smi"]) if "nvidia_smi" in texts else None
    if gpus and "gpu_list" in texts:
        gpus = parse_mig(texts["gpu_list"], gpus)
    topo = parse_topo(texts["topo"]) if "topo" in texts else None
    return Node(host=host, gpus=gpus, topo=topo, network=_network(texts))


_NETWORKS: dict[str, Callable[[Text], Network]] = {
    "sysfs": parse_sysfs,
    "ethtool": parse_ethtool,
    "ibstat": parse_ibstat,
}
"""Readers of cards; a later one wins over an earlier one."""


def _network(texts: Mapping[str, Text]) -> Network | None:
    found = [parse(texts[name]) for name, parse in _NETWORKS.items() if name in texts]
    if not found:
        return None
    whole = Network()
    for network in found:
        whole = network.over(whole)
    return whole
