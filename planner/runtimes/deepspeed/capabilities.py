"""What DeepSpeed can express."""

from __future__ import annotations

from planner.runtimes.capabilities import Capabilities, Gradients, Offloading

CAPABILITIES = Capabilities(
    name="deepspeed",
    version="0.19.8",
    kernels=("deepspeed", "deepspeed-2021"),
    unfused_kernels="deepspeed-2021",
    fused_softmax=("deepspeed-2021",),
    by_default=True,
    tensor_parallel="none",
    zero_without_pipeline=(0, 1, 2, 3),
    zero_with_pipeline=(0, 1),
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
    ),
    scatters_gradients=(3,),
    overlaps_parameter_gather=False,
    overlaps_reduction_always=False,
    gathers_per_layer=4,
    network_per_group=False,
    sharding_optimizers=("adamw", "sgd", "lion"),
    optimizers=("adamw", "sgd", "lion"),
    moments=("fp32", "bf16", "int8"),
    unemitted_moments=("int8",),
    cross_entropies=("plain", "fused"),
    unemitted_cross_entropies=("fused",),
    eager_layers=True,
    gathers_matrices=True,
    exchanges_in_turn=True,
    reduces_tied_first=True,
    experts="whole",
    offloading=Offloading(
        optimizer_zero=(1, 2, 3),
        parameters_zero=(3,),
        nvme_zero=(3,),
        activations=True,
        parameters_per_second=4.1e9,
    ),
)
