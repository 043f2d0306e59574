"""Starts the ranks of one node as forks of a process that has imported what is slow to import.

That process is a fork of pytest's own, made ahead of the first test: none has changed anything in it. torchrun would
import all of it once a rank; it is torchrun that starts the folders of the other tests, as it does for users.
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import gc
import importlib
import importlib.machinery
import importlib.util
import json
import os
import select
import signal
import socket
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, NoReturn
from unittest.mock import patch

import pytest

from tests.training.launching import environment

PATIENCE = 10.0
"""Seconds in which a job may end its ranks."""
IMPORTED_LATE = (
    "torch._dynamo",
    "torch.distributed.checkpoint",
    "torch.distributed.checkpoint._fsspec_filesystem",
    "torch.distributed.fsdp",
    "torch.distributed.pipelining",
    "torch.distributed.tensor.parallel",
)
"""Modules that programs load only while they train."""
IMPORTED_BY_ENGINES = ("deepspeed.runtime.zero.muon.muon_optimizer", "transformers")
"""The same of every engine of DeepSpeed."""


def run(number: int, program: Path, *arguments: str | Path, log: Path, limit_seconds: float = 500.0) -> None:
    """Run ``main`` of a program in so many ranks, and ahead of them its ``prepare`` once, if it has one.

    ``log`` gets what the first one prints and all errors; with ``-RANK`` behind its name, what another one prints. The
    test fails with the end of the log as soon as a rank fails, and when time is up; no process is left then.
    """
    order = {
        "number": number,
        "program": str(program),
        "arguments": list(map(str, arguments)),
        "environment": environment(),
        "log": str(log),
        "limit_seconds": limit_seconds,
    }
    if not starter().start(order):
        pytest.fail(f"{log}:\n{log.read_text()[-9000:] if log.exists() else 'was never written'}")


@cache
def starter() -> Starter:
    """The process that starts ranks for this one; made by the first call."""
    made = Starter()
    atexit.register(made.end)
    return made


class Starter:
    """A fork of this process that starts ranks, one job after the other."""

    def __init__(self) -> None:
        self._socket, its = socket.socketpair()
        self._process = os.fork()
        if not self._process:
            self._socket.close()
            _do_nothing_else(partial(_serve, its))
        its.close()
        self._stream = self._socket.makefile("rw", encoding="utf-8")

    def start(self, order: dict[str, Any]) -> bool:
        """Wait for a job; False when it failed."""
        answer = ""
        try:
            print(json.dumps(order), file=self._stream, flush=True)
            answer = self._stream.readline()
        finally:
            if not answer:  # interrupted, or its process is gone: the next job has another
                self.end()
                starter.cache_clear()
        return answer == "0\n"

    def end(self) -> None:
        """End it, and the job that it may have."""
        if not self._stream.closed:
            with contextlib.suppress(BrokenPipeError):
                self._stream.close()
            self._socket.close()
            os.waitpid(self._process, 0)


def _do_nothing_else(work: Callable[[], None]) -> NoReturn:
    """Do the whole work of a fork: nothing of its parent's may come behind it."""
    status = 1
    try:
        work()
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):
            sys.stderr.write(f"{end.code}\n")
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _serve(asked: socket.socket) -> None:
    """Start a job for every line; end it when its time is up, or when nobody waits for it any more."""
    os.setsid()  # an interrupt is for the tests, which end their job
    warnings.resetwarnings()
    warnings.simplefilter("ignore")
    held = {1, 2}
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):
            held.add(stream.fileno())  # pytest's, which loggers of libraries have taken while it collected
    sys.stdout, sys.stderr = (os.fdopen(number, "w", 1, "utf-8", closefd=False) for number in (1, 2))
    faulthandler.enable(sys.stderr)
    with asked.makefile("rw", encoding="utf-8") as stream:
        while line := stream.readline():
            order = json.loads(line)
            with open(order["log"], "wb") as log:
                for number in held:
                    os.dup2(log.fileno(), number)
            _import_late()
            job = os.fork()
            if not job:
                os.close(asked.fileno())  # its file would keep it open
                _do_nothing_else(partial(_start, order))
            os.setpgid(job, job)  # what ends the job ends its ranks and their children
            print(_ended(job, asked, order["limit_seconds"]), file=stream, flush=True)


def _ended(job: int, asked: socket.socket, limit_seconds: float) -> int:
    """Exit code of a job, none of whose processes is left."""
    until, told = time.monotonic() + limit_seconds, False
    while (status := _status(job)) is None:
        alone = select.select([asked], [], [], 0.05)[0] if not told else []
        late = time.monotonic() > until
        if told and late:
            break
        if told:
            time.sleep(0.05)
        elif alone or late:
            sys.stderr.write("nobody waits any more\n" if alone else f"ended after {limit_seconds:g} s\n")
            os.kill(job, signal.SIGTERM)
            until, told = time.monotonic() + PATIENCE, True
    with contextlib.suppress(ProcessLookupError):
        os.killpg(job, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(job, 0)[1] if status is None else status)


def _status(job: int) -> int | None:
    """How a job ended; None while it runs."""
    ended, status = os.waitpid(job, os.WNOHANG)
    return status if ended else None


@cache
def _import_late() -> None:
    """Import what all jobs need and the tests did not."""
    for name in IMPORTED_LATE:
        importlib.import_module(name)
    if "deepspeed" in sys.modules:
        _import_engines()
    for device in ("cuda", "mtia", "xpu"):
        # For a device that is not here torch keeps every seed with the stack that set it, slower than a small step.
        library: Any = importlib.import_module(f"torch.{device}")
        library.manual_seed_all = lambda seed: None
    _share_groups()
    _compile_once()
    gc.freeze()  # what all ranks have in common is no garbage


def _import_engines() -> None:
    """Load what engines of DeepSpeed do, without torch's compiler for an optimizer that none of them has.

    The ranges that they open around most calls, for a profiler, take longer than some of the calls.
    """
    library: Any = importlib.import_module("deepspeed.runtime.compiler")
    with patch.object(library, "compile", lambda: lambda function: function):
        for name in IMPORTED_BY_ENGINES:
            importlib.import_module(name)
    marks: Any = importlib.import_module("deepspeed.utils.nvtx")
    marks.enable_nvtx = False
    # Which operators could be compiled here is asked of the compiler, by every process that wants to know.
    assert importlib.import_module("deepspeed.ops").__compatible_ops__


def _share_groups() -> None:
    """Give all folders of a job the same group of the same ranks.

    Three threads come with each and stay, one of which looks for messages a hundred times a second: with those of many
    folders that took more time than the training.
    """
    library: Any = importlib.import_module("torch.distributed.distributed_c10d")
    make, made = library._new_group_with_tag, dict[str, Any]()

    def shared(ranks: Any, *options: Any, group_desc: str | None = None, **more: Any) -> Any:
        key = f"{ranks} {options} {more}"
        if key not in made:
            made[key] = make(ranks, *options, group_desc=group_desc, **more)
        return made[key]

    library._new_group_with_tag = shared


def _compile_once() -> None:
    """Compile modules that many folders have alike in the first of them alone, whose path their tracebacks show."""
    codes: dict[bytes, CodeType] = {}

    def code_of(loader: object, source: bytes, path: str) -> CodeType:
        if source not in codes:
            codes[source] = compile(source, path, "exec", dont_inherit=True)
        return codes[source]

    loaders: Any = importlib.machinery.SourceFileLoader
    loaders.source_to_code = code_of
    sys.dont_write_bytecode = True


def _start(order: dict[str, Any]) -> None:
    """Run all ranks of a job; the first that fails ends the others."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended"))
    os.environ.clear()
    os.environ |= order["environment"]
    sys.argv[:] = [order["program"], *order["arguments"]]
    program = _loaded(Path(order["program"]))
    if hasattr(program, "prepare"):
        program.prepare()
    gc.freeze()
    ranks: dict[int, int] = {}
    try:
        for rank in range(order["number"]):
            child = os.fork()
            if not child:
                _do_nothing_else(partial(_run_rank, program, rank, order["number"], order["log"]))
            ranks[child] = rank
        while ranks:
            ended, status = os.wait()
            rank = ranks.pop(ended)
            if status:
                raise SystemExit(f"rank {rank} ended with {os.waitstatus_to_exitcode(status)}")
    finally:
        for left in ranks:
            os.kill(left, signal.SIGKILL)
        for left in ranks:
            os.waitpid(left, 0)


def _loaded(program: Path) -> ModuleType:
    """A program as a module, with its folder ahead of all others."""
    sys.path.insert(0, str(program.parent))
    spec = importlib.util.spec_from_file_location("program", program)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _run_rank(program: ModuleType, rank: int, number: int, log: str) -> None:
    """What one rank does, told its place as by torchrun."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
    os.environ |= {"WORLD_SIZE": str(number), "LOCAL_WORLD_SIZE": str(number)}
    if rank:
        with open(f"{log}-{rank}", "wb") as own:
            os.dup2(own.fileno(), 1)
    program.main()
