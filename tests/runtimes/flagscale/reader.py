"""Runs FlagScale's own runner, checks of meshes and rank groups on launch folders, without a GPU.

Usage: ``reader.py FLAGSCALE MEGATRON < folders.json > answers.json``; an answer is ``{"ok": ...}`` or
``{"error": "..."}``. FlagScale patches its Megatron-LM: the arguments that its patch adds are added here to the parser
of the given checkout, the patch itself is not applied.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import importlib
import importlib.util
import inspect
import io
import json
import os
import shlex
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[3]))
from tests.runtimes.megatron.parser import prepare

PATCH = "flagscale/backends/Megatron-LM/megatron/training/arguments.py.patch"


class Node:
    """What the runner starts on one host."""

    def __init__(self, script: Path) -> None:
        line = next(line for line in script.read_text().splitlines() if line.startswith('cmd="'))
        words = shlex.split(line[len('cmd="') : -1])
        start = words.index("torchrun")
        entry = next(at for at, word in enumerate(words) if word.endswith(".py"))
        self.environment = dict(word.split("=", 1) for word in words[:start])
        options = words[start + 1 : entry]
        self.torchrun = dict(zip(options[::2], options[1::2], strict=True))
        self.rank = int(self.torchrun["--node_rank"])
        self.ranks = int(self.torchrun["--nproc_per_node"])
        self.args = words[entry + 1 :]


def nodes(folder: Path) -> list[Node]:
    """Nodes in rank order, from the scripts that a dry run of the real runner writes."""
    hydra = importlib.import_module("hydra")
    runner = importlib.import_module("flagscale.runner.runner_train")
    os.environ["HETPLAN_FOLDER"] = str(folder)
    with hydra.initialize_config_dir(version_base=None, config_dir=str(folder / "conf")):
        config = hydra.compose("experiment")
    runner.SSHTrainRunner(config).run(dryrun=True)
    found = [Node(script) for script in (folder / "outputs/logs/scripts").glob("*_run.sh")]
    return sorted(found, key=lambda node: node.rank)


def parser(checkout: Path) -> argparse.ArgumentParser:
    """Megatron's parser with the arguments that FlagScale's patch adds."""
    megatron = importlib.import_module("megatron.training.arguments")
    made: argparse.ArgumentParser = megatron.add_megatron_arguments(
        argparse.ArgumentParser(allow_abbrev=False, exit_on_error=False)
    )
    for block in _added((checkout / PATCH).read_text().splitlines()):
        with contextlib.suppress(argparse.ArgumentError):
            exec(block, {"group": made})
    return made


def _added(patch: list[str]) -> Iterator[str]:
    """Each argument that a patch adds as a statement of Python."""
    for at, line in enumerate(patch):
        if not line.startswith("+    group.add_argument("):
            continue
        block = ""
        for following in patch[at:]:
            block += following[1:].strip() + " "
            if not following.startswith("+") or block.count("(") == block.count(")"):
                break
        if block.count("(") == block.count(")"):
            yield block


def read(folder: Path, flagscale: argparse.ArgumentParser) -> dict[str, Any]:
    """What FlagScale makes of a folder: each rank's settings and the rank groups."""
    dist = torch.distributed
    started = nodes(folder)
    given = [flagscale.parse_args(node.args) for node in started for _ in range(node.ranks)]
    device_types = [args.hetero_current_device_type for args in given]
    fake = importlib.import_module("torch.testing._internal.distributed.fake_pg")
    found = []
    for rank, args in enumerate(given):
        dist.init_process_group("fake", rank=rank, world_size=len(given), store=fake.FakeStore())
        try:
            found.append(_validated(copy.deepcopy(args), device_types))
            if rank == 0:
                groups = _groups(found[0].args, device_types)
        finally:
            dist.destroy_process_group()
    fields = ("tensor_model_parallel_size", "data_parallel_size", "micro_batch_size", "sequence_parallel")
    return {
        "ranks": [{field: getattr(each.args, field) for field in fields} for each in found],
        "layers": found[0].args.hetero_pipeline_layer_split,
        "recompute": found[0].args.recompute_granularity_per_stage_micro_batch,
        "groups": groups,
        "environments": [node.environment for node in started],
        "slots": [node.ranks for node in started],
    }


def _validated(args: argparse.Namespace, device_types: list[str]) -> Any:
    """The arguments of the current rank after FlagScale's own checks."""
    own = importlib.import_module("flagscale.train.arguments")
    context = importlib.import_module("flagscale.train.hetero.parallel_context")
    args.standalone_embedding_stage = False
    args.virtual_pipeline_model_parallel_size = None
    args.mtp_num_layers = None
    for name in ("num_layers_per_virtual_pipeline_stage", "expert_tensor_parallel_size_per_process_mesh"):
        setattr(args, name, getattr(args, name, None))
    with _gathered(device_types):
        checked = own.FSTrainArguments(args, rank_mapper=context.RankMapper(args))
        checked.pre_validate_args()
    checked.post_validate_args()
    return checked


def _groups(args: argparse.Namespace, device_types: list[str]) -> dict[str, Any]:
    """Rank groups of the real parallel context, by kind."""
    context = importlib.import_module("flagscale.train.hetero.parallel_context")
    args.num_distributed_optimizer_instances = 1
    args.enable_gloo_process_groups = False
    args.hierarchical_context_parallel_sizes = None
    args.distributed_backend = "fake"
    context.ParallelContext.build_config = lambda self: None
    _drop_new_axis()
    with _gathered(device_types):
        made = context.ParallelContext(args)
    found = {
        kind: [list(ranks) for mesh in made._process_meshes for ranks in mesh._all_group_ranks[kind]]
        for kind in ("tp", "dp")
    }
    return {**found, "pp": made._global_all_group_ranks["pp"]}


def _drop_new_axis() -> None:
    """The checkout's rank generator has an axis of size 1 that FlagScale's Megatron-LM does not know yet."""
    state: Any = importlib.import_module("megatron.core.parallel_state")
    build = state.RankGenerator.__init__

    def known_axes(self: Any, *args: Any, order: str, **named: Any) -> None:
        build(self, *args, order=order, **named)
        self.order, self.ordered_size = order, [self.name_to_size[axis] for axis in order.split("-")]

    if "gtp_remat" in inspect.signature(build).parameters:
        state.RankGenerator.__init__ = known_axes


@contextlib.contextmanager
def _gathered(device_types: list[str]) -> Any:
    """What ranks would tell each other: their device types; of the rest everyone says the same."""
    gather = torch.distributed.all_gather_object

    def all_gather_object(found: list[Any], mine: dict[str, Any]) -> None:
        for rank, name in enumerate(device_types):
            found[rank] = {**mine, "rank": rank, **({"device_type": name} if "device_type" in mine else {})}

    torch.distributed.all_gather_object = all_gather_object
    try:
        yield
    finally:
        torch.distributed.all_gather_object = gather


def answer(folder: str, flagscale: argparse.ArgumentParser) -> dict[str, Any]:
    """The answer for one folder; FlagScale talks on standard output and exits on unknown arguments."""
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            return {"ok": read(Path(folder), flagscale)}
    except (Exception, SystemExit) as error:
        return {"error": f"{type(error).__name__}: {error}"}


def main(checkout: str, megatron: str) -> None:
    """Answer the folders named on standard input."""
    prepare(megatron)
    sys.path.insert(0, checkout)
    for name in ("aiohttp", "tqdm", "tqdm.asyncio"):
        if name not in sys.modules and importlib.util.find_spec(name.split(".")[0]) is None:
            sys.modules[name] = types.ModuleType(name)
    made = parser(Path(checkout))
    answers = [answer(folder, made) for folder in json.load(sys.stdin)]
    print("\n" + json.dumps(answers))  # noqa: T201


if __name__ == "__main__":
    main(*sys.argv[1:3])
