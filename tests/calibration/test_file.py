"""Calibration files: written and read back, refused with the line of every problem."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from planner.calibration import file as calibration_file
from planner.calibration.file import load_calibration, save_calibration, shipped, to_text
from planner.calibration.values import (
    ASSUMED,
    Calibration,
    Constant,
    GpuFamily,
    LayerPoint,
    Link,
    LinkPoint,
    Residual,
)
from planner.cost.measured_curves import ExchangeCurves
from planner.errors import OutputError, SpecError
from planner.plan.values import Sync
from tests.calibration.any_calibration import calibrations
from tests.files.test_any_damage import complaint

TEXT = """\
format: hetplan-calibration/1
notes: one rack
provenance: {device: A100-SXM-80GB, driver: "570.1", date: 2026-01-31}
default_spread: 0.3
families:
  A100:
    matmul_efficiency: {value: 0.81, spread: 0.01, provenance: fitted}
    kernel_seconds: 4e-6
    memory_efficiency: {value: 0.9, provenance: assumed}
frameworks:
  megatron: {overlap: 0.5}
links:
  ethernet: {efficiency: 0.6}
residuals:
- {family: A100, framework: megatron, rows: 41, spread: 0.08}
layers:
- {gpu: A100-SXM-80GB, model: opt-350m, tp: 1, micro_batch: 1, forward_seconds: 0.1, backward_seconds: 0.2}
- {gpu: A100-SXM-80GB, model: opt-350m, tp: 1, micro_batch: 2, forward_seconds: 0.2, backward_seconds: 0.4}
link_points:
- {link: ib, operation: all-reduce, members: 4, size_bytes: 1e6, seconds: 0.001}
- {link: ib, operation: all-reduce, members: 4, size_bytes: 1e9, seconds: 0.1}
"""


def written(folder: Path, *changes: tuple[str, str]) -> Path:
    """The good file with these changes."""
    text = TEXT
    for old, new in changes:
        assert old in text
        text = text.replace(old, new, 1)
    path = folder / "calibration.yaml"
    path.write_text(text)
    return path


def refused(path: Path) -> str:
    """What loading complains about."""
    with pytest.raises(SpecError) as caught:
        load_calibration(path)
    assert caught.value.exit_code == 2
    return caught.value.message


def test_old_keys_are_read_and_named_once(tmp_path: Path) -> None:
    """The names of hetplan 0.2; a mistake below one is still told with its line, and both names at once are one."""
    new = written(tmp_path, ("{overlap: 0.5}", "{overlap: 0.5, link_utilisation: 0.4}"))
    told: list[str] = []
    now = load_calibration(new, told.append)
    assert told == []
    text = new.read_text().replace("frameworks:", "stacks:").replace("framework:", "stack:")
    new.write_text(text.replace("link_utilisation:", "wire:"))
    assert load_calibration(new, told.append) == load_calibration(new) == now
    assert len(told) == 1
    assert "stacks, wire and stack are now called" in told[0]
    new.write_text(text.replace("link_utilisation: 0.4", "wire: 4"))
    assert ":11: frameworks.megatron.link_utilisation: expected" in complaint(load_calibration, new)[0]
    new.write_text(text + "frameworks: {}\n")
    assert "stacks: unknown key" in complaint(load_calibration, new)[0]


def test_everything_is_read(tmp_path: Path) -> None:
    """Constants with their provenance, points, notes."""
    found = load_calibration(written(tmp_path))
    assert found.families == {
        "A100": GpuFamily(matmul_efficiency=0.81, kernel_seconds=4e-6, memory_efficiency=0.9)
    }
    assert found.framework("megatron").overlap == 0.5
    assert found.links == {"ethernet": Link(efficiency=0.6)}
    assert found.constants == (
        Constant(name="families.A100.matmul_efficiency", value=0.81, provenance="fitted", spread=0.01),
        Constant(name="families.A100.kernel_seconds", value=4e-6, provenance="measured"),
        Constant(name="frameworks.megatron.overlap", value=0.5, provenance="measured"),
        Constant(name="links.ethernet.efficiency", value=0.6, provenance="measured"),
    )
    assert found.residuals == (Residual(family="A100", framework="megatron", rows=41, spread=0.08),)
    assert found.layers[1] == LayerPoint(
        gpu="A100-SXM-80GB",
        model="opt-350m",
        tp=1,
        micro_batch=2,
        forward_seconds=0.2,
        backward_seconds=0.4,
    )
    assert found.link_points[0] == LinkPoint(
        link="ib", operation="all-reduce", members=4, size_bytes=1e6, seconds=0.001
    )
    assert (found.default_spread, found.notes) == (0.3, "one rack")
    assert found.provenance == {"device": "A100-SXM-80GB", "driver": "570.1", "date": "2026-01-31"}


def test_pairs_of_family_and_kernel_set_are_read_and_written(tmp_path: Path) -> None:
    """A pair has what its family has, wherever in the file it stands, besides what it says itself."""
    pair = "  A100.torch:\n    attention_efficiency: {value: 0.3, spread: 0.1, provenance: fitted}\n"
    for anchor in ("families:\n", "frameworks:\n"):
        new = anchor + pair if anchor == "families:\n" else pair + anchor
        found = load_calibration(written(tmp_path, (anchor, new)))
        plain, torch = found.families["A100"], found.families["A100.torch"]
        assert torch == replace(plain, attention_efficiency=0.3)
        assert torch.matmul_efficiency == 0.81
        name = "families.A100.torch.attention_efficiency"
        assert Constant(name=name, value=0.3, provenance="fitted", spread=0.1) in found.constants
        again = yaml.safe_load(to_text(found))["families"]
        assert again["A100.torch"] == {
            "attention_efficiency": {"value": 0.3, "provenance": "fitted", "spread": 0.1}
        }
        save_calibration(found, tmp_path / "again.yaml")
        assert load_calibration(tmp_path / "again.yaml") == found
    alone = load_calibration(written(tmp_path, ("  A100:\n", "  A100.torch:\n")))
    assert alone.families["A100.torch"] == GpuFamily(
        matmul_efficiency=0.81, kernel_seconds=4e-6, memory_efficiency=0.9
    )


@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(calibrations())
def test_reading_undoes_writing(
    tmp_path_factory: pytest.TempPathFactory, any_calibration: Calibration
) -> None:
    """Whatever it holds."""
    path = tmp_path_factory.mktemp("calibrations") / "calibration.yaml"
    save_calibration(any_calibration, path)
    assert load_calibration(path) == any_calibration


def test_nothing_measured_is_a_short_file(tmp_path: Path) -> None:
    """Its format alone."""
    path = tmp_path / "calibration.yaml"
    save_calibration(ASSUMED, path)
    assert yaml.safe_load(path.read_text()) == {"format": "hetplan-calibration/1"}
    assert load_calibration(path) == ASSUMED


@pytest.mark.parametrize(
    ("change", "line", "message"),
    [
        (
            ("value: 0.81", "value: 1.2"),
            7,
            "families.A100.matmul_efficiency.value: expected a number from 0.000001 to 1, got 1.2",
        ),
        (
            ("kernel_seconds: 4e-6", "kernel_seconds: -4e-6"),
            8,
            "families.A100.kernel_seconds: expected a number from 0 to 1000000, got -4e-06",
        ),
        (
            ("kernel_seconds: 4e-6", "kernel_seconds: 4us"),
            8,
            'families.A100.kernel_seconds: expected a number from 0 to 1000000, got "4us"',
        ),
        (("kernel_seconds", "kernel_second"), 8, "families.A100.kernel_second: unknown key"),
        (("  ethernet", "  ethernets"), 13, "links.ethernets: unknown key"),
        (
            ("provenance: fitted", "provenance: guessed"),
            7,
            "families.A100.matmul_efficiency.provenance: expected one of: measured, fitted",
        ),
        (("overlap: 0.5", "overlap: 1.5"), 11, "frameworks.megatron.overlap: expected a number from 0 to 1"),
        (
            ("rows: 41", "rows: 0"),
            15,
            "residuals[0].rows: expected a whole number from 1 to 1000000000, got 0",
        ),
        (
            ("forward_seconds: 0.1", "forward_seconds: 0"),
            17,
            "layers[0].forward_seconds: expected a number from 1e-12 to 1000000000",
        ),
        (
            (", backward_seconds: 0.2", ""),
            17,
            "layers[0].backward_seconds: missing",
        ),
        (
            ("opt-350m, tp: 1, micro_batch: 2", "OPT_350M, tp: 1, micro_batch: 1"),
            18,
            "layers[1]: the same gpu, model, tp, micro_batch as layers[0] on line 17",
        ),
        (
            ("members: 4, size_bytes: 1e9", "members: 8, size_bytes: 1e9"),
            20,
            "link_points[0].size_bytes: the only size of all-reduce of 4 over ib, expected at least two",
        ),
        (
            (
                "spread: 0.08}",
                "spread: 0.08}\n- {family: A100, framework: megatron, work: dense, rows: 4, spread: 0.1}",
            ),
            16,
            "residuals[1]: the same family, framework, work as residuals[0] on line 15",
        ),
        (("size_bytes: 1e9", "size_bytes: 1e6"), 21, "link_points[1]: the same link, operation, members"),
        (
            (
                "link: ib, operation: all-reduce, members: 4,",
                "link: 'node:A100', concurrent: 2, operation: send, members: 2,",
            ),
            20,
            "link_points[0].concurrent: expected 1 for node:A100, where all groups of a node are measured at once",
        ),
        (("all-reduce", "allreduce"), 20, "link_points[0].operation: expected one of: all-reduce"),
        (
            ("members: 4", "members: 1"),
            20,
            "link_points[0].members: expected a whole number from 2 to 1000000, got 1",
        ),
        (("link: ib", "link: 'i b'"), 20, "link_points[0].link: expected text of another form, got "),
        (
            ("default_spread: 0.3", "default_spread: 0"),
            4,
            "default_spread: expected a number from 0.000001 to 1000",
        ),
        (('"570.1"', "570.1"), 3, "provenance.driver: expected text, got 570.1"),
        (
            ("calibration/1", "calibration/2"),
            1,
            "format: the file is hetplan-calibration/2, this hetplan reads",
        ),
        (("hetplan-calibration/1", "1"), 1, "format: expected hetplan-calibration/1, got 1"),
        (("format: hetplan-calibration/1\n", ""), 1, "format: missing, expected hetplan-calibration/1"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, change: tuple[str, str], line: int, message: str) -> None:
    """File, line, key, what was expected."""
    path = written(tmp_path, change)
    assert f"{path}:{line}: {message}" in refused(path)


@pytest.mark.parametrize("kernel", ["factors", "largest"])
@pytest.mark.parametrize(("shape", "read"), [("1000", False), ("1x2x3", False), ("1x1000000000", True)])
def test_exchanges_of_a_part_say_of_how_much(tmp_path: Path, kernel: str, shape: str, read: bool) -> None:
    """What travels, and all elements; of very many the least part has a price, too."""
    point = f"{{gpu: A100, kernel: {kernel}, precision: fp32, shape: '{shape}', flops: 0, moved_bytes: 0, seconds: 1}}"
    path = tmp_path / "c.yaml"
    path.write_text(f"format: hetplan-calibration/1\nkernel_points: [{point}]\n")
    if not read:
        with pytest.raises(SpecError, match="shape: expected a rank or a number of elements"):
            load_calibration(path)
        return
    curves = ExchangeCurves(load_calibration(path))
    sync = Sync(rank=4) if kernel == "factors" else Sync(ratio=0.01)
    assert (curves.seconds("A100", sync, 1e9) or 0.0) > 0


def test_all_problems_come_at_once(tmp_path: Path) -> None:
    """Wrong values and conflicts."""
    changes = (("rows: 41", "rows: x"), ("micro_batch: 2", "micro_batch: 1"), ("overlap", "overlaps"))
    assert refused(written(tmp_path, *changes)).count("\n") == 2


@settings(deadline=None)
@given(st.integers(0, len(TEXT)))
def test_a_half_written_file_is_no_bug(tmp_path_factory: pytest.TempPathFactory, size: int) -> None:
    """It is refused, or it ends where an entry ends and says less."""
    path = tmp_path_factory.mktemp("half") / "calibration.yaml"
    path.write_text(TEXT[:size])
    assert all(line.startswith(f"{path}:") for line in complaint(load_calibration, path))


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    """One line."""
    assert refused(tmp_path / "no.yaml") == f"{tmp_path / 'no.yaml'}: no such file"


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And nothing else."""
    path = tmp_path / "calibration.yaml"
    path.write_text("old")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(OutputError, match="No space left on device"):
        save_calibration(ASSUMED, path)
    assert [child.name for child in tmp_path.iterdir()] == ["calibration.yaml"]
    assert path.read_text() == "old"


def test_what_could_not_be_read_back_is_not_written() -> None:
    """A fit that has gone wrong is noticed where it is saved."""
    wrong = Calibration(families={"A100": GpuFamily(matmul_efficiency=1.5)})
    with pytest.raises(ValueError, match="matmul_efficiency"):
        to_text(wrong)


def test_the_shipped_calibration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The package's, read once; everything assumed when it has none."""
    shipped.cache_clear()
    monkeypatch.setattr(calibration_file, "SHIPPED", tmp_path / "constants.yaml")
    assert shipped() is ASSUMED
    shipped.cache_clear()
    monkeypatch.setattr(calibration_file, "SHIPPED", written(tmp_path))
    assert shipped().default_spread == 0.3
    assert shipped() is shipped()
    shipped.cache_clear()
    monkeypatch.undo()
    assert shipped() is shipped()
