"""What Megatron-LM can express."""

from __future__ import annotations

from planner.runtimes.capabilities import Capabilities, Gradients, Offloading

CAPABILITIES = Capabilities(
    name="megatron",
    version="core 0.20.0",
    kernels=("megatron", "megatron-2021", "torch"),
    unfused_kernels="megatron-2021",
    by_default=True,
    tensor_parallel="one-degree",
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
    gradients=(Gradients("fp32", "fp32"), Gradients("bf16", "bf16")),
    scatters_gradients=(1, 2, 3),
    overlaps_parameter_gather=True,
    overlaps_reduction_always=True,
    network_per_group=True,
    sharding_optimizers=("adamw",),
    optimizers=("adamw", "sgd", "lion", "muon"),
    unemitted_optimizers=("lion", "muon"),
    moments=("fp32", "bf16"),
    narrow_moments_zero=(1,),
    cross_entropies=("fused", "plain"),
    unemitted_cross_entropies=("plain",),
    encoders="bert",
    fused_softmax=("megatron", "megatron-2021"),
    fused_attention_from=8.0,
    softmax_in_fours=True,
    is_reference=True,
    offloading=Offloading(optimizer_zero=(1,), in_pipeline=True),
)
