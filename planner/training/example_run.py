"""What all examples do alike around their training: read options, and end together."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import torch


def parse_options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """What the plan leaves open; by default from the command line."""
    parser = argparse.ArgumentParser(description="Train a model of the planned shape.")
    parser.add_argument("--steps", type=int, default=100, help="optimizer steps (100)")
    parser.add_argument("--lr", type=float, default=3e-4, help="learning rate (3e-4)")
    parser.add_argument("--seed", type=int, default=0, help="of the initial weights (0)")
    parser.add_argument("--text", type=Path, help="train on this file, byte by byte (a made-up text)")
    parser.add_argument("--save", type=Path, help="write a checkpoint into this folder at the end")
    parser.add_argument(
        "--resume", type=Path, help="go on from the checkpoint in this folder, of this plan or another"
    )
    parser.add_argument(
        "--keep",
        type=Path,
        help="write checkpoints into this folder, which all nodes see, and go on from its last; --steps counts all "
        "steps then",
    )
    parser.add_argument("--every", type=int, default=100, help="steps from one of them to the next (100)")
    parser.add_argument("--local_rank", help="passed by DeepSpeed's launcher; LOCAL_RANK says the same")
    return parser.parse_args(arguments)


def steps_of(begin: int, options: argparse.Namespace) -> range:
    """The steps that are left to train, where so many were trained before."""
    return range(begin, options.steps if options.keep else begin + options.steps)


def is_kept(step: int, options: argparse.Namespace) -> bool:
    """True when a checkpoint has to be written behind a step."""
    return bool(options.keep) and ((step + 1) % options.every == 0 or step + 1 == options.steps)


def leave(on_processor: bool, *, on_hosts: bool = False) -> None:
    """End together: a rank that leaves first would break the others' connections while they still save.

    ``on_hosts``: the devices of all ranks cannot meet, but their hosts can.
    """
    if on_hosts:
        torch.distributed.all_reduce(torch.zeros(1))
    else:
        torch.distributed.barrier()
    if on_processor:
        # Gloo's threads may free tensors after the interpreter is gone, which aborts the process.
        sys.stdout.flush()
        os._exit(0)
    torch.distributed.destroy_process_group()
