"""Attention around a ring: who sees whom, and what torch's kernels are given."""

from __future__ import annotations

import importlib

import pytest

pytest.importorskip("torch")

import torch

from planner.training import example_ring
from planner.training.example_context import Around


@pytest.mark.parametrize("ways", [1, 2, 3, 8])
def test_turns_are_the_causal_mask_and_leave_all_as_much_to_do(ways: int) -> None:
    """Every score once, whoever computes it."""
    length = 4
    total = ways * length
    seen = torch.zeros(total, total)
    work = []
    places = [Around(ways, place).positions(length, torch.device("cpu")) for place in range(ways)]
    assert sorted(torch.cat(places).tolist()) == list(range(total))
    for place, rows in enumerate(places):
        for source, columns in enumerate(places):
            turn = example_ring._turn(place, source, length)
            own, others = rows[turn.queries], columns[turn.keys]
            mask = torch.ones(len(own), len(others))
            seen[own[:, None], others] += mask.tril() if turn.causal else mask
        work.append(seen[rows].sum().item())
    assert torch.equal(seen, torch.ones(total, total).tril())
    assert max(work) == min(work)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize(("width", "wide"), [(64, 64), (192, 128), (20, 12)])
@pytest.mark.parametrize("causal", [True, False])
def test_kernels_of_a_gpu_take_what_they_are_given(
    dtype: torch.dtype, width: int, wide: int, causal: bool
) -> None:
    """Torch's own rules of their shapes and formats, on tensors without data."""
    rows, columns = 40, 40 if causal else 20

    def made(heads: int, tokens: int, channels: int) -> torch.Tensor:
        return torch.empty((2, heads, tokens, channels), dtype=dtype, device="meta")

    query, key, value = made(8, rows, width), made(2, columns, width), made(2, columns, wide)
    mixed, sums = example_ring._attended(query, key, value, causal=causal)
    assert (mixed.shape, mixed.dtype) == ((2, 8, rows, wide), dtype)
    assert (sums.shape, sums.dtype) == ((2, 8, rows), torch.float32)
    found = example_ring._attended_back(
        (made(8, rows, wide), query, mixed, sums), (key, value), causal=causal
    )
    assert [each.shape for each in found] == [query.shape, key.shape, value.shape]


def test_the_operation_can_be_made_again() -> None:
    """As by a second folder in one process."""
    before = example_ring.AROUND
    again = importlib.reload(example_ring)
    assert again.AROUND is not before
    assert again.AROUND is again.ring_attention._opoverload
