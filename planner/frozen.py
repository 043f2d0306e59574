"""Dataclasses that are frozen for the type checker only.

At run time ``frozen=True`` would make instances three to five times as slow to build, and classes twice as slow to
define; a search builds a hundred thousand instances. Values read from files are really frozen, by ``dataclasses``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:
    import dataclasses

    def dataclass(*, frozen: bool = False, **options: Any) -> Callable[[type], type]:
        """``dataclasses.dataclass``; a frozen one is equal and hashed by its values, and takes others unseen."""
        return dataclasses.dataclass(unsafe_hash=frozen, **options)
