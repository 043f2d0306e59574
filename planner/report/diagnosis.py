"""Why nothing fits, as a short argument, and what would make it fit."""

from __future__ import annotations

from rich.console import Group

from planner.report.layout import pairs, paragraphs, section
from planner.report.numbers import count, duration
from planner.report.paragraph import Paragraph
from planner.search.values import Diagnosis, SearchResult


def infeasible_section(result: SearchResult) -> Group:
    """The proof that no plan fits: because, and because, so; nearest miss; hints."""
    effort = f"proven, {count(result.candidates, 'candidate')}, {duration(result.seconds)}"
    title = f"No plan fits ({effort})"
    if result.diagnosis is None:
        return section(title)
    return section(title, paragraphs(_argument(result.diagnosis)), pairs(_remedies(result.diagnosis)))


def _argument(diagnosis: Diagnosis) -> list[str]:
    """Causes as one sentence over several lines."""
    if not diagnosis.causes:
        return []
    first, *rest = diagnosis.causes
    return [f"Because {first},", *(f"and because {cause}," for cause in rest), "no plan of this space fits."]


def _remedies(diagnosis: Diagnosis) -> list[tuple[str, str]]:
    rows = [("nearest miss", diagnosis.nearest_miss)] if diagnosis.nearest_miss else []
    return [*rows, *(("hint", hint) for hint in diagnosis.hints)]


def unknown_section(result: SearchResult) -> Group:
    """The time limit struck before any plan was found."""
    how = "interrupted" if result.interrupted else "time limit"
    effort = f"{count(result.candidates, 'candidate')}, {duration(result.seconds)}"
    line = "nothing is proven: a plan may exist; allow more time or narrow the search with --zero, --tp, --pp"
    return section(f"No plan found yet ({how}; {effort})", Paragraph(line))
