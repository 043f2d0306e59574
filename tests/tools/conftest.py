"""Fixtures that these tests share with those of measuring."""

from __future__ import annotations

from tests.measure.conftest import quick

__all__ = ["quick"]
