"""Which tests run a line, and how long each takes: from one run of each test file under coverage, kept for later."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import cache, partial
from itertools import takewhile
from pathlib import Path, PurePosixPath
from typing import Any

import coverage
import pytest

from tools.mutation.contexts import Noted
from tools.mutation.trial import Room, quietly

TESTS: dict[str, tuple[str, ...]] = {
    "cost": ("tests/cost",),
    "plan": ("tests/plan", "tests/dims", "tests/cluster"),
    "emit": ("tests/emit", "tests/job", "tests/launchers", "tests/runtimes"),
    "search": (
        "tests/search",
        "tests/share",
        "tests/dims",
        "tests/cli/test_sweep.py",
        "tests/cli/test_what_if.py",
    ),
}
"""Tests that are tried on the mutants of a package: folders, and files."""

TABLES = (
    "tests/cost/test_prices.py",
    "tests/plan/test_plans.py",
    "tests/dims/test_values.py",
    "tests/emit/test_folders.py",
)
"""Tests that compare rows of tables: each row is a test of its own, as no two see the same."""

LONGEST = 1200.0
"""CPU seconds of a test file under coverage."""


@dataclass(frozen=True, slots=True)
class Covering:
    """Tests by the lines that they run."""

    lines: dict[str, dict[int, tuple[str, ...]]]
    """[path][line]: tests."""
    seconds: dict[str, float]
    """CPU seconds of each test under coverage."""

    def tests_of(self, path: str, line: int, budget: float) -> tuple[list[str], list[str]]:
        """Those that run the line, the quickest of each function first, as many as the seconds allow; then others.

        The others, as many, run the line too, or else anything of its module, or lie nearest: what a cache keeps, or an
        import runs, is counted for the first test alone, and what other processes run for none. No test of them is as
        long as the budget.
        """
        own = self.lines.get(path, {})
        near = self._quickest({test for tests in own.values() for test in tests})
        around = sorted(
            (test for test in self._quickest({*self.seconds}) if _nearness(path, test)),
            key=lambda test: -_nearness(path, test),
        )
        order = self._quickest(own.get(line, ())) or near or around
        first = self._within(order, budget)
        if not first and order:
            first = order[:1]
        rest = [test for test in dict.fromkeys((*order, *near, *around)) if test not in first]
        return first, self._within([test for test in rest if self.seconds[test] < budget], budget)

    def quickest(self, number: int) -> list[str]:
        """That many tests, of all."""
        return self._quickest(set(self.seconds))[:number]

    def _quickest(self, tests: set[str] | tuple[str, ...]) -> list[str]:
        """The quickest of each test function, then the second of each: a hundred alike see no more than a few."""
        found: list[tuple[int, float, str]] = []
        alike: Counter[str] = Counter()
        for test in sorted(tests, key=lambda test: (self.seconds[test], test)):
            function = test if test.startswith(TABLES) else test.partition("[")[0]
            found.append((alike[function], self.seconds[test], test))
            alike[function] += 1
        return [test for *_, test in sorted(found)]

    def _within(self, tests: list[str], budget: float) -> list[str]:
        found, total = [], 0.0
        for test in tests:
            total += self.seconds[test]
            if total > budget:
                break
            found.append(test)
        return found


@cache
def _nearness(path: str, test: str) -> int:
    """Folders, and names, that a module and a test's file have in common; 0 in another room."""
    module = PurePosixPath(path).with_suffix("").parts[1:]
    file = PurePosixPath(test.partition("::")[0])
    names = (*file.parent.parts[1:], file.stem.removeprefix("test_"))
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(module, names, strict=False)))


def recorded(room: Room, kept: Path, packages: list[str]) -> Covering:
    """The tests of these packages under coverage; a test file that was recorded before is not run again.

    ``kept`` is for this state of the code, folders beside it for others: there lines are followed to where they are.
    """
    lines: dict[str, dict[int, set[str]]] = defaultdict(lambda: defaultdict(set))
    seconds: dict[str, float] = {}
    if not kept.exists():
        (kept / "coverage").mkdir(parents=True)
        shutil.copytree(room.root / "planner", kept / "planner", ignore=shutil.ignore_patterns("__pycache__"))
    for path in test_files(room.root, packages):
        digest = hashlib.sha256((room.root / path).read_bytes()).hexdigest()[:12]
        record = kept / "coverage" / f"{path.replace('/', '.')}-{digest}.json"
        before = max(kept.parent.glob(f"*/coverage/{record.name}"), key=os.path.getmtime, default=None)
        if before is None:
            quietly(partial(_record, room.root, path, record), LONGEST, room.root)
        elif before != record:
            _write(_followed(json.loads(before.read_text(encoding="utf-8")), before.parents[1], kept), record)
        if not record.exists():
            continue  # its tests take too long, or ended the process
        found = json.loads(record.read_text(encoding="utf-8"))
        seconds |= found["seconds"]
        for place, own in found["lines"].items():
            for line, tests in own.items():
                lines[place][int(line)].update(tests)
    frozen = {
        path: {line: tuple(sorted(tests)) for line, tests in own.items()} for path, own in lines.items()
    }
    return Covering(frozen, seconds)


def _followed(found: dict[str, Any], before: Path, now: Path) -> dict[str, Any]:
    """A record of the code in ``before``, for what is the same in ``now``."""
    lines = {}
    for place, own in found["lines"].items():
        moved = _moved(before / place, now / place)
        lines[place] = {moved[int(line)]: tests for line, tests in own.items() if int(line) in moved}
    return {**found, "lines": lines}


@cache
def _moved(before: Path, now: Path) -> dict[int, int]:
    """Numbers of a file's lines in another state of it."""
    if not now.exists():
        return {}
    then, today = (path.read_text(encoding="utf-8").splitlines() for path in (before, now))
    blocks = SequenceMatcher(None, then, today, autojunk=False).get_matching_blocks()
    return {block.a + step + 1: block.b + step + 1 for block in blocks for step in range(block.size)}


def test_files(root: Path, packages: list[str]) -> Iterator[str]:
    """The test files of these packages, relative to the tree."""
    for package in packages:
        for place in TESTS[package]:
            at = root / place
            for path in [at] if at.is_file() else sorted(at.rglob("test_*.py")):
                yield path.relative_to(root).as_posix()


def _record(root: Path, path: str, kept: Path) -> int:
    """Run one test file in this process and write down what it ran."""
    noted, seen = Noted(), coverage.Coverage(data_file=None, source=["planner"], config_file=False)
    seen.start()
    pytest.main(["-p", "no:cacheprovider", "-m", "not slow", f"--rootdir={root}", path], plugins=[noted])
    seen.stop()
    data = seen.get_data()
    passed = set(noted.seconds) - noted.failed
    lines = {
        Path(file).relative_to(root).as_posix(): {
            line: sorted(passed & set(contexts)) for line, contexts in data.contexts_by_lineno(file).items()
        }
        for file in data.measured_files()
    }
    seconds = noted.shared()
    found = {"seconds": {test: round(seconds[test], 3) for test in sorted(passed)}, "lines": lines}
    _write(found, kept)
    return 0


def _write(found: dict[str, Any], kept: Path) -> None:
    part = kept.with_suffix(".part")
    part.write_text(json.dumps(found), encoding="utf-8")
    part.replace(kept)


def told(covering: Covering) -> str:
    """How much was recorded, for people."""
    covered = sum(bool(tests) for own in covering.lines.values() for tests in own.values())
    return f"{len(covering.seconds)} tests run {covered} lines in {sum(covering.seconds.values()):.0f} CPU seconds"
