"""Lists of hosts."""

from __future__ import annotations

import pytest

from planner.errors import SpecError
from planner.probe.hosts import ListedHost, parse_hostfile, parse_slurm
from tests.probe.seen import text


def test_a_hostfile() -> None:
    """Comments and blank lines do not count; slots may be absent."""
    hosts = parse_hostfile(text("# ours\nworker-1 slots=8\n\nworker-2 slots=4  # half\nworker-3\n"))
    assert [(host.name, host.gpus) for host in hosts] == [
        ("worker-1", 8),
        ("worker-2", 4),
        ("worker-3", None),
    ]


def test_a_node_list_of_slurm() -> None:
    """Commas inside of brackets do not part hosts."""
    names = [host.name for host in parse_slurm(text("a[1-2,07],b01,rack[1-2]n[1-2]\n"))]
    assert names == ["a1", "a2", "a07", "b01", "rack1n1", "rack1n2", "rack2n1", "rack2n2"]


def test_host_names_line_by_line() -> None:
    """As scontrol shows them."""
    assert [host.name for host in parse_slurm(text("n1\nn2\n"))] == ["n1", "n2"]


def test_sinfo_says_states_and_devices() -> None:
    """Nodes of two partitions count once, drained and silent ones not at all."""
    content = """\
NODELIST   STATE     GRES
n1         idle      gpu:a100:8(S:0-1)
n1         idle      gpu:a100:8(S:0-1)
n2         mixed     gpu:4
n3         drained*  gpu:a100:8
n4         down*     gpu:a100:8
n5         idle      (null)
"""
    assert parse_slurm(text(content)) == (
        ListedHost(name="n1", gpus=8, gpu_type="a100"),
        ListedHost(name="n2", gpus=4),
        ListedHost(name="n5", gpus=0),
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
