"""What a search derives of an estimator: computed once, and gone with it."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec, TypeVar, cast

from planner.cost.estimate import Estimator

P = ParamSpec("P")
R = TypeVar("R")


def derived(function: Callable[Concatenate[Estimator, P], R]) -> Callable[Concatenate[Estimator, P], R]:
    """Computed once for an estimator and further arguments, which have to be hashable; kept as long as it is.

    A cache of the function would keep the estimators of all searches of a process, with all that is known of them.
    """

    @wraps(function)
    def once(estimator: Estimator, /, *args: P.args, **kwargs: P.kwargs) -> R:
        key = (function, args, *kwargs.items()) if kwargs else (function, args)
        if key not in estimator.derived:
            estimator.derived[key] = function(estimator, *args, **kwargs)
        return cast("R", estimator.derived[key])

    return once
