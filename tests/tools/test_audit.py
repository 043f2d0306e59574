"""What is said of a report of pip-audit."""

from __future__ import annotations

from typing import Any

import pytest

from tools.supply.audit import told, understood

CLEAN: dict[str, Any] = {"name": "rich", "version": "14.0", "vulns": []}
BAD: dict[str, Any] = {
    "name": "idna",
    "version": "3.4",
    "vulns": [{"id": "PYSEC-2024-60", "fix_versions": ["3.7"], "aliases": [], "description": ""}],
}
UNKNOWN: dict[str, Any] = {"name": "torch", "skip_reason": "not found on PyPI"}


@pytest.mark.parametrize(
    ("packages", "code", "words"),
    [
        ([CLEAN, UNKNOWN], 0, "audited 1 packages, no known vulnerability; not audited: torch"),
        ([CLEAN, BAD], 1, "idna 3.4: PYSEC-2024-60, mended in 3.7"),
        ([UNKNOWN], 0, "not audited: no vulnerability service reachable that knows the packages"),
    ],
)
def test_what_was_not_audited_is_said(packages: list[dict[str, Any]], code: int, words: str) -> None:
    """pip-audit itself ends with 0 where the service knows no package at all."""
    assert told(understood({"dependencies": packages})) == (code, words)


def test_no_service() -> None:
    """Without an answer nothing has been audited."""
    assert told(None) == (0, "not audited: no vulnerability service reachable that knows the packages")
