"""The largest models that fit, next to published ones."""

from __future__ import annotations

from statistics import median

from tools.accuracy.largest import LLAMA, errors, largest_with_adapters


def test_what_fits_is_about_what_was_trained() -> None:
    """Median error, and that of offload and of data parallelism alone."""
    found = {(row.system, row.devices): said / row.billions - 1 for row, said in errors()}
    assert median(abs(error) for error in found.values()) < 0.15
    assert abs(found["ZeRO-Offload", 1]) < 0.15
    assert abs(found["PyTorch DDP", 1]) < 0.15


def test_adapters_on_four_bits_fit_where_they_were_trained() -> None:
    """And with not many layers to spare."""
    for gpu, sizes in LLAMA:
        published, said = largest_with_adapters(gpu, sizes)
        assert published <= said < 1.15 * published
