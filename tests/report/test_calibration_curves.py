"""A calibration file as text."""

from __future__ import annotations

from pathlib import Path

from rich.console import Group

from planner.calibration.merge import merged
from planner.calibration.values import ASSUMED
from planner.report.calibration import calibration_sections, plot
from tests.report.drawing import drawn
from tests.report.test_measured_device import CALIBRATION
from tests.report.test_measured_network import LINKS


def test_a_bar_for_each_value() -> None:
    """The largest is as high as it gets, none is missing."""
    assert plot([1.0, 4.0, 8.0]) == "▁▄█"
    assert plot([1e-9, 1.0]) == "▁█"


def test_constants_and_curves_are_shown() -> None:
    """Layers by sequences a second, links by bytes a second."""
    from dataclasses import replace

    found = merged(CALIBRATION, replace(ASSUMED, link_points=LINKS, provenance={"torch": "2.7.0"}))
    text = drawn(Group(*calibration_sections(found, Path("c.yaml"))), width=100)
    assert "torch  2.7.0" in text
    assert "families.Abacus.matmul_efficiency" in text
    layer = next(line for line in text.splitlines() if "layers of gpt" in line)
    assert layer.split()[-2:] == ["66.7", "seq/s"]
    send = next(line for line in text.splitlines() if "send of 2 over ib" in line)
    assert send.split()[-3:] == ["▁▇█", "0.999", "GB/s"]
    assert "iB" in send  # sizes in bytes, not 1.05e+06
    empty = drawn(Group(*calibration_sections(ASSUMED, Path("c.yaml"))))
    assert "Curves" not in empty
    assert "not stated" in empty
