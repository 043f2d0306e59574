"""What holds for all tests."""

from __future__ import annotations

import signal

# Programs that a shell starts in the background ignore Ctrl-C, and so would those that the tests interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)
