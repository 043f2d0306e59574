"""Dataclasses that are quick to define and to build: ``dataclasses.dataclass`` where types are checked.

``dataclass(frozen=True)`` is frozen there alone: where it runs, that would make each instance three to five times as
slow to build, and a search builds a hundred thousand. ``record(frozen=True)`` is frozen in earnest, for what stands in
files and what users are handed. ``__init__`` and the like of both are written when they are first called: most runs
call few of them, and writing them all takes ten times as long as the rest of a class.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__all__ = ["dataclass", "record"]

if TYPE_CHECKING:
    from dataclasses import dataclass
    from dataclasses import dataclass as record
else:
    import dataclasses
    from collections.abc import Callable

    def dataclass(*, frozen: bool = False, **options: bool) -> Callable[[type], type]:
        """``dataclasses.dataclass``; a frozen one is equal and hashed by its values, and takes others unseen."""
        return lambda cls: _defined(cls, unsafe_hash=frozen, **options)

    def record(**options: bool) -> Callable[[type], type]:
        """``dataclasses.dataclass``."""
        return lambda cls: _defined(cls, **options)

    def _defined(cls: type, *, slots: bool = False, **options: bool) -> type:
        if options.get("order"):
            return dataclasses.dataclass(slots=slots, **options)(cls)
        body = {name: value for name, value in vars(cls).items() if name not in ("__dict__", "__weakref__")}
        others = {name: value for name, value in options.items() if name != "unsafe_hash"}
        made = dataclasses.dataclass(init=False, repr=False, eq=False, slots=slots, **others)(cls)

        def write(name: str) -> Callable[..., Any]:
            """A method as ``dataclasses`` writes it for a class with this body."""
            parts = {
                "init": name == "__init__",
                "repr": name == "__repr__",
                "eq": name in ("__eq__", "__hash__"),
            }
            whole = type(cls)(cls.__name__, cls.__bases__, dict(body))
            method = vars(dataclasses.dataclass(**parts, **options)(whole))[name]
            setattr(made, name, method)
            return method

        hashed = options.get("frozen") or options.get("unsafe_hash")
        for name in ("__init__", "__repr__", "__eq__", "__hash__"):
            if name == "__hash__" and not hashed:
                made.__hash__ = None
            elif name not in body:
                setattr(made, name, _later(name, write))
        return made

    def _later(name: str, write: Callable[[str], Callable[..., Any]]) -> Callable[..., Any]:
        """What writes the method of that name, and calls it."""

        def method(self: Any, *values: Any, **named: Any) -> Any:
            return write(name)(self, *values, **named)

        return method
