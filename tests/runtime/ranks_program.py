"""What each rank runs when many emitted folders train in one start: the start is what takes long.

``torchrun ranks_program.py FILE``, where FILE lists the folders and the arguments of their ``train.py``. Each
folder's own modules are loaded and do the work; this program keeps the logs, losses and final weights.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import io
import json
import os
import sys
from pathlib import Path
from typing import Any

import deepspeed
import torch

MODULES = ("train", "hetplan_runtime", "example_model", "example_data", "step_log")


def main() -> None:
    """Train every folder in turn."""
    jobs = json.loads(Path(sys.argv[1]).read_text())
    module = folder_module(Path(jobs[0]["folder"]))
    module.start_processes()
    for job in jobs:
        train(Path(job["folder"]), job["arguments"])
    module.leave()


def folder_module(folder: Path) -> Any:
    """The ``train.py`` of a folder, with the neighbours that it imports."""
    for name in MODULES:
        sys.modules.pop(name, None)
    sys.path[0] = str(folder)
    importlib.invalidate_caches()
    return importlib.import_module("train")


def train(folder: Path, arguments: list[str]) -> None:
    """Train as ``train.py`` does and leave what it printed and this rank's weights in the folder."""
    module, log = folder_module(folder), io.StringIO()
    with contextlib.redirect_stdout(log):
        engine = module.train(module.parse_options(arguments))
    rank = os.environ["RANK"]
    torch.save(weights(engine.module), folder / f"weights-{rank}.pt")
    (folder / f"log-{rank}.txt").write_text(log.getvalue())
    engine.destroy()
    del engine
    gc.collect()


def weights(network: Any) -> dict[str, Any]:
    """This rank's parameters, whole also where ZeRO 3 keeps a part of each."""
    with deepspeed.zero.GatheredParameters(list(network.parameters())):
        return {name: value.detach().float().clone() for name, value in network.named_parameters()}


if __name__ == "__main__":
    main()
