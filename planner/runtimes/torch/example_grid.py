"""How the example's modules are split over a grid of ranks: every matrix by rows and columns (SUMMA).

A rank has the sequences of its row and, of each token, the channels of its column; of a weight, the inputs of its row
and the outputs of its column (arXiv:2104.05343). Weights are DTensors by rows and columns, so that gradients, optimizer
and checkpoints go on as with any other plan. Layers of a grid's depth are replicas to all of this.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as functional
from torch import distributed, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

from planner.training.example_model import Embedding, Finish, Head, Layer

WHOLE = (Replicate(), Replicate())
BY_ROWS_AND_COLUMNS = (Shard(1), Shard(0))
"""Of a weight, [output][input]."""
OF_COLUMNS = (Replicate(), Shard(0))
"""Of what has a number for each channel."""


class GridRanks:
    """The ranks of a grid as this one sees them."""

    def __init__(self, mesh: DeviceMesh) -> None:
        """A ``mesh`` of rows and columns, as many of both."""
        self.mesh = mesh
        self.row, self.column = (int(each) for each in mesh.get_coordinate() or ())
        self.side = int(mesh.size(0))
        self.along_row, self.along_column = mesh.get_group(1), mesh.get_group(0)
        """Ranks of this one's row, and of its column."""

    def spread(self, weight: torch.Tensor, placements: Sequence[Any]) -> nn.Parameter:
        """A whole parameter as the blocks of all ranks."""
        spread = distribute_tensor(weight.data, self.mesh, placements)
        return nn.Parameter(spread, requires_grad=weight.requires_grad)

    def of_column(self, block: torch.Tensor, column: int) -> torch.Tensor:
        """What the rank of this row in that column has."""
        return _passed(block, column, self.column, self.along_row)

    def of_row(self, block: torch.Tensor, row: int) -> torch.Tensor:
        """What the rank of this column in that row has."""
        return _passed(block, row, self.row, self.along_column)

    def to_column(self, part: torch.Tensor, column: int) -> torch.Tensor | None:
        """The sum over this row, on its rank in that column."""
        distributed.reduce(part, group_dst=column, group=self.along_row)
        return part if column == self.column else None

    def to_row(self, part: torch.Tensor, row: int) -> torch.Tensor | None:
        """The sum over this column, on its rank in that row."""
        distributed.reduce(part, group_dst=row, group=self.along_column)
        return part if row == self.row else None

    def swapped(self, block: torch.Tensor) -> torch.Tensor:
        """What the rank on the other side of the diagonal has."""
        if self.row == self.column:
            return block
        other = int(self.mesh.mesh[self.column, self.row])
        received, sent = torch.empty_like(block), block.contiguous()
        pair = [
            distributed.P2POp(distributed.isend, sent, other),
            distributed.P2POp(distributed.irecv, received, other),
        ]
        for work in distributed.batch_isend_irecv(pair):
            work.wait()
        return received


def _passed(block: torch.Tensor, place: int, own: int, group: Any) -> torch.Tensor:
    sent = (
        block.contiguous() if place == own else torch.empty_like(block, memory_format=torch.contiguous_format)
    )
    distributed.broadcast(sent, group_src=place, group=group)
    return sent


class _Product(torch.autograd.Function):  # type: ignore[misc]
    """``hidden @ weight.T`` in as many rounds as the grid has columns."""

    @staticmethod
    def forward(context: Any, hidden: torch.Tensor, weight: torch.Tensor, grid: GridRanks) -> torch.Tensor:
        context.save_for_backward(hidden, weight)
        context.grid = grid
        rows = hidden.flatten(0, -2)
        made = rows.new_zeros(len(rows), len(weight))
        for step in range(grid.side):
            made.addmm_(grid.of_column(rows, step), grid.of_row(weight, step).T)
        return made.view(*hidden.shape[:-1], -1)

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
        hidden, weight = context.saved_tensors
        grid: GridRanks = context.grid
        rows, back = hidden.flatten(0, -2), gradient.flatten(0, -2)
        of_rows, of_weight = torch.empty_like(rows), torch.empty_like(weight)
        for step in range(grid.side):
            left = grid.to_column(back @ grid.of_row(weight, step), step)
            right = grid.to_row(back.T @ grid.of_column(rows, step), step)
            of_rows = of_rows if left is None else left
            of_weight = of_weight if right is None else right
        return of_rows.view_as(hidden), of_weight, None


class _Rows(torch.autograd.Function):  # type: ignore[misc]
    """Rows of a table whose blocks go round the column."""

    @staticmethod
    def forward(context: Any, tokens: torch.Tensor, table: torch.Tensor, grid: GridRanks) -> torch.Tensor:
        context.save_for_backward(tokens, table)
        context.grid = grid
        found = table.new_zeros(*tokens.shape, table.shape[1])
        for step in range(grid.side):
            places, here = _in_block(tokens, step, len(table))
            block = grid.of_row(table, step)
            found += functional.embedding(places, block) * here.unsqueeze(-1)
        return found

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> tuple[None, torch.Tensor, None]:
        tokens, table = context.saved_tensors
        grid: GridRanks = context.grid
        of_table = torch.empty_like(table)
        for step in range(grid.side):
            places, here = _in_block(tokens, step, len(table))
            part = torch.zeros_like(table)
            part.index_add_(0, places.flatten(), (gradient * here.unsqueeze(-1)).flatten(0, -2))
            summed = grid.to_row(part, step)
            of_table = of_table if summed is None else summed
        return None, of_table, None


def _in_block(tokens: torch.Tensor, step: int, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Places of tokens in a block of the table, and which of them are in it."""
    places = tokens - step * rows
    here = (places >= 0) & (places < rows)
    return torch.where(here, places, 0), here


class _Swapped(torch.autograd.Function):  # type: ignore[misc]
    """The block on the other side of the diagonal, whose gradient goes back there."""

    @staticmethod
    def forward(context: Any, block: torch.Tensor, grid: GridRanks) -> torch.Tensor:
        context.grid = grid
        return grid.swapped(block)

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return context.grid.swapped(gradient), None


class _Normed(torch.autograd.Function):  # type: ignore[misc]
    """Channels of a token over their root mean square, less their mean where ``centred``; both over the whole row."""

    @staticmethod
    def forward(
        context: Any, hidden: torch.Tensor, grid: GridRanks, centred: bool, epsilon: float
    ) -> torch.Tensor:
        wide, channels = hidden.float(), hidden.shape[-1] * grid.side

        def mean(values: torch.Tensor) -> torch.Tensor:
            total = values.sum(-1, keepdim=True)
            distributed.all_reduce(total, group=grid.along_row)
            return total / channels

        if centred:
            wide = wide - mean(wide)
        scale = torch.rsqrt(mean(wide.square()) + epsilon)
        normed = (wide * scale).to(hidden.dtype)
        context.save_for_backward(normed, scale)
        context.grid, context.centred = grid, centred
        return normed

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        normed, scale = context.saved_tensors
        wide, of_normed = normed.float(), gradient.float()
        sums = torch.cat((of_normed.sum(-1, keepdim=True), (of_normed * wide).sum(-1, keepdim=True)), dim=-1)
        distributed.all_reduce(sums, group=context.grid.along_row)
        mean, along = (sums / (wide.shape[-1] * context.grid.side)).split(1, dim=-1)
        back = of_normed - wide * along - (mean if context.centred else 0.0)
        return (back * scale).to(gradient.dtype), None, None, None


class GridLinear(nn.Module):  # type: ignore[misc]
    """A linear layer of which each rank has a block."""

    def __init__(self, whole: nn.Linear, grid: GridRanks) -> None:
        super().__init__()
        self.grid = grid
        self.weight = grid.spread(whole.weight, BY_ROWS_AND_COLUMNS)
        self.bias = None if whole.bias is None else grid.spread(whole.bias, OF_COLUMNS)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        made = _Product.apply(hidden, self.weight.to_local(), self.grid)
        return made if self.bias is None else made + of_columns(self.bias)


class GridNorm(nn.Module):  # type: ignore[misc]
    """A norm over the channels of a row of ranks."""

    def __init__(self, whole: Any, grid: GridRanks) -> None:
        super().__init__()
        self.grid, self.centred = grid, isinstance(whole, nn.LayerNorm)
        self.epsilon = whole.eps if whole.eps is not None else torch.finfo(torch.float32).eps
        for name in ("weight", "bias"):
            own = getattr(whole, name, None)
            setattr(self, name, None if own is None else grid.spread(own, OF_COLUMNS))

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        normed = _Normed.apply(hidden, self.grid, self.centred, self.epsilon)
        normed = normed if self.weight is None else normed * of_columns(self.weight)
        return normed if self.bias is None else normed + of_columns(self.bias)


class HeadNorm(nn.Module):  # type: ignore[misc]
    """A norm of the width of a head, whole on every rank, which sees some sequences and some heads."""

    def __init__(self, whole: nn.RMSNorm, grid: GridRanks) -> None:
        super().__init__()
        self.width, self.epsilon = whole.normalized_shape, whole.eps
        self.weight = grid.spread(whole.weight, WHOLE)

    def forward(self, heads: torch.Tensor) -> torch.Tensor:
        weight = self.weight.to_local(grad_placements=(Partial(), Partial()))
        return functional.rms_norm(heads, self.width, weight, self.epsilon)


class GridEmbedding(nn.Module):  # type: ignore[misc]
    """The embedding: vocabulary by rows, channels by columns; a tied head multiplies by it."""

    def __init__(self, whole: Embedding, grid: GridRanks) -> None:
        super().__init__()
        self.grid = grid
        self.weight = grid.spread(whole.weight, (Shard(0), Shard(1)))
        for name in ("positions", "types"):
            table = getattr(whole, name)
            setattr(self, name, None if table is None else grid.spread(table, (Replicate(), Shard(1))))
        self.norm = grid_norm(whole.norm, grid)
        self.bias = None if whole.bias is None else grid.spread(whole.bias, OF_COLUMNS)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        if inputs.is_floating_point():
            weight = _Swapped.apply(self.weight.to_local(), self.grid)
            logits = _Product.apply(inputs, weight, self.grid)
            return of_row_ranks(logits if self.bias is None else logits + of_columns(self.bias), self.grid)
        hidden = _Rows.apply(inputs, self.weight.to_local(), self.grid)
        if self.positions is not None:
            hidden = hidden + of_columns(self.positions, 1)[: inputs.shape[1]]
        if self.types is not None:
            hidden = hidden + of_columns(self.types, 1)[0]
        return self.norm(hidden)


class GridHead(GridLinear):
    """The output layer of an untied head."""

    def forward(self, hidden: torch.Tensor) -> Any:
        return of_row_ranks(super().forward(hidden), self.grid)


def of_row_ranks(logits: torch.Tensor, grid: GridRanks) -> DTensor:
    """The logits of a row's ranks together, for a loss that never has all of a token's."""
    return DTensor.from_local(logits, grid.mesh["tensor"], (Shard(logits.ndim - 1),))


def of_columns(parameter: Any, dimension: int = 0) -> torch.Tensor:
    """This rank's channels of what all rows have; gradients are added up over the rows."""
    local: torch.Tensor = parameter.to_local(grad_placements=(Partial(), Shard(dimension)))
    return local


def grid_norm(whole: Any, grid: GridRanks) -> nn.Module:
    """A norm of the hidden width over a row; nothing where there is none."""
    return GridNorm(whole, grid) if isinstance(whole, nn.LayerNorm | nn.RMSNorm) else whole


def split_on_grid(module: nn.Module, mesh: DeviceMesh) -> nn.Module:
    """A module of the model with a block of each parameter on every rank of the mesh, most of them in place."""
    grid = GridRanks(mesh)
    if isinstance(module, Embedding):
        return GridEmbedding(module, grid)
    if isinstance(module, Head):
        module.project = GridHead(module.project, grid)
    for name, part in list(module.named_modules()) if isinstance(module, Layer | Finish) else ():
        above, _, own = name.rpartition(".")
        if isinstance(part, nn.Linear):
            setattr(module.get_submodule(above), own, GridLinear(part, grid))
        elif own in ("norm_query", "norm_key"):
            if isinstance(part, nn.RMSNorm):
                setattr(module.get_submodule(above), own, HeadNorm(part, grid))
        else:
            changed = grid_norm(part, grid)
            if changed is not part:
                setattr(module.get_submodule(above), own, changed)
    return module
