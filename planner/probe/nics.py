"""Network cards of a node, as ``ibstat``, ``ethtool`` and sysfs show them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from planner.probe.text import Text, short

_IBSTAT_HINT = "save the output of: ibstat"
_ETHTOOL_HINT = "save the output of: ethtool eth0, for each interface"
_SYSFS_HINT = "save what the sysfs line of hetplan probe --commands prints"
_ADAPTER = re.compile(r"CA '([^']+)'")
_PORT = re.compile(r"\s+Port (\d{1,4}):")
_SETTINGS = re.compile(r"Settings for (\S+):")
_PORT_FILE = re.compile(r"/sys/class/infiniband/([^/]+)/ports/(\d{1,4})/(rate|state|link_layer):(.*)")
_OWNED_FILE = re.compile(r"/sys/class/infiniband/([^/]+)/device/net/([^/]+)/operstate:.*")
_INTERFACE_FILE = re.compile(r"/sys/class/net/([^/]+)/(.+?):(.*)")
_MACHINE_FILE = re.compile(r"/sys/class/dmi/id/(sys_vendor|product_name):(.*)")
_VIRTUAL = re.compile(
    r"(lo$|docker|podman|veth|virbr|vmbr|ovs|vnet|br-|br\d|vlan|macv|bonding_masters|cni|flannel|cali|cilium|lxc|tun|tap|ifb|dummy|vxlan|wg|kube|tailscale|sit|gre"
    r"|ip6|nodelocaldns|vmnet|team)"
)
_VLAN = re.compile(r"(.+)\.\d{1,4}")
_IPOIB = re.compile(r"ib(\d|p|s)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Port:
    """One port of an RDMA card."""

    device: str
    """RDMA device, e.g. ``mlx5_0``."""
    number: int
    active: bool = False
    gbps: float | None = None
    """Rate, gigabit/s."""
    link_layer: str = ""
    """``InfiniBand``, ``Ethernet``, or what the driver says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interface:
    """One network interface of the operating system."""

    name: str
    up: bool = False
    gbps: float | None = None
    """Speed, gigabit/s; None when the driver does not say it."""


@dataclass(frozen=True, slots=True)
class Network:
    """All that is known of the cards of a node."""

    ports: dict[tuple[str, int], Port] = field(default_factory=dict)
    interfaces: dict[str, Interface] = field(default_factory=dict)
    owners: dict[str, str] = field(default_factory=dict)
    """Interface -> the RDMA device that it belongs to."""
    hardware: frozenset[str] = frozenset()
    """Interfaces that are a device of their own; empty when nothing is known."""
    bonds: frozenset[str] = frozenset()
    members: frozenset[str] = frozenset()
    """Interfaces that a bond has taken."""
    bond_of: dict[str, str] = field(default_factory=dict)
    """Interface -> the bond that has taken it, where it is known."""
    machine: str = ""
    """Vendor and product of the machine; Amazon EC2 calls its instance type the product."""

    def over(self, other: Network) -> Network:
        """Both together; this one wins where both speak."""
        interfaces = dict(other.interfaces)
        for name, mine in self.interfaces.items():
            theirs = interfaces.get(name)
            speed = theirs.gbps if theirs and mine.gbps is None else mine.gbps
            interfaces[name] = replace(mine, gbps=speed)
        return Network(
            {**other.ports, **self.ports},
            interfaces,
            {**other.owners, **self.owners},
            self.hardware | other.hardware,
            self.bonds | other.bonds,
            self.members | other.members,
            {**other.bond_of, **self.bond_of},
            self.machine or other.machine,
        )


def parse_ibstat(text: Text) -> Network:
    """Ports of all RDMA cards; raises SpecError."""
    ports: dict[tuple[str, int], Port] = {}
    device, port, began = "", None, 1
    for number, line in text.lines():
        adapter, start = _ADAPTER.fullmatch(line.strip()), _PORT.fullmatch(line)
        if adapter:
            device, port = adapter[1], None
        elif not device:
            raise text.broken(number, f"expected CA 'name', got {short(line)}", _IBSTAT_HINT)
        elif start:
            port, began = Port(device=device, number=int(start[1])), number
            ports[device, port.number] = port
        elif port is not None:
            key, colon, value = (part.strip() for part in line.partition(":"))
            if not colon:
                raise text.broken(number, f"expected key: value, got {short(line)}", _IBSTAT_HINT)
            port = _with(text, number, port, key.lower(), value, _IBSTAT_HINT)
            ports[device, port.number] = port
    missing = next((port for port in ports.values() if not port.link_layer), None)
    if missing is not None:
        what = f"{missing.device} port {missing.number}: expected a line Link layer: InfiniBand or Ethernet"
        raise text.broken(began, what, "use a newer ibstat, or the sysfs file")
    return Network(ports=ports)


def parse_ethtool(text: Text) -> Network:
    """Interfaces with their speeds; raises SpecError."""
    interfaces: dict[str, Interface] = {}
    name = ""
    for number, line in text.lines():
        start = _SETTINGS.fullmatch(line.strip())
        key, _, value = (part.strip() for part in line.partition(":"))
        if start:
            name = start[1]
            interfaces[name] = Interface(name=name)
        elif not name:
            raise text.broken(number, f"expected Settings for NAME:, got {short(line)}", _ETHTOOL_HINT)
        elif key == "Speed":
            interfaces[name] = replace(interfaces[name], gbps=_megabits(text, number, value))
        elif key == "Link detected":
            interfaces[name] = replace(interfaces[name], up=value.startswith("yes"))
    return Network(interfaces=interfaces)


def parse_sysfs(text: Text) -> Network:
    """Ports and interfaces of lines ``/sys/class/...:value``, as grep prints them; raises SpecError."""
    network = Network()
    hardware, bonds, members = set(), set(), set()
    machine: dict[str, str] = {}
    for number, line in text.lines():
        port, owned = _PORT_FILE.fullmatch(line), _OWNED_FILE.fullmatch(line)
        interface, product = _INTERFACE_FILE.fullmatch(line), _MACHINE_FILE.fullmatch(line)
        if product:
            machine[product[1]] = product[2].strip()
        elif port:
            at = (port[1], int(port[2]))
            known = network.ports.get(at, Port(device=port[1], number=at[1]))
            key = port[3].replace("_", " ")
            network.ports[at] = _with(text, number, known, key, port[4].strip(), _SYSFS_HINT)
        elif owned:
            network.owners[owned[2]] = owned[1]
        elif interface:
            name, file, value = interface.groups()
            hardware |= {name} if file == "device/uevent" else set()
            bonds |= {name} if file == "bonding/mode" else set()
            network.bond_of.update(dict.fromkeys(value.split(), name) if file == "bonding/slaves" else {})
            members |= {name} if file == "bonding_slave/state" else set()
            state = network.interfaces.get(name, Interface(name=name))
            network.interfaces[name] = _state(text, number, state, file, value.strip())
        else:
            raise text.broken(number, f"expected /sys/class/...:value, got {short(line)}", _SYSFS_HINT)
    return replace(
        network,
        hardware=frozenset(hardware),
        bonds=frozenset(bonds),
        members=frozenset(members),
        machine=" ".join(machine[key] for key in ("sys_vendor", "product_name") if key in machine),
    )


def _with(text: Text, number: int, port: Port, key: str, value: str, hint: str) -> Port:
    """The port with what one line says of it."""
    if key == "state":
        return replace(port, active=value.rpartition(" ")[2].lower() == "active")
    if key == "link layer":
        return replace(port, link_layer=value)
    if key == "rate":
        rate = re.match(r"(\d{1,6}(?:\.\d{1,6})?)(?: Gb/sec)?(?: \(.*\))?$", value)
        if not rate:
            raise text.broken(number, f"rate: expected gigabit/s such as 200, got {short(value)}", hint)
        return replace(port, gbps=float(rate[1]) or None)
    return port


def _state(text: Text, number: int, interface: Interface, file: str, value: str) -> Interface:
    if file == "operstate":
        return replace(interface, up=value == "up")
    if file == "speed":
        if not re.fullmatch(r"-?\d{1,10}", value):
            raise text.broken(
                number, f"speed: expected megabit/s such as 10000, got {short(value)}", _SYSFS_HINT
            )
        speed = int(value)
        return replace(interface, gbps=speed / 1000 if 0 < speed < 2**31 else None)
    return interface


def _megabits(text: Text, number: int, value: str) -> float | None:
    if value.startswith("Unknown"):
        return None
    match = re.fullmatch(r"(\d{1,9})Mb/s(?: .*)?", value)
    if not match:
        raise text.broken(
            number, f"Speed: expected megabit/s such as 10000Mb/s, got {short(value)}", _ETHTOOL_HINT
        )
    return int(match[1]) / 1000 or None


def real_interfaces(network: Network) -> Iterator[Interface]:
    """Interfaces of Ethernet cards and bonds: no VLANs, bridges, containers or tunnels, nor those of RDMA cards."""
    of_rdma = {*network.owners, *(network.bond_of.get(name) for name in network.owners)}
    for name, interface in network.interfaces.items():
        bond = name in network.bonds or re.match(r"bond\d", name)
        virtual = network.hardware and name not in network.hardware
        vlan = _VLAN.fullmatch(name)
        if vlan and vlan[1] in network.interfaces:
            continue
        if name in of_rdma or name in network.members or _IPOIB.match(name) or _VIRTUAL.match(name):
            continue
        if bond or not virtual:
            yield interface
