"""The price of one stage: seconds of a micro-batch, of the end of the step, and bytes, for given replicas."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cached_property, partial
from math import ceil
from typing import NamedTuple, cast

import numpy as np

from planner.calibration.values import Calibration
from planner.capabilities import Capabilities, Gradients, Recompute, Schedule
from planner.cluster.topology import DeviceType, Topology
from planner.cost import grids
from planner.cost.arrays import Numbers, as_array, as_number, finite, larger, smaller
from planner.cost.buffers import buffer_seconds, once_seconds
from planner.cost.communication import (
    Ring,
    all_to_all_seconds,
    fabric_share,
    member_nodes,
    pass_on_seconds,
    tensor_ring,
)
from planner.cost.compute import (
    ELEMENT_BYTES,
    Device,
    EndPass,
    LayerPass,
    Product,
    embedding_pass,
    expert_rows,
    head_pass,
    layer_pass,
    loss_bytes,
    optimizer_seconds,
    reached,
    trained_matrices,
)
from planner.cost.islands import exchange_seconds, kept_on_device, kept_on_host, local_seconds
from planner.cost.measured_curves import (
    ExchangeCurves,
    LayerCurves,
    LayerFormula,
    LayerTimes,
    LinkCurves,
    OptimizerCurves,
    with_host,
)
from planner.cost.memory import (
    Footprint,
    Load,
    activation_bytes_per_layer,
    gathered_of,
    layer_elements,
    replicas_with_experts,
    trained_experts_of,
    trained_of,
)
from planner.cost.offload import (
    Held,
    beside_backward,
    copies,
    host_optimizer_seconds,
    paging_seconds,
)
from planner.cost.schedules import SentWith, divides, layers_in_flight, sent_with
from planner.cost.shape import Shape
from planner.cost.stage_price import (
    EachLength,
    MicroBatch,
    Replica,
    StagePrice,
    all_lengths,
    common_seconds,
    padded_seconds,
)
from planner.cost.stragglers import stretch
from planner.cost.tensor import (
    Collectives,
    Hidden,
    backward_sums,
    collectives,
    has_user_buffers,
    hidden_by,
)
from planner.cost.traffic import EndTraffic, Traffic
from planner.cost.values import Memory
from planner.dims.expert import overlaps
from planner.dims.sharding import gradients_of, master_weights_of, optimizer_ways, states_zero
from planner.dims.tensor import norm_ways
from planner.frozen import dataclass
from planner.model.spec import LayerRun, ModelSpec, StateSpec
from planner.plan.equal_pools import Joined
from planner.plan.values import WHOLE, WHOLE_EXPERTS, Context, Folding, Offload, ReplicaGroup


class LayerMode(NamedTuple):
    """How layers are computed, on whatever devices."""

    recompute: Recompute
    split: bool
    """Whether tensor parallelism divides the sequence between its collectives."""
    folding: Folding
    hooked: bool
    """Whether there are hooks around modules."""
    graph: int = 0
    """Layers of the graph of a backward in two parts, with as many in all chunks; 0 where it is whole."""


PLAIN = LayerMode("none", False, WHOLE_EXPERTS, False)
"""As layers are measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerPrice:
    """Seconds of one layer for one micro-batch; computation includes waiting for the host's launches."""

    forward_seconds: float
    backward_seconds: float
    recompute_seconds: float
    collective_forward: float
    """Exposed tensor-parallel collectives of the forward."""
    collective_backward: float
    """Exposed tensor-parallel collectives of the backward and of recomputation."""
    routing_forward: float = 0.0
    """Exposed all-to-alls of experts in the forward."""
    routing_backward: float = 0.0
    """The same in the backward and in recomputation."""
    routing_hidden: float = 0.0
    """What of both the computation of another micro-batch hides."""
    context_forward: float = 0.0
    """Exposed traffic between replicas that share sequences, and what it adds to the computation."""
    context_backward: float = 0.0
    """The same in the backward and in recomputation."""
    context_hidden: float = 0.0
    """The part of this traffic that attention hides."""
    weight_seconds: float = 0.0
    """The part of ``backward_seconds`` for the gradients of weights."""

    collective_hidden: float = 0.0
    """The part of the tensor-parallel collectives that products hide."""


def layer_price(
    one: LayerPass,
    moved: Collectives,
    model: ModelSpec,
    recompute: Recompute,
    by_operation: bool = False,
    routing: float = 0.0,
) -> LayerPrice:
    """A layer by formula, whose host goes on while collectives run.

    Selective recomputation ``by_operation`` does all again but attention, every second product and the last collective.
    ``routing`` are seconds of the all-to-alls of experts in one direction.
    """
    ahead, back = moved.forward_seconds, moved.backward_seconds
    whole = recompute == "full"
    partly = recompute == "selective" and by_operation
    # Where tokens cannot reach their experts that alone takes forever.
    moving = finite(routing)
    forward = with_host(one.forward_seconds + ahead + moving, one.host_seconds) - ahead - moving
    again = 0.0
    if whole:
        again = forward
    elif partly:
        streams = one.forward_seconds - one.attention_seconds - one.product_seconds
        device = streams + products_again(model) * one.product_seconds
        if model.training.attention == "unfused":
            device += one.attention_seconds
        # As in the whole layer, so that no part of it takes longer.
        beside = 0.5 * ahead + moving
        again = with_host(device + beside, one.host_seconds) - beside
    elif recompute == "selective":
        again = one.again_seconds
    return LayerPrice(
        forward_seconds=forward,
        backward_seconds=with_host(
            one.backward_seconds + back + moving, one.host_seconds + one.host_more_seconds
        )
        - back
        - moving,
        recompute_seconds=again,
        collective_forward=ahead,
        collective_backward=back + (1 if whole else 0.5 if partly else 0) * ahead,
        # What selective recomputation by operation runs again ends with the experts' outputs.
        routing_forward=routing,
        routing_backward=(2 if whole or partly else 1) * routing,
        collective_hidden=moved.hidden_forward * (2 if whole else 1) + moved.hidden_backward,
        weight_seconds=one.weight_seconds,
    )


def orthogonal_seconds(model: ModelSpec, device: Device) -> float:
    """Seconds of Muon's five Newton-Schulz steps on the trained matrices of a layer, in bf16 where the device has it.

    With X of m x n, m <= n: X X', its square, and their sum by X (arXiv:2502.16982, section 2.1).
    """
    hidden, precision = model.hidden, "bf16" if "bf16" in device.device_type.peak_flops else None
    if model.runs:
        return sum(run.layers * orthogonal_seconds(run.kind, device) for run in model.runs)
    query, pairs = model.heads * model.head_dim, model.projected_pairs
    widths: list[tuple[int, int]] = []
    if "attention" not in model.frozen:
        if model.attends:
            widths += [(1, query), (1, model.heads * model.value_width), (1, pairs)]
        if model.carried is not None:
            widths += [(1, max(sizes)) for *sizes, _ in model.carried.matrices(hidden)]
    if "mlp" not in model.frozen:
        widths.append((model.mlp_matrices, model.common_ffn))
        if model.experts is not None:
            widths.append((model.mlp_matrices * model.experts.number, model.experts.ffn))
    products: tuple[Product, ...] = ()
    for count, (low, high) in ((count, sorted((hidden, width))) for count, width in widths if width):
        products += (
            Product(low, low, high, count),
            Product(low, low, low, count),
            Product(low, high, low, count),
        )
    return 5.0 * device.products(products, precision)[0]


def products_again(model: ModelSpec) -> float:
    """Share of the matrix products in keys and values and, of the MLP, gate or first: those that are not kept."""
    query, pairs = model.heads * model.head_dim, model.projected_pairs
    again, mlp = model.common_ffn, model.mlp_matrices * model.common_ffn
    if model.experts is not None:
        # Nothing of the experts is kept.
        routed = model.experts.number + model.mlp_matrices * model.experts.top_k * model.experts.ffn
        again, mlp = again + routed, mlp + routed
    return (pairs + again) / (query + model.heads * model.value_width + pairs + mlp)


def measured_layer(times: LayerTimes, formula: LayerPrice) -> LayerPrice:
    """A measured layer: the host's work is in its times already, and its collectives unless the times lack them.

    Of its forward it does again what the formula does of its own; all experts were on the device that was measured.
    """
    again = formula.recompute_seconds / formula.forward_seconds
    return LayerPrice(
        forward_seconds=times.forward_seconds,
        backward_seconds=times.backward_seconds,
        recompute_seconds=again * times.forward_seconds,
        collective_forward=formula.collective_forward if times.without_collectives else 0.0,
        collective_backward=formula.collective_backward if times.without_collectives else 0.0,
        routing_forward=formula.routing_forward,
        routing_backward=formula.routing_backward,
    )


def beside_host(price: LayerPrice, one: LayerPass) -> LayerPrice:
    """A measured layer whose host also does what no measurement of it has: around modules with ZeRO 3, and to divide
    its backward."""
    forward = with_host(price.forward_seconds, one.host_seconds)
    return replace(
        price,
        forward_seconds=forward,
        backward_seconds=with_host(price.backward_seconds, one.host_seconds + one.host_more_seconds),
        recompute_seconds=price.recompute_seconds * forward / price.forward_seconds,
    )


def _ways(parts: Sequence[MicroBatch], *, divided: bool) -> tuple[list[float], list[float], list[float]]:
    """Forward, backward and weights' gradients of chunks; the last are in the backward unless it is divided."""
    forward, backward = [part.forward_seconds for part in parts], [part.backward_seconds for part in parts]
    if not divided:
        return forward, backward, []
    weight = [part.weight_seconds for part in parts]
    return forward, [whole - part for whole, part in zip(backward, weight, strict=True)], weight


def _sizes(sequences: int) -> int | bytes:
    """What tells sizes of micro-batches from others: arrays pass for numbers, and are no keys."""
    return sequences.tobytes() if isinstance(sequences, np.ndarray) else sequences


def _rows(values: Iterable[float], count: int) -> Numbers:
    """One row of ``count`` cases for each value."""
    return np.array([value if isinstance(value, np.ndarray) else np.full(count, value) for value in values])


MOST_PRICES = 10_000
"""Prices of stages that are remembered."""

MOST_LENGTHS = 2_000
"""Stages whose prices with every number of layers are remembered."""


class Pricer:
    """Prices stages of one model on one cluster for one target; remembers what it has priced."""

    def __init__(
        self,
        topology: Topology,
        model: ModelSpec,
        calibration: Calibration,
        target: Capabilities,
        link_curves: LinkCurves | None = None,
        context: Context = WHOLE,
        side: int = 1,
        buffered: bool | None = None,
        joined: Joined | None = None,
    ) -> None:
        """``side``: rows, and columns, of the grid that the devices of a replica are; 1 for none.

        ``buffered``: the whole model may have user buffers, where this one is a part of it. ``joined``: what the
        cluster is once its equal pools are one, where that is known.
        """
        self.topology, self._joined = topology, joined or Joined(topology)
        self.buffered = has_user_buffers(model) if buffered is None else buffered
        self.context = context
        self.side = side
        self._runs, self._ahead, self._behind = (
            tuple(
                (
                    run,
                    Pricer(
                        topology,
                        run.kind,
                        calibration,
                        target,
                        link_curves,
                        context,
                        buffered=self.buffered,
                        joined=self._joined,
                    ),
                )
                for run in runs
            )
            for runs in (model.runs, model.first_runs, model.last_runs)
        )
        """Layers of each kind and what prices one: in one of the model's ``layers``, at its beginning, at its end."""
        if context.ways > 1:
            length = model.training.sequence_length // context.ways
            model = model.trained_with(sequence_length=length)
        self.model = model
        """That of the part of a sequence that a replica has."""
        self.calibration = calibration
        self.target = target
        self.kernels = target.kernels_of(model.training.kernels, model.training.attention)
        self.framework = calibration.framework(self.kernels)
        self.traffic = Traffic(model, target, self.framework)
        self._gradients_with: dict[int, Gradients] = {}
        self.link_curves = link_curves
        # Measured layers attend to whole sequences.
        anchored = calibration.layers and context.ways == 1 and side == 1 and not model.runs
        anchored = anchored and not model.training.packed
        factor = self.framework.layer_factor
        self.layer_curves = LayerCurves(calibration, model.name, factor) if anchored else None
        self.exchange_curves = ExchangeCurves(calibration)
        plain = target.runs_plain_torch and model.training.optimizer == "adamw"
        plain &= model.training.optimizer_states == "fp32"
        self._master_weights = master_weights_of(target, model.training)
        plain &= self._master_weights == "fp32"
        self.optimizer_curves = OptimizerCurves(calibration) if plain else None
        self._devices: dict[tuple[str, str], Device] = {}
        self._axes: dict[tuple[str, str], grids.Axes] = {}
        self._layers: dict[tuple[object, ...], LayerPrice] = {}
        # An anchor asks for its own points, which is no guess of a plan's.
        self._anchor_links = LinkCurves(calibration) if link_curves and self.layer_curves else None
        self._passes: dict[tuple[object, ...], LayerPass] = {}
        self._sums: dict[tuple[object, ...], tuple[float, ...]] = {}
        self._copied: dict[tuple[object, ...], tuple[list[list[float]], ...]] = {}
        self._ends: dict[tuple[object, ...], EndPass] = {}
        self._footprints: dict[tuple[object, ...], Footprint] = {}
        self._prices: dict[tuple[object, ...], StagePrice] = {}
        self._each_length: dict[tuple[object, ...], EachLength] = {}

    @cached_property
    def varies(self) -> bool:
        """True when some devices are known to vary from step to step."""
        return any(family.sigma for family in self.calibration.families.values())

    @cached_property
    def _unfused(self) -> ModelSpec:
        """The model with attention of single kernels."""
        return self.model.trained_with(attention="unfused")

    def price(self, shape: Shape, groups: tuple[ReplicaGroup, ...], ring: Ring) -> StagePrice:
        """Seconds of a stage whose data-parallel rings look like ``ring``."""
        if self.link_curves is not None:  # each estimate asks its curves anew, as they note where they guess
            return self._price(shape, groups, ring)
        key = shape.likeness, groups, ring, self._alone(shape)
        price = self._prices.get(key)
        if price is None:
            if len(self._prices) == MOST_PRICES:
                self._prices.clear()
            price = self._prices[key] = self._price(shape, groups, ring)
        return price

    def _price(self, shape: Shape, groups: tuple[ReplicaGroup, ...], ring: Ring) -> StagePrice:
        micro = tuple(self.micro_batch(shape, group, group.micro_batch, ring) for group in groups)
        replicas = [
            self._replica(shape, group, ring, item) for group, item in zip(groups, micro, strict=True)
        ]
        slowest = max(range(len(groups)), key=lambda index: replicas[index].seconds)
        chosen = replicas[slowest]
        work = chosen.work_seconds
        if shape.zero >= 2 and len({group.accumulation_steps for group in groups}) > 1:
            one = [self.micro_batch(shape, group, 1, ring) for group in groups]
            work = padded_seconds([group.accumulation_steps for group in groups], micro, one)
        per_chunk = [
            self._chunks(shape, group, ring, item) for group, item in zip(groups, micro, strict=True)
        ]
        longest = micro[slowest]
        beside = beside_backward(shape.offload, longest.backward_seconds - longest.first_saves_seconds)
        update = max(self.update_seconds(shape, group, ring, beside) for group in groups)
        after = max(self.update_seconds(shape, group, ring) for group in groups) if beside else update
        return StagePrice(
            forward=tuple(max(values) for values in zip(*(item[0] for item in per_chunk), strict=True)),
            backward=tuple(max(values) for values in zip(*(item[1] for item in per_chunk), strict=True)),
            weight=tuple(max(values) for values in zip(*(item[2] for item in per_chunk), strict=True)),
            work_seconds=work,
            waiting_seconds=common_seconds(replicas) - chosen.seconds,
            sync_seconds=chosen.sync_seconds,
            held_seconds=chosen.end.reduction_seconds if self.traffic.holds_gradients(shape) else 0.0,
            hidden_sync_seconds=chosen.end.hidden_seconds + after - update,
            optimizer_seconds=update,
            copy_seconds=max(item.step_copy_seconds for item in micro),
            alone_seconds=self._alone(shape) * max(item.routing_hidden for item in micro),
            micro_batches=micro,
            works=tuple(replica.work_seconds for replica in replicas),
            slowest=slowest,
        )

    def each_length(self, shape: Shape, groups: tuple[ReplicaGroup, ...], ring: Ring) -> EachLength:
        """The same for many numbers of layers at once: the chunks of ``shape`` are arrays."""
        assert not shape.offload.super_offload, "a plan of one stage alone updates during the backward"
        chunks = cast("tuple[Numbers, ...]", shape.chunks)  # arrays pass for numbers
        if self.link_curves is not None:  # curves take one number of bytes at a time
            lengths = zip(*map(np.ndarray.tolist, chunks), strict=True)
            return all_lengths([self._price(replace(shape, chunks=one), groups, ring) for one in lengths])
        key = *(each.tobytes() for each in chunks), shape.likeness_of_layers, groups, ring, self._alone(shape)
        priced = self._each_length.get(key)
        if priced is None:
            if len(self._each_length) == MOST_LENGTHS:
                self._each_length.clear()
            priced = self._each_length[key] = self._price_each_length(shape, groups, ring)
        return priced

    def _price_each_length(self, shape: Shape, groups: tuple[ReplicaGroup, ...], ring: Ring) -> EachLength:
        count = len(cast("tuple[Numbers, ...]", shape.chunks)[0])
        micro = [self.micro_batch(shape, group, group.micro_batch, ring) for group in groups]
        replicas = [
            self._replica(shape, group, ring, item) for group, item in zip(groups, micro, strict=True)
        ]
        per_chunk = [
            self._chunks(shape, group, ring, item) for group, item in zip(groups, micro, strict=True)
        ]
        forward, backward, weight = (
            np.stack([_rows(values, count).max(axis=0) for values in zip(*way, strict=True)], axis=1)
            if way[0]
            else np.zeros((count, 0))
            for way in zip(*per_chunk, strict=True)
        )
        sync = _rows((replica.sync_seconds for replica in replicas), count)
        held = _rows((replica.end.reduction_seconds for replica in replicas), count)
        update = _rows((self.update_seconds(shape, group, ring) for group in groups), count)
        if len(groups) > 1:
            slowest = np.argmax(_rows((replica.seconds for replica in replicas), count), axis=0)[None]
            sync, held = (np.take_along_axis(rows, slowest, axis=0) for rows in (sync, held))
        copied = _rows((item.step_copy_seconds for item in micro), count).max(axis=0)
        alone = self._alone(shape) * _rows((item.routing_hidden for item in micro), count).max(axis=0)
        return EachLength(
            forward=forward,
            backward=backward,
            weight=weight,
            tail_seconds=sync[0] + update.max(axis=0) + copied + alone,
            held_seconds=held[0] if self.traffic.holds_gradients(shape) else np.zeros(count),
        )

    def sync_seconds(self, shape: Shape, group: ReplicaGroup, ring: Ring, micro: MicroBatch) -> float:
        """Exposed synchronisation at the end of the step on one group whose last micro-batch is ``micro``."""
        end = self._at_end(shape, group, ring, micro, micro)
        return end.seconds + self.tied_seconds(shape, group)

    def in_step_seconds(
        self, shape: Shape, group: ReplicaGroup, ring: Ring, first: MicroBatch, last: MicroBatch
    ) -> float:
        """What a replica with these micro-batches does in step with all others while it reduces and gathers."""
        end = self._at_end(shape, group, ring, first, last)
        gathers = shape.zero == 1 and ring.copies is None
        return end.seconds + last.backward_seconds + (first.forward_seconds if gathers else 0.0)

    def each_sync_seconds(
        self, shape: Shape, ring: Ring, forward: Numbers, backward: Numbers, tp: int = 1
    ) -> Numbers:
        """``sync_seconds`` of replicas of ``tp`` devices for each of many pairs of a first forward and a last backward.

        Of models all of which is trained: what adapters add up over a replica is not in it.
        """
        end = self.traffic.at_end(
            shape, ring, self._parameters(shape, tp), as_number(forward), as_number(backward)
        )
        return as_array(end.seconds)

    def _rounding_seconds(self, shape: Shape, device_type: DeviceType) -> tuple[float, float]:
        """Kernels of a micro-batch's forward and backward that round what ZeRO 3 sends, and widen what it receives.

        What was gathered in eight bits is read and written as fp16, and for bf16 once more. Gradients are read, and in
        four bits written, read and added up, of which only the first is of all of them.
        """
        plus, device = shape.zero_plus, self._device(device_type)
        elements = gathered_of(
            self.model,
            layers=shape.layers,
            first=shape.first,
            last=shape.last,
            tp=1,
            expert_ways=shape.folding.ways,
            shards_codes=self.target.shards_codes,
        )
        kernels = shape.layers * self.model.layers_each * self.target.gathers_per_layer
        cast = 4.0 if self.model.training.precision == "bf16" else 0.0
        widened = device.stream((3.0 + cast) * elements, kernels) if plus.int8_weights else 0.0
        rounded = device.stream((3.5 + cast) * elements, 3 * kernels) if plus.int4_gradients else 0.0
        return widened, widened + rounded

    def _buffer_seconds(
        self,
        shape: Shape,
        ring: Ring,
        device_type: DeviceType,
        layers: float,
        first: bool,
        last: bool,
        tp: int,
    ) -> tuple[float, float]:
        """``buffer_seconds``; of many rings some may have one member."""
        if self.kernels not in self.target.through_buffers:
            return 0.0, 0.0
        lone, more = self._buffers(shape, device_type, layers, first, last, tp)
        several = ring.size > 1
        return lone[0] + several * more[0], lone[1] + several * more[1]

    def shared_seconds(
        self, shape: Shape, ring: Ring, device_type: DeviceType, tp: int
    ) -> tuple[float, float]:
        """What a micro-batch of a replica in this ring copies longer than a lone one, forward and backward."""
        if self.kernels not in self.target.through_buffers or ring.alone:
            return 0.0, 0.0
        more = self._buffers(shape, device_type, shape.layers, shape.first, shape.last, tp)[1]
        return self.model.training.forwards * more[0], more[1]

    def _buffers(
        self, shape: Shape, device_type: DeviceType, layers: float, first: bool, last: bool, tp: int
    ) -> list[tuple[float, float]]:
        """``buffer_seconds`` of a lone replica, and what others take longer, for each layer as much."""
        key = device_type.key, tp, first, last, shape.folding.ways, shape.zero
        if key not in self._copied:
            of = partial(
                buffer_seconds,
                self.model,
                self.target,
                self._device(device_type),
                shape.zero,
                first=first,
                last=last,
                tp=tp,
                expert_ways=shape.folding.ways,
            )
            lone, shared = (np.array([of(layers=n, alone=alone) for n in (0, 1)]) for alone in (True, False))
            self._copied[key] = lone.tolist(), (shared - lone).tolist()
        return [
            (ends[0] + layers * (one[0] - ends[0]), ends[1] + layers * (one[1] - ends[1]))
            for ends, one in self._copied[key]
        ]

    def each_micro_batch(
        self,
        shape: Shape,
        ring: Ring,
        device_type: DeviceType,
        forward: Numbers,
        backward: Numbers,
        tp: int = 1,
        inside: tuple[Numbers, Numbers] | None = None,
    ) -> tuple[Numbers, Numbers]:
        """Forward and backward of each of many micro-batches on replicas of ``tp`` devices that take so long without
        traffic between them, but with ``shared_seconds``; of which they talk ``inside``, and nothing is hidden under
        that."""
        if shape.zero_plus.lossy:
            rounding = self._rounding_seconds(shape, device_type)
            forward, backward = forward + rounding[0], backward + rounding[1]
        gather, scatter = self.traffic.in_micro_batch(
            shape, ring, shape.layers, shape.first, shape.last, tp, self.launch_seconds(device_type)
        )
        busy = (forward, backward) if inside is None else (forward - inside[0], backward - inside[1])
        return (
            forward + self.traffic.exposed(self.model.training.forwards * gather, as_number(busy[0]))[0],
            backward + self.traffic.exposed(gather + scatter, as_number(busy[1]))[0],
        )

    def each_copied(
        self, shape: Shape, group: ReplicaGroup, ways: int, forward: Numbers, backward: Numbers
    ) -> tuple[Numbers, Numbers, Numbers]:
        """Forward and backward of micro-batches of 1, 2, ... sequences with copies to and from the host, and what the
        first of a step saves; ``ways`` replicas share the states."""
        if not shape.offload.anything:
            return forward, backward, np.zeros_like(forward)
        device_type = self.topology.device_type(group.pool, group.gpu)
        sizes = cast("int", np.arange(1, len(forward) + 1))
        held = self._held(shape, shape.layers, shape.first, shape.last, group.tp, sizes, ways)
        waits = copies(shape.offload, held, device_type, self.model, self.target).waits(
            as_number(forward), as_number(backward), self.framework.overlap
        )
        return forward + waits[0], backward + waits[1], as_array(waits[1] - waits[2])

    def step_copy_seconds(self, shape: Shape, group: ReplicaGroup, ways: int) -> float:
        """Copies of a device to and from its host once a step."""
        if not shape.offload.anything:
            return 0.0
        device_type = self.topology.device_type(group.pool, group.gpu)
        held = self._held(shape, shape.layers, shape.first, shape.last, group.tp, group.micro_batch, ways)
        return copies(shape.offload, held, device_type, self.model, self.target).step_seconds

    def _at_end(
        self, shape: Shape, group: ReplicaGroup, ring: Ring, first: MicroBatch, last: MicroBatch
    ) -> EndTraffic:
        count = self._parameters(shape, group.tp)
        # Gradients of a divided backward are reduced behind all of it.
        behind = 0.0 if divides(shape.schedule) else last.backward_seconds
        end = self.traffic.at_end(shape, ring, count, first.forward_seconds, behind)
        if shape.zero >= 2 or group.tp == 1:
            return end
        device_type, size = self.topology.device_type(group.pool, group.gpu), None
        if group.accumulation_steps > 1:
            size = gradients_of(self.target, self.model.training, shape.zero).reduced_bytes
        summed = self._adapter_sums(device_type, group.tp, shape.layers, shape.first, shape.last, size)
        return replace(end, reduction_seconds=end.reduction_seconds + summed)

    def _adapter_sums(
        self,
        device_type: DeviceType,
        tp: int,
        layers: float,
        first: bool,
        last: bool,
        size: int | None = None,
    ) -> float:
        """Seconds in which a replica adds up the gradients of the halves of adapters that all its devices have.

        None where what is between the halves is added up (``backward_sums``). Each is a sum of its own ahead of its
        reduction over replicas, which nothing hides, of elements of ``size`` bytes: absent, those of one micro-batch
        (``FSDPParam._get_grad_inner_tensor`` of torch 2.13).
        """
        if self.target.sums_each_input or not self.model.adapter_targets:
            return 0.0
        key = device_type.key, tp, size
        if key not in self._sums:
            each = size or ELEMENT_BYTES[self.model.training.precision]
            ring = tensor_ring(device_type, self.calibration, tp=tp, curves=self.link_curves)
            runs = self.model.runs or (LayerRun(1, self.model),), self.model.first_runs, self.model.last_runs
            self._sums[key] = tuple(
                sum(
                    run.layers * ring.reduce_seconds(each * elements)
                    for run in part
                    for elements in run.kind.whole_halves
                )
                for part in runs
            )
        layer, ahead, behind = self._sums[key]
        return layers * layer + ahead * first + behind * last

    def _replica(self, shape: Shape, group: ReplicaGroup, ring: Ring, first: MicroBatch) -> Replica:
        """One replica on its own; what reduces gradients at the end hides under its own backward."""
        work, tied = self._work(shape, group, ring, first), self.tied_seconds(shape, group)
        if not self.traffic.keeps_step(shape, ring):
            end = self._at_end(shape, group, ring, first, first)
            return Replica(work_seconds=work, end=end, tied_seconds=tied, in_step_seconds=0.0)
        last = self.micro_batch(shape, group, group.local_batch // group.accumulation_steps, ring)
        return Replica(
            work_seconds=work,
            end=self._at_end(shape, group, ring, first, last),
            tied_seconds=tied,
            in_step_seconds=self.in_step_seconds(shape, group, ring, first, last),
        )

    def micro_batch(self, shape: Shape, group: ReplicaGroup, sequences: int, ring: Ring) -> MicroBatch:
        """Seconds of one micro-batch of ``sequences`` on one replica of ``group``; of an array of them, of each."""
        return self._micro_batch(
            self.topology.device_type(group.pool, group.gpu),
            group.tp,
            sequences,
            shape,
            shape.layers,
            shape.first,
            shape.last,
            ring,
        )

    def _micro_batch(
        self,
        device_type: DeviceType,
        tp: int,
        sequences: int,
        shape: Shape,
        layers: int,
        first: bool,
        last: bool,
        ring: Ring,
    ) -> MicroBatch:
        mode = self._mode(shape)
        whole = mode._replace(graph=0)
        one = self._layer(device_type, tp, sequences, whole)
        ends = [self._end("embedding", device_type, tp, sequences)] if first else []
        ends += [self._end("head", device_type, tp, sequences)] if last else []
        forward = layers * one.forward_seconds + sum(end.forward_seconds for end in ends)
        backward = layers * one.backward_seconds + sum(end.backward_seconds for end in ends)
        host = self.host_seconds(device_type) if shape.depth > 1 else 0.0
        forward, backward = forward + host / 2, backward + host / 2
        weight = layers * one.weight_seconds + sum(end.weight_seconds for end in ends)
        if mode.graph:
            # The first chunk passes no gradient on, so that its backward is whole.
            parts = self._layer(device_type, tp, sequences, mode)
            each = parts.backward_seconds - one.backward_seconds
            dividing = (layers - first * shape.chunks[0]) * each
            backward, weight = backward + dividing, weight + dividing
        again = layers * one.recompute_seconds
        tensor_forward, tensor_backward = layers * one.collective_forward, layers * one.collective_backward
        tensor_forward += sum(end.collective_forward for end in ends)
        tensor_backward += sum(end.collective_backward for end in ends)
        if shape.zero >= 2 and tp > 1:
            tensor_backward += self._adapter_sums(device_type, tp, layers, first, last)
        context_forward, context_backward = layers * one.context_forward, layers * one.context_backward
        beside = layers * (one.context_hidden + one.collective_hidden)
        routing_hidden = layers * one.routing_hidden
        routing_forward, routing_backward = layers * one.routing_forward, layers * one.routing_backward
        for runs in (self._ahead if first else (), self._behind if last else ()):
            if not runs:
                continue
            more = self._priced_runs(runs, device_type, tp, sequences, whole if runs is self._ahead else mode)
            forward, backward = forward + more.forward_seconds, backward + more.backward_seconds
            routing_forward += more.routing_forward
            routing_backward += more.routing_backward
            routing_hidden += more.routing_hidden
            again += more.recompute_seconds
            tensor_forward += more.collective_forward
            tensor_backward += more.collective_backward
            context_forward += more.context_forward
            context_backward += more.context_backward
            weight += more.weight_seconds
            beside += more.context_hidden + more.collective_hidden
        gather, scatter = self.traffic.in_micro_batch(
            shape, ring, layers, first, last, tp, self.launch_seconds(device_type)
        )
        if shape.zero_plus.lossy:
            rounding = self._rounding_seconds(shape, device_type)
            forward, backward = forward + rounding[0], backward + rounding[1]
        copied = self._buffer_seconds(shape, ring, device_type, layers, first, last, tp)
        forward, backward = forward + copied[0], backward + copied[1]
        slowest = self.stretch(device_type, ring, tp)
        forwards = self.model.training.forwards
        if forwards > 1:
            # Such plans have neither tensor parallelism nor divided sequences; what the host does is for messages.
            forward, routing_forward = forwards * (forward - host / 2) + host / 2, forwards * routing_forward
        exposed_forward, hidden_forward = self.traffic.exposed(forwards * gather, slowest * forward)
        exposed_backward, hidden_backward = self.traffic.exposed(
            gather + scatter, slowest * (backward + again)
        )
        own_forward = forward + tensor_forward + routing_forward + context_forward
        own_backward = backward + again + tensor_backward + routing_backward + context_backward
        on_forward = slowest * own_forward + exposed_forward
        on_backward = slowest * own_backward + exposed_backward
        wait_forward = wait_backward = first_saves = hidden = at_end = 0.0
        if shape.offload.anything:
            held = self._held(shape, layers, first, last, tp, sequences, ring.size)
            moved = copies(shape.offload, held, device_type, self.model, self.target)
            wait_forward, wait_backward, first_wait = moved.waits(
                on_forward, on_backward, self.framework.overlap
            )
            first_saves = wait_backward - first_wait
            hidden = moved.hidden(on_forward, on_backward, self.framework.overlap)
            at_end = moved.step_seconds
        return MicroBatch(
            forward_seconds=on_forward + wait_forward,
            backward_seconds=on_backward + wait_backward,
            compute_seconds=forward + backward,
            recompute_seconds=again,
            tensor_parallel_seconds=tensor_forward + tensor_backward,
            tensor_backward_seconds=tensor_backward,
            routing_seconds=routing_forward + routing_backward,
            routing_hidden=slowest * routing_hidden,
            context_seconds=context_forward + context_backward,
            straggler_seconds=(slowest - 1.0) * finite(own_forward + own_backward),
            host_seconds=slowest * host,
            zero_seconds=exposed_forward + exposed_backward,
            offload_seconds=wait_forward + wait_backward,
            step_copy_seconds=at_end,
            first_saves_seconds=first_saves,
            hidden_seconds=hidden_forward + hidden_backward + hidden + beside + routing_hidden,
            # The first layers have nobody to pass a gradient to: all of their backward is for weights.
            weight_seconds=on_backward + wait_backward if first else slowest * weight,
        )

    def sent_with(
        self, stage: int, chunk: int, depth: int, chunks: int, schedule: Schedule = "1f1b"
    ) -> SentWith:
        """How often the durations of a chunk of the model hold the sends at both of its sides."""
        in_turn, forwards = self.target.exchanges_in_turn, self.model.training.forwards
        return sent_with(stage, chunk, depth, chunks, in_turn=in_turn, forwards=forwards, schedule=schedule)

    def sent_at_least(self, stage: int, depth: int, chunks: int) -> SentWith:
        """The same of each chunk whatever the schedule: with several chunks one forward.

        The two chunks of a V-shaped pipeline together send as many activations as gradients to either side.
        """
        forwards = self.model.training.forwards if chunks == 1 else 1
        return sent_with(stage, 0, depth, 1, in_turn=self.target.exchanges_in_turn, forwards=forwards)

    def stretch(self, device_type: DeviceType, ring: Ring, tp: int) -> float:
        """What the slowest device of a stage takes over what they take on average; no less with more replicas."""
        sigma = self._device(device_type).family.sigma
        if not sigma:
            return 1.0
        copies = ring.copies.size if ring.copies else 1
        return stretch(sigma, ring.size * copies * tp, ring.dropped)

    def ends_seconds(self, shape: Shape, group: ReplicaGroup, sequences: int) -> tuple[float, float]:
        """Forward and backward of the embedding and of the head, with the layers that stand with them, for one
        micro-batch."""
        device_type = self.topology.device_type(group.pool, group.gpu)
        embedding, head = (
            self._end(which, device_type, group.tp, sequences) for which in ("embedding", "head")
        )
        ahead = behind = 0.0
        mode = self._mode(shape)
        if self._ahead:
            more = self._priced_runs(self._ahead, device_type, group.tp, sequences, mode)
            ahead = more.forward_seconds + more.backward_seconds
        if self._behind:
            more = self._priced_runs(self._behind, device_type, group.tp, sequences, mode)
            behind = more.forward_seconds + more.backward_seconds
        forwards = self.model.training.forwards
        return (
            forwards * embedding.forward_seconds + embedding.backward_seconds + ahead,
            forwards * head.forward_seconds + head.backward_seconds + behind,
        )

    @staticmethod
    def _priced_runs(
        runs: tuple[tuple[LayerRun, Pricer], ...],
        device_type: DeviceType,
        tp: int,
        sequences: int,
        mode: LayerMode,
    ) -> LayerPrice:
        """Runs of unlike layers together; only those with experts have these divided."""
        run_prices = []
        for run, one in runs:
            own = mode if one.model.experts else mode._replace(folding=WHOLE_EXPERTS)
            price = one._layer(device_type, tp, sequences * run.inputs, own)
            run_prices.append((run, price))
        return LayerPrice(
            **{
                name: sum(
                    run.layers * getattr(price, name)
                    for run, price in run_prices
                    if not run.frozen or name.endswith("forward_seconds") or name.endswith("_forward")
                )
                for name in LayerPrice.__slots__
            }
        )

    def launch_seconds(self, device_type: DeviceType) -> float:
        """What a host needs to launch a kernel; replicas in lock-step wait for the slowest of theirs."""
        return self.calibration.family(device_type.family).launch_seconds * self.framework.host_factor

    def host_seconds(self, device_type: DeviceType) -> float:
        """What nothing hides of the host's work for a micro-batch of a pipeline stage and its messages."""
        if self.model.training.cuda_graphs == "step":
            return 0.0
        return (
            self.framework.micro_batch_launches * self.calibration.family(device_type.family).launch_seconds
        )

    def memory(self, shape: Shape, group: ReplicaGroup, dp: float, padding: float = 1.0) -> Memory:
        """Bytes on one device of the group."""
        in_flight = self._in_flight(shape, shape.layers)
        memory = self._footprint(shape, group, dp, padding).memory(shape.layers, in_flight)
        if not shape.sync.local:
            return memory
        device_type = self.topology.device_type(group.pool, group.gpu)
        kept = kept_on_host(shape.sync, self._parameters(shape, group.tp), device_type)
        return replace(memory, host_bytes=memory.host_bytes + kept)

    def exchange_seconds(self, shape: Shape, group: ReplicaGroup, inside: Ring, between: Ring) -> float:
        """An exchange of an island whose first replica, of ``group``, talks to those of others on ``between``."""
        elements = self._parameters(shape, group.tp)
        device = self._device(self.topology.device_type(group.pool, group.gpu))
        exchange = exchange_seconds(shape.sync, self.model, elements, between)
        sharded = shape.zero > 0
        return exchange + local_seconds(
            shape.sync, self.model, elements, device, inside, sharded=sharded, measured=self.exchange_curves
        )

    def _footprint(self, shape: Shape, group: ReplicaGroup, dp: float, padding: float = 1.0) -> Footprint:
        ends = shape.first, shape.last
        same = group.pool, group.gpu, group.tp, group.micro_batch, dp, ends, shape.zero, shape.recompute
        more = shape.sequence_parallel, shape.offload, shape.folding, kept_on_device(shape.sync), padding
        key = (
            *same,
            *more,
            shape.zero_plus.secondary,
            self._passed(shape),
            self._states_zero(shape),
            shape.lone,
        )
        footprint = self._footprints.get(key)
        if footprint is None:
            if len(self._footprints) == MOST_PRICES:
                self._footprints.clear()
            footprint = self._footprints[key] = self.footprint(shape, group, dp, group.micro_batch, padding)
        return footprint

    def footprint(
        self, shape: Shape, group: ReplicaGroup, dp: float, sequences: int, padding: float = 1.0
    ) -> Footprint:
        """Bytes on one device of the group, whatever the layers of ``shape`` and where it stands between the ends.

        For micro-batches of ``sequences``; those and ``dp`` may be arrays of many cases.
        """
        device_type = self.topology.device_type(group.pool, group.gpu)
        measured = self._measured_ratios(device_type, group.tp, sequences)
        zero = self._states_zero(shape)
        load = Load(
            first=shape.first,
            last=shape.last,
            tp=group.tp,
            dp=dp,
            micro_batch=sequences,
            recompute=shape.recompute,
            # All activations of a grid are divided over all of it.
            sequence_parallel=shape.sequence_parallel or self.side > 1,
            gathered=shape.sequence_parallel and self.target.eager_layers,
            zero=zero,
            gradient_bytes=self._gradient_bytes(shape),
            master_weights=self._master_weights,
            offload=shape.offload,
            activation_ratio=measured[0],
            parameter_ratio=measured[1],
            allocator_slack=measured[2],
            cross_entropy=self._cross_entropy,
            eager=self.target.eager_layers,
            by_units=self.target.by_units,
            reduced_bytes=self._gradients(shape).reduced_bytes,
            gathers_matrices=self.target.gathers_matrices,
            flat_copies=self.target.flat_copies,
            shards_codes=self.target.shards_codes,
            tensor_by_tensor=self.target.offloading.tensor_by_tensor,
            folding=shape.folding,
            secondary=shape.zero_plus.secondary,
            context=self.context,
            beside_bytes=kept_on_device(shape.sync)
            + (self._gradient_bytes(shape) if zero > shape.zero else 0),
            padding=padding,
            block_bytes=self._block_bytes(sequences),
            passed=self._passed(shape),
            relieved=shape.lone and self.relieves(shape.offload),
        )
        return Footprint(
            self.model_on(device_type), device_type, self.framework, load, self.calibration.memory_spread
        )

    def relieves(self, offload: Offload) -> bool:
        """True where gradients come as activations go where a step has one micro-batch."""
        return self.target.by_units and not offload.anything

    def _states_zero(self, shape: Shape) -> int:
        return states_zero(self.target, self.model.training, shape.zero, shape.depth)

    def _passed(self, shape: Shape) -> int:
        """What the chunks of a stage get and give of the reference of pairs, for each micro-batch."""
        if self.model.training.forwards == 1:
            return 0
        return 2 * len(shape.chunks) - shape.first - shape.last

    def _block_bytes(self, sequences: int) -> float:
        """Blocks of weights and activations on their way through a grid."""
        if self.side == 1:
            return 0.0
        size = ELEMENT_BYTES[self.model.training.precision]
        return grids.block_bytes(self.model, size, self.side, sequences)

    def _measured_ratios(
        self, device_type: DeviceType, tp: int, sequences: int
    ) -> tuple[float, float, float | None]:
        """Measured activations and parameters of a layer over those of the formula, and the allocator's slack."""
        if self.layer_curves is None:
            return 1.0, 1.0, None
        one = self.measured(device_type, tp, sequences)
        return (one.activation_ratio, one.parameter_ratio, one.allocator_slack) if one else (1.0, 1.0, None)

    def most_sequences(
        self, shape: Shape, group: ReplicaGroup, dp: float, most: int, padding: float = 1.0
    ) -> int:
        """The largest micro-batch up to ``most`` with which a stage with one alive fits on the group; 0 for none.

        Memory does not shrink as micro-batches grow.
        """
        sizes = cast("int", np.arange(1, most + 1))
        footprint = self.footprint(shape, group, dp, sizes, padding)
        fits = as_array(footprint.headroom(shape.layers, float(shape.layers))) >= 0
        fits &= footprint.host_room(shape.layers, float(shape.layers)) >= 0
        return most if fits.all() else int(fits.argmin())

    def _in_flight(self, shape: Shape, layers: int) -> float:
        """Layers times micro-batches alive on a stage like ``shape``.

        Where all-to-alls run beside another micro-batch, its forward begins ahead of the backward: a chunk more, and of
        one stage alone, whose layers let go what they have kept while the others fill, a layer.
        """
        chunks, steps = len(shape.chunks), shape.micro_batches
        usual = layers_in_flight(
            layers=layers,
            stage=shape.stage,
            depth=shape.depth,
            micro_batches=steps,
            interleave=chunks,
            schedule=shape.schedule,
        )
        if steps == 1 or not overlaps(self.model, shape.folding):
            return usual
        return usual + 1.0 if shape.depth == 1 else min(usual + layers / chunks, float(steps * layers))

    def _alone(self, shape: Shape) -> int:
        """Micro-batches of a step whose all-to-alls nothing hides, where something hides those of others.

        While a pipeline of p stages with v chunks each fills, v p chunks run forward alone, on the way to the last
        stage and on it, and as many backward while it drains: p micro-batches (``get_pp_rank_microbatches`` of
        Megatron-Core).
        Without a pipeline these are the first forward and the last backward.
        """
        return min(shape.depth, shape.micro_batches) if overlaps(self.model, shape.folding) else 0

    def most_layers(self, shape: Shape, group: ReplicaGroup, dp: int) -> int:
        """The largest number of the model's layers with which a stage like ``shape`` fits on the group; 0 for none.

        No component of the memory shrinks as layers grow.
        """
        chunks = len(shape.chunks)
        footprint = self._footprint(shape, group, dp)

        def room(layers: int) -> float:
            return footprint.least_room(layers, self._in_flight(shape, layers))

        fits, lacks = chunks, self.model.layers
        if lacks < fits:
            return 0
        # Mostly all of them fit.
        over = room(lacks)
        if over >= 0:
            return lacks
        left = room(fits)
        if left < 0:
            return 0
        # What is left is nearly linear in layers, so that the line between two of them mostly meets the last that fits.
        while lacks - fits > 1:
            guess = fits + min(max(int((lacks - fits) * left / (left - over)), 1), lacks - fits - 1)
            found = room(guess)
            if found >= 0:
                fits, left = guess, found
            else:
                lacks, over = guess, found
        return fits

    def _layer(self, device_type: DeviceType, tp: int, sequences: int, mode: LayerMode) -> LayerPrice:
        key = device_type.key, tp, _sizes(sequences), mode
        if key not in self._layers:
            self._layers[key] = self._price_layer(device_type, tp, sequences, mode)
        return self._layers[key]

    def _routing_seconds(self, device_type: DeviceType, tp: int, sequences: int, folding: Folding) -> float:
        """A layer's tokens sent to their experts and back, in a forward or a backward.

        Megatron-Core's dispatcher gathers over the devices that share an expert after the all-to-all, and scatters
        their sums ahead of the one that leads back (``MoEAlltoAllTokenDispatcher``).
        """
        ep, etp = folding
        if folding.ways == 1:
            return 0.0
        tokens = sequences * self.model.training.sequence_length
        size = ELEMENT_BYTES[self.model.training.precision] * self.model.expert_width
        moved = size * expert_rows(self.model, tp=tp, tokens=tokens, ep=ep)
        among = self._joined.device_type(*device_type.key), self._joined.topology
        once = None
        if self.model.training.token_dispatcher != "alltoall":
            nodes = member_nodes(among[0], ep, etp)[1]
            once = reached(self.model, ep), reached(self.model, nodes)
        both = 2 * all_to_all_seconds(
            *among, self.calibration, moved, ep=ep, width=etp, curves=self.link_curves, once=once
        )
        # Devices that share experts gather each other's rows, and add up what each has made of all of them.
        ring = tensor_ring(device_type, self.calibration, tp=etp, curves=self.link_curves)
        return both + ring.gather_seconds(etp * moved) + ring.scatter_seconds(etp * moved)

    def _with_context(
        self,
        price: LayerPrice,
        one: LayerPass,
        device_type: DeviceType,
        tp: int,
        sequences: int,
        recompute: Recompute,
    ) -> LayerPrice:
        """The layer with what replicas that share sequences send each other."""
        if self.context.ways == 1:
            return price
        forward = backward = hidden = 0.0
        if self.model.attends and self.context.kind == "ring":
            # With selective recomputation attention is kept, ring and all.
            forward, backward, hidden = self._ring_seconds(
                one.attention_seconds, device_type, tp, sequences, again=recompute == "full"
            )
        elif self.model.attends:
            again = recompute == "full" or (recompute == "selective" and self.target.eager_layers)
            forward = self._ulysses_seconds(device_type, tp, sequences)
            backward = (2 if again else 1) * forward
        if self.model.carried is not None:
            both = self._state_exchanges(self.model.carried, device_type, tp, sequences)
            forward, backward = forward + both, backward + (2 if recompute == "full" else 1) * both
        return replace(price, context_forward=forward, context_backward=backward, context_hidden=hidden)

    def _exchange_seconds(self, device_type: DeviceType, tp: int, size_bytes: float) -> float:
        """An all-to-all of so many bytes among replicas that share sequences."""
        return all_to_all_seconds(
            self._joined.device_type(*device_type.key),
            self._joined.topology,
            self.calibration,
            size_bytes,
            ep=self.context.ways,
            width=tp,
            curves=self.link_curves,
        )

    def _state_exchanges(self, state: StateSpec, device_type: DeviceType, tp: int, sequences: int) -> float:
        """Tokens for heads behind a state's first product, and heads for tokens ahead of its last, in either direction.

        Megatron-Core sends what its Mamba 2 convolves and needs beside that in five parts (``MambaContextParallel``).
        """
        moved, device = partial(self._exchange_seconds, device_type, tp), self._device(device_type)
        own = state.on(tp * self.context.ways)
        token_bytes = device.size * sequences * self.model.training.sequence_length / tp
        first, made = token_bytes * own.matrices(1)[0][1], token_bytes * own.inner
        calls = 5 if state.kind == "mamba2" and not self.target.eager_layers else 1
        sent = moved(first) + (calls - 1) * moved(0.0) + moved(made)
        # Heads and tokens are put in order ahead of each exchange and behind it, and parts side by side.
        return sent + device.stream(6 * first + 4 * made, calls + 4)

    def _ulysses_seconds(self, device_type: DeviceType, tp: int, sequences: int) -> float:
        """Queries, keys and values of all tokens for some of the heads, and their outputs back, in either direction."""
        moved, device, model = (
            partial(self._exchange_seconds, device_type, tp),
            self._device(device_type),
            self.model,
        )
        token_bytes = device.size * sequences * model.training.sequence_length / tp
        inputs = token_bytes * (model.heads * model.head_dim + model.pair_width)
        outputs = token_bytes * model.output_width
        # Parts are put in order ahead of each exchange and behind it.
        return moved(inputs) + moved(outputs) + device.stream(4 * (inputs + outputs), 4)

    def _ring_seconds(
        self, attention_seconds: float, device_type: DeviceType, tp: int, sequences: int, *, again: bool
    ) -> tuple[float, float, float]:
        """What keys and values that go around add to a forward and a backward, and what attention hides of both."""
        ways, device = self.context.ways, self._device(device_type)
        send = partial(
            pass_on_seconds,
            self._joined.device_type(*device_type.key),
            self._joined.topology,
            self.calibration,
            ways=ways,
            width=tp,
            curves=self.link_curves,
        )
        token_bytes = device.size * sequences * self.model.training.sequence_length / tp
        pairs, outputs = token_bytes * self.model.pair_width, token_bytes * self.model.output_width
        turn = attention_seconds / ways
        forward, hidden = self.traffic.exposed(send(pairs), turn)
        # Keys and values go around with their gradients.
        backward, hidden_back = self.traffic.exposed(send(2 * pairs), 2.5 * turn)
        # Outputs of all turns are added up, and in the backward the gradients: plain torch does so one by one, in fp32.
        streams, kernels, kernels_back = (7, 4, 9) if self.target.eager_layers else (3, 2, 4)
        adding = device.stream(streams * ways * outputs, kernels * ways)
        adding_back = device.stream(streams * ways * (outputs + pairs), kernels_back * ways)
        steps = ways - 1
        on_forward = steps * forward + adding
        on_backward = steps * backward + adding_back + (on_forward if again else 0.0)
        return on_forward, on_backward, steps * ((2 if again else 1) * hidden + hidden_back)

    def _price_layer(self, device_type: DeviceType, tp: int, sequences: int, mode: LayerMode) -> LayerPrice:
        if self.side > 1:
            return self._grid_layer(device_type, sequences, mode.recompute)
        if self._runs:
            return self._priced_runs(self._runs, device_type, tp, sequences, mode)
        measured = self.measured(device_type, tp, sequences)
        by_operation = self.target.eager_layers
        one = self._layer_pass(device_type, tp, sequences, mode)
        moved = self._collectives(one, device_type, tp, sequences, mode.split)
        routing = self._routing_seconds(device_type, tp, sequences, mode.folding)
        price = layer_price(one, moved, self.model_on(device_type), mode.recompute, by_operation, routing)
        if measured:
            price = measured_layer(measured, price)
            if mode.hooked or mode.graph:
                price = beside_host(price, one)
            back = price.backward_seconds
            price = replace(
                price,
                backward_seconds=back + one.added_seconds,
                weight_seconds=back * self._weight_share(device_type, tp) + one.added_seconds,
            )
        else:
            price = self._with_context(price, one, device_type, tp, sequences, mode.recompute)
        return self._beside_another(price, one) if overlaps(self.model, mode.folding) else price

    def _beside_another(self, price: LayerPrice, one: LayerPass) -> LayerPrice:
        """The layer with its all-to-alls beside all that it computes for another micro-batch.

        A forward of one and a backward of another take no less than their host does.
        """
        moved = price.routing_forward + price.routing_backward
        work = price.forward_seconds + price.backward_seconds + price.recompute_seconds
        work += price.collective_forward + price.collective_backward
        work += price.context_forward + price.context_backward
        _, hidden = self.traffic.exposed(moved, work)
        floor = 2.0 * one.host_seconds + one.host_more_seconds
        # Both directions move as much: nothing is recomputed that does.
        hidden = smaller(hidden, larger(0.0, moved + work - floor))
        return replace(
            price,
            routing_forward=price.routing_forward - hidden / 2,
            routing_backward=price.routing_backward - hidden / 2,
            routing_hidden=hidden,
        )

    def _weight_share(self, device_type: DeviceType, tp: int) -> float:
        """The part of a layer's backward for the gradients of weights, by formula; sums of these are in neither."""
        one = self._layer_pass(device_type, tp, 1, PLAIN)
        return (one.weight_seconds - one.added_seconds) / (one.backward_seconds - one.added_seconds)

    def _collectives(
        self,
        one: LayerPass,
        device_type: DeviceType,
        tp: int,
        sequences: int,
        split: bool,
    ) -> Collectives:
        """Tensor-parallel traffic of a layer whose tokens are split between its collectives, or not."""
        return collectives(
            one,
            self._tensor_ring(device_type, tp),
            self.model,
            sequences,
            split=split,
            hides=self.hides(device_type),
            overlap=self.framework.overlap,
            sums=backward_sums(self.model) if self.target.sums_each_input else None,
        )

    def _tensor_ring(self, device_type: DeviceType, tp: int) -> Ring:
        """The ring inside a replica."""
        return tensor_ring(
            device_type,
            self.calibration,
            tp=tp,
            curves=self.link_curves,
            utilisation=self.framework.link_utilisation,
        )

    def hides(self, device_type: DeviceType) -> Hidden:
        """What products hide of the tensor-parallel traffic with sequence parallelism on such devices."""
        return hidden_by(self.target, self.kernels, device_type, self.buffered)

    def axes(self, device_type: DeviceType) -> grids.Axes:
        """Rows and columns of a grid of such devices."""
        key = device_type.key
        if key not in self._axes:
            self._axes[key] = grids.axes(
                self.side, device_type, self.topology, self.calibration, self.kernels, self.link_curves
            )
        return self._axes[key]

    def _grid_layer(self, device_type: DeviceType, sequences: int, recompute: Recompute) -> LayerPrice:
        one = grids.layer(
            self.model_on(device_type),
            self._device(device_type),
            self.target,
            self.axes(device_type),
            sequences,
        )
        ahead, back = one.collective_forward, one.collective_backward
        forward = with_host(one.forward_seconds + ahead, one.host_seconds) - ahead
        again, device = recompute == "full", self._device(device_type)
        # A device has a block of each matrix.
        whole = trained_matrices(self.model, tp=1, tokens=1) if device.added_bytes else ()
        backward = one.backward_seconds + device.added(*(elements / self.side**2 for elements in whole))
        return LayerPrice(
            forward_seconds=forward,
            backward_seconds=with_host(backward + back, 2 * one.host_seconds) - back,
            recompute_seconds=forward if again else 0.0,
            collective_forward=ahead,
            collective_backward=back + (ahead if again else 0.0),
        )

    def measured(self, device_type: DeviceType, tp: int, sequences: int) -> LayerTimes | None:
        """One layer by measurements on devices of this type; None without any of this model."""
        if self.layer_curves is None:
            return None
        formula = partial(self._layer_formula, device_type)
        wide = device_type.nodes_each > 1
        most = device_type.per_node // device_type.nodes_each if wide else None
        return self.layer_curves.at(device_type.key, tp, sequences, formula, most)

    def _layer_formula(self, device_type: DeviceType, tp: int, sequences: int) -> LayerFormula:
        """A layer by formula, as it is measured: neither recomputed nor split along its sequences."""
        one = self._layer_pass(device_type, tp, sequences, PLAIN)
        ring = tensor_ring(device_type, self.calibration, tp=tp, curves=self._anchor_links)
        collective = collectives(one, ring, self.model, sequences, split=False).forward_seconds
        return LayerFormula(
            forward_seconds=one.forward_seconds + collective,
            backward_seconds=one.backward_seconds - one.added_seconds + collective,
            collective_seconds=collective,
            host_seconds=one.host_seconds,
            activation_bytes=activation_bytes_per_layer(
                self.model_on(device_type),
                tp=tp,
                micro_batch=sequences,
                recompute="none",
                sequence_parallel=False,
                eager=self.target.eager_layers,
            ),
            parameters=layer_elements(self.model, tp=tp),
        )

    def _layer_pass(self, device_type: DeviceType, tp: int, sequences: int, mode: LayerMode) -> LayerPass:
        """A layer's kernels, which do not depend on what is computed again."""
        key = device_type.key, tp, _sizes(sequences), mode.split, mode.folding, mode.hooked, mode.graph
        if key not in self._passes:
            self._passes[key] = layer_pass(
                self.model_on(device_type),
                self._device(device_type),
                self.target,
                tp=tp,
                micro_batch=sequences,
                sequence_parallel=mode.split,
                folding=mode.folding,
                ways=self.context.ways,
                hooks=self.target.hooks if mode.hooked else None,
                graph=mode.graph,
            )
        return self._passes[key]

    def hooked(self, zero: int) -> bool:
        """True where this ZeRO stage has hooks around modules."""
        return zero == 3 and self.target.hooks is not None

    def _mode(self, shape: Shape) -> LayerMode:
        """How the layers of a stage are computed, all but those of the pipeline's first chunk."""
        even = max(1, self.model.layers // (shape.depth * len(shape.chunks)))
        graph = even if divides(shape.schedule) and self.target.dividing is not None else 0
        return LayerMode(
            shape.recompute, shape.sequence_parallel, shape.folding, self.hooked(shape.zero), graph
        )

    def runs_unfused(self, device_type: DeviceType) -> bool:
        """True where the model has fused attention and the runtime no kernel of it for this type."""
        fused = self.model.training.attention == "flash"
        return fused and not self.target.fuses_attention(device_type.compute_capability)

    def model_on(self, device_type: DeviceType) -> ModelSpec:
        """The model as this type runs it."""
        return self._unfused if self.runs_unfused(device_type) else self.model

    def _device(self, device_type: DeviceType) -> Device:
        key = device_type.key
        if key not in self._devices:
            precision, added = self.model.training.precision, self._added_bytes()
            loss = loss_bytes(self.target, self.kernels, self._cross_entropy, ELEMENT_BYTES[precision])
            self._devices[key] = Device(device_type, self.calibration, precision, self.kernels, added, loss)
        return self._devices[key]

    @property
    def _cross_entropy(self) -> str:
        """How the loss is computed."""
        return self.model.training.cross_entropy or self.target.cross_entropies[0]

    def _added_bytes(self) -> float:
        """Bytes that move for each element of a weight's gradient that is added up behind the product that makes it."""
        training = self.model.training
        usual = "apart" if self.kernels in self.target.adds_gradients_apart else "fused"
        if (training.gradient_sums or usual) == "fused":
            return 0.0
        kept = gradients_of(self.target, training, 0).kept_bytes
        return ELEMENT_BYTES[training.precision] + 2.0 * kept

    def _end(self, which: str, device_type: DeviceType, tp: int, sequences: int) -> EndPass:
        if self.side > 1:
            price = grids.embedding if which == "embedding" else grids.head
            return price(self.model, self._device(device_type), self.axes(device_type), sequences)
        function = embedding_pass if which == "embedding" else head_pass
        key = (which, device_type.key, tp, _sizes(sequences))
        if key not in self._ends:
            self._ends[key] = function(self.model, self._device(device_type), tp=tp, micro_batch=sequences)
        return self._ends[key]

    def _chunks(
        self, shape: Shape, group: ReplicaGroup, ring: Ring, whole: MicroBatch
    ) -> tuple[list[float], list[float], list[float]]:
        """Forward and backward seconds of each chunk, and those of its weights' gradients where they are apart.

        The embedding is in the first chunk, the head in the last.
        """
        if len(shape.chunks) == 1:
            return _ways([whole], divided=divides(shape.schedule))
        device_type = self.topology.device_type(group.pool, group.gpu)
        alike = device_type, group.tp, group.micro_batch, shape
        known: dict[tuple[object, bool, bool], MicroBatch] = {}
        parts = []
        for index, layers in enumerate(shape.chunks):
            ends = shape.first and index == 0, shape.last and index == len(shape.chunks) - 1
            key = index if isinstance(layers, np.ndarray) else layers, *ends
            if key not in known:
                known[key] = self._micro_batch(*alike, layers, *ends, ring)
            parts.append(known[key])
        return _ways(parts, divided=divides(shape.schedule))

    def _work(self, shape: Shape, group: ReplicaGroup, ring: Ring, largest: MicroBatch) -> float:
        """Seconds of all micro-batches of one replica; in lock step every micro-batch waits for the largest."""
        smaller = group.accumulation_steps * group.micro_batch - group.local_batch
        if shape.zero >= 2 or shape.depth > 1 or smaller == 0:
            return group.accumulation_steps * largest.seconds - largest.first_saves_seconds
        small = self.micro_batch(shape, group, group.micro_batch - 1, ring)
        return (group.accumulation_steps - smaller) * largest.seconds + smaller * small.seconds

    def tied_seconds(self, shape: Shape, group: ReplicaGroup) -> float:
        """Seconds to add the two gradients of an embedding whose copies stand on two stages."""
        if "embedding" in self.model.frozen or not self.model.embeds_twice or shape.first == shape.last:
            return 0.0
        size = self.model.vocab * self.model.embedding_width / group.tp * self._gradient_bytes(shape)
        return size / self.topology.node_bytes_per_second(group.pool) / self._share(group.pool)

    def _share(self, pool: str) -> float:
        fabric = self.topology.best_fabric(pool)
        if not fabric:
            return 1.0
        kind = self.topology.cluster.fabrics[fabric].kind
        return fabric_share(kind, self.topology.cards(pool, fabric), self.calibration)

    def update_seconds(
        self,
        shape: Shape,
        group: ReplicaGroup,
        ring: Ring,
        beside_seconds: float = 0.0,
        *,
        part: bool = False,
    ) -> float:
        """The optimizer's step on one device of a group, without what its host does beside the backward.

        Host and device update their shares at the same time, the device once the backward is over. ``part`` for what
        this shape takes at least of the step of a stage that holds more.
        """
        count = self._parameters(shape, group.tp)
        device_type = self.topology.device_type(group.pool, group.gpu)
        if shape.offload.optimizer != "none":
            held = self._held(
                shape,
                shape.layers,
                shape.first,
                shape.last,
                group.tp,
                group.micro_batch,
                ring.ways(group.shard),
            )
            host = host_optimizer_seconds(shape.offload, held, device_type, self.model, self.target)
            kept = (1.0 - shape.offload.ratio) * held.shard
            own = optimizer_seconds(
                kept, self._device(device_type), self.model, eager=self.target.eager_layers
            )
            return larger(own, host - beside_seconds)
        experts = self.traffic.trained_experts(shape)
        zero = self._states_zero(shape)
        share = (count - experts) / optimizer_ways(zero, ring.ways(group.shard))
        share += experts / optimizer_ways(zero, ring.of_experts.ways(group.shard))
        update = self._measured_update(device_type.gpu, share, part=part)
        device = self._device(device_type)
        seconds = optimizer_seconds(share, device, self.model, update, eager=self.target.eager_layers)
        if self.kernels in self.target.through_buffers:
            seconds += once_seconds(count, device, self.target, shape.zero, ring)
        seconds += paging_seconds(share, device_type, self.model.training)
        if self.model.training.optimizer == "muon":
            seconds += shape.layers * orthogonal_seconds(self.model, device)
            ends = (
                *(self.model.first_runs if shape.first else ()),
                *(self.model.last_runs if shape.last else ()),
            )
            seconds += sum(
                run.layers * orthogonal_seconds(run.kind, device) for run in ends if not run.frozen
            )
        return seconds

    def _measured_update(self, gpu: str, share: float, *, part: bool) -> float | None:
        """Seconds of the optimizer on so many elements by measurement, if there are any."""
        curves = self.optimizer_curves
        if curves is None or curves.seconds(gpu, 1.0) is None:
            return None
        read = curves.least_seconds if part else curves.seconds
        if isinstance(share, np.ndarray):
            return as_number(np.array([read(gpu, elements) for elements in share]))
        return read(gpu, share)

    def _parameters(self, shape: Shape, tp: int) -> float:
        """Elements of the stage on one device of a replica that are trained."""
        return trained_of(
            self.model,
            layers=shape.layers,
            first=shape.first,
            last=shape.last,
            tp=tp,
            expert_ways=shape.folding.ways,
        )

    def _held(
        self, shape: Shape, layers: int, first: bool, last: bool, tp: int, sequences: int, sharing: float
    ) -> Held:
        """``sharing`` replicas, or an array of such numbers, share the states; fewer those of divided experts."""
        ways = shape.folding.ways
        trained = trained_of(self.model, layers=layers, first=first, last=last, tp=tp, expert_ways=ways)
        experts = trained_experts_of(self.model, layers=layers, expert_ways=ways, first=first, last=last)
        alike = replicas_with_experts(sharing, tp, ways)
        gathered = gathered_of(
            self.model,
            layers=layers,
            first=first,
            last=last,
            tp=tp,
            expert_ways=ways,
            shards_codes=self.target.shards_codes,
        )
        return Held(
            shard=(trained - experts) / optimizer_ways(shape.zero, sharing)
            + experts / optimizer_ways(shape.zero, alike),
            gathered=gathered / optimizer_ways(shape.zero, sharing),
            zero=shape.zero,
            gradient_bytes=self._gradient_bytes(shape),
            layers=layers * self.model.layers_each
            + sum(self._kept_layers(run) for run in self.model.first_runs if first)
            + sum(self._kept_layers(run) for run in self.model.last_runs if last),
            sequences=sequences,
            token_ways=norm_ways(tp, shape.sequence_parallel),
            recomputes=shape.recompute == "full",
        )

    def _kept_layers(self, run: LayerRun) -> int:
        """Layers of the model with as many elements at their inputs."""
        if run.frozen or run.kind.kind == self.model.kind:
            return 0 if run.frozen else run.layers
        own = run.inputs * run.kind.training.sequence_length * run.kind.hidden
        return ceil(run.layers * own / (self.model.training.sequence_length * self.model.hidden))

    def _gradients(self, shape: Shape) -> Gradients:
        if shape.zero not in self._gradients_with:
            self._gradients_with[shape.zero] = gradients_of(self.target, self.model.training, shape.zero)
        return self._gradients_with[shape.zero]

    def _gradient_bytes(self, shape: Shape) -> int:
        return self._gradients(shape).kept_bytes
