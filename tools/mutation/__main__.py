"""How many small changes of the code no test sees: a sample, since all would take days.

    python -m tools.mutation [--mutants N] [--seed S] [--packages cost,plan,emit,search] [--work DIR] [--budget X]

The tree is copied, its tests run once under coverage, and each mutant is tried with the quickest tests that run its
line. All that was found is kept in the work folder: after an interrupt the same command goes on, what was recorded is
used again for the lines that are still there, and only mutants that survived are tried again on changed tests.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import random
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from tools.mutation.covering import recorded, told
from tools.mutation.mutants import PACKAGES, Mutant, equivalents, modules, sample
from tools.mutation.trial import Room, warm

ROOT = Path(__file__).parents[2]
LOST = ("survived", "uncovered")
SURE = 1.96
"""Standard errors of an interval that holds the share of all mutants 19 times of 20."""


def _asked() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tools.mutation", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--mutants", type=int, default=200, help="mutants of all packages together")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--packages", default=",".join(PACKAGES), help="those to mutate")
    parser.add_argument("--budget", type=float, default=6.0, help="CPU seconds of tests for each mutant")
    parser.add_argument(
        "--work", type=Path, default=Path(".mutation"), help="folder that keeps what was found"
    )
    return parser.parse_args()


def main() -> int:
    """Try the mutants; prints those that survive and their share by package."""
    asked = _asked()
    packages = asked.packages.split(",")
    work = asked.work.resolve()
    warm()
    room = Room.copied(ROOT, work / "tree")
    kept = work / _digest(room.root / "planner")
    covering = recorded(room, kept, packages)
    _tell(told(covering))
    if not covering.seconds or room.outcome(covering.quickest(20), 100.0) != "survived":
        sys.exit(f"tests fail without a mutant: see {work / 'last.log'}")
    tests = _digest(room.root / "tests")
    known, found, rows = (
        equivalents(),
        dict(_kept(kept / "outcomes.jsonl", tests)),
        Counter[tuple[str, str]](),
    )
    try:
        for mutant in _mutants(room.root, packages, asked.mutants, asked.seed):
            outcome = found.get(mutant.place)
            if (mutant.path, mutant.before, mutant.after) in known:
                outcome = "equivalent"
            elif outcome is None:
                chosen = covering.tests_of(mutant.path, mutant.line, asked.budget)
                outcome = room.tried(mutant, chosen, asked.budget)
                row = {"place": mutant.place, "outcome": outcome, "tests": tests}
                with (kept / "outcomes.jsonl").open("a", encoding="utf-8") as file:
                    file.write(json.dumps(row) + "\n")
            rows[mutant.package, outcome] += 1
            if outcome in LOST:
                _tell(f"{outcome}: {mutant.place}")
    except KeyboardInterrupt:
        _tell("interrupted: the same command goes on from here")
    _tell(_table(rows, packages))
    return 0


def _digest(folder: Path) -> str:
    """Of the code in a folder."""
    found = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.suffix != ".pyc":
            found.update(path.relative_to(folder).as_posix().encode() + b"\0" + path.read_bytes())
    return found.hexdigest()[:12]


def _kept(path: Path, tests: str) -> Iterator[tuple[str, str]]:
    """Outcomes by place, of an earlier run on this code; other tests may see what survived then."""
    if path.exists():
        for line in path.read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            if row["outcome"] not in LOST or row["tests"] == tests:
                yield row["place"], row["outcome"]


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
    """Mutants by package and outcome, and the share that survives; equivalent ones are not in the share."""
    outcomes = ("killed", "timeout", *LOST, "equivalent")
    text = ["package   " + "".join(f"{outcome:>12}" for outcome in outcomes) + "   surviving (95 %)"]
    for package in [*packages, "all"]:
        chosen = packages if package == "all" else [package]
        counts = [sum(rows[one, outcome] for one in chosen) for outcome in outcomes]
        text.append(f"{package:<10}" + "".join(f"{count:>12}" for count in counts) + _share(counts))
    return "\n".join(text)


def _share(counts: list[int]) -> str:
    """Of the mutants that survive, with Wilson's interval."""
    lost, number = counts[2] + counts[3], sum(counts[:4])
    if not number:
        return f"{'-':>12}"
    share, spread = lost / number, SURE**2 / number
    middle = (share + spread / 2) / (1 + spread)
    half = SURE / (1 + spread) * math.sqrt(share * (1 - share) / number + spread / 4 / number)
    return f"{share:>12.1%} ({middle - half:.1%} to {middle + half:.1%})"


def _tell(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
