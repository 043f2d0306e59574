"""Functions of the cost model that no plan's price shows, or not every side of: ``functions.csv``.

``python -m tests.cost.functions`` writes it anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise, product
from pathlib import Path

from planner.capabilities import Schedule
from planner.cluster.topology import Topology
from planner.cost.convergence import convergence
from planner.cost.failures import Interruptions, checkpoint_bytes
from planner.cost.schedules import (
    alive,
    busiest_path,
    delay,
    position_of,
    rows_of,
    sent_with,
    stage_paths,
    uniform_seconds,
    warm_up,
)
from planner.cost.sends import least_send
from planner.cost.state import Held, held_by, move, settled
from planner.cost.stragglers import backups, deviation_of_largest, expected_largest, stretch
from planner.errors import UsageError
from planner.model.spec import ConvergenceSpec, LoraSpec, LossCurveSpec, ModelSpec
from planner.plan.placement import Slot, place
from tests.cases import CASES, CONSTANTS, KINDS, Case, experts, gpt, llama
from tests.tables import Row, rows, terms, written
from tests.worlds import cluster, pool

FUNCTIONS = Path(__file__).with_name("functions.csv")

ORDERS: tuple[tuple[Schedule, int], ...] = (
    *(("1f1b", chunks) for chunks in (1, 2, 3)),
    *(("zero-bubble", chunks) for chunks in (1, 2)),
    *(("zb-v", 2), ("dualpipe-v", 2)),
)


def _all(numbers: Iterable[object]) -> str:
    return " ".join(str(number).replace(" ", "") for number in numbers)


def schedules() -> Iterator[Row]:
    """What each schedule does on each stage of small pipelines."""
    for (schedule, chunks), depth in product(ORDERS, (1, 2, 3, 4)):
        place_ = f"{schedule} of {chunks} chunks on {depth} stages"
        stages = range(depth)
        found: dict[str, object] = {
            "positions": _all(
                position_of(stage, chunk, depth, schedule) for stage in stages for chunk in range(chunks)
            ),
            "delay": _all(delay(stage, schedule) for stage in stages),
        }
        for size in (1, 3, 9):
            found |= {
                f"warm-up of {size}": _all(warm_up(stage, depth, size, chunks, schedule) for stage in stages),
                f"alive of {size}": _all(alive(stage, depth, size, chunks, schedule) for stage in stages),
                f"equal stages of {size}": uniform_seconds(3.0, depth, size, chunks),
                f"paths of {size}": _all(
                    (
                        each.stage,
                        each.held,
                        int(each.to_first),
                        *map(
                            tuple,
                            ((v.forward, v.backward, v.weight) for v in (each.before, each.own, each.behind)),
                        ),
                    )
                    for each in stage_paths(depth, size, chunks, schedule)
                ),
                f"busiest of {size}": _all(
                    "none" if path is None else (path.once, path.forward, path.backward)
                    for row in rows_of(chunks, schedule)
                    for path in [busiest_path(row, depth, size)]
                ),
            }
        for in_turn, forwards in ((False, 1), (True, 2)):
            sent = (
                sent_with(stage, chunk, depth, chunks, in_turn=in_turn, forwards=forwards, schedule=schedule)
                for stage in stages
                for chunk in range(chunks)
            )
            found[f"sent {'in turn' if in_turn else 'at once'}"] = _all(
                (
                    each.forward_to_next,
                    each.forward_from_before,
                    each.backward_to_before,
                    each.forward_to_before,
                    each.backward_to_next,
                )
                for each in sent
            )
        yield from rows("schedules", place_, found)


def sends() -> Iterator[Row]:
    """The least that sends between the stages of each pipeline take."""
    for name, case in CASES.items():
        if case.whole.pp > 1 and case.whole.grid is None:
            topology, stages = Topology(case.on), place(case.whole, case.on)
            for number, (one, other) in enumerate(pairwise(stages)):
                seconds = least_send(one, other, 4e6, topology, case.by)
                yield from rows("sends", name, {f"from stage {number}": seconds})
    yield from _shared_node_sends()


def _shared_node_sends() -> Iterator[Row]:
    """Two of four replicas may find the next stage on their own node, so that two use the cards, whatever others do."""

    def slot(pool_name: str, replicas: int) -> Slot:
        return Slot(pool_name, "A", 1, 0, 1, 0, replicas)

    on = cluster(*(pool(name, "A", per_node=8, cards=1) for name in "abcd"), gpus=KINDS)
    first, last = (slot("a", 4), slot("b", 1)), (slot("a", 2), slot("c", 2), slot("d", 1))
    for name, ends in {"forward": (first, last), "backward": (last, first)}.items():
        found = least_send(*ends, 1e8, Topology(on), CONSTANTS)
        yield from rows("sends", f"a node for both, {name}", {"least": found})
    one, several = (slot("a", 4),), (slot("b", 2), slot("c", 2))
    for name, ends in {"forward": (one, several), "backward": (several, one)}.items():
        found = least_send(*ends, 1e8, Topology(on), CONSTANTS)
        yield from rows("sends", f"two nodes behind one, {name}", {"least": found})


MODELS: dict[str, ModelSpec] = {
    "gpt": gpt(),
    "experts": llama(experts=experts()),
    "qlora": llama(lora=LoraSpec(rank=8, base="nf4")),
    "frozen": gpt(freeze=("mlp",), optimizer_states="int8"),
}


def failures() -> Iterator[Row]:
    """Stops of runs, on few devices and on many."""
    for name, model in MODELS.items():
        yield from rows("failures", name, {"checkpoint_bytes": checkpoint_bytes(model)})
    stops = {
        "as assumed": Interruptions(per_gpu_month=0.014),
        "slow storage": Interruptions(per_gpu_month=0.05, storage_bytes_per_second=1e8, repair_seconds=1e5),
        "never": Interruptions(storage_bytes_per_second=1e9, repair_seconds=3600.0),
        "all the time": Interruptions(per_gpu_month=90.0, checkpoint_seconds=700.0, repair_seconds=86400.0),
        "no time": Interruptions(per_gpu_month=1.0, checkpoint_seconds=0.0, restart_seconds=0.0),
    }
    for name, given in stops.items():
        own = given.of(gpt())
        for devices in (8, 1000, 100_000):
            found = {
                "per_second": own.per_second(devices),
                "goodput": own.goodput(devices),
                "interval": own.interval(devices),
                "spares": own.spares(devices),
                "checkpoint_seconds": own.checkpoint_seconds,
            }
            yield from rows("failures", f"{name} on {devices}", found)


CURVE = LossCurveSpec(
    batch_tokens=500_000, floor=1.7, scale=14.0, exponent=0.3, least_loss=2.6, spread=0.1, floor_spread=0.05
)
LAWS: dict[str, ConvergenceSpec | None] = {
    "published": None,
    "critical batch": ConvergenceSpec(critical_batch_tokens=1_000_000),
    "critical batch with its error": ConvergenceSpec(
        critical_batch_tokens=1_000_000, critical_batch_spread=0.3
    ),
    "curve": ConvergenceSpec(curve=CURVE),
    "curve and critical batch": ConvergenceSpec(critical_batch_tokens=300_000, curve=CURVE),
}


def losses() -> Iterator[Row]:
    """Steps to a loss, and where nobody can tell."""
    asked = [
        (1e9, None),
        (5e12, None),
        (1e9, 2.4),
        (None, 3.0),
        (None, 2.0),
        (None, 1.7),
        (None, 15.7),
        (None, 1.71),
        (None, None),
    ]
    for (name, law), (tokens, loss) in product(LAWS.items(), asked):
        model, where = gpt().trained_with(convergence=law), f"{name}, {tokens} tokens, loss {loss}"
        try:
            found = convergence(model, tokens, loss)
        except UsageError as error:
            yield from rows("losses", where, {"refused": str(error)})
            continue
        yield from terms("losses", where, found, "least_steps")
        yield from terms("losses", where, found.critical, "low", "high")
        for batch in (1e4, 1e7):
            own = {
                "steps": found.steps(batch),
                "spread": found.steps_spread(batch),
                "otherwise": found.steps(batch, 7e5),
            }
            yield from rows("losses", f"{where}, batches of {batch:g}", own)


def slowest() -> Iterator[Row]:
    """Devices that vary."""
    for number in (1, 2, 3, 8, 100):
        found: dict[str, object] = {
            "expected": expected_largest(number),
            "deviation": deviation_of_largest(number),
        }
        found |= {f"stretch by {sigma:g}": stretch(sigma, number) for sigma in (0.0, 0.05)}
        found |= {
            f"without {dropped}": stretch(0.05, number, dropped) for dropped in (1, 2) if dropped < number
        }
        dropped, gain = backups(0.2, number)
        yield from rows("stragglers", f"{number} devices", {**found, "backups": dropped, "gain": gain})


MOVES = (
    *(
        ("dp over nodes", "pipeline with tp"),
        ("pipeline with tp", "dp over nodes"),
        ("hsdp", "zero 3 in a pipeline"),
    ),
    *(
        ("experts divided", "experts over nodes"),
        ("pipeline", "zero 1 torch keeps step"),
    ),
    *(
        ("zb-v", "interleaved torch"),
        ("through a gateway", "through a gateway"),
        ("average over sites", "powersgd"),
    ),
    *(
        ("grid over nodes", "tp over nodes"),
        ("further tokens", "further tokens"),
        ("experts in a pipeline", "experts in a pipeline"),
        ("tp over nodes", "grid over nodes"),
    ),
)
"""Plans, and those that take over from them."""


def moves() -> Iterator[Row]:
    """State that moves when the second plan takes over, from all nodes and where one is gone."""
    for first, last in MOVES:
        before, after = CASES[first], CASES[last]
        held = held_by(before.whole, before.on, before.model)
        name = f"{first} to {last}"
        regions = [
            "{}: {:g} {:g} {:g} {:g} {:g}".format(host, *each) for host, own in held.items() for each in own
        ]
        yield from rows("moves", name, {"held": "; ".join(regions)})
        gone = dict(list(held.items())[1:])
        for what, known, rate in (
            ("all", held, None),
            ("one node gone", gone, None),
            ("and a storage", gone, 1e9),
        ):
            yield from _moved(f"{name}, {what}", after, known, rate)


def _moved(place_: str, case: Case, held: Held, rate: float | None) -> Iterator[Row]:
    on = settled(case.whole, case.on, case.model, held)
    found = move(case.whole, on, case.model, held, CONSTANTS, rate)
    yield from rows(
        "moves",
        place_,
        {"seconds": found.seconds, "order": _all(host for pool in on.pools for host in pool.hosts)},
    )
    for host in found.hosts:
        yield from terms("moves", f"{place_}, {host.host}", host)
    for link in found.links:
        yield from terms("moves", f"{place_}, {link.link}", link)


SUBJECTS: tuple[Callable[[], Iterator[Row]], ...] = (schedules, sends, failures, losses, slowest, moves)


def table() -> Iterator[Row]:
    """Of all functions."""
    for subject in SUBJECTS:
        yield from subject()


def main() -> None:
    """Write the table of today."""
    FUNCTIONS.write_text(written(table()), encoding="utf-8")


if __name__ == "__main__":
    main()
