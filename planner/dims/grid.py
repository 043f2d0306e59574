"""Tensor grids: matrices divided by rows and columns over the devices of a replica (SUMMA), in layers of a depth.

Two dimensions are Optimus (arXiv:2104.05343), with a depth Tesseract and SUMMA 2.5 (arXiv:2105.14500). They compute
what one device would. A layer of the depth has all weights and sequences of its own, as a replica has, so that the
search needs none: two replicas of 2 x 2 do what one of 2 x 2 x 2 does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from planner.capabilities import Capabilities
from planner.cluster.spec import ClusterSpec
from planner.cluster.topology import DeviceType
from planner.dims.dimension import Change, Dimension, node_devices
from planner.dims.trained import dealt_whole
from planner.model.spec import ModelSpec
from planner.plan.values import Fault, Grid, Plan, groups_of


class TensorGrid(Dimension):
    """``Plan.grid``."""

    fields = ("Plan.grid",)

    def traits(self, plan: Plan) -> dict[str, str]:
        """Its rows, columns and depth."""
        return {} if plan.grid is None else {"grid": str(plan.grid)}

    def words(self, plan: Plan) -> str:
        """The same."""
        return "" if plan.grid is None else f"grid {plan.grid}"

    def rules(self, plan: Plan, target: Capabilities, model: ModelSpec) -> Iterator[Fault]:
        """A runtime that has it, plans of one stage, and a model and micro-batches that the grid divides."""
        grid = plan.grid
        if grid is None:
            return
        if not target.grids:
            what = f"{target.name} divides matrices in one dimension, expected a number of devices"
            yield Fault(("grid",), f"{what}, got {grid} (torch has grids)")
            return
        if plan.pp > 1:
            yield Fault(("stages",), f"grids train whole models, expected 1 stage, got {plan.pp}")
        for key, others, usual in (
            ("cp", plan.cp > 1, "sequences whole"),
            ("offload", plan.offload.anything, "everything on the devices"),
            ("sync", not plan.sync.exact, "whole gradients in every step"),
            (
                "sequence_parallel",
                plan.sequence_parallel,
                "no sequence parallelism, as they split activations anyway",
            ),
        ):
            if others:
                yield Fault((key,), f"grids are for plans with {usual}")
        if plan.stages[0].recompute == "selective":
            what = "grids recompute all of a layer or nothing, expected none or full"
            yield Fault(("stages", 0, "recompute"), f"{what}, got selective")
        for inside, what in grid_faults(grid, target, model):
            yield Fault(("grid", *inside), what)
        yield from uneven(plan, grid)

    def host_rules(self, plan: Plan, cluster: ClusterSpec) -> Iterator[Fault]:
        """Grids that lie in a node or fill nodes."""
        grid = plan.grid
        if grid is None:
            return
        per_node = node_devices(cluster)
        for _, group in groups_of(plan):
            here = per_node[group.pool, group.gpu]
            if not stands(grid, here):
                what = f"expected a grid that lies in a node of {here} {group.gpu} or fills nodes"
                yield Fault(("grid",), f"{what}, with each layer of its depth, got {grid}")

    def neighbours(
        self, plan: Plan, target: Capabilities, device_types: Sequence[DeviceType]
    ) -> Iterator[Change]:
        """The same devices in one dimension, where they are on one node."""
        if plan.grid is None:
            return
        within = all(
            group.tp <= device_type.per_node
            for _, group in groups_of(plan)
            for device_type in device_types
            if device_type.key == (group.pool, group.gpu)
        )
        if within:
            tp = plan.grid.devices
            yield Change("grid", f"tp {tp} instead of a grid", replace(plan, grid=None))


def uneven(plan: Plan, grid: Grid) -> Iterator[Fault]:
    """Micro-batches that the rows of a grid, in all layers of its depth, cannot share evenly."""
    for path, group in groups_of(plan):
        if group.local_batch % group.accumulation_steps or group.micro_batch % grid.lines:
            ways = f"{grid.rows} rows" + (f" x depth {grid.depth}" if grid.depth > 1 else "")
            what = f"{ways} do not divide {group.local_batch} sequences in {group.accumulation_steps} micro-batches"
            yield Fault((*path, "micro_batch"), f"{what}, expected multiples of {grid.lines} in each")


def stands(grid: Grid, per_node: int) -> bool:
    """True when replicas of such a grid, and the layers of its depth, lie in nodes of so many devices or fill them."""
    if grid.devices <= per_node:
        return True
    return grid.devices % per_node == 0 and (per_node % grid.layer == 0 or grid.layer % per_node == 0)


def grid_faults(grid: Grid, target: Capabilities, model: ModelSpec) -> Iterator[tuple[tuple[str, ...], str]]:
    """(key of the grid, what) that keeps a target from training the model on it, whatever the rest of the plan."""
    side = grid.columns
    if grid.rows != side:
        what = "SUMMA passes square blocks on, expected as many rows as columns"
        yield ("rows",), f"{what}, got {grid.rows} and {side}"
        return
    for what, number in (
        ("attention heads", model.heads),
        ("key/value heads", model.kv_heads),
        ("channels of the hidden width", model.hidden),
        ("channels of the feed-forward", model.common_ffn),
        ("entries of the vocabulary", model.vocab),
    ):
        if number % side:
            hint = f", pad it to {-(-number // side) * side}" if "vocabulary" in what else ""
            yield ("columns",), f"{side} columns do not divide the {number} {what}{hint}"
    strange = _strange(model)
    if strange:
        yield (), f"hetplan trains no {strange} on grids, expected a tp in one dimension"
    if model.training.optimizer in target.whole_optimizers:
        what = f"{target.name} updates whole matrices with {model.training.optimizer}"
        yield (), f"{what}, expected no grid"


def _strange(model: ModelSpec) -> str:
    """What of the model the example's layers do not divide by rows and columns; empty for nothing."""
    reasons = {
        "experts": model.experts is not None,
        "layers with a state": bool(model.states),
        "blocks of unlike layers": bool(model.block or model.ahead or model.behind),
        "models of images or sound": bool(model.front),
        "heads of labels": model.labels is not None,
        "matrices beside the layers": bool(model.beside),
        "towers": model.tower is not None,
        "encoder-decoders": model.encoder is not None,
        "relative positions": model.relative_positions > 0,
        "biases of values without those of keys": model.qkv_bias and not model.key_bias,
        "adapters or frozen parts": bool(model.frozen),
        "documents or pairs of answers": dealt_whole(model),
        "products in fp8": model.training.precision == "fp8",
        "gated attention": model.output_gate,
        "attention with sinks": bool(model.sinks),
        "latent attention": model.latent is not None,
        "values of another width than keys": model.value_dim is not None,
        "norms of queries over all heads": model.qk_norm == "whole",
        "embeddings of another width": model.embedding_width != model.hidden,
    }
    return next((name for name, there in reasons.items() if there), "")
