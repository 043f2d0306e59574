"""Which constants are fitted, and which runs tell them."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest

from planner.calibration.values import ASSUMED, Calibration, Family, Link, Stack
from planner.measured.fit import (
    BARE,
    BOUNDS,
    GUESSED,
    PULLS,
    STARTS,
    Parameter,
    certain,
    fabrics_of,
    families_of,
    parameters_of,
    with_values,
)
from planner.measured.values import Run
from planner.runtimes.registry import REFERENCE
from tests.measured.synthetic import KIND, ONE, TWO, named, plan, run
from tests.worlds import GPUS, cluster, pool

MODEL = named(1024)
MATMUL = Parameter("families", "A100", "matmul_efficiency")
KINDS = {"families": Family, "stacks": Stack, "links": Link}


def one(**fields_of_plan: str) -> Run:
    """A run on one node."""
    return run("one", ONE, MODEL, plan(MODEL, 8, 1, 1, 1, **fields_of_plan))


def test_every_bound_is_of_a_constant_and_holds_its_assumed_value() -> None:
    """The fit starts inside; memory is fitted on its own."""
    known = {
        f"{section}.{item.name}": item.default for section, kind in KINDS.items() for item in fields(kind)
    }
    assert set(known) - set(BOUNDS) == {
        "stacks.runtime_bytes",
        "stacks.allocator_slack",
        "stacks.micro_batch_launches",
    }
    assert set(PULLS) | set(STARTS) <= set(BOUNDS) <= set(known)
    for kind, (low, high) in BOUNDS.items():
        assert 0 < low < high
        assert kind == "stacks.wire" or low < float(str(known[kind])) < high
        assert low < STARTS.get(kind, (low + high) / 2) < high
    assert BOUNDS["stacks.wire"][1] == ASSUMED.stack("torch").wire


@pytest.mark.parametrize("word", GUESSED)
def test_guesses_are_not_certain(word: str) -> None:
    """Wherever the word stands in the doubts."""
    assert not certain(replace(one(), step_seconds=1.0, doubt=f"vocabulary assumed; {word} 1 assumed"))


def test_certain_runs() -> None:
    """A step time, and doubts that concern other things at most."""
    assert not certain(one())
    assert certain(replace(one(), step_seconds=1.0))
    assert certain(replace(one(), step_seconds=1.0, doubt="vocabulary assumed; network not stated"))


def test_families_are_those_of_the_devices_that_are_used() -> None:
    """Not of the idle ones; a kind without a family has an empty name."""
    both = cluster(pool("a"), pool("b", "V100"), gpus={"A100": KIND, "V100": GPUS["V100"]})
    assert families_of(run("x", both, MODEL, plan(MODEL, 8, 1, 1, 1))) == {"A100"}
    chosen = plan(MODEL, 8, 1, 1, 1)
    stage = chosen.stages[0]
    moved = replace(stage, replicas=(replace(stage.replicas[0], pool="b", gpu="V100"),))
    assert families_of(run("y", both, MODEL, replace(chosen, stages=(moved,)))) == {""}


def test_fabrics_by_kind() -> None:
    """Of the whole cluster."""
    assert fabrics_of(one()) == {"infiniband"}
    mixed = cluster(pool("a", fabric="roce"), pool("b", fabric="eth"))
    assert fabrics_of(run("x", mixed, MODEL, plan(MODEL, 8, 1, 1, 1))) == {"roce", "ethernet"}


def test_parameters_of_runs() -> None:
    """Every bounded constant of every owner, the reference's host time and wire excepted, in a fixed order."""
    found = [item.dotted for item in parameters_of([one(), one(target="torch")])]
    kinds = {section: [kind for kind in BOUNDS if kind.startswith(section)] for section in KINDS}
    assert found == [
        *(kind.replace("families.", "families.A100.") for kind in kinds["families"]),
        "stacks.megatron.overlap",
        *(kind.replace("stacks.", "stacks.torch.") for kind in kinds["stacks"]),
        *(kind.replace("links.", "links.infiniband.") for kind in kinds["links"]),
    ]
    assert len(set(found)) == len(found)
    assert list(parameters_of([])) == []


def test_kinds_without_a_family_have_no_constants() -> None:
    """Nothing is fitted for devices that the catalogue knows nothing of."""
    bare = cluster(pool("a"))
    found = list(parameters_of([run("x", bare, MODEL, plan(MODEL, 8, 1, 1, 1))]))
    assert {item.section for item in found} == {"stacks", "links"}


def test_names_of_a_parameter() -> None:
    """As in a file, and as in the bounds."""
    assert (MATMUL.dotted, MATMUL.kind) == ("families.A100.matmul_efficiency", "families.matmul_efficiency")
    assert MATMUL.pull == 5.0
    assert Parameter("stacks", "torch", "host_factor").pull == PULLS["stacks.host_factor"]


def test_values_before_and_starts() -> None:
    """What a calibration says, else what is assumed; the search for an unknown one may start elsewhere."""
    known = Calibration(families={"A100": Family(launch_seconds=7e-6)})
    launch, other = (Parameter("families", name, "launch_seconds") for name in ("A100", "H100"))
    assert (launch.value(known), launch.start(known)) == (7e-6, 7e-6)
    assert other.value(known) == Family().launch_seconds
    assert other.start(known) == STARTS["families.launch_seconds"]
    assert MATMUL.start(ASSUMED) == Family().matmul_efficiency
    assert Parameter("links", "roce", "efficiency").value(ASSUMED) == Link().efficiency


@pytest.mark.parametrize(
    ("section", "name", "concerned"),
    [
        ("families", "A100", True),
        ("families", "H100", False),
        ("stacks", "megatron", True),
        ("stacks", "torch", False),
        ("links", "infiniband", True),
        ("links", "ethernet", False),
    ],
)
def test_which_runs_a_parameter_concerns(section: str, name: str, concerned: bool) -> None:
    """Those of its family, stack or fabric."""
    two = run("two", TWO, MODEL, plan(MODEL, 16, 1, 1, 1))
    assert Parameter(section, name, "efficiency").concerns(two) == concerned


def test_with_values() -> None:
    """New owners start from what is assumed; everything else of the calibration stays."""
    base = Calibration(
        families={"V100": Family(matmul_efficiency=0.3), "A100": Family(memory_efficiency=0.6)},
        stacks=dict(BARE.stacks),
        notes="kept",
    )
    overlap = Parameter("stacks", "torch", "overlap")
    found = with_values(base, {MATMUL: 0.5, overlap: 0.25, Parameter("links", "roce", "rail"): 0.9})
    assert found.families == {
        "V100": Family(matmul_efficiency=0.3),
        "A100": Family(matmul_efficiency=0.5, memory_efficiency=0.6),
    }
    assert found.stacks == {**BARE.stacks, "torch": Stack(overlap=0.25)}
    assert found.links == {"roce": Link(rail=0.9)}
    assert found.notes == "kept"
    assert with_values(base, {}) == base


def test_the_reference_is_one() -> None:
    """What the shipped constants are relative to."""
    assert Calibration(stacks={REFERENCE.name: Stack(host_factor=1.0, wire=1.0)}) == BARE
