"""What DeepSpeed can express."""

from __future__ import annotations

from planner.capabilities import Buckets, Capabilities, Gradients, Hooks, Offloading

CAPABILITIES = Capabilities(
    name="deepspeed",
    version="0.19.8",
    kernels=("deepspeed", "deepspeed-2021"),
    unfused_kernels="deepspeed-2021",
    fused_softmax=("deepspeed-2021",),
    adds_gradients_apart=("deepspeed-2021",),
    second_attention=("deepspeed",),
    by_default=True,
    tensor_parallel="one-degree",
    tensor_parallel_over_nodes=True,
    tensor_parallel_in_pipeline=False,
    sums_each_input=True,
    zero_without_pipeline=(0, 1, 2, 3),
    zero_with_pipeline=(0, 1),
    zero_plus=True,
    batch_without_pipeline="per-device",
    batch_with_pipeline="equal",
    dp_per_stage=False,
    interleave=False,
    sequence_parallel=False,
    recomputes=("none", "full"),
    recompute_per_stage=True,
    precisions=("bf16", "fp16", "fp32", "tf32"),
    gradients=(
        Gradients("bf16", "bf16"),
        Gradients("bf16", "fp32"),
        Gradients("fp32", "bf16", zero=(2, 3)),
        Gradients("fp32", "fp32", zero=(2, 3)),
        # With ZeRO 1 and 2 it updates a copy of its part all the same.
        Gradients("bf16", "bf16", zero=(3,), master_weights=("bf16",)),
        Gradients("bf16", "fp32", zero=(3,), master_weights=("bf16",)),
    ),
    # ``_do_optimizer_sanity_check`` in ``runtime/engine.py``: pipelines have ``BF16_Optimizer``, all else does not.
    divides_states_in_pipeline=("bf16",),
    scatters_gradients=(3,),
    # As emitted, and ``MEMORY_OPT_ALLREDUCE_SIZE`` in ``runtime/engine.py``; parameters in ``all_gather_dp_groups``.
    buckets=Buckets(elements=2e8, elements_without_zero=5e8, gathers_whole=True),
    overlaps_parameter_gather=False,
    overlaps_reduction_always=False,
    gathers_per_layer=4,
    # ``parameter_offload.py``: in each direction ``fetch_sub_module`` and ``release_sub_module``, and two functions of
    # autograd, for every module. ``partition_parameters.py``: a buffer, a copy in, the gather, a copy out, an empty
    # tensor in its place; a view and a note for the allocator of each member's part, a fifth of a step each, as library
    # calls without modules around them. ``stage3.py``: a copy to the bucket, and of the sum to where it is kept.
    hooks=Hooks(module=4, tensor=5, gradient=2, slice=0.4),
    network_per_group=False,
    sharding_optimizers=("adamw", "sgd", "lion"),
    optimizers=("adamw", "sgd", "lion"),
    moments=("fp32", "bf16", "int8", "paged-fp32", "paged-int8"),
    master_weights=("fp32", "bf16"),
    norms=("fused", "unfused"),
    cross_entropies=("chunked", "plain", "fused", "masked"),
    unemitted_cross_entropies=("fused", "masked"),
    loss_in_steps=("deepspeed-2021",),
    eager_layers=True,
    gathers_matrices=True,
    # ``single_partition_of_fp32_groups`` in ``stage_1_and_2.py``, ``fp32_partitioned_groups_flat`` in ``stage3.py``.
    flat_copies=True,
    copies_kv_heads=False,
    splits_whole_norms=False,
    exchanges_in_turn=True,
    reduces_tied_first=True,
    context=("ulysses",),
    context_in_pipeline=False,
    states=("mamba", "mamba2", "delta", "linear", "conv"),
    unlike_layers="any",
    output_gate=True,
    sinks=True,
    latent_experts=True,
    latent_attention=True,
    experts="replicas",
    experts_zero=(1, 2, 3),
    experts_in_pipeline=False,
    encoder_decoders="whole",
    own_ends=True,
    documents=("documents", "pairs of answers"),
    frozen_parts=("adapters", "adapters on four bits", "frozen parts"),
    splits_frozen="linear",
    offloading=Offloading(
        optimizer_zero=(1, 2, 3),
        parameters_zero=(3,),
        nvme_zero=(3,),
        activations=True,
        ratio_zero=(3,),
        super_zero=(3,),
    ),
)
