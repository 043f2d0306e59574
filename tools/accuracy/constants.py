"""The constants before and after the fit, families without runs of their own, and devices in order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from math import hypot

from planner import catalog
from planner.calibration.values import Calibration, Constant
from planner.catalog import IntraNodeSpec
from planner.cluster.spec import ClusterSpec, PoolSpec
from planner.cluster.topology import Topology
from planner.cost.compute import Device, layer_pass, layer_products
from planner.measured.fit import families_of
from planner.measured.microbenchmarks import microbenchmarks
from planner.measured.predictions import coverage, errors_of, predict
from planner.measured.priors import KERNEL_SETS, OWN_RUNTIME, RUNTIME, SLACK, catalogue_families, priors
from planner.model.spec import ModelSpec, TrainingSpec
from planner.report.numbers import MISSING, significant
from planner.targets import REFERENCE
from planner.units import gib_from_bytes
from tools.accuracy.material import Material, markdown, paragraph, share, signed


def constants_section(found: Material) -> str:
    """Every constant that the runs tell, next to what was known of it; then those that stayed as they were."""
    calibration, before = (
        found.calibration,
        _by_name((*priors(catalogue_families()).constants, *_of_memory())),
    )
    fitted = [item for item in calibration.constants if item.provenance == "fitted"]
    rows = [(f"`{item.name}`", *_known(before.get(item.name)), *_known(item)) for item in fitted]
    return "\n".join(
        (
            paragraph(
                f"{len(fitted)} of {len(calibration.constants)} constants are told by the runs; the others keep what",
                "microbenchmarks or their peers say, with their spread. None belongs to a model, a run or a paper.",
                "± is the relative standard error. `planner/calibration/values.py` says what each means, and",
                "`planner/measured/priors.py` where the value before the fit comes from.",
            ),
            markdown(("constant ", "before", "±", "fitted", "±"), rows),
        )
    )


def _by_name(constants: Iterable[Constant]) -> dict[str, Constant]:
    return {item.name: item for item in constants}


def _of_memory() -> Iterator[Constant]:
    """What kernel sets have in common and of their own, as one spread, and what their allocators hold."""
    spread = hypot(RUNTIME.spread, OWN_RUNTIME)
    for name in KERNEL_SETS:
        dotted = f"frameworks.{name}.runtime_bytes"
        yield Constant(name=dotted, value=RUNTIME.value, provenance="assumed", spread=spread)
        slack = f"frameworks.{name}.unit_slack"
        yield Constant(name=slack, value=SLACK.value, provenance="assumed", spread=SLACK.spread)


def _known(item: Constant | None) -> tuple[str, str]:
    if item is None:
        return MISSING, MISSING
    return _value(item.name.rpartition(".")[2], item.value), MISSING if item.spread is None else share(
        item.spread
    )


def _value(name: str, value: float) -> str:
    if name.endswith("bytes_per_second"):
        return f"{significant(value / 1e9, 2)} GB/s"
    if name.endswith("_seconds"):
        return f"{significant(value * 1e6, 2)} µs"
    return (
        f"{significant(gib_from_bytes(value), 2)} GiB" if name.endswith("_bytes") else significant(value, 2)
    )


def newcomer_section(found: Material) -> str:
    """Each family's runs, predicted by constants fitted to all others."""
    columns = ("family ", "runs", "mean", "bias", "within one spread", "mean when fitted", "bias when fitted")
    return "\n".join(
        (
            paragraph(
                "Runs of each family predicted by constants fitted to the runs of all other families: what a device",
                "without runs may expect. Its bar is then "
                f"±{share(found.calibration.family_spread)} under kernels that other devices of its maker have run,",
                f"else ±{share(found.calibration.default_spread)}.",
            ),
            markdown(columns, list(_newcomers(found))),
            paragraph(
                "`hetplan calibrate device` on one such device narrows the bar before you trust seconds."
            ),
        )
    )


def _newcomers(found: Material) -> Iterator[Sequence[str]]:
    for name in sorted({family for run in found.table.runs for family in families_of(run)}):
        own = [entry for entry in found.fitted if name in families_of(entry.run) and entry.error is not None]
        if not own:
            continue
        constants = found.fit.foreign(lambda run, name=name: name in families_of(run))  # type: ignore[misc]
        foreign = predict([entry.run for entry in own], constants)
        yield (
            name,
            str(len(own)),
            *_mean_and_bias([entry.error for entry in foreign]),
            share(coverage(foreign)),
            *_mean_and_bias([entry.error for entry in own]),
        )


def _mean_and_bias(values: Sequence[float | None]) -> tuple[str, str]:
    errors = errors_of([value for value in values if value is not None])
    return share(errors.mean), signed(errors.bias)


LAYER = ModelSpec(
    name="llama-3-8b",
    layers=32,
    hidden=4096,
    heads=32,
    kv_heads=8,
    ffn=14336,
    gated_mlp=True,
    vocab=128256,
    training=TrainingSpec(sequence_length=4096, global_batch=1, precision="bf16"),
)
"""What devices are compared by."""
ALONE = IntraNodeSpec(bandwidth_gBps=31.5, latency_us=5.7, shared=True)
"""Network inside a node of one device; carries nothing."""


def order_section(found: Material) -> str:
    """Every device of the catalogue that trains in bf16, by what it makes of one layer."""
    rows = sorted(_devices(found.calibration), key=lambda row: -row[0])
    return "\n".join(
        (
            paragraph(
                "A layer of Llama 3 8B, 4,096 tokens, forward and backward on one device in bf16 with Megatron's",
                "kernels, next to the best matrix product that anybody has published of the device; its bar is that of",
                "a step.",
            ),
            markdown(
                ("device ", "layer (TFLOP/s)", "bar", "best product (TFLOP/s)", "peak (TFLOP/s)"),
                [row[1:] for row in rows],
            ),
        )
    )


def _devices(calibration: Calibration) -> Iterator[tuple[float, str, str, str, str, str]]:
    kernels = REFERENCE.kernels[0]
    best: dict[str, float] = {}
    for row in microbenchmarks():
        if row.quantity == "matmul" and row.precision == "bf16" and row.device:
            best[row.device] = max(row.value, best.get(row.device, 0.0))
    for name in catalog.gpu_names():
        gpu = catalog.gpu(name)
        if "bf16" not in gpu.tflops:
            continue
        pool = PoolSpec(name="pool", devices=(gpu.name,), hosts=("node-0",), intra_node=ALONE)
        (device_type,) = Topology(ClusterSpec(name="one", gpus={gpu.name: gpu}, pools=(pool,))).device_types
        device = Device(device_type, calibration, "bf16", kernels)
        one = layer_pass(LAYER, device, REFERENCE, tp=1, micro_batch=1, sequence_parallel=False)
        flops = 6.0 * sum(
            item.count * item.rows * item.columns * item.inner
            for item in layer_products(LAYER, tp=1, tokens=LAYER.training.sequence_length)
        )
        rate = flops / max(one.forward_seconds + one.backward_seconds, 2 * one.host_seconds) / 1e12
        known = best.get(name)
        yield (
            rate,
            name,
            significant(rate, 3),
            f"±{share(calibration.spread([gpu.family], kernels))}",
            MISSING if known is None else significant(known / 1e12, 3),
            significant(gpu.tflops["bf16"], 4),
        )
