"""What one search is asked, as its commands hand it on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from planner.calibration.values import Calibration
    from planner.cluster.spec import ClusterSpec
    from planner.model.spec import ModelSpec
    from planner.plan.file import UsedCalibration
    from planner.search.values import Goal, Limits


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What is searched for."""

    cluster: ClusterSpec
    model: ModelSpec
    calibration: Calibration
    used: UsedCalibration | None
    """The user's calibration file."""
    limits: Limits
    goal: Goal
