"""The example's scans against the recurrences that they stand for, position by position."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

import torch

from planner.training.example_state import delta_rule, duality, selective_scan

BATCH, LENGTH, HEADS, WIDTH, SIZE = 2, 21, 4, 5, 3


def drawn(*shape: int) -> torch.Tensor:
    """Numbers of a normal distribution, the same in every run."""
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(*shape, generator=generator)


def close(found: torch.Tensor, wanted: torch.Tensor) -> bool:
    """Equal but for the rounding of fp32."""
    return bool(torch.allclose(found, wanted, rtol=1e-4, atol=1e-5))


@pytest.mark.parametrize("chunk", [1, 4, 8, 32])
def test_state_space_duality(chunk: int) -> None:
    """h = exp(a) h + B x', y = C h, whether chunks divide the sequence or not."""
    values, decay = drawn(BATCH, LENGTH, HEADS, WIDTH), -drawn(BATCH, LENGTH, HEADS).abs()
    shared, wanted = (drawn(BATCH, LENGTH, 2, SIZE), drawn(BATCH, LENGTH, 2, SIZE).flip(1)), []
    write, read = (each.repeat_interleave(HEADS // 2, 2) for each in shared)
    state = torch.zeros(BATCH, HEADS, SIZE, WIDTH)
    for at in range(LENGTH):
        added = write[:, at, :, :, None] * values[:, at, :, None, :]
        state = decay[:, at].exp()[..., None, None] * state + added
        wanted.append((read[:, at, :, :, None] * state).sum(-2))
    assert close(duality(values, decay, *shared, chunk), torch.stack(wanted, dim=1))


@pytest.mark.parametrize("chunk", [1, 4, 8, 32])
def test_gated_delta_rule(chunk: int) -> None:
    """S = exp(a) S, then S + beta k (v - S'k)', y = S'q with keys of length one."""
    values, decay = drawn(BATCH, LENGTH, HEADS, WIDTH), -drawn(BATCH, LENGTH, HEADS).abs()
    rate = drawn(BATCH, LENGTH, HEADS).sigmoid()
    shared = drawn(BATCH, LENGTH, 2, SIZE), drawn(BATCH, LENGTH, 2, SIZE).flip(1)
    write, read = (each.repeat_interleave(HEADS // 2, 2) for each in shared)
    keys, queries = (torch.nn.functional.normalize(each, dim=-1) for each in (write, read))
    state, wanted = torch.zeros(BATCH, HEADS, SIZE, WIDTH), []
    for at in range(LENGTH):
        key = keys[:, at, :, :, None]
        state = decay[:, at].exp()[..., None, None] * state
        missing = values[:, at] - (key * state).sum(-2)
        state = state + key * (rate[:, at, :, None] * missing)[..., None, :]
        wanted.append((queries[:, at, :, :, None] * state).sum(-2) * SIZE**-0.5)
    assert close(delta_rule(values, decay, rate, *shared, chunk), torch.stack(wanted, dim=1))


@pytest.mark.parametrize("chunk", [1, 4, 8, 32])
def test_selective_scan(chunk: int) -> None:
    """h = exp(d A) h + d B x, y = C h for each channel."""
    inputs, steps = drawn(BATCH, LENGTH, WIDTH), drawn(BATCH, LENGTH, WIDTH).flip(1).abs()
    write, read = drawn(BATCH, LENGTH, SIZE), drawn(BATCH, LENGTH, SIZE).flip(1)
    decay = -drawn(WIDTH, SIZE).abs()
    state, wanted = torch.zeros(BATCH, WIDTH, SIZE), []
    for at in range(LENGTH):
        step = steps[:, at, :, None]
        state = (step * decay).exp() * state + step * write[:, at, None, :] * inputs[:, at, :, None]
        wanted.append((state * read[:, at, None, :]).sum(-1))
    assert close(selective_scan(inputs, steps, decay, write, read, chunk), torch.stack(wanted, dim=1))
