"""Cluster files changed: what says the same in other words, and what is better hardware."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable

from planner import catalog
from planner.cluster.spec import FABRIC_LATENCY_US
from tests.fuzz.worlds import Yaml

Change = Callable[[random.Random, Yaml], Yaml | None]
"""The changed cluster file; None where there is nothing to change."""


# ---------------------------------------------------------------- the same cluster


def renamed(rng: random.Random, cluster: Yaml) -> Yaml:
    """Other names of pools, fabrics and devices of its own, in another order of the alphabet."""
    found = copy.deepcopy(cluster)
    pools, fabrics = _fresh(rng, [pool["name"] for pool in found["pools"]]), _fresh(rng, found["fabrics"])
    cards = _fresh(rng, found["gpus"])
    found["gpus"] = {cards[name]: card for name, card in found["gpus"].items()}
    found["fabrics"] = {fabrics[name]: fabric for name, fabric in found["fabrics"].items()}
    for pool in found["pools"]:
        pool["name"] = pools[pool["name"]]
        for nic in pool["nics"]:
            nic["fabric"] = fabrics[nic["fabric"]]
        if "gpu" in pool:
            pool["gpu"] = cards.get(pool["gpu"], pool["gpu"])
        else:
            pairs = (entry.split(" x ") for entry in pool["devices"])
            pool["devices"] = [f"{count} x {cards.get(name, name)}" for count, name in pairs]
    for link in found["links"]:
        link["between"] = [fabrics[name] for name in link["between"]]
    return found


def _fresh(rng: random.Random, names: Yaml | list[str]) -> dict[str, str]:
    numbers = rng.sample(range(100, 1000), len(names))
    return {name: f"n{number}" for name, number in zip(names, numbers, strict=True)}


def reordered(rng: random.Random, cluster: Yaml) -> Yaml:
    """Every list whose order says nothing in another order."""
    found = copy.deepcopy(cluster)
    rng.shuffle(found["pools"])
    rng.shuffle(found["links"])
    for pool in found["pools"]:
        rng.shuffle(pool["nics"])
    for link in found["links"]:
        link["between"].reverse()
    found["fabrics"] = dict(rng.sample(sorted(found["fabrics"].items()), len(found["fabrics"])))
    return found


def split(rng: random.Random, cluster: Yaml) -> Yaml | None:
    """One pool written as two or more with equal numbers of nodes."""
    wide = [index for index, pool in enumerate(cluster["pools"]) if pool["nodes"] > 1]
    if not wide:
        return None
    found = copy.deepcopy(cluster)
    index = rng.choice(wide)
    pool = found["pools"][index]
    nodes = pool["nodes"]
    parts = rng.choice([number for number in range(2, nodes + 1) if nodes % number == 0])
    found["pools"][index : index + 1] = [
        {**copy.deepcopy(pool), "name": f"{pool['name']}-{part}", "nodes": nodes // parts}
        for part in range(parts)
    ]
    return found


def merged(rng: random.Random, cluster: Yaml) -> Yaml | None:
    """Pools that differ in their names only written as one."""
    found: list[Yaml] = []
    for pool in copy.deepcopy(cluster["pools"]):
        twin = next((other for other in found if _unlike_itself(other) == _unlike_itself(pool)), None)
        if twin is None:
            found.append(pool)
        else:
            twin["nodes"] += pool["nodes"]
    return None if len(found) == len(cluster["pools"]) else {**copy.deepcopy(cluster), "pools": found}


def _unlike_itself(pool: Yaml) -> Yaml:
    """A pool without what may differ between equal ones."""
    return {key: value for key, value in pool.items() if key not in ("name", "nodes")}


# ---------------------------------------------------------------- better clusters


def one_more_pool(rng: random.Random, cluster: Yaml) -> Yaml:
    """Nodes like those of another pool."""
    found = copy.deepcopy(cluster)
    found["pools"].append({**copy.deepcopy(rng.choice(found["pools"])), "name": "more", "nodes": 1})
    return found


def one_more_node(rng: random.Random, cluster: Yaml) -> Yaml:
    """One more in a pool."""
    found = copy.deepcopy(cluster)
    rng.choice(found["pools"])["nodes"] += 1
    return found


def faster_cards(rng: random.Random, cluster: Yaml) -> Yaml:
    """Network cards of four times the bandwidth in every pool."""
    found = copy.deepcopy(cluster)
    for pool in found["pools"]:
        for nic in pool["nics"]:
            nic["bandwidth_gbps"] *= 4
    return found


def faster_wires(rng: random.Random, cluster: Yaml) -> Yaml:
    """Networks inside the nodes with three times the bandwidth."""
    found = copy.deepcopy(cluster)
    for pool in found["pools"]:
        wire = pool["intra_node"]
        if isinstance(wire, str):
            known = catalog.link(wire)
            wire = {
                "bandwidth_gBps": known.bandwidth_gBps,
                "latency_us": known.latency_us,
                "shared": known.shared,
            }
        pool["intra_node"] = {**wire, "bandwidth_gBps": 3 * wire["bandwidth_gBps"]}
    return found


def nothing_reserved(rng: random.Random, cluster: Yaml) -> Yaml | None:
    """All memory for the job."""
    found = copy.deepcopy(cluster)
    found["reserve_gib"] = 0
    for pool in found["pools"]:
        pool.pop("reserve_gib", None)
    return None if found == cluster else found


def quicker_fabrics(rng: random.Random, cluster: Yaml) -> Yaml:
    """Half of the latency, and switches that carry what the cards send."""
    found = copy.deepcopy(cluster)
    for fabric in found["fabrics"].values():
        fabric["latency_us"] = fabric.get("latency_us", FABRIC_LATENCY_US[fabric["kind"]]) / 2
        fabric.pop("oversubscription", None)
    return found


def wider_gateways(rng: random.Random, cluster: Yaml) -> Yaml | None:
    """Links between fabrics with five times the bandwidth."""
    found = copy.deepcopy(cluster)
    for link in found["links"]:
        link["bandwidth_gbps"] *= 5
    return found if found["links"] else None


SAME: tuple[Change, ...] = (renamed, reordered, split, merged)
BETTER: tuple[Change, ...] = (
    *(one_more_pool, one_more_node, faster_cards, faster_wires),
    *(nothing_reserved, quicker_fabrics, wider_gateways),
)


def one_of(changes: tuple[Change, ...], rng: random.Random, cluster: Yaml) -> tuple[str, Yaml]:
    """A change that applies, with its name in words."""
    order = rng.sample(changes, len(changes))
    # Splitting and merging cannot always be done, and change what the search sees most.
    rare = [change for change in order if change in (split, merged)]
    for change in (*rare, *order) if rng.random() < 0.7 else order:
        found = change(rng, cluster)
        if found is not None:
            return change.__name__.replace("_", " "), found
    raise AssertionError("another order always applies")
