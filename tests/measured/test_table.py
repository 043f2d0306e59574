"""Tables of the user's measured runs: good ones, and every kind of bad one."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.errors import SpecError
from planner.measured.table import COLUMNS, MeasuredRow, columns, load_table, parse_row
from planner.model.spec import DocumentsSpec, LoraSpec
from planner.ranges import BATCH, CARDS, DEVICES, FFN, HEADS, LAYERS, NODE_DEVICES, ROWS, WIDTH

GOOD = {
    "id": "a",
    "gpu": "A100-SXM-80GB",
    "gpus_per_node": "8",
    "intra_node": "nvlink3",
    "layers": "24",
    "hidden": "1024",
    "heads": "16",
    "vocab": "51200",
    "sequence_length": "1024",
    "global_batch": "64",
    "tp": "2",
    "pp": "2",
    "dp": "2",
    "micro_batch": "4",
    "step_seconds": "1.5",
}
"""A whole row of a user."""
CLUSTER = """\
name: lab
pools:
  - name: a100
    gpu: A100-SXM-80GB
    gpus_per_node: 8
    nodes: 1
    intra_node: nvlink3
"""
MODEL = """\
name: small
layers: 24
hidden: 1024
heads: 16
vocab: 51200
training: {sequence_length: 1024, global_batch: 64, precision: fp16}
"""


def write(folder: Path, *rows: dict[str, str], header: list[str] | None = None) -> Path:
    """A table of the rows."""
    path = folder / "runs.csv"
    names = header or list(dict.fromkeys(name for row in rows for name in row))
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, names, restval="")
        writer.writeheader()
        writer.writerows(rows)
    return path


def complaint(path: Path) -> str:
    """The one line that the table is refused with, without its folder."""
    with pytest.raises(SpecError) as caught:
        load_table(path)
    assert caught.value.exit_code == 2
    lines = str(caught.value).splitlines()
    assert len(lines) == 1, lines
    return lines[0].replace(f"{path.parent}/", "")


def test_a_short_row_takes_the_defaults(tmp_path: Path) -> None:
    """Source is the file's name, one stage and replica, biggest equal shares."""
    row = {**GOOD, "gpus_per_node": "", "pp": "", "dp": "", "micro_batch": "", "tp": "", "intra_node": ""}
    (item,) = load_table(write(tmp_path, row)).runs
    group = item.plan.stages[0].replicas[0]
    assert (item.source, item.reference, item.fits, item.devices) == ("runs", "", True, 1)
    assert (group.local_batch, group.accumulation_steps, item.plan.target, item.plan.zero) == (
        64,
        64,
        "megatron",
        0,
    )
    assert (item.model.kv_heads, item.model.head_dim, item.model.ffn) == (16, 64, 4096)
    assert item.model.training.precision == "bf16"


def test_columns_come_in_any_order_with_blank_lines(tmp_path: Path) -> None:
    """As spreadsheets save them: byte-order mark, CRLF, numbers with a fraction."""
    path = tmp_path / "runs.csv"
    names = list(reversed(GOOD))
    cells = [GOOD[name] + (".0" if name in ("tp", "layers") else "") for name in names]
    text = f"{','.join(names)}\r\n\r\n{','.join(cells)}\r\n,,,,,,,,,,,,,,\r\n"
    path.write_bytes(b"\xef\xbb\xbf" + text.encode())
    assert load_table(path).runs[0].plan.stages[0].replicas[0].tp == 2


def test_layers_of_stages(tmp_path: Path) -> None:
    """Their number is the depth."""
    path = write(tmp_path, {**GOOD, "pp": "", "stage_layers": "11 13"})
    assert [stage.layers for stage in load_table(path).runs[0].plan.stages] == [11, 13]


def test_packed_documents(tmp_path: Path) -> None:
    """Their mean length."""
    (run,) = load_table(write(tmp_path, {**GOOD, "document_tokens": "128"})).runs
    assert run.model.training.documents == DocumentsSpec(mean_length=128)


def test_adapters(tmp_path: Path) -> None:
    """Their rank, layers and base; a row that names a model file replaces those that the file has."""
    cells = {"lora_rank": "16", "lora_targets": "q_proj v_proj", "lora_base": "nf4", "target": "torch"}
    one = {name: GOOD[name] for name in GOOD if name not in ("tp", "pp")} | {"dp": "8", "micro_batch": "8"}
    lora = load_table(write(tmp_path, {**one, **cells})).runs[0].model.training.lora
    assert lora == LoraSpec(rank=16, targets=("q_proj", "v_proj"), base="nf4")
    (tmp_path / "model.yaml").write_text(MODEL[:-2] + ", lora: {rank: 4, base: nf4}}\n")
    shape = columns("model", "learned_positions")
    from_file = {name: cell for name, cell in one.items() if name not in shape} | {"model_file": "model.yaml"}
    for rank, read in (("", LoraSpec(rank=4, base="nf4")), ("8", LoraSpec(rank=8))):
        table = load_table(write(tmp_path, {**from_file, "target": "torch", "lora_rank": rank}))
        assert table.runs[0].model.training.lora == read


@pytest.mark.parametrize(
    ("cells", "reason"),
    [
        ({"inexpressible": "mixture of experts", "gpu": "TPU", "layers": ""}, "mixture of experts"),
        ({"micro_batch": "5"}, "the global batch 64 does not divide by dp x micro-batch 10"),
        ({"zero": "3"}, "megatron runs ZeRO 0, 1"),
        (
            {
                "gpu": "H100-SXM-80GB",
                "target": "torch",
                "pp": "1",
                "dp": "4",
                "precision": "fp8",
                "lora_rank": "8",
                "lora_base": "fp8",
            },
            "hetplan has no adapters on fp8 with torch, expected no base fp8",
        ),
        (
            {"target": "torch", "tp": "1", "dp": "8", "pp": "1", "micro_batch": "8", "cuda_graphs": "step"},
            "torch does not train with cuda_graphs step, it can: none",
        ),
        ({"tp": "16", "dp": "1", "pp": "1"}, "more devices than the cluster has"),
        ({"pp": "1", "stage_layers": "23"}, "the stages hold 23 layers, the model model has 24"),
        ({"interleave": "20"}, "interleave 20 needs"),
        ({"dp": "1000000"}, "the global batch 64 does not divide by dp x micro-batch 4000000"),
        ({"pp": "32", "tp": "1", "dp": "1"}, "32 stages for 24 layers"),
    ],
)
def test_what_cannot_be_a_run_is_skipped(tmp_path: Path, cells: dict[str, str], reason: str) -> None:
    """With the rule it breaks."""
    (item,) = load_table(write(tmp_path, {**GOOD, **cells})).skipped
    assert reason in item.reason
    assert (item.id, item.source) == ("a", "runs")


@pytest.mark.parametrize(
    ("cells", "line"),
    [
        (
            {"step_seconds": "-1"},
            "runs.csv:2: step_seconds: expected a number from 1e-12 to 1000000000, got -1",
        ),
        (
            {"step_seconds": "fast"},
            'runs.csv:2: step_seconds: expected a number from 1e-12 to 1000000000, got "fast"',
        ),
        (
            {"step_seconds": "nan"},
            'runs.csv:2: step_seconds: expected a number from 1e-12 to 1000000000, got "nan"',
        ),
        (
            {"step_seconds": ""},
            "runs.csv:2: step_seconds: missing, expected it, peak_memory_bytes, or fits no",
        ),
        ({"fits": "no"}, "runs.csv:2: step_seconds: given for a run that was out of memory (fits no)"),
        ({"fits": "maybe"}, 'runs.csv:2: fits: expected yes or no, got "maybe"'),
        ({"layers": "many"}, 'runs.csv:2: layers: expected a whole number from 1 to 10000, got "many"'),
        ({"layers": ""}, "runs.csv:2: layers: missing, expected a value or model_file"),
        ({"tp": "1.5"}, "runs.csv:2: tp: expected a whole number from 1 to 1000, got 1.5"),
        ({"zero": "4"}, "runs.csv:2: zero: expected a whole number from 0 to 3, got 4"),
        ({"gpu": ""}, "runs.csv:2: gpu: missing, expected a value or cluster_file"),
        ({"gpu": "A1000"}, 'runs.csv:2: gpu: expected a GPU of the catalogue, got "A1000"'),
        (
            {"intra_node": "nvlink9"},
            'runs.csv:2: intra_node: expected a link of the catalogue, got "nvlink9"',
        ),
        ({"intra_node": ""}, "runs.csv:2: intra_node: missing, the nodes have 8 devices"),
        ({"nodes": "2", "fabric": "roce"}, "runs.csv:2: nic_gbps: missing, the run has 2 nodes"),
        ({"nodes": "200000"}, "runs.csv:2: nodes: expected a whole number "),
        ({"pp": "1000000000"}, "runs.csv:2: pp: expected a whole number "),
        ({"dp": "1000000", "gpus_per_node": ""}, "runs.csv:2: nodes: 4000000 devices a node, expected"),
        ({"heads": "15"}, "runs.csv:2: heads: expected a divisor of hidden 1024, got 15"),
        ({"kv_heads": "5"}, "runs.csv:2: kv_heads: expected a divisor of heads 16, got 5"),
        (
            {"pp": "3", "stage_layers": "12 12"},
            "runs.csv:2: stage_layers: expected 3 numbers, one for each stage",
        ),
        (
            {"stage_layers": "12 x"},
            "runs.csv:2: stage_layers: expected whole numbers from 1 to 10000 separated",
        ),
        ({"lora_rank": "0"}, "runs.csv:2: lora_rank: expected a whole number from 1 to "),
        (
            {"lora_rank": "8", "lora_targets": "q_proj kv"},
            "runs.csv:2: lora_targets: expected linear layers (q_proj, ",
        ),
        (
            {"lora_rank": "8", "lora_targets": "q_proj gate_proj"},
            "runs.csv:2: lora_targets: the layers have no gate_proj, expected q_proj, ",
        ),
        (
            {"lora_rank": "8", "lora_base": "fp16"},
            "runs.csv:2: lora_base: expected bf16, nf4, nf4-double with precision bf16, got fp16",
        ),
        (
            {"lora_rank": "8", "lora_base": "fp8"},
            "runs.csv:2: lora_base: expected bf16, nf4, nf4-double with precision bf16, got fp8",
        ),
        ({"lora_base": "nf4"}, "runs.csv:2: lora_base: given without lora_rank"),
        ({"lora_targets": "q_proj"}, "runs.csv:2: lora_targets: given without lora_rank"),
        (
            {"lora_rank": "8", "optimizer": "muon"},
            "runs.csv:2: optimizer: expected adamw, sgd, lion or adafactor with lora_rank, got muon",
        ),
        ({"recompute": "some"}, "runs.csv:2: recompute: expected "),
        ({"cuda_graphs": "all"}, 'runs.csv:2: cuda_graphs: expected one of: none, layers, step, got "all"'),
        ({"precision": "int8"}, "runs.csv:2: precision: expected "),
        ({"target": "jax"}, "runs.csv:2: target: expected "),
        ({"model": "a b"}, "runs.csv:2: model: expected "),
        ({"id": ""}, "runs.csv:2: id: missing"),
        ({"cluster_file": "lab.yaml"}, "runs.csv:2: gpu: given beside cluster_file, expected one of the two"),
    ],
)
def test_a_bad_cell_is_one_line(tmp_path: Path, cells: dict[str, str], line: str) -> None:
    """Its file, line and column, what is wrong and what was expected."""
    row = {**GOOD, **cells}
    if "cluster_file" in cells:
        row.update(gpus_per_node="", intra_node="")
    assert complaint(write(tmp_path, row)).startswith(line)


def test_a_bad_cell_has_a_hint(tmp_path: Path) -> None:
    """The nearest names."""
    for cells, hint in (
        ({"gpu": "A100"}, "A100-SXM-40GB"),
        ({"gpu": "H100-SXM-81GB"}, "did you mean H100-SXM-80GB?"),
        ({"intra_node": "nvlnk3"}, "did you mean nvlink3?"),
        ({"stpe_seconds": "1"}, "did you mean step_seconds?"),
    ):
        with pytest.raises(SpecError) as caught:
            load_table(write(tmp_path, {**GOOD, **cells}))
        assert hint in str(caught.value.problems[0].hint)


def test_every_bad_cell_is_told_at_once(tmp_path: Path) -> None:
    """In the order of the lines."""
    path = write(tmp_path, {**GOOD, "tp": "x"}, {**GOOD, "id": "b", "dp": "0", "pp": "-1"})
    with pytest.raises(SpecError) as caught:
        load_table(path)
    assert [(item.line, item.key) for item in caught.value.problems] == [(2, "tp"), (3, "dp"), (3, "pp")]


def test_bad_files(tmp_path: Path) -> None:
    """Each is one line too."""
    path = tmp_path / "runs.csv"
    for content, line in (
        (b"", "runs.csv: the file is empty"),
        (b"\n \n", "runs.csv: the file is empty"),
        (b"id,gpu\n", "runs.csv: no run below the header"),
        (b"gpu\nT4\n", "runs.csv:1: id: missing, expected a column of unique names"),
        (b"id,gpus\na,8\n", 'runs.csv:1: unknown column "gpus"'),
        (b"id,gpu,gpu\na,T4,T4\n", "runs.csv:1: gpu: the column appears twice"),
        (b"id,gpu\na\n", "runs.csv:2: expected 2 cells like the header, got 1"),
        (b"id,gpu\na,T4,8\n", "runs.csv:2: expected 2 cells like the header, got 3"),
        (b'id,gpu\na,"T4\n', "runs.csv:2: not CSV: unexpected end of data"),
        (b"id,gpu\n\xff,T4\n", "runs.csv:2: is not UTF-8 text"),
    ):
        path.write_bytes(content)
        assert complaint(path) == line
    path.unlink()
    assert complaint(path) == "runs.csv: no such file"
    path.mkdir()
    assert complaint(path) == "runs.csv: is a directory, expected a CSV file"


def test_semicolons_are_recognised(tmp_path: Path) -> None:
    """What some spreadsheets write."""
    path = tmp_path / "runs.csv"
    path.write_text("id;gpu\na;T4\n")
    with pytest.raises(SpecError) as caught:
        load_table(path)
    assert caught.value.problems[0].hint == "separate the columns by commas"


def test_ids_are_unique(tmp_path: Path) -> None:
    """The second use names the first; quoted line breaks count."""
    path = write(tmp_path, {**GOOD, "reference": "two\nlines"}, GOOD)
    assert complaint(path) == 'runs.csv:4: id: "a" is already on line 2'


def files(folder: Path, **cells: str) -> Path:
    """A table beside a cluster, a model and a plan file, whose row names the files of ``cells``."""
    (folder / "lab.yaml").write_text(CLUSTER)
    (folder / "small.yaml").write_text(MODEL)
    (folder / "plan.yaml").write_text("tp: 2\npp: 2\ndp: 2\nmicro_batch: 4\nzero: 1\n")
    return write(folder, {"id": "a", "step_seconds": "2", **cells})


def test_rows_may_name_files(tmp_path: Path) -> None:
    """Relative to the table, whatever the working directory."""
    path = files(tmp_path, cluster_file="lab.yaml", model_file="small.yaml", plan_file="plan.yaml")
    (item,) = load_table(path).runs
    assert (item.cluster.name, item.model.name, item.plan.zero, item.plan.pp) == ("lab", "small", 1, 2)
    assert item.plan.stages[0].replicas[0].pool == "a100"


def test_columns_complete_files(tmp_path: Path) -> None:
    """The plan in columns, and another batch than the model file's."""
    path = files(
        tmp_path, cluster_file="lab.yaml", model_file="small.yaml", tp="4", dp="2", global_batch="32"
    )
    (item,) = load_table(path).runs
    assert item.model.training.global_batch == 32
    assert item.model.training.precision == "fp16"
    assert item.plan.stages[0].replicas[0].local_batch == 16


def test_bad_files_of_rows_are_told(tmp_path: Path) -> None:
    """A missing file by the cell that names it, a wrong one by its own line; broken rules skip the row."""
    path = files(tmp_path, cluster_file="none.yaml", model_file="small.yaml")
    assert complaint(path) == "runs.csv:2: cluster_file: none.yaml: no such file"
    path = files(tmp_path, cluster_file="small.yaml", model_file="small.yaml")
    with pytest.raises(SpecError, match=r"small\.yaml:"):
        load_table(path)
    path = files(tmp_path, cluster_file="lab.yaml", model_file="small.yaml", plan_file="plan.yaml")
    (tmp_path / "plan.yaml").write_text("tp: 2\npp: 2\ndp: 2\nzero: 3\n")
    assert "ZeRO" in load_table(path).skipped[0].reason
    (tmp_path / "lab.yaml").write_text(
        CLUSTER.replace("gpu: A100-SXM-80GB\n    gpus_per_node: 8", "devices: [T4, T4, A10]")
    )
    path = write(
        tmp_path, {"id": "a", "step_seconds": "2", "cluster_file": "lab.yaml", "model_file": "small.yaml"}
    )
    assert complaint(path) == "runs.csv:2: plan_file: missing, the cluster has several device types"


def test_equal_clusters_are_one(tmp_path: Path) -> None:
    """Also when only the plan tells the size of the nodes."""
    rows = [
        {**GOOD, "id": name, "gpus_per_node": "", "dp": dp}
        for name, dp in (("a", "2"), ("b", "2"), ("c", "1"))
    ]
    first, second, third = load_table(write(tmp_path, *rows)).runs
    assert first.cluster is second.cluster
    assert (len(first.cluster.pools[0].devices), len(third.cluster.pools[0].devices)) == (8, 4)


NUMBERS = {
    **{"nics": CARDS, "layers": LAYERS, "hidden": WIDTH, "heads": HEADS, "ffn": FFN, "vocab": ROWS},
    **{"global_batch": BATCH, "tp": NODE_DEVICES, "dp": DEVICES, "micro_batch": BATCH},
}


@given(
    counts=st.fixed_dictionaries(
        {name: st.integers(int(allowed.least), int(allowed.most)) for name, allowed in NUMBERS.items()}
    ),
    seconds=st.floats(1e-6, 1e9),
    size=st.floats(1, 1e15),
    layers=st.lists(st.integers(1, 10**4), min_size=1, max_size=20),
    switch=st.booleans(),
    text=st.text(st.characters(categories=("L", "N", "P")), min_size=1, max_size=20),
)
def test_what_is_written_is_read_back(
    counts: dict[str, int], seconds: float, size: float, layers: list[int], switch: bool, text: str
) -> None:
    """Numbers, lists, switches and texts pass through a row unchanged."""
    cells = {name: str(value) for name, value in counts.items()}
    cells |= {"id": text, "step_seconds": repr(seconds), "peak_memory_bytes": repr(size)}
    cells |= {"stage_layers": " ".join(map(str, layers)), "fits": "yes" if switch else "no"}
    row = parse_row(cells)
    assert isinstance(row, MeasuredRow)
    assert {name: getattr(row, name) for name in NUMBERS} == counts
    assert (row.step_seconds, row.peak_memory_bytes) == (seconds, size)
    assert (row.stage_layers, row.fits, row.id) == (tuple(layers), switch, text)


@settings(deadline=None)
@given(st.dictionaries(st.sampled_from(COLUMNS), st.text(max_size=10)))
def test_any_cells_are_read_or_refused(cells: dict[str, str]) -> None:
    """Nothing that a cell holds is a crash, and every complaint names a column."""
    found = parse_row(cells)
    if not isinstance(found, MeasuredRow):
        assert {column for column, _, _ in found} <= set(COLUMNS)
