"""Short forms of long lists: ``a100-[01-16]`` for hosts, ``8 x A100-SXM-80GB`` for devices, ``a, b and 3 more``."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

from planner.ranges import NODE_DEVICES, NODES

MOST_HOSTS = int(NODES.most)
"""Hosts that one pool may list."""

_HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}")
_BRACKETS = re.compile(r"^([^\[\]]*)\[([^\[\]]*)\](.*)$")
_NUMBERED = re.compile(r"^(.*?)([0-9]{1,14})([^0-9]*)$")
_TIMES = re.compile(r"^([1-9][0-9]{0,3}) x (.+)$")


def expand_hosts(patterns: Iterable[str]) -> tuple[str, ...]:
    """Every host that the patterns name, in order; raises ValueError that says what is wrong."""
    hosts: list[str] = []
    for pattern in patterns:
        for host in _expand(pattern):
            hosts.append(host)
            if len(hosts) > MOST_HOSTS:
                raise ValueError(f"more than {MOST_HOSTS:,} hosts")
    return tuple(hosts)


def parted(text: str) -> list[str]:
    """The patterns of ``a-[1-3,7],b-1``: commas outside of brackets part them."""
    return re.split(r",(?![^\[]*\])", text)


def compress_hosts(hosts: Iterable[str]) -> tuple[str, ...]:
    """The shortest patterns of consecutive hosts; ``expand_hosts`` gives the hosts back."""
    patterns: list[str] = []
    run: list[str] = []
    for host in hosts:
        if run and host != _successor(run[-1], run[0]):
            patterns.append(_pattern(run))
            run = []
        run.append(host)
    return (*patterns, _pattern(run)) if run else ()


def numbered_hosts(name: str, count: int) -> tuple[str, ...]:
    """Names of ``count`` nodes called after their pool, padded so that they sort."""
    width = len(str(count - 1))
    return tuple(f"{name}-{index:0{width}d}" for index in range(count))


def expand_devices(entries: Iterable[str]) -> tuple[str, ...]:
    """Type of every device: ``8 x A`` stands for eight devices A; raises ValueError for too many."""
    devices: list[str] = []
    for entry in entries:
        times, gpu = split_times(entry)
        devices.extend([gpu] * times)
        if len(devices) > NODE_DEVICES.most:
            raise ValueError(f"more than {NODE_DEVICES.most} devices in a node")
    return tuple(devices)


def split_times(entry: str) -> tuple[int, str]:
    """How many devices an entry stands for, and of which type."""
    match = _TIMES.match(entry)
    return (int(match[1]), match[2]) if match else (1, entry)


def compress_devices(devices: Iterable[str]) -> tuple[str, ...]:
    """Runs of equal device types as ``8 x A``; ``expand_devices`` gives the device types back."""
    runs = ((gpu, len(list(group))) for gpu, group in groupby(devices))
    return tuple(gpu if count == 1 else f"{count} x {gpu}" for gpu, count in runs)


def _expand(pattern: str) -> Iterator[str]:
    match = _BRACKETS.match(pattern)
    if match is None:
        if not _HOST.fullmatch(pattern):
            raise ValueError(f'"{pattern}" is not a host name or a range such as node-[01-16]')
        yield pattern
        return
    for number in _numbers(match[2], pattern):
        yield from _expand(f"{match[1]}{number}{match[3]}")


def _numbers(ranges: str, pattern: str) -> Iterator[str]:
    for part in ranges.split(","):
        first, dash, last = part.partition("-")
        if not re.fullmatch(r"[0-9]{1,15}", first) or (dash and not re.fullmatch(r"[0-9]{1,15}", last)):
            raise ValueError(f'"{part}" in "{pattern}" is not a number or a range such as 01-16')
        if dash and int(last) < int(first):
            raise ValueError(f'the range "{part}" in "{pattern}" ends before it starts')
        for number in range(int(first), int(last or first) + 1):
            yield str(number).zfill(len(first))


def _successor(host: str, first: str) -> str | None:
    """The host after ``host`` in the run that began with ``first``, numbered like the first."""
    start, here = _NUMBERED.match(first), _NUMBERED.match(host)
    if start is None or here is None:
        return None
    return f"{start[1]}{str(int(here[2]) + 1).zfill(len(start[2]))}{start[3]}"


def _pattern(run: list[str]) -> str:
    first, last = _NUMBERED.match(run[0]), _NUMBERED.match(run[-1])
    if len(run) == 1 or first is None or last is None:
        return run[0]
    return f"{first[1]}[{first[2]}-{last[2]}]{first[3]}"


def first_of(texts: Sequence[str], most: int, between: str = ", ") -> str:
    """The first texts, and how many others there are: ``a, b and 3 more``."""
    more = f" and {len(texts) - most} more" if len(texts) > most else ""
    return between.join(texts[:most]) + more
