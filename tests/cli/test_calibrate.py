"""``hetplan calibrate``, and commands that take a calibration."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from planner.calibration.file import load_calibration, save_calibration
from planner.calibration.merge import merged
from planner.calibration.values import ASSUMED, Calibration, Constant, GpuFamily, LayerPoint, LinkPoint
from planner.cli.inputs import read_calibration
from planner.files.document import read_document
from planner.plan.file import UsedCalibration, read, write
from tests.calibration.test_tables import LAYERS, LINKS
from tests.cli.running import CLUSTER, MODEL, Command

SLOW = Calibration(
    families={name: GpuFamily(matmul_efficiency=0.01) for name in ("A100", "V100")},
    notes="slow",
)


@pytest.fixture
def tables(files: Path) -> Path:
    """Two tables of measurements and a calibration file."""
    (files / "layers.csv").write_text(LAYERS)
    (files / "links.csv").write_text(LINKS)
    save_calibration(SLOW, files / "slow.yaml")
    return files


@contextmanager
def piped(path: Path) -> Iterator[str]:
    """The name of a pipe that gives the bytes of a file once."""
    reader, writer = os.pipe()
    with os.fdopen(writer, "wb") as file:
        file.write(path.read_bytes())
    yield f"/dev/fd/{reader}"
    os.close(reader)


def test_tables_become_a_calibration_file(hetplan: Command, tables: Path) -> None:
    """What was written, and how to use it."""
    done = hetplan("calibrate", "import", "--layers", "layers.csv", "--links", "links.csv", "-o", "c.yaml")
    assert (done.code, done.err) == (0, "")
    assert done.out == (
        "Wrote 4 measured points to c.yaml\n"
        "  - layers of opt-350m on A100-SXM-80GB, tp 1: 2 micro-batches\n"
        "  - all-reduce of 8 over node:A100-SXM-80GB: 2 sizes\n"
        "\n"
        "Next: hetplan search CLUSTER MODEL --calibration c.yaml\n"
    )
    again = ("calibrate", "import", "--layers", "layers.csv", "-o", "again.yaml", "--json")
    document = json.loads(hetplan(*again).out)
    assert (document["file"], document["layer_points"], document["link_points"]) == ("again.yaml", 2, 0)
    found = load_calibration(tables / "c.yaml")
    assert (len(found.layers), len(found.link_points)) == (2, 2)
    assert found.provenance == {
        "command": "hetplan calibrate import",
        "layers": "layers.csv",
        "links": "links.csv",
    }


def test_a_file_in_use_needs_force(hetplan: Command, tables: Path) -> None:
    """As a launch folder does."""
    done = hetplan("calibrate", "import", "--layers", "layers.csv", "-o", "slow.yaml")
    assert (done.code, done.out) == (2, "")
    assert done.err == (
        "error: slow.yaml: exists already\n  hint: name another file, or add --force to replace it\n"
    )
    assert load_calibration(tables / "slow.yaml") == SLOW
    assert hetplan("calibrate", "import", "--layers", "layers.csv", "-o", "slow.yaml", "--force").code == 0
    assert load_calibration(tables / "slow.yaml").families == {}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "error: calibrate import: expected --layers FILE, --links FILE, or both\n"),
        (("--layers", "no.csv"), "error: no.csv: no such file\n"),
        (("--links", "layers.csv"), "error: layers.csv:1: activation_bytes: unknown column\n"),
        (("--layers", "layers.csv", "-o", "."), "error: .: is a directory\n"),
        (("--layers", "layers.csv", "-o", "no/c.yaml"), "error: no/c.yaml: the folder no does not exist\n"),
    ],
)
def test_what_cannot_be_imported(
    hetplan: Command, tables: Path, arguments: tuple[str, ...], message: str
) -> None:
    """Exit 2, nothing written."""
    output = () if "-o" in arguments else ("-o", "c.yaml")
    done = hetplan("calibrate", "import", *arguments, *output)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith(message)
    assert not Path("c.yaml").exists()


def test_problems_of_both_tables_come_at_once(hetplan: Command, tables: Path) -> None:
    """With the line of each."""
    (tables / "layers.csv").write_text(LAYERS.replace("0.001", "x"))
    (tables / "links.csv").write_text(LINKS.replace("0.0001", "-1"))
    done = hetplan("calibrate", "import", "--layers", "layers.csv", "--links", "links.csv", "-o", "c.yaml")
    assert "error: layers.csv:2: forward_seconds: " in done.err
    assert "error: links.csv:2: seconds: " in done.err


def test_the_group_alone_shows_its_help(hetplan: Command) -> None:
    """Like the command itself."""
    assert "import" in hetplan("calibrate", "--help").out


def test_the_users_file_wins_over_the_shipped_one(tables: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Constant by constant."""
    base = Calibration(families={"A100": GpuFamily(memory_efficiency=0.9)})
    monkeypatch.setattr("planner.cli.inputs.shipped", lambda: base)
    assert read_calibration(None) is base
    found = read_calibration(Path("slow.yaml"))
    assert found == merged(base, SLOW)
    assert found.family("A100") == GpuFamily(matmul_efficiency=0.01, memory_efficiency=0.9)


def step_seconds(hetplan: Command, *arguments: str) -> float:
    """The predicted step."""
    done = hetplan("predict", "cluster.yaml", "model.yaml", "short.yaml", "--json", *arguments)
    assert (done.code, done.err) == (0, "")
    return float(json.loads(done.out)["step_seconds"])


def test_predict_takes_a_calibration(hetplan: Command, tables: Path) -> None:
    """Slow devices take longer; the report says where the numbers are from."""
    assert step_seconds(hetplan, "--calibration", "slow.yaml") > 2 * step_seconds(hetplan)
    save_calibration(ASSUMED, tables / "nothing.yaml")
    assert step_seconds(hetplan, "--calibration", "nothing.yaml") == step_seconds(hetplan)


def test_a_calibration_that_cannot_be_used(hetplan: Command, tables: Path) -> None:
    """Exit 2 with file, line and key."""
    Path("bad.yaml").write_text("format: hetplan-calibration/1\nfamilies: {A100: {matmul_efficiency: 7}}\n")
    done = hetplan("predict", "cluster.yaml", "model.yaml", "short.yaml", "--calibration", "bad.yaml")
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith(
        "error: bad.yaml:2: families.A100.matmul_efficiency: expected a number from 0.000001 to 1"
    )


def test_plans_remember_their_calibration(hetplan: Command, tables: Path) -> None:
    """In their file; other commands warn when they price without it."""
    options = ("--calibration", "slow.yaml", "--gap", "0.5", "--target", "deepspeed")
    done = hetplan("search", "cluster.yaml", "model.yaml", "-o", "plan.yaml", *options)
    assert (done.code, done.err) == (0, "")
    used = read(Path("plan.yaml")).calibration
    assert used is not None
    assert used == UsedCalibration(name="slow.yaml", digest=used.digest)
    for command in (("explain",), ("show",), ("compare", "--baselines")):
        without = hetplan(*command, "plan.yaml")
        assert without.err == (
            f"warning: plan.yaml: found with the calibration slow.yaml ({used.digest}), "
            "priced here without it: add --calibration slow.yaml\n"
        )
        assert hetplan(*command, "plan.yaml", "--calibration", "slow.yaml").err == ""
    save_calibration(ASSUMED, tables / "other.yaml")
    assert (
        "priced here with another other.yaml ("
        in hetplan("show", "plan.yaml", "--calibration", "other.yaml").err
    )


def test_a_proof_with_other_constants_is_left_out(hetplan: Command, tables: Path) -> None:
    """It says nothing of the plan as it is priced without them; with them it is told."""
    options = ("--calibration", "slow.yaml", "--gap", "0.5", "--target", "deepspeed")
    assert hetplan("search", "cluster.yaml", "model.yaml", "-o", "plan.yaml", *options).code == 0
    for command in ("explain", "show"):
        assert "best plan of this space" not in " ".join(hetplan(command, "plan.yaml").out.split())
        told = hetplan(command, "plan.yaml", "--calibration", "slow.yaml").out
        assert "best plan of this space" in " ".join(told.split())
    assert hetplan("report", "plan.yaml", "-o", "page.html").code == 0
    assert "best plan of this space" not in Path("page.html").read_text()
    document = json.loads(hetplan("explain", "plan.yaml", "--json").out)
    assert (document["gap"], document["bound_seconds"], document["alternatives"]) == (None, None, [])
    assert hetplan("search", "cluster.yaml", "model.yaml", "-o", "plan.yaml", *options[2:]).code == 0
    priced = hetplan("explain", "plan.yaml", "--calibration", "slow.yaml")
    assert priced.err.startswith(
        "warning: plan.yaml: found without a calibration file, priced here with slow.yaml ("
    )
    assert "best plan of this space" not in " ".join(priced.out.split())


def test_a_proof_of_an_older_version_is_left_out(hetplan: Command, tables: Path) -> None:
    """Whose constants made another step of the same plan."""
    assert hetplan("search", "cluster.yaml", "model.yaml", "-o", "plan.yaml", "--gap", "0.5").code == 0
    assert hetplan("explain", "plan.yaml").err == ""
    saved = read(Path("plan.yaml"))
    assert saved.summary is not None
    write(replace(saved, summary=replace(saved.summary, step_seconds=7.5)), Path("plan.yaml"))
    done = hetplan("explain", "plan.yaml")
    assert done.err.startswith("warning: plan.yaml: 7.5 s a step by the constants it was found with, ")
    assert "best plan of this space" not in " ".join(done.out.split())


def test_show_takes_a_calibration_too(hetplan: Command, tables: Path) -> None:
    """As text and as a document; a broken one is refused as a calibration."""
    done = hetplan("show", "slow.yaml")
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith("Calibration slow.yaml\n")
    assert done.out.endswith("Next: hetplan search CLUSTER MODEL --calibration slow.yaml\n")
    document = json.loads(hetplan("show", "slow.yaml", "--json").out)
    assert (document["command"], document["coverage"]) == ("show calibration", None)
    (tables / "old.yaml").write_text("format: hetplan-calibration/0\n")
    assert "this hetplan reads hetplan-calibration/1" in hetplan("show", "old.yaml").err


def test_show_knows_a_calibration_in_any_form(hetplan: Command, tables: Path) -> None:
    """JSON with the format behind much else, a byte order mark, a long comment ahead."""
    text = (tables / "slow.yaml").read_text()
    found = read_document(tables / "slow.yaml").data
    (tables / "slow.json").write_text(json.dumps({"notes": "n" * 9000, **dict(reversed(found.items()))}))
    (tables / "mark.yaml").write_bytes(b"\xef\xbb\xbf" + text.encode())
    (tables / "long.yaml").write_text(f"# {'c' * 9000}\n{text}")
    for name in ("slow.json", "mark.yaml", "long.yaml"):
        done = hetplan("show", name)
        assert (done.code, done.err) == (0, "")
        assert done.out.startswith(f"Calibration {name}\n")


def test_files_may_be_pipes(hetplan: Command, tables: Path) -> None:
    """As of ``<(command)``: the plan file keeps the digest of what came out of them."""
    with piped(tables / "model.yaml") as model, piped(tables / "slow.yaml") as slow:
        words = ("predict", "cluster.yaml", model, "short.yaml", "--calibration", slow, "-o", "plan.yaml")
        assert hetplan(*words).code == 0
    used = read(Path("plan.yaml")).calibration
    assert used is not None
    assert used.digest == hashlib.sha256((tables / "slow.yaml").read_bytes()).hexdigest()[:16]
    with piped(tables / "plan.yaml") as plan, piped(tables / "slow.yaml") as slow:
        assert "Memory per device" in hetplan("show", plan).out
        assert hetplan("show", slow).out.startswith("Calibration ")


def test_show_says_what_a_cluster_and_a_model_lack(hetplan: Command, tables: Path) -> None:
    """The tables are of opt-350m on an A100 of 80 GB; the cluster has other devices."""
    hetplan("calibrate", "import", "--layers", "layers.csv", "--links", "links.csv", "-o", "c.yaml")
    (tables / "big.yaml").write_text(CLUSTER.replace("A100-SXM-40GB", "A100-SXM-80GB"))
    (tables / "opt.yaml").write_text(MODEL.replace("small", "OPT_350M"))
    options = ("c.yaml", "--cluster", "big.yaml", "--model", "opt.yaml")
    rows = json.loads(hetplan("show", *options, "--json").out)["coverage"]
    found = {(row["part"], row["what"]): (row["state"], row["detail"]) for row in rows}
    assert found["A100-SXM-80GB", "layers, tp 1"] == ("measured", "micro-batch 1, 2")
    assert found["V100-SXM-16GB", "layers"][0] == "missing"
    assert found["A100-SXM-80GB", "matmul"][0] == "fitted"
    # Both run Megatron-Core's kernels.
    assert found["flagscale", "runtime bytes"] == found["megatron", "runtime bytes"]
    assert found["megatron", "runtime bytes"][0] == "fitted"
    assert found["A100-SXM-80GB", "matmul"][1].endswith(", built in")
    assert found["node:A100-SXM-80GB", "all-reduce"] == ("measured", "8 devices")
    assert found["node:A100-SXM-80GB", "all-gather, reduce-scatter, send"][0] in ("fitted", "assumed")
    assert "all operations" in {what for part, what in found if part == "ib"}
    done = hetplan("show", *options)
    assert (done.code, done.err) == (0, "")
    assert "What tiny and OPT_350M need of it" in done.out
    assert done.out.endswith("Next: hetplan search big.yaml opt.yaml --calibration c.yaml\n")
    assert "missing" not in hetplan("show", "c.yaml", "--cluster", "big.yaml").out


def test_show_divides_a_shared_bus(hetplan: Command, tables: Path) -> None:
    """A rate inside a node is that of the file by the link utilisation, and by the devices that share it."""
    hetplan("calibrate", "import", "--links", "links.csv", "-o", "c.yaml")
    (tables / "bus.yaml").write_text(CLUSTER.replace("intra_node: nvlink2", "intra_node: pcie3"))
    rows = json.loads(hetplan("show", "c.yaml", "--cluster", "bus.yaml", "--json").out)["coverage"]
    detail = next(row["detail"] for row in rows if row["part"] == "node:V100-SXM-16GB")
    found = re.fullmatch(
        r"(\S+) GB/s of the cluster file's (\S+) GB/s for (\d+) devices at once: link utilisation (\S+) .*",
        detail,
    )
    assert found is not None, detail
    rate, nominal, together, share = map(float, found.groups())
    assert together > 1
    assert rate == pytest.approx(nominal / together * share, rel=0.01)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("slow.yaml", "--model", "model.yaml"), "--model: expected --cluster FILE with it"),
        (("slow.yaml", "--cluster", "none.yaml"), "none.yaml: no such file"),
        (
            ("short.yaml", "--cluster", "cluster.yaml"),
            "--cluster and --model: expected a calibration file, short.yaml is not one",
        ),
    ],
)
def test_what_cannot_be_shown(
    hetplan: Command, tables: Path, arguments: tuple[str, ...], message: str
) -> None:
    """One line, exit code 2."""
    done = hetplan("show", *arguments)
    assert (done.code, done.out) == (2, "")
    assert done.err.splitlines()[0] == f"error: {message}"


def point(gpu: str, model: str, source: str) -> LayerPoint:
    """A measured layer."""
    return LayerPoint(
        gpu=gpu, model=model, tp=1, micro_batch=1, forward_seconds=1e-3, backward_seconds=2e-3, source=source
    )


@pytest.mark.usefixtures("without_reasons")
def test_a_calibration_of_something_else_is_used_with_a_warning(hetplan: Command, tables: Path) -> None:
    """One for each: the model's shape, versions of torch, devices and fabrics of other clusters."""
    shape = "hidden 512, heads 8/8, ffn 2048, sequence 512, fp16, flash"
    links = tuple(
        LinkPoint(link="roce", operation="send", members=2, size_bytes=size, seconds=size)
        for size in (1.0, 2.0)
    )
    shares = tuple(
        Constant(name=f"families.{family}.matmul_efficiency", value=0.5, provenance="measured", source=source)
        for family, source in (("A100", "one"), ("T4", "one"))
    )
    own = Calibration(
        families={"A100": GpuFamily(matmul_efficiency=0.5), "T4": GpuFamily(matmul_efficiency=0.5)},
        constants=shares,
        layers=(point("A100-SXM-40GB", "small", "one"), point("T4", "small", "two")),
        link_points=links,
        sources={
            "one": {
                "torch": "2.5.0",
                "precision": "bf16",
                "model.small": shape.replace("sequence 512, fp16", "sequence 2048, bf16"),
            },
            "two": {"torch": "2.7.0", "model.small": shape},
        },
    )
    save_calibration(own, tables / "c.yaml")
    expected = [
        "its layers of small were measured with sequence 2048, bf16, but the model has sequence 512, fp16: they are "
        "used anyway",
        "its efficiencies for A100 were fitted to bf16 kernels, but the model uses fp16: they are used anyway, "
        "hetplan calibrate device --model fits them anew",
        "its points were measured with different versions of torch, 2.5.0 and 2.7.0: they are used together anyway",
        "was measured on T4, which tiny does not have",
        "was measured over roce, which tiny does not have",
    ]
    hetplan(
        *("search", "cluster.yaml", "model.yaml", "--target", "deepspeed", "-o", "plan.yaml"),
        *("--calibration", "c.yaml"),
    )
    for command in (
        ("predict", "cluster.yaml", "model.yaml", "short.yaml"),
        ("search", "cluster.yaml", "model.yaml", "--target", "deepspeed"),
        ("explain", "plan.yaml"),
        ("show", "plan.yaml"),
        ("compare", "plan.yaml", "plan.yaml"),
    ):
        done = hetplan(*command, "--calibration", "c.yaml")
        assert done.code == 0
        assert done.err.splitlines() == [f"warning: c.yaml: {line}" for line in expected], command
    save_calibration(Calibration(layers=(point("A100-SXM-40GB", "bert", ""),)), tables / "c.yaml")
    done = hetplan("predict", "cluster.yaml", "model.yaml", "short.yaml", "--calibration", "c.yaml")
    assert done.err == "warning: c.yaml: has layers of bert and none of small: formulas price those\n"
