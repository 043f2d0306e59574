"""What one search is asked, as its commands hand it on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from planner.calibration import Calibration
    from planner.plan_file import UsedCalibration
    from planner.search.values import Goal, Limits
    from planner.spec.cluster import ClusterSpec
    from planner.spec.model import ModelSpec


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
