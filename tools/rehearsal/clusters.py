"""The emulated clusters, the model that they train, and the plans that are tried on each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from tools.rehearsal.emulation import Node

MODEL: dict[str, Any] = {
    "name": "rehearsal-gpt",
    "layers": 8,
    "hidden": 192,
    "heads": 4,
    "vocab": 512,
    "learned_positions": 128,
    "training": {"sequence_length": 128, "global_batch": 48, "precision": "fp32", "dropout": False},
}
"""Small enough for a share of a processor, large enough that a step is not all overhead."""


@dataclass(frozen=True, slots=True)
class Pool:
    """Equal nodes with one device each."""

    name: str
    device: str
    """Kind of device, one for each share of a processor."""
    share: float
    mbit: int
    nodes: int = 2


@dataclass(frozen=True, slots=True)
class Rehearsed:
    """One emulated cluster."""

    name: str
    pools: tuple[Pool, ...]
    plans: Mapping[str, dict[str, Any]]
    """Short plans by what they are."""

    @property
    def nodes(self) -> tuple[Node, ...]:
        """All nodes, those with the narrowest cards first: they hold the first ranks of every measured group."""
        pools = sorted(self.pools, key=lambda pool: pool.mbit)
        return tuple(
            Node(f"{pool.name}-{index}", pool.mbit, pool.share)
            for pool in pools
            for index in range(1, pool.nodes + 1)
        )

    @property
    def devices(self) -> tuple[tuple[Node, str], ...]:
        """Every node, and the kind of its device."""
        kinds = {pool.name: pool.device for pool in self.pools}
        return tuple((node, kinds[node.name.partition("-")[0]]) for node in self.nodes)

    @property
    def fabrics(self) -> dict[str, int]:
        """Networks and their Mbit/s, widest first: every pool is on those that it can keep up with."""
        rates = sorted({pool.mbit for pool in self.pools}, reverse=True)
        return {f"lan{rate}": rate for rate in rates}

    def document(self, gpus: Mapping[str, Any]) -> dict[str, Any]:
        """The cluster file; ``gpus`` are the devices as calibration declared them."""
        return {
            "name": self.name,
            "gpus": {pool.device: gpus[pool.device] for pool in self.pools},
            "pools": [self._pool(pool) for pool in self.pools],
            "fabrics": {name: {"kind": "ethernet", "latency_us": 50} for name in self.fabrics},
        }

    def _pool(self, pool: Pool) -> dict[str, Any]:
        nics = [
            {"fabric": name, "bandwidth_gbps": rate / 1000, "interface": "eth0"}
            for name, rate in self.fabrics.items()
            if rate <= pool.mbit
        ]
        hosts = [node.name for node in self.nodes if node.name.startswith(f"{pool.name}-")]
        return {
            "name": pool.name,
            "gpu": pool.device,
            "hosts": hosts,
            "gpus_per_node": 1,
            "intra_node": {"bandwidth_gBps": 10, "latency_us": 10},
            "nics": nics,
        }


def replicas(zero: int, *groups: tuple[str, int, int, int]) -> dict[str, Any]:
    """A plan without pipeline: (pool, replicas, largest micro-batch, sequences of each) for each group."""
    return {
        "zero": zero,
        "replicas": [
            {"pool": pool, "count": count, "micro_batch": micro, "share": share}
            for pool, count, micro, share in groups
        ],
    }


def shards(zero: int, *parts: int) -> dict[str, Any]:
    """Equal batches on two nodes for each of ``parts``: what each of them holds of the states."""
    groups = replicas(zero, *(("a", 2, 6, 12) for _ in parts))["replicas"]
    return {
        "zero": zero,
        "replicas": [{**group, "shard": part} for group, part in zip(groups, parts, strict=True)],
    }


def islands(base: dict[str, Any], *pools: str, **sync: Any) -> dict[str, Any]:
    """A plan whose pools, or without any all of whose nodes, exchange rarely or little."""
    found = {**sync, "islands": [[pool] for pool in pools]} if pools else sync
    return {"target": "torch", **base, "sync": found}


def grid(side: int, micro: int) -> dict[str, Any]:
    """One replica that divides matrices by as many rows and columns, with torch."""
    return {"target": "torch", "tp": {"rows": side, "columns": side}, "dp": 1, "micro_batch": micro}


def pipeline(zero: int, micro: int, dp: int, *stages: tuple[str, int]) -> dict[str, Any]:
    """A pipeline: (pool, layers) of each stage."""
    return {
        "zero": zero,
        "dp": dp,
        "micro_batch": micro,
        "stages": [{"pool": pool, "layers": layers} for pool, layers in stages],
    }


def yaml_text(document: Mapping[str, Any]) -> str:
    """A document as a file."""
    return yaml.safe_dump(dict(document), sort_keys=False)


EQUAL = replicas(0, ("a", 2, 6, 12), ("b", 2, 6, 12))
"""Each device has as many sequences."""
EVEN = {
    "equal batches, ZeRO 0": EQUAL,
    "equal batches, ZeRO 1": replicas(1, ("a", 2, 6, 12), ("b", 2, 6, 12)),
    "equal pipeline over the pools": pipeline(0, 6, 2, ("a", 4), ("b", 4)),
}
"""What one does without a planner."""
UNEVEN = {
    "batches 18 and 6, ZeRO 0": replicas(0, ("a", 2, 6, 18), ("b", 2, 6, 6)),
    "batches 16 and 8, ZeRO 2": replicas(2, ("a", 2, 8, 16), ("b", 2, 4, 8)),
    "pipeline of 6 + 2 layers": pipeline(0, 6, 2, ("a", 6), ("b", 2)),
}

CLUSTERS: Sequence[Rehearsed] = (
    Rehearsed(
        "mixed-speed",
        (Pool("a", "cpu-55", 0.55, 1000), Pool("b", "cpu-20", 0.2, 1000)),
        {**EVEN, **UNEVEN},
    ),
    Rehearsed(
        "mixed-network",
        (Pool("a", "cpu-38", 0.38, 1000), Pool("b", "cpu-38", 0.38, 100)),
        {
            **EVEN,
            "pipeline of 5 + 3 layers": pipeline(0, 6, 2, ("a", 5), ("b", 3)),
            "pipeline of four stages": pipeline(0, 4, 1, ("a", 2), ("a", 2), ("b", 2), ("b", 2)),
            "the wide pool alone": replicas(0, ("a", 2, 6, 24)),
        },
    ),
    Rehearsed(
        "islands",
        (Pool("a", "cpu-22", 0.22, 1000), Pool("b", "cpu-22", 0.22, 100)),
        {
            "equal batches, ZeRO 0": EQUAL,
            "pools exchange every 4 steps": islands(EQUAL, "a", "b", every=4),
            "nodes exchange every 4 steps": islands(EQUAL, every=4),
            "nodes exchange bf16 gradients": islands(EQUAL, format="bf16"),
            "pools exchange int8 gradients": islands(EQUAL, "a", "b", format="int8"),
            "nodes exchange factors of rank 4": islands(EQUAL, rank=4),
            "nodes exchange 1 % of the gradients": islands(EQUAL, ratio=0.01),
        },
    ),
    Rehearsed(
        "grid",
        (Pool("a", "cpu-20", 0.2, 1000, nodes=4),),
        {
            "equal batches, ZeRO 0": replicas(0, ("a", 4, 6, 12)),
            "equal batches, ZeRO 3": replicas(3, ("a", 4, 6, 12)),
            "2 x 2, micro-batches of 4": grid(2, 4),
            "2 x 2, micro-batches of 12": grid(2, 12),
            "2 x 2, micro-batches of 48": grid(2, 48),
            "shards of 3 and 1, ZeRO 2": {"target": "torch", **shards(2, 3, 1)},
            "shards of 3 and 1, ZeRO 3": {"target": "torch", **shards(3, 3, 1)},
            "three of the nodes": replicas(0, ("a", 3, 8, 16)),
            "three of the nodes and a backup": {
                "target": "torch",
                **replicas(0, ("a", 4, 8, 16)),
                "backup": 1,
            },
        },
    ),
    Rehearsed(
        "mixed-both",
        (Pool("a", "cpu-55", 0.55, 1000), Pool("b", "cpu-20", 0.2, 100)),
        {**EVEN, **UNEVEN, "the fast pool alone": replicas(0, ("a", 2, 6, 24))},
    ),
)


def _alone(device: str, share: float) -> Rehearsed:
    """One device at several micro-batches."""
    plans = {f"micro-batch {size}": replicas(0, ("a", 1, size, 48)) for size in (1, 2, 4, 8, 16)}
    return Rehearsed(f"one-{device}", (Pool("a", device, share, 1000, nodes=1),), plans)


DEVICES: Sequence[Rehearsed] = (_alone("cpu-100", 1.0), _alone("cpu-25", 0.25))
"""A device of a whole processor, and one of a quarter."""
