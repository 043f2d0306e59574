"""The console that every report is drawn on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from planner.visible import visible


class PlainConsole(Console):
    """A console that shows text as it stands: no markup, and an escape for what a terminal would obey.

    The building blocks of reports escape what they lay out, so that its width is known; whatever does not come
    through one of them is escaped here.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, highlight=False, emoji=False, **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        """The segments of a part."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=visible(segment.text, keep="\n"))
