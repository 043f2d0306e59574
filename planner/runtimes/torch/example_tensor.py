"""How the example's modules are split over the ranks of a replica, with DTensor."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_module, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from planner.training.example_model import Embedding, Head, Layer

HEADS = 2
"""Dimension of the heads in [sequence][position][head][width]."""


def split(module: nn.Module, mesh: DeviceMesh) -> None:
    """Split a module of the model in place; norms and what else is small stay whole on every rank."""
    if isinstance(module, Layer):
        _split_layer(module, mesh)
    elif isinstance(module, Embedding):
        distribute_module(module, mesh, _split_table, _whole_inputs, _whole_hidden)
    elif isinstance(module, Head):
        style = ColwiseParallel(output_layouts=Shard(-1), use_local_output=False)
        parallelize_module(module, mesh, {"project": style})


def _split_layer(layer: Layer, mesh: DeviceMesh) -> None:
    """Heads and feed-forward columns are dealt; one sum after attention and one after the feed-forward."""
    styles: dict[str, Any] = {name: ColwiseParallel() for name in ("query", "key_value", "up")}
    styles |= {name: RowwiseParallel() for name in ("output", "down")}
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
    parallelize_module(layer, mesh, {name: style for name, style in styles.items() if name in split_parts})
    for norm in (layer.norm_attention, layer.norm_mlp):
        norm.register_forward_hook(partial(_for_all_products, mesh))


def _for_all_products(mesh: DeviceMesh, _: nn.Module, inputs: object, outputs: torch.Tensor) -> DTensor:
    """What several products take as one tensor of all ranks, whose gradient is summed once: each would sum its own."""
    return DTensor.from_local(outputs, mesh, [Replicate()])


def _split_table(name: str, module: nn.Module, mesh: DeviceMesh) -> None:
    """Rows of the vocabulary are dealt; torch leaves the other parameters whole."""
    for key in ("weight", "bias") if name == "" else ():
        parameter = getattr(module, key, None)
        if parameter is not None:
            dealt = distribute_tensor(parameter.data, mesh, [Shard(0)])
            setattr(module, key, nn.Parameter(dealt))


def _whole_inputs(_: nn.Module, inputs: tuple[torch.Tensor], mesh: DeviceMesh) -> tuple[DTensor]:
    return (DTensor.from_local(inputs[0], mesh, [Replicate()]),)


def _whole_hidden(module: Any, outputs: DTensor, mesh: DeviceMesh) -> torch.Tensor:
    """Hidden states whole on every rank; logits stay dealt, for a loss that never has all of a token's."""
    if outputs.shape[-1] == module.weight.shape[0] and outputs.placements[0].is_shard():
        return outputs
    return outputs.redistribute(mesh, [Replicate()]).to_local()
