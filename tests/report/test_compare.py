"""Plans side by side."""

from __future__ import annotations

from dataclasses import replace

from planner.dims.dimension import by_stage
from planner.model.spec import DocumentsSpec
from planner.plan.values import Plan
from planner.report.compare import Contender, close_calls, compare_section, reason, uneven
from planner.report.plan_table import differences, in_short, traits
from planner.search.values import Scored
from tests.report import examples
from tests.report.drawing import drawn
from tests.worlds import group, plan


def contender(name: str, scored: Scored | None, note: str = "") -> Contender:
    """A plan for a cluster of 16 devices."""
    return Contender(name=name, scored=scored, cluster_devices=16, note=note)


def test_speed_time_and_reasons() -> None:
    """The first plan is the reference, the fastest that fits stands out, what has no plan has a note."""
    contenders = [
        contender("plan.yaml", examples.scored()),
        contender("even split", examples.scored(16, 41.7)),
        contender("too large", examples.scored(16, 20.0, 40.0), "A100 lacks 11.5 GiB"),
        contender("only a100", None, "A100 lacks 3.1 GiB"),
    ]
    assert drawn(compare_section(contenders)) == (
        "Plans\n"
        "              step  tokens/s       time         peak  least free\n"
        "  plan         (s)       (k)  (x first)  idle  (GiB)       (GiB)\n"
        "  ──────────────────────────────────────────────────────────────\n"
        "  plan.yaml   27.2      19.3       1.00     8   16.3         3.3\n"
        "  even split  41.7      12.6       1.53     8   16.3         3.3\n"
        "  too large   20.0      26.2     no fit     8   49.5       -11.5\n"
        "  only a100      -         -          -     -      -           -\n"
        "  ! too large: A100 lacks 11.5 GiB\n"
        "  ! only a100: A100 lacks 3.1 GiB\n"
        "\n"
        "Running cost\n"
        "              price    price        price\n"
        "  plan         (/h)  (/step)  (/M tokens)\n"
        "  ───────────────────────────────────────\n"
        "  plan.yaml    10.0   0.0756        0.144\n"
        "  even split   10.0    0.116        0.221\n"
        "  too large    10.0   0.0556        0.106\n"
        "\n"
        "Step time by cause (s)\n"
        "                              bubble\n"
        "                       tensor    and\n"
        "  plan       compute parallel  sends optimizer step\n"
        "  ─────────────────────────────────────────────────\n"
        "  plan.yaml     19.0      2.7    5.2       0.3 27.2\n"
        "  even split    29.2      4.2    7.9       0.4 41.7\n"
        "  too large     14.0      2.0    3.8       0.2 20.0\n"
        "\n"
        "Why\n"
        "  - plan.yaml: megatron, ZeRO 1, 2 stages, dp 1, tp 4, layers 24|8, micro-batch\n"
        "    2, selective recomputation, sequence parallel, on 4 a100|4 v100\n"
        "  - even split: takes 1.53 x the time (compute +37 %, bubble and sends +10 %,\n"
        "    tensor parallel +5.3 % of the first plan's step). layers 16 instead of 24|8\n"
        "  - too large: does not fit, otherwise takes 0.735 x the time (compute -19 %,\n"
        "    bubble and sends -5.0 %, tensor parallel -2.6 % of the first plan's step).\n"
        "    layers 16 instead of 24|8\n"
        "\n"
    )


def test_close_calls_are_marked() -> None:
    """Plans that may be as fast are said to; equal and far plans are not, nor those of which pairs tell more."""
    names = (("first", 27.2), ("same", 27.2), ("near", 28.2), ("apart", 31.2), ("far", 41.7))
    contenders = [contender(name, examples.scored(step_seconds=step)) for name, step in names]
    contenders.append(contender("no fit", examples.scored(16, 28.2, 40.0)))
    known = "not distinguishable from the first plan, which is known to ±10 % next to others on these devices: near"
    assert close_calls(contenders) == [known]
    elsewhere = examples.scored(step_seconds=31.2)
    stages = [
        replace(stage, replicas=tuple(replace(group, gpu="H100") for group in stage.replicas))
        for stage in elsewhere.plan.stages
    ]
    contenders.append(
        contender("elsewhere", replace(elsewhere, plan=replace(elsewhere.plan, stages=tuple(stages))))
    )
    overlap = "not distinguishable from the first plan, error bars of ±15 % overlap: elsewhere"
    assert close_calls(contenders) == [known, overlap]


def test_measured_bars_are_those_of_their_plans() -> None:
    """Where they are less than what pairs of published runs tell."""
    first, second = (examples.scored(step_seconds=step) for step in (27.2, 29.6))
    narrow = [replace(each, estimate=replace(each.estimate, spread=0.03)) for each in (first, second)]
    assert close_calls([contender("first", first), contender("second", second)])
    assert close_calls([contender("first", narrow[0]), contender("second", narrow[1])]) == []
    # Bars of a little less than what pairs tell never allow more than that.
    first, second = (examples.scored(step_seconds=step) for step in (27.2, 31.6))
    nine = [replace(each, estimate=replace(each.estimate, spread=0.09)) for each in (first, second)]
    assert close_calls([contender("first", nine[0]), contender("second", nine[1])]) == []


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
    assert uneven(cluster.model_copy(update={"safe": 0.01}), model, cluster, model) == (
        "made for another cluster (example): safe 0.01"
    )
    fewer = cluster.model_copy(update={"pools": cluster.pools[:1], "reserve_gib": 3.0})
    assert uneven(fewer, model, cluster, model) == (
        "made for another cluster (example): without pools[v100]; reserve_gib 3.0 instead of 2.0"
    )
    packed, padded = (
        examples.model(documents=DocumentsSpec(mean_length=700, packing=packing)) for packing in (True, False)
    )
    assert uneven(cluster, padded, cluster, packed) == "documents.packing false instead of true"
    assert uneven(cluster, packed, cluster, model) == "with documents"
    assert uneven(cluster, model, cluster, packed) == "without documents"


def test_traits_condense_equal_stages() -> None:
    """Equal neighbours are written once with their number."""
    assert by_stage(["12"] * 7 + ["8"]) == "12 (x 7)|8"
    assert by_stage(["4", "4"]) == "4"
    found = traits(examples.plan())
    assert found["devices"] == "4 a100|4 v100"
    assert found["tp"] == "4"


def on_one_stage() -> Plan:
    """The whole model on the four A100."""
    stage = replace(examples.plan().stages[0], end_layer=32, recompute="none")
    return replace(examples.plan(), stages=(stage,), sequence_parallel=False)


def test_a_plan_in_one_line() -> None:
    """What is 1 or no is left out."""
    assert in_short(examples.plan()) == (
        "megatron, ZeRO 1, 2 stages, dp 1, tp 4, layers 24|8, micro-batch 2, selective recomputation, "
        "sequence parallel, on 4 a100|4 v100"
    )
    assert in_short(on_one_stage()) == "megatron, ZeRO 1, dp 1, tp 4, micro-batch 2, on 4 a100"
    alike = plan("megatron", 1, [4, 4], [(group("a", "A100", count=2),)] * 2)
    assert in_short(alike) == "megatron, ZeRO 1, 2 stages, dp 2, layers 4, micro-batch 1, on 2 a a stage"


def test_many_differences_give_way_to_the_whole_plan() -> None:
    """The shorter text is shown."""
    other = Scored(plan=on_one_stage(), estimate=examples.estimate(on_one_stage()))
    assert reason(other, examples.scored()).endswith(f". {in_short(other.plan)}")


def test_differences_name_each_decision() -> None:
    """What the first plan decides differently, with both values."""
    ours = replace(examples.plan(), sequence_parallel=False, zero=0)
    assert differences(ours, examples.plan(16)) == [
        "ZeRO 0 instead of 1",
        "layers 24|8 instead of 16",
        "sequence parallel no instead of yes",
    ]
    deep, flat = (
        plan("megatron", 1, [8 // depth] * depth, [(group("a", "A100", count=4 // depth),)] * depth)
        for depth in (2, 1)
    )
    assert "devices 2 a a stage instead of 4 a" in differences(deep, flat)


def test_copies_to_hosts_have_a_column_where_a_plan_has_some() -> None:
    """Others have one column less."""
    plain = examples.scored()
    causes = replace(plain.estimate.breakdown, compute_seconds=0.0, offload_seconds=19.04)
    copying = replace(plain, estimate=replace(plain.estimate, breakdown=causes))
    assert "offload" not in drawn(compare_section([contender("a", plain)] * 2))
    both = [contender("a", plain), contender("b", copying)]
    assert "optimizer offload step" in drawn(compare_section(both), 120)


def test_decisions_that_one_plan_lacks() -> None:
    """Some are told of plans that have them alone: degrees of experts and of context, grids, backups."""
    whole = plan("torch", 0, [24], [(group("a", "A100", count=4, share=4),)])
    less = plan("torch", 0, [24], [(group("a", "A100", count=4, share=4),)], backup=2)
    assert differences(less, whole) == ["backup replicas 2 instead of none"]
    assert differences(whole, less) == ["backup replicas none instead of 2"]
