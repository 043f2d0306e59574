"""Runs whose step times the cost model made up with known constants."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from math import exp
from typing import Any, TypeVar

from planner.calibration.values import Calibration, Framework, GpuFamily, Link
from planner.cluster.spec import ClusterSpec
from planner.cost.estimate import Estimator
from planner.measured.priors import priors
from planner.measured.values import Run
from planner.model.spec import ModelSpec
from planner.plan.values import Plan, ReplicaGroup, Stage
from tests.worlds import GPUS, cluster, gpt, pool

Part = TypeVar("Part", GpuFamily, Framework, Link)

BEFORE = priors(("A100",))
"""What is known before the fit."""


def moved(base: Calibration, **factors: float) -> Calibration:
    """Constants of the A100, Megatron and InfiniBand that are so many times what is known of them."""

    def scaled(part: Part) -> Part:
        known = {field.name for field in fields(part)} & factors.keys()
        return replace(part, **{key: getattr(part, key) * factors[key] for key in known})

    return replace(
        base,
        families={**base.families, "A100": scaled(base.families["A100"])},
        frameworks={**base.frameworks, "megatron": scaled(base.frameworks["megatron"])},
        links={**base.links, "infiniband": scaled(base.links["infiniband"])},
    )


TRUTH = moved(
    BEFORE,
    matmul_efficiency=0.95,
    memory_efficiency=0.93,
    kernel_seconds=1.4,
    launch_seconds=1.3,
    link_efficiency=0.94,
    overlap=0.9,
    host_factor=1.6,
    efficiency=0.9,
)
"""Constants that the runs are made with: each within two spreads of what is known."""
NOISE = 0.02
"""Size of the errors of measurement, in turn above and below."""


KIND = GPUS["A100"].model_copy(update={"family": "A100"})
ONE, TWO = (cluster(pool("a", nodes=nodes, cards=1), gpus={"A100": KIND}) for nodes in (1, 2))
"""A node of 8 A100 with a card that is not used, and two of them on InfiniBand."""


def named(hidden: int, layers: int = 8, **training: Any) -> ModelSpec:
    """A GPT whose name says its width."""
    return gpt(layers, hidden, 16, **training).model_copy(update={"name": f"gpt-{hidden}"})


def plan(model: ModelSpec, devices: int, tp: int, pp: int, micro_batch: int, **fields: Any) -> Plan:
    """Even stages of Megatron without recomputation."""
    count = devices // tp // pp
    share = model.training.global_batch // count
    replicas = (
        ReplicaGroup(
            pool="a",
            gpu="A100",
            tp=tp,
            count=count,
            local_batch=share,
            accumulation_steps=share // micro_batch,
        ),
    )
    each = model.layers // pp
    stages = tuple(
        Stage(first_layer=index * each, end_layer=(index + 1) * each, replicas=replicas)
        for index in range(pp)
    )
    return Plan(**{"target": "megatron", "zero": 1, "stages": stages, **fields})


def run(name: str, where: ClusterSpec, model: ModelSpec, chosen: Plan, **fields: Any) -> Run:
    """A run without a measurement."""
    defaults: dict[str, Any] = {
        "id": name,
        "source": "lab",
        "reference": "",
        "stack": "Megatron-LM",
        "cluster": where,
        "model": model,
        "plan": chosen,
        "step_seconds": None,
        "peak_memory_bytes": None,
        "fits": True,
        "doubt": "",
    }
    return Run(**{**defaults, **fields})


def unmeasured() -> Iterator[Run]:
    """Models of several widths in plans on one node and on two."""
    for hidden in (1024, 2048, 4096):
        for length, tp, pp, micro_batch in (
            (512, 1, 1, 4),
            (2048, 2, 1, 1),
            (1024, 8, 1, 2),
            (1024, 4, 2, 4),
        ):
            for devices, where in ((8, ONE), (16, TWO)):
                model = named(hidden, sequence_length=length)
                yield run(
                    f"{hidden}-{length}-{tp}-{pp}-{devices}",
                    where,
                    model,
                    plan(model, devices, tp, pp, micro_batch),
                )


def measured(
    runs: Sequence[Run] | None = None, truth: Calibration = TRUTH, noise: float = NOISE
) -> tuple[Run, ...]:
    """The runs with the seconds that the constants make of them, alternately above and below."""
    signs = (1, -1, -1, 1, -1, 1, 1, -1, 1, 1, -1, -1)
    return tuple(
        replace(item, step_seconds=predicted(item, truth) * exp(noise * signs[index % len(signs)]))
        for index, item in enumerate(unmeasured() if runs is None else runs)
    )


def predicted(item: Run, calibration: Calibration) -> float:
    """Step time of a run."""
    return Estimator(item.cluster, item.model, calibration).estimate(item.plan).step_seconds
