"""``import hetplan``: what notebooks and scripts use."""

from __future__ import annotations

import signal
from dataclasses import replace
from html.parser import HTMLParser
from importlib.resources import files
from pathlib import Path
from unittest.mock import patch

import pytest

import hetplan
from planner.errors import UsageError
from planner.plan.file import read
from planner.search.explorer import Explorer
from tests.cli.running import CLUSTER, MODEL, SHORT_PLAN


class Balanced(HTMLParser):
    """Whether all elements close."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: object) -> None:
        """Opens, unless it has no end."""
        if tag != "br":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        """Closes the last one."""
        assert self.open.pop() == tag


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cluster, a model and a short plan."""
    found = tmp_path_factory.mktemp("hetplan")
    for name, text in (("cluster", CLUSTER), ("model", MODEL), ("short", SHORT_PLAN)):
        (found / f"{name}.yaml").write_text(text)
    return found


@pytest.fixture(scope="module")
def found(folder: Path) -> hetplan.Planned:
    """The best plan of one runtime, with little time for reasons."""
    limits = hetplan.Limits(target="megatron")
    with patch("planner.search.explain.reasons.LEAST_SECONDS", 0.05):
        return hetplan.search(folder / "cluster.yaml", folder / "model.yaml", limits=limits)


@pytest.mark.parametrize("package", ["hetplan", "planner"])
def test_type_checkers_read_its_hints(package: str) -> None:
    """Of the installed package too, which says with a file that it has some (PEP 561)."""
    assert files(package).joinpath("py.typed").is_file()


def test_a_search_says_all_of_its_plan(found: hetplan.Planned, folder: Path) -> None:
    """Rows agree with the estimate, in time and in bytes; the plan file is that of the command."""
    assert found.result is not None
    assert str(found).startswith("small on tiny: ")
    assert max(row["end_seconds"] for row in found.timeline()) == pytest.approx(found.estimate.step_seconds)
    assert max(row["used_bytes"] for row in found.stages()) == found.estimate.peak_memory_bytes
    assert [row for row in found.alternatives() if row["reason"] == "chosen"]
    found.save(folder / "plan.yaml")
    saved = read(folder / "plan.yaml")
    assert saved.plan == found.plan
    assert saved.summary is not None
    assert saved.summary.gap == found.result.gap
    run = found.training(1e9, hetplan.Interruptions(per_gpu_month=1))
    assert run.seconds > 1e9 / found.estimate.tokens_per_second


def test_what_stops_a_run_is_that_of_the_options(found: hetplan.Planned) -> None:
    """A rate of the storage gives the time of a checkpoint; what is out of range is told."""
    fast, slow = (
        found.training(1e9, hetplan.Interruptions(per_gpu_month=1, storage_bytes_per_second=rate))
        for rate in (1e12, 1e6)
    )
    assert fast.seconds < slow.seconds
    with pytest.raises(UsageError, match="per_gpu_month: expected a number from 0 to 10000, got -1"):
        found.training(1e9, hetplan.Interruptions(per_gpu_month=-1))
    with pytest.raises(UsageError, match="storage_bytes_per_second: expected a number from 1000 to"):
        found.training(1e9, hetplan.Interruptions(storage_bytes_per_second=0))


def test_by_hand_and_compared(found: hetplan.Planned, folder: Path) -> None:
    """A plan of one's own beside the found one."""
    by_hand = hetplan.predict(folder / "short.yaml", folder / "cluster.yaml", folder / "model.yaml")
    first, second = hetplan.compare(found=found, by_hand=by_hand).rows()
    assert (first["name"], first["times_first"]) == ("found", 1.0)
    assert second["times_first"] == by_hand.estimate.step_seconds / found.estimate.step_seconds
    assert (first["note"], second["note"]) == ("", "")
    assert by_hand.alternatives() == []
    with pytest.raises(UsageError, match="expected plans"):
        hetplan.compare()


def test_what_cannot_be_compared(found: hetplan.Planned, folder: Path) -> None:
    """Another model is refused; other settings of the training are told."""
    for name, change in (
        ("more", ("global_batch: ", "global_batch: 2")),
        ("deep", ("layers: ", "layers: 1")),
    ):
        (folder / f"{name}.yaml").write_text(MODEL.replace(*change))
    few = hetplan.Limits(target="torch", zero=(0,), tp=(1,), pp=(1,), time_limit_seconds=20)
    more, deep = (
        hetplan.search(folder / "cluster.yaml", folder / f"{name}.yaml", limits=few)
        for name in ("more", "deep")
    )
    both = hetplan.compare(found=found, more=more)
    assert both.rows()[1]["note"].startswith("global_batch 2")
    assert "<th>note</th>" in both._repr_html_()
    assert "<th>note</th>" not in hetplan.compare(found=found)._repr_html_()
    with pytest.raises(
        UsageError, match=r"^compare: deep is a plan of .*, expected one of small as the first"
    ):
        hetplan.compare(found=found, deep=deep)


@pytest.mark.usefixtures("without_reasons")
def test_what_notebooks_show(found: hetplan.Planned, folder: Path) -> None:
    """Closed elements; nothing of a file is markup."""
    both = hetplan.compare(**{"<b>": found})
    changes = hetplan.what_if(
        folder / "cluster.yaml", folder / "model.yaml", ["-slow"], limits=hetplan.Limits(target="megatron")
    )
    for shown in (found._repr_html_(), both._repr_html_(), changes._repr_html_()):
        assert Balanced(shown).open == []
    assert "<td>&lt;b&gt;</td>" in both._repr_html_()
    assert [row["change"] for row in changes.rows()] == ["as it is", "-slow"]


def test_ctrl_c_keeps_the_best_plan(folder: Path) -> None:
    """Of a search; of several searches the cases so far, if there are any."""
    paths, limits = (folder / "cluster.yaml", folder / "model.yaml"), hetplan.Limits(target="megatron")
    best_first = Explorer._best_first

    def pressed(self: Explorer, rounds: int | None) -> None:
        signal.raise_signal(signal.SIGINT)
        best_first(self, rounds)

    with patch.object(Explorer, "_best_first", pressed):
        found = hetplan.search(*paths, limits=limits)
        changes = hetplan.what_if(*paths, ["-slow"], limits=limits)
    assert found.result is not None
    assert found.result.interrupted
    assert found.plan.target == "megatron"
    assert [row["change"] for row in changes.rows()] == ["as it is"]
    nothing = replace(found.result, best=None)
    with patch("planner.search.what_if.choose", return_value=nothing), pytest.raises(KeyboardInterrupt):
        hetplan.what_if(*paths, ["-slow"], limits=limits)


def test_page_and_launch_folder(found: hetplan.Planned, folder: Path) -> None:
    """As the commands write them."""
    hetplan.report(found, folder / "report.html")
    assert "<h1>small on tiny</h1>" in (folder / "report.html").read_text()
    hetplan.report(found, folder / "report.html", tokens=1e9, deadline_seconds=1e-3, pareto=True)
    shown = (folder / "report.html").read_text()
    assert "the training misses the deadline" in shown
    assert 'id="pareto"' in shown
    assert folder / "run" / "README.md" in hetplan.emit(found, folder / "run")


def test_no_plan(folder: Path) -> None:
    """No plan is no error until one is asked for it."""
    (folder / "big.yaml").write_text(MODEL.replace("hidden: 512", "hidden: 65536"))
    few = hetplan.Limits(target="torch", zero=(0,), tp=(1,), pp=(1,), time_limit_seconds=5)
    nothing = hetplan.search(folder / "cluster.yaml", folder / "big.yaml", limits=few)
    assert nothing.scored is None
    assert nothing.result is not None
    assert nothing.result.diagnosis is not None
    assert "no plan fits" in nothing._repr_html_()
    with pytest.raises(hetplan.HetplanError, match="no plan fits"):
        _ = nothing.plan


def test_a_frame_without_rows_has_its_columns(found: hetplan.Planned) -> None:
    """A plan by hand lost to no other family."""
    pytest.importorskip("pandas")
    by_hand = hetplan.predict(found.plan, found.cluster, found.model)
    frame = by_hand.to_frame("alternatives")
    assert frame.empty
    assert list(frame.columns) == list(found.to_frame("alternatives").columns)


def test_frames(found: hetplan.Planned) -> None:
    """The same rows, where pandas is."""
    pytest.importorskip("pandas")
    assert list(found.to_frame()["used_bytes"]) == [row["used_bytes"] for row in found.stages()]
    assert len(found.to_frame("timeline")) == len(found.timeline())
    assert list(hetplan.compare(a=found).to_frame().index) == ["a"]
    with pytest.raises(UsageError, match="expected stages, alternatives or timeline"):
        found.to_frame("nothing")


def test_what_is_out_of_range_is_said(found: hetplan.Planned, folder: Path) -> None:
    """By the argument's own name."""
    with pytest.raises(hetplan.HetplanError, match="tokens: expected a number from 1 to"):
        found.training(-1.0)
    with pytest.raises(hetplan.HetplanError, match="tokens: expected a number from 1 to"):
        hetplan.report(found, folder / "page.html", tokens=-5.0)
    with pytest.raises(hetplan.HetplanError, match=r"safe: expected a number from 1e-06 to 0\.5"):
        hetplan.search(folder / "cluster.yaml", folder / "model.yaml", safe=3)
    with pytest.raises(hetplan.HetplanError, match=r"safe: expected a number from 1e-06 to 0\.5, got '0\.1'"):
        hetplan.search(folder / "cluster.yaml", folder / "model.yaml", safe="0.1")  # type: ignore[arg-type]
    with pytest.raises(hetplan.HetplanError, match=r"tokens: expected a number from 1 to .*, got '1e9'"):
        found.training("1e9")  # type: ignore[arg-type]
    with pytest.raises(hetplan.HetplanError, match="changes: expected a list of changes"):
        hetplan.what_if(folder / "cluster.yaml", folder / "model.yaml", "-fast")
    assert not (folder / "page.html").exists()


def test_a_plan_alone_is_not_what_functions_take(found: hetplan.Planned, folder: Path) -> None:
    """It lacks cluster and model, which is said."""
    said = "expected what search or predict gives, got a Plan"
    with pytest.raises(UsageError, match=f"planned: {said}"):
        hetplan.emit(found.plan, folder / "alone")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=f"planned: {said}"):
        hetplan.report(found.plan, folder / "alone.html")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=f"second: {said}"):
        hetplan.compare(first=found, second=found.plan)  # type: ignore[arg-type]
