"""The largest models that fit, next to those that published systems trained.

ZeRO-Offload (arXiv:2101.06840, figure 7): widths are those of its table 3 for models of that size, one sequence of
1,024 tokens a device, full recomputation. QLoRA (arXiv:2305.14314, section 1): LLaMA on one device, one sequence of 512
tokens (appendix B.2), adapters of rank 64, paged states, full recomputation.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any

from planner.calibration.file import shipped
from planner.catalog import gpu_spec, link_spec
from planner.cluster.spec import ClusterSpec, HostSpec, PoolSpec
from planner.cost.estimate import Estimator
from planner.model.spec import LoraSpec, ModelSpec, TrainingSpec
from planner.plan.values import ON_DEVICE, Offload, Plan, ReplicaGroup, Stage
from tools.accuracy.material import paragraph

WIDTHS = ((2.0, 2048), (4.0, 2304), (8.0, 3072), (15.0, 4096), (float("inf"), 8192))
"""Billions of parameters up to which models have a width."""
GPU = "V100-SXM-32GB"
MOST_LAYERS = 200


@dataclass(frozen=True, slots=True)
class Published:
    """The largest model of a system on some devices of one DGX-2."""

    system: str
    devices: int
    billions: float
    target: str
    zero: int
    tp: int = 1
    offload: Offload = ON_DEVICE


ROWS = (
    *(Published("PyTorch DDP", devices, 1.4, "deepspeed", 0) for devices in (1, 4, 16)),
    *(
        Published("Megatron", devices, billions, "megatron", 0, devices)
        for devices, billions in ((1, 1.4), (4, 4.5), (16, 15.0))
    ),
    *(
        Published("ZeRO-2", devices, billions, "deepspeed", 2)
        for devices, billions in ((1, 1.4), (4, 3.9), (16, 8.0))
    ),
    Published("ZeRO-Offload", 1, 13.0, "deepspeed", 2, 1, Offload(optimizer="cpu")),
)
"""What plans can say; ZeRO-Offload on 4 and 16 devices is with tensor parallelism, which DeepSpeed's plans have not."""


LLAMA: tuple[tuple[str, dict[str, Any]], ...] = (
    ("RTX-3090", {"layers": 60, "hidden": 6656, "heads": 52, "ffn": 17920}),
    ("RTX-A6000", {"layers": 80, "hidden": 8192, "heads": 64, "ffn": 22016}),
)
"""Devices of 24 and 48 GB, and the sizes of the LLaMA that QLoRA trained on such a one (arXiv:2302.13971, table 2)."""


def largest(row: Published) -> float:
    """Billions of parameters of the largest model that the cost model says fits."""
    hidden = next(width for most, width in WIDTHS if row.billions <= most)
    node = PoolSpec(
        name="dgx2",
        devices=(GPU,) * row.devices,
        hosts=("dgx2",),
        intra_node=link_spec("nvlink2"),
        host=HostSpec(memory_gib=1500),
        reserve_gib=0.0,
    )
    cluster = ClusterSpec(name="dgx2", pools=(node,), gpus={GPU: gpu_spec(GPU)})
    group = ReplicaGroup(
        pool="dgx2", gpu=GPU, tp=row.tp, count=row.devices // row.tp, local_batch=1, accumulation_steps=1
    )

    def fits(layers: int) -> bool:
        stage = Stage(first_layer=0, end_layer=layers, replicas=(group,), recompute="full")
        plan = Plan(target=row.target, zero=row.zero, stages=(stage,), offload=row.offload)
        return Estimator(cluster, _model(layers, hidden, group.count), shipped()).estimate(plan).fits

    return _model(_most(fits), hidden, 1).parameters / 1e9


def _most(fits: Callable[[int], bool]) -> int:
    """Layers of the largest model that fits; at least one."""
    return max(1, bisect_left(range(1, MOST_LAYERS), True, key=lambda layers: not fits(layers)))


def largest_with_adapters(gpu: str, sizes: dict[str, Any]) -> tuple[float, float]:
    """Billions of parameters of a LLaMA, and of one of so many layers that it just fits on a device in four bits."""
    node = PoolSpec(
        name="box",
        devices=(gpu,),
        hosts=("box",),
        intra_node=link_spec("pcie4"),
        host=HostSpec(memory_gib=256),
        reserve_gib=0.0,
    )
    cluster = ClusterSpec(name="box", pools=(node,), gpus={gpu: gpu_spec(gpu)})
    group = ReplicaGroup(pool="box", gpu=gpu, tp=1, count=1, local_batch=16, accumulation_steps=16)
    training = TrainingSpec(
        sequence_length=512,
        global_batch=16,
        optimizer_states="paged-fp32",
        lora=LoraSpec(rank=64, base="nf4-double"),
    )

    def llama(layers: int) -> ModelSpec:
        shape = {**sizes, "layers": layers}
        return ModelSpec(
            name="llama", **shape, gated_mlp=True, tied_embeddings=False, vocab=32000, training=training
        )

    def fits(layers: int) -> bool:
        stage = Stage(first_layer=0, end_layer=layers, replicas=(group,), recompute="full")
        plan = Plan(target="deepspeed", zero=3, stages=(stage,))
        return Estimator(cluster, llama(layers), shipped()).estimate(plan).fits

    return llama(sizes["layers"]).parameters / 1e9, llama(_most(fits)).parameters / 1e9


def _model(layers: int, hidden: int, batch: int) -> ModelSpec:
    training = TrainingSpec(sequence_length=1024, global_batch=batch, precision="fp16", attention="unfused")
    heads = hidden // 128
    return ModelSpec(
        name="gpt",
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=heads,
        head_dim=128,
        ffn=4 * hidden,
        vocab=50304,
        learned_positions=1024,
        training=training,
    )


def errors() -> list[tuple[Published, float]]:
    """Each row with the billions that are said to fit."""
    return [(row, largest(row)) for row in ROWS]


def largest_section() -> str:
    """The table, and its median error."""
    found = errors()
    lines = ["| system | V100-32GB | published | fits | error |", "|---|---|---|---|---|"]
    lines += [
        f"| {row.system} | {row.devices} | {row.billions:g} B | {said:.1f} B | {said / row.billions - 1:+.0%} |"
        for row, said in found
    ]
    middle = median(abs(said / row.billions - 1) for row, said in found)
    head = (
        "The largest models of the ZeRO-Offload paper (arXiv:2101.06840, figure 7) that plans can say, on a DGX-2, "
        "with one sequence a device and full recomputation; the paper does not give its batches. What is said to fit "
        f"is a median of {middle:.0%} off."
    )
    more = (
        "QLoRA (arXiv:2305.14314, section 1) trained LLaMA on one device in four bits with scales in eight; what "
        "fits is a model of layers as wide, as many as there is room for."
    )
    rows = ["| device | published | fits |", "|---|---|---|"]
    for gpu, sizes in LLAMA:
        published, said = largest_with_adapters(gpu, sizes)
        rows.append(f"| {gpu} | {published:.1f} B | {said:.1f} B |")
    tables = ("\n".join(each) + "\n" for each in (lines, rows))
    return "\n".join(
        part for pair in zip((paragraph(head), paragraph(more)), tables, strict=True) for part in pair
    )
