"""Connections of the devices of a node."""

from __future__ import annotations

import pytest

from planner.errors import SpecError
from planner.probe.devices import Topo, parse_topo
from tests.probe.seen import matrix, sample, text


def found(topo: Topo | None) -> Topo:
    """A matrix that was there."""
    assert topo is not None
    return topo


def test_a_switch_shows_all_links_at_every_peer() -> None:
    """NICs and the legend are not devices; the underlined header of a terminal is read."""
    topo = found(parse_topo(sample("dgx-01/topo.txt")))
    assert topo.devices == tuple(range(8))
    assert set(topo.connections.values()) == {"NV12"}
    assert len(topo.connections) == 28
    assert topo.joined_by_nvlink()
    assert topo.fewest_nvlinks() == 7 * 12


def test_host_bridges_and_switches() -> None:
    """PIX and PXB pass switches alone."""
    assert not found(parse_topo(sample("t4-01/topo.txt"))).behind_switches()
    assert found(parse_topo(matrix(["X\tPIX", "PIX\tX"]))).behind_switches()


def test_nvlink_that_joins_pairs_does_not_join_the_node() -> None:
    """Two bridges over four devices."""
    rows = ["X\tNV4\tSYS\tSYS", "NV4\tX\tSYS\tSYS", "SYS\tSYS\tX\tNV4", "SYS\tSYS\tNV4\tX"]
    topo = found(parse_topo(matrix(rows)))
    assert topo.has_nvlink()
    assert not topo.joined_by_nvlink()
    assert topo.nvlinks(1, 0) == topo.nvlinks(0, 1) == 4


def test_an_empty_text_was_not_seen() -> None:
    """No matrix."""
    assert parse_topo(text("")) is None


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("hello\n", "seen.txt:1: expected a header GPU0 GPU1"),
        ("\tGPU0\tGPU1\tCPU Affinity\nGPU0\tX\n", "seen.txt:2: expected 2 connections, got 1"),
        ("\tGPU0\tGPU1\tCPU Affinity\nGPU0\tX\tQPI\n", "seen.txt:2: expected X, NV12, PIX"),
        ("\tGPU0\tGPU1\tCPU Affinity\nGPU0\tX\tSYS\t0\n", "seen.txt:2: expected a row for each of the 2"),
        (
            "\tGPU0\tGPU1\tCPU Affinity\nGPU0\tX\tSYS\t0\nGPU1\tPIX\tX\t0\n",
            "seen.txt:3: GPU0 and GPU1: SYS one way, PIX the other",
        ),
    ],
)
def test_broken_matrices(content: str, message: str) -> None:
    """File and line."""
    with pytest.raises(SpecError) as caught:
        parse_topo(text(content))
    assert str(caught.value).startswith(message)
    assert "topo -m" in (caught.value.problems[0].hint or "")
