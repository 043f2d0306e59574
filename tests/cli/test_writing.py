"""Commands that check files, describe them, and write launch folders."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest
import yaml

from planner.cli.output import typed
from planner.launchers.registry import LAUNCHERS
from tests.cli.running import CLUSTER, MODEL, Command, write_plan


def test_check_prints_what_was_understood(hetplan: Command, files: Path) -> None:
    """Totals, formats, links, next command; a model is optional."""
    done = hetplan("check", "cluster.yaml")
    assert (done.code, done.err) == (0, "")
    assert done.out == (
        "Inputs\n"
        "  cluster  tiny: 2 nodes, 4 devices, 112 GiB, 2 GiB kept free per device\n"
        "           fast: 1 x 2 A100-SXM-40GB (40 GiB), 300 GB/s inside, 100 Gbit/s ib\n"
        "           slow: 1 x 2 V100-SXM-16GB (15.78 GiB), 150 GB/s inside, 100 Gbit/s ib\n"
        "\n"
        "Devices (memory and dense peak per device)\n"
        "                                usable       bf16       fp16       fp32\n"
        "  pool  device         devices   (GiB)  (TFLOP/s)  (TFLOP/s)  (TFLOP/s)\n"
        "  ─────────────────────────────────────────────────────────────────────\n"
        "  fast  A100-SXM-40GB    1 x 2    38.0        312        312       19.5\n"
        "  slow  V100-SXM-16GB    1 x 2    13.8          -        125       15.7\n"
        "  total: 4 devices, 104 GiB usable, bf16 0.624 PFLOP/s, fp16 0.874 PFLOP/s, fp32\n"
        "  0.0704 PFLOP/s\n"
        "\n"
        "Links: one node to another (GB/s, path)\n"
        "  pool    fast    slow\n"
        "  ────────────────────\n"
        "  fast   300 b  12.5 a\n"
        "  slow  12.5 a   150 b\n"
        "  a  ib (infiniband, 2 µs)\n"
        "  b  inside the one node of the pool\n"
        "\n"
        "Next: hetplan search cluster.yaml MODEL -o plan.yaml\n"
    )


ALONE = """\
  - name: alone
    gpu: A100-SXM-40GB
    hosts: [far-away]
    gpus_per_node: 1
    nics: [{fabric: far, bandwidth_gbps: 10}]
fabrics:
  far: {kind: ethernet}
"""


def test_check_warns_of_what_will_hurt(hetplan: Command, files: Path) -> None:
    """A number format that a device lacks, a pool without a path to the others; in both forms."""
    (files / "model.yaml").write_text(MODEL.replace("fp16", "bf16"))
    (files / "cluster.yaml").write_text(CLUSTER.replace("fabrics:\n", ALONE))
    done = hetplan("check", "cluster.yaml", "model.yaml")
    assert (done.code, done.err) == (0, "")
    assert "! V100-SXM-16GB (slow) does not support bf16 and stays idle; it supports" in done.out
    assert "! slow and alone share no fabric and no link: no plan can use both in one job" in done.out
    found = json.loads(hetplan("check", "cluster.yaml", "model.yaml", "--json").out)
    assert len(found["warnings"]) == 3
    unlinked = {"between": ["slow", "alone"], "path": None, "bytes_per_second": None, "latency_seconds": None}
    assert unlinked in found["links"]


@pytest.mark.parametrize(("name", "text"), [("cluster", CLUSTER), ("model", MODEL)])
def test_schemas_accept_what_the_program_accepts(hetplan: Command, files: Path, name: str, text: str) -> None:
    """The schema is for editors; it knows our files."""
    done = hetplan("schema", name)
    assert (done.code, done.err) == (0, "")
    jsonschema.validate(yaml.safe_load(text), json.loads(done.out))


def test_emit_writes_a_folder(hetplan: Command, files: Path) -> None:
    """Files by name, what to read next; a used folder needs --force."""
    write_plan(Path("plan.yaml"))
    done = hetplan("emit", "plan.yaml", "-o", "run")
    assert done.code == 0
    assert done.out.startswith("Wrote ")
    assert " for megatron to run\n" in done.out
    assert "\n  README.md, args.sh, " in done.out
    assert done.out.endswith("Next: read run/README.md\n")
    assert (files / "run" / "README.md").is_file()
    again = hetplan("emit", "plan.yaml", "-o", "run")
    assert (again.code, again.out) == (2, "")
    assert "--force" in again.err
    found = json.loads(hetplan("emit", "plan.yaml", "-o", "run", "--force", "--json").out)
    assert (found["target"], found["folder"]) == ("megatron", "run")
    assert "README.md" in found["files"]


def test_emit_says_what_was_edited(hetplan: Command, files: Path) -> None:
    """Edited files are kept, and named on stderr or among the warnings."""
    write_plan(Path("plan.yaml"))
    again = ("emit", "plan.yaml", "-o", "run", "--force")
    assert hetplan(*again[:-1]).code == 0
    (files / "run" / "nodes.txt").write_text("mine")
    done = hetplan(*again)
    assert done.code == 0
    assert "nodes.txt was edited: it is now nodes.txt.edited" in done.err
    assert (files / "run" / "nodes.txt.edited").read_text() == "mine"
    assert "edited" not in hetplan(*again).err
    (files / "run" / "nodes.txt").write_text("mine")
    assert "now nodes.txt.edited-2" in json.loads(hetplan(*again, "--json").out)["warnings"][0]


def test_emit_does_not_follow_a_link(hetplan: Command, files: Path) -> None:
    """One error, and nothing is written where the link points."""
    write_plan(Path("plan.yaml"))
    (files / "victim").mkdir()
    (files / "run").mkdir()
    (files / "run" / "env").symlink_to("../victim")
    done = hetplan("emit", "plan.yaml", "-o", "run", "--force")
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("error: run: not written by hetplan, and in the way of its files: env\n")
    assert list((files / "victim").iterdir()) == []
    assert [path.name for path in (files / "run").iterdir()] == ["env"]


def test_emit_refuses_an_unknown_launcher(hetplan: Command, files: Path) -> None:
    """Exit 2, nothing written."""
    write_plan(Path("plan.yaml"))
    done = hetplan("emit", "plan.yaml", "-o", "run", "--launcher", "magic")
    assert (done.code, done.out) == (2, "")
    assert "magic" in done.err
    assert not Path("run").exists()


@pytest.mark.parametrize(
    ("launcher", "file"), [("slurm", "job.sbatch"), ("kubernetes", "pytorchjob.yaml"), ("ssh", "start.sh")]
)
def test_emit_for_a_launcher(hetplan: Command, files: Path, launcher: str, file: str) -> None:
    """Each launcher has its file, and every folder looks at the nodes."""
    write_plan(Path("plan.yaml"))
    done = hetplan("emit", "plan.yaml", "-o", "a run", "--launcher", launcher)
    assert done.code == 0
    for name in (file, "preflight.sh", "launch.sh"):
        assert (files / "a run" / name).is_file()


def test_emit_names_the_rule_of_a_launcher(hetplan: Command, files: Path) -> None:
    """What a launcher cannot start is refused before anything is written."""
    write_plan(Path("plan.yaml"))
    done = hetplan("emit", "plan.yaml", "-o", "run", "--launcher", "deepspeed")
    assert (done.code, done.out) == (2, "")
    assert "starts plans for the target deepspeed, this one is for megatron" in done.err
    assert not Path("run").exists()


def test_emit_compares_the_files_at_hand(hetplan: Command, files: Path) -> None:
    """A plan for other files is refused with the fields that differ; for these files it is written."""
    assert (
        hetplan("search", "cluster.yaml", "model.yaml", "--target", "megatron", "-o", "plan.yaml").code == 0
    )
    given = ("--cluster", "cluster.yaml", "--model", "model.yaml")
    assert hetplan("emit", "plan.yaml", "-o", "run", *given).code == 0
    (files / "cluster.yaml").write_text(CLUSTER.replace("nodes: 1", "hosts: [real-one]", 1))
    (files / "model.yaml").write_text(MODEL.replace("global_batch: 16", "global_batch: 32"))
    done = hetplan("emit", "plan.yaml", "-o", "other", *given)
    assert (done.code, done.out) == (2, "")
    assert "pools[fast].hosts is ['fast-0'] in the plan, ['real-one'] in cluster.yaml" in done.err
    assert "training.global_batch is 16 in the plan, 32 in model.yaml" in done.err
    assert "hint: search again" in done.err
    assert not Path("other").exists()


def test_a_schema_of_another_file(hetplan: Command) -> None:
    """The files that have one are named."""
    done = hetplan("schema", "log")
    assert (done.code, done.out) == (2, "")
    expected = "cluster, model, plan, calibration, offers, grid or jobs, or a command"
    said, hint, _ = done.err.split("\n")
    assert said == f"error: schema: expected {expected}, got 'log'"
    assert hint.startswith("  hint: or a command with --json: search, ")


def test_emit_warns_of_versions_and_of_hosts(
    hetplan: Command, files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Versions on stderr, placeholders under the files; both in the JSON document."""
    monkeypatch.setattr("planner.cli.emit.installed_versions", lambda _: {"torch": "1.0"})
    assert (
        hetplan("search", "cluster.yaml", "model.yaml", "--target", "megatron", "-o", "plan.yaml").code == 0
    )
    done = hetplan("emit", "plan.yaml", "-o", "run", "--launcher", "ssh")
    assert done.code == 0
    assert "torch 1.0 is installed here" in done.err
    assert "fast-0" not in done.err
    assert "  ! name the nodes before you start: fast-0 is a placeholder\n" in done.out
    again = ("emit", "plan.yaml", "-o", "run", "--force", "--json")
    found = json.loads(hetplan(*again, "--launcher", "ssh").out)
    assert any("torch 1.0" in line for line in found["warnings"])
    assert found["placeholder_hosts"] == ["fast-0"]
    assert json.loads(hetplan(*again).out)["placeholder_hosts"] == []


def test_help_names_every_launcher(hetplan: Command) -> None:
    """The option's help is in step with the launchers."""
    words = set(hetplan("emit", "--help").out.replace(",", " ").replace(".", " ").split())
    assert set(LAUNCHERS) <= words


@pytest.mark.parametrize("option", ["--cluster", "--model"])
def test_emit_with_a_file_that_is_not_there(hetplan: Command, files: Path, option: str) -> None:
    """The file is named, and nothing written."""
    write_plan(Path("plan.yaml"))
    done = hetplan("emit", "plan.yaml", "-o", "run", option, "gone.yaml")
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("error: gone.yaml")
    assert not Path("run").exists()


def test_a_model_of_the_hub_is_typed_as_it_was_named() -> None:
    """A path has lost one of its slashes."""
    assert typed("hetplan", "check", Path("my lab.yaml"), Path("hf://org/name@v2")) == (
        "hetplan check 'my lab.yaml' hf://org/name@v2"
    )
