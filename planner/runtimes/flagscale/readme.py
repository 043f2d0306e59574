"""README of a FlagScale launch folder."""

from __future__ import annotations

from collections.abc import Sequence

from planner.job.readme import heading, markdown_table
from planner.model.spec import ModelSpec
from planner.plan.placement import Agent
from planner.plan.values import Plan
from planner.runtimes.flagscale.settings import Mesh
from planner.runtimes.megatron.arguments import differences
from planner.runtimes.registry import target


def readme(
    plan: Plan, model: ModelSpec, found: Sequence[Mesh], launchers: Sequence[Agent], is_open: bool
) -> str:
    """The whole text; ``is_open`` where the experiment has lines to complete."""
    parts = [
        heading(plan, model, launchers),
        _meshes(found),
        EDIT if is_open else "",
        START,
        FILES,
        _limits(model),
    ]
    return "\n".join(part for part in parts if part)


def _meshes(found: Sequence[Mesh]) -> str:
    rows = [(mesh.device_type, str(mesh.tp), str(mesh.dp), str(mesh.pp)) for mesh in found]
    table = markdown_table(("device type", "tp", "replicas", "stages"), rows)
    return f"Process meshes, in pipeline order:\n\n{table}"


EDIT = (
    "## Edit first\n\nThe cluster file does not name all network interfaces: `conf/experiment.yaml` lists at its "
    "top the variables to add for each node.\n"
)

START = """## Start

Put the folder on a file system that all nodes share, with a checkout of FlagScale at the same path on each, built for
training as its own instructions say. Then, on one node that reaches the others by ssh without a password:

```sh
FLAGSCALE_PATH=/path/to/FlagScale ./launch.sh
```

`./launch.sh action=dryrun` writes the scripts of all nodes to `outputs/logs/scripts` and starts nothing; `action=stop`
ends the job. Settings on the command line override the files: `./launch.sh train.model.optimizer.lr=3e-4`. The first
host is the rendezvous (`experiment.runner.master_addr`, `master_port`). It trains on mock data until `data` in
`conf/train/plan.yaml` names yours.
"""

FILES = """## Files

- `conf/experiment.yaml`: the experiment, its runner and each node's devices and network
- `conf/train/plan.yaml`: the plan in FlagScale's words
- `hostfile`: nodes in rank order with slots and device types; FlagScale sorts nodes by type, so keep both orders
- `launch.sh`: starts FlagScale's runner
"""


def _limits(model: ModelSpec) -> str:
    lines = [
        f"- Written for FlagScale {target('flagscale').version}: its runner, its checks of meshes and its rank groups "
        "were tried; it has not trained here.",
        "- Checkpoints use `ckpt_format: torch`, the one that works with process meshes.",
        *(
            f"- FlagScale cannot build the model file exactly: {difference}."
            for difference in differences(model)
        ),
    ]
    return "## Limits\n\n" + "\n".join(lines) + "\n"
