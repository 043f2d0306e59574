"""What the smoke run compares with: ``smoke.json``, the plan's devices, links, layers and memory, rank by rank."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby, pairwise
from typing import Any

from planner.calibration.file import shipped
from planner.calibration.merge import MODEL_FACT
from planner.catalog import driver_names
from planner.cluster.topology import DeviceType, Topology
from planner.cost.communication import Ring, all_to_all_seconds, pass_on_seconds, tensor_ring
from planner.cost.compute import Device, layer_pass
from planner.cost.estimate import Estimator, boundary_bytes
from planner.cost.grids import Axes
from planner.cost.measured_curves import with_host
from planner.cost.sends import Send
from planner.cost.values import Estimate
from planner.errors import PlanError
from planner.job.batches import model_shape
from planner.job.files import EmittedFile, node_file, rows
from planner.job.job import Job
from planner.measure.resume import shape_text
from planner.model.spec import ModelSpec
from planner.plan.placement import Rank, by_copies
from planner.plan.values import Grid
from planner.targets import PLAIN_TORCH

MODULES = (
    *("hetplan_smoke", "smoke_run", "smoke_device", "smoke_measure"),
    *("example_model", "example_adapters", "example_context", "example_ring", "example_experts"),
    *("example_state", "hetplan_loss", "hetplan_runtime"),
)
"""Of the example's those that its layer needs."""
SIZES = tuple(float(2**power) for power in (14, 17, 20, 22, 24, 26, 27))
LONGEST = 0.5
"""Planned seconds of one operation from which larger ones are left out."""
MOST_SIZES = 3
"""A bandwidth takes a large one, a curve two at least."""
FORMATS = ("bf16", "fp16", "fp32", "tf32")
"""Formats that plain torch computes in."""


def smoke_files(job: Job, present: Iterable[str]) -> tuple[EmittedFile, ...]:
    """The program and what it compares with; modules that are ``present`` are left out."""
    names = set(present)
    modules = (node_file(f"planner.training.{module}") for module in MODULES if f"{module}.py" not in names)
    return (EmittedFile("smoke.json", smoke_text(job)), *modules)


def smoke_text(job: Job) -> str:
    """The document, one line for each rank, group and layer; of a plan without a price, what it says without one."""
    model = job.model
    devices = dict.fromkeys(rank.gpu for rank in job.ranks)
    head: dict[str, object] = {
        "format": 1,
        "model": model.name,
        "target": job.plan.target,
        "hidden": model.hidden,
        "facts": {MODEL_FACT + model.name: shape_text(model)},
        "devices": {gpu: [gpu, *driver_names(gpu)] for gpu in devices},
    }
    layers: dict[LayerKey, dict[str, Any]] = {}
    groups: list[dict[str, Any]] = []
    peaks: dict[tuple[int, int], int] = {}
    try:
        estimator = Estimator(job.cluster, model, shipped())
        peaks = _peaks(estimator.estimate(job.plan))
        groups = list(_groups(job, estimator))
        layers = _layers(job, estimator)
    except PlanError as error:
        head["unpriced"] = str(error)
    numbers = {key: index for index, key in enumerate(layers)}
    return rows(
        head,
        layers=list(layers.values()),
        groups=groups,
        ranks=[
            {
                "rank": rank.rank,
                "host": rank.host,
                "device": rank.device,
                "gpu": rank.gpu,
                "memory_bytes": peaks.get((rank.stage, rank.group)),
                "layer": numbers.get(_layer_key(job, rank)),
            }
            for rank in job.ranks
        ],
    )


def _peaks(estimate: Estimate) -> dict[tuple[int, int], int]:
    """Bytes of one device without context and libraries, by stage and replica group."""
    return {
        (stage, group): round(each.memory.used_bytes - each.memory.runtime_bytes)
        for stage, own in enumerate(estimate.stages)
        for group, each in enumerate(own.groups)
    }


LayerKey = tuple[str, str, int, int]
"""Pool and device type, tensor-parallel degree, sequences."""


def _layer_key(job: Job, rank: Rank) -> LayerKey:
    group = job.plan.stages[rank.stage].replicas[rank.group]
    return rank.pool, rank.gpu, group.tp, group.micro_batch


def _layers(job: Job, estimator: Estimator) -> dict[LayerKey, dict[str, Any]]:
    """A layer of plain torch for each device type, degree and micro-batch, without collectives; none where torch has
    no such layer."""
    model, training = job.model, job.model.training
    if training.precision not in FORMATS or model.latent is not None or model.sinks:
        return {}
    if not model.usual_layers or model.block or model.behind:
        return {}  # the timed layer is attention and a feed-forward
    if training.packed:
        return {}  # the timed layer attends to whole sequences
    if training.lora is not None or training.freeze is not None or job.plan.cp > 1 or job.plan.grid:
        return {}  # the timed layer is whole, and all of it learns
    pricer = estimator.pricer(PLAIN_TORCH.name)
    layers: dict[LayerKey, dict[str, Any]] = {}
    for key in dict.fromkeys(_layer_key(job, rank) for rank in job.ranks):
        pool, gpu, tp, micro_batch = key
        shares = share_of(model, tp)
        if shares is None:
            continue
        device_type = estimator.topology.device_type(pool, gpu)
        unfused = pricer.runs_unfused(device_type) or model.training.attention == "unfused"
        one = layer_pass(
            pricer.model_on(device_type),
            Device(device_type, estimator.calibration, model.training.precision, pricer.kernels),
            PLAIN_TORCH,
            tp=tp,
            micro_batch=micro_batch,
            sequence_parallel=False,
        )
        layers[key] = {
            "gpu": gpu,
            "model": model.name,
            "tp": tp,
            "micro_batch": micro_batch,
            "precision": model.training.precision,
            "unfused": unfused,
            "forward_seconds": with_host(one.forward_seconds, one.host_seconds),
            "backward_seconds": with_host(one.backward_seconds, one.host_seconds),
            "shape": shares,
        }
    return layers


def share_of(model: ModelSpec, tp: int) -> Mapping[str, object] | None:
    """The shape of one of ``tp`` equal shares of a layer; None for a layer that cannot be cut so."""
    if any(count % tp for count in (model.heads, model.kv_heads, model.ffn)) or (tp > 1 and model.experts):
        return None
    cut = {name: getattr(model, name) // tp for name in ("heads", "kv_heads", "ffn")}
    return {**model_shape(model), **cut}


def _groups(job: Job, estimator: Estimator) -> Iterator[dict[str, Any]]:
    """Groups of ranks that work at the same time: inside replicas, over replicas, from stage to stage."""
    priced = estimator.price(job.plan)
    for number, ring in enumerate(priced.rings):
        yield from _tensor_groups(job, estimator, number)
        yield from _expert_groups(job, estimator, number)
        yield from _context_groups(job, estimator, number)
        yield from _island_groups(job, priced.inside) if priced.inside else _data_groups(job, number, ring)
    for number in range(job.plan.pp - 1):
        yield from _sends(job, number, partial(estimator.send_of, job.plan, number))


def _entry(
    what: str,
    members: Sequence[Sequence[int]],
    link: str,
    curve: str,
    sharing: int,
    operations: Mapping[str, Any],
) -> dict[str, Any]:
    return {
        "what": what,
        "members": [list(each) for each in members],
        "link": link,
        "curve": curve,
        "sharing": sharing,
        "operations": dict(operations),
    }


def _points(seconds: Any) -> list[list[float]]:
    """Sizes and their planned seconds: the largest that do not take long, two at least."""
    timed = [[size, float(seconds(size))] for size in SIZES]
    quick = [each for each in timed if each[1] <= LONGEST]
    return quick[-MOST_SIZES:] if len(quick) > 1 else timed[:2]


def _tensor_groups(job: Job, estimator: Estimator, number: int) -> Iterator[dict[str, Any]]:
    """One entry for each device type of a stage whose replicas have several devices."""
    for device_type, tp, own in _by_type(job, estimator, number):
        if tp == 1:
            continue
        if job.plan.grid is not None:
            yield from _grid_groups(job.plan.grid, own, estimator.pricer_of(job.plan).axes(device_type))
            continue
        ring = tensor_ring(device_type, estimator.calibration, tp=tp)
        members = [[rank.rank for rank in each] for _, each in _by(own, lambda rank: rank.replica)]
        what = f"stage {number}, inside replicas on {device_type.gpu}"
        yield _entry(what, members, ring.crosses, ring.link, 1, {"all-reduce": _points(ring.reduce_seconds)})


def _grid_groups(grid: Grid, own: Sequence[Rank], axes: Axes) -> Iterator[dict[str, Any]]:
    """Rows and columns of grids."""
    for what, ring, key in (
        ("rows", axes.row.ring, lambda rank: (rank.replica, rank.tp_rank // grid.columns)),
        (
            "columns",
            axes.column.ring,
            lambda rank: (rank.replica, rank.tp_rank // grid.layer, rank.tp_rank % grid.columns),
        ),
    ):
        members = [[rank.rank for rank in each] for _, each in _by(own, key)]
        operations = {"all-reduce": _points(ring.reduce_seconds)}
        link = f"node:{own[0].gpu}" if ring.crosses == "node" else ring.crosses
        yield _entry(
            f"{what} of grids on {own[0].gpu}", members, ring.crosses, link, ring.sharing, operations
        )


def _expert_groups(job: Job, estimator: Estimator, number: int) -> Iterator[dict[str, Any]]:
    """Devices of a stage that have other experts each, and those that share the same ones."""
    ep, etp = job.plan.folding
    for device_type, tp, own in _by_type(job, estimator, number) if ep * etp > 1 else ():
        # Consecutive devices share experts, and as many of these groups have all of them.
        places = {rank.rank: rank.replica * tp + rank.tp_rank for rank in own}
        alike, others = defaultdict(list), defaultdict(list)
        for rank, place in sorted(places.items(), key=lambda item: item[1]):
            alike[place // etp].append(rank)
            others[place // (ep * etp), place % etp].append(rank)
        if ep > 1:
            what = f"stage {number}, over experts on {device_type.gpu}"
            yield _all_to_all(what, list(others.values()), device_type, job, estimator, width=etp)
        if etp > 1:
            ring = tensor_ring(device_type, estimator.calibration, tp=etp)
            what = f"stage {number}, inside experts on {device_type.gpu}"
            operations = {"all-gather": _points(ring.gather_seconds)}
            yield _entry(what, list(alike.values()), ring.crosses, ring.link, 1, operations)


def _context_groups(job: Job, estimator: Estimator, number: int) -> Iterator[dict[str, Any]]:
    """Replicas of a stage that share sequences: all of them, or with rings neighbours that are furthest apart."""
    ways = job.plan.cp
    for device_type, tp, own in _by_type(job, estimator, number) if ways > 1 else ():
        members = [each for _, each in _by(own, lambda rank: (rank.replica // ways, rank.tp_rank))]
        what = f"stage {number}, over parts of sequences on {device_type.gpu}"
        if job.plan.cp_kind == "ulysses":
            ranks = [[rank.rank for rank in each] for each in members]
            yield _all_to_all(what, ranks, device_type, job, estimator, width=tp)
            continue
        pairs = [pair for each in members for pair in _neighbours(each)]
        topology = estimator.joined_for(job.plan).topology
        send = partial(pass_on_seconds, device_type, topology, estimator.calibration, ways=ways, width=tp)
        yield _entry(what, pairs, *_link_over(device_type, topology, ways, tp), {"send": _points(send)})


def _neighbours(ring: Sequence[Rank]) -> Iterator[list[int]]:
    """Pairs of neighbours, none of them in two: between nodes where the ring has several."""
    apart = len({rank.host for rank in ring}) > 1
    taken: set[int] = set()
    for one, other in pairwise((*ring, ring[0])):
        if (one.host != other.host) is apart and not {one.rank, other.rank} & taken:
            taken |= {one.rank, other.rank}
            yield [one.rank, other.rank]


def _all_to_all(
    what: str,
    members: Sequence[Sequence[int]],
    device_type: DeviceType,
    job: Job,
    estimator: Estimator,
    *,
    width: int,
) -> dict[str, Any]:
    """Groups whose members stand on ``width`` devices each."""
    ways, topology = len(members[0]), estimator.joined_for(job.plan).topology
    seconds = partial(all_to_all_seconds, device_type, topology, estimator.calibration, ep=ways, width=width)
    return _entry(
        what, members, *_link_over(device_type, topology, ways, width), {"all-to-all": _points(seconds)}
    )


def _link_over(device_type: DeviceType, topology: Topology, ways: int, width: int) -> tuple[str, str, int]:
    """Link, its curve and how many share it, of groups of ``ways`` members on ``width`` devices each."""
    if ways * width <= device_type.per_node:
        return "node", f"node:{device_type.gpu}", 1
    fabric = topology.path(device_type.pool, device_type.pool).fabric
    return fabric, fabric, width


def _by_type(job: Job, estimator: Estimator, number: int) -> Iterator[tuple[DeviceType, int, list[Rank]]]:
    """(type, tensor-parallel degree, ranks) of each device type of a stage, in the order of replicas.

    Equal pools are one: a group may stand on several of them.
    """
    joined = estimator.joined_for(job.plan)
    stage = [rank for rank in job.ranks if rank.stage == number]

    def alike(rank: Rank) -> tuple[str, str, int]:
        return *joined.device_type(rank.pool, rank.gpu).key, _layer_key(job, rank)[2]

    for (pool, gpu, tp), own in _by(stage, alike):
        yield joined.device_type(pool, gpu), tp, own


def _data_groups(job: Job, number: int, ring: Ring) -> Iterator[dict[str, Any]]:
    """The rings over a stage's replicas; with HSDP those that shard, and those between the copies."""
    plan = job.plan.copies
    stage = [rank for rank in by_copies(job.plan, job.ranks) if rank.stage == number]
    size = plan.shard_size or plan.stages[number].dp
    for what, each, key in (
        ("over replicas", ring, lambda rank: (rank.tp_rank, rank.replica // size)),
        ("over copies", ring.copies, lambda rank: (rank.tp_rank, rank.replica % size)),
    ):
        if each is None or each.alone:
            continue
        members = [[rank.rank for rank in own] for _, own in _by(stage, key)]
        operations = {"all-reduce": _points(each.reduce_seconds), "all-gather": _points(each.gather_seconds)}
        yield _entry(f"stage {number}, {what}", members, each.crosses, each.link, each.sharing, operations)


def _island_groups(job: Job, inside: Sequence[Ring]) -> Iterator[dict[str, Any]]:
    """The rings of islands; what these exchange goes over their hosts."""
    for island in job.islands:
        ring, members = inside[island[0].group], [[rank.rank for rank in island]]
        if 1 < len(island) == ring.size:
            operations = {"all-reduce": _points(ring.reduce_seconds)}
            yield _entry("in an island", members, ring.crosses, ring.link, ring.sharing, operations)


def _sends(job: Job, number: int, send_of: Callable[[float], Send]) -> Iterator[dict[str, Any]]:
    """Every device of a stage to its counterpart in the next, where these have as many; each sends its part."""
    here = [rank for rank in job.ranks if rank.stage == number]
    there = {(rank.replica, rank.tp_rank): rank for rank in job.ranks if rank.stage == number + 1}
    pairs = [(rank, there.get((rank.replica, rank.tp_rank))) for rank in here]
    if len(here) != len(there) or not all(other for _, other in pairs):
        return
    tp = _layer_key(job, here[0])[2]
    example = send_of(boundary_bytes(job.model, 1))
    crossing = [
        first.host for first, last in pairs if last and first.host != last.host and first.tp_rank == 0
    ]
    at_once = max((crossing.count(host) for host in set(crossing)), default=1)
    curve = f"node:{here[0].gpu}" if example.link == "node" else example.link
    members = [[first.rank, last.rank] for first, last in pairs if last]
    points = [[size / tp, seconds] for size, seconds in _points(lambda size: send_of(size).seconds)]
    yield _entry(
        f"stage {number} to {number + 1}", members, example.link, curve, at_once * tp, {"send": points}
    )


def _by(ranks: Sequence[Rank], key: Any) -> Iterator[tuple[Any, list[Rank]]]:
    """Ranks by something of theirs, in order."""
    ordered = sorted(ranks, key=lambda rank: (key(rank), rank.rank))
    for value, own in groupby(ordered, key=key):
        yield value, list(own)
