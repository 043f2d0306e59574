"""Megatron-LM itself takes what is emitted for it and refuses what our rules refuse.

Runs where HETPLAN_MEGATRON names a checkout of Megatron-LM (core 0.20.0) and torch is installed.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
import yaml

from planner.cost.shape import chunk_layers
from planner.emit.interface import emit, job_of
from planner.plan.placement import Rank
from planner.plan.values import Plan
from planner.runtimes.megatron.arguments import arguments
from planner.runtimes.megatron.runtime import group_networks
from tests.runtimes.megatron.plans import Case, generated, searched
from tests.runtimes.megatron.rules import check_arguments
from tests.runtimes.megatron.test_network import EAST, PLAIN, WEST, split
from tests.runtimes.megatron.test_rules import ACCEPTED, BASE, REFUSED
from tests.worlds import cluster, group, model, plan, pool

CHECKOUT = os.environ.get("HETPLAN_MEGATRON", "")
pytestmark = pytest.mark.skipif(not CHECKOUT, reason="HETPLAN_MEGATRON names no checkout of Megatron-LM")

REST = "--train-iters 3 --lr 1e-3 --mock-data --tokenizer-type NullTokenizer --vocab-size 128"
STRICTER = {
    "--num-layers: given twice",
    "multiple of --num-query-groups",
    "needs --num-query-groups",
    "needs --group-query-attention",
    "multiple of pp micro-batches: 1 ",
    "needs tp of at least 2",
    "adam only",
    "needs --use-distributed-optimizer",
    "needs --recompute-granularity selective",
    "--mamba-num-groups must be a multiple of tp",
    "needs --spec of a stack",
}
"""Rules that Megatron's parser does not check: it fails when it builds or trains, or ignores a switch."""


def ask(cases: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Megatron's answers, from a process of its own."""
    script = Path(__file__).with_name("parser.py")
    done = subprocess.run(
        [sys.executable, str(script), CHECKOUT],
        input=json.dumps(cases),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    answers: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return answers


def pipeline(layers: list[int], *, dp: int, tp: int = 1, steps: int = 8, **changes: Any) -> Plan:
    """A plan with these layers in each stage and micro-batches of two sequences."""
    replicas = (group("a", "A100", tp=tp, count=dp, share=2 * steps, steps=steps),)
    return plan("megatron", changes.pop("zero", 1), layers, [replicas] * len(layers), **changes)


LLAMA = {"gated_mlp": True, "kv_heads": 2, "tied_embeddings": False}
GPT = {"learned_positions": 64}
MIXTRAL = {**LLAMA, "experts": {"number": 8, "top_k": 2, "ffn": 48}}
GPT_OSS = {
    **LLAMA,
    **dict.fromkeys(("qkv_bias", "output_bias", "sinks"), True),
    "window": 8,
    "window_layers": 4,
    "experts": {"number": 32, "top_k": 4, "ffn": 64, "router_bias": True, "bias": True},
}
SHARED = {"number": 4, "top_k": 1, "ffn": 64, "shared_ffn": 32, "shared_gate": True, "capacity_factor": 1.5}
LATENT = {"q_rank": 16, "kv_rank": 8, "rope_dim": 4, "value_dim": 8}
QWEN = {**LLAMA, "qk_norm": True, "head_dim": 16, "qkv_bias": True}
STATE = {"kind": "mamba2", "heads": 16, "head_dim": 8, "size": 16, "groups": 2, "chunk": 128}
MIXED = (
    {"mixer": "state", "feed_forward": "none"},
    {"mixer": "attention", "feed_forward": "dense"},
    {"mixer": "none", "feed_forward": "dense", "layers": 2},
)
NEMOTRON = {**LLAMA, "norm": "rms", "state": STATE, "block": MIXED, "ahead": MIXED[:1], "behind": MIXED[2:]}
NEMOTRON_3 = {
    **NEMOTRON,
    "experts": {"number": 8, "top_k": 2, "ffn": 48, "hidden": 32, "shared_ffn": 96},
    "block": (*MIXED, {"mixer": "none", "feed_forward": "experts"}),
}
DELTA = {"kind": "delta", "heads": 8, "head_dim": 8, "size": 8, "groups": 4, "conv_bias": False, "chunk": 64}
QWEN_NEXT = {
    **LLAMA,
    **{"qk_norm": True, "output_gate": True, "kv_heads": 4, "state": DELTA},
    "block": ({"mixer": "state", "layers": 3}, {"mixer": "attention"}),
    "experts": {"number": 8, "top_k": 2, "ffn": 48, "shared_ffn": 48, "shared_gate": True},
}
EIGHTS = cluster(pool("a", ("A100",) * 8, 4))


def made(chosen: Plan, changes: dict[str, Any]) -> Case:
    """A plan on nodes of eight devices for a small model."""
    return Case(chosen, EIGHTS, model(chosen.global_batch, layers=chosen.layers, **changes))


BY_HAND = [
    made(pipeline([8], dp=8), GPT),
    made(pipeline([8], dp=1, zero=0), LLAMA),
    made(pipeline([3, 1, 2, 2], dp=1, tp=2, sequence_parallel=True, recompute="selective"), LLAMA),
    made(pipeline([5, 4, 5], dp=1, tp=4, interleave=2, zero=0, steps=9), {**GPT, "precision": "fp16"}),
    made(pipeline([5, 3], dp=2, tp=2), QWEN),
    made(pipeline([8], dp=8), {**GPT, "reduce_dtype": "bf16"}),
    made(pipeline([5, 3], dp=1, tp=2), {**LLAMA, "gradient_dtype": "bf16", "optimizer_states": "bf16"}),
    made(pipeline([8], dp=8, ep=4), MIXTRAL),
    made(pipeline([5, 3], dp=4, tp=2, ep=8, sequence_parallel=True), MIXTRAL),
    made(pipeline([5, 3], dp=2, tp=2, ep=2, sequence_parallel=True), MIXTRAL),
    made(pipeline([5, 3], dp=2, tp=2, ep=1, etp=2, sequence_parallel=True), MIXTRAL),
    made(pipeline([5, 3], dp=4, tp=2, ep=4, etp=2, sequence_parallel=True), MIXTRAL),
    made(pipeline([8], dp=4, tp=4, ep=4, etp=2, cp=2, sequence_parallel=True), MIXTRAL),
    made(pipeline([5, 3], dp=4, ep=2, etp=2), MIXTRAL),
    made(pipeline([3, 3, 2], dp=2, recompute="full"), {**MIXTRAL, "window": 8, "window_layers": 3}),
    made(pipeline([5, 3], dp=8, ep=8), GPT_OSS),
    made(pipeline([8], dp=8, ep=4), {**MIXTRAL, "expert_overlap": True}),
    made(
        pipeline([5, 3], dp=4, tp=2, ep=4, interleave=2, sequence_parallel=True, recompute="selective"),
        {**MIXTRAL, "expert_overlap": True, "token_dispatcher": "deepep"},
    ),
    made(pipeline([8], dp=4, ep=4), {**LLAMA, "kv_heads": 4, "latent": LATENT, "experts": SHARED}),
    made(pipeline([5, 3], dp=4, ep=4), {**MIXTRAL, "dense_layers": 2}),
    made(pipeline([5, 4], dp=2, ep=2, interleave=2), {**MIXTRAL, "dense_layers": 1}),
    made(pipeline([5, 3], dp=4, cp=2), LLAMA),
    made(pipeline([8], dp=4, cp=4), QWEN),
    made(pipeline([5, 3], dp=4, cp=2, cp_kind="ulysses"), LLAMA),
    made(pipeline([8], dp=8, tp=2, cp=4, sequence_parallel=True), LLAMA),
    made(pipeline([5, 3], dp=8, ep=8, cp=2), MIXTRAL),
    made(pipeline([5, 3], dp=4, tp=2, ep=4, cp=2, sequence_parallel=True), MIXTRAL),
    made(pipeline([8], dp=8), NEMOTRON),
    made(pipeline([5, 3], dp=4, tp=2, sequence_parallel=True, recompute="full"), NEMOTRON),
    made(pipeline([5, 4, 3], dp=2, interleave=2, steps=9), NEMOTRON),
    made(pipeline([5, 3], dp=4, tp=2, ep=4, sequence_parallel=True), NEMOTRON_3),
    made(pipeline([3, 3], dp=8, ep=8, interleave=2), {**NEMOTRON_3, "mtp_layers": 2}),
    made(pipeline([5, 3], dp=4, cp=2), NEMOTRON),
    made(pipeline([8], dp=8, tp=2, cp=4, sequence_parallel=True), NEMOTRON),
    made(pipeline([8], dp=8, ep=4, cp=2, cp_kind="ulysses"), NEMOTRON_3),
    made(pipeline([5, 3], dp=4, tp=2, ep=8, sequence_parallel=True), QWEN_NEXT),
    made(pipeline([5, 3], dp=4, tp=2, ep=4, cp=2, sequence_parallel=True), QWEN_NEXT),
    made(
        pipeline([5, 3], dp=4, ep=2, interleave=2, recompute="full"),
        {**QWEN_NEXT, "ahead": ({"feed_forward": "dense"},)},
    ),
]


LLAMA_3 = {
    "activation": "silu",
    **{"norm_epsilon": 1e-6, "rope_base": 5e5, "rope_share": 0.5, "rope_skips": 4},
    "rope_scaling": {"kind": "llama3", "factor": 32.0},
}
YARN = {"kind": "yarn", "factor": 32.0, "original_length": 2048, "fast": 16.0, "slow": 2.0, "rounded": False}
DEEPSEEK_ROUTER = {"score": "sigmoid", "bias": True, "groups": 4, "top_groups": 2, "scale": 2.5}
NUMERICS: list[tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = [
    (
        LLAMA,
        LLAMA_3,
        {
            **{"activation": "silu", "gated": True, "epsilon": 1e-6, "positions": "rope"},
            **{"rope": [500000, 0.5, None], "llama3": [True, 32.0], "skips": [0, 0, 0, 1] * 2},
        },
    ),
    (LLAMA, {"rope_scaling": {"kind": "linear", "factor": 4.0}}, {"rope": [10000, 1.0, 4]}),
    (
        {**LLAMA, "gated_mlp": False, "mlp_bias": True, "output_bias": True, "qkv_bias": True},
        {"activation": "squared-relu"},
        {"activation": "squared_relu", "gated": False, "fused": False},
    ),
    (GPT, {"activation": "gelu-tanh"}, {"activation": "gelu", "gated": False, "fused": True}),
    (
        GPT_OSS,
        {"activation": "clamped-quick-gelu", "rope_base": 150000.0, "rope_scaling": YARN, "router": {}},
        {
            **{"activation": "quick_gelu", "gated": True, "limits": [1.0, 7.0], "positions": "yarn"},
            "yarn": [32.0, 2048, 16.0, 2.0, 1.0, 0.0, False],
            "router": ["softmax", False, False, None, None, None, 1e-3],
        },
    ),
    (
        {**MIXTRAL, "experts": {"number": 8, "top_k": 2, "ffn": 48}},
        {"router": {"normalised": False}},
        {"router": ["softmax", True, False, None, None, None, 1e-3]},
    ),
    (
        {**LLAMA, "kv_heads": 4, "latent": LATENT, "experts": {"number": 8, "top_k": 4, "ffn": 48}},
        {
            "rope_scaling": {"kind": "yarn", "factor": 40.0, "mscale": 1.0, "mscale_all_dim": 1.0},
            "router": DEEPSEEK_ROUTER,
        },
        {
            **{"positions": "rope", "latent_yarn": [40.0, 4096, 32, 1, 1.0, 1.0]},
            "router": ["sigmoid", False, True, 2.5, 4, 2, 1e-3],
        },
    ),
    (NEMOTRON_3, {"activation": "silu"}, {"activation": "silu", "positions": "none"}),
    (NEMOTRON, {"rope_base": 1e6, "rope_share": 0.5}, {"positions": "rope", "rope": [1000000, 0.5, None]}),
]
"""Models, their numerics, and what Megatron makes of these."""


def test_numerics_are_understood() -> None:
    """Activations, positions and routers are what the model file says."""
    cases = [made(pipeline([8], dp=8), {**kind, "numerics": said}) for kind, said, _ in NUMERICS]
    for (_, _, expected), case, answer in zip(NUMERICS, cases, ask([*map(question, cases)]), strict=True):
        assert "ok" in answer, (question(case), answer)
        found = answer["ok"]["numerics"]
        assert {name: found[name] for name in expected} == expected


def question(case: Case) -> dict[str, Any]:
    """The emitted arguments of a plan; a vocabulary stands in for the user's."""
    job = job_of(case.plan, case.cluster, case.model)
    words = [word for part in arguments(job).values() for word in part]
    check_arguments(words, case.plan.devices)
    if case.model.kind == "encoder":
        words = [*words[: words.index("--tokenizer-type")], *shlex.split(REST)[4:]]
    return {"args": words, "world": case.plan.devices, "environment": environment(case)}


def environment(case: Case) -> dict[str, str]:
    """What the emitted start script exports for Megatron's kernels."""
    script = {file.path: file.text for file in emit(case.plan, case.cluster, case.model)}["launch.sh"]
    [line] = [line for line in script.splitlines() if "export CUDA_DEVICE_MAX_CONNECTIONS" in line]
    name, value = line.split()[1].split("=")
    return {name: value}


def verify(case: Case, answer: dict[str, Any]) -> int:
    """Assert that Megatron understood the plan and groups its ranks; returns how many groups it made."""
    assert "ok" in answer, (question(case), answer)
    found, plan = answer["ok"], case.plan
    recompute, training = plan.stages[0].recompute, case.model.training
    narrow = training.optimizer_states == "bf16"
    assert found["dp"] == plan.stages[0].dp // plan.cp
    assert found["context"] == {"ring": "p2p", "ulysses": "a2a"}[plan.cp_kind]
    assert found["distributed_optimizer"] == (
        plan.zero == 1 and (plan.stages[0].dp > 1 or plan.offload.optimizer == "cpu" or narrow)
    )
    on_host = plan.offload.optimizer == "cpu"
    assert (found["on_host"], found["copies_beside"]) == (on_host and plan.offload.ratio, on_host)
    assert found["sequence_parallel"] == plan.sequence_parallel
    experts = case.model.experts
    wanted = (experts.number, experts.top_k, experts.ffn) if experts else (None, None, None)
    routed = [int(feeds == "experts") for _, feeds in case.model.ordered]
    mixed = 0 < sum(routed) < len(routed) and not case.model.stacked
    verify_stack(case, found)
    assert found["with_experts"] == (routed if mixed else 1)
    assert found["ffn"] == (case.model.ffn if case.model.unlike or not experts else experts.ffn)
    assert found["expert_width"] == (experts.hidden if experts else None)
    assert (found["experts"], found["top_k"], found["expert_ffn"]) == wanted
    assert found["window"] == ([case.model.window - 1, 0] if case.model.window else None)
    assert found["softmax"] == ("learnable" if case.model.sinks else "vanilla")
    halves = "bf16" in (training.gradient_dtype, training.reduce_dtype)
    assert found["fp32_gradients"] == (training.precision in ("bf16", "fp8") and not halves)
    assert found["recompute"] == (None if recompute == "none" else recompute)
    if plan.pp > 1 and not case.model.stacked:
        decoders = tuple(tuple(chunk.count("decoder") for chunk in rank) for rank in found["modules"])
        each = case.model.layers_each
        wanted_chunks = [
            [each * layers for layers in chunk_layers(stage.layers, plan.interleave)] for stage in plan.stages
        ]
        wanted_chunks[0][0] += sum(run.layers for run in case.model.first_runs)
        assert decoders == tuple(map(tuple, wanted_chunks))
        assert found["modules"][0][0][0] == "embedding"
        assert found["modules"][-1][-1][-1] == "loss"
    everyone = job_of(plan, case.cluster, case.model).ranks
    ours = our_groups(everyone, plan)
    assert {kind: set(map(tuple, members)) for kind, members in found["groups"].items()} == ours
    return sum(len(members) for members in ours.values())


def verify_stack(case: Case, found: dict[str, Any]) -> None:
    """Assert that Megatron stacks the mixers and feed-forwards of the model, and cuts them where the plan does."""
    assert found["gated"] == case.model.output_gate
    if not case.model.stacked:
        verify_replaced(case, found)
        return
    state, plan = case.model.state, case.plan
    assert state is not None
    assert found["state"] == [state.heads, state.head_dim, state.size, state.groups]
    symbols = {"attention": "*", "state": "M", "dense": "-", "experts": "E", "none": ""}
    stacked = "".join(symbols[mixer] + symbols[feeds] for mixer, feeds in case.model.ordered)
    further = case.model.training.mtp_layers
    assert found["stack"].replace("|", "") == stacked + f"/{stacked[-1]}" * further
    assert found["layers"] == len(stacked)
    assert found["chunks"] == plan.interleave
    block = stacked.count("M") - 1  # one more stands ahead
    assert block == plan.layers
    own = [segment.count("M") for segment in found["stack"].split("/")[0].split("|")]
    own[0] -= 1
    each = [chunk_layers(stage.layers, plan.interleave) for stage in plan.stages]
    assert own == [layers[chunk] for chunk in range(plan.interleave) for layers in each]


def verify_replaced(case: Case, found: dict[str, Any]) -> None:
    """Assert that Megatron has gated delta rules in place of attention where the model has them, and none elsewhere."""
    assert found["stack"] is None
    state, wanted = case.model.state, [int(mixer == "state") for mixer, _ in case.model.ordered]
    if state is None:
        assert found["replaced"] is None
        return
    every = found["replaced"]
    assert wanted == (
        every if isinstance(every, list) else [int((i + 1) % every > 0) for i in range(len(wanted))]
    )
    assert found["delta"] == [state.heads, state.head_dim, state.size, state.groups]


def our_groups(everyone: tuple[Rank, ...], plan: Plan) -> dict[str, set[tuple[int, ...]]]:
    """The process groups of a placement by Megatron's names, those of the embedding among them."""
    ends = tuple(rank for rank in everyone if rank.stage in (0, plan.pp - 1))
    parts: list[list[Rank]] = [[] for _ in range(plan.cp)]
    sharing: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for rank in everyone:
        parts[rank.replica % plan.cp].append(rank)
        sharing[rank.stage, rank.replica // plan.cp, rank.tp_rank].append(rank.rank)
    alike = [tuple(part) for part in parts]
    return {
        "tp": _grouped(everyone, "stage", "replica"),
        "cp": {*map(tuple, sharing.values())},
        "dp": {one for part in alike for one in _grouped(part, "stage", "tp_rank")},
        "pp": _grouped(everyone, "replica", "tp_rank"),
        "embd": _grouped(ends, "replica", "tp_rank"),
        "mp": _grouped(everyone, "replica"),
        "tp_dp": {one for part in alike for one in _grouped(part, "stage")},
        **expert_groups(everyone, plan),
    }


def expert_groups(everyone: tuple[Rank, ...], plan: Plan) -> dict[str, set[tuple[int, ...]]]:
    """Those that share the experts of a layer, and those that have the same ones, in the order of a stage's ranks."""
    tp, together, alike = plan.stages[0].replicas[0].tp, defaultdict(list), defaultdict(list)
    for rank in sorted(everyone, key=lambda rank: (rank.stage, rank.replica, rank.tp_rank)):
        place = rank.replica * tp + rank.tp_rank
        # Without experts Megatron takes theirs to be split by tensor parallelism, too.
        ways = max(plan.folding.ways, tp)
        together[rank.stage, place // plan.folding.ways, place % plan.etp].append(rank.rank)
        alike[rank.stage, place % ways].append(rank.rank)
    return {"ep": {*map(tuple, together.values())}, "ep_dp": {*map(tuple, alike.values())}}


def _grouped(everyone: tuple[Rank, ...], *fields: str) -> set[tuple[int, ...]]:
    """Ranks that agree in some fields."""
    members: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for rank in everyone:
        members[tuple(getattr(rank, field) for field in fields)].append(rank.rank)
    return {tuple(found) for found in members.values()}


def test_emitted_plans_are_understood() -> None:
    """Megatron accepts every plan, builds the layers where it puts them and groups the ranks as it does."""
    cases = [*BY_HAND, *generated(160, seed=6)]
    groups = [verify(*pair) for pair in zip(cases, ask([question(case) for case in cases]), strict=True)]
    second = sum(job_of(case.plan, case.cluster, case.model).stages_first for case in cases)
    print(f"{len(cases)} plans accepted, {second} in the second order, {sum(groups)} rank groups equal")  # noqa: T201
    assert 0 < second < len(cases)


@pytest.mark.slow
def test_searched_plans_are_understood() -> None:
    """So are plans that searches of shipped clusters and models return."""
    cases = searched()
    groups = [verify(*pair) for pair in zip(cases, ask([question(case) for case in cases]), strict=True)]
    print(f"{len(cases)} searched plans accepted, {sum(groups)} rank groups equal")  # noqa: T201
    assert len(cases) > 10


def test_our_rules_are_megatrons() -> None:
    """It takes what our table takes and refuses what it refuses, but for what it checks in training only."""
    cases = [*ACCEPTED, *((words, world) for words, world, _ in REFUSED)]
    connections = {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}
    answers = ask(
        [
            {"args": f"{BASE} {words} {REST}".split(), "world": world, "environment": connections}
            for words, world in cases
        ]
    )
    taken = ["ok" in answer for answer in answers]
    assert all(taken[: len(ACCEPTED)]), answers[: len(ACCEPTED)]
    lenient = {message for (*_, message), ok in zip(REFUSED, taken[len(ACCEPTED) :], strict=True) if ok}
    assert lenient == STRICTER


def crossing(first: str, last: str) -> Case:
    """Two stages of two nodes each, on pools of different fabrics."""
    where = cluster(EAST, WEST, PLAIN)
    return Case(split(first, last), where, model(8))


def test_megatron_needs_the_environment() -> None:
    """Before Blackwell it refuses tensor parallelism without the variable that the start script exports."""
    asked = question(made(pipeline([5, 3], dp=2, tp=2), LLAMA))
    with_it, without = ask([asked, {**asked, "environment": {}}])
    assert "ok" in with_it
    assert "CUDA_DEVICE_MAX_CONNECTIONS" in without["error"]


def test_network_files_cover_what_megatron_looks_up() -> None:
    """Each group over several nodes finds one network in the files of all its pools, RDMA only inside a fabric."""
    cases = [crossing("east", "west"), crossing("west", "plain"), crossing("plain", "east")]
    cases += [Case(case.plan, case.cluster, model(8, tied_embeddings=False)) for case in cases]
    for case, answer in zip(cases, ask([question(case) for case in cases]), strict=True):
        everyone = job_of(case.plan, case.cluster, case.model).ranks
        files = {pool: yaml.safe_load(text) for pool, text in _network_files(case).items()}
        spanning = [
            (name, {everyone[rank].pool for rank in members})
            for name, members in answer["ok"]["looked_up"]
            if len({everyone[rank].host for rank in members}) > 1
        ]
        assert {name for name, _ in spanning} >= {
            "dp",
            "pp",
            "mp",
            "embd",
            "tp_dp",
            "intra_dist_opt_instance",
        }
        for name, pools in spanning:
            networks = {files[pool][name]["net_name"] for pool in pools}
            assert networks == ({"IB"} if pools in ({"east"}, {"west"}) else {"Socket"}), (name, pools)


def _network_files(case: Case) -> dict[str, str]:
    job = job_of(case.plan, case.cluster, case.model)
    return group_networks(job.ranks, job.network)
