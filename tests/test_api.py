"""`import planner`: what it offers, and that the example of docs/api.md runs and prints what stands there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import hetplan
import planner
from planner.cost.failures import Interruptions
from planner.errors import OutputError, SpecError, UsageError
from planner.search.values import Goal, Limits
from tests.cli.running import CLUSTER, MODEL, SHORT_PLAN

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "api.md"
ALONE = """\
from planner.search.explain import reasons
nothing = reasons.Found(alternatives=(), advice=(), idle_costs=(), limit_costs=(), cut=False)
reasons.Reasons.run = lambda self: nothing
"""
"""Ahead of a program: searches do not look at what else there was."""


def run(code: str, folder: Path = ROOT) -> str:
    """What a program of its own prints."""
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        env={"PYTHONPATH": str(ROOT), "PATH": ""},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


def test_the_example_of_the_page(tmp_path: Path) -> None:
    """As a reader would run it."""
    page = PAGE.read_text(encoding="utf-8")
    program, printed = re.findall(r"^```(?:python|text)\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    guide = (ROOT / "docs" / "guide.md").read_text(encoding="utf-8")
    (tmp_path / "mine.yaml").write_text(guide.partition("$ cat mine.yaml\n")[2].partition("$ ")[0])
    for name in ("cluster_specs", "model_specs"):
        (tmp_path / name).symlink_to(ROOT / name)
    assert run(ALONE + program, tmp_path) == printed
    assert (tmp_path / "launch" / "README.md").is_file()


def test_the_page_names_all_that_there_is() -> None:
    """Every public name."""
    assert all(f"| `{name}" in PAGE.read_text(encoding="utf-8") for name in planner.__all__)


def test_the_import_is_light() -> None:
    """None of its modules, and no library."""
    heavy = "('planner.', 'pydantic', 'yaml', 'numpy')"
    code = f"import sys, planner; print([name for name in sys.modules if name.startswith({heavy})])"
    assert run(code) == "[]\n"


@pytest.mark.parametrize("first", ["", "import planner.search.values, planner.emit.interface;"])
def test_names_that_are_packages_too_can_be_called(first: str) -> None:
    """Whichever was imported first; what stands in the packages can be imported all the same."""
    code = (
        f"{first}import planner; from planner import emit, search; from planner.search.values import Limits;"
    )
    assert run(
        f"{code} print(callable(emit), callable(search), callable(planner.search), Limits.__name__)"
    ) == ("True True True Limits\n")


def test_other_names_are_attribute_errors() -> None:
    """As in any module."""
    with pytest.raises(AttributeError, match="module 'planner' has no attribute 'nonsense'"):
        planner.nonsense  # noqa: B018


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A cluster, a model and a short plan."""
    for name, text in (("cluster", CLUSTER), ("model", MODEL), ("short", SHORT_PLAN)):
        (tmp_path / f"{name}.yaml").write_text(text)
    return tmp_path


@pytest.mark.usefixtures("without_reasons")
def test_from_files_to_a_launch_folder(folder: Path) -> None:
    """Limits hold, the prediction of the plan found is its estimate, and what is written is said."""
    cluster, model = (
        planner.load_cluster(folder / "cluster.yaml"),
        planner.load_model(str(folder / "model.yaml")),
    )
    found = planner.search(cluster, model, limits=Limits(target="megatron"))
    assert found.best is not None
    plan = found.best.plan
    assert isinstance(plan, planner.Plan)
    assert plan.target == "megatron"
    assert planner.predict(plan, cluster, model) == found.best.estimate
    by_hand = planner.predict(folder / "short.yaml", cluster, model)
    assert by_hand.step_seconds > found.best.estimate.step_seconds
    written = planner.emit(plan, cluster, model, folder / "run")
    assert folder / "run" / "README.md" in written
    assert all(path.is_file() for path in written)
    with pytest.raises(OutputError, match="is not empty"):
        planner.emit(plan, cluster, model, folder / "run")


@pytest.mark.usefixtures("without_reasons")
def test_a_calibration_wins_over_the_shipped_one(folder: Path) -> None:
    """In predictions as in searches."""
    cluster, model = planner.load_cluster(folder / "cluster.yaml"), planner.load_model(folder / "model.yaml")
    slow = folder / "slow.yaml"
    slow.write_text("format: hetplan-calibration/1\nfamilies:\n  A100: {matmul_efficiency: 0.001}\n")
    usual = planner.predict(folder / "short.yaml", cluster, model)
    assert (
        planner.predict(folder / "short.yaml", cluster, model, calibration=slow).step_seconds
        > usual.step_seconds
    )
    limits = Limits(target="megatron")
    quick = planner.search(cluster, model, limits=limits).best
    slowed = planner.search(cluster, model, limits=limits, calibration=slow).best
    assert quick is not None
    assert slowed is not None
    assert slowed.estimate.step_seconds > quick.estimate.step_seconds


def test_bad_files_are_spec_errors(folder: Path) -> None:
    """With file, line and key."""
    (folder / "bad.yaml").write_text("name: x\npools: 3\n")
    with pytest.raises(SpecError, match=r"bad\.yaml:2: pools"):
        planner.load_cluster(folder / "bad.yaml")


@pytest.mark.parametrize(
    ("goal", "simple", "said"),
    [
        (Goal(objective="cost"), False, "the goal needs the price of every pool, and pool 'fast' has none"),
        (Goal(tokens=1e9, budget=5.0), False, "needs the price of every pool"),
        (
            Goal(deadline_seconds=5.0),
            False,
            "deadline_seconds is about a whole training run: expected tokens",
        ),
        (Goal(budget=5.0), False, "budget is about a whole training run"),
        (Goal(use_at_most=(("nope", 3),)), False, "use_at_most: the cluster has no pool 'nope'"),
        (Goal(use_at_most=(("fast", -1),)), False, "use_at_most: expected a whole number from 0 to 1000000"),
        (Goal(use_at_most=(("fast", "1"),)), False, "use_at_most: expected a whole number .*, got '1'"),  # type: ignore[arg-type]
        (Goal(use_at_most={"fast": 1}), False, "use_at_most: expected pairs of a pool and a number"),  # type: ignore[arg-type]
        (Goal(use_at_most=("fast", 1)), False, "use_at_most: expected pairs of a pool and a number"),  # type: ignore[arg-type]
        (Goal(tokens="1e9"), False, "tokens: expected a number from 1 to 1e\\+18, got '1e9'"),  # type: ignore[arg-type]
        (Goal(use_at_most=(("", 0),)), False, "use_at_most: leaves no device to use"),
        (Goal(objective="loss"), False, "objective: expected one of time, cost, energy, got 'loss'"),  # type: ignore[arg-type]
        (Goal(objective="energy", robust=True), False, "robust weighs step times"),
        (Goal(robust=True), True, "expected no other goal"),
        (Goal(interruptions=Interruptions(per_gpu_month=1.0)), False, "interruptions are those of a whole"),
        (Goal(tokens=1e9, interruptions=Interruptions(restart_seconds=-1.0)), False, "restart_seconds: exp"),
        (Goal(tokens=-1.0), False, "tokens: expected a number from 1 to 1e\\+18, got -1"),
        (Goal(min_tokens_per_second=float("nan")), False, "min_tokens_per_second: expected a number"),
    ],
)
def test_goals_that_cannot_be_searched_for(folder: Path, goal: Goal, simple: bool, said: str) -> None:
    """Are usage errors before the search, as those of the command."""
    cluster, model = planner.load_cluster(folder / "cluster.yaml"), planner.load_model(folder / "model.yaml")
    with pytest.raises(UsageError, match=said):
        planner.search(cluster, model, goal=goal, simple=simple)


@pytest.mark.parametrize("limits", [Limits(gap=2.0), Limits(gap=-0.1), Limits(time_limit_seconds=-1.0)])
def test_limits_have_ranges(folder: Path, limits: Limits) -> None:
    """As the options have."""
    cluster, model = planner.load_cluster(folder / "cluster.yaml"), planner.load_model(folder / "model.yaml")
    with pytest.raises(UsageError, match=r"(gap|time_limit_seconds): expected a number from 0 to"):
        planner.search(cluster, model, limits=limits)


@pytest.mark.parametrize(
    ("limits", "said"),
    [
        (Limits(gap=2), "gap: expected a number from 0 to 1, got 2"),
        (Limits(zero=(0, 7)), "zero: expected a whole number from 0 to 3, got 7"),
        (Limits(micro_batch=(0,)), "micro_batch: expected a whole number from 1"),
        (Limits(tp=()), r"tp: expected a tuple with at least one value, got \(\)"),
        (Limits(tp=2), "tp: expected a tuple with at least one value, got 2"),  # type: ignore[arg-type]
        (Limits(recompute="full"), "recompute: expected a tuple"),  # type: ignore[arg-type]
        (Limits(recompute=("ful",)), "recompute: expected some of none, selective, full, got 'ful'"),  # type: ignore[arg-type]
        (Limits(offload=("cpu",)), "offload: expected some of none, optimizer, .*, super, got 'cpu'"),  # type: ignore[arg-type]
        (Limits(target="megatron", grids=True), "grids: megatron has none of it, expected target torch"),
        (Limits(ep=(2,)), "ep: the model small has no experts, expected 1, got 2"),
        (Limits(backup=-1), "backup: expected a whole number from 0"),
        (Limits(pp=(1.5,)), "pp: expected a whole number from 1 to 1000, got 1.5"),  # type: ignore[arg-type]
        (Limits(micro_batch=(True,)), "micro_batch: expected a whole number .*, got True"),
        (Limits(backup=0.5), "backup: expected a whole number .*, got 0.5"),  # type: ignore[arg-type]
        (Limits(gap="0.01"), "gap: expected a number from 0 to 1, got '0.01'"),  # type: ignore[arg-type]
        (Limits(gap=None), "gap: expected a number from 0 to 1, got None"),  # type: ignore[arg-type]
        (Limits(processes="2"), "processes: expected a whole number from 1 to 256, got '2'"),  # type: ignore[arg-type]
        (Limits(processes=0), "processes: expected a whole number from 1 to 256, got 0"),
    ],
)
def test_limits_that_no_plan_can_have(folder: Path, limits: Limits, said: str) -> None:
    """Are usage errors, never a proof that no plan fits."""
    cluster, model = planner.load_cluster(folder / "cluster.yaml"), planner.load_model(folder / "model.yaml")
    with pytest.raises(UsageError, match=said):
        planner.search(cluster, model, limits=limits)
    with pytest.raises(UsageError, match=said):
        hetplan.what_if(cluster, model, [], limits=limits)


def test_limits_may_be_numbers_of_numpy(folder: Path) -> None:
    """As the ranges of a script are."""
    cluster, model = planner.load_cluster(folder / "cluster.yaml"), planner.load_model(folder / "model.yaml")
    plain = Limits(target="megatron", micro_batch=(1, 2), gap=0.25)
    array = Limits(target="megatron", micro_batch=tuple(np.arange(1, 3)), gap=np.float32(0.25))  # type: ignore[arg-type]
    best = [planner.search(cluster, model, limits=limits).best for limits in (plain, array)]
    assert best[0] == best[1]


def test_an_unknown_board_power_is_told(folder: Path) -> None:
    """Where energy is the objective."""
    cluster, model = planner.load_cluster(folder / "cluster.yaml"), planner.load_model(folder / "model.yaml")
    known = {name: gpu.model_copy(update={"tdp_watts": None}) for name, gpu in cluster.gpus.items()}
    with pytest.raises(UsageError, match="energy needs the board power of"):
        planner.search(cluster.model_copy(update={"gpus": known}), model, goal=Goal(objective="energy"))
