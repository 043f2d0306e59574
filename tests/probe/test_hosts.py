"""Lists of hosts."""

from __future__ import annotations

import pytest

from planner.errors import SpecError, UsageError
from planner.probe.hosts import ListedHost, parse_hostfile, parse_slurm, require_same_names
from tests.probe.seen import text


def test_a_hostfile() -> None:
    """Comments and blank lines do not count; slots may be absent."""
    hosts = parse_hostfile(text("# ours\nworker-1 slots=8\n\nworker-2 slots=4  # half\nworker-3\n"))
    assert [(host.name, host.gpus) for host in hosts] == [
        ("worker-1", 8),
        ("worker-2", 4),
        ("worker-3", None),
    ]


def test_addresses_beside_names_are_refused() -> None:
    """Nothing tells which node has which address; folders that are called by it are the same."""
    hosts = [ListedHost(name="10.0.0.1"), ListedHost(name="n2.site")]
    require_same_names(["10.0.0.1", "n2"], hosts)
    require_same_names(["n2"], hosts)
    require_same_names(["n1", "n2"], hosts[1:])
    with pytest.raises(UsageError, match=r"address 10\.0\.0\.1 and --from the folder n1"):
        require_same_names(["n1", "n2"], hosts)


def test_a_node_list_of_slurm() -> None:
    """Commas inside of brackets do not part hosts."""
    names = [host.name for host in parse_slurm(text("a[1-2,07],b01,rack[1-2]n[1-2]\n"))]
    assert names == ["a1", "a2", "a07", "b01", "rack1n1", "rack1n2", "rack2n1", "rack2n2"]


def test_host_names_line_by_line() -> None:
    """As scontrol shows them."""
    assert [host.name for host in parse_slurm(text("n1\nn2\n"))] == ["n1", "n2"]


def test_sinfo_says_states_and_devices() -> None:
    """Nodes of two partitions count once; drained and silent ones, and such with too few devices, get no work."""
    content = """\
NODELIST   STATE     GRES
n1         idle      gpu:a100:8(S:0-1)
n1         idle      gpu:a100:8(S:0-1)
n2         mixed     gpu:4
n3         drained*  gpu:a100:8
n4         down*     gpu:a100:8
n5         idle      (null)
n6         idle*     gpu:4
n7         inval     gpu:4
"""
    assert parse_slurm(text(content)) == (
        ListedHost(name="n1", gpus=8, gpu_type="a100"),
        ListedHost(name="n2", gpus=4),
        ListedHost(name="n3", gpus=8, gpu_type="a100", away=True),
        ListedHost(name="n4", gpus=8, gpu_type="a100", away=True),
        ListedHost(name="n5", gpus=0),
        ListedHost(name="n6", gpus=4, away=True),
        ListedHost(name="n7", gpus=4, away=True),
    )


@pytest.mark.parametrize(
    ("gres", "gpus", "gpu_type"),
    [
        ("gpu:4090:8(S:0-1)", 8, "4090"),
        ("gpu:2080ti:4", 4, "2080ti"),
        ("gpu:1g.10gb+me:7", 7, "1g.10gb+me"),
        ("gpu:a100:4(S:0),gpu:a100:4(S:1),mps:a100:100", 8, "a100"),
        ("shard:16,gpu:tesla:1,gpu:kepler:2", 3, None),
    ],
)
def test_slurm_s_words_for_devices(gres: str, gpus: int, gpu_type: str | None) -> None:
    """A word may begin with a digit, and is not taken for the number of devices."""
    assert parse_slurm(text(f"NODELIST STATE GRES\nn1 idle {gres}\n")) == (
        ListedHost(name="n1", gpus=gpus, gpu_type=gpu_type),
    )


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "seen.txt: expected at least one host"),
        ("a slots=8\nb 8\n", "seen.txt:2: expected NAME slots=N, got 'b 8'"),
        ("a slots=8\na slots=8\n", 'seen.txt:2: the host "a" is listed twice'),
        ("-a slots=8\n", 'seen.txt:1: "-a" is not a host name'),
    ],
)
def test_broken_hostfiles(content: str, message: str) -> None:
    """File and line."""
    with pytest.raises(SpecError) as caught:
        parse_hostfile(text(content))
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("\n", "seen.txt: expected at least one host"),
        ("a[1-\n", 'seen.txt:1: "a[1-" is not a host name'),
        ("a\nb[3-1]\n", 'seen.txt:2: the range "3-1" in "b[3-1]" ends before it starts'),
        ("NODELIST STATE\nn1\n", "seen.txt:2: expected 2 columns as in the header, got 1"),
        ("NODELIST STATE\nn1 down\n", "seen.txt:1: no host of the list is up"),
    ],
)
def test_broken_slurm_lists(content: str, message: str) -> None:
    """File and line."""
    with pytest.raises(SpecError) as caught:
        parse_slurm(text(content))
    assert str(caught.value).startswith(message)
