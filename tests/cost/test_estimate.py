"""The estimate: published runs, components that add up, plans that cannot run."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from planner.calibration.file import shipped
from planner.calibration.values import (
    ASSUMED,
    Calibration,
    Framework,
    GpuFamily,
    KernelPoint,
    LayerPoint,
    Link,
    LinkPoint,
    Residual,
)
from planner.capabilities import Recompute
from planner.cluster.spec import ClusterSpec
from planner.cost.estimate import Estimator, boundary_bytes, estimate, exposed_bytes, work_of
from planner.cost.pipeline_end import stage_ends
from planner.errors import PlanError
from planner.model.spec import ExpertsSpec, ModelSpec
from planner.plan.values import Grid, Plan, ReplicaGroup, Stage
from planner.targets import TARGETS
from tests.worlds import GPUS, cluster, gpt, pool
from tests.worlds import model as tiny

KNOWN = GPUS["A100"].model_copy(update={"family": "A100", "multiprocessors": 108})
SELENE = cluster(pool("selene", nodes=384), gpus={"A100": KNOWN})
"""DGX A100 nodes with eight 200 Gbit/s cards each (arXiv:2104.04473, section 5)."""

PUBLISHED = [
    # (name, layers, hidden, heads, tp, pp, dp, micro-batch, batch, chunks, recompute, seconds)
    # arXiv:2205.05198, table 5: measured seconds per iteration
    ("22B full", 48, 6144, 64, 8, 1, 1, 4, 4, 1, "full", 1.42),
    ("22B selective", 48, 6144, 64, 8, 1, 1, 4, 4, 1, "selective", 1.10),
    ("175B full", 96, 12288, 96, 8, 8, 1, 1, 64, 3, "full", 18.13),
    ("175B selective", 96, 12288, 96, 8, 8, 1, 1, 64, 3, "selective", 13.75),
    ("530B full", 105, 20480, 128, 8, 35, 1, 1, 280, 3, "full", 49.05),
    ("530B selective", 105, 20480, 128, 8, 35, 1, 1, 280, 3, "selective", 37.83),
    ("1T full", 128, 25600, 160, 8, 64, 1, 1, 512, 1, "full", 94.42),
    ("1T selective", 128, 25600, 160, 8, 64, 1, 1, 512, 1, "selective", 71.49),
    # arXiv:2104.04473, table 1: seconds from the printed TFLOP/s; micro-batch and chunks are not published
    ("1.7B", 24, 2304, 24, 1, 1, 32, 4, 512, 1, "full", 3.53),
    ("7.5B", 36, 4096, 32, 4, 1, 32, 4, 512, 1, "full", 3.70),
    ("39B", 48, 8192, 64, 8, 2, 32, 2, 1536, 1, "full", 14.45),
    ("145B", 80, 12288, 96, 8, 8, 24, 1, 2304, 2, "full", 24.82),
    ("310B", 96, 16384, 128, 8, 16, 15, 1, 2160, 1, "full", 37.61),
]


def even_plan(
    layers: int,
    tp: int,
    pp: int,
    dp: int,
    micro_batch: int,
    batch: int,
    chunks: int,
    recompute: Recompute,
    name: str = "selene",
) -> Plan:
    """A Megatron plan with layers cut evenly."""
    ends = [layers * (stage + 1) // pp for stage in range(pp)]
    steps = batch // dp // micro_batch
    group = ReplicaGroup(
        pool=name, gpu="A100", tp=tp, count=dp, local_batch=steps * micro_batch, accumulation_steps=steps
    )
    stages = tuple(
        Stage(first_layer=first, end_layer=end, replicas=(group,), recompute=recompute)
        for first, end in zip([0, *ends], ends, strict=False)
    )
    return Plan(
        target="megatron",
        zero=0,
        stages=stages,
        interleave=chunks,
        sequence_parallel=recompute == "selective",
    )


@pytest.mark.parametrize("row", PUBLISHED, ids=[row[0] for row in PUBLISHED])
def test_published_runs_are_met(
    row: tuple[str, int, int, int, int, int, int, int, int, int, Recompute, float],
) -> None:
    """Within 12 % of measured seconds on A100 with the shipped constants, and inside the machine's memory."""
    name, layers, hidden, heads, tp, pp, dp, micro_batch, batch, chunks, recompute, seconds = row
    model = published(name, layers, hidden, heads, batch)
    plan = even_plan(layers, tp, pp, dp, micro_batch, batch, chunks, recompute)
    found = estimate(plan, SELENE, model, shipped())
    assert found.step_seconds == pytest.approx(seconds, rel=0.12)
    assert found.fits


def published(name: str, layers: int, hidden: int, heads: int, batch: int) -> ModelSpec:
    """The model of a row; the release of 2022 adds gradients of weights up in their products."""
    sums: dict[str, Any] = {"gradient_sums": "fused"} if " " in name else {}
    return gpt(layers, hidden, heads, global_batch=batch, sequence_length=2048, attention="unfused", **sums)


def test_published_runs_are_met_on_average() -> None:
    """Mean absolute error of the rows above, by constants that are fitted to 31 sources, of which these are two."""
    errors = []
    for name, layers, hidden, heads, tp, pp, dp, micro_batch, batch, chunks, recompute, seconds in PUBLISHED:
        model = published(name, layers, hidden, heads, batch)
        plan = even_plan(layers, tp, pp, dp, micro_batch, batch, chunks, recompute)  # type: ignore[arg-type]
        errors.append(abs(estimate(plan, SELENE, model, shipped()).step_seconds / seconds - 1))
    assert sum(errors) / len(errors) < 0.065


def two_pools() -> tuple[ClusterSpec, ModelSpec, Plan]:
    """A pipeline over two pools."""
    spec = cluster(pool("a"), pool("b", "V100"))
    groups = [
        ReplicaGroup(pool=p, gpu=g, tp=2, count=4, local_batch=16, accumulation_steps=16)
        for p, g in (("a", "A100"), ("b", "V100"))
    ]
    stages = tuple(
        Stage(first_layer=first, end_layer=end, replicas=(group,))
        for (first, end), group in zip([(0, 17), (17, 24)], groups, strict=True)
    )
    return spec, gpt(global_batch=64), Plan(target="megatron", zero=1, stages=stages, sequence_parallel=True)


def test_causes_add_up_to_the_step() -> None:
    """The breakdown is the step, nothing more and nothing less."""
    spec, model, plan = two_pools()
    found = estimate(plan, spec, model)
    assert found.breakdown.step_seconds == pytest.approx(found.step_seconds)
    assert found.tokens_per_second == pytest.approx(64 * 1024 / found.step_seconds)
    assert 0 < found.mfu < 1
    assert found.stages[0].link == "ib"
    assert found.stages[1].link == ""


@pytest.mark.parametrize("cut", [10, 18])
def test_causes_are_those_of_the_stage_with_most_to_do(cut: int) -> None:
    """Also where the other stage has more work for what it does at the end of the step."""
    spec, model, plan = two_pools()
    first, last = plan.stages
    uneven = replace(plan, stages=(replace(first, end_layer=cut), replace(last, first_layer=cut)))
    found = estimate(uneven, spec, model)
    work = max(16 * (stage.forward_seconds + stage.backward_seconds) for stage in found.stages)
    causes = found.breakdown
    rest = causes.bubble_seconds + causes.gradient_sync_seconds + causes.optimizer_seconds
    assert found.step_seconds - rest == pytest.approx(work)


def test_the_estimate_is_pure() -> None:
    """Asked twice, by two estimators, it says the same."""
    spec, model, plan = two_pools()
    assert estimate(plan, spec, model, ASSUMED) == Estimator(spec, model).estimate(plan)


def test_twice_the_batch_takes_less_than_twice_the_time() -> None:
    """Ramp and synchronisation are paid once."""
    spec, model, plan = two_pools()
    twice = Plan(
        target=plan.target,
        zero=1,
        sequence_parallel=True,
        stages=tuple(
            Stage(
                first_layer=stage.first_layer,
                end_layer=stage.end_layer,
                replicas=tuple(
                    ReplicaGroup(
                        pool=g.pool, gpu=g.gpu, tp=g.tp, count=g.count, local_batch=32, accumulation_steps=32
                    )
                    for g in stage.replicas
                ),
            )
            for stage in plan.stages
        ),
    )
    once = estimate(plan, spec, model).step_seconds
    assert once < estimate(twice, spec, model).step_seconds < 2 * once


def test_plans_that_cannot_run_are_refused() -> None:
    """No path, no such pool, no such number format, too few devices."""
    spec, model, plan = two_pools()
    apart = cluster(pool("a", fabric="ib"), pool("b", "V100", fabric="roce"))
    with pytest.raises(PlanError, match="common fabric"):
        estimate(plan, apart, model)
    with pytest.raises(PlanError, match="has no bf16"):
        estimate(plan, spec, gpt(precision="bf16"))
    with pytest.raises(PlanError, match="no V100"):
        estimate(plan, cluster(pool("a")), model)
    with pytest.raises(PlanError):
        estimate(plan, cluster(pool("a", per_node=4), pool("b", "V100")), model)


def replicas(target: str = "megatron", zero: int = 1, *, tp: int = 1, micro_batch: int = 1) -> Plan:
    """Two replicas or more on one stage of all 16 devices of two nodes."""
    count = 16 // tp
    steps = 64 // count // micro_batch
    group = ReplicaGroup(
        pool="p", gpu="A100", tp=tp, count=count, local_batch=steps * micro_batch, accumulation_steps=steps
    )
    stage = Stage(first_layer=0, end_layer=24, replicas=(group,))
    return Plan(target=target, zero=zero, stages=(stage,), sequence_parallel=tp > 1)


def slow_network(gbps: float = 10.0) -> ClusterSpec:
    """Two nodes whose only card is slow."""
    return cluster(pool("p", nodes=2, cards=1, gbps=gbps))


@pytest.mark.parametrize("gbps", [1.0, 10.0, 1000.0])
@pytest.mark.parametrize(("target", "zero"), [("megatron", 0), ("megatron", 1), ("deepspeed", 3)])
def test_overlap_hides_a_share_of_the_traffic(target: str, zero: int, gbps: float) -> None:
    """Exposed and hidden traffic add up to all of it; what is hidden is proportional to the overlap."""
    found = [
        estimate(
            replicas(target, zero),
            slow_network(gbps),
            gpt(),
            Calibration(frameworks={target: Framework(overlap=share)}),
        ).breakdown
        for share in (0.0, 0.5, 1.0)
    ]
    traffic = [item.gradient_sync_seconds + item.zero_seconds + item.hidden_seconds for item in found]
    assert found[0].hidden_seconds == 0
    assert traffic == pytest.approx([traffic[0]] * 3)
    assert found[1].hidden_seconds == pytest.approx(0.5 * found[2].hidden_seconds)
    assert found[2].hidden_seconds <= traffic[0]
    assert found[0].compute_seconds == found[2].compute_seconds


def layer_points(**changes: float | None) -> tuple[LayerPoint, ...]:
    """Layers of ``gpt`` measured at micro-batches of one and two sequences."""
    values = {"forward_seconds": 0.1, "backward_seconds": 0.3, "activation_bytes": 1e8, "parameters": None}
    return tuple(
        LayerPoint(
            gpu="A100",
            model="gpt",
            tp=1,
            micro_batch=size,
            **{name: value and value * size for name, value in {**values, **changes}.items()},  # type: ignore[arg-type]
        )
        for size in (1, 2)
    )


def test_measured_layers_win_over_formulas() -> None:
    """Seconds and bytes of the layers; embedding and head keep the formula."""
    spec, model = slow_network(), gpt()
    plain = estimate(replicas(), spec, model)
    found = estimate(replicas(), spec, model, Calibration(layers=layer_points()))
    assert not found.warnings
    ends = estimate(replicas(), spec, model, Calibration(layers=layer_points(forward_seconds=0.2)))
    forward = found.stages[0].forward_seconds
    assert 24 * 0.1 < forward < 24 * 0.1 + plain.stages[0].forward_seconds
    assert ends.stages[0].forward_seconds - forward == pytest.approx(24 * 0.1)
    memories = [item.stages[0].groups[0].memory for item in (plain, found)]
    assert memories[0].activations_bytes != memories[1].activations_bytes
    double = estimate(replicas(), spec, model, Calibration(layers=layer_points(activation_bytes=2e8)))
    more = double.stages[0].groups[0].memory.activations_bytes - memories[1].activations_bytes
    assert more == pytest.approx(24 * 1e8)


@pytest.mark.parametrize("target", ["megatron", "torch"])
def test_measured_layers_do_as_much_again_as_the_formula(target: str) -> None:
    """Scores that are not kept are not free because the layer was measured."""
    plan, spec, model = replicas(target), slow_network(), gpt(attention="unfused")

    def again(recompute: Recompute, calibration: Calibration) -> float:
        stages = (replace(plan.stages[0], recompute=recompute),)
        return estimate(replace(plan, stages=stages), spec, model, calibration).breakdown.recompute_seconds

    measured = Calibration(layers=layer_points())
    assert again("full", measured) == pytest.approx(4 * 24 * 0.1)
    shares = [again("selective", known) / again("full", known) for known in (ASSUMED, measured)]
    assert 0.1 < shares[0] < 0.9
    assert shares[1] == pytest.approx(shares[0])


def test_measured_layers_with_experts_still_send_tokens_to_them() -> None:
    """A lone device has all experts, and sends nothing."""
    spec = cluster(pool("p", nodes=2, cards=1, gbps=100))
    model = gpt().model_copy(update={"experts": ExpertsSpec(number=16, top_k=2, ffn=1024)})
    plan = replace(replicas(), ep=16)
    plain, measured = (
        estimate(plan, spec, model, calibration).breakdown.expert_parallel_seconds
        for calibration in (ASSUMED, Calibration(layers=layer_points()))
    )
    assert measured == plain > 0


def test_measured_parameters_weigh_in_memory() -> None:
    """Twice the parameters of a layer, twice its states."""
    spec, model = slow_network(), gpt()
    measured = tuple(replace(point, parameters=2.0 * model.layer_parameters) for point in layer_points())
    plain, heavy = (
        estimate(replicas(), spec, model, Calibration(layers=layers)).stages[0].groups[0].memory
        for layers in (layer_points(), measured)
    )
    assert heavy.parameters_bytes - plain.parameters_bytes == pytest.approx(2 * 24 * model.layer_parameters)


def test_measured_layers_of_other_models_and_devices_do_not_count() -> None:
    """They stay with the formula."""
    spec, model = slow_network(), gpt()
    plain = estimate(replicas(), spec, model)
    own = layer_points()
    for points in (
        tuple(replace(point, gpu="V100") for point in own),
        tuple(replace(point, model="llama") for point in own),
    ):
        assert estimate(replicas(), spec, model, Calibration(layers=points)) == plain


def test_measured_layers_of_another_degree_scale_the_formula() -> None:
    """Ten times as slow there, ten times as slow here; the spread is wider than at the degree itself."""
    spec, model = slow_network(), gpt()
    found = {}
    for tp in (1, 2):
        points = tuple(replace(point, tp=tp) for point in layer_points())
        measured = estimate(replicas(), spec, model, Calibration(layers=points))
        found[tp] = measured.breakdown.compute_seconds, measured.spread
    assert found[2][0] > found[1][0]
    assert ASSUMED.default_spread > found[2][1] > found[1][1]


def test_a_measured_optimizer_prices_plans_for_plain_torch_alone() -> None:
    """Megatron has kernels of its own; ZeRO reads the point of its share."""
    model, here = gpt(), cluster(pool("p", nodes=1))
    update = KernelPoint(
        gpu="A100",
        kernel="optimizer",
        precision="fp32",
        shape="1000000",
        flops=0.0,
        moved_bytes=28e6,
        seconds=0.1,
    )
    measured = Calibration(kernel_points=(update,))

    def optimizer(target: str, zero: int, calibration: Calibration) -> float:
        asked = replace(even_plan(model.layers, 1, 1, 8, 1, 8, 1, "none", "p"), target=target, zero=zero)
        return estimate(asked, here, model, calibration).breakdown.optimizer_seconds

    assert optimizer("megatron", 0, measured) == optimizer("megatron", 0, ASSUMED)
    whole, shared = optimizer("torch", 0, measured), optimizer("torch", 3, measured)
    assert whole > 0.1 * model.layers * model.layer_parameters / 1e6
    assert shared == pytest.approx(whole / 8, rel=0.01)


def test_beyond_the_measured_layers_there_is_a_warning() -> None:
    """It names the device and the micro-batch."""
    calibration = Calibration(layers=layer_points())
    found = estimate(replicas(micro_batch=4), slow_network(), gpt(), calibration)
    (warning,) = found.warnings
    assert "A100" in warning
    assert "micro-batch 4" in warning
    (warning,) = estimate(replicas(tp=2), slow_network(), gpt(), calibration).warnings
    assert "tp 2" in warning


def measured_link(link: str, operation: str, members: int) -> Calibration:
    """One curve that takes a second for every byte."""
    return Calibration(
        link_points=tuple(
            LinkPoint(link=link, operation=operation, members=members, size_bytes=size, seconds=size)  # type: ignore[arg-type]
            for size in (1.0, 1e12)
        )
    )


def test_measured_links_win_over_formulas() -> None:
    """Tensor parallelism by the device, data parallelism and sends by the fabric."""
    spec, model = slow_network(), gpt()
    plain = estimate(replicas(tp=2), spec, model).breakdown
    tensor = estimate(replicas(tp=2), spec, model, measured_link("node:A100", "all-reduce", 2)).breakdown
    assert tensor.tensor_parallel_seconds > 1000 * plain.tensor_parallel_seconds
    assert tensor.gradient_sync_seconds <= plain.gradient_sync_seconds
    data = estimate(replicas(tp=2), spec, model, measured_link("ib", "all-gather", 8)).breakdown
    assert data.gradient_sync_seconds > 1000 * plain.gradient_sync_seconds
    assert data.tensor_parallel_seconds == plain.tensor_parallel_seconds
    spec, model, plan = two_pools()
    before, after = (
        estimate(plan, spec, model, item).stages[0].send_seconds
        for item in (ASSUMED, measured_link("ib", "send", 2))
    )
    assert after > 1000 * before


def test_beyond_the_measured_links_there_is_one_warning_a_curve() -> None:
    """It names link, size and range; a second estimate, whose layers are known by then, says the same."""
    points = tuple(
        LinkPoint(link="node:A100", operation="all-reduce", members=2, size_bytes=size, seconds=size / 1e11)
        for size in (2.0**18, 2.0**20)
    )
    estimator = Estimator(slow_network(), gpt(), Calibration(link_points=points))
    found = [estimator.estimate(replicas(tp=2)).warnings for _ in range(2)]
    wanted = "all-reduce of 2 over node:A100: 4 MiB lie beyond the measured 0.25 to 1 MiB"
    assert found == [(wanted,)] * 2
    assert not estimator.estimate(replicas()).warnings
    measured = measured_link("node:A100", "all-reduce", 2)
    assert not estimate(replicas(tp=2), slow_network(), gpt(), measured).warnings


def test_the_spread_is_that_of_the_widest_family() -> None:
    """Residuals by family and framework; the wider of both where they were measured, but not together."""
    spec, model, plan = two_pools()
    named = {name: gpu.model_copy(update={"family": name}) for name, gpu in spec.gpus.items()}
    spec = spec.model_copy(update={"gpus": named})

    def spread(*known: tuple[str, str, float]) -> float:
        residuals = tuple(
            Residual(family=family, framework=framework, rows=9, spread=value)
            for family, framework, value in known
        )
        return estimate(plan, spec, model, Calibration(residuals=residuals, default_spread=0.5)).spread

    assert spread() == 0.5
    assert spread(("A100", "megatron", 0.1)) == 0.5
    assert spread(("A100", "megatron", 0.1), ("V100", "megatron", 0.2)) == 0.2
    assert spread(("A100", "megatron", 0.1), ("V100", "deepspeed", 0.2)) == 0.2
    assert spread(("A100", "megatron", 0.3), ("V100", "deepspeed", 0.2)) == 0.3


@pytest.mark.parametrize(
    ("chosen", "changes", "work"),
    [
        ("torch", {}, "dense"),
        ("torch", {"attention": "unfused"}, "unfused"),
        ("megatron", {"attention": "unfused"}, "dense"),
        ("megatron", {"attention": "unfused", "kernels": "torch"}, "unfused"),
        ("megatron", {"experts": ExpertsSpec(number=8, top_k=2, ffn=32)}, "experts"),
    ],
)
def test_what_errors_depend_on(chosen: str, changes: dict[str, Any], work: str) -> None:
    """Scores outside a fused kernel are usual under kernels of 2021."""
    assert work_of(tiny(4, **changes), TARGETS[chosen]) == work


def test_gradients_weigh_what_the_target_keeps() -> None:
    """Megatron's are fp32 beside bf16 weights and fp16 beside fp16 ones; DeepSpeed's always two bytes."""
    found = {
        (target, precision): estimate(replicas(target, 0), slow_network(), gpt(precision=precision))
        .stages[0]
        .groups[0]
        .memory.gradients_bytes
        for target in ("megatron", "deepspeed")
        for precision in ("bf16", "fp16")
    }
    assert found["megatron", "bf16"] == 2 * found["megatron", "fp16"]
    assert found["deepspeed", "bf16"] == found["deepspeed", "fp16"] == found["megatron", "fp16"]


def test_a_step_has_the_constants_of_its_kernel_set() -> None:
    """The usual one of runtime and attention, or what the training names; those of other sets count for nothing."""
    spec, plan = slow_network(), replicas(tp=2)

    def seconds(calibration: Calibration, **training: Any) -> float:
        return estimate(plan, spec, gpt(**training), calibration).step_seconds

    settings: tuple[tuple[dict[str, str], str], ...] = (
        ({}, "megatron"),
        ({"attention": "unfused"}, "megatron-2021"),
        ({"attention": "unfused", "kernels": "megatron"}, "megatron"),
        ({"kernels": "megatron-2021"}, "megatron-2021"),
        ({"kernels": "torch"}, "torch"),
        ({"kernels": "deepspeed"}, "megatron"),
    )
    family = GPUS["A100"].family
    for training, kernels in settings:
        plain = seconds(ASSUMED, **training)
        for name in ("megatron", "megatron-2021", "torch", "deepspeed"):
            slow = Calibration(frameworks={name: Framework(matmul_factor=0.5)})
            pair = Calibration(families={f"{family}.{name}": GpuFamily(memory_efficiency=0.2)})
            assert (
                (seconds(slow, **training) > plain)
                == (seconds(pair, **training) > plain)
                == (name == kernels)
            )


def test_a_graph_of_a_step_has_micro_batches_too() -> None:
    """Else two stages and 16 micro-batches wait 17 times for 20 launches of the host."""
    by = Calibration(
        families={"A100": GpuFamily(launch_seconds=1e-5)},
        frameworks={"megatron": Framework(micro_batch_launches=20)},
    )
    plan = even_plan(24, 1, 2, 1, 1, 16, 1, "none", name="a")
    layers, step = (
        estimate(
            plan,
            cluster(pool("a", per_node=2), gpus={"A100": KNOWN}),
            gpt(global_batch=16, cuda_graphs=graphs),
            by,
        )
        for graphs in ("layers", "step")
    )
    for one, other in zip(layers.stages, step.stages, strict=True):
        assert one.forward_seconds - other.forward_seconds == pytest.approx(1e-4)
        assert one.backward_seconds - other.backward_seconds == pytest.approx(1e-4)
    assert layers.step_seconds - step.step_seconds == pytest.approx(17 * 2e-4)


@pytest.mark.parametrize("kernels", ["megatron", "megatron-2021"])
def test_the_training_says_who_adds_gradients_up(kernels: str) -> None:
    """Products of today do it themselves; what an older set does behind them is done in every micro-batch."""

    def more(micro_batch: int, **training: Any) -> float:
        one, other = (
            estimate(replicas(micro_batch=micro_batch), slow_network(), gpt(kernels=kernels, **each), ASSUMED)
            for each in ({"gradient_sums": "fused"}, training)
        )
        return other.step_seconds - one.step_seconds

    assert (more(1) > 0) == (kernels == "megatron-2021")
    assert more(1, gradient_sums="fused") == 0
    assert more(1, gradient_sums="apart") > 2 * more(4, gradient_sums="apart") > 0
    assert more(1, gradient_sums="apart", precision="bf16") > more(1, gradient_sums="apart") > 0


@pytest.mark.parametrize("micro_batch", [1, 2, 4])
def test_measured_layers_have_no_sums_of_gradients(micro_batch: int) -> None:
    """They come on top, whatever was measured, and not less of them where nothing was."""
    measured = Calibration(layers=tuple(replace(point, tp=1) for point in layer_points()))
    more = []
    for calibration in (ASSUMED, measured):
        fused, apart = (
            estimate(replicas(micro_batch=micro_batch), slow_network(), gpt(gradient_sums=sums), calibration)
            for sums in ("fused", "apart")
        )
        more.append(apart.breakdown.compute_seconds - fused.breakdown.compute_seconds)
    # Where the host is the slower one by formula, a part of them is hidden there.
    assert more[1] >= more[0] * (1 - 1e-3) > 0


def test_a_share_of_a_layer_gets_its_collectives() -> None:
    """One device measured alone knows nothing of its neighbours: plans are longer by the all-reduces."""
    found = []
    for alone in (False, True):
        points = tuple(replace(point, tp=2, without_collectives=alone) for point in layer_points())
        calibration = Calibration(layers=points)
        found.append(
            estimate(replicas(tp=2), slow_network(), gpt(), calibration).breakdown.tensor_parallel_seconds
        )
    assert found[0] == 0 < found[1]


def test_only_rings_ask_the_curves_of_rings() -> None:
    """A tensor-parallel group is told that its sizes lie beyond the measured ones; a lone device and a grid are not."""
    points = tuple(
        LinkPoint(
            link="node:A100", operation=operation, members=4, size_bytes=size, seconds=1e-4 + size / 1e11
        )
        for operation in ("all-reduce", "reduce-scatter", "all-gather")
        for size in (1.0, 10.0)
    )
    calibration, grid = Calibration(link_points=points), Grid(rows=2, columns=2)
    plans = (
        replicas("torch", 0, tp=4),
        replicas("torch", 0),
        replace(replicas("torch", 0, tp=4, micro_batch=2), sequence_parallel=False, grid=grid),
    )
    warned = [
        any("node" in warning for warning in estimate(plan, slow_network(), gpt(), calibration).warnings)
        for plan in plans
    ]
    assert warned == [True, False, False]


def test_deepspeed_sums_gradients_on_every_rank() -> None:
    """With ZeRO 1 it takes three passes around the ring, a runtime that scatters two, as ZeRO 0 does in both.

    They differ in latency besides: 5 us a layer in seconds.
    """
    spec, model = slow_network(), gpt(precision="fp32")
    sync = {
        (target, zero): estimate(
            replicas(target, zero), spec, model, Calibration(frameworks={target: Framework(overlap=0.0)})
        ).breakdown.gradient_sync_seconds
        for target in ("deepspeed", "megatron")
        for zero in (0, 1)
    }
    assert sync["deepspeed", 1] == pytest.approx(1.5 * sync["deepspeed", 0], rel=1e-4)
    assert sync["megatron", 1] == pytest.approx(sync["megatron", 0], rel=1e-4)


def test_padding_takes_a_sequence_and_all_wait_for_the_slowest() -> None:
    """ZeRO 2 and 3: a replica with fewer micro-batches runs one sequence in the others' last ones."""
    spec = cluster(pool("fast", nodes=1), pool("slow", nodes=1, gpu="V100"))
    model = gpt(4, 512, 8, global_batch=9, precision="fp16")

    def padded(steps: int, zero: int) -> Plan:
        groups = (
            ReplicaGroup(pool="fast", gpu="A100", tp=1, count=1, local_batch=6, accumulation_steps=3),
            ReplicaGroup(pool="slow", gpu="V100", tp=1, count=1, local_batch=3, accumulation_steps=steps),
        )
        stage = Stage(first_layer=0, end_layer=4, replicas=groups)
        return Plan(target="deepspeed", zero=zero, stages=(stage,))

    estimator = Estimator(spec, model)
    for zero in (2, 3):
        [even] = estimator.price(padded(3, zero)).stages
        [other] = estimator.price(padded(1, zero)).stages
        fast, slow = (item.forward_seconds + item.backward_seconds for item in other.micro_batches)
        one = even.micro_batches[1].forward_seconds + even.micro_batches[1].backward_seconds
        assert slow > one > 0
        assert other.work_seconds == pytest.approx(max(fast, slow) + 2 * max(fast, one))
    [alone] = estimator.price(padded(1, 1)).stages
    fast, slow = (item.forward_seconds + item.backward_seconds for item in alone.micro_batches)
    assert alone.work_seconds == pytest.approx(max(3 * fast, slow))


def test_deepspeed_adds_tied_gradients_up_first() -> None:
    """The last stage reduces its gradients only once the first has ended; Megatron's does as soon as it can."""
    spec = cluster(
        pool("fast", nodes=2, per_node=1, cards=1, gbps=1), pool("slow", nodes=2, per_node=1, cards=1, gbps=1)
    )
    model = gpt(8, 1024, 16, global_batch=16)
    groups = [
        ReplicaGroup(pool=name, gpu="A100", tp=1, count=2, local_batch=8, accumulation_steps=4)
        for name in ("fast", "slow")
    ]
    stages = (
        Stage(first_layer=0, end_layer=2, replicas=(groups[0],)),
        Stage(first_layer=2, end_layer=8, replicas=(groups[1],)),
    )
    estimator = Estimator(spec, model)
    for target, waits in (("deepspeed", True), ("megatron", False)):
        plan = Plan(target=target, zero=0, stages=stages)
        priced = estimator.price(plan)
        first, last = stage_ends(priced.forward, priced.backward, plan.micro_batches)
        assert first > last
        begin = first if waits else last
        end = max(first + priced.stages[0].tail_seconds, begin + priced.stages[1].tail_seconds)
        assert estimator.estimate(plan).step_seconds == pytest.approx(end)
        assert end == pytest.approx(begin + priced.stages[1].tail_seconds)


def test_replicas_of_a_stage_that_cannot_talk() -> None:
    """The estimate refuses them by the number of the stage."""
    spec = cluster(pool("a", fabric="ib"), pool("b", fabric="roce"))
    groups = tuple(
        ReplicaGroup(pool=name, gpu="A100", tp=1, count=8, local_batch=4, accumulation_steps=4)
        for name in "ab"
    )
    plan = Plan(target="megatron", zero=0, stages=(Stage(first_layer=0, end_layer=24, replicas=groups),))
    with pytest.raises(PlanError, match=r"stages\[0\]: its replicas stand on pools without a common fabric"):
        estimate(plan, spec, gpt(global_batch=64))


@pytest.mark.parametrize(
    ("training", "said"),
    [
        ({"attention": "unfused"}, True),
        ({"attention": "unfused", "kernels": "megatron"}, False),
        ({"attention": "unfused", "kernels": "megatron-2021"}, False),
        ({}, False),
    ],
)
def test_kernels_that_unfused_attention_stands_for_are_warned_of(
    training: dict[str, Any], said: bool
) -> None:
    """Constants of 2021 are nobody's guess of software that is installed today."""
    spec, _, plan = two_pools()
    found = estimate(plan, spec, gpt(global_batch=64, **training)).warnings
    line = "unfused attention is priced with megatron's kernels of its time (megatron-2021): write kernels: megatron "
    assert any(each.startswith(line) for each in found) == said


def test_kernels_that_a_runtime_lacks_are_warned_of() -> None:
    """The training section names a kernel set for all runtimes, and each has its own."""
    spec, model, plan = two_pools()
    for kernels, warned in (("megatron-2021", False), ("torch-compiled", True), (None, False)):
        training = model.training.model_copy(update={"kernels": kernels})
        found = estimate(plan, spec, model.model_copy(update={"training": training})).warnings
        assert any("no kernel set" in line for line in found) == warned


@pytest.mark.parametrize("kernels", ["megatron", "megatron-2021"])
def test_chunks_send_beside_computation_where_the_kernel_set_does(kernels: str) -> None:
    """Megatron-Core's interleaved stages wait for a part of the bytes, those of 2021 for all of them."""
    one = gpt(layers=8, hidden=2048, heads=16)
    model = one.model_copy(update={"training": one.training.model_copy(update={"kernels": kernels})})
    pricer = Estimator(cluster(pool("a", nodes=2, per_node=2)), model, shipped()).pricer("megatron")
    whole = boundary_bytes(model, 1)
    assert exposed_bytes(pricer, 1, 1) == whole
    hidden = shipped().framework("megatron").overlap if kernels == "megatron" else 0.0
    assert exposed_bytes(pricer, 1, 2) == pytest.approx(whole * (1 - hidden))


@pytest.mark.parametrize(("target", "times"), [("torch", 2), ("megatron", 1)])
def test_every_device_of_torch_sends_what_is_not_split_by_tokens(target: str, times: int) -> None:
    """With tp 2 twice the bytes; by tokens, and with Megatron, each sends a part."""
    group = ReplicaGroup(pool="a", gpu="A100", tp=2, count=1, local_batch=64, accumulation_steps=64)
    own = (replace(group), replace(group, pool="b"))
    stages = tuple(
        Stage(first_layer=12 * index, end_layer=12 * index + 12, replicas=(each,))
        for index, each in enumerate(own)
    )
    plan = Plan(target=target, zero=0, stages=stages)
    spec = cluster(pool("a", per_node=2), pool("b", per_node=2))
    calibration = Calibration(links={"infiniband": Link(efficiency=1e-3)})
    estimator = Estimator(spec, gpt(global_batch=64), calibration)
    whole, parts = (
        estimator.estimate(replace(plan, sequence_parallel=split)).stages[0].send_seconds
        for split in (False, True)
    )
    assert whole == pytest.approx(times * parts, rel=1e-3)


def test_devices_that_a_plan_leaves_idle_cost_nothing() -> None:
    """Not even those whose hosts are slower, where hosts handle parts of what ZeRO 3 gathers."""
    families = {"A100": "fast", "V100": "slow"}
    gpus = {name: GPUS[name].model_copy(update={"family": family}) for name, family in families.items()}
    hosts = {"fast": GpuFamily(launch_seconds=1e-5), "slow": GpuFamily(launch_seconds=1e-3)}
    group = ReplicaGroup(pool="a", gpu="A100", tp=1, count=8, local_batch=8, accumulation_steps=8)
    stage = Stage(first_layer=0, end_layer=24, replicas=(group,))
    plan = Plan(target="deepspeed", zero=3, stages=(stage,))
    alone, beside = (
        estimate(
            plan, cluster(*pools, gpus=gpus), gpt(global_batch=64), Calibration(families=hosts)
        ).step_seconds
        for pools in ((pool("a"),), (pool("a"), pool("b", "V100")))
    )
    assert alone == beside
