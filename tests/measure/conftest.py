"""Measurements that take no time worth mentioning."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Few and small kernels, few repeats, one thread: a busy machine shows in the times, not in the tests."""
    torch = pytest.importorskip("torch")
    from planner.measure import backend, kernels, layers
    from tools.benchmarks import training

    monkeypatch.setattr(backend, "LEAST_SECONDS", {"cpu": 1e-3})
    monkeypatch.setattr(backend, "REPEATS", 3)
    monkeypatch.setattr(layers, "LEAST_SECONDS", {"cpu": 1e-3})
    monkeypatch.setattr(training, "REPEATS", 3)
    monkeypatch.setattr(kernels, "CPU_FORMATS", ("fp32",))
    monkeypatch.setattr(kernels, "CPU_SIDES", (256, 512, 640))
    monkeypatch.setattr(kernels, "CPU_LENGTHS", (32, 64))
    monkeypatch.setattr(kernels, "CPU_ELEMENTS", (2**16, 2**18))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
