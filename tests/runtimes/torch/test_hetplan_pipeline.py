"""The order in which a stage of torch's pipeline works and talks to its neighbours."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest

from planner.capabilities import V_SHAPED, Schedule
from planner.cost.pipeline_end import stage_ends
from planner.cost.pipeline_events import device_order
from planner.cost.schedules import position_of

torch = pytest.importorskip("torch")

from torch.distributed.pipelining import (  # noqa: E402
    PipelineStage,
    ScheduleDualPipeV,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
    ScheduleZBVZeroBubble,
)

from planner.runtimes.torch.hetplan_pipeline import PlannedStage  # noqa: E402

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
        for schedule in V_SHAPED
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


def test_there_is_room_for_what_is_received_while_it_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    """From the receive to the backward, and not for all micro-batches at once."""
    for name, table in (("get_fwd_recv_ops", "args_recv_info"), ("get_bwd_recv_ops", "grad_recv_info")):
        asked = lambda stage, index, table=table: [each.buffer for each in getattr(stage, table)[index]]  # noqa: E731
        monkeypatch.setattr(PipelineStage, name, asked)
    for name in ("backward_one_chunk", "_setup_backward_recv_info"):
        monkeypatch.setattr(PipelineStage, name, lambda stage, index: None)
    stage, reached = object.__new__(PlannedStage), list[int]()
    stage.device, stage.reach = torch.device("cpu"), reached.append
    meta = SimpleNamespace(shape=(2, 3), dtype=torch.bfloat16)

    def received(meta: Any = meta) -> SimpleNamespace:
        return SimpleNamespace(is_root_arg=False, tensor_meta=meta, buffer=torch.empty(6))

    stage.args_recv_info = {index: (received(), received()) for index in range(2)}
    stage.grad_recv_info = {index: (received(), received(None)) for index in range(2)}
    every = [
        each
        for table in (stage.args_recv_info, stage.grad_recv_info)
        for both in table.values()
        for each in both
    ]
    stage._setup_backward_recv_info(2)
    assert all(each.buffer is None for each in every)
    assert [(each.shape, each.dtype) for each in stage.get_fwd_recv_ops(0)] == [((2, 3), torch.bfloat16)] * 2
    gradient, none = stage.get_bwd_recv_ops(0)
    assert gradient.shape == (2, 3)
    assert none is None
    assert sum(each.buffer is not None for each in every) == 3
    stage.backward_one_chunk(0)
    assert all(each.buffer is None for each in every)
    assert reached == [0]
