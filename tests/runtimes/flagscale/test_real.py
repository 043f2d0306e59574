"""FlagScale itself starts what is emitted for it, groups ranks as planned and refuses what our rules refuse.

Runs where HETPLAN_FLAGSCALE and HETPLAN_MEGATRON name checkouts and hydra-core is installed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch

from planner.emit.interface import emit, write_folder
from planner.errors import EmitError
from planner.files.writing import dump
from planner.plan.placement import Rank, ranks
from planner.plan.values import Plan
from tests.runtimes.flagscale.test_rules import BASE, RANKS, REFUSED
from tests.worlds import cluster, group, model, plan, pool

FLAGSCALE, MEGATRON = os.environ.get("HETPLAN_FLAGSCALE", ""), os.environ.get("HETPLAN_MEGATRON", "")
pytestmark = [
    pytest.mark.skipif(
        not (FLAGSCALE and MEGATRON), reason="HETPLAN_FLAGSCALE, HETPLAN_MEGATRON name no checkouts"
    ),
    pytest.mark.skipif(find_spec("hydra") is None, reason="hydra-core is not installed"),
]
SSH = """#!/bin/bash
while [[ $1 == -* ]]; do if [[ $1 == -p ]]; then shift; fi; shift; done
bash -c "$2"
"""
"""Runs on this machine what the runner starts on another: ``ssh -f -n -p PORT HOST COMMAND``."""
CLUSTER = cluster(pool("a", ("A100",) * 8, 16), pool("t", ("T4",) * 4, 32))


def ask(folders: list[Path]) -> list[dict[str, Any]]:
    """FlagScale's answers, from a process of its own."""
    script = Path(__file__).with_name("reader.py")
    done = subprocess.run(
        [sys.executable, str(script), FLAGSCALE, MEGATRON],
        input=json.dumps([str(folder) for folder in folders]),
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    answers: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return answers


def one(chance: Random) -> tuple[Plan, bool]:
    """A plan with its own tp, dp and recomputation on each stage, and whether embeddings are tied."""
    steps = chance.randint(1, 4)
    replicas = []
    for _ in range(chance.randint(1, 4)):
        name, gpu = chance.choice((("a", "A100"), ("t", "T4")))
        tp, dp = chance.choice((1, 2, 4)), chance.choice((1, 2, 4))
        replicas.append((group(name, gpu, tp=tp, count=dp, share=4 // dp * steps, steps=steps),))
    layers = [chance.randint(1, 4) for _ in replicas]
    zero = chance.choice((0, 1))
    made = plan("flagscale", zero, layers, replicas, sequence_parallel=any(g.tp > 1 for (g,) in replicas))
    stages = tuple(replace(stage, recompute=chance.choice(("none", "full"))) for stage in made.stages)
    return replace(made, stages=stages), chance.random() < 0.5


def emitted(count: int, seed: int, folder: Path) -> list[tuple[Plan, Path]]:
    """Folders of random plans that the rules take."""
    chance = Random(seed)
    found: list[tuple[Plan, Path]] = []
    while len(found) < count:
        chosen, tied = one(chance)
        spec = model(chosen.global_batch, layers=chosen.layers, tied_embeddings=tied)
        try:
            files = emit(chosen, CLUSTER, spec)
        except EmitError:
            continue
        where = folder / str(len(found))
        write_folder(files, where)
        found.append((chosen, where))
    return found


def verify(chosen: Plan, answer: dict[str, Any]) -> int:
    """Assert that each rank is told its part of the plan; returns how many groups FlagScale made."""
    assert "ok" in answer, (chosen, answer)
    found, everyone = answer["ok"], ranks(chosen, CLUSTER)
    assert found["layers"] == [stage.layers for stage in chosen.stages]
    assert sum(found["slots"]) == len(everyone)
    for rank, told in zip(everyone, found["ranks"], strict=True):
        stage = chosen.stages[rank.stage]
        assert told["tensor_model_parallel_size"] == stage.replicas[0].tp
        assert told["data_parallel_size"] == stage.dp
        assert told["micro_batch_size"] == stage.replicas[0].micro_batch
        assert told["sequence_parallel"] == (stage.replicas[0].tp > 1)
    full = [stage.recompute == "full" for stage in chosen.stages]
    if any(full) and not all(full):
        assert found["recompute"] == [[int(each)] * chosen.micro_batches for each in full]
    groups = found["groups"]
    assert _set(groups["tp"]) == _grouped(everyone, "stage", "replica")
    assert _set(groups["dp"]) == _grouped(everyone, "stage", "tp_rank")
    pairs = {pair for path in groups["pp"] for pair in pairwise(path)}
    assert pairs == _neighbours(chosen, everyone)
    return sum(len(members) for members in groups.values())


def _set(groups: list[list[int]]) -> set[tuple[int, ...]]:
    return set(map(tuple, groups))


def _grouped(everyone: tuple[Rank, ...], *fields: str) -> set[tuple[int, ...]]:
    members: dict[tuple[int, ...], list[int]] = {}
    for rank in everyone:
        members.setdefault(tuple(getattr(rank, field) for field in fields), []).append(rank.rank)
    return set(map(tuple, members.values()))


def _neighbours(chosen: Plan, everyone: tuple[Rank, ...]) -> set[tuple[int, int]]:
    """Ranks of consecutive stages that share sequences and, with tensor parallelism, positions."""

    def meet(first: int, parts: int, last: int, others: int) -> bool:
        return first * others < (last + 1) * parts and last * parts < (first + 1) * others

    found = set()
    for one in everyone:
        for other in everyone:
            if other.stage == one.stage + 1:
                here, there = chosen.stages[one.stage], chosen.stages[other.stage]
                replicas = meet(one.replica, here.dp, other.replica, there.dp)
                if replicas and meet(one.tp_rank, here.replicas[0].tp, other.tp_rank, there.replicas[0].tp):
                    found.add((one.rank, other.rank))
    return found


def test_emitted_plans_are_understood(tmp_path: Path) -> None:
    """The runner reads every folder, the checks take it, ranks are grouped and connected as planned."""
    cases = emitted(30, 6, tmp_path)
    answers = ask([folder for _, folder in cases])
    groups = [verify(chosen, answer) for (chosen, _), answer in zip(cases, answers, strict=True)]
    wide = sum(len({(stage.dp, stage.replicas[0].tp) for stage in chosen.stages}) > 1 for chosen, _ in cases)
    print(f"{len(cases)} plans accepted, {wide} with degrees per stage, {sum(groups)} rank groups checked")  # noqa: T201
    assert wide > 10


def test_our_rules_are_flagscales(tmp_path: Path) -> None:
    """It refuses what our table says it refuses."""
    replicas = [
        (group("a", "A100", tp=2, count=2, share=8, steps=4),),
        (group("t", "T4", count=4, share=4, steps=4),),
    ]
    chosen = plan("flagscale", 0, [3, 1], replicas, sequence_parallel=True)
    assert chosen.devices == RANKS
    files = emit(chosen, CLUSTER, model(16, tied_embeddings=False))
    folders = []
    for number, changes in enumerate([{}, *(changes for changes, _ in REFUSED)]):
        settings = {name: value for name, value in {**BASE, **changes}.items() if value is not False}
        folders.append(tmp_path / str(number))
        write_folder(files, folders[-1])
        train = {"system": {"all": settings}, "model": {}, "data": {}}
        (folders[-1] / "conf/train/plan.yaml").write_text(dump(train))
        types = settings["hetero_device_types"]
        hosts = (folders[-1] / "hostfile").read_text()
        if settings["hetero_current_device_type"] not in types or "T4" not in types:
            hosts = hosts.replace("type=T4", f"type={settings['hetero_current_device_type']}")
            hosts = hosts.replace("type=A100", f"type={settings['hetero_current_device_type']}")
            (folders[-1] / "hostfile").write_text(hosts)
    accepted, *refused = ask(folders)
    assert "ok" in accepted, accepted
    taken = [message for (_, message), answer in zip(REFUSED, refused, strict=True) if "ok" in answer]
    assert taken == [], taken
    # A type that is not listed already stops the sort of the ranks.
    assert all(answer["error"].startswith(("AssertionError", "ValueError")) for answer in refused), refused


@pytest.mark.slow
@pytest.mark.skipif(find_spec("aiohttp") is None, reason="FlagScale's run.py needs aiohttp")
def test_its_runner_starts_the_smoke_run(tmp_path: Path) -> None:
    """Four ranks of two nodes, which are this machine: the one fault there is, by gloo."""
    names = pool("a", ("T4",) * 2, 2).model_copy(update={"hosts": ("127.0.0.1", "127.0.0.2")})
    own = (group("a", "T4", tp=2, share=2),)
    chosen = plan("flagscale", 0, [1, 1], [own, own], sequence_parallel=True)
    write_folder(emit(chosen, cluster(names), model(2, layers=2)), tmp_path / "run")
    (tmp_path / "ssh").write_text(SSH)
    (tmp_path / "ssh").chmod(0o755)
    path = f"{tmp_path}:{Path(torch.__file__).parents[4] / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {
        "PATH": path,
        "PYTHON": sys.executable,
        "FLAGSCALE_PATH": FLAGSCALE,
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run(
        ["bash", str(tmp_path / "run/launch.sh"), "--smoke", "+train.data.cpu=true"],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=170,
    )
    assert done.returncode == 1, done.stderr
    assert "one checksum" in done.stdout
    assert "node: the machine of 127.0.0.1, the plan has a machine of its own" in done.stdout
    assert done.stdout.endswith("smoke run: 1 fault\n")
