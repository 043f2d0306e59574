"""The device that is measured: what it is called, what it can do, and how it is timed."""

from __future__ import annotations

import gc
import os
import platform
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch

from planner import catalog
from planner.errors import UsageError
from planner.measure.samples import Sample, sample
from planner.model.spec import ModelSpec

DTYPES: dict[str, Any] = {
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "fp32": torch.float32,
    "tf32": torch.float32,
}
"""Formats that plain torch computes in."""

REPEATS = 9
LEAST_SECONDS = {"cuda": 0.01, "cpu": 0.15}
"""Calls are repeated inside one reading of the clock until they take this long: processors are shared in slices."""
MOST_SECONDS = 2.0
"""No more repeats of one point once they took this long together."""
FEWEST_REPEATS = 3
"""Of a point, however long they take."""

CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
"""What Linux says of a processor's caches."""

Call = Callable[[], object]
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend:
    """One device that torch can use."""

    kind: Literal["cuda", "cpu"]
    """ROCm is cuda to torch."""
    name: str
    """Catalogue name, or a name made from what the driver says."""
    family: str
    """Generation that constants belong to; the device's own name outside the catalogue."""
    known: catalog.CatalogueGpu | None
    facts: dict[str, str]
    """Device, driver, torch: for readers."""
    clock: Callable[[], float] = time.perf_counter
    """Seconds of the host; on a CPU with other work, ``time.process_time`` and one thread tell more."""

    @property
    def precision(self) -> str:
        """The format that training on it uses when no model says otherwise."""
        return "bf16" if self.kind == "cuda" else "fp32"

    def largest(self, model: ModelSpec) -> int:
        """Micro-batch at which the growth ends when nobody says otherwise: the memory of a CPU must not be filled."""
        return 16 if self.kind == "cpu" else model.training.global_batch

    def tensor(self, *shape: int, precision: str) -> Any:
        """Normal random numbers on the device."""
        return torch.randn(*shape, dtype=DTYPES[precision], device=self.kind)

    def synchronize(self) -> None:
        """Wait for the device."""
        if self.kind == "cuda":
            torch.cuda.synchronize()

    def now(self) -> Mark:
        """A point of the device's time; two of them tell the seconds between them after ``synchronize``."""
        return Mark(self)

    def time(self, call: Call) -> Sample:
        """Seconds of a call once it is warm: the median of repeats on an otherwise idle device."""
        call()
        self.synchronize()
        seconds = self._once(call, 1)
        count = max(1, int(LEAST_SECONDS[self.kind] / max(seconds, 1e-9)))
        return sample(repeated(lambda: self._once(call, count) / count))

    def free(self) -> None:
        """Give cached memory of a GPU back, as after running out of it."""
        if self.kind == "cuda":
            gc.collect()
            torch.cuda.empty_cache()

    def context_bytes(self) -> float | None:
        """Memory in use beside torch's own: context, libraries, other processes; None on a CPU."""
        if self.kind == "cpu":
            return None
        self.synchronize()
        free, total = torch.cuda.mem_get_info()
        return float(total - free - torch.cuda.memory_reserved())

    def cache_bytes(self) -> float:
        """The last cache before the device's memory; 0 where nobody says."""
        if self.kind == "cuda":
            return float(torch.cuda.get_device_properties(torch.cuda.current_device()).L2_cache_size)
        return max((_kibibytes(path) for path in CACHES.glob("index*/size")), default=0.0)

    def memory_bytes(self) -> float:
        """What the device has, or the host of a CPU."""
        if self.kind == "cuda":
            return float(torch.cuda.mem_get_info()[1])
        return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))

    def load(self) -> tuple[str, ...]:
        """Other work on the machine, in words."""
        running, processors = os.getloadavg()[0], os.cpu_count() or 1
        if self.kind == "cpu" and running > processors + 0.5:
            return (f"load {running:.1f} on {processors} processors",)
        return ()

    def _once(self, call: Call, count: int) -> float:
        self.synchronize()
        begin = self.now()
        for _ in range(count):
            call()
        end = self.now()
        self.synchronize()
        return begin.until(end)


class Mark:
    """A point of time: an event in the device's queue, or the host's clock on a CPU."""

    def __init__(self, backend: Backend) -> None:
        self.event: Any = None
        self.seconds = 0.0
        if backend.kind == "cuda":
            self.event = torch.cuda.Event(enable_timing=True)
            self.event.record()
        else:
            self.seconds = backend.clock()

    def until(self, later: Mark) -> float:
        """Seconds from here to a later mark."""
        if self.event is None:
            return later.seconds - self.seconds
        return float(self.event.elapsed_time(later.event)) / 1e3


def repeated(read: Callable[[], T]) -> list[T]:
    """Readings of one point, as many as there is time for."""
    readings: list[T] = []
    begin = time.perf_counter()
    while len(readings) < FEWEST_REPEATS or (
        len(readings) < REPEATS and time.perf_counter() - begin < MOST_SECONDS
    ):
        readings.append(read())
    return readings


@contextmanager
def tf32_products(allowed: bool) -> Iterator[None]:
    """Whether products of fp32 numbers may round their factors to TF32."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = allowed
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


def open_backend(asked: str | None, name: str | None = None) -> Backend:
    """The device to measure: cuda when there is one, else the CPU; ``name`` is what a cluster file calls it.

    Raises UsageError for a device that is not there.
    """
    # Before CUDA starts: the order of nvidia-smi, which tells the driver and the name of the same device.
    os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    there = torch.cuda.is_available()
    if asked == "cuda" and not there:
        raise UsageError(
            "--device cuda: torch sees no GPU",
            hint="install torch for CUDA or ROCm and check the driver, or measure with --device cpu",
        )
    if asked == "cpu" or not there:
        return _backend("cpu", _cpu_name(), {"threads": str(torch.get_num_threads())}, name)
    return _backend("cuda", torch.cuda.get_device_name(), _driver(), name)


def out_of_memory(error: BaseException) -> bool:
    """True for what torch raises when a device, or the host, has no memory left."""
    if isinstance(error, (MemoryError, torch.cuda.OutOfMemoryError)):
        return True
    # The host's allocator, a library's own allocation on the device, cuBLAS without room for its handle.
    said = ("allocate memory", "out of memory", "STATUS_ALLOC_FAILED")
    return isinstance(error, RuntimeError) and any(words in str(error) for words in said)


def _backend(kind: Literal["cuda", "cpu"], said: str, more: dict[str, str], asked: str | None) -> Backend:
    known = catalog.find_gpu(said) if kind == "cuda" else None
    name = asked or (known.name if known else _as_name(said))
    facts = {"device": said, **more, "torch": str(torch.__version__), "python": platform.python_version()}
    return Backend(kind=kind, name=name, family=known.family if known else name, known=known, facts=facts)


def _as_name(said: str) -> str:
    """What a driver says as a name of a cluster file."""
    return re.sub(r"[^A-Za-z0-9._]+", "-", said).strip("-._")[:60] or "device"


def _kibibytes(path: Path) -> float:
    """Bytes of a size such as ``32768K``."""
    with suppress(OSError, ValueError):
        return float(path.read_text().strip().removesuffix("K")) * 1024
    return 0.0


def _cpu_name() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        text = ""
    match = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return f"CPU {match.group(1) if match else platform.processor() or platform.machine()}"


def _driver() -> dict[str, str]:
    """Versions of the GPU's software, as far as they can be asked."""
    versions = {"cuda": torch.version.cuda, "rocm": getattr(torch.version, "hip", None)}
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader", "-i", _index()]
    # On ROCm, and in a container without the tool, the other versions still tell.
    with suppress(OSError, subprocess.SubprocessError):
        versions["driver"] = subprocess.check_output(command, text=True, timeout=10).strip()
    return {key: value for key, value in versions.items() if value}


def _index() -> str:
    """Which of the machine's GPUs torch calls its first."""
    return os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0] or "0"
