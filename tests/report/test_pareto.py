"""The table of time against cost."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.report.pareto import front_section, use_at_most, worth_text
from tests.report import examples
from tests.report.drawing import drawn


def test_the_table() -> None:
    """Marks on the front, speed-up from one of its rows to the next, the conclusion, what is left out."""
    assert drawn(front_section(examples.front(), examples.cluster())) == (
        "Time against cost\n"
        "                                          step  tokens/s  price    price  speed\n"
        "     devices          plan                 (s)       (k)   (/h)  (/Mtok)     up\n"
        "  ─────────────────────────────────────────────────────────────────────────────\n"
        "  *  4 a100 + 4 v100  megatron pp 2 tp 4  27.2      19.3   10.0    0.150      -\n"
        "     4 a100 + 4 v100  megatron pp 2 tp 4  20.0      26.2   10.0    0.250      -\n"
        "  *  4 a100 + 4 v100  megatron pp 2 tp 4  13.6      38.6   10.0    0.200   2.00\n"
        "  * Pareto front: no other plan is both as fast and as cheap; speed-up: over the\n"
        "  previous * row\n"
        "  worth using: 8 of 16 devices, 4 a100 + 4 v100, where time x cost is lowest;\n"
        "  with fewer, speed drops by more than cost does\n"
        "  9 sub-clusters considered; 3 dominated or with idle devices; 2 without a plan\n"
        "  that fits and meets the goal; 1 not searched; steps within 1.0 % of their\n"
        "  bounds; 4.2 s\n"
        "\n"
    )


@pytest.mark.parametrize("width", [80, 120])
def test_every_line_fits(width: int) -> None:
    """No line is wider than the terminal."""
    text = drawn(front_section(examples.front(), examples.cluster()), width)
    assert max(len(line) for line in text.splitlines()) <= width


def test_energy_in_place_of_cost() -> None:
    """Kilowatt and joules, in the headings and in the sentence."""
    found = examples.front()
    points = tuple(
        replace(
            point,
            scored=replace(point.scored, estimate=replace(point.scored.estimate, watts=3200.0)),
        )
        for point in found.points
    )
    text = drawn(front_section(replace(found, objective="energy", points=points), examples.cluster()))
    assert "(kW)" in text
    assert "(J/tok)" in text
    assert "where time x energy is lowest" in text


def test_what_more_would_give() -> None:
    """The fastest plan against the one that is worth it."""
    text = worth_text(replace(examples.front(), worth=0), examples.cluster())
    assert text == (
        "worth using: 8 of 16 devices, 4 a100 + 4 v100, where time x cost is lowest; "
        "with more, cost per token rises by more than speed: 4 a100 + 4 v100 give 2.00 x the speed at 1.33 x the cost"
    )
    front = replace(examples.front(), worth=0)
    front = replace(front, points=(replace(front.points[0], value=0.0), *front.points[1:]))
    assert worth_text(front, examples.cluster()).endswith(
        "; more devices are not free: 4 a100 + 4 v100 give 2.00 x the speed for 0.200 per million tokens"
    )


def test_no_points() -> None:
    """Why there are none."""
    found = replace(examples.front(), points=(), worth=None, interrupted=True)
    assert drawn(front_section(found, examples.cluster())) == (
        "No plan to set time against cost\n"
        "  interrupted: 9 sub-clusters considered; 3 dominated or with idle devices; 2\n"
        "  without a plan that fits and meets the goal; 1 not searched; 4.2 s\n"
        "\n"
    )


def test_options_that_ask_for_a_point() -> None:
    """Every pool, those that are not used with 0."""
    assert use_at_most(examples.front().points[0].devices, examples.cluster()) == (
        "--use-at-most 4:a100 --use-at-most 4:v100"
    )
