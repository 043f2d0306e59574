"""Sub-cluster candidates: parts of a cluster that are searched as clusters."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice, product
from math import prod

from planner.catalog import IntraNodeSpec
from planner.cluster.spec import ClusterSpec, PoolSpec
from planner.cost.training import Devices
from planner.frozen import dataclass
from planner.model.spec import ModelSpec

MOST = 100
"""Sub-clusters of one candidates."""

EVERYWHERE = ""
"""Stands for all pools together in limits on numbers of devices."""


@dataclass(frozen=True, slots=True)
class Part:
    """What is taken of one pool: the same devices on each of some nodes."""

    nodes: int
    counts: tuple[int, ...]
    """Devices on each node, by kind in the order in which the pool names them."""

    @property
    def devices(self) -> int:
        """All devices of the part."""
        return self.nodes * sum(self.counts)


@dataclass(frozen=True, slots=True, kw_only=True)
class SubCluster:
    """Some devices of a cluster, as a cluster of their own."""

    cluster: ClusterSpec
    devices: Devices
    """Number of devices by (pool, gpu)."""

    @property
    def total(self) -> int:
        """All its devices."""
        return sum(self.devices.values())


NOTHING = Part(0, ())


def sub_cluster_candidates(
    cluster: ClusterSpec, model: ModelSpec, use_at_most: Iterable[tuple[str, int]] = (), most: int = MOST
) -> tuple[SubCluster, ...]:
    """The sub-clusters that are considered, smallest first; none when no device may be used.

    ``use_at_most`` limits the devices of a pool, or of all pools (``EVERYWHERE``). Devices without the
    number format of the training are left out.
    """
    room = _room(cluster, use_at_most)
    ways: list[tuple[Part, ...]] = []
    for level in range(len(LEVELS)):
        parts = [(NOTHING, *_parts(pool, cluster, model, room[pool.name], level)) for pool in cluster.pools]
        if prod(len(entries) for entries in parts) > 50 * most:
            continue
        ways = [way for way in product(*parts) if 0 < _total(way) <= room[EVERYWHERE]]
        if len(ways) <= most:
            break
    else:
        ways = list(islice(_growing(cluster, model, room), most))
    if level > ROUND:
        ways = list(dict.fromkeys((*ways, *_alone(cluster, model, room, ROUND))))[:most]
        every = tuple(dict.fromkeys((*ways, *_alone(cluster, model, room, NODES))))
        ways = list(every) if len(every) <= most else ways
    subs = (sub_cluster(cluster, model, way) for way in dict.fromkeys(ways))
    order = {pool.name: index for index, pool in enumerate(cluster.pools)}

    def place(sub: SubCluster) -> tuple[int, list[tuple[int, str, int]]]:
        return sub.total, sorted((order[pool], gpu, count) for (pool, gpu), count in sub.devices.items())

    return tuple(sorted(subs, key=place))


def _room(cluster: ClusterSpec, use_at_most: Iterable[tuple[str, int]]) -> Mapping[str, int]:
    """Most devices of each pool and of all together."""
    room = {pool.name: len(pool.hosts) * len(pool.devices) for pool in cluster.pools}
    room[EVERYWHERE] = sum(room.values())
    for pool, limit in use_at_most:
        room[pool] = min(room[pool], limit)
    return {pool: min(devices, room[EVERYWHERE]) for pool, devices in room.items()}


def _total(parts: Sequence[Part]) -> int:
    return sum(part.devices for part in parts)


def _all(number: int) -> Sequence[int]:
    return range(1, number + 1)


def _round(number: int) -> Sequence[int]:
    """The number, its half, its quarter ... down to 1."""
    return sorted({number >> shift for shift in range(number.bit_length())})


def _whole(number: int) -> Sequence[int]:
    return (number,)


LEVELS = ((_all, _all), (_round, _all), (_round, _round), (_whole, _round), (_whole, _whole))
"""(devices inside one node, nodes) that are offered, finest first."""

NODES, ROUND = 1, 2
"""The finest level of any number of nodes with round numbers inside one, and of round numbers alone."""


def _parts(pool: PoolSpec, cluster: ClusterSpec, model: ModelSpec, room: int, level: int) -> tuple[Part, ...]:
    """Parts of a pool of at most ``room`` devices, the largest always among them."""
    device_types = _device_types(pool, cluster, model)
    every = _offered(device_types, len(pool.hosts), room, 0)
    if not every:
        return ()
    largest = max(every, key=lambda part: part.devices)
    return tuple(dict.fromkeys((*_offered(device_types, len(pool.hosts), room, level), largest)))


def _alone(
    cluster: ClusterSpec, model: ModelSpec, room: Mapping[str, int], level: int
) -> Iterator[tuple[Part, ...]]:
    """Parts of one pool and nothing of the others: the cheapest devices need not be a whole node.

    Nor are those that keep a limit for the least money always a round number of nodes.
    """
    for index, pool in enumerate(cluster.pools):
        for part in _parts(pool, cluster, model, room[pool.name], level):
            yield tuple(part if index == other else NOTHING for other in range(len(cluster.pools)))


def _device_types(pool: PoolSpec, cluster: ClusterSpec, model: ModelSpec) -> tuple[int, ...]:
    """Devices of each device type on a node; none of a type without the number format."""
    precision = model.training.precision
    return tuple(
        pool.devices.count(gpu) if precision in cluster.gpus[gpu].tflops else 0
        for gpu in dict.fromkeys(pool.devices)
    )


def _offered(device_types: tuple[int, ...], hosts: int, room: int, level: int) -> tuple[Part, ...]:
    inside, across = LEVELS[level]
    if prod(count + 1 for count in device_types) > MOST:
        inside = _round if inside is _all else inside
    alone = product(*((0, *inside(count)) if count else (0,) for count in device_types))
    whole = product(*((0, count) if count else (0,) for count in device_types))
    parts = [Part(nodes, counts) for counts in whole for nodes in across(hosts)]
    if inside is not _whole:
        parts += [Part(1, counts) for counts in alone]
    return tuple(part for part in parts if 0 < part.devices <= room)


def _growing(cluster: ClusterSpec, model: ModelSpec, room: Mapping[str, int]) -> Iterator[tuple[Part, ...]]:
    """Whole pools for clusters of many: all together, each alone, and growing sets from the fastest devices on."""
    precision = model.training.precision
    largest = {}
    for index, pool in enumerate(cluster.pools):
        if parts := _parts(pool, cluster, model, room[pool.name], len(LEVELS) - 1):
            peak = max(cluster.gpus[gpu].tflops.get(precision, 0.0) for gpu in pool.devices)
            largest[index] = (-peak, max(parts, key=lambda part: part.devices))
    order = sorted(largest, key=lambda index: (largest[index][0], index))
    sets = [order, *([index] for index in order), *(order[:size] for size in range(2, len(order)))]
    for chosen in sets:
        parts_of = tuple(
            largest[index][1] if index in chosen else NOTHING for index in range(len(cluster.pools))
        )
        if _total(parts_of) <= room[EVERYWHERE]:
            yield parts_of


def sub_cluster(cluster: ClusterSpec, model: ModelSpec, parts: Sequence[Part]) -> SubCluster:
    """What is taken of each pool of a cluster, as a cluster of its own."""
    pools, devices = [], {}
    for pool, part in zip(cluster.pools, parts, strict=True):
        if not part.devices:
            continue
        wanted = dict(zip(dict.fromkeys(pool.devices), part.counts, strict=True))
        kept = tuple(gpu for gpu, count in wanted.items() for _ in range(count))
        update = {"devices": kept, "hosts": pool.hosts[: part.nodes], "intra_node": _bus(pool, kept, model)}
        pools.append(pool.model_copy(update=update))
        devices.update({(pool.name, gpu): part.nodes * count for gpu, count in wanted.items() if count})
    whole = tuple(pools) == cluster.pools
    return SubCluster(
        cluster=cluster if whole else cluster.model_copy(update={"pools": tuple(pools)}), devices=devices
    )


def _bus(pool: PoolSpec, kept: tuple[str, ...], model: ModelSpec) -> IntraNodeSpec:
    """The network inside a node of which only some devices are used.

    A shared bus is priced as if every device of the node talked, so the part has its share of the bus. Where
    that would make other traffic slower than on the whole node the bus stays: the part may only be too fast.
    """
    link = pool.intra_node
    slower = model.embeds_twice and not pool.nics
    if not link.shared or slower:
        return link
    share = link.sharing(len(kept)) / link.sharing(len(pool.devices))
    return link.model_copy(update={"bandwidth_gBps": link.bandwidth_gBps * share})
