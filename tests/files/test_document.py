"""Reading files: what cannot be read, and every problem at once."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Literal

import pytest

from planner.files.document import MOST_BYTES, file_beside, read_bytes, read_document
from planner.files.fields import Cards, Frozen, Name, Rate
from tests.files.writing import problems, the_problem


class Nic(Frozen):
    """For the tests."""

    bandwidth_gbps: Rate
    count: Cards = 1


class Pool(Frozen):
    """For the tests."""

    name: Name
    kind: Literal["big", "small"] = "big"
    nics: tuple[Nic, ...] = ()
    shared: bool = False


class File(Frozen):
    """For the tests."""

    pools: tuple[Pool, ...]


def load(path: Path) -> File:
    """The file as the tests' record."""
    return read_document(path).to(File)


def written(folder: Path, text: str | bytes) -> Path:
    """A file with this content."""
    path = folder / "c.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_a_good_file_becomes_a_record(tmp_path: Path) -> None:
    """Whole numbers are taken where numbers are expected."""
    path = written(tmp_path, "pools:\n  - {name: a, nics: [{bandwidth_gbps: 25}]}\n")
    assert load(path).pools[0].nics[0].bandwidth_gbps == 25.0


def test_a_byte_order_mark_is_skipped(tmp_path: Path) -> None:
    """Some editors write one."""
    assert load(written(tmp_path, b"\xef\xbb\xbfpools: []\n")).pools == ()


@pytest.mark.parametrize(
    ("value", "what", "hint"),
    [
        ('"25G"', 'expected a number from 0.000001 to 1000000, got "25G"', "write 25 (gigabits per second)"),
        (
            "25Gbit/s",
            'expected a number from 0.000001 to 1000000, got "25Gbit/s"',
            "write 25 (gigabits per second)",
        ),
        (
            "25GB/s",
            'expected a number from 0.000001 to 1000000, got "25GB/s"',
            "write 200 (gigabits per second)",
        ),
        (
            "1.6T",
            'expected a number from 0.000001 to 1000000, got "1.6T"',
            "write 1600 (gigabits per second)",
        ),
        ('"25"', 'expected a number from 0.000001 to 1000000, got "25"', "write 25 (gigabits per second)"),
        ("50%", 'expected a number from 0.000001 to 1000000, got "50%"', "write 0.5 (gigabits per second)"),
        (
            "1,000",
            'expected a number from 0.000001 to 1000000, got "1,000"',
            "a plain number (gigabits per second)",
        ),
        (
            "fast",
            'expected a number from 0.000001 to 1000000, got "fast"',
            "a plain number (gigabits per second)",
        ),
        ("0", "expected a number from 0.000001 to 1000000, got 0", None),
        ("-1.5", "expected a number from 0.000001 to 1000000, got -1.5", None),
        ("true", "expected a number from 0.000001 to 1000000, got true", None),
        (".nan", "expected a number from 0.000001 to 1000000, got nan", None),
        (".inf", "expected a number from 0.000001 to 1000000, got inf", None),
        ("[1]", "expected a number from 0.000001 to 1000000, got a list of 1", None),
        ("{a: 1}", "expected a number from 0.000001 to 1000000, got a mapping", None),
        ("9" * 5000, "expected a number from 0.000001 to 1000000, got inf", None),
        ("", "has no value", "give one, or remove the key"),
        ("null", "has no value", "give one, or remove the key"),
    ],
)
def test_wrong_numbers(tmp_path: Path, value: str, what: str, hint: str | None) -> None:
    """File, line, key, what was expected, and what to write."""
    path = written(tmp_path, f"pools:\n  - name: a\n    nics:\n      - bandwidth_gbps: {value}\n")
    problem = the_problem(load, path)
    assert str(problem) == f"{path}:4: pools[0].nics[0].bandwidth_gbps: {what}"
    assert problem.hint == hint


@pytest.mark.parametrize(
    ("entry", "key", "what", "hint"),
    [
        (
            "{name: a, kind: smal}",
            "pools[0].kind",
            'expected one of: big, small, got "smal"',
            "did you mean small?",
        ),
        ("{name: a, shered: true}", "pools[0].shered", "unknown key", "did you mean shared?"),
        ("{name: a, shared: true, shered: true}", "pools[0].shered", "unknown key", "known keys:"),
        ("{name: a, zzz: 1}", "pools[0].zzz", "unknown key", "known keys: kind, name, nics, shared"),
        ("{kind: big}", "pools[0].name", "missing", None),
        ("{name: 12}", "pools[0].name", "expected text, got 12", 'write "12" in quotes'),
        ("{name: a b}", "pools[0].name", "expected a name of letters", None),
        ("{name: a, shared: yes}", "pools[0].shared", 'expected true or false, got "yes"', None),
        ("{name: a, nics: 3}", "pools[0].nics", "expected a list, got 3", "put it in brackets: [3]"),
        ("{name: a, nics: {bandwidth_gbps: 1}}", "pools[0].nics", "expected a list, got a mapping", "dash"),
        ("a", "pools[0]", 'expected a mapping, got "a"', None),
        (
            "{name: a, nics: [{bandwidth_gbps: 1, count: 1.5}]}",
            "pools[0].nics[0].count",
            "whole number from 1 to 1000",
            None,
        ),
    ],
)
def test_wrong_values(tmp_path: Path, entry: str, key: str, what: str, hint: str | None) -> None:
    """Each kind of mistake has its words."""
    problem = the_problem(load, written(tmp_path, f"pools:\n  - {entry}\n"))
    assert (problem.key, problem.line) == (key, 2)
    assert what in problem.what
    assert hint is None or hint in str(problem.hint)


def test_all_problems_come_at_once_in_line_order(tmp_path: Path) -> None:
    """One error with all of them."""
    text = "poolz: 1\npools:\n  - name: a\n    kind: c\n  - nics: [{count: 0}]\n"
    found = problems(load, written(tmp_path, text))
    keys = [
        "poolz",
        "pools[0].kind",
        "pools[1].name",
        "pools[1].nics[0].bandwidth_gbps",
        "pools[1].nics[0].count",
    ]
    assert [problem.key for problem in found] == keys
    assert [problem.line for problem in found] == [1, 4, 5, 5, 5]


def test_a_thousand_problems_are_cut_short(tmp_path: Path) -> None:
    """The last line says that there are more."""
    text = "pools: []\n" + "".join(f"k{index}: 1\n" for index in range(1000))
    found = problems(load, written(tmp_path, text))
    assert len(found) == 101
    assert found[-1].what == "and 900 more problems at least"


def test_a_missing_file(tmp_path: Path) -> None:
    """Named as the user wrote it."""
    path = tmp_path / "none.yaml"
    assert str(the_problem(read_document, path)) == f"{path}: no such file"


def test_a_directory_instead_of_a_file(tmp_path: Path) -> None:
    """The hint names the files in it."""
    written(tmp_path, "pools: []")
    problem = the_problem(read_document, tmp_path)
    assert "is a directory" in problem.what
    assert problem.hint == "name one of its files: c.yaml"


def test_a_file_below_a_file(tmp_path: Path) -> None:
    """The system's reason is shown."""
    assert "not a directory" in the_problem(read_document, written(tmp_path, "a: 1") / "x.yaml").what


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_an_unreadable_file(tmp_path: Path) -> None:
    """Permission is the reason."""
    path = written(tmp_path, "pools: []")
    path.chmod(0)
    assert the_problem(read_document, path).what == "no permission to read it"


def test_an_unreadable_file_for_any_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the tests run as root."""

    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    path = written(tmp_path, "pools: []")
    monkeypatch.setattr(Path, "open", refuse)
    assert the_problem(read_document, path).what == "no permission to read it"


def test_a_file_of_50_mb_is_not_read(tmp_path: Path) -> None:
    """The limit is named; the file is sparse, so reading it would be noticed as NUL bytes."""
    path = tmp_path / "big.yaml"
    with path.open("wb") as file:
        file.truncate(50_000_000)
    assert the_problem(read_document, path).what == f"is 47.7 MiB, expected at most {MOST_BYTES >> 20} MiB"


@pytest.mark.parametrize(
    ("content", "line", "what"),
    [
        (b"", None, "the file is empty"),
        (b"   \n\n", None, "the file is empty"),
        (b"a: 1\nb: \xff\n", 2, "is not UTF-8 text"),
        ("a: 1\n".encode("utf-16"), 1, "is not UTF-8 text"),
        (b"GGUF\x03\x00\x00\x00\xff", None, "is a binary file, expected text"),
        (b"- 1\n- 2\n", 1, "expected a mapping (key: value) at the top of the file"),
        (b"hello\n", 1, "expected a mapping (key: value) at the top of the file"),
        (b"a: \x00\n", None, "not YAML"),
        (b"a: b: c\n", 1, "not YAML"),
    ],
)
def test_content_that_is_no_mapping(tmp_path: Path, content: bytes, line: int | None, what: str) -> None:
    """Never a traceback."""
    problem = the_problem(read_document, written(tmp_path, content))
    assert problem.line == line
    assert problem.what.startswith(what)


def test_json_may_be_indented_with_tabs(tmp_path: Path) -> None:
    """JSON allows what YAML does not."""
    path = tmp_path / "config.json"
    path.write_text('{\n\t"a": [1,\n\t\t2]\n}\n')
    assert read_document(path).data == {"a": [1, 2]}


@pytest.mark.parametrize("most", [4, MOST_BYTES])
def test_what_a_pipe_gave_can_be_read_again(most: int) -> None:
    """That of ``<(command)`` gives its bytes once, and a command may need them twice; each pipe has its own."""
    for content in (b"a: 1", b"a: 2"):
        reader, writer = os.pipe()
        with os.fdopen(reader), os.fdopen(writer, "wb") as file:
            file.write(content)
            file.close()
            path = Path(f"/dev/fd/{reader}")
            assert [read_bytes(path, most_bytes=most) for _ in range(2)] == [content, content]


def test_what_a_pipe_names_is_in_the_current_folder() -> None:
    """A file names others beside itself."""
    reader, writer = os.pipe()
    with os.fdopen(reader), os.fdopen(writer):
        assert file_beside(Path(f"/dev/fd/{reader}"), "models/a.yaml") == Path("models/a.yaml")
    assert file_beside(Path("jobs/jobs.yaml"), "a.yaml") == Path("jobs/a.yaml")


def test_a_pipe_that_is_written_to_again_is_read_again(tmp_path: Path) -> None:
    """A named one outlives its writers."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for content in (b"a: 1", b"a: 2"):
        held = os.open(pipe, os.O_RDWR)
        os.write(held, content)
        writer = threading.Timer(0.05, os.close, [held])
        writer.start()
        assert read_bytes(pipe) == content
        writer.join()
