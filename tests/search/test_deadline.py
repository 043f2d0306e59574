"""The end of a search: by time, by the user's wish, and parts of it."""

from __future__ import annotations

from math import inf
from time import monotonic
from unittest.mock import patch

import pytest

from planner.search.deadline import NO_LIMIT, Deadline, Struck


class Asked:
    """A user who has pressed Ctrl-C, or has not."""

    def __init__(self, asked: bool) -> None:
        self.asked = asked

    def is_set(self) -> bool:
        """What the user wants."""
        return self.asked


def test_no_limit_never_strikes() -> None:
    """Nor has a part of it an end."""
    for free in (NO_LIMIT, Deadline.after(None), NO_LIMIT.part(0.1)):
        assert (free.struck, free.left, free.interrupted) == (False, inf, False)
        free.check()


def test_it_counts_from_the_start_it_is_given() -> None:
    """A second, three quarters of which have passed, has a quarter left, and half of that is an eighth."""
    with patch("planner.search.deadline.monotonic", return_value=100.0):
        limit = Deadline.after(1.0, since=99.25)
        assert (limit.left, limit.struck) == (0.25, False)
        assert limit.part(0.5).left == 0.125
    with patch("planner.search.deadline.monotonic", return_value=100.25):
        assert (limit.left, limit.struck, limit.interrupted) == (0.0, True, False)
        assert limit.part(0.5).struck


def test_the_users_wish_strikes_at_once_and_reaches_every_part() -> None:
    """However much time is left."""
    wish = Asked(False)
    limit = Deadline.after(1000.0, flag=wish)
    part = limit.part(0.5)
    assert not part.struck
    wish.asked = True
    assert (part.struck, part.interrupted, limit.interrupted) == (True, True, True)
    with pytest.raises(Struck):
        part.check()
    assert Deadline.after(0.0, since=monotonic() - 1).struck
