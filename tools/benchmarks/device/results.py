"""What was measured, kept in a folder: every run as it comes, and the rows and the cluster made from all of them."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from planner import catalog
from planner.files.writing import dump, write_whole
from planner.measure.backend import Backend
from planner.measure.fits import Peaks
from planner.measured.table import COLUMNS
from planner.units import gib_from_bytes
from tools.benchmarks.training import Configuration, Trained

COMMAND = "python -m tools.benchmarks.device"
OWN = ("device", "driver", "torch", "threads", "clock")
"""Facts that runs in one folder must share."""
_SHAPE = (
    *("layers", "hidden", "heads", "kv_heads", "head_dim", "ffn"),
    *("gated_mlp", "vocab", "tied_embeddings", "learned_positions"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One configuration: the cells of its row that tell what was trained, and what was measured."""

    cells: dict[str, Any]
    trained: Trained | None
    """None when it was out of memory."""


class Results:
    """The runs of one device in one folder."""

    def __init__(self, folder: Path, gpu: str, facts: dict[str, str]) -> None:
        self.folder, self.gpu = folder, gpu
        self.facts = {key: facts[key] for key in OWN if key in facts}
        self.runs: dict[str, Result] = {}
        self.limits: dict[str, int] = {}
        """Largest micro-batch that trains, by model and recomputation."""
        folder.mkdir(parents=True, exist_ok=True)

    @property
    def rows(self) -> Path:
        """The table of measured runs."""
        return self.folder / "rows.csv"

    @property
    def calibration(self) -> Path:
        """The device's calibration."""
        return self.folder / "calibration.yaml"

    def load(self) -> None:
        """What an earlier run left; ends the program when it was another device or software."""
        path = self.folder / "runs.json"
        if not path.is_file():
            return
        found = json.loads(path.read_text(encoding="utf-8"))
        if found["facts"] != self.facts or found["gpu"] != self.gpu:
            raise SystemExit(
                f"{path}: measured with {found['facts']}, now {self.facts}: name another folder -o"
            )
        self.limits = found["limits"]
        for name, run in found["runs"].items():
            trained = None if run["trained"] is None else Trained(**run["trained"])
            self.runs[name] = Result(cells=run["cells"], trained=trained)

    def add(self, asked: Configuration, trained: Trained | None) -> None:
        """Keep one run."""
        self.runs[self.id_of(asked)] = Result(cells=self._cells(asked), trained=trained)
        self.write()

    def write(self) -> None:
        """The folder's files as they are now."""
        document = {
            "gpu": self.gpu,
            "facts": self.facts,
            "limits": self.limits,
            "runs": {name: asdict(run) for name, run in self.runs.items()},
        }
        write_whole(json.dumps(document, indent=1) + "\n", self.folder / "runs.json", "runs.json")
        if self.runs:
            write_whole(self._table(), self.rows, "rows.csv")

    def write_cluster(self, backend: Backend, peaks: Peaks) -> None:
        """A cluster of the one device, for a kind that no catalogue has."""
        if _in_catalogue(self.gpu):
            return
        kind = {
            "memory_gib": round(gib_from_bytes(backend.memory_bytes()), 3),
            "memory_bandwidth_gBps": float(f"{peaks.memory_bytes_per_second / 1e9:.5g}"),
            "tflops": {name: float(f"{rate / 1e12:.5g}") for name, rate in sorted(peaks.flops.items())},
            "family": backend.family,
            "source": COMMAND,
        }
        intra = {"bandwidth_gBps": 15.75, "latency_us": 5.7}  # one device: carries nothing
        pool = {"name": "pool", "gpu": self.gpu, "gpus_per_node": 1, "nodes": 1, "intra_node": intra}
        document = {"name": "one-device", "gpus": {self.gpu: kind}, "pools": [pool]}
        write_whole(dump(document), self.folder / "cluster.yaml", "cluster.yaml")

    def id_of(self, asked: Configuration) -> str:
        """Unique among the runs of all devices."""
        training = asked.model.training
        how = f"mb{asked.micro_batch}x{asked.micro_batches}-{asked.recompute}"
        return f"{self.gpu}-{asked.model.name}-{training.precision}-{how}"

    def _cells(self, asked: Configuration) -> dict[str, Any]:
        model, training = asked.model, asked.model.training
        there = {"gpu": self.gpu} if _in_catalogue(self.gpu) else {"cluster_file": "cluster.yaml"}
        date = datetime.now(UTC).date().isoformat()
        return {
            "source": f"device-{self.gpu}",
            "reference": f"{COMMAND}, torch {self.facts['torch']}, {date}",
            "stack": f"torch {self.facts['torch']}",
            **there,
            "model": model.name,
            **{key: getattr(model, key) for key in _SHAPE},
            **{key: value for key, value in training.model_dump().items() if key in COLUMNS},
            "cross_entropy": training.cross_entropy or "chunked",  # as the examples have it
            "target": "torch",
            "micro_batch": asked.micro_batch,
            "recompute": asked.recompute,
        }

    def _table(self) -> str:
        text = io.StringIO()
        writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
        writer.writeheader()
        for name, run in self.runs.items():
            cells = {"id": name, **run.cells, **_measured(run.trained)}
            writer.writerow({key: _written(value) for key, value in cells.items()})
        return text.getvalue()


def _measured(trained: Trained | None) -> dict[str, Any]:
    if trained is None:
        return {"fits": False}
    return {
        "step_seconds": f"{trained.step_seconds:.6g}",
        "peak_memory_bytes": round(trained.peak_bytes),
        "peak_memory_of": "tensors",
        "fits": True,
    }


def _written(value: Any) -> Any:
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else value


def _in_catalogue(name: str) -> bool:
    return name in catalog.gpu_names()
