"""``python -m tools.rehearsal``: predicted against measured step time of plans on emulated clusters.

Measures what hetplan's own commands measure, predicts, then trains for real; takes over an hour on two cores.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
from pathlib import Path

from planner.calibration.file import load_calibration, save_calibration
from planner.calibration.merge import merged
from planner.calibration.values import Calibration, Framework
from planner.cluster.file import load_cluster
from planner.cluster.spec import ClusterSpec
from planner.model.file import load_model
from planner.model.spec import ModelSpec
from tools.rehearsal.calibrating import measure_devices, measure_host, measure_layers, measure_networks
from tools.rehearsal.clusters import CLUSTERS, DEVICES, MODEL, Rehearsed, yaml_text
from tools.rehearsal.crossover import CLUSTER as CROSSOVER
from tools.rehearsal.crossover import cross
from tools.rehearsal.emulation import missing
from tools.rehearsal.rehearse import Measured, Row, rehearse
from tools.rehearsal.table import markdown

TARGETS = ("deepspeed", "torch")
"""Runtimes that train on processors."""
ON_PROCESSORS = Framework(overlap=0.0, link_utilisation=1.0, runtime_bytes=2**29)
"""A processor has no streams to hide communication in; curves measure the wire."""


def main() -> int:
    """Run what was asked; 0 also where the machine cannot do it, with the reason."""
    asked = _options()
    # What was started is cleaned up on the way out.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    why = missing()
    if why:
        print(f"rehearsal skipped: {why}", file=sys.stderr)  # noqa: T201
        return 0
    with tempfile.TemporaryDirectory(prefix="rehearsal-") as temporary:
        folder = asked.folder or Path(temporary)
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            print(f"--folder {folder}: {error.strerror}", file=sys.stderr)  # noqa: T201
            return 2
        if asked.crossover:
            print(_crossed(folder, asked.steps, asked.rounds))  # noqa: T201
            return 0
        known = DEVICES if asked.devices else CLUSTERS
        chosen = [cluster for cluster in known if not asked.cluster or cluster.name in asked.cluster]
        rows = [
            row
            for cluster in chosen
            for target in asked.target or TARGETS
            for row in _rehearsed(cluster, target, folder, Measured(steps=asked.steps, rounds=asked.rounds))
        ]
    print(markdown(rows))  # noqa: T201
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tools.rehearsal", description=__doc__)
    names = [cluster.name for cluster in CLUSTERS]
    parser.add_argument("--cluster", action="append", choices=names, help="this one only; may be given again")
    parser.add_argument(
        "--devices", action="store_true", help="single devices at several micro-batches instead"
    )
    parser.add_argument(
        "--crossover",
        action="store_true",
        help="two jobs on the same devices instead: alone, and both at once",
    )
    parser.add_argument("--target", action="append", choices=TARGETS, help="this runtime only")
    parser.add_argument("--steps", type=_number, default=4, help="measured steps of each run (4)")
    parser.add_argument("--rounds", type=_number, default=2, help="runs of each plan, in turns (2)")
    parser.add_argument(
        "--folder", type=Path, help="keep calibrations and launch folders here, and use them again"
    )
    asked = parser.parse_args()
    if asked.cluster and (asked.devices or asked.crossover):
        parser.error("--devices and --crossover have clusters of their own: expected no --cluster with them")
    if asked.devices and asked.crossover:
        parser.error("expected --devices or --crossover, not both")
    if asked.target and asked.crossover:
        parser.error("--crossover is trained by torch: expected no --target with it")
    return asked


def _number(text: str) -> int:
    """A number of steps or rounds; none would be found out after an hour of measuring."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number from 1, got {text!r}")
    return int(text)


def _rehearsed(cluster: Rehearsed, target: str, folder: Path, asked: Measured) -> list[Row]:
    spec, model, found = _calibrated(cluster, target, folder)
    return rehearse(cluster, target, spec, model, found, folder, asked, _tell)


def _calibrated(cluster: Rehearsed, target: str, folder: Path) -> tuple[ClusterSpec, ModelSpec, Calibration]:
    """The cluster and what was measured of it, now or before."""
    model_file = folder / "model.yaml"
    model_file.write_text(yaml_text(MODEL), encoding="utf-8")
    cluster_file, measured = folder / f"{cluster.name}.yaml", folder / f"{cluster.name}-calibration.yaml"
    if not measured.exists():
        _tell(f"{cluster.name}: calibrating")
        _calibrate(cluster, model_file, cluster_file, measured)
    spec, model, found = load_cluster(cluster_file), load_model(model_file), load_calibration(measured)
    if len(cluster.nodes) > 1 and not found.framework(target).micro_batch_launches:
        trial = measure_layers(cluster, target, spec, found, folder)
        _tell(f"{cluster.name}, {target}: layers take {trial.layer_factor:.3f} times as long as alone")
        found = merged(found, trial.measured())
        trial = measure_host(cluster, target, spec, found, folder)
        _tell(f"{cluster.name}, {target}: {trial.launches:.0f} launches for each micro-batch of a pipeline")
        found = merged(found, trial.measured())
        save_calibration(found, measured)
    return spec, model, found


def _crossed(folder: Path, steps: int, rounds: int) -> str:
    """Two jobs on the same devices, as a table."""
    spec, model, found = _calibrated(CROSSOVER, "torch", folder)
    return cross(spec, model, found, folder, steps=steps, rounds=rounds, tell=_tell).table()


def _calibrate(cluster: Rehearsed, model: Path, cluster_file: Path, output: Path) -> None:
    """Devices first: what they are goes into the cluster file that names the networks."""
    gpus, devices = measure_devices(cluster, model, output.parent)
    cluster_file.write_text(yaml_text(cluster.document(gpus)), encoding="utf-8")
    found = merged(devices, Calibration(frameworks={"deepspeed": ON_PROCESSORS, "torch": ON_PROCESSORS}))
    if len(cluster.nodes) > 1:
        networks = measure_networks(cluster, cluster_file, output.with_suffix(".network.yaml"))
        found = merged(found, networks)
    save_calibration(found, output)


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)  # noqa: T201


if __name__ == "__main__":
    sys.exit(main())
