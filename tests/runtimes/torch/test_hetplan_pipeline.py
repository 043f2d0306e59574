"""The order in which a stage of torch's pipeline works and talks to its neighbours."""

from __future__ import annotations

import random
from typing import Any

import pytest

from planner.cost.pipeline_end import device_order, stage_ends
from planner.cost.schedules import position_of
from planner.runtimes.capabilities import FOLDED, Schedule

pytest.importorskip("torch")

from torch.distributed.pipelining import (
    PipelineStage,
    ScheduleDualPipeV,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
    ScheduleZBVZeroBubble,
)

from planner.runtimes.torch.hetplan_pipeline import PlannedStage

CLASSES = {
    "1f1b": ScheduleInterleaved1F1B,
    "zero-bubble": ScheduleInterleavedZeroBubble,
    "zb-v": ScheduleZBVZeroBubble,
    "dualpipe-v": ScheduleDualPipeV,
}
KINDS = {
    "FORWARD": ("forward",),
    "FULL_BACKWARD": ("backward", "weight"),
    "BACKWARD_INPUT": ("backward",),
    "BACKWARD_WEIGHT": ("weight",),
}
Step = tuple[int, str, int]
"""A chunk in the order of the model, what is done, and the micro-batch."""
Action = list[Step]
"""Steps that torch takes as one: it sends what they have made when all are done."""


def torch_orders(schedule: Schedule, depth: int, chunks: int, batches: int) -> list[list[Action]]:
    """What torch's own schedule does on each device, without the groups of processes that it would talk to."""
    made: Any = object.__new__(CLASSES[schedule])
    made.pp_group_size, made.n_local_stages, made._n_microbatches = depth, chunks, batches
    made.num_stages = depth * chunks
    made.number_of_rounds = max(1, batches // depth)
    made.microbatches_per_round = batches // made.number_of_rounds

    def steps(action: Any) -> Action:
        if action.sub_actions is not None:
            return [step for each in action.sub_actions for step in steps(each)]
        kinds = KINDS[action.computation_type.name][: 1 if schedule == "1f1b" else 2]
        return [(action.stage_index, kind, action.microbatch_index) for kind in kinds]

    return [
        [steps(each) for each in made._calculate_single_rank_operations(stage) if each is not None]
        for stage in range(depth)
    ]


def replayed(orders: list[list[Action]], seconds: dict[str, list[list[float]]]) -> list[float]:
    """When each device has done its list, where a step waits for the one that sends to it."""
    depth, chunks = len(orders), len(seconds["forward"][0])
    ended: dict[Step, float] = {}
    free, at = [0.0] * depth, [0] * depth

    def needs(step: Step) -> list[Step]:
        chunk, kind, batch = step
        if kind == "forward":
            return [(chunk - 1, "forward", batch)] if chunk else []
        if kind == "weight":
            return [(chunk, "backward", batch)]
        last = chunk + 1 == depth * chunks
        return [(chunk, "forward", batch), *([] if last else [(chunk + 1, "backward", batch)])]

    while any(done < len(order) for done, order in zip(at, orders, strict=True)):
        before = list(at)
        for device, order in enumerate(orders):
            if at[device] == len(order):
                continue
            action = order[at[device]]
            if all(need in ended or need in action for step in action for need in needs(step)):
                for step in action:
                    ready = [ended[need] for need in needs(step) if need in ended]
                    free[device] = max([free[device], *ready]) + seconds[step[1]][device][step[0] // depth]
                ended |= dict.fromkeys(action, free[device])
                at[device] += 1
        assert at != before, "devices wait for each other"
    return free


LOOPED: list[tuple[int, int, int]] = [
    (2, 2, 2),
    (2, 1, 8),
    (3, 2, 6),
    (4, 1, 4),
    (4, 3, 8),
    (5, 1, 20),
]
SIZES: list[tuple[Schedule, int, int, int]] = [
    # Plain 1F1B has a class of its own, which has no such list.
    *(("1f1b", *sizes) for sizes in LOOPED if sizes[1] > 1),
    *(("zero-bubble", *sizes) for sizes in LOOPED),
    *(
        (schedule, depth, 2, batches)
        for schedule in FOLDED
        for depth, batches in ((2, 4), (2, 9), (3, 6), (4, 11), (5, 10), (6, 23))
    ),
]


@pytest.mark.parametrize(("schedule", "depth", "chunks", "batches"), SIZES)
def test_steps_are_priced_in_the_order_of_torchs_own(
    schedule: Schedule, depth: int, chunks: int, batches: int
) -> None:
    """Operation by operation; and torch's lists, replayed over unequal seconds, end when the price says."""
    orders = torch_orders(schedule, depth, chunks, batches)
    for stage, order in enumerate(orders):
        found = [
            (
                position_of(stage, each.chunk, depth, schedule),
                "weight" if each.weight else "backward" if each.backward else "forward",
                each.micro_batch,
            )
            for each in device_order(stage, depth, batches, chunks, schedule)
        ]
        assert found == [step for action in order for step in action]
    draw = random.Random(depth * 100 + chunks * 10 + batches)
    seconds = {
        kind: [[draw.choice([0.0, 1.0, draw.random()]) for _ in range(chunks)] for _ in range(depth)]
        for kind in ("forward", "backward", "weight")
    }
    weight = () if schedule == "1f1b" else seconds["weight"]
    ends = stage_ends(seconds["forward"], seconds["backward"], batches, (), weight, schedule)
    assert ends == pytest.approx(replayed(orders, seconds), rel=1e-12)


@pytest.mark.parametrize("sends", ["get_fwd_send_ops", "get_bwd_send_ops"])
def test_a_stage_asks_before_it_sends(monkeypatch: pytest.MonkeyPatch, sends: str) -> None:
    """torch's schedule adds receives to sends; alone, sends are what torch makes them."""
    monkeypatch.setattr(PipelineStage, sends, lambda stage, index: [f"send {index}"])
    stage = object.__new__(PlannedStage)
    found = getattr(stage, sends)(3)
    assert list(found) == ["send 3"]
    assert found + ["receive"] == ["receive", "send 3"]  # noqa: RUF005
