"""FlagScale's files say what the plan says."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from planner.emit.interface import emit
from planner.errors import EmitError
from planner.plan.values import Plan, ReplicaGroup, Stage
from planner.runtimes.flagscale.runtime import meshes
from tests.worlds import GPUS, cluster, group, model, nic, plan, pool

CUDA_CHOICE = ("CUDA_DEVICE_ORDER", "CUDA_VISIBLE_DEVICES")
CLUSTER = cluster(pool("a", ("A100",) * 8, 3), pool("t", ("T4",) * 4, 4))


def stage_of(
    gpu: str, *, tp: int = 1, dp: int = 1, steps: int = 4, batch: int = 4
) -> tuple[ReplicaGroup, ...]:
    """Equal replicas that share ``batch`` sequences in each of ``steps`` micro-batches."""
    name = {"A100": "a", "T4": "t"}[gpu]
    return (group(name, gpu, tp=tp, count=dp, share=steps * batch // dp, steps=steps),)


def wide(**changes: Any) -> Plan:
    """Two A100 stages of tp 4 and one T4 stage of tp 2 with twice the replicas."""
    replicas = [stage_of("A100", tp=4, dp=2), stage_of("A100", tp=4, dp=2), stage_of("T4", tp=2, dp=4)]
    return plan("flagscale", 1, [3, 2, 1], replicas, sequence_parallel=True, **changes)


def written(chosen: Plan, **changes: Any) -> dict[str, str]:
    """Files of a plan for an untied model."""
    spec = model(chosen.global_batch, layers=chosen.layers, **{"tied_embeddings": False, **changes})
    return {file.path: file.text for file in emit(chosen, CLUSTER, spec)}


def test_golden() -> None:
    """Meshes, layers, types, batches and hosts of a plan with a tp and a dp per stage."""
    made = written(wide())
    train = yaml.safe_load(made["conf/train/plan.yaml"])
    assert train["system"]["hetero"] == {
        "enable_hetero": True,
        "hetero_pipeline_layer_split": [3, 2, 1],
        "hetero_process_meshes": [4, 1, 1, 2, 1, 4, 1, 1, 2, 1, 2, 1, 1, 4, 1],
        "hetero_device_types": ["A100", "A100", "T4"],
        "hetero_current_device_type": "A100",
    }
    assert train["system"]["parallel"] == {
        "tensor_model_parallel_size": 4,
        "pipeline_model_parallel_size": 3,
        "sequence_parallel": True,
        "overlap_grad_reduce": True,
        "use_distributed_optimizer": True,
        "overlap_param_gather": True,
    }
    assert train["model"]["batch"] == {"micro_batch_size": 2, "global_batch_size": 16}
    assert "recompute" not in train["system"]
    assert made["hostfile"] == (
        "a-0 slots=8 type=A100\na-1 slots=8 type=A100\nt-0 slots=4 type=T4\nt-1 slots=4 type=T4\n"
    )
    experiment = yaml.safe_load(made["conf/experiment.yaml"])
    nodes = experiment["experiment"]["envs"].pop("node_specific")
    assert experiment["experiment"]["envs"] == {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}
    assert nodes["t-1"]["CUDA_VISIBLE_DEVICES"] == "0,1,2,3"
    assert nodes["t-1"]["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert nodes["t-1"]["NCCL_NET"] == "Socket"
    assert "| A100 | 4 | 2 | 1 |" in made["README.md"]
    assert "there, too: `norm_epsilon`, `rotary_base`, `use_rope_scaling`." in made["README.md"]


def test_devices_of_amd() -> None:
    """HIP numbers them as rocm-smi does; no variable of CUDA is left to contradict it."""
    amd = GPUS["A100"].model_copy(update={"vendor": "amd", "name": "MI"})
    where = cluster(pool("red", ("MI",) * 4, 2), gpus={"MI": amd})
    stages = [(group("red", "MI", tp=2, share=4, steps=4),), (group("red", "MI", tp=2, share=4, steps=4),)]
    chosen = plan("flagscale", 1, [2, 2], stages, sequence_parallel=True)
    made = {file.path: file.text for file in emit(chosen, where, model(4, tied_embeddings=False))}
    nodes = yaml.safe_load(made["conf/experiment.yaml"])["experiment"]["envs"]["node_specific"]
    assert {host: variables["HIP_VISIBLE_DEVICES"] for host, variables in nodes.items()} == {
        "red-0": "0,1,2,3"
    }
    assert not any(name in variables for variables in nodes.values() for name in CUDA_CHOICE)
    assert "CUDA_VISIBLE_DEVICES" not in "".join(made.values())


def test_recompute_per_stage() -> None:
    """One row a stage, of all micro-batches, where stages differ; one policy where they do not."""
    chosen = wide()
    first = Stage(first_layer=0, end_layer=3, replicas=chosen.stages[0].replicas, recompute="full")
    mixed = Plan(target="flagscale", zero=1, stages=(first, *chosen.stages[1:]), sequence_parallel=True)
    found = yaml.safe_load(written(mixed)["conf/train/plan.yaml"])["system"]["recompute"]
    assert found["recompute_granularity_per_stage_micro_batch"] == [[1, 4, 1], [1, 4, 0], [1, 4, 0]]
    same = yaml.safe_load(written(wide(recompute="full"))["conf/train/plan.yaml"])["system"]["recompute"]
    assert same == {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}


def test_types_that_come_back_get_a_new_name() -> None:
    """FlagScale sorts nodes by type, so A100, T4, A100 must not put all A100s together."""
    replicas = [stage_of("A100", tp=4, dp=2), stage_of("T4", tp=2, dp=2), stage_of("A100", tp=4, dp=2)]
    chosen = plan("flagscale", 1, [2, 1, 1], replicas, sequence_parallel=True)
    assert [mesh.device_type for mesh in meshes(chosen)] == ["A100", "T4", "A100@2"]
    assert "a-1 slots=8 type=A100@2" in written(chosen)["hostfile"]


def test_network_names_and_what_is_missing() -> None:
    """Known interfaces go to the nodes' environments, unknown ones to the top as EDIT lines."""
    spec = cluster(
        pool("a", ("A100",) * 8, 1, (nic("lan", interface="eth0"),)),
        pool("t", ("T4",) * 4, 2, (nic("lan"),)),
    )
    replicas = [stage_of("A100", tp=4, dp=2), stage_of("T4", tp=2, dp=4)]
    chosen = plan("flagscale", 0, [3, 1], replicas, sequence_parallel=True)
    made = {file.path: file.text for file in emit(chosen, spec, model(16, tied_embeddings=False))}
    nodes = yaml.safe_load(made["conf/experiment.yaml"])["experiment"]["envs"]["node_specific"]
    assert nodes["a-0"]["NCCL_SOCKET_IFNAME"] == "=eth0"
    assert (
        "# EDIT: the cluster file has no interface for fabric lan in pool t" in made["conf/experiment.yaml"]
    )
    assert "Edit first" in made["README.md"]


REFUSED: list[tuple[Plan, dict[str, Any], str]] = [
    (wide(), {"kind": "encoder", "learned_positions": 16}, "trains no encoders, expected a decoder"),
    (
        wide(),
        {"tied_embeddings": True},
        "tied embeddings needs the same tp on the first and last stage, got 4 and 2",
    ),
    (wide(recompute="selective"), {}, "recomputes none, full, got selective"),
    (
        plan("flagscale", 1, [2, 2], [stage_of("A100", tp=2, dp=4), stage_of("T4", dp=4)]),
        {},
        "tp 1, 2 need sequence_parallel",
    ),
    (
        plan("flagscale", 1, [2, 2], [stage_of("A100", dp=3, batch=6), stage_of("T4", dp=2, batch=6)]),
        {"tied_embeddings": True},
        "first and last stages whose replicas divide with ZeRO 1, got 3 and 2",
    ),
    (
        plan(
            "flagscale", 1, [2, 2], [stage_of("A100", dp=3, batch=6), stage_of("T4", dp=2, batch=3, steps=8)]
        ),
        {},
        "a pipeline runs in lock-step",
    ),
    (
        plan("flagscale", 1, [2, 2], [stage_of("A100", dp=2), stage_of("T4", dp=2)], interleave=2),
        {},
        "interleave",
    ),
    (
        plan("flagscale", 0, [2, 2], [stage_of("A100", tp=2, dp=5, batch=5)] * 2),
        {},
        "flagscale starts each node once, expected the stages on a-2 in a row",
    ),
]


@pytest.mark.parametrize(("chosen", "changes", "message"), REFUSED, ids=[case[2] for case in REFUSED])
def test_refusals(chosen: Plan, changes: dict[str, Any], message: str) -> None:
    """Nothing is written that FlagScale would stop at."""
    with pytest.raises(EmitError, match=message):
        written(chosen, **changes)


def test_tied_embeddings_on_other_widths() -> None:
    """With ZeRO 1 the reduction between first and last stage needs FlagScale's switch."""
    chosen = plan("flagscale", 1, [2, 2], [stage_of("A100", dp=2), stage_of("T4", dp=4)])
    hetero = yaml.safe_load(written(chosen, tied_embeddings=True)["conf/train/plan.yaml"])["system"]["hetero"]
    assert hetero["use_partial_reduce_for_shared_embedding"] is True


def test_stages_without_replicas_share_a_mesh() -> None:
    """So do stages with replicas when there is no other mesh."""
    replicas = [stage_of("A100", tp=4), stage_of("A100", tp=4), stage_of("T4", tp=2)]
    chosen = plan("flagscale", 0, [2, 1, 1], replicas, sequence_parallel=True)
    assert [mesh.numbers for mesh in meshes(chosen)] == [[4, 1, 1, 1, 2], [2, 1, 1, 1, 1]]
    even = plan("flagscale", 0, [2, 2], [stage_of("A100", tp=2, dp=4)] * 2)
    assert [mesh.numbers for mesh in meshes(even)] == [[2, 1, 1, 4, 2]]
