"""Which constants are fitted, what is known of them before, and which runs tell them."""

from __future__ import annotations

from dataclasses import fields, replace
from math import log

import pytest

from planner import catalog
from planner.calibration.file import shipped
from planner.calibration.values import Calibration, Constant, Framework, GpuFamily, Link
from planner.measured.fit import (
    GUESSED,
    LEAST_SPREAD,
    MOST,
    Parameter,
    certain,
    families_of,
    kernels_of,
    networks_of,
    parameters_of,
    with_values,
)
from planner.measured.microbenchmarks import microbenchmarks
from planner.measured.priors import (
    FAMILY,
    FRAMEWORK,
    KERNEL_SETS,
    NETWORKS,
    SUSTAINED_SPREAD,
    Prior,
    best_share,
    catalogue_families,
    family_prior,
    framework_prior,
    kinds_of,
    priors,
)
from planner.measured.values import Run
from planner.targets import TARGETS
from tests.measured.examples import published
from tests.measured.synthetic import BEFORE, KIND, ONE, TWO, named, plan, run
from tests.worlds import GPUS, cluster, pool

MODEL = named(1024)
MATMUL = Parameter("families", "A100", "matmul_efficiency")
PARTS = {"families": GpuFamily, "frameworks": Framework, "links": Link}


def one(**fields_of_plan: str) -> Run:
    """A run on one node."""
    return run("one", ONE, MODEL, plan(MODEL, 8, 1, 1, 1, **fields_of_plan))


def test_every_constant_of_the_step_time_has_a_prior() -> None:
    """Memory is fitted on its own; a prior is within the bound of its kind, and its spread says something.

    How much step times vary is in no published run, nor what layers take that were measured alone.
    """
    assert set(FAMILY) == {field.name for field in fields(GpuFamily)} - {"sigma"}
    assert {field.name for field in fields(Framework)} - set(FRAMEWORK) == {
        "runtime_bytes",
        "allocator_slack",
        "unit_slack",
        "layer_factor",
    }
    assert set().union(*NETWORKS.values()) == {field.name for field in fields(Link)}
    known = {f"{section}.{field.name}" for section, part in PARTS.items() for field in fields(part)}
    assert set(MOST) <= known
    for family in catalogue_families():
        for constant in FAMILY:
            prior = family_prior(family, constant)
            assert 0 < prior.value <= MOST.get(f"families.{constant}", 1.0), (family, constant)
            assert 0 < prior.spread <= 0.5
    for name in KERNEL_SETS:
        for constant in FRAMEWORK:
            assert 0 < framework_prior(name, constant).value <= MOST.get(f"frameworks.{constant}", 100.0)


def test_attention_of_eager_kernels_has_a_prior_of_its_own() -> None:
    """It is below the vendor's on Hopper, and everywhere where it is the first FlashAttention; a fit starts from it, on
    devices without runs too."""
    known = priors(("A100", "H100"))
    for pair, value, spread in (
        ("A100.torch", 0.58, 0.15),
        ("H100.torch", 0.272, 0.15),
        ("A100.torch-2023", 0.33, 0.3),
        ("H100.torch-2023", 0.155, 0.3),
    ):
        family, kernels = pair.split(".")
        parameter = Parameter("families", pair, "attention_efficiency")
        assert parameter.value(known) == known.family(family, kernels).attention_efficiency == value
        assert parameter.spread(known) == spread
    assert shipped().family("P40", "torch-2023").attention_efficiency == 0.33


def test_eager_torch_of_2023_differs_in_its_attention_alone() -> None:
    """One parameter stands for both, also of what a process holds."""
    parameter = Parameter("frameworks", "torch", "overlap")
    assert parameter.dotted == ("frameworks.torch.overlap", "frameworks.torch-2023.overlap")
    changed = with_values(shipped(), {parameter: 0.123})
    for known in (shipped(), changed, priors(("A100",))):
        assert known.framework("torch") == known.framework("torch-2023")
    assert changed.framework("torch").overlap == 0.123
    touched = {item.name for item in parameters_of(published().runs) if item.section == "frameworks"}
    assert "torch" in touched
    assert "torch-2023" not in touched


def test_kernel_sets_are_those_of_the_runtimes() -> None:
    """No runtime runs kernels without constants, and no constants are of kernels that none runs."""
    assert {name for row in TARGETS.values() for name in row.kernels} == set(KERNEL_SETS)
    assert {row.unfused_kernels for row in TARGETS.values()} - {""} <= set(KERNEL_SETS)


def test_the_best_product_bounds_a_family() -> None:
    """A device that was measured starts from its best product; nobody is faster than the best of its family."""
    assert family_prior("A100", "matmul_efficiency").value == pytest.approx(0.869, abs=0.001)
    assert family_prior("MI300X", "matmul_efficiency").value < 0.6
    for row in microbenchmarks():
        if row.quantity == "matmul" and row.precision in ("bf16", "fp16", "fp32") and row.device:
            gpu = catalog.gpu(row.device)
            constant = "vector_efficiency" if row.precision == "fp32" else "matmul_efficiency"
            reached = row.value / gpu.tflops[row.precision] / 1e12
            assert best_share(gpu.family, constant) >= min(0.98, reached) - 1e-4
    assert MATMUL.most == best_share("A100")
    # A P100 has no matrix units, and its products in two bytes, added up in fp32, are no faster than in fp32.
    assert (
        family_prior("P100", "vector_efficiency").value > 2 * family_prior("P100", "matmul_efficiency").value
    )
    # A clock that falls under load is that of many products in a row; a burst only bounds it.
    assert family_prior("T4", "matmul_efficiency") == Prior(0.369, SUSTAINED_SPREAD)
    assert 0.6 < best_share("T4") < 0.7
    assert Parameter("families", "nobody", "matmul_efficiency").most == MOST["families.matmul_efficiency"]


def test_networks_start_from_their_wire() -> None:
    """InfiniBand and RoCE are one; TCP is no faster than either, and ends where its host ends."""
    known = priors(())
    assert known.link("infiniband") == known.link("roce")
    assert known.link("ethernet").efficiency < known.link("roce").efficiency
    assert (
        known.link("ethernet").host_bytes_per_second
        < known.link("roce").host_bytes_per_second
        == float("inf")
    )


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
    """Not of the idle ones; a device without a family has an empty name."""
    both = cluster(pool("a"), pool("b", "V100"), gpus={"A100": KIND, "V100": GPUS["V100"]})
    assert families_of(run("x", both, MODEL, plan(MODEL, 8, 1, 1, 1))) == {"A100"}
    chosen = plan(MODEL, 8, 1, 1, 1)
    stage = chosen.stages[0]
    moved = replace(stage, replicas=(replace(stage.replicas[0], pool="b", gpu="V100"),))
    assert families_of(run("y", both, MODEL, replace(chosen, stages=(moved,)))) == {""}


def test_networks_of_a_cluster() -> None:
    """Of all its fabrics, InfiniBand and RoCE as one."""
    assert networks_of(one()) == {"rdma"}
    mixed = cluster(pool("a", fabric="roce"), pool("b", fabric="eth"))
    assert networks_of(run("x", mixed, MODEL, plan(MODEL, 8, 1, 1, 1))) == {"rdma", "ethernet"}
    assert [kinds_of(name) for name in NETWORKS] == [("nvlink",), ("infiniband", "roce"), ("ethernet",)]


def test_kernels_of_a_run() -> None:
    """Those that its training names, else by runtime and attention."""
    old = named(1024, attention="unfused")
    assert kernels_of(one()) == "megatron"
    assert kernels_of(run("x", ONE, old, plan(old, 8, 1, 1, 1))) == "megatron-2021"
    named_ones = named(1024, kernels="megatron-2021")
    assert kernels_of(run("y", ONE, named_ones, plan(named_ones, 8, 1, 1, 1))) == "megatron-2021"


def test_parameters_of_runs() -> None:
    """Every constant of every owner in a fixed order; attention by kernel set where it is not the vendor's."""
    found = [(item.section, item.name, item.constant) for item in parameters_of([one(), one(target="torch")])]
    assert found == [
        *(("families", "A100", constant) for constant in FAMILY),
        ("families", "A100.torch", "attention_efficiency"),
        *(("frameworks", name, constant) for name in ("megatron", "torch") for constant in FRAMEWORK),
        *(("links", "rdma", constant) for constant in NETWORKS["rdma"]),
    ]
    assert list(parameters_of([])) == []


def test_devices_without_a_family_have_no_constants() -> None:
    """Nothing is fitted for devices that the catalogue knows nothing of."""
    bare = cluster(pool("a"))
    found = list(parameters_of([run("x", bare, MODEL, plan(MODEL, 8, 1, 1, 1))]))
    assert {item.section for item in found} == {"frameworks", "links"}


def test_names_of_a_parameter() -> None:
    """As in a file; a network stands for two kinds of fabric."""
    assert MATMUL.dotted == ("families.A100.matmul_efficiency",)
    assert Parameter("links", "rdma", "rail").dotted == ("links.infiniband.rail", "links.roce.rail")


def test_what_is_known_before() -> None:
    """What a calibration says and how sure it is of it, else the prior."""
    said = Constant(name=MATMUL.dotted[0], value=0.7, provenance="fitted", spread=0.02)
    sure = replace(said, spread=1e-9)
    known = Calibration(families={"A100": GpuFamily(matmul_efficiency=0.7)}, constants=(said,))
    assert (MATMUL.value(known), MATMUL.spread(known)) == (0.7, 0.02)
    assert MATMUL.spread(replace(known, constants=(sure,))) == LEAST_SPREAD
    launch = Parameter("families", "A100", "launch_seconds")
    assert launch.spread(known) == family_prior("A100", "launch_seconds").spread
    assert (
        Parameter("families", "A100.torch", "attention_efficiency").value(known)
        == GpuFamily().attention_efficiency
    )


def test_values_of_a_family_hold_under_all_kernels() -> None:
    """But for what a kernel set has of its own."""
    pair = Parameter("families", "A100.torch", "attention_efficiency")
    made = with_values(BEFORE, {pair: 0.3, MATMUL: 0.8})
    assert made.family("A100", "torch").attention_efficiency == 0.3
    assert made.family("A100", "torch").matmul_efficiency == 0.8
    assert made.family("A100", "megatron") == made.family("A100")
    assert made.family("A100").attention_efficiency == BEFORE.family("A100").attention_efficiency
    later = with_values(made, {MATMUL: 0.7})
    assert later.family("A100", "torch").matmul_efficiency == 0.7
    assert later.family("A100", "torch").attention_efficiency == 0.3


def test_values_of_a_network_hold_for_its_kinds() -> None:
    """InfiniBand and RoCE alike."""
    made = with_values(BEFORE, {Parameter("links", "rdma", "efficiency"): 0.5})
    assert made.link("infiniband").efficiency == made.link("roce").efficiency == 0.5
    assert log(made.link("ethernet").efficiency) == pytest.approx(log(BEFORE.link("ethernet").efficiency))


def test_runs_on_two_nodes_tell_their_network() -> None:
    """And no other."""
    two = run("two", TWO, MODEL, plan(MODEL, 16, 1, 1, 1))
    assert {item.name for item in parameters_of([two]) if item.section == "links"} == {"rdma"}
