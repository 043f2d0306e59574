"""README of a DeepSpeed launch folder."""

from __future__ import annotations

from collections.abc import Sequence

from planner.emit.files import EmittedFile
from planner.emit.network import JobNetwork
from planner.emit.readme_common import heading, starting, to_edit
from planner.placement import Agent
from planner.plan import Plan
from planner.spec.model import ModelSpec

VERSION = "0.19.8"
"""DeepSpeed that the folder was tried with."""
SHOWN_HOSTS = 8
"""Hosts of a long option that are written out."""


def readme(
    plan: Plan,
    model: ModelSpec,
    launchers: Sequence[Agent],
    network: JobNetwork,
    launch: Sequence[EmittedFile],
    has_hostfile: bool,
    clips: bool,
) -> str:
    """The whole text."""
    parts = [
        heading(plan, model, launchers),
        to_edit(launch),
        starting(launchers, " -- --steps 100"),
        _files(plan, has_hostfile),
        _own_script(plan),
        _offload(plan, model),
        _limits(model, network, launchers, has_hostfile, clips),
    ]
    return "\n".join(part for part in parts if part)


def _files(plan: Plan, has_hostfile: bool) -> str:
    lines = [
        "- `ds_config.json`: DeepSpeed's configuration without batch keys; those differ by rank",
        "- `batches.json`: the micro-batches of each rank and the weight of each one's loss",
        "- `hetplan_runtime.py`: reads `batches.json`; all that a training script of yours needs",
        "- `train.py`, `example_*.py`, `model.json`: an example that trains a model of the planned shape",
        "- `step_log.py`: what the example prints, which `hetplan compare plan.yaml --log FILE` reads",
        "- `launch.sh`, `nodes.txt`, `env/`: the start of each node with its devices and network",
    ]
    if has_hostfile:
        lines.append("- `hostfile`: the nodes in rank order, for DeepSpeed's own launcher")
    return "## Files\n\n" + "\n".join(lines) + "\n"


def _own_script(plan: Plan) -> str:
    if plan.pp > 1:
        call = (
            "plan = load()\n"
            "Pipeline = plan.pipeline_class(deepspeed.pipe.PipelineModule, before=1, after=2)\n"
            f"model = Pipeline(layers=modules, num_stages={plan.pp}, loss_fn=loss_fn)\n"
            "engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, "
            "config=plan.deepspeed_config())\n"
        )
        note = (
            "`before` and `after` count the modules of your list ahead of and behind the transformer "
            "layers. Do not "
            "pass `partition_method`: the plan decides.\n"
        )
    else:
        call = (
            "plan = load()\n"
            "engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, "
            "config=plan.deepspeed_config())\n"
            "for micro in plan.micro_batches(step):            # in each optimizer step\n"
            "    loss = mean_loss(engine(data[micro.sequences])) * micro.weight\n"
            "    engine.backward(loss)\n"
            "    engine.step()\n"
        )
        note = (
            "Without the weight, sequences on GPUs with small batches would count for more than others. It "
            "is right "
            "when the loss is a mean over sequences of equal length. With a DataLoader, use "
            "`PlannedBatches(plan, len(data))` as `batch_sampler` and `plan.weights` in the same order.\n"
        )
    return f"## Your own script\n\n```python\nfrom hetplan_runtime import load\n\n{call}```\n\n{note}"


def _offload(plan: Plan, model: ModelSpec) -> str:
    """What a script of the user's must do itself for what the plan keeps in host memory."""
    lines = []
    if plan.offload.optimizer != "none" and model.training.optimizer == "adamw":
        lines.append(
            "- Optimizer states are in host memory. Use `deepspeed.ops.adam.DeepSpeedCPUAdam`, as `train.py` does: "
            "DeepSpeed refuses another Adam. It is compiled at its first use, which takes a C++ compiler and about "
            "a minute on every node."
        )
    elif plan.offload.optimizer != "none":
        lines.append("- Optimizer states are in host memory; an optimizer of torch updates them there.")
    if plan.offload.parameters != "none":
        lines.append("- Parameters are in host memory: build the model under `deepspeed.zero.Init`.")
    if plan.offload.activations != "none":
        lines.append(
            "- Checkpoints are in host memory: call `deepspeed.checkpointing.configure(None, "
            "checkpoint_in_cpu=True)` and recompute layers by `deepspeed.checkpointing.checkpoint`."
        )
    return "## Offload\n\n" + "\n".join(lines) + "\n" if lines else ""


def _limits(
    model: ModelSpec, network: JobNetwork, launchers: Sequence[Agent], has_hostfile: bool, clips: bool
) -> str:
    lines = [f"- Tried with DeepSpeed {VERSION} and PyTorch 2.13."]
    if not clips:
        lines.append(
            "- Gradients are not clipped: with fp32, ZeRO 0 and a pipeline, DeepSpeed clips by the norm of "
            "the first "
            "stage alone. ZeRO 1 clips rightly."
        )
    if model.training.precision == "tf32":
        lines.append(
            "- `launch.sh` sets `TORCH_ALLOW_TF32_CUBLAS_OVERRIDE=1`; other launchers have to do it too, else "
            "products are fp32 and slower than planned."
        )
    if network.crosses:
        lines.append(
            "- The nodes share no RDMA fabric, and DeepSpeed cannot give process groups different networks: "
            "everything between nodes uses sockets (`NCCL_NET=Socket`)."
        )
    if not has_hostfile:
        lines.append(
            "- There is no hostfile: this rank order uses a host twice, which DeepSpeed's launcher cannot "
            "express. "
            "Use `launch.sh`."
        )
    elif any(list(agent.devices) != sorted(agent.devices) for agent in launchers):
        lines.append(
            "- The ranks of some nodes do not follow the order of their devices, and DeepSpeed's launcher sorts "
            "devices: it would give them the batches of others. Use `launch.sh`."
        )
    elif any(agent.devices != tuple(range(len(agent.devices))) for agent in launchers):
        shown = [f"{agent.host}:{','.join(map(str, agent.devices))}" for agent in launchers[:SHOWN_HOSTS]]
        include = "@".join(shown + ["..."] * (len(launchers) > SHOWN_HOSTS))
        lines.append(
            f"- Some nodes do not use their first devices: DeepSpeed's launcher needs `--include {include}`."
        )
    lines.append(
        "- DeepSpeed's launcher over pdsh gives every node one and the same environment, so `env/` is not applied by "
        "it, and `--num_gpus` would overwrite uneven slots. `launch.sh` has neither problem, nor has what "
        "`hetplan emit --launcher deepspeed` writes."
    )
    return "## Limits\n\n" + "\n".join(lines) + "\n"
