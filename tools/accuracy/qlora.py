"""Steps of adapters on a base in four bits that FSDP shards, next to those that Answer.AI published.

None of them is among the runs of the fit.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil
from typing import Any

from planner.calibration.file import shipped
from planner.catalog import gpu_spec, link_spec
from planner.cluster.spec import ClusterSpec, HostSpec, PoolSpec
from planner.cost.estimate import Estimator
from planner.cost.memory import FRAGMENTS
from planner.cost.values import Estimate
from planner.model.spec import AdapterTarget, BaseFormat, LoraSpec, ModelSpec, TrainingSpec
from planner.plan.values import ON_DEVICE, Offload, Plan, ReplicaGroup, Stage
from planner.units import GIB
from tools.accuracy.material import markdown, paragraph, signed

GPU = "RTX-4090"
SAMPLES = 1024
"""Of 2,048 tokens, for which seconds are published."""
ON_HOSTS = Offload(optimizer="cpu", parameters="cpu")
HEADINGS = ("model ", "base ", "plan ", "step (s)", "predicted", "error", "peak (GiB)", "predicted", "error")


@dataclass(frozen=True, slots=True)
class Published:
    """One row of ``benchmarks_03_2024.md`` of AnswerDotAI/fsdp_qlora, case study of two RTX 4090."""

    model: str
    base: BaseFormat | None
    zero: int
    offload: Offload
    micro_batch: int
    peak_gib: float
    """Reserved by the allocator of torch."""
    seconds: float

    @property
    def step_seconds(self) -> float:
        """Of one micro-batch on each device."""
        return self.seconds / ceil(SAMPLES / (2 * self.micro_batch))


ROWS = (
    Published("7B", None, 0, ON_DEVICE, 4, 22.04, 437),
    Published("7B", None, 3, ON_DEVICE, 6, 21.35, 481),
    Published("7B", None, 3, ON_HOSTS, 10, 22.69, 482),
    Published("7B", "nf4", 0, ON_DEVICE, 8, 20.94, 450),
    Published("7B", "nf4", 3, ON_DEVICE, 10, 20.97, 466),
    Published("7B", "nf4", 3, ON_HOSTS, 12, 22.38, 464),
    Published("34B", "nf4", 3, ON_DEVICE, 2, 23.05, 2072),
    Published("34B", "nf4", 3, ON_HOSTS, 4, 22.98, 2061),
    Published("70B", "nf4", 3, ON_HOSTS, 2, 14.92, 4399),
)
SIZES: dict[str, tuple[str, dict[str, Any], int]] = {
    "7B": ("llama-2-7b", {"layers": 32, "hidden": 4096, "heads": 32, "kv_heads": 32, "ffn": 11008}, 32000),
    "34B": ("yi-34b", {"layers": 60, "hidden": 7168, "heads": 56, "kv_heads": 8, "ffn": 20480}, 64000),
    "70B": ("llama-2-70b", {"layers": 80, "hidden": 8192, "heads": 64, "kv_heads": 8, "ffn": 28672}, 32000),
}
"""By their ``config.json``."""
TARGETS: tuple[AdapterTarget, ...] = ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj", "down_proj")


def predicted(row: Published) -> Estimate:
    """By the shipped constants; as its ``train.py`` does unasked: rank 64 on all but ``o_proj``, all of it in bf16 (on
    hosts, where hetplan has fp32 alone, in that), plain cross entropy, full recomputation."""
    node = PoolSpec(
        name="box",
        devices=(GPU, GPU),
        hosts=("box",),
        intra_node=link_spec("pcie4"),
        host=HostSpec(memory_gib=128),
        reserve_gib=0.0,
    )
    cluster = ClusterSpec(name="box", pools=(node,), gpus={GPU: gpu_spec(GPU)})
    name, sizes, vocab = SIZES[row.model]
    training = TrainingSpec(
        sequence_length=2048,
        global_batch=2 * row.micro_batch,
        precision="bf16",
        cross_entropy="plain",
        lora=LoraSpec(rank=64, targets=TARGETS, base=row.base),
    )
    if not row.offload.anything:
        training = training.model_copy(update={"master_weights": "bf16", "optimizer_states": "bf16"})
    model = ModelSpec(
        name=name, **sizes, vocab=vocab, gated_mlp=True, tied_embeddings=False, training=training
    )
    group = ReplicaGroup(
        pool="box", gpu=GPU, tp=1, count=2, local_batch=row.micro_batch, accumulation_steps=1
    )
    stage = Stage(first_layer=0, end_layer=model.layers, replicas=(group,), recompute="full")
    plan = Plan(target="torch", zero=row.zero, stages=(stage,))
    return Estimator(cluster, model, shipped()).estimate(replace(plan, offload=row.offload))


def reserved_gib(found: Estimate) -> float:
    """What torch's allocator holds: tensors and slack, without the context of a process."""
    memory = found.stages[0].groups[0].memory
    return ((1 + FRAGMENTS) * (memory.used_bytes - memory.runtime_bytes) + memory.slack_bytes) / GIB


def qlora_section() -> str:
    """A line for each run."""
    lines = []
    for row in ROWS:
        found = predicted(row)
        plan = f"ZeRO {row.zero}, {'offload, ' if row.offload.anything else ''}{row.micro_batch} sequences"
        peak, seconds = reserved_gib(found), found.step_seconds
        numbers = (f"{row.step_seconds:.2f}", f"{seconds:.2f}", signed(seconds / row.step_seconds - 1))
        peaks = (f"{row.peak_gib:.1f}", f"{peak:.1f}", signed(peak / row.peak_gib - 1))
        lines.append((SIZES[row.model][0], row.base or "bf16", plan, *numbers, *peaks))
    head = paragraph(
        "Answer.AI trained adapters of rank 64 on two RTX 4090 with FSDP and full recomputation, 2,048 tokens each",
        "(AnswerDotAI/fsdp_qlora, `benchmarks_03_2024.md`, which has seconds of 1,024 sequences, and peaks of torch's",
        "allocator). Peaks are further off: the FSDP of 2024 fetches layers ahead in the backward too, and scales",
        "were whole on each device.",
    )
    return f"{head}\n{markdown(HEADINGS, lines)}"
