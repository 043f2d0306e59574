"""Constants of the cost model, and two calibrations as one."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest
from hypothesis import HealthCheck, given, settings

from planner.calibration.merge import combined, layer_key, link_key, merged, name_key, sourced
from planner.calibration.values import (
    ASSUMED,
    ASSUMED_FAMILY,
    ASSUMED_FRAMEWORK,
    ASSUMED_LINK,
    Calibration,
    Constant,
    Framework,
    GpuFamily,
    LayerPoint,
    LinkPoint,
    Provenance,
    Residual,
)
from tests.calibration.any_calibration import calibrations


@pytest.mark.parametrize("part", [ASSUMED_FAMILY, ASSUMED_FRAMEWORK, ASSUMED_LINK])
def test_shares_are_shares(part: object) -> None:
    """Efficiencies, overlap and wire lie above 0 and at most at 1; nothing is negative."""
    for field in fields(part):  # type: ignore[arg-type]
        value = getattr(part, field.name)
        assert value >= 0
        if field.name.endswith("efficiency") or field.name in ("overlap", "link_utilisation"):
            assert 0 < value <= 1


def test_nothing_is_claimed_to_be_measured() -> None:
    """Without a calibration every constant is assumed, of any family, framework or link."""
    assert (ASSUMED.constants, ASSUMED.layers, ASSUMED.link_points, ASSUMED.residuals) == ((), (), (), ())
    assert ASSUMED.family("any") is ASSUMED_FAMILY
    assert ASSUMED.framework("any") is ASSUMED_FRAMEWORK
    assert ASSUMED.link("any") is ASSUMED_LINK
    assert 0 < ASSUMED.default_spread < 1


def test_a_family_may_differ_under_a_kernel_set() -> None:
    """What is known of the pair comes before what is known of the family, and that before what is assumed."""
    plain, paired = GpuFamily(matmul_efficiency=0.6), GpuFamily(matmul_efficiency=0.5)
    calibration = Calibration(families={"A100": plain, "A100.torch": paired})
    assert calibration.family("A100", "torch") is paired
    assert calibration.family("A100", "megatron") is calibration.family("A100") is plain
    assert calibration.family("V100", "torch") is ASSUMED_FAMILY


def test_the_spread_is_the_widest_that_applies() -> None:
    """A family without a residual has the default."""
    residuals = (
        Residual(family="A100", framework="megatron", rows=40, spread=0.05),
        Residual(family="V100", framework="megatron", rows=9, spread=0.11),
    )
    calibration = Calibration(residuals=residuals, default_spread=0.3)
    assert calibration.spread(["A100"], "megatron") == 0.05
    assert calibration.spread(["A100", "V100"], "megatron") == 0.11
    assert calibration.spread(["A100", "H100"], "megatron") == 0.3
    assert calibration.spread(["A100"], "deepspeed") == 0.3


def test_layers_of_a_kind_have_a_spread_of_their_own() -> None:
    """A family that nobody has measured at it is no surer than those that somebody has."""
    residuals = (
        Residual(family="A100", framework="megatron", rows=40, spread=0.05),
        Residual(family="H100", framework="megatron", work="experts", rows=40, spread=0.25),
    )
    calibration = Calibration(residuals=residuals, default_spread=0.3, family_spread=0.2)
    assert calibration.spread(["A100"], "megatron") == 0.05
    assert calibration.spread(["A100"], "megatron", "experts") == 0.25
    assert calibration.spread(["H100"], "megatron") == 0.2
    assert calibration.spread(["A100"], "megatron", "unfused") == 0.3
    wide = Residual(family="H100", framework="megatron", work="unfused", rows=40, spread=0.4)
    known = replace(calibration, residuals=(*residuals, wide))
    assert known.spread(["A100"], "torch", "unfused") == known.spread(["mine"], "torch", "unfused") == 0.4
    assert known.spread(["A100"], "torch") == 0.3


def test_a_known_family_under_known_kernels_is_no_surer_than_either() -> None:
    """Each of the two by other runs."""
    residuals = (
        Residual(family="A100", framework="megatron", rows=40, spread=0.05),
        Residual(family="H100", framework="torch", rows=40, spread=0.1),
    )
    calibration = Calibration(residuals=residuals, default_spread=0.3, family_spread=0.2)
    assert calibration.spread(["H100"], "megatron") == calibration.spread(["A100"], "torch") == 0.1
    assert calibration.spread(["V100"], "megatron") == 0.2


def test_kernels_that_a_maker_s_other_devices_have_run_narrow_the_bar() -> None:
    """Of a family without runs; not of one of another maker, nor of one that nobody knows."""
    residuals = (Residual(family="A100", framework="megatron", rows=40, spread=0.05),)
    calibration = Calibration(residuals=residuals, default_spread=0.3, family_spread=0.2)
    assert calibration.spread(["H100"], "megatron") == 0.2
    assert calibration.spread(["A100"], "deepspeed") == 0.3
    assert calibration.spread(["MI300X"], "megatron") == 0.3
    assert calibration.spread(["mine"], "megatron") == 0.3
    vague = Constant(name="families.T4.matmul_efficiency", value=0.4, provenance="assumed", spread=0.25)
    assert replace(calibration, constants=(vague,)).spread(["T4"], "megatron") == 0.25


def test_products_in_fp32_are_as_sure_as_their_own_share() -> None:
    """Of a family without runs, whose vector units somebody has measured better or worse than its other ones."""
    residuals = (Residual(family="A100", framework="megatron", rows=40, spread=0.05),)
    constants = tuple(
        Constant(name=f"families.H100.{name}", value=0.8, provenance="assumed", spread=spread)
        for name, spread in (("matmul_efficiency", 0.3), ("vector_efficiency", 0.4))
    )
    calibration = Calibration(residuals=residuals, constants=constants, default_spread=0.5, family_spread=0.2)
    assert calibration.spread(["H100"], "megatron") == 0.3
    assert calibration.spread(["H100"], "megatron", products="vector_efficiency") == 0.4


def test_siblings_alone_tell_less() -> None:
    """A device type without a run of its own is further off, unless nobody tells which had some; aliases are names."""
    named = Residual(family="B200", framework="megatron", rows=9, spread=0.2, devices=("B300",))
    silent = Residual(family="A100", framework="megatron", rows=9, spread=0.2)
    calibration = Calibration(residuals=(named, silent), sibling_spread=0.08)
    assert calibration.spread_alone("B200", "megatron", "GB300") == 0.08
    assert calibration.spread_alone("B200", "megatron", "B300-SXM") == 0.0
    assert calibration.spread_alone("A100", "megatron", "A100-SXM-40GB") == 0.0
    assert calibration.spread_alone("B200", "torch", "GB300") == 0.0


def layer(micro_batch: int, seconds: float, gpu: str = "A100", model: str = "opt-350m") -> LayerPoint:
    """A measured layer."""
    return LayerPoint(
        gpu=gpu,
        model=model,
        tp=1,
        micro_batch=micro_batch,
        forward_seconds=seconds,
        backward_seconds=2 * seconds,
    )


def link(size: float, seconds: float) -> LinkPoint:
    """A measured collective."""
    return LinkPoint(link="ib", operation="all-reduce", members=4, size_bytes=size, seconds=seconds)


KERNELS = ("megatron", "torch", "deepspeed")


BASE = Calibration(
    families={"A100": GpuFamily(matmul_efficiency=0.8, memory_efficiency=0.9), "V100": GpuFamily()},
    layers=(layer(1, 0.1), layer(2, 0.2)),
    link_points=(link(10, 1), link(100, 2)),
    residuals=(Residual(family="A100", framework="megatron", rows=40, spread=0.05),),
    constants=(
        Constant(name="families.A100.matmul_efficiency", value=0.8, provenance="fitted", spread=0.01),
        Constant(name="families.A100.memory_efficiency", value=0.9, provenance="fitted"),
    ),
    default_spread=0.25,
    provenance={"date": "2026-01-01", "device": "many"},
)
OWN = Calibration(
    families={"A100": GpuFamily(matmul_efficiency=0.75), "H100": GpuFamily(launch_seconds=4e-6)},
    frameworks={"megatron": Framework(overlap=0.5)},
    layers=(layer(2, 0.3, gpu="a100", model="OPT_350M"), layer(4, 0.6)),
    link_points=(link(100, 3), link(1000, 4)),
    residuals=(Residual(family="A100", framework="megatron", rows=3, spread=0.02),),
    constants=(Constant(name="families.A100.matmul_efficiency", value=0.75, provenance="measured"),),
    provenance={"device": "mine"},
)


def test_the_own_calibration_wins_constant_by_constant() -> None:
    """Even where it measures what is the assumed value; what it is silent about stays."""
    both = merged(BASE, OWN)
    assert both.families["A100"] == GpuFamily(matmul_efficiency=0.75, memory_efficiency=0.9)
    assert both.families["H100"] == GpuFamily(launch_seconds=4e-6)
    assert both.framework("megatron").overlap == 0.5
    assert [(item.name, item.provenance) for item in both.constants] == [
        ("families.A100.matmul_efficiency", "measured"),
        ("families.A100.memory_efficiency", "fitted"),
    ]
    assert both.default_spread == 0.25
    assert both.provenance == {"date": "2026-01-01", "device": "mine"}


def pairs(attention: float, memory: float = 0.9, provenance: Provenance = "fitted") -> Calibration:
    """A family, and what it has under two kernel sets."""
    plain = GpuFamily(memory_efficiency=memory, attention_efficiency=0.6)
    names = ("families.A100.torch.attention_efficiency", "families.A100.deepspeed.attention_efficiency")
    return Calibration(
        families={
            "A100": plain,
            "A100.torch": replace(plain, attention_efficiency=attention),
            "A100.deepspeed": replace(plain, attention_efficiency=0.2),
        },
        constants=tuple(
            Constant(name=name, value=value, provenance=provenance)
            for name, value in zip(names, (attention, 0.2), strict=True)
        ),
    )


def test_what_was_measured_of_a_family_wins_over_a_shipped_pair() -> None:
    """A measurement of one's own holds under all kernels; what it is silent about stays as it was under each."""
    name = "families.A100.attention_efficiency"
    own = Calibration(
        families={"A100": GpuFamily(attention_efficiency=0.44)},
        constants=(Constant(name=name, value=0.44, provenance="measured"),),
    )
    both = merged(pairs(0.3), own)
    assert {
        kernels: both.family("A100", kernels).attention_efficiency for kernels in KERNELS
    } == dict.fromkeys(KERNELS, 0.44)
    assert both.family("A100", "torch").memory_efficiency == 0.9
    assert [(item.name, item.provenance) for item in both.constants] == [(name, "measured")]
    memory = Calibration(families={"A100": GpuFamily(memory_efficiency=0.7)})
    both = merged(pairs(0.3), memory)
    assert {both.family("A100", kernels).memory_efficiency for kernels in KERNELS} == {0.7}
    assert [both.family("A100", kernels).attention_efficiency for kernels in KERNELS] == [0.6, 0.3, 0.2]


def test_what_was_measured_of_a_pair_wins_under_its_kernels_alone() -> None:
    """Over the shipped pair, and over the shipped family where there is no pair."""
    own = Calibration(
        families={"A100.torch": GpuFamily(attention_efficiency=0.44)},
        constants=(
            Constant(name="families.A100.torch.attention_efficiency", value=0.44, provenance="measured"),
        ),
    )
    both = merged(pairs(0.3), own)
    assert [both.family("A100", kernels).attention_efficiency for kernels in KERNELS] == [0.6, 0.44, 0.2]
    assert both.family("A100", "torch").memory_efficiency == 0.9
    found = {constant.name: constant for constant in both.constants}
    assert found["families.A100.torch.attention_efficiency"].provenance == "measured"
    assert found["families.A100.deepspeed.attention_efficiency"].provenance == "fitted"
    bare = replace(pairs(0.3), families={"A100": pairs(0.3).families["A100"]}, constants=())
    both = merged(bare, own)
    assert [both.family("A100", kernels).attention_efficiency for kernels in KERNELS] == [0.6, 0.44, 0.6]
    assert both.family("A100", "torch").memory_efficiency == 0.9


def test_an_older_constant_of_a_family_is_forgotten_under_its_kernel_sets_too() -> None:
    """What a pair has of its family goes with the family's; what it says itself stays."""

    def dated(day: str, share: float, attention: float | None = None) -> Calibration:
        """A family's products, and attention under torch."""
        families = {"A100": GpuFamily(matmul_efficiency=share)}
        values = {"families.A100.matmul_efficiency": share}
        if attention is not None:
            families["A100.torch"] = replace(families["A100"], attention_efficiency=attention)
            values["families.A100.torch.attention_efficiency"] = attention
        constants = tuple(
            Constant(name=name, value=value, provenance="measured") for name, value in values.items()
        )
        return sourced(Calibration(families=families, constants=constants), {"date": day})

    new, old = dated("2026-03-02", 0.6), dated("2026-01-01", 0.9, 0.3)
    for both in (combined(new, old), combined(old, new)):
        assert both.family("A100", "torch") == GpuFamily(matmul_efficiency=0.6, attention_efficiency=0.3)
        assert both.family("A100").matmul_efficiency == 0.6
    older, newer = dated("2026-01-01", 0.9, 0.3), dated("2026-03-02", 0.6, 0.4)
    for both in (combined(newer, older), combined(older, newer)):
        assert both.family("A100", "torch") == GpuFamily(matmul_efficiency=0.6, attention_efficiency=0.4)


def test_points_and_residuals_replace_those_of_the_same_thing() -> None:
    """A layer by device, model, tp and micro-batch; a collective by link, operation, members and size."""
    both = merged(BASE, OWN)
    assert [(point.micro_batch, point.forward_seconds) for point in both.layers] == [
        (1, 0.1),
        (2, 0.3),
        (4, 0.6),
    ]
    assert [(point.size_bytes, point.seconds) for point in both.link_points] == [(10, 1), (100, 3), (1000, 4)]
    assert both.residuals == OWN.residuals


def test_an_assumption_of_the_own_calibration_takes_the_provenance_away() -> None:
    """The number is no longer the one that was fitted."""
    own = Calibration(families={"A100": GpuFamily(memory_efficiency=0.6)})
    both = merged(BASE, own)
    assert both.families["A100"].memory_efficiency == 0.6
    assert [item.name for item in both.constants] == ["families.A100.matmul_efficiency"]


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(calibrations())
def test_merging_with_nothing_changes_nothing(any_calibration: Calibration) -> None:
    """From either side, and with itself."""
    assert merged(ASSUMED, any_calibration) == any_calibration
    assert merged(any_calibration, ASSUMED) == any_calibration
    assert merged(any_calibration, any_calibration) == any_calibration


def test_names_compare_without_case_dashes_and_underscores() -> None:
    """Devices and models, and the device in the name of a link; fabrics are the user's own names."""
    assert name_key("OPT_350M") == name_key("opt-350m")
    assert layer_key(layer(1, 0.1, gpu="a100-SXM")) == layer_key(layer(1, 0.2, gpu="A100_sxm"))
    inside = replace(link(1, 1), link="node:A100-SXM")
    assert link_key(inside) == link_key(replace(inside, link="node:a100sxm"))
    assert link_key(link(1, 1)) != link_key(replace(link(1, 1), link="i-b"))
    joined = replace(link(1, 1), link="eth+hub+wan")
    assert link_key(joined) == link_key(replace(joined, link="wan+hub+eth"))
    assert link_key(joined) != link_key(replace(joined, link="hub+eth+wan"))
