"""Hosts of a cluster, as a DeepSpeed hostfile or Slurm lists them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from planner.errors import UsageError
from planner.files.short_lists import expand_hosts, parted
from planner.probe.text import Text, short

_SLOTS = re.compile(r"slots=(\d{1,4})")
_GRES = re.compile(r"(?:^|,)gpu:(?:([\w.+-]+):)?(\d{1,4})(?=[(,]|$)")
_ADDRESS = re.compile(r"\d+(\.\d+){3}")
_HOSTFILE_HINT = "write lines such as: worker-1 slots=8"
_SLURM_HINT = (
    "save the value of SLURM_JOB_NODELIST, or the output of scontrol show hostnames "
    'or of: sinfo -N -o "%N %T %G"'
)
_AWAY = ("down", "drain", "error", "fail", "maint", "power", "unknown", "future", "reboot", "inval")


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedHost:
    """One node of a list."""

    name: str
    gpus: int | None = None
    """Devices, where the list says it."""
    gpu_type: str | None = None
    """Slurm's own word for their kind, e.g. ``a100``."""
    away: bool = False
    """True when Slurm gives it no work: it is down, drained or silent."""

    def is_called(self, name: str) -> bool:
        """True for its name with or without the domain."""
        return name in (self.name, self.name.partition(".")[0]) or self.name == name.partition(".")[0]


def parse_hostfile(text: Text) -> tuple[ListedHost, ...]:
    """Hosts of a DeepSpeed (or MPI) hostfile; comments begin with ``#``. Raises SpecError."""
    hosts: dict[str, ListedHost] = {}
    for number, line in text.lines():
        name, *rest = line.partition("#")[0].split() or [""]
        if not name:
            continue
        slots = [match for match in map(_SLOTS.fullmatch, rest) if match]
        if len(rest) != len(slots) or len(slots) > 1:
            raise text.broken(number, f"expected NAME slots=N, got {short(line)}", _HOSTFILE_HINT)
        if name in hosts:
            raise text.broken(number, f'the host "{name}" is listed twice', "remove one of the lines")
        _expand(text, number, name, _HOSTFILE_HINT)
        hosts[name] = ListedHost(name=name, gpus=int(slots[0][1]) if slots else None)
    if not hosts:
        raise text.broken(None, "expected at least one host", _HOSTFILE_HINT)
    return tuple(hosts.values())


def require_same_names(folders: Iterable[str], hosts: Sequence[ListedHost]) -> None:
    """Raises UsageError where a list has addresses and folders have names: a node could count twice."""
    names = set(folders)
    address = next(
        (host.name for host in hosts if _ADDRESS.fullmatch(host.name) and host.name not in names), None
    )
    other = next((name for name in sorted(names) if not any(host.is_called(name) for host in hosts)), None)
    if address is not None and other is not None:
        raise UsageError(
            f"probe: the list of hosts has the address {address} and --from the folder {other}: they may be one node",
            hint="write the names of the nodes into the list, or call the folders by their addresses",
        )


def parse_slurm(text: Text) -> tuple[ListedHost, ...]:
    """Hosts of a node list, of ``scontrol show hostnames``, or of ``sinfo -N -o`` with a header.

    Raises SpecError, also when sinfo shows all of them as down, drained or the like.
    """
    rows = list(text.lines())
    if not rows:
        raise text.broken(None, "expected at least one host", _SLURM_HINT)
    head = rows[0][1].split()
    hosts: dict[str, ListedHost] = {}
    if "NODELIST" in head or "HOSTNAMES" in head:
        for number, line in rows[1:]:
            for host in _sinfo(text, number, head, line):
                hosts.setdefault(host.name, host)
    else:
        for number, line in rows:
            for name in _names(text, number, line.strip()):
                hosts.setdefault(name, ListedHost(name=name))
    if all(host.away for host in hosts.values()):
        raise text.broken(rows[0][0], "no host of the list is up", _SLURM_HINT)
    return tuple(hosts.values())


def _sinfo(text: Text, number: int, head: list[str], line: str) -> list[ListedHost]:
    cells = line.split()
    if len(cells) != len(head):
        raise text.broken(
            number, f"expected {len(head)} columns as in the header, got {len(cells)}", _SLURM_HINT
        )
    row = dict(zip(head, cells, strict=True))
    names = _names(text, number, row.get("NODELIST") or row["HOSTNAMES"])
    state = row.get("STATE", "").lower()
    away = state.startswith(_AWAY) or state.endswith("*")  # the asterisk is a node that does not respond
    gres = _GRES.findall(row.get("GRES", ""))
    gpus = sum(int(count) for _, count in gres) if "GRES" in row else None
    types = {kind for kind, _ in gres if kind}
    gpu_type = types.pop() if len(types) == 1 else None
    return [ListedHost(name=name, gpus=gpus, gpu_type=gpu_type, away=away) for name in names]


def _names(text: Text, number: int, node_list: str) -> tuple[str, ...]:
    """Hosts of ``a[1-3,7],b01``."""
    return tuple(
        name for pattern in parted(node_list) for name in _expand(text, number, pattern, _SLURM_HINT)
    )


def _expand(text: Text, number: int, pattern: str, hint: str) -> tuple[str, ...]:
    try:
        return expand_hosts([pattern])
    except ValueError as error:
        raise text.broken(number, str(error), hint) from None
