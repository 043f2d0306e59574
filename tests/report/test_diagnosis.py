"""Reports without a plan."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from planner.report.goal import infeasible_section, unknown_section, untrained
from planner.search.values import Limits
from tests.report import examples
from tests.report.drawing import drawn


def test_an_infeasible_search_argues() -> None:
    """Because, and because, so; then what would help."""
    assert drawn(infeasible_section(examples.infeasible(), examples.model(), Limits())) == (
        "No plan fits (proven, 96 candidates, 12 ms)\n"
        "  Because the model states take 100.4 GiB,\n"
        "  and because the cluster has 22.0 GiB beside its reserve,\n"
        "  no plan of this space fits.\n"
        "  nearest miss  ZeRO-3 on 2 devices, short by 39.2 GiB\n"
        "  hint          fits with a model of at most 1.3 B parameters\n"
        "  hint          fits with 9 more devices of this kind\n"
        "\n"
    )


def test_an_infeasible_search_without_a_diagnosis_still_says_so() -> None:
    """The proof stands without reasons."""
    result = replace(examples.infeasible(), diagnosis=None)
    shown = drawn(infeasible_section(result, examples.model(), Limits()))
    assert shown == "No plan fits (proven, 96 candidates, 12 ms)\n\n"


@pytest.mark.parametrize(
    ("changes", "target", "claim", "why"),
    [
        ({"precision": "fp16"}, None, None, ""),
        (
            {"precision": "fp8"},
            "deepspeed",
            "deepspeed does not train this model",
            "deepspeed does not train in fp8, it can: ",
        ),
        (
            {"cross_entropy": "fused"},
            "torch",
            "torch does not train this model",
            "training with cross_entropy fused with torch is priced, but hetplan writes no launch files for it",
        ),
    ],
)
def test_a_model_that_a_target_does_not_train(
    changes: dict[str, Any], target: str | None, claim: str | None, why: str
) -> None:
    """The target is named where another one trains the model, with what it lacks."""
    lacking = untrained(examples.model().trained_with(**changes), Limits(target=target))
    if claim is None:
        assert lacking is None
    else:
        assert lacking is not None
        assert lacking[0] == claim
        assert lacking[1].startswith(why)


def test_a_search_out_of_time_proves_nothing() -> None:
    """Cannot and gave up are different answers."""
    assert drawn(unknown_section(examples.unknown())) == (
        "No plan found yet (time limit; 96 candidates, 5 s)\n"
        "  nothing is proven: a plan may exist; allow more time or narrow the search with\n"
        "  --zero, --tp, --pp\n"
        "\n"
    )
    assert "(interrupted; 96 candidates, 5 s)" in drawn(unknown_section(examples.unknown(interrupted=True)))
