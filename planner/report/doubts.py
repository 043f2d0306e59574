"""Where a calibration was measured with something else than what it is used for, or cannot be true."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf

from planner.calibration.merge import name_key, shapes, share_formats
from planner.calibration.values import Calibration, LinkPoint
from planner.cluster.spec import ClusterSpec
from planner.cost.compute import layer_flops
from planner.measure.resume import shape_text
from planner.model.spec import ModelSpec
from planner.report.numbers import significant
from planner.units import bytes_per_second_from_gbps, bytes_per_second_from_gigabytes, flops_from_tflops


def doubts(calibration: Calibration, cluster: ClusterSpec, model: ModelSpec) -> Iterator[str]:
    """A line for each: another model, shape or number format, several versions of torch, unknown devices, fabrics.

    And what was measured faster than devices and wires are, or so slow that its unit must be another.
    """
    yield from _model(calibration, model)
    yield from _impossible_layers(calibration, cluster, model)
    yield from _fast_links(calibration, cluster)
    yield from _formats(calibration, cluster, model)
    keys = {point.source for point in calibration.layers}
    keys |= {point.source for point in calibration.kernel_points}
    keys |= {point.source for point in calibration.link_points}
    used = [calibration.sources.get(key, {}) for key in keys]
    versions = sorted({facts["torch"] for facts in used if "torch" in facts})
    if len(versions) > 1:
        yield (
            f"its points were measured with different versions of torch, {' and '.join(versions)}: "
            "they are used together anyway"
        )
    yield from _strangers(calibration, cluster)


def _model(calibration: Calibration, model: ModelSpec) -> Iterator[str]:
    names = {name_key(point.model): point.model for point in calibration.layers}
    if names and name_key(model.name) not in names:
        yield f"has layers of {', '.join(sorted(names.values()))} and none of {model.name}: formulas price those"
        return
    now = shape_text(model)
    for measured in sorted(shapes(calibration).get(name_key(model.name), set()) - {now}):
        parts = zip(measured.split(", "), now.split(", "), strict=False)
        unlike = [pair for pair in parts if pair[0] != pair[1]]
        was, is_now = (", ".join(pair[side] for pair in unlike) for side in (0, 1))
        yield f"its layers of {model.name} were measured with {was}, but the model has {is_now}: they are used anyway"


def _formats(calibration: Calibration, cluster: ClusterSpec, model: ModelSpec) -> Iterator[str]:
    """Shares of peak FLOP/s that are those of another number format than the model's."""
    families, wanted = {gpu.family for gpu in cluster.gpus.values()}, model.training.precision
    for family, formats in sorted(share_formats(calibration, wanted).items()):
        if family in families and formats != {wanted}:
            yield (
                f"its efficiencies for {family} were fitted to {', '.join(sorted(formats))} kernels, but the model "
                f"uses {wanted}: they are used anyway, hetplan calibrate device --model fits them anew"
            )


def _strangers(calibration: Calibration, cluster: ClusterSpec) -> Iterator[str]:
    """Devices and fabrics that the cluster does not have."""
    links = {point.link.partition(":")[::2] for point in calibration.link_points}
    gpus = {point.gpu for point in calibration.layers} | {gpu for _, gpu in links if gpu}
    gpus |= {point.gpu for point in calibration.kernel_points}
    known = {name_key(gpu) for gpu in cluster.gpus}
    if others := sorted(gpu for gpu in gpus if name_key(gpu) not in known):
        yield f"was measured on {', '.join(others)}, which {cluster.name} does not have"
    fabrics = {link for link, gpu in links if not gpu}
    if others := sorted(link for link in fabrics if not set(link.split("+")) <= cluster.fabrics.keys()):
        yield f"was measured over {', '.join(others)}, which {cluster.name} does not have"


SLOW = 100.0
"""Times the seconds at a device's peak from which a layer's are doubted: milliseconds in their place are 1000 times."""
SLOW_SECONDS = 0.05
"""More than the launches of any layer's kernels take, on which small layers wait."""


def _impossible_layers(calibration: Calibration, cluster: ClusterSpec, model: ModelSpec) -> Iterator[str]:
    """Layers of the model that a device is said to compute faster than its peak, in the number format that has most.

    And those that would take it longer than any layer does.
    """
    name = name_key(model.name)
    if shapes(calibration).get(name, set()) - {shape_text(model)}:
        return  # of another size
    forward, whole = layer_flops(model)
    peaks = {name_key(gpu.name): flops_from_tflops(max(gpu.tflops.values())) for gpu in cluster.gpus.values()}
    fast: dict[str, float] = {}
    slow: dict[str, float] = {}
    for point in calibration.layers:
        peak = point.tp * peaks.get(name_key(point.gpu), inf) / point.micro_batch
        seconds = point.forward_seconds + point.backward_seconds
        times = max(forward / (peak * point.forward_seconds), whole / (peak * seconds))
        if name_key(point.model) != name or peak == inf:
            continue
        if times > 1.0:
            fast[point.gpu] = max(times, fast.get(point.gpu, 0.0))
        elif seconds > SLOW * whole / peak + SLOW_SECONDS:
            slow[point.gpu] = max(seconds * peak / whole, slow.get(point.gpu, 0.0))
    for gpu, times in fast.items():
        need = f"would need {significant(times)} times the peak of the device"
        yield f"its layers of {model.name} on {gpu} {need}: check seconds"
    for gpu, times in slow.items():
        take = f"take {significant(times)} times what they would at the peak of the device"
        yield f"its layers of {model.name} on {gpu} {take}: check seconds"


IN_THE_SWITCH = 2.0
"""By how much switches that add up shorten what each device sends in an all-reduce."""


def _fast_links(calibration: Calibration, cluster: ClusterSpec) -> Iterator[str]:
    """Links that are said to carry more than the file gives them."""
    fast: dict[tuple[str, str], float] = {}
    for point in calibration.link_points:
        times = _sent_bytes(point) / point.seconds / _wire(cluster, point.link)
        if times > IN_THE_SWITCH:
            curve = point.link, point.operation
            fast[curve] = max(times, fast.get(curve, 0.0))
    for (link, operation), times in fast.items():
        need = f"would need {significant(times)} times the bandwidth that {cluster.name} gives the link"
        yield f"its {operation} over {link} {need}: check sizes and seconds"


def _sent_bytes(point: LinkPoint) -> float:
    """What a device sends at least, by ring: all that it has in a send, what others lack in a collective."""
    if point.operation in ("send", "broadcast", "reduce"):
        return point.size_bytes
    passes = 2.0 if point.operation == "all-reduce" else 1.0
    return passes * (point.members - 1) / point.members * point.size_bytes


def _wire(cluster: ClusterSpec, link: str) -> float:
    """Bytes per second of one device or node in one direction; infinite where the cluster does not have the link."""
    names, _, gpu = link.partition(":")
    if gpu:
        inside = [
            bytes_per_second_from_gigabytes(pool.intra_node.bandwidth_gBps)
            for pool in cluster.pools
            if name_key(gpu) in map(name_key, pool.devices)
        ]
        return max(inside, default=inf)
    rates = dict.fromkeys(names.split("+"), 0.0)
    for pool in cluster.pools:
        for nic in pool.nics:
            if nic.fabric in rates:
                carried = nic.count * bytes_per_second_from_gbps(nic.bandwidth_gbps)
                rates[nic.fabric] = max(rates[nic.fabric], carried)
    return min(rates.values()) or inf
