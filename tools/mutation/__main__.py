"""How many small changes of the code no test sees: a sample, since all would take days.

    python -m tools.mutation [--mutants N] [--seed S] [--packages cost,plan,emit,search] [--work DIR] [--budget X]

The tree is copied, its tests run once under coverage, and each mutant is tried with the tests that run its line.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from tools.mutation.covering import recorded, told
from tools.mutation.mutants import PACKAGES, Mutant, equivalents, modules, sample
from tools.mutation.trial import outcome, tried, warm

ROOT = Path(__file__).parents[2]
COPIED = (
    "planner",
    "tests",
    "tools",
    "docs",
    "cluster_specs",
    "model_specs",
    "pyproject.toml",
    "README.md",
    "LICENSE",
)


def _asked() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tools.mutation", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--mutants", type=int, default=300, help="mutants of all packages together")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--packages", default=",".join(PACKAGES), help="those to mutate")
    parser.add_argument("--budget", type=float, default=6.0, help="seconds of tests for each mutant")
    parser.add_argument("--work", type=Path, help="folder that keeps the coverage for the next time")
    parser.add_argument("--report", type=Path, help="append a line of JSON for each mutant")
    return parser.parse_args()


def main() -> int:
    """Try the mutants; prints those that survive and their share by package."""
    asked = _asked()
    packages = asked.packages.split(",")
    with tempfile.TemporaryDirectory(prefix="hetplan-mutation-") as temporary:
        work = (asked.work or Path(temporary)).resolve()
        root = Path(temporary).resolve() / "tree" if asked.work is None else work / "tree"
        _copy(root)
        covering = recorded(root, work, packages)
        print(told(covering), flush=True)  # noqa: T201
        warm()
        known, rows = equivalents(), Counter[tuple[str, str]]()
        mutants = _mutants(root, packages, asked.mutants, asked.seed)
        some = {
            test for one in mutants[:10] for test in covering.tests_of(one.path, one.line, asked.budget)[0]
        }
        if outcome(root, sorted(some), 600.0) != "survived":
            sys.exit("tests fail without a mutant")
        for mutant in mutants:
            start = time.monotonic()
            why = known.get((mutant.path, mutant.before, mutant.after))
            tests = covering.tests_of(mutant.path, mutant.line, asked.budget)
            found = "equivalent" if why else tried(root, mutant, tests, asked.budget)
            rows[mutant.package, found] += 1
            if found in ("survived", "uncovered"):
                print(f"{found}: {mutant.place}", flush=True)  # noqa: T201
            if asked.report:
                line = {
                    "place": mutant.place,
                    "outcome": found,
                    "seconds": round(time.monotonic() - start, 1),
                }
                with asked.report.open("a", encoding="utf-8") as file:
                    file.write(json.dumps({"package": mutant.package, **line}) + "\n")
    print(_table(rows, packages))  # noqa: T201
    return 0


def _copy(root: Path) -> None:
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir(parents=True)
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, root / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy2(source, root / name)


def _mutants(root: Path, packages: list[str], number: int, seed: int) -> list[Mutant]:
    """The sample, shared between the packages by their lines, in an order that mixes them."""
    lines = {
        package: sum(path.read_text(encoding="utf-8").count("\n") for path in modules(root, package))
        for package in packages
    }
    total = sum(lines.values())
    found = [
        mutant
        for package in packages
        for mutant in sample(root, package, round(number * lines[package] / total), seed)
    ]
    random.Random(seed).shuffle(found)
    return found


def _table(rows: Counter[tuple[str, str]], packages: list[str]) -> str:
    """Mutants by package and outcome; equivalent ones are not in the share."""
    outcomes = ("killed", "timeout", "survived", "uncovered", "equivalent")
    text = ["package   " + "".join(f"{outcome:>12}" for outcome in outcomes) + "   surviving"]
    for package in [*packages, "all"]:
        chosen = packages if package == "all" else [package]
        counts = [sum(rows[one, outcome] for one in chosen) for outcome in outcomes]
        lost, tried_ones = counts[2] + counts[3], sum(counts[:4])
        share = f"{lost / tried_ones:>11.1%}" if tried_ones else "          -"
        text.append(f"{package:<10}" + "".join(f"{count:>12}" for count in counts) + share)
    return "\n".join(text)


if __name__ == "__main__":
    sys.exit(main())
