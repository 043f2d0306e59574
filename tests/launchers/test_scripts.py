"""Every emitted script is sound, whatever the launcher."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from planner.cluster.spec import NicSpec
from planner.emit.interface import folder_files, job_of, write_folder
from planner.launchers.registry import LAUNCHERS
from tests.launchers.stand_ins import folder_of
from tests.launchers.test_engines import one_pool
from tests.runtimes.torch.test_titan import shaped
from tests.worlds import cluster, group, plan, pool

SHELLCHECK = Path(sys.executable).with_name("shellcheck")


def folder_by(tmp_path: Path, launcher: str) -> Path:
    """A folder that the launcher can start."""
    return folder_of(tmp_path, launcher, *(one_pool() if launcher in ("skypilot", "accelerate") else ()))


def scripts(folder: Path) -> list[str]:
    """Paths of all shell scripts."""
    return [str(path) for path in sorted(folder.rglob("*")) if path.suffix in (".sh", ".sbatch")]


@pytest.mark.parametrize("launcher", sorted(LAUNCHERS))
def test_scripts_parse(tmp_path: Path, launcher: str) -> None:
    """Bash reads them."""
    found = scripts(folder_by(tmp_path, launcher))
    assert {Path(path).name for path in found} >= {"launch.sh", "preflight.sh"}
    for path in found:
        subprocess.run(["bash", "-n", path], check=True)


def test_shellcheck_is_content(tmp_path: Path) -> None:
    """No warning of shellcheck; the files of env/, which are sourced, say that they are for bash."""
    folders = [folder_by(tmp_path / launcher, launcher) for launcher in sorted(LAUNCHERS)]
    content(path for folder in folders for path in scripts(folder))


def content(paths: Iterable[str], *options: str) -> None:
    """Shellcheck is, with each text once."""
    texts = {Path(path).read_text(): path for path in paths}
    if texts:
        command = [str(SHELLCHECK), *options, *texts.values()]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout


def folders(tmp_path: Path) -> Iterator[Path]:
    """A folder of each runtime and each library over one, on pools whose fabrics part."""
    apart = cluster(
        pool("a", "A100", 1, (NicSpec(fabric="ib", bandwidth_gbps=200, interface="ens1", hca="mlx5_0"),)),
        pool("b", "A100", 1, fabric="other"),
        fabrics={"other": "infiniband"},
    )
    for name, zero, library in (
        *(("megatron", 1, ()), ("megatron", 1, ("megatron-bridge", "a b"))),
        *(("torch", 1, ()), ("torch", 1, ("torchtitan", "a b")), ("flagscale", 0, ()), ("deepspeed", 1, ())),
    ):
        stages = [(group(each, "A100", tp=1, count=8, share=2, steps=2),) for each in ("a", "b")]
        chosen = plan(name, zero, [20, 12], stages)
        spec = shaped("llama3_8b", chosen.global_batch)
        folder = tmp_path / "-".join((name, *library[:1]))
        files = folder_files(job_of(chosen, apart, spec, library=library), "torchrun")
        write_folder(files, folder)
        yield folder


def test_every_runtime_writes_sound_scripts(tmp_path: Path) -> None:
    """Those that are sourced too, as bash."""
    found = {path for folder in folders(tmp_path) for path in scripts(folder)}
    sourced = {path for path in found if not Path(path).read_text().startswith("#!")}
    content(sorted(found - sourced))
    content(sorted(sourced), "-s", "bash")
