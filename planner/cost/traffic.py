"""Traffic of gradients and parameters between replicas, and how much of it is exposed."""

from __future__ import annotations

from dataclasses import field, replace

from planner.calibration.values import Framework
from planner.capabilities import Capabilities
from planner.cost.arrays import finite, larger, smaller
from planner.cost.communication import Ring
from planner.cost.compute import ELEMENT_BYTES, dense_tensors, expert_tensors, layer_tensors
from planner.cost.memory import gathered_experts_of, gathered_of, trained_experts_of, trained_of
from planner.cost.schedules import divides
from planner.cost.shape import Shape
from planner.dims.sharding import gradients_of, states_zero
from planner.frozen import dataclass
from planner.model.spec import ModelSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class EndTraffic:
    """What one replica exchanges with others at the end of the step."""

    reduction_seconds: float = 0.0
    """Exposed reduction of gradients."""
    gather_seconds: float = 0.0
    """Exposed gather of the new parameters."""
    hidden_seconds: float = 0.0

    @property
    def seconds(self) -> float:
        """Exposed."""
        return self.reduction_seconds + self.gather_seconds


@dataclass(frozen=True, slots=True)
class Traffic:
    """Prices what replicas of one model exchange under one target."""

    model: ModelSpec
    target: Capabilities
    framework: Framework
    _reduced_bytes: dict[int, int] = field(default_factory=dict, init=False, compare=False)
    """Bytes of a gradient on its way, by ZeRO stage."""

    def exposed(self, traffic: float, compute: float) -> tuple[float, float]:
        """(exposed, hidden) seconds of traffic under a computation; they slow each other while both run."""
        hidden = self.framework.overlap * smaller(traffic, compute)
        return traffic - hidden, hidden

    def in_micro_batch(
        self, shape: Shape, ring: Ring, layers: int, first: bool, last: bool, tp: int, launch_seconds: float
    ) -> tuple[float, float]:
        """Seconds of gathering the parameters once, and of scattering the gradients, in each micro-batch.

        ZeRO-3 gathers in the forward and again in the backward (arXiv:1910.02054, section 7.2.2); with gradient
        accumulation ZeRO-2 scatters in every micro-batch too. A host launches a kernel in ``launch_seconds``.
        """
        if shape.zero < 2 or ring.alone:
            return 0.0, 0.0
        ways = shape.folding.ways
        trained = trained_of(self.model, layers=layers, first=first, last=last, tp=tp, expert_ways=ways)
        codes = self.target.shards_codes
        gathered = gathered_of(
            self.model, layers=layers, first=first, last=last, tp=tp, expert_ways=ways, shards_codes=codes
        )
        # What a host needs for a part of a tensor of each layer.
        part = layers * launch_seconds * self.target.hooks.slice if self.target.hooks is not None else 0.0
        if ring.experts is None:
            handled = _times(part, layer_tensors(self.model))
            return self._micro_batch_passes(shape, ring, layers, trained, gathered, handled)
        # As at the end of a step.
        experts = gathered_experts_of(
            self.model, layers=layers, expert_ways=ways, first=first, last=last, shards_codes=codes
        )
        own = trained_experts_of(self.model, layers=layers, expert_ways=ways, first=first, last=last)
        others = replace(ring, experts=None)
        handled = _times(part, dense_tensors(self.model))
        dense = self._micro_batch_passes(shape, others, layers, trained - own, gathered - experts, handled)
        handled = _times(part, expert_tensors(self.model))
        routed = self._micro_batch_passes(shape, ring.experts, layers, own, experts, handled)
        # Of frozen experts nothing is reduced.
        return dense[0] + routed[0], dense[1] + (routed[1] if self.model.trains_experts else 0.0)

    def _micro_batch_passes(
        self,
        shape: Shape,
        ring: Ring,
        layers: int,
        trained: float,
        gathered: float,
        handled: tuple[float, float],
    ) -> tuple[float, float]:
        """The same over one ring, of so many elements that are trained and that are gathered; a host handles the part
        that a member has of all that is gathered, and scattered, in ``handled`` seconds."""
        if shape.zero == 2:
            messages = self._messages(shape, (layers,), trained, ring.size)
            return 0.0, self._reduction_seconds(shape, ring, trained, messages)
        messages = layers * self.model.layers_each * self.target.gathers_per_layer
        near = ring.near or ring
        gather = near.gather_seconds(gathered * self._sent_bytes(shape), messages)
        scatter = self._reduction_seconds(shape, ring, trained, messages)
        return gather + handled[0] * near.size, scatter + handled[1] * ring.size

    def _sent_bytes(self, shape: Shape) -> float:
        """Bytes of a parameter that ZeRO 3 gathers; scales of eight-bit ones are a thousandth more."""
        return 1.0 if shape.zero_plus.int8_weights else ELEMENT_BYTES[self.model.training.precision]

    def first_gather_seconds(self, shape: Shape, ring: Ring, forward_seconds: float) -> float:
        """What the first forward of a step waits longer than the others, where all but it gathers from second copies.

        It makes these copies anew. What hides it is the part of a forward that gathers from them leave.
        """
        if ring.near is None or ring.alone:
            return 0.0
        layers = shape.layers
        messages = layers * self.model.layers_each * self.target.gathers_per_layer
        elements = gathered_of(
            self.model,
            layers=layers,
            first=shape.first,
            last=shape.last,
            tp=1,
            expert_ways=shape.folding.ways,
            shards_codes=self.target.shards_codes,
        )
        size = elements * self._sent_bytes(shape)
        near = ring.near.gather_seconds(size, messages)
        more = larger(0.0, ring.gather_seconds(size, messages) - near)
        return self.exposed(more, larger(0.0, forward_seconds - near))[0]

    def at_end(
        self, shape: Shape, ring: Ring, parameters: float, forward_seconds: float, backward_seconds: float
    ) -> EndTraffic:
        """All-reduce of the gradients, with ZeRO-1 a scatter where the runtime has one and a gather of new parameters.

        ZeRO-2 has reduced already and ZeRO-3 has nothing left to do; copies are added up last. The seconds are those
        of the last backward and of the next step's first forward, which may hide both.
        """
        if ring.near is not None:
            return EndTraffic(gather_seconds=self.first_gather_seconds(shape, ring, forward_seconds))
        reduction, gather = self._end_passes(shape, ring, parameters)
        if ring.dropped:
            # Who is in is known when the gradients are whole, and weights are there before anybody computes.
            return EndTraffic(reduction_seconds=reduction, gather_seconds=gather)
        reduced, hidden = self.exposed(reduction, finite(backward_seconds) * self._overlaps_reduction(shape))
        gathered, hidden_gather = self.exposed(
            gather, finite(forward_seconds) * self.target.overlaps_parameter_gather
        )
        return EndTraffic(
            reduction_seconds=reduced, gather_seconds=gathered, hidden_seconds=hidden + hidden_gather
        )

    def trained_experts(self, shape: Shape) -> float:
        """Elements of experts of a stage on one device that are trained."""
        return trained_experts_of(
            self.model,
            layers=shape.layers,
            expert_ways=shape.folding.ways,
            first=shape.first,
            last=shape.last,
        )

    def _end_passes(self, shape: Shape, ring: Ring, parameters: float) -> tuple[float, float]:
        """Seconds of the reduction and of the gather at the end of the step, hidden or not."""
        if ring.experts is None:
            return self._own_end_passes(shape, ring, parameters, ring.size)
        # Experts have a ring of their own; both share the links, one after the other.
        experts = self.trained_experts(shape)
        dense = self._own_end_passes(shape, replace(ring, experts=None), parameters - experts, ring.size)
        if not self.model.trains_experts:
            return dense
        routed = self._own_end_passes(shape, ring.experts, experts, ring.size)
        return dense[0] + routed[0], dense[1] + routed[1]

    def _own_end_passes(
        self, shape: Shape, ring: Ring, parameters: float, replicas: int
    ) -> tuple[float, float]:
        """The same over one ring of a stage that has so many replicas."""
        if ring.alone and ring.copies is None:
            return 0.0, 0.0
        messages = self._messages(shape, shape.chunks, parameters, replicas)
        gather = reduction = 0.0
        if states_zero(self.target, self.model.training, shape.zero, shape.depth) in (1, 2):
            whole = self.target.buckets is not None and self.target.buckets.gathers_whole
            gather = ring.gather_seconds(parameters * self._gathered_bytes, 1 if whole else messages)
        if shape.zero < 2:
            reduction = self._reduction_seconds(shape, ring, parameters, messages)
        return reduction + ring.copies_seconds(parameters * self._gradient_bytes(shape), messages), gather

    def _messages(self, shape: Shape, chunks: tuple[int, ...], elements: float, replicas: int) -> float:
        """Messages in which gradients of so many elements in these chunks of layers travel: layers, or buckets.

        A bucket is counted as no less than a layer, though tensors of large layers may fill one each.
        """
        layers, buckets = sum(chunks), self.target.buckets
        most = layers * self.model.layers_each
        if buckets is None:
            return most
        size, whole = buckets.elements, 0
        if shape.zero == 0 and buckets.elements_without_zero is not None:
            size = buckets.elements_without_zero
        if buckets.only_first_chunk:
            whole = len(chunks) - shape.first
            elements = elements * chunks[0] / layers if shape.first else 0.0
        filled = -(-elements // larger(size, buckets.per_replica * replicas))
        return smaller(most, larger(1.0, whole + filled))

    def _overlaps_reduction(self, shape: Shape) -> bool:
        return self.target.overlaps_reduction_always or (shape.zero > 0 and shape.depth == 1)

    def keeps_step(self, shape: Shape, ring: Ring) -> bool:
        """True when replicas with batches of their own wait for each other inside the last backward, layer by layer.

        A scatter holds the next layer back; adding up whole gradients or copies does so where nothing hides it, as the
        caller then waits in each collective. With ZeRO 2 and 3 replicas keep step in every micro-batch anyway.
        """
        apart = shape.depth > 1 or shape.zero >= 2 or ring.size == 1 or ring.dropped > 0
        if not self.target.reduces_in_backward or apart:
            return False
        return self.framework.overlap == 0 or (shape.zero == 1 and ring.copies is None)

    def holds_gradients(self, shape: Shape) -> bool:
        """True when a stage passes its last gradient up the pipeline only after its own reduction."""
        return self.target.reduces_in_backward and shape.depth > 1 and not divides(shape.schedule)

    def _reduction_seconds(self, shape: Shape, ring: Ring, parameters: float, messages: float) -> float:
        """Seconds until every member has its part of the summed gradients; without ZeRO, all of them."""
        if shape.zero_plus.int4_gradients and ring.near is not None:
            # First all devices of a node among themselves, then each with its counterparts (arXiv:2306.10209, 3.3).
            size, between = 0.5 * parameters, ring.near.copies
            inside = ring.near.scatter_seconds(size, messages)
            return inside + (
                0.0 if between is None else between.scatter_seconds(size / ring.near.size, messages)
            )
        size = parameters * self._gradient_bytes(shape)
        scatters = shape.zero in self.target.scatters_gradients
        return ring.scatter_seconds(size, messages) if scatters else ring.reduce_seconds(size, messages)

    @property
    def _gathered_bytes(self) -> int:
        """Bytes of a new parameter on its way at the end of the step: runtimes of Transformer Engine gather in fp8."""
        precision = self.model.training.precision
        return 1 if precision == "fp8" and not self.target.eager_layers else ELEMENT_BYTES[precision]

    def _gradient_bytes(self, shape: Shape) -> int:
        if shape.zero not in self._reduced_bytes:
            reduced = gradients_of(self.target, self.model.training, shape.zero).reduced_bytes
            self._reduced_bytes[shape.zero] = reduced
        return self._reduced_bytes[shape.zero]


def _times(seconds: float, tensors: tuple[int, int]) -> tuple[float, float]:
    return seconds * tensors[0], seconds * tensors[1]
