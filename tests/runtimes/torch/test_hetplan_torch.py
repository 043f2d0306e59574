"""Emitted folders for PyTorch itself train for real, and equal one process that takes the whole batch at once."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest

from planner.capabilities import Recompute, Schedule
from planner.catalog import GpuSpec
from planner.cluster.spec import ClusterSpec, HostSpec
from planner.emit.interface import emit, write_folder
from planner.job.batches import model_shape
from planner.model.spec import (
    NF4_BYTES,
    BaseFormat,
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
)
from planner.plan.values import Offload, Plan
from tests.quick import first
from tests.training import folder_runs
from tests.training.launching import launch, losses
from tests.training.once import once
from tests.training.ranks import run
from tests.worlds import cluster, group, model, nic, plan, pool

torch = pytest.importorskip("torch")

from torch.distributed.checkpoint.format_utils import dcp_to_torch_save  # noqa: E402
from torch.distributed.tensor import DTensor  # noqa: E402

from planner.runtimes.torch import example_stage  # noqa: E402
from planner.runtimes.torch.example_stage import ModelPart  # noqa: E402
from planner.runtimes.torch.hetplan_torch import Layout, LossScale  # noqa: E402
from planner.runtimes.torch.train import (  # noqa: E402
    keep,
    last_kept,
    placing,
    require_same_model,
    require_same_optimizer,
)
from planner.training.example_adapters import STORED  # noqa: E402
from planner.training.example_model import Layer, Shape, keep_on_host, load_shape, shape_of  # noqa: E402
from planner.training.example_optimizers import Together  # noqa: E402
from planner.training.hetplan_runtime import RankPlan, StagePlan, load  # noqa: E402
from tests.training.reference import loss_of  # noqa: E402

STEPS = 2
"""All that a step leaves to the next one is in the second."""
BEGUN = 1
"""Those ahead of a checkpoint that another plan goes on from."""
PAIRS = PreferenceSpec(beta=2.0)
PACKED = DocumentsSpec(mean_length=5)
PADDED = DocumentsSpec(mean_length=7, spread=0.5, packing=False)
EXPERTS: dict[str, Any] = {"gated_mlp": True, "experts": ExpertsSpec(number=4, top_k=2, ffn=24)}
NO_BIAS = {"qkv_bias": False}
"""A key's bias has no gradient but rounding, which AdamW makes a step of."""
LR = {"sgd": 0.5, "adamw": 1e-2, "lion": 1e-3, "muon": 1e-2, "adafactor": 1e-2}
CLIP = 1.0
DEFAULTS = {("precision", "fp32"), ("optimizer", "adamw"), ("qkv_bias", False)}


@dataclass(frozen=True)
class Case:
    """A plan on four ranks and the model it is for."""

    name: str
    plan: Plan
    spec: ModelSpec
    cluster: ClusterSpec | None = None
    """Where it is not the two nodes of two."""
    before: Plan | None = None
    """What the first steps are trained under, from whose checkpoint it goes on."""


def four_ranks() -> ClusterSpec:
    """Two nodes with two devices each, joined by the loopback interface."""
    big, small = (
        pool("big", ("A100", "A100"), 1, (nic("eth", "lo"),)),
        pool("small", ("T4", "T4"), 1, (nic("eth", "lo"),)),
    )
    return cluster(big, small)


def two_ranks(gpus: dict[str, GpuSpec] | None = None) -> ClusterSpec:
    """Two nodes with a device each."""
    cards = (nic("eth", "lo"),)
    return cluster(
        *(pool(name, (gpu,), 1, cards) for name, gpu in (("big", "A100"), ("small", "T4"))), gpus=gpus
    )


def on_hosts(where: ClusterSpec) -> ClusterSpec:
    """The same with what must be known of hosts on which something is kept."""
    host = HostSpec(link_gBps=10, memory_gib=64)
    pools = tuple(each.model_copy(update={"host": host}) for each in where.pools)
    return where.model_copy(update={"pools": pools})


OF_THEIR_OWN = (
    *("experts", "state", "block", "ahead", "behind", "tower", "encoder", "documents", "front", "preference"),
    *("beside", "lora", "freeze", "latent"),
)
"""Parts of a model with too much in them for a name."""


def name_of(kind: str, zero: int, changes: dict[str, Any]) -> str:
    """A folder name that says what is special."""
    tower = changes.get("tower")
    special = [] if tower is None else [f"tower_{'frozen' if tower.frozen else 'trained'}"]
    special += [key for key in ("encoder", "beside") if key in changes]
    special += ["pairs"] if "preference" in changes else []
    special += [f"lora_{changes['lora'].base}"] if "lora" in changes else []
    special += [f"freeze_{'_'.join(changes['freeze'])}"] if "freeze" in changes else []
    special += ["packed" if changes["documents"].packing else "padded"] if "documents" in changes else []
    special += [
        f"{key}_{value}"
        for key, value in changes.items()
        if key not in OF_THEIR_OWN and (key, value) not in DEFAULTS
    ]
    return "-".join([kind, f"zero{zero}", *special])


def uneven(zero: int, *, shard_size: int | None = None, **changes: Any) -> Case:
    """Shares 5, 5, 2, 1 in 2, 2, 1 and 1 micro-batches."""
    replicas = (
        group("big", "A100", count=2, share=5, steps=2),
        group("small", "T4", share=2),
        group("small", "T4", share=1),
    )
    changes = {"precision": "fp32", "optimizer": "adamw", **NO_BIAS, **changes}
    name = name_of("hybrid" if shard_size else "uneven", zero, changes)
    chosen = plan("torch", zero, [3], [replicas], shard_size=shard_size)
    return Case(name, chosen, model(13, layers=3, **changes))


def pair(zero: int, **changes: Any) -> Case:
    """Two ranks, with three micro-batches of 2, 2 and 1 and with one of 2."""
    replicas = (group("big", "A100", share=5, steps=3), group("small", "T4", share=2))
    changes = {"precision": "fp32", "optimizer": "adamw", **NO_BIAS, **changes}
    chosen = plan("torch", zero, [2], [replicas])
    return Case(name_of("pair", zero, changes), chosen, model(7, layers=2, **changes), two_ranks())


def alike(zero: int, *, ranks: int = 4, **changes: Any) -> Case:
    """The batch of two pipelines in six micro-batches, or of one in three, on replicas of unequal shares."""
    first = group("big", "A100", count=ranks // 2, share=4, steps=2)
    others = [group("small", "T4", share=share) for share in ((2,) if ranks == 2 else (3, 1))]
    changes = {"precision": "fp32", "optimizer": "adamw", **NO_BIAS, **changes}
    chosen = plan("torch", zero, [3], [(first, *others)])
    spec = model(chosen.global_batch, layers=3, **changes)
    return Case(name_of("alike", zero, changes), chosen, spec, two_ranks() if ranks == 2 else None)


def frozen(name: str, zero: int, **changes: Any) -> Case:
    """The same with a part of the model, or adapters alone, that are trained."""
    case = uneven(zero, **changes)
    return replace(case, name=f"{name}-zero{zero}")


def recomputed(case: Case) -> Case:
    """The same with full recomputation."""
    stages = tuple(replace(stage, recompute="full") for stage in case.plan.stages)
    return replace(case, name=f"{case.name}-full", plan=replace(case.plan, stages=stages))


def named(what: str, case: Case) -> Case:
    """The same by another name: those of ``OF_THEIR_OWN`` do not tell models apart."""
    return replace(case, name=f"{what}-{case.name}")


def resumed(what: str, before: Case, case: Case) -> Case:
    """The second plan goes on from a checkpoint of the first one."""
    assert before.spec == case.spec
    turn = " to ".join(f"{len(each.plan.stages)} stages, zero {each.plan.zero}" for each in (before, case))
    return replace(case, name=f"{what}-{turn}".replace(", ", "-").replace(" ", "-"), before=before.plan)


LLAMA: dict[str, Any] = {"gated_mlp": True, "kv_heads": 2, "tied_embeddings": False}


def pipeline(
    zero: int, layers: list[int], steps: int, *, fewer: int = 0, ranks: int = 4, **changes: Any
) -> Case:
    """Uneven stages over four ranks, two of width 2 or four of width 1, or two over two; they recompute by turns.

    ``fewer`` of the pipelines run one micro-batch fewer.
    """
    width = ranks // len(layers)
    share = steps * 2
    slots = [("big", "A100")] * (len(layers) // 2) + [("small", "T4")] * (len(layers) // 2)
    replicas = [(group(name, gpu, count=width, share=share, steps=steps),) for name, gpu in slots]
    changes = {"precision": "fp32", "optimizer": "adamw", **NO_BIAS, **changes}
    name = name_of(f"pipeline-{'-'.join(map(str, layers))}" + "-fewer" * fewer, zero, changes)
    chosen = plan("torch", zero, layers, replicas, fewer_steps=fewer)
    turns = tuple(
        replace(stage, recompute="full" if index % 2 else "none") for index, stage in enumerate(chosen.stages)
    )
    spec = model(share * width - 2 * fewer, layers=sum(layers), **changes)
    return Case(name, replace(chosen, stages=turns), spec, two_ranks() if ranks == 2 else None)


def ordered(case: Case, schedule: Schedule, interleave: int = 1) -> Case:
    """The same in another schedule, without recomputation where the backward is divided."""
    stages = case.plan.stages
    if schedule != "1f1b":
        stages = tuple(replace(stage, recompute="none") for stage in stages)
    chosen = replace(case.plan, stages=stages, schedule=schedule, interleave=interleave)
    return replace(case, name=f"{schedule}-{interleave}-{case.name}", plan=chosen)


def tensor_parallel(zero: int, *, stages: int = 1, **changes: Any) -> Case:
    """Replicas of two ranks; without a pipeline two of them have different batches."""
    slots = [("big", "A100"), ("small", "T4")]
    groups = [group(name, gpu, tp=2, share=4 - index, steps=2) for index, (name, gpu) in enumerate(slots)]
    changes = {"precision": "fp32", "optimizer": "adamw", **NO_BIAS, **changes}
    name = name_of(f"tensor-pp{stages}", zero, changes)
    if stages == 2:
        equal = [(replace(each, local_batch=4),) for each in groups]
        return Case(
            name, plan("torch", zero, [2, 1], equal, sequence_parallel=True), model(4, layers=3, **changes)
        )
    chosen = plan("torch", zero, [2], [tuple(groups)], sequence_parallel=True)
    return Case(name, chosen, model(7, layers=2, **changes))


def whole(case: Case) -> Case:
    """The same with hidden states whole on every rank of a replica."""
    return replace(case, name=f"whole-{case.name}", plan=replace(case.plan, sequence_parallel=False))


def over_nodes(zero: int, devices: int, *, tp: int, stages: int = 1, **changes: Any) -> Case:
    """Replicas that fill nodes of so many devices, on four ranks of one type."""
    where = cluster(pool("big", ("A100",) * devices, 4 // devices, (nic("ib", "lo"),)))
    changes = {"precision": "fp32", "optimizer": "adamw", **NO_BIAS, **changes}
    each = (group("big", "A100", tp=tp, count=4 // (tp * stages), share=4, steps=2),)
    layers = [2, 1] if stages == 2 else [3]
    chosen = plan("torch", zero, layers, [each] * stages, sequence_parallel=True)
    name = name_of(f"nodes-of-{devices}-tp{tp}-pp{stages}", zero, changes)
    return Case(name, chosen, model(chosen.global_batch, layers=3, **changes), where)


def dealt(zero: int, interleave: int = 1, **changes: Any) -> Case:
    """A pipeline in each of two nodes, whose replicas are on the other."""
    where = cluster(pool("big", ("A100", "A100"), 2, (nic("eth", "lo"),)))
    changes = {"precision": "fp32", "optimizer": "adamw", **NO_BIAS, **changes}
    stage = (group("big", "A100", count=2, share=4, steps=2),)
    chosen = plan("torch", zero, [2, 3], [stage, stage], interleave=interleave, stage_nodes=2)
    name = name_of(f"dealt-v{interleave}", zero, changes)
    return Case(name, chosen, model(8, layers=5, **changes), where)


def dealt_in_two_pools(zero: int, **changes: Any) -> Case:
    """Pipelines of four stages: two in each node of a pool, then two in a node of the other one."""
    kinds = (("big", "A100"), ("small", "T4"))
    where = cluster(*(pool(name, (gpu, gpu), 2, (nic("eth", "lo"),)) for name, gpu in kinds))
    changes = {"precision": "fp32", "optimizer": "adamw", **NO_BIAS, **changes}
    stages = [(group(*kind, count=2, share=4, steps=2),) for kind in kinds for _ in range(2)]
    chosen = plan("torch", zero, [1, 2, 1, 1], stages, stage_nodes=2)
    return Case(name_of("dealt-in-two-pools", zero, changes), chosen, model(8, layers=5, **changes), where)


def divided(
    zero: int,
    *,
    cp: int = 2,
    tp: int = 1,
    stages: int = 1,
    kind: str = "ulysses",
    how: Recompute = "selective",
    **changes: Any,
) -> Case:
    """Sequences over two ranks or four; without a pipeline two pairs have different batches."""
    changes = {"precision": "fp32", "optimizer": "adamw", **NO_BIAS, **changes}
    name = name_of(f"{'ring' if kind == 'ring' else 'divided'}-cp{cp}-tp{tp}-pp{stages}", zero, changes)
    ways = {"cp": cp, "cp_kind": kind}
    slots = [("big", "A100"), ("small", "T4")]
    if cp * tp == 4:
        where = cluster(pool("big", ("A100",) * 4, 1, (nic("eth", "lo"),)))
        each = group("big", "A100", tp=tp, count=cp, share=5, steps=2)
        chosen = plan("torch", zero, [3], [(each,)], sequence_parallel=tp > 1, **ways)
        return Case(name, chosen, model(5, layers=3, **changes), where)
    shares = (4, 4) if stages == 2 else (4, 3)
    groups = [group(*slot, count=2, share=share, steps=2) for slot, share in zip(slots, shares, strict=True)]
    if stages == 2:
        chosen = plan("torch", zero, [2, 1], [(each,) for each in groups], recompute=how, **ways)
        return Case(name, chosen, model(4, layers=3, **changes))
    return Case(
        name,
        plan("torch", zero, [3], [tuple(groups)], recompute="full", **ways),
        model(7, layers=3, **changes),
    )


def shared(
    zero: int,
    *,
    ep: int = 2,
    cp: int = 1,
    kind: str = "ulysses",
    stages: int = 1,
    how: Recompute = "none",
    shard_size: int | None = None,
    **changes: Any,
) -> Case:
    """Experts over pairs of ranks, which have batches of their own without a pipeline, or over all four."""
    changes = {"precision": "fp32", "optimizer": "adamw", **NO_BIAS, "experts": ROUTED, **changes}
    what = (
        f"experts-ep{ep}"
        + f"-{'ring' if kind == 'ring' else 'cp'}{cp}" * (cp > 1)
        + f"-shard{shard_size}" * bool(shard_size)
    )
    name = name_of(f"{what}-pp{stages}", zero, changes)
    ways = {"ep": ep, "shard_size": shard_size, **({"cp": cp, "cp_kind": kind} if cp > 1 else {})}
    where = cluster(pool("big", ("A100",) * 4, 1, (nic("eth", "lo"),))) if ep == 4 else None
    slots = [("big", "A100")] * 2 if ep == 4 else [("big", "A100"), ("small", "T4")]
    shares = (4, 4) if stages == 2 or ep == 4 else (5, 2)
    groups = [group(*slot, count=2, share=share, steps=2) for slot, share in zip(slots, shares, strict=True)]
    if ep == 4:
        groups = [group("big", "A100", count=4, share=3, steps=2)]
    own = [tuple(groups)] if stages == 1 else [(each,) for each in groups]
    chosen = plan("torch", zero, [2, 1] if stages == 2 else [2], own, recompute=how, **ways)
    return Case(name, chosen, model(chosen.global_batch, layers=len(own) + 1, **changes), where)


def eight(zero: int) -> Case:
    """Experts over pairs of ranks, and two copies of the states, in each of which two pairs share them."""
    chosen = plan(
        "torch", zero, [2], [(group("big", "A100", count=8, share=2, steps=2),)], ep=2, shard_size=4
    )
    training = {"precision": "fp32", "optimizer": "sgd", **NO_BIAS, "experts": ROUTED}
    where = cluster(pool("big", ("A100",) * 8, 1, (nic("eth", "lo"),)))
    return Case(f"eight-zero{zero}", chosen, model(chosen.global_batch, layers=2, **training), where)


ROUTED = ExpertsSpec(number=8, top_k=2, ffn=24, shared_ffn=16)
GATED_EXPERTS = ExpertsSpec(number=4, top_k=2, ffn=24, hidden=16, shared_ffn=20, shared_gate=True)
BIASED_EXPERTS = ExpertsSpec(number=4, top_k=1, ffn=24, router_bias=True, bias=True)
LATENT: dict[str, Any] = {
    "latent": LatentSpec(kv_rank=16, rope_dim=4, value_dim=8),
    **{"head_dim": 12, "kv_heads": 4},
}
DELTA: dict[str, Any] = {
    "state": StateSpec(kind="delta", heads=4, head_dim=8, groups=2, size=8, conv_bias=False, chunk=8),
    "block": (RunSpec(mixer="state"), RunSpec()),
}
DUALITY: dict[str, Any] = {
    "state": StateSpec(kind="mamba2", heads=4, head_dim=8, size=8, chunk=8),
    "block": (RunSpec(mixer="state", feed_forward="none"), RunSpec(mixer="none"), RunSpec()),
    "behind": (RunSpec(mixer="state"),),
}
CONVOLVED: dict[str, Any] = {
    "state": StateSpec(kind="conv", head_dim=32, gates=3),
    "block": (RunSpec(mixer="state"), RunSpec()),
}
GROUPED: dict[str, Any] = {**DUALITY, "state": DUALITY["state"].model_copy(update={"groups": 4})}
LIGHTNING: dict[str, Any] = {
    "state": StateSpec(kind="linear", heads=4, head_dim=8, size=8, groups=4, chunk=8),
    "block": (RunSpec(mixer="state", feed_forward="none"), RunSpec()),
}
SIZED: dict[str, Any] = {
    **{"gated_mlp": True, "qk_norm": True, "tied_embeddings": False},
    "block": (
        RunSpec(kv_heads=2, ffn=48),
        RunSpec(heads=2, kv_heads=2, head_dim=16, value_dim=0, ffn=96),
        RunSpec(heads=8, kv_heads=4, head_dim=4, value_dim=6),
    ),
    "ahead": (RunSpec(ffn=32),),
    "behind": (RunSpec(heads=2, kv_heads=2, value_dim=4, ffn=128),),
}
"""Layers of Gemma 4, MiMo and OpenELM, no two of one size."""
HALVES: dict[str, Any] = {
    "block": (RunSpec(mixer="none"), RunSpec(feed_forward="none", kv_heads=1, head_dim=16)),
    "ahead": (RunSpec(mixer="none", feed_forward="dense", ffn=40),),
    "experts": ExpertsSpec(number=4, top_k=2, ffn=24, hidden=16, shared_ffn=20),
}
"""Layers of Nemotron 3, either without attention or without a feed-forward, and experts of another width."""
BESIDE = (
    ProductSpec(inputs=12, outputs=16, tokens=9, times=2, bias=True),
    ProductSpec(inputs=16, outputs=9, tokens=9, weights=False),
)
TOWER = TowerSpec(
    layers=2,
    hidden=16,
    heads=2,
    ffn=32,
    patch=12,
    tokens=9,
    outputs=4,
    positions=9,
    class_token=True,
    norm_first=True,
    norm_last=True,
    merged=2,
    projector=(24, 32),
    projector_norm=True,
    images=2,
)
CROSSED = (RunSpec(feed_forward="none"), RunSpec(mixer="cross"))
T5: dict[str, Any] = {
    "encoder": EncoderSpec(layers=2, sequence_length=12),
    "block": CROSSED,
    "norm": "rms",
}
HEARING: dict[str, Any] = {
    "encoder": EncoderSpec(
        layers=2,
        sequence_length=6,
        hidden=16,
        heads=2,
        ffn=24,
        learned_positions=6,
        front=(FrontSpec(inputs=12, outputs=16, tokens=12), FrontSpec(inputs=48, outputs=16, tokens=6)),
    ),
    "block": CROSSED,
    "key_bias": False,
    "qkv_bias": True,
    "learned_positions": 16,
}
SEEING: dict[str, Any] = {
    **{"kind": "encoder", "tied_embeddings": False, "learned_positions": 16},
    "front": (FrontSpec(inputs=12, outputs=32, tokens=15),),
}
SWITCH: dict[str, Any] = {
    "encoder": EncoderSpec(layers=1, sequence_length=12, block=(RunSpec(feed_forward="dense"), RunSpec())),
    "block": (*CROSSED[:1], RunSpec(mixer="cross", feed_forward="dense"), *CROSSED),
}
CASES = [
    pair(1, documents=PADDED, learned_positions=16),
    pair(0, precision="bf16"),
    pair(2, precision="fp16"),
    uneven(2, shard_size=2, optimizer="sgd"),
    pipeline(0, [3, 1], steps=3, ranks=2, optimizer="muon"),
    pair(3, optimizer="lion"),
    pair(0, optimizer="adafactor"),
    pair(1, precision="bf16", reduce_dtype="bf16"),
    pair(3, optimizer_states="int8"),
    pair(3, precision="bf16", master_weights="bf16"),
    ordered(pipeline(3, [3, 2], steps=2, optimizer="sgd", embedding_width=64), "1f1b", 2),
    ordered(
        pipeline(0, [3, 2], steps=4, ranks=2, optimizer="sgd", preference=PAIRS, tied_embeddings=False),
        "zb-v",
        2,
    ),
    ordered(pipeline(0, [2, 3], steps=4, ranks=2, optimizer="sgd", tied_embeddings=False), "dualpipe-v", 2),
    tensor_parallel(
        3,
        stages=2,
        optimizer="sgd",
        kind="encoder",
        token_types=2,
        head_transform=True,
        head_bias=True,
        learned_positions=32,
    ),
    pair(2, optimizer="sgd", dense_layers=1, **EXPERTS),
    recomputed(pair(2, documents=PACKED)),
    pair(3, optimizer="sgd", **T5),
    pipeline(0, [2, 1], steps=2, ranks=2, optimizer="sgd", **HEARING),
    pair(3, optimizer="sgd", labels=5, pooled=True, head_bias=True, **SEEING),
    pipeline(0, [1, 2], steps=2, ranks=2, optimizer="sgd", kv_heads=2, tower=TOWER, beside=BESIDE),
    ordered(
        pipeline(0, [1, 2], steps=2, ranks=2, optimizer="sgd", tied_embeddings=False, **DUALITY),
        "zero-bubble",
    ),
    named("plain", tensor_parallel(1, optimizer="sgd", vocab=63, output_gate=True, cross_entropy="plain")),
    divided(3, optimizer="sgd", kv_heads=2, gated_mlp=True, tied_embeddings=False),
    named("delta", divided(3, optimizer="sgd", output_gate=True, **DELTA)),
    named("mamba2", divided(2, kind="ring", optimizer="sgd", **GROUPED)),
    divided(3, optimizer="sgd", documents=PACKED),
    shared(3, optimizer="sgd", how="full", dense_layers=1, gated_mlp=True),
]
"""Every layout and every ZeRO stage, and every optimizer, number format and kind of model with one of them.

On two ranks where they do not depend on the layout. Another model with a state is among those with unequal shards.
"""
ADAPTERS = {"lora": LoraSpec(rank=4, targets=("q_proj", "v_proj", "down_proj")), **LLAMA}
NF4: dict[str, Any] = {"lora": LoraSpec(rank=4, base="nf4"), **LLAMA}
BIASED: dict[str, Any] = {
    **{"lora": LoraSpec(rank=4), **LLAMA, "tied_embeddings": True, "qk_norm": True},
    **dict.fromkeys(("qkv_bias", "output_bias", "mlp_bias"), True),
}
"""Adapters on all products, beside biases of columns and of rows."""
WIDE: dict[str, Any] = {**NF4, "hidden": 128, "head_dim": 32, "ffn": 128, "output_bias": True}
"""Of which two ranks have whole blocks of each product."""
ALL: dict[str, Any] = {"lora": LoraSpec(rank=4), "optimizer": "sgd"}
PACKED_BITS: dict[str, Any] = {"lora": LoraSpec(rank=4, base="nf4-double"), "optimizer": "sgd"}
BITS: dict[str, Any] = {"lora": LoraSpec(rank=4, base="nf4"), "optimizer": "sgd"}
OF_EXPERTS: tuple[Any, ...] = ("q_proj", "experts.up_proj", "experts.down_proj")
SPARSE: dict[str, Any] = {"lora": LoraSpec(rank=8, targets=OF_EXPERTS), "optimizer": "sgd"}
SPARSE_BITS: dict[str, Any] = {"lora": LoraSpec(rank=8, targets=OF_EXPERTS, base="nf4"), "optimizer": "sgd"}
"""Adapters of experts too."""
DEEPSEEK = {**LATENT, "gated_mlp": True, "dense_layers": 1, "experts": GATED_EXPERTS}
"""Low ranks, a dense layer ahead, and shared experts."""
FROZEN = [
    named("deepseek", pair(3, **DEEPSEEK, **ALL)),
    named("sparse", shared(3, dense_layers=1, **SPARSE)),
    named("states", pipeline(1, [2, 1], steps=2, ranks=2, **DUALITY, **PACKED_BITS)),
    named("freeze", shared(1, gated_mlp=True, optimizer="sgd", freeze=("mlp", "embedding"), stages=2)),
    resumed("nf4-experts", shared(2, stages=2, **BITS), pipeline(1, [1, 2], steps=2, experts=ROUTED, **BITS)),
    pair(3, optimizer="sgd", preference=PAIRS, **ADAPTERS),
    pair(2, freeze=("embedding", "attention"), optimizer="sgd"),
    pipeline(1, [2, 1], steps=3, fewer=1, **{**ADAPTERS, "tied_embeddings": True}),
    pair(3, precision="bf16", **{**LLAMA, **PACKED_BITS}),
    resumed(
        "nf4-shards",
        alike(3, ranks=2, **{**LLAMA, **PACKED_BITS}),
        pipeline(1, [1, 2], steps=3, ranks=2, **{**LLAMA, **PACKED_BITS}),
    ),
]
RESUMED = [
    resumed(
        "sizes",
        alike(3, ranks=2, optimizer="sgd", **SIZED),
        pipeline(0, [1, 2], steps=3, ranks=2, optimizer="sgd", **SIZED),
    ),
]
"""Plans that go on where another ended, with layers of several sizes and with divided experts."""
OTHERS = [
    tensor_parallel(3, optimizer="sgd", vocab=63, output_gate=True),
    shared(3, precision="bf16", master_weights="bf16"),
    ordered(
        pipeline(1, [3, 2], steps=4, optimizer="sgd", preference=PAIRS, tied_embeddings=False), "zb-v", 2
    ),
    pipeline(2, [1, 2], steps=2, optimizer="sgd", kv_heads=2, tower=TOWER, beside=BESIDE),
    named("halves", pair(3, optimizer="sgd", **HALVES)),
    named("plain", tensor_parallel(1, optimizer="sgd", cross_entropy="plain")),
    shared(2, optimizer="sgd", shard_size=2),
    named("sparse", shared(1, dense_layers=1, **SPARSE)),
    resumed(
        "sparse-nf4",
        shared(2, stages=2, **SPARSE_BITS),
        pipeline(1, [1, 2], steps=2, experts=ROUTED, **SPARSE_BITS),
    ),
    *(named("lora", shared(zero, gated_mlp=True, dense_layers=1, **ALL)) for zero in (1, 3)),
    named("nf4", shared(3, gated_mlp=True, **PACKED_BITS)),
    named("nf4", tensor_parallel(3, stages=2, optimizer="sgd", **WIDE)),
    named("nf4", uneven(3, shard_size=2, **NF4)),
    named("sparse-nf4", shared(3, shard_size=2, dense_layers=1, **SPARSE_BITS)),
    resumed("nf4-shards", pipeline(0, [1, 2], steps=3, **NF4), alike(3, **NF4)),
    resumed("experts", shared(2, stages=2, how="selective"), pipeline(1, [1, 2], steps=2, experts=ROUTED)),
    over_nodes(0, 2, tp=4, optimizer="sgd"),
    ordered(pipeline(1, [1, 2], steps=2, optimizer="sgd", tied_embeddings=False, **DUALITY), "zero-bubble"),
    uneven(1, documents=PADDED, learned_positions=16),
    shared(1, ep=4, optimizer="sgd"),
    named("lora", tensor_parallel(1, **BIASED)),
    resumed(
        "sizes-again",
        alike(3, optimizer="sgd", **SIZED),
        pipeline(1, [1, 2], steps=3, optimizer="sgd", **SIZED),
    ),
    divided(2, stages=2),
    shared(0, optimizer="sgd", gated_mlp=True),
    resumed("nf4", pipeline(0, [1, 2], steps=3, **NF4), alike(2, **NF4)),
    pipeline(0, [3, 1], steps=3, optimizer="muon"),
    pipeline(0, [2, 1, 1, 2], steps=4, optimizer="sgd", **HEARING),
    ordered(pipeline(1, [2, 3], steps=4, optimizer="sgd", tied_embeddings=False), "dualpipe-v", 2),
    tensor_parallel(1, tied_embeddings=False, gated_mlp=True, kv_heads=2, qk_norm=True, head_dim=16),
    *(uneven(zero) for zero in (1, 3)),
    uneven(0, precision="bf16"),
    uneven(2, precision="fp16"),
    uneven(3, optimizer="lion"),
    uneven(0, optimizer="adafactor"),
    uneven(1, precision="bf16", reduce_dtype="bf16"),
    uneven(3, optimizer_states="int8"),
    pipeline(0, [1, 2], steps=3, fewer=1),
    pipeline(3, [1, 2], steps=3, optimizer="sgd", embedding_width=64),
    ordered(pipeline(3, [4, 2], steps=2, optimizer="sgd"), "1f1b", 2),
    ordered(pipeline(1, [3, 1], steps=2, optimizer="sgd"), "zero-bubble"),
    ordered(pipeline(1, [4, 3], steps=5, optimizer="sgd", tied_embeddings=False), "zb-v", 2),
    uneven(2, optimizer="sgd", dense_layers=1, **EXPERTS),
    recomputed(uneven(2, documents=PACKED)),
    ordered(
        pipeline(0, [2, 1, 1, 2], steps=4, optimizer="sgd", preference=PAIRS, tied_embeddings=False),
        "zero-bubble",
    ),
    uneven(3, optimizer="sgd", documents=PADDED, learned_positions=16),
    uneven(3, optimizer="sgd", **T5),
    uneven(3, optimizer="sgd", labels=5, pooled=True, head_bias=True, **SEEING),
    pipeline(1, [1, 2], steps=2, optimizer="sgd", tied_embeddings=False, **DUALITY),
    named("halves", uneven(3, optimizer="sgd", **HALVES)),
    shared(2, stages=2, optimizer="sgd", how="selective"),
    frozen("lora", 1, **ADAPTERS),
    frozen("lora-pairs", 3, optimizer="sgd", preference=PAIRS, **ADAPTERS),
    frozen("freeze", 2, freeze=("embedding", "attention"), optimizer="sgd"),
    pipeline(1, [2, 1], steps=3, **{**ADAPTERS, "tied_embeddings": True}),
    resumed("experts", shared(3, stages=2), pipeline(1, [1, 2], steps=2, experts=ROUTED)),
    over_nodes(1, 1, tp=2, stages=2, optimizer="sgd"),
    dealt(1, **ADAPTERS),
    dealt(2, 2, optimizer="sgd"),
    dealt_in_two_pools(1),
    uneven(3, shard_size=2, precision="bf16"),
    uneven(0, optimizer_states="bf16"),
    pipeline(1, [1, 2], steps=3, fewer=1, optimizer="sgd", documents=PACKED),
    ordered(pipeline(1, [2, 3], steps=5, optimizer="sgd", head_bias=True), "zb-v", 2),
    recomputed(uneven(3, optimizer="sgd", preference=PAIRS)),
    uneven(1, optimizer="sgd", tied_embeddings=False, **SWITCH, **EXPERTS),
    named("sizes", pipeline(2, [1, 2], steps=2, optimizer="sgd", **SIZED)),
    divided(0, cp=4, learned_positions=16),
    divided(0, cp=4, kind="ring", learned_positions=16),
    divided(3, kind="ring", optimizer="sgd", kv_heads=1),
    divided(1, stages=2, kind="ring", optimizer="sgd"),
    divided(1, tp=2, kind="ring", optimizer="sgd"),
    named("latent", divided(2, kind="ring", optimizer="sgd", **LATENT)),
    named("mamba2", divided(0, cp=4, kind="ring", optimizer="sgd", learned_positions=16, **GROUPED)),
    named("mamba2", divided(1, stages=2, how="full", optimizer="sgd", **GROUPED)),
    named("delta", divided(1, stages=2, kind="ring", how="none", optimizer="sgd", output_gate=True, **DELTA)),
    named("conv", divided(0, cp=4, optimizer="sgd", **CONVOLVED)),
    named("conv", divided(3, kind="ring", optimizer="sgd", **CONVOLVED)),
    divided(0, cp=4, documents=PACKED, learned_positions=16),
    divided(1, stages=2, optimizer="sgd", documents=PACKED),
    divided(3, kind="ring", optimizer="sgd", precision="bf16"),
    frozen("lora-bf16", 3, precision="bf16", **ADAPTERS),
    frozen("nf4", 3, **NF4),
    frozen("nf4-fp16", 3, precision="fp16", **{**LLAMA, **PACKED_BITS}),
    pair(3, optimizer="sgd", preference=PAIRS, **NF4),
    pipeline(3, [1, 2], steps=2, **NF4),
    ordered(pipeline(3, [4, 2], steps=2, **NF4), "1f1b", 2),
    named("nf4", tensor_parallel(3, optimizer="sgd", **WIDE)),
    named("deepseek", pair(3, **DEEPSEEK, **PACKED_BITS)),
    named("nf4", shared(3, ep=4, **PACKED_BITS)),
    pipeline(2, [1, 2], steps=2, optimizer="sgd", freeze=("embedding", "attention")),
    over_nodes(3, 1, tp=2, optimizer="sgd"),
    *(named("sizes", uneven(zero, optimizer="sgd", **SIZED)) for zero in (0, 3)),
    named("sizes", tensor_parallel(1, optimizer="sgd", **SIZED)),
    named("sizes", tensor_parallel(3, stages=2, optimizer="sgd", **SIZED)),
    named(
        "halves",
        tensor_parallel(1, optimizer="sgd", block=(RunSpec(mixer="none"), RunSpec(feed_forward="none"))),
    ),
    named("sizes", divided(2, optimizer="sgd", **SIZED)),
    named("sizes", pipeline(0, [2, 1, 1, 2], steps=4, optimizer="sgd", **SIZED)),
    named("sizes", ordered(pipeline(1, [3, 1], steps=2, optimizer="sgd", **SIZED), "zero-bubble")),
    named("sizes", ordered(pipeline(0, [3, 2], steps=4, optimizer="sgd", **SIZED), "zb-v", 2)),
    named("halves", pipeline(1, [2, 1], steps=2, optimizer="sgd", **HALVES)),
    named("lightning", pipeline(0, [1, 2], steps=2, optimizer="sgd", **LIGHTNING)),
    resumed(
        "experts",
        pipeline(2, [1, 2], steps=2, optimizer="sgd", experts=ROUTED),
        shared(0, stages=2, optimizer="sgd"),
    ),
    shared(2),
    *(shared(zero, optimizer="sgd") for zero in (1, 3)),
    *(shared(zero, ep=4, gated_mlp=True) for zero in (0, 3)),
    *(shared(zero, optimizer="sgd", shard_size=2, gated_mlp=True) for zero in (1, 3)),
    named("lora", shared(3, shard_size=2, **ALL)),
    *(eight(zero) for zero in (1, 2, 3)),
    named("biased", shared(3, optimizer="sgd", experts=BIASED_EXPERTS)),
    shared(1, precision="bf16", optimizer="sgd", how="selective"),
    shared(2, precision="fp16", optimizer="sgd"),
    *(shared(3, ep=ep, cp=2, optimizer="sgd", gated_mlp=True) for ep in (2, 4)),
    shared(1, ep=4, cp=2, kind="ring", optimizer="sgd"),
    shared(3, optimizer="lion", documents=PACKED),
    named("halves", shared(1, optimizer="sgd", **HALVES)),
    *(shared(zero, cp=2, optimizer="sgd", sinks=True) for zero in (0, 3)),
    pipeline(2, [1, 2], steps=2, optimizer="sgd", documents=PACKED, sinks=True),
    frozen("lora-sinks", 3, sinks=True, **ADAPTERS),
    recomputed(uneven(3, optimizer="sgd", sinks=True)),
    named("latent", shared(3, optimizer="sgd", gated_mlp=True, dense_layers=1, **LATENT)),
    named("latent", pipeline(1, [1, 2], steps=2, optimizer="sgd", documents=PACKED, **LATENT)),
    named("latent", recomputed(uneven(3, shard_size=2, optimizer="sgd", **LATENT))),
    named("encoder", shared(1, optimizer="sgd", **SWITCH)),
    named("gate", shared(0, optimizer="sgd", gated_mlp=True, experts=GATED_EXPERTS)),
    *(shared(zero, stages=2, optimizer="sgd", how="full") for zero in (0, 3)),
    ordered(shared(1, stages=2, optimizer="sgd"), "zero-bubble"),
    pipeline(2, [3, 1], steps=2, optimizer="sgd"),
    pipeline(0, [2, 1, 1, 2], steps=4, optimizer="sgd"),
    ordered(pipeline(0, [3, 2, 2, 2], steps=4), "1f1b", 2),
    ordered(pipeline(0, [2, 1, 1, 2], steps=8, tied_embeddings=False), "zero-bubble"),
    ordered(pipeline(0, [3, 2, 2, 2], steps=9, tied_embeddings=False), "zb-v", 2),
    pipeline(3, [1, 2], steps=3, optimizer="sgd", preference=PAIRS),
    uneven(3, optimizer="sgd", output_gate=True, **DELTA),
    uneven(3, tower=TOWER),
    uneven(2, optimizer="sgd", kv_heads=2, gated_mlp=True, tied_embeddings=False),
    uneven(3, optimizer="sgd", kind="encoder", learned_positions=16, head_transform=True),
    uneven(1, shard_size=2),
    pipeline(1, [1, 3], steps=3, tied_embeddings=False),
    ordered(pipeline(2, [3, 4], steps=4, optimizer="sgd", tied_embeddings=False), "1f1b", 3),
    ordered(pipeline(1, [4, 2], steps=4, precision="bf16", optimizer="sgd"), "zero-bubble", 2),
    ordered(pipeline(0, [3, 2, 2, 3], steps=8, optimizer="sgd", tied_embeddings=False), "dualpipe-v", 2),
    ordered(pipeline(0, [2, 3], steps=4, optimizer="sgd", tied_embeddings=False, **T5), "zb-v", 2),
    ordered(pipeline(0, [3, 2, 2, 3], steps=9, optimizer="sgd"), "dualpipe-v", 2),
    ordered(pipeline(1, [2, 2], steps=4, precision="bf16", optimizer="sgd"), "dualpipe-v", 2),
    ordered(pipeline(0, [2, 3], steps=4, optimizer="sgd", preference=PAIRS), "zb-v", 2),
    ordered(tensor_parallel(1, stages=2, optimizer="sgd"), "zero-bubble"),
    ordered(divided(1, stages=2, optimizer="sgd"), "zero-bubble"),
    ordered(pipeline(0, [3, 1], steps=2, optimizer="sgd", output_gate=True, **DELTA), "zero-bubble"),
    ordered(pipeline(1, [1, 2], steps=2, optimizer="sgd", **T5), "zero-bubble"),
    pipeline(1, [2, 1], steps=2, fewer=1, optimizer="sgd", tied_embeddings=False),
    tensor_parallel(0, optimizer="sgd"),
    tensor_parallel(2, optimizer="sgd", learned_positions=16),
    tensor_parallel(1, optimizer="sgd", documents=PACKED, learned_positions=16),
    tensor_parallel(0, stages=2, optimizer="sgd", documents=PACKED),
    pipeline(0, [2, 1, 1, 2], steps=4, optimizer="sgd", documents=PADDED),
    pipeline(1, [1, 2], steps=2, optimizer="sgd", **T5),
    pipeline(1, [1, 2], steps=2, optimizer="sgd", labels=0, **SEEING),
    uneven(1, optimizer="sgd", tower=TOWER.model_copy(update={"frozen": True})),
    pipeline(0, [3, 1], steps=2, optimizer="sgd", dense_layers=2, tied_embeddings=False, **EXPERTS),
    divided(1, tp=2, optimizer="sgd"),
    whole(tensor_parallel(3, optimizer="sgd")),
    whole(tensor_parallel(1, stages=2, optimizer="sgd", learned_positions=16)),
    tensor_parallel(2, optimizer="sgd", layer_norms=4),
    tensor_parallel(2, optimizer="sgd", norms="unfused"),
    *(frozen("lora", zero, **ADAPTERS) for zero in (0, 3)),
    pipeline(0, [2, 1, 1, 2], steps=4, optimizer="sgd", **ADAPTERS),
    pipeline(3, [1, 2], steps=2, precision="bf16", **ADAPTERS),
    pipeline(2, [1, 2], steps=2, **NF4),
    pipeline(1, [1, 2], steps=2, preference=PAIRS, optimizer="sgd", **ADAPTERS),
    pipeline(1, [2, 1], steps=2, fewer=1, optimizer="sgd", **ADAPTERS),
    ordered(pipeline(1, [3, 4], steps=4, optimizer="sgd", **ADAPTERS), "1f1b", 3),
    pipeline(3, [1, 2], steps=2, optimizer="sgd", freeze=("head", "norms"), **LLAMA),
    pipeline(0, [2, 1, 1, 2], steps=4, optimizer="sgd", freeze=("mlp",), **LLAMA),
    frozen("nf4", 0, **NF4),
    named("deepseek", pipeline(0, [1, 2], steps=2, **DEEPSEEK, **PACKED_BITS)),
    *(named("lora", shared(zero, gated_mlp=True, dense_layers=1, **ALL)) for zero in (0, 2)),
    *(named("sparse", shared(zero, gated_mlp=True, **SPARSE)) for zero in (0, 2)),
    named("sparse", shared(2, precision="bf16", gated_mlp=True, **SPARSE)),
    named("sparse", uneven(3, experts=BIASED_EXPERTS, **SPARSE_BITS)),
    named("sparse", pair(2, experts=ROUTED, preference=PAIRS, **SPARSE)),
    resumed("sparse", pipeline(1, [1, 2], steps=2, experts=ROUTED, **SPARSE), shared(3, stages=2, **SPARSE)),
    named("freeze", shared(3, gated_mlp=True, optimizer="sgd", freeze=("norms",))),
    named("lora", shared(2, precision="bf16", gated_mlp=True, **ALL)),
    named("nf4", shared(0, ep=4, **BITS)),
    named("nf4", uneven(3, experts=BIASED_EXPERTS, **BITS)),
    resumed("nf4-experts", pipeline(1, [1, 2], steps=2, experts=ROUTED, **BITS), shared(1, stages=2, **BITS)),
    resumed("lora-experts", shared(2, stages=2, **ALL), pipeline(1, [1, 2], steps=2, experts=ROUTED, **ALL)),
    *(named("all", uneven(3, tower=TOWER, beside=BESIDE, **training)) for training in (ALL, PACKED_BITS)),
    named("all", pipeline(2, [1, 2], steps=2, kv_heads=2, tower=TOWER, **ALL)),
    named("t5", uneven(1, **T5, **ALL)),
    named("t5", pipeline(1, [1, 2], steps=2, **T5, **PACKED_BITS)),
    named("t5", pipeline(1, [1, 2], steps=2, optimizer="sgd", freeze=("embedding",), **T5)),
    named("hearing", uneven(3, **HEARING, **ALL)),
    named("delta", uneven(2, output_gate=True, **DELTA, **ALL)),
    named("sizes", tensor_parallel(1, **SIZED, **ALL)),
    named("halves", uneven(3, **HALVES, **ALL)),
    named("states", uneven(1, optimizer="sgd", freeze=("mlp", "norms"), **DUALITY)),
    resumed("lora", alike(3, **ADAPTERS), pipeline(1, [2, 1], steps=3, **ADAPTERS)),
    named("freeze", tensor_parallel(2, freeze=("embedding", "attention"), optimizer="sgd", qk_norm=True)),
    named("mlp", tensor_parallel(3, freeze=("head", "mlp", "norms"), **{**LLAMA, "head_bias": True})),
    named("lora", tensor_parallel(2, optimizer="sgd", **ADAPTERS)),
    named("lora", tensor_parallel(3, precision="bf16", **BIASED)),
    named("lora", recomputed(tensor_parallel(0, stages=2, **BIASED))),
    resumed(
        "nf4",
        tensor_parallel(0, stages=2, optimizer="sgd", **WIDE),
        pipeline(1, [2, 1], steps=1, optimizer="sgd", **WIDE),
    ),
    resumed("lora", pipeline(1, [2, 1], steps=1, **ADAPTERS), tensor_parallel(3, stages=2, **ADAPTERS)),
    resumed(
        "sizes",
        pipeline(2, [2, 1], steps=3, optimizer="sgd", **SIZED),
        alike(1, optimizer="sgd", **SIZED),
    ),
    uneven(0, optimizer="sgd"),
    uneven(2, precision="bf16", optimizer="sgd"),
    uneven(1, shard_size=2, optimizer="sgd"),
    uneven(2, shard_size=2),
    *(uneven(3, shard_size=2, optimizer=optimizer) for optimizer in ("sgd", "adamw")),
    uneven(0, optimizer="muon"),
    uneven(0, optimizer="lion"),
    tensor_parallel(1, optimizer="lion"),
    named("plain", tensor_parallel(3, stages=2, optimizer="sgd", cross_entropy="plain", head_bias=True)),
    named("plain", pipeline(0, [2, 1, 1, 2], steps=4, optimizer="sgd", cross_entropy="plain")),
    named("plain", uneven(2, optimizer="sgd", preference=PAIRS, cross_entropy="plain")),
    *(uneven(zero, precision="bf16", reduce_dtype="bf16") for zero in (0, 3)),
    uneven(1, optimizer="sgd", preference=PAIRS),
    ordered(pipeline(2, [3, 4], steps=4, optimizer="sgd", preference=PAIRS), "1f1b", 3),
    pipeline(1, [1, 2], steps=3, fewer=1, optimizer="sgd", preference=PAIRS),
    pipeline(3, [1, 3], steps=1, precision="bf16"),
    uneven(3, precision="bf16", master_weights="bf16", shard_size=2),
    pipeline(3, [1, 3], steps=1, precision="bf16", master_weights="bf16"),
    tensor_parallel(3, precision="bf16", master_weights="bf16", reduce_dtype="bf16"),
    frozen("lora-bf16-weights", 3, precision="bf16", master_weights="bf16", **ADAPTERS),
    uneven(3, optimizer_states="bf16"),
    pipeline(0, [3, 1], steps=3, optimizer="sgd"),
    pipeline(0, [1, 1, 2, 1], steps=2),
    tensor_parallel(3, optimizer="sgd", tied_embeddings=False, layer_norms=1, head_bias=True),
    tensor_parallel(0, stages=2),
    tensor_parallel(3, precision="bf16"),
    *(uneven(zero, precision="fp8", optimizer="sgd") for zero in (0, 3)),
    *(tensor_parallel(3, stages=stages, precision="fp8", optimizer="sgd") for stages in (1, 2)),
    named("biased", tensor_parallel(1, precision="fp8", optimizer="sgd", **BIASED)),
    pipeline(2, [1, 3], steps=1, precision="fp8", optimizer="sgd"),
    divided(1, tp=2, precision="fp8", optimizer="sgd"),
    ordered(pipeline(1, [1, 2], steps=2, precision="fp8", optimizer="sgd"), "zero-bubble"),
    frozen("lora-fp8", 3, precision="fp8", **ADAPTERS),
]
"""More pairs of them, for the slow tests."""


Trained = dict[str, tuple[Path, list[float]]]
"""The folder and the losses of each case."""


@pytest.fixture(scope="module")
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """The cases of the normal suite, in a start of four ranks and one of two."""
    return trained_quickly(request, tmp_path_factory)


def trained_quickly(request: pytest.FixtureRequest, factory: pytest.TempPathFactory) -> Trained:
    """Cases of all quick tests that are going to run, in whichever module.

    What takes long is the first case of a start.
    """
    found = [
        item.callspec.params.get("case")
        for item in request.session.items
        if isinstance(item, pytest.Function)
        and hasattr(item, "callspec")
        and item.get_closest_marker("slow") is None
    ]
    cases = {case.name: case for case in found if isinstance(case, Case)}
    return outcomes(once(factory, "torch native", partial(train_all, list(cases.values()))))


@pytest.fixture(scope="module")
def trained_slowly(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """The others, in starts of their own."""
    return outcomes(once(tmp_path_factory, "torch native slow", partial(train_all, OTHERS)))


def train_all(cases: list[Case], root: Path) -> None:
    """Every case in a folder of its own, all of as many ranks trained by one start."""
    logs = ""
    for ranks in sorted({case.plan.devices for case in cases}):
        folders = [
            folder
            for case in cases
            if case.plan.devices == ranks
            for folder in (*begun(case, root), written(case, four_ranks(), root))
        ]
        run_all(folders, root / "log", ranks)
        logs += (root / "log").read_text()
    (root / "log").write_text(logs)


def begun(case: Case, root: Path) -> tuple[Path, ...]:
    """The folder of the plan whose checkpoint a case goes on from, if any."""
    if case.before is None:
        return ()
    first = Case(f"{case.name}-begun", case.before, case.spec, case.cluster)
    return (written(first, four_ranks(), root, BEGUN),)


def outcomes(root: Path) -> Trained:
    """What was trained in a folder."""
    parts = (root / "log").read_text().split("folder ")[1:]
    return {part.split()[0]: (root / part.split()[0], losses(part)) for part in parts}


def written(case: Case, where: ClusterSpec, root: Path, steps: int = STEPS) -> Path:
    """The folder of a case with the arguments of its training."""
    write_folder(emit(case.plan, case.cluster or where, case.spec), root / case.name)
    left = steps if case.before is None else steps - BEGUN
    arguments = ["--steps", str(left), "--lr", str(LR[case.spec.training.optimizer])]
    if case.before is not None:
        arguments += ["--resume", str(root / f"{case.name}-begun" / "saved")]
    (root / case.name / "arguments.json").write_text(json.dumps(arguments))
    return root / case.name


def run_all(folders: list[Path], log: Path, ranks: int = 4) -> None:
    """One start of the ranks for all folders."""
    run(ranks, Path(folder_runs.__file__), *folders, log=log)


def reference(folder: Path, batch: int) -> tuple[Any, dict[str, Any], list[float]]:
    """The model trained on whole batches in this process, its weights before, and the losses."""
    shape = load_shape(folder / "model.json")
    network = whole_model(folder, shape)
    start = {name: value.detach().clone() for name, value in network.state_dict().items()}
    optimizer = plain_optimizer(network, shape.optimizer)
    found, norms = [], []
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = loss_of(network, tuple(range(step * batch, (step + 1) * batch)), shape)
        loss.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(network.parameters(), CLIP).item())
        optimizer.step()
        found.append(loss.item())
    small = shape.embedding_width != shape.hidden or shape.lora is not None
    assert max(norms) > CLIP or small, "nothing was clipped"
    return network, start, found


def plain_optimizer(network: ModelPart, name: str) -> Any:
    """Torch's own where it has one, else by the formula of the paper."""
    rate, every = LR[name], list(network.parameters())
    if name == "muon":
        matrices = [each for each in network.layers.parameters() if each.ndim == 2]
        rest = [each for each in every if not any(each is other for other in matrices)]
        muon = torch.optim.Muon(matrices, lr=rate, adjust_lr_fn="match_rms_adamw")
        return Together(muon, torch.optim.AdamW(rest, lr=rate))
    made = {
        "sgd": partial(torch.optim.SGD, momentum=0.9),
        "adamw": torch.optim.AdamW,
        "adafactor": torch.optim.Adafactor,
        "lion": PlainLion,
    }
    return made[name](every, lr=rate)


class PlainLion(torch.optim.Optimizer):  # type: ignore[misc,name-defined]
    """Program 1 of arXiv:2302.06675 with its betas."""

    def __init__(self, parameters: list[Any], lr: float) -> None:
        super().__init__(parameters, {"lr": lr})
        self.kept = {each: torch.zeros_like(each) for each in parameters}

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def step(self, closure: Any = None) -> None:
        """c = 0.9 m + 0.1 g; p -= lr (sign c + 0.01 p); m = 0.99 m + 0.01 g."""
        lr = self.defaults["lr"]
        for weight, kept in self.kept.items():
            update = torch.sign(0.9 * kept + 0.1 * weight.grad)
            weight.copy_(weight - lr * (update + 0.01 * weight))
            kept.copy_(0.99 * kept + 0.01 * weight.grad)


def whole_model(folder: Path, shape: Shape) -> ModelPart:
    """All layers in one part, with the weights that any plan starts from."""
    plan = load(folder / "batches.json", rank=0)
    whole = StagePlan(0, plan.stages[-1].end_layer, plan.recompute)
    return ModelPart(shape, replace(plan, stages=(whole,), stage=0, chunks=()), 0)


def relative_error(got: dict[str, Any], wanted: dict[str, Any], start: dict[str, Any]) -> float:
    """Distance of the weights from the reference over the distance it travelled."""
    assert set(got) == set(wanted)
    apart = sum((got[name].double() - wanted[name].double()).square().sum().item() for name in wanted)
    way = sum((start[name].double() - wanted[name].double()).square().sum().item() for name in wanted)
    return float((apart / way) ** 0.5)


def weights(folder: Path) -> dict[str, Any]:
    """The checkpoint in one piece."""
    dcp_to_torch_save(str(folder / "saved"), str(folder / "model.pt"))
    found: dict[str, Any] = torch.load(folder / "model.pt", weights_only=True)
    return found


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_equals_one_process(trained: Trained, case: Case) -> None:
    """Losses and weights of clipped steps are those of the whole batch."""
    equals_one_process(trained, case)


@pytest.mark.parametrize("case", RESUMED, ids=[case.name for case in RESUMED])
def test_another_plan_goes_on(trained: Trained, case: Case) -> None:
    """With layers of several sizes and divided experts, where one process goes without an end."""
    equals_one_process(trained, case)


@pytest.mark.parametrize("case", FROZEN, ids=[case.name for case in FROZEN])
def test_adapters_and_frozen_parts_equal_one_process(trained: Trained, case: Case) -> None:
    """With every layout of shards, and with what is frozen in another number format than what is trained."""
    equals_one_process(trained, case)


def test_a_tower_has_what_the_plan_counts(tmp_path: Path) -> None:
    """All parameters, and of a frozen one those of the projector and the text alone to train."""
    for frozen_tower in (False, True):
        case = uneven(1, tower=TOWER.model_copy(update={"frozen": frozen_tower}), beside=BESIDE)
        folder = written(case, four_ranks(), tmp_path / str(frozen_tower))
        network = whole_model(folder, load_shape(folder / "model.json"))
        every = list(network.parameters())
        assert sum(each.numel() for each in every) == case.spec.parameters
        trained_ones = sum(each.numel() for each in every if each.requires_grad)
        assert trained_ones == case.spec.trained_parameters


@pytest.mark.parametrize(
    "changes",
    [
        {"tower": TOWER, "beside": BESIDE, **ALL},
        {"tower": TOWER, "freeze": ("embedding", "norms")},
        {**T5, **PACKED_BITS},
        {**HEARING, **ALL},
        {**HEARING, "freeze": ("embedding",)},
    ],
    ids=["tower", "tower frozen", "t5", "hearing", "hearing frozen"],
)
def test_what_is_trained_ahead_is_what_the_plan_counts(tmp_path: Path, changes: dict[str, Any]) -> None:
    """Towers, encoders and what is beside layers: all parameters, and those that are trained."""
    case = uneven(1, **changes)
    folder = written(case, four_ranks(), tmp_path / "made")
    network = whole_model(folder, load_shape(folder / "model.json"))
    model = case.spec
    packed = model.layers * model.quantised_layer_parameters + model.quantised_ahead
    every = list(network.parameters())
    wanted = model.parameters + model.adapter_parameters - packed
    assert sum(each.numel() for each in every) == wanted
    assert sum(each.numel() for each in every if each.requires_grad) == model.trained_parameters


@pytest.mark.slow
@pytest.mark.parametrize("case", OTHERS, ids=[case.name for case in OTHERS])
def test_others_equal_one_process(trained_slowly: Trained, case: Case) -> None:
    """The same of the other pairs."""
    equals_one_process(trained_slowly, case)


def equals_one_process(trained: Trained, case: Case) -> None:
    """As close as its optimizer and its number format allow."""
    folder, printed = trained[case.name]
    if case.before is not None:
        printed = [*trained[f"{case.name}-begun"][1], *printed]
    network, start, wanted = reference(folder, case.plan.global_batch)
    if case.spec.training.master_weights == "bf16":
        assert all(each.dtype == torch.bfloat16 for each in weights(folder).values())
    if case.spec.training.optimizer == "muon":  # works in bf16, so that the last bit of a gradient may matter
        assert printed == pytest.approx(wanted, rel=1e-5)
        assert relative_error(weights(folder), network.state_dict(), start) < 0.05
    elif case.spec.training.optimizer_states == "int8":
        assert printed == pytest.approx(wanted, rel=1e-3)
        assert 1e-5 < relative_error(weights(folder), network.state_dict(), start) < 0.1
    elif case.spec.training.optimizer_states == "bf16":
        assert printed == pytest.approx(wanted, rel=1e-4)
        assert 1e-5 < relative_error(weights(folder), network.state_dict(), start) < 0.02
    elif case.spec.training.precision == "fp8":
        assert printed == pytest.approx(wanted, rel=5e-3)
        assert 1e-2 < relative_error(weights(folder), network.state_dict(), start) < 0.3
    elif case.spec.training.precision == "fp32":
        assert printed == pytest.approx(wanted, rel=1e-5)
        # AdamW makes steps of one size of gradients of any, so that the last bits of sums show; how they are summed
        # differs between processors.
        assert relative_error(weights(folder), network.state_dict(), start) < 2e-5
    else:
        assert printed == pytest.approx(wanted, rel=2e-3)


@pytest.mark.slow
def test_groups_in_pipelines_and_of_wide_replicas(tmp_path: Path) -> None:
    """Eight ranks: two stages of four replicas, or four replicas of two ranks, in groups of two."""
    where = cluster(pool("big", ("A100",) * 8, 1, (nic("eth", "lo"),)))
    small = {"precision": "fp32", "optimizer": "sgd", **NO_BIAS}
    cases = []
    for zero in (1, 2, 3):
        stage = (group("big", "A100", count=4, share=4, steps=2),)
        piped = plan("torch", zero, [2, 1], [stage, stage], shard_size=2)
        cases.append(Case(f"piped-{zero}", piped, model(16, layers=3, **small)))
        wide = tuple(group("big", "A100", tp=2, count=2, share=share, steps=2) for share in (4, 3))
        split = plan("torch", zero, [2], [wide], shard_size=2)
        cases.append(Case(f"wide-{zero}", split, model(14, layers=2, **small)))
    first = cases[0].plan
    chunks = plan("torch", 3, [2, 2], [stage, stage], shard_size=2, interleave=2)
    cases += [
        Case("divided", replace(first, schedule="zero-bubble"), model(16, layers=3, **small)),
        Case("fewer", replace(first, fewer_steps=1), model(14, layers=3, **small)),
        Case("chunks", chunks, model(16, layers=4, **small)),
    ]
    run_all([written(case, where, tmp_path) for case in cases], tmp_path / "log", ranks=8)
    for case in cases:
        network, start, _ = reference(tmp_path / case.name, case.plan.global_batch)
        assert relative_error(weights(tmp_path / case.name), network.state_dict(), start) < 1e-5, case.name


@pytest.mark.slow
def test_adapters_of_two_lone_stages_equal_one_process(tmp_path: Path) -> None:
    """Two ranks, a stage each, of unlike devices: nothing is reduced, and all adapters are in one checkpoint."""
    one = cluster(
        *(pool(name, (gpu,), 1, (nic("eth", "lo"),)) for name, gpu in (("big", "A100"), ("small", "T4")))
    )
    stages = [(group("big", "A100", share=6, steps=3),), (group("small", "T4", share=6, steps=3),)]
    changes = {"precision": "fp32", "optimizer": "adamw", **NO_BIAS, **ADAPTERS}
    case = Case("lone", plan("torch", 0, [1, 2], stages), model(6, layers=3, **changes), one)
    run_all([written(case, one, tmp_path)], tmp_path / "log", ranks=2)
    equals_one_process(outcomes(tmp_path), case)


def test_the_loss_scale_follows_overflows() -> None:
    """Halved at once, doubled after a thousand good steps; an overflow is no step."""
    scale, fine = LossScale(4.0), torch.tensor(1.0)
    assert not scale.accepts(torch.tensor(float("inf")))
    assert not scale.accepts(torch.tensor(float("nan")))
    assert scale.value == 1.0
    assert all(scale.accepts(fine) for _ in range(999))
    assert scale.value == 1.0
    assert scale.accepts(fine)
    assert scale.value == 2.0


def load_rank(chosen: Plan, folder: Path) -> RankPlan:
    """The first rank of a plan for two devices of a node."""
    write_folder(emit(chosen, cluster(pool("a", nodes=1, per_node=2)), model(chosen.global_batch)), folder)
    return load(folder / "batches.json", rank=0)


def layout_of_two(zero: int, folder: Path) -> Layout:
    """That of the first of two replicas."""
    chosen = plan("torch", zero, [4], [(group("a", "A100", count=2),)])
    return Layout(load_rank(chosen, folder / "run"), "cpu", torch.bfloat16)


@pytest.mark.usefixtures("pair")
@pytest.mark.parametrize("zero", range(4))
def test_what_is_not_trained_rests_in_the_working_type(tmp_path: Path, zero: int) -> None:
    """Whole on each of two replicas except with ZeRO 3; what is trained is in fp32, divided except with ZeRO 0."""
    layout = layout_of_two(zero, tmp_path)
    layers = [torch.nn.Linear(8, 8) for _ in range(2)]
    layers[0].weight.requires_grad = False
    both = torch.nn.Sequential(*layers)
    layout.shard(layers[0])
    layout.shard(both)
    held = {
        name: (each.dtype, (each.to_local() if isinstance(each, DTensor) else each).numel())
        for name, each in both.named_parameters()
    }
    trained = 1 if zero == 0 else 2
    assert held == {
        "0.weight": (torch.bfloat16, 32 if zero == 3 else 64),
        "0.bias": (torch.float32, 8 // trained),
        "1.weight": (torch.float32, 64 // trained),
        "1.bias": (torch.float32, 8 // trained),
    }


@pytest.mark.usefixtures("pair")
@pytest.mark.parametrize("base", NF4_BYTES)
@pytest.mark.parametrize("zero", range(4))
def test_a_base_in_four_bits_is_divided_with_zero_3(tmp_path: Path, zero: int, base: BaseFormat) -> None:
    """Of two replicas each has half of the codes and scales, of experts too, in as many bytes as is counted."""
    made = model(4, precision="bf16", experts=ROUTED, lora=LoraSpec(rank=2, base=base), **LLAMA)
    layout, shape = layout_of_two(zero, tmp_path), shape_of(model_shape(made))
    layer = placing(layout, shape)(Layer(shape))
    codes = [
        each.to_local() if isinstance(each, DTensor) else each
        for name, each in layer.state_dict().items()
        if name.rpartition(".")[2] in STORED
    ]
    assert {each.dtype for each in codes} == {torch.uint8, torch.int32}
    elements = made.quantised_layer_parameters + made.quantised_expert_parameters
    counted = made.quantised_bytes * elements / (2 if zero == 3 else 1)
    assert sum(each.nbytes for each in codes) == pytest.approx(counted, rel=0.05)


@pytest.mark.parametrize(
    "on_devices",
    first(
        2,
        [
            divided(3, optimizer="sgd"),
            *(
                recomputed(pair(3, optimizer="sgd", **{**NF4, "lora": LoraSpec(rank=4, base=base)}))
                for base in ("nf4-double", "nf4")
            ),
            divided(3, kind="ring", optimizer="sgd"),
            tensor_parallel(3, optimizer="sgd"),
        ],
    ),
    ids=lambda case: case.name,
)
def test_parameters_rest_in_host_memory(tmp_path: Path, on_devices: Case) -> None:
    """Ranks with all of FSDP2's offload but pinned memory, which a processor alone has not: as one process."""
    offload, where = Offload(optimizer="cpu", parameters="cpu"), on_devices.cluster or four_ranks()
    case = replace(on_devices, plan=replace(on_devices.plan, offload=offload), cluster=on_hosts(where))
    folder = written(case, where, tmp_path)
    for name, line, instead in (
        ("train.py", 'config["on_host"] and DEVICE == "cuda"', 'config["on_host"]'),
        ("hetplan_torch.py", "CPUOffloadPolicy()", "CPUOffloadPolicy(pin_memory=False)"),
    ):
        script = (folder / name).read_text()
        assert script.count(line) == 1
        (folder / name).write_text(script.replace(line, instead))
    run_all([folder], tmp_path / "log", ranks=case.plan.devices)
    equals_one_process(outcomes(tmp_path), case)


@pytest.mark.parametrize(
    "on_devices",
    first(
        2,
        [
            recomputed(divided(3, optimizer="sgd")),
            recomputed(pair(2, optimizer="sgd")),
            recomputed(divided(1, kind="ring", optimizer="sgd")),
            recomputed(tensor_parallel(2, optimizer="sgd")),
        ],
    ),
    ids=lambda case: case.name,
)
def test_checkpoints_rest_in_host_memory(tmp_path: Path, on_devices: Case) -> None:
    """Of each recomputed layer what it begins with, which a processor has there anyway: as one process."""
    where = on_devices.cluster or four_ranks()
    kept = replace(on_devices.plan, offload=Offload(activations="cpu"))
    case = replace(on_devices, plan=kept, cluster=on_hosts(where))
    folder = written(case, where, tmp_path)
    run_all([folder], tmp_path / "log", ranks=case.plan.devices)
    equals_one_process(outcomes(tmp_path), case)


def test_inputs_of_recomputed_layers_leave_the_device() -> None:
    """And nothing else: one tensor a layer, which comes back once."""
    shape = shape_of(model_shape(model(4, layers=2, precision="fp32")))
    layers = torch.nn.Sequential(Layer(shape, "full"), Layer(shape, "full"))
    keep_on_host(layers)
    hidden = torch.randn(2, shape.sequence_length, shape.hidden, requires_grad=True)
    moved: list[tuple[str, tuple[int, ...]]] = []

    def noted(way: str, tensor: Any) -> Any:
        moved.append((way, tuple(tensor.shape)))
        return tensor

    def hooks(*, pin_memory: bool) -> Any:
        assert pin_memory
        return torch.autograd.graph.saved_tensors_hooks(partial(noted, "out"), partial(noted, "in"))

    with patch.object(torch.autograd.graph, "save_on_cpu", hooks):
        layers(hidden).sum().backward()
    assert moved == [("out", tuple(hidden.shape))] * 2 + [("in", tuple(hidden.shape))] * 2


@pytest.mark.usefixtures("pair")
@pytest.mark.parametrize(("zero", "most"), [(0, 1.0), (3, 1.0), (3, 100.0)])
def test_gradients_are_clipped_by_the_norm_of_all_ranks(tmp_path: Path, zero: int, most: float) -> None:
    """A rank without another that answers has the norm of its part, or of its share of what both hold."""
    layout = layout_of_two(zero, tmp_path)
    layer = torch.nn.Linear(8, 8, bias=False)
    layout.shard(layer)
    gradient = torch.full((8, 8), 2.0)
    layer.weight.grad = torch.distributed.tensor.distribute_tensor(
        gradient, layer.weight.device_mesh, layer.weight.placements
    )
    # Half of the squares of 64 numbers; the loss was multiplied by 4.
    wanted = (32 * 4.0) ** 0.5 / 4
    norm = layout.clip(layer.parameters(), most, loss_scale=4.0)
    assert norm.item() == pytest.approx(wanted, rel=1e-6)
    left = 2.0 / 4 * min(1.0, most / wanted)
    assert layer.weight.grad.to_local().flatten().tolist() == pytest.approx(
        [left] * (64 if zero == 0 else 32)
    )


def test_replicas_get_the_first_one_s_weights() -> None:
    """Along each way in which there are several; a lone one asks nobody."""
    layout = object.__new__(Layout)
    layout.mesh = SimpleNamespace(device_type="cpu")
    layout._replicas = tuple(  # type: ignore[assignment]
        SimpleNamespace(size=lambda size=size: size, get_group=lambda size=size: size) for size in (1, 2)
    )
    weights = torch.nn.Linear(2, 2)
    with patch("torch.distributed.broadcast", side_effect=lambda sent, **_: sent.fill_(7.0)) as sent:
        layout._start_alike(weights)
    assert [call.kwargs for call in sent.call_args_list] == [{"group_src": 0, "group": 2}] * 2
    assert all((each == 7.0).all() for each in weights.parameters())


def test_parts_of_a_model_have_seeds_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same ones however the layers are cut into stages."""
    seeds: list[int] = []

    def seeded(seed: int, make: Callable[[], Any]) -> Any:
        seeds.append(seed)
        return make()

    monkeypatch.setattr(example_stage, "_seeded", seeded)
    shape = shape_of(model_shape(model(1, tied_embeddings=False)))
    one = load_rank(plan("torch", 0, [4], [(group("a", "A100"),)]), tmp_path / "one")
    two = load_rank(plan("torch", 0, [3, 1], [(group("a", "A100"),)] * 2), tmp_path / "two")
    ModelPart(shape, one, 0)
    whole = seeds.copy()
    seeds.clear()
    for number in range(2):
        ModelPart(shape, two, 0, number=number)
    assert seeds == whole
    assert len({*whole}) == len(whole) == 4 + 3


@pytest.mark.usefixtures("pair")
def test_checkpoints_that_are_kept(tmp_path: Path) -> None:
    """The last one and the one before, whatever else an end left there; a name stands for a whole one."""
    assert (last_kept(None), last_kept(tmp_path)) == (None, None)
    (tmp_path / "step-9").mkdir()
    for steps in (2, 4, 6):
        keep(lambda _, folder: folder.mkdir(), steps, tmp_path)
        assert last_kept(tmp_path) == tmp_path / f"step-{steps}"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["last", "step-4", "step-6"]


@pytest.mark.slow
def test_an_overflow_in_one_group_is_no_step_in_any(tmp_path: Path) -> None:
    """fp16, ZeRO 2 in groups of two: gradients of the last rank overflow, no weight changes, and the log says so."""
    case = uneven(2, shard_size=2, precision="fp16")
    folder = written(case, four_ranks(), tmp_path)
    (folder / "arguments.json").write_text(json.dumps(["--steps", "1", "--lr", "0.5"]))
    script = (folder / "train.py").read_text()
    scaled = "(loss * (scale.value / plan.steps)).backward()"
    assert script.count(scaled) == 1
    overflowing = scaled.replace("scale.value", "(1e9 if plan.rank == 3 else 1.0) * scale.value")
    (folder / "train.py").write_text(script.replace(scaled, overflowing))
    run_all([folder], tmp_path / "log")
    said = [line for line in (tmp_path / "log").read_text().splitlines() if "left out" in line]
    assert said == ["left out step 0: fp16 gradients overflow, loss scale 32768"]
    before = whole_model(folder, load_shape(folder / "model.json")).state_dict()
    after = weights(folder)
    assert set(after) == set(before)
    assert all(torch.equal(after[name], before[name]) for name in before)


def test_a_folder_as_its_users_start_it(tmp_path: Path) -> None:
    """``launch.sh`` on both of two nodes: ZeRO 3, uneven batches, padding."""
    replicas = (group("big", "A100", share=5, steps=2), group("small", "T4", share=2))
    chosen, folder = plan("torch", 3, [2], [replicas]), tmp_path / "a run"
    write_folder(emit(chosen, two_ranks(), model(7, layers=2, precision="fp32", optimizer="sgd")), folder)
    printed = launch(
        folder, 2, "--steps", str(STEPS), "--lr", str(LR["sgd"]), "--save", str(folder / "saved")
    )
    network, start, wanted = reference(folder, 7)
    assert losses(printed) == pytest.approx(wanted, rel=1e-5)
    assert relative_error(weights(folder), network.state_dict(), start) < 1e-5


def weights_of(layers: int, width: int = 4) -> dict[str, Any]:
    """Names as a model part has them."""
    ends = {name: torch.zeros(8, width) for name in ("embedding.weight", "head.weight")}
    return ends | {f"layers.{index}.weight": torch.zeros(width) for index in range(layers)}


@pytest.mark.filterwarnings("ignore")
def test_a_checkpoint_of_another_model(tmp_path: Path) -> None:
    """It is refused in a line, also where this model's names are all there: that of a deeper one."""
    torch.distributed.checkpoint.save(weights_of(4), checkpoint_id=tmp_path / "saved")
    saved = tmp_path / "saved"
    require_same_model(weights_of(4), 4, saved)
    stage = {name: each for name, each in weights_of(4).items() if name[:8] in ("layers.2", "layers.3")}
    require_same_model(stage, 4, saved)
    for mine, layers, said in (
        (weights_of(3), 3, "4 layers, expected 3"),
        (weights_of(5), 5, r"layers\.4\.weight is missing there, expected \(4,\)"),
        (weights_of(4, width=6), 4, r"embedding\.weight has the size \(8, 4\) there, expected \(8, 6\)"),
    ):
        with pytest.raises(SystemExit, match=f"saved: a checkpoint of another model: {said}"):
            require_same_model(mine, layers, saved)
    with pytest.raises(SystemExit, match="nothing: no checkpoint of torch"):
        require_same_model(weights_of(4), 4, tmp_path / "nothing")


@pytest.mark.filterwarnings("ignore")
def test_a_checkpoint_of_another_optimizer(tmp_path: Path) -> None:
    """AdamW of fp32 weights is torch's, that of bf16 weights the example's own: the other's is refused in a line."""
    torchs, own = (
        {**{f"state.head.weight.{name}": torch.zeros(4) for name in names}, "steps": torch.tensor(2)}
        for names in (("exp_avg", "exp_avg_sq"), ("first", "second"))
    )
    torch.distributed.checkpoint.save(torchs, checkpoint_id=tmp_path / "saved" / "optimizer")
    require_same_optimizer(torchs, tmp_path / "saved")
    with pytest.raises(
        SystemExit, match=r"saved: a checkpoint of another optimizer .*weight\.first is missing"
    ):
        require_same_optimizer(own, tmp_path / "saved")
