"""Network cards of a node."""

from __future__ import annotations

import pytest

from planner.errors import SpecError
from planner.probe.nics import parse_ethtool, parse_ibstat, parse_sysfs, real_interfaces
from tests.probe.seen import sample, text

ADAPTER = "CA 'mlx5_0'\n\tNumber of ports: 1\n\tPort 1:\n"


def test_ibstat_lists_ports_with_their_states() -> None:
    """Eight active ports and one that is down."""
    ports = parse_ibstat(sample("dgx-01/ibstat.txt")).ports
    assert len(ports) == 9
    assert sum(port.active for port in ports.values()) == 8
    port = ports["mlx5_3", 1]
    assert (port.gbps, port.link_layer, port.active) == (200, "InfiniBand", True)
    assert not ports["mlx5_10", 1].active


def test_rates_may_name_their_generation() -> None:
    """Older versions print 56 (FDR)."""
    network = parse_ibstat(
        text(ADAPTER + "\t\tState: Active\n\t\tRate: 56 (FDR)\n\t\tLink layer: InfiniBand\n")
    )
    assert network.ports["mlx5_0", 1].gbps == 56


def test_ethtool_lists_interfaces() -> None:
    """An unknown speed stays unknown; link modes in between are passed over."""
    interfaces = parse_ethtool(sample("dgx-01/ethtool.txt")).interfaces
    assert (interfaces["enp225s0f0"].gbps, interfaces["enp225s0f0"].up) == (100, True)
    assert (interfaces["docker0"].gbps, interfaces["docker0"].up) == (None, False)


def test_containers_tunnels_and_infiniband_are_no_ethernet_cards() -> None:
    """docker0, lo and ib0 fall away, by name where sysfs was not seen."""
    names = [each.name for each in real_interfaces(parse_ethtool(sample("dgx-01/ethtool.txt")))]
    assert names == ["enp225s0f0", "enp225s0f1", "enp226s0"]


def test_sysfs_knows_hardware_bonds_and_owners() -> None:
    """A bond stands for its members; interfaces of RDMA cards are theirs."""
    network = parse_sysfs(sample("h100-01/sysfs.txt"))
    assert [each.name for each in real_interfaces(network)] == ["bond0"]
    assert network.owners["ens3np0"] == "mlx5_3"
    assert network.members == {"eno1", "eno2"}
    port = network.ports["mlx5_7", 1]
    assert (port.gbps, port.active, port.link_layer) == (400, True, "Ethernet")


def test_an_interface_without_hardware_is_virtual_whatever_its_name() -> None:
    """Where sysfs says which ones have hardware."""
    lines = "/sys/class/net/{0}/speed:10000\n/sys/class/net/{0}/operstate:up\n"
    content = lines.format("eno1") + "/sys/class/net/eno1/device/uevent:DRIVER=igb\n" + lines.format("odd7")
    assert [each.name for each in real_interfaces(parse_sysfs(text(content)))] == ["eno1"]


def test_two_sources_complete_each_other() -> None:
    """The speed that one lacks is the other's."""
    unknown = parse_ethtool(text("Settings for eth0:\n\tSpeed: Unknown!\n\tLink detected: yes\n"))
    known = parse_sysfs(text("/sys/class/net/eth0/speed:25000\n/sys/class/net/eth0/operstate:down\n"))
    both = unknown.over(known).interfaces["eth0"]
    assert (both.gbps, both.up) == (25, True)


IBSTAT = [
    ("Port 1:\n", "seen.txt:1: expected CA 'name', got 'Port 1:'"),
    (ADAPTER + "\t\tState: Active\n\t\tRate: fast\n", "seen.txt:5: rate: expected gigabit/s"),
    (ADAPTER + "\t\tnonsense\n", "seen.txt:4: expected key: value, got 'nonsense'"),
    (ADAPTER + "\t\tState: Active\n", "seen.txt:3: mlx5_0 port 1: expected a line Link layer"),
]


@pytest.mark.parametrize(("content", "message"), IBSTAT)
def test_broken_ibstat(content: str, message: str) -> None:
    """File and line."""
    with pytest.raises(SpecError) as caught:
        parse_ibstat(text(content))
    assert str(caught.value).startswith(message)


def test_broken_ethtool() -> None:
    """File and line."""
    with pytest.raises(SpecError, match=r"seen\.txt:1: expected Settings for NAME"):
        parse_ethtool(text("Speed: 10Mb/s\n"))
    with pytest.raises(SpecError, match=r"seen\.txt:2: Speed: expected megabit/s"):
        parse_ethtool(text("Settings for eth0:\n\tSpeed: ten\n"))


def test_broken_sysfs() -> None:
    """File and line."""
    with pytest.raises(SpecError, match=r"seen\.txt:1: expected /sys/class/\.\.\.:value, got 'eth0 10'"):
        parse_sysfs(text("eth0 10\n"))
    with pytest.raises(SpecError, match=r"seen\.txt:1: speed: expected megabit/s"):
        parse_sysfs(text("/sys/class/net/eth0/speed:fast\n"))
    with pytest.raises(SpecError, match=r"seen\.txt:1: rate: expected gigabit/s"):
        parse_sysfs(text("/sys/class/infiniband/mlx5_0/ports/1/rate:fast\n"))
