"""Copies between devices and what is kept off them, and the optimizer on the host's processors.

Volumes follow ZeRO-Offload (arXiv:2101.06840, section 4) and ZeRO-Infinity (arXiv:2104.07857, section 4). All
devices of a node are taken to copy, and to update, at the same time.
"""

from __future__ import annotations

from planner.capabilities import Capabilities, OffloadTo
from planner.cluster.spec import HOST_LINK_EFFICIENCY
from planner.cluster.topology import DeviceType
from planner.cost.arrays import larger, smaller
from planner.cost.compute import ELEMENT_BYTES
from planner.cost.memory import SUB_GROUPS, activation_bytes_per_layer, optimizer_bytes
from planner.errors import PlanError
from planner.frozen import dataclass
from planner.model.spec import ModelSpec, TrainingSpec
from planner.plan.values import Offload

SUPERCHIP_BYTES_PER_SECOND = HOST_LINK_EFFICIENCY * 450e9
"""What copies reach between one Grace and its devices: NVLink-C2C, 450 GB/s in one direction."""

UPDATES_PER_SECOND = 4.1e9
"""Parameters that a host's processors update by AdamW in one pass over the states, as DeepSpeed's CPU-Adam and torch's
fused one do: 0.22 to 2.57 s for 1 to 10 billion (arXiv:2101.06840, table 4)."""

SUPERCHIP_UPDATES_PER_SECOND = 12.6e9
"""The same of one Grace: 0.082 to 0.608 s for 1 to 8 billion (announcement of SuperOffload, figure 5)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """What one device works on, as far as its host is concerned."""

    shard: float
    """Elements that are updated for this device."""
    gathered: float
    """Elements that are read for it when all devices that share them gather them, those not trained included."""
    zero: int
    gradient_bytes: int
    layers: int
    """Those whose checkpoints it keeps."""
    sequences: int
    """Of one micro-batch."""
    token_ways: int
    """Devices of a replica among which the tokens of a checkpoint are dealt; 1 where each has all of them."""
    recomputes: bool
    """True with full recomputation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Copies:
    """Seconds of the copies between one device and its host."""

    forward_seconds: float = 0.0
    """In the forward of one micro-batch."""
    backward_seconds: float = 0.0
    """In every backward but the first of a step."""
    first_backward_seconds: float = 0.0
    ahead_seconds: float = 0.0
    """The part of both that is not of gradients: what a backward needs, which comes ahead of it."""
    in_stream_seconds: float = 0.0
    """In each forward and again in each backward, for which its kernels wait; no part of the others."""
    step_seconds: float = 0.0
    """Once, after the last backward."""

    def waits(self, forward: float, backward: float, overlap: float) -> tuple[float, float, float]:
        """What a forward, a backward, and the first backward of these seconds wait for.

        Copy engines work beside everything else, ahead of what needs parameters and checkpoints. Gradients leave when
        they are reduced, so that the share ``overlap`` of what could be hidden is, as of other gradient traffic.
        """
        ahead = larger(0.0, self.ahead_seconds - backward)
        room = larger(0.0, backward - self.ahead_seconds)
        behind, first = (
            seconds - overlap * smaller(seconds, room)
            for seconds in (
                self.backward_seconds - self.ahead_seconds,
                self.first_backward_seconds - self.ahead_seconds,
            )
        )
        waits = larger(0.0, self.forward_seconds - forward), ahead + behind, ahead + first
        return (
            waits[0] + self.in_stream_seconds,
            waits[1] + self.in_stream_seconds,
            waits[2] + self.in_stream_seconds,
        )

    def hidden(self, forward: float, backward: float, overlap: float) -> float:
        """Seconds of copies that are hidden under a forward and a backward of these seconds."""
        waits = self.waits(forward, backward, overlap)
        moved = self.forward_seconds + self.backward_seconds + 2.0 * self.in_stream_seconds
        return moved - waits[0] - waits[1]


def copies(
    offload: Offload, held: Held, device_type: DeviceType, model: ModelSpec, target: Capabilities
) -> Copies:
    """Seconds of all copies of one device; raises PlanError when it is not known how fast they are.

    Those of targets that copy and update tensor by tensor are part of the update.

    With ZeRO 2 and 3 gradients leave in every micro-batch; from the second on their sum comes back and leaves
    again (``async_accumulate_grad_in_cpu_via_gpu`` in DeepSpeed), also of parameters that the device updates
    (``grad_partitions_flat_buffer`` in ``stage3.py``). With ZeRO 1 they leave once. Parameters are read for each
    gather: forward, recomputation, backward.
    """
    forward = backward = leaving = again = waited_for = at_end = 0.0
    parameters = held.shard * ELEMENT_BYTES[model.training.precision]
    if offload.optimizer != "none" and not target.offloading.tensor_by_tensor:
        gradients = held.shard * held.gradient_bytes / _rate(device_type, "cpu")
        if held.zero >= 2:
            leaving = again = gradients
        else:
            at_end += gradients
        # Updated where they rest, in host memory or on the device, parameters need not move.
        moved = {"none": offload.ratio, "cpu": 1.0 - offload.ratio, "nvme": 1.0}[offload.parameters]
        at_end += moved * parameters / _rate(device_type, offload.parameters)
    if offload.parameters != "none":
        size = ELEMENT_BYTES[model.training.precision]
        read = held.gathered * size / _rate(device_type, offload.parameters)
        forward += read
        backward += (2.0 if held.recomputes else 1.0) * read
    if offload.activations != "none":
        kept = activation_bytes_per_layer(
            model, tp=1, micro_batch=held.sequences, recompute="full", sequence_parallel=False
        )
        moved = held.layers * kept / held.token_ways / _rate(device_type, "cpu")
        if target.offloading.waits_for_activations:
            waited_for = moved
        else:
            forward += moved
            backward += moved
    return Copies(
        forward_seconds=forward,
        backward_seconds=backward + leaving + again,
        first_backward_seconds=backward + leaving,
        ahead_seconds=backward,
        in_stream_seconds=waited_for,
        step_seconds=at_end,
    )


def host_optimizer_seconds(
    offload: Offload, held: Held, device_type: DeviceType, model: ModelSpec, target: Capabilities
) -> float:
    """Seconds to update the host's share of one device's shard, states on NVMe read and written meanwhile.

    Tensor by tensor, gradients come and new values go beside the updates of other tensors: all but the first gradient
    and the last values, which are left out.
    """
    rate = _updates_per_second(device_type)
    # What a processor updates in a second goes with the bytes of its states; rates are of AdamW in fp32.
    seconds = offload.ratio * held.shard / rate * (4.0 + model.training.moment_bytes) / 12.0
    if target.offloading.tensor_by_tensor:
        moved = offload.ratio * held.shard * ELEMENT_BYTES["fp32"]
        return larger(seconds, moved / _rate(device_type, "cpu"))
    if offload.optimizer == "nvme":
        states = optimizer_bytes(model.training, "fp32", copied=target.flat_copies) * held.shard
        seconds = larger(seconds, 2.0 * states / _rate(device_type, "nvme"))
    return seconds


def _updates_per_second(device_type: DeviceType) -> float:
    """Parameters that the processors update in a second for one device, all devices of the node at the same time.

    The devices of a superchip share its processor as they share its link.
    """
    host = device_type.host
    if host.parameters_per_second is not None:
        return host.parameters_per_second
    if host.superchip and host.bytes_per_second is not None:
        return SUPERCHIP_UPDATES_PER_SECOND * min(1.0, host.bytes_per_second / SUPERCHIP_BYTES_PER_SECOND)
    return UPDATES_PER_SECOND / host.devices


def beside_backward(offload: Offload, backward_seconds: float) -> float:
    """Seconds of the last backward of a step beside which a host can update; 0 without SuperOffload.

    An update begins when all gradients of a sub-group are there, and that of the last ends behind the backward.
    """
    return (1.0 - 1.0 / SUB_GROUPS) * backward_seconds if offload.super_offload else 0.0


def paging_seconds(elements: float, device_type: DeviceType, training: TrainingSpec) -> float:
    """Seconds to bring paged moments of a device's elements to it for their update, and to drive them out again.

    Moments that the device drives out at all are all driven out, as each is used once a step, in turn: the least
    recently used is always the next one. With room for all of them nothing moves; that is not counted on.
    """
    if not training.paged:
        return 0.0
    return 2.0 * training.moment_bytes * elements / _rate(device_type, "cpu")


def _rate(device_type: DeviceType, place: OffloadTo) -> float:
    """Bytes per second between a device and host memory, or NVMe behind it, with all devices of the node."""
    host = device_type.host.bytes_per_second
    if host is None:
        raise PlanError(
            f"it is not known how fast {device_type.gpu} in pool {device_type.pool} reaches its host's memory"
        )
    if place != "nvme":
        return host
    if device_type.host.nvme_bytes_per_second is None:
        raise PlanError(f"the nodes of pool {device_type.pool} have no NVMe to offload to")
    return min(host, device_type.host.nvme_bytes_per_second)
