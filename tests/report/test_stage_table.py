"""Rows of stages."""

from __future__ import annotations

from dataclasses import replace

from planner.cost.values import Estimate
from planner.report.explain import balance_section
from planner.report.plan_table import groups_of, micro_batches_text, stage_runs, stage_table
from tests.report import examples
from tests.report.drawing import drawn


def deep(stages: int = 12) -> Estimate:
    """An estimate of many stages: like the example's first, and one like its second at the end."""
    priced = examples.scored().estimate
    first = [
        replace(priced.stages[0], first_layer=2 * index, end_layer=2 * index + 2)
        for index in range(stages - 1)
    ]
    last = replace(priced.stages[1], first_layer=2 * stages - 2, end_layer=2 * stages)
    return replace(priced, stages=(*first, last))


def test_few_stages_have_a_row_each() -> None:
    """Alike or not."""
    assert [run.indices for run in stage_runs(deep(3).stages)] == ["0", "1", "2"]


def test_alike_neighbours_share_a_row() -> None:
    """Slowest time, largest memory, least free of the run."""
    assert drawn(stage_table(deep()), 100) == (
        "                                                     micro-\n"
        "                                                      batch  fwd+bwd  memory   free\n"
        "stage  layers        devices             replicas  x accum.     (ms)   (GiB)  (GiB)\n"
        "───────────────────────────────────────────────────────────────────────────────────\n"
        " 0-10  0-21: 2 each  11 x 4 A100 (a100)  1 x tp 4   2 x 128      150    16.3   21.7\n"
        "   11  22-23         4 V100 (v100)       1 x tp 4   2 x 128      128    10.7    3.3\n"
    )
    assert len(drawn(stage_table(deep(), few=12), 100).splitlines()) == 4 + 12


def test_the_balance_of_deep_pipelines_is_short_too() -> None:
    """The busiest of each run decides its load."""
    shown = drawn(balance_section(deep()), 100)
    assert " 0-10  0-21: 2 each  11 x 4 A100 (a100)      150     128  100 %  next: eth\n" in shown


def test_stages_of_other_paths_stay_apart() -> None:
    """Where a pipeline crosses to another fabric is worth a row."""
    priced = deep()
    crossing = replace(priced.stages[4], link="wan")
    stages = (*priced.stages[:4], crossing, *priced.stages[5:])
    assert [run.indices for run in stage_runs(stages)] == ["0-3", "4", "5-10", "11"]


def test_batches_that_do_not_divide_evenly_show_both_sizes() -> None:
    """So that sizes times numbers can be held against the global batch."""
    group = groups_of(examples.scored().estimate)[0]
    even = replace(group, share=80, steps=10, micro_batch=8)
    uneven = replace(group, share=94, steps=10, micro_batch=10)
    assert (micro_batches_text(even), micro_batches_text(uneven)) == ("8 x 10", "9-10 x 10")
