"""Values of each dimension that are worth trying, for a model of many cases on each target: ``values.csv``.

``python -m tests.dims.values`` writes it anew.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import product
from pathlib import Path

from planner.capabilities import ASKED_OFFLOAD_PARTS, OFFLOAD_PARTS, Capabilities
from planner.cluster.topology import Topology
from planner.dims.context import contexts
from planner.dims.expert import foldings
from planner.dims.offloading import offloads
from planner.dims.pipeline import divided_orders, interleavings
from planner.dims.recompute import worth_trying
from planner.dims.sharding import node_sizes, parts_of, shard_sizes, zeros
from planner.dims.tensor import tp_degrees
from planner.dims.zero_plus import zero_pluses
from planner.model.spec import ModelSpec
from planner.targets import TARGETS
from tests.cases import CASES, Case
from tests.tables import Row, rows, written

VALUES = Path(__file__).with_name("values.csv")

TRIED = (
    *(
        "dp over nodes",
        "interleaved",
        "unequal batches",
        "nodes of two types",
        "tp on a bus",
        "odd length",
        "fp8",
        "sgd",
    ),
    *(
        "experts divided",
        "experts divided with tp",
        "tall experts, tp",
        "windows",
        "delta",
        "unlike layers",
        "further tokens",
    ),
    *(
        "images",
        "encoder and decoder",
        "lora",
        "frozen layers",
        "pairs",
        "ring",
        "ulysses with windows",
        "qlora",
    ),
    *("optimizer on the host", "superchips", "paged moments", "unfused attention"),
)
"""Cases whose model and cluster are asked for; a case of each kind that a rule looks at."""


def _listed(values: Iterable[object]) -> str:
    return ", ".join(map(str, values))


def value_rows(name: str) -> Iterator[Row]:
    """What is worth trying on each target."""
    case = CASES[name]
    for runtime, target in TARGETS.items():
        yield from rows(name, runtime, {**_of_devices(target, case), **_of_depths(target, case.model)})


def _of_devices(target: Capabilities, case: Case) -> dict[str, str]:
    model, kinds = case.model, Topology(case.on).device_types
    found = {
        "tp": _listed(tp_degrees(target, None, model, kinds)),
        "tp of 1, 3 and 4": _listed(tp_degrees(target, (1, 3, 4), model, kinds)),
        "recompute": _listed(worth_trying(target, None, model, kinds)),
        "recompute without full": _listed(worth_trying(target, ("none", "selective"), model, kinds)),
    }
    for zero in range(4):
        found |= {
            f"shard sizes of ZeRO {zero}": _listed(shard_sizes(target, zero, kinds)),
            f"node sizes of ZeRO {zero} with tp 2": _listed(node_sizes(target, zero, kinds, 2)),
            f"parts of ZeRO {zero}": _listed(parts_of(target, zero, model, kinds)),
        }
        pluses = zero_pluses(target, zero, model, kinds, quantised=True)
        found[f"ZeRO++ of ZeRO {zero}"] = _listed(
            (each.secondary, each.int8_weights, each.int4_gradients) for each in pluses if each.anything
        )
        for recompute, stages in product(("none", "full"), (False, True)):
            kept = offloads(target, zero, recompute, PARTS, model, kinds, stages=stages)  # type: ignore[arg-type]
            where = f"offload of ZeRO {zero}, {recompute}" + (", stages" if stages else "")
            found[where] = _listed(
                f"{each.optimizer}/{each.parameters}/{each.activations}/{each.ratio:g}"
                + ("/super" if each.super_offload else "")
                for each in kept
                if each.anything
            )
    return found


PARTS = (*OFFLOAD_PARTS, *ASKED_OFFLOAD_PARTS)
"""All that may leave the devices."""
LIMITS: tuple[tuple[int, ...] | None, ...] = (None, (1, 2, 3), (4,))


def _of_depths(target: Capabilities, model: ModelSpec) -> dict[str, str]:
    found: dict[str, str] = {}
    for replicas, limit in product((None, 1, 4), (None, (0, 3))):
        found[f"ZeRO of {replicas} replicas within {limit}"] = _listed(zeros(target, model, replicas, limit))
    for depth, size in product((1, 2, 3), (4, 6, 8)):
        place = f"{size} micro-batches on {depth} stages"
        found[f"chunks of {place}"] = _listed(interleavings(target, depth, size, model))
        for zero in (1, 2):
            orders = divided_orders(target, depth, size, zero, model)
            found[f"divided orders of {place}, ZeRO {zero}"] = _listed(map("{0[1]}".format, orders))
    for tp, dp in product((None, 1, 2, 3), (None, 4, 6)):
        every = foldings(target, model, tp, dp, None, None)
        found[f"experts on {dp} replicas of {tp}"] = _listed(map("{0.ep}x{0.etp}".format, every))
    for degree, most in product((None, 1, 2), LIMITS):
        every_way = contexts(target, model, degree, most)
        found[f"sequences on tp {degree} within {most}"] = _listed(map("{0.ways} {0.kind}".format, every_way))
    return {key: text for key, text in found.items() if text not in ("1", "1x1", "1 ring")}


def table() -> Iterator[Row]:
    """Of all cases."""
    for name in TRIED:
        yield from value_rows(name)


def main() -> None:
    """Write the table of today."""
    VALUES.write_text(written(table()), encoding="utf-8")


if __name__ == "__main__":
    main()
