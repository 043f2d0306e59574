"""Tables of measurements."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.calibration.tables import import_layers_csv, import_links_csv
from planner.calibration.values import LayerPoint, LinkPoint
from planner.errors import SpecError

LAYERS = """\
gpu,model,tp,micro_batch,forward_seconds,backward_seconds,activation_bytes,parameters,reference
A100-SXM-80GB,opt-350m,1,1,0.001,0.002,5e7,12600000,run 1
A100-SXM-80GB,opt-350m,1,2,0.0015,0.003,,,"run 2, again"
"""
LINKS = """\
link,operation,members,size_bytes,seconds
node:A100-SXM-80GB,all-reduce,8,1048576,0.0001
node:A100-SXM-80GB,all-reduce,8,16777216,0.0004
"""


def table(folder: Path, text: str, *changes: tuple[str, str]) -> Path:
    """The table with these changes."""
    for old, new in changes:
        assert old in text
        text = text.replace(old, new, 1)
    path = folder / "table.csv"
    path.write_text(text)
    return path


def test_layers(tmp_path: Path) -> None:
    """An empty cell is not measured."""
    first, second = import_layers_csv(table(tmp_path, LAYERS))
    assert first == LayerPoint(
        gpu="A100-SXM-80GB",
        model="opt-350m",
        tp=1,
        micro_batch=1,
        forward_seconds=0.001,
        backward_seconds=0.002,
        activation_bytes=5e7,
        parameters=12.6e6,
    )
    assert (second.activation_bytes, second.parameters) == (None, None)


def test_links(tmp_path: Path) -> None:
    """Bytes and seconds."""
    first, _ = import_links_csv(table(tmp_path, LINKS))
    assert first == LinkPoint(
        link="node:A100-SXM-80GB", operation="all-reduce", members=8, size_bytes=1048576, seconds=0.0001
    )


def test_spreadsheets_are_read(tmp_path: Path) -> None:
    """A byte order mark, DOS line ends, blanks, empty lines, names that look like numbers."""
    text = "\ufeff\n" + LAYERS.replace("opt-350m", " 350 ").replace("\n", "\r\n") + "\r\n,,,,,,,,\r\n"
    path = tmp_path / "table.csv"
    path.write_bytes(text.encode())
    assert [point.model for point in import_layers_csv(path)] == ["350", "350"]


@pytest.mark.parametrize(
    ("change", "line", "message"),
    [
        (("parameters,", "params,"), 1, "params: unknown column"),
        (("tp,", "gpu,"), 1, "gpu: this column appears twice"),
        (("tp,", "reference,"), 1, "tp: missing column"),
        (("0.001,", "-1,"), 2, "forward_seconds: expected a number from 1e-12 to 1000000000, got -1"),
        (("0.001,", "1 ms,"), 2, 'forward_seconds: expected a number from 1e-12 to 1000000000, got "1 ms"'),
        (("0.001,", ","), 2, "forward_seconds: missing"),
        (("1,2,", "1,2.5,"), 3, "micro_batch: expected a whole number from 1 to 1000000, got 2.5"),
        (("1,2,", "1,1,"), 3, "micro_batch: the same gpu, model, tp, micro_batch as line 2"),
        (('"run 2, again"', "run 2, again"), 3, "expected 9 cells, got 10"),
        (("A100-SXM", "A100 SXM"), 2, "gpu: expected a name of letters, digits, dots"),
    ],
)
def test_wrong_layers(tmp_path: Path, change: tuple[str, str], line: int, message: str) -> None:
    """File, line, column."""
    path = table(tmp_path, LAYERS, change)
    with pytest.raises(SpecError) as caught:
        import_layers_csv(path)
    assert f"{path}:{line}: {message}" in caught.value.message


@pytest.mark.parametrize(
    ("change", "line", "message"),
    [
        (("all-reduce", "allreduce"), 2, "operation: expected one of: all-reduce"),
        (
            ("16777216", "1048576"),
            3,
            "size_bytes: the same link, operation, members, concurrent, size_bytes as line 2",
        ),
        (("8,16777216", "4,16777216"), 2, "size_bytes: the only size of all-reduce of 8 over node:A100"),
        ((LINKS[LINKS.index("\n") + 1 :], ""), 1, "has no rows below its first line"),
    ],
)
def test_wrong_links(tmp_path: Path, change: tuple[str, str], line: int, message: str) -> None:
    """File, line, column."""
    path = table(tmp_path, LINKS, change)
    with pytest.raises(SpecError) as caught:
        import_links_csv(path)
    assert f"{path}:{line}: {message}" in caught.value.message


def test_what_is_no_table(tmp_path: Path) -> None:
    """A folder, an empty file, a missing one, a quote that never ends."""
    empty = tmp_path / "empty.csv"
    empty.write_text("")
    endless = tmp_path / "endless.csv"
    endless.write_text('link,"' + "x" * 200_000)
    for path, what in (
        (tmp_path, "is a directory, expected a CSV file"),
        (empty, "the file is empty"),
        (tmp_path / "no.csv", "no such file"),
        (endless, "not CSV: field larger than field limit"),
    ):
        with pytest.raises(SpecError, match=what):
            import_links_csv(path)


def test_many_wrong_rows_are_told_soon(tmp_path: Path) -> None:
    """A hundred of them, and that there are more."""
    rows = "".join(f"ib,all-reduce,8,{size},x\n" for size in range(1, 50_000))
    path = table(tmp_path, LINKS.splitlines()[0] + "\n" + rows)
    with pytest.raises(SpecError) as caught:
        import_links_csv(path)
    assert len(caught.value.problems) == 101


def test_a_missing_column_is_told_in_plain_words(tmp_path: Path) -> None:
    """What it means, without the marks of a docstring."""
    with pytest.raises(SpecError) as caught:
        import_links_csv(table(tmp_path, LINKS, ("link,", "reference,")))
    assert [problem.hint for problem in caught.value.problems] == [
        "node:<gpu> inside a node, or the name of a fabric"
    ]
