"""One row of a table of measured runs: its columns, their units, and what is wrong with its cells."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, ValidationError

from planner.cluster.spec import FabricKind
from planner.files.fields import (
    Batch,
    Bytes,
    Cards,
    Devices,
    FeedForward,
    Frozen,
    Heads,
    Layers,
    Name,
    NodeDevices,
    Nodes,
    OptionalRows,
    Rate,
    Rows,
    Seconds,
    SequenceLength,
    Stages,
    Width,
    ZeroStage,
)
from planner.files.messages import complaints, figure
from planner.files.nodes import resolve
from planner.model.spec import Attention, Optimizer, Precision
from planner.ranges import LAYERS, STAGES
from planner.runtimes.capabilities import OffloadTo, Recompute
from planner.runtimes.registry import NAMES, REFERENCE, in_words

if TYPE_CHECKING:
    _TargetName = str
else:
    _TargetName = Literal[NAMES]

Text = Annotated[str, Field(min_length=1)]
Cell = str | int | float | bool | None | list[str | int | float | bool | None]

_TEXTS = frozenset(
    {
        *("id", "source", "reference", "doubt", "inexpressible", "stack"),
        *("gpu", "intra_node", "model", "cluster_file", "model_file", "plan_file"),
    }
)
"""Columns whose cells are never read as numbers."""
_StageLayers = Annotated[tuple[Layers, ...], Field(min_length=1, max_length=int(STAGES.most), strict=False)]
_TRUTH = {"yes": True, "no": False, "true": True, "false": False}
_SWITCHES = frozenset({"gated_mlp", "tied_embeddings", "dropout", "sequence_parallel", "fits"})


class Row(Frozen):
    """A measured run as it stands in the file; an absent or empty cell takes the default."""

    id: Text
    """Unique in the file."""
    source: Text | None = None
    """Short name of the collection; the file's name when absent."""
    reference: str = ""
    """Paper, page or file that states the measurement."""
    doubt: str = ""
    """What the source leaves open, separated by semicolons."""
    inexpressible: str = ""
    """Why hetplan cannot describe the run; such a row is kept but skipped."""
    stack: str = ""
    """Framework as the source names it."""
    gpu: Text | None = None
    """Kind of device, a name of the catalogue."""
    nodes: Nodes = 1
    """Nodes."""
    gpus_per_node: NodeDevices | None = None
    """Devices of one node; tp x pp x dp / nodes when absent."""
    intra_node: Text | None = None
    """Network between the devices of a node, a name of the catalogue; needed from two devices on."""
    fabric: FabricKind | None = None
    """Network between nodes: infiniband, roce or ethernet; needed from two nodes on."""
    nic_gbps: Rate | None = None
    """Bandwidth of one network card, gigabit/s; needed from two nodes on."""
    nics: Cards = 1
    """Network cards of one node."""
    host_gBps: Rate | None = None
    """Copies between host memory and all devices of a node, one direction, gigabyte/s; the catalogue's when absent."""
    nvme_gBps: Rate | None = None
    """What a node reads from or writes to NVMe, gigabyte/s."""
    model: Name = "model"
    """Name of the model."""
    layers: Layers | None = None
    """Transformer layers."""
    hidden: Width | None = None
    """Width of the model."""
    heads: Heads | None = None
    """Attention heads."""
    kv_heads: Heads | None = None
    """Key/value heads; ``heads`` when absent."""
    head_dim: Width | None = None
    """Width of one head; ``hidden`` / ``heads`` when absent."""
    ffn: FeedForward | None = None
    """Width of the feed-forward layer; 4 x ``hidden`` when absent."""
    gated_mlp: bool = False
    """yes for SwiGLU-like layers with three matrices."""
    vocab: Rows | None = None
    """Tokens of the vocabulary."""
    tied_embeddings: bool = True
    """yes when the output layer reuses the input embedding."""
    learned_positions: OptionalRows = 0
    """Rows of a learned position table."""
    sequence_length: SequenceLength | None = None
    """Tokens of a sequence."""
    global_batch: Batch | None = None
    """Sequences of one optimizer step."""
    precision: Precision = "bf16"
    """Number format of the matrices' inputs: bf16, fp16, fp32, tf32 or fp8."""
    optimizer: Optimizer = "adamw"
    """adamw or sgd."""
    attention: Attention = "flash"
    """flash or unfused."""
    dropout: bool | None = None
    """yes when the layers keep dropout masks; yes without gated MLP when absent."""
    target: Annotated[
        _TargetName, Field(description=f"Runtime that the plan is for: {in_words(NAMES, 'or')}.")
    ] = REFERENCE.name
    tp: NodeDevices = 1
    """Devices of one tensor-parallel group."""
    pp: Stages | None = None
    """Pipeline stages; as many as ``stage_layers`` names, else 1."""
    dp: Devices = 1
    """Replicas of each stage."""
    micro_batch: Batch = 1
    """Sequences of one micro-batch of one replica."""
    interleave: Layers = 1
    """Chunks of layers per device."""
    zero: ZeroStage = 0
    """ZeRO stage."""
    recompute: Recompute = "none"
    """none, selective or full."""
    sequence_parallel: bool = False
    """yes when activations are split over the sequence inside tensor-parallel groups."""
    offload_optimizer: OffloadTo = "none"
    """Where optimizer states and gradients are kept: none (on the device), cpu or nvme."""
    offload_parameters: OffloadTo = "none"
    """Where parameters are kept: none, cpu or nvme."""
    offload_activations: OffloadTo = "none"
    """Where the checkpoints of full recomputation are kept: none or cpu."""
    stage_layers: (
        Annotated[tuple[Layers, ...], Field(min_length=1, max_length=int(STAGES.most), strict=False)] | None
    ) = None
    """Layers of each stage, separated by blanks; as even as possible when absent."""
    cluster_file: Text | None = None
    """Cluster file relative to this table, instead of gpu to nvme_gBps."""
    model_file: Text | None = None
    """Model file relative to this table, instead of model to learned_positions."""
    plan_file: Text | None = None
    """Plan file relative to this table, instead of target to stage_layers."""
    step_seconds: Seconds | None = None
    """Seconds of one optimizer step."""
    peak_memory_bytes: Bytes | None = None
    """Bytes in use on the fullest device."""
    fits: bool = True
    """no when the run was out of memory."""

    @property
    def depth(self) -> int:
        """Pipeline stages."""
        return self.pp or len(self.stage_layers or (0,))

    @property
    def devices_per_node(self) -> int:
        """Devices of one node; as many as the plan needs when the row does not say."""
        return self.gpus_per_node or max(1, self.tp * self.depth * self.dp // self.nodes)


COLUMNS = tuple(Row.model_fields)
"""Every column in the order of the published table."""


def columns(first: str, last: str) -> tuple[str, ...]:
    """The columns from ``first`` to ``last``."""
    return COLUMNS[COLUMNS.index(first) : COLUMNS.index(last) + 1]


def parse_row(cells: Mapping[str, str]) -> Row | tuple[tuple[str, str, str | None], ...]:
    """The row of the texts by column, or (column, what, hint) of everything wrong with it."""
    data = {column: _value(column, text.strip()) for column, text in cells.items() if text.strip()}
    try:
        return Row.model_validate(data)
    except ValidationError as error:
        return tuple(_problems(error, data))


def _problems(error: ValidationError, data: dict[str, Cell]) -> Iterator[tuple[str, str, str | None]]:
    seen = set()
    for item in complaints(error, Row, data):
        column = str(item.path[0])
        if column not in seen:
            yield column, _in_table_words(column, item.what, data.get(column)), item.hint
        seen.add(column)


def _in_table_words(column: str, what: str, value: Cell) -> str:
    if column in _SWITCHES:
        return f'expected yes or no, got "{value}"'
    if column == "stage_layers" and isinstance(value, list):
        text = " ".join(str(part) for part in value)
        return (
            f'expected whole numbers from 1 to {figure(LAYERS.most)} separated by blanks, got "{text[:60]}"'
        )
    return what


def _value(column: str, text: str) -> Cell:
    if column in _TEXTS:
        return text
    if column == "stage_layers":
        return [_number(part) for part in text.split()]
    if column in _SWITCHES:
        return _TRUTH.get(text.lower(), text)
    return _number(text)


def _number(text: str) -> str | int | float | bool | None:
    """A number where the text is one; spreadsheets write whole numbers with a fraction too."""
    value = resolve(text)
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**63:
        return int(value)
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else text
