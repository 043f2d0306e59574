"""Estimates of plans: seconds by cause, bytes by component."""

from __future__ import annotations

from math import log
from operator import attrgetter
from statistics import NormalDist
from typing import Annotated

from planner.capabilities import Recompute
from planner.field_metadata import Label, json_fields, labels
from planner.frozen import dataclass

PAIR_SPREAD = 0.1
"""How far the ratio of the steps of two plans for the same devices is from the measured one: 68 % of the pairs of a
source that is left out of the fit are closer, in the mean over sources (docs/accuracy.md). Most of an error bar is in
both steps."""


@json_fields("used_bytes", "headroom_bytes", "out_of_memory", suffix="_bytes")
@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Peak bytes on one device, by component."""

    parameters_bytes: Annotated[float, Label("parameters", "param")]
    """In the working format."""
    gradients_bytes: Annotated[float, Label("gradients", "grad")]
    """In the format in which they are accumulated."""
    optimizer_bytes: Annotated[float, Label("optimizer", "optim")]
    """States of the optimizer, fp32 copies of the parameters included."""
    activations_bytes: Annotated[float, Label("activations", "activ")]
    """Kept for the backward."""
    logits_bytes: Annotated[float, Label("logits")]
    """Output of the head and the loss, on the last stage."""
    buffers_bytes: Annotated[float, Label("buffers", "buffer")]
    """Communication buckets and gathered parameters."""
    runtime_bytes: float
    """Device context and libraries, whatever the model."""
    reserve_bytes: float
    """Kept free at the user's request: a fixed amount, or what the requested chance of running out of memory needs."""
    capacity_bytes: float
    """Memory of the device."""
    slack_bytes: float = 0.0
    """The part of the runtime's memory that the allocator frees before it runs out."""
    host_bytes: float = 0.0
    """What is kept in host memory instead."""
    host_capacity_bytes: float = float("inf")
    """The device's equal share of that memory; infinite when unknown."""
    spread: float = 0.0
    """Relative standard error of what is used."""

    @property
    def out_of_memory(self) -> float:
        """Chance that the device runs out of memory, given that error."""
        over = log((self.used_bytes - self.slack_bytes) / self.capacity_bytes)
        return NormalDist().cdf(over / self.spread) if self.spread else float(over > 0)

    @property
    def used_bytes(self) -> float:
        """Bytes of all components on the device without the reserve."""
        return float(sum(_components(self))) + self.runtime_bytes

    @property
    def headroom_bytes(self) -> float:
        """Bytes left after the reserve; negative when the plan does not fit."""
        return self.capacity_bytes - self.reserve_bytes - self.used_bytes

    @property
    def fits(self) -> bool:
        """True when the device holds everything and the reserve stays free, and so does the host."""
        return self.missing_bytes <= 0

    @property
    def missing_bytes(self) -> float:
        """Bytes that the device or its share of the host lacks, whichever lacks more; negative when both have room."""
        return max(-self.headroom_bytes, self.host_bytes - self.host_capacity_bytes)


COMPONENTS = labels(Memory)
"""Components that a plan decides, with their labels; with the runtime they are ``used_bytes``."""

_components = attrgetter(*COMPONENTS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Breakdown:
    """Seconds of one step on the critical stage, by cause; the causes add up to the step."""

    compute_seconds: Annotated[float, Label("compute")]
    """Forward and backward of layers, embedding and head."""
    recompute_seconds: Annotated[float, Label("recompute")]
    """Forward run again in the backward to save activations."""
    tensor_parallel_seconds: Annotated[float, Label("tensor parallel")]
    """Collectives inside replicas."""
    expert_parallel_seconds: Annotated[float, Label("expert parallel")] = 0.0
    """All-to-alls of tokens to their experts and back."""
    context_parallel_seconds: Annotated[float, Label("context parallel")] = 0.0
    """Exposed sends of keys and values, or all-to-alls, between replicas that share sequences."""
    zero_seconds: Annotated[float, Label("ZeRO gathers")]
    """Exposed gathers and scatters of ZeRO 2 and 3.

    They happen inside the micro-batches.
    """
    straggler_seconds: Annotated[float, Label("stragglers")] = 0.0
    """Waiting for whichever device of a stage is slowest in a step, as the calibration's sigma says."""
    bubble_seconds: Annotated[float, Label("bubble and sends")]
    """Waiting for stages or replicas, and sends."""
    data_seconds: Annotated[float, Label("waiting for data")] = 0.0
    """Waiting for training data that storage or host processors deliver too slowly."""
    gradient_sync_seconds: Annotated[float, Label("gradient sync")]
    """Exposed reduction at the end of the step.

    With ZeRO 1 and 2 the gather of the parameters too.
    """
    exchange_seconds: Annotated[float, Label("islands' exchange")] = 0.0
    """Exchange between islands of replicas; one that happens every few steps is averaged over them."""
    optimizer_seconds: Annotated[float, Label("optimizer")]
    """Update of the weights."""
    offload_seconds: Annotated[float, Label("offload")]
    """Exposed copies to and from host memory or NVMe."""
    hidden_seconds: float
    """Communication and copies hidden under computation, not part of the sum."""

    @property
    def step_seconds(self) -> float:
        """Sum of the exposed causes."""
        return float(sum(getattr(self, name) for name in CAUSES))


CAUSES = labels(Breakdown)
"""The causes of step time in the order they are shown: all that is read of them is written in the breakdown."""


@json_fields(names={"memory": "memory_bytes"})
@dataclass(frozen=True, slots=True, kw_only=True)
class GroupEstimate:
    """One replica group of a stage."""

    pool: str
    """Pool of the group's devices."""
    gpu: str
    """Their type."""
    tp: int
    """Devices of one replica."""
    count: int
    """Replicas of the group."""
    micro_batch: int
    """Sequences of its largest micro-batch."""
    share: int
    """Sequences of one replica in a step."""
    steps: int
    """Micro-batches of one replica in a step."""
    forward_seconds: float
    """Forward of its largest micro-batch, collectives included."""
    backward_seconds: float
    """Backward of its largest micro-batch with recomputation, collectives included."""
    work_seconds: float
    """All micro-batches of one replica in a step, without waiting for others."""
    memory: Memory
    """Peak bytes on one device."""


@json_fields("layers", names={"groups": "replicas"})
@dataclass(frozen=True, slots=True, kw_only=True)
class StageEstimate:
    """One pipeline stage."""

    first_layer: int
    """First layer, counted from 0."""
    end_layer: int
    """One past the last layer."""
    groups: tuple[GroupEstimate, ...]
    """Groups of equal replicas."""
    forward_seconds: float
    """Forward of one micro-batch: that of the slowest replica."""
    backward_seconds: float
    """Its backward, recomputation included."""
    send_seconds: float
    """Sending one micro-batch's activations to the next stage; 0 for the last."""
    sync_seconds: float
    """Gradient reduction and parameter gather at the end of the step, exposed part."""
    crosses: str
    """Where the data-parallel group talks: ``device``, ``node``, or the fabric's name."""
    copies_cross: str
    """The same for the group that reduces over the copies of sharded states; empty with a single copy."""
    link: str
    """Path to the next stage: ``node``, or the name of the fabric or gateway; empty for the last."""
    recompute: Recompute
    """none, selective or full."""

    @property
    def layers(self) -> int:
        """Layers of the stage."""
        return self.end_layer - self.first_layer


@json_fields(
    "peak_memory_bytes",
    "cost_per_step",
    "cost_per_million_tokens",
    "joules_per_token",
    "fits",
    "out_of_memory",
    without=("warnings",),
)
@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """What the cost model says of a plan."""

    step_seconds: float
    """Seconds of one optimizer step."""
    spread: float
    """Relative standard error of ``step_seconds``."""
    breakdown: Breakdown
    """Seconds of the step by cause."""
    stages: tuple[StageEstimate, ...]
    """Pipeline stages."""
    tokens_per_second: float
    """Tokens of all devices together."""
    tflops_per_gpu: float
    """Useful TFLOP/s per used device."""
    mfu: float
    """Useful FLOP/s over the dense peak of the used devices."""
    devices: int
    """Devices that the plan uses."""
    warnings: tuple[str, ...] = ()
    price_per_hour: float | None = None
    """Price of the used devices, in the currency of the cluster file; None if any has no price."""
    watts: float | None = None
    """Board power of the used devices; None if any of them is unknown."""

    @property
    def cost_per_step(self) -> float | None:
        """Price of one step, in the currency of the cluster file."""
        return None if self.price_per_hour is None else self.price_per_hour / 3600 * self.step_seconds

    @property
    def cost_per_million_tokens(self) -> float | None:
        """Price of a million tokens, in the currency of the cluster file."""
        return (
            None if self.price_per_hour is None else self.price_per_hour / 3600 / self.tokens_per_second * 1e6
        )

    @property
    def joules_per_token(self) -> float | None:
        """Energy of one token at board power."""
        return None if self.watts is None else self.watts / self.tokens_per_second

    @property
    def fits(self) -> bool:
        """True when every device holds its share."""
        return all(group.memory.fits for stage in self.stages for group in stage.groups)

    @property
    def out_of_memory(self) -> float:
        """Chance that some device runs out of memory; the error is assumed to be the same on all devices."""
        return max(group.memory.out_of_memory for stage in self.stages for group in stage.groups)

    @property
    def peak_memory_bytes(self) -> float:
        """Bytes on the fullest device, without the reserve."""
        return max(group.memory.used_bytes for stage in self.stages for group in stage.groups)
