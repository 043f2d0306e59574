"""Modules that are run when something of them is first asked for: what few commands need costs the others nothing."""

from __future__ import annotations

import sys
from importlib.util import LazyLoader, find_spec, module_from_spec
from types import ModuleType


def lazy_module(name: str) -> ModuleType:
    """The module of that name, which is run at the first look at one of its attributes, or before if others import it.

    Callers import it the usual way where types are checked, so that import rules hold for it as well.
    """
    known = sys.modules.get(name)
    if known is not None:
        return known
    spec = find_spec(name)
    assert spec is not None, f"{name} is a module"
    assert spec.loader is not None, f"{name} is no namespace"
    spec.loader = LazyLoader(spec.loader)
    module = module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    package, _, own = name.rpartition(".")
    setattr(sys.modules[package], own, module)
    return module
