"""The largest files that the documentation allows, in a few seconds and little memory.

Processor time is compared with that of a reference task beside it, so that a slow machine changes nothing.
"""

from __future__ import annotations

from pathlib import Path

from planner.spec.yaml_file import MOST_BYTES
from tests.cli.running import measured, measured_hetplan

REFERENCE = """\
import yaml
rows = [{"gpu": "A100", "model": f"model-{index}", "tp": 1, "forward_seconds": index / 7} for index in range(12000)]
yaml.dump({"layers": rows}, Dumper=yaml.SafeDumper)
"""
"""About two seconds on a processor of 2023."""


def test_the_largest_table_is_imported(tmp_path: Path) -> None:
    """4 MiB of layers; through the YAML library alone it took ten times the reference and 410 MB."""
    table, output = tmp_path / "layers.csv", tmp_path / "calibration.yaml"
    lines = ["gpu,model,tp,micro_batch,forward_seconds,backward_seconds"]
    size = len(lines[0]) + 1
    while size < MOST_BYTES - 100:
        batch = len(lines) % 64 + 1
        lines.append(f"A100-SXM-80GB,model-{len(lines) // 64},1,{batch},{batch / 1000:g},{batch / 500:g}")
        size += len(lines[-1]) + 1
    table.write_text("\n".join(lines) + "\n")
    spent = measured_hetplan("calibrate", "import", "--layers", table, "-o", output)
    assert spent.code == 0
    assert spent.peak_bytes < 300e6
    assert spent.cpu_seconds < 3 * measured("-c", REFERENCE).cpu_seconds
    assert output.read_text().count("micro_batch:") == len(lines) - 1
    assert "MiB, more than the 4 MiB that hetplan reads" in spent.err
