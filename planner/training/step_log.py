"""What the examples print, one line a step; ``hetplan compare plan.yaml --log FILE`` reads it.

In a script of your own: ``log = StepLog(plan)``, and ``log.step(index, loss)`` at the end of each optimizer step.
"""

from __future__ import annotations

import time
from importlib import import_module
from typing import Any

import torch

from planner.training.hetplan_runtime import RankPlan


class StepLog:
    """Times the steps of a rank and prints them."""

    def __init__(self, plan: RankPlan) -> None:
        self.rank = plan.rank
        self.stage = plan.stage
        if self.rank == 0:
            print(f"job ranks {plan.world_size} global_batch {plan.global_batch}", flush=True)  # noqa: T201
        self.since = time.perf_counter()

    def step(self, index: int, loss: torch.Tensor | None = None) -> None:
        """Print a step that has just ended, from the first rank: its loss and the seconds since the last one."""
        if loss is None and torch.cuda.is_available():
            torch.cuda.synchronize()
        value = "-" if loss is None else f"{loss.item():.9f}"  # waits for the device
        now = time.perf_counter()
        if self.rank == 0:
            print(f"step {index} loss {value} seconds {now - self.since:.6f}", flush=True)  # noqa: T201
        self.since = now

    def left_out(self, index: int, scale: float) -> None:
        """Print that a step changes no weights, from the first rank, and what losses are multiplied by from now on."""
        if self.rank == 0:
            print(f"left out step {index}: fp16 gradients overflow, loss scale {scale:g}", flush=True)  # noqa: T201

    def dropped(self, index: int, ranks: list[int]) -> None:
        """Print whose gradients a step drops, from the first rank."""
        if self.rank == 0 and ranks:
            print(f"dropped in step {index}: ranks {' '.join(map(str, ranks))}", flush=True)  # noqa: T201

    def peak(self) -> None:
        """Print the most memory that this rank's tensors took, where there is a device to ask."""
        if torch.cuda.is_available():
            peak = torch.cuda.max_memory_allocated()
            print(f"rank {self.rank} stage {self.stage} peak_bytes {peak}", flush=True)  # noqa: T201


def trainer_callback(plan: RankPlan) -> Any:
    """For Hugging Face's Trainer: ``callbacks=[trainer_callback(plan)]``. Losses are in Trainer's own log."""
    from transformers import TrainerCallback

    class StepTimes(TrainerCallback):  # type: ignore[misc]
        def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            self.log = StepLog(plan)

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            self.log.step(state.global_step - 1)

        def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            self.log.peak()

    return StepTimes()


def lightning_callback(plan: RankPlan) -> Any:
    """For Lightning's Trainer, whose batches are micro-batches: ``callbacks=[lightning_callback(plan)]``."""
    try:
        base: Any = import_module("lightning.pytorch").Callback
    except ImportError:
        base = import_module("pytorch_lightning").Callback

    class StepTimes(base):  # type: ignore[misc]
        def on_train_start(self, trainer: Any, module: Any) -> None:
            self.log, self.seen = StepLog(plan), trainer.global_step

        def on_train_batch_end(self, trainer: Any, module: Any, *_: Any) -> None:
            if trainer.global_step > self.seen:
                self.seen = trainer.global_step
                self.log.step(self.seen - 1)

        def on_train_end(self, trainer: Any, module: Any) -> None:
            self.log.peak()

    return StepTimes()
