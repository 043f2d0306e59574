"""Exchange between islands of replicas: local SGD, DiLoCo (arXiv:2311.08105), compressed gradients.

They change what is learnt, so that a search has none of them unless it is asked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations

from planner.capabilities import Capabilities
from planner.cluster.spec import ClusterSpec
from planner.cluster.topology import DeviceType, HostTopology
from planner.dims.dimension import Change, Dimension
from planner.errors import PlanError
from planner.model.spec import ModelSpec
from planner.plan.placement import place
from planner.plan.values import EXACT, Fault, Plan, Sync, groups_of, with_commas


class Synchronisation(Dimension):
    """``Plan.sync``."""

    fields = ("Plan.sync",)

    def traits(self, plan: Plan) -> dict[str, str]:
        """What islands exchange, where that is not everything in every step."""
        return {} if plan.sync.exact else {"islands": sync_text(plan.sync)}

    def words(self, plan: Plan) -> str:
        """The same."""
        return "" if plan.sync.exact else f"islands exchange {sync_text(plan.sync)}"

    def rules(self, plan: Plan, target: Capabilities, model: ModelSpec) -> Iterator[Fault]:
        """A runtime that has it, islands of whole replicas, and factors smaller than the matrices."""
        sync = plan.sync
        if sync.exact:
            return
        lacking = [kind for kind in sync.kinds if kind not in target.syncs]
        if lacking:
            what = (
                f"{target.name} exchanges whole gradients in every step, expected no {with_commas(lacking)}"
            )
            yield Fault(("sync",), what)
            return
        if plan.pp > 1:
            yield Fault(("stages",), f"islands train whole models, expected 1 stage, got {plan.pp}")
        if plan.shard_size is not None:
            what = f"islands shard over all their replicas, expected none, got {plan.shard_size}"
            yield Fault(("shard_size",), what)
        if plan.offload.anything:
            yield Fault(("offload",), "replicas of islands keep everything on the devices, expected none")
        if plan.cp > 1:
            yield Fault(("cp",), f"replicas of islands have whole sequences, expected 1, got {plan.cp}")
        for path, group in groups_of(plan):
            if group.tp > 1:
                what = f"replicas of islands are one device each, expected 1, got {group.tp}"
                yield Fault((*path, "tp"), what)
        yield from model_faults(sync, model)
        yield from _pools(plan)

    def host_rules(self, plan: Plan, cluster: ClusterSpec) -> Iterator[Fault]:
        """Two islands at least, and links between all of them."""
        sync = plan.sync
        if sync.exact:
            return
        try:
            slots = place(plan, cluster)[0]
        except PlanError:  # too few devices, which is a fault of its own
            return
        island_pools = {
            sync.island_of(slot.pool, node): slot.pool
            for slot in slots
            for node in range(slot.first_node, slot.first_node + slot.nodes)
        }
        if len(island_pools) < 2:
            yield Fault(("sync", "islands"), "one island has nobody to exchange with, expected at least two")
        topology = HostTopology(cluster)
        for first, last in combinations(sorted({*island_pools.values()}), 2):
            if not topology.path(first, last).connected:
                what = "no Ethernet in common and no chain of links: their islands cannot exchange"
                yield Fault(("sync", "islands"), f"the pools {first} and {last} have {what}")
                return

    def neighbours(
        self, plan: Plan, target: Capabilities, device_types: Sequence[DeviceType]
    ) -> Iterator[Change]:
        """Whole gradients in every step."""
        if not plan.sync.exact:
            yield Change("sync", "whole gradients in every step", replace(plan, sync=EXACT))


def _pools(plan: Plan) -> Iterator[Fault]:
    """Islands that have each pool of the plan once, and no other."""
    named = [pool for pools in plan.sync.islands for pool in pools]
    used = {group.pool for _, group in groups_of(plan)}
    path = ("sync", "islands")
    if not named:
        return
    twice = sorted({pool for pool in named if named.count(pool) > 1})
    if twice:
        yield Fault(path, f"a pool belongs to one island, got more than once: {with_commas(twice)}")
    if missing := sorted(used - {*named}):
        yield Fault(path, f"expected every pool of the plan in an island, missing: {with_commas(missing)}")
    if idle := sorted({*named} - used):
        yield Fault(path, f"expected pools with replicas of the plan, got {with_commas(idle)}")


def model_faults(sync: Sync, model: ModelSpec) -> Iterator[Fault]:
    """Exchanges that no plan of a model can have: rests of gradients in fp16, factors larger than every matrix."""
    if model.training.precision == "fp16" and (sync.rank is not None or sync.ratio is not None):
        what = (
            "what is left of gradients waits for steps with another loss scale in fp16, expected bf16 or fp32"
        )
        yield Fault(("sync",), what)
    if sync.rank is None:
        return
    if model.frozen:
        what = "hetplan has factors for gradients of whole models only, expected none"
        yield Fault(("sync", "rank"), f"{what}, got {sync.rank}")
    narrow = max((min(shape) for _, shapes in layers_matrices(model) for shape in shapes), default=0)
    if sync.rank > narrow:
        what = f"the matrices of {model.name} have at most rank {narrow}"
        yield Fault(("sync", "rank"), f"{what}, expected no more, got {sync.rank}")


def matrices(model: ModelSpec) -> list[tuple[int, int]]:
    """Rows and columns of the matrices of one layer, as the example has them."""
    hidden, values = model.hidden, model.heads * model.value_width
    queries, pairs = (hidden, model.heads * model.head_dim), (hidden, model.projected_pairs)
    shapes = [queries, pairs, (values, hidden)] if model.attends else []
    return shapes + [(hidden, model.common_ffn)] * model.mlp_matrices if model.common_ffn else shapes


def layers_matrices(model: ModelSpec) -> list[tuple[int, list[tuple[int, int]]]]:
    """(layers, their matrices) of each kind of layer."""
    inner = [(model.layers * run.layers, run.kind) for run in model.runs] or [(model.layers, model)]
    outer = [(run.layers, run.kind) for run in (*model.first_runs, *model.last_runs)]
    return [(count, matrices(kind)) for count, kind in (*inner, *outer)]


def factors(rank: int, model: ModelSpec, elements: float) -> tuple[float, float, float]:
    """Elements of both factors of all gradients, and of the gradients that are smaller than theirs would be."""
    rows = columns = taken = 0.0
    ends = [] if model.front else [(model.vocab, model.embedding_width)]
    ends += [] if model.tied_embeddings else [(model.outputs, model.hidden)]
    for count, shapes in (*layers_matrices(model), (1, ends)):
        for high, low in shapes:
            if rank * (high + low) < high * low:
                rows, columns = rows + count * rank * high, columns + count * rank * low
                taken += count * high * low
    return rows, columns, max(0.0, elements - taken)


def sync_text(sync: Sync) -> str:
    """``every 500 steps (diloco, int8)``, ``gradients by rank 4``, ``gradients in bf16``."""
    if sync.local:
        narrow = "" if sync.format == "fp32" else f", {sync.format}"
        return f"every {sync.every} steps ({sync.method}{narrow})"
    if sync.rank is not None:
        return f"gradients by rank {sync.rank}"
    return f"gradients in {sync.format}" if sync.ratio is None else f"{sync.ratio:.3g} of the gradients"


def with_islands(sync: Sync, islands: Sequence[Sequence[str]], plan: Plan) -> Plan:
    """The plan whose islands are these, those of them that it uses."""
    used = {group.pool for _, group in groups_of(plan)}
    kept = (tuple(pool for pool in pools if pool in used) for pools in islands)
    return replace(plan, sync=replace(sync, islands=tuple(pools for pools in kept if pools)))
