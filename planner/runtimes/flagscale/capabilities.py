"""What FlagScale can express."""

from __future__ import annotations

from planner.capabilities import Buckets, Capabilities, Gradients

CAPABILITIES = Capabilities(
    name="flagscale",
    version="da4935ec6",
    kernels=("megatron", "megatron-2021", "torch", "torch-2023"),
    unfused_kernels="megatron-2021",
    by_default=False,
    tensor_parallel="per-stage",
    zero_without_pipeline=(0, 1),
    zero_with_pipeline=(0, 1),
    batch_without_pipeline="equal",
    batch_with_pipeline="follows-dp",
    dp_per_stage=True,
    interleave=False,
    sequence_parallel=True,
    recomputes=("none", "full"),
    recompute_per_stage=True,
    precisions=("bf16", "fp16", "fp32", "tf32", "fp8"),
    gradients=(Gradients("fp32", "fp32"), Gradients("bf16", "bf16")),
    scatters_gradients=(1, 2, 3),
    # Its distributed data parallel (``resolve_ddp_bucket_size`` in ``megatron/training/training.py``).
    buckets=Buckets(elements=40e6, per_replica=1e6, only_first_chunk=True),
    overlaps_parameter_gather=True,
    overlaps_reduction_always=True,
    overlaps_sends=("megatron",),
    overlaps_collectives=("megatron",),
    network_per_group=False,
    sharding_optimizers=("adamw",),
    cross_entropies=("fused",),
    fused_loss=(3.0, 2.0),
    loss_in_steps=("megatron-2021", "torch", "torch-2023"),
    encoders="none",
    fused_softmax=("megatron", "megatron-2021"),
    adds_gradients_apart=("megatron-2021",),
    fused_attention_from=8.0,
    softmax_in_fours=True,
    joins_tied_ends=True,
    hosts_once=True,
)
