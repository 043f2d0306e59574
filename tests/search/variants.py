"""Clusters of three pools, the same cluster written otherwise, and plans without the names in it."""

from __future__ import annotations

import random
from collections.abc import Mapping

from planner.catalog import GpuSpec, IntraNodeSpec
from planner.cluster.spec import ClusterSpec, FabricSpec, NicSpec, PoolSpec
from planner.model.spec import ModelSpec
from planner.plan.values import Plan
from tests.worlds import gpt

FABRICS = {
    "eth": FabricSpec(kind="ethernet", latency_us=20),
    "ib": FabricSpec(kind="infiniband", latency_us=3),
    "ic": FabricSpec(kind="infiniband", latency_us=3),
}


def three_pools(seed: int) -> tuple[ClusterSpec, ModelSpec]:
    """Two or three pools, some alike, some of mixed nodes, on up to three fabrics."""
    draw = random.Random(seed)
    gpus = {name: _gpu(name, draw) for name in "ABC"}
    pools: list[PoolSpec] = []
    for number in range(draw.randint(2, 3)):
        pools.append(_pool(f"p{number}", draw))
        if draw.random() < 0.4 and len(pools) < 3:
            hosts = tuple(f"twin-{host}" for host in pools[-1].hosts)
            pools.append(pools[-1].model_copy(update={"name": f"twin{number}", "hosts": hosts}))
    used = {name for pool in pools for name in pool.devices}
    fabrics = {nic.fabric for pool in pools for nic in pool.nics}
    spec = ClusterSpec(
        name="three",
        gpus={name: gpu for name, gpu in gpus.items() if name in used},
        pools=tuple(pools[:3]),
        fabrics={name: fabric for name, fabric in FABRICS.items() if name in fabrics},
        reserve_gib=0.5,
    )
    model = gpt(
        layers=draw.randint(2, 6),
        hidden=draw.choice([512, 1024, 2048]),
        heads=8,
        global_batch=draw.choice([4, 6, 7, 8]),
        vocab=draw.choice([1000, 32000]),
        sequence_length=draw.choice([256, 1024]),
    )
    return spec, model


def _gpu(name: str, draw: random.Random) -> GpuSpec:
    return GpuSpec(
        name=name,
        memory_gib=draw.choice([8, 16, 24, 40]),
        memory_bandwidth_gBps=draw.choice([320, 900, 2000]),
        tflops={"fp16": draw.choice([30, 65, 125, 312])},
    )


def _pool(name: str, draw: random.Random) -> PoolSpec:
    devices = (draw.choice("ABC"),) * draw.choice([1, 1, 2])
    if draw.random() < 0.2:
        devices = (*devices, draw.choice("ABC"))
    nics = [NicSpec(fabric="eth", bandwidth_gbps=draw.choice([10, 25, 100, 200]))]
    if draw.random() < 0.5:
        nics.append(NicSpec(fabric=draw.choice(["ib", "ic"]), bandwidth_gbps=200))
    return PoolSpec(
        name=name,
        devices=devices,
        hosts=tuple(f"{name}-{index}" for index in range(draw.choice([1, 1, 1, 2]))),
        intra_node=IntraNodeSpec(bandwidth_gBps=draw.choice([12, 64, 300]), shared=draw.random() < 0.3),
        nics=tuple(nics),
    )


def shuffled(spec: ClusterSpec, seed: int) -> ClusterSpec:
    """The same cluster with everything in its file in another order: pools, hosts, devices, cards, fabrics."""
    draw = random.Random(seed)
    pools = [
        pool.model_copy(
            update={
                name: tuple(draw.sample(getattr(pool, name), len(getattr(pool, name))))
                for name in ("devices", "hosts", "nics")
            }
        )
        for pool in spec.pools
    ]
    draw.shuffle(pools)
    turned = {name: dict(reversed(getattr(spec, name).items())) for name in ("gpus", "fabrics")}
    return spec.model_copy(update={"pools": tuple(pools), "links": spec.links[::-1], **turned})


def renamed(spec: ClusterSpec, seed: int) -> tuple[ClusterSpec, dict[str, str]]:
    """The same cluster with other names of pools, hosts and fabrics, and the old name of each pool by its new one."""
    draw = random.Random(seed)
    names = {
        pool.name: f"n{number}" for pool, number in zip(spec.pools, _mixed(spec.pools, draw), strict=True)
    }
    cables = {
        name: f"f{number}" for name, number in zip(spec.fabrics, _mixed(spec.fabrics, draw), strict=True)
    }
    pools = (
        pool.model_copy(
            update={
                "name": names[pool.name],
                "hosts": tuple(f"{names[pool.name]}-{number}" for number in range(len(pool.hosts))),
                "nics": tuple(nic.model_copy(update={"fabric": cables[nic.fabric]}) for nic in pool.nics),
            }
        )
        for pool in spec.pools
    )
    links = (
        link.model_copy(update={"between": tuple(cables[name] for name in link.between)})
        for link in spec.links
    )
    update = {
        "pools": tuple(pools),
        "links": tuple(links),
        "fabrics": {cables[name]: fabric for name, fabric in spec.fabrics.items()},
    }
    return spec.model_copy(update=update), {new: old for old, new in names.items()}


def _mixed(items: object, draw: random.Random) -> list[int]:
    count = len(items)  # type: ignore[arg-type]
    return draw.sample(range(count), count)


def nameless(plan: Plan, spec: ClusterSpec, old: Mapping[str, str] | None = None) -> tuple[object, ...]:
    """Everything that the plan decides, with pools that are alike told apart only by when the plan uses them.

    ``old`` gives the name in ``spec`` of each pool of the plan, where they differ.
    """
    alike = {pool.name: _traits(pool) for pool in spec.pools}
    met: dict[str, tuple[object, ...]] = {}
    found: list[object] = [plan.target, plan.zero, plan.interleave, plan.schedule]
    found += [plan.sequence_parallel, plan.offload]
    for stage in plan.stages:
        found.append((stage.layers, stage.recompute))
        for group in stage.replicas:
            name = old[group.pool] if old else group.pool
            before = sum(alike[name] == traits for traits, _ in met.values())
            who = met.setdefault(name, (alike[name], before))
            found.append((who, group.gpu, group.tp, group.count, group.local_batch, group.accumulation_steps))
    return tuple(found)


def _traits(pool: PoolSpec) -> tuple[object, ...]:
    nics = sorted(str(nic) for nic in pool.nics)
    return sorted(pool.devices), len(pool.hosts), pool.intra_node, nics, pool.price_per_gpu_hour
