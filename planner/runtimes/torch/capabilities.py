"""What PyTorch's own parallelism can express."""

from __future__ import annotations

from planner.runtimes.capabilities import Capabilities, Gradients, Offloading

CAPABILITIES = Capabilities(
    name="torch",
    version="2.13",
    kernels=("torch", "torch-compiled"),
    by_default=True,
    tensor_parallel="one-degree",
    zero_without_pipeline=(0, 1, 2, 3),
    zero_with_pipeline=(0, 1, 2, 3),
    hybrid_zero=(1, 2, 3),
    batch_without_pipeline="per-device",
    batch_with_pipeline="equal",
    dp_per_stage=False,
    interleave=False,
    sequence_parallel=False,
    recomputes=("none", "selective", "full"),
    recompute_per_stage=True,
    precisions=("bf16", "fp16", "fp32", "tf32", "fp8"),
    unemitted_precisions=("fp8",),
    gradients=(
        Gradients("fp32", "fp32"),
        # A shard has the format of its fp32 parameter; whole gradients are added up in that of their reduction.
        Gradients("fp32", "bf16", zero=(0, 2, 3)),
        Gradients("bf16", "bf16", zero=(1,)),
    ),
    scatters_gradients=(1, 2, 3),
    overlaps_parameter_gather=True,
    overlaps_reduction_always=True,
    network_per_group=False,
    sharding_optimizers=("adamw", "sgd", "lion"),
    optimizers=("adamw", "sgd", "lion", "muon", "adafactor"),
    unemitted_sequence_parallel=True,
    eager_layers=True,
    rests_in_fp32=True,
    whole_optimizers=("muon", "adafactor"),
    moments=("fp32", "bf16", "int8"),
    unemitted_moments=("int8",),
    cross_entropies=("plain", "fused", "masked"),
    unemitted_cross_entropies=("fused", "masked"),
    reduces_in_backward=True,
    copies_kv_heads=False,
    runs_plain_torch=True,
    context=("ulysses",),
    experts="whole",
    frozen_parts=True,
    splits_whole_norms=False,
    offloading=Offloading(optimizer_zero=(3,), parameters_zero=(3,), together=True),
)
