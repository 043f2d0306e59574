"""Bounds are as tight as docs/search.md says: a looser one would still be valid, and cost time."""

from __future__ import annotations

import pytest

from tests.quick import every
from tests.search.tightness import WORLDS, World, cells, listed, row_of


@pytest.mark.parametrize("world", every(8, WORLDS), ids=lambda world: f"{world.name} {world.target}")
def test_bounds_are_as_tight_as_the_page_says(world: World) -> None:
    """To the last digit that it gives: `make docs` writes them anew. No mean is above all that is bounded."""
    row = row_of(world)
    found, written = cells(world, row), listed()[world.name, world.target]
    assert found[:5] == written[:5]
    for now, then in zip(found[5:], written[5:], strict=True):
        assert float(now or 0) == pytest.approx(float(then or 0), abs=0.0101), (found, written)
    assert all(share <= 1 + 1e-9 for share in row.shares.values())


def test_the_page_has_a_row_for_each_world() -> None:
    """And no other."""
    assert [*listed()] == [(world.name, world.target) for world in WORLDS]
