"""The points of a sweep by hand: their number, their limits, and how their plans are told."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from pydantic import ValidationError

from planner.calibration.values import ASSUMED
from planner.ranges import TIME_LIMIT
from planner.search import sweep
from planner.search.sweep import RESULTS, Sweep, SweepPoint, _expected, _limits, _plan, solved, sweep_points
from tests import worlds
from tests.report import examples
from tests.worlds import cluster, gpt, group, pool

FILES: dict[str, Any] = {"clusters": ("a.yaml", "b.yaml"), "models": ("m.yaml",)}


def test_how_many_searches() -> None:
    """Every cluster with every model with every combination of options."""
    assert Sweep(**FILES).points == 2
    assert Sweep(**FILES, options={"zero": (0, 1, 2), "tp": (1, [1, 2])}).points == 12


def test_ranges_of_a_sweep() -> None:
    """Both ends of the time and of the gap may be asked for, and nothing beyond; no list is empty."""
    ends: tuple[dict[str, Any], ...] = (
        *({"time_limit": seconds} for seconds in (0.0, TIME_LIMIT.most)),
        *({"gap": gap} for gap in (0.0, 1.0)),
    )
    for allowed in ends:
        assert Sweep(**FILES, **allowed)
    for changes in (
        {"time_limit": -0.5},
        {"time_limit": 2 * TIME_LIMIT.most},
        {"gap": -0.01},
        {"gap": 1.01},
        {"clusters": ()},
        {"models": ()},
        {"options": {"zero": ()}},
    ):
        with pytest.raises(ValidationError):
            Sweep(**{**FILES, **changes})


def point(**options: Any) -> SweepPoint:
    """A search with these options."""
    return SweepPoint(
        key="k",
        names=("a.yaml", "m.yaml"),
        cluster=cluster(pool("a")),
        model=gpt(),
        options=options,
        time_limit=7.0,
        gap=0.02,
        calibration=ASSUMED,
    )


def test_limits_of_a_point() -> None:
    """One number or a list of them; what is not named is free."""
    plain = _limits(point())
    assert (plain.gap, plain.time_limit_seconds) == (0.02, 7.0)
    assert (plain.target, plain.recompute, plain.zero, plain.tp, plain.pp, plain.micro_batch) == (None,) * 6
    found = _limits(
        point(
            target="torch",
            recompute="full",
            zero=3,
            tp=[1, 2],
            pp=4,
            cp=[1, 2],
            ep=[2],
            etp=1,
            micro_batch=[8],
        )
    )
    assert (found.target, found.recompute, found.zero, found.tp) == ("torch", ("full",), (3,), (1, 2))
    assert (found.pp, found.cp, found.ep, found.etp) == ((4,), (1, 2), (2,), (1,))
    assert found.micro_batch == (8,)


@pytest.mark.parametrize(
    ("name", "values", "expected"),
    [
        ("tp", (1, [1, 2], 72), ""),
        ("tp", ("2", 0, [1, "2"], True), "a whole number from 1 to 1000, or a list of them"),
        ("global_batch", (32,), ""),
        ("global_batch", ([32], 0, 1.5), "a whole number from 1 to 1000000"),
        ("recompute", ("full",), ""),
        ("recompute", ("some", 1), "one of none, selective, full"),
        ("change", ("nodes of a: 2",), ""),
        ("change", (3,), "a change in words"),
    ],
)
def test_values_of_options(name: str, values: tuple[Any, ...], expected: str) -> None:
    """What no search takes is wrong in the file already."""
    assert {_expected(name, value) for value in values} == {expected}


def test_plans_in_a_row() -> None:
    """Degrees of the stages where they divide tensors, once where they are alike."""
    one, two = (group("a", "A100", tp=tp, share=8, steps=8) for tp in (1, 2))
    texts = {
        "megatron ZeRO 0, 1 stage": worlds.plan("megatron", 0, [4], [(one,)]),
        "megatron ZeRO 0, 2 stages, tp 2": worlds.plan("megatron", 0, [2, 2], [(two,), (two,)]),
        "flagscale ZeRO 0, 2 stages, tp 1|2": worlds.plan("flagscale", 0, [2, 2], [(one,), (two,)]),
    }
    assert {_plan(plan): plan for plan in texts.values()} == texts


def test_points_in_the_order_of_the_file() -> None:
    """Each cluster with each model with each combination, the last option changing quickest; no two have one key."""
    grid = Sweep(
        clusters=("a.yaml", "b.yaml"),
        models=("m.yaml", "n.yaml"),
        options={"zero": (0, 1), "tp": (1, [1, 2])},
    )
    specs = {"a.yaml": cluster(pool("a")), "b.yaml": cluster(pool("b"))}
    models = {"m.yaml": gpt(4), "n.yaml": gpt(6)}
    with (
        patch.object(sweep, "load_cluster", side_effect=lambda path: specs[path.name]),
        patch.object(sweep, "load_model", side_effect=lambda path: models[path.name]),
    ):
        points = list(sweep_points(grid, Path("/sweeps/grid.yaml"), ASSUMED))
        again = list(sweep_points(grid.model_copy(update={"gap": 0.02}), Path("/sweeps/grid.yaml"), ASSUMED))
    assert [(each.names, dict(each.options)) for each in points] == [
        ((own, model), {"zero": zero, "tp": tp})
        for own, model, zero, tp in product(specs, models, (0, 1), (1, [1, 2]))
    ]
    assert all(
        each.cluster is specs[each.names[0]] and each.model is models[each.names[1]] for each in points
    )
    assert len({each.key for each in (*points, *again)}) == 32
    assert {len(each.key) for each in points} == {24}
    assert (points[0].time_limit, points[0].gap, again[0].gap) == (30.0, 0.01, 0.02)


def test_rows_of_a_sweep() -> None:
    """What was asked, what the search said, or what is wrong with the options; lists are one text."""
    result = examples.found()
    assert result.best is not None
    with patch.object(sweep, "choose", return_value=result) as choose:
        row = solved(point(target="megatron", tp=[1, 2], global_batch=32))
        none = solved(replace(point(), key="other"))
        choose.return_value = examples.infeasible()
        empty = solved(point())
    assert {name: row[name] for name in ("key", "cluster", "model", "target", "tp")} == {
        "key": "k",
        "cluster": "a.yaml",
        "model": "m.yaml",
        "target": "megatron",
        "tp": "1,2",
    }
    assert (row["status"], row["gap"], row["error"]) == (result.status, result.gap, None)
    assert row["step_seconds"] == result.best.estimate.step_seconds
    assert row["plan"] == _plan(result.best.plan)
    assert choose.call_args_list[0].args[1].training.global_batch == 32
    assert choose.call_args_list[1].args[1].training.global_batch == gpt().training.global_batch
    assert none["key"] == "other"
    assert (empty["status"], empty["plan"], empty["step_seconds"]) == ("infeasible", None, None)
    wrong = solved(point(change="nonsense"))
    assert (wrong["status"], wrong["plan"]) == ("error", None)
    assert "nonsense" in str(wrong["error"])
    assert tuple(wrong) == ("key", "cluster", "model", "change", *RESULTS)
