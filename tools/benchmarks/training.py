"""Whole training steps on one device: seconds, spread and peak bytes of one way to train a model.

A job of one rank trains as the example of the target ``torch`` does without ZeRO, by FSDP2.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, TypeVar

import torch
from torch import distributed
from torch.distributed.tensor import DTensor

from planner.capabilities import Recompute
from planner.errors import UsageError
from planner.measure.backend import DTYPES, REPEATS, Backend, out_of_memory
from planner.measure.layers import numerics, peak_bytes, share_of
from planner.measure.samples import sample
from planner.model.spec import ModelSpec
from planner.runtimes.torch.hetplan_torch import Layout
from planner.training.example_model import Transformer
from planner.training.hetplan_loss import mean_loss
from planner.training.hetplan_runtime import RankPlan, StagePlan

FORMATS = ("bf16", "fp32", "tf32")
"""Number formats that need no scaling of the loss."""
WARM_STEPS = 2
"""The first makes the optimizer's moments, the second finds all memory where it stays."""
MOST_SECONDS = 4.0
"""As many steps of one configuration as take this long, from three to ``REPEATS``."""
LEARNING_RATE = 1e-4

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """One way to train a model on one device; the model says batch, number format and optimizer."""

    model: ModelSpec
    micro_batch: int
    """Sequences; the global batch is a multiple of it."""
    recompute: Recompute = "none"

    @property
    def micro_batches(self) -> int:
        """Micro-batches of one optimizer step."""
        return self.model.training.global_batch // self.micro_batch


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """What whole steps took."""

    step_seconds: float
    """Median."""
    spread: float
    """Robust relative standard deviation over the steps."""
    peak_bytes: float
    """Tensors at the peak."""
    reserved_bytes: float | None
    """What torch had taken from the device; None on a CPU."""


def train(backend: Backend, asked: Configuration) -> Trained | None:
    """Train for some steps; None when memory runs out. Raises UsageError for a format that it cannot train in."""
    return _recovered(backend, asked, _measured)


def fits(backend: Backend, asked: Configuration) -> bool:
    """True when two steps run without running out of memory; the second one has the optimizer's moments."""
    return _recovered(backend, asked, _two_steps) is not None


class Training:
    """A model, its optimizer and one batch of made-up tokens on the device, in a ``job``."""

    def __init__(self, backend: Backend, asked: Configuration) -> None:
        training = asked.model.training
        if training.precision not in FORMATS:
            raise UsageError(
                f"{asked.model.name}: training in {training.precision} is not measured",
                hint=f"one of: {', '.join(FORMATS)}",
            )
        self.plan = _alone(asked)
        self._layout = Layout(self.plan, backend.kind, DTYPES[training.precision])
        with torch.device(backend.kind):
            self.model: Any = Transformer(share_of(asked.model, 1), asked.recompute, place=self._sharded)
            sizes = (asked.micro_batch, training.sequence_length + 1)
            self.tokens: Any = torch.randint(asked.model.vocab, sizes)
        if self.model.head is not None:
            self._layout.shard(self.model.embedding)
            self._layout.shard(self.model.head, last=True)
        self._layout.shard(self.model)
        make = {"adamw": torch.optim.AdamW, "sgd": partial(torch.optim.SGD, momentum=0.9)}[training.optimizer]
        # The unfused updates of torch need room for copies of whole parameters.
        self._optimizer = make(self.model.parameters(), lr=LEARNING_RATE, fused=True)

    def _sharded(self, layer: Any) -> Any:
        self._layout.shard(layer)
        return layer

    def step(self) -> None:
        """One optimizer step."""
        self.backward()
        self._optimizer.step()
        self._optimizer.zero_grad()

    def backward(self) -> None:
        """Forward and backward of all micro-batches, whose gradients are summed up."""
        inputs, labels = self.tokens[:, :-1], self.tokens[:, 1:]
        for index in range(self.plan.steps):
            self._layout.accumulate(self.model, last=index == self.plan.steps - 1)
            (mean_loss(self.model(inputs), labels) / self.plan.steps).backward()

    def held(self) -> list[Any]:
        """All tensors that stay from step to step."""
        states = [each for state in self._optimizer.state.values() for each in state.values()]
        weights = [*self.model.parameters(), *states]
        return [*(each.to_local() if isinstance(each, DTensor) else each for each in weights), self.tokens]


def _alone(asked: Configuration) -> RankPlan:
    """The plan of a job of one rank with ZeRO 0."""
    size, steps = asked.micro_batch, asked.micro_batches
    return RankPlan(
        rank=0,
        world_size=1,
        data_parallel=1,
        global_batch=size * steps,
        zero=0,
        stages=(StagePlan(0, asked.model.layers, asked.recompute),),
        stage=0,
        first_sequence=0,
        sizes=(size,) * steps,
        weights=(1.0,) * steps,
        grid=(0,),
    )


@contextmanager
def job() -> Iterator[None]:
    """A job of this process alone, in which to train."""
    backends = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    distributed.init_process_group(backends, store=distributed.HashStore(), rank=0, world_size=1)
    try:
        yield
    finally:
        distributed.destroy_process_group()


def _recovered(backend: Backend, asked: Configuration, run: Callable[[Backend, Training], T]) -> T | None:
    """What ``run`` finds, None when memory runs out; either way the device is empty afterwards."""
    try:
        with job(), numerics(asked.model):
            return run(backend, Training(backend, asked))
    except Exception as error:
        if not out_of_memory(error):
            raise
        return None
    finally:
        backend.free()


def _measured(backend: Backend, training: Training) -> Trained:
    for _ in range(WARM_STEPS):
        training.step()
    peak, reserved = peak_bytes(backend, training.step, training.held())
    found = sample(_step_seconds(backend, training, _steps(backend, training)))
    return Trained(
        step_seconds=found.seconds,
        spread=found.spread,
        peak_bytes=peak,
        reserved_bytes=reserved,
    )


def _steps(backend: Backend, training: Training) -> int:
    """How many steps there is time for, at least three."""
    (seconds,) = _step_seconds(backend, training, 1)
    return min(REPEATS, max(3, int(MOST_SECONDS / seconds)))


def _step_seconds(backend: Backend, training: Training, steps: int) -> list[float]:
    """Seconds of steps that follow each other as in training: the host may run ahead, as the marks do not wait."""
    backend.synchronize()
    marks = [backend.now()]
    for _ in range(steps):
        training.step()
        marks.append(backend.now())
    backend.synchronize()
    return [one.until(other) for one, other in pairwise(marks)]


def _two_steps(backend: Backend, training: Training) -> bool:
    for _ in range(2):
        training.step()
    backend.synchronize()
    return True
