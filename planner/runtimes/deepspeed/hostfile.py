"""The hostfile for DeepSpeed's own launcher, and where that launcher cannot follow the plan."""

from __future__ import annotations

from collections.abc import Sequence

from planner.plan.placement import Agent, Rank


def hostfile(launchers: Sequence[Agent]) -> str | None:
    """Hosts in rank order with their slots, or None when a host holds two separate runs of ranks.

    Slots reach up to the last device in use: the launcher refuses to ``--include`` one beyond them.
    """
    hosts = [agent.host for agent in launchers]
    if len(set(hosts)) < len(hosts):
        return None
    return "".join(f"{agent.host} slots={max(agent.devices) + 1}\n" for agent in launchers)


def include(launchers: Sequence[Agent], most: int | None = None) -> str | None:
    """The value of ``--include`` that leaves out the devices ahead of those in use; None without any.

    Only the first ``most`` hosts are written out.
    """
    if all(len(agent.devices) == max(agent.devices) + 1 for agent in launchers):
        return None
    shown = [f"{agent.host}:{','.join(map(str, sorted(agent.devices)))}" for agent in launchers[:most]]
    return "@".join(shown + ["..."] * (len(launchers) > len(shown)))


def keeps_types(launchers: Sequence[Agent], everyone: Sequence[Rank]) -> bool:
    """False when the launcher would give a rank another type of GPU than the plan does.

    It sorts a node's devices and gives rank r the one at ``r % slots``, wherever the node's ranks begin.
    """
    for agent in launchers:
        slots = len(agent.devices)
        mine = everyone[agent.first_rank : agent.first_rank + slots]
        types = {rank.device: rank.gpu for rank in mine}
        devices = sorted(types)
        if any(types[devices[rank.rank % slots]] != rank.gpu for rank in mine):
            return False
    return True
