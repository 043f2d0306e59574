"""What people do today, as plans: each by its own method, all priced by the same estimate."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from planner.baselines.amp import amp
from planner.baselines.holmes import holmes
from planner.baselines.metis import metis
from planner.baselines.poplar import in_lock_step, without_lock_step
from planner.baselines.whale import flops_proportional
from planner.calibration.values import ASSUMED, Calibration
from planner.cluster.spec import ClusterSpec
from planner.cost.estimate import Estimator
from planner.model.spec import ModelSpec
from planner.plan.values import Plan
from planner.search.explorer import Explorer
from planner.search.heuristics.even import best_of, equal_batches, even_pipelines
from planner.search.ranking import ranked
from planner.search.space.choices import usable_device_types
from planner.search.values import Alternative, Limits, Silent

SHARED = "one network for all groups: the Ethernet that all its nodes share"
"""Remark on a plan that leaves RDMA unused, since its nodes have no common RDMA fabric."""


def fastest_pool_only(estimator: Estimator, limits: Limits) -> Alternative:
    """The best plan on one pool alone, for the pool where it is fastest."""
    alternatives = [only_pool(estimator, pool.name, limits) for pool in estimator.cluster.pools]
    fitting = [item for item in alternatives if item.scored is not None]
    if not fitting:
        return Alternative(
            family="fastest pool only", scored=None, chosen=False, reason="the model fits on no pool alone"
        )
    return min(fitting, key=lambda item: item.scored.estimate.step_seconds if item.scored else 0.0)


def only_pool(estimator: Estimator, pool: str, limits: Limits) -> Alternative:
    """A good plan on one pool alone."""
    cluster = estimator.cluster
    kept = tuple(item for item in cluster.pools if item.name == pool)
    alone = Estimator(cluster.model_copy(update={"pools": kept}), estimator.model, estimator.calibration)
    scored = Explorer(alone, replace(limits, gap=max(limits.gap, 0.02)), Silent()).quick()
    return Alternative(
        family=f"only {pool}",
        scored=scored,
        chosen=False,
        reason="" if scored else "the model does not fit on it",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """A practice or a published method."""

    name: str
    source: str
    plans: Callable[[Estimator], Iterable[Plan]]
    """Its one plan by its own criterion; where people tune by hand, the grid of which the best counts."""
    network_per_group: bool = False
    """True where each process group gets its own network; stock runtimes have one NCCL network for all groups."""


BASELINES: tuple[Baseline, ...] = (
    Baseline(name="equal batches (DeepSpeed)", source="arXiv:1910.02054", plans=equal_batches),
    Baseline(name="even pipeline (Megatron-LM)", source="arXiv:2104.04473", plans=even_pipelines),
    Baseline(name="FLOPs-proportional (Whale)", source="USENIX ATC 2022", plans=flops_proportional),
    Baseline(
        name="a stage per network (Holmes)", source="arXiv:2312.03549", plans=holmes, network_per_group=True
    ),
    Baseline(name="measured shares (Poplar, ZeRO 0-1)", source="arXiv:2408.12596", plans=without_lock_step),
    Baseline(name="measured steps (Poplar, ZeRO 2-3)", source="arXiv:2408.12596", plans=in_lock_step),
    Baseline(name="one tp x dp x pp (AMP)", source="arXiv:2210.07297", plans=amp),
    Baseline(name="groups by type (Metis)", source="USENIX ATC 2024", plans=metis),
)


def baselines(
    cluster: ClusterSpec, model: ModelSpec, calibration: Calibration = ASSUMED, limits: Limits | None = None
) -> tuple[Alternative, ...]:
    """Each baseline with its plan, which need not fit, or why it has none; none at all without usable devices."""
    estimator = Estimator(ranked(cluster), model, calibration)
    if not usable_device_types(estimator.topology, model):
        return ()
    stock = Estimator(ranked(cluster), model, calibration, one_network=True)
    alternatives = [_best(entry, estimator if entry.network_per_group else stock) for entry in BASELINES]
    if len(cluster.pools) > 1:
        alternatives.append(fastest_pool_only(estimator, limits or Limits()))
    return tuple(alternatives)


def _best(entry: Baseline, estimator: Estimator) -> Alternative:
    """The plan of a baseline on the network that it has; said where that leaves RDMA off."""
    alternative = best_of(entry.name, entry.plans(estimator), estimator)
    if alternative.scored is None or not estimator.without_rdma(alternative.scored.plan):
        return alternative
    remarks = [*([alternative.reason] if alternative.reason else []), SHARED]
    return replace(alternative, reason="; ".join(remarks))
