"""How the example's modules are split over the ranks of a replica, with DTensor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as functional
from torch import distributed, nn
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
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

from planner.training.example_adapters import Adapted, Adapter, InFourBits, Nf4Linear, nf4_product
from planner.training.example_model import Embedding, Finish, Head, Layer

_gather_single = getattr(distributed, "all_gather_single", distributed.all_gather_into_tensor)
_scatter_single = getattr(distributed, "reduce_scatter_single", distributed.reduce_scatter_tensor)
"""Older versions of torch have these under other names."""
POSITIONS = 1
"""Dimension of the tokens in [sequence][position][width]."""


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
        module.lookup = partial(_own_rows, mesh)
    elif isinstance(module, Finish) and between.is_shard():
        distribute_module(module, mesh, None, partial(_own_tokens, between), _local)
    elif isinstance(module, Head):
        style = ColwiseParallel(input_layouts=between, output_layouts=Shard(-1), use_local_output=False)
        parallelize_module(module, mesh, {"project": style})


def _split_layer(layer: Layer, mesh: DeviceMesh, between: Placement) -> None:
    there = {
        name for name, _ in layer.named_children()
    }  # a layer may be without attention, or without a feed-forward

    def parts(*names: str) -> list[str]:
        return [name for name in names if name in there]

    divide(
        layer,
        mesh,
        columns=parts("query", "key_value", "up", "gate"),
        rows=parts("output", "down"),
        ahead=parts("norm_attention", "norm_mlp"),
        behind=parts("norm_after_attention", "norm_after_mlp"),
        of_heads=parts("norm_query", "norm_key"),
        by_tokens=between.is_shard(),
    )


def divide(
    layer: nn.Module,
    mesh: DeviceMesh,
    *,
    columns: Sequence[str],
    rows: Sequence[str],
    ahead: Sequence[str],
    behind: Sequence[str] = (),
    of_heads: Sequence[str] = (),
    by_tokens: bool = False,
) -> None:
    """Deal a layer's heads and feed-forward ``columns``; one sum behind each product by ``rows``.

    Names of its modules: linear layers, norms ``ahead`` of products, norms ``behind`` the sums, and norms of queries
    and keys. It takes and gives hidden states [sequence][position][width], of all tokens or ``by_tokens`` of the
    rank's own. It works on local tensors, as DTensor takes the host several times as long.
    """
    for names, place in ((columns, Shard(0)), (rows, Shard(1))):
        for part in map(layer.get_submodule, names):
            if isinstance(part, Adapted):
                _split_adapted(part, mesh, place)
            else:
                _deal(part, mesh, place)
    # Each sees the rank's own heads, or its own tokens, so that gradients are added up over the ranks.
    for name in (*of_heads, *((*ahead, *behind) if by_tokens else ())):
        _deal(layer.get_submodule(name), mesh, Replicate())
    # The sum of all ranks' parts has one gradient on all of them, or that of this rank's tokens. What several products
    # take as one tensor of all ranks goes the other way: its gradient is summed once, where each would sum its own.
    ways = (_scatter, _gather) if by_tokens else (_sum, _same)
    for name in rows:
        layer.get_submodule(name).register_forward_hook(partial(_passes, mesh, ways))
    for name in ahead:
        layer.get_submodule(name).register_forward_hook(partial(_passes, mesh, ways[::-1]))


def _split_adapted(layer: Adapted, mesh: DeviceMesh, place: Shard) -> None:
    """Deal a frozen product's columns or rows, and of its adapters what stands beside these."""
    columns = place.dim == 0
    if isinstance(layer.base, Nf4Linear):
        layer.base = SplitNf4(layer.base, mesh, columns=columns)
    else:
        _deal(layer.base, mesh, place)
    for name, adapter in layer.adapters.items():
        layer.adapters[name] = SplitAdapter(adapter, mesh, columns=columns)


def _deal(module: nn.Module, mesh: DeviceMesh, place: Placement) -> None:
    """Spread a module's parameters over the ranks of a replica; while it works they are what this rank has of them.

    A bias beside rows is whole on every rank, and one adds it to its part of the sum.
    """
    for name, parameter in module.named_parameters(recurse=False):
        own = Replicate() if parameter.ndim == 1 and place != Shard(0) else place
        dealt = distribute_tensor(parameter.data, mesh, [own])
        setattr(module, name, nn.Parameter(dealt, requires_grad=parameter.requires_grad))
    adds = place != Shard(1) or mesh.get_local_rank() == 0
    module.register_forward_pre_hook(partial(_on_locals, adds))
    module.register_forward_hook(_on_all, always_call=True)


def _on_locals(adds_bias: bool, module: nn.Module, inputs: object) -> None:
    # What stands in the dictionary of an object goes before its parameters.
    for name, parameter in module.named_parameters(recurse=False):
        local = _here(parameter)
        module.__dict__[name] = local if name != "bias" or adds_bias else local * 0.0


def _on_all(module: nn.Module, *_: object) -> None:
    for name, _parameter in module.named_parameters(recurse=False):
        module.__dict__.pop(name, None)


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
        outputs = nf4_product(hidden, self.packed.to_local(), (self.scales.to_local(),), self.sizes)
        return outputs + self.bias.to_local() if self.bias is not None and self.adds_bias else outputs


def _here(weight: DTensor) -> torch.Tensor:
    """A rank's part of a weight; its gradient of one that is whole everywhere is a part of a sum."""
    places = [Partial() if place.is_replicate() else place for place in weight.placements]
    local: torch.Tensor = weight.to_local(grad_placements=places)
    return local


def _passes(
    mesh: DeviceMesh, ways: tuple[Way, Way], _: nn.Module, inputs: object, outputs: torch.Tensor
) -> torch.Tensor:
    """What a module makes, passed on within a group in the first way, and its gradient in the second."""
    passed: torch.Tensor = _Passed.apply(outputs, mesh.get_group(), *ways)
    return passed


Way = Callable[[torch.Tensor, Any], torch.Tensor]


class _Passed(torch.autograd.Function):  # type: ignore[misc]
    """Passes a tensor on within a group in one way, and its gradient in another."""

    @staticmethod
    def forward(context: Any, inputs: torch.Tensor, group: Any, there: Way, back: Way) -> torch.Tensor:
        context.group, context.back = group, back
        return there(inputs, group)

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        return context.back(gradient, context.group), None, None, None


def _same(tensor: torch.Tensor, group: Any) -> torch.Tensor:
    return tensor.view_as(tensor)


def _sum(parts: torch.Tensor, group: Any) -> torch.Tensor:
    summed = parts.clone(memory_format=torch.contiguous_format)
    distributed.all_reduce(summed, group=group)
    return summed


def _gather(own: torch.Tensor, group: Any) -> torch.Tensor:
    """[sequence][own position][width] of each rank to [sequence][position][width]."""
    ways = distributed.get_world_size(group)
    parts = own.new_empty(ways * own.shape[0], *own.shape[1:])
    _gather_single(parts, own.contiguous(), group=group)
    return parts.unflatten(0, (ways, -1)).transpose(0, 1).flatten(1, 2)


def _scatter(parts: torch.Tensor, group: Any) -> torch.Tensor:
    """The other way round, with a sum."""
    ways = distributed.get_world_size(group)
    by_rank = parts.unflatten(1, (ways, -1)).transpose(0, 1).flatten(0, 1).contiguous()
    own = by_rank.new_empty(parts.shape[0], parts.shape[1] // ways, *parts.shape[2:])
    _scatter_single(own, by_rank, group=group)
    return own


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


def _own_rows(mesh: DeviceMesh, tokens: DTensor, table: DTensor) -> DTensor:
    """Rows of tokens, of which each rank has those of its part of the table and the others as zeros.

    So its gradient is as small as its part, where DTensor makes a whole one on every rank.
    """
    part, first = table.to_local(), -(-table.shape[0] // mesh.size()) * mesh.get_local_rank()
    own = tokens.to_local() - first
    elsewhere = (own < 0) | (own >= part.shape[0])
    rows = functional.embedding(own.masked_fill(elsewhere, 0), part)
    return DTensor.from_local(rows.masked_fill(elsewhere.unsqueeze(-1), 0.0), mesh, [Partial()])


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
