"""Colours of stages: far apart on white and on black, and the colour of the letters on them."""

from __future__ import annotations

from colorsys import hls_to_rgb
from dataclasses import dataclass

_PALETTE = ("#0072b2", "#e08e0b", "#009e73", "#c75b95", "#56b4e9", "#d55e00", "#7a5cd0", "#8a8a00")
"""After Okabe and Ito (https://jfly.uni-koeln.de/color/), which colour-blind readers tell apart."""


@dataclass(frozen=True, slots=True)
class Colour:
    """A colour and what to write on it with."""

    fill: str
    ink: str


def colour(index: int, count: int) -> Colour:
    """The colour of one of ``count`` things."""
    if count <= len(_PALETTE):
        return _on(_PALETTE[index])
    red, green, blue = hls_to_rgb(index / count, 0.5 if index % 2 else 0.62, 0.55)
    return _on(f"#{round(255 * red):02x}{round(255 * green):02x}{round(255 * blue):02x}")


def _on(fill: str) -> Colour:
    """Black or white letters, whichever has more contrast (WCAG 2.1, relative luminance)."""
    channels = (int(fill[place : place + 2], 16) / 255 for place in (1, 3, 5))
    linear = [each / 12.92 if each <= 0.04045 else ((each + 0.055) / 1.055) ** 2.4 for each in channels]
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    return Colour(fill, "#000" if luminance > 0.179 else "#fff")
