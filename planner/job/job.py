"""One run of a plan: its processes on their nodes, the networks they use, and all that follows from where they are.

NCCL runs one network per communicator. Where all nodes of a job share an RDMA fabric it is that one; otherwise
communicators that leave an RDMA fabric must use sockets.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from planner.cluster.spec import RDMA, ClusterSpec, NicSpec, PoolSpec
from planner.files.short_lists import compress_hosts, numbered_hosts
from planner.model.spec import ModelSpec
from planner.plan.placement import Agent, Rank, agents
from planner.plan.values import Plan

FILL_IN = "# EDIT:"
"""Marks a line of an environment file that the user has to complete."""
NOT_NAMED = f"{FILL_IN} the cluster file has no"
"""The same of a network card's name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobNetwork:
    """The networks of one job."""

    nodes: int
    """Nodes of the job."""
    rdma: dict[str, str | None]
    """RDMA fabric of each used pool; None where the pool has none."""
    sockets: dict[str, NicSpec | None]
    """Cards of each used pool for socket traffic and NCCL's own start-up."""
    plugins: frozenset[str] = frozenset()
    """Used pools whose RDMA fabric NCCL reaches by a plugin, which it takes where it finds one and nothing is said."""
    alone: bool = False
    """True when no communicator of devices leaves a node, whatever hosts exchange."""

    @property
    def crosses(self) -> bool:
        """True when the job spans nodes that share no RDMA fabric although some have one."""
        fabrics = set(self.rdma.values())
        return self.nodes > 1 and len(fabrics) > 1

    @property
    def has_rdma(self) -> bool:
        """True when some pool of a job on several nodes has RDMA."""
        return self.nodes > 1 and any(self.rdma.values())

    @property
    def needs_sockets(self) -> bool:
        """True when a communicator of all ranks cannot use RDMA."""
        return self.nodes > 1 and not self.alone and (self.crosses or not self.has_rdma)


def job_network(cluster: ClusterSpec, agents: Sequence[Agent]) -> JobNetwork:
    """The networks of a job of these agents."""
    used = {agent.pool for agent in agents}
    pools = [pool for pool in cluster.pools if pool.name in used]
    return JobNetwork(
        nodes=len({agent.host for agent in agents}),
        rdma={pool.name: _rdma_fabric(cluster, pool, pools) for pool in pools},
        sockets={pool.name: _socket_nic(cluster, pool, pools) for pool in pools},
        plugins=frozenset(
            pool.name
            for pool in pools
            if (fabric := _rdma_fabric(cluster, pool, pools)) and cluster.fabrics[fabric].provider in PLUGINS
        ),
    )


def _reach(fabric: str, pools: list[PoolSpec]) -> int:
    """Used pools with a card on the fabric."""
    return sum(any(nic.fabric == fabric for nic in pool.nics) for pool in pools)


def _rate(nic: NicSpec) -> float:
    return nic.bandwidth_gbps * nic.count


def _rdma_fabric(cluster: ClusterSpec, pool: PoolSpec, pools: list[PoolSpec]) -> str | None:
    """The pool's RDMA fabric that most used pools share, the fastest of those."""
    nics = [nic for nic in pool.nics if cluster.fabrics[nic.fabric].kind in RDMA]
    best = max(nics, key=lambda nic: (_reach(nic.fabric, pools), _rate(nic)), default=None)
    return best.fabric if best else None


def _socket_nic(cluster: ClusterSpec, pool: PoolSpec, pools: list[PoolSpec]) -> NicSpec | None:
    """The pool's cards on the fabric that most used pools share, Ethernet before the rest."""

    def preference(nic: NicSpec) -> tuple[int, bool, float]:
        return _reach(nic.fabric, pools), cluster.fabrics[nic.fabric].kind == "ethernet", _rate(nic)

    addressed = [nic for nic in pool.nics if cluster.fabrics[nic.fabric].kind != "nvlink"]
    return max(addressed, key=preference, default=None)


NEEDS_IMEX = "NCCL 2.21 or later finds it by itself, where the service nvidia-imex runs on all of its nodes."
"""What NVLink between nodes needs."""

Line = str | tuple[str, str]
"""A comment, or a variable and its value."""


def pool_environment(
    cluster: ClusterSpec, pool: PoolSpec, network: JobNetwork, everything_on_sockets: bool
) -> str:
    """The shell file that a node of the pool sources before it starts: exports, and what to fill in."""
    lines = pool_lines(cluster, pool, network, everything_on_sockets)
    texts = (line if isinstance(line, str) else f"export {line[0]}={_quoted(line[1])}" for line in lines)
    return "".join(f"{text}\n" for text in ("# shellcheck shell=bash", *texts))


def _quoted(value: str) -> str:
    """A word of the shell; ``=name`` is in quotes, since a second ``=`` reads like a comparison."""
    return f"'{value}'" if re.fullmatch(r"=[\w,.:-]+", value) else shlex.quote(value)


def pool_lines(
    cluster: ClusterSpec, pool: PoolSpec, network: JobNetwork, everything_on_sockets: bool
) -> list[Line]:
    """What the nodes of a pool need to know of the network, line by line."""
    lines: list[Line] = [f"# Network of the nodes of pool {pool.name}."]
    if network.nodes == 1:
        return [*lines, "# The job stays on one node: NCCL needs no network."]
    nic = network.sockets[pool.name]
    lines += _socket_lines(pool, nic) if nic else ["# The cluster file gives this pool no network cards."]
    switches = [nic.fabric for nic in pool.nics if cluster.fabrics[nic.fabric].kind == "nvlink"]
    lines += [f"# NVLink: fabric {name}. {NEEDS_IMEX}" for name in switches]
    fabric = network.rdma[pool.name]
    if everything_on_sockets:
        if network.has_rdma:
            lines += ["# The nodes of this job share no RDMA fabric, so every connection uses sockets."]
        lines.append(("NCCL_NET", "Socket"))
    elif fabric:
        rdma = _rdma_lines(cluster, pool, fabric)
        # It would be that of groups on sockets too.
        lines += [line for line in rdma if not (network.crosses and line[0] == "NCCL_NET")]
    return lines


def _fill_in(pool: PoolSpec, fabric: str, key: str, lines: list[str]) -> list[Line]:
    where = f"{key} for fabric {fabric} in pool {pool.name}"
    why = f"{NOT_NAMED} {where}; fill in and uncomment."
    return [why, *(f"# {line}" for line in lines)]


def _socket_lines(pool: PoolSpec, nic: NicSpec) -> list[Line]:
    lines: list[Line] = [f"# Sockets: fabric {nic.fabric}."]
    if nic.interface is None:
        exports = ["export NCCL_SOCKET_IFNAME='=INTERFACE'", "export GLOO_SOCKET_IFNAME=INTERFACE"]
        return lines + _fill_in(pool, nic.fabric, "interface", exports)
    names = _names(nic.interface)
    return [*lines, ("NCCL_SOCKET_IFNAME", f"={','.join(names)}"), ("GLOO_SOCKET_IFNAME", names[0])]


def _names(*written: str) -> list[str]:
    """Names of cards without blanks, which NCCL takes for letters."""
    return [name.strip() for each in written for name in each.split(",")]


def _rdma_lines(cluster: ClusterSpec, pool: PoolSpec, fabric: str) -> list[Line]:
    spec = cluster.fabrics[fabric]
    lines: list[Line] = [f"# RDMA: fabric {fabric} ({spec.provider or spec.kind})."]
    if spec.provider in PLUGINS:
        return [*lines, *_plugin_lines(pool, fabric, spec.provider)]
    cards = [nic for nic in pool.nics if nic.fabric == fabric and nic.hca]
    if cards:
        names = _names(*(nic.hca for nic in cards if nic.hca))
        # Fewer names than cards are those that several begin with: mlx5 of mlx5_0 and mlx5_1.
        whole = len(names) >= sum(nic.count for nic in cards)
        lines.append(("NCCL_IB_HCA", f"{'=' if whole else ''}{','.join(names)}"))
    else:
        lines += _fill_in(pool, fabric, "hca", ["export NCCL_IB_HCA='=DEVICE,DEVICE'"])
    if spec.kind == "roce":
        lines += ["# RoCE v2 is usually GID 3; `show_gids` lists them.", ("NCCL_IB_GID_INDEX", "3")]
    if spec.provider == "azure":
        lines += [
            "# NCCL needs the topology of these virtual machines. HPC images name it in /etc/nccl.conf; elsewhere set",
            "# NCCL_TOPO_FILE to that of the machine type.",
            ("NCCL_IB_PCI_RELAXED_ORDERING", "1"),
        ]
    return lines


OFI = (
    "# NCCL reaches it by the plugin aws-ofi-nccl, which has to be on LD_LIBRARY_PATH; else it takes sockets."
)
PLUGINS: dict[str, list[Line]] = {
    # https://github.com/aws/aws-ofi-nccl
    "efa": [OFI, ("FI_PROVIDER", "efa")],
    # https://negin513.github.io/distributed-pytorch-hpc/guide/nccl_tuning (NCAR's Derecho)
    "slingshot": [
        OFI,
        ("FI_PROVIDER", "cxi"),
        ("FI_CXI_DISABLE_HOST_REGISTER", "1"),
        ("FI_CXI_DEFAULT_CQ_SIZE", "131072"),
        ("FI_MR_CACHE_MONITOR", "userfaultfd"),
        ("NCCL_CROSS_NIC", "1"),
    ],
    # https://cloud.google.com/kubernetes-engine/docs/how-to/gpu-bandwidth-gpudirect-tcpx
    "tcpx": [("NCCL_NET", "GPUDirectTCPX_v7")],
    "tcpxo": [
        "# Source the plugin's nccl-env-profile.sh ahead of the launch: it has the rest, which changes with versions.",
        ("NCCL_FASTRAK_LLCM_DEVICE_DIRECTORY", "/dev/aperture_devices"),
    ],
}
"""What NCCL needs for networks that are not InfiniBand's verbs."""
PREFIXES = {"tcpx": "NCCL_GPUDIRECTTCPX_SOCKET_IFNAME", "tcpxo": "NCCL_FASTRAK_IFNAME"}
"""Variables that list the interfaces for data."""


def _plugin_lines(pool: PoolSpec, fabric: str, provider: str | None) -> list[Line]:
    """Of networks that NCCL reaches by a plugin; Google's name their interfaces, and one for control."""
    lines = list(PLUGINS[provider or ""])
    variable = PREFIXES.get(provider or "")
    if variable is None:
        return lines
    names = _names(*(nic.interface for nic in pool.nics if nic.fabric == fabric and nic.interface))
    if names:
        lines.append((variable, ",".join(names)))
    else:
        lines += _fill_in(pool, fabric, "interface", [f"export {variable}=INTERFACE,INTERFACE"])
    control = next((nic.interface for nic in pool.nics if nic.fabric != fabric and nic.interface), None)
    device = f"{variable.removesuffix('_SOCKET_IFNAME').removesuffix('_IFNAME')}_CTRL_DEV"
    return [*lines, (device, _names(control)[0])] if control else lines


MASTER_PORT = 29500
LOOPBACK = "127.0.0.1"
"""Where the processes of a job on one node meet, whatever the node is called."""

NVME_FOLDER = "/local_nvme"
"""Stands for the folder of each node that NVME_PATH names, and where pods see theirs."""

UNTRAINED = ("quick-gelu", "clamped-quick-gelu", "other")
"""Activations that the example lacks: of gates, plain torch keeps 5 tensors of quick GELU, 7 clamped; 4 are counted."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """What runtimes, launchers and READMEs are written from."""

    plan: Plan
    cluster: ClusterSpec
    model: ModelSpec
    ranks: tuple[Rank, ...]
    """Every process, in the runtime's rank order."""
    script: tuple[str, ...] = ()
    """A training script of the user's and its arguments; empty for what the runtime starts by itself."""
    library: tuple[str, ...] = ()
    """A library that trains over the runtime and arguments for it; empty for the runtime by itself."""

    def program(self, usual: str, *between: str) -> str:
        """Shell words of what each rank runs: the user's script, or what is usual; then words, then its arguments."""
        own = '"$script"' if self.script else usual
        return " ".join([own, *between, *map(shlex.quote, (self.script or self.library)[1:])])

    @property
    def name(self) -> str:
        """The model's name as Slurm and Kubernetes take it: small letters, digits and dashes."""
        return label(self.model.name, "job")

    @property
    def replaces_activation(self) -> bool:
        """True where the example has another activation than the model file says."""
        return self.model.numerics is not None and self.model.numerics.activation in UNTRAINED

    @cached_property
    def agents(self) -> tuple[Agent, ...]:
        """Runs of consecutive ranks on one node, in rank order; a host may come more than once."""
        return agents(self.ranks)

    @cached_property
    def hosts(self) -> tuple[str, ...]:
        """Every host once, in order of its first rank."""
        return tuple(dict.fromkeys(agent.host for agent in self.agents))

    @cached_property
    def pools(self) -> tuple[PoolSpec, ...]:
        """Used pools, in order of their first rank."""
        known = {pool.name: pool for pool in self.cluster.pools}
        return tuple(known[name] for name in dict.fromkeys(agent.pool for agent in self.agents))

    @cached_property
    def libraries(self) -> dict[str, list[str]]:
        """Used pools whose devices need RCCL, and the others: more than one kind with islands alone."""
        pools: dict[str, list[str]] = {"rccl_pools": [], "nccl_pools": []}
        for pool in self.pools:
            rccl = any(self.cluster.gpus[gpu].library == "RCCL" for gpu in pool.devices)
            pools["rccl_pools" if rccl else "nccl_pools"].append(pool.name)
        return pools

    def hosts_of(self, pool: PoolSpec) -> tuple[str, ...]:
        """Used hosts of a pool, in order of their first rank."""
        return tuple(dict.fromkeys(agent.host for agent in self.agents if agent.pool == pool.name))

    @cached_property
    def network(self) -> JobNetwork:
        """Which network each pool's nodes use."""
        return job_network(self.cluster, self.agents)

    @cached_property
    def islands(self) -> tuple[tuple[Rank, ...], ...]:
        """Ranks that are exact among themselves, in the order of their first ones; one island where all are."""
        if self.plan.sync.exact:
            return (self.ranks,)
        islands: dict[object, list[Rank]] = {}
        for rank in self.ranks:
            nodes = next(pool.hosts for pool in self.cluster.pools if pool.name == rank.pool)
            islands.setdefault(self.plan.sync.island_of(rank.pool, nodes.index(rank.host)), []).append(rank)
        return tuple(tuple(island) for island in islands.values())

    def network_of(self, pool: PoolSpec) -> JobNetwork:
        """What communicators of a used pool see: with islands that of its own, whose RDMA others need not share."""
        if self.plan.sync.exact:
            return self.network
        island = next(ranks for ranks in self.islands if any(rank.pool == pool.name for rank in ranks))
        own = job_network(self.cluster, agents(island))
        return replace(own, nodes=self.network.nodes, sockets=self.network.sockets, alone=own.nodes == 1)

    @property
    def is_on_one_node(self) -> bool:
        """True for a job whose processes meet without a network."""
        return len(self.hosts) == 1

    @property
    def is_on_any_node(self) -> bool:
        """True for a job on one node of an unnamed pool: it runs where it is started."""
        return self.is_on_one_node and is_unnamed(self.pools[0])

    @property
    def stages_first(self) -> bool:
        """True when ranks are numbered stage before replica."""
        stages = [rank.stage for rank in self.ranks]
        return stages != sorted(stages)

    @property
    def placeholders(self) -> tuple[str, ...]:
        """Names that stand for used nodes which the cluster file does not name, in short form: ``fast-[0-3]``."""
        unnamed = filter(is_unnamed, self.cluster.pools)
        used = ([host for host in pool.hosts if host in self.hosts] for pool in unnamed)
        return tuple(name for hosts in used for name in compress_hosts(hosts))


def is_unnamed(pool: PoolSpec) -> bool:
    """True where hosts are called as hetplan calls them itself, after their pool."""
    return pool.hosts == numbered_hosts(pool.name, len(pool.hosts))


def label(text: str, fallback: str) -> str:
    """A text as part of a DNS label of at most 20 characters: a small letter first, then letters, digits, dashes."""
    plain = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
    if not plain or not plain[0].isalpha():
        plain = f"{fallback}-{plain}".rstrip("-")
    return plain[:20].rstrip("-")
