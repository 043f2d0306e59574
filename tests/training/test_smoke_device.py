"""What the smoke run says of devices and nodes, for every kind of disagreement."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("torch")

from planner.training.smoke_device import Seen, address, is_kind, runs_on
from planner.training.smoke_run import FAULT, UNKNOWN, WARNING, CheckRow, Findings, device_rows, layer_rows

SPEC: dict[str, Any] = {
    "ranks": [
        {"rank": rank, "host": host, "device": rank % 2, "gpu": "T4"} for rank, host in enumerate("aabb")
    ],
    "devices": {"T4": ["T4", "Tesla T4"]},
}


def seen(rank: int, **changes: Any) -> Seen:
    """A rank as planned, but for the changes."""
    host, bus = "aabb"[rank], f"0:{16 + rank % 2:02x}:00"
    usual = Seen(
        rank=rank,
        host=host,
        machine=f"node-{host} 1",
        name="Tesla T4",
        bus=bus,
        slot_bus=bus,
        architecture="sm_75",
        wheel=("sm_75",),
        versions="torch 2.13",
        weights="abc",
    )
    return replace(usual, **changes)


def faults(*changed: Seen) -> list[CheckRow]:
    """What is not as it should be on four ranks."""
    ranks = {own.rank: own for own in (*(seen(rank) for rank in range(4)), *changed)}
    return [row for row in device_rows(SPEC, list(ranks.values()), False) if row.verdict != "ok"]


def test_as_planned() -> None:
    """Nothing to say."""
    assert faults() == []


@pytest.mark.parametrize(
    ("changed", "checks"),
    [
        (seen(1, name="Tesla V100-SXM2-16GB"), ["GPU"]),
        (seen(1, bus="0:10:00"), ["PCI slot", "device"]),
        (seen(3, machine="node-a 1", bus="0:20:00", slot_bus="0:20:00"), ["node"]),
        (seen(2, host="a"), ["node"]),
        (seen(2, architecture="sm_70"), ["architecture"]),
        (seen(3, versions="torch 2.12"), ["versions"]),
        (seen(3, weights="abd"), ["weights"]),
        (seen(0, name=""), ["GPU"]),
    ],
)
def test_each_fault(changed: Seen, checks: list[str]) -> None:
    """Found once, on its rank."""
    found = faults(changed)
    assert [row.check for row in found] == checks
    assert all(row.verdict == FAULT and f"rank {changed.rank}:" in row.where for row in found)


def test_two_hosts_on_one_machine() -> None:
    """Placeholders that both mean this machine."""
    moved = [seen(rank, machine="node-a 1", bus=f"0:{rank}0:00", slot_bus="") for rank in (2, 3)]
    assert [row.where for row in faults(*moved)] == ["b"]


def test_own_types_are_not_known() -> None:
    """The driver's name of a type outside the catalogue cannot be wrong; without a device it is not checked."""
    spec = {**SPEC, "devices": {"T4": ["T4"]}}
    rows = list(device_rows(spec, [seen(rank, name="Own card") for rank in range(4)], False))
    assert {row.verdict for row in rows if row.check == "GPU"} == {WARNING}
    rows = list(device_rows(SPEC, [seen(rank, name="", bus="") for rank in range(4)], True))
    assert {row.verdict for row in rows if row.check == "GPU"} == {UNKNOWN}


@pytest.mark.parametrize(
    ("architecture", "wheel", "runs"),
    [
        ("sm_70", "sm_75 sm_80 sm_90", False),
        ("sm_86", "sm_75 sm_80 sm_90", True),
        ("sm_89", "sm_80 sm_86", True),
        ("sm_120", "sm_80 sm_90", False),
        ("sm_120", "sm_80 compute_90", True),
        ("sm_100", "sm_90 sm_100 sm_120", True),
        ("sm_90", "sm_100", False),
        ("gfx90a", "gfx942 gfx90a", True),
        ("gfx908", "gfx942 gfx90a", False),
    ],
)
def test_architectures(architecture: str, wheel: str, runs: bool) -> None:
    """Code runs on later minor versions of its major one, and PTX on everything later."""
    assert runs_on(architecture, tuple(wheel.split())) == runs


def test_names_and_addresses() -> None:
    """As drivers print them."""
    assert is_kind("NVIDIA A100-SXM4-80GB", ["A100-SXM4-80GB"])
    assert not is_kind("NVIDIA A100-SXM4-40GB", ["A100-SXM4-80GB"])
    assert is_kind("AMD Instinct MI300X OAM", ["MI300X", "AMD Instinct MI300X"])
    assert address("00000000:1B:00.0") == address("0:1b:00") == "0:1b:00"
    assert address("nothing") == ""


def test_one_slow_device_among_its_like() -> None:
    """Within what the plan allows, yet slower than the others of its type."""
    layer = {"gpu": "T4", "micro_batch": 1, "forward_seconds": 1.0, "backward_seconds": 2.0}
    spec = {**SPEC, "layers": [layer], "ranks": [{**rank, "layer": 0} for rank in SPEC["ranks"]]}
    times = [(0.9, 1.8)] * 3 + [(1.3, 2.4)]
    found = [Findings(rank, layer=times[rank]) for rank in range(4)]
    assert [row.where for row in layer_rows(spec, found, False) if row.verdict == FAULT] == [
        "rank 3: b GPU 1"
    ]
    assert all(row.verdict != FAULT for row in layer_rows(spec, found, True)), "they share processors"
    found[0] = Findings(0, failed={"layer": "CUDA error: no kernel image"})
    assert next(layer_rows(spec, found, False)).fact == "CUDA error: no kernel image"
