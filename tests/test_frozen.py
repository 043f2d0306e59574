"""Data classes that are frozen where types are checked."""

import pickle
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import pytest
from mypy import api

from planner.frozen import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A frozen one."""

    x: int
    y: float = 0.0


def test_equal_and_hashed_by_value() -> None:
    """As those of ``dataclasses``, copies and pickles too."""
    point = Point(x=1, y=2.0)
    assert point == Point(x=1, y=2.0)
    assert hash(point) == hash(Point(x=1, y=2.0))
    assert point != replace(point, x=2)
    assert deepcopy(point) == pickle.loads(pickle.dumps(point)) == point


def test_only_what_is_frozen_has_a_hash() -> None:
    """Values that may change are no keys."""

    @dataclass(slots=True)
    class Tally:
        count: int = 0

    with pytest.raises(TypeError, match="unhashable"):
        hash(Tally())


@pytest.mark.slow
def test_mypy_refuses_to_change_a_field(tmp_path: Path) -> None:
    """What does not fail here fails where types are checked."""
    path = tmp_path / "changed.py"
    path.write_text(
        "from planner.frozen import dataclass\n\n\n"
        "@dataclass(frozen=True, slots=True)\nclass One:\n    x: int\n\n\n"
        "One(1).x = 2\n"
    )
    output, _, status = api.run(["--strict", "--cache-dir", str(tmp_path), str(path)])
    assert status == 1
    assert 'Property "x" defined in "One" is read-only' in output
