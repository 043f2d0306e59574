"""The link that usually connects the devices of a node."""

from __future__ import annotations

import pytest

from planner.catalog.node_links import usual_link


@pytest.mark.parametrize(
    ("gpu", "link"),
    [
        ("H100-SXM-80GB", "nvlink4"),
        ("B300", "nvlink5"),
        ("MI300X", "xgmi-mi300x"),
        ("MI300A", "xgmi-mi300a"),
        ("MI350X", "xgmi-mi355x"),
        ("MI355X", "xgmi-mi355x"),
        ("T4", "pcie3"),
        ("L40S", "pcie4"),
        ("RTX-5090", "pcie5"),
        ("H100-NVL-94GB", "pcie5"),
        ("H200-NVL-141GB", "pcie5"),
        ("A30", "pcie4"),
        ("RTX-2080", "pcie3"),
    ],
)
def test_boards_have_their_own_links_and_cards_pcie(gpu: str, link: str) -> None:
    """NVLink of SXM boards, xGMI of OAM boards, else PCIe of the card's generation: bridges join only some cards."""
    assert usual_link(gpu) == link
