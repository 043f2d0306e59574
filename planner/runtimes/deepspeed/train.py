"""Example: trains a model of the planned shape with DeepSpeed, as the plan says.

Start it on every node with ``launch.sh``. To train your own, replace ``sequences`` and ``Transformer``;
what carries the plan are ``load``, ``deepspeed_config``, ``micro_batches`` and, in a pipeline,
``pipeline_class``.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, cast

import deepspeed
import deepspeed.ops
import torch
from deepspeed.accelerator import get_accelerator
from deepspeed.moe.utils import configure_moe_param_groups, is_moe_param
from deepspeed.pipe import PipelineModule
from deepspeed.runtime.bf16_optimizer import BF16_Optimizer

from planner.training.hetplan_runtime import RankPlan, load
from planner.training.example_adapters import Nf4Experts, without_adapters
from planner.training.example_context import Sharing, sharing_of
from planner.training.example_data import dealt, packs
from planner.training.example_encoder import Encoder
from planner.training.example_model import (
    Embedding,
    Shape,
    Transformer,
    kept_on_device,
    load_shape,
    objective,
)
from planner.training.example_optimizers import ADAMW, Lion
from planner.training.example_run import is_kept, leave, parse_options, steps_of
from planner.training.step_log import StepLog
from planner.runtimes.deepspeed.example_divided import dividing
from planner.runtimes.deepspeed.example_pipeline import Steps, modules_of
from planner.runtimes.deepspeed.example_tensor import (
    SplitEmbedding,
    join,
    replicas,
    split_objective,
    with_layers,
)

FOLDER = Path(__file__).parent


def main() -> None:
    """Train for some steps and print the mean loss of each global batch."""
    options = parse_options()
    start_processes()
    engine = train(options)
    if options.save:
        engine.save_checkpoint(str(options.save))
    leave(get_accelerator().device_name() == "cpu")


def train(options: argparse.Namespace) -> Any:
    """Train this rank's part of the plan; returns DeepSpeed's engine."""
    torch.manual_seed(options.seed)
    plan, shape = load(), load_shape(FOLDER / "model.json")
    return (train_pipeline if len(plan.stages) > 1 else train_data_parallel)(plan, shape, options)


def start_processes() -> None:
    """Join the job that torchrun started."""
    accelerator = get_accelerator()
    if accelerator.device_name() == "cpu":
        # DeepSpeed would compile an optional collective for minutes before the first step.
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    else:
        accelerator.set_device(int(os.environ["LOCAL_RANK"]))
    deepspeed.init_distributed(dist_backend=accelerator.communication_backend_name())


def train_data_parallel(plan: RankPlan, shape: Shape, options: argparse.Namespace) -> Any:
    """Every replica holds all layers and processes its own share of the batch; its ranks may divide the layers."""
    config, members = with_resumption(plan.deepspeed_config(), options), None
    embedding: type[Embedding] = Embedding
    if plan.tensor_parallel > 1:
        join(plan.tensor_parallel)
        config, members, embedding = with_layers(config, shape), replicas(), SplitEmbedding
    refuse_on_processor(config)
    on_host = "offload_optimizer" in config["zero_optimization"]
    if on_host and get_accelerator().device_name() == "cpu":
        # Without a device torch's own optimizer is on the host already; DeepSpeed would compile its own first.
        config["zero_force_ds_cpu_optimizer"] = on_host = False
        for key in ("ratio", "super_offload", "cpuadam_cores_perc"):
            config["zero_optimization"]["offload_optimizer"].pop(key, None)
    sharing = sharing_of(plan, packed=packs(shape))
    divide = dividing(plan.expert_parallel, plan.zero)
    with deepspeed.zero.Init(config_dict_or_path=config, data_parallel_group=members, enabled=plan.zero == 3):
        how = checkpoint_of(config)
        encoder = None
        if shape.encoder is not None:
            encoder = divide(Encoder(shape, plan.recompute, checkpoint=how))
        model = Transformer(shape, plan.recompute, how, sharing, encoder, embedding, divide)
    engine, *_ = deepspeed.initialize(
        model=model, optimizer=make_optimizer(model, shape, options, on_host), config=config
    )
    minimised = (objective if plan.tensor_parallel == 1 else split_objective)(shape)
    before = reference_of(engine, plan, shape, config, options.seed, sharing)
    begin = resumed(engine, plan, options)
    log = StepLog(plan)
    for step in steps_of(begin, options):
        losses = []
        for micro, (inputs, labels) in dealt(plan, step, shape, options.text, sharing):
            inputs, labels = inputs.to(engine.device), labels.to(engine.device)
            known = None if shape.preference is None else before(inputs)
            outputs = engine(inputs)
            loss = minimised(outputs if known is None else (outputs, known), labels) * micro.weight
            engine.backward(loss)
            engine.step()
            losses.append(loss)
        log.step(step, plan.mean_loss(losses))
        if is_kept(step, options):
            engine.save_checkpoint(str(options.keep))
    log.peak()
    return engine


def refuse_on_processor(config: dict[str, Any]) -> None:
    """DeepSpeed rounds what ZeRO 3 sends by kernels for GPUs, of which it has none for processors."""
    given = config["zero_optimization"]
    lossy = [key for key in ("zero_quantized_weights", "zero_quantized_gradients") if given.get(key)]
    if lossy and get_accelerator().device_name() == "cpu":
        raise SystemExit(f"{lossy[0]} needs GPUs: delete it from ds_config.json for a run on processors")


def reference_of(
    engine: Any, plan: RankPlan, shape: Shape, config: dict[str, Any], seed: int, sharing: Sharing
) -> Callable[[torch.Tensor], torch.Tensor]:
    """What makes the logits of the model as it was ahead of all training: it without adapters, or a copy."""
    copy: Any = None
    if shape.preference is not None and shape.lora is None:
        torch.manual_seed(seed)
        with deepspeed.zero.Init(config_dict_or_path=config, enabled=plan.zero == 3):
            copy = Transformer(shape.untrained, sharing=sharing)
        if plan.zero == 3:
            copy, *_ = deepspeed.initialize(model=copy, config=config)
        else:
            copy.to(engine.device, next(engine.module.parameters()).dtype)

    def before(inputs: torch.Tensor) -> torch.Tensor:
        with torch.no_grad(), without_adapters(engine.module):
            logits: torch.Tensor = engine(inputs) if copy is None else copy(inputs)
        return logits

    return before


def with_resumption(config: dict[str, Any], options: argparse.Namespace) -> dict[str, Any]:
    """The configuration for what is resumed: universal checkpoints, which any plan can read, are announced in it."""
    origin = origin_of(options)
    if origin and (origin / "latest_universal").exists():
        return {**config, "checkpoint": {"load_universal": True}}
    return config


def resumed(engine: Any, plan: RankPlan, options: argparse.Namespace) -> int:
    """Load the checkpoint to go on from, if any; returns the steps that were trained before."""
    origin = origin_of(options)
    if origin is None:
        return 0
    on_host = engine.zero_offload_optimizer()
    if on_host is not None and (on_host.ratio < 1 or on_host.super_offload):
        raise SystemExit(
            f"{origin}: checkpoints of DeepSpeed do not have all moments of `ratio` and `super_offload`: go on "
            "under a plan that has neither"
        )
    if plan.expert_parallel > 1 and (origin / "latest_universal").exists():
        raise SystemExit(
            f"{origin}: universal checkpoints have all experts: go on under a plan that divides none"
        )
    divided = plan.expert_parallel > 1 and plan.zero < 3
    frozen = {
        part: part.detach().clone()
        for part in (engine.module.parameters() if divided else ())
        if not part.requires_grad and not getattr(part, "allreduce", True)
    }
    if plan.expert_parallel > 1:
        experts = (each for each in engine.module.modules() if isinstance(each, Nf4Experts))
        frozen |= {part: part.clone() for each in experts for part in each.buffers()}
    # In bf16 pipelines replicas share the states of ZeRO 0 too, in files of ZeRO that the engine does not look for.
    shared = isinstance(engine.optimizer, BF16_Optimizer) and not engine.zero_optimization()
    if engine.load_checkpoint(str(origin), load_optimizer_states=not shared)[0] is None:
        raise SystemExit(f"{origin}: no checkpoint of DeepSpeed")
    if shared:
        last = "latest_universal" if engine.load_universal_checkpoint() else "latest"
        engine._load_zero_checkpoint(str(origin), (origin / last).read_text().strip())
        engine.optimizer.update_lp_params()
    if divided:
        # Its weights are those of the first rank, whose experts are others; the optimizer's are each rank's own.
        engine.optimizer.update_lp_params()
    # Those of the first rank, too: they are as they were before.
    for part, value in frozen.items():
        part.data.copy_(value)
    return int(engine.global_steps)


def origin_of(options: argparse.Namespace) -> Path | None:
    """The folder of the checkpoint to go on from; None to begin anew."""
    kept = options.keep if options.keep and (options.keep / "latest").exists() else None
    return cast("Path | None", options.resume or kept)


def checkpoint_of(config: dict[str, Any]) -> Callable[..., Any]:
    """How layers are recomputed: DeepSpeed's own way where a device's checkpoints are kept in host memory."""
    if "activation_checkpointing" not in config or get_accelerator().device_name() == "cpu":
        return kept_on_device
    deepspeed.checkpointing.configure(None, checkpoint_in_cpu=True)
    return cast("Callable[..., Any]", deepspeed.checkpointing.checkpoint)


def train_pipeline(plan: RankPlan, shape: Shape, options: argparse.Namespace) -> Any:
    """Every rank holds the layers of its stage; all replicas have the same batch."""
    steps = Steps(plan, shape, options.text)
    planned = plan.pipeline_class(
        PipelineModule,
        before=1 + shape.layers_ahead,
        after=2 + len(shape.behind or ()),
        each=shape.layers_each,
    )
    model = planned(
        layers=modules_of(shape, plan.recompute, steps.sharing),
        num_stages=len(plan.stages),
        loss_fn=steps.loss,
        seed_layers=True,
        base_seed=options.seed,
    )
    model.register_forward_pre_hook(steps.reach)
    if shape.freezes("embedding"):
        # Both stages that hold a tied one have the same weights, of which the engine finds no gradients to add up.
        for tied in model.tied_comms.values():
            tied["weight_attr"] = []
    optimizer = make_optimizer(model, shape, options)
    engine, *_ = deepspeed.initialize(
        model=model, optimizer=optimizer, config=with_resumption(plan.deepspeed_config(), options)
    )
    if shape.preference is not None:
        for module in model.forward_funcs:
            module.remember()
    begin = resumed(engine, plan, options)
    log = StepLog(plan)
    for step in steps_of(begin, options):
        log.step(step, engine.train_batch(steps.begin(step)))
        if is_kept(step, options):
            engine.save_checkpoint(str(options.keep))
    log.peak()
    return engine


def make_optimizer(model: Any, shape: Shape, options: argparse.Namespace, on_host: bool = False) -> Any:
    """The optimizer that the plan counted memory for; Adam ``on_host`` is DeepSpeed's for processors."""
    trained = [each for each in model.parameters() if each.requires_grad]
    if any(is_moe_param(each) for each in trained):
        trained = configure_moe_param_groups(trained)
    if shape.optimizer == "sgd":
        return torch.optim.SGD(trained, lr=options.lr, momentum=0.9)
    if shape.optimizer == "lion":
        return Lion(trained, options.lr)
    if shape.optimizer_states.startswith("paged"):
        return paged_adamw(shape.optimizer_states)(trained, lr=options.lr)
    if shape.optimizer_states != "fp32" or shape.master_weights == "bf16":
        return ADAMW[shape.optimizer_states](trained, options.lr)
    if on_host:
        from deepspeed.ops.adam import DeepSpeedCPUAdam

        return DeepSpeedCPUAdam(trained, lr=options.lr)
    # Fused: an update tensor by tensor would keep temporaries of all of them on the device.
    return torch.optim.AdamW(trained, lr=options.lr, fused=True)


def paged_adamw(states: str) -> Any:
    """AdamW of bitsandbytes, whose moments share the memory of device and host."""
    try:
        found = import_module("bitsandbytes.optim")
    except ImportError:
        raise SystemExit(f"{states} moments are those of bitsandbytes: pip install bitsandbytes") from None
    return found.PagedAdamW8bit if states == "paged-int8" else found.PagedAdamW32bit


if __name__ == "__main__":
    main()
