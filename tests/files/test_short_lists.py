"""Host ranges and runs of devices."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.files.short_lists import (
    MOST_HOSTS,
    compress_devices,
    compress_hosts,
    expand_devices,
    expand_hosts,
)

HOSTS = st.from_regex(r"[a-c][a-c.-]{0,2}[0-9]{0,4}[a-b]?", fullmatch=True)


@pytest.mark.parametrize(
    ("pattern", "hosts"),
    [
        ("n1", ("n1",)),
        ("a100-[01-03]", ("a100-01", "a100-02", "a100-03")),
        ("n[9-11]", ("n9", "n10", "n11")),
        ("n[099-101]-ib", ("n099-ib", "n100-ib", "n101-ib")),
        ("n[1,3-4]", ("n1", "n3", "n4")),
        ("r[1-2]n[1-2]", ("r1n1", "r1n2", "r2n1", "r2n2")),
        ("10.0.0.[1-2]", ("10.0.0.1", "10.0.0.2")),
    ],
)
def test_ranges_expand_like_slurm(pattern: str, hosts: tuple[str, ...]) -> None:
    """Widths of the first number are kept, several brackets multiply."""
    assert expand_hosts([pattern]) == hosts


@pytest.mark.parametrize(
    "pattern", ["", "n[1-", "n[]", "n[b-c]", "n[3-1]", "-n", "a b", "n[1-2]]", "n[1--2]"]
)
def test_broken_ranges_are_named(pattern: str) -> None:
    """The message shows the pattern."""
    with pytest.raises(ValueError, match=r"host name|range|number"):
        expand_hosts([pattern])


def test_a_huge_range_is_refused_quickly() -> None:
    """The list is never built."""
    with pytest.raises(ValueError, match=f"more than {MOST_HOSTS:,} hosts"):
        expand_hosts(["n[0-99999999999999]"])


def test_consecutive_hosts_compress() -> None:
    """512 hosts are one pattern."""
    hosts = tuple(f"a100-{index:03d}" for index in range(512))
    assert compress_hosts(hosts) == ("a100-[000-511]",)


@given(st.lists(HOSTS, max_size=30))
def test_expanding_undoes_compressing(hosts: list[str]) -> None:
    """For any hosts in any order, repeated ones too."""
    assert expand_hosts(compress_hosts(hosts)) == tuple(hosts)


@given(st.integers(0, 10**15), st.integers(1, 40), st.booleans())
def test_expanding_undoes_compressing_of_runs(first: int, count: int, padded: bool) -> None:
    """Numbers that gain a digit keep their padding or its absence."""
    hosts = tuple(f"n{number:0{4 if padded else 1}d}x" for number in range(first, first + count))
    assert expand_hosts(compress_hosts(hosts)) == hosts


@given(st.lists(st.sampled_from(["A", "B-80", "8x"]), max_size=20))
def test_expanding_undoes_compressing_of_devices(devices: list[str]) -> None:
    """Runs of equal kinds come back."""
    assert expand_devices(compress_devices(devices)) == tuple(devices)


def test_equal_devices_compress() -> None:
    """Eight devices are one entry."""
    assert compress_devices(["T4"] * 8 + ["V100"]) == ("8 x T4", "V100")
