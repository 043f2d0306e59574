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


def test_a_card_without_a_speed_is_not_used() -> None:
    """A virtual machine's card does not say it; the key is left to fill in."""
    assert lines(parse_ethtool(text("Settings for eth0:\n\tSpeed: Unknown!\n\tLink detected: yes\n"))) == [
        "# not used: eth0 (eth), its speed was not seen",
        "# not seen: nics: [{fabric: eth, bandwidth_gbps: N, interface: NAME}]",
    ]


def test_other_link_layers_are_not_used() -> None:
    """Amazon's EFA says Unspecified."""
    port = "CA 'rdmap0s6'\n\tPort 1:\n\t\tState: Active\n\t\tRate: 100\n\t\tLink layer: Unspecified\n"
    assert lines(parse_ibstat(text(port)))[0] == (
        "# not used: rdmap0s6, link layer Unspecified is neither InfiniBand nor Ethernet"
    )


def test_nothing_seen() -> None:
    """One line to fill in."""
    assert lines(None) == ["# not seen: nics: [{fabric: eth, bandwidth_gbps: N, interface: NAME}]"]
