"""What every case of ``tests/cases.py`` costs, term by term: ``prices.csv``.

``python -m tests.cost.prices`` writes it anew; its difference in a commit says what a change of the cost model changes.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from planner.cost.binding import binding
from planner.cost.estimate import Estimator, pipeline_ends
from planner.cost.timeline import Span, Step, step_of
from tests.cases import CASES, Case
from tests.tables import Row, rows, terms, written

PRICES = Path(__file__).with_name("prices.csv")


def prices_of(name: str, case: Case) -> Iterator[Row]:
    """Every term of the estimate, what binds the plan, and when its stages are busy."""
    plan, estimator = case.whole, Estimator(case.on, case.model, case.by)
    found = estimator.estimate(plan)
    yield from terms(
        name, "step", found, "cost_per_step", "cost_per_million_tokens", "joules_per_token", "out_of_memory"
    )
    yield from rows(name, "step", {f"warning {index}": text for index, text in enumerate(found.warnings, 1)})
    yield from terms(name, "breakdown", found.breakdown)
    priced = estimator.price(plan)
    ends = pipeline_ends(plan, priced)
    for number, (stage, end, price) in enumerate(zip(found.stages, ends, priced.stages, strict=True)):
        yield from terms(name, f"stage {number}", stage)
        yield from rows(name, f"stage {number}", {"end": end, "held_seconds": price.held_seconds})
        for index, group in enumerate(stage.groups):
            passes = {"forward_seconds": group.forward_seconds, "backward_seconds": group.backward_seconds}
            yield from rows(name, f"stage {number} group {index}", passes)
            yield from terms(name, f"stage {number} group {index}", group.memory, "fits")
    yield from _bound(name, case, estimator)
    yield from _busy(name, step_of(plan, estimator))


def _bound(name: str, case: Case, estimator: Estimator) -> Iterator[Row]:
    """The tightest device, and the links that the step waits for."""
    found = binding(case.whole, estimator)
    yield from terms(name, "tightest", found.device)
    for link in found.links:
        where = f"waits for {link.traffic} on {link.path}"
        yield from rows(name, where, {"stage": link.stage, "seconds": link.seconds})


def _busy(name: str, step: Step) -> Iterator[Row]:
    """Seconds of each lane by what it does, and when: the mean of the begins counts each of them."""
    for lane in step.lanes:
        place = f"lane {lane.stage}" if lane.group is None else f"lane {lane.stage} group {lane.group}"
        kinds = {span.kind: [one for one in lane.spans if one.kind == span.kind] for span in lane.spans}
        for kind, spans in kinds.items():
            yield from rows(name, f"{place} {kind}", _summed(spans))
        yield from rows(name, place, {"waiting": step.waiting(lane), "collectives": lane.collectives})


def _summed(spans: list[Span]) -> dict[str, object]:
    order = [(span.micro_batch or 0) + span.chunk / 2 for span in spans]
    return {
        "critical": sum(span.critical for span in spans),
        "seconds": sum(span.end - span.start for span in spans),
        "begins": sum(index * span.start for index, span in enumerate(spans, 1)) / len(spans),
        "order": sum(index * each for index, each in enumerate(order, 1)),
    }


def table() -> Iterator[Row]:
    """Of all cases."""
    for name, case in CASES.items():
        yield from prices_of(name, case)


def main() -> None:
    """Write the table of today."""
    PRICES.write_text(written(table()), encoding="utf-8")


if __name__ == "__main__":
    main()
