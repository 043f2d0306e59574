"""What the diagnosis leaves untried: only what has no room for the model states whatever a plan does."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from planner.capabilities import OFFLOAD_PARTS, OffloadPart
from planner.catalog import gpu_spec
from planner.cluster.spec import HostSpec
from planner.cost.estimate import Estimator
from planner.model.spec import ExpertsSpec, LoraSpec, PreferenceSpec
from planner.search.deadline import Deadline
from planner.search.explain.diagnose import _describe, _nearest_miss, _Trial, diagnose
from planner.search.explain.neighbours import all_neighbours
from planner.search.incumbent import obeys
from planner.search.solve import search
from planner.search.values import Goal, Limits
from tests.cases import VIEW
from tests.quick import every
from tests.worlds import cluster, gpt, pool, small_problem


def test_two_changes_where_none_alone_is_enough() -> None:
    """Adapters on four bits need more than this card and its host have, and all weights more than any other card."""
    alone = {"host": HostSpec(memory_gib=32), "nics": ()}
    box = pool("box", "RTX-3090", per_node=1, nodes=1).model_copy(update=alone)
    large = gpt(96, 8192, 64, precision="bf16", sequence_length=512)
    on = cluster(box, gpus={"RTX-3090": gpu_spec("RTX-3090")})
    hints = diagnose(Estimator(on, large), Limits(offload=OFFLOAD_PARTS)).hints
    adapters = "training.lora: {rank: 16, base: nf4-double}, which trains adapters alone"
    assert re.fullmatch(rf"fits with .* in place of every device and {re.escape(adapters)}", hints[0])
    assert not any(hint.startswith("fits with training.lora") for hint in hints)


def test_no_time_leaves_causes_alone() -> None:
    """One deadline ends all trials."""
    spec, _ = small_problem(1)
    found = diagnose(Estimator(spec, gpt(96, 12288, 96)), Limits(), Deadline.after(0.0))
    assert found.causes
    assert found.hints == ()


DEGREES = [
    (Limits(cp=(16,)), "--cp 16 needs at least 16 devices and there are 8"),
    (Limits(tp=(16, 32)), "--tp 16,32 needs at least 16 devices and there are 8"),
    (Limits(pp=(9,)), "--pp 9 needs at least 9 devices and there are 8"),
    (Limits(tp=(4,), pp=(4,)), "--pp 4 with --tp 4 needs at least 16 devices and there are 8"),
    (Limits(tp=(2,), cp=(8,), pp=(1,)), "--tp 2 with --cp 8 needs at least 16 devices and there are 8"),
    (Limits(tp=(3,)), "--tp 3 does not divide the 16 attention heads"),
    (Limits(tp=(3, 5)), "--tp 3,5 are no degrees of gpt (tp 3 does not divide the 16 attention heads)"),
    (Limits(zero=(3,), target="megatron"), "megatron cannot train this model with --zero 3"),
    (
        Limits(recompute=("selective",), target="deepspeed"),
        "deepspeed cannot train this model with --recompute selective",
    ),
]


@pytest.mark.parametrize(("limits", "cause"), every(6, DEGREES), ids=[cause for _, cause in DEGREES])
def test_a_limit_that_no_plan_keeps_is_the_whole_cause(limits: Limits, cause: str) -> None:
    """Whatever memory there is; what to write in its place is still found."""
    found = diagnose(Estimator(cluster(pool("a")), gpt()), limits)
    assert found.causes == (cause,)
    assert any(hint.startswith("fits with --") for hint in found.hints)


def test_limits_on_experts() -> None:
    """Degrees of experts are over the devices of a stage, too."""
    experts = ExpertsSpec(number=32, top_k=2, ffn=512)
    estimator = Estimator(cluster(pool("a")), gpt().model_copy(update={"experts": experts}))
    (cause,) = diagnose(estimator, Limits(ep=(16,)), Deadline.after(0.0)).causes
    assert cause == "--ep 16 needs at least 16 devices and there are 8"
    (cause,) = diagnose(estimator, Limits(ep=(8,), etp=(2,), tp=(4,)), Deadline.after(0.0)).causes
    assert cause == "--ep 8 with --etp 2 needs at least 16 devices and there are 8"
    (cause,) = diagnose(estimator, Limits(ep=(1, 2), etp=(1,), tp=(4,)), Deadline.after(0.0)).causes
    assert cause == "--ep 1,2 with --etp 1 is no multiple of --tp 4: whole replicas share experts"


def test_replicas_that_no_target_divides() -> None:
    """The limit is the cause, with what stands in its way where that is known, not memory."""
    on, one = cluster(pool("a", nodes=2)), gpt()
    experts = one.model_copy(update={"experts": ExpertsSpec(number=32, top_k=2, ffn=512)})
    pairs = one.trained_with(preference=PreferenceSpec())
    sees = one.model_copy(update={"tower": VIEW})
    for model, limits, cause in (
        (
            one,
            Limits(tp=(16,), target="flagscale"),
            "--tp 16 is wider than a node: replicas of at most 8 devices are searched",
        ),
        (
            experts,
            Limits(tp=(4,), target="deepspeed"),
            "deepspeed cannot train this model with --tp 4: no tensor parallelism with experts",
        ),
        (
            pairs,
            Limits(tp=(2,)),
            "deepspeed and torch cannot train this model with --tp 2: no tensor parallelism with pairs of answers",
        ),
        (
            one.trained_with(lora=LoraSpec(rank=8, base="nf4-double")),
            Limits(tp=(2,)),
            "deepspeed and torch cannot train this model with --tp 2: "
            "no tensor parallelism with adapters on nf4-double",
        ),
        (sees, Limits(tp=(2,)), "torch cannot train this model with --tp 2: torch divides no towers"),
    ):
        assert diagnose(Estimator(on, model), limits, Deadline.after(0.0)).causes == (cause,)
    # Those of other runtimes may fill several nodes.
    causes = diagnose(Estimator(on, one), Limits(tp=(16,)), Deadline.after(0.0)).causes
    assert not any("wider than a node" in cause for cause in causes)


def test_offload_that_no_target_has() -> None:
    """The limit is the cause, with what each target keeps where."""
    on = cluster(pool("a"), gpus={"A100": gpu_spec("A100-SXM-40GB")})
    adapted = gpt().trained_with(lora=LoraSpec(rank=8, base="nf4"))
    keeps = "adapters on four bits on the devices"
    for model, part, target, why in (
        (gpt(), "optimizer", "flagscale", "hetplan knows no offload of flagscale"),
        (gpt(), "optimizer", "torch", "torch offloads parameters and optimizer states together"),
        (
            gpt(optimizer="lion"),
            "optimizer",
            "deepspeed",
            "deepspeed updates with adamw or sgd on hosts, expected none",
        ),
        (adapted, "optimizer", "deepspeed", f"deepspeed keeps {keeps}"),
        (adapted, "activations", "torch", f"torch keeps activations of {keeps}"),
    ):
        limits = Limits(offload=(part,), target=target)  # type: ignore[arg-type]
        (cause,) = diagnose(Estimator(on, model), limits, Deadline.after(0.0)).causes
        assert cause.startswith(f"--offload {part} leaves no plan: {why}")
    unknown = cluster(pool("a"))
    (cause,) = diagnose(Estimator(unknown, gpt()), Limits(offload=("optimizer",), target="deepspeed")).causes
    assert cause == "--offload optimizer leaves no plan: host.link_gBps of a is not given"


def test_deeper_pipelines_than_layers_and_than_are_searched() -> None:
    """Both ends, on devices enough for either."""
    on = cluster(pool("a", nodes=16))
    for layers, pp, cause in (
        (24, 25, "--pp 25 needs at least 25 layers and the model has 24"),
        (80, 65, "--pp 65 is deeper than the 64 stages that are searched"),
    ):
        found = diagnose(Estimator(on, gpt(layers)), Limits(pp=(pp,)), Deadline.after(0.0))
        assert found.causes == (cause,)


def test_limits_that_a_plan_may_keep_are_named_beside_memory() -> None:
    """Where none of them is impossible by itself."""
    limits = Limits(zero=(0,), tp=(1,), pp=(1,))
    *_, cause = diagnose(Estimator(cluster(pool("a")), gpt(36, 4096, 32)), limits, Deadline.after(0.0)).causes
    assert cause == (
        "the states would fit; activations, buffers or the limits --zero 0 --tp 1 --pp 1 rule out every plan"
    )


def test_a_hint_offloads_only_where_its_search_would() -> None:
    """A plan in host memory is faster here, which a search looks at only if nothing fits without."""
    host = HostSpec(memory_gib=1024, link_gBps=32)
    box = pool("box", per_node=2, nics=()).model_copy(update={"host": host})
    model = gpt(42, 8192, 64, sequence_length=4096, global_batch=16, lora=LoraSpec(rank=16))
    on = Estimator(cluster(box), model)
    trial = _Trial(on, Deadline.after(None))
    unasked = trial.plan(on.cluster, model, Limits(offload=OFFLOAD_PARTS))
    hosts = trial.plan(on.cluster, model, Limits(offload=("optimizer", "parameters")))
    assert unasked is not None
    assert hosts is not None
    assert not unasked.plan.offload.anything
    assert hosts.estimate.step_seconds < unasked.estimate.step_seconds


def test_the_step_of_a_hint_is_that_of_no_plan_that_one_change_makes_faster() -> None:
    """Here one with micro-batches four times as large as those of the first plan found."""
    model = gpt(24, 4096, 32)
    on, limits = Estimator(cluster(pool("a", per_node=8)), model), Limits(zero=(0,), tp=(1,))
    scored = _Trial(on, Deadline.after(None)).plan(on.cluster, model, limits)
    assert scored is not None
    around = [entry.scored for entry in all_neighbours(scored.plan, on)]
    able = [each for each in around if each.estimate.fits and obeys(each.plan, limits, Goal())]
    assert able
    assert scored.estimate.step_seconds <= min(each.estimate.step_seconds for each in able)


def test_the_nearest_miss_keeps_the_limit_on_offload() -> None:
    """It lacks most where all stays on the devices (torch's shards rest in fp32 alone), and what hosts lack is told as
    theirs."""
    box, model = pool("box", per_node=1, nics=()), gpt(96, 8192, 64)

    def nearest(host_gib: float, *parts: OffloadPart) -> str:
        host = HostSpec(memory_gib=host_gib, link_gBps=32)
        on = Estimator(cluster(box.model_copy(update={"host": host})), model)
        scored = _nearest_miss(on, Limits(offload=parts), Deadline.after(None))
        assert scored is not None
        return _describe(scored)

    full = "ZeRO-3 data parallel with full recomputation on 1 device"
    assert re.fullmatch(rf"{full} lacks 9\d\d\.\d GiB on A100 in box", nearest(1024, "none"))
    device = r"ZeRO-2 .* device, optimizer offloaded to cpu, lacks 7\d\.\d GiB on A100 in box"
    assert re.fullmatch(device, nearest(2048, "none", "optimizer"))
    host = r"ZeRO-1 .* device, optimizer offloaded to cpu, lacks 9\d\d\.\d GiB of host memory per A100 in box"
    assert re.fullmatch(host, nearest(256, "optimizer"))


def test_further_nodes_are_as_few_as_fit() -> None:
    """Not only the power of two that does."""
    few, model = pool("a", per_node=1, nodes=2), gpt(40, 5120, 40, global_batch=64)
    limits = Limits(target="torch", offload=("none",))

    def fits(nodes: int) -> bool:
        more = cluster(pool("a", per_node=1, nodes=nodes))
        return search(more, model, limits=replace(limits, gap=1.0), explain=False).best is not None

    [hint] = [each for each in diagnose(Estimator(cluster(few), model), limits).hints if " more node" in each]
    added = int(hint.split()[2])
    assert fits(2 + added)
    assert not fits(1 + added)
    assert added not in (2, 6, 14)
