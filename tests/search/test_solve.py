"""The search as a whole: determinism, invariants, limits, interrupts, reasons."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from unittest.mock import patch

import pytest

from planner.calibration.values import ASSUMED
from planner.catalog import GpuSpec
from planner.cluster.file import load_cluster
from planner.cluster.spec import ClusterSpec
from planner.cost.estimate import Estimator
from planner.errors import UsageError
from planner.model.file import load_model
from planner.model.spec import ExpertsSpec, LoraSpec, ModelSpec
from planner.plan.checks import faults
from planner.search.deadline import Deadline
from planner.search.explorer import Explorer
from planner.search.incumbent import Incumbent
from planner.search.solve import _share_nothing, search
from planner.search.values import Goal, Limits, Scored, SearchResult, Silent
from planner.units import gib_from_bytes
from tests.files.writing import CLUSTERS, MODELS
from tests.quick import every
from tests.worlds import GPUS, cluster, gpt, group, plan, pool


def problem() -> tuple[ClusterSpec, ModelSpec]:
    """Two A100 and two V100 with a model of four layers."""
    return cluster(pool("a", per_node=2), pool("b", "V100", per_node=2)), gpt(4, 512, 8, global_batch=8)


@pytest.fixture(scope="module")
def result() -> SearchResult:
    """The search of ``problem`` with its reasons."""
    return search(*problem())


def test_the_result_is_proven(result: SearchResult) -> None:
    """Optimal within the gap, bound below the plan."""
    assert result.status == "optimal"
    assert result.best is not None
    assert result.bound_seconds <= result.best.estimate.step_seconds
    assert 0 <= result.gap <= 0.01 + 1e-12
    assert result.candidates >= result.solved > 0


def test_every_family_has_a_plan_or_a_reason(result: SearchResult) -> None:
    """The chosen one first; no other is faster than the gap allows."""
    assert result.alternatives[0].chosen
    assert result.best is not None
    names = [item.family for item in result.alternatives]
    assert len(set(names)) == len(names) > 5
    for item in result.alternatives[1:]:
        assert item.reason
        if item.scored is not None:
            assert item.scored.estimate.step_seconds >= result.bound_seconds * (1 - 1e-9)


def test_limits_are_obeyed() -> None:
    """Pinned choices come back as asked."""
    spec, model = problem()
    found = search(
        spec, model, limits=Limits(target="megatron", tp=(2,), pp=(2,), recompute=("full",)), explain=False
    )
    assert found.best is not None
    plan = found.best.plan
    assert (plan.target, plan.pp, plan.stages[0].recompute) == ("megatron", 2, "full")
    assert {group.tp for stage in plan.stages for group in stage.replicas} == {2}
    with pytest.raises(UsageError, match="unknown target"):
        search(spec, model, limits=Limits(target="horovod"))


def test_advice_names_the_feature() -> None:
    """Twice the degree on the slow type: Megatron has one degree for all stages, FlagScale one for each."""
    small = GpuSpec(name="V14", memory_gib=14, memory_bandwidth_gBps=900, tflops={"fp16": 125})
    spec = cluster(pool("a", per_node=2), pool("b", "V14", nodes=2, per_node=2), gpus={"V14": small})
    model = gpt(16, 4096, 32, global_batch=32, sequence_length=2048)
    model = model.model_copy(update={"tied_embeddings": False})
    found = search(spec, model, limits=Limits(target="megatron", zero=(1,), recompute=("none", "full")))
    assert found.best is not None
    advice = {item.target: item for item in found.advice}
    assert "tp 1 dp 2 on a, tp 2 dp 2 on b" in advice["flagscale"].change
    for item in found.advice:
        assert item.faster >= 0.01
        assert item.scored.estimate.step_seconds < found.best.estimate.step_seconds


def test_nothing_fits_and_why() -> None:
    """Causes add up, the nearest miss has its number, hints were tried."""
    found = search(cluster(pool("a", "V100", per_node=2, nodes=2)), gpt(40, 5120, 40, global_batch=8))
    assert found.status == "infeasible"
    assert found.best is None
    assert found.diagnosis is not None
    assert "model states take" in found.diagnosis.causes[0]
    assert "lacks" in found.diagnosis.nearest_miss
    assert any("more nodes in pool a" in hint for hint in found.diagnosis.hints)
    assert any("layers" in hint for hint in found.diagnosis.hints)


def test_no_device_has_the_number_format() -> None:
    """Infeasible, with the devices named."""
    found = search(cluster(pool("b", "V100")), gpt(precision="bf16"))
    assert found.diagnosis is not None
    assert found.diagnosis.causes == ("V100 cannot be used: no bf16",)
    assert [hint.split(": about")[0] for hint in found.diagnosis.hints][:2] == [
        "fits with --precision fp16",
        "fits with --precision fp32",
    ]
    old = GPUS["V100"].model_copy(update={"compute_capability": 7.0})
    routed = gpt(4, 1024, 8, token_dispatcher="deepep").model_copy(
        update={"experts": ExpertsSpec(number=8, top_k=2, ffn=512)}
    )
    found = search(cluster(pool("b", "V100"), gpus={"V100": old}), routed)
    assert found.diagnosis is not None
    assert found.diagnosis.causes == ("V100 cannot be used: no deepep",)
    assert found.diagnosis.hints[0].startswith("fits with training.token_dispatcher: alltoall: about ")


def test_layers_are_not_recomputed_whole_beside_another_micro_batch() -> None:
    """Experts are divided, layers recomputed, or all-to-alls run beside computation: two of the three."""
    spec = gpt(4, 1024, 8, expert_overlap=True).model_copy(
        update={"experts": ExpertsSpec(number=8, top_k=2, ffn=512)}
    )
    limits = Limits(target="megatron", recompute=("full",), ep=(8,))
    found = search(cluster(pool("a", "A100")), spec, limits=limits)
    assert found.diagnosis is not None
    assert [hint.split(": about")[0] for hint in found.diagnosis.hints] == [
        "fits with --recompute none instead of --recompute full",
        "fits with --ep 1 instead of --ep 8",
        "fits with training.expert_overlap: false",
    ]


def test_no_target_trains_in_the_number_format() -> None:
    """DeepSpeed has no fp8: nothing to search, while Megatron and torch have plans."""
    fast = GpuSpec(
        name="H100", memory_gib=80, memory_bandwidth_gBps=3350, tflops={"bf16": 989, "fp16": 989, "fp8": 1979}
    )
    spec = cluster(pool("h", "H100", per_node=2), gpus={"H100": fast})
    model = gpt(4, 1024, 8, global_batch=8, precision="fp8")
    refused = search(spec, model, limits=Limits(target="deepspeed"))
    assert refused.status == "infeasible"
    assert refused.diagnosis is not None
    assert refused.diagnosis.causes == ("deepspeed does not train in fp8, it can: bf16, fp16, fp32, tf32",)
    found = search(spec, model, explain=False)
    assert found.best is not None
    assert found.best.plan.target == "megatron"
    eager = search(spec, model, limits=Limits(target="torch"), explain=False)
    assert eager.best is not None
    packed = model.trained_with(lora=LoraSpec(rank=8, base="nf4"))
    unwritten = search(spec, packed, limits=Limits(target="torch")).diagnosis
    assert unwritten is not None
    assert unwritten.causes == (
        "training four bits in fp8 with torch is priced, but hetplan writes no launch files for it",
    )
    assert unwritten.hints == ("with training.precision bf16, fp16 there is something to search",)
    old = search(cluster(pool("a", per_node=2)), packed, limits=Limits(target="torch")).diagnosis
    assert old is not None
    assert old.causes == (*unwritten.causes, "A100 cannot be used: no fp8")
    assert old.hints == ("with training.precision bf16, fp16, fp32 there is something to search",)


@pytest.mark.parametrize(
    ("target", "changes", "cause", "others"),
    [
        (
            "flagscale",
            {},
            "flagscale trains no encoders, expected a decoder",
            "deepspeed or megatron or torch",
        ),
        (
            "megatron",
            {"learned_positions": 0},
            "megatron trains encoders with learned positions and without grouped-query attention only",
            "deepspeed or torch",
        ),
        (
            "megatron",
            {"kv_heads": 4},
            "megatron trains encoders with learned positions and without grouped-query attention only",
            "deepspeed or torch",
        ),
    ],
)
def test_an_encoder_that_the_target_does_not_train(
    target: str, changes: dict[str, int], cause: str, others: str
) -> None:
    """That is the whole cause, and the targets that train it are named; no device would help."""
    model = gpt(4, 1024, 8, global_batch=8).model_copy(
        update={"kind": "encoder", "learned_positions": 2048, **changes}
    )
    found = search(cluster(pool("a", per_node=2)), model, limits=Limits(target=target)).diagnosis
    assert found is not None
    assert (found.causes, found.nearest_miss) == ((cause,), "no plan can be formed")
    assert found.hints == (f"it can be trained with --target {others}",)


def test_a_time_limit_keeps_the_best_plan() -> None:
    """Feasible with an honest gap."""
    spec, model = cluster(pool("a", nodes=8), pool("b", "V100", nodes=8)), gpt(48, 8192, 64, global_batch=512)
    found = search(spec, model, limits=Limits(time_limit_seconds=1.0), explain=False)
    assert found.seconds < 15
    assert found.status in ("feasible", "optimal")
    assert found.best is not None


def test_an_interrupt_keeps_the_best_plan() -> None:
    """Ctrl-C in the middle: the incumbent and a valid bound."""

    class Impatient(Silent):
        def progress(
            self, *, done: int, total: int, best_seconds: float | None, bound_seconds: float
        ) -> None:
            if best_seconds is not None:
                raise KeyboardInterrupt

    spec, model = problem()
    found = search(spec, model, limits=Limits(gap=0.0), reporter=Impatient())
    assert found.interrupted
    assert found.best is not None
    assert found.status == "feasible"
    assert found.bound_seconds <= found.best.estimate.step_seconds


def small_problem() -> tuple[ClusterSpec, ModelSpec]:
    """Two A100 and two V100."""
    return cluster(pool("a", per_node=2), pool("b", "V100", per_node=2)), gpt(8, 1024, 8, global_batch=8)


@cache
def fastest() -> Scored:
    """The exact answer for ``small_problem``."""
    best = search(*small_problem(), limits=Limits(gap=0.0), explain=False).best
    assert best is not None
    return best


PLACES = {
    "_open_groups": (1, 3),
    "_first_plans": (1,),
    "_expand_family": (1, 3, 8),
    "_solve": (1, 3, 8),
    "_devices_of": (1, 3, 8),
}
"""Methods of the explorer, and by which of their calls the user has had enough."""


@pytest.mark.parametrize(
    ("place", "calls"), every(2, [(place, calls) for place in PLACES for calls in PLACES[place]])
)
def test_an_interrupt_anywhere_leaves_a_valid_bound(place: str, calls: int) -> None:
    """Work that is cut off is neither on the heap nor closed; its bound still counts."""
    original, left = getattr(Explorer, place), iter(range(calls - 1))

    def cut(self: Explorer, *args: object) -> object:
        if next(left, None) is None:
            raise KeyboardInterrupt
        return original(self, *args)

    with patch.object(Explorer, place, cut):
        found = search(*small_problem(), limits=Limits(gap=0.0), explain=False)
    assert found.interrupted
    assert found.bound_seconds <= fastest().estimate.step_seconds * (1 + 1e-6)


def test_a_batch_that_nothing_divides_is_kept_exactly() -> None:
    """61 sequences on 8 devices: shares differ by device, the sum is 61."""
    found = search(cluster(pool("a")), gpt(global_batch=61), explain=False)
    assert found.best is not None
    assert found.best.plan.global_batch == 61


def test_quick_plans_are_plans() -> None:
    """The first incumbent fits and is not faster than the optimum."""
    spec, model = small_problem()
    explorer = Explorer(Estimator(spec, model), Limits(), Silent())
    quick = explorer.quick()
    assert quick is not None
    assert fastest().estimate.step_seconds <= quick.estimate.step_seconds * (1 + 1e-6)


def test_a_model_that_fits_with_offload_alone() -> None:
    """Kept in host memory where nothing fits without, and said; forbidden, it is the first thing that would help."""
    spec = load_cluster(CLUSTERS / "rtx_3090_4090.yaml")
    model = load_model(MODELS / "mistral_7b.yaml")
    found = search(spec, model, explain=False)
    assert found.status == "optimal"
    assert found.best is not None
    assert found.best.plan.offload.optimizer == "cpu"
    assert "nothing fits on the devices alone (proven)" in found.warnings[0]
    refused = search(spec, model, limits=Limits(offload=("none",)))
    assert refused.status == "infeasible"
    assert refused.diagnosis is not None
    first, second, *_ = refused.diagnosis.hints
    assert first.startswith("fits with --offload optimizer instead of --offload none: about ")
    assert second.startswith("fits with training.lora: {rank: 16}, which trains adapters alone: about ")


@pytest.mark.parametrize("target", ["megatron", "deepspeed", "torch"])
def test_a_device_alone_that_keeps_states_on_its_host_has_the_stage_for_it(target: str) -> None:
    """No target offloads with every ZeRO stage, though all are one plan otherwise."""
    spec = load_cluster(CLUSTERS / "rtx_3090_4090.yaml")
    alone = spec.pools[0].model_copy(update={"devices": ("RTX-3090",), "hosts": ("a",)})
    spec = spec.model_copy(update={"pools": (alone,)})
    model = load_model(MODELS / "gpt_neo_2.7b.yaml").trained_with(global_batch=8)
    found = search(spec, model, limits=Limits(target=target), explain=False)
    assert found.best is not None
    assert found.best.plan.offload.anything
    assert not faults(found.best.plan, spec, model)


def test_a_base_in_four_bits_that_fits_in_host_memory_alone() -> None:
    """Llama 2 70B on two RTX 3090 with 128 GiB of host memory: codes in shards there, gathered layer by layer."""
    spec = load_cluster(CLUSTERS / "rtx_3090_4090.yaml")
    pair = spec.pools[0].model_copy(update={"devices": ("RTX-3090",) * 2})
    spec = spec.model_copy(update={"pools": (pair,)})
    lora = LoraSpec(rank=64, base="nf4")
    model = load_model(MODELS / "llama_70b.yaml").trained_with(
        sequence_length=2048, global_batch=32, lora=lora
    )
    found = search(spec, model, explain=False)
    assert found.best is not None
    chosen = found.best.plan
    assert (chosen.target, chosen.zero, chosen.offload.parameters) == ("torch", 3, "cpu")
    refused = search(spec, model, limits=Limits(offload=("none",)))
    assert refused.diagnosis is not None
    # DeepSpeed, which has whole codes, lacks 29.
    assert float(refused.diagnosis.nearest_miss.split(" lacks ")[1].split()[0]) < 12
    first, *_ = refused.diagnosis.hints
    assert first.startswith("fits with --offload optimizer,parameters instead of --offload none: about ")


@pytest.mark.parametrize(
    ("layers", "said"), [(32, "nothing fits on the devices alone (proven)"), (18, "was found in time")]
)
def test_no_time_to_prove_that_nothing_fits_without_offload(layers: int, said: str) -> None:
    """Something that runs is better than nothing; what was not proven is not said.

    Where the states of training alone are too large for all devices, no time is needed to prove it.
    """
    spec = load_cluster(CLUSTERS / "rtx_3090_4090.yaml")
    model = load_model(MODELS / "mistral_7b.yaml").model_copy(update={"layers": layers})
    at_once = search(spec, model, deadline=Deadline.after(0.0))
    assert at_once.status == "feasible"
    assert at_once.best is not None
    assert at_once.best.plan.offload.anything
    assert said in at_once.warnings[0]
    proven = search(spec, model, explain=False)
    assert proven.best is not None
    assert at_once.bound_seconds <= proven.best.estimate.step_seconds <= at_once.best.estimate.step_seconds


def test_what_is_not_known_to_fit_nowhere_is_not_diagnosed() -> None:
    """The states would fit, and there was no time to look further."""
    spec = cluster(pool("a", "V100", per_node=1), pool("b", "V100", per_node=2))
    deepspeed = Limits(target="deepspeed", offload=("none",))
    found = search(spec, gpt(25, 4096, 32, global_batch=8), limits=deepspeed, deadline=Deadline.after(0.0))
    assert (found.status, found.best, found.diagnosis) == ("unknown", None, None)


def test_plans_of_other_runtimes_obey_the_limits_too() -> None:
    """FlagScale begins with them: one whose micro-batches are not among those allowed ends no search."""
    asked = Limits(target="flagscale", micro_batch=(2, 8))
    none, some = (
        search(cluster(pool("a", per_node=1)), gpt(4, global_batch=batch), limits=asked, explain=False)
        for batch in (7, 12)
    )
    assert (none.status, none.best) == ("infeasible", None)
    assert some.status == "optimal"
    assert some.best is not None
    assert some.best.plan.stages[0].replicas[0].micro_batch == 2


def test_adapters_need_no_offload() -> None:
    """In three stages nothing is recomputed, as in one stage on each device it has to be."""
    spec = load_cluster(CLUSTERS / "rtx_3090_4090.yaml")
    found, alone = (
        search(spec, load_model(MODELS / "mistral_7b_lora.yaml"), limits=asked, explain=False)
        for asked in (Limits(), Limits(pp=(1,)))
    )
    assert found.best is not None
    assert alone.best is not None
    assert not found.best.plan.offload.anything
    assert [(stage.dp, stage.recompute) for stage in found.best.plan.stages] == [(1, "none")] * 3
    assert alone.best.plan.stages[0].recompute == "full"
    assert found.best.estimate.step_seconds < 0.8 * alone.best.estimate.step_seconds
    assert "schedules that divide the backward with adapters" in found.outside
    assert not any(what.startswith("tensor parallelism with ") for what in found.outside)
    refused = search(spec, load_model(MODELS / "mistral_7b_lora.yaml"), limits=Limits(target="megatron"))
    assert refused.diagnosis is not None
    assert refused.diagnosis.causes == (
        "training adapters with megatron is priced, but hetplan writes no launch files for it",
    )


def test_what_a_node_needs_of_host_memory_is_that_of_the_fullest(tmp_path: Path) -> None:
    """Not of all nodes of the pool together; stages that share a node add up."""
    path = tmp_path / "cluster.yaml"
    path.write_text(
        "name: two\npools: [{name: a, gpu: A100-SXM-80GB, nodes: 2, gpus_per_node: 2, intra_node: nvlink3,\n"
        "  nics: [{fabric: ib, bandwidth_gbps: 200}]}]\nfabrics: {ib: {kind: infiniband}}\n"
    )
    limits = Limits(target="megatron", pp=(4,), tp=(1,), offload=("optimizer",))
    found = search(load_cluster(path), load_model(MODELS / "llama_7b.yaml"), limits=limits, explain=False)
    assert found.best is not None
    stages = found.best.estimate.stages
    each = [group.memory.host_bytes for stage in stages for group in stage.groups]
    assert len(each) == 4
    fullest = gib_from_bytes(max(each[0] + each[1], each[2] + each[3]))
    assert fullest < 0.75 * gib_from_bytes(sum(each))
    said = f"a node of a needs {fullest:.0f} GiB of host memory"
    told = found.best.estimate.warnings
    assert any(line.startswith(said) for line in told), (said, told)


@pytest.mark.parametrize(("allowed", "zero"), [(None, 0), ((2, 3), 2), ((3,), 3)])
def test_stages_of_one_device_share_nothing(allowed: tuple[int, ...] | None, zero: int) -> None:
    """All ZeRO stages are one plan there, which the answer calls by the lowest that may be."""
    spec = cluster(pool("a", per_node=1), pool("b", "V100", per_node=1))
    stages = [(group(name, gpu, share=8, steps=8),) for name, gpu in (("a", "A100"), ("b", "V100"))]
    estimator = Estimator(spec, gpt(4, global_batch=8, precision="fp16"), ASSUMED)
    found = plan("torch", 3, [3, 1], stages)
    answer = Incumbent(Limits(zero=allowed), Goal())
    assert answer.offer(Scored(plan=found, estimate=estimator.estimate(found)))
    _share_nothing(answer, estimator)
    assert answer.best is not None
    assert answer.best.plan == replace(found, zero=zero)


def test_the_gap_is_that_of_the_answer() -> None:
    """Also where the ZeRO stage that the answer is called by is faster than all that the search had met."""

    def faster(answer: Incumbent, _: Estimator) -> None:
        assert answer.best is not None
        estimate = answer.best.estimate
        answer.best = replace(answer.best, estimate=replace(estimate, step_seconds=estimate.step_seconds / 2))

    with patch("planner.search.solve._share_nothing", faster):
        found = search(*problem(), explain=False)
    assert found.best is not None
    assert found.bound_seconds == found.best.estimate.step_seconds
    assert (found.gap, found.status) == (0.0, "optimal")


def test_stages_of_several_devices_keep_their_shares() -> None:
    """Plain copies are as fast here, and need more memory."""
    spec = cluster(pool("a"))
    estimator = Estimator(spec, gpt(4, global_batch=8, precision="fp16"), ASSUMED)
    found = plan("torch", 1, [4], [(group("a", "A100", count=8, share=1),)])
    answer = Incumbent(Limits(), Goal())
    assert answer.offer(Scored(plan=found, estimate=estimator.estimate(found)))
    _share_nothing(answer, estimator)
    assert answer.best is not None
    assert answer.best.plan == found
