"""``hetplan init``."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from planner.cluster.file import load_cluster
from planner.model.file import load_model
from tests.cli.running import Command

WORDS = ("--gpu", "A100-SXM-80GB", "--nodes", "2", "--gpus-per-node", "4", "--intra-node", "nvlink3")
NETWORK = (
    "--network",
    "infiniband",
    "--bandwidth-gbps",
    "200",
    "--cards",
    "4",
    "--price",
    "2",
    "--model",
    "llama_7b",
)


def test_options_alone(hetplan: Command, tmp_path: Path) -> None:
    """Both files load, and the next command names them."""
    done = hetplan("init", tmp_path, *WORDS, *NETWORK)
    assert (done.code, done.err) == (0, "")
    (pool,) = load_cluster(tmp_path / "cluster.yaml").pools
    assert (len(pool.hosts), pool.devices, pool.nics[0].count) == (2, ("A100-SXM-80GB",) * 4, 4)
    assert pool.price_per_gpu_hour == 2
    assert load_model(tmp_path / "model.yaml").name == "llama_7b"
    again = hetplan("init", tmp_path, *WORDS, *NETWORK)
    assert (again.code, "exists already" in again.err) == (2, True)


def test_a_new_folder_is_made(hetplan: Command, tmp_path: Path) -> None:
    """As ``examples --copy`` does; a file in its place is an error."""
    done = hetplan("init", tmp_path / "lab" / "first", *WORDS, *NETWORK)
    assert (done.code, done.err) == (0, "")
    assert {each.name for each in (tmp_path / "lab" / "first").iterdir()} == {"cluster.yaml", "model.yaml"}
    (tmp_path / "file").touch()
    refused = hetplan("init", tmp_path / "file", *WORDS, *NETWORK)
    assert (refused.code, "is a file, expected a folder" in refused.err) == (2, True)


def test_questions(hetplan: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What options leave open is asked on a terminal."""

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr("sys.stdin", Terminal("1\n\nllama_7b\n"))
    done = hetplan("init", tmp_path, "--gpu", "L4")
    assert (done.code, done.err) == (0, "")
    (pool,) = load_cluster(tmp_path / "cluster.yaml").pools
    assert (len(pool.hosts), pool.devices) == (1, ("L4",))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ("--nodes", "2"),
            "there is no terminal to ask on: expected --gpu, --bandwidth-gbps, --model\n  hint: ",
        ),
        (
            (*WORDS, *NETWORK[:-1], "llama_8b"),
            "--model: no example and no file 'llama_8b'\n  hint: did you mean ",
        ),
        (
            (*WORDS[2:], *NETWORK, "--gpu", "Foo"),
            'error: --gpu: no GPU is known as "Foo"\n  hint: hetplan gpus lists the names\n',
        ),
        (
            (*WORDS[2:], *NETWORK, "--gpu", "H100"),
            "H100-PCIe-80GB, H100-NVL-94GB\n  hint: write one of them\n",
        ),
        (
            (*WORDS[:-1], "nvlnk3", *NETWORK),
            'error: --intra-node: no link is known as "nvlnk3"\n  hint: did you mean nvlink3?\n',
        ),
        (
            (*WORDS, "--network", "ethernt", *NETWORK[2:]),
            "error: --network: expected one of: nvlink, infiniband, roce, ethernet, "
            'got "ethernt"\n  hint: did you mean',
        ),
    ],
)
def test_bad_answers(hetplan: Command, tmp_path: Path, words: tuple[str, ...], message: str) -> None:
    """Nothing is written, and the error names the option: there is no file yet."""
    done = hetplan("init", tmp_path / "lab", *words)
    assert (done.code, done.out) == (2, "")
    assert message in done.err
    assert list(tmp_path.iterdir()) == []


def test_a_configuration_that_is_none_leaves_no_files(hetplan: Command, tmp_path: Path) -> None:
    """It is read before anything is written, so that the same folder takes the next answers."""
    config = tmp_path / "config.json"
    config.write_text('{"model_type": "llama", "hidden_size": -4}')
    folder = tmp_path / "lab"
    folder.mkdir()
    done = hetplan("init", folder, *WORDS, *NETWORK[:-1], config)
    assert (done.code, done.out) == (2, "")
    assert "hidden_size: expected a whole number from 1 to 1000000, got -4" in done.err
    assert list(folder.iterdir()) == []


def test_numbers_of_the_cluster_have_ranges(hetplan: Command, tmp_path: Path) -> None:
    """The error names the option, not a line of a file that does not exist yet."""
    done = hetplan("init", tmp_path, *WORDS, *NETWORK, "--price", "-1")
    assert (done.code, done.out) == (2, "")
    assert done.err == "error: --price: expected a number from 0 to 1e+06, got -1\n"
