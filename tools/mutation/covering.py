"""Which tests run a line, and how long each takes: from one run of the tests under coverage."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from coverage import CoverageData

TESTS: dict[str, tuple[str, ...]] = {
    "cost": ("tests/cost",),
    "plan": ("tests/plan", "tests/dims", "tests/cluster"),
    "emit": ("tests/emit", "tests/job", "tests/launchers", "tests/runtimes"),
    "search": ("tests/search",),
}
"""Tests that are tried on the mutants of a package."""

TIMED = ("tests/test_architecture.py",)
"""They measure time, or look at the code itself."""

RUN = """\
[run]
source = planner
data_file = {data}
"""


@dataclass(frozen=True, slots=True)
class Covering:
    """Tests by the lines that they run."""

    lines: dict[str, dict[int, tuple[str, ...]]]
    """[path][line]: tests."""
    seconds: dict[str, float]
    """Of each test, under coverage, all its parameters together."""

    def tests_of(self, path: str, line: int, budget: float) -> tuple[list[str], list[str]]:
        """The tests that run the line: the quickest, as many as the seconds allow, then more up to ten times that.

        What runs when the module is imported has no test of its own: then those that run anything of the module.
        """
        own = self.lines.get(path, {})
        found = own.get(line, ()) or {test for tests in own.values() for test in tests}
        order = sorted(set(found), key=lambda test: (self.seconds[test], test))
        quick: list[str] = []
        slow: list[str] = []
        total = 0.0
        for test in order:
            total += self.seconds[test]
            if not quick or total <= budget:
                quick.append(test)
            elif total <= 10 * budget:
                slow.append(test)
        return quick, slow


def recorded(root: Path, folder: Path, packages: list[str]) -> Covering:
    """The tests of these packages, run under coverage in the copy of the tree; what was recorded before is taken."""
    lines: dict[str, dict[int, set[str]]] = defaultdict(lambda: defaultdict(set))
    seconds: dict[str, float] = {}
    for package in packages:
        data, report = folder / f"{package}.coverage", folder / f"{package}.xml"
        if not report.exists():
            _run(root, folder, package, data, report)
        passed = _passed(report)
        seconds |= passed
        _add_lines(root, data, passed, lines)
    frozen = {
        path: {line: tuple(sorted(tests)) for line, tests in own.items()} for path, own in lines.items()
    }
    return Covering(frozen, seconds)


def _run(root: Path, folder: Path, package: str, data: Path, report: Path) -> None:
    settings = folder / f"{package}.coveragerc"
    settings.write_text(RUN.format(data=data), encoding="utf-8")
    paths = [str(root / place) for place in TESTS[package]]
    left_out = [f"--ignore={root / path}" for path in TIMED]
    options = [
        "-q",
        "-p",
        "no:cacheprovider",
        "-p",
        "tools.mutation.contexts",
        "-o",
        "junit_family=xunit1",
        "-m",
    ]
    command = [sys.executable, "-m", "coverage", "run", f"--rcfile={settings}", "-m", "pytest", *options]
    command += ["not slow", f"--junitxml={report}.part", *left_out, *paths]
    environment = {**os.environ, "PYTHONPATH": str(root), "COVERAGE_CORE": "ctrace"}
    subprocess.run(command, cwd=root, env=environment, check=False, stdout=subprocess.DEVNULL)
    os.replace(f"{report}.part", report)


def _passed(report: Path) -> dict[str, float]:
    """Seconds of each test function that passed with all its parameters."""
    seconds: dict[str, float] = defaultdict(float)
    failed = set()
    for case in ElementTree.parse(report).iter("testcase"):
        name = f"{case.get('file')}::{str(case.get('name')).split('[')[0]}"
        seconds[name] += float(case.get("time", 0))
        if len(case):
            failed.add(name)
    return {name: time for name, time in seconds.items() if name not in failed}


def _add_lines(
    root: Path, data: Path, passed: dict[str, float], lines: dict[str, dict[int, set[str]]]
) -> None:
    found = CoverageData(str(data))
    found.read()
    for file in found.measured_files():
        path = Path(file).relative_to(root).as_posix()
        for line, contexts in found.contexts_by_lineno(file).items():
            lines[path][line].update(context for context in contexts if context in passed)


def told(covering: Covering) -> str:
    """How much was recorded, for people."""
    covered = sum(bool(tests) for own in covering.lines.values() for tests in own.values())
    return json.dumps({"tests": len(covering.seconds), "lines that tests run": covered})
