"""OmegaConf reads back what the cluster file says, letter by letter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf

from planner.emit.interface import emit
from planner.errors import EmitError
from planner.files.writing import dump
from planner.plan.values import Plan
from planner.runtimes.flagscale.runtime import EXECUTED, literal
from tests.worlds import cluster, group, model, nic, plan, pool

HARD = [
    "${oc.env:HOME}",
    "a${oc.env:HETPLAN_FOLDER}b${",
    "${}",
    "$${x}",
    "???",
    "null",
    "1_0e3",
    "0x10",
    "on",
    "{a: b}",
    "- a",
    "a: b # c",
    "%a,@b,&c,*d,!e",
]
"""Interfaces that a YAML reader, OmegaConf or a naive writer would take for something else."""


def written(*interfaces: str, hosts: Sequence[str] = ("a-0", "a-1")) -> dict[str, str]:
    """Files for two nodes with this interface and card."""
    cards = (nic("lan", interface=interfaces[0], hca=interfaces[-1]),)
    chosen = cluster(
        pool("a", ("A100",) * 2, 2, cards).model_copy(update={"hosts": tuple(hosts)}), fabrics={"lan": "roce"}
    )
    return {file.path: file.text for file in emit(two_nodes(), chosen, model(4, tied_embeddings=False))}


def two_nodes() -> Plan:
    """Four ranks on two nodes."""
    return plan("flagscale", 0, [4], [(group("a", "A100", count=4),)])


def read(text: str) -> dict[str, Any]:
    """A file as FlagScale reads it, resolved."""
    found = OmegaConf.to_container(OmegaConf.create(text), resolve=True)
    assert isinstance(found, dict)
    return {str(key): value for key, value in found.items()}


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch) -> None:
    """As launch.sh sets it."""
    monkeypatch.setenv("HETPLAN_FOLDER", "/runs/one")


@pytest.mark.parametrize("interface", HARD)
def test_omegaconf_reads_the_name(interface: str) -> None:
    """Every variable of a node is what the cluster file says, and nothing else of the experiment changes."""
    made = written(interface)
    found, plain = read(made["conf/experiment.yaml"]), read(written("eth0")["conf/experiment.yaml"])
    nodes = found["experiment"]["envs"].pop("node_specific")
    assert set(nodes) == {"a-0", "a-1"}
    for values in nodes.values():
        assert values["NCCL_SOCKET_IFNAME"] == f"={interface}"
        assert values["GLOO_SOCKET_IFNAME"] == interface.split(",")[0].strip()
        assert values["NCCL_IB_HCA"] == f"={interface}"
    del plain["experiment"]["envs"]["node_specific"]
    assert found == plain
    assert found["experiment"]["exp_dir"] == "/runs/one/outputs"
    assert read(made["conf/train/plan.yaml"])["system"]["hetero"]["hetero_device_types"] == ["A100"]
    assert not made["conf/experiment.yaml"].startswith("#")
    assert "Edit first" not in made["README.md"]


@pytest.mark.parametrize(
    "host", ["1_0e3", "1e3", "on", "0x10", "null", "2024-01-01", "1.5", "077", "12:30:45"]
)
def test_hosts_that_read_as_numbers(host: str) -> None:
    """FlagScale looks a node up by its name in the hostfile."""
    found = read(written("eth0", hosts=(host, "b"))["conf/experiment.yaml"])["experiment"]
    assert list(found["envs"]["node_specific"]) == [host, "b"]
    assert found["runner"]["master_addr"] == host


@pytest.mark.parametrize("word", EXECUTED)
def test_nothing_is_handed_to_a_shell(word: str) -> None:
    """FlagScale's scripts quote no variable: what they would execute is refused."""
    for interfaces in ((f"eth{word}0)",), ("eth0", f"mlx5{word}")):
        with pytest.raises(EmitError, match="a shell interpret"):
            written(*interfaces)


TEXTS = st.one_of(
    st.lists(
        st.sampled_from(["${", "}", "$", "\\", "{", "oc.env:HOME", "a", ".", ":", "'", '"', "\n", " "])
    ).map("".join),
    st.text(st.characters(blacklist_categories=["Cs"])),
    st.text("0123456789_.eE+-xob:naif", min_size=1, max_size=8),
)


@settings(max_examples=100, deadline=None)
@given(text=TEXTS)
def test_any_text_is_literal(text: str) -> None:
    """Whatever backslashes and braces it has."""
    found = read(dump({"a": literal(text), "b": [literal(text)], "c": {text: 1}}))
    assert found["a"] == text
    assert found["b"] == [text]
    assert list(found["c"]) == [text]
