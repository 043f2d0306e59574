"""Cluster, model and plan of one measured row."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from planner import catalog
from planner.cluster.file import catalogue_gpu, catalogue_link, load_cluster
from planner.cluster.spec import ClusterSpec, FabricSpec, HostSpec, IntraNodeSpec, NicSpec, PoolSpec
from planner.errors import PlanError, Problem, SpecError
from planner.files.document import fail_on
from planner.files.messages import nearest
from planner.files.short_lists import numbered_hosts
from planner.measured.cells import NumberedRow
from planner.measured.row import Row, columns
from planner.model.file import load_model
from planner.model.spec import ModelSpec, TrainingSpec
from planner.plan.file import load_plan
from planner.plan.values import Offload, Plan, ReplicaGroup, Stage
from planner.ranges import DEVICES, NODE_DEVICES

LATENCY_US = {"infiniband": 5.0, "roce": 5.0, "ethernet": 30.0}
"""Latency of one message between two nodes, microseconds (assumed; no source states it)."""
_UNUSED = IntraNodeSpec(bandwidth_gBps=15.75, latency_us=5.7, shared=True)
"""Network inside nodes of one device; carries nothing."""
_TRAINING = columns("sequence_length", "dropout")
"""Columns that also replace what a model file says of the training."""

T = TypeVar("T")


def cluster_problems(item: NumberedRow) -> list[Problem]:
    """What keeps the row from naming a cluster."""
    row = item.row
    if row.cluster_file:
        return _beside(item, "cluster_file", "gpu", "nvme_gBps")
    found = _missing(item, "cluster_file", "gpu")
    if row.gpu and not _known(catalog.gpu, row.gpu):
        names = [*catalog.gpus_like(row.gpu), *catalog.gpu_names()]
        hint = f"one of: {', '.join(catalog.gpus_like(row.gpu))}" if catalog.gpus_like(row.gpu) else None
        what = f'expected a GPU of the catalogue, got "{row.gpu[:60]}"'
        found.append(item.problem("gpu", what, hint or nearest(row.gpu, names)))
    if row.intra_node and not _known(catalog.link, row.intra_node):
        names = list(catalog.link_names())
        hint = nearest(row.intra_node, names) or f"one of: {', '.join(names)}"
        what = f'expected a link of the catalogue, got "{row.intra_node[:60]}"'
        found.append(item.problem("intra_node", what, hint))
    return found + _network_problems(item)


def _network_problems(item: NumberedRow) -> list[Problem]:
    row, found = item.row, []
    if row.gpus_per_node is None and row.tp * row.depth * row.dp % row.nodes:
        what = f"missing, {row.tp * row.depth * row.dp} devices do not spread evenly over {row.nodes} nodes"
        found.append(item.problem("gpus_per_node", what))
    if row.devices_per_node > NODE_DEVICES.most:
        what = f"{row.devices_per_node} devices a node, expected at most {NODE_DEVICES.most}"
        found.append(item.problem("nodes", what))
    elif row.nodes * row.devices_per_node > DEVICES.most:
        what = f"{row.nodes} nodes of {row.devices_per_node} devices, expected at most {DEVICES.most} devices"
        found.append(item.problem("nodes", what))
    if row.devices_per_node > 1 and not row.intra_node:
        what = f"missing, the nodes have {row.devices_per_node} devices"
        found.append(item.problem("intra_node", what, "e.g. nvlink3"))
    for column, value in (("fabric", row.fabric), ("nic_gbps", row.nic_gbps)):
        if value is None and row.nodes > 1:
            found.append(item.problem(column, f"missing, the run has {row.nodes} nodes"))
    return found


def model_problems(item: NumberedRow) -> list[Problem]:
    """What keeps the row from naming a model and its training."""
    row = item.row
    if row.model_file:
        return _beside(item, "model_file", "model", "learned_positions")
    found = _missing(item, "model_file", "layers", "hidden", "heads", "vocab")
    found += _missing(item, "model_file", "sequence_length", "global_batch")
    if row.hidden and row.heads and row.head_dim is None and row.hidden % row.heads:
        found.append(item.problem("heads", f"expected a divisor of hidden {row.hidden}, got {row.heads}"))
    if row.kv_heads and row.heads and row.heads % row.kv_heads:
        found.append(item.problem("kv_heads", f"expected a divisor of heads {row.heads}, got {row.kv_heads}"))
    return found


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
    gpu, per_node = catalogue_gpu(row.gpu or ""), row.devices_per_node
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
    return ClusterSpec(name=name, gpus={gpu.name: gpu}, pools=(pool,), fabrics=fabrics)


def model_of(item: NumberedRow) -> ModelSpec:
    """The model of a row without model problems; raises SpecError for a bad model file."""
    row = item.row
    if row.model_file:
        model = _from_file(item, "model_file", row.model_file, load_model)
        own = row.model_dump(include=set(_TRAINING) & row.model_fields_set)
        return model.model_copy(update={"training": model.training.model_copy(update=own)})
    defaults = {
        "kv_heads": row.heads,
        "head_dim": (row.hidden or 0) // (row.heads or 1),
        "ffn": 4 * (row.hidden or 0),
    }
    shape = row.model_dump(include=set(columns("layers", "learned_positions")), exclude_none=True)
    training = TrainingSpec.model_validate(row.model_dump(include=set(_TRAINING)))
    return ModelSpec.model_validate({**defaults, **shape, "name": row.model, "training": training})


def plan_of(item: NumberedRow, cluster: ClusterSpec, model: ModelSpec) -> Plan:
    """The plan of a row; raises SpecError for a bad plan file, PlanError for a plan that cannot be."""
    row = item.row
    if row.plan_file:
        return _from_file(item, "plan_file", row.plan_file, lambda path: load_plan(path, cluster, model))
    pool = cluster.pools[0]
    if len(cluster.pools) > 1 or len(set(pool.devices)) > 1:
        fail_on([item.problem("plan_file", "missing, the cluster has several kinds of devices")])
    batch, together = model.training.global_batch, row.dp * row.micro_batch
    if batch % together:
        raise PlanError(f"the global batch {batch} does not divide by dp x micro-batch {together}")
    group = ReplicaGroup(
        pool=pool.name,
        gpu=pool.devices[0],
        tp=row.tp,
        count=row.dp,
        share=batch // row.dp,
        steps=batch // together,
    )
    return Plan(
        target=row.target,
        zero=row.zero,
        stages=_stages(row, group, model),
        interleave=row.interleave,
        sequence_parallel=row.sequence_parallel,
        offload=Offload(
            optimizer=row.offload_optimizer,
            parameters=row.offload_parameters,
            activations=row.offload_activations,
        ),
    )


def _stages(row: Row, group: ReplicaGroup, model: ModelSpec) -> tuple[Stage, ...]:
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
    return _UNUSED if name is None else catalogue_link(name)


def _nics(row: Row) -> tuple[NicSpec, ...]:
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
        return load(Path(item.file).parent / name)
    except SpecError as error:
        here = tuple(
            item.problem(column, str(problem)) if problem.line is None else problem
            for problem in error.problems
        )
        raise SpecError(here) from None
