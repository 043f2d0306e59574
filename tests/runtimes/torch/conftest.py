"""Ranks without processes."""

from __future__ import annotations

import importlib
from collections.abc import Iterator

import pytest


@pytest.fixture
def pair() -> Iterator[None]:
    """The first of two ranks, the other of which is not there."""
    torch = importlib.import_module("torch")
    fake = importlib.import_module("torch.testing._internal.distributed.fake_pg")
    torch.distributed.init_process_group("fake", rank=0, world_size=2, store=fake.FakeStore())
    yield
    torch.distributed.destroy_process_group()
