"""Argument lists that Megatron would refuse are refused here first."""

from __future__ import annotations

import re
from itertools import product

import pytest

from planner.dims.context import context_faults
from planner.emit.interface import job_of
from planner.errors import EmitError
from planner.model.spec import RunSpec, StateSpec
from planner.plan.values import Context
from planner.runtimes.megatron.arguments import arguments
from planner.targets import target
from tests.runtimes.megatron.plans import generated
from tests.runtimes.megatron.rules import check_arguments
from tests.runtimes.megatron.test_runtime import CLUSTER, pipeline
from tests.worlds import model

STACK = (
    "--spec megatron.core.models.hybrid.hybrid_layer_specs hybrid_stack_spec --mamba-num-heads 8 "
    "--mamba-num-groups 2 --hybrid-layer-pattern"
)
DELTA = (
    "--experimental-attention-variant gdn --linear-attention-freq 4 --linear-num-value-heads 4 "
    "--linear-num-key-heads"
)
BASE = (
    "--num-layers 8 --hidden-size 64 --ffn-hidden-size 256 --num-attention-heads 4 --seq-length 32 "
    "--max-position-embeddings 32 --micro-batch-size 2 --global-batch-size 64"
)

ACCEPTED = [
    ("", 8),
    ("--tensor-model-parallel-size 2 --pipeline-model-parallel-size 4", 8),
    ("--pipeline-model-parallel-size 2 --pipeline-model-parallel-layout Et*7|tL", 2),
    ("--pipeline-model-parallel-size 3 --pipeline-model-parallel-layout E|t*8|L", 3),
    ("--pipeline-model-parallel-size 2 --pipeline-model-parallel-layout Et*3|t|t|t*3L", 2),
    ("--group-query-attention --num-query-groups 2 --tensor-model-parallel-size 4", 4),
    ("--recompute-granularity full --recompute-method uniform --recompute-num-layers 1", 1),
    ("--recompute-granularity selective --recompute-modules layernorm core_attn", 1),
    (f"{STACK} M-M*M-", 1),
    (f"--tensor-model-parallel-size 2 {DELTA} 2", 2),
    (f"--pipeline-model-parallel-size 2 {STACK} M-|M*|M|-", 2),
    (f"--context-parallel-size 4 {STACK} M*", 4),
    (f"--context-parallel-size 2 {DELTA} 2", 2),
]

REFUSED = [
    (f"--pipeline-model-parallel-size 2 {STACK} M-|M*|M", 2, "must have a multiple of pp segments: 3"),
    (f"{STACK} MX", 1, "a layer that is not M, E"),
    (
        f"--pipeline-model-parallel-size 2 --pipeline-model-parallel-layout Et*7|tL {STACK} M|M",
        2,
        "--hybrid-layer-pattern excludes --pipeline-model-parallel-layout",
    ),
    (f"--tensor-model-parallel-size 4 {STACK} M", 4, "--mamba-num-groups must be a multiple of tp"),
    ("--hybrid-layer-pattern M", 1, "needs --spec of a stack"),
    (f"--tensor-model-parallel-size 4 {DELTA} 2", 4, "--linear-num-key-heads must be a multiple of tp"),
    (f"--context-parallel-size 4 {DELTA} 2", 4, "--linear-num-key-heads must be a multiple of tp x cp"),
    ("--num-layer 8", 1, "--num-layer: not an argument"),
    ("--num-layers 8", 1, "--num-layers: given twice"),
    ("--lr", 1, "--lr: needs a value"),
    ("--lr --bf16", 1, "--lr: needs a value"),
    ("--pipeline-model-parallel-size 0", 1, "at least 1, got 0"),
    (
        "--tensor-model-parallel-size 4 --pipeline-model-parallel-size 4",
        8,
        "ranks must be a multiple of tp x pp",
    ),
    ("--context-parallel-size 3", 4, "ranks must be a multiple of tp x pp x cp"),
    ("--context-parallel-size 3", 3, "--seq-length must be a multiple of 2 x cp"),
    ("--tensor-model-parallel-size 3", 3, "--num-attention-heads must be a multiple of tp: 4"),
    ("--group-query-attention --num-query-groups 3", 1, "multiple of --num-query-groups"),
    (
        "--group-query-attention --num-query-groups 4 --tensor-model-parallel-size 8",
        8,
        "must be a multiple of tp",
    ),
    ("--optimizer-cpu-offload", 1, "--optimizer-cpu-offload needs --use-distributed-optimizer"),
    (
        "--optimizer-cpu-offload --use-distributed-optimizer",
        1,
        "--optimizer-cpu-offload needs --use-precision-aware-optimizer",
    ),
    ("--use-precision-aware-optimizer", 1, "needs --use-distributed-optimizer"),
    (
        "--optimizer-cpu-offload --use-distributed-optimizer --use-precision-aware-optimizer --bf16 "
        "--fp8-format hybrid --fp8-param-gather --fp8-recipe tensorwise",
        1,
        "--fp8-param-gather needs --fp8-recipe delayed",
    ),
    ("--group-query-attention", 1, "needs --num-query-groups"),
    ("--num-query-groups 2", 1, "needs --group-query-attention"),
    ("--pipeline-model-parallel-size 3", 3, "--num-layers must be a multiple of pp without a layout"),
    ("--pipeline-model-parallel-size 2 --pipeline-model-parallel-layout t*4|t*4L", 2, "start with E"),
    ("--pipeline-model-parallel-size 2 --pipeline-model-parallel-layout Et*4|x*4L", 2, "not t or"),
    ("--pipeline-model-parallel-size 2 --pipeline-model-parallel-layout Et*4|t*5L", 2, "places 9 layers"),
    (
        "--pipeline-model-parallel-size 2 --pipeline-model-parallel-layout Et*4|t*2|t*2L",
        2,
        "multiple of pp stages",
    ),
    ("--pipeline-model-parallel-layout Et*4|t*4L", 1, "interleaving needs a pipeline"),
    (
        "--pipeline-model-parallel-size 2 --pipeline-model-parallel-layout Et*2|t*2|t*2|t*2L",
        64,
        "multiple of pp micro-batches: 1 ",
    ),
    ("", 5, "multiple of --micro-batch-size x dp"),
    ("--bf16 --fp16", 1, "exclude each other"),
    ("--overlap-param-gather --use-distributed-optimizer", 1, "needs --overlap-grad-reduce"),
    ("--overlap-param-gather --overlap-grad-reduce", 1, "needs --use-distributed-optimizer"),
    ("--sequence-parallel", 1, "needs tp of at least 2"),
    ("--tp-comm-overlap", 1, "needs --sequence-parallel"),
    ("--use-distributed-optimizer --optimizer sgd", 1, "adam only"),
    ("--recompute-granularity full", 1, "needs --recompute-method"),
    ("--recompute-granularity full --recompute-method uniform", 1, "--recompute-num-layers: missing"),
    ("--recompute-granularity selective --recompute-method uniform", 1, "excludes --recompute-method"),
    ("--recompute-modules layernorm", 1, "needs --recompute-granularity selective"),
    ("--recompute-granularity selective --recompute-modules moe_act", 1, "needs --moe-grouped-gemm"),
    (
        "--recompute-granularity selective --recompute-modules mla_up_proj",
        1,
        "needs --multi-latent-attention",
    ),
    (
        "--bf16 --fp8-format hybrid --recompute-granularity selective --recompute-modules layernorm",
        1,
        "exclude delayed scaling",
    ),
]


@pytest.mark.parametrize(("words", "world"), ACCEPTED)
def test_accepted(words: str, world: int) -> None:
    """What Megatron's parser took when it was tried."""
    check_arguments(f"{BASE} {words}".split(), world)


@pytest.mark.parametrize(("words", "world", "message"), REFUSED, ids=[message for *_, message in REFUSED])
def test_refused(words: str, world: int, message: str) -> None:
    """Each rule has its message."""
    with pytest.raises(EmitError, match=message.replace("(", r"\(")):
        check_arguments(f"{BASE} {words}".split(), world)


def test_sequence_too_long() -> None:
    """Positions must cover the sequence, and sequence parallelism must divide it."""
    words = BASE.replace("--max-position-embeddings 32", "--max-position-embeddings 16")
    with pytest.raises(EmitError, match="at least --seq-length"):
        check_arguments(words.split(), 1)
    words = (
        BASE.replace("--seq-length 32", "--seq-length 31")
        + " --tensor-model-parallel-size 2 --sequence-parallel"
    )
    with pytest.raises(EmitError, match="--seq-length must be a multiple of tp"):
        check_arguments(words.split(), 2)


def test_further_tokens_stand_ahead_of_the_loss() -> None:
    """On the last stage, and their number is said."""
    spec = model(8, layers=8, gated_mlp=True, mtp_layers=2)
    for layers in ([8], [5, 3]):
        job = job_of(pipeline(layers), CLUSTER, spec)
        words = [word for part in arguments(job).values() for word in part]
        check_arguments(words, job.plan.devices)
        assert words[words.index("--mtp-num-layers") + 1] == "2"
        assert ("Et*5|t*3mmL" in words) == (len(layers) == 2)
    with pytest.raises(EmitError, match="as many m as"):
        check_arguments([word.replace("mmL", "mL") for word in words], job.plan.devices)


def test_generated_plans_keep_the_rules() -> None:
    """Plans of all shapes are emitted with arguments that pass the table, most in the default order."""
    cases = generated(160, seed=6)
    second = 0
    for case in cases:
        job = job_of(case.plan, case.cluster, case.model)
        words = [word for part in arguments(job).values() for word in part]
        check_arguments(words, case.plan.devices)
        assert ("--use-tp-pp-dp-mapping" in words) == job.stages_first
        second += job.stages_first
    assert 0 < second < len(cases) / 2


@pytest.mark.parametrize("cp", [2, 3, 4])
def test_sequences_that_context_parallelism_divides(cp: int) -> None:
    """Plans have those that Megatron takes, and no others."""
    allowed, taken = set(), set()
    for length in range(60, 73):
        spec = model(8)
        training = spec.training.model_copy(update={"sequence_length": length, "attention": "flash"})
        spec = spec.model_copy(update={"training": training})
        if not list(context_faults(Context(ways=cp), target("megatron"), spec, 1)):
            allowed.add(length)
        words = BASE.replace("--seq-length 32", f"--seq-length {length}")
        words = words.replace("--max-position-embeddings 32", f"--max-position-embeddings {length}")
        try:
            check_arguments(f"{words} --context-parallel-size {cp}".split(), cp)
        except EmitError as error:
            if "--seq-length must be a multiple of 2 x cp" not in str(error):
                raise
        else:
            taken.add(length)
    assert allowed == taken != set()


@pytest.mark.parametrize("cp", [2, 4, 6])
def test_states_that_context_parallelism_divides(cp: int) -> None:
    """Plans have those that Megatron takes, and no others: whole groups of heads each, or a group together."""
    allowed, taken = set(), set()
    for heads, groups in product((4, 6, 8, 12, 24), (1, 2, 3, 4, 6)):
        if heads % groups:
            continue
        state = StateSpec(kind="mamba2", heads=heads, head_dim=8, size=16, groups=groups, chunk=128)
        spec = model(8, state=state, block=(RunSpec(mixer="state"), RunSpec()))
        spec = spec.trained_with(sequence_length=48, attention="flash")
        if not list(context_faults(Context(ways=cp), target("megatron"), spec, 1)):
            allowed.add((heads, groups))
        words = BASE.replace(" 32", " 48") + f" {STACK} M* --context-parallel-size {cp}"
        words = re.sub("(?<=--mamba-num-heads )[0-9]+", str(heads), words)
        words = re.sub("(?<=--mamba-num-groups )[0-9]+", str(groups), words)
        try:
            check_arguments(words.split(), cp)
        except EmitError as error:
            if "--mamba-num" not in str(error):
                raise
        else:
            taken.add((heads, groups))
    assert allowed == taken != set()
