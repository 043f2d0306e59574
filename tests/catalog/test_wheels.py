"""Which builds of PyTorch a job can run with."""

from __future__ import annotations

import pytest

from planner.catalog import gpu
from planner.catalog.wheels import builds_for, wheel_note, wheel_warning


@pytest.mark.parametrize(
    ("names", "builds"),
    [
        (("A100-SXM-80GB", "T4"), 2),
        (("V100-SXM-16GB", "H100-SXM-80GB"), 1),
        (("B200", "RTX-2080-Ti"), 1),
        (("V100-SXM-16GB", "B200"), 0),
        (("GTX-1080-Ti", "RTX-5090"), 0),
    ],
)
def test_builds_of_a_job(names: tuple[str, ...], builds: int) -> None:
    """One that has kernels for all of them; a warning where there is none, a note where not any will do."""
    ages = {name: age for name in names if (age := gpu(name).compute_capability) is not None}
    assert len(ages) == len(names)
    assert len(builds_for(ages)) == builds
    assert bool(wheel_warning(ages)) == (builds == 0)
    assert bool(wheel_note(ages)) == (builds == 1)


def test_words() -> None:
    """They name the devices that each build lacks, and what to build."""
    text = wheel_warning({"V100": 7.0, "B200": 10.0})
    assert "CUDA 12.6 lacks B200; that for CUDA 12.8 and later lacks V100" in text
    assert 'TORCH_CUDA_ARCH_LIST="7.0;10.0"' in text
    assert wheel_note({"V100": 7.0, "A100": 8.0}).endswith(
        "kernels for V100 in its builds for CUDA 12.6 only"
    )
