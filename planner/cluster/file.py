"""The cluster file: what a user writes, what must hold between its parts, and how it becomes a ClusterSpec.

The checks read the plain data of the file and skip whatever has the wrong shape, so that they find their problems
beside those of the types.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, get_args

from pydantic import Discriminator, Field, Tag

from planner import catalog
from planner.catalog import GpuSpec, IntraNodeSpec
from planner.cluster.spec import ClusterSpec, FabricKind, FabricLinkSpec, FabricSpec, Pool, PoolSpec
from planner.errors import KeyPath, Problem
from planner.files.document import Document, devices_per_node, fail_on, keys_of, mappings, pools_of, read_as
from planner.files.fields import (
    Chance,
    Frozen,
    Name,
    NodeDevices,
    Nodes,
    Rate,
    ReserveGib,
)
from planner.files.messages import MOST_MESSAGES, nearest, shown
from planner.files.short_lists import MOST_HOSTS, expand_hosts, numbered_hosts, split_times
from planner.ranges import DEVICES, NODE_DEVICES, NODES

_INLINE = "write its numbers: {memory_gib: 24, memory_bandwidth_gBps: 600, tflops: {fp16: 100}}"


def unknown_gpus(document: Document) -> Iterator[Problem]:
    """Every name of a device must be known."""
    own = keys_of(document.data.get("gpus"))
    for index, pool in pools_of(document):
        if isinstance(pool.get("gpu"), str):
            yield from _gpu(document, ("pools", index, "gpu"), pool["gpu"], own)
        devices = pool.get("devices")
        for position, device in enumerate(devices if isinstance(devices, list) else []):
            if isinstance(device, str):
                yield from _gpu(document, ("pools", index, "devices", position), split_times(device)[1], own)


def _gpu(document: Document, path: KeyPath, name: str, own: list[str]) -> Iterator[Problem]:
    try:
        known = name in own or bool(catalog.gpu(name))
    except KeyError:
        known = False
    alike = [each for each in own if catalog.name_of(each) == catalog.name_of(name)]
    if known and alike and name not in own:
        what = f'"{name}" is the catalogue\'s device, and not {shown(alike[0])} of gpus'
        yield document.problem(path, what, "write the same name in both places")
    if not known:
        family = catalog.gpus_like(name)
        what = (
            f'"{name}" may be any of: {", ".join(family)}'
            if len(family) > 1
            else f'no GPU is known as "{name}"'
        )
        kind = catalog.without_target(name)
        if kind:
            what += f": no target runs on {kind}"
        near = "write one of them" if len(family) > 1 else None if kind else _near_gpus(name, own)
        if near:
            hint = f"{near}, or {_INLINE}"
        else:
            hint = f"to compare plans alone, {_INLINE}" if kind else f"hetplan gpus lists all; or {_INLINE}"
        yield document.problem(path, what, hint)


def one_library(document: Document) -> Iterator[Problem]:
    """Devices of one node must be able to be in one communicator."""
    types = document.data.get("gpus")
    own = types if isinstance(types, dict) else {}
    for index, pool in pools_of(document):
        devices = pool.get("devices")
        seen: dict[str, object] = {}
        for position, device in enumerate(devices if isinstance(devices, list) else []):
            library = _library(device, own)
            if library:
                seen.setdefault(library, device)
            if len(seen) > 1:
                (one, first), (other, last) = seen.items()
                what = f"{shown(first)} needs {one} and {shown(last)} {other}: no communicator holds both"
                hint = "leave the devices of one vendor out"
                yield document.problem(("pools", index, "devices", position), what, hint)
                break


def _library(device: object, own: dict[str, Any]) -> str:
    """Collective library of a written device; empty when nothing tells it."""
    name = split_times(device)[1] if isinstance(device, str) else ""
    numbers = own.get(name, name) if isinstance(device, str) else device
    try:
        if isinstance(numbers, str):
            return catalog.gpu(numbers).library
        keys = ("vendor", "compute_capability")
        given = {key: numbers.get(key) for key in keys} if isinstance(numbers, dict) else {}
        vendor = given.get("vendor") or ("nvidia" if given.get("compute_capability") is not None else "")
        return catalog.LIBRARIES.get(vendor, "")  # type: ignore[arg-type]
    except (KeyError, TypeError):
        return ""


def own_names(document: Document) -> Iterator[Problem]:
    """Each of ``gpus`` stands under its own name."""
    own = document.data.get("gpus")
    for name, gpu in own.items() if isinstance(own, dict) else ():
        if isinstance(gpu, dict) and isinstance(gpu.get("name"), str) and gpu["name"] != name:
            yield document.problem(("gpus", name, "name"), f"expected {name}, got {shown(gpu['name'])}")


def whole_gpus(document: Document) -> Iterator[Problem]:
    """Every device of a pool must be one of ``gpus``."""
    own = document.data.get("gpus")
    types = own if isinstance(own, dict) else {}
    for index, pool in pools_of(document):
        devices = pool.get("devices")
        for position, device in enumerate(devices if isinstance(devices, list) else []):
            if isinstance(device, str) and split_times(device)[1] not in types:
                path = ("pools", index, "devices", position)
                yield document.problem(path, f"expected a device of gpus, got {shown(device)}")


def ambiguous_gpus(document: Document) -> Iterator[Problem]:
    """One name must not stand for two sets of numbers."""
    seen: dict[str, tuple[KeyPath, object]] = {}
    own = document.data.get("gpus")
    for path, gpu, default_name in _written_gpus(document):
        name, numbers = _identity(gpu, default_name, own if isinstance(own, dict) else {})
        first, other = seen.setdefault(name, (path, numbers))
        if other != numbers:
            what = f'other numbers for "{name}" are on line {document.line(first)}'
            yield document.problem(path, what, "give it another name")


def _written_gpus(document: Document) -> Iterator[tuple[KeyPath, object, str]]:
    for index, pool in pools_of(document):
        if "gpu" in pool:
            yield ("pools", index, "gpu"), pool["gpu"], f"{pool.get('name')}-gpu"
        devices = pool.get("devices")
        for position, device in enumerate(devices if isinstance(devices, list) else []):
            yield ("pools", index, "devices", position), device, f"{pool.get('name')}-gpu{position}"


def _identity(gpu: object, default_name: str, own: dict[str, Any]) -> tuple[str, object]:
    """The name that a device gets, and what its numbers are, for comparison only."""
    if isinstance(gpu, dict):
        numbers = {key: value for key, value in gpu.items() if key not in ("name", "source")}
        return str(gpu.get("name", default_name)), numbers
    name = split_times(gpu)[1] if isinstance(gpu, str) else str(gpu)
    try:
        return (name, "ours") if name in own else (catalog.gpu(name).name, "catalogue")
    except KeyError:
        return name, None


def _near_gpus(name: str, own: list[str]) -> str | None:
    near = nearest(name, [*own, *catalog.gpu_names()])
    return near.rstrip("?") if near else None


def intra_nodes(document: Document) -> Iterator[Problem]:
    """Nodes of several devices need a network between them."""
    for index, pool in pools_of(document):
        given = pool.get("intra_node")
        path = ("pools", index, "intra_node")
        if isinstance(given, str):
            try:
                catalog.link(given)
            except KeyError:
                known = ", ".join(catalog.link_names())
                hint = f"known: {known}; or write {{bandwidth_gBps: 300, latency_us: 3}}"
                yield document.problem(
                    path, f'no link is known as "{given}"', nearest(given, list(catalog.link_names())) or hint
                )
        elif given is None and devices_per_node(pool) > 1:
            hint = "write for example intra_node: nvlink3, or {bandwidth_gBps: 300, latency_us: 3}"
            yield document.problem(path, f"missing, the nodes have {devices_per_node(pool)} devices", hint)
        elif isinstance(given, dict) and given.get("shared_by") is not None and not given.get("shared"):
            hint = "add shared: true, or leave shared_by out"
            yield document.problem((*path, "shared_by"), "nothing is shared, expected none", hint)


def _power_limits(document: Document) -> Iterator[Problem]:
    """What a limit leaves of a clock is told by the board power."""
    own = document.data.get("gpus")
    types = own if isinstance(own, dict) else {}
    hint = "write the board power, for example tdp_watts: 400"
    written: list[tuple[KeyPath, object]] = [(("gpus", name), gpu) for name, gpu in types.items()]
    written += [(path, gpu) for path, gpu, _ in _written_gpus(document)]
    for path, gpu in written:
        if isinstance(gpu, dict) and gpu.get("power_limit_watts") and not gpu.get("tdp_watts"):
            yield document.problem((*path, "tdp_watts"), "missing, power_limit_watts is a part of it", hint)
    for index, pool in pools_of(document):
        if not pool.get("power_limit_watts"):
            continue
        devices = [gpu for path, gpu, _ in _written_gpus(document) if path[1] == index]
        if any(not _board_power(gpu, types) for gpu in devices):
            what = "the board power of a device is unknown, of which the limit is a part"
            yield document.problem(("pools", index, "power_limit_watts"), what, hint)


def _vendors(document: Document) -> Iterator[Problem]:
    """Compute capabilities are NVIDIA's."""
    own = document.data.get("gpus")
    written: list[tuple[KeyPath, object]] = [
        (("gpus", name), gpu) for name, gpu in (own.items() if isinstance(own, dict) else ())
    ]
    written += [(path, gpu) for path, gpu, _ in _written_gpus(document)]
    for path, gpu in written:
        if not isinstance(gpu, dict) or gpu.get("compute_capability") is None:
            continue
        if gpu.get("vendor") in {*catalog.LIBRARIES} - {"nvidia"}:
            what = f"belongs to NVIDIA's devices, not to vendor {gpu['vendor']}"
            yield document.problem((*path, "compute_capability"), what, "remove one of the two")


def _board_power(gpu: object, types: Mapping[str, object]) -> object:
    """The board power that is written for a device, or the catalogue's."""
    if isinstance(gpu, str):
        name = split_times(gpu)[1]
        if name not in types:
            try:
                return catalog.gpu(name).tdp_watts
            except KeyError:
                return True  # said elsewhere
        gpu = types[name]
    return gpu.get("tdp_watts") if isinstance(gpu, dict) else True


_PROVIDED = {"azure": "infiniband", "efa": "roce", "slingshot": "roce", "tcpx": "roce", "tcpxo": "roce"}
"""What kind of fabric a provider's network is given as."""


def _providers(document: Document) -> Iterator[Problem]:
    fabrics = document.data.get("fabrics")
    for name, fabric in fabrics.items() if isinstance(fabrics, dict) else ():
        if not isinstance(fabric, dict):
            continue
        wanted = _PROVIDED.get(str(fabric.get("provider")))
        if wanted is not None and fabric.get("kind") in {*get_args(FabricKind)} - {wanted}:
            what = f"expected {wanted} with provider {fabric['provider']}, got {fabric['kind']}"
            yield document.problem(("fabrics", name, "kind"), what)


def _switches(document: Document) -> Iterator[Problem]:
    """NVLink between nodes joins their devices: it has no cards that are named, and no gateways."""
    fabrics = document.data.get("fabrics")
    names = [
        name
        for name, fabric in (fabrics.items() if isinstance(fabrics, dict) else ())
        if isinstance(fabric, dict) and fabric.get("kind") == "nvlink"
    ]
    for index, pool in pools_of(document):
        for position, nic in mappings(pool.get("nics")):
            for key in ("interface", "hca"):
                if nic.get("fabric") in names and nic.get(key) is not None:
                    what = f"{nic['fabric']} is NVLink, whose links have no {key}"
                    hint = "give the cards of Ethernet or RDMA entries of their own"
                    yield document.problem(("pools", index, "nics", position, key), what, hint)
    for index, link in mappings(document.data.get("links")):
        ends = link.get("between")
        inside = [end for end in ends if end in names] if isinstance(ends, list) else []
        if inside:
            what = f"{inside[0]} is NVLink, which no gateway joins to another fabric"
            hint = "between racks, give the nodes cards on a fabric of Ethernet or RDMA"
            yield document.problem(("links", index, "between"), what, hint)


MOST_POOLS = 1000
"""Pools of one cluster."""


def check_cluster(document: Document, *, whole: bool = False, connected: bool = True) -> list[Problem]:
    """Every broken rule of the cluster, connectivity only when nothing else is wrong.

    A ``whole`` cluster, as plan files hold it, names no device of the catalogue: its ``gpus`` are all there is. One
    that need not be ``connected`` may have pools of which no two can communicate.
    """
    names = (whole_gpus,) if whole else (unknown_gpus, ambiguous_gpus)
    named = _pool_names, _choices, _hosts, own_names, *names
    checks = (*named, _power_limits, _vendors, one_library, intra_nodes, _nics, _providers, _links, _switches)
    if sum(1 for _ in pools_of(document)) > MOST_POOLS:
        return []
    too_large = _size(document)
    if too_large:
        return too_large
    problems = [problem for check in checks for problem in islice(check(document), MOST_MESSAGES)]
    return problems or (list(_connected(document)) if connected else [])


def _size(document: Document) -> list[Problem]:
    """Nodes or devices in a number that nothing else looks at: they are counted before their names are made."""
    nodes = devices = 0
    for index, pool in pools_of(document):
        here, each = _node_count(pool), devices_per_node(pool)
        if each > NODE_DEVICES.most and isinstance(pool.get("devices"), list):
            what = f"expected at most {NODE_DEVICES.most} devices in a node, got {each}"
            return [document.problem(("pools", index, "devices"), what)]
        if not NODES.holds(here) or not NODE_DEVICES.holds(each):
            continue  # a number out of its own range
        nodes, devices = nodes + here, devices + here * each
        for number, most, kind in ((nodes, NODES.most, "nodes"), (devices, DEVICES.most, "devices")):
            if number > most:
                what = f"expected at most {most} {kind} up to this pool, got {number}"
                return [document.problem(("pools", index), what)]
    return []


def _pool_names(document: Document) -> Iterator[Problem]:
    seen: dict[object, int] = {}
    for index, pool in pools_of(document):
        name = pool.get("name")
        if not isinstance(name, str):
            continue
        if name in seen:
            line = document.line(("pools", seen[name], "name"))
            yield document.problem(
                ("pools", index, "name"),
                f'the pool "{name}" is already on line {line}',
                "give it another name",
            )
        seen.setdefault(name, index)


def _choices(document: Document) -> Iterator[Problem]:
    for index, pool in pools_of(document):
        for one, other, hint in (
            (
                "gpu",
                "devices",
                "write gpu and gpus_per_node for nodes of one device type, devices for mixed nodes",
            ),
            ("nodes", "hosts", "write nodes: 4, or hosts: [name-01, name-02]"),
        ):
            given = [key for key in (one, other) if pool.get(key) is not None]
            if len(given) != 1:
                what = "both are given" if given else "one is missing"
                yield document.problem(("pools", index), f"expected either {one} or {other}, {what}", hint)
        if pool.get("devices") is not None and pool.get("gpus_per_node") is not None:
            yield document.problem(
                ("pools", index, "gpus_per_node"), "belongs to gpu, not to devices", "remove it"
            )


def _hosts(document: Document) -> Iterator[Problem]:
    seen: dict[str, KeyPath] = {}
    for index, pool in pools_of(document):
        for name in _numbered(pool):
            if name in seen:
                yield _taken(document, ("pools", index, "nodes"), name, seen[name])
                break
        seen.update(dict.fromkeys(_numbered(pool), ("pools", index, "nodes")))
        hosts = pool.get("hosts")
        for position, pattern in enumerate(hosts if isinstance(hosts, list) else []):
            if isinstance(pattern, str):
                yield from _host_entry(document, ("pools", index, "hosts", position), pattern, seen)


def _numbered(pool: dict[str, Any]) -> tuple[str, ...]:
    name, nodes = pool.get("name"), pool.get("nodes")
    if not isinstance(name, str) or not isinstance(nodes, int) or "hosts" in pool:
        return ()
    return numbered_hosts(name, nodes) if 0 < nodes <= MOST_HOSTS else ()


def _host_entry(
    document: Document, path: KeyPath, pattern: str, seen: dict[str, KeyPath]
) -> Iterator[Problem]:
    try:
        names = expand_hosts([pattern])
    except ValueError as error:
        yield document.problem(path, str(error))
        return
    again = next((name for name in names if name in seen), None)
    if again is not None:
        yield _taken(document, path, again, seen[again])
    elif len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        yield document.problem(path, f'the host "{twice}" is listed twice')
    for name in names:
        seen.setdefault(name, path)


def _taken(document: Document, path: KeyPath, name: str, other: KeyPath) -> Problem:
    how = "a name that nodes: gives" if other[-1] == "nodes" else "already listed"
    return document.problem(path, f'the host "{name}" is {how} on line {document.line(other)}')


def _nics(document: Document) -> Iterator[Problem]:
    fabrics = dict.fromkeys(keys_of(document.data.get("fabrics")))
    for index, pool in pools_of(document):
        nics = list(mappings(pool.get("nics")))
        for position, nic in nics:
            path: KeyPath = ("pools", index, "nics", position)
            yield from _fabric(document, (*path, "fabric"), nic.get("fabric"), fabrics)
            for key in ("interface", "hca"):
                yield from _card_names(document, (*path, key), nic.get(key), nic.get("count", 1))
        if not nics and pool.get("nics", []) in (None, []) and _node_count(pool) > 1:
            hint = "write for example nics: [{fabric: ib, bandwidth_gbps: 200}]"
            yield document.problem(
                ("pools", index, "nics"), f"missing, the pool has {_node_count(pool)} nodes", hint
            )


_CARD = re.compile(r"[A-Za-z0-9][^\s,]*")


def _card_names(document: Document, path: KeyPath, written: object, count: object) -> Iterator[Problem]:
    """NCCL takes blanks for letters of a name; more names than cards would be cards that no price knows."""
    if not isinstance(written, str):
        return
    names = [name.strip() for name in written.split(",")]
    odd = next((name for name in names if not _CARD.fullmatch(name)), None)
    twice = next((name for name in names if names.count(name) > 1), None)
    if odd is not None:
        what = f"expected names of cards with commas between them, got {shown(written)}"
        yield document.problem(path, what, "write for example mlx5_0,mlx5_1")
    elif twice is not None:
        yield document.problem(path, f'the card "{twice}" is named twice', "remove one of the two")
    elif isinstance(count, int) and len(names) > max(count, 1):
        what = f"expected at most {max(count, 1)} name{'s' * (count > 1)} as count says, got {len(names)}"
        yield document.problem(path, what, f"write count: {len(names)}, with the bandwidth of one card")


def _node_count(pool: dict[str, Any]) -> int:
    nodes, hosts = pool.get("nodes"), pool.get("hosts")
    if not isinstance(hosts, list):
        return nodes if isinstance(nodes, int) else 1
    try:
        return len(expand_hosts([host for host in hosts if isinstance(host, str)]))
    except ValueError:
        return 1


def _fabric(document: Document, path: KeyPath, name: object, fabrics: dict[str, None]) -> Iterator[Problem]:
    if isinstance(name, str) and name not in fabrics:
        hint = nearest(name, list(fabrics)) or f"add it to fabrics: {name}: {{kind: infiniband}}"
        yield document.problem(path, f'the fabric "{name}" is not defined under fabrics', hint)


def _links(document: Document) -> Iterator[Problem]:
    fabrics = dict.fromkeys(keys_of(document.data.get("fabrics")))
    for index, link in mappings(document.data.get("links")):
        ends = link.get("between")
        if not isinstance(ends, list):
            continue
        for position, end in enumerate(ends):
            yield from _fabric(document, ("links", index, "between", position), end, fabrics)
        if len(ends) == 2 and ends[0] == ends[1]:
            yield document.problem(("links", index, "between"), "expected two different fabrics")


def _connected(document: Document) -> Iterator[Problem]:
    """Two pools at least must be able to talk when there are several."""
    pools = list(pools_of(document))
    island = _islands(document)
    homes = [_home(pool, island) for _, pool in pools]
    pairs = ((one, other) for at, one in enumerate(homes) for other in homes[at + 1 :])
    if len(pools) > 1 and not any(one & other for one, other in pairs):
        names = ", ".join(str(pool.get("name")) for _, pool in pools)
        link = "links: [{between: [a, b], bandwidth_gbps: 25, latency_us: 50}]"
        hint = f"give them NICs on a common fabric, or join their fabrics: {link}"
        yield document.problem(
            ("pools",), f"no two of the pools {names} share a fabric or a chain of links", hint
        )


def _home(pool: dict[str, Any], island: dict[str, str]) -> set[str]:
    fabrics = (nic.get("fabric") for _, nic in mappings(pool.get("nics")))
    return {island[fabric] for fabric in fabrics if isinstance(fabric, str) and fabric in island}


def _islands(document: Document) -> dict[str, str]:
    """Fabric -> a name common to all fabrics that links join with it."""
    island = {name: name for name in keys_of(document.data.get("fabrics"))}
    members = {name: [name] for name in island}
    for _, link in mappings(document.data.get("links")):
        ends = link.get("between")
        known = (
            [end for end in ends if isinstance(end, str) and end in island] if isinstance(ends, list) else []
        )
        if len(known) == 2 and island[known[0]] != island[known[1]]:
            keep, drop = sorted((island[end] for end in known), key=lambda name: -len(members[name]))
            island.update(dict.fromkeys(members[drop], keep))
            members[keep] += members.pop(drop)
    return island


UNUSED_LINK = IntraNodeSpec(bandwidth_gBps=15.75, latency_us=5.7, shared=True)
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
    Annotated[str, Tag("<name>")] | Annotated[IntraNodeSpec, Tag("<inline>")],
    Discriminator(lambda value: "<name>" if isinstance(value, str) else "<inline>"),
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


def problems_of(document: Document, *, connected: bool = True) -> list[Problem]:
    """Everything that keeps the document from being a cluster file, or one that need not be ``connected``."""
    counted = [*_counted_devices(document)]
    inside = tuple(f"{problem.key}." for problem in counted)
    others = [problem for problem in document.problems(ClusterFile) if not problem.key.startswith(inside)]
    return [*counted, *others, *check_cluster(document, connected=connected)]


def _counted_devices(document: Document) -> Iterator[Problem]:
    """Devices of a mixed node by name and number, as nodes of one type have them: ``{gpu: A100, count: 2}``."""
    for index, pool in pools_of(document):
        devices = pool.get("devices")
        for position, device in enumerate(devices if isinstance(devices, list) else []):
            if not isinstance(device, dict) or not {"gpu", "count"} & device.keys():
                continue
            name, number = device.get("gpu", device.get("name")), device.get("count", 1)
            if isinstance(name, str) and isinstance(number, int):
                what = f"expected a device by its name or its numbers, got {shown(device)}"
                path = ("pools", index, "devices", position)
                yield document.problem(path, what, f"write {number} x {name}")


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
    return pool.intra_node or UNUSED_LINK
