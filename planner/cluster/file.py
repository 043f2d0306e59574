"""The cluster file: what a user writes, and how it becomes a ClusterSpec."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

from pydantic import Discriminator, Field, Tag

from planner import catalog
from planner.catalog import GpuSpec, IntraNodeSpec
from planner.cluster.checks import MOST_POOLS, check_cluster
from planner.cluster.spec import ClusterSpec, FabricLinkSpec, FabricSpec, Pool, PoolSpec
from planner.errors import Problem
from planner.files.document import Document, fail_on, read_as
from planner.files.fields import (
    Chance,
    Frozen,
    Name,
    NodeDevices,
    Nodes,
    Rate,
    ReserveGib,
)
from planner.files.short_lists import expand_hosts, numbered_hosts, split_times

_UNUSED = IntraNodeSpec(bandwidth_gBps=15.75, latency_us=5.7, shared=True)
"""Network inside nodes of one device; carries nothing."""
_UNSOURCED = {"source": None}
"""Where numbers are from makes no difference to a cluster."""


def _written(value: Any) -> str:
    return (
        "<name>" if isinstance(value, str) else "<inline>" if isinstance(value, (dict, Frozen)) else "<name>"
    )


DeviceField = Annotated[
    Annotated[str, Tag("<name>")] | Annotated[GpuSpec, Tag("<inline>")], Discriminator(_written)
]
"""A device type, by name or by its numbers."""
IntraNodeField = Annotated[
    Annotated[str, Tag("<name>")] | Annotated[IntraNodeSpec, Tag("<inline>")], Discriminator(_written)
]
"""A network inside nodes, by name or by its numbers."""


class PoolFile(Pool):
    """Identical nodes on the same fabrics."""

    gpu: DeviceField | None = None
    """Type of all devices of a node: a name of the catalogue or of ``gpus``, or its numbers."""
    gpus_per_node: NodeDevices | None = None
    """Devices of one node; 1 when absent."""
    devices: Annotated[tuple[DeviceField, ...], Field(min_length=1, max_length=1000)] | None = None
    """Type of each device of a node in index order, for nodes that mix types; ``3 x T4`` stands for three."""
    nodes: Nodes | None = None
    """Number of nodes; they are called <pool>-0, <pool>-1 and so on."""
    hosts: Annotated[tuple[str, ...], Field(min_length=1)] | None = None
    """Host names, instead of ``nodes``; ``a100-[01-16]`` stands for sixteen."""
    intra_node: IntraNodeField | None = None
    """Network between the devices of a node: a catalogue name, or its numbers; needed from two devices on."""
    source: str | None = None
    """Where the numbers are from; free text."""


class ClusterFile(Frozen):
    """A cluster: pools of nodes and the fabrics between them."""

    name: Name
    """Name of the cluster."""
    notes: str | None = None
    """Free text."""
    source: str | None = None
    """Where the numbers are from; free text."""
    gpus: dict[Name, GpuSpec] = Field(default_factory=dict)
    """Your own device types, by name; they win over the catalogue's."""
    pools: Annotated[tuple[PoolFile, ...], Field(min_length=1, max_length=MOST_POOLS)]
    """Pools of identical nodes."""
    fabrics: dict[Name, FabricSpec] = Field(default_factory=dict)
    """Networks between nodes, by name."""
    links: Annotated[tuple[FabricLinkSpec, ...], Field(max_length=10_000)] = ()
    """Gateways and WAN links between fabrics."""
    reserve_gib: ReserveGib = 2.0
    """Memory kept free on each device, GiB."""
    safe: Chance | None = None
    """Largest chance of running out of memory that a plan may have; None leaves it to ``reserve_gib`` alone."""
    storage_gBps: Rate | None = None
    """What all nodes together read from the storage with the training data, gigabyte/s; no limit when absent."""


def load_cluster(path: Path) -> ClusterSpec:
    """The cluster of a file; raises SpecError with every problem of the file."""
    document = read_as(path, "cluster")
    fail_on(problems_of(document))
    return cluster_of(document.to(ClusterFile))


def problems_of(document: Document) -> list[Problem]:
    """Everything that keeps the document from being a cluster file."""
    return [*document.problems(ClusterFile), *check_cluster(document)]


def cluster_of(file: ClusterFile) -> ClusterSpec:
    """The cluster that a file without problems describes, with names looked up and defaults filled in."""
    types: dict[str, GpuSpec] = {}
    pools = tuple(_pool(pool, file, types) for pool in file.pools)
    return ClusterSpec(
        name=file.name,
        gpus=types,
        pools=pools,
        fabrics={name: fabric.model_copy(update=_UNSOURCED) for name, fabric in file.fabrics.items()},
        links=tuple(link.model_copy(update=_UNSOURCED) for link in file.links),
        reserve_gib=file.reserve_gib,
        safe=file.safe,
        storage_gBps=file.storage_gBps,
    )


def _pool(pool: PoolFile, file: ClusterFile, types: dict[str, GpuSpec]) -> PoolSpec:
    gpus = [_gpu_spec(gpu, name, file) for gpu, name in _devices(pool)]
    types.update({gpu.name: gpu for gpu in gpus})
    looked_up = {
        "devices": tuple(gpu.name for gpu in gpus),
        "hosts": expand_hosts(pool.hosts) if pool.hosts else numbered_hosts(pool.name, pool.nodes or 1),
        "intra_node": _intra_node(pool),
    }
    return PoolSpec(**{field: getattr(pool, field) for field in Pool.model_fields} | looked_up)


def _devices(pool: PoolFile) -> Iterator[tuple[str | GpuSpec, str]]:
    """Each device of a node with the name that it takes when it has none."""
    if pool.gpu is not None:
        for _ in range(pool.gpus_per_node or 1):
            yield pool.gpu, f"{pool.name}-gpu"
    for index, device in enumerate(pool.devices or ()):
        times, gpu = split_times(device) if isinstance(device, str) else (1, device)
        for _ in range(times):
            yield gpu, f"{pool.name}-gpu{index}"


def _gpu_spec(gpu: str | GpuSpec, default_name: str, file: ClusterFile) -> GpuSpec:
    """The device under its name: its own, that of the file's ``gpus``, or the catalogue's."""
    if isinstance(gpu, GpuSpec):
        return gpu.model_copy(update={"name": gpu.name or default_name, **_UNSOURCED})
    if gpu in file.gpus:
        return file.gpus[gpu].model_copy(update={"name": gpu, **_UNSOURCED})
    return catalog.gpu_spec(gpu)


def _intra_node(pool: PoolFile) -> IntraNodeSpec:
    if isinstance(pool.intra_node, str):
        return catalog.link_spec(pool.intra_node)
    return pool.intra_node or _UNUSED
