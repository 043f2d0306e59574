"""The outputs of the pages are run and compared whole; `make docs-check` does so with the pages themselves."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tools.outputs import PAGES, changes, compared, refreshed

PAGE = """\
Text.

```console
$ cat hello.yaml
hello: 1
$ hetplan --version
old
```

```python
print(open("hello.yaml").read(), end="")
```

It prints:

```text
older
```
"""


@pytest.mark.slow
def test_commands_and_programs_are_run_in_one_folder(tmp_path: Path) -> None:
    """Files that the page shows are there for what follows; every line that differs is said."""
    text = refreshed(PAGE, tmp_path)
    assert "$ hetplan --version\nhetplan 0." in text
    assert "```text\nhello: 1\n```" in text
    assert "$ cat hello.yaml\nhello: 1\n$" in text
    page = tmp_path / "page.md"
    page.write_text(text)
    assert changes(page, tmp_path) == []
    page.write_text(PAGE)
    assert {"-old", "-older", "+hello: 1"} <= set(changes(page, tmp_path))


def test_only_the_seconds_of_a_search_may_differ() -> None:
    """And where the lines after it break; every other figure counts."""
    text = "optimal (5 candidates, 3 solved, 1.15 s); not in this space: a\n  b, c\n\nNext\n"
    slower = text.replace("1.15 s); not in this space: a\n  b", "4 s); not in\n  this space: a b")
    assert compared(text) == compared(slower)
    assert compared(text) != compared(text.replace("3 solved", "4 solved"))
    assert compared(text) != compared(text.replace("b, c", "b, d"))
    assert compared(text) != compared(text.replace("Next", "Then"))


@pytest.mark.parametrize("command", ["rm -rf x", "hetplan nonsense"])
def test_what_cannot_be_run_is_an_error(tmp_path: Path, command: str) -> None:
    """Neither other programs nor commands that fail."""
    with pytest.raises((ValueError, subprocess.CalledProcessError)):
        refreshed(f"```console\n$ {command}\n```\n", tmp_path)


def test_the_pages_are_there() -> None:
    """Each has an output to compare."""
    assert all(
        "```console\n$ hetplan" in page.read_text() or "```python" in page.read_text() for page in PAGES
    )


def test_the_readme_explains_a_cell_that_it_prints() -> None:
    """Not one of an earlier output."""
    text = Path("README.md").read_text()
    explained = re.findall(r"`(\d+-\d+ x \d+)`", text)
    assert explained
    assert all(text.replace(f"`{cell}`", "").count(cell) for cell in explained)
