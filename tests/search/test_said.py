"""All that is said beside the answers of a few small searches: what explanations and goals find, and what they cost.

These are the outputs of today. Other numbers are no error by themselves: they show what a change does.
"""

from __future__ import annotations

from collections.abc import Iterator
from unittest.mock import patch

import pytest

from planner.calibration.values import ASSUMED
from planner.cluster.spec import ClusterSpec
from planner.model.spec import ModelSpec
from planner.search.deadline import Deadline
from planner.search.explain.reasons import reasons_deadline
from planner.search.objectives.choose import choose
from planner.search.objectives.loss import to_loss
from planner.search.objectives.pareto import front
from planner.search.solve import search
from planner.search.values import Goal, Limits, SearchResult, proven
from planner.search.what_if import swings
from tests.search.test_loss import law
from tests.search.test_objectives import rated
from tests.worlds import cluster, gpt, pool

PAIR = cluster(pool("a", per_node=2), pool("b", "V100", per_node=2))
FAR = cluster(pool("a", per_node=2), pool("b", "V100", per_node=1, gbps=1, cards=1))
FULL = cluster(pool("alone", "V100", per_node=1, nics=()), pool("b", "V100", per_node=2))
SMALL = gpt(6, 1024, 8, global_batch=16)
RATED, TINY, DEEPSPEED = rated(PAIR, 1), gpt(4, 512, 8, global_batch=8), Limits(target="deepspeed")


def said(found: SearchResult) -> Iterator[str]:
    """One line for each thing; steps are over that of the answer."""
    least = found.best.estimate.step_seconds if found.best else 1.0
    yield f"{found.status} {found.candidates} {found.solved}"
    for each in found.alternatives:
        share = f" {each.scored.estimate.step_seconds / least:.4f}" if each.scored else ""
        yield f"{each.family}: {each.reason}{share}"
    for advice in found.advice:
        yield f"{advice.target}: {advice.change} {advice.faster:.4f}"
    for idle in found.idle_costs:
        slower = "" if idle.slower is None else f" {idle.slower:.4f}"
        yield f"{idle.taken} of {idle.idle} {idle.gpu} in {idle.pool}: {idle.reason}{slower}"
    for limit in found.limit_costs:
        yield f"{limit.limit} {limit.given} instead of {limit.instead}: {limit.costs:.4f}"
    if found.diagnosis:
        yield from (*found.diagnosis.causes, found.diagnosis.nearest_miss, *found.diagnosis.hints)
    for near in found.nearest:
        cost = near.scored.estimate.cost_per_million_tokens or 0.0
        yield f"{near.limit} {near.kept} {near.proven}: {near.scored.estimate.step_seconds:.5f} {cost:.6f}"
    yield from found.warnings


FAMILIES = """\
optimal 279 75
torch: ZeRO-1: chosen 1.0000
torch: ZeRO-2: optimizer +2 % 1.0141
torch: ZeRO-3: ZeRO gathers +5 % 1.0305
deepspeed: ZeRO-2: ZeRO gathers +3 % 1.0485
megatron: data parallel: compute +8 %, 2 fewer devices 1.0523
only a: compute +8 %, 2 fewer devices 1.0523
deepspeed: ZeRO-1: gradient sync +5 % 1.0525
torch: data + tensor: tensor parallel +7 % 1.0697
megatron: pipeline: bubble and sends +21 % 1.0963
megatron: pipeline + tensor: bubble and sends +13 % 1.1218
megatron: data + tensor: compute +9 %, 2 fewer devices 1.1322
deepspeed: data + tensor: tensor parallel +9 % 1.1401
torch: ZeRO-0: optimizer +15 % 1.1492
torch: pipeline: bubble and sends +13 % 1.1753
deepspeed: ZeRO-0: optimizer +15 % 1.2233
deepspeed: ZeRO-3: compute +20 % 1.2245
torch: pipeline + tensor: bubble and sends +14 % 1.2991
deepspeed: pipeline: bubble and sends +32 % 1.3990
only b: compute +197 %, 2 fewer devices 3.0066
"""
LIMITED = """\
optimal 10 4
deepspeed: ZeRO-3: chosen 1.0000
only a: compute +62 %, 2 fewer devices 1.6205
only b: compute +93 %, 2 fewer devices 1.9678
torch: 2 stages, tp 1, interleave 1 0.5380
micro_batch (1,) instead of (2, 6): 1.9394
zero (3,) instead of (1,): 1.5183
target ('deepspeed',) instead of ('torch',): 1.1645
"""
IDLE = """\
optimal 113 22
torch: ZeRO-1: chosen 1.0000
torch: ZeRO-2: optimizer +1 % 1.0032
torch: ZeRO-3: compute +1 % 1.0147
torch: ZeRO-0: optimizer +3 % 1.0349
torch: data + tensor: tensor parallel +7 % 1.0728
torch: pipeline: bubble and sends +26 % 1.4076
only b: compute +356 %, 1 fewer device 4.6798
torch: pipeline + tensor: no plan found that fits
megatron: ZeRO-1 data parallel, a batch per device 0.1651
flagscale: ZeRO-1 data parallel, a batch per device 0.1651
1 of 1 V100 in b: compute, 1 fewer device 3.6798
target ('torch',) instead of ('megatron',): 0.1977
"""
TOO_LARGE = """\
infeasible 60 2
5.05 B parameters need 16 bytes each with fp16 adamw: model states take 75.2 GiB
the devices (1 x V100 32 GiB, 2 x V100 32 GiB) have 85.5 GiB together after reserve and runtime
the states would fit; activations, buffers or the limits --target deepspeed rule out every plan
2 stages, tp 1 with no recomputation on 2 devices lacks 22.0 GiB on V100 in b
fits with training.lora: {rank: 16}, which trains adapters alone: about 1.2 s a step
fits with training.optimizer_states: int8: about 2 s a step
fits with 1 more node in pool b
fits with A100-PCIe-40GB (40 GiB) in place of every device
a model of 17 instead of 24 layers (3.64 B parameters) fits
"""


@pytest.mark.parametrize(
    ("spec", "model", "limits", "expected"),
    [
        pytest.param(PAIR, SMALL, Limits(), FAMILIES, marks=pytest.mark.slow),
        (PAIR, SMALL, Limits(target="deepspeed", zero=(3,), tp=(1,), micro_batch=(1,)), LIMITED),
        pytest.param(FAR, SMALL, Limits(target="torch"), IDLE, marks=pytest.mark.slow),
        pytest.param(
            FULL,
            gpt(24, 4096, 32, global_batch=8, cross_entropy="plain"),
            DEEPSPEED,
            TOO_LARGE,
            marks=pytest.mark.slow,
        ),
    ],
    ids=["families", "limits", "idle devices", "too large"],
)
def test_what_a_search_says(spec: ClusterSpec, model: ModelSpec, limits: Limits, expected: str) -> None:
    """Families and why they lost, what limits and idle devices cost, or why nothing fits and what would."""
    found = search(spec, model, limits=limits)
    assert list(said(found)) == expected.splitlines()


CHEAP = """\
optimal 27 0
deepspeed: ZeRO-0: chosen 1.0000
deepspeed: ZeRO-1: cost of a token +0 % 1.0000
deepspeed: ZeRO-2: cost of a token +0 % 1.0000
deepspeed: ZeRO-3: cost of a token +40 % 1.4038
for speed: cost of a token +608 % 0.4880
megatron: ZeRO-0 data parallel, a batch per device 0.3246
flagscale: ZeRO-1 data parallel, a batch per device 0.3246
target ('deepspeed',) instead of ('megatron',): 0.4805
"""
FRUGAL = """\
optimal 28 0
deepspeed: ZeRO-0: chosen 1.0000
deepspeed: ZeRO-1: energy of a token +0 % 1.0000
deepspeed: ZeRO-2: energy of a token +0 % 1.0000
deepspeed: ZeRO-3: energy of a token +8 % 1.0771
for speed: energy of a token +123 % 0.2111
megatron: ZeRO-0 data parallel, a batch per device 0.3174
flagscale: ZeRO-1 data parallel, a batch per device 0.3174
target ('deepspeed',) instead of ('megatron',): 0.4650
"""
FEW = """\
optimal 46 6
deepspeed: ZeRO-2: chosen 1.0000
deepspeed: ZeRO-1: gradient sync +2 % 1.0066
deepspeed: ZeRO-0: optimizer +10 % 1.1182
only a: compute +51 %, 2 fewer devices 1.4689
deepspeed: pipeline: bubble and sends +43 % 1.6753
deepspeed: ZeRO-3: compute +72 % 1.7290
only b: compute +77 %, 1 fewer device 1.7735
deepspeed: data + tensor: compute +81 %, 1 fewer device 1.8716
torch: ZeRO-1 data parallel, a batch per device 0.0276
"""
NONE = """\
infeasible 0 0
max_cost_per_million_tokens True True: 0.02416 0.000328
"""


@pytest.mark.parametrize(
    ("goal", "expected"),
    [
        (Goal(objective="cost"), CHEAP),
        pytest.param(Goal(objective="energy"), FRUGAL, marks=pytest.mark.slow),
        pytest.param(Goal(use_at_most=(("a", 1),)), FEW, marks=pytest.mark.slow),
        (Goal(max_cost_per_million_tokens=1e-9), NONE),
    ],
    ids=["cost", "energy", "few devices", "no plan"],
)
def test_what_a_goal_says(goal: Goal, expected: str) -> None:
    """The best plan of all sub-clusters, what it gives up, and what comes nearest where none keeps the limits."""
    assert list(said(choose(RATED, TINY, ASSUMED, DEEPSPEED, goal))) == expected.splitlines()


def test_the_front_of_two_pools() -> None:
    """A device of the cheap pool, both, and all four; twice the speed of one is worth 10 % more of a token."""
    found = front(RATED, TINY, ASSUMED, DEEPSPEED, Goal(objective="cost"))
    points = [
        (f"{point.seconds:.5f} {point.value:.6f}", sum(point.devices.values()), point.front)
        for point in found.points
    ]
    assert points == [
        ("0.02416 0.000328", 1, True),
        ("0.01341 0.000364", 2, True),
        ("0.01179 0.002318", 4, True),
    ]
    assert (found.worth, found.subclusters, found.beaten, found.without_plan) == (1, 8, 5, 0)


def test_batches_to_a_loss() -> None:
    """Larger ones need fewer steps of more seconds: steps = 1000 (1 + 10,000 / tokens) / (1 + 10,000 / 4096)."""
    steps = law(1e4, TINY.training.sequence_length)
    found = to_loss(RATED, TINY, ASSUMED, DEEPSPEED, Goal(), steps, (2, 4, 8), explain=False)
    for point in found.points:
        tokens = point.batch * TINY.training.sequence_length
        assert point.steps == pytest.approx(1000 * (1 + 1e4 / tokens) / (1 + 1e4 / 4096))
        assert point.tokens == pytest.approx(point.steps * tokens)
    assert found.best is not None
    assert [point.batch for point in found.points] == [2, 4, 8]
    assert f"{found.best.batch} {found.best.seconds:.3f} {found.bound_seconds:.3f}" == "8 7.607 7.607"
    assert found.status == "optimal"


@pytest.mark.slow
def test_speeds_at_both_ends_of_their_bars() -> None:
    """A search for each: what the plan of today loses there, and whether another is better by more than 1 %."""
    found = search(RATED, TINY, limits=DEEPSPEED, explain=False)
    ends = list(swings(found, RATED, TINY, ASSUMED, DEEPSPEED))
    assert [f"{' '.join(each.members)} {each.factor:.3f} {each.kept_seconds:.5f}" for each in ends] == [
        "A100 0.833 0.01382",
        "A100 1.200 0.01052",
        "V100 0.833 0.01241",
        "V100 1.200 0.01169",
        "ib 0.833 0.01199",
        "ib 1.200 0.01162",
    ]
    for each in ends:
        least = each.scored.estimate.step_seconds
        assert least <= each.kept_seconds
        assert each.loses == each.kept_seconds / least - 1
        assert each.changes == (each.loses > 0.01)


def test_when_a_gap_is_proven() -> None:
    """As asked for, or where arithmetic in the solvers leaves no less."""
    assert [proven(gap, 0.01) for gap in (0.0, 0.01, 0.0101)] == ["optimal", "optimal", "feasible"]
    assert [proven(gap, 0.0) for gap in (4e-6, 5e-6)] == ["optimal", "feasible"]


def test_when_reasons_end() -> None:
    """After 15 % of the CPU time of the search, 1.2 s at least; with advice at the deadline of the search."""
    whole = Deadline.after(1000.0)
    with patch("planner.search.deadline.process_time", return_value=50.0):
        assert reasons_deadline(whole, 100.0, advice=False).cpu_at == pytest.approx(65.0)
        assert reasons_deadline(whole, 1.0, advice=False).cpu_at == pytest.approx(51.2)
        assert reasons_deadline(whole, 100.0, advice=True) is whole


def test_what_reasons_take_follows_from_the_search_alone() -> None:
    """Not from what the process did ahead of it."""
    one, limits = cluster(pool("a", per_node=1)), Limits(target="deepspeed", zero=(0,), recompute=("none",))
    with (
        patch("planner.search.solve.process_time", side_effect=[10.0, 35.0]),
        patch("planner.search.solve.reasons_deadline", return_value=Deadline.after(0.0)) as begun,
    ):
        assert search(one, TINY, limits=limits).status == "optimal"
    assert begun.call_args.args[1] == 25.0
    with (
        patch("planner.search.objectives.choose.process_time", side_effect=[10.0, 35.0]),
        patch("planner.search.objectives.choose.reasons_deadline", return_value=Deadline.after(0.0)) as begun,
    ):
        assert choose(one, TINY, ASSUMED, limits, Goal()).status == "optimal"
    assert begun.call_args.args[1] == 25.0
