"""What a newcomer asks first: which names there are, and what to try them on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from planner.catalog import gpu_names, link_names
from planner.cluster.file import load_cluster
from planner.examples import examples
from planner.model.file import load_model
from tests.cli.running import ROOT, Command, separately
from tests.quick import first


def test_all_devices_and_links_are_listed(hetplan: Command) -> None:
    """Each on a row of its own, at 80 columns, and in the documents."""
    shown = hetplan("gpus").out
    assert max(map(len, shown.splitlines())) <= 80
    assert [line.split()[0] for line in shown.splitlines()[4:] if line.startswith("  ")][:-1] == list(
        gpu_names()
    )
    assert {entry["name"] for entry in json.loads(hetplan("gpus", "--json").out)["gpus"]} == set(gpu_names())
    listed = hetplan("links").out
    assert all(f"\n  {name} " in listed for name in link_names())
    assert {entry["name"] for entry in json.loads(hetplan("links", "--json").out)["links"]} == set(
        link_names()
    )


def test_one_device_by_any_of_its_names(hetplan: Command) -> None:
    """Its sources, and what is assumed of it."""
    by_driver = hetplan("gpus", "NVIDIA H100 80GB HBM3")
    assert by_driver.out.startswith("H100-SXM-80GB\n")
    assert "source of tflops" in by_driver.out
    assert hetplan("gpus", "p40").out.count("~22.38 GiB") == 1
    assert [entry["name"] for entry in json.loads(hetplan("gpus", "v100s", "--json").out)["gpus"]] == [
        "V100S-PCIe-32GB"
    ]


def test_the_begin_of_a_name_lists_what_begins_so(hetplan: Command) -> None:
    """Four A100."""
    found = json.loads(hetplan("gpus", "a100", "--json").out)["gpus"]
    assert [entry["name"] for entry in found] == [name for name in gpu_names() if name.startswith("A100-")]
    found = json.loads(hetplan("gpus", "rtx", "--json").out)["gpus"]
    assert [entry["name"] for entry in found] == [name for name in gpu_names() if name.startswith("RTX-")]
    assert hetplan("gpus", "p4").code == 2


@pytest.mark.parametrize(
    ("name", "hint"), [("H200X", "did you mean H200"), ("zzz", "hetplan gpus lists all"), ("", "lists all")]
)
def test_an_unknown_device(hetplan: Command, name: str, hint: str) -> None:
    """The nearest names."""
    done = hetplan("gpus", name)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith(f"error: no device {name!r} in the catalogue\n")
    assert hint in done.err


def test_a_device_that_no_target_runs_on(hetplan: Command) -> None:
    """Said so, without a name that only looks alike."""
    done = hetplan("gpus", "gaudi2")
    assert (done.code, done.out) == (2, "")
    assert done.err == (
        "error: no device 'gaudi2' in the catalogue: no target runs on Intel Gaudi\n"
        "  hint: to compare plans alone, write its numbers under gpus: in the file\n"
    )


def test_examples_are_those_of_the_repository() -> None:
    """All of them, each with a first line that says what it is."""
    found = {example.path: example for example in examples()}
    on_disk = {
        f"{folder}/{path.name}"
        for folder in ("cluster_specs", "model_specs", "job_specs")
        for path in (ROOT / folder).glob("*.yaml")
    }
    assert set(found) == on_disk
    assert all(example.about and not example.about.startswith("#") for example in found.values())


def test_copied_examples_can_be_used(hetplan: Command, tmp_path: Path) -> None:
    """In an empty folder; a second time only with --force."""
    assert "cluster_specs/lab.yaml" in hetplan("examples").out
    done = hetplan("examples", "--copy", tmp_path)
    assert done.code == 0
    assert "Next:" in done.out
    assert load_cluster(tmp_path / "cluster_specs" / "lab.yaml").name == "lab"
    assert load_model(tmp_path / "model_specs" / "gpt2_345m.yaml").name == "gpt2_345m"
    again = hetplan("examples", "--copy", tmp_path)
    assert again.code == 2
    assert "exists already" in again.err
    document = json.loads(hetplan("examples", "--copy", tmp_path, "--force", "--json").out)
    assert document["folder"] == str(tmp_path)
    assert len(document["examples"]) == len(list(examples()))


def test_examples_where_no_folder_can_be(hetplan: Command, tmp_path: Path) -> None:
    """One error."""
    (tmp_path / "file").write_text("", encoding="utf-8")
    done = hetplan("examples", "--copy", tmp_path / "file")
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith(f"error: {tmp_path / 'file'}: cannot be written: ")


@pytest.mark.parametrize(
    ("words", "number", "found"),
    first(
        1,
        [
            ("hetplan search --ta", "2", "--target"),
            ("hetplan s", "1", "search\nshare\nsweep\nshow\nschema"),
            ("hetplan calibrate f", "2", "fit"),
        ],
    ),
)
def test_shells_complete_commands_and_options(words: str, number: str, found: str) -> None:
    """As the script asks that --show-completion prints."""
    done = separately(_HETPLAN_COMPLETE="complete_bash", COMP_WORDS=words, COMP_CWORD=number)
    assert (done.code, done.out.strip()) == (0, found)
