"""The oldest versions that pyproject.toml allows, as constraints for pip: ``python -m tools.supply.bounds``."""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

PYPROJECT = Path(__file__).parents[2] / "pyproject.toml"
_LOWEST = re.compile(r"([A-Za-z0-9._-]+)>=([0-9][0-9.]*)")


def oldest(pyproject: str) -> Iterator[str]:
    """``name==version`` of every dependency of the base; ValueError for one without a lowest version."""
    for requirement in tomllib.loads(pyproject)["project"]["dependencies"]:
        match = _LOWEST.match(requirement)
        if match is None:
            raise ValueError(f"pyproject.toml: {requirement}: expected a lowest version, as name>=1.2")
        yield f"{match[1]}=={match[2]}"


if __name__ == "__main__":
    sys.stdout.writelines(f"{line}\n" for line in oldest(PYPROJECT.read_text(encoding="utf-8")))
