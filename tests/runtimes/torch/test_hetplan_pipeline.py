"""The order in which a stage of torch's pipeline talks to its neighbours."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from torch.distributed.pipelining import PipelineStage

from planner.runtimes.torch.hetplan_pipeline import PlannedStage


@pytest.mark.parametrize("sends", ["get_fwd_send_ops", "get_bwd_send_ops"])
def test_a_stage_asks_before_it_sends(monkeypatch: pytest.MonkeyPatch, sends: str) -> None:
    """torch's schedule adds receives to sends; alone, sends are what torch makes them."""
    monkeypatch.setattr(PipelineStage, sends, lambda stage, index: [f"send {index}"])
    stage = object.__new__(PlannedStage)
    found = getattr(stage, sends)(3)
    assert list(found) == ["send 3"]
    assert found + ["receive"] == ["receive", "send 3"]  # noqa: RUF005
