"""Megatron-LM's own pretrain_gpt.py on processors with gloo: a stand-in for its checkout's script.

A test puts it in the place of ``$MEGATRON_PATH/pretrain_gpt.py``; HETPLAN_MEGATRON names the real checkout. What asks
for CUDA gets the processor: devices, streams, events, memory, random states and names of tensor types.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

sys.path.insert(0, os.environ["HETPLAN_REPOSITORY"])
CHECKOUT = os.environ["HETPLAN_MEGATRON"]
PROCESSOR = torch.device("cpu")


def _here(value: Any) -> Any:
    """The processor for a CUDA device."""
    is_cuda = isinstance(value, torch.device) and value.type == "cuda"
    return PROCESSOR if is_cuda or (isinstance(value, str) and value.startswith("cuda")) else value


class _OnProcessor(TorchFunctionMode):  # type: ignore[misc]
    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        named = dict(kwargs or {})
        if "device" in named:
            named["device"] = PROCESSOR if isinstance(named["device"], int) else _here(named["device"])
        return function(*map(_here, args), **named)


class _Stream:
    """Does at once what it is asked for."""

    def __init__(self, *_: Any, **__: Any) -> None:
        return

    def __getattr__(self, _: str) -> Callable[..., float]:
        return lambda *_: 0.0

    def __enter__(self) -> _Stream:
        return self

    def __exit__(self, *_: object) -> None:
        return


def stand_in() -> None:
    """Have the processor answer for CUDA."""
    cuda: Any = torch.cuda
    cuda.is_available = lambda: True
    cuda.device_count = lambda: (
        torch.distributed.get_world_size() if torch.distributed.is_initialized() else 1
    )
    cuda.current_device = lambda: "cpu"
    cuda.get_rng_state = lambda *_: torch.get_rng_state()
    cuda.set_rng_state = cuda.manual_seed = cuda.set_device = cuda.synchronize = lambda *_: None
    cuda.memory_stats = lambda *_: {}
    for name in ("memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved"):
        setattr(cuda, name, lambda *_: 0)
    cuda.reset_peak_memory_stats = cuda.empty_cache = lambda *_: None
    cuda.Stream = cuda.Event = _Stream
    cuda.current_stream = cuda.default_stream = lambda *_: _Stream()
    cuda.stream = lambda _: contextlib.nullcontext()
    cuda.nvtx.range_push = cuda.nvtx.range_pop = lambda *_: None
    for name in ("FloatTensor", "HalfTensor", "BFloat16Tensor", "IntTensor", "LongTensor", "DoubleTensor"):
        setattr(cuda, name, getattr(torch, name))
    tensor: Any = torch.Tensor
    tensor.cuda = lambda self, *_, **__: self
    torch.nn.Module.cuda = lambda self, *_, **__: self
    tensor.is_cuda = property(lambda _: True)
    told = tensor.type

    def type_of(self: Any, *args: Any, **kwargs: Any) -> Any:
        found = told(self, *args, **kwargs)
        return f"torch.cuda.{found.split('.')[-1]}" if isinstance(found, str) else found

    tensor.type = type_of
    states: Any = importlib.import_module("megatron.core.tensor_parallel.random")
    states.CudaRNGStatesTracker.fork = lambda *_, **__: contextlib.nullcontext()
    states._get_cuda_rng_state = lambda *_, **__: torch.get_rng_state()
    states._set_cuda_rng_state = lambda *_, **__: None


# A checkpoint's writer starts a process, which has to import Megatron too.
importlib.import_module("tests.runtimes.megatron.parser").prepare(CHECKOUT)
stand_in()

if __name__ == "__main__":
    script = Path(CHECKOUT) / "pretrain_gpt.py"
    sys.argv[0] = str(script)
    os.chdir(CHECKOUT)
    with _OnProcessor():
        exec(
            compile(script.read_text(), str(script), "exec"),
            {"__name__": "__main__", "__file__": str(script)},
        )
