"""Where a calibration was measured with something else than what it is used for."""

from __future__ import annotations

from collections.abc import Iterator

from planner.calibration.merge import name_key, shapes, share_formats
from planner.calibration.values import Calibration
from planner.cluster.spec import ClusterSpec
from planner.measure.resume import shape_text
from planner.model.spec import ModelSpec


def doubts(calibration: Calibration, cluster: ClusterSpec, model: ModelSpec) -> Iterator[str]:
    """A line for each: another model, shape or number format, several versions of torch, unknown devices, fabrics."""
    yield from _model(calibration, model)
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
