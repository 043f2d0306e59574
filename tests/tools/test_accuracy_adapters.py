"""Adapters in the page on how true the cost model is."""

from __future__ import annotations

from planner.calibration.file import shipped
from planner.measured.predictions import predict
from tests.measured.examples import published
from tools.accuracy.adapters import adapters_section, base_of


def test_a_line_for_each_source_and_format_of_a_base() -> None:
    """Their own format, fp8 and four bits; runs without a peak or a step have none of these errors."""
    runs = [run for run in published().runs if run.source in ("litgpt", "nemo-2407-lora", "torchtune")]
    found = predict(runs, shipped())
    lines = [line.split("|")[1:-1] for line in adapters_section(found).splitlines() if line.startswith("| ")]
    lines = [line for line in lines if not line[0].startswith(" :")]
    cells = {(line[0].strip(), line[2].strip()): [cell.strip() for cell in line[3:]] for line in lines[1:]}
    adapters = [each for each in found if each.run.model.training.lora is not None]
    assert set(cells) == {(each.run.source, base_of(each)) for each in adapters}
    assert len({each.run.source for each in found} & {source for source, _ in cells}) == 3
    steps = sum(int(numbers[0]) for numbers in cells.values())
    assert steps == sum(each.run.step_seconds is not None for each in adapters)
    assert cells["nemo-2407-lora", "fp8"][3:] == ["0", "-", "-"]
    assert cells["litgpt", "nf4"][0] == "0" != cells["litgpt", "nf4"][3]
