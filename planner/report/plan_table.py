"""The chosen plan: one row per group of replicas, and what one step takes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterator, Sequence

from rich.console import Group, RenderableType

from planner.cluster.spec import ClusterSpec
from planner.cost.values import CAUSES, Breakdown, Estimate
from planner.dims import DIMENSIONS
from planner.dims.recompute import Recomputation, recompute_text
from planner.plan.values import Plan
from planner.report.costs import idle_text
from planner.report.goal import cost_text
from planner.report.layout import section
from planner.report.numbers import count, duration, percent, rate, significant
from planner.report.paragraph import Paragraph
from planner.report.proof import Proof, proof_text
from planner.report.stage_table import FEW, stage_table
from planner.search.values import IdleCost, Scored


def plan_section(
    scored: Scored,
    cluster: ClusterSpec,
    proof: Proof | None = None,
    few: int = FEW,
    idle: Sequence[IdleCost] = (),
) -> Group:
    """Heading, stages (more than ``few`` are put together), what a step takes, idle devices, and the proof."""
    lines: list[RenderableType] = [stage_table(scored.estimate, few)]
    lines += [Paragraph(line) for line in summary_lines(scored.estimate, cluster, idle)]
    if proof is not None:
        lines.append(Paragraph(proof_text(proof)))
    return section(f"Plan: {headline(scored.plan)}", *lines)


def headline(plan: Plan) -> str:
    """The plan in one line: target, depth, ZeRO stage, recomputation."""
    parts = [
        plan.target,
        count(plan.pp, "stage"),
        plan.zero_text,
        f"{recompute_text(plan)} recomputation",
        *(d.words(plan) for d in DIMENSIONS if not isinstance(d, Recomputation)),
    ]
    return ", ".join(part for part in parts if part)


def summary_lines(estimate: Estimate, cluster: ClusterSpec, idle: Sequence[IdleCost] = ()) -> Iterator[str]:
    """Step time and throughput, where the time goes, and how much of the cluster is used."""
    step = f"step {duration(estimate.step_seconds, estimate.spread)}"
    useful = f"{significant(estimate.tflops_per_gpu)} TFLOP/s per device (MFU {percent(estimate.mfu)})"
    yield f"{step}, {rate(estimate.tokens_per_second)} tokens/s, {useful}"
    yield time_text(estimate.breakdown)
    total = sum(len(pool.hosts) * len(pool.devices) for pool in cluster.pools)
    used = f"all {total}" if estimate.devices == total else f"{estimate.devices} of {total}"
    told = {(entry.pool, entry.gpu) for entry in idle}
    yield f"uses {used} devices{_idle_text(estimate, cluster, told)}"
    yield from map(idle_text, idle)
    yield from running_cost_lines(estimate)


def _idle_text(estimate: Estimate, cluster: ClusterSpec, told: Container[tuple[str, str]]) -> str:
    """``; idle: 4 T4 (t4)``; empty when all devices work, or those that do not have a line of their own."""
    used: Counter[tuple[str, str]] = Counter()
    for group in (group for stage in estimate.stages for group in stage.groups):
        used[group.pool, group.gpu] += group.tp * group.count
    idle = [
        f"{left} {gpu} ({pool.name})"
        for pool in cluster.pools
        for gpu in dict.fromkeys(pool.devices)
        if (left := len(pool.hosts) * pool.devices.count(gpu) - used[pool.name, gpu])
        and (pool.name, gpu) not in told
    ]
    return f"; idle: {', '.join(idle)}" if idle else ""


def time_text(breakdown: Breakdown) -> str:
    """Shares of the step by cause, largest first, those under half a percent left out."""
    step = breakdown.step_seconds
    shares = sorted(
        ((getattr(breakdown, name) / step, label.text) for name, label in CAUSES.items()), reverse=True
    )
    shown = [f"{label} {percent(share)}" for share, label in shares if share >= 0.005]
    return f"time: {', '.join(shown)}"


def running_cost_lines(estimate: Estimate) -> Iterator[str]:
    """Price and energy of the used devices, as far as known."""
    cost, joules = estimate.cost_per_million_tokens, estimate.joules_per_token
    if cost is not None and estimate.price_per_hour is not None and estimate.cost_per_step is not None:
        step = significant(estimate.cost_per_step)
        yield f"price {significant(estimate.price_per_hour)} per hour, {step} per step, {cost_text(cost)}"
    if joules is not None and estimate.watts is not None:
        yield f"power {significant(estimate.watts / 1000)} kW, {significant(joules)} J per token"
