"""What a second costs on given devices."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from unittest.mock import patch

import pytest

from planner.calibration.values import ASSUMED, Calibration, LayerPoint
from planner.cost.estimate import Estimator
from planner.cost.stage import Pricer
from planner.cost.training import devices_of
from planner.model.spec import ExpertsSpec
from planner.search.bounds.device_rates import DeviceRates
from planner.search.bounds.peak import floor_seconds
from planner.search.data_parallel import most_offered
from planner.search.explorer import Explorer
from planner.search.incumbent import Met
from planner.search.objectives.objectives import GoalRates, seconds_at
from planner.search.space.choices import usable_device_types
from planner.search.values import Goal, Limits, Scored, Silent
from tests import worlds
from tests.worlds import cluster, gpt, pool

PRICED = pool("a").model_copy(update={"price_per_gpu_hour": 3.6, "watts_per_gpu": 250.0})
DEVICES = {("a", "A100"): 4}


class All(Met):
    """Keeps every plan."""

    def __init__(self) -> None:
        super().__init__()
        self.all: list[Scored] = []

    def take(self, scored: Scored) -> None:
        """A plan that fits."""
        self.all.append(scored)


def rates(goal: Goal, calibration: Calibration = ASSUMED) -> GoalRates:
    """64 sequences of 1024 tokens a step."""
    return GoalRates(Estimator(cluster(PRICED), gpt(), calibration), Limits(), goal)


def test_weights() -> None:
    """4 devices at 3.6 an hour are 0.004 a second; at 250 W they are 1 kW."""
    tokens = 64 * 1024
    assert rates(Goal()).weight(DEVICES) == 1.0
    assert rates(Goal(objective="cost")).weight(DEVICES) == pytest.approx(0.004 / tokens * 1e6)
    assert rates(Goal(objective="energy")).weight(DEVICES) == pytest.approx(1000 / tokens)


def test_the_longest_step() -> None:
    """The tighter of both limits; none is no limit."""
    assert rates(Goal()).most_seconds(DEVICES) == float("inf")
    assert rates(Goal(min_tokens_per_second=32 * 1024)).most_seconds(DEVICES) == 2.0
    cost = 0.004 / (64 * 1024) * 1e6
    both = Goal(min_tokens_per_second=32 * 1024, max_cost_per_million_tokens=cost)
    assert rates(both).most_seconds(DEVICES) == pytest.approx(1.0)


def test_the_shortest_step() -> None:
    """All devices at their best rates; where measured layers beat the datasheet, at those, beside the ends."""
    goal = Goal()
    one, two = rates(goal).least_seconds({("a", "A100"): 1}), rates(goal).least_seconds({("a", "A100"): 2})
    assert one == pytest.approx(2 * two)
    point = LayerPoint(
        gpu="A100", model="gpt", tp=1, micro_batch=1, forward_seconds=1e-9, backward_seconds=1e-9
    )
    measured = rates(goal, Calibration(layers=(point,)))
    embedding, head = (end["a", "A100"] for end in measured.devices._ends)
    assert measured.least_seconds(DEVICES) == pytest.approx(64 * (embedding + head) / 4, rel=1e-4)
    assert measured.least_seconds(DEVICES) < two / 2


def test_embedding_and_head_may_be_on_unlike_devices() -> None:
    """Each counts as the layers that it takes where that is least; a device alone has the whole model to itself."""
    own = rates(Goal()).devices
    own._layers = {("a", "A100"): 10.0, ("b", "A100"): 20.0}
    own._whole = {("a", "A100"): 0.1, ("b", "A100"): 4.0}
    vars(own)["_ends"] = {("a", "A100"): 0.1, ("b", "A100"): 0.2}, {("a", "A100"): 0.4, ("b", "A100"): 0.1}
    layers = own.estimator.model.layers
    assert own.least_seconds({("a", "A100"): 1}) == pytest.approx(64 * (layers + 1 + 4) / 10)
    # 1 layer of embedding on a, 2 of head on b: a does 10 of layers + 3 a second, and b 4 alone.
    assert own.least_seconds({("a", "A100"): 2, ("b", "A100"): 1}) == pytest.approx(
        64 / (2 * 10 / (layers + 3) + 4)
    )
    assert own.least_seconds({("a", "A100"): 1, ("b", "A100"): 0}) == own.least_seconds({("a", "A100"): 1})


def test_free_devices_never_reach_a_price() -> None:
    """No division by zero."""
    assert seconds_at(3.0, 0.0) == float("inf")
    assert seconds_at(3.0, 2.0) == 1.5


def test_few_sizes_of_a_batch_are_looked_at() -> None:
    """Of a million sequences those that a replica may take at once, not all."""
    spec = gpt(global_batch=999_983)
    own = DeviceRates(Estimator(cluster(pool("a")), spec), Limits())
    with patch.object(Pricer, "ends_seconds", autospec=True, side_effect=Pricer.ends_seconds) as asked:
        assert own.tokens_per_second()["a", "A100"] > 0
    assert max(len(call.args[3]) for call in asked.call_args_list) == most_offered(spec) + 1


PROBLEMS = (
    *((worlds.with_constants, seed) for seed in range(6)),
    *((worlds.with_odd_nodes, seed) for seed in range(2, 6)),
    *((worlds.with_measurements, seed) for seed in range(1, 5)),
)


def problems_with_targets() -> Iterator[object]:
    """One of eight with one target by turns; the others, and with the other, among the slow tests."""
    for number, (world, seed) in enumerate(PROBLEMS):
        for turn, target in enumerate((None, "flagscale")):
            marks = () if turn == number % 2 and number % 8 == 1 else (pytest.mark.slow,)
            yield pytest.param(world, seed, target, id=f"{world.__name__}-{seed}-{target}", marks=marks)


@pytest.mark.parametrize(("world", "seed", "target"), list(problems_with_targets()))
def test_no_plan_beats_the_best_rates_of_its_devices(
    world: Callable[[int], worlds.Problem], seed: int, target: str | None
) -> None:
    """Of all plans that a search prices, on whichever devices; and it is no looser than the peaks."""
    spec, model, calibration = world(seed)
    estimator, limits = Estimator(spec, model, calibration), Limits(target=target, gap=0.05)
    met = All()
    Explorer(estimator, limits, Silent(), met=met).run(rounds=20)
    rates = DeviceRates(estimator, limits)
    for scored in met.all:
        least = rates.least_seconds(devices_of(scored.plan))
        assert 0 < least <= scored.estimate.step_seconds * (1 + 1e-9)
    whole = {kind.key: kind.devices for kind in usable_device_types(estimator.topology, model)}
    assert rates.least_seconds(whole) >= floor_seconds(estimator)


def test_experts_shared_by_wide_replicas_are_faster_than_whole_ones() -> None:
    """Where only wide replicas are allowed, no bound is that of devices that have all experts each."""
    spec = worlds.gpt(4, 1024, 16, sequence_length=512, precision="bf16", global_batch=2)
    routed = ExpertsSpec(number=64, top_k=2, ffn=2048, imbalance=1.0)
    spec = spec.model_copy(update={"experts": routed, "mlp_bias": False})
    estimator = Estimator(cluster(pool("a", per_node=8)), spec)
    shared = worlds.plan(
        "megatron",
        0,
        [4],
        [(worlds.group("a", "A100", tp=8, share=2, steps=2),)],
        ep=8,
        sequence_parallel=True,
    )
    least = DeviceRates(estimator, Limits(target="megatron", tp=(8,))).least_seconds({("a", "A100"): 8})
    assert least <= estimator.estimate(shared).step_seconds


def test_replicas_over_nodes_have_ends_too() -> None:
    """Where no other degree is allowed, embedding and head are theirs: a device does less than of layers alone."""
    estimator = Estimator(cluster(pool("a", nodes=4, per_node=2)), gpt())
    wide = DeviceRates(estimator, Limits(target="torch", tp=(4,)))
    layers = wide._layers["a", "A100"] / estimator.model.layers * estimator.model.training.sequence_tokens
    assert 0.5 * layers < wide.tokens_per_second()["a", "A100"] < layers
