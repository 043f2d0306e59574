"""Which node holds which training state, and what has to move between nodes when the plan changes.

State is what training goes on from: weights in fp32 and moments. A device holds it for the layers of its stage and,
in each of them, for a part: that of its place in the replica and, from ZeRO 1 on, of its place among the replicas
that shard. Parts count by layer, as FSDP2 has them; flat buffers that run over several layers are dealt alike in
other places. The working weights that ZeRO 1 and 2 keep whole, and the second copies of ZeRO++, follow from the
state in the first step.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from planner.calibration.values import Calibration
from planner.cluster.spec import ClusterSpec
from planner.cluster.topology import Topology
from planner.cost.communication import carried_rates
from planner.cost.compute import ELEMENT_BYTES
from planner.cost.failures import state_bytes
from planner.cost.schedules import is_v_shaped
from planner.cost.shape import chunk_spans
from planner.frozen import dataclass
from planner.model.spec import ModelSpec
from planner.plan.placement import Rank, by_copies, ranks
from planner.plan.values import Plan

NOTHING = 1e-9
"""Parts of a layer that are smaller come from rounding."""
CHECKPOINT = "checkpoint"
"""Where state comes from that no node holds any more."""


class Region(NamedTuple):
    """The same part of consecutive layers."""

    experts: bool
    """True for the experts of the layers, False for all else of them."""
    first: int
    """First layer; 0 is the embedding, 1 the first layer of the model."""
    end: int
    low: float
    """Where the part of each layer begins, from 0 on."""
    high: float
    """Where it ends, up to 1."""


Held = Mapping[str, tuple[Region, ...]]
"""What each node holds, by its host's name; regions of a node do not overlap."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostMove:
    """What one node needs of the state, and where it has it from."""

    host: str
    """Name of the node."""
    pool: str
    """Its pool."""
    needed_bytes: float
    """State that the plan places on it."""
    kept_bytes: float
    """What it holds already."""
    moved_bytes: float
    """State that other nodes send it."""
    lost_bytes: float
    """State on no remaining node, read from the checkpoint."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkMove:
    """What crosses one kind of link."""

    link: str
    """The fabric, ``a+b`` through a gateway, or ``checkpoint``."""
    moved_bytes: float
    """State sent over it."""
    seconds: float | None
    """How long its busiest end takes; null for a checkpoint where the speed of the storage was not given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """State that moves when one plan takes over from another."""

    hosts: tuple[HostMove, ...]
    """Nodes of the new plan."""
    links: tuple[LinkMove, ...]
    """Links that are used, at the same time."""

    @property
    def moved_bytes(self) -> float:
        """State that nodes send each other."""
        return sum(entry.moved_bytes for entry in self.hosts)

    @property
    def lost_bytes(self) -> float:
        """State that comes from the checkpoint."""
        return sum(entry.lost_bytes for entry in self.hosts)

    @property
    def seconds(self) -> float:
        """Until everything is in place, where the links work side by side."""
        return max((entry.seconds or 0.0 for entry in self.links), default=0.0)


class Weigher:
    """Bytes of regions of one model."""

    def __init__(self, model: ModelSpec) -> None:
        element, frozen = state_bytes(model), ELEMENT_BYTES[model.training.precision]
        adapters = model.layer_adapters
        own = model.layer_parameters + adapters.parameters + adapters.experts
        layer = _bytes(own, model.trained_layer_parameters, element, frozen)
        each = frozen if "mlp" in model.frozen else element
        experts = model.expert_parameters * each + adapters.experts * element
        first = _bytes(model.embedding_parameters, model.trained_embedding_parameters, element, frozen)
        own = model.ahead_parameters + model.first_adapters.parameters + model.first_adapters.experts
        first += _bytes(own, model.trained_ahead, element, frozen)
        last = _bytes(model.head_parameters, model.trained_head_parameters, element, frozen)
        dense = [first, *[layer - experts] * model.layers, last]
        self._until = {
            False: np.concatenate([[0.0], np.cumsum(dense)]),
            True: np.concatenate([[0.0, 0.0], np.cumsum([experts] * model.layers), [0.0]]),
        }

    def of(self, region: Region) -> float:
        """Bytes of a region."""
        return self.between(region.experts, region.first, region.end) * (region.high - region.low)

    def between(self, experts: bool, first: int, end: int) -> float:
        """Bytes of whole layers."""
        until = self._until[experts]
        return float(until[end] - until[first])

    def shared(self, wanted: Sequence[Region], held: Sequence[Region]) -> float:
        """Bytes that two nodes have in common."""
        return sum(
            self.between(one.experts, max(one.first, other.first), min(one.end, other.end))
            * (min(one.high, other.high) - max(one.low, other.low))
            for one in wanted
            for other in held
            if one.experts == other.experts
            and max(one.first, other.first) < min(one.end, other.end)
            and max(one.low, other.low) < min(one.high, other.high)
        )

    def all_shared(self, wanted: Held, held: Held, hosts: Sequence[str]) -> NDArray[np.float64]:
        """Bytes that each place, a host by its name, has in common with what each host holds, [place][host]."""
        shared_bytes = np.zeros((len(hosts), len(hosts)))
        for experts in (False, True):
            until = self._until[experts]
            own = [
                (number, until[each.first], until[each.end], each.low, each.high)
                for number, host in enumerate(hosts)
                for each in held.get(host, ())
                if each.experts == experts
            ]
            if not own:
                continue
            holder, first, end, low, high = map(np.array, zip(*own, strict=True))
            for place, host in enumerate(hosts):
                for each in wanted.get(host, ()):
                    if each.experts == experts:
                        size = np.minimum(end, until[each.end]) - np.maximum(first, until[each.first])
                        part = np.minimum(high, each.high) - np.maximum(low, each.low)
                        both = np.maximum(size, 0.0) * np.maximum(part, 0.0)
                        shared_bytes[place] += np.bincount(holder, weights=both, minlength=len(hosts))
        return shared_bytes


def _bytes(parameters: int, trained: int, element: float, frozen: float) -> float:
    return trained * element + (parameters - trained) * frozen


def held_by(plan: Plan, cluster: ClusterSpec, model: ModelSpec) -> dict[str, tuple[Region, ...]]:
    """What each node of a plan holds; raises PlanError when the cluster has too few devices.

    Blocks of a grid count as parts in a row, and so do the parts of one expert that devices share, so that what plans
    with and without them have in common is not exact.
    """
    parts: dict[str, set[Region]] = defaultdict(set)
    for rank in by_copies(plan, ranks(plan, cluster)):
        parts[rank.host].update(_regions(rank, plan.copies, model))
    return {host: tuple(_joined(regions)) for host, regions in parts.items()}


def _regions(rank: Rank, plan: Plan, model: ModelSpec) -> Iterator[Region]:
    stage = plan.stages[rank.stage]
    tp = stage.replicas[rank.group].tp
    spans = list(layer_spans(plan, rank.stage, model))
    shards = 1 if plan.zero == 0 else plan.shard_size or stage.dp
    begin, share = rank.replica % shards / shards, 1 / shards
    if parts := stage.shards:
        begin, share = sum(parts[: rank.replica]) / sum(parts), parts[rank.replica] / sum(parts)
    place = (rank.tp_rank + begin) / tp
    for first, end in spans:
        yield Region(False, first, end, place, place + share / tp)
    if model.experts is not None:
        ways = plan.folding.ways
        device = rank.replica * tp + rank.tp_rank
        copies = max(1, stage.dp * tp // ways) if plan.zero else 1
        among = (device % ways + device // ways % copies / copies) / ways
        for first, end in spans:
            if end > 1 and first <= model.layers:
                yield Region(
                    True, max(first, 1), min(end, model.layers + 1), among, among + 1 / (ways * copies)
                )


def layer_spans(plan: Plan, stage: int, model: ModelSpec) -> Iterator[tuple[int, int]]:
    """Layers of a stage as [first, end), where 0 is the embedding: those of each of its chunks, and its ends.

    The last stage may have a copy of the embedding.
    """
    for index, first, end in chunk_spans(plan):
        if index == stage and first < end:
            if first == 0:
                yield 0, 1
            yield first + 1, end + 1 + (end == model.layers)
    if model.embeds_twice and plan.pp > 1 and stage == plan.pp - 1 and not is_v_shaped(plan.schedule):
        yield 0, 1


def _joined(regions: set[Region]) -> Iterator[Region]:
    """The same without overlaps: parts of one run of layers are put together."""
    parts: dict[tuple[bool, int, int], list[tuple[float, float]]] = defaultdict(list)
    for experts, first, end, low, high in regions:
        parts[experts, first, end].append((low, high))
    for key, spans in parts.items():
        for low, high in _union(spans):
            yield Region(*key, low, high)


def _union(spans: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    union: list[tuple[float, float]] = []
    for low, high in sorted(spans):
        if union and low <= union[-1][1] + NOTHING:
            union[-1] = union[-1][0], max(union[-1][1], high)
        else:
            union.append((low, high))
    return union


def settled(plan: Plan, cluster: ClusterSpec, model: ModelSpec, before: Held) -> ClusterSpec:
    """The cluster with its hosts in the order in which the plan leaves most state where it is.

    Nodes of a pool are alike, so which of them is the first decides nothing but what has to move. The best order is an
    assignment of hosts to places (Kuhn 1955, doi:10.1002/nav.3800020109).
    """
    wanted, weigher = held_by(plan, cluster, model), Weigher(model)
    pools = []
    for pool in cluster.pools:
        used = [index for index, host in enumerate(pool.hosts) if wanted.get(host)]
        if used and len(pool.hosts) > 1:
            from scipy.optimize import linear_sum_assignment

            # Of equal ones the order of the file.
            kept = weigher.all_shared(wanted, before, pool.hosts) + 1e-6 * np.eye(len(pool.hosts))
            _, chosen = linear_sum_assignment(kept, maximize=True)
            pool = pool.model_copy(update={"hosts": tuple(pool.hosts[index] for index in chosen)})
        pools.append(pool)
    return cluster.model_copy(update={"pools": tuple(pools)})


def move(
    plan: Plan,
    cluster: ClusterSpec,
    model: ModelSpec,
    before: Held,
    calibration: Calibration,
    storage_bytes_per_second: float | None = None,
) -> Move:
    """What goes where when the plan takes over from what nodes of the cluster hold.

    A node that lacks a part gets it once, whatever number of its devices want it, over the fastest way that leads to
    a holder, of equal ones from the one that has sent least.
    """
    return _Mover(plan, cluster, model, before, calibration).move(storage_bytes_per_second)


class _Mover:
    def __init__(
        self, plan: Plan, cluster: ClusterSpec, model: ModelSpec, before: Held, calibration: Calibration
    ) -> None:
        self._pools = {host: pool.name for pool in cluster.pools for host in pool.hosts}
        self._wanted = held_by(plan, cluster, model)
        self._before = {host: regions for host, regions in before.items() if host in self._pools}
        self._topology, self._calibration, self._weigher = Topology(cluster), calibration, Weigher(model)
        self._rates: dict[tuple[str, str], tuple[str, tuple[float, float, float]]] = {}
        self._moved: dict[str, float] = defaultdict(float)
        self._lost: dict[str, float] = defaultdict(float)
        self._sent: dict[str, float] = defaultdict(float)
        self._crossing: dict[str, float] = defaultdict(float)
        self._busy: dict[str, dict[object, float]] = defaultdict(lambda: defaultdict(float))

    def move(self, storage_bytes_per_second: float | None) -> Move:
        every = [*self._wanted.values(), *self._before.values()]
        for experts in (False, True):
            cuts = sorted(
                {
                    cut
                    for regions in every
                    for each in regions
                    if each.experts == experts
                    for cut in (each.first, each.end)
                }
            )
            for first, end in pairwise(cuts):
                self._fill(experts, first, end)
        links = [
            LinkMove(link=link, moved_bytes=size, seconds=max(self._busy[link].values()))
            for link, size in sorted(self._crossing.items())
        ]
        lost = sum(self._lost.values())
        if lost:
            seconds = lost / storage_bytes_per_second if storage_bytes_per_second else None
            links.append(LinkMove(link=CHECKPOINT, moved_bytes=lost, seconds=seconds))
        hosts = [
            HostMove(
                host=host,
                pool=self._pools[host],
                needed_bytes=sum(map(self._weigher.of, regions)),
                kept_bytes=self._weigher.shared(regions, self._before.get(host, ())),
                moved_bytes=self._moved[host],
                lost_bytes=self._lost[host],
            )
            for host, regions in self._wanted.items()
        ]
        return Move(hosts=tuple(hosts), links=tuple(links))

    def _fill(self, experts: bool, first: int, end: int) -> None:
        """Send what nodes lack of some layers."""
        size = self._weigher.between(experts, first, end)
        holders = [
            (low, high, host)
            for host, regions in self._before.items()
            for low, high in _within(regions, experts, first, end)
        ]
        lows, highs = (np.array([each[end] for each in holders], dtype=float) for end in (0, 1))
        for host, regions in self._wanted.items():
            own = list(_within(self._before.get(host, ()), experts, first, end))
            for low, high in _within(regions, experts, first, end):
                for begin, stop in _less(low, high, own):
                    self._bring(host, size, begin, stop, lows, highs, [each[2] for each in holders])

    def _bring(
        self,
        host: str,
        size: float,
        low: float,
        high: float,
        lows: NDArray[np.float64],
        highs: NDArray[np.float64],
        holders: Sequence[str],
    ) -> None:
        """Send the part from ``low`` to ``high`` to a node, piece by piece."""
        while high - low > NOTHING:
            having = np.flatnonzero((lows <= low + NOTHING) & (highs > low + NOTHING)).tolist()
            reached = [index for index in having if self._rate(holders[index], host)[1][0] > 0]
            if reached:
                chosen = max(
                    reached,
                    key=lambda index: (min(self._rate(holders[index], host)[1]), -self._sent[holders[index]]),
                )
                stop = min(high, float(highs[chosen]))
                self._send(holders[chosen], host, size * (stop - low))
            else:
                later = lows[lows > low + NOTHING]
                stop = min(high, float(later.min(initial=high)))
                self._lost[host] += size * (stop - low)
            low = stop

    def _send(self, source: str, host: str, size: float) -> None:
        link, (out, into, shared) = self._rate(source, host)
        self._moved[host] += size
        self._sent[source] += size
        self._crossing[link] += size
        busy = self._busy[link]
        busy["out", source] += size / out
        busy["in", host] += size / into
        busy["shared"] += size / shared

    def _rate(self, source: str, host: str) -> tuple[str, tuple[float, float, float]]:
        """The link between two nodes, and what their ends and the gateways between them carry."""
        pools = self._pools[source], self._pools[host]
        if pools not in self._rates:
            path = self._topology.path(*pools)
            rates = carried_rates(path, self._calibration) if path.connected else (0.0, 0.0, 0.0)
            self._rates[pools] = path.fabric, rates
        return self._rates[pools]


def _within(regions: Sequence[Region], experts: bool, first: int, end: int) -> Iterator[tuple[float, float]]:
    """Parts of some layers that regions hold; no region begins or ends among the layers."""
    spans = [
        (each.low, each.high)
        for each in regions
        if each.experts == experts and each.first <= first and end <= each.end
    ]
    return iter(_union(spans))


def _less(low: float, high: float, without: Sequence[tuple[float, float]]) -> Iterator[tuple[float, float]]:
    """What a span has beyond others, which are in order."""
    for begin, stop in without:
        if begin > low + NOTHING and low < high:
            yield low, min(begin, high)
        low = max(low, stop)
    if high > low + NOTHING:
        yield low, high
