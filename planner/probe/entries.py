"""Lines of a draft: device types, links inside a node, cards; seen, assumed, or left to fill in."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from planner import catalog
from planner.catalog.node_links import XGMI, nvlink_of
from planner.files.writing import flow
from planner.probe.devices import SeenGpu, Topo
from planner.probe.nics import Network, Port, real_interfaces

MEMORY_TOLERANCE = 0.03
"""Drivers differ by about 1 % in the total that they report; ECC on GDDR memory takes 6 %."""


@dataclass(frozen=True, slots=True)
class DraftType:
    """A device type of the draft."""

    name: str
    entries: tuple[DraftEntry, ...] = ()
    """Its numbers under ``gpus``; none when the catalogue has them."""
    known: catalog.CatalogueGpu | None = field(default=None, compare=False)
    """The device of the catalogue that it is, or is a variant of."""


def device_types_of(gpus: tuple[SeenGpu, ...]) -> tuple[DraftType, ...]:
    """Type of every device in order; a device cut by MIG gives one for each of its MIG devices."""
    return tuple(
        device_type for gpu in gpus for device_type in (_mig(gpu) if gpu.mig else (_device_type(gpu),))
    )


def _device_type(gpu: SeenGpu) -> DraftType:
    known = catalog.find_gpu(gpu.name)
    if known is None:
        return _unknown(gpu)
    if gpu.memory_mib is None:
        return DraftType(known.name, known=known)
    gib = gpu.memory_mib / 1024
    if abs(gib / known.memory_gib - 1) <= MEMORY_TOLERANCE:
        return DraftType(known.name, known=known)
    return _variant(gpu, known, gib)


def _variant(gpu: SeenGpu, known: catalog.CatalogueGpu, gib: float) -> DraftType:
    """A device of the catalogue with another amount of memory, as ECC or a vendor's version makes it."""
    ecc = {None: "", True: ", ECC on", False: ", ECC off"}[gpu.ecc]
    note = f"seen: {gpu.memory_mib:g} MiB{ecc}; the catalogue's {known.name} has {known.memory_gib:g} GiB"
    rest = {
        "memory_bandwidth_gBps": number(known.memory_bandwidth_gBps),
        "tflops": {dtype: number(peak) for dtype, peak in known.tflops.items()},
        "family": known.family,
        "multiprocessors": known.multiprocessors,
        "compute_capability": known.compute_capability,
        "vendor": known.vendor,
        "tdp_watts": known.tdp_watts and number(known.tdp_watts),
        "host_link_gBps": known.host_link_gBps and number(known.host_link_gBps),
    }
    assumed = f"{ASSUMED}as the catalogue's {known.name}"
    entries = [DraftEntry(key, flow(value), assumed) for key, value in rest.items() if value is not None]
    memory = DraftEntry("memory_gib", flow(number(gib)), note)
    return DraftType(f"{known.name}-{number(gib)}GiB", (memory, *entries), known)


def _unknown(gpu: SeenGpu) -> DraftType:
    memory = None if gpu.memory_mib is None else flow(number(gpu.memory_mib / 1024))
    note = "memory that the driver reports, MiB divided by 1024" if memory is None else "seen"
    vendor = (DraftEntry("vendor", gpu.vendor, "seen"),) if gpu.vendor else ()
    return DraftType(named(gpu.name), (DraftEntry("memory_gib", memory, note), *vendor, *_data_sheet()))


def _data_sheet() -> tuple[DraftEntry, ...]:
    """What only a data sheet says."""
    return (
        DraftEntry("memory_bandwidth_gBps", None, "of the data sheet, gigabyte/s"),
        DraftEntry("tflops", None, "{bf16: N, fp16: N, fp32: N}, dense peaks of the data sheet"),
        remark(
            "optional: family, multiprocessors, compute_capability, tdp_watts, host_link_gBps; see docs/formats.md"
        ),
    )


def _mig(gpu: SeenGpu) -> tuple[DraftType, ...]:
    """Types of the MIG devices: their memory by their profile, nothing of their speed."""
    known = catalog.find_gpu(gpu.name)
    base = known.name if known else named(gpu.name)
    maker = DraftEntry("vendor", "nvidia", "MIG is NVIDIA's")
    if known and known.compute_capability is not None:
        maker = DraftEntry("compute_capability", flow(known.compute_capability), f"that of {known.name}")
    if not gpu.profiles:
        memory = DraftEntry("memory_gib", None, "the MIG devices were not listed, add nvidia-smi -L")
        return (DraftType(f"{base}-mig", (memory, maker, *_data_sheet())),)
    return tuple(_slice(base, profile, maker) for profile in gpu.profiles)


def _slice(base: str, profile: str, maker: DraftEntry) -> DraftType:
    size = re.search(r"\.(\d+)gb", profile)
    note = f"{ASSUMED}by the name of the profile, GB taken as 10^9 bytes"
    memory = DraftEntry("memory_gib", flow(number(int(size[1]) * 1e9 / 2**30)), note) if size else None
    missing = DraftEntry("memory_gib", None, "memory of the MIG device, GiB")
    return DraftType(named(f"{base}-{profile}"), (memory or missing, maker, *_data_sheet()))


def named(text: str) -> str:
    """A product name in the letters that names may have."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-._")[:100] or "gpu"


BELOW_BOARD = 0.995
"""A limit of no more than this share of the board's power is one that somebody has set."""


def power_limit(gpus: tuple[SeenGpu, ...], device_types: tuple[DraftType, ...]) -> tuple[DraftEntry, ...]:
    """The line ``power_limit_watts``, or what to write by hand; nothing where boards have all of their power."""
    if any(gpu.mig for gpu in gpus):
        return ()
    limits = [
        (device_type.name, _limit(gpu, device_type))
        for gpu, device_type in zip(gpus, device_types, strict=True)
    ]
    found = {limit for _, limit in limits}
    if found <= {None}:
        return ()
    if len(found) == 1:
        return (DraftEntry("power_limit_watts", flow(number(found.pop() or 0.0))),)
    said = ", ".join(f"{name} {limit:g} W" for name, limit in dict.fromkeys(limits) if limit)
    return (remark(f"power limits differ in the node: {said}; power_limit_watts is one for all devices"),)


def _limit(gpu: SeenGpu, device_type: DraftType) -> float | None:
    """Watts, where they are less than the board's."""
    board, limit = device_type.known and device_type.known.tdp_watts, gpu.power_limit_watts
    return limit if board and limit and limit <= BELOW_BOARD * board else None


_LANE_GIGABYTES = {1: 0.25, 2: 0.5, 3: 15.75 / 16, 4: 31.5 / 16, 5: 63 / 16}
"""Gigabyte/s of one PCIe lane in one direction by generation."""
_NAMED = (3, 4, 5)
"""PCIe generations that the catalogue has."""


def intra_node(
    gpus: tuple[SeenGpu, ...], device_types: tuple[DraftType, ...], topo: Topo | None
) -> tuple[DraftEntry, ...]:
    """The line ``intra_node`` with remarks; nothing for a node of one device."""
    if len(device_types) < 2:
        return ()
    if any(gpu.mig for gpu in gpus):
        return (
            _missing("MIG devices have no peer access; measure what their copies through the host reach"),
        )
    if topo is None:
        return (_missing("the link of nvidia-smi topo -m, e.g. nvlink3 or pcie4"),)
    if topo.joined_by_xgmi():
        return (_xgmi(device_types),)
    if set(topo.devices) != {gpu.index for gpu in gpus}:
        return (_missing(f"nvidia-smi lists {len(gpus)} devices, its topo -m {len(topo.devices)}"),)
    if topo.has_nvlink() and topo.joined_by_nvlink():
        return (_nvlink(device_types, topo.fewest_nvlinks()),)
    note = "NVLink joins some devices only; one number stands for the node, that of PCIe"
    return (
        *((remark(note),) if topo.has_nvlink() else ()),
        _pcie(gpus, device_types, topo.behind_switches()),
    )


def _missing(note: str) -> DraftEntry:
    return DraftEntry("intra_node", None, note)


def _xgmi(device_types: tuple[DraftType, ...]) -> DraftEntry:
    names = {
        device_type.known.name if device_type.known else device_type.name for device_type in device_types
    }
    links = {XGMI.get(name) for name in names}
    link = links.pop() if len(links) == 1 else None
    if link is None:
        return _missing(
            f"{{bandwidth_gBps: N}}, gigabyte/s of the xGMI links of one {min(names)} in one direction"
        )
    return DraftEntry("intra_node", link)


def _nvlink(device_types: tuple[DraftType, ...], count: int) -> DraftEntry:
    """The slowest device's NVLinks; a switch shows all links of a device at each of its peers."""
    links = [_nvlink_of(device_type) for device_type in device_types]
    known = [entry for entry in links if entry is not None]
    if len(known) < len(links):
        lost = device_types[links.index(None)].name
        return _missing(f"{{bandwidth_gBps: N}}, gigabyte/s of the NVLinks of one {lost} in one direction")
    link, most = min(known, key=lambda each: each[0].bandwidth_gBps / each[1] * min(each[1], count))
    if count >= most:
        return DraftEntry("intra_node", link.name)
    bandwidth = number(link.bandwidth_gBps / most * count)
    value = {"bandwidth_gBps": bandwidth, "latency_us": link.latency_us}
    return DraftEntry("intra_node", flow(value), f"{count} of {most} links of {link.name}")


def _nvlink_of(device_type: DraftType) -> tuple[catalog.CatalogueLink, int] | None:
    found = device_type.known and nvlink_of(device_type.known.name)
    return (catalog.link(found[0]), found[1]) if found else None


def _pcie(gpus: tuple[SeenGpu, ...], device_types: tuple[DraftType, ...], switched: bool) -> DraftEntry:
    """The slowest device's PCIe link; one host bridge for all unless switches join them."""
    suffix = "-switch" if switched else ""
    seen = [
        (gpu.pcie_generation, gpu.pcie_width)
        for gpu in gpus
        if gpu.pcie_width and gpu.pcie_generation in _LANE_GIGABYTES
    ]
    if len(seen) < len(gpus):
        return _pcie_of_the_types(device_types, suffix)
    generation, width = min(seen, key=lambda lanes: _LANE_GIGABYTES[lanes[0]] * lanes[1])
    if width == 16 and generation in _NAMED:
        return DraftEntry("intra_node", f"pcie{generation}{suffix}")
    value = {"bandwidth_gBps": number(_LANE_GIGABYTES[generation] * width), "latency_us": 5.7}
    shared = {} if switched else {"shared": True, "shared_by": 4}
    return DraftEntry("intra_node", flow({**value, **shared}), f"PCIe {generation}, {width} lanes")


def _pcie_of_the_types(device_types: tuple[DraftType, ...], suffix: str) -> DraftEntry:
    """Generations that the data sheets give, for devices that do not say theirs."""
    rates = [device_type.known.host_link_gBps if device_type.known else None for device_type in device_types]
    slowest = min((each for each in rates if each is not None), default=None)
    named = {_LANE_GIGABYTES[generation] * 16: generation for generation in _NAMED}
    if None in rates or slowest not in named:
        return _missing(
            f"pcie3{suffix}, pcie4{suffix} or pcie5{suffix}; nvidia-smi did not say the generation"
        )
    note = f"{ASSUMED}x16 of the generation that the data sheet gives"
    return DraftEntry("intra_node", f"pcie{named[slowest]}{suffix}", note)


FABRICS: dict[str, dict[str, str]] = {
    "ib": {"kind": "infiniband"},
    "roce": {"kind": "roce"},
    "efa": {"kind": "roce", "provider": "efa"},
    "slingshot": {"kind": "roce", "provider": "slingshot"},
    "eth": {"kind": "ethernet"},
}
"""Fabric of a draft -> what it is."""
_LAYERS = {"InfiniBand": "ib", "Ethernet": "roce"}
_EFA = re.compile(r"(rdmap\d|efa_\d).*")
"""Amazon's EFA, whose ports say Unspecified."""
_SLINGSHOT = re.compile(r"hsn\d+")
"""HPE's Slingshot, whose RDMA devices are not among those of /sys/class/infiniband."""
_AZURE = "Microsoft Corporation"
"""Whose virtual machines have RDMA devices for accelerated networking, which pass no RoCE to each other; that card is
the one of eth0."""
AMAZON: dict[str, float] = {
    **{"g4dn.12xlarge": 50, "g4dn.16xlarge": 50, "g4dn.metal": 100},
    **{"g5.12xlarge": 40, "g5.24xlarge": 50, "g5.48xlarge": 100},
    **{"g6.12xlarge": 40, "g6.24xlarge": 50, "g6.48xlarge": 100},
    **{"g6e.12xlarge": 100, "g6e.24xlarge": 100, "g6e.48xlarge": 100},
    **{"p3.16xlarge": 25, "p3dn.24xlarge": 100, "p4d.24xlarge": 100, "p4de.24xlarge": 100},
    **{"p5.48xlarge": 100, "p5e.48xlarge": 100, "p5en.48xlarge": 200, "p6-b200.48xlarge": 400},
}
"""Gigabit/s of one network card of an instance type, by Amazon's pages on accelerated instances; those that are only
reached in bursts are left out. The last two of g6e have two and four cards (aws/amazon-vpc-cni-k8s, b521883)."""


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
class DraftCards:
    """What a node says of its cards."""

    entries: tuple[DraftEntry, ...]
    """The key ``nics``, and remarks on what is not in it."""
    fabrics: frozenset[str] = frozenset()


def cards_of(network: Network | None) -> DraftCards:
    """The cards of a node; a line to fill in where nothing was seen of them, ``network`` None."""
    if network is None:
        return DraftCards((DraftEntry("nics", None, "[{fabric: eth, bandwidth_gbps: N, interface: NAME}]"),))
    cards, remarks = list(_cards(network)), list(_left_out(network))
    items: list[str] = []
    fabrics: list[str] = []
    doubtful: list[str] = []
    if network.machine:
        remarks.append(remark(f"machine: {network.machine}"))
        guessed = [each.name for each in real_interfaces(network) if each.up and each.gbps is None]
        if guessed and (product := _product(network)) in AMAZON:
            remarks.append(
                remark(f"{ASSUMED}speed of {', '.join(guessed)}, as Amazon gives it for {product}")
            )
    for fabric in FABRICS:
        mine = [card for card in cards if card.fabric == fabric]
        doubtful += [_doubtful(card, "its speed was not seen") for card in mine if card.gbps is None]
        fastest = max((card.gbps for card in mine if card.gbps is not None), default=None)
        if fastest is None:
            continue
        used = [card for card in mine if card.gbps == fastest]
        slower = [card for card in mine if card.gbps is not None and card.gbps < fastest]
        items.append(_nic(fabric, fastest, used))
        fabrics.append(fabric)
        remarks += [remark(f"not used: {card.name}, {card.gbps:g} Gbit/s ({fabric})") for card in slower]
    doubtful += [
        _doubtful(Card("?", port.gbps, None, port.device), f"link layer {port.link_layer or 'unknown'}")
        for port in _ports(network)
        if port.active and _fabric_of(port) is None
    ]
    return DraftCards((*remarks, *_nics(items, doubtful)), frozenset(fabrics))


def _nics(items: list[str], doubtful: list[str]) -> Iterator[DraftEntry]:
    """The cards that were seen whole, and beside them those of which something is left to fill in."""
    if items:
        yield from (remark(f"? {card}") for card in doubtful)
        yield DraftEntry("nics", "".join(f"\n  - {item}" for item in items))
    else:
        for card in doubtful or ["[{fabric: eth, bandwidth_gbps: N, interface: NAME}]"]:
            yield DraftEntry("nics", None, card)


def _doubtful(card: Card, why: str) -> str:
    """A card that is there, with a question mark for what was not seen of it."""
    speed = "?" if card.gbps is None else number(card.gbps)
    names = {"interface": card.interface, "hca": card.hca}
    known = "".join(f", {key}: {name}" for key, name in names.items() if name)
    return f"- {{fabric: {card.fabric}, bandwidth_gbps: {speed}{known}}}, {why}"


def _fabric_of(port: Port) -> str | None:
    return (
        "efa"
        if _EFA.fullmatch(port.device) and port.link_layer != "InfiniBand"
        else _LAYERS.get(port.link_layer)
    )


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
        fabric = _fabric_of(port)
        if port.active and fabric is not None and not _accelerates(network, port):
            interface = owned.get(port.device, "") if fabric == "roce" else ""
            # The address of a port in a bond is the bond's.
            yield Card(fabric, port.gbps, network.bond_of.get(interface, interface) or None, port.device)
    for each in real_interfaces(network):
        if each.up:
            fabric = "slingshot" if _SLINGSHOT.fullmatch(each.name) else "eth"
            yield Card(fabric, each.gbps or AMAZON.get(_product(network)), each.name)


def _accelerates(network: Network, port: Port) -> bool:
    """True for Azure's accelerated networking."""
    return network.machine.startswith(_AZURE) and port.link_layer == "Ethernet"


def _product(network: Network) -> str:
    """The last word of what the machine is called: an instance type at Amazon."""
    return network.machine.rpartition(" ")[2]


def _left_out(network: Network) -> Iterator[DraftEntry]:
    """Cards that are there but cannot be used."""
    for port in _ports(network):
        if not port.active:
            yield remark(f"not used: {port.device} port {port.number}, its state is not Active")
        elif _accelerates(network, port):
            yield remark(f"not used: {port.device}, accelerated networking, which is no RoCE")
    for interface in real_interfaces(network):
        if not interface.up:
            yield remark(f"not used: {interface.name}, no link")


def _ports(network: Network) -> list[Port]:
    """Ports in the order of their numbers: mlx5_2 before mlx5_10."""
    return sorted(network.ports.values(), key=lambda port: (len(port.device), port.device, port.number))


ASSUMED = "assumed: "
NOT_SEEN = "not seen: "


@dataclass(frozen=True, slots=True)
class DraftEntry:
    """One key with its value, or a comment in its place."""

    key: str
    value: str | None
    """YAML in flow style; None when it was not seen."""
    note: str = ""
    """What a reader has to know of the value, or what to write in its place."""

    def line(self) -> str:
        """The entry as text without indentation."""
        if not self.key:
            return f"# {self.note}"
        if self.value is None:
            return f"# {NOT_SEEN}{self.key}: {self.note}"
        gap = "" if self.value.startswith("\n") else " "
        return f"{self.key}:{gap}{self.value}" + (f"  # {self.note}" if self.note else "")


def remark(note: str) -> DraftEntry:
    """A comment on a line of its own."""
    return DraftEntry("", None, note)


def number(value: float) -> float | int:
    """A number as people write it: two decimals at most, none when it is whole."""
    rounded = round(value, 2)
    return int(rounded) if rounded == int(rounded) else rounded
