"""Plans that are simpler to run than the fastest one, and as fast within the error bar.

Both plans run on the same devices with the same constants, so most of an error bar is theirs together and says little
of which is faster: only a plan that is slower by less than ``TIE`` as well is a tie. Where the simpler one wins, what
the fastest plan would give stands beside it, and the gap is that of the plan that won.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from planner.cost.estimate import Estimator
from planner.plan.file import CHOSEN
from planner.search.explain.families import reason_against
from planner.search.incumbent import family_of
from planner.search.values import Alternative, OtherFormat, Scored, SearchResult, Simpler, proven

TIE = 0.05
"""A plan that is slower by more is no tie, however wide the error bar."""


def simpler(result: SearchResult, estimator: Estimator) -> tuple[Simpler, ...]:
    """Plans inside the bar that need less of something and more of nothing; the least slow first."""
    best = result.best
    if best is None or result.objective != "time":
        return ()
    candidates = [
        entry
        for alternative in result.alternatives
        if alternative.scored is not None
        for entry in _compared(alternative.family, alternative.scored, best, estimator)
    ]
    # Of a family its fastest plan is shown, which may need more than another one that is as simple as these.
    sizes = {(entry.scored.plan.devices, entry.scored.plan.pp) for entry in candidates}
    for scored in result.by_size:
        if (scored.plan.devices, scored.plan.pp) in sizes:
            candidates += _compared(family_of(scored), scored, best, estimator)
    kept: list[Simpler] = []
    for entry in sorted(candidates, key=lambda entry: entry.slower):
        if not any(_as_simple(other, entry) for other in kept):
            kept.append(entry)
    return tuple(kept)


def settled(result: SearchResult, asked_gap: float) -> SearchResult:
    """With the least slow of the simpler plans as the answer; a goal with limits of its own has the fastest."""
    fastest = result.best
    if fastest is None or not result.simpler or result.goal.robust or not result.goal.fastest:
        return result
    won = result.simpler[0]
    step = won.scored.estimate.step_seconds
    gap = max(0.0, 1.0 - result.bound_seconds / step)
    family = next((each.family for each in result.alternatives if each.chosen), "the fastest")
    return replace(
        result,
        best=won.scored,
        gap=gap,
        status=proven(gap, asked_gap),
        simpler=(),
        tie=replace(won, family=family, scored=fastest),
        alternatives=tuple(_against(each, won) for each in result.alternatives),
        limit_costs=tuple(
            replace(each, costs=step / each.scored.estimate.step_seconds - 1) for each in result.limit_costs
        ),
        advice=tuple(
            replace(each, faster=1.0 - each.scored.estimate.step_seconds / step) for each in result.advice
        ),
        other_format=_other_format(result.other_format, won.scored),
        # What was said of the fastest plan.
        idle_costs=tuple(each for each in result.idle_costs if each.scored is None),
        ratios=(),
    )


def _other_format(entry: OtherFormat | None, best: Scored) -> OtherFormat | None:
    """What another format gives next to the plan that won."""
    if entry is None:
        return None
    tokens = entry.scored.estimate.tokens_per_second
    return replace(entry, faster=tokens / best.estimate.tokens_per_second - 1)


def _against(entry: Alternative, won: Simpler) -> Alternative:
    """A family as it stands beside the plan that won."""
    if entry.scored is None:
        return entry
    chosen = entry.family == won.family
    if chosen:
        return replace(entry, scored=won.scored, chosen=True, reason=CHOSEN)
    faster = 1.0 - entry.scored.estimate.step_seconds / won.scored.estimate.step_seconds
    reason = f"{100 * faster:.1f} % faster, within the error bar" if faster > 0 else None
    return replace(entry, chosen=False, reason=reason or reason_against(entry.scored, won.scored))


def _as_simple(one: Simpler, two: Simpler) -> bool:
    return (
        one.fewer_devices >= two.fewer_devices
        and one.fewer_stages >= two.fewer_stages
        and (one.less_per_hour or 0.0) >= (two.less_per_hour or 0.0)
        and one.keeps_rdma >= two.keeps_rdma
    )


def _compared(family: str, scored: Scored, best: Scored, estimator: Estimator) -> Iterator[Simpler]:
    ours, theirs = best.estimate, scored.estimate
    slower = theirs.step_seconds / ours.step_seconds - 1
    if scored.plan == best.plan or slower > min(TIE, ours.spread):
        return
    devices, stages = ours.devices - theirs.devices, best.plan.pp - scored.plan.pp
    hourly = None
    if ours.price_per_hour is not None and theirs.price_per_hour is not None:
        hourly = ours.price_per_hour - theirs.price_per_hour
    rdma = bool(estimator.without_rdma(best.plan)) - bool(estimator.without_rdma(scored.plan))
    differences = (devices, stages, hourly or 0.0, rdma)
    if min(differences) < 0 or max(differences) <= 0:
        return
    yield Simpler(
        family=family,
        slower=slower,
        fewer_devices=devices,
        fewer_stages=stages,
        less_per_hour=hourly,
        keeps_rdma=rdma > 0,
        scored=scored,
    )
