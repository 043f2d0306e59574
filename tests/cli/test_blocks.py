"""Models of blocks of several layers: what plans count of them is called so."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.running import MODEL, SHORT_PLAN, Command

BLOCK = "block: [{layers: 2, feed_forward: none}, {layers: 1}]\n"


@pytest.mark.parametrize(("block", "unit", "other"), [("", "layers", "blocks"), (BLOCK, "blocks", "layers")])
def test_stages_hold_layers_or_blocks(
    files: Path, hetplan: Command, block: str, unit: str, other: str
) -> None:
    """On the terminal, in the folder's README and on the page."""
    (files / "of-blocks.yaml").write_text(f"{MODEL}{block}")
    (files / "torch.yaml").write_text(SHORT_PLAN.replace("megatron", "torch"))
    asked = ("cluster.yaml", "of-blocks.yaml")
    for command in (
        ("predict", *asked, "torch.yaml", "-o", "plan.yaml"),
        ("explain", "plan.yaml"),
        ("show", "plan.yaml"),
        ("search", *asked, "--target", "torch", "--pp", "2"),
        ("search", *asked, "--target", "torch", "--pp", "2", "-v"),
    ):
        heads = [line.split()[1] for line in hetplan(*command).out.splitlines() if line[:9] == "  stage  "]
        assert heads, command
        assert set(heads) == {unit}, command
    hetplan("emit", "plan.yaml", "-o", "run")
    assert f"| stage | {unit} | pool" in (files / "run" / "README.md").read_text()
    hetplan("report", "plan.yaml", "-o", "page.html")
    page = (files / "page.html").read_text()
    assert f"{unit} 3-5, 2 V100" in page
    assert f"{other} 3-5, 2 V100" not in page
