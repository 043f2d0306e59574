"""Small worlds: clusters, models and plans made by hand, and problems drawn from a seed."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal, get_args

from planner.calibration.values import ASSUMED, Calibration, Framework, GpuFamily, LayerPoint, Link, LinkPoint
from planner.capabilities import StateKind
from planner.catalog import GpuSpec, IntraNodeSpec
from planner.cluster.spec import ClusterSpec, FabricLinkSpec, FabricSpec, HostSpec, NicSpec, PoolSpec
from planner.model.spec import (
    AdapterTarget,
    DocumentsSpec,
    EncoderSpec,
    ExpertsSpec,
    FeedForwardKind,
    FrontSpec,
    LoraSpec,
    Mixer,
    ModelSpec,
    ProductSpec,
    Projections,
    RunSpec,
    StateSpec,
    TowerSpec,
    TrainingSpec,
)
from planner.plan.values import Plan, ReplicaGroup, Stage

GPUS = {
    "A100": GpuSpec(
        name="A100",
        memory_gib=80,
        memory_bandwidth_gBps=2039,
        tflops={"bf16": 312, "fp16": 312, "fp32": 19.5},
    ),
    "A100-SXM-80GB": GpuSpec(
        name="A100-SXM-80GB", memory_gib=80, memory_bandwidth_gBps=2039, tflops={"bf16": 312, "fp16": 312}
    ),
    "V100": GpuSpec(
        name="V100", memory_gib=32, memory_bandwidth_gBps=900, tflops={"fp16": 125, "fp32": 15.7}
    ),
    "T4": GpuSpec(name="T4", memory_gib=16, memory_bandwidth_gBps=320, tflops={"bf16": 65, "fp16": 65}),
}
KINDS = {"rack": "nvlink", "ib": "infiniband", "roce": "roce", "eth": "ethernet"}
"""Kinds of the fabrics of these names; others are Ethernet unless they are said to be something else."""


def pool(
    name: str,
    gpu: str | tuple[str, ...] = "A100",
    nodes: int = 1,
    nics: tuple[NicSpec, ...] | None = None,
    *,
    per_node: int = 8,
    fabric: str = "ib",
    gbps: float = 200,
    cards: int = 8,
) -> PoolSpec:
    """Nodes name-0, name-1, ...: of equal devices with equal cards on one fabric, or of the devices and cards named."""
    mixed = isinstance(gpu, tuple)
    equal = () if mixed else (NicSpec(fabric=fabric, bandwidth_gbps=gbps, count=cards),)
    return PoolSpec(
        name=name,
        devices=gpu if isinstance(gpu, tuple) else (gpu,) * per_node,
        hosts=tuple(f"{name}-{index}" for index in range(nodes)),
        intra_node=IntraNodeSpec(bandwidth_gBps=300 if mixed or gpu == "A100" else 150),
        nics=equal if nics is None else nics,
    )


def nic(fabric: str, interface: str | None = None, hca: str | None = None, gbps: float = 100.0) -> NicSpec:
    """A card."""
    return NicSpec(fabric=fabric, bandwidth_gbps=gbps, interface=interface, hca=hca)


def cluster(
    *pools: PoolSpec,
    links: tuple[Any, ...] = (),
    gpus: dict[str, GpuSpec] | None = None,
    fabrics: dict[str, str] | None = None,
) -> ClusterSpec:
    """The pools with every fabric they name; ``fabrics`` says the kinds of those whose names do not."""
    known = {**GPUS, **(gpus or {})}
    kinds = {nic.fabric: KINDS.get(nic.fabric, "ethernet") for item in pools for nic in item.nics}
    return ClusterSpec(
        name="test",
        gpus={name: known[name] for item in pools for name in item.devices},
        pools=pools,
        fabrics={
            name: FabricSpec(kind=kind, latency_us=5)  # type: ignore[arg-type]
            for name, kind in {**kinds, **(fabrics or {})}.items()
        },
        links=links,
    )


def gpt(
    layers: int = 24,
    hidden: int = 2048,
    heads: int = 16,
    *,
    global_batch: int = 64,
    vocab: int = 51200,
    **training: Any,
) -> ModelSpec:
    """A GPT; ``training`` overrides fp16, length 1024 and flash attention."""
    values = {"sequence_length": 1024, "precision": "fp16", **training}
    return ModelSpec(
        name="gpt",
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=heads,
        head_dim=hidden // heads,
        ffn=4 * hidden,
        vocab=vocab,
        learned_positions=values["sequence_length"],
        training=TrainingSpec(global_batch=global_batch, **values),
    )


def model(global_batch: int, layers: int = 4, **changes: Any) -> ModelSpec:
    """A tiny decoder; ``changes`` go to the model, or to its training under their own name."""
    training = {name: changes.pop(name) for name in TrainingSpec.model_fields if name in changes}
    values: dict[str, Any] = {
        "name": "tiny",
        "layers": layers,
        "hidden": 32,
        "heads": 4,
        "kv_heads": 4,
        "head_dim": 8,
        "ffn": 64,
        "vocab": 64,
        "training": TrainingSpec(sequence_length=16, global_batch=global_batch, **training),
    }
    return ModelSpec(**{**values, **changes})


def group(
    pool: str, gpu: str, *, count: int = 1, share: int = 1, steps: int = 1, tp: int = 1
) -> ReplicaGroup:
    """Replicas of a stage."""
    return ReplicaGroup(pool=pool, gpu=gpu, tp=tp, count=count, local_batch=share, accumulation_steps=steps)


def stages(
    layers: Sequence[int], replicas: Sequence[tuple[ReplicaGroup, ...]], recompute: str = "none"
) -> tuple[Stage, ...]:
    """Stages with these numbers of layers."""
    found, first = [], 0
    for count, groups in zip(layers, replicas, strict=True):
        found.append(
            Stage(first_layer=first, end_layer=first + count, replicas=groups, recompute=recompute)  # type: ignore[arg-type]
        )
        first += count
    return tuple(found)


def plan(
    target: str,
    zero: int,
    layers: Sequence[int],
    replicas: Sequence[tuple[ReplicaGroup, ...]],
    **changes: Any,
) -> Plan:
    """A plan; ``recompute`` holds for all stages."""
    made = stages(layers, replicas, changes.pop("recompute", "none"))
    return Plan(target=target, zero=zero, stages=made, **changes)


def small_problem(seed: int) -> tuple[ClusterSpec, ModelSpec]:
    """A random cluster of at most 4 devices of 2 device types and a model of at most 8 layers."""
    draw = random.Random(seed)
    gpus = {
        "A": (draw.choice([8, 16, 24]), draw.choice([900, 2000]), draw.choice([100, 312])),
        "B": (draw.choice([6, 8, 16]), draw.choice([320, 900]), draw.choice([30, 65, 125])),
    }
    specs = {
        name: GpuSpec(name=name, memory_gib=memory, memory_bandwidth_gBps=rate, tflops={"fp16": peak})
        for name, (memory, rate, peak) in gpus.items()
    }
    counts = draw.choice([(1, 1), (1, 2), (2, 1), (1, 3), (2, 2), (3, 1), (0, 2), (4, 0), (2, 0)])
    pools = tuple(_small_pool(draw, gpu, count) for gpu, count in zip("AB", counts, strict=True) if count)
    if len(pools) == 2 and draw.random() < 0.15:
        devices = ("A",) * counts[0] + ("B",) * counts[1]
        pools = (pools[0].model_copy(update={"devices": devices, "hosts": ("node",), "nics": ()}),)
    if len(pools) == 2 and draw.random() < 0.3:
        fast = (NicSpec(fabric=fabric, bandwidth_gbps=200) for fabric in ("ib", "roce"))
        pools = tuple(
            item.model_copy(update={"nics": (*item.nics, card)})
            for item, card in zip(pools, fast, strict=True)
        )
    return cluster(*pools, gpus=specs).model_copy(update={"reserve_gib": 0.5}), _small_model(draw)


def _small_pool(draw: random.Random, gpu: str, count: int) -> PoolSpec:
    per_node = draw.choice([size for size in (1, 2, 3, 4) if count % size == 0])
    return PoolSpec(
        name=f"pool-{gpu}",
        devices=(gpu,) * per_node,
        hosts=tuple(f"{gpu}{index}" for index in range(count // per_node)),
        intra_node=IntraNodeSpec(bandwidth_gBps=draw.choice([12, 64, 300]), shared=draw.random() < 0.3),
        nics=(NicSpec(fabric="eth", bandwidth_gbps=draw.choice([10, 100, 200])),),
    )


def _small_model(draw: random.Random) -> ModelSpec:
    hidden = draw.choice([512, 1024, 2048])
    model = gpt(
        layers=draw.randint(1, 8),
        hidden=hidden,
        heads=draw.choice([4, 8]),
        global_batch=draw.choice([4, 6, 7, 8]),
        vocab=draw.choice([1000, 32000]),
        sequence_length=draw.choice([256, 1024]),
        attention=draw.choice(["flash", "unfused"]),
    )
    return model.model_copy(update={"tied_embeddings": draw.random() < 0.5})


Problem = tuple[ClusterSpec, ModelSpec, Calibration]


def with_constants(seed: int) -> Problem:
    """Tiles on known multiprocessors, and constants far from the assumed ones."""
    spec, model = small_problem(seed)
    draw = random.Random(seed + 1)
    gpus = {
        name: gpu.model_copy(update={"family": name, "multiprocessors": draw.choice([0, 16, 40, 108])})
        for name, gpu in spec.gpus.items()
    }
    calibration = Calibration(
        families={name: _family(draw) for name in gpus},
        frameworks={
            **{name: _framework(draw) for name in ("megatron", "deepspeed", "flagscale")},
            "torch": _framework(random.Random(seed + 4)),
        },
        links={device_type: _link(draw) for device_type in ("infiniband", "roce", "ethernet")},
    )
    return spec.model_copy(update={"gpus": gpus}), model, calibration


def with_stragglers(seed: int) -> Problem:
    """Devices that are now and then slower than they are on average, in one or in both types; nodes and hosts vary."""
    spec, model, calibration = (with_constants, with_fast_nodes, with_shapes)[seed % 3](seed)
    draw = random.Random(seed + 9)
    gpus = {
        name: gpu if gpu.family else gpu.model_copy(update={"family": name})
        for name, gpu in spec.gpus.items()
    }
    families = {
        name: replace(calibration.family(name), sigma=draw.choice([0.0, 0.02, 0.1, 0.5])) for name in gpus
    }
    return spec.model_copy(update={"gpus": gpus}), model, replace(calibration, families=families)


def with_shapes(seed: int) -> Problem:
    """Heads that no fused softmax takes, rows that are not aligned, dropout and other number formats."""
    spec, model, calibration = with_constants(seed)
    draw = random.Random(seed + 2)
    precision = draw.choice(["fp16", "bf16", "fp8", "tf32"])
    gpus = {
        name: gpu.model_copy(update={"tflops": _rates(gpu.tflops["fp16"])}) for name, gpu in spec.gpus.items()
    }
    training = model.training.model_copy(
        update={
            "sequence_length": draw.choice([250, 256, 1000, 1024]),
            "dropout": draw.choice([None, True, False]),
            "precision": precision,
        }
    )
    heads = draw.choice([3, 4, 5, 6, 8])
    shape = {"heads": heads, "kv_heads": heads, "head_dim": draw.choice([64, 108]), "ffn": 500 * heads}
    model = model.model_copy(update={**shape, "training": training})
    return spec.model_copy(update={"gpus": gpus}), model, calibration


def with_fast_nodes(seed: int) -> Problem:
    """Four slow devices on two nodes that are fast inside and slow between, of one type or of two."""
    spec, model, calibration = with_constants(seed)
    draw = random.Random(seed + 5)
    names = sorted(spec.gpus)
    gpus = {
        name: gpu.model_copy(
            update={"memory_gib": draw.choice([3, 4, 6, 8]), "tflops": {"fp16": draw.choice([2, 5, 10])}}
        )
        for name, gpu in spec.gpus.items()
    }
    pools = tuple(
        PoolSpec(
            name=f"pool-{number}",
            devices=(name,) * 2,
            hosts=tuple(f"{number}-{node}" for node in range(2 // min(2, len(names)))),
            intra_node=IntraNodeSpec(bandwidth_gBps=draw.choice([64, 300])),
            nics=(NicSpec(fabric="eth", bandwidth_gbps=draw.choice([5, 25, 100])),),
        )
        for number, name in enumerate(names)
    )
    return cluster(*pools, gpus=gpus).model_copy(update={"reserve_gib": 0.5}), model, calibration


def with_copies(seed: int) -> Problem:
    """Small nodes, fast inside and slow between, with room for stages of two groups that share a copy of the states."""
    spec, model, calibration = with_constants(seed)
    draw = random.Random(seed + 77)
    names = sorted(spec.gpus)
    gpus = {
        name: gpu.model_copy(
            update={"memory_gib": draw.choice([2, 3, 4, 8]), "tflops": {"fp16": draw.choice([2, 5, 10])}}
        )
        for name, gpu in spec.gpus.items()
    }
    one = [((2, 4),), ((2, 5),), ((4, 2),), ((4, 4),), ((1, 8),), ((3, 4),)]
    shapes = draw.choice([*one, ((2, 4), (2, 2)), ((2, 4), (1, 4)), ((4, 2), (2, 4)), ((2, 4), (2, 4))])
    pools = tuple(
        PoolSpec(
            name=f"pool-{number}",
            devices=(names[number % len(names)],) * per_node,
            hosts=tuple(f"{number}-{node}" for node in range(nodes)),
            intra_node=IntraNodeSpec(bandwidth_gBps=draw.choice([64, 300])),
            nics=(NicSpec(fabric="eth", bandwidth_gbps=draw.choice([2, 5, 25, 100])),),
        )
        for number, (per_node, nodes) in enumerate(shapes)
    )
    training = model.training.model_copy(update={"global_batch": draw.choice([4, 8, 12, 16])})
    model = model.model_copy(update={"layers": draw.choice([2, 3]), "training": training})
    return cluster(*pools, gpus=gpus).model_copy(update={"reserve_gib": 0.5}), model, calibration


def with_lone_nodes(seed: int) -> Problem:
    """Two nodes that reach each other by Ethernet, which is wide there, and those of the other pool by RDMA."""
    _, model = small_problem(seed)
    draw = random.Random(seed + 25)
    counts, wide = draw.choice([(1, 2), (1, 3), (2, 2)]), draw.choice([25, 100])
    cards = (("ib", 200.0), ("eth", draw.choice([1.0, 10.0]))), (("eth", wide), ("ib", 0.8 * wide))
    pools = tuple(
        PoolSpec(
            name=name,
            devices=(name,) * count,
            hosts=tuple(f"{name}{index}" for index in range(nodes)),
            intra_node=IntraNodeSpec(bandwidth_gBps=draw.choice([12, 300])),
            nics=tuple(NicSpec(fabric=fabric, bandwidth_gbps=rate) for fabric, rate in both),
        )
        for name, count, nodes, both in zip("AB", counts, (1, 2), cards, strict=True)
    )
    gpus = {
        name: GpuSpec(name=name, memory_gib=memory, memory_bandwidth_gBps=900, tflops={"fp16": peak})
        for name, memory, peak in (("A", draw.choice([2, 3, 4]), 125), ("B", 16, draw.choice([30, 65])))
    }
    found = model.model_copy(update={"layers": draw.randint(3, 5), "vocab": draw.choice([1000, 50000])})
    return cluster(*pools, gpus=gpus).model_copy(update={"reserve_gib": 0.5}), found, ASSUMED


def small_pool(number: int, shape: tuple[int, int, int], names: Sequence[str], cards: NicSpec) -> PoolSpec:
    """A pool by (index of its device type, devices of a node, nodes)."""
    kind, per_node, nodes = shape
    return PoolSpec(
        name=f"pool-{number}",
        devices=(names[kind],) * per_node,
        hosts=tuple(f"{number}-{node}" for node in range(nodes)),
        intra_node=IntraNodeSpec(bandwidth_gBps=64),
        nics=(cards,),
    )


def with_small_nodes(seed: int) -> Problem:
    """Nodes of one or two slow devices with little memory on fast networks: replicas on several are worth it."""
    spec, model, calibration = with_constants(seed)
    draw = random.Random(seed + 11)
    names = sorted(spec.gpus)
    gpus = {
        name: gpu.model_copy(
            update={"memory_gib": draw.choice([2, 3, 4]), "tflops": {"fp16": draw.choice([2, 5, 10])}}
        )
        for name, gpu in spec.gpus.items()
    }
    shapes = [[(0, 1, 4)], [(0, 2, 2)], [(0, 1, 2), (-1, 2, 1)], [(0, 1, 2), (0, 1, 2)], [(0, 1, 3)]]
    fabric = draw.choice(["ib", "eth"])
    cards = NicSpec(fabric=fabric, bandwidth_gbps=100, count=2)
    pools = [small_pool(*each, names, cards) for each in enumerate(draw.choice(shapes))]
    if draw.random() < 0.3:
        pools[-1] = pools[-1].model_copy(
            update={"nics": (NicSpec(fabric=fabric, bandwidth_gbps=draw.choice([10, 400])),)}
        )
    return cluster(*pools, gpus=gpus).model_copy(update={"reserve_gib": 0.5}), model, calibration


def with_racks(seed: int) -> Problem:
    """Nodes of small devices that NVLink joins to others, those of a pool or all, beside slower cards."""
    spec, model, calibration = (with_small_nodes, with_fast_nodes, with_experts, with_replicas)[seed % 4](
        seed
    )
    draw = random.Random(seed + 14)
    names = {pool.name: draw.choice(["rack", f"rack-{pool.name}", ""]) for pool in spec.pools}
    pools = [
        pool.model_copy(
            update={
                "nics": (
                    *pool.nics,
                    *(
                        NicSpec(
                            fabric=name, bandwidth_gbps=draw.choice([200, 2400]), count=draw.randint(1, 2)
                        )
                        for name in (names[pool.name],)
                        if name
                    ),
                )
            }
        )
        for pool in spec.pools
    ]
    kinds = {name: "nvlink" for name in names.values() if name}
    return (
        cluster(*pools, gpus=spec.gpus, fabrics=kinds).model_copy(update={"reserve_gib": 0.5}),
        model,
        calibration,
    )


def with_replicas(seed: int) -> Problem:
    """Nodes of two, three or four devices of two types, whose memory often takes two of them for the model."""
    spec, model, calibration = with_constants(seed)
    draw = random.Random(seed + 13)
    names = sorted(spec.gpus)
    gpus = {
        name: spec.gpus[name].model_copy(
            update={"memory_gib": draw.choice([2, 3, 4, 8]), "tflops": {"fp16": draw.choice([5, 10, 30])}}
        )
        for name in names
    }
    shapes = [[(2, 1), (2, 1)], [(2, 2), (2, 1)], [(4, 1), (2, 1)], [(3, 1), (2, 2)], [(4, 1), (4, 1)]]
    pools = [
        PoolSpec(
            name=f"pool-{number}",
            devices=(names[number % len(names)],) * per_node,
            hosts=tuple(f"{number}-{node}" for node in range(nodes)),
            intra_node=IntraNodeSpec(bandwidth_gBps=draw.choice([12, 64, 300])),
            nics=(NicSpec(fabric="ib", bandwidth_gbps=draw.choice([10, 100, 400])),),
        )
        for number, (per_node, nodes) in enumerate(draw.choice(shapes))
    ]
    batch = draw.choice([1, 3, 5, 6])
    return (
        cluster(*pools, gpus=gpus).model_copy(update={"reserve_gib": 0.5}),
        model.trained_with(global_batch=batch),
        calibration,
    )


def with_experts(seed: int) -> Problem:
    """Experts of every kind, on nodes that are fast inside now and then, so that dividing them is worth it or not."""
    spec, model, calibration = with_fast_nodes(seed) if seed % 2 else with_constants(seed)
    draw = random.Random(seed + 7)
    number = draw.choice([2, 3, 4, 4, 8])
    experts = ExpertsSpec(
        number=number,
        top_k=draw.randint(1, min(2, number)),
        ffn=draw.choice([512, 1024, 2000]),
        shared_ffn=draw.choice([0, 0, 512]),
        router_bias=draw.random() < 0.3,
        bias=draw.random() < 0.3,
        capacity_factor=draw.choice([None, None, 0.5, 1.25]),
        imbalance=draw.choice([None, 1.0, 1.5]),
    )
    gpus = {
        name: gpu.model_copy(update={"memory_gib": draw.choice([2, 3, 4, 6, 16])})
        for name, gpu in spec.gpus.items()
    }
    window = {"window": draw.choice([None, 128]), "window_layers": draw.choice([None, 1])}
    more = random.Random(seed + 8)
    if window["window"] is None and more.random() < 0.4:
        window["dense_layers"] = more.randint(1, 3)
    window["mlp_bias"] = experts.bias
    found = model.model_copy(update={"experts": experts, "layers": min(model.layers, 4), **window})
    return spec.model_copy(update={"gpus": gpus}), found, calibration


def with_unlike_layers(seed: int) -> Problem:
    """Blocks of layers with attention, states, feed-forwards and experts, and now and then others at either end."""
    spec, model, calibration = with_experts(seed)
    draw = random.Random(seed + 13)
    states: tuple[StateKind, ...] = ("mamba2", "delta", "mamba", "conv")
    kind = draw.choice(states)
    many = kind in ("mamba2", "delta")
    heads = draw.choice([2, 4])
    state = StateSpec(
        kind=kind,
        heads=heads if many else 1,
        head_dim=model.hidden // heads if many else model.hidden,
        size=draw.choice([16, 64]) if kind != "conv" else 1,
        rank=16 if kind == "mamba" else None,
        chunk=draw.choice([32, 64]),
    )
    usual = draw.random() < 0.4
    mixers: tuple[Mixer, ...] = ("attention",) if usual else ("attention", "state", "both", "none")

    def runs(most: int) -> tuple[RunSpec, ...]:
        found = []
        for _ in range(draw.randint(1, most)):
            mixer = draw.choice(mixers)
            feeds: list[FeedForwardKind] = ["dense", "experts"]
            feeds += ["none"] if mixer != "none" and not usual else []
            found.append(RunSpec(layers=draw.randint(1, 2), mixer=mixer, feed_forward=draw.choice(feeds)))
        return tuple(found)

    blocks: dict[str, Any] = {
        "block": runs(3),
        "ahead": draw.choice([None, runs(2)]),
        "behind": draw.choice([None, runs(1)]),
        "layers": draw.randint(1, 3),
        "state": state,
    }
    if draw.random() < 0.4:
        images: dict[str, Any] = {"tokens": 64, "outputs": 16, "merged": 4, "images": draw.randint(1, 3)}
        width = draw.choice([256, 1024])
        sizes: dict[str, Any] = {
            "layers": draw.choice([2, 8]),
            "hidden": width,
            "heads": 4,
            "ffn": 4 * width,
            "patch": 588,
        }
        projector = (4 * width, model.hidden)
        blocks["tower"] = TowerSpec(projector=projector, frozen=draw.random() < 0.5, **sizes, **images)
        if draw.random() < 0.5:
            blocks |= {"block": None, "ahead": None, "behind": None, "state": None, "experts": None}
    plain = {"dense_layers": 0, "window": None, "window_layers": None}
    return spec, model.model_copy(update={**blocks, **plain}), calibration


def with_stacked_layers(seed: int) -> Problem:
    """The same as Megatron has them, with states whose heads and groups tensor parallelism divides or not.

    Mixers and feed-forwards of Mamba 2 may stand on their own, gated delta rules stand in place of attention.
    """
    spec, model, calibration = with_unlike_layers(seed)
    draw = random.Random(seed + 31)
    heads, delta = draw.choice([2, 4]), draw.random() < 0.4
    state = StateSpec(
        kind="delta" if delta else "mamba2",
        heads=heads,
        head_dim=model.hidden // heads,
        size=draw.choice([16, 64]),
        groups=draw.choice([1, 2, heads]),
        chunk=draw.choice([32, 64]),
    )

    def alone(runs: tuple[RunSpec, ...] | None) -> tuple[RunSpec, ...] | None:
        made = []
        for run in runs or ():
            mixer = "state" if run.mixer == "both" or (delta and run.mixer == "none") else run.mixer
            feeds = "dense" if delta and run.feed_forward == "none" else run.feed_forward
            made.append(run.model_copy(update={"mixer": mixer, "feed_forward": feeds}))
        return tuple(made) or None

    first = RunSpec(mixer="state", feed_forward="dense" if delta else "none")
    own = (first, *(alone(model.block) or (RunSpec(),)))
    ends = {"ahead": alone(model.ahead), "behind": alone(model.behind)}
    update = {"tower": None, "state": state, "block": own, "sinks": False, "qk_norm": False, **ends}
    return spec, model.model_copy(update=update), calibration


def with_beside(seed: int) -> Problem:
    """Matrices beside the layers, one or several, a few small ones or as much work as many layers; some are untied.

    Now and then ahead of layers with experts, and of blocks of unlike layers.
    """
    worlds = (with_constants, with_fast_nodes, with_experts, with_unlike_layers)
    spec, model, calibration = worlds[seed % 4](seed)
    draw = random.Random(seed + 23)
    length = model.training.sequence_length

    def product() -> ProductSpec:
        return ProductSpec(
            inputs=draw.choice([48, 250, 768, 1536]),
            outputs=draw.choice([64, 500, 1024, 3072]),
            tokens=draw.choice([1, 77, 250, length, 2 * length]),
            times=draw.choice([1, 1, 4, 24]),
            bias=draw.random() < 0.5,
            weights=draw.random() < 0.75,
        )

    changes: dict[str, Any] = {
        "beside": tuple(product() for _ in range(draw.choice([1, 1, 2, 5]))),
        "other_parameters": draw.choice([0, 0, 1_000_000]),
        "tied_embeddings": draw.random() < 0.3,
    }
    if model.experts is not None:
        # Torch drops no tokens.
        changes["experts"] = model.experts.model_copy(update={"capacity_factor": None})
    return spec, model.model_copy(update=changes), calibration


def with_unlike_sizes(seed: int) -> Problem:
    """Runs of layers with heads, feed-forwards, windows and projections of their own, and experts of another width.

    Matrices beside them now and then.
    """
    spec, model, calibration = with_unlike_layers(seed)
    draw = random.Random(seed + 31)

    def own(run: RunSpec) -> RunSpec:
        heads, width = draw.choice([None, 4, 12]), draw.choice([None, 32, 96])
        inner = (heads or model.heads) * (width or model.head_dim)
        low: Projections = (
            (model.hidden, 200, "nothing"),
            (200, 3 * inner, "columns"),
            (inner, model.hidden, "rows"),
        )
        return run.model_copy(
            update={
                "heads": heads,
                "kv_heads": draw.choice([4, heads]) if heads else None,
                "head_dim": width,
                "ffn": draw.choice([None, 256, 1000, 6000]),
                "window": draw.choice([None, 0, 64, 128]),
                "attention_other": draw.choice([None, 100_000]),
                "projections": low if draw.random() < 0.3 else None,
                "value_dim": draw.choice([None, None, 0, 48]),
            }
        )

    parts = {name: getattr(model, name) for name in ("block", "ahead", "behind")}
    changes: dict[str, Any] = {name: tuple(map(own, runs)) for name, runs in parts.items() if runs}
    if model.experts is not None:
        experts = {"capacity_factor": None, "hidden": draw.choice([None, 128, 1000])}
        changes["experts"] = model.experts.model_copy(update=experts)
    if draw.random() < 0.4:
        changes["beside"] = with_beside(seed)[1].beside
    return spec, model.model_copy(update=changes), calibration


def with_further_tokens(seed: int) -> Problem:
    """Modules that predict further tokens on the last stage, with experts now and then, and untied embeddings."""
    spec, model, calibration = with_experts(seed)
    draw = random.Random(seed + 19)
    training = model.training.model_copy(update={"mtp_layers": draw.choice([1, 1, 2])})
    changes = {"training": training, "learned_positions": 0, "tied_embeddings": draw.random() < 0.5}
    dense = {"experts": None, "dense_layers": 0} if draw.random() < 0.3 else {}
    return spec, model.model_copy(update={**changes, **dense}), calibration


def with_encoders(seed: int) -> Problem:
    """Decoders that attend to an encoder, of its width or another, with experts and a front now and then."""
    spec, model, calibration = with_experts(seed)
    draw = random.Random(seed + 17)
    feeds: list[FeedForwardKind] = ["dense", "experts"] if draw.random() < 0.4 else ["dense"]
    length = draw.choice([64, 256, 1024])
    width = draw.choice([None, 256, 1024])
    front = (FrontSpec(inputs=240, outputs=width or model.hidden, tokens=2 * length),)
    encoder = EncoderSpec(
        layers=draw.choice([1, 4, 12]),
        sequence_length=length,
        hidden=width,
        heads=4 if width else None,
        ffn=draw.choice([None, 512, 4096]),
        block=tuple(RunSpec(feed_forward=each) for each in feeds) if draw.random() < 0.5 else None,
        front=front if draw.random() < 0.5 else (),
    )
    decoded = [RunSpec(feed_forward="none"), *(RunSpec(mixer="cross", feed_forward=each) for each in feeds)]
    changes: dict[str, Any] = {
        "encoder": encoder,
        "block": tuple(decoded),
        "layers": draw.randint(1, 3),
        "experts": model.experts if len(feeds) > 1 else None,
        "relative_positions": draw.choice([0, 32]),
    }
    plain = {"dense_layers": 0, "window": None, "window_layers": None}
    return spec, model.model_copy(update={**changes, **plain}), calibration


def with_long_sequences(seed: int) -> Problem:
    """Sequences of which a device has not room for all now and then, and heads that divide by several degrees."""
    spec, model, calibration = with_fast_nodes(seed) if seed % 2 else with_constants(seed)
    draw = random.Random(seed + 9)
    training = {
        "sequence_length": draw.choice([4096, 8192, 16384, 32768]),
        "global_batch": draw.choice([2, 3, 4]),
        "attention": "flash",
    }
    gpus = {
        name: gpu.model_copy(
            update={
                "memory_gib": draw.choice([4, 6, 8, 16]),
                "compute_capability": draw.choice([None, 7.5, 8.0, 9.0, 9.0]),
            }
        )
        for name, gpu in spec.gpus.items()
    }
    changes = {
        "layers": min(model.layers, 4),
        "kv_heads": draw.choice([model.heads, 2]),
        "window": draw.choice([None, None, 1024]),
        "training": model.training.model_copy(update=training),
    }
    return spec.model_copy(update={"gpus": gpus}), model.model_copy(update=changes), calibration


def with_long_states(seed: int) -> Problem:
    """Such sequences in layers of which only some attend, and others carry a state whose heads replicas may share."""
    spec, model, calibration = with_long_sequences(seed)
    draw = random.Random(seed + 23)
    kinds: tuple[StateKind, ...] = ("mamba2", "delta", "conv")
    kind = draw.choice(kinds)
    heads = 1 if kind == "conv" else draw.choice([2, 4, 8])
    state = StateSpec(
        kind=kind,
        heads=heads,
        head_dim=model.hidden // heads,
        size=1 if kind == "conv" else 64,
        groups=draw.choice([groups for groups in (1, 2, 4) if groups <= heads]),
        chunk=64,
    )
    changes = {
        "layers": min(model.layers, 3),
        "block": (RunSpec(mixer="state"), RunSpec()),
        "state": state,
        "window": None,
        "window_layers": None,
    }
    return spec, model.model_copy(update=changes), calibration


def with_long_documents(seed: int) -> Problem:
    """Such sequences filled with documents, some of which are longer than a part."""
    spec, model, calibration = with_long_sequences(seed)
    documents = DocumentsSpec(mean_length=(500, 4000, 20_000)[seed % 3], spread=seed % 2)
    return spec, model.trained_with(documents=documents), calibration


def with_user_buffers(seed: int) -> Problem:
    """Devices whose products hide tensor-parallel traffic, of a backward or of both directions."""
    spec, model, calibration = with_fast_nodes(seed) if seed % 2 else with_constants(seed)
    draw = random.Random(seed + 19)
    gpus = {
        name: gpu.model_copy(
            update={
                "memory_gib": draw.choice([6, 10, 24]),
                "compute_capability": draw.choice([8.0, 9.0, 9.0]),
            }
        )
        for name, gpu in spec.gpus.items()
    }
    training = {
        "sequence_length": draw.choice([256, 1024, 4096]),
        "global_batch": draw.choice([2, 3, 4]),
        "attention": "flash",
    }
    changes = {
        "layers": min(model.layers, 4),
        "training": model.training.model_copy(update=training),
    }
    return spec.model_copy(update={"gpus": gpus}), model.model_copy(update=changes), calibration


def with_unequal_steps(seed: int) -> Problem:
    """Pools of two or three devices that hold the model's states together, and batches that few widths divide."""
    spec, model, calibration = with_constants(seed)
    draw = random.Random(seed + 18)
    training = model.training.model_copy(update={"global_batch": draw.choice([9, 11, 13])})
    changes = {"layers": draw.choice([2, 3]), "tied_embeddings": False, "training": training}
    model = model.model_copy(update=changes)
    counts = draw.choice([(2, 2), (3, 3), (2, 2), (4, 0)])
    each = draw.choice([8.0, 10.0, 12.0]) * model.parameters / 2**30
    usual = next(iter(spec.gpus.values()))
    gpus = {
        name: spec.gpus.get(name, usual).model_copy(update={"name": name, "memory_gib": each + 0.7})
        for name in "AB"
    }
    pools = (_small_pool(draw, name, count) for name, count in zip("AB", counts, strict=True) if count)
    return cluster(*pools, gpus=gpus).model_copy(update={"reserve_gib": 0.0}), model, calibration


def with_tight_memories(seed: int) -> Problem:
    """Two or three devices of two types whose memories hold the model's states together, and not much besides."""
    spec, model, calibration = with_constants(seed)
    draw = random.Random(seed + 17)
    counts = draw.choice([(1, 1), (1, 1), (1, 2), (2, 1)])
    batch = 4 if sum(counts) == 2 else draw.choice([3, 4])
    training = model.training.model_copy(update={"global_batch": batch})
    model = model.model_copy(update={"training": training})
    each = 16.0 * model.parameters / sum(counts) / 2**30
    usual = next(iter(spec.gpus.values()))
    gpus = {
        name: spec.gpus.get(name, usual).model_copy(
            update={
                "name": name,
                "memory_gib": draw.choice([0.6, 1.0, 1.5, 2.5]) * each + draw.choice([0.4, 0.8, 1.6]),
                "tflops": {"fp16": draw.choice([2, 10, 30])},
            }
        )
        for name in "AB"
    }
    pools = tuple(_small_pool(draw, name, count) for name, count in zip("AB", counts, strict=True))
    chosen = cluster(*pools, gpus=gpus).model_copy(update={"reserve_gib": 0.0})
    return chosen, model, calibration


def with_islands(seed: int) -> Problem:
    """Two or three pools of one or two devices, of any types, on fast networks of their own with slow links between."""
    spec, model, calibration = with_constants(seed)
    draw = random.Random(seed + 11)
    gpus = {
        name: gpu.model_copy(
            update={
                "memory_gib": draw.choice([4, 8, 16]),
                "tflops": {"bf16": draw.choice([1, 2, 10])},
                "host_link_gBps": draw.choice([None, 8, 32]),
            }
        )
        for name, gpu in spec.gpus.items()
    }
    names = draw.choices(sorted(gpus), k=draw.choice([2, 3, 3]))
    gpus = {name: gpus[name] for name in sorted({*names})}
    room = 4
    pools = []
    for number, name in enumerate(names):
        devices = draw.randint(1, min(2, room - (len(names) - number - 1)))
        room -= devices
        fabrics = draw.choice([("lan",), ("lan", "rdma")])
        pools.append(
            PoolSpec(
                name=f"site-{number}",
                devices=(name,),
                hosts=tuple(f"{number}-{node}" for node in range(devices)),
                intra_node=IntraNodeSpec(bandwidth_gBps=64),
                nics=tuple(
                    NicSpec(fabric=f"{each}-{number}", bandwidth_gbps=25 if each == "lan" else 100)
                    for each in fabrics
                ),
            )
        )
    links = tuple(
        FabricLinkSpec(
            between=(f"lan-{number}", f"lan-{number + 1}"),
            bandwidth_gbps=draw.choice([1, 5, 20, 20]),
            latency_us=draw.choice([50, 5000]),
        )
        for number in range(len(names) - 1)
    )
    found = cluster(*pools, gpus=gpus, links=links, fabrics={f"rdma-{n}": "roce" for n in range(len(names))})
    kept = {nic.fabric for pool in pools for nic in pool.nics}
    fabrics_of = {name: fabric for name, fabric in found.fabrics.items() if name in kept}
    training = model.training.model_copy(update={"precision": "bf16", "global_batch": draw.choice([3, 4, 5])})
    changed = {"reserve_gib": 0.5, "fabrics": fabrics_of}
    # Proofs leave out that replicas of an island keep step where nothing hides their reductions.
    torch = replace(calibration.frameworks["torch"], overlap=draw.choice([0.3, 1.0]))
    calibration = replace(calibration, frameworks={**calibration.frameworks, "torch": torch})
    return found.model_copy(update=changed), model.model_copy(update={"training": training}), calibration


def with_grids(seed: int) -> Problem:
    """Four to eight slow devices with little memory, on nodes that are fast inside, and a model that squares divide."""
    spec, model, calibration = with_constants(seed)
    draw = random.Random(seed + 12)
    names = sorted(spec.gpus)
    gpus = {
        name: gpu.model_copy(
            update={"memory_gib": draw.choice([1.2, 1.5, 2, 4]), "tflops": {"fp16": draw.choice([2, 10, 40])}}
        )
        for name, gpu in spec.gpus.items()
    }
    pools = []
    for number, name in enumerate(names):
        first = [(1, 4), (2, 2), (4, 2), (2, 4), (4, 1)]
        nodes, per_node = draw.choice(first if number == 0 else [(1, 1), (2, 1), (1, 4)])
        pools.append(
            PoolSpec(
                name=f"pool-{number}",
                devices=(name,) * per_node,
                hosts=tuple(f"{number}-{node}" for node in range(nodes)),
                intra_node=IntraNodeSpec(bandwidth_gBps=draw.choice([64, 300]), shared=draw.random() < 0.3),
                nics=(NicSpec(fabric="eth", bandwidth_gbps=draw.choice([25, 100, 400])),),
            )
        )
    batch = draw.choice([4, 6, 8])
    training = model.training.model_copy(update={"global_batch": batch})
    model = model.model_copy(update={"layers": min(model.layers, 3), "training": training})
    return cluster(*pools, gpus=gpus).model_copy(update={"reserve_gib": 0.2}), model, calibration


def with_hosts(seed: int) -> Problem:
    """Little memory on the devices, and hosts with more or less of it behind links of any speed."""
    spec, model, calibration = with_constants(seed)
    draw = random.Random(seed + 8)
    gpus = {
        name: gpu.model_copy(update={"memory_gib": draw.choice([1.2, 1.6, 2, 3])})
        for name, gpu in spec.gpus.items()
    }
    return _on_hosts(spec.model_copy(update={"gpus": gpus}), draw), model, calibration


def with_adapters(seed: int) -> Problem:
    """Adapters alone are trained, now and then on four bits, or some parts."""
    spec, model, calibration = (with_constants, with_hosts, with_fast_nodes)[seed % 3](seed)
    draw = random.Random(seed + 21)
    bases: tuple[Literal["nf4"] | None, ...] = (None, None, "nf4")
    lora = LoraSpec(rank=draw.choice([4, 64]), base=draw.choice(bases))
    changes: dict[str, Any] = {"lora": lora, "optimizer": draw.choice(["adamw", "sgd"])}
    if draw.random() < 0.4:
        frozen = draw.sample(
            ["embedding", "head", draw.choice(["attention", "mlp"]), "norms"], draw.randint(1, 3)
        )
        changes |= {"lora": None, "freeze": tuple(frozen)}
    training = model.training.model_copy(update=changes)
    return spec, model.model_copy(update={"training": training}), calibration


def with_four_bits(seed: int) -> Problem:
    """Adapters on four bits where little memory calls for codes in shards, on the devices or on their hosts."""
    spec, model, calibration = with_adapters(3 * seed + 1)
    draw = random.Random(seed + 53)
    gpus = {
        name: gpu.model_copy(update={"memory_gib": draw.choice([0.2, 0.25, 0.3, 0.35, 0.5])})
        for name, gpu in spec.gpus.items()
    }
    pools = tuple(item.model_copy(update={"reserve_gib": 0.0}) for item in spec.pools)
    bases: tuple[Literal["nf4", "nf4-double"], ...] = ("nf4", "nf4-double")
    lora = LoraSpec(rank=draw.choice([4, 64]), base=draw.choice(bases))
    trained = model.trained_with(lora=lora, freeze=())
    return spec.model_copy(update={"gpus": gpus, "pools": pools}), trained, calibration


def with_adapters_of_unlike_layers(seed: int) -> Problem:
    """Blocks of unlike layers, of several sizes, towers and encoders, with adapters beside some kinds of products, or
    with frozen parts; something of every kind of layers is trained."""
    spec, model, calibration = (with_unlike_layers, with_unlike_sizes, with_encoders)[seed % 3](seed)
    draw = random.Random(seed + 37)
    if model.experts is not None:
        # Torch drops no tokens.
        routed = model.experts.model_copy(update={"capacity_factor": None})
        model = model.model_copy(update={"experts": routed})
    bases: tuple[Literal["nf4"] | None, ...] = (None, "nf4")
    names = get_args(AdapterTarget)
    ways: list[dict[str, Any]] = [
        {"lora": LoraSpec(rank=draw.choice([4, 64]), base=draw.choice(bases), targets=targets)}
        for targets in (tuple(draw.sample(names, 5)), None)
    ]
    for parts in (["embedding", "head", "attention", "norms"], ["embedding", "mlp", "head"], ["embedding"]):
        ways.append({"freeze": tuple(draw.sample(parts, draw.randint(1, len(parts))))})
    draw.shuffle(ways)
    changed = (model.trained_with(**way) for way in ways)
    fits = (each for each in changed if all(kind.trained_layer_parameters for kind in each.trained_kinds))
    return spec, next(fits), calibration


def with_late_messages(seed: int) -> Problem:
    """Messages that take up to milliseconds a hop, in nodes too; adapters in one of three problems."""
    spec, model, calibration = (with_adapters, with_constants, with_replicas)[seed // 9 % 3](seed)
    draw = random.Random(seed + 41)
    times = draw.choice([10, 100, 1000])
    fabrics = {
        name: fabric.model_copy(update={"latency_us": min(1e4, times * fabric.latency_us)})
        for name, fabric in spec.fabrics.items()
    }
    pools = []
    for item in spec.pools:
        wire = item.intra_node
        late = wire.model_copy(update={"latency_us": draw.choice([1, times]) * wire.latency_us})
        pools.append(item.model_copy(update={"intra_node": late}))
    return spec.model_copy(update={"fabrics": fabrics, "pools": tuple(pools)}), model, calibration


def with_all_at_once(seed: int) -> Problem:
    """Long sequences or experts, now and then adapters or a frozen part, on devices that have hosts."""
    draw = random.Random(seed + 11)
    spec, model, calibration = (with_long_sequences, with_experts)[draw.random() < 0.5](seed)
    trained: dict[str, Any] = {}
    if draw.random() < 0.5 and not model.dense_layers:
        bases: tuple[Literal["nf4"] | None, ...] = (None, "nf4")
        lora = LoraSpec(rank=draw.choice([4, 16]), base=draw.choice(bases))
        trained = draw.choice([{"lora": lora}, {"freeze": ("embedding", "attention")}])
    training = model.training.model_copy(update=trained)
    return _on_hosts(spec, draw), model.model_copy(update={"training": training}), calibration


def with_long_sequences_on_hosts(seed: int) -> Problem:
    """Long sequences of a model whose states have little room beside their activations, on devices that have hosts."""
    spec, model, calibration = with_long_sequences(seed)
    draw = random.Random(seed + 29)
    gpus = {
        name: gpu.model_copy(
            update={"memory_gib": draw.choice([2, 3, 4, 6]), "compute_capability": draw.choice([8.0, 9.0])}
        )
        for name, gpu in spec.gpus.items()
    }
    model = model.model_copy(update={"ffn": draw.choice([4, 8, 16]) * model.hidden, "window": None})
    return _on_hosts(spec.model_copy(update={"gpus": gpus}), draw), model, calibration


def _on_hosts(spec: ClusterSpec, draw: random.Random) -> ClusterSpec:
    pools = tuple(
        item.model_copy(
            update={
                "host": HostSpec(
                    link_gBps=draw.choice([1, 6, 12, 50]),
                    memory_gib=draw.choice([None, 4, 16, 64]),
                    adam_billion_per_s=draw.choice([None, 0.05, 1, 10]),
                    nvme_gBps=draw.choice([None, 2, 10, 10]),
                )
            }
        )
        for item in spec.pools
    )
    return spec.model_copy(update={"pools": pools})


def with_odd_nodes(seed: int) -> Problem:
    """Nodes of 2 to 7 devices, perhaps of two types, up to 12 devices of a type, fabrics that only a link may join.

    Wires inside nodes are now and then slower than the cards, and some pools are alike.
    """
    draw = random.Random(seed)
    gpus = {
        name: GpuSpec(
            name=name,
            memory_gib=draw.choice([2, 4, 8, 24]),
            memory_bandwidth_gBps=draw.choice([320, 900, 2000]),
            tflops={"fp16": draw.choice([5, 30, 100])},
        )
        for name in "AB"
    }
    pools: list[PoolSpec] = []
    for number in range(draw.choice([1, 1, 2, 2, 3])):
        if pools and draw.random() < 0.3:
            again = {
                "name": f"p{number}",
                "hosts": tuple(f"{number}-{node}" for node in range(draw.choice([1, 2]))),
            }
            pools.append(pools[-1].model_copy(update=again))
        else:
            pools.append(_odd_pool(number, draw))
    fabrics = {nic.fabric for item in pools for nic in item.nics}
    links = (FabricLinkSpec(between=("eth", "roce"), bandwidth_gbps=draw.choice([1, 25]), latency_us=20),)
    used = {name: gpus[name] for item in pools for name in item.devices}
    spec = cluster(*pools, gpus=used, links=links if len(fabrics) > 1 and draw.random() < 0.7 else ())
    device_types = sum(len(set(item.devices)) for item in pools)
    model = gpt(
        layers=draw.randint(2, 4 if device_types < 3 else 3 if device_types == 3 else 2),
        hidden=draw.choice([512, 1024, 2048]),
        heads=draw.choice([4, 6, 10]),
        global_batch=draw.choice([3, 4, 5, 6, 7, 8, 9, 10, 12]),
        vocab=draw.choice([1000, 32000]),
        sequence_length=draw.choice([256, 1024]),
    ).model_copy(update={"tied_embeddings": draw.random() < 0.5, "ffn": 1920})
    return spec.model_copy(update={"reserve_gib": 0.5}), model, ASSUMED


def with_devices_left_over(seed: int) -> Problem:
    """Nodes of 3, 5 or 7 devices, which stages of two replicas do not fill, and perhaps a node of another type.

    Wires inside nodes are as often slower than the cards as faster.
    """
    draw = random.Random(seed)
    gpus = {
        name: GpuSpec(
            name=name,
            memory_gib=draw.choice([2, 4, 24]),
            memory_bandwidth_gBps=draw.choice([320, 2000]),
            tflops={"fp16": draw.choice([5, 30, 100])},
        )
        for name in "AB"
    }
    size, nodes = draw.choice([(3, 2), (3, 2), (3, 3), (3, 4), (5, 2), (7, 2)])
    pools = [
        PoolSpec(
            name=name,
            devices=(gpu,) * each,
            hosts=tuple(f"{name}-{node}" for node in range(count)),
            intra_node=IntraNodeSpec(bandwidth_gBps=draw.choice([1, 8, 64]), shared=draw.random() < 0.5),
            nics=(NicSpec(fabric="eth", bandwidth_gbps=draw.choice([2, 25, 400])),),
        )
        for name, gpu, each, count in (("p", "A", size, nodes), ("q", "B", draw.choice([1, 2]), 1))
    ]
    pools = pools[: draw.choice([1, 1, 2])]
    spec = cluster(*pools, gpus={name: gpus[name] for name in "AB"[: len(pools)]})
    model = gpt(
        layers=draw.choice([3, 4, 4, 5]),
        hidden=draw.choice([512, 2048]),
        heads=4,
        global_batch=draw.choice([2, 4, 6, 12]),
        vocab=draw.choice([500, 8000]),
        sequence_length=draw.choice([256, 1024]),
    ).model_copy(update={"tied_embeddings": draw.random() < 0.5})
    return spec.model_copy(update={"reserve_gib": 0.5}), model, ASSUMED


def _odd_pool(number: int, draw: random.Random) -> PoolSpec:
    device_type = draw.choice("AB")
    size = draw.choice([2, 3, 3, 5, 5, 6, 7])
    devices = (device_type,) * size
    if draw.random() < 0.2:
        devices = (*devices[1:], "B" if device_type == "A" else "A")
    return PoolSpec(
        name=f"p{number}",
        devices=devices,
        hosts=tuple(f"{number}-{node}" for node in range(draw.choice([1, 2, 2, 3, 4][: max(1, 12 // size)]))),
        intra_node=IntraNodeSpec(bandwidth_gBps=draw.choice([2, 64, 300]), shared=draw.random() < 0.3),
        nics=tuple(
            NicSpec(fabric=fabric, bandwidth_gbps=draw.choice([10, 100, 400]))
            for fabric in draw.choice([("eth",), ("eth",), ("roce",), ("eth", "roce")])
        ),
    )


def with_measurements(seed: int) -> Problem:
    """Layers measured on one of the devices, and curves of some links."""
    spec, model, calibration = with_constants(seed)
    draw = random.Random(seed + 3)
    name = draw.choice(sorted(spec.gpus))
    forward, kept = draw.choice([1e-4, 1e-3, 1e-2]), draw.choice([None, 1e7])
    layers = tuple(
        LayerPoint(
            gpu=name,
            model=model.name,
            tp=1,
            micro_batch=size,
            forward_seconds=forward * (1 + size),
            backward_seconds=2 * forward * (1 + size),
            activation_bytes=kept and kept * size,
        )
        for size in (1, 2, 4)
    )
    points = tuple(
        LinkPoint(
            link=link,
            operation=operation,
            members=members,
            size_bytes=size,
            seconds=(1e-4 + size / 1e9) * members / 2,
        )
        for link in ("eth", f"node:{name}")
        for operation in ("all-gather", "all-reduce", "send")
        if draw.random() < 0.6
        for members in ((2,) if operation == "send" or seed % 3 else (2, 4))
        for size in (1e5, 1e9)
    )
    if seed % 4 > 1:
        # Groups that share a card share its rate, or are as slow alone.
        slower = 1.1 if seed % 4 == 2 else 1.9
        shared = (replace(point, concurrent=2, seconds=slower * point.seconds) for point in points)
        points += tuple(point for point in shared if point.link == "eth")
    measured = Calibration(
        families=calibration.families,
        frameworks=calibration.frameworks,
        links=calibration.links,
        layers=layers,
        link_points=points,
    )
    return spec, model, measured


def _family(draw: random.Random) -> GpuFamily:
    return GpuFamily(
        matmul_efficiency=draw.choice([0.3, 0.75, 1.0]),
        attention_efficiency=draw.choice([0.2, 0.6]),
        memory_efficiency=draw.choice([0.5, 1.0]),
        kernel_seconds=draw.choice([1e-9, 5e-6, 1e-3]),
        launch_seconds=draw.choice([1e-9, 2e-5, 5e-4]),
        link_efficiency=draw.choice([0.3, 1.0]),
    )


def _framework(draw: random.Random) -> Framework:
    return Framework(
        host_factor=draw.choice([0.5, 1.0, 2.0]),
        overlap=draw.choice([0.0, 0.5, 1.0]),
        runtime_bytes=draw.choice([1.0, 1e9]),
        link_utilisation=draw.choice([0.3, 1.0]),
        micro_batch_launches=draw.choice([0.0, 10.0, 300.0]),
    )


def _link(draw: random.Random) -> Link:
    return Link(efficiency=draw.choice([0.3, 0.9]), rail=draw.choice([0.7, 1.0]))


def _rates(half: float) -> dict[str, float]:
    return {"fp16": half, "bf16": half, "fp8": 2 * half, "tf32": half / 2, "fp32": half / 16}


def with_slow_nodes(seed: int) -> Problem:
    """A model, or its adapters, on a few nodes that a slow network joins: neighbours had better share them."""
    spec, model, calibration = with_adapters(3 * seed)
    draw = random.Random(seed + 61)
    names = sorted(spec.gpus)
    gpus = {
        name: gpu.model_copy(update={"memory_gib": draw.choice([0.5, 1, 3]), "tflops": {"fp16": 20}})
        for name, gpu in spec.gpus.items()
    }
    shapes = [
        [(0, 2, 2)],
        [(0, 2, 3)],
        [(0, 2, 2), (-1, 1, 2)],
        [(0, 3, 2)],
        [(0, 2, 2), (-1, 2, 1)],
        [(0, 2, 2), (-1, 2, 2)],
        [(0, 2, 4)],
        [(0, 2, 1), (0, 2, 1)],
    ]
    pools = [
        small_pool(*each, names, NicSpec(fabric="eth", bandwidth_gbps=draw.choice([0.1, 1, 10])))
        for each in enumerate(draw.choice(shapes))
    ]
    slow = cluster(*pools, gpus=gpus).model_copy(update={"reserve_gib": 0.0})
    adapters = LoraSpec(rank=4) if draw.random() < 0.5 else None
    return slow, model.trained_with(lora=adapters, freeze=()), calibration
