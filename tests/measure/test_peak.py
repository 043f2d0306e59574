"""Bytes of tensors on this processor."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from planner.measure.backend import open_backend  # noqa: E402
from planner.measure.layers import kept_bytes, peak_bytes  # noqa: E402

MEBIBYTE = 2**20


def test_a_peak_is_what_is_alive_at_once() -> None:
    """Three tensors, never more than two together, beside the one that was there; views count once."""
    there = torch.ones(MEBIBYTE // 4)

    def call() -> None:
        one, two = torch.empty(MEBIBYTE), torch.empty(MEBIBYTE)
        del one
        _ = two, torch.empty(MEBIBYTE // 2)

    found = peak_bytes(open_backend("cpu"), call, [there, there[:10]])
    assert found == (9 * MEBIBYTE, None)


def test_a_backward_counts_too() -> None:
    """The result of the exponent is alive while its gradient is made inside torch's engine."""
    weight: Any = torch.nn.Parameter(torch.ones(MEBIBYTE // 4))
    peak, _ = peak_bytes(open_backend("cpu"), lambda: (weight * 2).exp().sum().backward(), [])
    assert 2 * MEBIBYTE <= peak < 3.1 * MEBIBYTE


def test_kept_is_what_a_result_holds() -> None:
    """Results and what the backward needs; not what came and went."""
    weight: Any = torch.nn.Parameter(torch.ones(MEBIBYTE // 4))
    kept, result = kept_bytes(open_backend("cpu"), lambda: (weight + torch.ones(MEBIBYTE // 4)).exp())
    assert kept == MEBIBYTE
    assert float(result.detach()[0]) == pytest.approx(7.389, rel=1e-3)
