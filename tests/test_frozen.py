"""Data classes that are frozen where types are checked, or in earnest, and write their methods late."""

import pickle
from copy import deepcopy
from dataclasses import FrozenInstanceError, asdict, field, replace
from pathlib import Path

import pytest
from mypy import api

from planner.frozen import dataclass, record


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


@record(frozen=True, slots=True, kw_only=True)
class Base:
    """What stands in a file."""

    x: int
    seen: list[int] = field(default_factory=list, compare=False, repr=False)


@record(frozen=True, slots=True, kw_only=True)
class Further(Base):
    """The same with more."""

    y: float = 0.5

    def __post_init__(self) -> None:
        if self.x < 0:
            raise ValueError("negative")


def test_a_record_is_frozen_in_earnest() -> None:
    """Inherited fields too, and nobody can add one."""
    one = Further(x=1)
    with pytest.raises(FrozenInstanceError):
        one.x = 2  # type: ignore[misc]
    with pytest.raises((FrozenInstanceError, TypeError)):
        one.z = 2  # type: ignore[attr-defined]


def test_a_record_has_what_dataclasses_write() -> None:
    """Whichever method is called first: defaults of each instance, checks, equality by class and value, and text."""
    assert {Further(x=1): "kept"}[Further(x=1, seen=[3])] == "kept"
    assert Further(x=1).seen is not Further(x=1).seen
    assert Further(x=1) != Base(x=1)
    assert repr(Further(x=1, seen=[3])) == "Further(x=1, y=0.5)"
    assert asdict(replace(Further(x=1), y=2.0)) == {"x": 1, "seen": [], "y": 2.0}
    assert deepcopy(Further(x=3)) == pickle.loads(pickle.dumps(Further(x=3))) == Further(x=3)
    with pytest.raises(ValueError, match="negative"):
        Further(x=-1)
    with pytest.raises(TypeError, match="'x'"):
        Further()  # type: ignore[call-arg]


def test_methods_of_a_class_are_its_own() -> None:
    """What a class says itself is not written over."""

    @record(frozen=True, slots=True)
    class Named:
        name: str

        def __repr__(self) -> str:
            return self.name

        def __eq__(self, other: object) -> bool:
            return isinstance(other, Named) and other.name.lower() == self.name.lower()

        def __hash__(self) -> int:
            return hash(self.name.lower())

    assert repr(Named("A100")) == "A100"
    assert {Named("a100"): 1}[Named("A100")] == 1


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
