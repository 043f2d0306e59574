"""Small plans on small clusters that use, taken together, every part of the cost model, as a user writes them.

What each costs is in ``tests/cost/prices.csv``; where its ranks stand, what could stand in its place and what may not
is in ``tests/plan/plans.csv`` and ``refusals.csv``. The programs beside these tables write them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from planner.calibration.values import (
    ASSUMED,
    Calibration,
    Framework,
    GpuFamily,
    Kernel,
    KernelPoint,
    LayerPoint,
    Link,
    LinkPoint,
    Operation,
)
from planner.catalog import GpuSpec
from planner.cluster.spec import (
    CacheSpec,
    ClusterSpec,
    FabricLinkSpec,
    FabricSpec,
    FeedSpec,
    HostSpec,
    PoolSpec,
)
from planner.files.document import Document
from planner.files.nodes import parse
from planner.model.spec import (
    DataSpec,
    DocumentsSpec,
    EncoderSpec,
    ExpertsSpec,
    FrontSpec,
    LatentSpec,
    LoraSpec,
    ModelSpec,
    PreferenceSpec,
    ProductSpec,
    RunSpec,
    StateSpec,
    TowerSpec,
    TrainingSpec,
)
from planner.plan.short import short_plan
from planner.plan.values import Plan
from tests.worlds import cluster, nic, pool

KINDS = {
    "H": GpuSpec(
        name="H",
        family="H",
        memory_gib=80,
        memory_bandwidth_gBps=3350,
        tflops={"bf16": 989, "fp16": 989, "fp8": 1979, "fp32": 67, "tf32": 495},
        multiprocessors=132,
        compute_capability=9.0,
        host_link_gBps=64,
        tdp_watts=700,
    ),
    "A": GpuSpec(
        name="A",
        family="A",
        memory_gib=40,
        memory_bandwidth_gBps=1555,
        tflops={"bf16": 312, "fp16": 312, "fp32": 19.5, "tf32": 156},
        multiprocessors=108,
        compute_capability=8.0,
        host_link_gBps=32,
        tdp_watts=400,
    ),
    "V": GpuSpec(
        name="V",
        family="V",
        memory_gib=16,
        memory_bandwidth_gBps=900,
        tflops={"fp16": 125, "fp32": 15.7},
        multiprocessors=80,
        compute_capability=7.0,
        host_link_gBps=16,
    ),
    "G": GpuSpec(
        name="G",
        family="G",
        memory_gib=96,
        memory_bandwidth_gBps=4000,
        tflops={"bf16": 990, "fp16": 990, "fp32": 67},
        host_link_gBps=450,
    ),
}
"""With user buffers and fp8, without, without fused attention too, and in one package with its host."""

CONSTANTS = Calibration(
    families={
        "H": GpuFamily(
            matmul_efficiency=0.7,
            vector_efficiency=0.6,
            attention_efficiency=0.45,
            memory_efficiency=0.85,
            kernel_seconds=4e-6,
            launch_seconds=7e-6,
            link_efficiency=0.7,
            sigma=0.02,
        ),
        "A": GpuFamily(
            matmul_efficiency=0.8, memory_efficiency=0.9, launch_seconds=9e-6, link_efficiency=0.65
        ),
        "A.megatron": GpuFamily(matmul_efficiency=0.85, memory_efficiency=0.9, launch_seconds=8e-6),
        "V": GpuFamily(matmul_efficiency=0.6, kernel_seconds=9e-6),
    },
    frameworks={
        "megatron": Framework(
            matmul_factor=0.95, stream_factor=0.5, host_factor=1.0, micro_batch_launches=20
        ),
        "torch": Framework(
            matmul_factor=0.9, stream_factor=0.8, overlap=0.6, allocator_slack=0.1, runtime_bytes=1e9
        ),
        "deepspeed": Framework(
            matmul_factor=0.92, host_factor=1.5, overlap=0.5, link_utilisation=0.6, layer_factor=1.1
        ),
    },
    links={"infiniband": Link(efficiency=0.8, rail=0.9), "ethernet": Link(efficiency=0.6, rail=0.8)},
)


def _points(link: str, operation: Operation, members: int, rate: float, *sizes: float) -> list[LinkPoint]:
    return [
        LinkPoint(
            link=link, operation=operation, members=members, size_bytes=size, seconds=2e-5 + size / rate
        )
        for size in sizes
    ]


def _kernel(gpu: str, kernel: Kernel, shape: str, seconds: float) -> KernelPoint:
    return KernelPoint(
        gpu=gpu, kernel=kernel, precision="fp32", shape=shape, flops=0.0, moved_bytes=1.0, seconds=seconds
    )


CURVES = Calibration(
    link_points=(
        *_points("node:H", "all-reduce", 2, 2e11, 1e5, 1e7, 1e9),
        *_points("node:H", "reduce-scatter", 4, 3e11, 1e5, 1e7, 1e9),
        *_points("node:H", "all-gather", 4, 3.2e11, 2e5, 1e8),
        *_points("node:A", "all-to-all", 4, 1e11, 1e6, 1e8),
        *_points("ib", "all-reduce", 2, 2e10, 1e5, 1e7),
        *_points("ib", "all-reduce", 8, 1.4e10, 1e5, 1e7, 1e8),
        *_points("ib", "reduce-scatter", 4, 3e10, 1e6, 1e8),
        *_points("ib", "all-gather", 4, 3e10, 1e6, 1e8),
        *_points("ib", "send", 2, 2.2e10, 1e6, 1e8),
    ),
    kernel_points=(
        _kernel("H", "optimizer", "1000000", 2e-5),
        _kernel("H", "optimizer", "30000000", 4e-4),
        _kernel("A", "bf16", "1000000", 3e-5),
        _kernel("A", "factors", "4x1000000", 2e-4),
        _kernel("A", "factors", "16x1000000", 5e-4),
        _kernel("A", "largest", "10000x1000000", 4e-4),
        _kernel("A", "diloco", "1000000", 2e-3),
    ),
)

MEASURED = Calibration(
    layers=tuple(
        LayerPoint(
            gpu="H",
            model="gpt",
            tp=tp,
            micro_batch=size,
            forward_seconds=2e-4 + size * 3e-4 / tp,
            backward_seconds=3e-4 + size * 6e-4 / tp,
            activation_bytes=size * 6e7 / tp,
            parameters=1.3e7 / tp,
            spread=0.02,
            peak_bytes=2e9,
            reserved_bytes=2.3e9,
            without_collectives=tp == 2,
        )
        for tp in (1, 2)
        for size in (1, 2, 8)
    ),
    link_points=CURVES.link_points[:3],
)

SLOW_NIC = (nic("eth", gbps=10),)


def _hosted(one: PoolSpec, **fields: Any) -> PoolSpec:
    return one.model_copy(update={"host": HostSpec(**fields)})


def _paid(one: PoolSpec, **fields: Any) -> PoolSpec:
    return one.model_copy(update=fields)


def _feed(**fields: Any) -> HostSpec:
    return HostSpec(feed=FeedSpec(**fields))


NODE = cluster(pool("h", "H", per_node=8), gpus=KINDS)
TWO = cluster(pool("h", "H", nodes=2, per_node=4), gpus=KINDS)
OLD = cluster(
    _paid(pool("v", "V", nodes=2, per_node=4, nics=SLOW_NIC), price_per_gpu_hour=2.0, reserve_gib=1.0),
    gpus=KINDS,
)
MIXED = cluster(
    _paid(pool("h", "H", per_node=4), price_per_gpu_hour=3.5),
    _paid(pool("a", "A", nodes=2, per_node=4, cards=4), price_per_gpu_hour=1.5, power_limit_watts=300),
    gpus=KINDS,
)
TORN = cluster(
    pool("h", "H", per_node=2, nics=(nic("ib", gbps=400), nic("eth", gbps=25))),
    pool("v", "V", nodes=2, per_node=2, nics=(nic("roce", gbps=100), nic("eth", gbps=10))),
    gpus=KINDS,
)
"""Pools that only Ethernet joins."""
GATE = cluster(
    pool("h", "H", per_node=2, nics=(nic("ib", gbps=400),)),
    pool("a", "A", nodes=2, per_node=2, nics=(nic("lan", gbps=50),)),
    links=(FabricLinkSpec(between=("ib", "lan"), bandwidth_gbps=40, latency_us=80),),
    gpus=KINDS,
).model_copy(
    update={
        "fabrics": {
            "ib": FabricSpec(kind="infiniband"),
            "lan": FabricSpec(kind="ethernet", latency_us=20, oversubscription=1.5),
        }
    }
)
SITES = cluster(
    pool("east", "A", nodes=2, per_node=1, nics=(nic("lan-e", gbps=25),)),
    pool("west", "A", nodes=2, per_node=1, nics=(nic("lan-w", gbps=25),)),
    pool("far", "H", nodes=1, per_node=2, nics=(nic("lan-f", gbps=100),)),
    links=(
        FabricLinkSpec(between=("lan-e", "lan-w"), bandwidth_gbps=1, latency_us=5000),
        FabricLinkSpec(between=("lan-w", "lan-f"), bandwidth_gbps=2, latency_us=20000),
    ),
    gpus=KINDS,
)
BUS = cluster(
    pool("v", ("V",) * 3, 2, (nic("eth", gbps=25),)).model_copy(
        update={"intra_node": pool("x").intra_node.model_copy(update={"bandwidth_gBps": 12, "shared": True})}
    ),
    gpus=KINDS,
)
"""Three devices of a node on one bus."""
ODD = cluster(
    pool("o", ("H", "H", "A", "A"), 2, (nic("ib", gbps=100), nic("ib", gbps=100))),
    pool("a", "A", per_node=3, cards=1),
    gpus=KINDS,
)
HOSTS = cluster(
    _hosted(
        pool("a", "A", nodes=2, per_node=2, gbps=100, cards=2),
        link_gBps=20,
        all_links_gBps=30,
        memory_gib=256,
        nvme_gBps=6,
        adam_billion_per_s=1.5,
    ),
    gpus=KINDS,
)
CHIPS = cluster(_hosted(pool("g", "G", nodes=2, per_node=2), memory_gib=960, nvme_gBps=5), gpus=KINDS)
FED = cluster(
    _paid(
        pool("h", "H", nodes=2, per_node=2),
        host=_feed(
            storage_gBps=0.001,
            cores=8,
            core_tokens_per_s=2e3,
            core_sequences_per_s=3,
            caches=(CacheSpec(kind="memory", gib=30, gBps=20), CacheSpec(kind="nvme", gib=60, gBps=2)),
        ),
    ),
    gpus=KINDS,
).model_copy(update={"storage_gBps": 0.0004, "safe": 0.1})
"""Nodes that wait for their data, and memory kept free by a chance."""


def gpt(batch: int = 16, layers: int = 4, **changes: Any) -> ModelSpec:
    """A GPT of a few layers; changes are those of the model, or of its training under their own name."""
    training = {name: changes.pop(name) for name in TrainingSpec.model_fields if name in changes}
    values: dict[str, Any] = {
        "name": "gpt",
        "layers": layers,
        "hidden": 1024,
        "heads": 16,
        "vocab": 32000,
        "learned_positions": 1024,
        "training": TrainingSpec(**{"sequence_length": 1024, "global_batch": batch, **training}),
    }
    return ModelSpec(**{**values, **changes})


def llama(batch: int = 16, layers: int = 4, **changes: Any) -> ModelSpec:
    """Gated layers, fewer key/value heads, an untied head."""
    shape = {"gated_mlp": True, "kv_heads": 4, "ffn": 2816, "tied_embeddings": False, "learned_positions": 0}
    return gpt(batch, layers, **{**shape, **changes})


def experts(**fields: Any) -> ExpertsSpec:
    """Eight experts, of which two work on a token."""
    return ExpertsSpec(**{"number": 8, "top_k": 2, "ffn": 1024, **fields})


def state(kind: Any, **fields: Any) -> StateSpec:
    """A state of sixteen heads."""
    return StateSpec(**{"kind": kind, "heads": 16, "head_dim": 64, "size": 64, "chunk": 128, **fields})


@dataclass(frozen=True, kw_only=True)
class Case:
    """A plan with what it is priced for."""

    on: ClusterSpec
    model: ModelSpec
    plan: str
    """A short plan, without the braces."""
    by: Calibration = ASSUMED
    like: ModelSpec | None = None
    """A model that the runtime trains, where it has not this one yet."""

    @cached_property
    def whole(self) -> Plan:
        """The plan, checked."""
        return short_plan(
            Document("plan.yaml", parse("{" + self.plan + "}")), self.on, self.like or self.model
        )


def _case(
    on: ClusterSpec, model: ModelSpec, plan: str, by: Calibration = CONSTANTS, like: ModelSpec | None = None
) -> Case:
    return Case(on=on, model=model, plan=plan, by=by, like=like)


VIEW = TowerSpec(
    layers=3,
    hidden=256,
    heads=4,
    ffn=1024,
    patch=588,
    patch_bias=True,
    tokens=256,
    outputs=64,
    positions=257,
    class_token=True,
    norm_first=True,
    norm_last=True,
    merged=4,
    projector=(1024, 1024),
    projector_norm=True,
    images=2,
    window=64,
    window_layers=1,
    other_parameters=1000,
)
LISTENED = EncoderSpec(
    layers=3,
    sequence_length=500,
    hidden=512,
    heads=8,
    ffn=2048,
    learned_positions=500,
    relative_positions=32,
    embedding_norm=True,
    front=(FrontSpec(inputs=240, outputs=512, tokens=1000), FrontSpec(inputs=1536, outputs=512, tokens=500)),
    other_parameters=100,
)
CROSSING = (RunSpec(feed_forward="none"), RunSpec(mixer="cross", feed_forward="dense"))
STACKED = (
    RunSpec(mixer="state", feed_forward="none"),
    RunSpec(mixer="none", feed_forward="experts"),
    RunSpec(feed_forward="none"),
)
UNLIKE = (
    RunSpec(layers=2, mixer="state", feed_forward="dense"),
    RunSpec(mixer="attention", feed_forward="experts", window=128),
    RunSpec(mixer="both", feed_forward="dense", heads=8, kv_heads=2, head_dim=32, ffn=1500),
)
LATENT = LatentSpec(q_rank=256, kv_rank=128, rope_dim=32, value_dim=48)
LONG = {"sequence_length": 8192, "learned_positions": 0}

CASES: dict[str, Case] = {
    # Data parallelism and ZeRO
    "one device": _case(NODE, gpt(4), "dp: 1, micro_batch: 4", ASSUMED),
    "dp on a node": _case(NODE, gpt(), "dp: 8, micro_batch: 2"),
    "dp over nodes": _case(TWO, llama(), "dp: 8, target: megatron, zero: 1"),
    "dp without constants": _case(TWO, gpt(), "dp: 8, target: torch, zero: 2, micro_batch: 2", ASSUMED),
    "zero 2 deepspeed": _case(OLD, gpt(precision="fp16"), "dp: 8, target: deepspeed, zero: 2"),
    "zero 3 deepspeed": _case(
        OLD, llama(precision="fp16"), "dp: 8, target: deepspeed, zero: 3, recompute: full"
    ),
    "zero 3 torch": _case(TWO, llama(), "dp: 8, target: torch, zero: 3, micro_batch: 2"),
    "zero 1 torch keeps step": _case(
        MIXED,
        gpt(15),
        (
            "target: torch, zero: 1, replicas: [{pool: h, count: 3, micro_batch: 3, steps: 1}, {pool: a, "
            "count: 3, micro_batch: 1, steps: 2}]"
        ),
    ),
    "hsdp": _case(TWO, llama(), "dp: 8, target: torch, zero: 3, shard_size: 4"),
    "hsdp with zero 2 over nodes": _case(TWO, llama(), "dp: 8, target: torch, zero: 2, shard_size: 2"),
    "zero++": _case(
        TWO,
        gpt(),
        "dp: 8, target: deepspeed, zero: 3, zero_plus: {secondary: 4, int8_weights: true, int4_gradients: true}",
    ),
    "zero++ second copy": _case(TWO, gpt(), "dp: 8, target: deepspeed, zero: 3, zero_plus: {secondary: 4}"),
    "zero++ in eight bits": _case(
        OLD, gpt(precision="fp16"), "dp: 8, target: deepspeed, zero: 3, zero_plus: {int8_weights: true}"
    ),
    "unequal batches": _case(
        MIXED,
        gpt(20),
        (
            "target: deepspeed, zero: 2, replicas: [{pool: h, count: 4, micro_batch: 2}, {pool: a, count: 2, "
            "micro_batch: 1}]"
        ),
    ),
    "unequal steps": _case(
        MIXED,
        llama(26),
        (
            "target: deepspeed, zero: 3, replicas: [{pool: h, count: 4, micro_batch: 2, share: 5}, {pool: a, "
            "count: 3, micro_batch: 1, steps: 2}]"
        ),
    ),
    "unequal shards": _case(
        MIXED,
        gpt(12),
        (
            "target: torch, zero: 3, replicas: [{pool: h, count: 2, micro_batch: 4, shard: 3}, {pool: a, "
            "count: 2, micro_batch: 2}]"
        ),
    ),
    "backup": _case(NODE, gpt(14), "dp: 8, target: torch, zero: 1, backup: 1, micro_batch: 2"),
    "fewer steps": _case(TWO, gpt(13), "dp: 5, target: torch, zero: 1, fewer_steps: 2"),
    "stages dealt over nodes": _case(
        TWO, gpt(16), "pp: 2, dp: 4, target: torch, zero: 1, stage_nodes: 2, micro_batch: 2"
    ),
    # Tensor parallelism
    "tp": _case(NODE, gpt(), "tp: 4, dp: 2, micro_batch: 2"),
    "tp with sequences split": _case(NODE, llama(precision="bf16"), "tp: 4, dp: 2, sequence_parallel: true"),
    "tp in fp8": _case(
        NODE, llama(precision="fp8"), "tp: 2, dp: 4, zero: 1, sequence_parallel: true, recompute: selective"
    ),
    "tp without user buffers": _case(
        MIXED,
        gpt(),
        "tp: 2, dp: 4, stages: [{pool: a}], sequence_parallel: true, recompute: selective, target: megatron",
    ),
    "tp of torch": _case(NODE, llama(), "tp: 4, dp: 2, target: torch, zero: 2, recompute: selective"),
    "tp of torch by tokens": _case(
        NODE, llama(), "tp: 4, dp: 2, target: torch, zero: 2, recompute: selective, sequence_parallel: true"
    ),
    "stages of torch by tokens": _case(
        TWO, gpt(), "pp: 2, tp: 2, dp: 2, target: torch, sequence_parallel: true"
    ),
    "fp8 of torch with tp": _case(
        NODE, llama(precision="fp8"), "tp: 2, dp: 4, target: torch, zero: 3, recompute: full"
    ),
    "lora on fp8 of torch": _case(
        NODE, llama(precision="fp8", lora=LoraSpec(rank=8)), "dp: 8, target: torch, zero: 2"
    ),
    "tp of deepspeed": _case(OLD, llama(precision="fp16"), "tp: 2, dp: 4, target: deepspeed, zero: 1"),
    "tp over nodes": _case(TWO, gpt(), "tp: 8, dp: 1, micro_batch: 4"),
    "tp on a bus": _case(
        BUS,
        gpt(12, heads=12, hidden=768, ffn=3072, vocab=30000, precision="fp16"),
        "tp: 3, dp: 2, micro_batch: 2",
    ),
    "tp with latent attention": _case(
        NODE,
        llama(latent=LATENT, heads=16, kv_heads=16, head_dim=96, value_dim=48),
        "tp: 2, dp: 4, target: megatron",
        like=llama(),
    ),
    "grid": _case(NODE, gpt(), "tp: {rows: 2, columns: 2, depth: 2}, dp: 1, target: torch, micro_batch: 8"),
    "grid over nodes": _case(
        TWO, gpt(), "tp: {rows: 2, columns: 2}, dp: 2, target: torch, micro_batch: 4, zero: 1"
    ),
    "grid with full recomputation": _case(
        TWO,
        llama(kv_heads=16),
        "tp: {rows: 2, columns: 2}, dp: 2, target: torch, micro_batch: 4, recompute: full, zero: 3",
    ),
    # Pipelines
    "pipeline": _case(MIXED, gpt(), "pp: 3, dp: 4, tp: 1, target: megatron, zero: 1, layers: [2, 1, 1]"),
    "pipeline by stage": _case(
        MIXED,
        llama(layers=7),
        (
            "target: flagscale, stages: [{pool: h, layers: 4, tp: 2, dp: 2, micro_batch: 2}, {pool: a, "
            "layers: 3, dp: 4, recompute: full, micro_batch: 1}]"
        ),
    ),
    "pipeline of deepspeed": _case(
        OLD, gpt(precision="fp16"), "pp: 2, dp: 4, target: deepspeed, zero: 1, recompute: full"
    ),
    "pipeline with tp": _case(TWO, gpt(), "pp: 2, tp: 2, dp: 2, sequence_parallel: true"),
    "interleaved": _case(TWO, gpt(8, 8), "pp: 4, dp: 2, interleave: 2, target: megatron"),
    "interleaved torch": _case(TWO, gpt(8, 8), "pp: 4, dp: 2, interleave: 2, target: torch, zero: 3"),
    "zero bubble": _case(MIXED, gpt(12, 6), "pp: 3, dp: 4, target: torch, schedule: zero-bubble, zero: 1"),
    "zb-v": _case(TWO, llama(12, 8), "pp: 4, dp: 1, target: torch, schedule: zb-v, interleave: 2"),
    "dualpipe-v": _case(
        TWO,
        llama(16, 9),
        "pp: 4, dp: 2, target: torch, schedule: dualpipe-v, interleave: 2, layers: [2, 2, 3, 2]",
    ),
    "zero 3 in a pipeline": _case(
        TWO, llama(), "pp: 2, dp: 4, target: torch, zero: 3, shard_size: 2, recompute: selective"
    ),
    "through a gateway": _case(GATE, gpt(8, 6), "pp: 3, dp: 2, target: megatron, layers: [3, 2, 1]"),
    "sockets": _case(TORN, gpt(8, precision="fp16"), "pp: 3, dp: 2, target: deepspeed"),
    "own networks": _case(TORN, gpt(8, precision="fp16"), "pp: 3, dp: 2, target: megatron, zero: 1"),
    "sockets of dp": _case(TORN, gpt(12, precision="fp16"), "dp: 6, target: torch, zero: 1"),
    "nodes of two types": _case(
        ODD, gpt(), "pp: 2, dp: 4, target: megatron, stages: [{pool: o, gpu: H}, {pool: o, gpu: A}]"
    ),
    "nodes that are not full": _case(
        ODD, gpt(12), "dp: 3, tp: 1, target: torch, zero: 2, stages: [{pool: a}]"
    ),
    # Recomputation, attention, kernels, formats
    "unfused attention": _case(NODE, gpt(attention="unfused", dropout=True), "tp: 2, dp: 4, micro_batch: 2"),
    "unfused attention, selective": _case(
        NODE,
        gpt(attention="unfused", dropout=False),
        "tp: 2, dp: 4, recompute: selective, sequence_parallel: true",
    ),
    "unfused attention of torch": _case(
        NODE, llama(attention="unfused"), "dp: 8, target: torch, recompute: selective"
    ),
    "kernels of deepspeed 2021": _case(
        OLD,
        gpt(precision="fp16", attention="unfused", kernels="deepspeed-2021"),
        "dp: 8, target: deepspeed, zero: 1",
    ),
    "compiled torch": _case(
        NODE, llama(kernels="torch-compiled", attention="flash"), "dp: 8, target: torch, zero: 3"
    ),
    "kernels of megatron 2021": _case(
        OLD,
        gpt(precision="fp16", kernels="megatron-2021", vocab=30003),
        "tp: 2, dp: 4, target: megatron, recompute: full",
    ),
    "torch kernels of megatron": _case(
        NODE, gpt(kernels="torch"), "dp: 8, target: megatron, recompute: selective"
    ),
    "odd length": _case(NODE, gpt(sequence_length=1001, attention="unfused"), "dp: 8, target: megatron"),
    "fp32": _case(OLD, gpt(precision="fp32"), "dp: 8, target: torch, zero: 2"),
    "fp32 on vector units": _case(NODE, gpt(precision="fp32"), "dp: 8, target: megatron"),
    "tf32": _case(NODE, llama(precision="tf32"), "dp: 8, target: torch, zero: 3"),
    "fp8": _case(NODE, llama(precision="fp8"), "dp: 8, zero: 1"),
    "fp8 without zero": _case(NODE, gpt(precision="fp8"), "pp: 2, dp: 4, recompute: full"),
    "graphs of layers": _case(NODE, llama(cuda_graphs="layers"), "pp: 2, dp: 4, recompute: full"),
    "graphs of layers with experts": _case(
        NODE, llama(cuda_graphs="layers", experts=experts()), "dp: 8, zero: 1"
    ),
    "experts by deepep": _case(
        NODE, llama(token_dispatcher="deepep", experts=experts()), "dp: 8, ep: 8, zero: 1"
    ),
    "experts beside computation": _case(
        NODE, llama(expert_overlap=True, experts=experts()), "dp: 8, ep: 8, zero: 1"
    ),
    "experts beside computation in chunks": _case(
        TWO, llama(8, expert_overlap=True, experts=experts()), "pp: 2, dp: 4, ep: 4, interleave: 2, zero: 1"
    ),
    "graphs of a step": _case(NODE, llama(cuda_graphs="step"), "pp: 2, dp: 4, recompute: full"),
    "fp8 of torch": _case(NODE, llama(precision="fp8"), "dp: 8, target: torch, zero: 3"),
    "bf16 gradients": _case(NODE, gpt(gradient_dtype="bf16", reduce_dtype="bf16"), "dp: 8, zero: 1"),
    "fp32 gradients of deepspeed": _case(
        NODE, gpt(gradient_dtype="fp32", reduce_dtype="fp32"), "dp: 8, zero: 2, target: deepspeed"
    ),
    "gradient sums apart": _case(NODE, gpt(gradient_sums="apart"), "dp: 4, zero: 1"),
    "gradient sums fused": _case(
        OLD, gpt(gradient_sums="fused", precision="fp16", attention="unfused"), "dp: 4, zero: 1"
    ),
    "plain cross entropy": _case(
        NODE, gpt(cross_entropy="plain", vocab=130000), "dp: 4, target: megatron, micro_batch: 4"
    ),
    "fused cross entropy": _case(
        NODE, gpt(cross_entropy="fused", vocab=130000), "dp: 4, target: torch, micro_batch: 4"
    ),
    "many equal operations": _case(
        NODE, gpt(hidden=128, heads=2, vocab=500, sequence_length=64, learned_positions=64), "dp: 8"
    ),
    # Optimizers
    "sgd": _case(NODE, gpt(optimizer="sgd"), "dp: 4, target: torch, zero: 1"),
    "lion": _case(NODE, gpt(optimizer="lion"), "dp: 4, target: deepspeed, zero: 2"),
    "muon": _case(NODE, llama(optimizer="muon"), "dp: 4, target: torch"),
    "muon in fp16": _case(OLD, gpt(optimizer="muon", precision="fp16"), "pp: 2, dp: 4, target: megatron"),
    "adafactor": _case(NODE, gpt(optimizer="adafactor"), "dp: 4, target: torch"),
    "8-bit moments": _case(NODE, gpt(optimizer_states="int8"), "dp: 4, target: torch, zero: 3"),
    "bf16 moments": _case(NODE, gpt(optimizer_states="bf16"), "dp: 4, target: megatron, zero: 1"),
    "bf16 weights": _case(NODE, llama(master_weights="bf16"), "dp: 4, target: torch, zero: 3"),
    "bf16 weights with DeepSpeed": _case(
        NODE, gpt(master_weights="bf16", optimizer_states="int8"), "dp: 4, target: deepspeed, zero: 3"
    ),
    "split weights": _case(NODE, gpt(master_weights="split"), "dp: 4, target: megatron, zero: 1"),
    "paged moments": _case(HOSTS, gpt(optimizer_states="paged-int8"), "dp: 4, target: deepspeed, zero: 1"),
    "paged moments in fp32": _case(
        HOSTS, gpt(optimizer_states="paged-fp32", layers=12), "dp: 1, target: deepspeed"
    ),
    # Models
    "experts": _case(NODE, llama(experts=experts()), "dp: 8, zero: 1"),
    "experts divided": _case(
        TWO, llama(experts=experts(shared_ffn=512, shared_gate=True, imbalance=1.5)), "dp: 8, ep: 4, zero: 1"
    ),
    "experts divided with tp": _case(
        TWO,
        llama(experts=experts(capacity_factor=1.25, router_bias=True)),
        "tp: 2, dp: 4, ep: 2, etp: 2, sequence_parallel: true, zero: 1",
    ),
    "experts with biases": _case(
        TWO,
        llama(experts=experts(bias=True), mlp_bias=True),
        "tp: 2, dp: 4, ep: 4, sequence_parallel: true, zero: 1",
    ),
    "experts over nodes": _case(TWO, llama(experts=experts(capacity_factor=0.5)), "dp: 8, ep: 8"),
    "experts in a pipeline": _case(
        TWO, llama(experts=experts(), dense_layers=2), "pp: 2, dp: 4, ep: 2, recompute: full"
    ),
    "experts with measured curves": _case(
        MIXED, llama(experts=experts()), "dp: 8, ep: 4, zero: 1, stages: [{pool: a}]", CURVES
    ),
    "experts of torch": _case(
        NODE, llama(experts=experts(hidden=256)), "dp: 8, target: torch, zero: 3, recompute: selective"
    ),
    "experts divided by torch": _case(
        TWO, llama(experts=experts()), "dp: 8, ep: 4, target: torch, zero: 3, recompute: full"
    ),
    "experts divided by torch in a pipeline": _case(
        TWO, llama(experts=experts()), "pp: 2, dp: 4, ep: 2, target: torch, zero: 2"
    ),
    "experts divided by deepspeed": _case(
        TWO, llama(experts=experts()), "dp: 8, ep: 4, target: deepspeed, zero: 3"
    ),
    "tall experts, tp": _case(
        NODE, gpt(experts=experts(ffn=64, number=64, top_k=8)), "tp: 2, dp: 4, ep: 2, sequence_parallel: true"
    ),
    "further tokens": _case(
        TWO, llama(experts=experts(), mtp_layers=2), "pp: 2, dp: 4, ep: 2, target: megatron, zero: 1"
    ),
    "windows": _case(NODE, llama(window=256, window_layers=3, sinks=True), "tp: 2, dp: 4, target: megatron"),
    "windows of torch": _case(NODE, llama(window=256, sinks=False, qk_norm=True), "dp: 8, target: torch"),
    "norms over all heads": _case(
        NODE, gpt(qk_norm="whole", layer_norms=4, norm="plain", mlp_bias=False), "dp: 8, target: torch"
    ),
    "output gate": _case(
        NODE, llama(output_gate=True, attention_other=5000), "dp: 8, target: torch, zero: 2"
    ),
    "bert": _case(
        OLD,
        gpt(
            kind="encoder",
            token_types=2,
            embedding_norm=True,
            head_transform=True,
            head_bias=True,
            final_norm=False,
            precision="fp16",
            cross_entropy="masked",
        ),
        "dp: 8, target: deepspeed, zero: 1",
    ),
    "opt": _case(NODE, gpt(embedding_width=512), "pp: 2, dp: 2, target: megatron"),
    "labels": _case(
        NODE,
        gpt(
            labels=1000,
            pooled=True,
            front=(FrontSpec(inputs=768, outputs=1024, tokens=1024),),
            kind="encoder",
        ),
        "dp: 8, target: torch, zero: 1",
    ),
    "labels of tokens": _case(NODE, gpt(labels=9), "dp: 8, target: deepspeed"),
    "no head": _case(NODE, gpt(labels=0), "dp: 8, target: torch"),
    "mamba": _case(
        NODE,
        gpt(
            mixer="state", state=state("mamba", heads=1, head_dim=2048, size=16, rank=64), feed_forward="none"
        ),
        "dp: 8, target: torch, zero: 2",
    ),
    "mamba2": _case(
        NODE, gpt(mixer="state", state=state("mamba2", groups=2)), "dp: 8, target: torch, recompute: full"
    ),
    "delta": _case(
        NODE, gpt(mixer="state", state=state("delta", groups=8)), "dp: 8, target: torch, recompute: full"
    ),
    "delta of low rank": _case(
        NODE,
        gpt(mixer="state", state=state("delta", rank=64, bias=True)),
        "dp: 8, target: deepspeed, zero: 3",
        like=gpt(),
    ),
    "linear": _case(NODE, gpt(mixer="state", state=state("linear", norm=False)), "dp: 8, target: torch"),
    "convolution": _case(
        NODE, gpt(mixer="state", state=state("conv", heads=1, head_dim=1024, size=1)), "dp: 8, target: torch"
    ),
    "unlike layers": _case(
        NODE,
        llama(
            block=UNLIKE,
            state=state("mamba2"),
            experts=experts(),
            layers=2,
            ahead=(RunSpec(feed_forward="dense"),),
            behind=(RunSpec(layers=2, feed_forward="experts"),),
        ),
        "pp: 2, dp: 2, target: torch, zero: 3",
    ),
    "stacked layers": _case(
        TWO,
        llama(
            block=STACKED,
            state=state("mamba2", groups=2),
            experts=experts(hidden=512, shared_ffn=512),
            layers=4,
            ahead=STACKED[:1],
            behind=(RunSpec(mixer="none", feed_forward="dense"),),
        ),
        (
            "target: megatron, pp: 2, tp: 2, dp: 2, ep: 2, interleave: 2, sequence_parallel: true, zero: 1, "
            "recompute: full"
        ),
    ),
    "unlike layers, selective": _case(
        NODE,
        llama(block=UNLIKE, state=state("delta"), experts=experts(), layers=2),
        "dp: 2, target: torch, recompute: selective, zero: 1",
        like=llama(layers=2),
    ),
    "shared layers": _case(
        NODE,
        gpt(block=(RunSpec(layers=3, shared=True), RunSpec(attention_other=100, value_dim=0)), layers=2),
        "dp: 4, target: torch",
        like=gpt(layers=2),
    ),
    "low-rank projections": _case(
        NODE,
        gpt(projections=((1024, 200, "nothing"), (200, 3072, "columns"), (1024, 1024, "rows"))),
        "dp: 4, tp: 2, target: torch, zero: 1",
        like=gpt(),
    ),
    "images": _case(NODE, llama(tower=VIEW), "pp: 2, dp: 2, target: torch, zero: 3"),
    "frozen tower": _case(
        NODE,
        llama(tower=VIEW.model_copy(update={"frozen": True, "gated_mlp": True, "norm": "rms"})),
        "dp: 4, target: torch, zero: 2, recompute: full",
    ),
    "matrices beside": _case(
        NODE,
        llama(
            beside=(
                ProductSpec(inputs=1280, outputs=500, tokens=77, times=3, bias=True),
                ProductSpec(inputs=64, outputs=77, tokens=300, weights=False),
            ),
            other_parameters=10_000,
        ),
        "pp: 2, dp: 2, target: torch, zero: 1",
    ),
    "encoder and decoder": _case(
        NODE,
        gpt(encoder=LISTENED, block=CROSSING, relative_positions=32),
        "pp: 2, dp: 2, target: torch, zero: 2",
    ),
    "encoder and decoder of t5": _case(
        NODE,
        gpt(
            encoder=EncoderSpec(layers=2, sequence_length=512, vocab=32000, gated_mlp=True, window=100),
            block=CROSSING,
            key_bias=False,
        ),
        "dp: 4, target: deepspeed, zero: 3, recompute: full",
    ),
    # What is trained, and on what
    "lora": _case(
        NODE, llama(lora=LoraSpec(rank=16)), "tp: 2, dp: 4, target: torch, zero: 2, micro_batch: 2"
    ),
    "lora of some layers": _case(
        NODE,
        llama(lora=LoraSpec(rank=8, targets=("q_proj", "o_proj", "down_proj"))),
        "tp: 2, dp: 4, target: deepspeed, micro_batch: 2",
    ),
    "lora on zero 0": _case(NODE, llama(lora=LoraSpec(rank=16)), "tp: 2, dp: 4, target: torch"),
    "qlora": _case(
        MIXED,
        llama(lora=LoraSpec(rank=64, base="nf4")),
        "dp: 4, target: deepspeed, zero: 3, micro_batch: 2, recompute: full, stages: [{pool: a}]",
    ),
    "lora in fp8": _case(
        NODE,
        llama(precision="fp8", lora=LoraSpec(rank=16)),
        "tp: 2, dp: 4, zero: 1, sequence_parallel: true",
    ),
    "lora on fp8": _case(
        NODE,
        llama(precision="fp8", lora=LoraSpec(rank=16, base="fp8")),
        "tp: 2, dp: 4, zero: 1, sequence_parallel: true",
    ),
    "qlora in shards": _case(
        MIXED,
        llama(lora=LoraSpec(rank=64, base="nf4-double")),
        "dp: 4, target: torch, zero: 3, micro_batch: 2, recompute: full, stages: [{pool: a}]",
    ),
    "qlora on hosts": _case(
        HOSTS,
        llama(lora=LoraSpec(rank=64, base="nf4")),
        "dp: 4, target: torch, zero: 3, recompute: full, offload: {optimizer: cpu, parameters: cpu}",
    ),
    "frozen embedding": _case(
        NODE, gpt(freeze=("embedding", "norms")), "dp: 4, pp: 2, target: torch, zero: 1"
    ),
    "frozen layers": _case(NODE, llama(freeze=("attention", "head")), "dp: 8, target: deepspeed, zero: 2"),
    "frozen mlp": _case(NODE, llama(freeze=("mlp", "embedding", "head")), "dp: 8, target: torch, zero: 3"),
    "packed": _case(
        NODE, llama(documents=DocumentsSpec(mean_length=200, spread=0.5)), "dp: 8, target: torch, zero: 2"
    ),
    "padded": _case(
        NODE, llama(documents=DocumentsSpec(mean_length=200, packing=False)), "dp: 8, target: torch, zero: 2"
    ),
    "pairs": _case(NODE, llama(preference=PreferenceSpec()), "pp: 2, dp: 4, target: torch, zero: 1"),
    "pairs with adapters": _case(
        NODE, llama(preference=PreferenceSpec(), lora=LoraSpec(rank=8)), "dp: 8, target: torch, zero: 3"
    ),
    "ring": _case(TWO, llama(8, **LONG), "cp: 4, dp: 2, target: megatron, zero: 1"),
    "ring over nodes": _case(
        TWO, llama(4, kv_heads=16, **LONG), "cp: 4, tp: 2, dp: 1, target: megatron, recompute: full"
    ),
    "ulysses with windows": _case(
        TWO,
        llama(4, kv_heads=16, window=1024, **LONG),
        "cp: 4, cp_kind: ulysses, tp: 2, dp: 1, target: megatron, recompute: selective, sequence_parallel: true",
    ),
    "ulysses": _case(
        TWO, llama(8, **LONG), "cp: 2, cp_kind: ulysses, dp: 4, target: torch, zero: 3, recompute: selective"
    ),
    "ring of latent attention": _case(
        TWO,
        llama(4, latent=LATENT, kv_heads=16, head_dim=96, value_dim=48, **LONG),
        "cp: 2, dp: 2, pp: 2, target: megatron",
        like=llama(4, **LONG),
    ),
    # Off the devices
    "optimizer on the host": _case(
        HOSTS, gpt(), "dp: 4, target: deepspeed, zero: 2, offload: {optimizer: cpu}"
    ),
    "parameters on the host": _case(
        HOSTS, gpt(), "dp: 4, target: torch, zero: 3, offload: {optimizer: cpu, parameters: cpu}"
    ),
    "a share on the host": _case(
        HOSTS, gpt(), "dp: 4, target: deepspeed, zero: 3, offload: {optimizer: cpu, ratio: 0.6}"
    ),
    "a share on megatron's host": _case(
        HOSTS, gpt(), "dp: 2, pp: 2, target: megatron, zero: 1, offload: {optimizer: cpu, ratio: 0.4}"
    ),
    "all on megatron's host": _case(
        HOSTS, llama(), "dp: 4, target: megatron, zero: 1, offload: {optimizer: cpu}"
    ),
    "checkpoints on the host": _case(
        HOSTS,
        gpt(),
        "dp: 4, target: deepspeed, zero: 3, recompute: full, offload: {optimizer: cpu, activations: cpu}",
    ),
    "checkpoints of torch on the host": _case(
        HOSTS, gpt(), "dp: 4, target: torch, zero: 2, recompute: full, offload: {activations: cpu}"
    ),
    "nvme": _case(
        HOSTS, gpt(), "dp: 4, target: deepspeed, zero: 3, offload: {optimizer: nvme, parameters: nvme}"
    ),
    "parameters on the host, optimizer on nvme": _case(
        CHIPS, llama(), "dp: 4, target: deepspeed, zero: 3, offload: {optimizer: nvme, parameters: cpu}"
    ),
    "superchips": _case(
        CHIPS,
        gpt(),
        "dp: 4, target: deepspeed, zero: 3, offload: {optimizer: cpu, super_offload: true, ratio: 0.9}",
    ),
    "superchips with megatron": _case(
        CHIPS, gpt(32), "dp: 4, target: megatron, zero: 1, offload: {optimizer: cpu}"
    ),
    # Islands
    "diloco": _case(SITES, gpt(12), "dp: 4, target: torch, sync: {every: 50}", ASSUMED),
    "average over sites": _case(
        SITES,
        gpt(12),
        (
            "target: torch, zero: 2, replicas: [{pool: east, count: 2, micro_batch: 2, steps: 1}, {pool: west, "
            "count: 2, micro_batch: 1, steps: 2}, {pool: far, count: 2, micro_batch: 2, steps: 1}], "
            "sync: {every: 20, method: average, format: bf16, islands: [[east], [west], [far]]}"
        ),
    ),
    "bf16 between sites": _case(
        SITES,
        gpt(12),
        "dp: 4, target: torch, zero: 1, sync: {format: bf16, islands: [[east], [west]]}",
        CURVES,
    ),
    "fp8 between sites": _case(SITES, gpt(12), "dp: 4, target: torch, sync: {format: fp8}"),
    "int8 between sites": _case(
        SITES, gpt(12), "dp: 4, target: torch, sync: {format: int8, islands: [[east], [west]]}"
    ),
    "powersgd": _case(
        SITES, gpt(12), "dp: 4, target: torch, zero: 2, sync: {rank: 8, islands: [[east], [west]]}", CURVES
    ),
    "powersgd without curves": _case(SITES, llama(12), "dp: 4, target: torch, sync: {rank: 4}"),
    "largest elements": _case(
        SITES, gpt(12), "dp: 4, target: torch, sync: {ratio: 0.01, islands: [[east], [west]]}", CURVES
    ),
    "largest elements without curves": _case(SITES, gpt(12), "dp: 4, target: torch, sync: {ratio: 0.02}"),
    # Measured
    "curves": _case(NODE, gpt(), "tp: 4, dp: 2, zero: 1, micro_batch: 2", CURVES),
    "curves over nodes": _case(TWO, gpt(), "dp: 8, target: torch, zero: 2", CURVES),
    "curves of a pipeline": _case(TWO, gpt(), "pp: 2, tp: 2, dp: 2, target: torch", CURVES),
    "curves of an update": _case(NODE, gpt(), "dp: 1, target: torch, micro_batch: 2", CURVES),
    "curves of a small update": _case(
        NODE, gpt(hidden=64, heads=2, vocab=500), "dp: 4, target: torch, zero: 1", CURVES
    ),
    "measured layers": _case(NODE, gpt(), "dp: 8, micro_batch: 2", MEASURED),
    "measured layers between": _case(
        NODE, gpt(layers=6), "dp: 4, pp: 2, micro_batch: 4, zero: 1, recompute: full", MEASURED
    ),
    "measured layers beyond": _case(
        NODE, gpt(), "dp: 1, micro_batch: 16, target: torch, recompute: selective", MEASURED
    ),
    "measured layers elsewhere": _case(NODE, gpt(), "tp: 4, dp: 2, micro_batch: 2", MEASURED),
    "measured layers with tp": _case(
        NODE, gpt(), "tp: 2, dp: 4, micro_batch: 2, sequence_parallel: true", MEASURED
    ),
    # Data
    "data from storage": _case(FED, gpt(data=DataSpec(dataset_gib=100)), "dp: 4, target: torch, zero: 1"),
    "data made ready": _case(
        FED,
        gpt(data=DataSpec(bytes_per_sequence=5e6, prepared=False, dataset_gib=200)),
        "pp: 2, dp: 2, target: torch",
    ),
    "data read once": _case(
        FED,
        gpt(data=DataSpec(bytes_per_token=2)),
        "pp: 2, dp: 2, target: torch, schedule: zb-v, interleave: 2",
    ),
}
"""By name."""
