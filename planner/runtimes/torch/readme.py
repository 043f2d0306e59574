"""README of a launch folder for PyTorch itself."""

from __future__ import annotations

from collections.abc import Sequence

from planner.job.files import EmittedFile
from planner.job.network import JobNetwork
from planner.job.readme import heading, starting, to_edit
from planner.model.spec import ModelSpec
from planner.plan.placement import Agent
from planner.plan.values import Plan

VERSION = "2.13"
"""PyTorch that the folder was tried with."""


def readme(
    plan: Plan,
    model: ModelSpec,
    launchers: Sequence[Agent],
    network: JobNetwork,
    launch: Sequence[EmittedFile],
) -> str:
    """The whole text."""
    parts = [
        heading(plan, model, launchers),
        to_edit(launch),
        starting(launchers, " -- --steps 100"),
        _files(),
        _own_script(plan),
        _sharding(plan),
        _limits(plan, model, network),
    ]
    return "\n".join(part for part in parts if part)


def _files() -> str:
    return (
        "## Files\n\n"
        "- `batches.json`: the micro-batches of each rank and the weight of each one's loss\n"
        "- `torch_config.json`: number format, clipping, and whether parameters rest in host memory\n"
        "- `hetplan_runtime.py`, `hetplan_torch.py`: read `batches.json` and spread a model over the ranks; all that a "
        "training script of yours needs\n"
        "- `train.py`, `example_*.py`, `model.json`: an example that trains a model of the planned shape\n"
        "- `step_log.py`: what the example prints, which `hetplan compare plan.yaml --log FILE` reads\n"
        "- `launch.sh`, `nodes.txt`, `env/`: the start of each node with its devices and network\n"
    )


def _own_script(plan: Plan) -> str:
    return (
        "## Your own script\n\n```python\n"
        "from hetplan_runtime import load\nfrom hetplan_torch import Layout\n\n"
        "plan = load()\n"
        'layout = Layout(plan, "cuda", torch.bfloat16)\n'
        "for layer in model.layers:\n    layout.shard(layer)\n"
        "layout.shard(model)\n"
        "for index, micro in enumerate(plan.micro_batches(step)):    # in each optimizer step\n"
        "    layout.accumulate(model, last=index == plan.steps - 1)\n"
        "    loss = mean_loss(model(data[micro.sequences])) * micro.weight\n"
        "    (loss / plan.steps).backward()\n"
        "layout.clip(model.parameters(), 1.0)\n"
        "```\n\n"
        "Without the weight, sequences on GPUs with small batches would count for more than others. It is right when "
        "the loss is a mean over sequences of equal length.\n"
    )


def _sharding(plan: Plan) -> str:
    """How states are dealt, where that is not over all replicas."""
    if plan.shard_size is None:
        return ""
    held = {
        1: "optimizer states",
        2: "optimizer states and gradients",
        3: "parameters, gradients and optimizer states",
    }
    copies = plan.stages[0].dp // plan.shard_size
    return (
        "## Hybrid sharding\n\n"
        f"Each {plan.shard_size} consecutive replicas share one copy of the {held[plan.zero]}, so there are {copies} "
        "copies in a stage. Between the copies gradients are added up once, in the last micro-batch of a step "
        "(`shard_size` in `batches.json`; FSDP2 on the meshes `copy` and `shard`).\n"
    )


def _limits(plan: Plan, model: ModelSpec, network: JobNetwork) -> str:
    lines = [
        f"- Tried with PyTorch {VERSION} on CPU with gloo; not with NCCL.",
        "- `train.py --save FOLDER` writes a sharded checkpoint of `torch.distributed.checkpoint`; "
        "`python -m torch.distributed.checkpoint.format_utils dcp_to_torch FOLDER model.pt` makes one file of it.",
    ]
    if model.training.precision == "tf32":
        lines.append(
            "- `launch.sh` sets `TORCH_ALLOW_TF32_CUBLAS_OVERRIDE=1`; other launchers have to do it too, else "
            "products are fp32 and slower than planned."
        )
    if model.training.precision in ("fp32", "tf32") and plan.zero < 3:
        lines.append(
            "- FSDP2 keeps a second copy of the parameters here, which the plan's memory does not count."
        )
    if any(group.steps < plan.pp for stage in plan.stages for group in stage.replicas):
        lines.append(
            "- There are fewer micro-batches than stages: all forwards run first, and the later stages keep more "
            "activations than the plan's memory counts."
        )
    if plan.offload.anything:
        lines.append(
            "- Parameters rest in host memory by FSDP2's own policy, which hetplan has not tried on a GPU."
        )
    if network.crosses:
        lines.append(
            "- The nodes share no RDMA fabric, and `train.py` gives all process groups one network: everything between "
            "nodes uses sockets (`NCCL_NET=Socket`)."
        )
    return "## Limits\n\n" + "\n".join(lines) + "\n"
