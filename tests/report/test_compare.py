"""Plans side by side."""

from __future__ import annotations

from dataclasses import replace

from planner.report.compare import Contender, close_calls, compare_section, reason, uneven
from planner.report.traits import by_stage, differences, traits
from tests.report import examples
from tests.report.drawing import drawn


def test_speed_time_and_reasons() -> None:
    """The first plan is the reference, the fastest stands out, what has no plan has a note."""
    contenders = [
        Contender(name="plan.yaml", scored=examples.scored()),
        Contender(name="even split", scored=examples.scored(16, 41.7, 40.0)),
        Contender(name="only a100", scored=None, note="A100 lacks 3.1 GiB"),
    ]
    assert drawn(compare_section(contenders)) == (
        "Plans\n"
        "              step  tokens/s  relative            peak  least free\n"
        "  plan         (s)       (k)     speed  devices  (GiB)       (GiB)\n"
        "  ────────────────────────────────────────────────────────────────\n"
        "  plan.yaml   27.2      19.3      1.00        8   16.3         3.3\n"
        "  even split  41.7      12.6      0.65        8   49.5       -11.5\n"
        "  only a100      -         -         -        -      -           -\n"
        "  ! only a100: A100 lacks 3.1 GiB\n"
        "\n"
        "Running cost\n"
        "              price    price        price\n"
        "  plan         (/h)  (/step)  (/M tokens)\n"
        "  ───────────────────────────────────────\n"
        "  plan.yaml    10.0   0.0756        0.144\n"
        "  even split   10.0    0.116        0.221\n"
        "\n"
        "Where a step's time goes (s)\n"
        "  plan        compute  recomp  tensor  ZeRO  bubble  sync  optim  step\n"
        "  ────────────────────────────────────────────────────────────────────\n"
        "  plan.yaml      19.0     0.0     2.7   0.0     5.2   0.0    0.3  27.2\n"
        "  even split     29.2     0.0     4.2   0.0     7.9   0.0    0.4  41.7\n"
        "\n"
        "Why\n"
        "  - even split: takes 1.53 x the time (compute +37 %, bubble and sends +10 %,\n"
        "    tensor parallel +5.3 % of the first plan's step). layers 16 instead of 24|8\n"
        "\n"
    )


def test_close_calls_are_marked() -> None:
    """Plans whose error bars overlap are said to; equal and far plans are not."""
    names = (("first", 27.2), ("same", 27.2), ("near", 28.2), ("far", 41.7))
    contenders = [Contender(name=name, scored=examples.scored(step_seconds=step)) for name, step in names]
    assert close_calls(contenders) == [
        "cannot be told apart from the first, error bars of ±15 % overlap: near"
    ]


def test_equal_plans_are_said_to_be_equal() -> None:
    """No invented differences."""
    assert reason(examples.scored(), examples.scored()) == "as fast. the same decisions"


def test_small_differences_are_percentages() -> None:
    """A few percent read better than a ratio."""
    assert reason(examples.scored(step_seconds=28.2), examples.scored()).startswith("3.7 % slower")
    assert reason(examples.scored(step_seconds=26.2), examples.scored()).startswith("3.7 % faster")


def test_other_inputs_are_marked() -> None:
    """Another cluster or batch makes a comparison uneven."""
    cluster, model = examples.cluster(), examples.model()
    assert uneven(cluster, model, cluster, model) == ""
    renamed = cluster.model_copy(update={"name": "other"})
    note = uneven(renamed, examples.model(global_batch=64), cluster, model)
    assert note == "made for another cluster (other); global_batch 64 instead of 256"


def test_traits_condense_equal_stages() -> None:
    """Equal neighbours are written once with their number."""
    assert by_stage(["12"] * 7 + ["8"]) == "12 (x 7)|8"
    assert by_stage(["4", "4"]) == "4"
    found = traits(examples.plan())
    assert found["devices"] == "4 a100|4 v100"
    assert found["tp"] == "4"


def test_differences_name_each_decision() -> None:
    """What the first plan decides differently, with both values."""
    ours = replace(examples.plan(), sequence_parallel=False, zero=0)
    assert differences(ours, examples.plan(16)) == [
        "ZeRO 0 instead of 1",
        "layers 24|8 instead of 16",
        "sequence parallel no instead of yes",
    ]


def test_copies_to_hosts_have_a_column_where_a_plan_has_some() -> None:
    """Others have one column less."""
    plain = examples.scored()
    causes = replace(plain.estimate.breakdown, compute_seconds=0.0, offload_seconds=19.04)
    copying = replace(plain, estimate=replace(plain.estimate, breakdown=causes))
    assert "offload" not in drawn(compare_section([Contender(name="a", scored=plain)] * 2))
    both = [Contender(name="a", scored=plain), Contender(name="b", scored=copying)]
    assert "optim  offload  step" in drawn(compare_section(both), 120)
