"""What was understood, the chosen plan, its memory, and the alternatives."""

from __future__ import annotations

from dataclasses import replace

from planner.calibration.values import ASSUMED, Calibration, Constant, LayerPoint, Residual
from planner.cluster.spec import HostSpec
from planner.model.spec import RunSpec, StateSpec
from planner.plan.file import Summary
from planner.plan.values import Offload, Plan, ReplicaGroup, Stage
from planner.report.explain import (
    advice_section,
    advice_text,
    alternatives_section,
    considered,
    memory_section,
)
from planner.report.inputs import pool_text, provenance_text, size_text, understood
from planner.report.plan_table import (
    differences,
    headline,
    misfits,
    plan_section,
    proof_text,
    running_cost_lines,
    warnings_of,
)
from planner.search.values import Limits
from tests.report import examples
from tests.report.drawing import drawn


def test_understood_echoes_inputs_limits_and_provenance() -> None:
    """No default is silent."""
    limits = Limits(zero=(0, 1), recompute=("full",), time_limit_seconds=60.0)
    assert drawn(understood(examples.cluster(), examples.model(), ASSUMED, limits)) == (
        "Inputs\n"
        "  cluster   example: 3 nodes, 16 devices, 448 GiB, 2 GiB kept free per device\n"
        "            a100: 2 x 4 A100 (40 GiB), 300 GB/s inside, 4 x 200 Gbit/s ib +\n"
        "            25 Gbit/s eth, 2 per device-hour\n"
        "            v100: 1 x 8 V100 (16 GiB), 150 GB/s inside, 10 Gbit/s eth, 0.5 per\n"
        "            device-hour\n"
        "  model     llama-7b: decoder, 32 layers, hidden 4096, 32 heads, gated MLP\n"
        "            11008, vocabulary 32000, 6.74 B parameters\n"
        "  training  256 sequences x 2048 tokens = 524 k per step, fp16, adamw, flash\n"
        "            attention\n"
        "  limits    zero 0, 1; recompute full; time limit 60 s\n"
        "  accuracy  datasheet peaks x assumed efficiencies\n"
        "\n"
    )


def test_unlike_layers_are_counted_by_kind() -> None:
    """What a kind of layers does not have is not named."""
    runs = (RunSpec(layers=3, mixer="state", feed_forward="none"), RunSpec(mixer="none"), RunSpec())
    state = StateSpec(kind="mamba2", heads=8, head_dim=64, size=16)
    for layers, said in ((1, "5 layers (1 block of "), (4, "20 layers (4 blocks of ")):
        model = examples.model().model_copy(update={"layers": layers, "block": runs, "state": state})
        shown = " ".join(drawn(understood(examples.cluster(), model, ASSUMED, Limits())).split())
        assert f"{said}3 state, 1 dense, 1 attention and dense), " in shown


def test_the_origin_of_constants_is_named() -> None:
    """Families that were fitted, measured or assumed, and measured layers."""
    constants = (
        Constant(name="families.A100.matmul_efficiency", value=0.8, provenance="fitted"),
        Constant(name="families.V100.matmul_efficiency", value=0.7, provenance="measured"),
    )
    fitted = Residual(family="A100", framework="megatron", rows=41, spread=0.05)
    layer = LayerPoint(
        gpu="a100", model="LLAMA_7B", tp=1, micro_batch=1, forward_seconds=1.0, backward_seconds=2.0
    )
    cluster, model = examples.cluster(), examples.model()
    known = Calibration(constants=constants[:1], residuals=(fitted,))
    assert provenance_text(known, cluster) == (
        "A100: constants fitted to 41 runs of the A100 family; V100: default constants, not measured"
    )
    assert provenance_text(Calibration(constants=constants), cluster) == (
        "A100: fitted constants; V100: measured constants"
    )
    assert provenance_text(Calibration(layers=(layer,)), cluster, model) == (
        "datasheet peaks x assumed efficiencies; measured layers of llama-7b on A100"
    )


def test_memory_is_told_in_a_unit_that_fits() -> None:
    """Small and large."""
    assert [size_text(480.0), size_text(1_077_740.0)] == ["480 GiB", "1052 TiB"]


def test_the_plan_shows_stages_time_use_price_and_proof() -> None:
    """One row per group of replicas, then what a step takes."""
    result = examples.found()
    assert result.best is not None
    assert drawn(plan_section(result.best, examples.cluster(), result)) == examples.SHOWN_PLAN


def test_headlines_name_what_differs() -> None:
    """Interleaving and recomputation that differs by stage are said."""
    group = ReplicaGroup(pool="a100", gpu="A100", tp=1, count=2, local_batch=8, accumulation_steps=8)
    stages = (
        Stage(first_layer=0, end_layer=2, replicas=(group,), recompute="full"),
        Stage(first_layer=2, end_layer=4, replicas=(group,)),
    )
    plan = Plan(target="megatron", zero=0, stages=stages, interleave=2)
    assert headline(plan) == "megatron, 2 stages, ZeRO 0, full|none recomputation, 2 interleaved chunks"
    assert headline(replace(plan, interleave=1)) == "megatron, 2 stages, ZeRO 0, full|none recomputation"


def test_running_cost_as_far_as_known() -> None:
    """Price, power, both or neither."""
    unknown = replace(examples.scored().estimate, price_per_hour=None, watts=None)
    assert list(running_cost_lines(unknown)) == []
    dark = replace(unknown, price_per_hour=10.0)
    assert list(running_cost_lines(dark)) == [
        "price 10.0 per hour, 0.0756 per step, 0.144 per million tokens"
    ]
    both = replace(dark, watts=3200.0)
    assert list(running_cost_lines(both))[1:] == ["power 3.20 kW, 0.166 J per token"]


def test_proofs_in_words() -> None:
    """Optimal, within a gap, out of time, interrupted, and nothing known."""
    exact = Summary(status="optimal", step_seconds=10.0, bound_seconds=10.0, gap=0.0, tokens_per_second=1.0)
    assert proof_text(exact) == "optimal: no plan of this space is faster by the cost model"
    found = examples.found()
    late = replace(found, status="feasible", bound_seconds=9.69, gap=0.031, candidates=412, seconds=60.0)
    assert (
        proof_text(late)
        == "best found before the search stopped: within 3.1 % of the bound (412 candidates, 37 solved, 60 s)"
    )
    stopped = replace(late, interrupted=True)
    assert proof_text(stopped).startswith(
        "interrupted: best so far, within 3.1 % of the bound (412 candidates"
    )
    over = replace(exact, bound_seconds=0.0, objective="cost", subclusters=39)
    assert proof_text(over) == "optimal: no plan of 39 sub-clusters is cheaper by the cost model"
    near = replace(over, objective="energy", gap=0.01)
    assert (
        proof_text(near)
        == "optimal: proven within 1.0 % of the most energy-efficient plan of 39 sub-clusters by the cost model"
    )
    lost = replace(exact, status="feasible", bound_seconds=0.0, gap=1.0)
    assert (
        proof_text(lost) == "best found before the search stopped: its distance from the optimum is unknown"
    )


def test_memory_components_add_up_to_the_capacity() -> None:
    """A row per group; fixed is runtime and reserve."""
    assert drawn(memory_section(examples.scored().estimate)) == (
        "Memory per device (GiB)\n"
        "  stage device      param grad optim activ logits buffer fixed free   of\n"
        "  ──────────────────────────────────────────────────────────────────────\n"
        "      0 A100 (a100)   2.3  4.6   0.9   6.8    0.0    0.2   3.5 21.7 40.0\n"
        "      1 V100 (v100)   2.3  4.6   0.9   1.2    0.0    0.2   3.5  3.3 16.0\n"
        "  fixed: context and libraries, what the allocator holds beyond tensors, the\n"
        "  reserve\n"
        "\n"
    )


def test_alternatives_chosen_first_impossible_last() -> None:
    """Each family has its reason."""
    entries = considered(examples.ALTERNATIVES)
    assert drawn(alternatives_section(entries)) == examples.SHOWN_FAMILIES
    assert "1 of 3 families shown" in drawn(alternatives_section(entries, top=1))
    advice = [advice_text(entry) for entry in examples.found().advice]
    assert drawn(advice_section(advice)) == (
        "Faster with another runtime\n  - 4.1 % faster with tp 2 on the v100 stage: needs flagscale\n\n"
    )


def test_a_plan_that_does_not_fit_says_where() -> None:
    """Stage, device and missing GiB; a plan that fits says nothing."""
    tight = examples.scored(activations_gib=40.0).estimate
    assert misfits(tight) == ["stage 0: A100 in a100 lacks 11.5 GiB"]
    assert drawn(warnings_of(tight)) == (
        "Warnings\n  ! does not fit: stage 0: A100 in a100 lacks 11.5 GiB\n\n"
    )
    assert drawn(warnings_of(examples.scored().estimate)) == ""


def test_hosts_are_echoed_when_the_file_says_something_of_them() -> None:
    """In the line of their pool."""
    (pool, _), cluster = examples.cluster().pools, examples.cluster()
    known = HostSpec(all_links_gBps=48, memory_gib=1500, nvme_gBps=25.6)
    text = pool_text(cluster, pool.model_copy(update={"host": known}))
    assert ", hosts 48 GB/s, 1500 GiB, NVMe 25.6 GB/s, 2 per device-hour" in text
    assert "hosts" not in pool_text(cluster, pool)
    assert pool_text(cluster, pool.model_copy(update={"host": HostSpec()})) == pool_text(cluster, pool)


def test_offload_is_part_of_the_headline() -> None:
    """By where things are kept; plans without it say nothing."""
    plan = replace(examples.plan(), offload=Offload(optimizer="nvme", parameters="cpu", activations="cpu"))
    text = "optimizer offloaded to nvme; parameters + activations offloaded to cpu"
    assert text in headline(plan)
    assert differences(plan, examples.plan()) == [f"offload {text} instead of none"]
    shared = Offload(optimizer="cpu", activations="cpu", ratio=0.6, super_offload=True)
    wanted = "60 % of the optimizer (SuperOffload) + activations offloaded to cpu"
    assert wanted in headline(replace(plan, offload=shared))
    assert "offload" not in headline(examples.plan())


def test_hybrid_sharding_is_part_of_the_headline() -> None:
    """With the size of the groups; plans without it say nothing."""
    group = ReplicaGroup(pool="a100", gpu="A100", tp=1, count=8, local_batch=4, accumulation_steps=2)
    plain = Plan(target="torch", zero=3, stages=(Stage(first_layer=0, end_layer=32, replicas=(group,)),))
    grouped = replace(plain, shard_size=4)
    assert "torch, 1 stage, ZeRO 3 in groups of 4, no recomputation" in headline(grouped)
    assert "groups" not in headline(plain)
    assert differences(grouped, plain) == ["sharded over groups of 4 instead of all replicas"]


def test_host_memory_has_a_column_where_it_holds_something() -> None:
    """And lacks what does not fit into it."""
    estimate = examples.scored().estimate
    stage = estimate.stages[0]
    memory = replace(stage.groups[0].memory, host_bytes=12.0 * 2**30, host_capacity_bytes=10.0 * 2**30)
    group = replace(stage.groups[0], memory=memory)
    full = replace(estimate, stages=(replace(stage, groups=(group,)), *estimate.stages[1:]))
    assert "fixed free   of host" in drawn(memory_section(full))
    assert "40.0 12.0\n" in drawn(memory_section(full))
    assert misfits(full) == ["stage 0: hosts in a100 lack 2.0 GiB per A100"]
    assert not full.fits


def test_chunks_of_a_stage_are_not_taken_for_neighbours() -> None:
    """With interleaving the ranges of layers are no places in the pipeline."""
    scored, where = examples.scored(), examples.cluster()
    said = "each stage holds so many in 2 chunks along the pipeline"
    folded = replace(scored, plan=replace(scored.plan, interleave=2))
    assert said in " ".join(drawn(plan_section(folded, where)).split())
    assert said not in " ".join(drawn(plan_section(scored, where)).split())
