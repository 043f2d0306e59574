"""Example: trains a model of the planned shape with PyTorch alone, as the plan says.

Start it on every node with ``launch.sh``. To train your own, replace ``sequences`` and ``Part``; what carries
the plan are ``load``, ``Layout`` and ``micro_batches``.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import loss_parallel

from planner.training.hetplan_runtime import RankPlan, load
from planner.training.example_adapters import InFourBits
from planner.training.example_context import Sharing, sharing_of
from planner.training.example_data import StepBatches, dealt, packs
from planner.training.example_experts import Owners
from planner.training.example_model import Embedding, Head, Layer, Shape, keep_on_host, load_shape, objective
from planner.training.example_optimizers import ADAMW, Lion, OnLocals, Together
from planner.training.example_run import is_kept, leave, parse_options, steps_of
from planner.training.example_fp8 import use_fp8
from planner.runtimes.torch.example_grid import split_on_grid
from planner.runtimes.torch.example_stage import Chunks, ModelPart, WithReference, parts_of
from planner.runtimes.torch.example_tensor import split
from planner.training.step_log import StepLog
from planner.runtimes.torch.hetplan_torch import Layout, LossScale
from planner.runtimes.torch.hetplan_exchange import Exchange
from planner.runtimes.torch.hetplan_backups import WithBackups
from planner.runtimes.torch.hetplan_pipeline import Pipeline
from planner.runtimes.torch.hetplan_shards import UnequalShards

WORKING_TYPES = {
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "fp32": torch.float32,
    "tf32": torch.float32,
    "fp8": torch.bfloat16,
}
FOLDER = Path(__file__).parent
FLAT = StateDictOptions(flatten_optimizer_state_dict=True)
"""Optimizer states by the names of weights."""
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def main() -> None:
    """Train for some steps and print the mean loss of each global batch."""
    options = parse_options()
    start_processes()
    run(options)
    leave(DEVICE == "cpu", on_hosts=load().sync is not None)


def start_processes() -> None:
    """Join the job that torchrun started."""
    if DEVICE == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    torch.distributed.init_process_group("cpu:gloo,cuda:nccl" if DEVICE == "cuda" else "gloo")


def run(options: argparse.Namespace) -> None:
    """Train as the folder's plan says."""
    plan, shape = load(), load_shape(FOLDER / "model.json")
    config: dict[str, Any] = json.loads((FOLDER / "torch_config.json").read_text(encoding="utf-8"))
    working_type = WORKING_TYPES[config["precision"]]
    on_host = config["on_host"] and DEVICE == "cuda"
    reduce_type = WORKING_TYPES[config["reduce_dtype"]]
    layout = layout_of(plan, working_type, reduce_type, on_host)
    sharing = sharing_of(plan, packed=packs(shape))
    place = placing(layout, shape, in_fp8=config["precision"] == "fp8")
    chunks = parts_of(shape, plan, options.seed, place, sharing)
    for each in chunks:
        if config["checkpoints_on_host"]:
            keep_on_host(each)
        layout.shard(each)
    model = Chunks(chunks) if plan.chunks else chunks[0]
    tied = shape.tied_embeddings and len(plan.stages) > 1 and not plan.v_shaped
    if tied and not shape.freezes("embedding"):
        layout.tie(getattr(model.embedding, "weight", None))
    scale = LossScale(2.0**16 if working_type == torch.float16 else 1.0)
    parts = beside_references(chunks, shape, layout, options.seed, place, sharing)
    if len(plan.stages) > 1:
        gradients_of = pipeline_gradients(layout, parts, shape, options, scale, sharing)
    else:
        gradients_of = whole_gradients(layout, model, parts[0], shape, options, scale, sharing)
    optimizer = make_optimizer(model, shape, options)
    origin = options.resume or last_kept(options.keep)
    begin = restored(model, optimizer, origin, layout, len(shape.kinds)) if origin else 0
    exchange = Exchange(layout, model, origin) if plan.sync else None

    def write(steps: int, folder: Path) -> None:
        if plan.island[0] == 0:
            save(model, optimizer, steps, layout, folder)
        if exchange:
            exchange.save(folder)

    log, planned = StepLog(plan), steps_of(begin, options)
    for step in planned:
        with loss_parallel():  # where a token's logits are dealt over the replica
            if isinstance(layout, WithBackups):
                losses, late = layout.gradients(step, gradients_of)
                log.dropped(step, late)
            else:
                losses = gradients_of(step)
        if exchange:
            exchange.gradients()
        norm = layout.clip(model.parameters(), config["clip"], scale.value)
        if working_type != torch.float16 or scale.accepts(norm):
            optimizer.step()
        else:
            log.left_out(step, scale.value)
        optimizer.zero_grad()
        kept = is_kept(step, options)
        if exchange:
            exchange.weights(step + 1, last=kept or step == planned[-1])
        log.step(step, plan.mean_loss([plain(loss) for loss in losses], layout.group))
        if kept:
            keep(write, step + 1, options.keep)
    log.peak()
    if options.save:
        write(max(begin, planned.stop), options.save)


def layout_of(plan: RankPlan, working_type: torch.dtype, reduce_type: torch.dtype, on_host: bool) -> Layout:
    """FSDP2, or what runs plans that it cannot."""
    if plan.backup:
        return WithBackups(plan, DEVICE, working_type, reduce_type)
    if plan.shards:
        return UnequalShards(plan, DEVICE, working_type, reduce_type)
    return Layout(plan, DEVICE, working_type, reduce_type, on_host=on_host)


def placing(
    layout: Layout, shape: Shape, *, in_fp8: bool = False
) -> Callable[[torch.nn.Module], torch.nn.Module]:
    """A function that spreads a new module over this rank's replica, and a layer over all replicas too.

    What is trained is brought to the format in which it is updated, and layers multiply ``in_fp8``.
    """

    plan, master_type = layout.plan, WORKING_TYPES[shape.master_weights]
    looks_up = plan.own[0] == 0
    # A tied embedding that is needed at either end of the model is among what is left of it.
    units = (
        (Layer, Head)
        if shape.tied_embeddings and looks_up and plan.makes_losses
        else (Layer, Head, Embedding)
    )
    owners = Owners(plan.expert_parallel, layout.owners)

    def place(module: torch.nn.Module) -> torch.nn.Module:
        # Ahead of all that makes DTensors: what is set as the data of one does not reach its local tensor.
        for each in module.parameters():
            each.data = each.data.to(master_type) if each.requires_grad else each.data
        if isinstance(module, Layer) and module.experts is not None and owners.ways > 1:
            module.experts.divide(owners, layout.deal)
        module.to(DEVICE)
        if layout.plan.tensor_rows > 1:
            module = split_on_grid(module, layout.mesh["rows", "tensor"])
        elif layout.plan.tensor_parallel > 1:
            split(module, layout.mesh["tensor"], by_tokens=layout.plan.sequence_parallel)
        if in_fp8 and isinstance(module, Layer):
            use_fp8(module)
        if layout.plan.zero == 3:
            for part in module.modules():
                if isinstance(part, InFourBits):
                    part.shard_codes()
        if isinstance(module, units):
            layout.shard(
                module, last=isinstance(module, Head) or (isinstance(module, Embedding) and not looks_up)
            )
        return module

    return place


def beside_references(
    chunks: list[ModelPart],
    shape: Shape,
    layout: Layout,
    seed: int,
    place: Callable[[torch.nn.Module], torch.nn.Module],
    sharing: Sharing,
) -> list[torch.nn.Module]:
    """What runs in place of a rank's chunks: with pairs of answers each beside itself as it is now."""
    if shape.preference is None:
        return [*chunks]
    copies: list[Any] = [None] * len(chunks)
    if shape.lora is None:
        copies = parts_of(shape.untrained, layout.plan, seed, place, sharing)
        for copy in copies:
            layout.shard(copy)
    return [WithReference(*both) for both in zip(chunks, copies, strict=True)]


def whole_gradients(
    layout: Layout,
    model: Any,
    part: torch.nn.Module,
    shape: Shape,
    options: argparse.Namespace,
    scale: LossScale,
    sharing: Sharing,
) -> Callable[[int], list[torch.Tensor]]:
    """A function that makes the gradients of a step without a pipeline and returns the weighted losses."""
    plan, minimised = layout.plan, objective(shape)

    def of(step: int) -> list[torch.Tensor]:
        losses = []
        micro_batches = dealt(plan, step, shape, options.text, sharing)
        for index, (micro, (inputs, labels)) in enumerate(micro_batches):
            layout.accumulate(model, last=index == plan.steps - 1)
            loss = minimised(part(inputs.to(DEVICE)), labels.to(DEVICE)) * micro.weight
            (loss * (scale.value / plan.steps)).backward()
            losses.append(loss)
        return losses

    return of


def pipeline_gradients(
    layout: Layout,
    parts: list[torch.nn.Module],
    shape: Shape,
    options: argparse.Namespace,
    scale: LossScale,
    sharing: Sharing,
) -> Callable[[int], list[torch.Tensor]]:
    """The same in a pipeline, all of whose micro-batches are equal."""
    plan = layout.plan
    length = shape.sequence_length // sharing.ways
    tokens = torch.empty(plan.sizes[0], length, dtype=torch.long, device="meta")
    passed = length // (plan.tensor_parallel if plan.sequence_parallel else 1)
    sizes: tuple[int, ...] = (plan.sizes[0], passed, shape.hidden)
    if shape.encoder is not None:
        inputs, width = shape.encoded
        sizes = plan.sizes[0], inputs * width + length * shape.hidden
    sent = [torch.empty(sizes, dtype=layout.working_type, device="meta", requires_grad=True)]
    if shape.preference is not None:
        sent.append(torch.empty_like(sent[0], requires_grad=False))
    batches = StepBatches(plan, shape, options.text, sharing)
    pipeline = Pipeline(layout, parts, tokens, tuple(sent), objective(shape), scale, batches.reach)

    def of(step: int) -> list[torch.Tensor]:
        inputs, labels = (torch.cat(each).to(DEVICE) for each in zip(*batches.deal(step), strict=True))
        return pipeline.step(inputs, labels, batches.weights)

    return of


def plain(loss: torch.Tensor) -> torch.Tensor:
    """A loss that is whole on every rank of the replica as an ordinary tensor."""
    whole: torch.Tensor = loss.detach().full_tensor() if isinstance(loss, DTensor) else loss
    return whole


STEPS = "steps"
LAST = "last"
"""File that names the last whole checkpoint of a folder of several."""
STATES = "optimizer"
"""Folder of a checkpoint's optimizer states, inside that of its weights."""


def save(model: Any, optimizer: Any, steps: int, layout: Layout, folder: Path) -> None:
    """Write a stage's part of the checkpoint, by names that no plan decides; of islands one does."""
    for state, place in ((model.state_dict(), folder), (progress(model, optimizer, steps), folder / STATES)):
        # A tied embedding is in the part of the first stage.
        first, parts = layout.plan.stage == 0, layout.spread(model, state)
        mine = {key: each for key, each in parts.items() if first or "embedding.weight" not in key}
        torch.distributed.checkpoint.save(mine, checkpoint_id=place, process_group=layout.group)


def keep(write: Callable[[int, Path], None], steps: int, folder: Path) -> None:
    """Write a checkpoint beside the last one, and name it once it is whole: whatever ends the job, one stays."""
    before, name = last_kept(folder), f"step-{steps}"
    write(steps, folder / name)
    meet()
    if torch.distributed.get_rank() == 0:
        (folder / "last.new").write_text(name, encoding="utf-8")
        os.replace(folder / "last.new", folder / LAST)
        for old in folder.glob("step-*"):
            if old.name != name and old != before:
                shutil.rmtree(old, ignore_errors=True)
    meet()


def meet() -> None:
    """Wait for all ranks, on their hosts: devices of different makers cannot meet."""
    torch.distributed.all_reduce(torch.zeros(1))


def last_kept(folder: Path | None) -> Path | None:
    """The last whole checkpoint of a folder; None where there is none yet."""
    if folder is None or not (folder / LAST).exists():
        return None
    return folder / (folder / LAST).read_text(encoding="utf-8")


def entries_of(folder: Path) -> dict[str, Any]:
    """What a checkpoint has, by name; ends with a line where there is none."""
    try:
        entries: dict[str, Any] = (
            torch.distributed.checkpoint.FileSystemReader(folder).read_metadata().state_dict_metadata
        )
    except OSError:
        raise SystemExit(f"{folder}: no checkpoint of torch.distributed.checkpoint") from None
    return entries


def require_same_model(weights: dict[str, Any], layers: int, folder: Path) -> None:
    """End with a line where the checkpoint is of another model: a deeper one would be taken for this one."""
    stored = entries_of(folder)
    there = {name: tuple(getattr(entry, "size", ())) for name, entry in stored.items()}
    for name, weight in weights.items():
        if there.get(name) != tuple(weight.shape):
            size = f"has the size {there[name]}" if name in there else "is missing"
            what = f"{name} {size} there, expected {tuple(weight.shape)}"
            raise SystemExit(f"{folder}: a checkpoint of another model: {what}")
    held = {name.split(".")[1] for name in there if name.startswith("layers.")}
    if len(held) != layers:
        raise SystemExit(f"{folder}: a checkpoint of another model: {len(held)} layers, expected {layers}")


def require_same_optimizer(state: dict[str, Any], folder: Path) -> None:
    """End with a line where the checkpoint lacks states: another optimizer, or AdamW of other formats, has others."""
    stored = entries_of(folder / STATES)
    missing = next((name for name in state if name not in stored), None)
    if missing is not None:
        raise SystemExit(
            f"{folder}: a checkpoint of another optimizer or of other number formats: {missing} is missing"
        )


def restored(model: Any, optimizer: Any, folder: Path, layout: Layout, layers: int) -> int:
    """Load a checkpoint that this plan or another has written; returns the steps that were trained before."""
    weights = layout.spread(model, model.state_dict())
    require_same_model(weights, layers, folder)
    state = layout.spread(model, progress(model, optimizer, 0))
    require_same_optimizer(state, folder)
    torch.distributed.checkpoint.load(weights, checkpoint_id=folder, process_group=layout.group)
    torch.distributed.checkpoint.load(state, checkpoint_id=folder / STATES, process_group=layout.group)
    model.load_state_dict(layout.taken(model, weights))
    state = layout.taken(model, state)
    steps = int(state.pop(STEPS))
    if isinstance(optimizer, torch.optim.Optimizer):
        whole = {**get_optimizer_state_dict(model, optimizer, options=FLAT), **state}
        set_optimizer_state_dict(model, optimizer, whole, options=FLAT)
    return steps


def progress(model: Any, optimizer: Any, steps: int) -> dict[str, Any]:
    """Steps, and moments and counters by the name of their weight; of optimizers in parts the steps alone."""
    optimizer_state: dict[str, Any] = {}
    if isinstance(optimizer, torch.optim.Optimizer):
        optimizer_state = get_optimizer_state_dict(model, optimizer, options=FLAT)
    states = {key: value for key, value in optimizer_state.items() if key.startswith("state.")}
    return {**states, STEPS: torch.tensor(steps)}


def make_optimizer(model: Any, shape: Shape, options: argparse.Namespace) -> Any:
    """The optimizer that the plan counted memory for."""
    parameters = [each for each in model.parameters() if each.requires_grad]
    # Torch updates parameters together that are spread alike: those of split modules, and all others.
    groups = [[each for each in parameters if mesh_of(each) == mesh] for mesh in meshes_of(parameters)]
    alike = [{"params": each} for each in groups]
    if shape.optimizer == "sgd":
        return torch.optim.SGD(alike, lr=options.lr, momentum=0.9)
    if shape.optimizer == "lion":
        return Lion(alike, options.lr)
    if shape.optimizer == "adafactor":
        return OnLocals(parameters, partial(torch.optim.Adafactor, lr=options.lr))
    if shape.optimizer == "muon":
        return muon(model, parameters, options.lr)
    if shape.optimizer_states != "fp32" or shape.master_weights == "bf16":
        return ADAMW[shape.optimizer_states](alike, options.lr)
    # Fused: an update tensor by tensor would keep temporaries of all of them on the device.
    return torch.optim.AdamW(alike, lr=options.lr, fused=True)


def muon(model: Any, parameters: list[Any], lr: float) -> Any:
    """Muon for the layers' matrices, with steps as long as AdamW's, which updates the rest."""
    stacks = (model.layers, *([] if model.encoder is None else [model.encoder.layers]))
    matrices = [
        each for stack in stacks for each in stack.parameters() if each.ndim > 1 and each.requires_grad
    ]
    theirs = {id(each) for each in matrices}
    rest = [each for each in parameters if id(each) not in theirs]
    optimizers: list[Any] = []
    # Either may be frozen.
    if matrices:
        make = partial(torch.optim.Muon, lr=lr, adjust_lr_fn="match_rms_adamw")
        optimizers.append(OnLocals(matrices, make, matrices=True))
    if rest:
        optimizers.append(torch.optim.AdamW(rest, lr=lr, fused=True))
    return Together(*optimizers)


def meshes_of(parameters: list[Any]) -> list[Any]:
    """Distinct meshes over which parameters are spread, in order of appearance."""
    return list(dict.fromkeys(map(mesh_of, parameters)))


def mesh_of(parameter: Any) -> Any:
    """The mesh over which a parameter is spread; None where ranks hold unequal parts."""
    return parameter.device_mesh if isinstance(parameter, DTensor) else None


if __name__ == "__main__":
    main()
