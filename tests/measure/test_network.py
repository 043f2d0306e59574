"""Groups of processes, and two of them."""

from __future__ import annotations

import pytest

from planner.errors import UsageError

pytest.importorskip("torch")

from planner.measure.network import Team, open_world, teams


def test_groups_inside_a_node_double() -> None:
    """Up to all of it."""
    found = teams(("n0",) * 6, ("A100",) * 6, None)
    assert found == tuple(Team("node:A100", tuple(range(size))) for size in (2, 4, 6))


def test_nodes_of_the_same_kind_are_measured_once() -> None:
    """Then one process of each node, then all."""
    hosts, gpus = ("n0", "n0", "n1", "n1", "n2", "n2"), ("A100",) * 4 + ("V100",) * 2
    assert teams(hosts, gpus, "ib") == (
        Team("node:A100", (0, 1)),
        Team("node:V100", (4, 5)),
        Team("ib", (0, 2)),
        Team("ib", (0, 2, 4)),
        Team("ib", (0, 1, 2, 3, 4, 5)),
    )
    assert teams(("n0", "n1"), ("A100", "A100"), "ib") == (Team("ib", (0, 1)),)


def test_a_node_of_two_kinds_has_no_curve_of_its_own() -> None:
    """Its time would be nobody's."""
    assert teams(("n0", "n0"), ("A100", "V100"), None) == ()


def test_the_network_between_nodes_needs_its_name() -> None:
    """That of the cluster file."""
    with pytest.raises(UsageError, match="processes on 2 nodes: expected --fabric"):
        teams(("n0", "n1"), ("A100", "A100"), None)


def test_outside_of_torchrun(monkeypatch: pytest.MonkeyPatch) -> None:
    """One process measures no network."""
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(UsageError, match="started by torchrun"):
        open_world("cpu")
