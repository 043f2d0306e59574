"""The price of one layer for one micro-batch: device, host and collectives together, or as it was measured."""

from __future__ import annotations

from dataclasses import dataclass

from planner.cost.communication import Ring
from planner.cost.compute import ELEMENT_BYTES, LayerPass
from planner.cost.measured_curves import LayerTimes
from planner.model.spec import ModelSpec
from planner.runtimes.capabilities import Recompute


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerPrice:
    """Seconds of one layer for one micro-batch; computation includes waiting for the host's launches."""

    forward_seconds: float
    backward_seconds: float
    recompute_seconds: float
    collective_forward: float
    """Tensor-parallel collectives of the forward."""
    collective_backward: float
    """Tensor-parallel collectives of the backward and of recomputation."""


def layer_price(
    one: LayerPass, ring: Ring, model: ModelSpec, sequences: int, recompute: Recompute
) -> LayerPrice:
    """Two all-reduces a direction; with sequence parallelism a gather and a scatter of the same bytes."""
    collective = _collective_seconds(ring, model, sequences)
    whole = recompute == "full"
    forward = _with_host(one.forward_seconds + collective, one.host_seconds) - collective
    again = 0.0
    if whole:
        again = forward
    elif recompute == "selective" and model.training.attention == "unfused":
        again = one.attention_seconds
    return LayerPrice(
        forward_seconds=forward,
        backward_seconds=_with_host(one.backward_seconds + collective, one.host_seconds) - collective,
        recompute_seconds=again,
        collective_forward=collective,
        collective_backward=(2 if whole else 1) * collective,
    )


def measured_layer(
    times: LayerTimes, ring: Ring, model: ModelSpec, sequences: int, recompute: Recompute
) -> LayerPrice:
    """A measured layer: the host's work is in its times already, and its collectives unless the times lack them."""
    collective = _collective_seconds(ring, model, sequences) if times.without_collectives else 0.0
    return LayerPrice(
        forward_seconds=times.forward_seconds,
        backward_seconds=times.backward_seconds,
        recompute_seconds=times.forward_seconds if recompute == "full" else 0.0,
        collective_forward=collective,
        collective_backward=(2 if recompute == "full" else 1) * collective,
    )


def _collective_seconds(ring: Ring, model: ModelSpec, sequences: int) -> float:
    """Tensor-parallel collectives of one direction."""
    size = ELEMENT_BYTES[model.training.precision]
    return 2 * ring.reduce_seconds(size * sequences * model.training.sequence_length * model.hidden)


def _with_host(device_seconds: float, host_seconds: float) -> float:
    """Seconds when host and device run side by side: the longer one, and more where both are nearly as long.

    The fourth-power mean stands for launches and kernels that vary: each waits for the other now and then.
    """
    return float((device_seconds**4 + host_seconds**4) ** 0.25)
