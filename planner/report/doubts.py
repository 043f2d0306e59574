"""Where a calibration was measured with something else than what it is used for, or cannot be true."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf
from typing import get_args

from planner import catalog
from planner.calibration.merge import name_key, shapes, share_formats
from planner.calibration.values import Calibration, LinkPoint
from planner.cluster.spec import ClusterSpec
from planner.cost.compute import layer_flops
from planner.cost.memory import activation_bytes_per_layer, layer_elements
from planner.files.messages import nearest
from planner.measure.resume import shape_text
from planner.model.spec import Kernels, ModelSpec
from planner.report.numbers import significant
from planner.units import bytes_per_second_from_gbps, bytes_per_second_from_gigabytes, flops_from_tflops


def doubts(calibration: Calibration, cluster: ClusterSpec, model: ModelSpec) -> Iterator[str]:
    """A line for each: another model, shape or number format, several versions of torch, unknown devices, fabrics.

    And what was measured faster than devices and wires are, or so slow or small that its unit must be another.
    """
    yield from _model(calibration, model)
    yield from _impossible_layers(calibration, cluster, model)
    yield from _impossible_bytes(calibration, cluster, model)
    yield from _impossible_links(calibration, cluster)
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
    yield from _unknown_names(calibration, cluster)


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


def _unknown_names(calibration: Calibration, cluster: ClusterSpec) -> Iterator[str]:
    """Constants of families and kernel sets that nothing has: no plan reads them."""
    sets = set(get_args(Kernels))
    families = {catalog.gpu(name).family for name in catalog.gpu_names()}
    families |= {gpu.family or gpu.name for gpu in cluster.gpus.values()}
    parts = {name: name.rpartition(".") for name in calibration.families.keys() - families}
    unknown = {family or kernels for family, _, kernels in parts.values()} - families
    for name in sorted(unknown):
        yield (
            f"its constants of {name} are of no family of devices and not used: hetplan gpus NAME says the family of a "
            "device"
        )
    unknown = {*calibration.frameworks, *(kernels for family, _, kernels in parts.values() if family)} - sets
    for name in sorted(unknown):
        hint = nearest(name, sorted(sets)) or f"known are {', '.join(sorted(sets))}"
        yield f"its constants of {name} are of no kernel set and not used: {hint}"


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


OTHER_UNIT = 10.0
"""Times what a formula says, or a part of it, from which bytes and elements are doubted: kernels differ less."""


def _impossible_bytes(calibration: Calibration, cluster: ClusterSpec, model: ModelSpec) -> Iterator[str]:
    """Layers of the model that are said to keep, or to have, far more or less than they can."""
    name, gpus = name_key(model.name), set(map(name_key, cluster.gpus))
    if shapes(calibration).get(name, set()) - {shape_text(model)}:
        return  # of another size
    told: dict[tuple[str, str], float] = {}
    for point in calibration.layers:
        if name_key(point.model) != name or name_key(point.gpu) not in gpus:
            continue
        kept = activation_bytes_per_layer(
            model,
            tp=point.tp,
            micro_batch=point.micro_batch,
            recompute="none",
            sequence_parallel=False,
            eager=True,
        )
        for key, measured, by_formula in (
            ("activation_bytes", point.activation_bytes, kept),
            ("parameters", point.parameters, layer_elements(model, tp=point.tp)),
        ):
            if measured and not 1 / OTHER_UNIT < measured / by_formula < OTHER_UNIT:
                told.setdefault((point.gpu, key), measured / by_formula)
    for (gpu, key), times in told.items():
        have = f"have {significant(times)} times the {key} that formulas give them"
        yield f"its layers of {model.name} on {gpu} {have}: check {key}"


IN_THE_SWITCH = 2.0
"""By how much switches that add up shorten what each device sends in an all-reduce."""


def _impossible_links(calibration: Calibration, cluster: ClusterSpec) -> Iterator[str]:
    """Links that are said to carry more than the file gives them, or next to nothing of it."""
    fast: dict[tuple[str, str], float] = {}
    slow: dict[tuple[str, str], float] = {}
    for point in calibration.link_points:
        curve, wire = (point.link, point.operation), _wire(cluster, point.link)
        sent = point.concurrent * _sent_bytes(point) / wire
        if sent > IN_THE_SWITCH * point.seconds:
            fast[curve] = max(sent / point.seconds, fast.get(curve, 0.0))
        elif wire < inf and point.seconds > SLOW * sent + SLOW_SECONDS:
            slow[curve] = max(point.seconds / sent, slow.get(curve, 0.0))
    for (link, operation), times in fast.items():
        need = f"would need {significant(times)} times the bandwidth that {cluster.name} gives the link"
        yield f"its {operation} over {link} {need}: check sizes and seconds"
    for (link, operation), times in slow.items():
        take = f"takes {significant(times)} times what it would at the bandwidth that {cluster.name} gives the link"
        yield f"its {operation} over {link} {take}: check sizes and seconds"


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
