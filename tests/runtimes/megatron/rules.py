"""Megatron-LM's rules for its arguments, as of core 0.20.0: lists that break one are refused.

Only arguments that hetplan emits are known here; Megatron itself stops at an unknown one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import takewhile

from planner.errors import EmitError
from planner.job.job import Job
from planner.runtimes.megatron.arguments import arguments

VALUED = frozenset(
    {
        "--attention-backend",
        "--attention-dropout",
        "--clip-grad",
        "--context-parallel-size",
        "--cp-comm-type",
        "--expert-model-parallel-size",
        "--expert-tensor-parallel-size",
        "--experimental-attention-variant",
        "--kv-lora-rank",
        "--mtp-num-layers",
        "--moe-aux-loss-coeff",
        "--moe-expert-capacity-factor",
        "--moe-ffn-hidden-size",
        "--moe-flex-dispatcher-backend",
        "--moe-latent-size",
        "--moe-layer-freq",
        "--activation-func-clamp-value",
        "--glu-linear-offset",
        "--moe-router-dtype",
        "--moe-router-group-topk",
        "--moe-router-num-groups",
        "--moe-router-score-function",
        "--moe-router-topk-scaling-factor",
        "--mscale",
        "--mscale-all-dim",
        "--no-rope-freq",
        "--norm-epsilon",
        "--rope-scaling-factor",
        "--rotary-base",
        "--rotary-percent",
        "--rotary-scaling-factor",
        "--rotary-seq-len-interpolation-factor",
        "--yarn-beta-fast",
        "--yarn-beta-slow",
        "--yarn-original-max-position-embeddings",
        "--moe-router-load-balancing-type",
        "--moe-router-topk",
        "--moe-shared-expert-intermediate-size",
        "--moe-token-dispatcher-type",
        "--num-experts",
        "--q-lora-rank",
        "--qk-head-dim",
        "--qk-pos-emb-head-dim",
        "--softmax-type",
        "--v-head-dim",
        "--window-attn-skip-freq",
        "--window-size",
        "--exp-avg-dtype",
        "--exp-avg-sq-dtype",
        "--ffn-hidden-size",
        "--fp8-format",
        "--fp8-recipe",
        "--global-batch-size",
        "--hidden-dropout",
        "--hidden-size",
        "--hybrid-layer-pattern",
        "--kv-channels",
        "--linear-attention-freq",
        "--linear-conv-kernel-dim",
        "--linear-key-head-dim",
        "--linear-num-key-heads",
        "--linear-num-value-heads",
        "--linear-value-head-dim",
        "--lr",
        "--mamba-head-dim",
        "--mamba-num-groups",
        "--mamba-num-heads",
        "--mamba-state-dim",
        "--max-position-embeddings",
        "--micro-batch-size",
        "--nccl-communicator-config-path",
        "--normalization",
        "--num-attention-heads",
        "--eval-interval",
        "--log-interval",
        "--num-layers",
        "--num-query-groups",
        "--optimizer",
        "--optimizer-offload-fraction",
        "--pipeline-model-parallel-layout",
        "--pipeline-model-parallel-size",
        "--position-embedding-type",
        "--recompute-granularity",
        "--recompute-method",
        "--recompute-num-layers",
        "--seq-length",
        "--tensor-model-parallel-size",
        "--tokenizer-type",
        "--train-iters",
        "--vocab-size",
    }
)
SWITCHES = frozenset(
    {
        "--attention-output-gate",
        "--accumulate-allreduce-grads-in-fp32",
        "--add-qkv-bias",
        "--bert-no-binary-head",
        "--bf16",
        "--disable-bias-linear",
        "--fp16",
        "--fp8-param-gather",
        "--grad-reduce-in-bf16",
        "--group-query-attention",
        "--moe-grouped-gemm",
        "--moe-permute-fusion",
        "--moe-router-enable-expert-bias",
        "--moe-router-pre-softmax",
        "--no-yarn-correction-range-round-to-int",
        "--quick-geglu",
        "--squared-relu",
        "--use-rope-scaling",
        "--moe-shared-expert-gate",
        "--multi-latent-attention",
        "--mock-data",
        "--no-bias-dropout-fusion",
        "--no-bias-gelu-fusion",
        "--optimizer-cpu-offload",
        "--overlap-cpu-optimizer-d2h-h2d",
        "--overlap-grad-reduce",
        "--overlap-moe-expert-parallel-comm",
        "--overlap-param-gather",
        "--qk-layernorm",
        "--sequence-parallel",
        "--tp-comm-overlap",
        "--swiglu",
        "--untie-embeddings-and-output-weights",
        "--use-distributed-optimizer",
        "--use-precision-aware-optimizer",
        "--use-tp-pp-dp-mapping",
    }
)
MODULES = frozenset({"core_attn", "layernorm", "mla_up_proj", "moe_act"})
CHUNK = re.compile(r"t(?:\*[1-9][0-9]*)?|")


def check_arguments(args: Sequence[str], world_size: int) -> None:
    """Raise EmitError naming the first rule that an argument list breaks on ``world_size`` ranks."""
    given = parse(args)
    dp = _check_grid(given, world_size)
    _check_shape(given)
    chunks = _check_layout(given)
    _check_batch(given, dp, chunks)
    _check_experts(given, dp, chunks)
    _check_switches(given)
    _check_recompute(given)


def parse(args: Sequence[str]) -> dict[str, str]:
    """Values by argument, empty for switches; raises EmitError on what Megatron's parser would not take."""
    given: dict[str, str] = {}
    words = iter(args)
    for word in words:
        if word in given:
            raise EmitError(f"{word}: given twice")
        if word in SWITCHES:
            given[word] = ""
        elif word in VALUED:
            value = next(words, "")
            if not value or value.startswith("--"):
                raise EmitError(f"{word}: needs a value")
            given[word] = value
        elif word == "--spec":
            given[word] = f"{next(words, '')} {next(words, '')}"
        elif word == "--recompute-modules":
            given[word] = " ".join(takewhile(MODULES.__contains__, words_after(args, word)))
            for _ in given[word].split():
                next(words)
        else:
            raise EmitError(f"{word}: not an argument that hetplan knows of Megatron")
    return given


def words_after(args: Sequence[str], word: str) -> Sequence[str]:
    """What follows a word."""
    return args[args.index(word) + 1 :]


def _number(given: Mapping[str, str], name: str, default: int | None = None) -> int:
    text = given.get(name)
    if text is None:
        if default is None:
            raise EmitError(f"{name}: missing")
        return default
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise EmitError(f"{name}: expected a whole number of at least 1, got {text}")
    return int(text)


def _divides(divisor: int, number: int, rule: str) -> None:
    if number % divisor:
        raise EmitError(f"{rule}: {number} does not divide by {divisor}")


def _check_grid(given: Mapping[str, str], world_size: int) -> int:
    """The ranks form a rectangle tp x pp x cp x dp; returns cp x dp."""
    width = _number(given, "--tensor-model-parallel-size", 1) * _number(
        given, "--pipeline-model-parallel-size", 1
    )
    _divides(width, world_size, "the number of ranks must be a multiple of tp x pp")
    dp, cp = world_size // width, _number(given, "--context-parallel-size", 1)
    _divides(cp, dp, "the number of ranks must be a multiple of tp x pp x cp")
    if cp > 1:
        _divides(2 * cp, _number(given, "--seq-length"), "--seq-length must be a multiple of 2 x cp")
    return dp


def _check_shape(given: Mapping[str, str]) -> None:
    tp = _number(given, "--tensor-model-parallel-size", 1)
    heads = _number(given, "--num-attention-heads")
    _divides(tp, heads, "--num-attention-heads must be a multiple of tp")
    groups = _number(given, "--num-query-groups", heads)
    if groups % tp and tp % groups:
        raise EmitError(f"--num-query-groups must be a multiple or a divisor of tp: {groups} and {tp}")
    _divides(groups, heads, "--num-attention-heads must be a multiple of --num-query-groups")
    _divides(tp, _number(given, "--ffn-hidden-size"), "--ffn-hidden-size must be a multiple of tp")
    if "--kv-channels" not in given:
        _divides(
            heads,
            _number(given, "--hidden-size"),
            "--hidden-size must be a multiple of --num-attention-heads",
        )
    for name in ("--linear-num-key-heads", "--linear-num-value-heads"):
        share = tp * _number(given, "--context-parallel-size", 1)
        _divides(share, _number(given, name, share), f"{name} must be a multiple of tp x cp")
    _check_duality(given, tp)
    sequence = _number(given, "--seq-length")
    if _number(given, "--max-position-embeddings") < sequence:
        raise EmitError("--max-position-embeddings must be at least --seq-length")
    if "--sequence-parallel" in given:
        _divides(tp, sequence, "--seq-length must be a multiple of tp with --sequence-parallel")


def _check_duality(given: Mapping[str, str], tp: int) -> None:
    """The ranks that share a sequence have heads of whole groups each, or of one group together."""
    cp = _number(given, "--context-parallel-size", 1)
    heads = _number(given, "--mamba-num-heads", tp * cp)
    _divides(tp * cp, heads, "--mamba-num-heads must be a multiple of tp x cp")
    groups = _number(given, "--mamba-num-groups", tp * cp) // tp
    if groups % cp and cp % groups:
        raise EmitError(f"--mamba-num-groups / tp must be a multiple or a divisor of cp: {groups} and {cp}")


def _check_layout(given: Mapping[str, str]) -> int:
    """The layout places every layer on a whole number of chunks; returns chunks per pipeline rank."""
    pp = _number(given, "--pipeline-model-parallel-size", 1)
    if "--hybrid-layer-pattern" in given:
        return _check_stack(given, pp)
    layers = _number(given, "--num-layers")
    text = given.get("--pipeline-model-parallel-layout")
    if text is None:
        _divides(pp, layers, "--num-layers must be a multiple of pp without a layout")
        return 1
    if not (text.startswith("E") and text.endswith("L")):
        raise EmitError(f"the pipeline layout must start with E and end with L: {text}")
    stages = text[1:-1].split("|")
    further, last = stages[-1].count("m"), stages[-1].rstrip("m")
    if further != _number(given, "--mtp-num-layers", 0):
        raise EmitError("the pipeline layout must end with as many m as --mtp-num-layers")
    if further and len(stages) == 1:
        raise EmitError("the pipeline layout must not have m on the first stage")
    stages[-1] = last
    for stage in stages:
        if not CHUNK.fullmatch(stage):
            raise EmitError(f"the pipeline layout has a stage that is not t or t*NUMBER: {stage}")
    placed = sum(int(stage[2:] or 1) if stage else 0 for stage in stages)
    if placed != layers:
        raise EmitError(f"the pipeline layout places {placed} layers, --num-layers is {layers}")
    _divides(pp, len(stages), "the pipeline layout must have a multiple of pp stages")
    if len(stages) > pp == 1:
        raise EmitError("interleaving needs a pipeline of at least 2 stages")
    return len(stages) // pp


def _check_stack(given: Mapping[str, str], pp: int) -> int:
    """Layers of one mixer or feed-forward, by symbol, each stage apart; returns chunks per pipeline rank."""
    pattern = given["--hybrid-layer-pattern"]
    if "--pipeline-model-parallel-layout" in given:
        raise EmitError("--hybrid-layer-pattern excludes --pipeline-model-parallel-layout")
    main, *further = pattern.split("/")
    if not re.fullmatch(r"[ME*|-]+(/[ME*-]+)*", pattern):
        raise EmitError(f"--hybrid-layer-pattern has a layer that is not M, E, * or -: {pattern}")
    if given.get("--spec", " ").split()[-1:] != ["hybrid_stack_spec"]:
        raise EmitError("--hybrid-layer-pattern needs --spec of a stack")
    if "M" in pattern:
        tp = _number(given, "--tensor-model-parallel-size", 1)
        for name in ("--mamba-num-heads", "--mamba-num-groups"):
            _divides(tp, _number(given, name), f"{name} must be a multiple of tp")
    if len(further) != _number(given, "--mtp-num-layers", 0):
        raise EmitError("--hybrid-layer-pattern must end with as many further layers as --mtp-num-layers")
    segments = main.count("|") + 1
    _divides(pp, segments, "--hybrid-layer-pattern must have a multiple of pp segments")
    return segments // pp


def _check_batch(given: Mapping[str, str], dp: int, chunks: int) -> None:
    dp //= _number(given, "--context-parallel-size", 1)
    pp = _number(given, "--pipeline-model-parallel-size", 1)
    batch, micro_batch = _number(given, "--global-batch-size"), _number(given, "--micro-batch-size")
    _divides(micro_batch * dp, batch, "--global-batch-size must be a multiple of --micro-batch-size x dp")
    if chunks > 1:
        steps = batch // (micro_batch * dp)
        _divides(pp, steps, "interleaving needs a multiple of pp micro-batches")


def _check_experts(given: Mapping[str, str], dp: int, chunks: int) -> None:
    """Experts divide over groups of whole devices, and the second order of ranks needs as many replicas of them."""
    ep, tp = (
        _number(given, "--expert-model-parallel-size", 1),
        _number(given, "--tensor-model-parallel-size", 1),
    )
    if "--num-experts" not in given:
        if ep > 1:
            raise EmitError("--expert-model-parallel-size needs --num-experts")
        return
    _divides(ep, _number(given, "--num-experts"), "--num-experts must be a multiple of ep")
    etp = _number(given, "--expert-tensor-parallel-size", tp)
    _divides(ep * etp, tp * dp, "the ranks of a stage must be a multiple of ep x etp")
    _divides(etp, _number(given, "--moe-ffn-hidden-size"), "--moe-ffn-hidden-size must be a multiple of etp")
    if etp > 1 and "--disable-bias-linear" not in given:
        raise EmitError("--expert-tensor-parallel-size of at least 2 needs --disable-bias-linear")
    pipeline = _number(given, "--pipeline-model-parallel-size", 1) > 1
    if "--use-tp-pp-dp-mapping" in given and pipeline and ep * etp != tp:
        raise EmitError("--use-tp-pp-dp-mapping needs as many replicas of experts as of everything else")
    if "--disable-bias-linear" not in given and "--no-bias-dropout-fusion" not in given:
        raise EmitError("--num-experts with biases needs --no-bias-dropout-fusion")
    if not {"--disable-bias-linear", "--swiglu", "--quick-geglu", "--no-bias-gelu-fusion"} & {*given}:
        raise EmitError("--num-experts with biases and without gates needs --no-bias-gelu-fusion")
    if "--disable-bias-linear" not in given and "--moe-shared-expert-intermediate-size" in given:
        raise EmitError("--moe-shared-expert-intermediate-size needs --disable-bias-linear")
    if tp > 1 and "--sequence-parallel" not in given:
        raise EmitError("--num-experts with tp of at least 2 needs --sequence-parallel")
    if "--overlap-moe-expert-parallel-comm" in given:
        _check_overlap(given, ep, not pipeline or chunks > 1)


def _check_overlap(given: Mapping[str, str], ep: int, independent: bool) -> None:
    """Forwards and backwards that are independent of each other, and layers that are not recomputed whole."""
    name = "--overlap-moe-expert-parallel-comm"
    if ep == 1:
        raise EmitError(f"{name} needs ep of at least 2")
    if not independent:
        raise EmitError(f"{name} needs several chunks of layers on a device")
    if given.get("--recompute-granularity") == "full":
        raise EmitError(f"{name} goes without --recompute-granularity full")
    if not {"--bf16", "--fp16"} & {*given}:
        raise EmitError(f"{name} needs --bf16 or --fp16")
    if int(given.get("--mtp-num-layers", 0)) > 1:
        raise EmitError(f"{name} goes with one --mtp-num-layers at most")


def _check_switches(given: Mapping[str, str]) -> None:
    def needs(switch: str, *others: str) -> None:
        for other in others:
            if switch in given and other not in given:
                raise EmitError(f"{switch} needs {other}")

    if "--bf16" in given and "--fp16" in given:
        raise EmitError("--bf16 and --fp16 exclude each other")
    needs("--overlap-param-gather", "--use-distributed-optimizer", "--overlap-grad-reduce")
    needs("--optimizer-cpu-offload", "--use-distributed-optimizer", "--use-precision-aware-optimizer")
    needs("--use-precision-aware-optimizer", "--use-distributed-optimizer")
    if {"--optimizer-cpu-offload", "--fp8-param-gather"} <= {*given} and given.get(
        "--fp8-recipe", "delayed"
    ) != "delayed":
        raise EmitError("--optimizer-cpu-offload with --fp8-param-gather needs --fp8-recipe delayed")
    needs("--group-query-attention", "--num-query-groups")
    needs("--num-query-groups", "--group-query-attention")
    if "--tp-comm-overlap" in given and "--sequence-parallel" not in given:
        raise EmitError("--tp-comm-overlap needs --sequence-parallel")
    if "--sequence-parallel" in given and _number(given, "--tensor-model-parallel-size", 1) == 1:
        raise EmitError("--sequence-parallel needs tp of at least 2")
    if "--use-distributed-optimizer" in given and given.get("--optimizer", "adam") != "adam":
        raise EmitError("--use-distributed-optimizer (ZeRO 1) runs with --optimizer adam only")


def _check_recompute(given: Mapping[str, str]) -> None:
    granularity = given.get("--recompute-granularity")
    method = given.get("--recompute-method")
    if granularity == "full" and method not in ("uniform", "block"):
        raise EmitError("--recompute-granularity full needs --recompute-method uniform or block")
    if granularity == "selective" and method is not None:
        raise EmitError("--recompute-granularity selective excludes --recompute-method")
    if method is not None:
        _number(given, "--recompute-num-layers")
    modules = given.get("--recompute-modules", "").split()
    if modules and granularity != "selective":
        raise EmitError("--recompute-modules needs --recompute-granularity selective")
    if "moe_act" in modules and "--moe-grouped-gemm" not in given:
        raise EmitError("--recompute-modules moe_act needs --moe-grouped-gemm")
    if "mla_up_proj" in modules and "--multi-latent-attention" not in given:
        raise EmitError("--recompute-modules mla_up_proj needs --multi-latent-attention")
    if {"moe_act", "layernorm"} & {*modules} and given.get("--fp8-format") and "--fp8-recipe" not in given:
        raise EmitError("--recompute-modules moe_act and layernorm exclude delayed scaling")


def check_files(files: Mapping[str, str], job: Job) -> None:
    """Raise EmitError naming the first rule that the arguments of a folder break."""
    sections = arguments(job)
    check_arguments([word for section in sections.values() for word in section], job.plan.devices)
    script = files["args.sh"]
    assert all(word in script for name, words in sections.items() if name != "data" for word in words)
