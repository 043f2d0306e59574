"""``python -m tools.benchmarks.dealing``: what a layer of the torch example takes its host, alone and on two devices.

Sizes are so small that a processor does little but call operations, and collectives are not executed. In launches: the
time of a layer alone, with FSDP2 as in every plan, is ``FORWARD_KERNELS`` of them in either direction. What plans are
priced with stands beside.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.testing._internal.distributed.fake_pg import FakeStore

from planner.cost.compute import FORWARD_KERNELS, dealt_tensors
from planner.job.batches import model_shape
from planner.model.spec import ModelSpec, TrainingSpec
from planner.runtimes.torch.capabilities import CAPABILITIES
from planner.runtimes.torch.example_tensor import split
from planner.training.example_model import Layer, shape_of

REPEATS = 50
LAYERS = 6
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


def seconds_of(spec: ModelSpec, mesh: DeviceMesh, way: str) -> tuple[float, float]:
    """Least processor time of a layer's forward and backward, with ZeRO 3."""
    layers = [Layer(shape_of(model_shape(spec))) for _ in range(LAYERS)]
    for layer in layers:
        if way != "alone":
            split(layer, mesh["tensor"], by_tokens=way == "by tokens")
        fully_shard(layer, mesh=mesh["replica"])
    network = fully_shard(torch.nn.Sequential(*layers), mesh=mesh["replica"])
    length = LENGTH // 2 if way == "by tokens" else LENGTH
    hidden = torch.randn(1, length, spec.hidden, requires_grad=True)
    least = [float("inf"), float("inf")]
    for _ in range(REPEATS):
        times = [time.process_time()]
        outputs = network(hidden)
        times.append(time.process_time())
        outputs.sum().backward()
        times.append(time.process_time())
        least = [min(one, times[index + 1] - times[index]) for index, one in enumerate(least)]
    return least[0] / LAYERS, least[1] / LAYERS


def priced(spec: ModelSpec, way: str) -> tuple[float, float]:
    """Launches of both directions in a plan."""
    dealing = CAPABILITIES.dealing
    if way == "alone" or dealing is None:
        return FORWARD_KERNELS, FORWARD_KERNELS
    dealt, trained = dealt_tensors(spec, split=way == "by tokens")
    collectives = dealing.collectives * (2 if way == "by tokens" else 1)
    forward = FORWARD_KERNELS + 2 + collectives + dealing.tensor * dealt
    return forward, forward + dealing.gradient * trained


def main() -> int:
    """Print a line for each model and way."""
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
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
