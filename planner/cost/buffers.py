"""Copies between parameters or gradients and the buffers in which they travel, by runtimes that have such buffers."""

from __future__ import annotations

from planner.capabilities import Capabilities
from planner.cost.communication import Ring
from planner.cost.compute import Device
from planner.cost.memory import gathered_of, trained_of
from planner.dims.sharding import gradients_of
from planner.model.spec import ModelSpec


def buffer_seconds(
    model: ModelSpec,
    target: Capabilities,
    device: Device,
    zero: int,
    *,
    alone: bool,
    layers: int,
    first: bool,
    last: bool,
    tp: int,
    expert_ways: int,
) -> tuple[float, float]:
    """Seconds of the copies of one micro-batch, forward and backward, on a device with these layers and ends.

    ZeRO 3 copies parameters out of what it gathers, in the forward and in the backward
    (``foreach_all_gather_copy_out`` in ``_fsdp_collectives.py`` of torch 2.13; ``AllGatherCoalescedHandle.wait`` in
    ``partition_parameters.py`` of DeepSpeed 0.19); a replica that is ``alone`` gathers nothing. ZeRO 2 and 3 copy
    gradients to what is reduced (``foreach_reduce_scatter_copy_in``; ``__add_grad_to_ipg_bucket`` in ``stage3.py``).
    With ZeRO 0 and 1 they are added to those of earlier micro-batches. That of the first is less, by about what is
    copied once a step; of one ``alone`` it is what is counted, whatever the ZeRO stage.
    """
    kernels = layers * model.layers_each + first + last
    formats, size = gradients_of(target, model.training, 0 if alone else zero), device.size
    moved: float = size + formats.reduced_bytes
    if device.added_bytes and (zero < 2 or alone):
        moved = 0.0
    elif zero < 2 and not alone:
        # FSDP2 adds whole gradients up in the format of their reduction.
        moved = size + 2.0 * (formats.reduced_bytes if target.by_units else formats.kept_bytes)
    elements = trained_of(model, layers=layers, first=first, last=last, tp=tp, expert_ways=expert_ways)
    backward = device.stream(moved * elements, kernels)
    if zero < 3 or alone:
        return 0.0, backward
    elements = gathered_of(
        model,
        layers=layers,
        first=first,
        last=last,
        tp=tp,
        expert_ways=expert_ways,
        shards_codes=target.shards_codes,
    )
    forward = device.stream(2.0 * size * elements, kernels)
    return forward, forward + backward


def once_seconds(parameters: float, device: Device, target: Capabilities, zero: int, ring: Ring) -> float:
    """Seconds in which ZeRO 2 copies a device's parameters out of what it gathers once a step, where it does so."""
    several = target.by_units and zero == 2 and ring.size > 1
    return several * device.stream(2.0 * device.size * parameters, 0)
