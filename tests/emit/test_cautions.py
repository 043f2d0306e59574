"""Warnings beside a launch folder."""

from __future__ import annotations

from planner.emit.cautions import cautions, is_tried


def test_nothing_to_say() -> None:
    """Tried versions, with a build's name behind or a patch number."""
    assert cautions("deepspeed", {"torch": "2.13.1+cu130", "deepspeed": "0.19.8"}) == ()
    assert cautions("deepspeed", {}) == ()


def test_versions_that_were_not_tried() -> None:
    """Each is named with the one that was."""
    found = cautions("deepspeed", {"torch": "2.1.0", "deepspeed": "0.19.80"})
    assert found == (
        "torch 2.1.0 is installed here, the launch files were tried with 2.13",
        "deepspeed 0.19.80 is installed here, the launch files were tried with 0.19.8",
    )


def test_is_tried() -> None:
    """A prefix of whole numbers."""
    assert is_tried("2.13.0+cpu", "2.13")
    assert not is_tried("2.130.0", "2.13")
