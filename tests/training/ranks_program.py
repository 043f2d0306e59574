"""What each rank runs when many emitted folders train in one start: the start is what takes long.

``ranks.run`` has FILE as its argument, which lists the folders and the arguments of their ``train.py``. Each
folder's own modules are loaded and do the work; this program keeps the logs, losses and final weights.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import io
import json
import os
import sys
from pathlib import Path
from typing import Any

import deepspeed
import torch
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from tests.training.folder_modules import train_of


def prepare() -> None:
    """Load what the folders have in common, for all ranks."""
    train_of(Path(json.loads(Path(sys.argv[1]).read_text())[0]["folder"]))


def main() -> None:
    """Train every folder in turn."""
    jobs = json.loads(Path(sys.argv[1]).read_text())
    module = train_of(Path(jobs[0]["folder"]))
    module.start_processes()
    for job in jobs:
        if job["wrapper"] == "deepspeed":
            train(Path(job["folder"]), job["arguments"])
        else:
            train_with_torch(Path(job["folder"]), job["arguments"], job["wrapper"])
    module.leave(on_processor=True)


def train(folder: Path, arguments: list[str]) -> None:
    """Train as ``train.py`` does and leave what it printed and this rank's weights in the folder."""
    module, log = train_of(folder), io.StringIO()
    with contextlib.redirect_stdout(log):
        engine = module.train(module.parse_options(arguments))
    rank = os.environ["RANK"]
    torch.save(weights(engine.module), folder / f"weights-{rank}.pt")
    (folder / f"log-{rank}.txt").write_text(log.getvalue())
    engine.destroy()
    del engine
    gc.collect()


def train_with_torch(folder: Path, arguments: list[str], wrapper: str) -> None:
    """A script of a user's own around DDP or FSDP2, with the batches and weights of the plan."""
    module, data = train_of(folder), importlib.import_module("example_data")
    options = module.parse_options(arguments)
    torch.manual_seed(options.seed)
    plan, shape = module.load(), module.load_shape(folder / "model.json")
    model = module.Transformer(shape)
    if wrapper == "fsdp2":
        for layer in model.layers:
            fully_shard(layer)
        trained: Any = fully_shard(model)
    else:
        trained = DistributedDataParallel(model)
    optimizer, minimised = module.make_optimizer(trained, shape, options), module.objective(shape)
    for step in range(options.steps):
        optimizer.zero_grad()
        for number, micro in enumerate(plan.micro_batches(step), start=1):
            inputs, labels = data.sequences(micro.sequences, shape, None)
            # DDP takes any number of micro-batches when only the last one is reduced, as ZeRO 0 and 1 do it.
            apart = wrapper == "ddp" and number < plan.steps
            with trained.no_sync() if apart else contextlib.nullcontext():
                (minimised(trained(inputs), labels) * micro.torch_weight).backward()
        torch.nn.utils.clip_grad_norm_(trained.parameters(), 1.0)
        optimizer.step()
    whole = {name: full_tensor(value).float() for name, value in model.named_parameters()}
    torch.save(whole, folder / f"weights-{plan.rank}.pt")


def full_tensor(value: Any) -> Any:
    """A parameter, gathered where it is sharded."""
    return (value.full_tensor() if hasattr(value, "full_tensor") else value).detach().clone()


def weights(network: Any) -> dict[str, Any]:
    """This rank's parameters, whole also where ZeRO 3 keeps a part of each."""
    with deepspeed.zero.GatheredParameters(list(network.parameters())):
        return {name: value.detach().float().clone() for name, value in network.named_parameters()}


if __name__ == "__main__":
    main()
