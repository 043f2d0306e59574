"""Plan the training of large models on clusters of unequal GPUs and networks.

docs/api.md shows its Python API, of which nothing is imported before it is asked for.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from planner.api import emit, load_cluster, load_model, predict, search
    from planner.plan.values import Plan

__version__ = "0.2.0"
__all__ = ["Plan", "emit", "load_cluster", "load_model", "predict", "search"]


class CallablePackage(ModuleType):
    """A package whose name is that of a function of the API: ``planner.search(...)`` calls the function."""

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        """Call the function of planner.api."""
        return getattr(import_module("planner.api"), self.__name__.rpartition(".")[2])(*arguments, **options)


def __getattr__(name: str) -> Any:
    """A name of the API when it is first asked for."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name in ("emit", "search"):
        return import_module(f"{__name__}.{name}")
    return getattr(import_module(f"{__name__}.api"), name)
