"""Bytes of the storages that operations of torch make."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


def on_rank(tensor: Any) -> Any:
    """What this rank has of a tensor."""
    local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    return local.elem if isinstance(local, AsyncCollectiveTensor) else local


class Held(TorchDispatchMode):  # type: ignore[misc]
    """Counts the bytes of all storages that operations make, for as long as somebody holds them."""

    def __init__(self, *there: Any) -> None:
        """Without what is there before."""
        super().__init__()
        self.now: int = 0
        self.most: int = 0
        self._there = {each._cdata: each for each in (on_rank(tensor).untyped_storage() for tensor in there)}
        self._sizes: dict[int, int] = {}

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = function(*args, **(kwargs or {}))
        for each in tree_leaves(made):
            if isinstance(each, torch.Tensor) and not (local := on_rank(each)).is_meta:
                self.see(local.untyped_storage())
        return made

    def see(self, storage: Any, *, new: bool = True) -> None:
        """A storage, whose size may be another than before; one that is not ``new`` counts if it is known."""
        key, size = storage._cdata, storage.nbytes()
        if key in self._there:
            return
        if key not in self._sizes:
            if not new:
                return
            weakref.finalize(storage, self._let_go, key)
        self.now += size - self._sizes.get(key, 0)
        self._sizes[key] = size
        self.most = max(self.most, self.now)

    def _let_go(self, key: int) -> None:
        self.now -= self._sizes.pop(key)
