"""What a user writes about a model and its training."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from functools import cached_property
from typing import Annotated, Any, Literal, NamedTuple, get_args

from pydantic import Field

from planner.capabilities import CudaGraphs, StateKind, TokenDispatcher
from planner.files.fields import (
    Batch,
    BatchTokens,
    Beta,
    CapacityFactor,
    CriticalTokens,
    DataGib,
    Epsilon,
    Experts,
    Exponent,
    FeedForward,
    Frozen,
    Heads,
    Imbalance,
    Layers,
    Loss,
    LossScale,
    Mscale,
    MtpLayers,
    Name,
    Norms,
    OptionalFeedForward,
    OptionalLoss,
    OptionalRows,
    OptionalWidth,
    Others,
    RopeBase,
    RopeFactor,
    Rotated,
    RouterScale,
    Rows,
    SequenceLength,
    Source,
    Spread,
    TokenBytes,
    Width,
)

Precision = Literal["bf16", "fp16", "fp32", "tf32", "fp8"]
Optimizer = Literal["adamw", "sgd", "lion", "muon", "adafactor"]
StateFormat = Literal["fp32", "bf16", "int8", "paged-fp32", "paged-int8"]
MasterWeights = Literal["fp32", "split", "bf16"]
GradientFormat = Literal["fp32", "bf16"]
CrossEntropy = Literal["chunked", "plain", "fused", "masked"]
NormKernels = Literal["fused", "unfused"]
GradientSums = Literal["fused", "apart"]
Attention = Literal["flash", "unfused"]
Split = Literal["columns", "rows", "nothing"]
Activation = Literal[
    "silu", "gelu", "gelu-tanh", "quick-gelu", "clamped-quick-gelu", "relu", "squared-relu", "other"
]
RopeScaling = Literal["linear", "llama3", "yarn", "other"]
Kernels = Literal[
    "megatron", "megatron-2021", "torch", "torch-compiled", "torch-2023", "deepspeed", "deepspeed-2021"
]

Projections = tuple[tuple[Width, Width, Split], ...]
Sizes = tuple[tuple[str, int | Projections], ...]

AdapterTarget = Literal[
    "q_proj",
    "k_proj",
    "v_proj",
    "q_a_proj",
    "q_b_proj",
    "kv_a_proj_with_mqa",
    "kv_b_proj",
    "o_proj",
    "in_proj",
    "out_proj",
    "gate_proj",
    "up_proj",
    "down_proj",
    "experts.gate_proj",
    "experts.up_proj",
    "experts.down_proj",
]
"""Linear layers by the names that transformers gives them: of attention, of low ranks (DeepSeek), of states (Mamba),
of a feed-forward and of shared experts, and of each other expert."""
BaseFormat = Literal["bf16", "fp16", "fp8", "nf4", "nf4-double"]
Part = Literal["embedding", "attention", "mlp", "norms", "head"]
PARTS: tuple[Part, ...] = ("embedding", "attention", "mlp", "norms", "head")
NF4_BLOCK = 64
"""Elements of a 4-bit base that share a scale (arXiv:2305.14314, section 3)."""
NF4_BYTES: dict[BaseFormat, float] = {
    "nf4": 0.5 + 4.0 / NF4_BLOCK,
    "nf4-double": 0.5 + (1.0 + 4.0 / 256) / NF4_BLOCK,
}
"""Bytes of an element of a 4-bit base: half a byte, and a scale for each block, in fp32 or of eight bits, with an fp32
scale for each 256 of those (double quantisation)."""
BASE_BYTES: dict[BaseFormat, float] = {"fp8": 1.0, **NF4_BYTES}
"""Bytes of an element of a base in a format of its own; fp8 has a scale for each matrix, or for 128 x 128 elements."""
GROUPED_RANK = 8
"""Ranks of experts' adapters are multiples of it: rows of grouped products begin at multiples of 16 bytes on GPUs."""
ROW_TARGETS: frozenset[AdapterTarget] = frozenset(("o_proj", "down_proj", "out_proj"))
"""Linear layers whose inputs tensor parallelism divides; of the others it divides the outputs."""

MOMENTS = {"adamw": 2, "sgd": 1, "lion": 1, "muon": 1, "adafactor": 0}
"""Moments of one element of a layer's matrix; Adafactor has those of rows and columns alone (arXiv:1804.04235)."""
MOMENT_BYTES = {"fp32": 4.0, "bf16": 2.0, "int8": 1.0 + 4.0 / 256}
MOMENT_BYTES |= {f"paged-{name}": MOMENT_BYTES[name] for name in ("fp32", "int8")}
"""Bytes of a moment; 8-bit ones have an fp32 scale for each 256 elements (arXiv:2110.02861, section 2.1)."""
MASTER_BYTES = {"fp32": 4.0, "split": 2.0, "bf16": 0.0}
"""Bytes that the optimizer keeps of a weight beside the working one of 16 bits: all of it, the 16 bits that bf16 lacks,
or nothing."""
HALVES = ("bf16", "fp8")
"""Precisions whose gradients may be kept and reduced in bf16 or in fp32."""


class LoraSpec(Frozen):
    """Low-rank adapters that are trained in place of the model (arXiv:2106.09685)."""

    rank: Width
    """Inner width of an adapter."""
    alpha: Width | None = None
    """What an adapter adds is scaled by this over the rank; twice the rank when absent."""
    targets: Annotated[tuple[AdapterTarget, ...], Field(min_length=1)] | None = None
    """Linear layers that have adapters; absent, all that the model's layers have but those of experts."""
    base: BaseFormat | None = None
    """Number format of the linear layers under adapters: the training's own; nf4 (QLoRA, arXiv:2305.14314), whose
    scales have eight bits in nf4-double; in fp8 training also fp8, in which they are multiplied."""
    dropout: bool = False
    """True where each adapter drops elements of its input, as with PEFT's ``lora_dropout``: it keeps those that are
    left, and a mask."""
    keeps_inputs: bool = False
    """True where frozen layers keep what they take, as bitsandbytes' four-bit ones did until July 2024."""


def base_formats(precision: str) -> tuple[BaseFormat, ...]:
    """Those that a base may have: in which the training stores weights or multiplies by them, and four bits."""
    own: dict[str, tuple[BaseFormat, ...]] = {
        "bf16": ("bf16",),
        "fp16": ("fp16",),
        "fp8": ("bf16", "fp8"),
    }
    return (*own.get(precision, ()), *NF4_BYTES)


class LossCurveSpec(Frozen):
    """The loss after a number of steps: floor + scale x steps^-exponent, of one batch."""

    batch_tokens: BatchTokens
    """Tokens of the batch that these steps have."""
    floor: OptionalLoss
    """Loss that no number of steps goes below."""
    scale: LossScale
    """What one step is above the floor."""
    exponent: Exponent
    """Power of the steps with which that falls."""
    least_loss: Loss
    """The lowest loss that was seen; lower ones are extrapolated."""
    spread: Spread = 0.0
    """Relative standard error of the steps to that loss."""
    floor_spread: OptionalLoss = 0.0
    """Standard error of the floor."""


class ConvergenceSpec(Frozen):
    """How the steps to a loss depend on the batch, for ``hetplan search --objective time-to-loss``."""

    critical_batch_tokens: CriticalTokens | None = None
    """Batch, in tokens, that takes twice the fewest steps and twice the fewest tokens; absent, by published laws."""
    critical_batch_spread: Spread | None = None
    """Its relative standard error: 0.5 says from 1 / 1.5 of it to 1.5 times it; 1 when absent."""
    curve: LossCurveSpec | None = None
    """Loss by steps, as ``hetplan calibrate loss`` fits it; absent, the run of ``--tokens`` says where to stop."""
    source: Source = None


class DataSpec(Frozen):
    """The training data in storage."""

    bytes_per_token: TokenBytes = 4.0
    """Bytes of a token: 2 or 4 of a tokenised data set, about 4 of text."""
    bytes_per_sequence: TokenBytes | None = None
    """Bytes of a whole sequence, for example one with an image, in place of those of its tokens."""
    dataset_gib: DataGib | None = None
    """The whole data set, which caches then hold from the second pass on; absent, nothing is read twice."""
    prepared: bool = True
    """False when processors have to make it ready: decode, tokenise, put together."""


class DocumentsSpec(Frozen):
    """Documents shorter than a sequence, as those of fine-tuning: several in one, or one with padding behind it."""

    mean_length: SequenceLength
    """Tokens of a document in the mean."""
    spread: Spread = 1.0
    """Standard deviation of their lengths over the mean; 0 when all are equally long."""
    packing: bool = True
    """True when sequences are filled with documents, each of which attends to itself alone; false when each has one,
    padded to its length."""


class PreferenceSpec(Frozen):
    """Training on pairs of answers (direct preference optimization, arXiv:2305.18290): each sequence of the batch is a
    pair, the chosen one in its first half and the rejected one in its second.

    What the model made of both before it was trained is computed beside: with adapters by the same weights without
    these, else by a frozen copy of the model.
    """

    beta: Beta = 0.1
    """How strongly the model is kept near what it was."""


class TrainingSpec(Frozen):
    """One optimizer step: how much data, in which number format, by which optimizer."""

    sequence_length: SequenceLength
    """Tokens of a sequence."""
    global_batch: Batch
    """Sequences of one optimizer step."""
    precision: Precision = "bf16"
    """Number format: bf16, fp16, fp32, tf32 (stored in fp32) or fp8 (products only)."""
    optimizer: Optimizer = "adamw"
    """adamw (two states), sgd (momentum), lion, muon (AdamW for all but the layers' matrices) or adafactor."""
    optimizer_states: StateFormat = "fp32"
    """Number format of the optimizer's moments: fp32, bf16 or int8; paged-fp32 or paged-int8 in memory that device and
    host share (arXiv:2305.14314, section 3)."""
    master_weights: MasterWeights | None = None
    """Weights that the optimizer updates: fp32, a copy of its own; split, the same as the bf16 weights and the 16 bits
    that these lack; bf16, the working weights themselves; absent, fp32, or what the runtime has with narrow moments."""
    gradient_dtype: GradientFormat | None = None
    """Number format in which bf16 and fp8 training keep gradients: fp32 or bf16; the runtime's own when absent."""
    reduce_dtype: GradientFormat | None = None
    """Number format in which they are added up over the replicas: fp32 or bf16; the runtime's own when absent."""
    gradient_sums: GradientSums | None = None
    """Who adds the gradient of a weight to that of earlier micro-batches: fused, the product that makes it; apart, a
    pass of its own behind it; the kernel set's own when absent (apart with megatron-2021 and deepspeed-2021)."""
    cross_entropy: CrossEntropy | None = None
    """chunked: few rows in fp32 at a time, the gradient in place of the logits; plain: probabilities and both gradients
    in fp32; fused: in place; masked: plain, of the masked 15 % of an encoder's tokens alone; the runtime's own when
    absent."""
    norms: NormKernels = "fused"
    """fused: one kernel each; unfused: operations one by one in fp32, which keep copies of a norm's input and of what
    its weight multiplies, as RMS norms of Hugging Face's classes, LitGPT and torchtune do."""
    attention: Attention = "flash"
    """flash keeps no attention matrix; unfused stores it."""
    kernels: Kernels | None = None
    """Kernel set that the software runs: megatron (Megatron-Core, TransformerEngine), megatron-2021 (unfused), torch
    (eager), torch-compiled, torch-2023 (eager, with the first FlashAttention), deepspeed or deepspeed-2021; absent, the
    usual one of the runtime and attention."""
    cuda_graphs: CudaGraphs = "none"
    """What CUDA graphs launch in place of the host: layers, the kernels of layers; step, all of a step; or none."""
    token_dispatcher: TokenDispatcher = "alltoall"
    """How tokens travel to experts on other devices: alltoall, once for each; deepep or hybridep, once to each device
    that has some of them, and once over the network to each node."""
    expert_overlap: bool = False
    """All-to-alls of experts run beside the computation of another micro-batch (``combined_1f1b`` of Megatron-Core)."""
    dropout: bool | None = None
    """Dropout in attention and layers; absent, models without gated MLP have it."""
    mtp_layers: MtpLayers = 0
    """Modules behind the last layer that predict one token more each, with a layer of the model's own kind and the
    embedding and output layer that it has (arXiv:2412.19437, section 2.2)."""
    lora: LoraSpec | None = None
    """Adapters that are trained alone, all else frozen; absent, the model itself is trained."""
    freeze: Annotated[tuple[Part, ...], Field(min_length=1)] | None = None
    """Parts that are not trained: embedding, head, and attention, mlp or norms of all layers."""
    convergence: ConvergenceSpec | None = None
    """How the steps to a loss depend on the batch; absent, published laws say it where it is asked for."""
    data: DataSpec | None = None
    """The training data in storage, for clusters that say how fast they read it."""
    documents: DocumentsSpec | None = None
    """Documents shorter than a sequence; absent, every sequence is one whole document."""
    preference: PreferenceSpec | None = None
    """Pairs of answers in place of texts, a half of ``sequence_length`` each; absent, the next token is predicted."""

    @property
    def keeps_reference(self) -> bool:
        """True when a frozen copy of the model stands beside it."""
        return self.preference is not None and self.lora is None

    @property
    def forwards(self) -> int:
        """Forwards of the model for one backward."""
        return 1 if self.preference is None else 2

    @property
    def mean_document(self) -> float | None:
        """Tokens of a document in the mean, where several stand in a sequence; None where it is one."""
        if self.preference is not None:
            return self.sequence_length / 2
        return (
            float(self.documents.mean_length)
            if self.documents is not None and self.documents.packing
            else None
        )

    @property
    def packed(self) -> bool:
        """True when several documents stand in a sequence."""
        return self.mean_document is not None

    @property
    def sequence_tokens(self) -> float:
        """Tokens of a sequence that are no padding, in the mean."""
        if self.documents is not None and not self.documents.packing:
            return min(self.documents.mean_length, self.sequence_length)
        return self.sequence_length

    @property
    def tokens(self) -> float:
        """Tokens of a step that are no padding."""
        return self.global_batch * self.sequence_tokens

    @property
    def packs_documents(self) -> bool:
        """True when sequences are filled with documents, of which none is an answer of a pair."""
        return self.preference is None and self.packed

    @property
    def own_tokens(self) -> float:
        """Length of the document that a token is in, mean over tokens, which are more in longer ones."""
        return self.own_tokens_of(self.sequence_length)

    def own_tokens_of(self, length: int) -> float:
        """The same in sequences of such a length."""
        if self.mean_document is None:
            return float(length)
        spread = 0.0 if self.documents is None else self.documents.spread
        return min(self.mean_document * (1.0 + spread**2), float(length))

    @property
    def moment_bytes(self) -> float:
        """Bytes of the optimizer's moments of one element of a layer."""
        return MOMENTS[self.optimizer] * MOMENT_BYTES[self.optimizer_states]

    @property
    def paged(self) -> bool:
        """True when the moments are in memory that device and host share, in the host's where the device is full."""
        return self.optimizer_states.startswith("paged")

    @property
    def end_moment_bytes(self) -> float:
        """Those of one element of an embedding or a head, which Muon leaves to AdamW."""
        first = "adamw" if self.optimizer == "muon" else self.optimizer
        return MOMENTS[first] * MOMENT_BYTES[self.optimizer_states]


def _not_gated(fields: dict[str, Any]) -> bool:
    return not fields.get("gated_mlp", False)


def _usual_norm(fields: dict[str, Any]) -> str:
    return "rms" if fields.get("gated_mlp", False) else "layer"


def _hidden(fields: dict[str, Any]) -> int:
    return int(fields.get("hidden", 1))


def _heads(fields: dict[str, Any]) -> int:
    return int(fields.get("heads", 1))


def _head_dim(fields: dict[str, Any]) -> int:
    return _hidden(fields) // _heads(fields)


def _ffn(fields: dict[str, Any]) -> int:
    return 4 * _hidden(fields)


class RopeScalingSpec(Frozen):
    """How rotary positions reach farther than they were pretrained to."""

    kind: RopeScaling
    """linear: positions are divided by ``factor``; llama3: long wavelengths alone are stretched, as in Llama 3.1; yarn:
    arXiv:2309.00071; other: in a way that no runtime here has."""
    factor: RopeFactor = 1.0
    """How many times farther."""
    original_length: SequenceLength | None = None
    """Tokens that they were pretrained to, of llama3 and yarn; absent, 8,192 of llama3 and 4,096 of yarn."""
    low: RopeFactor = 1.0
    """Wavelengths above ``original_length`` over this are stretched by ``factor``, of llama3."""
    high: RopeFactor = 4.0
    """Those below ``original_length`` over this are not."""
    fast: RopeFactor = 32.0
    """Dimensions that turn more often than this in ``original_length`` are not stretched, of yarn."""
    slow: RopeFactor = 1.0
    """Those that turn less often are stretched by ``factor``."""
    rounded: bool = True
    """False where the bounds between both are not rounded to whole dimensions (gpt-oss)."""
    mscale: Mscale = 1.0
    """Coefficient of the temperature that cosines and sines have, of yarn."""
    mscale_all_dim: Mscale = 0.0
    """Coefficient of that of the scores (DeepSeek-V3)."""

    @property
    def own_length(self) -> int:
        """``original_length``, or that of the models that the scaling is known from."""
        return self.original_length or (8192 if self.kind == "llama3" else 4096)


class RouterSpec(Frozen):
    """How the router picks and weighs the experts of a token."""

    score: Literal["softmax", "sigmoid"] = "softmax"
    """What an expert's score is made by."""
    normalised: bool = True
    """True when the weights of a token's experts add up to one."""
    scale: RouterScale = 1.0
    """Factor of these weights."""
    bias: bool = False
    """True when a bias that balances the load, and no gradient changes, decides with the scores (arXiv:2408.15664)."""
    groups: Experts | None = None
    """Groups of experts of which a token has ``top_groups``; absent, it has experts of any."""
    top_groups: Experts | None = None
    """Groups that the experts of a token are in."""


class NumericsSpec(Frozen):
    """What changes results and neither time nor memory: launch files hand it on; absent, a runtime's own values."""

    activation: Activation | None = None
    """Of feed-forwards, of gated ones that of the gate; clamped-quick-gelu is that of gpt-oss; other: one that no
    runtime here has. Absent, silu of gated ones and gelu of others."""
    norm_epsilon: Epsilon | None = None
    """What norms add to a mean square."""
    rope_base: RopeBase | None = None
    """Base of the wavelengths of rotary positions."""
    rope_window_base: RopeBase | None = None
    """That of layers with a sliding window, where they have another one (Gemma 3)."""
    rope_share: Rotated | None = None
    """Share of a head's width that is rotated; 0 where attention has no rotary positions."""
    rope_skips: Layers | None = None
    """n where every n-th layer has no positions (Llama 4)."""
    rope_scaling: RopeScalingSpec | None = None
    """How positions reach farther than they were pretrained to."""
    router: RouterSpec | None = None
    """How experts are picked and weighed."""
    others: tuple[str, ...] | None = None
    """What else the model computes, in the words of its configuration; no runtime here has it, and launch files say
    so."""


class ExpertsSpec(Frozen):
    """The experts that stand in place of the feed-forward of every layer, and the router that picks for a token."""

    number: Experts
    """Experts of a layer."""
    top_k: Experts
    """Experts that work on each token."""
    ffn: FeedForward
    """Width of the feed-forward of one expert."""
    hidden: Width | None = None
    """Width of what experts take and give, where tokens are brought to it and back (Nemotron 3); absent, the model's
    own."""
    shared_ffn: OptionalFeedForward = 0
    """Width of all shared experts together, which work on every token; 0 for none."""
    shared_gate: bool = False
    """True when a learned gate scales the shared experts (Qwen 2 MoE)."""
    router_bias: bool = False
    """Bias of the router (gpt-oss)."""
    bias: bool = False
    """Biases in every expert (gpt-oss)."""
    capacity_factor: CapacityFactor | None = None
    """Room of an expert over its even share of the tokens, which are dropped beyond; absent, none is dropped."""
    imbalance: Imbalance | None = None
    """Tokens of the busiest device of an expert-parallel group over the mean; absent, what a balancing loss leaves."""


class LatentSpec(Frozen):
    """Multi-head latent attention: low-rank factors of queries, keys and values (arXiv:2405.04434, section 2.1)."""

    q_rank: Width | None = None
    """Rank of the queries; absent, they are projected at once."""
    kv_rank: Width
    """Rank that keys and values share."""
    rope_dim: Width
    """Part of ``head_dim`` that has rotary positions; its key is one for all heads."""
    value_dim: Width
    """Width of a head's value."""


Mixer = Literal["attention", "cross", "state", "both", "none"]
FeedForwardKind = Literal["experts", "dense", "none"]


class StateSpec(Frozen):
    """A mixer of tokens that carries a state of fixed size along the sequence, where other layers attend."""

    kind: StateKind
    """mamba: selective scan (arXiv:2312.00752); mamba2: state-space duality (arXiv:2405.21060); delta: gated delta rule
    (arXiv:2412.06464), the linear attention of Qwen3-Next; linear: lightning attention (arXiv:2401.04658), that of
    MiniMax-01, and the matrix memory of xLSTM (arXiv:2405.04517); conv: gated short convolution (LFM2)."""
    heads: Heads = 1
    """Heads, of delta those of its values; mamba and conv have channels alone: 1."""
    head_dim: Width
    """Width of one head; of mamba and conv that of all channels."""
    size: Width = 1
    """Elements of the state of a channel; of delta the width of a key."""
    groups: Heads = 1
    """Groups of heads that share what writes to the state and reads from it; of delta the heads of its keys."""
    rank: Width | None = None
    """Rank of the time step's projection (mamba), or of the gate and decay of each channel (delta of Kimi Linear)."""
    conv: Width = 4
    """Tokens that the causal convolution ahead of it sees."""
    conv_bias: bool = True
    """Bias of the convolution."""
    bias: bool = False
    """Biases of the projections at both ends."""
    gates: Annotated[int, Field(ge=1, le=3)] = 2
    """Gates of conv: 2 in LFM2, one ahead of the convolution and one behind it; 1 in the conformer, 3 in RWKV."""
    norm: bool = True
    """True when what it makes of a token is normalised (mamba2, delta, linear), or what steers the scan (Jamba)."""
    chunk: Width = 256
    """Tokens that are worked on at once, as a small attention (mamba2, delta, linear)."""

    @property
    def inner(self) -> int:
        """Width of what it makes of a token."""
        return self.heads * self.head_dim

    @property
    def convolved(self) -> int:
        """Channels of the convolution."""
        if self.kind == "linear":
            return 0
        keys = 2 * self.groups * self.size
        return self.inner + (keys if self.kind in ("mamba2", "delta") else 0)

    def matrices(self, hidden: int) -> tuple[tuple[int, int, Split], ...]:
        """(inputs, outputs, what tensor parallelism divides) of its projections."""
        last: tuple[int, int, Split] = (self.inner, hidden, "rows")
        if self.kind == "conv":
            return (hidden, (1 + self.gates) * self.inner, "columns"), last
        if self.kind == "linear":
            return (hidden, 2 * self.inner + 2 * self.groups * self.size, "columns"), last
        if self.kind == "delta" and self.rank is not None:
            first = self.convolved + self.heads + 2 * self.rank
            return (hidden, first, "columns"), (self.rank, 2 * self.inner, "columns"), last
        if self.kind == "mamba":
            rank = self.rank or 1
            scan: tuple[tuple[int, int, Split], ...] = (
                (self.inner, rank + 2 * self.size, "rows"),
                (rank, self.inner, "columns"),
            )
            return (hidden, 2 * self.inner, "columns"), *scan, last
        # Values and their gate, what writes and reads, and a time step, or of delta a decay and a rate, for each head.
        steps = self.heads * (2 if self.kind == "delta" else 1)
        return (hidden, self.inner + self.convolved + steps, "columns"), last

    def on(self, devices: int) -> StateSpec:
        """The same as so many devices share its heads: those that share a group of Mamba 2 have its keys each."""
        if self.kind != "mamba2" or devices <= self.groups:
            return self
        return self.model_copy(update={"groups": devices})

    def biases(self, hidden: int) -> int:
        """Parameters of the biases of the projections."""
        return self.matrices(hidden)[0][1] + hidden if self.bias else 0

    @property
    def own_parameters(self) -> int:
        """Parameters beside the projections: convolution, decays, biases of time steps, norm."""
        parameters = self.convolved * (self.conv + self.conv_bias)
        if self.kind == "mamba":
            norms = (self.rank or 1) + 2 * self.size if self.norm else 0
            return parameters + self.inner * (self.size + 2) + norms
        if self.kind == "mamba2":
            return parameters + 3 * self.heads + (self.inner if self.norm else 0)
        if self.kind == "delta":
            decays = self.heads + (self.heads if self.rank is None else self.inner)
            return parameters + decays + (self.head_dim if self.norm else 0)
        if self.kind == "linear":
            return self.inner if self.norm else 0
        return parameters


class TowerSpec(Frozen):
    """Layers of their own that make tokens of images, and the projector that brings these into the text."""

    layers: Layers
    """Layers of full attention."""
    hidden: Width
    """Their width."""
    heads: Heads
    """Their attention heads."""
    ffn: FeedForward
    """Width of their feed-forward."""
    gated_mlp: bool = False
    """True for three matrices."""
    norm: Literal["layer", "rms"] = "layer"
    """Their norms."""
    bias: bool = True
    """Biases of all their matrices."""
    patch: Rows
    """Elements of a patch: 3 x 14 x 14 in CLIP."""
    patch_bias: bool = False
    """Bias of what embeds patches."""
    tokens: SequenceLength
    """Tokens of one image in the tower."""
    outputs: SequenceLength
    """Tokens of one image in the text, which stand among those of its sequence."""
    positions: OptionalRows = 0
    """Rows of a learned position table; 0 for rotary."""
    class_token: bool = False
    """True when a learned token stands ahead of the patches."""
    norm_first: bool = False
    """Norm ahead of the layers (CLIP)."""
    norm_last: bool = False
    """Norm behind them."""
    merged: Annotated[int, Field(ge=1, le=1024)] = 1
    """Tokens side by side that the projector takes as one (Qwen-VL: 4)."""
    projector: Annotated[tuple[Width, ...], Field(min_length=1)]
    """Widths behind each of the projector's matrices; the last is that of the text."""
    projector_bias: bool = True
    """Its biases."""
    projector_norm: bool = False
    """Norm of the tower's tokens ahead of it."""
    images: Annotated[int, Field(ge=1, le=100_000)] = 1
    """Images of a sequence."""
    frozen: bool = False
    """True when the tower is not trained; the projector always is."""
    window: SequenceLength | None = None
    """Tokens that a token of a layer with windows attends to."""
    window_layers: Layers | None = None
    """Layers with windows."""
    other_parameters: Others = 0
    """Parameters that no token meets."""

    @property
    def matrices(self) -> tuple[tuple[float, int, int], ...]:
        """(tokens of an image, inputs, outputs) of what embeds patches, then of the projector."""
        widths = (self.merged * self.hidden, *self.projector)
        each = zip(widths, self.projector, strict=False)
        return (self.tokens, self.patch, self.hidden), *((self.outputs, *sizes) for sizes in each)

    @property
    def embedding_parameters(self) -> int:
        """Parameters of the tower ahead of its layers, and its last norm."""
        norm = 2 if self.norm == "layer" else 1
        parameters = self.patch * self.hidden + (self.hidden if self.patch_bias else 0)
        parameters += (self.positions + self.class_token) * self.hidden
        return parameters + (self.norm_first + self.norm_last) * norm * self.hidden + self.other_parameters

    @property
    def projector_parameters(self) -> int:
        """Those of the projector."""
        norm = (2 if self.norm == "layer" else 1) * self.hidden if self.projector_norm else 0
        biases = sum(self.projector) if self.projector_bias else 0
        return norm + biases + sum(inputs * outputs for _, inputs, outputs in self.matrices[1:])


class ProductSpec(Frozen):
    """Equal matrices beside a model's layers: of what sees or hears, and of layers of other widths than these.

    They stand with the embedding. A convolution is a product with what stands under its kernel.
    """

    inputs: Width
    """Elements of a token that comes in."""
    outputs: Width
    """Elements that are made of it."""
    tokens: SequenceLength
    """Tokens of a sequence on which each of them works."""
    times: Annotated[int, Field(ge=1, le=100_000)] = 1
    """How many there are."""
    bias: bool = False
    """Bias of the outputs."""
    weights: bool = True
    """False where both factors are made of tokens, as in attention: then nothing is trained."""

    @property
    def parameters(self) -> int:
        """Those of all of them."""
        return self.times * self.outputs * (self.inputs + self.bias) if self.weights else 0

    @property
    def operations(self) -> float:
        """Those of a forward of one sequence, a multiplication and an addition apart."""
        return 2.0 * self.times * self.tokens * self.inputs * self.outputs


class FrontSpec(Frozen):
    """A convolution ahead of an encoder's layers, as a product with what stands under its kernel (Whisper)."""

    inputs: Width
    """Elements under the kernel: its width by the channels that come in."""
    outputs: Width
    """Channels that it makes."""
    tokens: SequenceLength
    """Places of the kernel in one input."""
    bias: bool = True
    """Bias of the channels."""


class EncoderSpec(Frozen):
    """A stack of its own with full attention, whose output the decoder's layers of mixer ``cross`` attend to.

    It stands with the embedding on the first stage. What is not given is as in the decoder.
    """

    layers: Layers
    """Layers, or equal blocks of unlike ones."""
    sequence_length: SequenceLength
    """Tokens of an input in it."""
    hidden: Width | None = None
    """Its width."""
    heads: Heads | None = None
    """Its attention heads."""
    kv_heads: Heads | None = None
    """Its key/value heads; absent, as many as heads where these are given."""
    head_dim: Width | None = None
    """Width of one of its heads."""
    ffn: FeedForward | None = None
    """Width of its feed-forward."""
    gated_mlp: bool | None = None
    """True for three matrices."""
    block: Annotated[tuple[RunSpec, ...], Field(min_length=1)] | None = None
    """Runs of unlike layers of which each of its layers consists; the mixer is attention."""
    window: SequenceLength | None = None
    """Tokens that a token attends to in every layer; absent, all."""
    vocab: OptionalRows = 0
    """Rows of a token embedding of its own; 0 where it shares the decoder's, or has none."""
    learned_positions: OptionalRows = 0
    """Rows of its position table."""
    relative_positions: OptionalRows = 0
    """Rows of its tables of biases by distance, each as wide as it has heads."""
    embedding_norm: bool = False
    """Norm ahead of its layers."""
    final_norm: bool = True
    """Norm behind them."""
    front: tuple[FrontSpec, ...] = ()
    """Convolutions in place of a token embedding."""
    other_parameters: Others = 0
    """Parameters that take part in few operations."""


class RunSpec(Frozen):
    """Equal layers in a row that differ from the model's own."""

    layers: Layers = 1
    """How many."""
    mixer: Mixer | None = None
    """What mixes tokens; the model's own when absent."""
    feed_forward: FeedForwardKind | None = None
    """The feed-forward; the model's own when absent."""
    shared: bool = False
    """True when these layers have the same weights, wherever they stand in a block (ALBERT)."""
    heads: Heads | None = None
    """Attention heads; the model's own when absent, as all below."""
    kv_heads: Heads | None = None
    """Key/value heads."""
    head_dim: Width | None = None
    """Width of one head."""
    value_dim: OptionalWidth | None = None
    """Width of a head's value; 0 where it is the head's key."""
    ffn: FeedForward | None = None
    """Width of the feed-forward."""
    projections: Projections | None = None
    """Matrices of attention."""
    attention_other: Others | None = None
    """Parameters of attention that take part in few operations."""
    window: OptionalRows | None = None
    """Tokens that a token attends to; 0 for all."""

    @property
    def own(self) -> Sizes:
        """Sizes that are not the model's."""
        names = (
            *("heads", "kv_heads", "head_dim", "value_dim", "ffn"),
            *("projections", "attention_other", "window"),
        )
        return tuple((name, value) for name in names if (value := getattr(self, name)) is not None)


class LayerRun(NamedTuple):
    """Layers of one kind."""

    layers: int
    """How many, in a row or not."""
    kind: ModelSpec
    """A model of such layers alone."""
    inputs: int = 1
    """Inputs of a sequence on each of which they work."""
    frozen: bool = False
    """True when they are not trained, nor anything ahead of them."""
    shared: bool = False
    """True when they have the same weights."""

    @property
    def weights(self) -> int:
        """Layers of weights."""
        return 1 if self.shared else self.layers


class Adapters(NamedTuple):
    """Parameters of the adapters of some layers."""

    parameters: int
    """All of them but those of experts."""
    whole: int
    """Those that tensor parallelism leaves whole: halves that take all inputs of a product whose outputs are divided,
    or make all outputs of one whose inputs are."""
    experts: int
    """Those of all experts."""

    @classmethod
    def of(cls, parts: Iterable[tuple[int, Adapters]]) -> Adapters:
        """The adapters of several layers: how many, and those of one."""
        each = [*parts]
        return cls(*(sum(layers * own[number] for layers, own in each) for number in range(3)))


def _adapters_of(runs: tuple[LayerRun, ...]) -> Adapters:
    return Adapters.of((run.weights, run.kind.layer_adapters) for run in runs if not run.frozen)


def _trained_of(runs: tuple[LayerRun, ...]) -> int:
    """Parameters of runs that are trained."""
    return sum(run.weights * run.kind.trained_layer_parameters for run in runs if not run.frozen)


def _quantised_of(runs: tuple[LayerRun, ...]) -> int:
    """Parameters of runs that are quantised, beside experts."""
    return sum(run.weights * run.kind.quantised_layer_parameters for run in runs)


def _quantised_experts_of(runs: tuple[LayerRun, ...]) -> int:
    """Those in experts."""
    return sum(run.weights * run.kind.quantised_expert_parameters for run in runs)


class ModelSpec(Frozen):
    """A model by its shape: layers of one kind, or equal blocks of unlike layers, and runs of others at either end."""

    name: Name
    """Name of the model."""
    kind: Literal["decoder", "encoder"] = "decoder"
    """decoder: causal attention; encoder: full attention (BERT)."""
    layers: Layers
    """Transformer layers."""
    hidden: Width
    """Width of the model."""
    heads: Heads
    """Attention heads."""
    kv_heads: Heads = Field(default_factory=_heads)
    """Key/value heads of grouped-query attention; ``heads`` when absent."""
    head_dim: Width = Field(default_factory=_head_dim)
    """Width of one head; ``hidden`` / ``heads`` when absent."""
    value_dim: OptionalWidth | None = None
    """Width of a head's value, 0 where it is the head's key (Gemma 4); ``head_dim`` when absent."""
    ffn: FeedForward = Field(default_factory=_ffn)
    """Width of the feed-forward layer; 4 x ``hidden`` when absent. With experts it is that of ``dense_layers``."""
    gated_mlp: bool = False
    """True for SwiGLU-like layers with three matrices; norms are then rms and biases absent unless given."""
    vocab: Rows
    """Tokens of the vocabulary, with the padding that the model was built with."""
    tied_embeddings: bool = True
    """True when the output layer reuses the input embedding."""
    learned_positions: OptionalRows = 0
    """Rows of a learned position table; 0 for rotary or none."""
    norm: Literal["layer", "rms", "plain"] = Field(default_factory=_usual_norm)  # type: ignore[arg-type]
    """layer: with scale and shift; rms: scale only; plain: neither. Absent, rms for gated models, else layer."""
    layer_norms: Norms = 2
    """Norms of one layer."""
    qk_norm: bool | Literal["whole"] = False
    """True when queries and keys are normalised per head (Qwen 3); ``whole``: over all heads at once (OLMo 2)."""
    qkv_bias: bool = Field(default_factory=_not_gated)
    """Biases of the query, key and value projections, of latent ones those to the low ranks; absent, only without
    gated_mlp."""
    output_bias: bool = Field(default_factory=_not_gated)
    """Bias of the attention's output projection; absent, only without gated_mlp."""
    mlp_bias: bool = Field(default_factory=_not_gated)
    """Biases of the feed-forward layer; absent, only without gated_mlp."""
    key_bias: bool = True
    """False where only queries and values have the biases of ``qkv_bias`` (Whisper)."""
    relative_positions: OptionalRows = 0
    """Rows of the tables of biases of scores by distance, each as wide as there are heads (T5); 0 for none."""
    projections: Projections | None = None
    """(inputs, outputs, what tensor parallelism divides) of the matrices of attention, the one behind it last; absent,
    they follow from heads and ranks."""
    beside: tuple[ProductSpec, ...] = ()
    """Matrices beside all layers, with the embedding."""
    attention_other: Others = 0
    """Parameters of the attention of a layer that take part in few operations: gates of heads, norms of their own."""
    other_parameters: Others = 0
    """The same beside all layers, with the embedding."""
    embedding_width: Width = Field(default_factory=_hidden)
    """Width of the token embedding, when it is projected to ``hidden`` (OPT-350M)."""
    token_types: OptionalRows = 0
    """Rows of a token-type table (BERT)."""
    embedding_norm: bool = False
    """Norm after the embedding (BERT)."""
    final_norm: bool = True
    """Norm after the last layer."""
    head_transform: bool = False
    """Dense layer and norm before the output layer (BERT's masked-language head)."""
    head_bias: bool = False
    """Bias of the output layer."""
    front: tuple[FrontSpec, ...] = ()
    """Convolutions in place of the token embedding: patches of images, or sound."""
    labels: OptionalRows | None = None
    """Outputs of a head in place of the output layer, which predicts tokens of the vocabulary; 0 for no head."""
    pooled: bool = False
    """True when ``labels`` are of a sequence, not of each of its tokens."""
    window: SequenceLength | None = None
    """Tokens that a token of a sliding-window layer attends to; absent, every layer attends to all."""
    window_layers: Layers | None = None
    """Layers that have the window, evenly spread among the others; absent, all."""
    sinks: bool | None = None
    """True when each head has a learned sink in its softmax (gpt-oss)."""
    latent: LatentSpec | None = None
    """Multi-head latent attention; absent, queries, keys and values are projected at once."""
    experts: ExpertsSpec | None = None
    """Experts of every layer; absent, the layers are dense."""
    dense_layers: OptionalRows = 0
    """Dense layers of width ``ffn`` ahead of the ``layers`` with experts; they stand with the embedding on the first
    stage (DeepSeek-V3)."""
    output_gate: bool = False
    """True when a gate as wide as the queries scales what attention makes of a token (Qwen3-Next)."""
    mixer: Mixer = "attention"
    """What mixes tokens in a layer: attention, cross (to the output of ``encoder``), state (``state``), both attention
    and state side by side, or none."""
    feed_forward: FeedForwardKind | None = None
    """experts, dense or none; absent, experts where they are given."""
    state: StateSpec | None = None
    """The mixer that carries a state, of layers that have one."""
    block: Annotated[tuple[RunSpec, ...], Field(min_length=1)] | None = None
    """Runs of unlike layers of which each of ``layers`` consists; absent, each is one layer."""
    ahead: tuple[RunSpec, ...] | None = None
    """Runs of layers ahead of ``layers``; they stand with the embedding on the first stage."""
    behind: tuple[RunSpec, ...] | None = None
    """Runs of layers behind ``layers``; they stand with the head on the last stage."""
    tower: TowerSpec | None = None
    """What makes tokens of images; it stands with the embedding on the first stage."""
    encoder: EncoderSpec | None = None
    """The stack whose output layers of mixer cross attend to; it stands with the embedding on the first stage."""
    numerics: NumericsSpec | None = None
    """What changes results and neither time nor memory."""
    training: TrainingSpec

    def trained_with(self, **changes: object) -> ModelSpec:
        """The same model with other settings of its training, which are not checked."""
        return self.model_copy(update={"training": self.training.model_copy(update=changes)})

    @cached_property
    def runs(self) -> tuple[LayerRun, ...]:
        """Layers of each kind of which one of ``layers`` consists; none where all are alike."""
        return self._runs(self.block) if self.block else ()

    @cached_property
    def first_runs(self) -> tuple[LayerRun, ...]:
        """Those that stand with the embedding."""
        dense = (RunSpec(layers=self.dense_layers, feed_forward="dense"),) if self.dense_layers else ()
        tower = () if self.tower is None else (self._tower_run(self.tower),)
        # A model of layers that attend to an encoder knows it for its sizes alone.
        encoder = () if self.encoder is None or self.mixer == "cross" else self._encoder_runs(self.encoder)
        return (*tower, *encoder, *self._runs(self.ahead or dense))

    def _encoder_runs(self, encoder: EncoderSpec) -> tuple[LayerRun, ...]:
        """Layers of each kind of an encoder, as models of their own."""
        width, heads = encoder.hidden or self.hidden, encoder.heads or self.heads
        parts = (
            "tower",
            "ahead",
            "behind",
            "encoder",
            "state",
            "window_layers",
            "feed_forward",
            "projections",
            "value_dim",
        )
        update: dict[str, Any] = {
            **dict.fromkeys(parts),
            "name": f"{self.name[:90]}.encoder",
            "kind": "encoder",
            "layers": encoder.layers,
            "hidden": width,
            "heads": heads,
            "kv_heads": encoder.kv_heads or (heads if encoder.heads else self.kv_heads),
            "head_dim": encoder.head_dim or (width // heads if encoder.heads else self.head_dim),
            "ffn": encoder.ffn or self.ffn,
            "gated_mlp": self.gated_mlp if encoder.gated_mlp is None else encoder.gated_mlp,
            "block": encoder.block,
            "window": encoder.window,
            "mixer": "attention",
            "dense_layers": 0,
            "attention_other": 0,
            "training": self.training.model_copy(
                update={"sequence_length": encoder.sequence_length, "mtp_layers": 0}
            ),
        }
        stack = self.model_copy(update=update)
        if not encoder.block:
            return (LayerRun(encoder.layers, stack.model_copy(update={"experts": None})),)
        return tuple(run._replace(layers=encoder.layers * run.layers) for run in stack.runs)

    def _tower_run(self, tower: TowerSpec) -> LayerRun:
        """Layers of a tower as a model of their own, whose sequences are images."""
        kind = ModelSpec(
            name=f"{self.name[:90]}.tower",
            kind="encoder",
            layers=tower.layers,
            hidden=tower.hidden,
            heads=tower.heads,
            kv_heads=tower.heads,
            head_dim=tower.hidden // tower.heads,
            ffn=tower.ffn,
            gated_mlp=tower.gated_mlp,
            norm=tower.norm,
            qkv_bias=tower.bias,
            output_bias=tower.bias,
            mlp_bias=tower.bias,
            window=tower.window,
            window_layers=tower.window_layers,
            vocab=1,
            training=self.training.model_copy(
                update={"sequence_length": tower.tokens, "dropout": False, "lora": None, "freeze": None}
            ),
        )
        return LayerRun(tower.layers, kind, tower.images, self.tower_frozen)

    @property
    def tower_frozen(self) -> bool:
        """True when the tower is not trained: where the model says so, and beside adapters, which it has none of."""
        return self.tower is not None and (self.tower.frozen or self.training.lora is not None)

    @cached_property
    def last_runs(self) -> tuple[LayerRun, ...]:
        """Those that stand with the head, with those of modules that predict further tokens."""
        behind = self.behind or ()
        if self.training.mtp_layers:
            mixer, feeds = self.ordered[-1]
            behind += (RunSpec(layers=self.training.mtp_layers, mixer=mixer, feed_forward=feeds),)
        return self._runs(behind)

    @property
    def kinds(self) -> tuple[ModelSpec, ...]:
        """A model of each kind of layer alone; of one whose layers are alike, itself."""
        return tuple(run.kind for run in self._every_run)

    @property
    def _every_run(self) -> tuple[LayerRun, ...]:
        return (*(self.runs or (LayerRun(1, self),)), *self.first_runs, *self.last_runs)

    @cached_property
    def unlike(self) -> bool:
        """True when it has layers of several kinds."""
        parts = self.block, self.ahead, self.behind, self.dense_layers, self.tower, self.encoder
        return any(parts)

    @cached_property
    def layers_each(self) -> int:
        """Layers of which one of ``layers`` consists."""
        return sum(run.layers for run in self.runs) if self.runs else 1

    @property
    def unit(self) -> str:
        """What plans count and stages hold: ``layers``, or ``blocks`` of several."""
        return "blocks" if self.layers_each > 1 else "layers"

    @cached_property
    def all_layers(self) -> int:
        """Layers of the whole model, without those of a tower."""
        return len(self.ordered)

    @cached_property
    def ordered(self) -> tuple[tuple[Mixer, FeedForwardKind], ...]:
        """What mixes tokens and the feed-forward of every layer, in order."""

        def each(runs: tuple[RunSpec, ...]) -> tuple[tuple[Mixer, FeedForwardKind], ...]:
            kinds = [(run.mixer or self.mixer, run.feed_forward or self.feed_forward_kind) for run in runs]
            return tuple(kind for kind, run in zip(kinds, runs, strict=True) for _ in range(run.layers))

        dense = (RunSpec(layers=self.dense_layers, feed_forward="dense"),) if self.dense_layers else ()
        body = each(self.block or (RunSpec(),)) * self.layers
        return (*each(self.ahead or dense), *body, *each(self.behind or ()))

    def _runs(self, runs: tuple[RunSpec, ...]) -> tuple[LayerRun, ...]:
        """Layers of each kind, with a model of such layers alone."""
        counted: Counter[tuple[Mixer, FeedForwardKind, bool, Sizes]] = Counter()
        for run in runs:
            feeds = run.feed_forward or self.feed_forward_kind
            counted[run.mixer or self.mixer, feeds, run.shared, run.own] += run.layers
        kinds = []
        training = self.training
        if training.mtp_layers:
            training = training.model_copy(update={"mtp_layers": 0})
        for (mixer, feeds, shared, own), layers in counted.items():
            update: dict[str, Any] = {
                "training": training,
                "tower": None,
                "block": None,
                "ahead": None,
                "behind": None,
                "dense_layers": 0,
                "beside": (),
                **dict(own),
            }
            update |= {"mixer": mixer, "feed_forward": feeds}
            if "window" in update:
                update |= {"window": update["window"] or None, "window_layers": None}
            # Each kind of attention has the window in the same part of its layers.
            update |= {"layers": max(1, self.attending)} if mixer != "cross" else {"window": None}
            update |= {} if feeds == "experts" else {"experts": None}
            update |= {} if mixer in ("state", "both") else {"state": None}
            update |= {} if mixer == "cross" else {"encoder": None}
            update["layer_norms"] = (
                self.layer_norms if "none" not in (mixer, feeds) else max(1, self.layer_norms // 2)
            )
            words: list[str] = [] if mixer == "none" else [mixer]
            words += [] if feeds == "none" else [feeds]
            words += [f"{name} {value}" for name, value in own if isinstance(value, int)]
            update["name"] = f"{self.name}, {' and '.join(words)} layers"
            kinds.append(LayerRun(layers, self.model_copy(update=update), shared=shared))
        return tuple(kinds)

    @cached_property
    def attending(self) -> int:
        """Layers whose tokens attend to each other."""
        return sum(mixer in ("attention", "both") for mixer, _ in self.ordered)

    @cached_property
    def narrow_share(self) -> float:
        """Part of them that have the window."""
        if self.window is None or self.window_layers is None:
            return float(self.window is not None)
        return self.window_layers / max(1, self.attending)

    @cached_property
    def feed_forward_kind(self) -> FeedForwardKind:
        """That of its layers."""
        return self.feed_forward or ("dense" if self.experts is None else "experts")

    @cached_property
    def attends(self) -> bool:
        """True when its layers have attention."""
        return self.mixer in ("attention", "cross", "both")

    @cached_property
    def attended(self) -> int:
        """Tokens of a sequence whose keys and values its layers attend to."""
        crosses = self.mixer == "cross" and self.encoder is not None
        return self.encoder.sequence_length if crosses and self.encoder else self.training.sequence_length

    @cached_property
    def seen(self) -> float:
        """Those that belong to the document of a token, in the mean."""
        return self.training.own_tokens if self.training.packed else self.attended

    @cached_property
    def causal(self) -> bool:
        """True when tokens attend to none behind them."""
        return self.kind == "decoder" and self.mixer != "cross"

    @cached_property
    def encoded(self) -> int:
        """Elements of the encoder's output of a sequence, which every stage has beside its own; 0 without one."""
        return 0 if self.encoder is None else self.encoder.sequence_length * self.encoder_width

    @property
    def encoder_width(self) -> int:
        """Width of the encoder's output."""
        return (None if self.encoder is None else self.encoder.hidden) or self.hidden

    @cached_property
    def cross_matrix(self) -> tuple[int, int] | None:
        """(inputs, outputs) of what makes keys and values of the encoder's output."""
        return (self.encoder_width, self.projected_pairs) if self.mixer == "cross" else None

    @property
    def pairs_per_token(self) -> float:
        """Keys that a layer has for each of its own tokens."""
        return self.attended / self.training.sequence_length

    @cached_property
    def carried(self) -> StateSpec | None:
        """The state that its layers carry."""
        return self.state if self.mixer in ("state", "both") else None

    @cached_property
    def states(self) -> tuple[StateKind, ...]:
        """Kinds of states that layers carry."""
        return tuple(dict.fromkeys(kind.carried.kind for kind in self.kinds if kind.carried is not None))

    @property
    def shares(self) -> bool:
        """True when some of its layers have the same weights."""
        return any(run.shared for run in (*(self.ahead or ()), *(self.block or ()), *(self.behind or ())))

    @property
    def embeds_twice(self) -> bool:
        """True when a last stage of its own has a copy of the embedding: for a tied output layer, or further tokens."""
        return self.tied_embeddings or self.training.mtp_layers > 0

    @cached_property
    def usual_layers(self) -> bool:
        """True when every layer is attention and a feed-forward."""
        return all(kind.mixer == "attention" and kind.sublayers == 2 for kind in self.kinds)

    @property
    def stacked(self) -> bool:
        """True when not every layer is attention, or a gated delta rule in its place, and a feed-forward."""
        whole = all(kind.mixer in ("attention", "state") and kind.sublayers == 2 for kind in self.kinds)
        return not (whole and {*self.states} <= {"delta"})

    @cached_property
    def sublayers(self) -> int:
        """Mixers and feed-forwards of a layer, with a residual sum each."""
        return (self.mixer != "none") + (self.feed_forward_kind != "none")

    @cached_property
    def frozen(self) -> frozenset[Part]:
        """Parts that get no gradients."""
        return frozenset(PARTS if self.training.lora else self.training.freeze or ())

    @property
    def quantised(self) -> bool:
        """True when the linear layers rest in fp8 or four bits."""
        return self.quantised_bytes > 0

    @property
    def in_four_bits(self) -> bool:
        """True when they rest in four bits, from which each product brings them to the working format."""
        return self.training.lora is not None and self.training.lora.base in NF4_BYTES

    @property
    def quantised_bytes(self) -> float:
        """Bytes of an element of these; 0 where all rest in the working format."""
        lora = self.training.lora
        return 0.0 if lora is None or lora.base is None else BASE_BYTES.get(lora.base, 0.0)

    @cached_property
    def linears(self) -> dict[AdapterTarget, tuple[int, int]]:
        """(inputs, outputs) of the linear layers of a layer that may have adapters; each kind of unlike layers has its
        own."""
        if self.runs:
            return {}
        linears = self._linears_of_attention
        if self.carried is not None:
            first, *_, last = self.carried.matrices(self.hidden)
            linears |= {"in_proj": first[:2], "out_proj": last[:2]}
        if self.common_ffn:
            into, out = (self.hidden, self.common_ffn), (self.common_ffn, self.hidden)
            linears |= {"gate_proj": into} if self.gated_mlp else {}
            linears |= {"up_proj": into, "down_proj": out}
        return linears

    @property
    def _linears_of_attention(self) -> dict[AdapterTarget, tuple[int, int]]:
        if not self.attends or self.projections:
            return {}
        queries, latent = self.heads * self.head_dim, self.latent
        linears: dict[AdapterTarget, tuple[int, int]]
        if latent is None:
            linears = {"q_proj": (self.hidden, (2 if self.output_gate else 1) * queries)}
            source = self.hidden if self.cross_matrix is None else self.encoder_width
            linears["k_proj"] = source, self.kv_heads * self.head_dim
            if self._projected_value:
                linears["v_proj"] = source, self.kv_heads * self._projected_value
        else:
            linears = {"q_proj": (self.hidden, queries)}
            if latent.q_rank is not None:
                linears = {"q_a_proj": (self.hidden, latent.q_rank), "q_b_proj": (latent.q_rank, queries)}
            expanded = self.heads * (self.head_dim - latent.rope_dim + latent.value_dim)
            linears["kv_a_proj_with_mqa"] = self.hidden, latent.kv_rank + latent.rope_dim
            linears["kv_b_proj"] = latent.kv_rank, expanded
        return {**linears, "o_proj": (self.heads * self.value_width, self.hidden)}

    @cached_property
    def adapted(self) -> dict[AdapterTarget, tuple[int, int]]:
        """Those that have adapters."""
        lora = self.training.lora
        if lora is None:
            return {}
        return {name: sizes for name, sizes in self.linears.items() if name in (lora.targets or self.linears)}

    @cached_property
    def expert_linears(self) -> dict[AdapterTarget, tuple[int, int]]:
        """(inputs, outputs) of the matrices of an expert that is not shared, which may have adapters too."""
        if self.runs or self.experts is None:
            return {}
        into, out = (self.expert_width, self.experts.ffn), (self.experts.ffn, self.expert_width)
        gate: dict[AdapterTarget, tuple[int, int]] = {"experts.gate_proj": into} if self.gated_mlp else {}
        return {**gate, "experts.up_proj": into, "experts.down_proj": out}

    @cached_property
    def adapted_experts(self) -> dict[AdapterTarget, tuple[int, int]]:
        """Those that have adapters, in each expert its own; none unless they are asked for."""
        lora = self.training.lora
        asked = () if lora is None else lora.targets or ()
        return {name: sizes for name, sizes in self.expert_linears.items() if name in asked}

    @property
    def trained_kinds(self) -> tuple[ModelSpec, ...]:
        """A model of each kind of layer alone, of those that are not frozen whole."""
        return tuple(run.kind for run in self._every_run if not run.frozen)

    @cached_property
    def adapter_targets(self) -> tuple[AdapterTarget, ...]:
        """Names of all linear layers that have adapters."""
        adapted = {name for kind in self.trained_kinds for name in (*kind.adapted, *kind.adapted_experts)}
        return tuple(name for name in get_args(AdapterTarget) if name in adapted)

    @cached_property
    def layer_adapters(self) -> Adapters:
        """Adapters of one layer."""
        if self.runs:
            return _adapters_of(self.runs)
        rank = self.training.lora.rank if self.training.lora else 0
        number = self.experts.number if self.experts else 0
        return Adapters(
            rank * sum(map(sum, self.adapted.values())),
            sum(self.whole_halves),
            number * rank * sum(map(sum, self.adapted_experts.values())),
        )

    @cached_property
    def whole_halves(self) -> tuple[int, ...]:
        """Elements of the half of each adapter of a layer that tensor parallelism leaves whole."""
        rank = self.training.lora.rank if self.training.lora else 0
        return tuple(
            rank * (outputs if name in ROW_TARGETS else inputs)
            for name, (inputs, outputs) in self.adapted.items()
        )

    @property
    def trains_experts(self) -> bool:
        """True when experts are trained, or adapters of theirs."""
        parts = self.layer_adapters, self.first_adapters, self.last_adapters
        return "mlp" not in self.frozen or any(each.experts for each in parts)

    @cached_property
    def first_adapters(self) -> Adapters:
        """Those of the layers that stand with the embedding."""
        return _adapters_of(self.first_runs)

    @cached_property
    def last_adapters(self) -> Adapters:
        """Those of the layers that stand with the head."""
        return _adapters_of(self.last_runs)

    @cached_property
    def adapter_parameters(self) -> int:
        """Parameters of the adapters of the whole model."""
        parts = ((self.layers, self.layer_adapters), (1, self.first_adapters), (1, self.last_adapters))
        everything = Adapters.of(parts)
        return everything.parameters + everything.experts

    @cached_property
    def trained_layer_parameters(self) -> int:
        """Parameters of one layer that are trained, adapters included."""
        if not self.frozen:
            return self.layer_parameters
        if self.runs:
            return _trained_of(self.runs)
        mixer = self._attention_elements + self._attention_biases + self._sinks + self._mixer_other
        of_part = {
            "attention": mixer,
            "mlp": self.mlp_matrices * self.hidden * self.common_ffn
            + self._router
            + self.expert_parameters
            + self._layer_biases
            - self._attention_biases,
        }
        of_part["norms"] = self.layer_parameters - sum(of_part.values())
        adapters = self.layer_adapters.parameters + self.layer_adapters.experts
        return adapters + sum(count for part, count in of_part.items() if part not in self.frozen)

    @cached_property
    def trained_ahead(self) -> int:
        """Parameters of what stands with the embedding that are trained, adapters included."""
        ends = 0
        if self.tower is not None and self.training.lora is None:
            ends = self.tower.projector_parameters
            ends += 0 if self.tower_frozen else self.tower.embedding_parameters
        if self.encoder is not None and "embedding" not in self.frozen:
            ends += self._encoder_ends(self.encoder)
        return ends + _trained_of(self.first_runs)

    @cached_property
    def trained_behind(self) -> int:
        """Those of what stands with the head."""
        return _trained_of(self.last_runs)

    @cached_property
    def quantised_layer_parameters(self) -> int:
        """Parameters of one layer that are quantised, beside experts: its matrices."""
        if self.runs:
            return _quantised_of(self.runs)
        return sum(inputs * outputs for inputs, outputs in self.linears.values()) if self.quantised else 0

    @cached_property
    def quantised_ahead(self) -> int:
        """Those of what stands with the embedding."""
        return _quantised_of(self.first_runs)

    @cached_property
    def quantised_behind(self) -> int:
        """Those of what stands with the head."""
        return _quantised_of(self.last_runs)

    @cached_property
    def quantised_expert_parameters(self) -> int:
        """Parameters of one layer's experts that are quantised: their matrices."""
        if self.runs:
            return _quantised_experts_of(self.runs)
        if self.experts is None or not self.quantised:
            return 0
        return self.experts.number * self.mlp_matrices * self.expert_width * self.experts.ffn

    @cached_property
    def quantised_experts_ahead(self) -> int:
        """Those of what stands with the embedding."""
        return _quantised_experts_of(self.first_runs)

    @cached_property
    def quantised_experts_behind(self) -> int:
        """Those of what stands with the head."""
        return _quantised_experts_of(self.last_runs)

    @cached_property
    def trained_embedding_parameters(self) -> int:
        """Parameters of the input embedding that are trained."""
        return 0 if "embedding" in self.frozen else self.embedding_parameters

    @cached_property
    def trained_head_parameters(self) -> int:
        """Parameters after the last layer that are trained; a tied output layer goes with the embedding."""
        return 0 if "head" in self.frozen else self.head_parameters

    @cached_property
    def trained_parameters(self) -> int:
        """Parameters of the whole model that are trained, adapters included."""
        layers = self.layers * self.trained_layer_parameters
        ends = self.trained_embedding_parameters + self.trained_head_parameters
        return layers + ends + self.trained_ahead + self.trained_behind

    @property
    def drops(self) -> bool:
        """True when layers keep dropout masks."""
        return not self.gated_mlp if self.training.dropout is None else self.training.dropout

    @cached_property
    def common_ffn(self) -> int:
        """Width of the feed-forward that every token passes: with experts that of the shared ones, 0 for none."""
        if self.feed_forward == "none":
            return 0
        return self.ffn if self.experts is None else self.experts.shared_ffn

    @property
    def expert_width(self) -> int:
        """Width of what experts take and give."""
        return (None if self.experts is None else self.experts.hidden) or self.hidden

    @property
    def mlp_matrices(self) -> int:
        """Matrices of a feed-forward."""
        return 3 if self.gated_mlp else 2

    @property
    def pair_width(self) -> int:
        """Elements of the keys and values of a token, as attention takes them."""
        pairs = self.kv_heads if self.latent is None else self.heads
        return pairs * (self.head_dim + self.value_width)

    @property
    def value_width(self) -> int:
        """Width of a head's value as attention takes it."""
        own = self.value_dim if self.latent is None else self.latent.value_dim
        return own or self.head_dim

    @property
    def projected_pairs(self) -> int:
        """Outputs of the products that make keys and values, which are one where a head's value is its key."""
        return self.kv_heads * (self.head_dim + self._projected_value)

    @property
    def _projected_value(self) -> int:
        return self.head_dim if self.value_dim is None else self.value_dim

    @property
    def output_width(self) -> int:
        """Elements of what attention makes of a token, ahead of its output product."""
        return self.attention_matrices[-1][0] if self.attention_matrices else 0

    @cached_property
    def attention_matrices(self) -> tuple[tuple[int, int, Split], ...]:
        """(inputs, outputs, what tensor parallelism divides) of each matrix by which a layer's own tokens are mixed."""
        heads, latent = self.heads, self.latent
        own = () if self.carried is None else self.carried.matrices(self.hidden)
        if not self.attends:
            return own
        if self.projections is not None:
            return (*own, *self.projections)
        if self.mixer == "cross":
            return (self.hidden, heads * self.head_dim, "columns"), (
                heads * self.value_width,
                self.hidden,
                "rows",
            )
        if latent is None:
            inputs = heads * self.head_dim * (2 if self.output_gate else 1) + self.projected_pairs
            return *own, (self.hidden, inputs, "columns"), (heads * self.value_width, self.hidden, "rows")
        queries: list[tuple[int, int, Split]] = [
            (latent.q_rank or self.hidden, heads * self.head_dim, "columns")
        ]
        if latent.q_rank is not None:
            queries.insert(0, (self.hidden, latent.q_rank, "nothing"))
        expanded = heads * (self.head_dim - latent.rope_dim + latent.value_dim)
        return (
            *own,
            *queries,
            (self.hidden, latent.kv_rank + latent.rope_dim, "nothing"),
            (latent.kv_rank, expanded, "columns"),
            (heads * latent.value_dim, self.hidden, "rows"),
        )

    @cached_property
    def expert_parameters(self) -> int:
        """Parameters of all experts of one layer that are not shared; 0 without experts."""
        if self.runs:
            return sum(run.weights * run.kind.expert_parameters for run in self.runs)
        if self.experts is None:
            return 0
        one = self.mlp_matrices * self.expert_width * self.experts.ffn
        if self.experts.bias:
            one += self.expert_width + (self.mlp_matrices - 1) * self.experts.ffn
        return self.experts.number * one

    @cached_property
    def layer_parameters(self) -> int:
        """Parameters of one of ``layers``: matrices, biases and norms, with all its experts."""
        if self.runs:
            return sum(run.weights * run.kind.layer_parameters for run in self.runs)
        attention = self._attention_elements
        mlp = self.mlp_matrices * self.hidden * self.common_ffn
        norms = self.layer_norms * self._norm_parameters + self._inner_norms
        own = self._sinks + self._mixer_other
        return attention + mlp + self._router + self.expert_parameters + self._layer_biases + norms + own

    @property
    def _mixer_other(self) -> int:
        """Parameters of what mixes tokens beside its matrices, biases and sinks."""
        own = self.attention_other if self.attends and self.mixer != "cross" else 0
        return own + (0 if self.carried is None else self.carried.own_parameters)

    @property
    def _sinks(self) -> int:
        """Sinks of a layer, one for each head."""
        return self.heads if self.sinks and self.attends else 0

    @property
    def _attention_elements(self) -> int:
        """Parameters of the matrices of what mixes tokens in a layer."""
        pairs = () if self.cross_matrix is None else ((*self.cross_matrix, "columns"),)
        return sum(inputs * outputs for inputs, outputs, _ in (*self.attention_matrices, *pairs))

    @cached_property
    def active_parameters(self) -> int:
        """Parameters that work on one token: with experts those of ``top_k`` of them a layer."""
        if self.experts is None:
            return self.parameters
        idle = 1 - self.experts.top_k / self.experts.number
        ends = self.ahead_experts + self.behind_experts
        return self.parameters - round(idle * (self.layers * self.expert_parameters + ends))

    @cached_property
    def embedding_parameters(self) -> int:
        """Parameters of the input embedding: tokens, their projections, learned positions, types, norm."""
        ways = 2 if self.labels is None else 1
        projections = ways * self.embedding_width * self.hidden if self.embedding_width != self.hidden else 0
        tables = (self.learned_positions + self.token_types) * self.hidden
        tables += self.relative_positions * self.heads + self.other_parameters
        norm = self._norm_parameters if self.embedding_norm else 0
        front = sum(each.outputs * (each.inputs + each.bias) for each in self.front)
        front += sum(each.parameters for each in self.beside)
        return self.table_parameters + projections + tables + norm + front

    @property
    def table_parameters(self) -> int:
        """Parameters of the token embedding; a model with a front has none."""
        return 0 if self.front else self.vocab * self.embedding_width

    @property
    def outputs(self) -> int:
        """Outputs of the output layer: tokens of the vocabulary, or labels."""
        return self.vocab if self.labels is None else self.labels

    @cached_property
    def head_parameters(self) -> int:
        """Parameters after the last layer: final norm, BERT's transform, the output layer when not tied."""
        norm = self._norm_parameters if self.final_norm else 0
        transform = (
            self.hidden * self.hidden + self.hidden + self._norm_parameters if self.head_transform else 0
        )
        output = 0 if self.tied_embeddings else self.outputs * self.hidden
        # Each module for a further token has norms of what it takes and makes, and a projection of two to one.
        further = self.training.mtp_layers * (2 * self.hidden**2 + 3 * self._norm_parameters)
        return norm + transform + output + (self.outputs if self.head_bias else 0) + further

    @cached_property
    def parameters(self) -> int:
        """Parameters of the whole model."""
        ends = self.embedding_parameters + self.ahead_parameters
        ends += self.behind_parameters + self.head_parameters
        return self.layers * self.layer_parameters + ends

    @cached_property
    def ahead_parameters(self) -> int:
        """Parameters of what stands with the embedding."""
        ends = 0 if self.tower is None else self.tower.embedding_parameters + self.tower.projector_parameters
        ends += 0 if self.encoder is None else self._encoder_ends(self.encoder)
        return ends + sum(run.layers * run.kind.layer_parameters for run in self.first_runs)

    def _encoder_ends(self, encoder: EncoderSpec) -> int:
        """Parameters of an encoder beside its layers."""
        width = self.encoder_width
        tables = (encoder.vocab + encoder.learned_positions) * width
        tables += encoder.relative_positions * (encoder.heads or self.heads)
        norm = {"layer": 2, "rms": 1, "plain": 0}[self.norm] * width
        front = sum(each.outputs * (each.inputs + each.bias) for each in encoder.front)
        return (
            tables + (encoder.embedding_norm + encoder.final_norm) * norm + front + encoder.other_parameters
        )

    @cached_property
    def behind_parameters(self) -> int:
        """Parameters of what stands with the head."""
        return sum(run.layers * run.kind.layer_parameters for run in self.last_runs)

    @cached_property
    def ahead_experts(self) -> int:
        """Those of them in experts."""
        return sum(run.layers * run.kind.expert_parameters for run in self.first_runs)

    @cached_property
    def behind_experts(self) -> int:
        """Those of what stands with the head in experts."""
        return sum(run.layers * run.kind.expert_parameters for run in self.last_runs)

    @property
    def _norm_parameters(self) -> int:
        return {"layer": 2, "rms": 1, "plain": 0}[self.norm] * self.hidden

    @property
    def _inner_norms(self) -> int:
        """Parameters of the norms inside attention."""
        if not self.attends:
            return 0
        if self.latent is not None:
            return self.latent.kv_rank + (self.latent.q_rank or 0)
        whole = (self.heads + self.kv_heads) * self.head_dim
        return whole if self.qk_norm == "whole" else 2 * self.head_dim if self.qk_norm else 0

    @property
    def _router(self) -> int:
        """Parameters of the router, and of the gate of shared experts."""
        if self.experts is None:
            return 0
        bias = self.experts.number if self.experts.router_bias else 0
        latent = 0 if self.experts.hidden is None else 2 * self.hidden * self.experts.hidden
        return (
            latent
            + self.hidden * self.experts.number
            + bias
            + (self.hidden if self.experts.shared_gate else 0)
        )

    @property
    def _attention_biases(self) -> int:
        latent = self.latent
        biased = self.head_dim * self.heads * (2 if self.output_gate else 1) + self.projected_pairs
        biased -= 0 if self.key_bias else self.kv_heads * self.head_dim
        if latent is not None:
            # Of what leads to the low ranks.
            biased = (latent.q_rank or 0) + latent.kv_rank + latent.rope_dim
        own = 0 if self.carried is None else self.carried.biases(self.hidden)
        if not self.attends:
            return own
        qkv = biased if self.qkv_bias else 0
        return own + qkv + (self.hidden if self.output_bias else 0)

    @property
    def _layer_biases(self) -> int:
        dense = self.mlp_bias and self.common_ffn > 0
        mlp = self.hidden + (self.mlp_matrices - 1) * self.common_ffn if dense else 0
        return self._attention_biases + mlp
