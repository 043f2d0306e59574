"""What a runtime can express: the fields that the search obeys and the emitters rely on."""

from __future__ import annotations

from typing import Literal

from planner.frozen import record

TensorParallel = Literal["none", "one-degree", "per-stage"]
BatchRule = Literal["equal", "per-device", "follows-dp"]
Schedule = Literal["1f1b", "zero-bubble", "zb-v", "dualpipe-v"]
"""1f1b: a forward and a backward in turn; zero-bubble: gradients of weights are computed apart, where stages wait; zb-v
and dualpipe-v: the same with layers placed in a V, so that the first device has the first chunk and the last."""
V_SHAPED: tuple[Schedule, ...] = ("zb-v", "dualpipe-v")
"""Schedules with two chunks of layers a device, through which a micro-batch goes to the last device and back again."""
Recompute = Literal["none", "selective", "full"]
RECOMPUTES: tuple[Recompute, ...] = ("none", "selective", "full")
OffloadTo = Literal["none", "cpu", "nvme"]
OffloadPart = Literal["none", "optimizer", "parameters", "activations", "nvme", "super"]
OFFLOAD_PARTS: tuple[OffloadPart, ...] = ("none", "optimizer", "parameters", "activations", "nvme")
"""What may leave the devices, and that it may go on to NVMe: all that changes no result."""
ASKED_OFFLOAD_PARTS: tuple[OffloadPart, ...] = ("super",)
"""What a search has only where it is asked for: updates ahead of the norm of all gradients, which are not clipped."""
Encoders = Literal["any", "bert", "none"]
Experts = Literal["none", "whole", "replicas", "parallel"]
CudaGraphs = Literal["none", "layers", "step"]
"""What CUDA graphs launch in place of the host: nothing, the kernels of layers, or those of whole steps."""
TokenDispatcher = Literal["alltoall", "deepep", "hybridep"]
"""How tokens travel to their experts: once for each, or by DeepEP or HybridEP once to each device, and to each node."""
ContextKind = Literal["ring", "ulysses"]
EncoderDecoders = Literal["none", "whole", "any"]
UnlikeLayers = Literal["none", "feed_forwards", "mixers", "any"]
StateKind = Literal["mamba", "mamba2", "delta", "linear", "conv"]
Dealt = Literal["documents", "pairs of answers"]
FrozenKind = Literal["adapters", "adapters on fp8", "adapters on four bits", "frozen parts"]
SyncMethod = Literal["diloco", "average"]
SyncFormat = Literal["fp32", "bf16", "fp8", "int8"]
SyncKind = Literal["diloco", "average", "fp32", "bf16", "fp8", "int8", "powersgd", "topk"]


@record(frozen=True, slots=True, kw_only=True)
class Offloading:
    """What a runtime can keep off the device; an empty one keeps everything there."""

    optimizer_zero: tuple[int, ...] = ()
    """ZeRO stages with which the optimizer's states may be in host memory."""
    parameters_zero: tuple[int, ...] = ()
    """ZeRO stages with which the parameters may be there too."""
    nvme_zero: tuple[int, ...] = ()
    """ZeRO stages with which either may be on NVMe."""
    activations: bool = False
    """True when the checkpoints of full recomputation may be in host memory."""
    waits_for_activations: bool = False
    """True when kernels wait for copies of checkpoints, in their stream; else these go beside other work."""
    together: bool = False
    """True when parameters and optimizer states leave the device together or not at all."""
    ratio_zero: tuple[int, ...] = ()
    """ZeRO stages with which the devices may keep the states of some parameters, and update these."""
    tensor_by_tensor: bool = False
    """True when hosts have the first tensors of a shard until they have passed their share, and the gradient of each
    leaves in fp32 and its new values come back so beside the updates of the others. Else all gradients leave, and
    copies and updates follow each other."""
    super_zero: tuple[int, ...] = ()
    """ZeRO stages with which a superchip's processors may update during the last backward of a step."""
    in_pipeline: bool = False
    """True when it runs with several pipeline stages too."""


@record(frozen=True, slots=True)
class Gradients:
    """Number formats of the gradients of bf16 and fp8 training that a runtime can have at the same time."""

    kept: str
    """Of the sum over micro-batches."""
    reduced: str
    """Of the sum over replicas while it travels."""
    zero: tuple[int, ...] = (0, 1, 2, 3)
    """ZeRO stages with which it has them."""
    master_weights: tuple[str, ...] = ("fp32", "split")
    """Weights that the optimizer may update by them."""

    @property
    def kept_bytes(self) -> int:
        """Bytes of an element at rest."""
        return FORMAT_BYTES[self.kept]

    @property
    def reduced_bytes(self) -> int:
        """Bytes of an element under way."""
        return FORMAT_BYTES[self.reduced]


FORMAT_BYTES = {"fp32": 4, "bf16": 2, "fp16": 2}


@record(frozen=True, slots=True, kw_only=True)
class Buckets:
    """Messages in which replicas add up gradients with ZeRO 0 to 2 and gather new parameters with ZeRO 1 and 2.

    Tensors of neighbouring layers fill a bucket; experts have buckets of their own.
    """

    elements: float
    """Elements of a bucket, at least."""
    per_replica: float = 0.0
    """Elements that it has at least for each replica."""
    elements_without_zero: float | None = None
    """The same as ``elements`` with ZeRO 0, where that is another number."""
    only_first_chunk: bool = False
    """True when all chunks of layers but the first one of a pipeline are one bucket each."""
    gathers_whole: bool = False
    """True when parameters are gathered in one message."""


@record(frozen=True, slots=True, kw_only=True)
class Hooks:
    """What ZeRO 3 has a host do around the modules of a layer, in steps that take as long as launching a kernel."""

    module: float
    """Of a module that is called, in each direction: what gathers and what lets go, and the nodes in the graph that
    call both in the backward."""
    tensor: float
    """Of a tensor that is gathered, in each direction."""
    gradient: float
    """Of a tensor that is trained, in the backward."""
    slice: float
    """Of each member's part of a tensor that is gathered or scattered, in every gather and scatter."""


@record(frozen=True, slots=True, kw_only=True)
class Dealing:
    """What a host does about the tensors of a layer that are dealt over the devices of a replica, in steps that take as
    long as launching a kernel."""

    kernels: tuple[str, ...]
    """Kernel sets with it."""
    collectives: float
    """Of a layer's collectives in each direction, beside launching them; as much again where they deal tokens."""
    tensor: float
    """Of a tensor, in each direction: the device's part of it."""
    gradient: float
    """Of a tensor that is trained, in the backward: where its gradient belongs."""


@record(frozen=True, slots=True, kw_only=True)
class Dividing:
    """What a host does to compute the gradients of weights apart from those of inputs, in steps that take as long as
    launching a kernel."""

    module: float
    """Of a module with weights: which part of the graph is its own, and a backward through that part alone."""
    layer: float
    """Of a module with weights, for each layer of the graph: that backward walks all of it first."""


@record(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """One row of the capability table."""

    name: str
    version: str
    """Version of the runtime that the row was checked against."""
    kernels: tuple[str, ...]
    """Kernel sets that it may run with, the usual one first: constants belong to (family, kernel set)."""
    unfused_kernels: str = ""
    """The usual one with unfused attention, where that is another."""
    by_default: bool
    """True when a search without a target considers it; the rest are searched when asked for."""
    tensor_parallel: TensorParallel
    tensor_parallel_over_nodes: bool = False
    """True when the devices of a replica may fill several nodes."""
    zero_without_pipeline: tuple[int, ...]
    """ZeRO stages the runtime runs with one pipeline stage."""
    zero_with_pipeline: tuple[int, ...]
    """ZeRO stages the runtime runs with several pipeline stages; empty when it has no pipeline."""
    hybrid_zero: tuple[int, ...] = ()
    """ZeRO stages whose states may be sharded over groups of replicas, each group with a copy of its own."""
    zero_plus: bool = False
    """True when ZeRO 3 may keep a second copy of the parameters in groups of replicas, and send in fewer bits: in plans
    of one stage whose replicas are one device each."""
    batch_without_pipeline: BatchRule
    """equal: one micro-batch for all; per-device: any; follows-dp: one product dp x micro-batch."""
    batch_with_pipeline: BatchRule
    dp_per_stage: bool
    """True when pipeline stages may have different numbers of replicas."""
    interleave: bool
    """True when one device may hold several chunks of layers (virtual pipeline stages)."""
    schedules: tuple[Schedule, ...] = ("1f1b",)
    """Orders in which it can run the work of a pipeline's stages."""
    sequence_parallel: bool
    """True when activations outside the tensor-parallel matrices can be split over the sequence."""
    recomputes: tuple[Recompute, ...]
    """``selective`` runs attention again, with eager layers all but attention and every second matrix product."""
    recompute_per_stage: bool
    """True when pipeline stages may recompute in different ways."""
    precisions: tuple[str, ...]
    """Number formats the runtime trains in."""
    gradients: tuple[Gradients, ...]
    """Number formats of gradients in bf16 training, the runtime's own first."""
    divides_states_in_pipeline: tuple[str, ...] = ()
    """Number formats in which a pipeline with ZeRO 0 has each replica update a part of the parameters, which all gather
    then, by sums of gradients that are kept beside the gradients of the last micro-batch."""
    scatters_gradients: tuple[int, ...]
    """ZeRO stages whose gradients are reduced and scattered; with the others every rank gets the whole sum."""
    overlaps_parameter_gather: bool
    """True when the parameters updated by ZeRO-1 are gathered under the next forward."""
    overlaps_reduction_always: bool
    """True when gradients are reduced under the backward whatever the plan; else with ZeRO >= 1 and no pipeline."""
    overlaps_sends: tuple[str, ...] = ()
    """Those of its kernel sets that send between stages beside their computation in all schedules but plain 1F1B."""
    overlaps_collectives: tuple[str, ...] = ()
    """Those of its kernel sets whose layers hide tensor-parallel traffic of the backward under their products."""
    user_buffers_from: float | None = None
    """Least compute capability of the devices on which launch folders have them do so in the forward too, by user
    buffers; None for none."""
    buckets: Buckets | None = None
    """None where a message is a layer."""
    gathers_per_layer: int = 1
    """Messages in which ZeRO-3 gathers a layer, and scatters its gradients: a unit at once, or weight by weight."""
    dealing: Dealing | None = None
    """What its host does about tensors that devices share; None where that is launching kernels alone."""
    dividing: Dividing | None = None
    """What its host does to divide backwards; None where that is launching kernels alone."""
    hooks: Hooks | None = None
    """What its host does around modules with ZeRO 3; None where it is no more than without."""
    network_per_group: bool
    """True when groups may use different networks; else one slow pair puts all groups on sockets."""
    sharding_optimizers: tuple[str, ...]
    """Optimizers whose states ZeRO-1 can shard."""
    optimizers: tuple[str, ...] = ("adamw", "sgd")
    """Optimizers that it updates with."""
    unemitted_optimizers: tuple[str, ...] = ()
    """Those of ``optimizers`` that published runs have and launch folders have not: priced, never proposed."""
    moments: tuple[str, ...] = ("fp32",)
    """Number formats in which it can keep AdamW's moments."""
    unemitted_moments: tuple[str, ...] = ()
    """Those of ``moments`` that are priced, never proposed."""
    narrow_moments_zero: tuple[int, ...] = (0, 1, 2, 3)
    """ZeRO stages with which it can keep them in less than fp32, and split weights."""
    master_weights: tuple[str, ...] = ("fp32",)
    """Formats of the weights that the optimizer updates in 16-bit training."""
    unemitted_master_weights: tuple[str, ...] = ()
    """Those of ``master_weights`` that are priced, never proposed."""
    cross_entropies: tuple[str, ...] = ("plain",)
    """Ways in which it computes the loss, its own first."""
    unemitted_cross_entropies: tuple[str, ...] = ()
    """Those of ``cross_entropies`` that are priced, never proposed."""
    norms: tuple[str, ...] = ("fused",)
    """Ways in which its layers normalise."""
    cuda_graphs: tuple[CudaGraphs, ...] = ("none",)
    """What CUDA graphs may launch."""
    unemitted_cuda_graphs: tuple[CudaGraphs, ...] = ()
    """Those of ``cuda_graphs`` that are priced, never proposed."""
    token_dispatchers: tuple[TokenDispatcher, ...] = ("alltoall",)
    """How it sends tokens to experts on other devices."""
    overlaps_experts: bool = False
    """True when it can do so beside the computation of another micro-batch."""
    fused_loss: tuple[float, float] = (1.0, 2.0)
    """Elements per logit that a fused loss streams forward and backward: read once, then read and written, by
    FlashAttention's kernel, Liger's and those of compilers."""
    casts_apart: tuple[str, ...] = ()
    """Kernel sets with which every tensor is brought to fp8 on its own, weights for each micro-batch, inputs twice."""
    loss_in_steps: tuple[str, ...] = ()
    """Kernel sets with which its own loss is not fused: one operation after the other, in fp32."""
    eager_layers: bool = False
    """True when layers are those of the examples, in eager torch: they keep more than fused kernels do, and values and
    experts may have widths of their own."""
    by_units: bool = False
    """True when replicas share parameters by units, a layer or the embedding or the head, that rest in fp32 alone where
    they are sharded and are gathered in the working format."""
    gathers_matrices: bool = False
    """True when ZeRO-3 gathers matrix by matrix and not layer by layer."""
    flat_copies: bool = False
    """True when ZeRO updates flat copies of its own: of weights in fp32 training too, on hosts by gradients in fp32."""
    whole_optimizers: tuple[str, ...] = ()
    """Optimizers that need whole matrices: without tensor parallelism."""
    sends_whole: bool = False
    """True when every device of a replica sends all of its hidden states to the next stage unless they are split by
    tokens; else each sends a part."""
    exchanges_in_turn: bool = False
    """True when pipeline neighbours pass gradients up and only then activations down; else both at the same time."""
    reduces_tied_first: bool = False
    """True when the first and the last stage add up a tied embedding's gradients before they reduce any others."""
    reduces_in_backward: bool = False
    """True when the last backward waits for the reductions of its layers: replicas keep step in it, layer by layer, and
    a stage passes its last gradient up only once its own gradients are reduced."""
    copies_kv_heads: bool = True
    """True when devices of one replica may hold the same key/value head; else tp must divide their number."""
    encoders: Encoders = "any"
    """bert: with learned positions and without grouped-query attention only."""
    experts: Experts = "none"
    """whole: every replica, which is then one device, has all experts; replicas: consecutive replicas of one device may
    have some each; parallel: so may the devices of replicas, whatever divides all else."""
    experts_zero: tuple[int, ...] = (0, 1, 2, 3)
    """ZeRO stages with which experts may be divided."""
    experts_in_pipeline: bool = True
    """True when experts may be divided with several pipeline stages too."""
    splits_experts: bool = False
    """True when devices may share the matrices of each expert."""
    context: tuple[ContextKind, ...] = ()
    """How it divides the tokens of a sequence over replicas, the ways that it has; none where it does not."""
    context_states: tuple[StateKind, ...] = ()
    """Kinds of states whose heads replicas share where they divide sequences: each has all tokens for its own."""
    copies_keys: bool = False
    """True when such replicas may share the heads of a group too, and have its keys each (mamba2)."""
    context_pieces: int = 1
    """Pieces of a sequence that a device has where it is divided: two, one from either end, balance a causal mask."""
    sums_each_input: bool = False
    """True when every product whose outputs are divided adds up the gradient of its input over the devices of a replica
    on its own: queries and keys do so apart from each other."""
    tensor_parallel_in_pipeline: bool = True
    """True when it divides layers with several pipeline stages too: its groups of ranks know of both."""
    context_in_pipeline: bool = True
    """True when it divides sequences with several pipeline stages too."""
    grids: bool = False
    """True when the devices of a replica may divide matrices by rows and columns: plans of one stage."""
    syncs: tuple[SyncKind, ...] = ()
    """What islands of its replicas may exchange in place of whole gradients in every step."""
    unequal_shards: bool = False
    """True when some replicas may hold more of what ZeRO shards than others, in plans of one stage without tensor
    parallelism."""
    fewer_steps_zero: tuple[int, ...] = ()
    """ZeRO stages with which some replicas may run one micro-batch fewer than the others, in pipelines too."""
    backup_zero: tuple[int, ...] = ()
    """ZeRO stages with which it drops the gradients of the slowest replicas, in plans of one stage without tensor
    parallelism."""
    documents: tuple[Dealt, ...] = ()
    """What its sequences may be beside one text: packed or padded documents, pairs of answers; they are whole then."""
    unemitted_documents: tuple[Dealt, ...] = ()
    """Those of ``documents`` that published runs have and launch folders have not: priced, never proposed."""
    documents_in_parts: bool = False
    """True when it divides sequences of packed documents too, by all-to-alls."""
    documents_at_once: bool = False
    """True when one kernel attends in all documents of a sequence; else there is one for each."""
    frozen_parts: tuple[FrozenKind, ...] = ()
    """What it trains with the rest of the model frozen: in pipelines in schedules that do not divide the backward."""
    unemitted_frozen_parts: tuple[FrozenKind, ...] = ()
    """Those of ``frozen_parts`` that published runs have and launch folders have not: priced, never proposed."""
    splits_frozen: Literal["nothing", "linear", "all"] = "nothing"
    """What tensor parallelism divides of it: linear layers but none in four bits, or these too."""
    shards_codes: bool = False
    """True when ZeRO 3 shards and gathers what rests in four bits like other weights, so that it may leave the devices
    with them; else it is whole in every replica."""
    kernel_per_expert: bool = False
    """True when the products of experts are a kernel for each of them."""
    splits_whole_norms: bool = True
    """True when tensor parallelism goes with norms of queries and keys over all heads: those of each device are then
    normalised on their own."""
    sinks: bool = False
    """True when heads may have a learned sink in their softmax."""
    states: tuple[StateKind, ...] = ()
    """Kinds of states that its layers may carry in place of attention or beside it."""
    splits_states: bool = False
    """True when tensor parallelism divides layers with a state too."""
    unlike_layers: UnlikeLayers = "none"
    """feed_forwards: layers with and without experts may stand in any order; mixers: attention, states, feed-forwards
    and experts too, together or on their own; any: sizes may differ too; none: all are alike but for dense ones
    ahead."""
    towers: bool = False
    """True when a tower of other layers may make tokens of images ahead of the text's: without tensor parallelism."""
    beside: bool = False
    """True when matrices of what sees or hears may stand beside the layers: without tensor parallelism."""
    own_ends: bool = False
    """True when images or sound may stand in place of tokens, and labels in place of an output layer: without tensor
    parallelism."""
    further_tokens: bool = False
    """True when modules behind the last layer may predict further tokens."""
    encoder_decoders: EncoderDecoders = "none"
    """Layers may attend to the output of an encoder on the first stage, without tensor parallelism; whole: in plans of
    one stage."""
    output_gate: bool = False
    """True when a gate may scale what attention makes."""
    latent_experts: bool = False
    """True when experts may work in a width of their own, between projections from and to the model's."""
    latent_attention: bool = False
    """True when it trains multi-head latent attention."""
    windows: bool = False
    """True when layers with sliding windows compute these alone; else attention is full in every layer."""
    joins_tied_ends: bool = False
    """True when tied embeddings need one tp on the first and last stage, and with ZeRO 1 replicas that divide."""
    hosts_once: bool = False
    """True when a node is started once, so that its ranks must be consecutive."""
    offloading: Offloading = Offloading()
    fused_softmax: tuple[str, ...] = ()
    """Those of its kernel sets whose softmax of unfused attention scales, masks and casts in one kernel."""
    adds_gradients_apart: tuple[str, ...] = ()
    """Those of its kernel sets that add a weight's gradient to its buffer behind the product that makes it."""
    through_buffers: tuple[str, ...] = ()
    """Those of its kernel sets that copy parameters out of what they gather, and gradients to what they reduce."""
    second_attention: tuple[str, ...] = ()
    """Those of its kernel sets whose fused attention is FlashAttention-2; else it is the vendor's or older."""
    fused_attention_from: float = 0.0
    """Least compute capability with a fused attention kernel in it; on older devices attention is unfused."""
    softmax_in_fours: bool = False
    """True when the fused softmax takes score matrices by four, and is left out for other numbers of them."""
    runs_plain_torch: bool = False
    """True when layers and optimizer are torch's own, which is what ``calibrate device`` times."""
    is_reference: bool = False
    """True for the one whose host time and link utilisation are 1 in every fit: the others are relative to it."""

    def fuses_attention(self, compute_capability: float | None) -> bool:
        """True when its fused attention runs on such a device; where nobody tells, it does."""
        return compute_capability is None or compute_capability >= self.fused_attention_from

    def kernels_of(self, wanted: str | None, attention: str) -> str:
        """The kernel set of a run: the one its training names, where this runtime has it, else the usual one.

        Unfused attention is taken for a sign of the time when nothing else was fused either.
        """
        if wanted in self.kernels:
            return wanted
        return self.unfused_kernels if attention == "unfused" and self.unfused_kernels else self.kernels[0]
