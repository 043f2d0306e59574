"""Which models of the installed transformers hetplan reads, as docs/model_types.md: ``python -m tools.model_types``.

Every type that one of these automatic classes builds is made with its default shape on the meta device, which
takes two minutes, and its parameters are compared with those that hetplan reads out of its ``config.json``.
"""

from __future__ import annotations

import json
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
import transformers

from planner.errors import SpecError
from planner.model.file import load_model

CLASSES = {
    "AutoModelForCausalLM": "decoders",
    "AutoModelForSeq2SeqLM": "encoder-decoders, and text behind sound",
    "AutoModelForMaskedLM": "encoders",
    "AutoModelForSpeechSeq2Seq": "speech to text",
    "AutoModelForImageTextToText": "images to text",
    "AutoModelForImageClassification": "images",
    "AutoModelForCTC": "sound",
    "AutoModelForZeroShotImageClassification": "images next to texts",
    "AutoModelForSequenceClassification": "classifiers of texts",
}
PAGE = Path(__file__).parents[1] / "docs" / "model_types.md"
MOST_SECONDS = 60


class Found(NamedTuple):
    """One type by one class."""

    outcome: str
    """``exact``, ``refused``, ``wrong``, or ``not built`` where transformers cannot make its default."""
    what: str = ""


def found(kind: str, auto: str) -> Found:
    """What becomes of a type's default configuration."""
    try:
        made = transformers.models.auto.configuration_auto.CONFIG_MAPPING[kind]
        # Its modules are imported ahead of the time that it has, which is that of the processor.
        getattr(transformers, auto)._model_mapping[made]
        signal.setitimer(signal.ITIMER_PROF, MOST_SECONDS)
        config = made()
        with torch.device("meta"):
            built = getattr(transformers, auto).from_config(config)
    # Whatever a default lacks ends in an error of its own.
    except Exception as error:
        return Found("not built", type(error).__name__)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    values = {**json.loads(config.to_json_string(use_diff=False)), "architectures": [type(built).__name__]}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.json"
        path.write_text(json.dumps(values))
        try:
            read = load_model(path).parameters
        except SpecError as error:
            first = error.problems[0]
            return Found("refused", f"`{first.key}`: {first.what}")
    difference = read - sum(parameter.numel() for parameter in built.parameters())
    return Found("wrong", f"{difference:+d}") if difference else Found("exact")


def survey() -> Iterator[tuple[str, str, Found]]:
    """(class, type, what became of it) of all."""
    for auto in CLASSES:
        for kind in getattr(transformers, auto)._model_mapping._model_mapping:
            yield auto, kind, found(kind, auto)


def page(rows: list[tuple[str, str, Found]]) -> str:
    """The page."""
    lines = [
        "# Model types",
        "",
        f"Every type that transformers {transformers.__version__} trains by one of these classes, with its default",
        "shape: what hetplan makes of its `config.json` next to the parameters that transformers itself counts on the",
        "meta device. `python -m tools.model_types` writes this page anew.",
        "",
        "| | types | exact | refused | wrong | default not built |",
        "|---|---|---|---|---|---|",
    ]
    for auto, words in CLASSES.items():
        counts = Counter(each.outcome for name, _, each in rows if name == auto)
        shown = (str(counts[name]) for name in ("exact", "refused", "wrong", "not built"))
        lines.append(f"| {words} (`{auto}`) | {counts.total()} | {' | '.join(shown)} |")
    lines += [
        "",
        "What is refused says which key and why. A type whose default transformers cannot build is read where its",
        "keys are given; some are in `tests/model/test_counts.py` with such keys.",
        "",
    ]
    for auto, words in CLASSES.items():
        mine = [(kind, each) for name, kind, each in rows if name == auto]
        exact = ", ".join(sorted(kind for kind, each in mine if each.outcome == "exact"))
        lines += [f"## {words[0].upper()}{words[1:]}", "", f"Exact: {exact}.", ""]
        whys: dict[str, list[str]] = {}
        for kind, each in sorted(mine):
            if each.outcome != "exact":
                why = each.what.replace(f'the model type "{kind}"', "the type")
                why = f"{each.outcome}{', ' + why if why else ''}"
                whys.setdefault(why.split(" is not supported")[0], []).append(kind)
        lines += ["| not exact | types |", "|---|---|"]
        lines += [f"| {why} | {', '.join(kinds)} |" for why, kinds in whys.items()]
        lines.append("")
    return "\n".join(lines)


def _stop(*_: Any) -> None:
    raise TimeoutError


def main() -> None:
    """Write the page; exit with 1 where a count is wrong."""
    transformers.logging.set_verbosity_error()
    signal.signal(signal.SIGPROF, _stop)
    rows = list(survey())
    PAGE.write_text(page(rows), encoding="utf-8")
    wrong = [f"{kind} {each.what}" for _, kind, each in rows if each.outcome == "wrong"]
    if wrong:
        sys.exit(f"wrong: {', '.join(wrong)}")


if __name__ == "__main__":
    main()
