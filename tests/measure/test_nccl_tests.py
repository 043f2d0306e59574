"""What nccl-tests prints."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.calibration.values import LinkPoint
from planner.errors import SpecError
from planner.measure.nccl_tests import read_nccl_tests

TEXT = """\
# Collective test starting: all_reduce_perf
# nThread 1 nGpus 2 minBytes 8 maxBytes 1048576 step: 2(factor) warmup iters: 5 iters: 20 agg iters: 1
#
# Using devices
#  Rank  0 Group  0 Pid  100 on n0 device  0 [0x07] NVIDIA A100-SXM4-80GB
#  Rank  1 Group  0 Pid  100 on n0 device  1 [0x0a] NVIDIA A100-SXM4-80GB
#
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
           0             0     float     sum      -1     5.00    0.00    0.00      0     5.00    0.00    0.00      0
        1024           256     float     sum      -1    12.50    0.08    0.08      0    11.00    0.09    0.09      0
     1048576        262144     float     sum      -1    40.00   26.21   26.21      0    39.00   26.89   26.89    N/A
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 13.1
"""


def written(folder: Path, *changes: tuple[str, str]) -> Path:
    """The text with some changes."""
    text = TEXT
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    path = folder / "all_reduce.txt"
    path.write_text(text)
    return path


def test_times_out_of_place_become_points(tmp_path: Path) -> None:
    """In bytes and seconds; a size of nothing is no point."""
    found = read_nccl_tests(written(tmp_path), "node:A100")
    assert found == tuple(
        LinkPoint(link="node:A100", operation="all-reduce", members=2, size_bytes=size, seconds=seconds)
        for size, seconds in ((1024.0, 12.5 * 1e-6), (1048576.0, 40.0 * 1e-6))
    )


def test_prefixes_of_mpirun_and_repeated_sizes(tmp_path: Path) -> None:
    """The median of what was run again; every other part as without prefixes."""
    path = written(tmp_path)
    twice = path.read_text() + "\n".join(line.replace("12.50", "14.50") for line in TEXT.splitlines()[-4:-2])
    path.write_text("".join(f"[1,0]<stdout>:{line}\n" for line in twice.splitlines()))
    found = read_nccl_tests(path, "ib")
    assert [point.seconds for point in found] == pytest.approx([13.5e-6, 40e-6])


def test_options_win_over_the_text(tmp_path: Path) -> None:
    """An operation and a number of devices; a send is always between two."""
    path = written(tmp_path)
    found = read_nccl_tests(path, "ib", "all-gather", 16)
    assert {(point.operation, point.members) for point in found} == {("all-gather", 16)}
    assert {point.members for point in read_nccl_tests(path, "ib", "send", 16)} == {2}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("12.50    0.08", "oops     0.08"), ":12: time: expected microseconds above 0, got 'oops'"),
        (("12.50    0.08", " -1.0    0.08"), ":12: time: expected microseconds above 0, got '-1.0'"),
        (("    1048576        262144", "     1048576"), ":13: expected 13 cells, got 12"),
        (("0.09      0\n", "0.09      3\n"), ":12: #wrong: 3 wrong values"),
        (("0.08      0 ", "0.08      3 "), ":12: #wrong: 3 wrong values"),
        (("        1024 ", "         1x4 "), ":12: size: expected bytes, got '1x4'"),
        (("#       size  ", "#  bytes  "), ":11: numbers before the line"),
        (("all_reduce_perf", "my_perf"), ": names no test, expected one"),
        (("#  Rank  1", "#  Rang  1"), ": lists 1 ranks, expected at least two"),
        (("     1048576        262144 ", "#  "), ": size: expected at least two sizes, got 1"),
    ],
)
def test_broken_text_is_refused(tmp_path: Path, change: tuple[str, str], message: str) -> None:
    """With its line, and what was expected."""
    path = written(tmp_path, change)
    with pytest.raises(SpecError) as caught:
        read_nccl_tests(path, "ib")
    assert f"{path}{message}" in caught.value.message


def test_another_text_is_no_table(tmp_path: Path) -> None:
    """Nor is a binary."""
    path = tmp_path / "notes.txt"
    path.write_text("hello\n")
    with pytest.raises(SpecError, match="no table of nccl-tests"):
        read_nccl_tests(path, "ib")
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(SpecError, match="not UTF-8"):
        read_nccl_tests(path, "ib")


@pytest.mark.parametrize(
    ("second", "message"),
    [
        (TEXT.replace("all_reduce", "all_gather"), "has 2 tables and names all_gather and all_reduce"),
        (TEXT.replace("Rank  1", "Rank  0"), "has tables or groups of 1 and 2 ranks, expected one number"),
    ],
)
def test_a_file_has_one_test_among_one_number_of_ranks(tmp_path: Path, second: str, message: str) -> None:
    """Whatever the options say: medians of both would be of neither."""
    path = written(tmp_path)
    path.write_text(TEXT + second)
    with pytest.raises(SpecError, match=message):
        read_nccl_tests(path, "ib", "all-reduce", 2)
    path.write_text(TEXT + TEXT)
    assert len(read_nccl_tests(path, "ib")) == 2


def test_prefixes_of_srun(tmp_path: Path) -> None:
    """``srun --label`` puts the number of the task ahead of each line, aligned to the right."""
    path = written(tmp_path)
    plain = read_nccl_tests(path, "ib")
    path.write_text("".join(f" 0: {line}\n" for line in TEXT.splitlines()))
    assert read_nccl_tests(path, "ib") == plain


def test_members_are_those_of_a_group(tmp_path: Path) -> None:
    """NCCL_TESTS_SPLIT_MASK divides the ranks that are listed; groups of several sizes are refused."""
    listed = "".join(f"#  Rank  {rank} Group  {rank % 2} Pid 100 on n0 device {rank}\n" for rank in range(8))
    head, rest = TEXT.split("#  Rank  0")[0], TEXT.split("A100-SXM4-80GB\n")[2]
    path = tmp_path / "split.txt"
    path.write_text(head + listed + rest)
    assert {point.members for point in read_nccl_tests(path, "ib")} == {4}
    path.write_text(head + listed.replace("Rank  7 Group  1", "Rank  7 Group  0") + rest)
    with pytest.raises(SpecError, match="has tables or groups of 3 and 5 ranks, expected one number"):
        read_nccl_tests(path, "ib")


def test_timestamps_and_lines_of_the_library(tmp_path: Path) -> None:
    """-S ends a row with date and time; NCCL_DEBUG's lines begin with a host, in containers often with a digit."""
    plain = read_nccl_tests(written(tmp_path), "ib")
    lines = [
        line + " timestamp" if "size" in line else line + " 2026-03-02 10:11:12" if line[1:2] == " " else line
        for line in TEXT.splitlines()
    ]
    lines.insert(6, "3f2a9c1b7d21:95:95 [0] NCCL INFO Bootstrap : Using eth0:172.17.0.2<0>")
    path = tmp_path / "stamped.txt"
    path.write_text("\n".join(lines))
    assert read_nccl_tests(path, "ib") == plain
