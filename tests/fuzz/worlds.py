"""Random clusters, models and limits, written as a user writes them; each a function of (seed, index)."""

from __future__ import annotations

import copy
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import yaml

from planner.capabilities import OFFLOAD_PARTS, RECOMPUTES
from planner.cluster.file import load_cluster
from planner.cluster.spec import ClusterSpec
from planner.model.file import load_model
from planner.model.spec import ModelSpec
from planner.search.values import Limits
from planner.targets import TARGETS

Yaml = dict[str, Any]

MOST_POOLS, MOST_DEVICES, MOST_BATCH = 8, 12, 1_000_000
"""Pools of a cluster, devices of one type in a pool, sequences of a step."""

CARDS = (
    "H200",
    "H100-SXM-80GB",
    "A100-SXM-40GB",
    "V100-SXM-16GB",
    "T4",
    "L40S",
    "RTX-3090",
    "RTX-2080-Ti",
    "A10",
)
WIRES: tuple[Any, ...] = (
    *("nvlink4", "nvlink2", "nvlink-bridge", "pcie4", "pcie3", "pcie4-switch"),
    {"bandwidth_gBps": 25, "latency_us": 4},
    {"bandwidth_gBps": 6, "latency_us": 10, "shared": True},
)
FABRICS = {"ib": "infiniband", "ib2": "infiniband", "rail": "roce", "lan": "ethernet", "wan": "ethernet"}
PRIMES = (2, 3, 5, 7, 11, 13, 31, 97, 509, 1009, 65_537, 999_983)


@dataclass(frozen=True, slots=True)
class World:
    """One cluster with one model, and what the user allows."""

    cluster: Yaml
    model: Yaml
    limits: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    """Fields of Limits, each with the values that it allows."""
    measured: Yaml = field(default_factory=dict)
    """Calibration file; empty for none."""

    @property
    def options(self) -> list[str]:
        """The limits as options of the command."""
        return [
            word
            for name, values in self.limits.items()
            for word in (f"--{name.replace('_', '-')}", ",".join(str(value) for value in values))
        ]

    def calibration(self, folder: Path) -> Path | None:
        """The calibration file, written; None for none."""
        if not self.measured:
            return None
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / "calibration.yaml"
        path.write_text(yaml.safe_dump(self.measured, sort_keys=False), encoding="utf-8")
        return path

    def searched(self, seconds: float) -> Limits:
        """The limits as the search takes them."""
        found: dict[str, Any] = {
            name: values[0] if name == "target" else values for name, values in self.limits.items()
        }
        return Limits(**found, time_limit_seconds=seconds)

    def write(self, folder: Path) -> tuple[Path, Path]:
        """Paths of the cluster file and the model file."""
        folder.mkdir(parents=True, exist_ok=True)
        paths = folder / "cluster.yaml", folder / "model.yaml"
        for path, content in zip(paths, (self.cluster, self.model), strict=True):
            path.write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")
        return paths


def read(paths: tuple[Path, Path]) -> tuple[ClusterSpec, ModelSpec]:
    """What the planner understands of a world's files."""
    return load_cluster(paths[0]), load_model(paths[1])


def draw_world(seed: int, index: int) -> World:
    """The world of this number."""
    rng = random.Random(f"world {seed} {index}")
    cluster, model = _cluster(rng), _model(rng)
    limits = _limits(rng, model)
    # Draws of their own: what else a world is does not depend on them.
    model |= _experts(random.Random(f"experts {seed} {index}"), model)
    model["training"] |= _software(random.Random(f"software {seed} {index}"), model)
    limits |= _hosts(random.Random(f"hosts {seed} {index}"), cluster["pools"])
    return World(cluster, model, limits, _measured(random.Random(f"measured {seed} {index}"), cluster, model))


# ---------------------------------------------------------------- clusters


def _cluster(rng: random.Random) -> Yaml:
    own = {f"card{number}": _card(rng) for number in range(rng.choice((0, 1, 2)))}
    cards = [*rng.sample(CARDS, rng.randint(1, 3)), *own]
    fabrics = rng.sample(sorted(FABRICS), rng.choice((1, 1, 1, 2, 2, 3)))
    pools: list[Yaml] = []
    wanted = rng.choice((1, 1, 2, 2, 3, 3, 4, 5, 6, MOST_POOLS))
    while len(pools) < wanted:
        # Equal pools are what merging and counting are about, so that they are frequent.
        twin = rng.choice(pools) if pools and rng.random() < 0.3 else _pool(rng, cards, fabrics)
        pools.append({**copy.deepcopy(twin), "name": f"pool{len(pools)}"})
    used = {name for pool in pools for name in _device_types(pool)}
    joined = sorted({nic["fabric"] for pool in pools for nic in pool["nics"]})
    racks = _racks(rng, pools) if rng.random() < 0.2 else {}
    return {
        "name": "world",
        "gpus": {name: card for name, card in own.items() if name in used},
        "pools": pools,
        "fabrics": {name: _fabric(rng, name) for name in joined} | racks,
        "links": list(_gateways(rng, joined)),
        "reserve_gib": rng.choice((0, 0, 0.5, 1, 2)),
    }


def _card(rng: random.Random) -> Yaml:
    """A device that the catalogue does not know."""
    half = rng.choice((4, 20, 65, 150, 500, 1500))
    found = {
        "memory_gib": rng.choice((3, 6, 8, 11, 16, 24, 48, 96, 256)),
        "memory_bandwidth_gBps": rng.choice((150, 450, 900, 2000, 5000)),
        "tflops": {"fp16": half, "bf16": half, "fp32": half / rng.choice((2, 8, 16))},
    }
    return found | rng.choice(({}, {"multiprocessors": rng.choice((5, 20, 68, 108))}))


def _pool(rng: random.Random, cards: list[str], fabrics: list[str]) -> Yaml:
    if rng.random() < 0.25 and len(cards) > 1:
        first, second = rng.sample(cards, 2)
        counts = rng.randint(1, 4), rng.randint(1, 3)
        inside: Yaml = {"devices": [f"{counts[0]} x {first}", f"{counts[1]} x {second}"]}
        per_node = max(counts)
    else:
        per_node = rng.choice((1, 1, 2, 2, 3, 4, 4, 5, 6, 7, 8))
        inside = {"gpu": rng.choice(cards), "gpus_per_node": per_node}
    own = rng.sample(fabrics, rng.randint(1, len(fabrics)))
    found = {
        **inside,
        "nodes": rng.randint(1, MOST_DEVICES // per_node),
        "intra_node": rng.choice(WIRES),
        "nics": [
            {
                "fabric": name,
                "bandwidth_gbps": rng.choice((1, 10, 25, 100, 400)),
                "count": rng.choice((1, 1, 2, 4)),
            }
            for name in sorted(own)
        ],
    }
    return found | rng.choice(({}, {}, {}, {"reserve_gib": rng.choice((0, 1.5))}))


def _hosts(rng: random.Random, pools: list[Yaml]) -> dict[str, tuple[Any, ...]]:
    """Gives pools what is known of their nodes beside the devices; limits on what may be kept there."""
    known = {
        "link_gBps": (1, 12, 50),
        "all_links_gBps": (4, 60),
        "memory_gib": (16, 256, 2048),
        "nvme_gBps": (3,),
        "adam_billion_per_s": (0.3, 3),
    }
    for pool in pools:
        host = {name: rng.choice(values) for name, values in known.items() if rng.random() < 0.4}
        if host and rng.random() < 0.5:
            pool["host"] = host
    if rng.random() < 0.8:
        return {}
    parts = sorted(rng.sample(OFFLOAD_PARTS, rng.randint(1, 3)))
    return {"offload": tuple(parts)}


def _device_types(pool: Yaml) -> list[str]:
    """Names of the device types of a pool."""
    return [entry.split(" x ")[-1] for entry in pool["devices"]] if "devices" in pool else [pool["gpu"]]


def _fabric(rng: random.Random, name: str) -> Yaml:
    found: Yaml = {"kind": FABRICS[name]}
    found |= rng.choice(({}, {}, {"latency_us": rng.choice((1, 20, 800))}))
    return found | rng.choice(({}, {}, {}, {"oversubscription": rng.choice((1.5, 3))}))


def _racks(rng: random.Random, pools: list[Yaml]) -> Yaml:
    """Gives pools NVLink between their nodes, some in one rack; the fabrics."""
    for number, pool in enumerate(pools):
        if rng.random() < 0.6:
            name = rng.choice(("rack", f"rack{number}"))
            rate, count = rng.choice((200, 2400, 7200)), rng.choice((1, 2, 4))
            pool["nics"].append({"fabric": name, "bandwidth_gbps": rate, "count": count})
    names = {nic["fabric"] for pool in pools for nic in pool["nics"]}
    return {name: {"kind": "nvlink"} for name in sorted(names) if name.startswith("rack")}


def _gateways(rng: random.Random, fabrics: list[str]) -> Iterator[Yaml]:
    """A chain over all fabrics, so that any two pools can talk."""
    order = rng.sample(fabrics, len(fabrics))
    for pair in pairwise(order):
        yield {
            "between": list(pair),
            "bandwidth_gbps": rng.choice((1, 5, 40, 200)),
            "latency_us": rng.choice((5, 100, 20_000)),
        }


# ---------------------------------------------------------------- models and limits


def _model(rng: random.Random) -> Yaml:
    heads = rng.choice((1, 2, 3, 4, 6, 7, 8, 12, 16, 32))
    hidden = heads * rng.choice((16, 64, 64, 80, 128))
    shares = [number for number in range(1, heads + 1) if heads % number == 0]
    encoder = rng.random() < 0.1
    found: Yaml = {
        "name": "model",
        "kind": "encoder" if encoder else "decoder",
        "layers": rng.choice((1, 2, 3, 5, 8, 12, 17, 24, 32, 40, 61, 80, 96, 120)),
        "hidden": hidden,
        "heads": heads,
        "kv_heads": heads if encoder or rng.random() < 0.6 else rng.choice(shares),
        "vocab": rng.choice((64, 1000, 30_522, 50_257, 128_256)),
        "gated_mlp": rng.random() < 0.4,
        "tied_embeddings": rng.random() < 0.5,
        "training": _training(rng),
    }
    if encoder or rng.random() < 0.2:
        found["learned_positions"] = 4096
    if rng.random() < 0.2:
        found["ffn"] = rng.choice((2 * hidden, 3 * hidden, 11_008))
    return found


def _experts(rng: random.Random, model: Yaml) -> Yaml:
    """Experts in place of the feed-forwards of one decoder in six."""
    if model["kind"] == "encoder" or rng.random() > 1 / 6:
        return {}
    number = rng.choice((2, 3, 4, 8, 16, 64))
    size = rng.choice((model["hidden"] // 2, 2 * model["hidden"], 64))
    return {"experts": {"number": number, "top_k": rng.randint(1, min(number, 4)), "ffn": size}}


def _software(rng: random.Random, model: Yaml) -> Yaml:
    """Adapters of one model in six, unfused norms of as many, and other ways to experts of half of those with some, now
    and then beside computation."""
    found: Yaml = {}
    if rng.random() < 1 / 6:
        drop, keep = rng.random() < 0.5, rng.random() < 0.3
        found["lora"] = {"rank": rng.choice((8, 64)), "dropout": drop, "keeps_inputs": keep}
    if rng.random() < 1 / 6:
        found["norms"] = "unfused"
    elif "experts" in model and rng.random() < 0.5:
        found["token_dispatcher"] = rng.choice(("deepep", "hybridep"))
        found["expert_overlap"] = rng.random() < 0.5
    return found


def _training(rng: random.Random) -> Yaml:
    return {
        "sequence_length": rng.choice((1, 32, 128, 250, 512, 1024, 2048, 4096)),
        "global_batch": _batch(rng),
        "precision": rng.choice(("fp16", "fp16", "bf16", "fp32")),
        "optimizer": rng.choice(("adamw", "adamw", "sgd")),
        "attention": rng.choice(("flash", "flash", "unfused")),
    }


def _batch(rng: random.Random) -> int:
    """Prime, round, or anything: as many small ones as large ones."""
    how = rng.random()
    if how < 0.25:
        return rng.choice(PRIMES)
    if how < 0.6:
        return (1 << rng.randint(0, 12)) * rng.choice((1, 1, 1, 3, 5))
    return round(math.exp(rng.uniform(0, math.log(MOST_BATCH))))


def _limits(rng: random.Random, model: Yaml) -> dict[str, tuple[Any, ...]]:
    found: dict[str, tuple[Any, ...]] = {}
    if rng.random() < 0.55:
        found["target"] = (rng.choice(sorted(TARGETS)),)
    if rng.random() < 0.15:
        found["zero"] = tuple(sorted(rng.sample(range(4), rng.randint(1, 3))))
    if rng.random() < 0.1:
        found["tp"] = tuple(sorted({1, rng.choice((1, 2, 3, 4))}))
    if rng.random() < 0.15:
        found["pp"] = tuple(range(1, rng.randint(1, 6) + 1))
    if rng.random() < 0.1:
        found["micro_batch"] = tuple(sorted(rng.sample((1, 2, 3, 4, 8), 2)))
    if rng.random() < 0.1:
        found["recompute"] = (rng.choice(RECOMPUTES),)
    return found


# ---------------------------------------------------------------- measurements


def _measured(rng: random.Random, cluster: Yaml, model: Yaml) -> Yaml:
    """What a user measured of some layers and links; empty for a user that measured nothing."""
    if rng.random() < 0.6:
        return {}
    gpus = sorted({gpu for pool in cluster["pools"] for gpu in _device_types(pool)})
    layers = [point for gpu in gpus if rng.random() < 0.5 for point in _layers(rng, gpu, model)]
    links = [*sorted(cluster["fabrics"]), *(f"node:{gpu}" for gpu in gpus)]
    points = [point for link in links if rng.random() < 0.5 for point in _link(rng, link)]
    points += [
        point for link in cluster["fabrics"] if rng.random() < 0.4 for point in _shared(rng, link, points)
    ]
    found = {"layers": layers, "link_points": points}
    return {"format": "hetplan-calibration/1", **found} if layers or points else {}


def _layers(rng: random.Random, gpu: str, model: Yaml) -> Iterator[Yaml]:
    """A few micro-batches with one or two degrees, at a rate that every device has."""
    flops_per_second, launch = rng.choice((5e10, 5e11, 5e12)), rng.choice((0.0, 1e-3))
    tokens, hidden = model["training"]["sequence_length"], model["hidden"]
    for tp in rng.choice(((1,), (1, 2), (2,))):
        for size in sorted(rng.sample((1, 2, 4, 16), rng.randint(1, 3))):
            forward = launch + size * (24 * hidden + 4 * tokens) * tokens * hidden / tp / flops_per_second
            yield {
                "gpu": gpu,
                "model": model["name"],
                "tp": tp,
                "micro_batch": size,
                "forward_seconds": forward,
                "backward_seconds": 2 * forward,
            }


def _shared(rng: random.Random, link: str, points: list[Yaml]) -> Iterator[Yaml]:
    """The same in several groups that share the cards of their nodes, for some of the numbers of members."""
    for concurrent in rng.sample((2, 4, 8), rng.randint(1, 2)):
        slower, left_out = rng.uniform(1, concurrent), rng.choice((2, 4, 99))
        for point in points:
            if point["link"] == link and point["members"] != left_out:
                yield {**point, "concurrent": concurrent, "seconds": slower * point["seconds"]}


def _link(rng: random.Random, link: str) -> Iterator[Yaml]:
    """Two or three sizes of some operations among some numbers of members."""
    rate, latency = rng.choice((1e8, 1e9, 1e10)), rng.choice((1e-5, 1e-3))
    operations = ("all-reduce", "all-gather", "reduce-scatter", "send", "all-to-all", "broadcast")
    for operation in rng.sample(operations, rng.randint(1, 4)):
        numbers = (2,) if operation == "send" else sorted(rng.sample((2, 3, 4, 8, 16), rng.randint(1, 3)))
        for members in numbers:
            for size in sorted(rng.sample((1e4, 1e6, 1e8, 1e10), rng.randint(2, 3))):
                yield {
                    "link": link,
                    "operation": operation,
                    "members": members,
                    "size_bytes": int(size),
                    "seconds": latency * members + size / rate,
                }
