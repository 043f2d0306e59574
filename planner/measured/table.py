"""Tables of measured runs, the published one and the user's own: rows, cells, and what a row stands for."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TypeVar, get_args

from pydantic import ConfigDict, Field, ValidationError

from planner import catalog
from planner.capabilities import ContextKind, CudaGraphs, OffloadTo, Recompute, TokenDispatcher
from planner.catalog import IntraNodeSpec
from planner.cluster.file import UNUSED_LINK, load_cluster
from planner.cluster.spec import ClusterSpec, FabricKind, FabricSpec, HostSpec, NicSpec, PoolSpec
from planner.errors import PlanError, Problem, SpecError, dotted
from planner.files.document import fail_on, file_beside, read_text
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
    figure,
)
from planner.files.messages import messages_of, nearest
from planner.files.nodes import resolve
from planner.files.short_lists import numbered_hosts
from planner.measured.values import MemoryOf, Run, Skipped, Table
from planner.model.file import load_model
from planner.model.spec import (
    AdapterTarget,
    Attention,
    BaseFormat,
    CrossEntropy,
    DocumentsSpec,
    GradientFormat,
    GradientSums,
    Kernels,
    LoraSpec,
    MasterWeights,
    ModelSpec,
    NormKernels,
    Optimizer,
    Precision,
    StateFormat,
    TrainingSpec,
    base_formats,
)
from planner.plan.checks import faults
from planner.plan.file import load_plan
from planner.plan.values import Fault, Offload, Plan, ReplicaGroup, Stage
from planner.ranges import DEVICES, LAYERS, NODE_DEVICES, STAGES
from planner.targets import NAMES, REFERENCE, in_words

if TYPE_CHECKING:
    _TargetName = str
else:
    _TargetName = Literal[NAMES]


Text = Annotated[str, Field(min_length=1)]
Cell = str | int | float | bool | None | list[str | int | float | bool | None]

_TEXTS = frozenset(
    {
        *("id", "source", "reference", "doubt", "inexpressible", "stack", "kernels"),
        *("gpu", "intra_node", "model", "kind", "cluster_file", "model_file", "plan_file"),
    }
)
"""Columns whose cells are never read as numbers."""
_TRUTH = {"yes": True, "no": False, "true": True, "false": False}
_SWITCHES = frozenset(
    {
        *("gated_mlp", "tied_embeddings", "dropout", "expert_overlap", "lora_dropout", "lora_keeps_inputs"),
        *("sequence_parallel", "fits"),
    }
)


class MeasuredRow(Frozen):
    """A measured run as it stands in the file; an absent or empty cell takes the default."""

    model_config = ConfigDict(use_attribute_docstrings=True)

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
    kernels: Kernels | None = None
    """Kernel set, as ``training.kernels`` of a model file; empty where the source is silent."""
    gpu: Text | None = None
    """Device type, a name of the catalogue."""
    nodes: Nodes = 1
    """Nodes."""
    gpus_per_node: NodeDevices | None = None
    """Devices of one node; tp x pp x dp / nodes when absent."""
    intra_node: Text | None = None
    """Network between the devices of a node, a name of the catalogue; needed from two devices on."""
    fabric: FabricKind | None = None
    """Network between nodes: nvlink, infiniband, roce or ethernet; needed from two nodes on."""
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
    kind: Literal["decoder", "encoder"] = "decoder"
    """decoder (causal attention) or encoder (full attention)."""
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
    """adamw, sgd, lion, muon or adafactor."""
    optimizer_states: StateFormat = "fp32"
    """Number format of the optimizer's moments: fp32, bf16 or int8."""
    master_weights: MasterWeights | None = None
    """Weights that the optimizer updates: fp32, split or bf16; the runtime's own when absent."""
    gradient_dtype: GradientFormat | None = None
    """Number format of kept gradients, fp32 or bf16; the runtime's own when absent."""
    reduce_dtype: GradientFormat | None = None
    """Number format in which gradients are added up over replicas, fp32 or bf16; the runtime's own when absent."""
    gradient_sums: GradientSums | None = None
    """Who adds a weight's gradient to its buffer: fused (the product) or apart; the kernel set's own when absent."""
    cross_entropy: CrossEntropy = "fused"
    """chunked, plain, fused or masked; published software seldom leaves the loss to plain torch."""
    norms: NormKernels = "fused"
    """fused (one kernel each) or unfused (operations one by one in fp32)."""
    attention: Attention = "flash"
    """flash or unfused."""
    cuda_graphs: CudaGraphs = "none"
    """What CUDA graphs launch: none, layers (their kernels) or step (all of it)."""
    token_dispatcher: TokenDispatcher = "alltoall"
    """How tokens travel to experts on other devices: alltoall, deepep or hybridep (once to a device and to a node)."""
    expert_overlap: bool = False
    """yes when they travel beside the computation of another micro-batch."""
    dropout: bool | None = None
    """yes when the layers keep dropout masks; yes without gated MLP when absent."""
    document_tokens: SequenceLength | None = None
    """Mean tokens of documents packed into sequences, each of which attends to itself; whole sequences when absent."""
    lora_rank: Width | None = None
    """Rank of the adapters that are trained alone (LoRA); the model itself is trained when absent."""
    lora_targets: (
        Annotated[tuple[AdapterTarget, ...], Field(min_length=1, max_length=20, strict=False)] | None
    ) = None
    """Linear layers that have adapters, separated by blanks; all but those of experts when absent."""
    lora_base: BaseFormat | None = None
    """Format of the linear layers under adapters: bf16, fp16, fp8, nf4 or nf4-double; the training's when absent."""
    lora_dropout: bool = False
    """yes where each adapter drops elements of its input."""
    lora_keeps_inputs: bool = False
    """yes where frozen layers keep what they take, as bitsandbytes' four-bit ones did until July 2024."""
    target: Annotated[
        _TargetName, Field(description=f"Runtime that the plan is for: {in_words(NAMES, 'or')}.")
    ] = REFERENCE.name
    tp: NodeDevices = 1
    """Devices of one tensor-parallel group."""
    pp: Stages | None = None
    """Pipeline stages; as many as ``stage_layers`` names, else 1."""
    dp: Devices = 1
    """Replicas of each stage."""
    ep: Devices = 1
    """Devices over which the experts of a layer are divided."""
    cp: Devices = 1
    """Replicas that share the tokens of their sequences; dp counts all that share them as one."""
    cp_kind: ContextKind = "ring"
    """ring or ulysses."""
    micro_batch: Batch = 1
    """Sequences of one micro-batch of one replica."""
    interleave: Layers = 1
    """Chunks of layers per device."""
    zero: ZeroStage = 0
    """ZeRO stage."""
    shard_size: Devices | None = None
    """Replicas that share one copy of what ZeRO shards (HSDP); all of them when absent."""
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
    peak_memory_of: MemoryOf = "device"
    """device: all that was in use; reserved: what the allocator had taken; tensors: what it had handed out."""
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

    @property
    def training(self) -> dict[str, object]:
        """Fields of the training section of a model file, as far as the row gives them."""
        given = self.model_dump(include=set(_TRAINING) & self.model_fields_set)
        if self.document_tokens is not None:
            given["documents"] = DocumentsSpec(mean_length=self.document_tokens)
        if self.lora_rank is not None:
            lora: dict[str, object] = {
                "rank": self.lora_rank,
                "targets": self.lora_targets,
                "base": self.lora_base,
                "dropout": self.lora_dropout,
                "keeps_inputs": self.lora_keeps_inputs,
            }
            given["lora"] = LoraSpec.model_validate(lora)
        return given


COLUMNS = tuple(MeasuredRow.model_fields)
"""Every column in the order of the published table."""


def columns(first: str, last: str) -> tuple[str, ...]:
    """The columns from ``first`` to ``last``."""
    return COLUMNS[COLUMNS.index(first) : COLUMNS.index(last) + 1]


_TRAINING = (*columns("sequence_length", "dropout"), "kernels")
"""Columns that are named as fields of the training are."""


def parse_row(cells: Mapping[str, str]) -> MeasuredRow | tuple[tuple[str, str, str | None], ...]:
    """The row of the texts by column, or (column, what, hint) of everything wrong with it."""
    data = {column: _value(column, text.strip()) for column, text in cells.items() if text.strip()}
    try:
        return MeasuredRow.model_validate(data)
    except ValidationError as error:
        return tuple(_row_problems(error, data))


def _row_problems(error: ValidationError, data: dict[str, Cell]) -> Iterator[tuple[str, str, str | None]]:
    seen = set()
    for item in messages_of(error, MeasuredRow, data):
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
    if column == "lora_targets" and isinstance(value, list):
        text = " ".join(str(part) for part in value)
        return f'expected linear layers ({", ".join(get_args(AdapterTarget))}) separated by blanks, got "{text[:60]}"'
    return what


def _value(column: str, text: str) -> Cell:
    if column in _TEXTS:
        return text
    if column == "stage_layers":
        return [_number(part) for part in text.split()]
    if column == "lora_targets":
        return list(text.split())
    if column in _SWITCHES:
        return _TRUTH.get(text.lower(), text)
    return _number(text)


def _number(text: str) -> str | int | float | bool | None:
    """A number where the text is one; spreadsheets write whole numbers with a fraction too."""
    value = resolve(text)
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**63:
        return int(value)
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else text


MOST_BYTES = 64 * 2**20
"""Largest table that is read."""


@dataclass(frozen=True, slots=True)
class NumberedRow:
    """A row of a table and where it stands."""

    file: str
    """Path of the table as the user wrote it."""
    line: int
    """1-based line on which the row begins."""
    row: MeasuredRow

    def problem(self, column: str, what: str, hint: str | None = None) -> Problem:
        """A problem of one cell."""
        return Problem(file=self.file, line=self.line, key=column, what=what, hint=hint)


def read_rows(path: Path) -> tuple[NumberedRow, ...]:
    """The rows of a table; raises SpecError with everything wrong with its header and cells."""
    records = list(_records(path))
    if not records:
        raise SpecError.of(path, "the file is empty", hint="the first line names the columns, e.g. id")
    line, names = records[0]
    header = [name.strip() for name in names]
    fail_on(_header_problems(path, line, header))
    rows: list[NumberedRow] = []
    problems: list[Problem] = []
    for line, cells in records[1:]:
        row = _row(path, line, header, cells)
        if isinstance(row, MeasuredRow):
            rows.append(NumberedRow(str(path), line, row))
        else:
            problems += row
    fail_on([*problems, *_repeated(rows)])
    if not rows:
        raise SpecError.of(path, "no run below the header")
    return tuple(rows)


def _row(path: Path, line: int, header: list[str], cells: list[str]) -> MeasuredRow | list[Problem]:
    if len(cells) != len(header):
        what = f"expected {len(header)} cells like the header, got {len(cells)}"
        hint = "put cells that contain a comma in double quotes"
        return [Problem(file=str(path), line=line, key="", what=what, hint=hint)]
    row = parse_row(dict(zip(header, cells, strict=True)))
    if isinstance(row, MeasuredRow):
        return row
    return [
        Problem(file=str(path), line=line, key=column, what=what, hint=hint) for column, what, hint in row
    ]


def _header_problems(path: Path, line: int, header: Sequence[str]) -> Iterator[Problem]:
    for name in dict.fromkeys(header):
        if name not in COLUMNS:
            what, hint = f'unknown column "{name[:60]}"', nearest(name, list(COLUMNS))
            if ";" in name or "\t" in name:
                hint = "separate the columns by commas"
            yield Problem(file=str(path), line=line, key="", what=what, hint=hint)
        elif header.count(name) > 1:
            yield Problem(file=str(path), line=line, key=name, what="the column appears twice")
    if "id" not in header:
        yield Problem(file=str(path), line=line, key="id", what="missing, expected a column of unique names")


def _repeated(rows: Sequence[NumberedRow]) -> Iterator[Problem]:
    seen: dict[str, int] = {}
    for item in rows:
        if item.row.id in seen:
            yield item.problem("id", f'"{item.row.id}" is already on line {seen[item.row.id]}')
        seen.setdefault(item.row.id, item.line)


def _records(path: Path) -> Iterator[tuple[int, list[str]]]:
    """(line, cells) of every record that is not blank."""
    reader = csv.reader(read_text(path, "CSV", MOST_BYTES).splitlines(keepends=True), strict=True)
    line = 1
    try:
        for cells in reader:
            if any(cell.strip() for cell in cells):
                yield line, cells
            line = reader.line_num + 1
    except csv.Error as error:
        raise SpecError.of(path, f"not CSV: {error}", "look for a quote that is not closed", line) from None


LATENCY_US = {"nvlink": 3.4, "infiniband": 5.0, "roce": 5.0, "ethernet": 30.0}
"""Latency of one message between two nodes, microseconds (assumed; no source states it)."""
T = TypeVar("T")


def cluster_problems(item: NumberedRow) -> list[Problem]:
    """What keeps the row from naming a cluster."""
    row = item.row
    if row.cluster_file:
        return _beside(item, "cluster_file", "gpu", "nvme_gBps")
    problems = _missing(item, "cluster_file", "gpu")
    if row.gpu and not _known(catalog.gpu, row.gpu):
        names = [*catalog.gpus_like(row.gpu), *catalog.gpu_names()]
        hint = f"one of: {', '.join(catalog.gpus_like(row.gpu))}" if catalog.gpus_like(row.gpu) else None
        what = f'expected a GPU of the catalogue, got "{row.gpu[:60]}"'
        problems.append(item.problem("gpu", what, hint or nearest(row.gpu, names)))
    if row.intra_node and not _known(catalog.link, row.intra_node):
        names = list(catalog.link_names())
        hint = nearest(row.intra_node, names) or f"one of: {', '.join(names)}"
        what = f'expected a link of the catalogue, got "{row.intra_node[:60]}"'
        problems.append(item.problem("intra_node", what, hint))
    return problems + _network_problems(item)


def _network_problems(item: NumberedRow) -> list[Problem]:
    row, problems = item.row, []
    if row.gpus_per_node is None and row.tp * row.depth * row.dp % row.nodes:
        what = f"missing, {row.tp * row.depth * row.dp} devices do not spread evenly over {row.nodes} nodes"
        problems.append(item.problem("gpus_per_node", what))
    if row.devices_per_node > NODE_DEVICES.most:
        what = f"{row.devices_per_node} devices a node, expected at most {NODE_DEVICES.most}"
        problems.append(item.problem("nodes", what))
    elif row.nodes * row.devices_per_node > DEVICES.most:
        what = f"{row.nodes} nodes of {row.devices_per_node} devices, expected at most {DEVICES.most} devices"
        problems.append(item.problem("nodes", what))
    if row.devices_per_node > 1 and not row.intra_node:
        what = f"missing, the nodes have {row.devices_per_node} devices"
        problems.append(item.problem("intra_node", what, "e.g. nvlink3"))
    for column, value in (("fabric", row.fabric), ("nic_gbps", row.nic_gbps)):
        if value is None and row.nodes > 1:
            problems.append(item.problem(column, f"missing, the run has {row.nodes} nodes"))
    return problems


def model_problems(item: NumberedRow) -> list[Problem]:
    """What keeps the row from naming a model and its training."""
    row = item.row
    problems = _lora_problems(item)
    if row.model_file:
        return problems + _beside(item, "model_file", "model", "learned_positions")
    problems += _missing(item, "model_file", "layers", "hidden", "heads", "vocab")
    problems += _missing(item, "model_file", "sequence_length", "global_batch")
    if row.hidden and row.heads and row.head_dim is None and row.hidden % row.heads:
        problems.append(item.problem("heads", f"expected a divisor of hidden {row.hidden}, got {row.heads}"))
    if row.kv_heads and row.heads and row.heads % row.kv_heads:
        problems.append(
            item.problem("kv_heads", f"expected a divisor of heads {row.heads}, got {row.kv_heads}")
        )
    return problems


def _lora_problems(item: NumberedRow) -> list[Problem]:
    row = item.row
    if row.lora_rank is None:
        what, given = "given without lora_rank", row.model_fields_set
        return [
            item.problem(column, what)
            for column in columns("lora_targets", "lora_keeps_inputs")
            if column in given
        ]
    if row.optimizer == "muon":
        return [item.problem("optimizer", "expected adamw, sgd, lion or adafactor with lora_rank, got muon")]
    return []


def plan_problems(item: NumberedRow) -> list[Problem]:
    """What keeps the row from naming a plan."""
    row = item.row
    if row.plan_file:
        return _beside(item, "plan_file", "target", "stage_layers")
    if row.stage_layers and row.pp and len(row.stage_layers) != row.pp:
        what = f"expected {row.pp} numbers, one for each stage, got {len(row.stage_layers)}"
        return [item.problem("stage_layers", what)]
    return []


def cluster_of(item: NumberedRow) -> ClusterSpec:
    """The cluster of a row without cluster problems; raises SpecError for a bad cluster file."""
    row = item.row
    if row.cluster_file:
        return _from_file(item, "cluster_file", row.cluster_file, load_cluster)
    gpu, per_node = catalog.gpu_spec(row.gpu or ""), row.devices_per_node
    pool = PoolSpec(
        name="pool",
        devices=(gpu.name,) * per_node,
        hosts=numbered_hosts("node", row.nodes),
        intra_node=_link(row.intra_node),
        nics=_nics(row),
        host=HostSpec(all_links_gBps=row.host_gBps, nvme_gBps=row.nvme_gBps),
    )
    fabrics: dict[str, FabricSpec] = {}
    if row.fabric:
        fabrics[row.fabric] = FabricSpec(kind=row.fabric, latency_us=LATENCY_US[row.fabric])
    name = f"{row.nodes}x{per_node}-{gpu.name}"
    # A measured run kept nothing free.
    return ClusterSpec(name=name, gpus={gpu.name: gpu}, pools=(pool,), fabrics=fabrics, reserve_gib=0.0)


def model_of(item: NumberedRow) -> ModelSpec:
    """The model of a row without model problems; raises SpecError for a bad model file, and for adapters of layers
    that the model lacks."""
    model = _model(item)
    linears = {name for kind in model.trained_kinds for name in (*kind.linears, *kind.expert_linears)}
    names = ", ".join(name for name in get_args(AdapterTarget) if name in linears)
    absent = [name for name in item.row.lora_targets or () if name not in linears]
    fail_on([item.problem("lora_targets", f"the layers have no {name}, expected {names}") for name in absent])
    base, precision = item.row.lora_base, model.training.precision
    able = base_formats(precision)
    if base is not None and base not in able:
        what = f"expected {', '.join(able)} with precision {precision}, got {base}"
        raise SpecError((item.problem("lora_base", what, "empty the cell"),))
    return model


def _model(item: NumberedRow) -> ModelSpec:
    row = item.row
    if row.model_file:
        model = _from_file(item, "model_file", row.model_file, load_model)
        return model.trained_with(**row.training)
    defaults = {
        "kv_heads": row.heads,
        "head_dim": (row.hidden or 0) // (row.heads or 1),
        "ffn": 4 * (row.hidden or 0),
    }
    shape = row.model_dump(include=set(columns("kind", "learned_positions")), exclude_none=True)
    training = TrainingSpec.model_validate({**row.model_dump(include=set(_TRAINING)), **row.training})
    return ModelSpec.model_validate({**defaults, **shape, "name": row.model, "training": training})


def plan_of(item: NumberedRow, cluster: ClusterSpec, model: ModelSpec) -> Plan:
    """The plan of a row; raises SpecError for a bad plan file, PlanError for a plan that cannot be."""
    row = item.row
    if row.plan_file:
        return _from_file(item, "plan_file", row.plan_file, lambda path: load_plan(path, cluster, model))
    pool = cluster.pools[0]
    if len(cluster.pools) > 1 or len(set(pool.devices)) > 1:
        fail_on([item.problem("plan_file", "missing, the cluster has several device types")])
    batch, together = model.training.global_batch, row.dp * row.micro_batch
    if batch % together:
        raise PlanError(f"the global batch {batch} does not divide by dp x micro-batch {together}")
    group = ReplicaGroup(
        pool=pool.name,
        gpu=pool.devices[0],
        tp=row.tp,
        count=row.dp * row.cp,
        local_batch=batch // row.dp,
        accumulation_steps=batch // together,
    )
    return Plan(
        target=row.target,
        zero=row.zero,
        shard_size=row.shard_size,
        stages=_stages(row, group, model),
        interleave=row.interleave,
        ep=row.ep,
        cp=row.cp,
        cp_kind=row.cp_kind,
        sequence_parallel=row.sequence_parallel,
        offload=Offload(
            optimizer=row.offload_optimizer,
            parameters=row.offload_parameters,
            activations=row.offload_activations,
        ),
    )


def _stages(row: MeasuredRow, group: ReplicaGroup, model: ModelSpec) -> tuple[Stage, ...]:
    if row.depth > model.layers:
        raise PlanError(f"{row.depth} stages for {model.layers} layers, expected at most one stage a layer")
    small, larger = divmod(model.layers, row.depth)
    layers = row.stage_layers or (small + 1,) * larger + (small,) * (row.depth - larger)
    stages, first = [], 0
    for number in layers:
        stages.append(
            Stage(first_layer=first, end_layer=first + number, replicas=(group,), recompute=row.recompute)
        )
        first += number
    return tuple(stages)


def _link(name: str | None) -> IntraNodeSpec:
    return UNUSED_LINK if name is None else catalog.link_spec(name)


def _nics(row: MeasuredRow) -> tuple[NicSpec, ...]:
    if row.fabric is None or row.nic_gbps is None:
        return ()
    return (NicSpec(fabric=row.fabric, bandwidth_gbps=row.nic_gbps, count=row.nics),)


def _known(look_up: Callable[[str], object], name: str) -> bool:
    try:
        look_up(name)
    except KeyError:
        return False
    return True


def _missing(item: NumberedRow, file: str, *columns: str) -> list[Problem]:
    absent = [column for column in columns if column not in item.row.model_fields_set]
    return [item.problem(column, f"missing, expected a value or {file}") for column in absent]


def _beside(item: NumberedRow, file: str, first: str, last: str) -> list[Problem]:
    what, hint = f"given beside {file}, expected one of the two", f"empty the cell or {file}"
    given = item.row.model_fields_set
    return [item.problem(column, what, hint) for column in columns(first, last) if column in given]


def _from_file(item: NumberedRow, column: str, name: str, load: Callable[[Path], T]) -> T:
    """What a file beside the table holds; one that cannot be read is a problem of the cell that names it."""
    try:
        return load(file_beside(Path(item.file), name))
    except SpecError as error:
        here = tuple(
            item.problem(column, str(problem)) if problem.line is None else problem
            for problem in error.problems
        )
        raise SpecError(here) from None


PUBLISHED = Path(__file__).with_name("data") / "published.csv"
"""Runs that papers, release notes and repositories publish."""


def load_table(path: Path) -> Table:
    """All rows of a table as runs, or skipped with the reason; raises SpecError with everything wrong in it.

    A row becomes no run when it says so (``inexpressible``) or when its plan breaks a rule of its target.
    """
    rows = read_rows(path)
    wanted = [item for item in rows if not item.row.inexpressible]
    fail_on([problem for item in wanted for problem in _problems(item)])
    made = _Made(path)
    outcomes = [made.outcome(item) for item in rows]
    fail_on(made.problems)
    return Table(
        runs=tuple(item for item in outcomes if isinstance(item, Run)),
        skipped=tuple(item for item in outcomes if isinstance(item, Skipped)),
    )


def _problems(item: NumberedRow) -> list[Problem]:
    row = item.row
    problems = [*cluster_problems(item), *model_problems(item), *plan_problems(item)]
    if row.step_seconds is None and row.peak_memory_bytes is None and row.fits:
        problems.append(item.problem("step_seconds", "missing, expected it, peak_memory_bytes, or fits no"))
    if row.step_seconds is not None and not row.fits:
        problems.append(item.problem("step_seconds", "given for a run that was out of memory (fits no)"))
    return problems


class _Made:
    """Runs made so far; equal clusters are made once."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.problems: list[Problem] = []
        self._clusters: dict[tuple[object, ...], ClusterSpec] = {}

    def outcome(self, item: NumberedRow) -> Run | Skipped | None:
        """The run of a row, or why there is none; None after a problem with a file that it names."""
        row, source = item.row, item.row.source or self.path.stem
        if row.inexpressible:
            return Skipped(id=row.id, source=source, reason=row.inexpressible)
        try:
            return self._run(item, source)
        except SpecError as error:
            self.problems += error.problems
        except PlanError as error:
            return Skipped(id=row.id, source=source, reason=error.message)
        return None

    def _run(self, item: NumberedRow, source: str) -> Run:
        row, cluster, model = item.row, self._cluster(item), model_of(item)
        plan = plan_of(item, cluster, model)
        broken = faults(plan, cluster, model)
        if broken:
            raise PlanError(_first(broken))
        return Run(
            id=row.id,
            source=source,
            reference=row.reference,
            stack=row.stack,
            cluster=cluster,
            model=model,
            plan=plan,
            step_seconds=row.step_seconds,
            peak_memory_bytes=row.peak_memory_bytes,
            peak_memory_of=row.peak_memory_of,
            fits=row.fits,
            doubt=row.doubt,
        )

    def _cluster(self, item: NumberedRow) -> ClusterSpec:
        row = item.row
        place = (row.cluster_file, row.gpu, row.nodes, row.devices_per_node, row.intra_node)
        key = (*place, row.fabric, row.nic_gbps, row.nics, row.host_gBps, row.nvme_gBps)
        if key not in self._clusters:
            self._clusters[key] = cluster_of(item)
        return self._clusters[key]


def _first(broken: Sequence[Fault]) -> str:
    """The first broken rule, and how many more there are."""
    fault, more = broken[0], len(broken) - 1
    where = f"{dotted(fault.path)}: " if fault.path else ""
    return f"{where}{fault.what}" + (f" (and {more} more)" if more else "")
