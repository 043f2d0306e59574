"""Looks at a whole job before it trains: ``./launch.sh --smoke`` on every node, as for training.

Inside the real job, on its real ranks: are devices, nodes and PCI slots those of the plan, does this torch have
kernels for them, do links reach the bandwidth of the cluster file, does a layer take as long as planned, is there the
planned memory, do all ranks start from the same weights, are clocks slowed down? The first rank prints the plan beside
what was found and writes a calibration for ``hetplan search --calibration``. Exit code 1 for any fault.

Needs torch only. Options stand behind ``--``: ``./launch.sh --smoke -- --weights MODEL``.
"""

from __future__ import annotations

import ctypes
import signal
from contextlib import suppress


def main() -> None:
    """Die with the launcher, however it ends (Linux), so that an interrupted run leaves nothing running; then look."""
    with suppress(OSError, AttributeError):  # only Linux has it
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    # Importing torch takes seconds, in which the launcher may end.
    from planner.training.smoke_run import run

    run()


if __name__ == "__main__":
    main()
