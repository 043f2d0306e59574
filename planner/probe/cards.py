"""Lines ``nics`` of a draft: cards by fabric, the fastest of each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from planner.probe.entry import Entry, flow, number, remark
from planner.probe.nics import Network, Port, real_interfaces

FABRICS = {"ib": "infiniband", "roce": "roce", "eth": "ethernet"}
"""Fabric of a draft -> its kind."""
_LAYERS = {"InfiniBand": "ib", "Ethernet": "roce"}


@dataclass(frozen=True, slots=True)
class Card:
    """A port that carries traffic."""

    fabric: str
    gbps: float | None
    """Gigabit/s in one direction."""
    interface: str | None = None
    hca: str | None = None

    @property
    def name(self) -> str:
        """What the operating system calls it."""
        return self.hca or self.interface or self.fabric


@dataclass(frozen=True, slots=True)
class Cards:
    """What a node says of its cards."""

    entries: tuple[Entry, ...]
    """The key ``nics``, and remarks on what is not in it."""
    fabrics: frozenset[str] = frozenset()


def cards_of(network: Network | None) -> Cards:
    """The cards of a node; None when nothing was seen of them."""
    if network is None:
        return Cards((Entry("nics", None, "[{fabric: eth, bandwidth_gbps: N, interface: NAME}]"),))
    found, remarks = list(_cards(network)), list(_left_out(network))
    items: list[str] = []
    fabrics: list[str] = []
    for fabric in FABRICS:
        mine = [card for card in found if card.fabric == fabric]
        remarks += [
            remark(f"not used: {card.name} ({fabric}), its speed was not seen")
            for card in mine
            if card.gbps is None
        ]
        fastest = max((card.gbps for card in mine if card.gbps is not None), default=None)
        if fastest is None:
            continue
        used = [card for card in mine if card.gbps == fastest]
        slower = [card for card in mine if card.gbps is not None and card.gbps < fastest]
        items.append(_nic(fabric, fastest, used))
        fabrics.append(fabric)
        remarks += [remark(f"not used: {card.name}, {card.gbps:g} Gbit/s ({fabric})") for card in slower]
    return Cards((*remarks, _nics(items)), frozenset(fabrics))


def _nics(items: list[str]) -> Entry:
    if not items:
        return Entry("nics", None, "[{fabric: eth, bandwidth_gbps: N, interface: NAME}]")
    return Entry("nics", "".join(f"\n  - {item}" for item in items))


def _nic(fabric: str, gbps: float, cards: list[Card]) -> str:
    interfaces = ",".join(dict.fromkeys(card.interface for card in cards if card.interface))
    adapters = ",".join(dict.fromkeys(card.hca for card in cards if card.hca))
    item = {
        "fabric": fabric,
        "bandwidth_gbps": number(gbps),
        "count": len(cards) if len(cards) > 1 else None,
        "interface": interfaces or None,
        "hca": adapters or None,
    }
    return flow({key: value for key, value in item.items() if value is not None})


def _cards(network: Network) -> Iterator[Card]:
    """Active ports of RDMA cards, then the interfaces of other cards."""
    owned = {device: interface for interface, device in network.owners.items()}
    for port in _ports(network):
        if port.active and port.link_layer in _LAYERS:
            fabric = _LAYERS[port.link_layer]
            interface = owned.get(port.device) if fabric == "roce" else None
            yield Card(fabric, port.gbps, interface, port.device)
    for each in real_interfaces(network):
        if each.up:
            yield Card("eth", each.gbps, each.name)


def _left_out(network: Network) -> Iterator[Entry]:
    """Cards that are there but cannot be used."""
    for port in _ports(network):
        if not port.active:
            yield remark(f"not used: {port.device} port {port.number}, its state is not Active")
        elif port.link_layer not in _LAYERS:
            layer = port.link_layer or "unknown"
            yield remark(f"not used: {port.device}, link layer {layer} is neither InfiniBand nor Ethernet")
    for interface in real_interfaces(network):
        if not interface.up:
            yield remark(f"not used: {interface.name}, no link")


def _ports(network: Network) -> list[Port]:
    """Ports in the order of their numbers: mlx5_2 before mlx5_10."""
    return sorted(network.ports.values(), key=lambda port: (len(port.device), port.device, port.number))
