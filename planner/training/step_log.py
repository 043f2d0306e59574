"""What the examples print, one line a step; ``hetplan compare plan.yaml --log FILE`` reads it."""

from __future__ import annotations

import time

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

    def step(self, index: int, loss: torch.Tensor) -> None:
        """Print a step that has just ended, from the first rank: its loss and the seconds since the last one."""
        value = loss.item()  # waits for the device
        now = time.perf_counter()
        if self.rank == 0:
            print(f"step {index} loss {value:.9f} seconds {now - self.since:.6f}", flush=True)  # noqa: T201
        self.since = now

    def left_out(self, index: int, scale: float) -> None:
        """Print that a step changes no weights, from the first rank, and what losses are multiplied by from now on."""
        if self.rank == 0:
            print(f"left out step {index}: fp16 gradients overflow, loss scale {scale:g}", flush=True)  # noqa: T201

    def peak(self) -> None:
        """Print the most memory that this rank's tensors took, where there is a device to ask."""
        if torch.cuda.is_available():
            peak = torch.cuda.max_memory_allocated()
            print(f"rank {self.rank} stage {self.stage} peak_bytes {peak}", flush=True)  # noqa: T201
