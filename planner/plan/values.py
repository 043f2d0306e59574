"""A plan: every decision of one training run, immutable and validated."""

from __future__ import annotations

from dataclasses import dataclass

from planner.errors import PlanError
from planner.runtimes.capabilities import OffloadTo, Recompute


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaGroup:
    """Identical replicas of one stage; a replica is one tensor-parallel group of devices."""

    pool: str
    gpu: str
    tp: int
    """Devices of one replica."""
    count: int
    """Replicas in the group."""
    share: int
    """Sequences that each replica processes in one optimizer step."""
    steps: int
    """Micro-batches that each replica processes in one optimizer step."""

    def __post_init__(self) -> None:
        if min(self.tp, self.count, self.steps) < 1 or self.share < self.steps:
            raise PlanError(
                f"replicas on {self.pool}: tp, count and steps must be at least 1 and share at least steps, got "
                f"tp {self.tp}, count {self.count}, share {self.share}, steps {self.steps}"
            )

    @property
    def devices(self) -> int:
        """Devices of all replicas of the group."""
        return self.tp * self.count

    @property
    def micro_batch(self) -> int:
        """Sequences of the largest micro-batch of a replica."""
        return -(-self.share // self.steps)

    @property
    def micro_batch_sizes(self) -> tuple[int, ...]:
        """Sequences of each micro-batch in order, [steps]: as even as possible, larger ones first."""
        small, larger = divmod(self.share, self.steps)
        return (small + 1,) * larger + (small,) * (self.steps - larger)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Consecutive layers and the replicas that hold them."""

    first_layer: int
    end_layer: int
    """One past the last layer."""
    replicas: tuple[ReplicaGroup, ...]
    recompute: Recompute = "none"

    def __post_init__(self) -> None:
        if not 0 <= self.first_layer < self.end_layer:
            raise PlanError(f"a stage needs at least one layer, got [{self.first_layer}, {self.end_layer})")
        if not self.replicas:
            raise PlanError(f"the stage of layers [{self.first_layer}, {self.end_layer}) has no replicas")

    @property
    def layers(self) -> int:
        """Transformer layers of the stage."""
        return self.end_layer - self.first_layer

    @property
    def dp(self) -> int:
        """Replicas of the stage."""
        return sum(group.count for group in self.replicas)

    @property
    def devices(self) -> int:
        """Devices of the stage."""
        return sum(group.devices for group in self.replicas)

    @property
    def sequences(self) -> int:
        """Sequences the stage processes in one optimizer step."""
        return sum(group.count * group.share for group in self.replicas)


@dataclass(frozen=True, slots=True, kw_only=True)
class Offload:
    """What is kept off the devices between its uses (arXiv:2101.06840, arXiv:2104.07857)."""

    optimizer: OffloadTo = "none"
    """Optimizer states and gradients; the host's processors then update the parameters."""
    parameters: OffloadTo = "none"
    """Parameters in the working format, read for every gather."""
    activations: OffloadTo = "none"
    """Checkpoints of full recomputation."""

    def __post_init__(self) -> None:
        if self.activations == "nvme":
            raise PlanError("offload: activations can be offloaded to cpu only, got nvme")
        if self.parameters != "none" and self.optimizer == "none":
            raise PlanError("offload: parameters off the device need the optimizer states off it too")

    @property
    def anything(self) -> bool:
        """False when everything stays on the devices."""
        return self != ON_DEVICE

    @property
    def uses_nvme(self) -> bool:
        """True when something is kept on NVMe."""
        return "nvme" in (self.optimizer, self.parameters)


ON_DEVICE = Offload()
"""Nothing is offloaded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A complete decision: what every device does in one optimizer step."""

    target: str
    zero: int
    """ZeRO stage of the data-parallel groups; 1 is Megatron's distributed optimizer."""
    shard_size: int | None = None
    """Replicas of a stage that share one copy of what ZeRO shards (hybrid sharding); None: all of them.

    Consecutive replicas form such a group.
    """
    stages: tuple[Stage, ...]
    interleave: int = 1
    """Chunks of layers per device (virtual pipeline stages); 1 is plain 1F1B."""
    sequence_parallel: bool = False
    offload: Offload = ON_DEVICE

    def __post_init__(self) -> None:
        if not self.stages:
            raise PlanError("a plan needs at least one stage")
        if self.zero not in (0, 1, 2, 3):
            raise PlanError(f"zero: expected 0, 1, 2 or 3, got {self.zero}")
        self._check_shard_size()
        end = 0
        for index, stage in enumerate(self.stages):
            if stage.first_layer != end:
                raise PlanError(f"stages[{index}]: starts at layer {stage.first_layer}, expected {end}")
            end = stage.end_layer
        if len({stage.sequences for stage in self.stages}) > 1:
            raise PlanError("every stage must process the same number of sequences in a step")
        if self.interleave < 1 or min(stage.layers for stage in self.stages) < self.interleave:
            raise PlanError(f"interleave {self.interleave} needs at least as many layers in every stage")

    def _check_shard_size(self) -> None:
        if self.shard_size is None:
            return
        if self.zero == 0:
            raise PlanError(f"shard_size: ZeRO 0 shards nothing, expected none, got {self.shard_size}")
        for stage in self.stages:
            if not 2 <= self.shard_size < stage.dp or stage.dp % self.shard_size:
                what = (
                    f"expected a divisor of the {stage.dp} replicas of a stage, from 2 on and less than all"
                )
                raise PlanError(f"shard_size: {what}, got {self.shard_size}")

    @property
    def pp(self) -> int:
        """Pipeline depth."""
        return len(self.stages)

    @property
    def zero_text(self) -> str:
        """``ZeRO 3``, or ``ZeRO 3 in groups of 8`` with hybrid sharding."""
        return f"ZeRO {self.zero}" + (f" in groups of {self.shard_size}" if self.shard_size else "")

    @property
    def layers(self) -> int:
        """Transformer layers of the plan."""
        return self.stages[-1].end_layer

    @property
    def devices(self) -> int:
        """Devices that the plan uses."""
        return sum(stage.devices for stage in self.stages)

    @property
    def global_batch(self) -> int:
        """Sequences of one optimizer step."""
        return self.stages[0].sequences

    @property
    def micro_batches(self) -> int:
        """Micro-batches of the replica that has most."""
        return max(group.steps for stage in self.stages for group in stage.replicas)
