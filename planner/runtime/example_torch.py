"""Example: trains a model of the planned shape with PyTorch alone, as the plan says.

Start it on every node with ``launch.sh``. To train your own, replace ``sequences`` and ``Part``; what carries
the plan are ``load``, ``Layout`` and ``micro_batches``.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint

from planner.runtime.batches import RankPlan, load
from planner.runtime.example_data import sequences
from planner.runtime.example_model import Shape, load_shape, loss_of
from planner.runtime.example_stage import Part
from planner.runtime.step_log import StepLog
from planner.runtime.torch_native import Layout

FOLDER = Path(__file__).parent
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def main() -> None:
    """Train for some steps and print the mean loss of each global batch."""
    options = parse_options()
    start_processes()
    run(options)
    leave()


def parse_options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """What the plan leaves open."""
    parser = argparse.ArgumentParser(description="Train a model of the planned shape.")
    parser.add_argument("--steps", type=int, default=100, help="optimizer steps (100)")
    parser.add_argument("--lr", type=float, default=3e-4, help="learning rate (3e-4)")
    parser.add_argument("--seed", type=int, default=0, help="of the initial weights (0)")
    parser.add_argument("--text", type=Path, help="train on this file, byte by byte (made-up tokens)")
    parser.add_argument("--save", type=Path, help="write a checkpoint into this folder at the end")
    return parser.parse_args(arguments)


def start_processes() -> None:
    """Join the job that torchrun started."""
    if DEVICE == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    torch.distributed.init_process_group("cpu:gloo,cuda:nccl" if DEVICE == "cuda" else "gloo")


def leave() -> None:
    """End together: a rank that leaves first would break the others' connections while they still save."""
    torch.distributed.barrier()
    if DEVICE == "cpu":
        # Gloo's threads may free tensors after the interpreter is gone, which aborts the process.
        sys.stdout.flush()
        os._exit(0)
    torch.distributed.destroy_process_group()


def run(options: argparse.Namespace) -> None:
    """Train as the folder's plan says."""
    plan, shape = load(), load_shape(FOLDER / "model.json")
    config: dict[str, Any] = json.loads((FOLDER / "torch_config.json").read_text(encoding="utf-8"))
    layout = Layout(plan, DEVICE, bf16=config["precision"] == "bf16", on_host=config["on_host"])
    model = Part(shape, plan, options.seed, layout.shard)
    layout.shard(model)
    optimizer = make_optimizer(model, shape, options)
    log = StepLog(plan.rank, plan.stage)
    for step in range(options.steps):
        losses = micro_batches(plan, layout, model, shape, options, step)
        layout.clip(model.parameters(), config["clip"])
        optimizer.step()
        optimizer.zero_grad()
        log.step(step, plan.mean_loss(losses))
    log.peak()
    if options.save:
        torch.distributed.checkpoint.save(model.state_dict(), checkpoint_id=options.save)


def micro_batches(
    plan: RankPlan, layout: Layout, model: Any, shape: Shape, options: argparse.Namespace, step: int
) -> list[torch.Tensor]:
    """Gradients of one step without a pipeline; returns the weighted losses."""
    losses = []
    for index, micro in enumerate(plan.micro_batches(step)):
        inputs, labels = sequences(micro.sequences, shape, options.text)
        layout.accumulate(model, last=index == plan.steps - 1)
        loss = loss_of(model(inputs.to(DEVICE)), labels.to(DEVICE)) * micro.weight
        (loss / plan.steps).backward()
        losses.append(loss)
    return losses


def make_optimizer(model: Any, shape: Shape, options: argparse.Namespace) -> Any:
    """The optimizer that the plan counted memory for."""
    if shape.optimizer == "sgd":
        return torch.optim.SGD(model.parameters(), lr=options.lr, momentum=0.9)
    return torch.optim.AdamW(model.parameters(), lr=options.lr)


if __name__ == "__main__":
    main()
