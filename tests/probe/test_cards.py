"""The key ``nics``."""

from __future__ import annotations

from planner.probe.entries import cards_of
from planner.probe.nics import Network, parse_ethtool, parse_ibstat, parse_sysfs
from tests.probe.seen import sample, text


def lines(network: Network | None) -> list[str]:
    """All lines of the entries."""
    return "\n".join(entry.line() for entry in cards_of(network).entries).splitlines()


def test_a_dgx_has_infiniband_and_ethernet() -> None:
    """The port that is down and the slow management port are not used, and say so."""
    seen = parse_ibstat(sample("dgx-01/ibstat.txt")).over(parse_ethtool(sample("dgx-01/ethtool.txt")))
    assert lines(seen) == [
        "# not used: mlx5_10 port 1, its state is not Active",
        "# not used: enp226s0, 1 Gbit/s (eth)",
        "nics:",
        "  - {fabric: ib, bandwidth_gbps: 200, count: 8, "
        "hca: 'mlx5_0,mlx5_1,mlx5_2,mlx5_3,mlx5_6,mlx5_7,mlx5_8,mlx5_9'}",
        "  - {fabric: eth, bandwidth_gbps: 100, count: 2, interface: 'enp225s0f0,enp225s0f1'}",
    ]
    assert cards_of(seen).fabrics == {"ib", "eth"}


def test_ethernet_link_layers_are_roce() -> None:
    """With the interface of each card."""
    found = cards_of(parse_sysfs(sample("h100-01/sysfs.txt")))
    assert found.fabrics == {"roce", "eth"}
    roce, eth = (found.entries[-1].value or "").strip().splitlines()
    assert roce.startswith("- {fabric: roce, bandwidth_gbps: 400, count: 8, interface: 'ens0np0,ens1np0,")
    assert eth == "  - {fabric: eth, bandwidth_gbps: 50, interface: bond0}"


BOND = """\
/sys/class/infiniband/mlx5_bond_0/ports/1/rate:200 Gb/sec (4X HDR)
/sys/class/infiniband/mlx5_bond_0/ports/1/state:4: ACTIVE
/sys/class/infiniband/mlx5_bond_0/ports/1/link_layer:Ethernet
/sys/class/infiniband/mlx5_bond_0/device/net/ens1f0/operstate:up
/sys/class/net/bond0/speed:200000
/sys/class/net/bond0/operstate:up
/sys/class/net/bond0/bonding/mode:802.3ad 4
/sys/class/net/bond0/bonding/slaves:ens1f0 ens1f1
/sys/class/net/bond0.100/speed:200000
/sys/class/net/bond0.100/operstate:up
/sys/class/net/ens1f0/operstate:up
/sys/class/net/ens1f0/device/uevent:DRIVER=mlx5_core
/sys/class/net/ens1f0/bonding_slave/state:active
/sys/class/net/ens1f1/operstate:up
/sys/class/net/ens1f1/device/uevent:DRIVER=mlx5_core
/sys/class/net/ens1f1/bonding_slave/state:active
"""


def test_a_bond_of_roce_is_one_card() -> None:
    """Sockets go through the bond, whose member has no address; neither it nor its VLAN is another card."""
    assert lines(parse_sysfs(text(BOND))) == [
        "nics:",
        "  - {fabric: roce, bandwidth_gbps: 200, interface: bond0, hca: mlx5_bond_0}",
    ]


def test_vlans_and_bridges_are_no_cards() -> None:
    """Where ethtool alone lists them."""
    names = ("eno1", "eno1.7", "vmbr0", "vlan7", "bond1", "bond1.20", "bond1.30")
    up = "".join(f"Settings for {name}:\n\tSpeed: 25000Mb/s\n\tLink detected: yes\n" for name in names)
    assert lines(parse_ethtool(text(up))) == [
        "nics:",
        "  - {fabric: eth, bandwidth_gbps: 25, count: 2, interface: 'eno1,bond1'}",
    ]


def test_slingshot_is_told_by_its_interfaces() -> None:
    """It is RDMA by HPE's provider, not TCP."""
    up = "".join(
        f"/sys/class/net/hsn{at}/{file}\n" for at in (0, 1) for file in ("speed:200000", "operstate:up")
    )
    found = cards_of(parse_sysfs(text(up)))
    assert found.fabrics == {"slingshot"}
    assert (
        found.entries[-1]
        .line()
        .endswith("- {fabric: slingshot, bandwidth_gbps: 200, count: 2, interface: 'hsn0,hsn1'}")
    )


AZURE = """\
/sys/class/infiniband/mlx5_ib0/ports/1/rate:200 Gb/sec (4X HDR)
/sys/class/infiniband/mlx5_ib0/ports/1/state:4: ACTIVE
/sys/class/infiniband/mlx5_ib0/ports/1/link_layer:InfiniBand
/sys/class/infiniband/mlx5_an0/ports/1/rate:100 Gb/sec (4X EDR)
/sys/class/infiniband/mlx5_an0/ports/1/state:4: ACTIVE
/sys/class/infiniband/mlx5_an0/ports/1/link_layer:Ethernet
/sys/class/infiniband/mlx5_an0/device/net/enP1/operstate:up
/sys/class/net/eth0/speed:50000
/sys/class/net/eth0/operstate:up
/sys/class/net/enP1/speed:100000
/sys/class/net/enP1/operstate:up
/sys/class/dmi/id/sys_vendor:Microsoft Corporation
/sys/class/dmi/id/product_name:Virtual Machine
"""


def test_accelerated_networking_of_azure_is_no_roce() -> None:
    """Its card is that of eth0, which has the address."""
    assert lines(parse_sysfs(text(AZURE))) == [
        "# not used: mlx5_an0, accelerated networking, which is no RoCE",
        "# machine: Microsoft Corporation Virtual Machine",
        "nics:",
        "  - {fabric: ib, bandwidth_gbps: 200, hca: mlx5_ib0}",
        "  - {fabric: eth, bandwidth_gbps: 50, interface: eth0}",
    ]


UNKNOWN = "Settings for eth0:\n\tSpeed: Unknown!\n\tLink detected: yes\n"


def test_a_card_without_a_speed_keeps_its_place() -> None:
    """A virtual machine's card does not say it; it is left to fill in."""
    assert lines(parse_ethtool(text(UNKNOWN))) == [
        "# not seen: nics: - {fabric: eth, bandwidth_gbps: ?, interface: eth0}, its speed was not seen",
    ]
    beside = "Settings for eth1:\n\tSpeed: 25000Mb/s\n\tLink detected: yes\n"
    assert lines(parse_ethtool(text(UNKNOWN + beside))) == [
        "# ? - {fabric: eth, bandwidth_gbps: ?, interface: eth0}, its speed was not seen",
        "nics:",
        "  - {fabric: eth, bandwidth_gbps: 25, interface: eth1}",
    ]


def port(device: str) -> Network:
    """A port whose link layer is neither InfiniBand nor Ethernet."""
    layer = "\n\tPort 1:\n\t\tState: Active\n\t\tRate: 100\n\t\tLink layer: Unspecified\n"
    return parse_ibstat(text(f"CA '{device}'{layer}"))


def test_other_link_layers_keep_their_place() -> None:
    """Amazon's EFA is told by its name; of others the fabric is left to fill in."""
    assert lines(port("usnic_0")) == [
        "# not seen: nics: - {fabric: ?, bandwidth_gbps: 100, hca: usnic_0}, link layer Unspecified",
    ]
    assert lines(port("rdmap0s6")) == ["nics:", "  - {fabric: efa, bandwidth_gbps: 100, hca: rdmap0s6}"]
    assert cards_of(port("efa_0")).fabrics == {"efa"}


def test_the_type_of_an_instance_says_the_speed() -> None:
    """Amazon's machines name it as their product; others only say whose they are."""
    card = "/sys/class/net/ens5/operstate:up\n/sys/class/net/ens5/speed:-1\n"
    vendor = "/sys/class/dmi/id/sys_vendor:{}\n/sys/class/dmi/id/product_name:{}\n"
    assert lines(parse_sysfs(text(card + vendor.format("Amazon EC2", "p4d.24xlarge")))) == [
        "# machine: Amazon EC2 p4d.24xlarge",
        "# assumed: speed of ens5, as Amazon gives it for p4d.24xlarge",
        "nics:",
        "  - {fabric: eth, bandwidth_gbps: 100, interface: ens5}",
    ]
    several = lines(parse_sysfs(text(card + vendor.format("Amazon EC2", "g6e.48xlarge"))))
    assert several[-1] == "  - {fabric: eth, bandwidth_gbps: 100, interface: ens5}"  # four cards have 400
    other = lines(parse_sysfs(text(card + vendor.format("Google", "Google Compute Engine"))))
    assert other[0] == "# machine: Google Google Compute Engine"
    assert "bandwidth_gbps: ?, interface: ens5" in other[1]


def test_nothing_seen() -> None:
    """One line to fill in."""
    assert lines(None) == ["# not seen: nics: [{fabric: eth, bandwidth_gbps: N, interface: NAME}]"]
