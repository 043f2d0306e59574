"""A plan's schedule over its stages or their chunks, with ``torch.distributed.pipelining``.

Needs torch 2.13 and the launch folder's other modules; the folder holds it as ``hetplan_pipeline.py``::

    pipeline = Pipeline(layout, chunks, inputs, outputs, loss_of, LossScale(1.0))
    losses = pipeline.step(tokens, labels)                 # in each optimizer step
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleDualPipeV,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
    ScheduleZBVZeroBubble,
)

from planner.runtimes.torch.hetplan_torch import Layout, LossScale

Loss = Callable[[Any, torch.Tensor], torch.Tensor]

DIVIDED = {
    "zero-bubble": ScheduleInterleavedZeroBubble,
    "zb-v": ScheduleZBVZeroBubble,
    "dualpipe-v": ScheduleDualPipeV,
}
"""Schedules with backwards in two parts."""


class Inside(nn.Module):  # type: ignore[misc]
    """A sharded stage that torch's pipeline does not recognise, so that the plan says when gradients are reduced.

    Left to itself it would keep whole gradients until the end of the step, which is ZeRO 1 at most.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *hidden: torch.Tensor) -> Any:
        return self.module(*hidden)


class SendsAfter(list[Any]):
    """Sends that a batch puts after its receives.

    gloo asks for a message on the connection that its own messages take: asked after a long send, both directions
    between two stages would take turns.
    """

    def __add__(self, receives: list[Any]) -> list[Any]:
        return [*receives, *self]


class PlannedStage(PipelineStage):  # type: ignore[misc]
    """A stage that tells its layout of every backward, and receives while it sends.

    ``reach`` is called with the number of a micro-batch ahead of its forward and of its backward, which may recompute.
    """

    def __init__(
        self,
        layout: Layout,
        module: nn.Module,
        number: int,
        inputs: Any,
        outputs: Any,
        reach: Callable[[int], None],
    ) -> None:
        self.layout, self.reach = layout, reach
        self.sharded = next(each for each in module.modules() if isinstance(each, FSDPModule))
        super().__init__(
            Inside(module),
            number,
            len(layout.plan.passed),
            torch.device(layout.mesh.device_type),
            inputs,
            outputs,
            group=layout.mesh["stage"].get_group(),
        )

    def backward_maybe_with_nosync(
        self, backward_type: Any, bwd_kwargs: dict[str, Any], last_backward: bool = False
    ) -> Any:
        """As the schedule asks, after the layout has been told; of a divided backward also when weights are done."""
        divided = self.layout.plan.schedule in DIVIDED
        self.layout.accumulate(self.sharded, last=last_backward and not divided)
        result = super().backward_maybe_with_nosync(backward_type, bwd_kwargs, last_backward)
        if divided and backward_type != "input":
            self.layout.take(self.sharded, last=last_backward)
        return result

    def forward_one_chunk(self, fwd_chunk_id: int, *given: Any, **named: Any) -> Any:
        """As the schedule asks, once it is told which micro-batch comes."""
        self.reach(fwd_chunk_id)
        return super().forward_one_chunk(fwd_chunk_id, *given, **named)

    def backward_one_chunk(self, bwd_chunk_id: int, *given: Any, **named: Any) -> None:
        """The same backward, after which what the stage has received of the micro-batch is let go."""
        self.reach(bwd_chunk_id)
        super().backward_one_chunk(bwd_chunk_id, *given, **named)
        self._let_go(bwd_chunk_id)

    def get_fwd_recv_ops(self, fwd_chunk_id: int) -> Any:
        """Activations, for which there is room from now on; torch would have room for all micro-batches at once."""
        self._make_room(self.args_recv_info[fwd_chunk_id])
        return super().get_fwd_recv_ops(fwd_chunk_id)

    def get_bwd_recv_ops(self, bwd_chunk_id: int) -> Any:
        """Gradients, likewise."""
        self._make_room(self.grad_recv_info[bwd_chunk_id])
        return super().get_bwd_recv_ops(bwd_chunk_id)

    def _setup_backward_recv_info(self, num_microbatches: int) -> None:
        super()._setup_backward_recv_info(num_microbatches)
        for micro_batch in range(num_microbatches):
            self._let_go(micro_batch)

    def _make_room(self, received: Iterable[Any]) -> None:
        for each in received:
            if not each.is_root_arg and each.tensor_meta is not None:
                meta = each.tensor_meta
                each.buffer = torch.empty(meta.shape, dtype=meta.dtype, device=self.device)

    def _let_go(self, micro_batch: int) -> None:
        for each in (*self.args_recv_info[micro_batch], *self.grad_recv_info[micro_batch]):
            each.buffer = None

    def get_fwd_send_ops(self, fwd_chunk_id: int) -> list[Any]:
        """Activations, after gradients from the same stage."""
        return SendsAfter(super().get_fwd_send_ops(fwd_chunk_id))

    def get_bwd_send_ops(self, bwd_chunk_id: int) -> list[Any]:
        """Gradients, after activations from the same stage."""
        return SendsAfter(super().get_bwd_send_ops(bwd_chunk_id))


class Pipeline:
    """A rank's stage, or its chunks, in their schedule."""

    def __init__(
        self,
        layout: Layout,
        chunks: Sequence[nn.Module],
        inputs: torch.Tensor,
        outputs: Any,
        loss: Loss,
        scale: LossScale,
        reach: Callable[[int], None] = lambda micro_batch: None,
    ) -> None:
        """``inputs`` of the model and ``outputs`` of a stage, one or several, have the shape and type of a micro-batch,
        and say whether they have gradients.

        ``reach`` is told of each micro-batch before the stage computes anything of it.
        """
        plan = self.plan = layout.plan
        self.scale, self.weights, self.current = scale, plan.weights, 0

        def reached(micro_batch: int) -> None:
            self.current = micro_batch
            reach(micro_batch)

        def weighted(outputs: Any, labels: torch.Tensor) -> torch.Tensor:
            return loss(outputs, labels) * (self.weights[self.current] * scale.value / plan.steps)

        stages = [
            PlannedStage(layout, module, number, outputs if number else inputs, outputs, reached)
            for number, module in zip(plan.own, chunks, strict=True)
        ]
        if plan.schedule in DIVIDED:
            schedule = DIVIDED[plan.schedule]
            self.schedule = schedule(stages, plan.steps, weighted, scale_grads=False)
        elif len(stages) > 1:
            self.schedule = ScheduleInterleaved1F1B(stages, plan.steps, weighted, scale_grads=False)
        else:
            # torch refuses 1F1B with fewer micro-batches than stages, where both run all forwards first.
            schedule = Schedule1F1B if plan.steps >= len(plan.stages) else ScheduleGPipe
            self.schedule = schedule(*stages, plan.steps, weighted, scale_grads=False)

    def step(
        self, tokens: torch.Tensor, labels: torch.Tensor, weights: Sequence[float] | None = None
    ) -> list[torch.Tensor]:
        """Gradients of one optimizer step; returns the weighted losses where the last layers are, else a zero.

        ``weights`` of the micro-batches' losses; the plan's when absent.
        """
        plan = self.plan
        self.weights = plan.weights if weights is None else tuple(weights)
        losses: list[torch.Tensor] = []
        arguments = (tokens,) if plan.stage == 0 else ()
        if plan.makes_losses:
            self.schedule.step(*arguments, target=labels, losses=losses, return_outputs=False)
            return [loss * (plan.steps / self.scale.value) for loss in losses]
        self.schedule.step(*arguments)
        return [torch.zeros((), device=labels.device)]
