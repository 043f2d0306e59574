"""What a user writes about a cluster."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal, TypeGuard

from pydantic import Field, field_serializer, field_validator

from planner.catalog import GpuSpec, IntraNodeSpec
from planner.files.fields import (
    Cards,
    Chance,
    CoreRate,
    Cores,
    DeviceNames,
    Frozen,
    Gib,
    Latency,
    Name,
    Oversubscription,
    Price,
    Rate,
    ReserveGib,
    Source,
    Watts,
)
from planner.files.short_lists import compress_devices, compress_hosts, expand_devices, expand_hosts

NicKind = Literal["infiniband", "roce", "ethernet"]
FabricKind = Literal["nvlink", NicKind]
RDMA: tuple[NicKind, ...] = ("infiniband", "roce")
"""Kinds of fabric whose cards pass the processors by."""
WITHOUT_SOCKETS: tuple[FabricKind, ...] = ("nvlink", *RDMA)
"""Kinds of fabric on which devices send to each other by themselves."""
Provider = Literal["azure", "efa", "slingshot", "tcpx", "tcpxo"]


def _texts(value: object) -> TypeGuard[Sequence[str]]:
    return isinstance(value, (list, tuple)) and all(isinstance(item, str) for item in value)


class CacheSpec(Frozen):
    """A place on a node that keeps part of the training data once it was read."""

    kind: Literal["memory", "nvme"]
    """Host memory, or NVMe."""
    gib: Gib
    """Its room for data, GiB."""
    gBps: Rate
    """What the node reads from it, gigabyte/s."""


class FeedSpec(Frozen):
    """How fast a node gets its training data."""

    storage_gBps: Rate | None = None
    """What the node reads from the storage of the cluster, gigabyte/s; no limit when absent."""
    caches: Annotated[tuple[CacheSpec, ...], Field(max_length=10)] = ()
    """Where it keeps data that it has read, the fastest first."""
    cores: Cores = 1
    """Processor cores that make data ready: decode, tokenise, put together."""
    core_tokens_per_s: CoreRate | None = None
    """Tokens that one of them makes ready in a second; no limit when absent."""
    core_sequences_per_s: CoreRate | None = None
    """Sequences likewise, for example those with an image."""


class HostSpec(Frozen):
    """What a node offers to what is kept off its devices."""

    link_gBps: Rate | None = None
    """Copies between one device and host memory in one direction, as measured, gigabyte/s; 0.76 of the device
    type's link when absent."""
    all_links_gBps: Rate | None = None
    """The same for all devices of the node at once; their sum when absent."""
    memory_gib: Gib | None = None
    """Host memory of one node, GiB; not checked when absent."""
    nvme_gBps: Rate | None = None
    """What one node reads from, or writes to, its NVMe, gigabyte/s."""
    adam_billion_per_s: Rate | None = None
    """Billions of parameters that AdamW updates on the processors of one node in a second; the runtime's when
    absent."""
    feed: FeedSpec | None = None
    """How fast the node gets its training data; absent, always fast enough."""


class NicSpec(Frozen):
    """Identical network cards of one node on one fabric."""

    fabric: Name
    """Name of the fabric the cards are on."""
    bandwidth_gbps: Rate
    """Bandwidth of one card in one direction, gigabit/s."""
    count: Cards = 1
    """Cards per node."""
    interface: DeviceNames | None = None
    """Network interface name(s) for socket traffic, e.g. ``ens1`` (NCCL_SOCKET_IFNAME)."""
    hca: DeviceNames | None = None
    """RDMA device names (NCCL_IB_HCA): of each card (``mlx5_0,mlx5_1``), or fewer that several begin with: ``mlx5``."""


class Pool(Frozen):
    """Identical nodes on the same fabrics: what a cluster file says of them and a plan keeps."""

    name: Name
    """Name of the pool; nodes are called after it when only their number is given."""
    devices: tuple[object, ...] | None
    hosts: tuple[str, ...] | None
    intra_node: object
    nics: Annotated[tuple[NicSpec, ...], Field(max_length=100)] = ()
    """Network cards of one node; needed from two nodes on."""
    price_per_gpu_hour: Price | None = None
    """Price of one device for one hour, in the currency of your choice."""
    watts_per_gpu: Watts | None = None
    """Power of one device while it trains, watt; the board power of its type, or its limit, when absent."""
    power_limit_watts: Watts | None = None
    """Limit set on each device of the pool (``nvidia-smi -pl``), watt: its clock falls; wins over the device type's."""
    reserve_gib: ReserveGib | None = None
    """Memory kept free on each device of the pool, GiB; wins over the device type's and the cluster's."""
    host: HostSpec | None = None
    """What a node offers to what is kept off its devices, for plans that offload; and how fast it gets its data."""


class PoolSpec(Pool):
    """A pool with its devices, hosts and network inside nodes looked up and written out."""

    devices: tuple[Name, ...] = Field(min_length=1)
    """Types of the devices of one node (keys of ``ClusterSpec.gpus``), in index order; types may mix."""
    hosts: tuple[str, ...] = Field(min_length=1)
    """Host names, one a node."""
    intra_node: IntraNodeSpec
    """Network between the devices of a node."""

    @field_validator("hosts", mode="before")
    @classmethod
    def _hosts(cls, value: object) -> object:
        return expand_hosts(value) if _texts(value) else value

    @field_validator("devices", mode="before")
    @classmethod
    def _devices(cls, value: object) -> object:
        return expand_devices(value) if _texts(value) else value

    @field_serializer("hosts", when_used="json")
    def _short_hosts(self, hosts: tuple[str, ...]) -> list[str]:
        return list(compress_hosts(hosts))

    @field_serializer("devices", when_used="json")
    def _short_devices(self, devices: tuple[str, ...]) -> list[str]:
        return list(compress_devices(devices))


class WidePool(PoolSpec):
    """A pool each of whose nodes is several of the cluster file, named after the first of them."""

    nodes_each: int
    """Nodes of the cluster file that are one here."""
    dealt: PoolSpec | None = None
    """The pool of the cluster file where replicas lie in one of its nodes, and stages on equal parts of several; None
    where replicas are on several."""


def nodes_each(pool: PoolSpec) -> int:
    """Nodes of the cluster file that are one node of this pool."""
    return pool.nodes_each if isinstance(pool, WidePool) else 1


def dealt_over(pool: PoolSpec) -> int:
    """Nodes of the cluster file over which each stage on this pool is dealt; 1 where it fills one after the other."""
    return pool.nodes_each if isinstance(pool, WidePool) and pool.dealt else 1


FABRIC_LATENCY_US = {"nvlink": 3.4, "infiniband": 2.0, "roce": 4.0, "ethernet": 30.0}
"""Latency that a fabric has when the file gives none, microseconds (assumed); NVLink's is that inside nodes."""


def _latency(fields: dict[str, Any]) -> float:
    return FABRIC_LATENCY_US[fields["kind"]]


class FabricSpec(Frozen):
    """A network on which NICs talk natively."""

    kind: FabricKind
    """nvlink (switches that join the devices of several nodes), infiniband, roce or ethernet (TCP)."""
    latency_us: Latency = Field(default_factory=_latency)
    """Latency of one message between two nodes, microseconds; nvlink 3.4, infiniband 2, roce 4,
    ethernet 30."""
    oversubscription: Oversubscription = 1.0
    """Sum of the NIC bandwidths over what the switches carry; 1 is non-blocking."""
    provider: Provider | None = None
    """Whose network it is, where NCCL needs more than its own RDMA: launch files then set its variables."""
    source: Source = None


class FabricLinkSpec(Frozen):
    """A gateway or WAN link that joins two fabrics; all traffic across shares it."""

    between: tuple[Name, Name]
    """The two fabrics."""
    bandwidth_gbps: Rate
    """Bandwidth in one direction, gigabit/s."""
    latency_us: Latency
    """Latency of one message, microseconds."""
    source: Source = None


HOST_LINK_EFFICIENCY = 0.76
"""Share of the link that copies reach: 12 GB/s of PCIe 3.0's 15.75 (arXiv:2104.07857, section 4)."""

SUPERCHIP_GIGABYTES = 100.0
"""Copies to host memory, gigabyte/s, from which on a device counts as one package with its processor: NVLink-C2C has
171 (GB200) and 342 (GH200), 16 lanes of PCIe 6.0 have 92."""


class ClusterSpec(Frozen):
    """Pools of nodes and the fabrics between them, with every default filled in."""

    name: Name
    gpus: dict[Name, GpuSpec] = Field(min_length=1)
    """Every device type that a pool names."""
    pools: tuple[PoolSpec, ...] = Field(min_length=1)
    fabrics: dict[Name, FabricSpec] = Field(default_factory=dict)
    links: tuple[FabricLinkSpec, ...] = ()
    reserve_gib: ReserveGib = 2.0
    """Memory kept free on each device, GiB."""
    safe: Chance | None = None
    """Largest chance of running out of memory that a plan may have; None leaves it to ``reserve_gib`` alone."""
    storage_gBps: Rate | None = None
    """What all nodes together read from the storage with the training data, gigabyte/s; no limit when absent."""

    @property
    def devices(self) -> int:
        """Devices of all nodes."""
        return sum(len(pool.hosts) * len(pool.devices) for pool in self.pools)

    def watts_of(self, pool: PoolSpec, gpu: str) -> float | None:
        """Power of one ``gpu`` of the pool, watt: the pool's, else its limit or board power; None when unknown."""
        if pool.watts_per_gpu is not None:
            return pool.watts_per_gpu
        known = [watts for watts in (self.gpus[gpu].tdp_watts, self.power_limit_of(pool, gpu)) if watts]
        return min(known, default=None)

    def power_limit_of(self, pool: PoolSpec, gpu: str) -> float | None:
        """Limit on the power of one ``gpu`` of the pool, watt: the pool's, else the device type's; None without one."""
        return self.gpus[gpu].power_limit_watts if pool.power_limit_watts is None else pool.power_limit_watts

    def power_share_of(self, pool: PoolSpec, gpu: str) -> float:
        """What its limit leaves of the board power of a ``gpu`` of the pool, at most 1."""
        board, limit = self.gpus[gpu].tdp_watts, self.power_limit_of(pool, gpu)
        return min(1.0, limit / board) if board and limit else 1.0

    def reserve_of(self, pool: PoolSpec, gpu: str) -> float:
        """Memory kept free on a ``gpu`` of the pool, GiB: the pool's, else the device type's, else the cluster's."""
        if pool.reserve_gib is not None:
            return pool.reserve_gib
        own = self.gpus[gpu].reserve_gib
        return self.reserve_gib if own is None else own

    def host_link_of(self, pool: PoolSpec, gpu: str) -> float | None:
        """Copies between a ``gpu`` of the pool and host memory, all devices of its node at once, gigabyte/s.

        None when neither the pool nor the device type says it.
        """
        host, link = pool.host or HostSpec(), self.gpus[gpu].host_link_gBps
        alone = host.link_gBps or (link and HOST_LINK_EFFICIENCY * link)
        if host.all_links_gBps is None:
            return alone
        share = nodes_each(pool) * host.all_links_gBps / len(pool.devices)
        return share if alone is None else min(alone, share)

    def is_superchip(self, pool: PoolSpec, gpu: str) -> bool:
        """True where a ``gpu`` of the pool reaches host memory as fast as over NVLink-C2C."""
        return (self.host_link_of(pool, gpu) or 0.0) >= SUPERCHIP_GIGABYTES
