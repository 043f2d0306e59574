"""Defaults of the cost model."""

from __future__ import annotations

from dataclasses import fields

from planner.calibration import DEFAULT


def test_shares_are_shares() -> None:
    """Efficiencies and overlap lie between 0 and 1; everything else is positive."""
    for name in ("matmul_efficiency", "memory_efficiency", "link_efficiency", "overlap", "spread"):
        assert 0 < getattr(DEFAULT, name) < 1
    assert all(getattr(DEFAULT, field.name) > 0 for field in fields(DEFAULT) if field.name != "provenance")


def test_nothing_is_claimed_to_be_measured() -> None:
    """Without a calibration every constant is assumed."""
    assert DEFAULT.provenance == {}
