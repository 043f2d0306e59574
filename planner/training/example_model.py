"""A plain transformer of the planned shape, as a list of modules that a pipeline can cut anywhere."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as functional
from torch import nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from planner.training.example_adapters import (
    FOUR_BITS,
    Adapted,
    AdapterShape,
    ExpertAdapters,
    Nf4Experts,
    Nf4Linear,
)
from planner.training.example_context import ALONE, Sharing
from planner.training.example_experts import ALL, Owners
from planner.training.example_ring import AROUND
from planner.training.example_state import State, StateShape
from planner.training.hetplan_loss import Losses, chunked_losses, mean_loss, plain_losses

INITIAL_STD = 0.02


class Kind(NamedTuple):
    """What a layer consists of."""

    mixer: str
    """What mixes tokens."""
    feed_forward: str
    sizes: tuple[tuple[str, Any], ...] = ()
    """Sizes that are not the model's, by their names in ``Shape``."""


SIZES = ("heads", "kv_heads", "head_dim", "value_dim", "ffn")
"""Those that a layer may have of its own."""


@dataclass(frozen=True)
class ExpertShape:
    """Sizes of the experts of a layer, as under ``experts`` in ``model.json``."""

    number: int
    top_k: int
    ffn: int
    shared_ffn: int
    shared_gate: bool
    router_bias: bool
    bias: bool
    hidden: int | None = None
    """Width of what experts take and give, where tokens are brought to it and back."""
    capacity_factor: None = None
    """Always absent here: no token is dropped."""
    imbalance: float | None = None
    """What the plan was priced with."""


@dataclass(frozen=True)
class LatentShape:
    """Multi-head latent attention, as under ``latent`` in ``model.json``."""

    q_rank: int | None
    """Rank of the queries; null where they are projected at once."""
    kv_rank: int
    """Rank that keys and values share."""
    rope_dim: int
    """Part of ``head_dim`` that is rotated; its key is one for all heads."""
    value_dim: int
    """Width of a head's value."""


@dataclass(frozen=True)
class DocumentShape:
    """Lengths of documents, as under ``documents`` in ``model.json``."""

    mean_length: int
    spread: float
    """Standard deviation over the mean."""
    packing: bool
    """True when sequences are filled with documents; else each has one, and padding."""


@dataclass(frozen=True)
class PreferenceShape:
    """Training on pairs of answers, as under ``preference`` in ``model.json``."""

    beta: float


@dataclass(frozen=True)
class FrontShape:
    """A convolution, as a product with what stands under its kernel."""

    inputs: int
    outputs: int
    tokens: int
    bias: bool


@dataclass(frozen=True)
class EncoderShape:
    """Sizes of an encoder, as under ``encoder`` in ``model.json``; what is null is as in the decoder."""

    layers: int
    sequence_length: int
    hidden: int | None
    heads: int | None
    kv_heads: int | None
    head_dim: int | None
    ffn: int | None
    gated_mlp: bool | None
    block: tuple[Kind, ...]
    """Layers of which each of ``layers`` consists; none where each is one layer."""
    window: int | None
    """Sliding windows, which the example does not have."""
    vocab: int
    learned_positions: int
    relative_positions: int
    """Biases by distance, which the example does not have: it rotates queries and keys in their place."""
    embedding_norm: bool
    final_norm: bool
    front: tuple[FrontShape, ...]
    other_parameters: int
    """Parameters that the example leaves out."""


@dataclass(frozen=True)
class Shape:
    """Sizes of the model, as in ``model.json``; a model file of hetplan says what each key means."""

    name: str
    kind: str
    """``decoder`` (causal) or ``encoder`` (full attention)."""
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    gated_mlp: bool
    vocab: int
    tied_embeddings: bool
    learned_positions: int
    """Rows of the position table; 0 for rotary positions."""
    norm: str
    """``layer``, ``rms`` or ``plain``."""
    layer_norms: int
    """Norms of one layer; a single one is ahead of attention and feed-forward, four are ahead of and behind each."""
    qk_norm: bool | str
    qkv_bias: bool
    output_bias: bool
    mlp_bias: bool
    embedding_width: int
    token_types: int
    embedding_norm: bool
    final_norm: bool
    head_transform: bool
    head_bias: bool
    sequence_length: int
    optimizer: str
    """``adamw``, ``sgd``, ``lion``, ``muon`` or ``adafactor``."""
    experts: ExpertShape | None = None
    """Experts in place of the feed-forward of every layer."""
    dense_layers: int = 0
    """Layers without experts ahead of the others."""
    window: int | None = None
    window_layers: int | None = None
    """Sliding windows, which the example does not have: its attention is full in every layer."""
    sinks: bool | None = None
    """Each head has a learned sink in its softmax."""
    value_dim: int | None = None
    """Width of a head's value where it is not ``head_dim``; 0 where it is the head's key."""
    latent: LatentShape | None = None
    """Queries, keys and values by way of low ranks."""
    output_gate: bool = False
    """A gate as wide as the queries scales what attention makes."""
    mixer: str = "attention"
    """``attention``, ``cross`` (to the output of ``encoder``), ``state``, ``both`` or ``none``."""
    feed_forward: str | None = None
    """``experts``, ``dense`` or ``none``; absent, experts where there are any."""
    state: StateShape | None = None
    ahead: tuple[Kind, ...] | None = None
    """Layers ahead of the others, with the embedding."""
    block: tuple[Kind, ...] | None = None
    """Layers of which each of ``layers`` consists; none where each is one layer."""
    behind: tuple[Kind, ...] | None = None
    """Layers behind the others, with the head."""
    beside: tuple[Any, ...] = ()
    """``BesideShape`` of ``example_beside.py``: matrices beside the layers."""
    tower: Any = None
    """``TowerShape`` of ``example_tower.py``: what makes tokens of images."""
    encoder: EncoderShape | None = None
    """What layers of mixer ``cross`` attend to."""
    key_bias: bool = True
    """False where queries and values alone have biases."""
    relative_positions: int = 0
    """Biases of scores by distance, which the example does not have: it rotates queries and keys in their place."""
    attention_other: int = 0
    other_parameters: int = 0
    """Parameters that take part in few operations, in each layer and beside all, which the example leaves out."""
    front: tuple[FrontShape, ...] = ()
    """What stands in place of the table of tokens."""
    labels: int | None = None
    """Outputs of a head in place of an output layer; 0 for none: the loss is then that of the hidden states."""
    pooled: bool = False
    """True when labels are of a sequence."""
    optimizer_states: str = "fp32"
    """Number format of AdamW's moments: ``fp32``, ``bf16`` or ``int8``, or ``paged-fp32`` or ``paged-int8``."""
    master_weights: str = "fp32"
    """Number format of the weights that it updates: ``fp32`` or ``bf16``."""
    lora: AdapterShape | None = None
    """Adapters that are trained alone."""
    documents: DocumentShape | None = None
    """Documents shorter than a sequence."""
    preference: PreferenceShape | None = None
    """Each sequence is a pair of answers, the chosen one first."""
    freeze: tuple[str, ...] = ()
    """Parts that are not trained: ``embedding``, ``attention``, ``mlp``, ``norms``, ``head``."""
    cross_entropy: str = "chunked"
    """``chunked`` or ``plain``."""
    norms: str = "fused"
    """``fused`` or ``unfused``."""
    activation: str | None = None
    """Of feed-forwards, a name in ``ACTIVATIONS``; absent, SiLU of gates and GELU of feed-forwards without one."""
    norm_epsilon: float | None = None
    """What norms add to a mean square; absent, torch's own."""
    rope_base: float = 10_000.0
    """Base of the wavelengths of rotary positions."""
    rope_share: float = 1.0
    """Share of a head's width that is rotated; 0 where attention has no rotary positions."""

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """All layers of the model in order."""
        own = Kind(self.mixer, self.feed_forward or ("experts" if self.experts else "dense"))
        ahead = (Kind("attention", "dense"),) * self.dense_layers or self.ahead or ()
        return (*ahead, *(self.block or (own,)) * self.layers, *(self.behind or ()))

    @property
    def layers_ahead(self) -> int:
        """Layers with the embedding, which the plan does not count."""
        return self.dense_layers or len(self.ahead or ())

    @property
    def layers_each(self) -> int:
        """Layers of each block, which the plan counts as one."""
        return len(self.block or ()) or 1

    def held(self, first: int, end: int) -> range:
        """Layers of a stage that the plan gives these, all that stand at an end with them."""
        ahead, each = self.layers_ahead, self.layers_each
        last = ahead + end * each + (len(self.behind or ()) if end == self.layers else 0)
        return range(ahead + first * each if first else 0, last)

    @property
    def encoded(self) -> tuple[int, int]:
        """Tokens and width of an encoder's output of one sequence; none of either without one."""
        encoder = self.encoder
        return (0, 0) if encoder is None else (encoder.sequence_length, encoder.hidden or self.hidden)

    @property
    def untrained(self) -> Shape:
        """The same with nothing that is trained."""
        return replace(self, freeze=("embedding", "attention", "mlp", "norms", "head"))

    def freezes(self, part: str) -> bool:
        """True when a part is not trained."""
        return self.lora is not None or part in self.freeze


def load_shape(path: str | os.PathLike[str]) -> Shape:
    """The shape in a ``model.json``."""
    return shape_of(json.loads(Path(path).read_text(encoding="utf-8")))


def shape_of(given: dict[str, Any]) -> Shape:
    """The shape of a document such as ``model.json``."""
    values = dict(given)
    experts, lora = values.pop("experts", None), values.pop("lora", None)
    freeze, documents = tuple(values.pop("freeze", ())), values.pop("documents", None)
    preference = values.pop("preference", None)
    state, latent = values.pop("state", None), values.pop("latent", None)
    own = values.get("mixer"), values.get("feed_forward") or ("experts" if experts else "dense")

    def each(runs: Any, own: tuple[Any, str]) -> tuple[Kind, ...]:
        kinds: list[Kind] = []
        for run in runs or ():
            sizes = tuple((name, run[name]) for name in SIZES if run.get(name) is not None)
            kinds += run["layers"] * [Kind(run["mixer"] or own[0], run["feed_forward"] or own[1], sizes)]
        return tuple(kinds)

    for name in ("ahead", "block", "behind"):
        values[name] = each(values.pop(name, None), own)
    values["front"] = tuple(FrontShape(**sizes) for sizes in values.pop("front", ()))
    encoder = values.pop("encoder", None)
    if encoder is not None:
        front = tuple(FrontShape(**sizes) for sizes in encoder["front"])
        block = each(encoder["block"], ("attention", "experts" if experts else "dense"))
        encoder = EncoderShape(**{**encoder, "front": front, "block": block})
    return Shape(
        **values,
        encoder=encoder,
        documents=None if documents is None else DocumentShape(**documents),
        preference=None if preference is None else PreferenceShape(**preference),
        state=None if state is None else StateShape(**state),
        latent=None if latent is None else LatentShape(**latent),
        experts=None if experts is None else ExpertShape(**experts),
        lora=None if lora is None else AdapterShape(**{**lora, "targets": tuple(lora["targets"])}),
        freeze=freeze,
    )


class Linear(nn.Linear):  # type: ignore[misc]
    """A linear layer that starts from a narrow normal distribution."""

    def reset_parameters(self) -> None:
        """Initialise while the weight is whole: ZeRO-3 shards a module once it is built."""
        nn.init.normal_(self.weight, std=INITIAL_STD)
        if self.bias is not None:
            nn.init.zeros_(self.bias)


def table(rows: int, width: int) -> Any:
    """An embedding table; None without rows."""
    return nn.Parameter(torch.empty(rows, width).normal_(std=INITIAL_STD)) if rows else None


def norm_of(shape: Shape, width: int, wanted: bool = True) -> Any:
    """A norm of the model's kind, or nothing."""
    if not wanted:
        return nn.Identity()
    if shape.norm == "rms":
        return rms_norm(shape, width)
    kind = nn.LayerNorm if shape.norms == "fused" else UnfusedLayerNorm
    epsilon = {} if shape.norm_epsilon is None else {"eps": shape.norm_epsilon}
    return kind(width, elementwise_affine=shape.norm != "plain", **epsilon)


def rms_norm(shape: Shape, width: int) -> nn.RMSNorm:
    """A norm of the root mean square."""
    return (nn.RMSNorm if shape.norms == "fused" else UnfusedRMSNorm)(width, eps=shape.norm_epsilon)


class UnfusedRMSNorm(nn.RMSNorm):  # type: ignore[misc]
    """One operation after the other in fp32, as classes of Hugging Face have it."""

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.weight * _of_one_scale(hidden.float(), self.eps).to(hidden.dtype)


class UnfusedLayerNorm(nn.LayerNorm):  # type: ignore[misc]
    """The same with a mean."""

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        wide = hidden.float()
        normed = _of_one_scale(wide - wide.mean(-1, keepdim=True), self.eps).to(hidden.dtype)
        return normed if self.weight is None else self.weight * normed + self.bias


def _of_one_scale(wide: torch.Tensor, epsilon: float | None) -> torch.Tensor:
    """Rows over the root of their mean square."""
    least = torch.finfo(torch.float32).eps if epsilon is None else epsilon
    return wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + least)


class Front(nn.ModuleList):  # type: ignore[misc]
    """Convolutions in place of a table of tokens, each a product with what stands under its kernel."""

    def __init__(self, sizes: tuple[FrontShape, ...], width: int) -> None:
        """``width`` is that of the layers behind it."""
        super().__init__(Linear(each.inputs, each.outputs, bias=each.bias) for each in sizes)
        self.sizes, self.width = sizes, width

    def forward(self, inputs: torch.Tensor, kind: torch.dtype) -> torch.Tensor:
        hidden = heard(inputs, self.sizes[0]).to(kind)
        for number, (sizes, product) in enumerate(zip(self.sizes, self, strict=True)):
            hidden = functional.gelu(product(under_kernel(hidden, sizes) if number else hidden))
        if hidden.shape[-1] == 2 * self.width:
            return functional.glu(hidden)
        # Models in stages begin with fewer channels, which the example's matrices beside the layers do not widen.
        return functional.pad(hidden, (0, self.width - hidden.shape[-1]))


def inputs_of(tokens: torch.Tensor, length: int) -> torch.Tensor:
    """Tokens that are encoded for each sequence."""
    return tokens.flip(1).repeat(1, -(-length // tokens.shape[1]))[:, :length]


def heard(inputs: torch.Tensor, front: FrontShape) -> torch.Tensor:
    """What stands under the first kernel at each of its places."""
    seeds = inputs_of(inputs, front.tokens) + torch.arange(front.tokens, device=inputs.device)
    width = torch.arange(1, front.inputs + 1, device=inputs.device)
    return torch.sin(seeds.unsqueeze(-1) * width.float())


def under_kernel(hidden: torch.Tensor, front: FrontShape) -> torch.Tensor:
    """What stands under a later kernel: neighbours side by side; channels that are twice too many are gated."""
    if front.inputs % hidden.shape[-1]:
        hidden = functional.glu(hidden)
    kernel = front.inputs // hidden.shape[-1]
    centres = torch.arange(front.tokens, device=hidden.device) * hidden.shape[1] // front.tokens
    offsets = torch.arange(kernel, device=hidden.device) - kernel // 2
    places = (centres.unsqueeze(1) + offsets).clamp(0, hidden.shape[1] - 1)
    return hidden[:, places].flatten(2)


class Embedding(nn.Module):  # type: ignore[misc]
    """Embedding of tokens, positions and types; a tied head asks it for the logits of hidden states."""

    def __init__(self, shape: Shape, sharing: Sharing = ALONE) -> None:
        super().__init__()
        self.sharing = sharing
        self.front = Front(shape.front, shape.hidden) if shape.front else None
        self.weight = None if shape.front else table(shape.vocab, shape.embedding_width)
        self.lookup: Callable[[torch.Tensor, Any], torch.Tensor] = functional.embedding
        self.positions = table(shape.learned_positions, shape.hidden)
        self.types = table(shape.token_types, shape.hidden)
        self.norm = norm_of(shape, shape.hidden, shape.embedding_norm)
        narrow = shape.embedding_width != shape.hidden
        self.widen = Linear(shape.embedding_width, shape.hidden, bias=False) if narrow else nn.Identity()
        back = narrow and shape.labels is None
        self.narrow = Linear(shape.hidden, shape.embedding_width, bias=False) if back else nn.Identity()
        self.requires_grad_(not shape.freezes("embedding"))
        self.bias = None
        if shape.head_bias and shape.tied_embeddings:
            self.bias = nn.Parameter(torch.zeros(shape.vocab), requires_grad=not shape.freezes("head"))

    def forward(self, inputs: torch.Tensor, *, alone: bool = False) -> torch.Tensor:
        """Rows of tokens, ``alone`` without positions and norm; of hidden states the logits."""
        if inputs.is_floating_point():
            return self._logits(self.narrow(inputs))
        if alone:
            return self._looked_up(inputs)
        if self.front is None:
            hidden = self.widen(self._looked_up(inputs))
        else:
            hidden = self.front(inputs, self.front[0].weight.dtype)
            # Tokens of a class, or the like, stand ahead.
            hidden = functional.pad(hidden, (0, 0, inputs.shape[1] - hidden.shape[1], 0))
        if self.positions is not None:
            hidden = hidden + self.sharing.rows(self.positions, inputs.shape[1])
        if self.types is not None:
            hidden = hidden + self.types[0]
        return self.norm(hidden)

    def _looked_up(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.lookup(tokens, self.weight)

    def _logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return functional.linear(hidden, self.weight, self.bias)


def kept_on_device(function: Callable[..., Any], *inputs: torch.Tensor) -> Any:
    """Call a function of which only the inputs are kept for the backward."""
    return checkpoint(function, *inputs, use_reentrant=False)


def kept_on_host(function: Callable[..., Any], *inputs: torch.Tensor) -> Any:
    """The same with the inputs in host memory until the backward."""
    with torch.autograd.graph.save_on_cpu(pin_memory=True):
        return kept_on_device(function, *inputs)


def keep_on_host(model: nn.Module) -> None:
    """Keep what recomputed layers begin with in host memory."""
    for each in model.modules():
        if isinstance(each, Layer):
            each.checkpoint = kept_on_host


PRODUCTS = tuple(
    getattr(torch.ops.aten, name).default
    for name in ("mm", "addmm", "_scaled_mm_v2")
    if hasattr(torch.ops.aten, name)
)
ATTENTION = (
    *(
        getattr(torch.ops.aten, name).default
        for name in (
            "_scaled_dot_product_flash_attention",
            "_scaled_dot_product_efficient_attention",
            "_scaled_dot_product_cudnn_attention",
            "_scaled_dot_product_flash_attention_for_cpu",
        )
    ),
    AROUND,
)


def kept_in_part(function: Callable[..., Any], *inputs: torch.Tensor) -> Any:
    """Call a function of which attention and every second matrix product are kept; the rest runs again."""
    return checkpoint(function, *inputs, use_reentrant=False, context_fn=_contexts)


def _contexts() -> Any:
    seen = {False: 0, True: 0}
    """Products of the forward, and of the backward's second run."""

    def policy(context: Any, function: Any, *_: Any, **__: Any) -> CheckpointPolicy:
        if function in PRODUCTS:
            seen[context.is_recompute] += 1
        odd = function in PRODUCTS and seen[context.is_recompute] % 2 == 1
        keep = odd or function in ATTENTION
        return CheckpointPolicy.MUST_SAVE if keep else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)


class Experts(nn.Module):  # type: ignore[misc]
    """A feed-forward of experts: a router picks some for each token, and shared ones work on all; no token is dropped.

    Nothing balances the experts' loads: a loss for that is one of the training script's own.
    """

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        experts = shape.experts
        assert experts is not None
        if not hasattr(functional, "grouped_mm"):
            raise SystemExit(
                f"experts need torch.nn.functional.grouped_mm, which PyTorch {torch.__version__} lacks"
            )
        self.number, self.top_k, self.gated = experts.number, experts.top_k, shape.gated_mlp
        self.activation = activation(shape)
        hidden, width, ways = experts.hidden or shape.hidden, experts.ffn, 2 if shape.gated_mlp else 1
        self.router = Linear(shape.hidden, self.number, bias=experts.router_bias)
        self.brought = Linear(shape.hidden, hidden, bias=False) if experts.hidden else nn.Identity()
        self.back = Linear(hidden, shape.hidden, bias=False) if experts.hidden else nn.Identity()
        self.into = matrices(shape, self.number, hidden, ways * width)
        self.out = matrices(shape, self.number, width, hidden)
        self.into_bias = nn.Parameter(torch.zeros(self.number, ways * width)) if experts.bias else None
        self.out_bias = nn.Parameter(torch.zeros(self.number, hidden)) if experts.bias else None
        self.adapters = nn.ModuleDict()
        if shape.lora is not None:
            names = ("gate_proj", "up_proj") if self.gated else ("up_proj",)
            self.adapters["into"] = ExpertAdapters(
                self.number, hidden, dict.fromkeys(names, width), shape.lora
            )
            self.adapters["out"] = ExpertAdapters(self.number, width, {"down_proj": hidden}, shape.lora)
        self.shared = FeedForward(shape, experts.shared_ffn) if experts.shared_ffn else None
        self.shared_gate = Linear(shape.hidden, 1, bias=False) if experts.shared_gate else None
        self.owners = ALL

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        tokens = hidden.flatten(0, -2)
        weights, chosen = self.router(tokens).float().softmax(-1).topk(self.top_k, dim=-1)
        if self.top_k > 1:
            weights = weights / weights.sum(-1, keepdim=True)
        weights = weights.to(hidden.dtype)
        expert, order = chosen.flatten().sort(stable=True)
        rows = order // self.top_k
        inputs = self.brought(tokens)
        outputs = self.owners.apply(self._work, inputs[rows], torch.bincount(expert, minlength=self.number))
        # Those of a token side by side again: an addition by index would keep what it adds.
        each = outputs.index_select(0, order.argsort()).view(*weights.shape, -1)
        mixed = self.back((each * weights.unsqueeze(-1)).sum(1))
        if self.shared is not None:
            shared = self.shared(tokens)
            gate = 1.0 if self.shared_gate is None else self.shared_gate(tokens).sigmoid()
            mixed = mixed + gate * shared
        return mixed.view_as(hidden)

    def _work(self, rows: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        """What the experts of this rank make of rows in their order, of which each has so many."""
        inner = activated(self._product(rows, "into", counts), self.gated, self.activation)
        return self._product(inner, "out", counts)

    def _product(self, rows: torch.Tensor, name: str, counts: torch.Tensor) -> torch.Tensor:
        # An expert without rows gets a gradient of zeros.
        ends = counts.cumsum(0).to(torch.int32)
        weight, bias = getattr(self, name), getattr(self, f"{name}_bias")
        if isinstance(weight, Nf4Experts):
            outputs = weight.product(rows, ends, self.owners.own)
        else:
            outputs = functional.grouped_mm(rows, self.owners.own(weight).to(rows.dtype), offs=ends)
        if name in self.adapters:
            outputs = self.adapters[name](outputs, rows, ends, self.owners.own)
        if bias is None:
            return outputs
        return outputs + self.owners.own(bias).to(rows.dtype).repeat_interleave(
            counts, dim=0, output_size=len(rows)
        )

    @property
    def trained(self) -> bool:
        """True when they have gradients."""
        adapted = any(each.parts for each in self.adapters.values())
        return adapted or (isinstance(self.into, nn.Parameter) and self.into.requires_grad)

    def divide(self, owners: Owners, part: Callable[[Any], Any]) -> None:
        """Leave this rank its part of the experts; all owners have drawn the same ones."""
        self.owners = owners
        for name in ("into", "out", "into_bias", "out_bias"):
            whole = getattr(self, name)
            if isinstance(whole, Nf4Experts):
                whole.divide(part)
            elif whole is not None:
                setattr(self, name, part(whole))
        for adapters in self.adapters.values():
            adapters.divide(part)


def matrices(shape: Shape, number: int, inputs: int, outputs: int) -> nn.Module | nn.Parameter:
    """Those of experts, in four bits where linear layers are."""
    if shape.lora is not None and shape.lora.base in FOUR_BITS:
        return Nf4Experts(number, inputs, outputs, double=shape.lora.base == "nf4-double")
    return nn.Parameter(torch.empty(number, inputs, outputs).normal_(std=INITIAL_STD))


def squared_relu(hidden: torch.Tensor) -> torch.Tensor:
    """Squares of what is positive (arXiv:2109.08668)."""
    return functional.relu(hidden).square()


ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "silu": functional.silu,
    "gelu": functional.gelu,
    "gelu-tanh": partial(functional.gelu, approximate="tanh"),
    "relu": functional.relu,
    "squared-relu": squared_relu,
}
"""Nonlinearities by the names of a model file: those that keep no more for the backward than is counted."""


def activation(shape: Shape) -> Callable[..., torch.Tensor]:
    """The nonlinearity of feed-forwards: of what is behind their first matrix, or of that of the gate and the other."""
    if not shape.gated_mlp:
        return ACTIVATIONS.get(shape.activation or "", functional.gelu)
    chosen = ACTIVATIONS.get(shape.activation or "", functional.silu)
    return lambda gate, up: chosen(gate) * up


def activated(hidden: torch.Tensor, gated: bool, chosen: Callable[..., torch.Tensor]) -> torch.Tensor:
    """The nonlinearity between the halves of an expert; gate and factor stand side by side."""
    return chosen(*hidden.chunk(2, dim=-1)) if gated else chosen(hidden)


class FeedForward(nn.Module):  # type: ignore[misc]
    """Shared experts, which are one wider feed-forward."""

    def __init__(self, shape: Shape, width: int) -> None:
        super().__init__()
        self.gated, self.activation = shape.gated_mlp, activation(shape)
        into = ("gate_proj", "up_proj") if self.gated else ("up_proj",)
        self.into = adapted(shape)(shape.hidden, 1, shape.mlp_bias, **dict.fromkeys(into, width))
        self.out = adapted(shape)(width, shape.hidden, shape.mlp_bias, "down_proj")

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.out(activated(self.into(hidden), self.gated, self.activation))


def adapted(shape: Shape) -> Callable[..., nn.Module]:
    """What makes a linear layer: of its inputs, outputs, bias, and the name that its adapter has, if any.

    Parts that stand side by side by head have adapters of their own: ``outputs`` are heads then, and names come with
    how many outputs of each head are theirs.
    """

    def linear(inputs: int, outputs: int, bias: bool, *name: str, **widths: int) -> nn.Module:
        lora, widths = shape.lora, widths or dict.fromkeys(name, 1)
        whole = outputs * (sum(widths.values()) or 1)
        if lora is None or not widths:
            return Linear(inputs, whole, bias=bias)
        base: nn.Module
        if lora.base in FOUR_BITS:
            base = Nf4Linear(inputs, whole, bias, double=lora.base == "nf4-double")
        else:
            base = Linear(inputs, whole, bias=bias)
        return Adapted(base, inputs, outputs, widths, lora)

    return linear


PART_OF = {
    **dict.fromkeys(("query", "key_value", "output", "state"), "attention"),
    **dict.fromkeys(("query_rank", "key_value_rank"), "attention"),
    **dict.fromkeys(("gate", "up", "down", "experts"), "mlp"),
}
"""Which part of a model the modules of a layer belong to; the others are norms."""


class Layer(nn.Module):  # type: ignore[misc]
    """Attention and feed-forward with norms ahead of both.

    ``recompute`` is ``none``, ``selective`` (attention and every second product are kept) or ``full``. ``kind`` says
    what mixes tokens, and which feed-forward it has.
    """

    def __init__(
        self,
        shape: Shape,
        recompute: str = "none",
        checkpoint: Callable[..., Any] = kept_on_device,
        sharing: Sharing = ALONE,
        *,
        kind: Kind | None = None,
    ) -> None:
        super().__init__()
        self.mixer, self.feeds, sizes = kind or shape.kinds[-1]
        self.shape = shape = replace(shape, **dict[str, Any](sizes))
        self.sharing = sharing
        self.recompute = recompute
        self.checkpoint = checkpoint
        hidden, both = shape.hidden, "none" not in (self.mixer, self.feeds)
        self.norm_attention = norm_of(shape, hidden, self.mixer != "none")
        self.whole = shape.qk_norm == "whole"
        if self.mixer in ("attention", "cross", "both"):
            self._add_attention(shape) if shape.latent is None else self._add_latent(shape, shape.latent)
            self.sinks = None
            if shape.sinks:
                trained = not shape.freezes("attention")
                self.sinks = nn.Parameter(torch.zeros(shape.heads), requires_grad=trained)
        carries = self.mixer in ("state", "both") and shape.state is not None
        self.state = (
            State(hidden, shape.state, adapted(shape), sharing)
            if carries and shape.state is not None
            else None
        )
        self.norm_mlp = norm_of(shape, hidden, shape.layer_norms > 1 if both else self.feeds != "none")
        self.norm_after_attention = norm_of(shape, hidden, shape.layer_norms > 2 and self.mixer != "none")
        self.norm_after_mlp = norm_of(shape, hidden, shape.layer_norms > 3 and self.feeds != "none")
        self.experts = Experts(shape) if self.feeds == "experts" else None
        if self.feeds == "dense":
            bias = shape.mlp_bias
            linear = adapted(shape)
            self.activation = activation(shape)
            self.gate = linear(hidden, shape.ffn, bias, "gate_proj") if shape.gated_mlp else None
            self.up = linear(hidden, shape.ffn, bias, "up_proj")
            self.down = linear(shape.ffn, hidden, bias, "down_proj")
        for name, module in self.named_children():
            for each, parameter in module.named_parameters():
                if "adapters." not in each and shape.freezes(PART_OF.get(name, "norms")):
                    parameter.requires_grad_(False)

    def _add_attention(self, shape: Shape) -> None:
        width, hidden, linear = shape.head_dim, shape.hidden, adapted(shape)
        queries = (2 if shape.output_gate else 1) * shape.heads * width
        self.query = linear(hidden, queries, shape.qkv_bias, "q_proj")
        biased = shape.qkv_bias and shape.key_bias
        source = shape.encoded[1] if self.mixer == "cross" else hidden
        self.value_width = width if shape.value_dim is None else shape.value_dim
        """Outputs of a head's value; 0 where it is the head's key."""
        values = {"v_proj": self.value_width} if self.value_width else {}
        self.key_value = linear(source, shape.kv_heads, biased, k_proj=width, **values)
        lone = shape.qkv_bias and not shape.key_bias and self.value_width > 0
        self.value_bias = None
        if lone:
            zeros = torch.zeros(shape.kv_heads * self.value_width)
            self.value_bias = nn.Parameter(zeros, requires_grad=not shape.freezes("attention"))
        sizes = (shape.heads * width, shape.kv_heads * width) if self.whole else (width, width)
        self.norm_query = rms_norm(shape, sizes[0]) if shape.qk_norm else nn.Identity()
        self.norm_key = rms_norm(shape, sizes[1]) if shape.qk_norm else nn.Identity()
        self.output = linear(shape.heads * (self.value_width or width), hidden, shape.output_bias, "o_proj")

    def _add_latent(self, shape: Shape, latent: LatentShape) -> None:
        """Products to the low ranks and from them, with norms between (arXiv:2405.04434, section 2.1)."""
        hidden, bias, linear = shape.hidden, shape.qkv_bias, adapted(shape)
        ranked, queries = latent.q_rank is not None, shape.heads * shape.head_dim
        self.query_rank = linear(hidden, latent.q_rank, bias, "q_a_proj") if ranked else nn.Identity()
        self.norm_query = rms_norm(shape, latent.q_rank) if latent.q_rank else nn.Identity()
        self.query = linear(latent.q_rank or hidden, queries, False, "q_b_proj" if ranked else "q_proj")
        self.key_value_rank = linear(hidden, latent.kv_rank + latent.rope_dim, bias, "kv_a_proj_with_mqa")
        self.norm_key_value = rms_norm(shape, latent.kv_rank)
        expanded = shape.heads * (shape.head_dim - latent.rope_dim + latent.value_dim)
        self.key_value = linear(latent.kv_rank, expanded, False, "kv_b_proj")
        self.output = linear(shape.heads * latent.value_dim, hidden, shape.output_bias, "o_proj")

    def forward(self, hidden: torch.Tensor, encoded: Any = None) -> torch.Tensor:
        """``encoded`` is an encoder's output, which a layer of mixer ``cross`` attends to."""
        inputs = (hidden, encoded) if self.mixer == "cross" else (hidden,)
        if self.recompute == "none" or not torch.is_grad_enabled():
            return self._forward(*inputs)
        recomputed = self.sharing.again(self._forward)
        return (self.checkpoint if self.recompute == "full" else kept_in_part)(recomputed, *inputs)

    def _forward(self, hidden: torch.Tensor, encoded: Any = None) -> torch.Tensor:
        if self.mixer == "none":
            return hidden + self.norm_after_mlp(self._mlp(self.norm_mlp(hidden)))
        normed = self.norm_attention(hidden)
        if self.feeds == "none":
            return hidden + self.norm_after_attention(self._mixed(normed, encoded))
        if self.shape.layer_norms == 1:
            return hidden + self._mixed(normed, encoded) + self._mlp(normed)
        hidden = hidden + self.norm_after_attention(self._mixed(normed, encoded))
        return hidden + self.norm_after_mlp(self._mlp(self.norm_mlp(hidden)))

    def _mixed(self, hidden: torch.Tensor, encoded: Any) -> torch.Tensor:
        if self.state is None:
            return self._attention(hidden, encoded)
        return self.state(hidden) + (self._attention(hidden) if self.mixer == "both" else 0.0)

    def _latent_attention(self, hidden: torch.Tensor, latent: LatentShape) -> torch.Tensor:
        """Only the last ``rope_dim`` of queries and keys have positions, where those are not learned."""
        batch, length, _ = hidden.shape
        plain, rotated = self.shape.head_dim - latent.rope_dim, latent.rope_dim
        query = self.query(self.norm_query(self.query_rank(hidden))).view(batch, length, -1, plain + rotated)
        shared, placed = self.key_value_rank(hidden).split((latent.kv_rank, rotated), dim=-1)
        pairs = self.key_value(self.norm_key_value(shared)).view(batch, length, -1, plain + latent.value_dim)
        key, value = pairs.transpose(1, 2).split((plain, latent.value_dim), dim=-1)
        query, turned = query.transpose(1, 2).split((plain, rotated), dim=-1)
        placed = placed.unsqueeze(1)
        if not self.shape.learned_positions and self.shape.rope_share:
            places, base = self.sharing.positions(length, hidden.device), self.shape.rope_base
            turned, placed = rotate(turned, places, base), rotate(placed, places, base)
        query = torch.cat((query, turned), dim=-1)
        key = torch.cat((key, placed.expand(-1, key.shape[1], -1, -1)), dim=-1)
        causal = self.shape.kind == "decoder"
        mixed = self.sharing.attend(query, key, value, causal=causal, sinks=self.sinks)
        return self.output(mixed.transpose(1, 2).reshape(batch, length, -1))

    def _attention(self, hidden: torch.Tensor, encoded: Any = None) -> torch.Tensor:
        if self.shape.latent is not None:
            return self._latent_attention(hidden, self.shape.latent)
        batch, length, _ = hidden.shape
        source = hidden if encoded is None else encoded
        width = self.shape.head_dim
        # Heads are counted from the tensors: a tensor-parallel rank has some of them, each key beside its value and
        # each query beside its gate.
        query, gate = self.query(hidden), None
        if self.shape.output_gate:
            query, gate = query.view(batch, length, -1, 2 * width).chunk(2, dim=-1)
            gate = gate.flatten(2)
        query = query.reshape(batch, length, -1, width)
        key_value = self.key_value(source).view(batch, source.shape[1], -1, width + self.value_width)
        key = key_value[..., :width]
        value = key_value[..., width:] if self.value_width else key
        if self.value_bias is not None:
            value = value + self.value_bias.view(-1, self.value_width).to(value.dtype)
        value = value.transpose(1, 2)
        if self.whole:
            query = self.norm_query(query.flatten(2)).view_as(query).transpose(1, 2)
            key = self.norm_key(key.flatten(2)).view_as(key).transpose(1, 2)
        else:
            query, key = self.norm_query(query).transpose(1, 2), self.norm_key(key).transpose(1, 2)
        if not self.shape.learned_positions and encoded is None:
            places = self.sharing.positions(length, hidden.device)
            query, key = self._rotated(query, places), self._rotated(key, places)
        causal = self.shape.kind == "decoder" and encoded is None
        mixed = self.sharing.attend(query, key, value, causal=causal, sinks=self.sinks)
        mixed = mixed.transpose(1, 2).reshape(batch, length, -1)
        return self.output(mixed if gate is None else mixed * gate.sigmoid())

    def _rotated(self, heads: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        """Heads with the first part of their width rotated."""
        shape, width = self.shape, heads.shape[-1]
        turned = 2 * round(width * shape.rope_share / 2)
        if turned == width:
            return rotate(heads, places, shape.rope_base)
        first, rest = heads.split([turned, width - turned], dim=-1)
        return torch.cat((rotate(first, places, shape.rope_base), rest), dim=-1)

    def _mlp(self, hidden: torch.Tensor) -> torch.Tensor:
        if self.experts is not None:
            return self.experts(hidden)
        if self.gate is None:
            return self.down(self.activation(self.up(hidden)))
        return self.down(self.activation(self.gate(hidden), self.up(hidden)))


class Finish(nn.Module):  # type: ignore[misc]
    """What comes between the last layer and the output layer: the final norm and BERT's transform."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.norm = norm_of(shape, shape.hidden, shape.final_norm)
        self.transform = nn.Identity()
        if shape.head_transform:
            dense = Linear(shape.hidden, shape.hidden)
            self.transform = nn.Sequential(dense, nn.GELU(), norm_of(shape, shape.hidden))
        self.requires_grad_(not shape.freezes("head"))

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.transform(self.norm(hidden))


class Head(nn.Module):  # type: ignore[misc]
    """Output layer that is not tied to the embedding."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        outputs = shape.vocab if shape.labels is None else shape.labels
        project = Linear(shape.hidden, outputs, bias=shape.head_bias) if outputs else nn.Identity()
        self.project = project
        self.requires_grad_(not shape.freezes("head"))

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.project(hidden)


def as_it_is(module: nn.Module) -> nn.Module:
    """A module on a device that holds all of it."""
    return module


class Transformer(nn.Module):  # type: ignore[misc]
    """The whole model on one rank, for runs without a pipeline."""

    def __init__(
        self,
        shape: Shape,
        recompute: str = "none",
        checkpoint: Callable[..., Any] = kept_on_device,
        sharing: Sharing = ALONE,
        encoder: Any = None,
        embedding: type[Embedding] = Embedding,
        place: Callable[[nn.Module], nn.Module] = as_it_is,
    ) -> None:
        """``encoder`` is an ``Encoder`` of ``example_encoder.py``, where the model has one.

        ``place`` takes each new layer and gives what stands in its place.
        """
        super().__init__()
        self.embedding: Any = embedding(shape, sharing)
        self.encoder = encoder
        self.layers = nn.ModuleList(
            place(Layer(shape, recompute, checkpoint, sharing, kind=kind)) for kind in shape.kinds
        )
        self.finish = Finish(shape)
        self.head = None if shape.tied_embeddings else Head(shape)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden, encoded = self.embedding(tokens), None
        if self.encoder is not None:
            encoded = self.encoder(tokens, partial(self.embedding, alone=True), hidden.dtype)
        for layer in self.layers:
            hidden = layer(hidden, encoded)
        hidden = self.finish(hidden)
        return self.embedding(hidden) if self.head is None else self.head(hidden)


def rotate(heads: torch.Tensor, places: torch.Tensor, base: float) -> torch.Tensor:
    """Rotary positions on [batch, head, position, width]; ``places`` of all alike or of each, [batch][position]."""
    width = heads.shape[-1]
    exponents = -torch.arange(0, width, 2, device=heads.device, dtype=torch.float32) / width
    angles = places.to(torch.float32).unsqueeze(-1) * base**exponents
    if places.ndim > 1:
        angles = angles.unsqueeze(1)
    cos, sin = angles.cos().to(heads.dtype), angles.sin().to(heads.dtype)
    even, odd = heads.chunk(2, dim=-1)
    return torch.cat((even * cos - odd * sin, even * sin + odd * cos), dim=-1)


def objective(shape: Shape, losses: Losses | None = None) -> Callable[[Any, torch.Tensor], torch.Tensor]:
    """What is minimised, of a model's outputs and the labels; beside outputs for pairs stand those of the reference."""
    each = losses or (plain_losses if shape.cross_entropy == "plain" else chunked_losses)
    if shape.preference is None:
        return partial(mean_loss, losses=each)
    beta = shape.preference.beta
    return lambda outputs, labels: preference_loss(outputs[0], outputs[1], labels, beta, each)


def preference_loss(
    logits: torch.Tensor, before: torch.Tensor, labels: torch.Tensor, beta: float, losses: Losses
) -> torch.Tensor:
    """Mean over pairs of what direct preference optimization minimises (arXiv:2305.18290, equation 7).

    ``before``: logits of the model as it was, which has no gradient.
    """
    # The loss of an answer's tokens is the logarithm of its likelihood, with its sign changed.
    now, then = (
        losses(each.flatten(0, 1), labels.flatten()).view(len(labels), 2, -1).sum(dim=2)
        for each in (logits, before)
    )
    chosen, rejected = (then - now).unbind(dim=1)
    return -functional.logsigmoid(beta * (chosen - rejected)).mean()
