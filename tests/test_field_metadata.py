"""What a class says of its own fields."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from planner.field_metadata import Label, json_fields, keys, labels, meanings, plain, sentence


@dataclass(frozen=True, slots=True, kw_only=True)
class Wheel:
    """A part."""

    size_mm: Annotated[int, Label("wheel size", "size")]
    """Across,
    in millimetres."""
    tread: Annotated[str | None, Label("tread left")] = None
    """None when worn.

    More about it.
    """

    @property
    def radius(self) -> float:
        """Half of ``size_mm``."""
        return self.size_mm / 2


@json_fields(
    "wheels",
    "front.radius",
    inline=("front",),
    brief=("spare",),
    without=("serial",),
    names={"rear": "others"},
    nulls=("note",),
)
@dataclass(frozen=True, slots=True, kw_only=True)
class Car:
    """A whole."""

    front: Wheel | None
    """The front wheel."""
    rear: tuple[Wheel, ...]
    """Those behind."""
    spare: Wheel | None = None
    """One more."""
    extras: dict[str, float]
    """By name."""
    note: str = ""
    """Anything else."""
    serial: int = 7

    @property
    def wheels(self) -> int:
        """Wheels."""
        return 1 + len(self.rear)


CAR = Car(front=Wheel(size_mm=10, tread="3 mm"), rear=(Wheel(size_mm=12),), extras={"horn": 1.0})


def test_docstrings_of_fields_and_properties() -> None:
    """With their paragraphs."""
    assert meanings(Wheel) == {
        "size_mm": "Across,\nin millimetres.",
        "tread": "None when worn.\n\nMore about it.",
        "radius": "Half of ``size_mm``.",
    }


def test_labels() -> None:
    """The fields that have one, in order; a heading has a line for each word."""
    assert [label.text for label in labels(Wheel).values()] == ["wheel size", "tread left"]
    assert [label.heading for label in labels(Wheel).values()] == ["size", "tread\nleft"]


def test_a_docstring_as_part_of_a_sentence() -> None:
    """Names keep their capitals."""
    assert sentence("Across the wheel.\n\nMore.") == "across the wheel"
    assert sentence("MFU of all.") == "MFU of all"


def test_a_value_as_a_document() -> None:
    """By its fields, unless the class says otherwise."""
    assert plain(CAR) == {
        "size_mm": 10,
        "tread": "3 mm",
        "others": [{"size_mm": 12, "tread": None}],
        "spare": None,
        "extras": {"horn": 1.0},
        "note": None,
        "wheels": 2,
        "radius": 5.0,
    }


def test_what_is_not_there_has_the_same_keys() -> None:
    """An inline value too."""
    empty = plain(Car(front=None, rear=(), extras={}))
    assert isinstance(empty, dict)
    assert list(empty) == list(plain(CAR))  # type: ignore[arg-type]
    assert (empty["size_mm"], empty["radius"], empty["others"]) == (None, None, [])


def test_the_meaning_of_every_key() -> None:
    """From docstrings: the first paragraph, null for None."""
    assert keys(Car) == {
        "size_mm": "Across, in millimetres.",
        "tread": "null when worn.",
        "others[].size_mm": "Across, in millimetres.",
        "others[].tread": "null when worn.",
        "spare.*": "One more.",
        "extras.*": "By name.",
        "note": "Anything else.",
        "wheels": "Wheels.",
        "radius": "Half of size_mm.",
    }
