"""Plans that the space leaves out, which a proof does not cover."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

from planner.capabilities import Capabilities
from planner.cluster.equal_pools import joined
from planner.cluster.spec import ClusterSpec
from planner.cluster.topology import DeviceType, Topology
from planner.cost.schedules import divides
from planner.dims.context import LEAST_TOKENS, offers_context
from planner.dims.expert import divides_experts
from planner.dims.grid import grid_faults
from planner.dims.offloading import OPTIMIZER_PARTS, are_superchips, has_nvme, not_ahead
from planner.dims.pipeline import MAX_INTERLEAVE
from planner.dims.sharding import MAX_SHARD_NODES, holds_groups
from planner.dims.tensor import splits, splits_sequence
from planner.dims.trained import dealt_whole, frozen_text, splits_frozen, undivided_text
from planner.dims.zero_plus import ROUNDED
from planner.frozen import record
from planner.model.spec import ModelSpec
from planner.plan.values import Grid
from planner.search.data_parallel import most_offered
from planner.search.space.choices import (
    MAX_DEPTH,
    batch_per_replica,
    most_types,
    offers,
    targets_of,
    usable_device_types,
)
from planner.search.space.multi_node import MOST_WIDE, wide_degrees, wide_pools
from planner.search.space.partitions import networks
from planner.search.values import Limits
from planner.units import divisors


def outside(
    cluster: ClusterSpec, model: ModelSpec, limits: Limits, *, subclusters: bool = False
) -> tuple[str, ...]:
    """Plans that a target could run there and that no search with these limits looks at, a few words each.

    ``subclusters``: numbers of devices come from a list of candidates.
    """
    rows = [row for row in targets_of(limits) if offers(row, model)]
    topology = Topology(cluster)
    if not rows or not usable_device_types(topology, model):
        return ()
    # Pools that are equal on one of a runtime's networks are one for its search.
    plans = [
        what
        for row in rows
        for seen in networks(row, topology).values()
        for what in _Left(row, usable_device_types(Topology(joined(seen)), model), model, limits).plans()
    ]
    if any(
        _tears_replicas(row, seen, model, limits) for row in rows for seen in networks(row, topology).values()
    ):
        plans.append("tensor-parallel groups over nodes of several equal pools")
    if _rdma_behind_ethernet(topology):
        plans.append("RDMA between nodes whose path over Ethernet carries more")
    if subclusters:
        plans.append("numbers of devices between those of the sub-clusters")
    return tuple(dict.fromkeys(plans))


def _tears_replicas(row: Capabilities, seen: ClusterSpec, model: ModelSpec, limits: Limits) -> bool:
    """True where equal pools as one had room for more replicas on several nodes: each of them lies in one pool."""
    own, as_one = Topology(seen), Topology(joined(seen))
    if len(own.cluster.pools) == len(as_one.cluster.pools):
        return False
    degrees = wide_degrees(row, limits, model, as_one)
    return any(_wide_nodes(as_one, tp) > _wide_nodes(own, tp) for tp in degrees)


def _wide_nodes(topology: Topology, tp: int) -> int:
    """Replicas of so many devices that have room, each on several nodes of a pool."""
    wide = wide_pools(topology, tp)
    return sum(len(pool.hosts) // wide[pool.name] for pool in topology.cluster.pools if pool.name in wide)


def _rdma_behind_ethernet(topology: Topology) -> bool:
    """True where nodes with cards on a common fabric with RDMA talk over Ethernet, since that carries more."""
    fabrics = topology.cluster.fabrics
    on: dict[str, set[str]] = {}
    for pool in topology.cluster.pools:
        on[pool.name] = {nic.fabric for nic in pool.nics if fabrics[nic.fabric].kind != "ethernet"}
    firsts = [names[:2] for names in topology.alike(name for name, own in on.items() if own)]
    several = {pool.name for pool in topology.cluster.pools if len(pool.hosts) > 1}
    pairs = [
        *((names[0], names[-1]) for names in firsts if len(names) > 1 or names[0] in several),
        *((one[0], two[0]) for one, two in combinations(firsts, 2)),
    ]
    return any(on[one] & on[two] and not topology.on_rdma(one, two) for one, two in pairs)


@record(frozen=True, slots=True)
class _Left:
    """What a search leaves out of the plans of a target on one of its networks."""

    row: Capabilities
    device_types: tuple[DeviceType, ...]
    model: ModelSpec
    limits: Limits

    @property
    def devices(self) -> int:
        """All of them."""
        return sum(device_type.devices for device_type in self.device_types)

    @property
    def pipelines(self) -> bool:
        """True where plans may have several stages."""
        several = min(self.model.layers, self.devices) > 1
        return several and (self.limits.pp is None or max(self.limits.pp) > 1)

    @property
    def tensor(self) -> bool:
        """True where plans may have tensor parallelism."""
        return self.row.tensor_parallel != "none" and (self.limits.tp is None or max(self.limits.tp) > 1)

    @property
    def grouped(self) -> bool:
        """True where plans may have stages whose replicas all have the same batch."""
        return self.pipelines or self.row.batch_without_pipeline == "equal" or self.unlike

    @property
    def unlike(self) -> bool:
        """True where tensor-parallel replicas could have unlike batches, and have none in the space."""
        return self.tensor and not batch_per_replica(self.row, self.model, 2)

    def plans(self) -> Iterator[str]:
        """All of it."""
        if self.device_types:
            yield from self._stages()
            yield from self._parts_of_layers()
            yield from self._replicas()
            yield from self._offloads()

    def _stages(self) -> Iterator[str]:
        """Pipelines, and where stages stand."""
        row, model, limits, pipelines = self.row, self.model, self.limits, self.pipelines
        several = any(each.nodes > 1 and each.per_node > 1 for each in self.device_types)
        deepest = min(model.layers, self.devices)
        if pipelines and deepest > MAX_DEPTH and (limits.pp is None or max(limits.pp) > MAX_DEPTH):
            yield f"pipelines of more than {MAX_DEPTH} stages"
        if pipelines and row.interleave and model.layers >= 2 * (MAX_INTERLEAVE + 1):
            yield f"more than {MAX_INTERLEAVE} layer chunks per device"
        divided = pipelines and not model.frozen
        if divided and any(divides(schedule) for schedule in row.schedules):
            yield "interleaved zero-bubble schedules"
        # Which stages share a node decides what crosses between nodes: sends, and the sums of tied embeddings.
        if pipelines and several:
            yield "stages on the nodes of their pool in another order than the pipeline's"
        if len(self.device_types) > 1 and row.dp_per_stage:
            yield "stages of several device types"
        elif len(self.device_types) > 1 and self.grouped:
            yield "stages that mix device types, except where they use up leftover devices"
            most = most_types(len(self.device_types))
            if most < len(self.device_types):
                yield f"stages that mix more than {most} device types"
        if pipelines and len(self.device_types) > 1 and self.devices > 3:
            yield "pipelines whose replicas divide the layers in ways of their own"
        if (self.grouped or self.tensor) and several:
            yield "stages spread over parts of several nodes"
        if pipelines and model.dense_layers:
            yield "dense layers on stages other than the first"
        if pipelines and model.tower is not None:
            yield "towers on stages other than the first"
        if pipelines and model.encoder is not None and row.encoder_decoders == "any":
            yield "an encoder, or a part of it, on stages other than the first"
        if pipelines and (model.ahead or model.behind):
            yield "layers before or after the blocks on stages other than the first and the last"
        if pipelines and model.block:
            yield f"stages that begin or end inside a block of {model.layers_each} layers"

    def _parts_of_layers(self) -> Iterator[str]:
        """Sequences, experts and matrices that are divided, and models that divide nothing."""
        row, model, limits, devices = self.row, self.model, self.limits, self.devices
        if devices > 1 and offers_context(row, model):
            if limits.cp is None:
                yield f"sequences divided into parts of fewer than {LEAST_TOKENS} tokens"
            yield "sequences divided over several device types, or over parts of several nodes"
        if model.experts is not None and row.experts == "parallel":
            yield "experts copied within a replica, or split over more devices than it has"
        if divides_experts(row, model) and devices > 1:
            yield "expert-parallel groups of several device types, or on parts of several nodes"
        most = max(device_type.per_node for device_type in self.device_types)
        left_over = (
            tp
            for device_type in self.device_types
            for tp in range(2, device_type.per_node)
            if device_type.nodes > 1 and device_type.per_node % tp
        )
        if self.pipelines and row.tensor_parallel != "none" and any(splits(model, tp) for tp in left_over):
            yield "stages on devices of a node that a tensor-parallel stage leaves over"
        if row.tensor_parallel_over_nodes and self.tensor:
            yield from self._over_nodes()
        if row.tensor_parallel == "per-stage" and any(
            splits(model, tp) and not splits_sequence(row, model, tp) for tp in range(2, most + 1)
        ):
            yield "tensor-parallel degrees that do not divide the sequence"
        degrees = (tp for tp in range(2, most + 1) if limits.tp is None or tp in limits.tp)
        if row.tensor_parallel != "none" and any(
            splits(model, tp) and splits_sequence(row, model, tp) for tp in degrees
        ):
            yield "tensor parallelism without sequence parallelism, where both can be had"
        if model.frozen and devices > 1 and row.frozen_parts:
            if any(divides(schedule) for schedule in row.schedules):
                yield f"schedules that divide the backward with {frozen_text(model)}"
            if row.tensor_parallel != "none" and not splits_frozen(row, model):
                yield f"tensor parallelism with {undivided_text((row,), model)}"
        if dealt_whole(model) and devices > 1 and row.documents and not offers_context(row, model):
            what = "pairs of answers" if model.training.preference else "documents"
            yield f"context parallelism with {what}"

    def _over_nodes(self) -> Iterator[str]:
        """Replicas that fill several nodes."""
        degrees = [
            tp
            for device_type in self.device_types
            for tp in range(2 * device_type.per_node, device_type.devices + 1, device_type.per_node)
            if splits(self.model, tp) and (self.limits.tp is None or tp in self.limits.tp)
        ]
        if degrees and self.model.experts is not None:
            yield "tensor-parallel groups on several nodes, of models with experts"
        elif any(tp > MOST_WIDE for tp in degrees):
            yield f"tensor-parallel groups of more than {MOST_WIDE} devices on several nodes"

    def _replicas(self) -> Iterator[str]:
        """Batches, and what replicas share or exchange."""
        row, model, limits, devices = self.row, self.model, self.limits, self.devices
        alone = limits.pp is None or 1 in limits.pp
        if (
            alone
            and row.batch_without_pipeline == "per-device"
            and model.training.global_batch > most_offered(model)
        ):
            yield f"micro-batches of more than {most_offered(model)} sequences"
        several = max(device_type.per_node for device_type in self.device_types) > 1
        divided = devices > 1 and limits.cp != (1,) and offers_context(row, model)
        if alone and row.batch_without_pipeline == "per-device":
            unequal = "batches or micro-batches of unequal size"
            if divided:
                yield f"replicas that share sequences, with {unequal}"
            if devices > 1 and limits.ep != (1,) and divides_experts(row, model):
                yield f"replicas that share experts, with {unequal}"
            if self.unlike and several:
                yield f"tensor-parallel replicas with {unequal}"
        if self.grouped and devices > 2 and row.fewer_steps_zero:
            yield "replicas whose numbers of micro-batches differ by more than one"
        if row.hybrid_zero and devices > 2 and model.training.optimizer in row.sharding_optimizers:
            sizes = {device_type.per_node for device_type in self.device_types} - {1}
            if not all(
                holds_groups(device_type, size) for device_type in self.device_types for size in sizes
            ):
                yield "HSDP groups that neither fit into a node nor fill whole nodes"
            nodes = sum(device_type.nodes for device_type in self.device_types)
            others = nodes > 2 or any(len(divisors(size)) > 2 for size in sizes)
            if self.grouped and others:
                yield "HSDP groups of parts of a node or of several nodes, of replicas with equal batches"
            if others and limits.ep != (1,) and divides_experts(row, model):
                yield "HSDP groups of parts of a node or of several nodes, of replicas that share experts"
            if sizes and sum(device_type.nodes for device_type in self.device_types) > 1:
                yield "HSDP groups on parts of several nodes"
            if len(self.device_types) > 1:
                yield "HSDP groups of several device types"
                if self.grouped:
                    yield "HSDP with stages that mix device types, of replicas with equal batches"
            if any(device_type.nodes > 2 * MAX_SHARD_NODES for device_type in self.device_types):
                yield f"HSDP groups of more than {MAX_SHARD_NODES} nodes that do not divide a device type evenly"
        if row.zero_plus and devices > 2 and (limits.zero is None or 3 in limits.zero):
            yield "second copies of the parameters in groups that are not an even part of a node"
            if not limits.quantised and model.training.precision in ROUNDED:
                yield "ZeRO 3 with quantised parameters or gradients (--allow-quantised-zero)"
        square = Grid(rows=2, columns=2)
        if row.grids and devices >= square.devices and not any(grid_faults(square, row, model)):
            yield (
                "tensor grids of several device types"
                if limits.grids
                else "tensor grids (--allow-tensor-grids)"
            )
        if limits.syncs and row.syncs:
            yield "islands of single nodes or of parts of a pool, and islands with ZeRO 1 to 3"
        if limits.backup and row.backup_zero:
            yield "backup replicas of several device types, of parts of several pools, or with unequal micro-batches"
        if limits.unequal_shards and row.unequal_shards:
            yield "unequal shards in other proportions, or among devices of one type"

    def _offloads(self) -> Iterator[str]:
        """What leaves the devices."""
        row, model, limits, able = self.row, self.model, self.limits, self.row.offloading
        if limits.offload is None and able != type(able)():
            yield "offloading"
        if limits.offload is not None and {*limits.offload} != {"none"}:
            whole = able.optimizer_zero and not able.in_pipeline
            if whole and self.unlike:
                yield f"offloading with tensor parallelism by {row.name}"
            if able.nvme_zero and "nvme" not in limits.offload and has_nvme(self.device_types):
                yield "offloading to NVMe (--offload nvme)"
            elif (
                able.nvme_zero
                and not has_nvme(self.device_types)
                and any(item.host.nvme_bytes_per_second is not None for item in self.device_types)
            ):
                yield "offloading to NVMe that only some nodes have"
            shares = able.ratio_zero and model.training.optimizer == "adamw"
            if shares and {*limits.offload} & {*OPTIMIZER_PARTS}:
                yield "shares of the optimizer in host memory other than tenths, or beside offloaded parameters"
            ahead = able.super_zero and are_superchips(self.device_types) and not not_ahead(model)
            if ahead and "super" not in limits.offload:
                yield "SuperOffload, which does not clip gradients (--offload super)"
            elif ahead and limits.cp != (1,) and offers_context(row, model):
                yield "SuperOffload with divided sequences"
