"""``python -m tools.rehearsal.busy model.yaml``: trains until it is killed, while another device is measured."""

from __future__ import annotations

import sys
from pathlib import Path

from planner.measure.backend import open_backend
from planner.model.file import load_model
from tools.benchmarks.training import Configuration, Training, job

MICRO_BATCH = 6


def main() -> None:
    """Steps without an end."""
    asked = Configuration(model=load_model(Path(sys.argv[1])), micro_batch=MICRO_BATCH)
    with job():
        training = Training(open_backend("cpu"), asked)
        while True:
            training.step()


if __name__ == "__main__":
    main()
