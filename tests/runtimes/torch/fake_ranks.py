"""Memory of ranks of emitted folders, whose tensors have no data: ``fake_ranks.py FOLDER RANK FOLDER RANK ...``.

Prints the bytes of all tensors at the peak of the second step, a line for each. Operations of which processors keep
something else than devices are those of devices here.
"""

from __future__ import annotations

import gc
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import distributed, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.pipelining import schedules
from torch.distributed.pipelining.stage import InferenceMode
from torch.nn import functional
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import _disable_current_modes

from tests.training.folder_modules import train_of
from tests.training.held import Held

STEPS = 2


class FusedNorm(torch.autograd.Function):  # type: ignore[misc]
    """Keeps its input and a number for each row."""

    @staticmethod
    def forward(context: Any, hidden: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        context.save_for_backward(hidden, weight, hidden.new_empty(hidden.shape[:-1], dtype=torch.float32))
        return torch.empty_like(hidden)

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        hidden, weight, _ = context.saved_tensors
        return torch.empty_like(hidden), torch.empty_like(weight)


class FlashAttention(torch.autograd.Function):  # type: ignore[misc]
    """Its output lies by position, so that no copy by head is made."""

    @staticmethod
    def forward(context: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        batch, heads, length, _ = query.shape
        mixed = query.new_empty(batch, length, heads, value.shape[-1]).transpose(1, 2)
        sums = query.new_empty(batch, heads, length, dtype=torch.float32)
        context.save_for_backward(query, key, value, mixed, sums)
        return mixed

    @staticmethod
    def backward(context: Any, _: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(torch.empty_like(each) for each in context.saved_tensors[:3])


def seen_inside(ring: Any) -> Any:
    """Attention around a ring of which the operations are seen, where the program has a single one."""

    class Ring(torch.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(context: Any, *inputs: Any) -> Any:
            output = ring._around(*inputs)
            ring._kept(context, inputs, output)
            return output

        @staticmethod
        def backward(context: Any, *gradients: torch.Tensor) -> Any:
            return ring._gradients(context, *gradients)

    return Ring.apply


def set_up(held: Held) -> None:
    """Replace what fake tensors cannot do, and what processors do in another way."""
    for name in ("__getitem__", "__init__", "get_group", "get_local_rank", "size"):
        setattr(DeviceMesh, name, really(getattr(DeviceMesh, name)))
    resize, to = torch.UntypedStorage.resize_, nn.Module.to

    def resized(storage: Any, size: int) -> Any:
        result = resize(storage, size)
        held.see(storage, new=False)
        return result

    def swapped(one: torch.Tensor, other: torch.Tensor) -> None:
        one.data = other.data
        one.requires_grad_(other.requires_grad)

    def known(_: object, stages: Any, *others: object) -> None:
        for each in stages:
            each._inference_mode = InferenceMode.STATIC

    changed: Any = torch.UntypedStorage
    changed.resize_ = resized
    torch.utils.swap_tensors = swapped
    schedules._PipelineSchedule._warmup_p2p = known
    module: Any = nn.Module
    module.to = lambda self, *where, **how: self if where == ("cpu",) else to(self, *where, **how)
    norm: Any = nn.RMSNorm
    norm.forward = lambda self, hidden: FusedNorm.apply(hidden, self.weight)


def really(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same with tensors that have data."""

    def called(*arguments: Any, **named: Any) -> Any:
        with _disable_current_modes():
            return function(*arguments, **named)

    return called


def peak(folder: Path, rank: int, held: Held) -> int:
    """Bytes at the peak of the last of a few steps."""
    table = json.loads((folder / "batches.json").read_text())
    world = table["world_size"]
    os.environ.update(RANK=str(rank), LOCAL_RANK="0", WORLD_SIZE=str(world))
    distributed.init_process_group("fake", rank=rank, world_size=world, store=FakeStore())
    train: Any = train_of(folder)
    options = train.parse_options([])
    plan, shape = train.load(), train.load_shape(folder / "model.json")
    config = json.loads((folder / "torch_config.json").read_text())
    formats = [train.WORKING_TYPES[config[name]] for name in ("precision", "reduce_dtype")]
    layout, sharing = train.layout_of(plan, *formats, False), train.sharing_of(plan)
    layout._start_alike = lambda module: None
    attention = functional.scaled_dot_product_attention
    context: Any = sys.modules["example_context"]
    ring: Any = sys.modules["example_ring"]
    context.ring_attention = ring.ring_attention  # which a rank before may have seen inside
    if plan.recompute != "selective":  # which knows operations by name
        functional.scaled_dot_product_attention = lambda *each, is_causal: FlashAttention.apply(*each)
        context.ring_attention = seen_inside(ring)
    gc.collect()  # what the rank before has left
    before = held.now
    with FakeTensorMode(allow_non_fake_inputs=True), held:
        chunks = train.parts_of(shape, plan, options.seed, train.placing(layout, shape), sharing)
        for each in chunks:
            layout.shard(each)
        model = train.Chunks(chunks) if plan.chunks else chunks[0]
        scale = train.LossScale(1.0)
        if len(plan.stages) > 1:
            gradients = train.pipeline_gradients(layout, chunks, shape, options, scale, sharing)
        else:
            gradients = train.whole_gradients(layout, model, chunks[0], shape, options, scale, sharing)
        optimizer = train.make_optimizer(model, shape, options)
        for step in range(STEPS):
            held.most = held.now
            gradients(step)
            layout.clip(model.parameters(), config["clip"], scale.value)
            optimizer.step()
            optimizer.zero_grad()
    functional.scaled_dot_product_attention = attention
    distributed.destroy_process_group()
    return held.most - before


def main() -> None:
    """A line for each rank that is asked for."""
    held = Held()
    set_up(held)
    asked = iter(sys.argv[1:])
    for folder, rank in zip(asked, asked, strict=True):
        print(peak(Path(folder), int(rank), held), flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
