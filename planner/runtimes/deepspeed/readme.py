"""README of a DeepSpeed launch folder."""

from __future__ import annotations

from collections.abc import Sequence

from planner.job.files import EmittedFile
from planner.job.launch import LOOPBACK
from planner.job.network import JobNetwork
from planner.job.nodes import on_one_node
from planner.job.readme import heading, starting, to_edit
from planner.model.spec import ModelSpec
from planner.plan.placement import Agent, Rank
from planner.plan.values import Plan
from planner.runtimes.deepspeed.hostfile import hostfile, include, keeps_kinds

VERSION = "0.19.8"
"""DeepSpeed that the folder was tried with."""

SHOWN_HOSTS = 8
"""Hosts of a long option that are written out."""


def readme(
    plan: Plan,
    model: ModelSpec,
    everyone: Sequence[Rank],
    launchers: Sequence[Agent],
    network: JobNetwork,
    launch: Sequence[EmittedFile],
    clips: bool,
) -> str:
    """The whole text."""
    parts = [
        heading(plan, model, launchers),
        to_edit(launch),
        starting(launchers, " -- --steps 100"),
        _files(hostfile(launchers) is not None),
        _own_script(plan),
        _offload(plan, model),
        _own_launcher(launchers, everyone),
        _limits(model, network, clips),
    ]
    return "\n".join(part for part in parts if part)


def _files(has_hostfile: bool) -> str:
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
            "`PlannedBatches(plan, len(data))` as `batch_sampler` and `plan.weights` in the same order. Under torch's "
            "DDP or FSDP2 the factor is `micro.torch_weight`.\n\n"
            "With Hugging Face's `Trainer` all of this is two lines:\n\n```python\n"
            'arguments = TrainingArguments(**plan.trainer_arguments(), output_dir="out")\n'
            "trainer = plan.trainer_class(Trainer)(model=model, args=arguments, train_dataset=data)\n```\n"
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


def _own_launcher(launchers: Sequence[Agent], everyone: Sequence[Rank]) -> str:
    """How DeepSpeed's own launcher starts the plan, or why it cannot."""
    title = "## DeepSpeed's launcher\n\n"
    if hostfile(launchers) is None:
        return (
            f"{title}There is no hostfile: this rank order uses a host twice, which DeepSpeed's launcher cannot "
            "express. Use `launch.sh`.\n"
        )
    if not keeps_kinds(launchers, everyone):
        return (
            f"{title}Do not use it here: it numbers the devices of a node in its own way, and would give some "
            "ranks a GPU of another kind than the plan does. Use `launch.sh`.\n"
        )
    chosen = include(launchers, SHOWN_HOSTS)
    start = f"deepspeed --hostfile hostfile{f' --include {chosen}' if chosen else ''}"
    if on_one_node(launchers):
        return f"{title}`{start} --no_ssh --node_rank 0 --master_addr {LOOPBACK} train.py --steps 100`.\n"
    return (
        f"{title}`{start} train.py --steps 100` on one node, with ssh and pdsh; without "
        f"them, on every node, `{start} --no_ssh --node_rank K --master_addr "
        f"{launchers[0].host} train.py`. It gives every node one and the same environment, so `env/` is not applied, "
        "and `--num_gpus` would overwrite uneven slots. `launch.sh` has neither problem, nor has what `hetplan emit "
        "--launcher deepspeed` writes.\n"
    )


def _limits(model: ModelSpec, network: JobNetwork, clips: bool) -> str:
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
    return "## Limits\n\n" + "\n".join(lines) + "\n"
