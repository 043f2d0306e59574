"""``hetplan emit --script``: a training script of the user's."""

from __future__ import annotations

from pathlib import Path

from tests.cli.running import Command, write_plan


def test_words_reach_the_launch_script(hetplan: Command, files: Path) -> None:
    """Words after ``--`` are the script's; a script in the folder is named within it."""
    write_plan(files / "plan.yaml")
    (files / "my train.py").write_text("")
    done = hetplan("emit", "plan.yaml", "-o", "run", "--script", "my train.py", "--", "--lr", "a b")
    assert done.code == 0, done.err
    text = (files / "run" / "launch.sh").read_text()
    assert f"local script='{files}/my train.py'" in text
    assert "--lr 'a b'" in text
    (files / "run" / "mine.py").write_text("")
    done = hetplan("emit", "plan.yaml", "-o", "run", "--force", "--script", "run/mine.py")
    assert done.code == 0, done.err
    assert "local script=mine.py\n" in (files / "run" / "launch.sh").read_text()


def test_what_is_not_there(hetplan: Command, files: Path) -> None:
    """No such file, or words without a script, are one error, and nothing is written."""
    write_plan(files / "plan.yaml")
    missing = hetplan("emit", "plan.yaml", "-o", "run", "--script", "none.py")
    assert missing.code == 2
    assert missing.err.startswith("error: --script: there is no file none.py")
    alone = hetplan("emit", "plan.yaml", "-o", "run", "--", "--lr", "1")
    assert alone.code == 2
    assert alone.err.startswith("error: arguments without a script: --lr 1")
    assert not (files / "run").exists()
