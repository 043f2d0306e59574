"""Plans with their prediction, on the cluster and model of the reports' example."""

from __future__ import annotations

from planner.calibration.values import ASSUMED
from planner.cost.estimate import Estimator
from planner.logs.comparison import Comparison, PredictedRun, compared, predicted
from planner.logs.findings import Finding, findings
from planner.logs.reading import Observed, observed, read_logs, require_same_job
from planner.plan.placement import ranks
from planner.plan.values import Plan, ReplicaGroup, Stage
from tests.report import examples

MODEL = examples.model(precision="fp16")


def data_parallel(zero: int = 1) -> Plan:
    """Four A100 of one node, 64 sequences each in 32 micro-batches; DeepSpeed."""
    group = ReplicaGroup(pool="a100", gpu="A100", tp=1, count=4, local_batch=64, accumulation_steps=32)
    return Plan(
        target="deepspeed", zero=zero, stages=(Stage(first_layer=0, end_layer=32, replicas=(group,)),)
    )


def across_nodes() -> Plan:
    """Eight A100 of two nodes, which reduce gradients over the fabric ``ib``; DeepSpeed."""
    group = ReplicaGroup(pool="a100", gpu="A100", tp=1, count=8, local_batch=32, accumulation_steps=16)
    return Plan(target="deepspeed", zero=1, stages=(Stage(first_layer=0, end_layer=32, replicas=(group,)),))


def pipeline() -> Plan:
    """Two stages of four ranks with tensor parallelism, A100 and V100; Megatron."""
    return examples.plan()


def prediction(plan: Plan) -> PredictedRun:
    """What the cost model says of a plan, with nothing measured."""
    cluster = examples.cluster()
    return predicted(plan, Estimator(cluster, MODEL, ASSUMED), ranks(plan, cluster))


def told(plan: Plan, *paths: object) -> tuple[Observed, Comparison, tuple[Finding, ...]]:
    """What ``compare --log`` says of log files."""
    from pathlib import Path

    log, found = (
        read_logs([Path(str(path)) for path in paths], plan, MODEL.training.sequence_length),
        prediction(plan),
    )
    require_same_job(log, plan, found.ranks)
    seen = observed(log)
    comparison = compared(seen, found)
    return seen, comparison, findings(seen, comparison, found)
