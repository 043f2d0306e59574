"""Emitted folders train with Megatron-LM's own script on the processor, and equal one process.

Runs where HETPLAN_MEGATRON names a checkout of Megatron-LM (d98e8a64) whose helpers can be compiled (g++, pybind11).
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from planner.emit.interface import emit, write_folder
from planner.plan.values import Plan
from tests.runtimes.megatron.test_runtime import pipeline
from tests.training.launching import free_port
from tests.worlds import cluster, model, pool

torch = pytest.importorskip("torch")

MEGATRON = os.environ.get("HETPLAN_MEGATRON", "")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not MEGATRON, reason="HETPLAN_MEGATRON names no checkout of Megatron-LM"),
    pytest.mark.skipif(find_spec("pybind11") is None, reason="Megatron compiles its helpers with pybind11"),
]
REPOSITORY = Path(__file__).parents[3]
ONE_NODE = cluster(pool("a", ("A100",) * 8, 1))
HERE = (
    *("--transformer-impl", "local", "--no-rope-fusion", "--no-gradient-accumulation-fusion"),
    *(
        "--no-persist-layer-norm",
        "--no-bias-dropout-fusion",
        "--no-bias-swiglu-fusion",
        "--no-masked-softmax-fusion",
    ),
    *("--distributed-backend", "gloo", "--use-cpu-initialization", "--eval-iters", "0"),
    *("--lr-decay-style", "constant", "--make-vocab-size-divisible-by", "1", "--ckpt-format", "torch_dist"),
)
"""Without kernels of a GPU; one vocabulary whatever the tensor-parallel degree."""
STEP = re.compile(r" lm loss: (\S+) .* grad norm: (\S+) ")
PLANS = {
    "one process": pipeline([4], dp=1, steps=4, zero=0),
    "tp 2": pipeline([4], dp=1, tp=2, steps=4, zero=0),
    "pp 2, 3 layers and 1": pipeline([3, 1], dp=1, steps=4, zero=0),
    "dp 2, ZeRO 1": pipeline([4], dp=2, steps=2),
}


def trained(tmp_path: Path, name: str, chosen: Plan, *words: str, steps: int) -> list[tuple[float, float]]:
    """Loss and norm of the gradients of each step, by ``launch.sh`` as it is emitted."""
    folder, checkout = tmp_path / name, tmp_path / "megatron"
    spec = model(4, layers=4, gated_mlp=True, tied_embeddings=False, precision="fp32")
    write_folder(emit(chosen, ONE_NODE, spec), folder)
    checkout.mkdir(exist_ok=True)
    (checkout / "pretrain_gpt.py").write_bytes(Path(__file__).with_name("on_cpu.py").read_bytes())
    environment = {
        "HETPLAN_REPOSITORY": str(REPOSITORY),
        "MEGATRON_PATH": str(checkout),
        "MASTER_PORT": str(free_port()),
        "TORCHRUN": str(Path(torch.__file__).parents[4] / "bin/torchrun"),
        "TRAIN_ITERS": str(steps),
        "LR": "1e-3",
        "OMP_NUM_THREADS": "1",
        "TORCHDYNAMO_DISABLE": "1",
    }
    done = subprocess.run(
        [str(folder / "launch.sh"), "--", *HERE, *words],
        env={**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout[-6000:]
    return [(float(loss), float(norm)) for loss, norm in STEP.findall(done.stdout)]


def test_layouts_equal_one_process(tmp_path: Path) -> None:
    """From the weights of one checkpoint, which Megatron loads under every plan: losses and norms of three steps."""
    start = tmp_path / "start"
    first = trained(
        tmp_path, "start run", PLANS["one process"], "--save", str(start), "--save-interval", "1", steps=1
    )
    assert len(first) == 1
    load = ("--load", str(start), "--finetune", "--no-load-optim", "--no-load-rng")
    found = {name: trained(tmp_path, name, chosen, *load, steps=3) for name, chosen in PLANS.items()}
    expected = found.pop("one process")
    assert len(expected) == 3
    assert expected[0][0] > expected[-1][0]
    for name, steps in found.items():
        for (loss, norm), (own_loss, own_norm) in zip(steps, expected, strict=True):
            assert loss == pytest.approx(own_loss, rel=1e-6), name
            assert norm == pytest.approx(own_norm, abs=1.5e-3), name
