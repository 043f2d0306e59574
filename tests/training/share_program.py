"""One process trains an emitted folder's model with DeepSpeed's own optimizer for processors, a share on a device.

``python -m tests.training.share_program FOLDER`` prints the share of the elements on the device, then the losses. In
the place of a device is ``cpu:0``: DeepSpeed tells places apart by their names alone.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import deepspeed
import torch
from deepspeed.accelerator import get_accelerator
from deepspeed.ops.adam import DeepSpeedCPUAdam

from planner.training.example_model import Transformer, load_shape

STEPS = 6


def main(folder: Path) -> None:
    """Train on one batch."""
    torch.manual_seed(0)
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    deepspeed.init_distributed(dist_backend="gloo")
    get_accelerator()._name = "cpu:0"
    config: dict[str, Any] = json.loads((folder / "ds_config.json").read_text())
    config["train_micro_batch_size_per_gpu"] = 4
    shape = load_shape(folder / "model.json")
    with deepspeed.zero.Init(config_dict_or_path=config):
        network = Transformer(shape)
    optimizer = DeepSpeedCPUAdam(network.parameters(), lr=1e-2)
    engine, *_ = deepspeed.initialize(model=network, optimizer=optimizer, config=config)
    sizes = engine.optimizer.fp16_partitioned_groups_flat_numel
    places = engine.optimizer.subgroup_to_device
    kept = sum(size for number, size in enumerate(sizes) if places[number] != "cpu")
    sys.stdout.write(f"share {kept / sum(sizes)}\n")
    # Drawn apart: with a share DeepSpeed draws a number of its own.
    drawn = torch.Generator().manual_seed(1)
    tokens = torch.randint(0, shape.vocab, (4, shape.sequence_length + 1), generator=drawn)
    for _ in range(STEPS):
        logits = engine(tokens[:, :-1])
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        engine.backward(loss)
        engine.step()
        sys.stdout.write(f"loss {float(loss)}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
