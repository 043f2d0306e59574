"""Launch folders of many small plans are those of the table: `python -m tests.emit.folders` writes it anew."""

from __future__ import annotations

import pytest

from tests.emit.folders import FOLDER_NAMES, FOLDERS, folder_rows
from tests.tables import by_case, differences, read

WRITTEN = by_case(read(FOLDERS))


@pytest.mark.parametrize(("name", "launcher"), FOLDER_NAMES)
def test_folders_are_those_of_the_table(name: str, launcher: str) -> None:
    """Every line, but those of modules that are copied."""
    now = list(folder_rows(name, launcher))
    assert not differences(now, WRITTEN[now[0][0]])


def test_the_table_has_rows_for_each_folder() -> None:
    """And no other."""
    assert [*WRITTEN] == [f"{name} by {launcher}" if launcher else name for name, launcher in FOLDER_NAMES]
