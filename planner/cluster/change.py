"""A cluster with one change as typed: ``fabrics.lan.latency_us=5``, ``+8 A100-SXM-80GB``, ``-titan``.

A path names what the cluster file has; pools, their cards and links go by name instead of by number. ``links.lan``
stands for all cards on the fabric ``lan``, ``links.a+b`` for the gateway between two fabrics. A device that no pool has
makes a pool of its own: ``+8 H100-SXM``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from difflib import get_close_matches
from itertools import islice
from typing import Any

from planner import catalog
from planner.catalog.node_links import usual_link
from planner.cluster.file import check_cluster
from planner.cluster.spec import ClusterSpec, FabricSpec, PoolSpec
from planner.errors import SpecError, UsageError
from planner.files.document import Document
from planner.files.fields import written
from planner.files.nodes import YamlError, parse
from planner.files.short_lists import compress_hosts, split_times
from planner.files.writing import dump
from planner.ranges import NODE_DEVICES, NODES

_ADDED = re.compile(r"\+\s*(\d{1,9})\s+(.+)")
NODE_SIZE = 8
"""Most devices of a node that a change adds to a pool of its own."""
_NUMBER = re.compile(r"[-+]?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")


def changed(cluster: ClusterSpec, text: str) -> ClusterSpec:
    """The cluster after a change.

    Raises UsageError for one that names nothing, SpecError for what is no cluster then.
    """
    data = written(cluster)
    if added := _ADDED.fullmatch(text):
        _add(data, cluster, int(added[1]), added[2].strip(), text)
    elif text.startswith("-") and "=" not in text:
        name = _known(text[1:].strip(), [pool.name for pool in cluster.pools], "pool", text)
        data["pools"] = [pool for pool in data["pools"] if pool["name"] != name]
    else:
        path, equals, value = text.partition("=")
        if not equals:
            raise UsageError(
                f"--change {text!r}: expected PATH=VALUE, +N DEVICE or -POOL",
                hint="e.g. links.lan.bandwidth_gbps=100",
            )
        _set(data, cluster, path.strip(), value_of(value.strip(), text), text)
    return _checked(data, text)


def without_hosts(cluster: ClusterSpec, names: Sequence[str]) -> ClusterSpec:
    """The cluster without these nodes, and without pools that have no others.

    Raises UsageError with the nearest names for a host that it lacks, and where none is left.
    """
    known = {host: None for pool in cluster.pools for host in pool.hosts}
    for name in names:
        if name not in known:
            near = get_close_matches(name, known, n=3) or list(known)[:5]
            raise UsageError(
                f"--without: the cluster {cluster.name} has no host {name!r}",
                hint=f"there is {', '.join(near)}",
            )
    gone = set(names)
    left = tuple(
        pool.model_copy(update={"hosts": hosts})
        for pool in cluster.pools
        if (hosts := tuple(host for host in pool.hosts if host not in gone))
    )
    if not left:
        raise UsageError("--without: leaves no host to train on", hint="keep one host at least")
    used = {gpu for pool in left for gpu in pool.devices}
    gpus = {name: gpu for name, gpu in cluster.gpus.items() if name in used}
    return cluster.model_copy(update={"pools": left, "gpus": gpus})


def value_of(text: str, change: str) -> Any:
    """The value of a change as YAML would read it; raises UsageError for lists and mappings that do not end."""
    if text[:1] in ("[", "{"):
        try:
            return parse(text).data
        except YamlError as error:
            raise UsageError(f"--change {change!r}: {error.what}") from None
    if _NUMBER.fullmatch(text):
        return int(text) if text.lstrip("+-").isdecimal() and len(text) < 19 else float(text)
    return {"true": True, "false": False, "null": None}.get(text, text)


def _checked(data: dict[str, Any], text: str) -> ClusterSpec:
    for pool in data["pools"]:
        _name_devices(pool["devices"], data["gpus"], text)
    used = {split_times(device)[1] for pool in data["pools"] for device in _names(pool["devices"])}
    data["gpus"] = {name: gpu for name, gpu in data["gpus"].items() if name in used} or data["gpus"]
    document = Document(f"--change {text!r}", parse(dump(data)))
    problems = document.problems(ClusterSpec) or check_cluster(document, whole=True)
    if problems:
        raise SpecError(tuple(replace(problem, line=None) for problem in problems))
    return document.to(ClusterSpec)


def _name_devices(devices: Any, gpus: dict[str, Any], text: str) -> None:
    """What a change takes from the catalogue becomes a type of the cluster."""
    for position, device in enumerate(devices if isinstance(devices, list) else []):
        name = split_times(device)[1] if isinstance(device, str) else ""
        if name and name not in gpus:
            known = _known(
                _device(name), [*gpus, *catalog.gpu_names()], "device", text, catalog.gpus_like(name)
            )
            devices[position] = device.removesuffix(name) + known
            gpus.setdefault(known, written(catalog.gpu_spec(known)) | {"name": known})


def _names(devices: object) -> list[str]:
    """The devices that have names; the check says what is wrong with others."""
    return [device for device in devices if isinstance(device, str)] if isinstance(devices, list) else []


def _add(data: dict[str, Any], cluster: ClusterSpec, count: int, name: str, text: str) -> None:
    """More nodes of the pool of this name, or of the one pool that has this device; else a pool of new nodes."""
    device = _device(name)
    pool = _pool_with(cluster, name, device, text)
    if pool is None:
        _add_pool(data, cluster, count, device, text)
        return
    per_node = pool.devices.count(name) or pool.devices.count(device) or len(pool.devices)
    nodes, rest = divmod(count, per_node)
    if rest or not nodes or not NODES.holds(len(pool.hosts) + nodes):
        raise UsageError(
            f"--change {text!r}: expected a multiple of {per_node}, as a node of {pool.name} has them"
        )
    more = _fresh_hosts(cluster, f"{pool.name}-more", nodes)
    _pools(data)[pool.name]["hosts"] = list(compress_hosts((*pool.hosts, *more)))


def _fresh_hosts(cluster: ClusterSpec, name: str, nodes: int) -> tuple[str, ...]:
    """Names with numbers that no host of the cluster has, for so many new nodes."""
    taken = {host for each in cluster.pools for host in each.hosts}
    fresh = (f"{name}-{number}" for number in range(len(taken) + nodes))
    return tuple(islice((host for host in fresh if host not in taken), nodes))


def _add_pool(data: dict[str, Any], cluster: ClusterSpec, count: int, device: str, text: str) -> None:
    """Nodes of up to eight devices, joined as they usually are, on the network of the pool with the fastest cards."""
    per_node = min(count, NODE_SIZE)
    nodes, rest = divmod(count, per_node or 1)
    if rest or not NODES.holds(nodes):
        raise UsageError(
            f"--change {text!r}: expected up to {NODE_SIZE} devices, or a multiple of it: whole nodes"
        )
    model = max(cluster.pools, key=lambda pool: sum(nic.bandwidth_gbps * nic.count for nic in pool.nics))
    if not model.nics:
        raise UsageError(
            f"--change {text!r}: no pool has a network that new nodes could join",
            hint="give a pool nics, or write the new pool into the file",
        )
    pool: dict[str, Any] = {"name": device.lower(), "devices": [f"{per_node} x {device}"]}
    pool["hosts"] = list(compress_hosts(_fresh_hosts(cluster, device.lower(), nodes)))
    pool["intra_node"] = written(catalog.link_spec(usual_link(device)))
    keys = ("fabric", "bandwidth_gbps", "count")
    pool["nics"] = [{key: nic[key] for key in keys} for nic in _pools(data)[model.name]["nics"]]
    data["pools"].append(pool)
    data["gpus"][device] = written(catalog.gpu_spec(device)) | {"name": device}


def _device(name: str) -> str:
    """The name that the catalogue has for the device, or the name itself."""
    try:
        return catalog.gpu(name).name
    except KeyError:
        return name


def _pool_with(cluster: ClusterSpec, name: str, device: str, text: str) -> PoolSpec | None:
    """The pool of this name, or the only one with this device; None for a device of the catalogue that none has."""
    pools = {pool.name: pool for pool in cluster.pools}
    if name in pools:
        return pools[name]
    having = [pool for pool in cluster.pools if {name, device} & {*pool.devices}]
    if len(having) == 1:
        return having[0]
    if having:
        names = ", ".join(pool.name for pool in having)
        raise UsageError(f"--change {text!r}: {name} is in several pools", hint=f"name one of them: {names}")
    if device in catalog.gpu_names():
        return None
    devices = [each for pool in cluster.pools for each in pool.devices]
    _known(name, [*pools, *devices], "pool or device", text, catalog.gpus_like(name))
    raise AssertionError("a name that is known is a pool or in one")


def _starts(names: Iterable[str], path: str) -> list[str]:
    """The names that a path may begin with."""
    return [name for name in names if path == name or path.startswith(f"{name}.")]


def _known(name: str, names: Iterable[str], what: str, text: str, like: Sequence[str] = ()) -> str:
    """The name; raises UsageError with those that are like it, or the nearest ones, where there is none."""
    known = list(dict.fromkeys(names))
    if name in known:
        return name
    near = like or get_close_matches(name, known, n=3) or known[:7]
    raise UsageError(f"--change {text!r}: no {what} {name!r}", hint=f"there is {', '.join(near) or 'none'}")


def _pools(data: dict[str, Any]) -> dict[str, Any]:
    return {pool["name"]: pool for pool in data["pools"]}


def _set(data: dict[str, Any], cluster: ClusterSpec, path: str, value: Any, text: str) -> None:
    top, _, rest = path.partition(".")
    places: dict[str, dict[str, Any]] = {
        "pools": _pools(data),
        "fabrics": data["fabrics"],
        "gpus": data["gpus"],
        "links": {"+".join(link["between"]): link for link in data["links"]} | data["fabrics"],
    }
    if path in ("reserve_gib", "safe"):
        data[path] = value
        return
    within = [f"{place}.{path}" for place, names in places.items() if _starts(names, path)]
    _known(top, [*places, "reserve_gib", "safe", "training"], "key", text, within)
    if not rest:
        what = f"--change {text!r}: expected a name and a key behind {top}, as in {top}.NAME.KEY=VALUE"
        raise UsageError(what, hint=f"there is {', '.join(list(places[top])[:7]) or 'none'}")
    name, rest = _first(places[top], rest, top, text)
    if top in ("links", "fabrics") and name in data["fabrics"] and rest == "bandwidth_gbps":
        for pool in data["pools"]:
            for nic in pool.get("nics", ()):
                if nic["fabric"] == name:
                    nic["bandwidth_gbps"] = value
        return
    place = places[top][name]
    if top == "pools" and rest == "nodes":
        _resize(place, cluster, name, value, text)
        return
    if top == "pools" and rest in ("gpu", "gpus_per_node"):
        _refit(place, cluster, name, rest, value, text)
        return
    if top == "pools" and rest == "intra_node" and isinstance(value, str):
        place[rest] = written(catalog.link_spec(_known(value, catalog.link_names(), "link", text)))
        return
    while "." in rest:
        key, rest = _first(place, rest, top, text)
        inner = place[key]
        if key == "nics":
            inner = {nic["fabric"]: nic for nic in inner}
            if not _starts(inner, rest) or rest in inner:
                what = f"--change {text!r}: expected a fabric and a key behind nics, as in nics.FABRIC.bandwidth_gbps"
                raise UsageError(what, hint=f"there is {', '.join(inner) or 'none'}")
        if not isinstance(inner, dict):
            raise UsageError(f"--change {text!r}: {key} is a value and has no {rest}")
        place = inner
    if rest and place is data["fabrics"].get(name):
        _known(rest, ["bandwidth_gbps", *FabricSpec.model_fields], "key", text)
    if not rest:
        raise UsageError(f"--change {text!r}: expected a key of {name}", hint=f"there is {', '.join(place)}")
    place[rest] = value


def _first(place: dict[str, Any], path: str, what: str, text: str) -> tuple[str, str]:
    """The name that a path begins with, which may have dots, and the rest of the path."""
    if fitting := _starts(place, path):
        name = max(fitting, key=len)
        return name, path[len(name) + 1 :]
    return _known(path.partition(".")[0], place, f"name in {what}", text), ""


def _refit(place: dict[str, Any], cluster: ClusterSpec, name: str, key: str, value: Any, text: str) -> None:
    """Nodes of as many devices of another type, or of more or fewer of their one type."""
    devices = next(pool for pool in cluster.pools if pool.name == name).devices
    if key == "gpu":
        if not isinstance(value, str | int):  # 4090 is a name
            raise UsageError(f"--change {text!r}: expected the name of a device, got {value!r}")
        place["devices"] = [f"{len(devices)} x {value}"]
        return
    if not isinstance(value, int) or not NODE_DEVICES.holds(value):
        raise UsageError(f"--change {text!r}: expected a whole number of devices, got {value!r}")
    if len({*devices}) > 1:
        what = f"--change {text!r}: nodes of {name} have several types of devices"
        raise UsageError(what, hint=f"write them all, as in pools.{name}.devices=[2 x {devices[0]}]")
    place["devices"] = [f"{value} x {devices[0]}"]


def _resize(place: dict[str, Any], cluster: ClusterSpec, name: str, value: Any, text: str) -> None:
    """So many nodes: the first of them, or more."""
    pool = next(pool for pool in cluster.pools if pool.name == name)
    if not isinstance(value, int) or not NODES.holds(value):
        raise UsageError(f"--change {text!r}: expected a whole number of nodes, got {value!r}")
    hosts = (*pool.hosts, *_fresh_hosts(cluster, f"{name}-more", value))
    place["hosts"] = list(compress_hosts(hosts[:value]))
