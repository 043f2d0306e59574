"""Megatron's arguments say what the plan says."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from planner.cost.estimate import Estimator
from planner.dims.tensor import head_faults, splits
from planner.emit.interface import emit, job_of
from planner.errors import EmitError
from planner.job.job import Job
from planner.model.spec import ModelSpec
from planner.plan.checks import target_faults
from planner.plan.placement import agents, ranks
from planner.plan.values import Offload, Plan, Stage
from planner.runtimes.megatron.arguments import arguments, differences, layout, model_words
from planner.runtimes.megatron.numerics import unsaid
from planner.runtimes.megatron.runtime import RUNTIME
from tests.worlds import GPUS, cluster, group, model, plan, pool

CLUSTER = cluster(pool("a", ("A100",) * 8, 4))


def pipeline(layers: list[int], *, dp: int = 2, tp: int = 1, steps: int = 4, **changes: object) -> Plan:
    """A pipeline with these layers in each stage, micro-batches of one sequence."""
    replicas = (group("a", "A100", tp=tp, count=dp, share=steps, steps=steps),)
    zero = int(str(changes.pop("zero", 1)))
    return plan("megatron", zero, layers, [replicas] * len(layers), **changes)


def words_of(chosen: Plan, spec: ModelSpec) -> dict[str, list[str]]:
    """Megatron's arguments of a plan by section."""
    return arguments(Job(plan=chosen, cluster=CLUSTER, model=spec, ranks=()))


@pytest.mark.parametrize(
    ("changes", "capability", "shared", "expected"),
    [
        ({}, 9.0, False, True),
        ({"precision": "fp32"}, 9.0, False, False),
        ({}, 8.0, False, False),
        ({}, 9.0, True, False),
    ],
)
def test_user_buffers(changes: dict[str, Any], capability: float, shared: bool, expected: bool) -> None:
    """Where the price has traffic of tensor parallelism under products in both directions."""
    a = pool("a")
    where = cluster(
        a.model_copy(update={"intra_node": a.intra_node.model_copy(update={"shared": shared})}),
        gpus={"A100": GPUS["A100"].model_copy(update={"compute_capability": capability})},
    )
    chosen, spec = pipeline([2, 2], tp=2, sequence_parallel=True), model(8, **changes)
    job = Job(plan=chosen, cluster=where, model=spec, ranks=())
    assert ("--tp-comm-overlap" in arguments(job)["parallel"]) is expected
    pricer = Estimator(where, spec).pricer_of(chosen)
    assert (pricer.hides(pricer.topology.device_type("a", "A100")) == "all") is expected
    whole = Job(plan=replace(chosen, sequence_parallel=False), cluster=where, model=spec, ranks=())
    assert "--tp-comm-overlap" not in arguments(whole)["parallel"]


def test_user_buffers_beside_older_devices() -> None:
    """TransformerEngine refuses to start where devices have no multicast, which those before Hopper have not."""
    newer = GPUS["A100"].model_copy(update={"compute_capability": 9.0})
    older = GPUS["A100"].model_copy(update={"compute_capability": 8.0})
    where = cluster(pool("b", ("Old",) * 4), pool("a", ("A100",) * 4), gpus={"A100": newer, "Old": older})
    stages = [
        (group("b", "Old", tp=2, count=2, share=4, steps=4),),
        (group("a", "A100", tp=2, count=2, share=4, steps=4),),
    ]
    mixed = plan("megatron", 1, [2, 2], stages, sequence_parallel=True)
    for chosen, expected in ((mixed, True), (replace(mixed, sequence_parallel=False), False)):
        job = Job(plan=chosen, cluster=where, model=model(4), ranks=ranks(chosen, where))
        script = next(file.text for file in RUNTIME.files(job) if file.path == "launch.sh")
        assert ('case "$pool" in b) export UB_SKIPMC=1 ;; esac' in script) is expected
        assert ("UB_SKIPMC" in script) is expected


def test_layout_uneven() -> None:
    """Stages in order, with the embedding first and the loss last."""
    assert layout(pipeline([5, 1, 2]), model(1)) == "Et*5|t|t*2L"


def test_layout_interleaved() -> None:
    """Virtual stage k is chunk k // pp of pipeline rank k % pp; each rank keeps its layers."""
    chosen = pipeline([5, 4, 5], interleave=2)
    assert layout(chosen, model(1)) == "Et*3|t*2|t*3|t*2|t*2|t*2L"


def test_golden() -> None:
    """A Llama-like model on tp 2, pp 2, dp 2 with the distributed optimizer."""
    spec = model(8, layers=6, kv_heads=2, gated_mlp=True, tied_embeddings=False)
    found = words_of(pipeline([4, 2], tp=2, sequence_parallel=True, recompute="selective"), spec)
    assert " ".join(found["model"]) == (
        "--num-layers 6 --hidden-size 32 --ffn-hidden-size 64 --num-attention-heads 4 --kv-channels 8 "
        "--seq-length 16 --max-position-embeddings 16 --position-embedding-type rope "
        "--group-query-attention --num-query-groups 2 --swiglu --normalization RMSNorm --disable-bias-linear "
        "--untie-embeddings-and-output-weights --attention-dropout 0 --hidden-dropout 0"
    )
    assert " ".join(found["parallel"]) == (
        "--tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 "
        "--pipeline-model-parallel-layout Et*4|t*2L --sequence-parallel "
        "--overlap-grad-reduce --use-distributed-optimizer --overlap-param-gather"
    )
    assert found["batch"] == ["--micro-batch-size", "1", "--global-batch-size", "8"]
    assert found["recompute"] == ["--recompute-granularity", "selective"]
    assert found["precision"] == ["--bf16"]


def test_gpt_like_model() -> None:
    """Learned positions, biases and layer norm are Megatron's defaults."""
    words = words_of(pipeline([2, 2], zero=0), model(8, learned_positions=64, precision="fp16"))
    assert "learned_absolute" in words["model"]
    assert words["model"][words["model"].index("--max-position-embeddings") + 1] == "64"
    assert not {"--swiglu", "--disable-bias-linear", "--untie-embeddings-and-output-weights"} & set(
        words["model"]
    )
    assert words["precision"] == ["--fp16"]
    assert "--use-distributed-optimizer" not in words["parallel"]


def test_only_grouped_queries_are_grouped() -> None:
    """As many key/value heads as heads is Megatron's default; one alone is a group too."""
    for kv_heads, groups in ((4, None), (2, "2"), (1, "1")):
        words = model_words(model(8, kv_heads=kv_heads))
        assert ("--group-query-attention" in words) == (groups is not None)
        if groups:
            assert words[words.index("--num-query-groups") + 1] == groups


def test_models_that_megatron_builds_differ_in_nothing() -> None:
    """And one that it does not, in each of its parts."""
    assert list(differences(model(8, learned_positions=64))) == []
    odd = model(8, layer_norms=4, token_types=2, embedding_norm=True, final_norm=False, head_bias=True)
    assert len(list(differences(odd))) == 5
    encoder = model(8, kind="encoder", learned_positions=64, head_transform=True, head_bias=True)
    assert not [text for text in differences(encoder) if "output layer" in text]


@pytest.mark.parametrize(("gated", "dropout"), [(True, None), (True, False), (False, False)])
def test_models_without_dropout_switch_it_off(gated: bool, dropout: bool | None) -> None:
    """Megatron's defaults drop a tenth."""
    words = " ".join(model_words(model(8, gated_mlp=gated, dropout=dropout)))
    assert "--attention-dropout 0 --hidden-dropout 0" in words


@pytest.mark.parametrize(("gated", "dropout"), [(True, True), (False, None), (False, True)])
def test_models_with_dropout_keep_megatrons(gated: bool, dropout: bool | None) -> None:
    """Nothing is said of it."""
    assert "dropout" not in " ".join(model_words(model(8, gated_mlp=gated, dropout=dropout)))


def test_number_formats() -> None:
    """fp8 is hybrid on top of bf16, its weights in fp8 alone where the optimizer is sharded; tf32 is what fp32 runs
    in."""
    spec = {name: model(8, precision=name) for name in ("bf16", "fp16", "fp32", "tf32", "fp8")}
    found = {
        (name, dp, zero): words_of(pipeline([2, 2], dp=dp, zero=zero), item)["precision"]
        for name, item in spec.items()
        for dp, zero in ((2, 1), (2, 0), (1, 1))
    }
    words = {"bf16": ["--bf16"], "fp16": ["--fp16"], "fp32": [], "tf32": []}
    for (name, dp, zero), made in found.items():
        gathered = ["--fp8-param-gather"] if (dp, zero) == (2, 1) else []
        assert made == words.get(name, ["--bf16", "--fp8-format", "hybrid", *gathered])


@pytest.mark.parametrize("precision", ["bf16", "fp16", "fp32", "tf32", "fp8"])
@pytest.mark.parametrize("dropout", [True, False])
def test_every_number_format_is_emitted(precision: str, dropout: bool) -> None:
    """The rules know all its arguments."""
    spec = model(8, precision=precision, dropout=dropout)
    made = {file.path: file.text for file in emit(pipeline([3, 1]), CLUSTER, spec)}
    assert ("--fp8-format hybrid" in made["args.sh"]) == (precision == "fp8")
    assert ("--attention-dropout 0" in made["args.sh"]) == (not dropout)


def test_biases_and_norms() -> None:
    """Qwen 2 has biases on queries, keys and values alone, Qwen 3 norms queries and keys."""
    qwen2 = model_words(model(8, gated_mlp=True, qkv_bias=True))
    assert {"--disable-bias-linear", "--add-qkv-bias"} <= set(qwen2)
    assert "--qk-layernorm" in model_words(model(8, gated_mlp=True, qk_norm=True))
    assert list(differences(model(8, gated_mlp=True, qkv_bias=True))) == []


def test_differences_are_told() -> None:
    """What Megatron cannot build stands in the README and in the arguments."""
    neo = model(8, qkv_bias=False)
    assert list(differences(neo)) == ["queries, keys and values have biases"]
    made = {file.path: file.text for file in emit(pipeline([3, 1]), CLUSTER, neo)}
    for path in ("README.md", "args.sh"):
        assert "queries, keys and values have biases" in made[path]
    opt = model(8, embedding_width=16, final_norm=False)
    assert list(differences(opt)) == [
        "the token embedding is 32 wide instead of 16",
        "there is a norm after the last layer",
    ]
    phi = model(8, layer_norms=1, head_bias=True, head_transform=True)
    assert len(list(differences(phi))) == 3
    bert = model(8, kind="encoder", token_types=2, embedding_norm=True, head_transform=True, head_bias=True)
    assert len(list(differences(bert))) == 2


LLAMA_31: dict[str, Any] = {
    **{"activation": "silu", "norm_epsilon": 1e-6, "rope_base": 5e5, "rope_skips": 2},
    "rope_scaling": {"kind": "llama3", "factor": 8.0, "original_length": 8192},
}
ODD: dict[str, tuple[dict[str, Any], dict[str, Any], list[str]]] = {
    "gate": (
        {"gated_mlp": True},
        {"activation": "gelu-tanh"},
        ["gates of feed-forwards have SiLU instead of GELU"],
    ),
    "activation": ({}, {"activation": "relu"}, ["feed-forwards have GELU instead of ReLU"]),
    "own activation": (
        {"gated_mlp": True},
        {"activation": "other"},
        ["gates of feed-forwards have SiLU instead of an activation that Megatron lacks"],
    ),
    "base": (
        {},
        {"rope_base": 0.5 + 1e4, "rope_window_base": 1e3},
        [
            "the base of positions is whole, 10000 instead of 10000.5",
            "layers with a window have positions of the same base as all others",
        ],
    ),
    "layers without positions": ({"layers": 5}, {"rope_skips": 4}, ["every layer has positions"]),
    "other scaling": ({}, {"rope_scaling": {"kind": "other"}}, ["positions are not scaled"]),
    "longer": (
        {},
        {"rope_scaling": {"kind": "llama3", "factor": 8, "original_length": 4096}},
        ["positions are scaled as in Llama 3.1, from 8,192 tokens and factors 1 and 4"],
    ),
    "divided": (
        {},
        {"rope_scaling": {"kind": "linear", "factor": 2.5}},
        ["positions are divided by 2 instead of 2.5"],
    ),
    "weights": (
        {"gated_mlp": True, "experts": {"number": 8, "top_k": 2, "ffn": 48}},
        {"router": {"score": "sigmoid", "normalised": False}},
        ["the weights of a token's experts add up to one"],
    ),
    "balance": (
        {"gated_mlp": True, "experts": {"number": 8, "top_k": 2, "ffn": 48}},
        {"router": {"bias": True}},
        ["the router has no bias that balances the load"],
    ),
    "factors": (
        {},
        {"others": ("embedding_multiplier 12", "ALiBi"), "rope_share": 0},
        ["it leaves out embedding_multiplier 12, ALiBi"],
    ),
    "learned": ({"learned_positions": 64}, {"rope_scaling": {"kind": "other"}}, []),
}


@pytest.mark.parametrize("name", ODD)
def test_other_numerics_are_told(name: str) -> None:
    """What Megatron computes in another way than the model."""
    kind, said, expected = ODD[name]
    assert list(differences(model(8, **kind, numerics=said))) == expected


def test_numerics_are_arguments() -> None:
    """Those of the model file; the README names the others."""
    said = model(8, gated_mlp=True, numerics=LLAMA_31)
    words = model_words(said)
    given = " ".join(words)
    assert "--norm-epsilon 1e-06" in given
    assert "--rotary-base 500000 --no-rope-freq 2 --use-rope-scaling --rope-scaling-factor 8" in given
    assert list(differences(said)) == []
    assert unsaid(said) == []
    assert unsaid(model(8, gated_mlp=True)) == ["--norm-epsilon", "--rotary-base", "--use-rope-scaling"]
    made = {
        file.path: file.text for file in emit(pipeline([3, 1]), CLUSTER, model(8, layers=4, gated_mlp=True))
    }
    assert "with `--norm-epsilon`, `--rotary-base`, `--use-rope-scaling`." in made["README.md"]
    made = {file.path: file.text for file in emit(pipeline([3, 1]), CLUSTER, said)}
    assert "leaves some values" not in made["README.md"]


def test_attention_without_positions() -> None:
    """None, and none to ask for: no base that the model file could have named."""
    said = model(8, numerics={"norm_epsilon": 1e-5, "rope_share": 0, "rope_base": 1e4})
    words = " ".join(model_words(said))
    assert "--position-embedding-type none" in words
    assert "--rotary" not in words
    assert unsaid(said) == []


def test_one_stage_one_replica() -> None:
    """Without a pipeline there is no layout, without replicas nothing to overlap."""
    words = words_of(pipeline([4], dp=1, recompute="full"), model(4, attention="unfused", precision="fp32"))
    assert words["parallel"] == ["--tensor-model-parallel-size", "1", "--pipeline-model-parallel-size", "1"]
    assert " ".join(words["recompute"]).endswith("--recompute-method uniform --recompute-num-layers 1")
    assert words["model"][-2:] == ["--attention-backend", "unfused"]
    assert words["precision"] == []


def test_encoder() -> None:
    """BERT runs by Megatron's own BERT script on the user's data, of single sentences whatever these say."""
    spec = model(8, kind="encoder", learned_positions=16)
    made = {file.path: file.text for file in emit(pipeline([3, 1]), CLUSTER, spec)}
    assert "examples/bert/pretrain_bert.py" in made["launch.sh"]
    assert "encoders have no mock data" in made["args.sh"]
    assert "--mock-data" not in made["args.sh"]
    assert "  --bert-no-binary-head\n" in made["args.sh"]


@pytest.mark.parametrize(
    "changes", [{"learned_positions": 0}, {"learned_positions": 16, "kv_heads": 2}], ids=["rotary", "grouped"]
)
def test_encoder_that_megatron_lacks(changes: dict[str, int]) -> None:
    """Its BERT script knows learned positions and full attention heads only."""
    with pytest.raises(EmitError, match="encoders with learned positions"):
        emit(pipeline([3, 1]), CLUSTER, model(8, kind="encoder", **changes))


def test_one_recompute_policy() -> None:
    """Megatron recomputes the same on all stages."""
    first, last = pipeline([3, 1]).stages
    mixed = Stage(first_layer=3, end_layer=4, replicas=last.replicas, recompute="full")
    with pytest.raises(
        EmitError, match="megatron has one recomputation for all stages, expected none, got full"
    ):
        emit(Plan(target="megatron", zero=1, stages=(first, mixed)), CLUSTER, model(8))


def test_broken_rule_stops_emission() -> None:
    """Interleaving with a number of micro-batches that Megatron's schedule refuses."""
    with pytest.raises(EmitError, match="interleaving needs a multiple of 2 micro-batches"):
        emit(pipeline([2, 2], steps=5, interleave=2), CLUSTER, model(10))


def test_readme_shows_the_layout() -> None:
    """The README names what the plan is and how to start it."""
    made = {file.path: file.text for file in emit(pipeline([3, 1]), CLUSTER, model(8))}
    assert "`Et*3|tL`" in made["README.md"]
    assert "./launch.sh" in made["README.md"]
    assert "MEGATRON_PATH" in made["README.md"]


@pytest.mark.parametrize(("dp", "ratio", "share"), [(1, 0.3, "0.3"), (2, 1.0, "1")])
def test_optimizer_states_in_host_memory(dp: int, ratio: float, share: str) -> None:
    """With the distributed optimizer, which a single replica gets for it too; the share is always told."""
    chosen = pipeline([3, 1], dp=dp, offload=Offload(optimizer="cpu", ratio=ratio))
    found = words_of(chosen, model(chosen.global_batch))
    switches = ["--overlap-cpu-optimizer-d2h-h2d", "--use-precision-aware-optimizer"]
    assert found["offload"] == [
        *("--optimizer-cpu-offload", "--optimizer-offload-fraction", share),
        *switches,
    ]
    assert "--use-distributed-optimizer" in found["parallel"]
    assert emit(chosen, CLUSTER, model(chosen.global_batch))
    assert not words_of(pipeline([3, 1], dp=dp), model(4 * dp))["offload"]


@pytest.mark.parametrize("dp", [1, 2])
def test_split_weights(dp: int) -> None:
    """The precision-aware optimizer has them, with moments in fp32 too; it is part of the distributed one."""
    chosen = pipeline([3, 1], dp=dp)
    split = model(chosen.global_batch, master_weights="split")
    found = words_of(chosen, split)
    assert found["training"][-1] == "--use-precision-aware-optimizer"
    assert "--use-distributed-optimizer" in found["parallel"]
    assert emit(chosen, CLUSTER, split)
    assert found["training"][:-1] == words_of(chosen, model(chosen.global_batch))["training"]


@pytest.mark.parametrize("dp", [1, 2])
def test_formats_of_gradients_and_moments(dp: int) -> None:
    """bf16 gradients are one switch; bf16 moments need the distributed optimizer, with a single replica too."""
    chosen = pipeline([3, 1], dp=dp)
    narrow = model(chosen.global_batch, reduce_dtype="bf16", optimizer_states="bf16")
    found = words_of(chosen, narrow)
    assert "--grad-reduce-in-bf16" in found["precision"]
    assert found["training"][-5:] == ["--use-precision-aware-optimizer", *MOMENTS]
    assert "--use-distributed-optimizer" in found["parallel"]
    assert "--grad-reduce-in-bf16" not in words_of(chosen, model(chosen.global_batch))["precision"]
    assert emit(chosen, CLUSTER, narrow)
    with pytest.raises(EmitError, match="megatron keeps bf16 moments with ZeRO 1, got 0"):
        emit(replace(chosen, zero=0), CLUSTER, narrow)


MOMENTS = ("--exp-avg-dtype", "bf16", "--exp-avg-sq-dtype", "bf16")


MIXED = cluster(pool("a", ("A100",) * 4 + ("T4",) * 4, 4))


def split(dp: int, tp: int) -> Plan:
    """The first stage on the A100s of mixed nodes, the second on their T4s."""
    kinds = ((group("a", gpu, tp=tp, count=dp, share=1),) for gpu in ("A100", "T4"))
    return plan("megatron", 1, [3, 1], list(kinds))


@pytest.mark.parametrize(("dp", "tp", "nodes"), [(4, 4, 4), (8, 2, 4), (6, 2, 3)])
def test_stages_side_by_side_on_mixed_nodes(dp: int, tp: int, nodes: int) -> None:
    """Megatron's other rank order gives each node one launcher in place of two."""
    job = job_of(split(dp, tp), MIXED, model(dp))
    everyone = job.ranks
    assert job.stages_first
    assert len(agents(everyone)) == nodes
    assert len(agents(ranks(split(dp, tp), MIXED))) == 2 * nodes
    assert [rank.rank for rank in everyone] == list(range(2 * dp * tp))
    made = {file.path: file.text for file in emit(split(dp, tp), MIXED, model(dp))}
    assert "--use-tp-pp-dp-mapping" in made["args.sh"]
    assert "then stage, then replica" in made["README.md"]
    assert made["nodes.txt"].count("\n") == 1 + nodes


def test_default_order_where_nodes_hold_one_stage() -> None:
    """It wins ties, and where a stage fills its nodes."""
    job = job_of(pipeline([3, 1], dp=8), CLUSTER, model(32))
    assert not job.stages_first
    assert job.ranks == ranks(pipeline([3, 1], dp=8), CLUSTER)
    made = {file.path: file.text for file in emit(pipeline([3, 1], dp=8), CLUSTER, model(32))}
    assert "--use-tp-pp-dp-mapping" not in made["args.sh"]
    assert "Megatron's default order" in made["README.md"]


def test_experts_in_megatrons_words() -> None:
    """All of Mixtral's, on groups of four devices; without its own words a model has none of them."""
    mixtral = {"gated_mlp": True, "experts": {"number": 8, "top_k": 2, "ffn": 48}}
    spec = model(16, layers=8, **mixtral)
    found = words_of(pipeline([5, 3], dp=4, tp=2, ep=4, sequence_parallel=True), spec)
    words = " ".join(found["model"])
    assert (
        "--num-experts 8 --moe-router-topk 2 --moe-ffn-hidden-size 48 --moe-grouped-gemm --moe-permute-fusion "
        "--moe-token-dispatcher-type alltoall --moe-router-load-balancing-type aux_loss --moe-aux-loss-coeff 1e-3"
    ) in words
    assert found["parallel"][-4:] == [
        *("--expert-model-parallel-size", "4"),
        *("--expert-tensor-parallel-size", "1"),
    ]
    for backend in ("deepep", "hybridep"):
        sent = spec.trained_with(token_dispatcher=backend)
        flags = " ".join(words_of(pipeline([5, 3], dp=4, tp=2, ep=4, sequence_parallel=True), sent)["model"])
        flex = f"--moe-token-dispatcher-type flex --moe-flex-dispatcher-backend {backend} --moe-router-dtype fp32"
        assert flex in flags
        # Its flexible dispatcher asserts that there are other devices to send to.
        alone = {file.path: file.text for file in emit(pipeline([5, 3], dp=4), CLUSTER, sent)}
        assert "--moe-token-dispatcher-type alltoall" in alone["args.sh"]
        assert "github.com/deepseek-ai/DeepEP" not in alone["README.md"]
    beside, flag = spec.trained_with(expert_overlap=True), "--overlap-moe-expert-parallel-comm"
    for ep in (1, 4):
        chosen = pipeline([5, 3], dp=4, ep=ep, interleave=2)
        files = {file.path: file.text for file in emit(chosen, CLUSTER, beside)}
        assert (flag in files["args.sh"]) is (ep > 1)
        assert ("PyTorch 2.6 or newer" in files["README.md"]) is (ep > 1)
        queues = f"export CUDA_DEVICE_MAX_CONNECTIONS={32 if ep > 1 else 1}\n"
        assert any(queues in text for text in files.values())
    shared = words_of(pipeline([5, 3], dp=4, tp=2, ep=4, etp=2, sequence_parallel=True), spec)
    assert shared["parallel"][-1] == "2"
    dense = words_of(pipeline([5, 3]), model(8, layers=8))
    assert not [word for part in dense.values() for word in part if "expert" in word or "moe" in word]


LATENT = {"q_rank": 24, "kv_rank": 8, "rope_dim": 4, "value_dim": 8}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"attention": "unfused"}, ""),
        ({"experts": {"number": 8, "top_k": 2, "ffn": 48}}, " --recompute-modules layernorm moe_act"),
        (
            {"experts": {"number": 8, "top_k": 2, "ffn": 48}, "attention": "unfused"},
            " --recompute-modules layernorm moe_act core_attn",
        ),
        (
            {"latent": LATENT, "kv_heads": 4, "precision": "fp8"},
            " --recompute-modules layernorm mla_up_proj --fp8-recipe tensorwise",
        ),
    ],
)
def test_selective_recomputation_names_what_can_be_discarded(changes: dict[str, object], words: str) -> None:
    """Scores by default; what experts and latent attention can discard, in fp8 with scales of their own."""
    spec = model(8, layers=4, gated_mlp=True, **changes)
    found = words_of(pipeline([2, 2], sequence_parallel=False, recompute="selective"), spec)
    assert " ".join(found["recompute"]) == f"--recompute-granularity selective{words}"


@pytest.mark.parametrize(
    ("narrow", "frequency"), [(None, None), (4, "2"), (6, "4"), (7, "8"), (3, "[0,0,1,0,0,1,0,1]")]
)
def test_sliding_windows(narrow: int | None, frequency: str | None) -> None:
    """The token itself belongs to its window; every n-th layer is full, or a list says which."""
    spec = model(8, layers=8, window=8, window_layers=narrow)
    words = model_words(spec)
    assert words[words.index("--window-size") + 1] == "7,0"
    found = words[words.index("--window-attn-skip-freq") + 1] if "--window-attn-skip-freq" in words else None
    assert found == frequency


def test_ranks_of_experts_stay_in_megatrons_first_order() -> None:
    """Its other order needs as many replicas of experts as of everything else."""
    mixed = cluster(pool("a", ("A100",) * 4 + ("T4",) * 4, 2))
    spec = model(8, layers=8, experts={"number": 8, "top_k": 2, "ffn": 48}, mlp_bias=False)
    for tp, ep, etp in ((1, 1, 1), (1, 4, 1), (2, 2, 1), (2, 1, 2), (2, 2, 2)):
        stages = [(group("a", kind, tp=tp, count=8 // tp, share=tp),) for kind in ("A100", "T4")]
        chosen = plan("megatron", 1, [4, 4], stages, ep=ep, etp=etp, sequence_parallel=tp > 1)
        assert job_of(chosen, mixed, spec).stages_first == (ep * etp == tp)


def test_differences_of_experts_are_told() -> None:
    """Router and attention have biases where experts have; shared experts cannot have any."""
    plain = {"number": 8, "top_k": 2, "ffn": 48}
    assert list(differences(model(8, gated_mlp=True, experts=plain))) == []
    biased = {**plain, "router_bias": True, "bias": True}
    every = dict.fromkeys(("qkv_bias", "output_bias"), True)
    assert list(differences(model(8, gated_mlp=True, experts=biased, **every))) == []
    assert list(differences(model(8, gated_mlp=True, experts=biased))) == [
        "queries, keys and values have biases",
        "the attention output has a bias",
    ]
    shared = {**biased, "shared_ffn": 16}
    dense = model(8, gated_mlp=True, experts=shared, dense_layers=2, mlp_bias=True, **every)
    assert list(differences(dense)) == [
        "the attention output has no bias",
        "the feed-forwards of dense layers have no biases",
        "the router has no biases",
        "experts have no biases",
    ]


def test_arguments_of_published_models_are_named() -> None:
    """Those of a router where there is one, and that evaluation is beside the plan."""
    chosen, experts = pipeline([5, 3]), {"number": 8, "top_k": 2, "ffn": 48}
    for changes in ({"experts": experts}, {}):
        files = emit(chosen, CLUSTER, model(8, layers=8, gated_mlp=True, **changes))
        [told] = [file.text for file in files if file.path == "README.md"]
        assert ("--moe-router-score-function" in told) == bool(changes)
        assert "--eval-iters 0" in told


def test_experts_with_biases() -> None:
    """gpt-oss: Megatron refuses them with its fusion of biases and dropout, and in shared experts."""
    experts = {"number": 8, "top_k": 2, "ffn": 48, "router_bias": True, "bias": True}
    every = dict.fromkeys(("gated_mlp", "qkv_bias", "output_bias"), True)
    words = {*model_words(model(8, experts=experts, **every))}
    assert "--no-bias-dropout-fusion" in words
    assert not {"--disable-bias-linear", "--add-qkv-bias", "--no-bias-gelu-fusion"} & words
    assert "--no-bias-gelu-fusion" in model_words(model(8, experts=experts))
    words = {*model_words(model(8, experts={**experts, "shared_ffn": 16}, **every))}
    assert "--no-bias-dropout-fusion" not in words
    assert {"--disable-bias-linear", "--add-qkv-bias"} <= words


def test_latent_attention_has_its_norms() -> None:
    """Those of its low ranks, which Megatron leaves out unless told; the model file counts them."""
    latent = {"q_rank": 16, "kv_rank": 8, "rope_dim": 4, "value_dim": 8}
    spec = model(1, gated_mlp=True, latent=latent)
    assert "--qk-layernorm" in model_words(spec)
    assert "--qk-layernorm" not in model_words(model(1, gated_mlp=True))


STATE = {"kind": "mamba2", "heads": 8, "head_dim": 8, "size": 16, "groups": 2, "chunk": 128}
STACKED: dict[str, Any] = {
    "state": STATE,
    "ahead": ({"mixer": "state", "feed_forward": "none"},),
    "block": (
        {"mixer": "attention", "feed_forward": "none"},
        {"mixer": "none", "feed_forward": "dense", "layers": 2},
        {"mixer": "state", "feed_forward": "experts"},
    ),
    "behind": ({"mixer": "none", "feed_forward": "dense"},),
    "experts": {"number": 8, "top_k": 2, "ffn": 48, "hidden": 16},
}


def test_stacked_layers() -> None:
    """Each mixer and feed-forward is a layer of its own, and stages end at a bar; the script is that of stacks."""
    chosen, spec = pipeline([1, 2], interleave=1), model(8, layers=3, tied_embeddings=False, **STACKED)
    assert layout(chosen, spec) == "M*--ME|*--ME*--ME-"
    words = words_of(chosen, spec)
    assert " ".join(words["model"]).startswith(
        "--spec megatron.core.models.hybrid.hybrid_layer_specs hybrid_stack_spec --mamba-num-heads 8 "
        "--mamba-head-dim 8 --mamba-state-dim 16 --mamba-num-groups 2 --hidden-size 32 --ffn-hidden-size 64"
    )
    assert "--num-layers" not in words["model"]
    assert "--moe-layer-freq" not in words["model"]
    assert words["model"][words["model"].index("--position-embedding-type") + 1] == "none"
    assert words["model"][words["model"].index("--moe-latent-size") + 1] == "16"
    parallel = " ".join(words["parallel"])
    assert "--hybrid-layer-pattern M*--ME|*--ME*--ME- " in parallel
    assert "--pipeline-model-parallel-layout" not in parallel
    assert layout(chosen, spec.trained_with(mtp_layers=2)) == "M*--ME|*--ME*--ME-/-/-"
    alone = pipeline([3])
    assert "--hybrid-layer-pattern M*--ME*--ME*--ME-" in " ".join(words_of(alone, spec)["parallel"])
    made = emit(chosen, CLUSTER, spec)
    [launch] = [file.text for file in made if file.path == "launch.sh"]
    [readme] = [file.text for file in made if file.path == "README.md"]
    assert '"$MEGATRON_PATH/pretrain_hybrid.py"' in launch
    assert "`M*--ME|*--ME*--ME-`" in readme
    assert "mamba-ssm" in readme


DELTA = {"kind": "delta", "heads": 8, "head_dim": 8, "size": 16, "groups": 4, "conv_bias": False, "chunk": 64}
REPLACED: dict[str, Any] = {
    "state": DELTA,
    "block": ({"mixer": "state", "layers": 3}, {"mixer": "attention"}),
    "output_gate": True,
    "qk_norm": True,
    "experts": {"number": 8, "top_k": 2, "ffn": 48},
}


def test_attention_replaced_by_a_delta_rule() -> None:
    """Qwen3-Next: whole layers of Megatron's GPT model, every fourth of which attends."""
    chosen, spec = pipeline([1, 2]), model(8, layers=3, gated_mlp=True, **REPLACED)
    assert layout(chosen, spec) == "Et*4|t*8L"
    words = " ".join(words_of(chosen, spec)["model"])
    assert words.startswith("--num-layers 12 ")
    assert "--position-embedding-type rope" in words
    assert (
        "--attention-output-gate --experimental-attention-variant gdn --linear-attention-freq 4 "
        "--linear-conv-kernel-dim 4 --linear-num-key-heads 4 --linear-key-head-dim 16 --linear-num-value-heads 8 "
        "--linear-value-head-dim 8"
    ) in words
    assert "--moe-layer-freq" not in words
    assert "--hybrid-layer-pattern" not in " ".join(words_of(chosen, spec)["parallel"])
    files = {file.path: file.text for file in emit(chosen, CLUSTER, spec)}
    assert '"$MEGATRON_PATH/pretrain_gpt.py"' in files["launch.sh"]
    assert "flash-linear-attention" in files["README.md"]
    assert list(differences(spec)) == []
    odd = model(
        8, layers=3, gated_mlp=True, **{**REPLACED, "state": {**DELTA, "conv_bias": True, "chunk": 128}}
    )
    assert list(differences(odd)) == [
        "convolutions of layers with a state have no bias",
        "layers with a state work on 64 tokens at once instead of 128",
    ]
    ahead = model(8, layers=3, **REPLACED, ahead=({"feed_forward": "dense"},))
    assert "--linear-attention-freq ([0]*1+[1]*3+[0]*1+[1]*3+[0]*1+[1]*3+[0]*1)" in " ".join(
        model_words(ahead)
    )
    assert "--moe-layer-freq ([0]*1+[1]*12)" in " ".join(model_words(ahead))


def test_differences_of_states_are_told() -> None:
    """Megatron's mixer of Mamba 2 has one convolution, one chunk, and no biases of its projections."""

    def told(**changes: object) -> list[str]:
        return list(
            differences(model(8, layers=3, gated_mlp=True, **{**STACKED, "state": {**STATE, **changes}}))
        )

    assert told() == []
    assert told(bias=True, conv_bias=False, conv=3, norm=False, chunk=256) == [
        "projections of layers with a state have no biases",
        "convolutions of layers with a state have a bias",
        "convolutions of layers with a state see 4 tokens instead of 3",
        "what layers with a state make is normalised",
        "layers with a state work on 128 tokens at once instead of 256",
    ]


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        (
            {"state": {**STATE, "kind": "linear"}},
            "a state of kind linear with megatron, it can: mamba2, delta",
        ),
        ({"state": {**STATE, "kind": "delta"}}, "gated delta rules without feed-forwards"),
        ({"block": ({"mixer": "both"},)}, "attention and a state side by side in a layer"),
        ({"block": ({"mixer": "none", "ffn": 32},)}, "layers of several sizes"),
        ({"qk_norm": True}, "norms of queries and keys beside layers of other kinds"),
        ({"window": 8}, "sliding windows beside layers of other kinds"),
        ({"sinks": True}, "sinks beside layers of other kinds"),
        ({"kernels": "torch"}, "kernels of torch beside layers of other kinds"),
        ({"precision": "fp8", "state": {**STATE, "heads": 4}}, "is not a multiple of 16 wide in fp8"),
    ],
)
def test_what_stacked_layers_lack(changes: dict[str, Any], what: str) -> None:
    """Named, one at a time."""
    spec = model(8, layers=3, **{**STACKED, **changes})
    [fault] = target_faults(pipeline([1, 2]), spec)
    assert what in fault.what


def test_a_state_is_divided_by_its_groups() -> None:
    """Each device has whole ones: two are not divided by four, nor one by two."""
    for groups, tp, whole in ((2, 2, True), (2, 4, False), (1, 2, False)):
        spec = model(8, layers=3, **{**STACKED, "state": {**STATE, "groups": groups}})
        faults = list(head_faults(pipeline([1, 2], tp=tp), spec))
        assert (not faults) is whole
        assert splits(spec, tp) is whole


def test_evaluation_has_an_interval() -> None:
    """Megatron divides the iterations by it when it builds its data, and has none by default (d98e8a64)."""
    words = words_of(pipeline([2, 2]), model(8))["logging"]
    assert words[words.index("--eval-interval") + 1] == "1000"


@pytest.mark.parametrize(
    ("feed_forward", "further", "kept"), [("dense", 0, 2), ("dense", 1, 1), ("none", 0, 1)]
)
def test_recomputed_layers_of_a_stack(feed_forward: str, further: int, kept: int) -> None:
    """A layer keeps its input alone, though a mixer and a feed-forward are two of Megatron's."""
    block = ({"mixer": "state", "feed_forward": feed_forward}, {"mixer": "attention"})
    spec = model(8, state=STATE, block=block).trained_with(mtp_layers=further)
    words = words_of(pipeline([1, 1], recompute="full"), spec)["recompute"]
    assert words[-2:] == ["--recompute-num-layers", str(kept)]
