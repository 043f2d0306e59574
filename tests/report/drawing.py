"""Renderables as text of a fixed width without colour."""

from __future__ import annotations

from rich.console import Console, RenderableType


def drawn(part: RenderableType, width: int = 80) -> str:
    """The part as it is printed, without spaces at the ends of lines."""
    console = Console(width=width, markup=False, highlight=False, emoji=False, color_system=None)
    with console.capture() as captured:
        console.print(part, crop=False)
    return "".join(f"{line.rstrip()}\n" for line in captured.get().splitlines())
