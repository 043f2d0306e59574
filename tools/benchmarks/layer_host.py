"""``python -m tools.benchmarks.layer_host``: what a layer of the torch example takes its host, in launches.

Alone and dealt over two devices, and with a backward in two parts. Sizes are so small that a processor does little but
call operations, and collectives are not executed. The time of a layer alone, with FSDP2 as in every plan, is
``FORWARD_KERNELS`` launches in either direction. What plans are priced with stands beside.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining._backward import stage_backward_input, stage_backward_weight
from torch.testing._internal.distributed.fake_pg import FakeStore

from planner.cost.compute import FORWARD_KERNELS, dealt_tensors, modules_with_weights
from planner.job.batches import model_shape
from planner.model.spec import ModelSpec, TrainingSpec
from planner.runtimes.torch.capabilities import CAPABILITIES
from planner.runtimes.torch.example_tensor import split
from planner.training.example_model import Layer, shape_of

REPEATS = 50
LAYERS = 6
GRAPHS = (1, 6, 24)
"""Layers of a stage whose backward is divided."""
LENGTH = 8
PLAIN: dict[str, Any] = {
    "qkv_bias": False,
    "output_bias": False,
    "mlp_bias": False,
    "gated_mlp": True,
    "norm": "rms",
}
MODELS: dict[str, dict[str, Any]] = {
    "Llama": {**PLAIN, "kv_heads": 2},
    "Qwen3": {**PLAIN, "kv_heads": 2, "qk_norm": True},
    "GPT": {},
}


def stage_of(spec: ModelSpec, mesh: DeviceMesh, way: str, layers: int, *, sharded: bool) -> Any:
    """So many layers, of which replicas share the parameters throughout or the updates alone."""
    parts = [Layer(shape_of(model_shape(spec))) for _ in range(layers)]
    for layer in parts:
        if way != "alone":
            split(layer, mesh["tensor"], by_tokens=way == "by tokens")
        fully_shard(layer, mesh=mesh["replica"], reshard_after_forward=sharded)
    return fully_shard(torch.nn.Sequential(*parts), mesh=mesh["replica"], reshard_after_forward=sharded)


def inputs_of(spec: ModelSpec, way: str) -> torch.Tensor:
    """One short sequence, or its half."""
    length = LENGTH // 2 if way == "by tokens" else LENGTH
    return torch.randn(1, length, spec.hidden, requires_grad=True)


def timed(
    forward: Callable[[], torch.Tensor], backward: Callable[[torch.Tensor], None]
) -> tuple[float, float]:
    """Least processor time of either."""
    least = [float("inf"), float("inf")]
    for _ in range(REPEATS):
        times = [time.process_time()]
        outputs = forward()
        times.append(time.process_time())
        backward(outputs)
        times.append(time.process_time())
        least = [min(one, times[index + 1] - times[index]) for index, one in enumerate(least)]
    return least[0], least[1]


def seconds_of(spec: ModelSpec, mesh: DeviceMesh, way: str) -> tuple[float, float]:
    """A layer's forward and backward, with ZeRO 3."""
    network, hidden = stage_of(spec, mesh, way, LAYERS, sharded=True), inputs_of(spec, way)
    forward, backward = timed(lambda: network(hidden), lambda outputs: outputs.sum().backward())
    return forward / LAYERS, backward / LAYERS


def backward_of(spec: ModelSpec, mesh: DeviceMesh, way: str, layers: int, *, divided: bool) -> float:
    """A layer's backward in a micro-batch of a stage of so many, at once or in two parts as in ZeRO 0 and 1."""
    network, hidden = stage_of(spec, mesh, way, layers, sharded=False), inputs_of(spec, way)
    network.set_requires_gradient_sync(False)
    network.set_reshard_after_backward(False)

    def in_two(outputs: torch.Tensor) -> None:
        gradient = torch.ones_like(outputs)
        _, groups = stage_backward_input([outputs], [gradient], [hidden], iter(network.parameters()))
        stage_backward_weight(iter(network.parameters()), groups)
        root = fully_shard.state(network)
        for state in root._state_ctx.all_states:
            for group in state._fsdp_param_groups:
                group.post_backward()
        root._root_post_backward_final_callback()

    def at_once(outputs: torch.Tensor) -> None:
        outputs.backward(torch.ones_like(outputs))

    return timed(lambda: network(hidden), in_two if divided else at_once)[1] / layers


def priced(spec: ModelSpec, way: str) -> tuple[float, float]:
    """Launches of both directions in a plan."""
    dealing = CAPABILITIES.dealing
    if way == "alone" or dealing is None:
        return FORWARD_KERNELS, FORWARD_KERNELS
    dealt, trained = dealt_tensors(spec, split=way == "by tokens")
    collectives = dealing.collectives * (2 if way == "by tokens" else 1)
    forward = FORWARD_KERNELS + 2 + collectives + dealing.tensor * dealt
    return forward, forward + dealing.gradient * trained


def priced_more(spec: ModelSpec, way: str, layers: int) -> float:
    """Launches of a plan for the division of a layer's backward."""
    dealing, dividing = CAPABILITIES.dealing, CAPABILITIES.dividing
    assert dealing is not None
    assert dividing is not None
    again = dealing.gradient * dealt_tensors(spec, split=True)[1] if way == "by tokens" else 0.0
    return again + (dividing.module + dividing.layer * layers) * modules_with_weights(spec)


def main() -> int:
    """Print a line for each model and way, and for each length of a divided backward."""
    torch.set_num_threads(1)
    torch.distributed.init_process_group("fake", rank=0, world_size=4, store=FakeStore())
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replica", "tensor"))
    for name, changes in MODELS.items():
        spec = ModelSpec(
            name=name,
            **{"layers": 1, "hidden": 32, "heads": 4, "ffn": 64, "vocab": 64, **changes},
            training=TrainingSpec(sequence_length=LENGTH, global_batch=1),
        )
        alone = seconds_of(spec, mesh, "alone")
        for way in ("alone", "whole", "by tokens"):
            found = seconds_of(spec, mesh, way)
            launches = [FORWARD_KERNELS * one / base for one, base in zip(found, alone, strict=True)]
            pairs = zip(("forward", "backward"), found, launches, priced(spec, way), strict=True)
            said = ", ".join(
                f"{direction} {seconds * 1e6:.0f} us = {count:.0f} launches, priced {price:.0f}"
                for direction, seconds, count, price in pairs
            )
            sys.stdout.write(f"{name}, {way}: {said}\n")
        for way in ("alone", "by tokens"):
            for layers in GRAPHS:
                whole, parts = (
                    backward_of(spec, mesh, way, layers, divided=divided) for divided in (False, True)
                )
                launches_more = FORWARD_KERNELS * (parts - whole) / alone[0]
                price = priced_more(spec, way, layers)
                sys.stdout.write(
                    f"{name}, {way}, backward of {layers} layers in two parts: {(parts - whole) * 1e6:.0f} us more"
                    f" a layer = {launches_more:.0f} launches, priced {price:.0f}\n"
                )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
