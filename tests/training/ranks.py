"""Starts the ranks of one node: ``ranks.py NUMBER PROGRAM ARGUMENT ...`` runs ``main`` of the program in each.

One process imports the program and what is slow to import, the ranks are forks of it: torchrun would import all of it
once a rank. It is torchrun that starts the folders of the other tests, as it does for users.
"""

from __future__ import annotations

import gc
import importlib
import importlib.machinery
import importlib.util
import os
import signal
import sys
from pathlib import Path
from types import CodeType
from typing import Any

IMPORTED_LATE = (
    "torch._dynamo",
    "torch.distributed.checkpoint",
    "torch.distributed.fsdp",
    "torch.distributed.pipelining",
    "torch.distributed.tensor.parallel",
)
"""Modules that programs load only while they train."""
IMPORTED_BY_ENGINES = ("deepspeed.runtime.zero.muon.muon_optimizer",)
"""The same of every engine of DeepSpeed: it loads torch's compiler."""


def command(number: int, program: Path, *arguments: Path) -> list[str]:
    """What starts so many ranks of a program."""
    return [sys.executable, __file__, str(number), str(program), *map(str, arguments)]


def compile_once() -> None:
    """Compile modules that many folders have alike in the first of them alone, whose path their tracebacks show."""
    codes: dict[bytes, CodeType] = {}

    def code_of(loader: object, source: bytes, path: str) -> CodeType:
        if source not in codes:
            codes[source] = compile(source, path, "exec", dont_inherit=True)
        return codes[source]

    loaders: Any = importlib.machinery.SourceFileLoader
    loaders.source_to_code = code_of
    sys.dont_write_bytecode = True


def main() -> int:
    """Start all ranks and wait for them; 1 as soon as one of them fails."""
    number, program = int(sys.argv[1]), Path(sys.argv[2])
    sys.argv[:] = sys.argv[2:]
    sys.path[0] = str(program.parent)
    spec = importlib.util.spec_from_file_location("program", program)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for name in (*IMPORTED_LATE, *(IMPORTED_BY_ENGINES if "deepspeed" in sys.modules else ())):
        importlib.import_module(name)
    for device in ("cuda", "mtia", "xpu"):
        # For a device that is not here torch keeps every seed with the stack that set it, slower than a small step.
        library: Any = importlib.import_module(f"torch.{device}")
        library.manual_seed_all = lambda seed: None
    compile_once()
    gc.freeze()  # what all ranks have in common is no garbage
    sys.stdout.flush()
    ranks = set()
    for rank in range(number):
        child = os.fork()
        if not child:
            os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            os.environ |= {"WORLD_SIZE": str(number), "LOCAL_WORLD_SIZE": str(number)}
            if rank:  # all write to one file
                os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            module.main()
            sys.stdout.flush()
            os._exit(0)
        ranks.add(child)
    while ranks:
        ended, status = os.wait()
        ranks.remove(ended)
        if status:
            for rank in ranks:
                os.kill(rank, signal.SIGKILL)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
