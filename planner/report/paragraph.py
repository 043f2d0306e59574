"""Text that wraps between words, never between a number and its unit."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions
from rich.measure import Measurement
from rich.text import Text

from planner.visible import visible

GLUE = "\x00"
"""Stands for a space at which a line must not end."""
_UNIT = r"(?:%|(?:[kMBTxsh]|µs|ms|[GT]iB|GB/s|Gbit/s|[TP]FLOP/s)(?![\w-]))"
_GLUED = re.compile(rf"(?<=\d) (?={_UNIT})|(?<= x) (?=\d)|(?<=^x) (?=\d)")


@dataclass(frozen=True, slots=True)
class Paragraph:
    """Lines as long as there is room; part of a section, a list or a cell."""

    text: str

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        """The text, wrapped."""
        lines = textwrap.wrap(self._shown(), max(options.max_width, 1), break_on_hyphens=False)
        yield Text("\n".join(lines).replace(GLUE, " "))

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        """From the longest word to the whole text on one line."""
        longest = max((len(word) for word in self._shown().split()), default=0)
        return Measurement(longest, max(len(self._shown()), longest)).with_maximum(options.max_width)

    def _shown(self) -> str:
        """The text with escapes for what is not seen, numbers glued to their units."""
        return _glued(visible(self.text))


def _glued(text: str) -> str:
    return _GLUED.sub(GLUE, text)
