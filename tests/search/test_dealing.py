"""Shares of replicas that keep step in part of their work, against all of them."""

from __future__ import annotations

import random
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.plan import ReplicaGroup
from planner.search.dealing import dealt_in_step, splits


def step(
    whole: list[float], common: list[float], last: list[float], share: int, steps: int
) -> tuple[float, float]:
    """Seconds on its own and in step of a share: the first micro-batch's common part, and that of the last."""
    sizes = ReplicaGroup(pool="a", gpu="A100", tp=1, count=1, share=share, steps=steps).micro_batch_sizes
    together = common[sizes[0] - 1] + last[sizes[-1] - 1]
    return sum(whole[size - 1] for size in sizes) - together, together


@given(st.integers(0, 10**9))
@settings(max_examples=150, deadline=None)
def test_the_shares_are_the_best_of_all(seed: int) -> None:
    """One or two kinds of device, any times that grow with the micro-batch, any limit on it."""
    draw = random.Random(seed)
    batch, kinds = draw.randint(2, 7), draw.randint(1, 2)
    counts = [draw.randint(1, 3 - kinds) for _ in range(kinds)]
    tables = []
    for _ in counts:
        limit, rate = draw.randint(1, batch), draw.uniform(0.5, 4.0)
        base = draw.choice([0.0, 1.0, 3.0])
        forward = [base + rate * size for size in range(1, limit + 1)]
        backward = [draw.uniform(0, base) + 2 * rate * size for size in range(1, limit + 1)]
        backward.sort()
        tables.append((forward, backward))
    exchange = draw.choice([0.0, 5.0])
    found_splits, in_step, ways = [], [], []
    for forward, backward in tables:
        whole = [a + b for a, b in zip(forward, backward, strict=True)]
        gathers = forward if seed % 2 else [0.0] * len(forward)

        def common(
            first: int, last: int, gathers: list[float] = gathers, own: list[float] = backward
        ) -> float:
            return gathers[first - 1] + own[last - 1]

        found = splits(whole, common, batch)
        found_splits.append(found)
        in_step.append([gathers[a - 1] + backward[b - 1] + exchange for a, b in found.sizes])
        ways.append(
            {
                share: [
                    step(whole, gathers, backward, share, steps)
                    for steps in range(-(-share // len(whole)), share + 1)
                ]
                for share in range(1, batch + 1)
            }
        )
    dealt = dealt_in_step(found_splits, in_step, counts, batch)
    devices = [kind for kind, count in enumerate(counts) for _ in range(count)]
    best = float("inf")
    for shares in product(range(1, batch + 1), repeat=len(devices)):
        if sum(shares) == batch:
            for chosen in product(*(ways[kind][share] for kind, share in zip(devices, shares, strict=True))):
                alone, together = (max(part) for part in zip(*chosen, strict=True))
                best = min(best, alone + together + exchange)
    if best == float("inf"):
        assert dealt is None or sum(a * b for a, b in zip(dealt.shares, counts, strict=True)) >= batch
        return
    assert dealt is not None
    assert sum(share * count for share, count in zip(dealt.shares, counts, strict=True)) >= batch
    chosen_parts = [
        step(
            [a + b for a, b in zip(*table, strict=True)],
            table[0] if seed % 2 else [0.0] * batch,
            table[1],
            share,
            own[share - 1],
        )
        for table, share, own in zip(tables, dealt.shares, dealt.steps, strict=True)
    ]
    alone, together = (max(part) for part in zip(*chosen_parts, strict=True))
    assert alone + together + exchange == pytest.approx(best, rel=1e-9)
