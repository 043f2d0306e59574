"""Pages about the example, as full as they get, and what a browser makes of them."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import dataclass, replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from planner.calibration.values import ASSUMED
from planner.cluster.spec import ClusterSpec
from planner.cost.estimate import Estimator
from planner.model.spec import ModelSpec
from planner.plan.file import CHOSEN, Considered, Moment, PlanFile, Summary
from planner.plan.values import Plan
from planner.report.compare import Contender
from planner.report.observed import ObservedRun
from planner.report.page import Report, report
from planner.search.values import Goal, Scored
from tests.report import examples
from tests.report.test_observed import COMPARISON, FOUND, SEEN

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
needs_browser = pytest.mark.skipif(BROWSER is None, reason="no Chromium on this machine")


def about(
    plan: Plan | None = None,
    cluster: ClusterSpec | None = None,
    model: ModelSpec | None = None,
    name: str = "plan.yaml",
) -> Report:
    """The page's subject: a plan with everything that can stand beside it."""
    plan = plan or examples.scored().plan
    cluster, model = cluster or examples.cluster(), model or examples.model()
    estimator = Estimator(cluster, model, ASSUMED)
    scored = Scored(plan=plan, estimate=estimator.estimate(plan))
    step = scored.estimate.step_seconds
    summary = Summary(
        status="optimal",
        step_seconds=step,
        bound_seconds=step * 0.99,
        gap=0.01,
        tokens_per_second=scored.estimate.tokens_per_second,
        outside=("offloading",),
        alternatives=(
            Considered(family="torch: ZeRO-1", step_seconds=step, reason=CHOSEN),
            Considered(family="only v100", reason="does not fit"),
        ),
        ratios=("a split that rests on something",),
        history=(
            Moment(seconds=0.5, step_seconds=step * 1.2, bound_seconds=0.0),
            Moment(seconds=2.0, step_seconds=step * 1.05, bound_seconds=step * 0.8),
            Moment(seconds=6.3, step_seconds=step, bound_seconds=step * 0.99),
        ),
        idle=("idle: 4 V100 (v100): using them costs +7 % (bubble and sends)",),
    )
    saved = PlanFile(plan=plan, cluster=cluster, model=model, summary=summary)
    contenders = [Contender(name=each, scored=scored, cluster_devices=16) for each in (name, "other.yaml")]
    run = ObservedRun(seen=SEEN, comparison=COMPARISON, findings=tuple(FOUND))
    return report(
        name,
        saved,
        scored,
        estimator,
        Goal(tokens=1e11, deadline_seconds=1e6, budget=1e5),
        contenders,
        run,
        examples.front(),
    )


def plain() -> Report:
    """A plan that no search made, with nothing beside it."""
    full = about()
    bare = replace(full.saved, summary=None)
    return replace(full, saved=bare, contenders=(), run=None)


def divided() -> Report:
    """A plan whose schedule computes gradients of weights apart."""
    plan = examples.scored().plan
    stages = tuple(replace(stage, recompute="none") for stage in plan.stages)
    return about(replace(plan, target="torch", schedule="zero-bubble", stages=stages))


class Reader(HTMLParser):
    """What stands in a page: its numbers by key, its elements, its text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.numbers: dict[str, float] = {}
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.words: list[str] = []
        self._open: list[str] = []
        self.unbalanced: list[str] = []
        self.feed(page)
        self.unbalanced += self._open

    VOID = frozenset({"meta", "link", "input", "br"})
    SHAPES = frozenset({"rect", "path", "circle"})

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Keep its attributes, and a number's value."""
        found = {name: value or "" for name, value in attrs}
        self.elements.append((tag, found))
        if tag not in self.VOID:
            self._open.append(tag)
        if tag == "data":
            self.numbers[found["data-key"]] = float(found["value"])

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """An element without content."""
        self.elements.append((tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        """Every element must end where it should."""
        if not self._open or self._open.pop() != tag:
            self.unbalanced.append(tag)

    def handle_data(self, data: str) -> None:
        """Text of elements other than scripts and styles."""
        if self._open and self._open[-1] not in ("script", "style"):
            self.words.append(data)

    @property
    def text(self) -> str:
        """All of it on one line."""
        return " ".join(" ".join(self.words).split())


@dataclass(frozen=True, slots=True)
class Seen:
    """What a browser says of a page."""

    dom: str
    console: list[str]


def browsed(path: Path, folder: Path, *flags: str) -> Seen:
    """The page after its script has run, and what the browser complained of."""
    assert BROWSER is not None
    done = subprocess.run(
        [
            BROWSER,
            *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
            *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
            *("--enable-logging=stderr", f"--user-data-dir={folder / 'profile'}"),
            *flags,
            "--dump-dom",
            path.as_uri(),
        ],
        capture_output=True,
        encoding="utf-8",
        check=True,
        timeout=120,
    )
    return Seen(done.stdout, re.findall(r".*CONSOLE.*", done.stderr))
