"""The same question gets the same plan, byte for byte, however it is written and wherever it is asked."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from planner.calibration.file import shipped
from planner.calibration.values import ASSUMED
from planner.cli.inputs import Overrides, read_inputs
from planner.cluster.spec import ClusterSpec
from planner.model.spec import ModelSpec
from planner.search.objectives.choose import choose
from planner.search.ranking import ranked
from planner.search.solve import search
from planner.search.values import Goal, Limits, Scored
from tests.quick import first
from tests.search.variants import nameless, renamed, shuffled, three_pools
from tests.worlds import cluster, gpt, pool

ROOT = Path(__file__).parents[2]
SEEDS = st.integers(0, 10**9)
SETTINGS = settings(max_examples=2, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
MANY = settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
PAIRS = (
    ("poplar_a100", "llama_1.1b"),
    ("poplar_a800_v100s", "llama_1.1b"),
    ("v100_t4_10g", "opt_350m"),
    ("holmes_hybrid", "gpt_7.5b"),
    ("lab", "gpt2_345m"),
)


def shipped_pair(name: str, model: str) -> tuple[ClusterSpec, ModelSpec]:
    """A cluster and a model that come with the project, in fp16."""
    files = ROOT / "cluster_specs" / f"{name}.yaml", ROOT / "model_specs" / f"{model}.yaml"
    return read_inputs(*files, Overrides(precision="fp16", global_batch=None, sequence_length=None))


def found(spec: ClusterSpec, model: ModelSpec, goal: Goal | None = None, **limits: float) -> Scored | None:
    """The best plan."""
    asked = Limits(**limits)  # type: ignore[arg-type]
    return choose(spec, model, ASSUMED, asked, goal or Goal(), explain=False).best


def check_orders_and_names(spec: ClusterSpec, model: ModelSpec, seed: int, goal: Goal | None = None) -> None:
    """Another order gives the same plan; other names give the same but for names; both the same seconds."""
    plain, other = found(spec, model, goal), found(shuffled(spec, seed), model, goal)
    assert (plain and plain.plan) == (other and other.plan)
    changed, old = renamed(spec, seed)
    third = found(changed, model, goal)
    if plain is None:
        assert third is None
        return
    assert other is not None
    assert third is not None
    assert nameless(third.plan, spec, old) == nameless(plain.plan, spec)
    seconds = {item.estimate.step_seconds for item in (plain, other, third)}
    assert len(seconds) == 1


@pytest.mark.parametrize("seed", first(1, [15, 3, 10]))
def test_neither_order_nor_names_decide(seed: int) -> None:
    """Ties are broken by what pools are; only pools that are alike may change places with their names.

    Each of these clusters has two pools that are alike.
    """
    check_orders_and_names(*three_pools(seed), seed)


@pytest.mark.slow
@given(SEEDS)
@MANY
def test_neither_order_nor_names_decide_in_hundreds(seed: int) -> None:
    """The same on more clusters."""
    check_orders_and_names(*three_pools(seed), seed)


@pytest.mark.slow
def test_neither_order_nor_names_decide_what_is_cheapest() -> None:
    """The same among sub-clusters."""
    seed = 15
    spec, model = three_pools(seed)
    prices = {name: 1.0 + number for number, name in enumerate(sorted(spec.gpus))}
    pools = tuple(
        item.model_copy(update={"price_per_gpu_hour": max(prices[gpu] for gpu in item.devices)})
        for item in spec.pools
    )
    priced = spec.model_copy(update={"pools": pools})
    check_orders_and_names(priced, model, seed, Goal(objective="cost"))


@pytest.mark.slow
@pytest.mark.parametrize(("name", "model"), PAIRS)
def test_neither_order_nor_names_decide_on_shipped_clusters(name: str, model: str) -> None:
    """The same for the clusters that people start from."""
    check_orders_and_names(*shipped_pair(name, model), seed=1)


@given(SEEDS)
@settings(SETTINGS, max_examples=100)
def test_the_rank_of_pools_depends_on_what_they_are(seed: int) -> None:
    """Ranking puts pools with the same traits in the same places, and changes nothing else."""
    spec, _ = three_pools(seed)
    changed, old = renamed(shuffled(spec, seed), seed)
    first, second = ranked(spec), ranked(changed)
    assert sorted(item.name for item in first.pools) == sorted(item.name for item in spec.pools)
    for one, two in zip(first.pools, second.pools, strict=True):
        assert one.devices == two.devices
        assert one.intra_node == two.intra_node
        assert sorted(one.devices) == sorted(next(p.devices for p in spec.pools if p.name == old[two.name]))


def test_a_faster_kind_comes_first_whatever_its_name() -> None:
    """A100 before V100 in the plan, under either name."""
    for names in (("a", "z"), ("z", "a")):
        fast, slow = names
        spec = cluster(pool(slow, "V100", per_node=2), pool(fast, per_node=2))
        assert [item.name for item in ranked(spec).pools] == [fast, slow]


@pytest.mark.parametrize("seed", first(1, [3, 7]))
def test_a_time_limit_that_does_not_strike_changes_nothing(seed: int) -> None:
    """The solver is told of it, and goes the same way."""
    spec, model = three_pools(seed)
    limits = Limits(gap=0.0, pp=(2, 3, 4), target="megatron")
    free = search(spec, model, limits=limits, explain=False)
    bound = Limits(gap=0.0, pp=(2, 3, 4), target="megatron", time_limit_seconds=1e5)
    limited = search(spec, model, limits=bound, explain=False)
    assert free.best is not None
    assert free.solved > 0
    assert (limited.best, limited.bound_seconds, limited.solved) == (
        free.best,
        free.bound_seconds,
        free.solved,
    )


def test_the_same_again_in_one_process() -> None:
    """Caches of one search do not reach the next."""
    spec, model = (
        cluster(pool("a", per_node=2), pool("b", "V100", per_node=2)),
        gpt(4, 512, 8, global_batch=8),
    )
    first, second = (search(spec, model, shipped(), explain=False) for _ in range(2))
    assert first.best is not None
    assert (first.best, first.bound_seconds, first.solved) == (
        second.best,
        second.bound_seconds,
        second.solved,
    )


UNHURRIED = """
from planner.cli.app import main
from planner.search.explain import reasons

reasons.LEAST_SECONDS = float("inf")
main()
"""
"""The command with all its reasons: how many there is time for says how busy the machine is."""


def answer(name: str, model: str, folder: Path, **environment: str) -> tuple[bytes, str]:
    """The plan file and the JSON document, without the time it took, from a process of its own."""
    file = folder / f"{environment['PYTHONHASHSEED']}.yaml"
    command = [sys.executable, "-c", UNHURRIED, "search"]
    inputs = [f"cluster_specs/{name}.yaml", f"model_specs/{model}.yaml", "--precision", "fp16"]
    done = subprocess.run(
        [*command, *inputs, "--json", "-o", str(file)],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document.pop("search_seconds") > 0
    return file.read_bytes(), json.dumps(document)


@pytest.mark.parametrize(("name", "model"), first(1, PAIRS))
def test_hash_seeds_and_threads_change_nothing(name: str, model: str, tmp_path: Path) -> None:
    """Two processes, each with another order of sets and another number of threads."""
    one = answer(name, model, tmp_path, PYTHONHASHSEED="0", OMP_NUM_THREADS="1")
    other = answer(name, model, tmp_path, PYTHONHASHSEED="12345", OMP_NUM_THREADS="8")
    assert one == other
