"""What Megatron-LM can express."""

from __future__ import annotations

from planner.capabilities import Buckets, Capabilities, Gradients, Offloading

CAPABILITIES = Capabilities(
    name="megatron",
    version="core 0.20.0",
    kernels=("megatron", "megatron-2021", "torch", "torch-2023"),
    unfused_kernels="megatron-2021",
    by_default=True,
    tensor_parallel="one-degree",
    tensor_parallel_over_nodes=True,
    zero_without_pipeline=(0, 1),
    zero_with_pipeline=(0, 1),
    batch_without_pipeline="equal",
    batch_with_pipeline="equal",
    dp_per_stage=False,
    interleave=True,
    sequence_parallel=True,
    recomputes=("none", "selective", "full"),
    recompute_per_stage=False,
    precisions=("bf16", "fp16", "fp32", "tf32", "fp8"),
    gradients=(
        Gradients("fp32", "fp32"),
        Gradients("bf16", "bf16"),
        # NeMo 1 with Apex' distributed optimizer in bf16.
        Gradients("bf16", "bf16", zero=(1,), master_weights=("bf16",)),
    ),
    scatters_gradients=(1, 2, 3),
    # Its distributed data parallel (``resolve_ddp_bucket_size`` in ``megatron/training/training.py``).
    buckets=Buckets(elements=40e6, per_replica=1e6, only_first_chunk=True),
    overlaps_parameter_gather=True,
    overlaps_reduction_always=True,
    overlaps_sends=("megatron",),
    overlaps_collectives=("megatron",),
    user_buffers_from=9.0,
    network_per_group=True,
    sharding_optimizers=("adamw",),
    optimizers=("adamw", "sgd", "lion", "muon"),
    unemitted_optimizers=("lion", "muon"),
    moments=("fp32", "bf16"),
    narrow_moments_zero=(1,),
    master_weights=("fp32", "split", "bf16"),
    unemitted_master_weights=("bf16",),
    cross_entropies=("fused", "plain"),
    unemitted_cross_entropies=("plain",),
    # ``cuda_graph_impl`` of Megatron-Core: transformer_engine and local, and full_iteration.
    cuda_graphs=("none", "layers", "step"),
    unemitted_cuda_graphs=("layers", "step"),
    # ``MoEFlexTokenDispatcher`` of Megatron-Core.
    token_dispatchers=("alltoall", "deepep", "hybridep"),
    overlaps_experts=True,
    # TransformerEngine's reads for maximum and sum, writes the gradient in place, scales it by what comes from behind.
    fused_loss=(3.0, 2.0),
    loss_in_steps=("megatron-2021", "torch", "torch-2023"),
    encoders="bert",
    fused_softmax=("megatron", "megatron-2021"),
    adds_gradients_apart=("megatron-2021",),
    fused_attention_from=8.0,
    softmax_in_fours=True,
    is_reference=True,
    context=("ring", "ulysses"),
    # ``MambaContextParallel`` and ``GatedDeltaNet`` of Megatron-Core.
    context_states=("mamba2", "delta"),
    copies_keys=True,
    context_pieces=2,
    experts="parallel",
    splits_experts=True,
    kernel_per_expert=True,
    # ``HybridModel`` of Megatron-Core has Mamba 2, attention, feed-forwards and experts in any order, its GPT model
    # gated delta rules in place of attention.
    states=("mamba2", "delta"),
    splits_states=True,
    unlike_layers="mixers",
    latent_experts=True,
    latent_attention=True,
    further_tokens=True,
    sinks=True,
    output_gate=True,
    windows=True,
    # NeMo and Megatron Bridge.
    documents=("documents",),
    unemitted_documents=("documents",),
    documents_at_once=True,
    frozen_parts=("adapters", "adapters on fp8"),
    unemitted_frozen_parts=("adapters", "adapters on fp8"),
    splits_frozen="linear",
    offloading=Offloading(
        optimizer_zero=(1,),
        ratio_zero=(1,),
        tensor_by_tensor=True,
        in_pipeline=True,
    ),
)
