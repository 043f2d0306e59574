"""Runs a Megatron-LM script in a job whose nodes share no RDMA fabric.

Megatron's network file covers the process groups that Megatron makes. The group of all ranks is made before
it is read, would choose RDMA, and could not reach nodes on another fabric: here it gets sockets.
Usage: ``start_megatron.py SCRIPT [ARGUMENTS]``.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import Any

import torch.distributed

init_process_group = torch.distributed.init_process_group


def init_on_sockets(*args: Any, **kwargs: Any) -> Any:
    """As ``torch.distributed.init_process_group``, with NCCL told to use sockets."""
    backend = kwargs.get("backend") or (args[0] if args else None)
    if backend == "nccl" and kwargs.get("pg_options") is None:
        options = torch.distributed.ProcessGroupNCCL.Options()
        options.config.net_name = "Socket"
        kwargs["pg_options"] = options
    return init_process_group(*args, **kwargs)


def main() -> None:
    """Run the script named first as if it had been started itself."""
    script = Path(sys.argv[1])
    sys.argv = sys.argv[1:]
    sys.path.insert(0, str(script.parent))
    torch.distributed.init_process_group = init_on_sockets
    runpy.run_path(str(script), run_name="__main__")


if __name__ == "__main__":
    main()
