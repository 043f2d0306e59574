"""What holds for all tests, and what those need that import DeepSpeed."""

from __future__ import annotations

import signal
import warnings
from collections.abc import Iterator

import pytest

# Programs that a shell starts in the background ignore Ctrl-C, and so would those that the tests interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def no_third_party_warnings() -> Iterator[None]:
    """transformers, DeepSpeed and torch warn about each other."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
