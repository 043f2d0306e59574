"""What binds a plan, in words."""

from __future__ import annotations

from dataclasses import replace

from planner.report.explain import binding_section
from tests.report import examples
from tests.report.drawing import drawn


def test_memory_first_then_links() -> None:
    """Free space, what takes most, what more work needs, and the share of the step of each link."""
    assert drawn(binding_section(examples.BINDING)) == (
        "Bottlenecks\n"
        "  - memory: stage 1 on V100 (v100), 3.3 GiB free of 16.0; largest component:\n"
        "    gradients, 4.6 GiB; a micro-batch of 4 needs +1.2 GiB, which fits; one more\n"
        "    layer needs +4.0 GiB, which does not fit\n"
        "  - sends over eth: 4.6 s of the step (17 %), most from stage 0\n"
        "  - tensor-parallel collectives over the links inside a node: 2.72 s of the step\n"
        "    (10 %), most in stage 1\n"
        "\n"
    )


def test_what_is_not_known_is_left_out() -> None:
    """No larger micro-batch, no pipeline, no link; a device that lacks memory."""
    device = replace(
        examples.BINDING.device,
        memory=examples.memory(8.0),
        next_micro_batch=None,
        next_micro_batch_bytes=None,
        layer_bytes=None,
    )
    assert drawn(binding_section(replace(examples.BINDING, device=device, links=()))) == (
        "Bottlenecks\n"
        "  - memory: stage 1 on V100 (v100), lacks 10.3 GiB of 8.0; largest component:\n"
        "    activations, 6.8 GiB\n"
        "  - links: no communication is exposed\n"
        "\n"
    )
