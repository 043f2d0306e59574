"""The largest models that fit, next to those that the ZeRO-Offload paper trained (arXiv:2101.06840, figure 7).

Widths are those of its table 3 for models of that size, one sequence of 1,024 tokens a device, full recomputation.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median

from planner.calibration.file import shipped
from planner.catalog import gpu_spec, link_spec
from planner.cluster.spec import ClusterSpec, HostSpec, PoolSpec
from planner.cost.estimate import Estimator
from planner.model.spec import ModelSpec, TrainingSpec
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

    low, high = 0, MOST_LAYERS
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return _model(max(1, low), hidden, 1).parameters / 1e9


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
    return paragraph(head) + "\n" + "\n".join(lines) + "\n"
