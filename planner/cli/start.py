"""The console entry: Ctrl-C ends hetplan without a traceback from its first import on."""

from __future__ import annotations

import sys


def main() -> None:
    """Import the commands and run one."""
    try:
        from planner.cli.app import main as run
    except KeyboardInterrupt:
        sys.exit(130)  # planner.cli.process.INTERRUPTED, which may not be there yet
    run()
