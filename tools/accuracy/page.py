"""The whole page."""

from __future__ import annotations

from tools.accuracy.adapters import adapters_section
from tools.accuracy.constants import constants_section, newcomer_section, order_section
from tools.accuracy.errors import (
    bars_section,
    compared_section,
    pairs_section,
    sources_section,
    worst_section,
)
from tools.accuracy.experts import experts_section
from tools.accuracy.goals import goal_section, others_section
from tools.accuracy.largest import largest_section
from tools.accuracy.material import Material, paragraph
from tools.accuracy.unseen import unseen_section

TITLE = """\
# How true the cost model is

Written by `make accuracy` from the shipped constants and the published runs; do not edit.
"""


def page(found: Material) -> str:
    """The page as Markdown."""
    sections = (
        ("What is compared", compared_section(found)),
        ("Goals", goal_section(found)),
        ("All sources", sources_section(found)),
        ("Sources that nothing was fitted to", unseen_section()),
        ("Next to other tools", others_section(found)),
        ("Models with experts", experts_section(found.left_out)),
        ("Adapters", adapters_section(found.left_out)),
        ("The largest models that fit", largest_section()),
        ("The constants", constants_section(found)),
        ("Error bars", bars_section(found)),
        ("Two plans of one job", pairs_section(found)),
        ("Predicted worst", worst_section(found)),
        ("A family without runs of its own", newcomer_section(found)),
        ("Devices in order", order_section(found)),
        ("Speed", _speed()),
    )
    return "\n".join((TITLE, *(f"## {title}\n\n{text}" for title, text in sections)))


def _speed() -> str:
    return paragraph(
        "`python -m tools.benchmarks.predictions` measures what a prediction takes: 10,000 should need 10 seconds."
    )
