"""Exit codes of the command: published, and frozen by a test."""

from __future__ import annotations

ANSWER = 0
BUG = 1
BAD_INPUT = 2
INFEASIBLE = 3
NO_PLAN_IN_TIME = 4
INTERRUPTED = 130

MEANINGS: dict[int, str] = {
    ANSWER: "an answer; a plan that the time limit kept from being proven best is one too",
    BUG: "a bug in hetplan",
    BAD_INPUT: "options, files or devices that cannot be used, or an output that cannot be written",
    INFEASIBLE: "proven: no plan fits",
    NO_PLAN_IN_TIME: "no plan found within the time limit, nothing proven",
    INTERRUPTED: "stopped by Ctrl-C; the best plan so far is printed and written",
}
"""What each code says."""
