"""Plans against their inputs and their target."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.capabilities import V_SHAPED
from planner.cluster.spec import ClusterSpec, HostSpec
from planner.errors import PlanError
from planner.model.spec import ModelSpec
from planner.plan.checks import check_plan, faults
from planner.plan.values import Offload, Plan, Stage
from tests.plan.examples import CLUSTER, MODEL, UNTIED, group, plan, stage

T4S = {"pool": "slow", "gpu": "T4"}
UNEVEN = (group(local_batch=10, accumulation_steps=2), group(**T4S, local_batch=6, accumulation_steps=2))


WIDE = stage(0, 5, group(tp=2))


def paths(found: Plan, model: ModelSpec = MODEL) -> list[str]:
    """Where a plan is wrong."""
    return [".".join(map(str, fault.path)) for fault in faults(found, CLUSTER, model)]


@pytest.mark.parametrize(
    "good",
    [
        plan(),
        plan(stage(0, 8), zero=0),
        plan(stage(0, 8, group(tp=2)), sequence_parallel=True),
        plan(interleave=2),
        plan(stage(0, 8, *UNEVEN), target="deepspeed", zero=3),
        plan(
            stage(
                0,
                8,
                group(local_batch=10, accumulation_steps=3),
                group(**T4S, local_batch=6, accumulation_steps=2),
            ),
            target="deepspeed",
            zero=1,
        ),
        plan(
            stage(
                0,
                8,
                group(local_batch=10, accumulation_steps=3),
                group(**T4S, local_batch=6, accumulation_steps=2),
            ),
            target="deepspeed",
            zero=3,
        ),
        plan(stage(0, 5), stage(5, 8, group(**T4S, count=4, local_batch=8)), target="flagscale"),
        plan(stage(0, 3), stage(3, 6), stage(6, 8, group(**T4S)), target="flagscale"),
        plan(stage(0, 8, group(tp=4, count=1, local_batch=32))),
    ],
)
def test_plans_that_their_target_runs(good: Plan) -> None:
    """Each shows something that is allowed."""
    check_plan(good, CLUSTER, MODEL)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (plan(stage(0, 7)), "stages[0].layers: the stages hold 7 layers, the model m has 8"),
        (
            plan(stage(0, 8, group(count=1))),
            "stages[0]: the shares add up to 16 sequences, the global batch is 32",
        ),
        (plan(target="horovod"), "target: unknown target 'horovod', expected one of: deepspeed, megatron"),
        (
            plan(stage(0, 8, group(pool="x"))),
            'stages[0].replicas[0].pool: the cluster has no pool "x", it has: slow, fast',
        ),
        (
            plan(stage(0, 8, group(gpu="T4"))),
            'stages[0].replicas[0].gpu: the pool fast has no "T4", it has: A100',
        ),
        (
            plan(stage(0, 8, group(tp=3))),
            "stages[0].replicas[0].tp: tp 3 does not divide the 8 attention heads",
        ),
        (plan(target="deepspeed", zero=2), "zero: deepspeed runs ZeRO 0, 1 in a pipeline, got 2"),
        (plan(stage(0, 8), zero=3), "zero: megatron runs ZeRO 0, 1 without a pipeline, got 3"),
        (
            plan(stage(0, 4, group(tp=2)), stage(4, 8, group(tp=2)), target="deepspeed"),
            "divides layers over groups that know no stages, expected 1 in 2 stages, got 2",
        ),
        (
            plan(stage(0, 5, group(tp=2)), stage(5, 8)),
            "stages[1].replicas[0].tp: megatron has one tp for all, expected 2, got 1",
        ),
        (
            plan(stage(0, 5), stage(5, 8, group(count=4, local_batch=8))),
            "stages[1].replicas: megatron needs as many replicas in every stage, expected 2, got 4",
        ),
        (
            plan(stage(0, 8, *UNEVEN)),
            "needs the same share and steps on every replica, expected 10 and 2, got 6 and 2",
        ),
        (
            plan(stage(0, 8, group(accumulation_steps=3))),
            "stages[0].replicas[0].steps: megatron needs equal micro-batches, 3 steps do not divide 16",
        ),
        (
            plan(stage(0, 5), stage(5, 8, group(accumulation_steps=2)), target="flagscale"),
            "a pipeline runs in lock-step, expected 4 steps",
        ),
        (
            plan(stage(0, 5), stage(5, 8, *UNEVEN), target="flagscale"),
            "flagscale needs the same share on every replica of a stage",
        ),
        (
            plan(target="deepspeed", interleave=2),
            "interleave: deepspeed cannot interleave, expected 1, got 2",
        ),
        (plan(stage(0, 8), interleave=2), "interleave: interleaving needs a pipeline of at least 2 stages"),
        (
            plan(stage(0, 3), stage(3, 6), stage(6, 8), interleave=2),
            "interleave: interleaving needs a multiple of 3 micro-batches",
        ),
        (plan(schedule="zero-bubble"), "schedule: megatron has 1f1b, got zero-bubble"),
        (
            plan(stage(0, 8), target="torch", schedule="zero-bubble"),
            "schedule: zero-bubble needs a pipeline of at least 2 stages, expected 1f1b",
        ),
        (
            plan(stage(0, 3), stage(3, 6), stage(6, 8), target="torch", schedule="zero-bubble"),
            "schedule: zero-bubble needs a multiple of 3 micro-batches (one for each stage), the plan has 4",
        ),
        (
            plan(target="torch", schedule="zero-bubble", fewer_steps=1),
            "schedule: zero-bubble needs as many micro-batches in all replicas, 1 have one fewer",
        ),
        (
            plan(target="torch", interleave=2, fewer_steps=1),
            "interleave: interleaving needs as many micro-batches in all replicas, 1 have one fewer",
        ),
        (
            plan(target="torch", zero=2, schedule="zero-bubble"),
            "zero: zero-bubble with torch keeps whole gradients until the end of a step, expected 0 or 1, got 2",
        ),
        (
            plan(stage(0, 5), stage(5, 8, recompute="full"), target="torch", schedule="zero-bubble"),
            "stages[1].recompute: zero-bubble runs backward in two parts, each of which would recompute, expected none",
        ),
        (
            plan(target="torch", zero=1, schedule="zero-bubble", offload=Offload(optimizer="cpu")),
            "offload: zero-bubble keeps all on the device",
        ),
        (
            plan(target="torch", schedule="zb-v"),
            "interleave: zb-v has two chunks of layers on each device, expected 2, got 1",
        ),
        (
            plan(stage(0, 3), stage(3, 6), stage(6, 8), target="torch", schedule="dualpipe-v", interleave=2),
            "schedule: dualpipe-v needs at least 6 micro-batches (two for each stage), the plan has 4",
        ),
        (
            plan(target="torch", schedule="zb-v", interleave=2, fewer_steps=1),
            "schedule: zb-v needs as many micro-batches in all replicas, 1 have one fewer",
        ),
        (
            plan(stage(0, 8, recompute="selective"), target="deepspeed"),
            "stages[0].recompute: deepspeed recomputes none, full, got selective",
        ),
        *(
            (
                plan(stage(0, 8, group(count=4, local_batch=8)), target=target, zero=1, shard_size=2),
                f"shard_size: {target} shards over all replicas of a stage, expected none, got 2",
            )
            for target in ("deepspeed", "megatron", "flagscale")
        ),
        (plan(sequence_parallel=True), "sequence_parallel: sequence parallelism needs tp of at least 2"),
        (
            plan(stage(0, 8), target="deepspeed", sequence_parallel=True),
            "deepspeed has no sequence parallelism",
        ),
        (
            plan(stage(0, 8, group(count=16, local_batch=2, accumulation_steps=1))),
            "stages: more devices than the cluster has: pool fast",
        ),
        (
            plan(stage(0, 8, group(**T4S, tp=8, count=1, local_batch=32))),
            "fewer than 1 nodes left for 1 replicas",
        ),
        (
            plan(
                stage(
                    0,
                    8,
                    group(local_batch=10, tp=2, accumulation_steps=2),
                    group(**T4S, local_batch=6, accumulation_steps=2),
                ),
                target="flagscale",
            ),
            "stages[0].replicas[1].tp: flagscale has one tp in a stage, expected 2, got 1",
        ),
        (
            plan(WIDE, stage(5, 8, group(**T4S, count=4, local_batch=8)), target="flagscale", zero=0),
            "stages[1].replicas: flagscale with tied embeddings needs the same tp on the first and last stage, "
            "got 2 and 1",
        ),
        (
            plan(
                stage(0, 5, group(count=3, local_batch=8)),
                stage(5, 8, group(**T4S, local_batch=12)),
                target="flagscale",
            ),
            "needs first and last stages whose replicas divide with ZeRO 1, got 3 and 2",
        ),
        (
            plan(stage(0, 3, group(**T4S)), stage(3, 6), stage(6, 8, group(**T4S)), target="flagscale"),
            "stages[2]: flagscale starts each node once, expected the stages on slow-0 in a row",
        ),
    ],
)
def test_plans_that_break_a_rule(bad: Plan, message: str) -> None:
    """The place and the rule are named."""
    with pytest.raises(PlanError) as caught:
        check_plan(bad, CLUSTER, MODEL)
    assert message in caught.value.message


CPU = Offload(optimizer="cpu")
SHARED = replace(CPU, ratio=0.6)
AHEAD = replace(CPU, super_offload=True)


def offloading(target: str, zero: int, offload: Offload, *stages: Stage, recompute: str = "full") -> Plan:
    """A plan without pipeline unless stages are given."""
    chosen = stages or (stage(0, 8, recompute=recompute),)
    return plan(*chosen, target=target, zero=zero, offload=offload)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (
            offloading("flagscale", 1, CPU),
            "offload: hetplan knows no offload of flagscale, expected none",
        ),
        (
            offloading("deepspeed", 1, CPU, stage(0, 5), stage(5, 8)),
            "offload: deepspeed offloads without a pipeline only, the plan has 2 stages",
        ),
        (
            offloading("deepspeed", 0, CPU),
            "offload.optimizer: deepspeed offloads optimizer to cpu with ZeRO 1, 2, 3, got ZeRO 0",
        ),
        (
            offloading("deepspeed", 2, Offload(optimizer="nvme")),
            "offload.optimizer: deepspeed offloads optimizer to nvme with ZeRO 3, got ZeRO 2",
        ),
        (
            offloading("deepspeed", 2, Offload(optimizer="cpu", parameters="cpu")),
            "offload.parameters: deepspeed offloads parameters to cpu with ZeRO 3, got ZeRO 2",
        ),
        (
            offloading("megatron", 1, Offload(optimizer="cpu", parameters="cpu")),
            "offload.parameters: megatron does not offload parameters to cpu, expected none",
        ),
        (
            offloading("torch", 3, CPU),
            "offload: torch offloads parameters and optimizer states together, expected both",
        ),
        (
            offloading("megatron", 1, Offload(activations="cpu")),
            "offload.activations: megatron keeps activations on the device, expected none",
        ),
        (
            offloading("deepspeed", 1, Offload(activations="cpu"), recompute="none"),
            "offload.activations: only the checkpoints of full recomputation can be offloaded",
        ),
        (
            offloading("deepspeed", 2, SHARED),
            "offload.ratio: deepspeed divides the optimizer between host and device with ZeRO 3, got ZeRO 2",
        ),
        (
            offloading("torch", 3, replace(SHARED, parameters="cpu")),
            "offload.ratio: torch has all of the optimizer in one place, expected 1",
        ),
        (
            offloading("torch", 3, replace(AHEAD, parameters="cpu")),
            "offload.super_offload: torch has no SuperOffload, expected false",
        ),
        (
            offloading("deepspeed", 1, AHEAD),
            "offload.super_offload: deepspeed has SuperOffload with ZeRO 3, got ZeRO 1",
        ),
        (
            offloading("deepspeed", 3, AHEAD),
            "offload.super_offload: SuperOffload updates by gradients that are still scaled in fp16, expected false",
        ),
        (
            offloading("deepspeed", 3, Offload(optimizer="nvme")),
            "offload: the pool fast has no NVMe, expected host: {nvme_gBps: ...} in it",
        ),
    ],
)
def test_offload_that_a_target_or_a_host_lacks(bad: Plan, message: str) -> None:
    """Each rule has its place and its message."""
    with pytest.raises(PlanError) as caught:
        check_plan(bad, with_host(HostSpec(link_gBps=10)), MODEL)
    assert message in caught.value.message


def test_shares_are_of_adamw_and_superoffload_of_superchips() -> None:
    """DeepSpeed has one optimizer for processors; links as fast as NVLink-C2C are of superchips, in any pool used."""
    half = MODEL.model_copy(update={"training": MODEL.training.model_copy(update={"precision": "bf16"})})
    fast = with_host(HostSpec(link_gBps=300))
    check_plan(offloading("deepspeed", 3, replace(AHEAD, ratio=0.9)), fast, half)
    with pytest.raises(PlanError, match="at 100 GB/s and more, expected false with A100 in the pool fast"):
        check_plan(offloading("deepspeed", 3, AHEAD), with_host(HostSpec(link_gBps=90)), half)
    sgd = half.model_copy(update={"training": half.training.model_copy(update={"optimizer": "sgd"})})
    for chosen in (SHARED, AHEAD):
        with pytest.raises(PlanError, match="hosts share the update of adamw alone, got sgd"):
            check_plan(offloading("deepspeed", 3, chosen), fast, sgd)


def with_host(host: HostSpec | None) -> ClusterSpec:
    """The cluster with a host for every pool."""
    pools = tuple(item.model_copy(update={"host": host}) for item in CLUSTER.pools)
    return CLUSTER.model_copy(update={"pools": pools})


@pytest.mark.parametrize(
    "good",
    [
        *(offloading("deepspeed", zero, Offload(optimizer="cpu", activations="cpu")) for zero in (1, 2, 3)),
        offloading("deepspeed", 3, Offload(optimizer="nvme", parameters="cpu")),
        offloading("torch", 3, Offload(optimizer="cpu", parameters="cpu")),
        offloading("megatron", 1, CPU, stage(0, 5), stage(5, 8)),
    ],
)
def test_offload_that_runs(good: Plan) -> None:
    """Where the host is known."""
    check_plan(good, with_host(HostSpec(link_gBps=10, nvme_gBps=5)), MODEL)
    with pytest.raises(PlanError, match="not known how fast A100 reaches host memory, expected host: "):
        check_plan(good, with_host(None), MODEL)


def test_stages_that_another_model_or_target_runs() -> None:
    """Untied embeddings may stand on any degrees, and on the first stage of all; Megatron comes back to a node."""
    for schedule in V_SHAPED:
        check_plan(plan(target="torch", schedule=schedule, interleave=2), CLUSTER, UNTIED)
    check_plan(plan(WIDE, stage(5, 8, group(**T4S)), target="flagscale"), CLUSTER, UNTIED)
    check_plan(plan(stage(0, 3, group(**T4S)), stage(3, 6), stage(6, 8, group(**T4S))), CLUSTER, MODEL)


@pytest.mark.parametrize(
    ("target", "changes", "message"),
    [
        ("flagscale", {"learned_positions": 128, "kv_heads": 8}, "flagscale trains no encoders"),
        (
            "megatron",
            {"learned_positions": 128},
            "megatron trains encoders with learned positions and without",
        ),
        (
            "megatron",
            {"kv_heads": 8},
            "megatron trains encoders with learned positions and without grouped-query",
        ),
    ],
)
def test_encoders_that_the_target_does_not_train(target: str, changes: dict[str, int], message: str) -> None:
    """Megatron's is BERT's; the others train all or none."""
    model = MODEL.model_copy(update={"kind": "encoder", **changes})
    with pytest.raises(PlanError, match=message):
        check_plan(plan(stage(0, 8), target=target), CLUSTER, model)
    check_plan(plan(stage(0, 8), target="torch"), CLUSTER, model)


def test_key_value_heads_and_tensor_parallelism() -> None:
    """One must divide the other."""
    wide = MODEL.model_copy(update={"heads": 12, "kv_heads": 3})
    assert paths(plan(stage(0, 8, group(tp=2))), wide) == ["stages.0.replicas.0.tp"]
    assert paths(plan(stage(0, 8, group(tp=4, count=1, local_batch=32)))) == []
    four = MODEL.model_copy(update={"kv_heads": 4})
    assert paths(plan(stage(0, 8, group(tp=2))), four) == []
    assert paths(plan(stage(0, 8, group(tp=4, count=1, local_batch=32))), four) == []
    one = MODEL.model_copy(update={"kv_heads": 1})
    assert paths(plan(stage(0, 8, group(tp=4, count=1, local_batch=32))), one) == []
    assert paths(plan(stage(0, 8, group(tp=4, count=1, local_batch=32)), target="torch"), one) == [
        "stages.0.replicas.0.tp"
    ]


def test_a_feed_forward_layer_is_split_evenly() -> None:
    """Its matrices are cut into as many equal parts as a replica has devices, as the search has it."""
    odd = MODEL.model_copy(update={"ffn": MODEL.ffn + 2})
    assert paths(plan(stage(0, 8, group(tp=2))), odd) == []
    assert paths(plan(stage(0, 8, group(tp=4, count=1, local_batch=32))), odd) == ["stages.0.replicas.0.tp"]


def test_an_optimizer_whose_states_the_target_does_not_shard() -> None:
    """Megatron's distributed optimizer is Adam's; torch shards SGD's too."""
    training = MODEL.training.model_copy(update={"optimizer": "sgd"})
    sgd = MODEL.model_copy(update={"training": training})
    with pytest.raises(
        PlanError, match="zero: megatron shards the states of adamw only, expected ZeRO 0 with sgd"
    ):
        check_plan(plan(stage(0, 8), zero=1), CLUSTER, sgd)
    check_plan(plan(stage(0, 8), zero=0), CLUSTER, sgd)
    check_plan(plan(stage(0, 8), zero=1, target="torch"), CLUSTER, sgd)


def test_a_precision_that_a_device_lacks() -> None:
    """The device that forbids it is named."""
    training = MODEL.training.model_copy(update={"precision": "bf16"})
    model = MODEL.model_copy(update={"training": training})
    with pytest.raises(PlanError, match="T4 cannot compute in bf16, it can in: fp16"):
        check_plan(plan(), CLUSTER, model)
    check_plan(plan(stage(0, 8)), CLUSTER, model)


def test_a_number_format_that_the_target_does_not_train_in() -> None:
    """DeepSpeed has no fp8; the fault is the target's, with what it can."""
    fast = CLUSTER.gpus["A100"].model_copy(update={"tflops": {"bf16": 989.0, "fp8": 1979.0}})
    cluster = CLUSTER.model_copy(update={"gpus": {**CLUSTER.gpus, "A100": fast}})
    training = MODEL.training.model_copy(update={"precision": "fp8"})
    model = MODEL.model_copy(update={"training": training})
    with pytest.raises(PlanError, match="target: deepspeed does not train in fp8, it can: bf16, fp16"):
        check_plan(plan(stage(0, 8), target="deepspeed"), cluster, model)
    check_plan(plan(stage(0, 8)), cluster, model)


def test_sequence_parallelism_splits_the_sequence() -> None:
    """tp must divide its length."""
    training = MODEL.training.model_copy(update={"sequence_length": 127})
    model = MODEL.model_copy(update={"training": training})
    assert paths(plan(stage(0, 8, group(tp=2)), sequence_parallel=True), model) == ["sequence_parallel"]


def test_pools_that_cannot_talk() -> None:
    """Between neighbouring stages, and inside a stage."""
    alone = CLUSTER.pools[0].model_copy(update={"nics": ()})
    cluster = CLUSTER.model_copy(update={"pools": (alone, CLUSTER.pools[1])})
    message = "cannot talk: no common fabric and no chain of links"
    with pytest.raises(PlanError, match=rf"stages\[1\]: the pools fast and slow {message}"):
        check_plan(plan(), cluster, MODEL)
    with pytest.raises(PlanError, match=rf"stages\[0\]: the pools fast and slow {message}"):
        check_plan(plan(stage(0, 8, *UNEVEN), target="deepspeed"), cluster, MODEL)
    check_plan(plan(stage(0, 8)), cluster, MODEL)


def test_all_faults_come_at_once() -> None:
    """A line for each."""
    bad = plan(stage(0, 7, group(pool="x")), zero=3)
    with pytest.raises(PlanError) as caught:
        check_plan(bad, CLUSTER, MODEL)
    assert len(caught.value.message.splitlines()) == 3
