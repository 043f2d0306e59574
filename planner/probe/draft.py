"""The cluster file of what was seen: nodes that look the same become one pool; and what it still lacks."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from textwrap import indent

from planner.cluster.file import problems_of
from planner.errors import Problem
from planner.files.document import Document
from planner.files.nodes import parse
from planner.files.short_lists import compress_devices, compress_hosts
from planner.files.writing import flow
from planner.probe.entries import (
    ASSUMED,
    FABRICS,
    NOT_SEEN,
    DraftEntry,
    DraftType,
    cards_of,
    device_types_of,
    intra_node,
    power_limit,
    remark,
)
from planner.probe.hosts import ListedHost
from planner.probe.node import ProbedNode


@dataclass(slots=True)
class DraftPool:
    """Hosts with the lines that describe each of them."""

    name: str
    device_types: tuple[DraftType, ...]
    entries: tuple[DraftEntry, ...]
    fabrics: frozenset[str]
    products: frozenset[str] = frozenset()
    """Names of its devices as nvidia-smi prints them, in small letters."""
    hosts: list[str] = field(default_factory=list)
    like: str = ""
    """The node that the assumed hosts are taken to look like."""
    assumed: int = 0
    """Hosts that nobody looked at."""

    def lines(self) -> tuple[DraftEntry, ...]:
        """All entries of the pool in the order of docs/formats.md."""
        return (*self._devices(), *self._hosts(), *self.entries)

    def _devices(self) -> tuple[DraftEntry, ...]:
        names = [device_type.name for device_type in self.device_types]
        if not names:
            return ()
        if len(set(names)) > 1:
            return (DraftEntry("devices", flow(list(compress_devices(names)))),)
        return (DraftEntry("gpu", flow(names[0])), DraftEntry("gpus_per_node", str(len(names))))

    def _hosts(self) -> tuple[DraftEntry, ...]:
        if not self.hosts:
            return (DraftEntry("nodes", "1", f"{ASSUMED}no list of hosts was given"),)
        note = (
            f"{ASSUMED}{self.assumed} not looked at are taken to be like {self.like}" if self.assumed else ""
        )
        return (DraftEntry("hosts", flow(list(compress_hosts(self.hosts))), note),)


@dataclass(frozen=True, slots=True)
class Pools:
    """All pools of a draft."""

    pools: tuple[DraftPool, ...]
    remarks: tuple[DraftEntry, ...] = ()
    """Nodes that are in no pool, and why."""


def pools_of(nodes: Sequence[ProbedNode], hosts: Sequence[ListedHost]) -> Pools:
    """Pools of the nodes that were seen and of the hosts that a list has besides."""
    named = [replace(node, host=_listed(node.host, hosts)) for node in nodes]
    names = {node.host for node in named}
    away = {host.name for host in hosts if host.away}
    seen = [node for node in named if node.host not in away]
    listed = [host for host in hosts if host.name not in names | away]
    rest = [host for host in listed if host.gpus != 0]
    bare = compress_hosts(host.name for host in listed if host.gpus == 0)
    useful = [node for node in seen if node.gpus != ()]
    idle = [node for node in seen if node.gpus == ()]
    if not useful and not rest:
        # A draft without pools would have no place to fill in.
        useful, idle = [replace(node, gpus=None) for node in idle], []
    pools = _grouped(useful)
    others: dict[tuple[int | None, str | None], DraftPool] = {}
    for host in rest:
        match = [pool for pool in pools if _fits(host, pool)]
        if len(match) == 1:
            pool = match[0]
            pool.assumed += 1
        else:
            pool = others.setdefault((host.gpus, host.gpu_type), _unseen(host.gpus, host.gpu_type))
        pool.hosts.append(host.name)
    # A node without a name that no listed host looks like is not part of the cluster.
    kept = [*(pool for pool in pools if pool.hosts or not rest), *others.values()]
    _in_order(kept, hosts)
    _rename(kept)
    remarks = [remark(f"left out: {node.host or 'the node that was seen'}, it has no GPU") for node in idle]
    remarks += _contradicted(seen, hosts)
    if bare:
        remarks.append(remark(f"left out: {', '.join(bare)}, no GPU by the list of hosts"))
    if away:
        gone = ", ".join(compress_hosts(host.name for host in hosts if host.away))
        remarks.append(remark(f"left out: {gone}, not up by the list of hosts"))
    return Pools(tuple(kept), tuple(remarks))


def _contradicted(seen: Sequence[ProbedNode], hosts: Sequence[ListedHost]) -> Iterator[DraftEntry]:
    """Nodes that show another number of devices than the list has, as in a job that was given some of them."""
    listed = {host.name: host.gpus for host in hosts}
    unlike: dict[tuple[int, int], list[str]] = {}
    for node in seen:
        said = listed.get(node.host or "")
        shown = None if node.gpus is None else len(device_types_of(node.gpus))
        if node.host and said is not None and shown is not None and said != shown:
            unlike.setdefault((shown, said), []).append(node.host)
    for (shown, said), names in unlike.items():
        who = ", ".join(compress_hosts(names))
        yield remark(f"{who}: {shown} device{'s' * (shown != 1)} in the outputs, {said} in the list of hosts")


def _listed(name: str | None, hosts: Sequence[ListedHost]) -> str | None:
    """A node's name as the list of hosts has it; its own where the list lacks it."""
    if name is None or any(host.name == name for host in hosts):
        return name
    called = [host.name for host in hosts if host.is_called(name)]
    return called[0] if len(called) == 1 else name


def _grouped(nodes: list[ProbedNode]) -> list[DraftPool]:
    pools: dict[object, DraftPool] = {}
    for node in nodes:
        pool = _pool(node)
        known = pools.setdefault((pool.device_types, pool.entries), pool)
        known.like = known.like or node.host or "the node that was seen"
        known.hosts += [node.host] if node.host else []
    return list(pools.values())


def _pool(node: ProbedNode) -> DraftPool:
    cards = cards_of(node.network)
    if node.gpus is None:
        return DraftPool("unseen", (), (*_no_devices(None, None), *cards.entries), cards.fabrics)
    device_types = device_types_of(node.gpus)
    names = {device_type.name for device_type in device_types}
    return DraftPool(
        name=device_types[0].name.lower() if len(names) == 1 else "mixed",
        device_types=device_types,
        entries=(
            *power_limit(node.gpus, device_types),
            *intra_node(node.gpus, device_types, node.topo),
            *cards.entries,
        ),
        fabrics=cards.fabrics,
        products=frozenset(gpu.name.lower() for gpu in node.gpus),
    )


def _unseen(gpus: int | None, gpu_type: str | None) -> DraftPool:
    return DraftPool("unseen", (), (*_no_devices(gpus, gpu_type), *cards_of(None).entries), frozenset())


def _no_devices(gpus: int | None, gpu_type: str | None) -> tuple[DraftEntry, ...]:
    """Lines for nodes whose devices nobody saw."""
    gpu = DraftEntry(
        "gpu", None, f"type of the devices; Slurm calls it {gpu_type}" if gpu_type else "type of the devices"
    )
    count = (
        DraftEntry("gpus_per_node", None, "devices of one node; 1 when absent")
        if gpus is None
        else DraftEntry("gpus_per_node", str(gpus), "as the list of hosts says")
    )
    link = DraftEntry("intra_node", None, "network between the devices of a node, e.g. nvlink3 or pcie4")
    return (gpu, count, link) if gpus != 1 else (gpu, count)


def _fits(host: ListedHost, pool: DraftPool) -> bool:
    """True when the list of hosts does not contradict what was seen."""
    if not pool.device_types:
        return False
    count = host.gpus is None or host.gpus == len(pool.device_types)
    if not count or host.gpu_type is None:
        return count
    # Where Slurm finds the type by itself, it writes underscores for blanks. An a10 is no a100.
    called = re.escape(host.gpu_type.lower().replace("_", " "))
    whole = re.compile(rf"(?<![a-z0-9]){called}(?![a-z0-9])")
    return any(whole.search(product) for product in pool.products)


def _in_order(pools: list[DraftPool], hosts: Sequence[ListedHost]) -> None:
    """Hosts as the list has them, after those that it lacks."""
    order = {host.name: position for position, host in enumerate(hosts)}
    for pool in pools:
        pool.hosts.sort(key=lambda name: order.get(name, -1))


def _rename(pools: list[DraftPool]) -> None:
    """Give each pool a name of its own: the second a100 is a100-2."""
    taken: set[str] = set()
    for pool in pools:
        base, count = pool.name[:90], 1
        while pool.name in taken:
            count += 1
            pool.name = f"{base}-{count}"
        taken.add(pool.name)


_HEAD = f"""\
# Drafted by hetplan probe. Fill in the lines marked "{NOT_SEEN.strip()}", check the values marked "{ASSUMED.strip()}".
"""
_FABRIC_NOTES = {
    "ib": f"{ASSUMED}all InfiniBand cards are on one fabric",
    "roce": f"{ASSUMED}the RDMA cards on Ethernet are set up for RoCE, on one fabric",
    "efa": f"{ASSUMED}all cards of Amazon's EFA are on one fabric",
    "slingshot": f"{ASSUMED}all cards of HPE's Slingshot are on one fabric",
    "eth": f"{ASSUMED}all interfaces reach each other",
}


def draft(nodes: Sequence[ProbedNode], hosts: Sequence[ListedHost], name: str) -> str:
    """The cluster file of these nodes and of the hosts that a list has besides."""
    drafted = pools_of(nodes, hosts)
    lines = [
        f"name: {flow(name)}",
        *_gpus(drafted.pools),
        *(entry.line() for entry in drafted.remarks),
        "pools:",
    ]
    for pool in drafted.pools:
        lines.append(f"  - name: {flow(pool.name)}")
        lines += [_indented(entry) for entry in pool.lines()]
    lines += _fabrics(drafted.pools)
    return _HEAD + "\n".join(lines) + "\n"


def lacking(text: str, file: str) -> tuple[Problem, ...]:
    """What keeps the draft from being a cluster file, with lines and keys; ``file`` is what to call it."""
    return tuple(problems_of(Document(file, parse(text))))


def unseen(text: str) -> tuple[tuple[int, str], ...]:
    """(line, key) of every line of the draft that is left to fill in."""
    marked = ((at, line.partition(f"# {NOT_SEEN}")[2]) for at, line in enumerate(text.splitlines(), start=1))
    return tuple((at, rest.partition(":")[0]) for at, rest in marked if rest)


def assumptions(text: str) -> int:
    """Values of the draft that are assumed."""
    return text.count(f"# {ASSUMED}")


def _gpus(pools: tuple[DraftPool, ...]) -> Iterator[str]:
    """Device types that the catalogue does not have, each once."""
    device_types = {
        device_type.name: device_type
        for pool in pools
        for device_type in pool.device_types
        if device_type.entries
    }
    if device_types:
        yield "gpus:"
    for name, device_type in device_types.items():
        yield f"  {flow(name)}:"
        yield from (_indented(entry) for entry in device_type.entries)


def _fabrics(pools: tuple[DraftPool, ...]) -> Iterator[str]:
    used = [fabric for fabric in FABRICS if any(fabric in pool.fabrics for pool in pools)]
    if used:
        yield "fabrics:"
    for fabric in used:
        value = flow(FABRICS[fabric])
        yield f"  {DraftEntry(fabric, value, _FABRIC_NOTES[fabric]).line()}"


def _indented(entry: DraftEntry) -> str:
    return indent(entry.line(), "    ")
