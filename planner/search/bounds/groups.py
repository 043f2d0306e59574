"""Groups of families that do the same work per micro-batch, bounded together before any of them is opened.

A large cluster has tens of thousands of families; most are never worth a bound of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from math import inf

from planner.capabilities import Capabilities, Recompute
from planner.cost.estimate import Estimator
from planner.dims.context import contexts
from planner.frozen import dataclass
from planner.search.bounds.best import FamilyBounds
from planner.search.bounds.rates import FreeRate
from planner.search.bounds.states import StateRoom
from planner.search.deadline import Deadline
from planner.search.space.choices import Family, families, uniform
from planner.search.space.partitions import NetworkPartition, network_partitions
from planner.search.values import Limits

Families = list[tuple[float, Family]]
"""Families, each with a bound of its own."""

LISTED_AT_ONCE = 4096
"""Families between two looks at the clock."""


@dataclass(frozen=True, slots=True)
class Below:
    """Families whose groups may have plans below a cutoff."""

    families: list[Family]
    least: float
    """No plan of the other families is faster; infinite without any."""


@dataclass(frozen=True, slots=True)
class Group:
    """Families that differ in ZeRO and in the number of replicas only; or one with per-stage degrees."""

    families: tuple[Family, ...]

    @property
    def first(self) -> Family:
        """One of them."""
        return self.families[0]


def searched(
    rows: Iterable[Capabilities],
    estimator: Estimator,
    limits: Limits,
    *,
    one_degree: bool,
    runner: Capabilities | None = None,
    whole: bool | None = None,
    check: Callable[[], None] | None = None,
) -> Iterator[tuple[Capabilities, str, NetworkPartition, list[Family]]]:
    """All families of these targets by target, name of the partition, and partition.

    With ``one_degree`` only targets with per-stage degrees, and only families in which all stages have the same; with
    ``runner`` none with unequal numbers of micro-batches where this other runtime has none; with ``whole`` those of
    whole networks alone, or of their parts. ``check`` is called every now and then, and may raise to end it.
    """
    for row in rows:
        for name, partition in (
            network_partitions(estimator, row).items() if row.dp_per_stage or not one_degree else ()
        ):
            if whole is not None and partition.whole is not whole:
                continue
            found = families_of(row, name, partition, limits, one_degree=one_degree, check=check)
            if runner is not None and not runner.fewer_steps_zero:
                found = [family for family in found if not family.fewer_steps(estimator.model)]
            yield row, name, partition, found


def families_of(
    row: Capabilities,
    network: str,
    partition: NetworkPartition,
    limits: Limits,
    *,
    one_degree: bool = False,
    check: Callable[[], None] | None = None,
    wanted: Callable[[Recompute | None, int, int], bool] | None = None,
) -> list[Family]:
    """Families of a target in a partition of this name; ``check`` as in ``searched``, ``wanted`` as in ``families``."""
    model = partition.estimator.model
    room = StateRoom(row, partition.estimator)
    items = families(row, limits, model, partition.device_types, network, room.holds, wanted)
    if one_degree:
        items = (part for family in items for part in uniform(family, limits, model, partition.device_types))
    found: list[Family] = []
    for part in iter(lambda: list(islice(items, LISTED_AT_ONCE)), []):
        if check is not None:
            check()
        found += part
    return found


def families_below(
    row: Capabilities,
    network: str,
    partition: NetworkPartition,
    limits: Limits,
    cutoff: float,
    *,
    check: Callable[[], None] | None = None,
) -> Below:
    """Those of ``families_of`` in groups with a bound below the cutoff, of which the others are not even listed."""
    model, bounds = partition.estimator.model, dict[tuple[Recompute | None, int, int], float]()
    if cutoff == inf or row.dp_per_stage or model.experts is not None:
        return Below(families_of(row, network, partition, limits, check=check), inf)

    def least_of(recompute: Recompute | None, tp: int, size: int) -> Iterator[float]:
        for context in contexts(row, model, tp, limits.cp):
            one = Family(
                target=row.name,
                zero=0,
                recompute=recompute,
                tp=tp,
                dp=context.ways,
                batch=size,
                micro_batches=model.training.global_batch // size,
                network=network,
                context=context,
            )
            yield group_bound(Group((one,)), partition.bounds)

    def wanted(recompute: Recompute | None, tp: int, size: int) -> bool:
        key = recompute, tp, size
        if key not in bounds:
            bounds[key] = min(least_of(*key), default=inf)
        return bounds[key] < cutoff

    found = families_of(row, network, partition, limits, check=check, wanted=wanted)
    return Below(found, min((bound for bound in bounds.values() if bound >= cutoff), default=inf))


def grouped(items: Iterable[Family]) -> tuple[Group, ...]:
    """The families in the order in which they come, those of equal work together."""
    groups: dict[object, list[Family]] = {}
    for family in items:
        key = family if family.dp is None else family.equal_work
        groups.setdefault(key, []).append(family)
    return tuple(Group(tuple(members)) for members in groups.values())


def group_rates(group: Group, bounds: FamilyBounds) -> list[FreeRate]:
    """What replicas on each device type do with its micro-batches at best."""
    return bounds.rates.free_rates(group.first)


def group_bound(group: Group, bounds: FamilyBounds) -> float:
    """No plan of the group is faster than all devices at the best rate of its micro-batches, without other traffic.

    Nor than a micro-batch that meets only devices of the fastest type.
    """
    family, model = group.first, bounds.estimator.model
    if family.tp is None or family.dp is None:
        return 0.0
    rates = group_rates(group, bounds)
    if not rates:
        return inf
    rate = sum(each.replicas * each.layers for each in rates)
    # Embedding and head may be on unlike devices: they take these layers at least.
    ends = min(each.embedding for each in rates) + min(each.head for each in rates)
    # Replicas that share sequences have a part of each micro-batch.
    steps = model.training.global_batch * family.dp // family.batch
    # T >= (L + ends) m / sum over devices of layers of a micro-batch a second
    # 1F1B: T >= sum over stages of f + b >= L / best rate; divided backwards: p <= m stages, T >= m L / p / best rate
    fastest = max(each.layers for each in rates)
    return max((model.layers + ends) * steps / rate, model.layers / fastest)


def members(
    group: Group, partition: NetworkPartition, limits: Limits, deadline: Deadline, cutoff: float = inf
) -> Families:
    """The families of a group that may have plans; raises ``Struck`` at the deadline.

    A family whose bound is above the cutoff may have any such bound.
    """
    most = {family: max(partition.depths(family, limits), default=0) for family in group.families}
    able = [family for family in group.families if most[family]]
    known = late([(0.0, family) for family in able], partition, limits, cutoff)
    pairs = []
    for bound, family in known:
        deadline.check()
        pairs.append((bound or partition.bounds.family_bound(family, most[family]), family))
    return [item for item in pairs if item[0] < inf]


def late(pairs: Families, partition: NetworkPartition, limits: Limits, cutoff: float) -> Families:
    """The same with better bounds of families that hold too few layers for a plan below the cutoff."""
    alike: dict[object, list[int]] = {}
    for number, (bound, family) in enumerate(pairs if cutoff < inf else ()):
        if family.dp is not None and bound < cutoff:
            alike.setdefault((family.target, family.tp, family.recompute), []).append(number)
    result = list(pairs)
    for numbers in alike.values():
        families = [pairs[number][1] for number in numbers]
        most = [max(partition.depths(family, limits), default=1) for family in families]
        for number, seconds in zip(numbers, partition.bounds.late(families, most, cutoff), strict=True):
            result[number] = max(pairs[number][0], seconds), pairs[number][1]
    return result


def of_one_degree(item: Family, partition: NetworkPartition, limits: Limits, deadline: Deadline) -> Families:
    """Of a family with per-stage degrees, the parts with one degree; raises ``Struck`` at the deadline."""
    parts = Group(tuple(uniform(item, limits, partition.estimator.model, partition.device_types)))
    return members(parts, partition, limits, deadline)
