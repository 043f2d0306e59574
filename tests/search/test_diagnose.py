"""What the diagnosis leaves untried: only what has no room for the model states whatever a plan does."""

from __future__ import annotations

import re

from planner.capabilities import OFFLOAD_PARTS
from planner.catalog import gpu_spec
from planner.cluster.spec import HostSpec
from planner.cost.estimate import Estimator
from planner.search.deadline import Deadline
from planner.search.explain.diagnose import diagnose
from planner.search.values import Limits
from tests.worlds import cluster, gpt, pool, small_problem


def test_two_changes_where_none_alone_is_enough() -> None:
    """Adapters on four bits need more than this card has, and all weights more than any other."""
    alone = {"host": HostSpec(memory_gib=128), "nics": ()}
    box = pool("box", "RTX-3090", per_node=1, nodes=1).model_copy(update=alone)
    large = gpt(96, 8192, 64, precision="bf16", sequence_length=512)
    on = cluster(box, gpus={"RTX-3090": gpu_spec("RTX-3090")})
    hints = diagnose(Estimator(on, large), Limits(offload=OFFLOAD_PARTS)).hints
    adapters = "training.lora: {rank: 16, base: nf4}, which trains adapters alone"
    assert re.fullmatch(rf"fits with .* in place of every device and {re.escape(adapters)}", hints[0])
    assert not any(hint.startswith("fits with training.lora") for hint in hints)


def test_no_time_leaves_causes_alone() -> None:
    """One deadline ends all trials."""
    spec, _ = small_problem(1)
    found = diagnose(Estimator(spec, gpt(96, 12288, 96)), Limits(), Deadline.after(0.0))
    assert found.causes
    assert found.hints == ()
