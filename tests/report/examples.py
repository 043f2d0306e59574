"""A small cluster, model and search result with made-up numbers, for reports that need no cost model."""

from __future__ import annotations

from dataclasses import replace

from planner.catalog import GpuSpec, IntraNodeSpec
from planner.cluster.spec import ClusterSpec, FabricSpec, NicSpec, PoolSpec
from planner.cost.binding import Binding, BusyLink, TightDevice
from planner.cost.values import Breakdown, Estimate, GroupEstimate, Memory, StageEstimate
from planner.model.spec import ModelSpec, TrainingSpec
from planner.plan.values import Plan, ReplicaGroup, Stage
from planner.search.objectives.pareto import Front, Point
from planner.search.values import (
    Advice,
    Alternative,
    Diagnosis,
    Goal,
    Hedge,
    IdleCost,
    LimitCost,
    Nearest,
    Ratio,
    Scored,
    SearchResult,
)

GIB = 2**30

A100 = GpuSpec(
    name="A100",
    memory_gib=40.0,
    memory_bandwidth_gBps=1555.0,
    tflops={"bf16": 312.0, "fp16": 312.0, "fp32": 19.5},
)
V100 = GpuSpec(
    name="V100", memory_gib=16.0, memory_bandwidth_gBps=900.0, tflops={"fp16": 125.0, "fp32": 15.7}
)


def cluster() -> ClusterSpec:
    """Two nodes of 4 A100 on InfiniBand and Ethernet, one node of 8 V100 on Ethernet."""
    ethernet = NicSpec(fabric="eth", bandwidth_gbps=25.0)
    return ClusterSpec(
        name="example",
        gpus={"A100": A100, "V100": V100},
        pools=(
            PoolSpec(
                name="a100",
                devices=("A100",) * 4,
                hosts=("a100-01", "a100-02"),
                intra_node=IntraNodeSpec(bandwidth_gBps=300.0),
                nics=(NicSpec(fabric="ib", bandwidth_gbps=200.0, count=4), ethernet),
                price_per_gpu_hour=2.0,
            ),
            PoolSpec(
                name="v100",
                devices=("V100",) * 8,
                hosts=("v100-01",),
                intra_node=IntraNodeSpec(bandwidth_gBps=150.0),
                nics=(NicSpec(fabric="eth", bandwidth_gbps=10.0),),
                price_per_gpu_hour=0.5,
            ),
        ),
        fabrics={
            "ib": FabricSpec(kind="infiniband", latency_us=2.0),
            "eth": FabricSpec(kind="ethernet", latency_us=30.0),
        },
    )


def model(**training: object) -> ModelSpec:
    """A Llama of 32 layers, 256 sequences of 2048 tokens per step."""
    settings = {"sequence_length": 2048, "global_batch": 256, "precision": "fp16", **training}
    return ModelSpec(
        name="llama-7b",
        layers=32,
        hidden=4096,
        heads=32,
        kv_heads=32,
        head_dim=128,
        ffn=11008,
        gated_mlp=True,
        vocab=32000,
        tied_embeddings=False,
        training=TrainingSpec.model_validate(settings),
    )


def plan(first_layers: int = 24, zero: int = 1) -> Plan:
    """Two stages: one replica of 4 A100, one of 4 V100."""
    return Plan(
        target="megatron",
        zero=zero,
        sequence_parallel=True,
        stages=(
            Stage(
                first_layer=0,
                end_layer=first_layers,
                replicas=(_group("a100", "A100"),),
                recompute="selective",
            ),
            Stage(
                first_layer=first_layers,
                end_layer=32,
                replicas=(_group("v100", "V100"),),
                recompute="selective",
            ),
        ),
    )


def _group(pool: str, gpu: str) -> ReplicaGroup:
    return ReplicaGroup(pool=pool, gpu=gpu, tp=4, count=1, local_batch=256, accumulation_steps=128)


def memory(capacity_gib: float, activations_gib: float = 6.8) -> Memory:
    """Made-up bytes of one device."""
    return Memory(
        parameters_bytes=2.3 * GIB,
        gradients_bytes=4.6 * GIB,
        optimizer_bytes=0.9 * GIB,
        activations_bytes=activations_gib * GIB,
        logits_bytes=0.0,
        buffers_bytes=0.2 * GIB,
        runtime_bytes=1.5 * GIB,
        reserve_bytes=2.0 * GIB,
        capacity_bytes=capacity_gib * GIB,
    )


def estimate(decided: Plan, step_seconds: float = 27.2, activations_gib: float = 6.8) -> Estimate:
    """Made-up seconds: 70 % compute, 10 % tensor parallel, 19 % bubble, 1 % optimizer."""
    stages = tuple(_stage(decided, index, activations_gib) for index in range(decided.pp))
    return Estimate(
        step_seconds=step_seconds,
        spread=0.15,
        breakdown=Breakdown(
            compute_seconds=0.70 * step_seconds,
            recompute_seconds=0.0,
            tensor_parallel_seconds=0.10 * step_seconds,
            zero_seconds=0.0,
            bubble_seconds=0.19 * step_seconds,
            gradient_sync_seconds=0.0,
            optimizer_seconds=0.01 * step_seconds,
            offload_seconds=0.0,
            hidden_seconds=0.193,
        ),
        stages=stages,
        tokens_per_second=decided.global_batch * 2048 / step_seconds,
        tflops_per_gpu=99.5,
        mfu=0.456,
        devices=decided.devices,
        price_per_hour=10.0,
    )


def _stage(decided: Plan, index: int, activations_gib: float) -> StageEstimate:
    stage = decided.stages[index]
    last = index == decided.pp - 1
    return StageEstimate(
        recompute="selective",
        first_layer=stage.first_layer,
        end_layer=stage.end_layer,
        groups=tuple(_priced(group, activations_gib) for group in stage.replicas),
        forward_seconds=0.050,
        backward_seconds=0.100,
        send_seconds=0.0 if last else 0.0358,
        sync_seconds=0.0,
        copies_cross="",
        crosses="node",
        link="" if last else "eth",
    )


def _priced(group: ReplicaGroup, activations_gib: float) -> GroupEstimate:
    fast = group.gpu == "A100"
    return GroupEstimate(
        pool=group.pool,
        gpu=group.gpu,
        tp=group.tp,
        count=group.count,
        micro_batch=group.micro_batch,
        share=group.local_batch,
        steps=group.accumulation_steps,
        forward_seconds=0.050 if fast else 0.042,
        backward_seconds=0.100 if fast else 0.086,
        work_seconds=(0.150 if fast else 0.128) * group.accumulation_steps,
        memory=memory(40.0 if fast else 16.0, activations_gib if fast else 1.2),
    )


def scored(first_layers: int = 24, step_seconds: float = 27.2, activations_gib: float = 6.8) -> Scored:
    """A plan with its made-up estimate."""
    decided = plan(first_layers)
    return Scored(plan=decided, estimate=estimate(decided, step_seconds, activations_gib))


ALTERNATIVES = (
    Alternative(
        family="ZeRO-3 data parallel",
        scored=None,
        chosen=False,
        reason="V100 (v100) lacks 3.2 GiB at micro-batch 1",
    ),
    Alternative(
        family="pipeline, even layers",
        scored=scored(16, 41.7),
        chosen=False,
        reason="stage 1 takes 2.6 x stage 0: a V100 has 0.40 of the speed of an A100",
    ),
    Alternative(family="pipeline", scored=scored(), chosen=True, reason="chosen"),
)


IDLE_COSTS = (
    IdleCost(
        pool="v100",
        gpu="V100",
        idle=4,
        taken=4,
        slower=0.07,
        reason="bubble and sends",
        scored=scored(20, 29.1),
    ),
    IdleCost(
        pool="a100",
        gpu="A100",
        idle=4,
        taken=0,
        slower=None,
        reason="no plan found that fits and uses them",
        scored=None,
    ),
)
LIMIT_COSTS = (
    LimitCost(limit="tp", given=(4,), instead=(1, 2), costs=0.12, scored=scored(24, 24.3)),
    LimitCost(
        limit="recompute", given=("selective",), instead=("none",), costs=0.06, scored=scored(24, 25.7)
    ),
)
RATIOS = (
    Ratio(
        gpus=("V100",),
        against=("A100",),
        bar=0.3,
        measure=("V100",),
        slower_than=0.8,
        faster_than=None,
        regret=0.14,
        scored=scored(26, 27.9),
    ),
)
HEDGE = Hedge(
    regret=0.08,
    fastest_regret=0.14,
    slower=0.02,
    fastest_gap=0.009,
    plans=31,
    speeds=("V100 ±30 %", "ib ±6 %"),
)
BINDING = Binding(
    device=TightDevice(
        stage=1,
        pool="v100",
        gpu="V100",
        memory=memory(16.0, 1.2),
        next_micro_batch=4,
        next_micro_batch_bytes=1.2 * GIB,
        layer_bytes=4.0 * GIB,
    ),
    links=(
        BusyLink(traffic="sends", path="eth", stage=0, seconds=4.6, share=0.169),
        BusyLink(traffic="tensor-parallel collectives", path="node", stage=1, seconds=2.72, share=0.1),
    ),
)


def found(gap: float = 0.008, interrupted: bool = False) -> SearchResult:
    """A search that found a plan."""
    best = scored()
    return SearchResult(
        status="optimal" if gap <= 0.01 else "feasible",
        best=best,
        bound_seconds=best.estimate.step_seconds * (1 - gap),
        gap=gap,
        alternatives=ALTERNATIVES,
        advice=(
            Advice(
                target="flagscale", change="tp 2 on the v100 stage", faster=0.041, scored=scored(24, 26.1)
            ),
        ),
        diagnosis=None,
        candidates=412,
        solved=37,
        seconds=1.83,
        interrupted=interrupted,
        warnings=("4 of 8 V100 (v100) stay idle: their memory does not help this model",),
    )


def infeasible() -> SearchResult:
    """A search that proved that nothing fits."""
    return SearchResult(
        status="infeasible",
        best=None,
        bound_seconds=float("inf"),
        gap=1.0,
        alternatives=(),
        advice=(),
        diagnosis=Diagnosis(
            causes=("the model states take 100.4 GiB", "the cluster has 22.0 GiB beside its reserve"),
            nearest_miss="ZeRO-3 on 2 devices, short by 39.2 GiB",
            hints=("fits with a model of at most 1.3 B parameters", "fits with 9 more devices of this kind"),
        ),
        candidates=96,
        solved=0,
        seconds=0.012,
        interrupted=False,
    )


def unknown(interrupted: bool = False) -> SearchResult:
    """A search that was stopped before it found anything."""
    return SearchResult(
        status="unknown",
        best=None,
        bound_seconds=0.0,
        gap=1.0,
        alternatives=(),
        advice=(),
        diagnosis=None,
        candidates=96,
        solved=3,
        seconds=5.0,
        interrupted=interrupted,
    )


def out_of_reach() -> SearchResult:
    """A search that proved that plans fit and none meets the goal."""
    goal = Goal(objective="cost", min_tokens_per_second=40_000, max_cost_per_million_tokens=0.1)
    return replace(
        infeasible(),
        diagnosis=None,
        goal=goal,
        subclusters=39,
        objective_bound=float("inf"),
        nearest=(
            Nearest(limit="min_tokens_per_second", asked=40_000, kept=True, proven=True, scored=scored()),
            Nearest(
                limit="max_cost_per_million_tokens", asked=0.1, kept=False, proven=False, scored=scored()
            ),
        ),
    )


def front() -> Front:
    """Three points, the middle one off the front; the last is twice as fast at four thirds of the cost."""
    points = tuple(
        Point(scored=scored(24, seconds), gap=0.01, value=value, front=on_front)
        for seconds, value, on_front in ((27.2, 0.15, True), (20.0, 0.25, False), (13.6, 0.2, True))
    )
    return Front(
        objective="cost",
        points=points,
        worth=2,
        subclusters=9,
        beaten=3,
        without_plan=2,
        unfinished=1,
        seconds=4.2,
        interrupted=False,
    )


SHOWN_PLAN = (
    "Plan: megatron, 2 stages, ZeRO 1, selective recomputation, sequence parallel\n"
    "                                            micro-\n"
    "                                             batch  fwd+bwd  memory   free\n"
    "  stage  layers  devices        replicas  x accum.     (ms)   (GiB)  (GiB)\n"
    "  ────────────────────────────────────────────────────────────────────────\n"
    "      0  0-23    4 A100 (a100)  1 x tp 4   2 x 128      150    16.3   21.7\n"
    "      1  24-31   4 V100 (v100)  1 x tp 4   2 x 128      128    10.7    3.3\n"
    "  step 27.2 s ±15 %, 19.3 k tokens/s, 99.5 TFLOP/s per device (MFU 46 %)\n"
    "  time: compute 70 %, bubble and sends 19 %, tensor parallel 10 %, optimizer\n"
    "  1.0 %\n"
    "  uses 8 of 16 devices; idle: 4 A100 (a100), 4 V100 (v100)\n"
    "  price 10.0 per hour, 0.0756 per step, 0.144 per million tokens\n"
    "  optimal: proven within 0.8 % of the best plan of this space by the cost model\n"
    "  (412 candidates, 37 solved, 1.83 s)\n"
    "\n"
)
"""The plan of ``found()`` as the report shows it."""
SHOWN_FAMILIES = (
    "Plan families\n"
    "                         step  tokens/s\n"
    "  family                  (s)       (k)  why not\n"
    "  ──────────────────────────────────────────────────────────────────────────────\n"
    "  pipeline               27.2      19.3  chosen\n"
    "  pipeline, even layers  41.7      12.6  stage 1 takes 2.6 x stage 0: a V100 has\n"
    "                                         0.40 of the speed of an A100\n"
    "  ZeRO-3 data parallel      -         -  V100 (v100) lacks 3.2 GiB at\n"
    "                                         micro-batch 1\n"
    "  a good plan of each family, not proven optimal; percentages refer to the\n"
    "  chosen plan\n"
    "\n"
)
"""The table of families of the example."""
