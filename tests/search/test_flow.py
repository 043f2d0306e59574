"""Sends in the ILP next to those of the plans that its solutions stand for: every way to fill a few stages."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise, product
from types import SimpleNamespace
from typing import cast

import pytest

from planner.cost.estimate import Estimator
from planner.plan.placement import Slot, place_stages
from planner.search.milp.flow import Places
from planner.search.milp.model import PipelineModel
from planner.search.space.choices import Choice, Family, families
from planner.search.space.stages import StageOptions
from planner.search.values import Limits
from planner.targets import TARGETS
from tests.worlds import cluster, gpt, pool


@dataclass(frozen=True)
class Send:
    """From a stage to the next."""

    in_model: float
    in_plan: float
    same_node: bool


def stages_of(family: Family, depth: int, interleave: int = 1) -> StageOptions:
    """On three nodes of four fast devices and two of two slow ones, joined by slow cards."""
    spec = cluster(
        pool("a", nodes=3, per_node=4, gbps=10, cards=1),
        pool("b", "V100", nodes=2, per_node=2, gbps=10, cards=1),
    )
    estimator = Estimator(spec, gpt(2 * depth * interleave, 512, 8, global_batch=8))
    choice = Choice(family=family, depth=depth, interleave=interleave)
    return StageOptions(choice, estimator, Limits(tp=(1,)))


def sends_of(stages: StageOptions) -> Iterator[list[Send]]:
    """Of each pipeline of two layers a chunk, as far as there are devices."""
    depth, chunks = stages.choice.depth, stages.choice.interleave
    model, around = PipelineModel(stages, 100.0), chunks > 1
    for slots in product(range(len(stages.compositions)), repeat=depth):
        if not stages.obeys(slots) or not stages.stand(slots):
            continue
        for stage, slot in enumerate(slots):
            for option, column in zip(model.options[stage], model.take[stage], strict=True):
                chosen = (option.composition, option.layers) == (slot, 2 * chunks)
                model.program.upper[column] = float(chosen)
        assert model.relaxed_bound() < 100.0
        placed = place_stages([stages.compositions[slot] for slot in slots], stages.estimator.cluster)
        pairs = [*pairwise(range(depth)), *([(depth - 1, 0)] if around else [])]
        found = []
        for first, last in pairs:
            seconds = stages.sends(slots[first], slots[last])
            together = on_one_node(placed[first], placed[last])
            in_plan = seconds.near_seconds if together else min(seconds.far_seconds, seconds.near_seconds)
            if not together and small(stages, slots[first]) and small(stages, slots[last]):
                in_plan = seconds.far_seconds
            values = sum(factor * model._values[column] for column, factor in model.send[first].items())
            found.append(Send(values * model.scale, in_plan, together))
        yield found


def on_one_node(first: tuple[Slot, ...], last: tuple[Slot, ...]) -> bool:
    """Whether both stages stand on one node, and on the same."""
    nodes = {
        (slot.pool, node)
        for slot in (*first, *last)
        for node in range(slot.first_node, slot.first_node + slot.nodes)
    }
    return len(nodes) == 1


def small(stages: StageOptions, composition: int) -> bool:
    """Whether a stage is a part of a node."""
    (group,) = stages.compositions[composition]
    return group.devices < (4 if group.pool == "a" else 2)


def family(target: str, dp: int | None) -> Family:
    """Of four sequences at once, two times."""
    tp, recompute = (None, None) if dp is None else (1, "none")
    return Family(target=target, zero=1, recompute=recompute, tp=tp, dp=dp, batch=4, micro_batches=2)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("target", "dp", "depth", "chunks"),
    [("flagscale", None, 3, 1), ("megatron", 1, 3, 1), ("megatron", 1, 2, 2), ("deepspeed", 1, 3, 1)],
)
def test_sends_are_those_of_the_plan(target: str, dp: int | None, depth: int, chunks: int) -> None:
    """On the same node and from one to another, of stages that fill nodes and of parts of them, back to the first."""
    every = [send for found in sends_of(stages_of(family(target, dp), depth, chunks)) for send in found]
    assert {send.same_node for send in every} == {False, True}
    assert [send.in_model for send in every] == pytest.approx([send.in_plan for send in every], rel=1e-6)


@pytest.mark.parametrize(
    ("dp", "tp", "depth", "chunks"),
    [(2, 1, 4, 1), (2, 1, 3, 2), (4, 1, 2, 1), (4, 1, 4, 1), (4, 1, 2, 2), (2, 2, 4, 1)],
)
def test_sends_on_nodes_of_two_types_are_those_of_the_plan(dp: int, tp: int, depth: int, chunks: int) -> None:
    """Stages that fill one type's devices stand on the same nodes as those of the other with as many before them."""
    gpus = ("A100",) * 2 * tp + ("V100",) * 2 * tp
    spec = cluster(pool("m", gpus, nodes=4, nics=pool("x", gbps=10, cards=1).nics))
    estimator = Estimator(spec, gpt(2 * depth * chunks, 512, 8, global_batch=24))
    asked = Limits(tp=(tp,), zero=(0,), recompute=("none",))
    every = families(TARGETS["megatron"], asked, estimator.model, estimator.topology.device_types)
    own = next(item for item in every if (item.dp, item.batch) == (dp, dp))
    stages = StageOptions(Choice(family=own, depth=depth, interleave=chunks), estimator, asked)
    model, kinds = PipelineModel(stages, 100.0), set()
    for slots in product(range(len(stages.compositions)), repeat=depth):
        if any(len(stages.compositions[slot]) > 1 for slot in slots) or not stages.stand(slots):
            continue
        for stage, slot in enumerate(slots):
            for option, column in zip(model.options[stage], model.take[stage], strict=True):
                model.program.upper[column] = float((option.composition, option.layers) == (slot, 2 * chunks))
        assert model.solve(gap=0.0).values is not None
        chosen = [stages.option(stage, slot, 2 * chunks) for stage, slot in enumerate(slots)]
        priced = estimator.price(stages.plan(chosen)).sends[: depth if chunks > 1 else depth - 1]
        found = [
            sum(factor * model._values[column] for column, factor in model.send[stage].items()) * model.scale
            for stage in range(len(priced))
        ]
        assert found == pytest.approx([one.seconds for one in priced], rel=1e-6)
        kinds |= {one.link for one in priced}
    assert kinds == {"node", "ib"}


@pytest.mark.parametrize(("target", "dp", "again"), [("flagscale", None, False), ("megatron", 1, True)])
def test_a_lone_node_is_entered_once(target: str, dp: int | None, again: bool) -> None:
    """Where the runtime starts each node once; others may come back to it."""
    spec = cluster(pool("a", per_node=2, gbps=10), pool("b", "V100", per_node=2, gbps=10))
    estimator = Estimator(spec, gpt(6, 512, 8, global_batch=8))
    stages = StageOptions(
        Choice(family=family(target, dp), depth=3, interleave=1), estimator, Limits(tp=(1,))
    )
    one = {groups[0].pool: index for index, groups in enumerate(stages.compositions) if groups[0].count == 1}
    model = PipelineModel(stages, 100.0)
    for pools, able in (("aab", True), ("bba", True), ("aba", again), ("bab", again)):
        for stage, name in enumerate(pools):
            for option, column in zip(model.options[stage], model.take[stage], strict=True):
                model.program.upper[column] = float((option.composition, option.layers) == (one[name], 2))
        assert (model.relaxed_bound() < 100.0) == able


def test_devices_taken_of_a_node_that_a_stage_comes_to() -> None:
    """None of one that is untouched; what others leave, or any part where a pipeline may come back."""
    small = SimpleNamespace(nodes=3, per_node=4)
    topology = SimpleNamespace(device_type=lambda *_: small)
    places = SimpleNamespace(
        stages=SimpleNamespace(topology=topology, choice=SimpleNamespace(family=SimpleNamespace(dp=None))),
        returns=False,
        _small=lambda place: place < 2,
        _devices=lambda place: 1 + place,
        _room=lambda place: 4,
        device_type=lambda place: ("a", "A100"),
        _leftovers=lambda device_type: [2, 3],
    )
    own = cast("Places", places)
    assert Places._used(own, 0, 2) == [0]
    assert [Places._used(own, 0, place) for place in (0, 1)] == [[0, 2, 3], [0, 2]]
    places.returns = True
    assert [Places._used(own, stage, 1) for stage in (0, 1, 2)] == [[0], [0], [0, 1, 2]]
    places.stages.choice.family.dp = 2
    assert [Places._used(own, 2, place) for place in (0, 1)] == [[0, 1, 2, 3], [0, 2]]
    assert [Places._after(own, place, 1) for place in (0, 1, 2)] == [(0, 2), (1, 3), (2, 0)]
    places._after = lambda place, used: (place, used)
    assert Places.begins(own, 1) == (1, 0)
