"""How the example's modules are split over the ranks of a replica, with DTensor."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.nn.functional as functional
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import (
    DTensor,
    Partial,
    Placement,
    Replicate,
    Shard,
    distribute_module,
    distribute_tensor,
)
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from planner.training.example_adapters import Adapted, Adapter, InFourBits, Nf4Linear, nf4_product
from planner.training.example_model import Embedding, Finish, Head, Layer

POSITIONS = 1
"""Dimension of the tokens in [sequence][position][width]."""
HEADS = 2
"""Dimension of the heads in [sequence][position][head][width]."""


def split(module: nn.Module, mesh: DeviceMesh, *, by_tokens: bool = False) -> None:
    """Split a module of the model in place; norms and what else is small stay whole on every rank.

    Hidden states between modules are whole on every rank, or each has those of its own tokens (sequence parallelism).
    """
    frozen = [name for name, each in module.named_parameters() if not each.requires_grad]
    _split(module, mesh, Shard(POSITIONS) if by_tokens else Replicate())
    for name in frozen:  # torch makes new parameters of those that it deals
        module.get_parameter(name).requires_grad_(False)


def _split(module: nn.Module, mesh: DeviceMesh, between: Placement) -> None:
    if isinstance(module, Layer):
        _split_layer(module, mesh, between)
    elif isinstance(module, Embedding):
        into, out = partial(_whole_inputs, between), partial(_hidden_states, between)
        distribute_module(module, mesh, _split_table, into, out)
    elif isinstance(module, Finish) and between.is_shard():
        distribute_module(module, mesh, None, partial(_own_tokens, between), _local)
    elif isinstance(module, Head):
        style = ColwiseParallel(input_layouts=between, output_layouts=Shard(-1), use_local_output=False)
        parallelize_module(module, mesh, {"project": style})


def _split_layer(layer: Layer, mesh: DeviceMesh, between: Placement) -> None:
    """Heads and feed-forward columns are dealt; one sum after attention and one after the feed-forward."""
    styles: dict[str, Any] = {name: ColwiseParallel() for name in ("query", "key_value", "up")}
    styles |= {name: RowwiseParallel(output_layouts=between) for name in ("output", "down")}
    styles["gate"] = ColwiseParallel()
    # Norms of queries and keys see the rank's own heads, so their gradients are added up over the ranks.
    styles |= {
        name: SequenceParallel(sequence_dim=HEADS, use_local_output=True)
        for name in ("norm_query", "norm_key")
    }
    # A layer may be without attention, or without a feed-forward.
    parts = {name: getattr(layer, name, None) for name in styles}
    split_parts = {
        name for name, part in parts.items() if part is not None and any(True for _ in part.parameters())
    }
    adapted = {name: part for name, part in parts.items() if isinstance(part, Adapted)}
    for name, part in adapted.items():
        _split_adapted(part, mesh, between, columns=isinstance(styles[name], ColwiseParallel))
    plain = split_parts - {*adapted}
    parallelize_module(layer, mesh, {name: style for name, style in styles.items() if name in plain})
    if between.is_shard():
        # Each norm sees a rank's own tokens, so that the gradients of its parameters are added up as well.
        for norm in (layer.norm_attention, layer.norm_mlp):
            distribute_module(norm, mesh, None, partial(_own_tokens, between))
        for norm in (layer.norm_after_attention, layer.norm_after_mlp):
            distribute_module(norm, mesh, None, partial(_own_tokens, between), _local)
    for norm in (layer.norm_attention, layer.norm_mlp):
        norm.register_forward_hook(partial(_for_all_products, mesh))


def _split_adapted(layer: Adapted, mesh: DeviceMesh, between: Placement, *, columns: bool) -> None:
    """Deal a frozen product's columns or rows, and of its adapters what stands beside these."""
    if isinstance(layer.base, Nf4Linear):
        layer.base = SplitNf4(layer.base, mesh, columns=columns)
    else:
        style = (
            ColwiseParallel()
            if columns
            else RowwiseParallel(output_layouts=Partial(), use_local_output=False)
        )
        parallelize_module(layer, mesh, {"base": style})
    for name, adapter in layer.adapters.items():
        layer.adapters[name] = SplitAdapter(adapter, mesh, columns=columns)
    if not columns:
        layer.base.register_forward_hook(_own_part)
        layer.register_forward_hook(partial(_summed, mesh, between))


class SplitAdapter(nn.Module):  # type: ignore[misc]
    """An adapter beside a product that is dealt: beside columns its first half is whole on every rank, beside rows its
    second one, and the other half is dealt like the product.

    Each rank has a part of the gradient of the half that is whole: FSDP adds them up before it reduces over replicas.
    Nothing else travels, as what an adapter adds beside rows is added to parts that are summed anyway.
    """

    def __init__(self, adapter: Adapter, mesh: DeviceMesh, *, columns: bool) -> None:
        super().__init__()
        self.down, self.up, self.scale = adapter.down, adapter.up, adapter.scale
        places = (Replicate(), Shard(0)) if columns else (Shard(1), Replicate())
        for half, place in ((self.down, places[0]), (self.up, places[1])):
            half.weight = nn.Parameter(distribute_tensor(half.weight.data, mesh, [place]))

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        if isinstance(hidden, DTensor):
            hidden = hidden.to_local(grad_placements=[Partial()])
        down, up = (_here(half.weight) for half in (self.down, self.up))
        return functional.linear(functional.linear(hidden, down), up) * self.scale


class SplitNf4(InFourBits):
    """What a rank has of a product in four bits: whole blocks, so that their scales are those of the whole matrix."""

    packed: DTensor
    scales: DTensor
    names = ("scales",)

    def __init__(self, base: Nf4Linear, mesh: DeviceMesh, *, columns: bool) -> None:
        super().__init__()
        place, ways = (Shard(0) if columns else Shard(1)), mesh.size()
        self.sizes = tuple(size // ways if dim == place.dim else size for dim, size in enumerate(base.sizes))
        for name in ("packed", "scales"):
            self.register_buffer(name, distribute_tensor(getattr(base, name), mesh, [place]))
        self.bias: Any = None
        if base.bias is not None:
            dealt = distribute_tensor(base.bias.data, mesh, [Shard(0) if columns else Replicate()])
            self.bias = nn.Parameter(dealt, requires_grad=False)
        self.adds_bias = columns or mesh.get_local_rank() == 0
        """One rank does where their outputs are summed."""

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        if isinstance(hidden, DTensor):
            hidden = hidden.to_local(grad_placements=[Partial()])
        outputs = nf4_product(hidden, self.packed.to_local(), (self.scales.to_local(),), self.sizes)
        return outputs + self.bias.to_local() if self.bias is not None and self.adds_bias else outputs


def _here(weight: DTensor) -> torch.Tensor:
    """A rank's part of a weight; its gradient of one that is whole everywhere is a part of a sum."""
    places = [Partial() if place.is_replicate() else place for place in weight.placements]
    local: torch.Tensor = weight.to_local(grad_placements=places)
    return local


def _own_part(_: nn.Module, inputs: object, outputs: torch.Tensor) -> torch.Tensor:
    """A rank's part of sums, whose gradient is the same for all of them."""
    if not isinstance(outputs, DTensor):
        return outputs
    return outputs.to_local(grad_placements=[Replicate()])


def _summed(
    mesh: DeviceMesh, between: Placement, _: nn.Module, inputs: object, outputs: torch.Tensor
) -> torch.Tensor:
    """The sum of all ranks' parts."""
    return DTensor.from_local(outputs, mesh, [Partial()]).redistribute(mesh, [between]).to_local()


def _for_all_products(mesh: DeviceMesh, _: nn.Module, inputs: object, outputs: torch.Tensor) -> DTensor:
    """What several products take as one tensor of all ranks, whose gradient is summed once: each would sum its own."""
    known = outputs if isinstance(outputs, DTensor) else DTensor.from_local(outputs, mesh, [Replicate()])
    return known.redistribute(mesh, [Replicate()])


def _own_tokens(
    between: Placement, _: nn.Module, inputs: tuple[torch.Tensor], mesh: DeviceMesh
) -> tuple[DTensor]:
    return (DTensor.from_local(inputs[0], mesh, [between]),)


def _local(_: nn.Module, outputs: DTensor, mesh: DeviceMesh) -> torch.Tensor:
    return outputs.to_local()


def _split_table(name: str, module: nn.Module, mesh: DeviceMesh) -> None:
    """Rows of the vocabulary are dealt; torch leaves the other parameters whole."""
    for key in ("weight", "bias") if name == "" else ():
        parameter = getattr(module, key, None)
        if parameter is not None:
            dealt = distribute_tensor(parameter.data, mesh, [Shard(0)])
            setattr(module, key, nn.Parameter(dealt))


def _whole_inputs(
    between: Placement, _: nn.Module, inputs: tuple[torch.Tensor], mesh: DeviceMesh
) -> tuple[DTensor]:
    """Tokens, which all ranks have, or hidden states for logits."""
    place = between if inputs[0].is_floating_point() else Replicate()
    return (DTensor.from_local(inputs[0], mesh, [place]).redistribute(mesh, [Replicate()]),)


def _hidden_states(between: Placement, module: Any, outputs: DTensor, mesh: DeviceMesh) -> torch.Tensor:
    """Logits stay dealt, for a loss that never has all of a token's."""
    if outputs.shape[-1] == module.weight.shape[0] and outputs.placements[0].is_shard():
        return outputs
    return outputs.redistribute(mesh, [between]).to_local()
