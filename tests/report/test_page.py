"""The page about a plan."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from planner.cli.app import run
from planner.cost.timeline import Lane, Span, Step
from planner.cost.values import CAUSES
from planner.field_metadata import text
from planner.plan.values import Plan, ReplicaGroup, Stage
from planner.report.numbers import time_unit
from planner.report.page import in_script, page
from planner.report.page.drawing import course, drawing_of, ticks, time_ticks, tornado
from tests import worlds
from tests.cli.running import write_plan
from tests.report import examples
from tests.report.pages import Reader, about, browsed, divided, needs_browser, plain

EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(2)> \u202e \x1b[31m {{ 7 * 7 }}"


def value_at(document: Any, key: str) -> Any:
    """``lanes.0.send_seconds`` of a document."""
    for part in key.split("."):
        document = document[int(part)] if isinstance(document, list) else document[part]
    return document


def embedded(shown: str) -> Any:
    """The document that a page holds."""
    _, _, after = shown.partition('<script type="application/json" id="document">')
    return json.loads(after.partition("</script>")[0])


@pytest.mark.parametrize("subject", [about(), plain(), divided()], ids=["full", "plain", "divided"])
def test_numbers_are_those_of_the_document(subject: Any) -> None:
    """Each number on the page has its key, and the document that the page holds is the one of --json."""
    shown = page(subject)
    document = json.loads(text(subject.document()))
    assert embedded(shown) == document
    found = Reader(shown).numbers
    assert {"step_seconds", "tokens_per_second", "mfu", "lanes.1.waiting_seconds"} <= set(found)
    for key, number in found.items():
        assert number == value_at(document, key), key


def test_every_cause_and_every_part_of_memory_has_a_colour() -> None:
    """Those of experts, divided sequences, stragglers, data and islands too."""
    shown = page(about())
    parts = set(re.findall(r'class="(m-\w+)"', shown))
    assert len(parts) == 8
    style = shown.partition("<style>")[2].partition("</style>")[0]
    coloured = " ".join(rule for rule in re.split("[}]", style) if "{ background: " in rule)
    assert [name for name in (*CAUSES, *parts) if not re.search(rf"\.{name}\b", coloured)] == []


def test_gradients_of_weights_that_are_computed_apart_have_their_column() -> None:
    """A backward pass is then what it has left."""
    found = Reader(page(divided())).numbers
    assert found["lanes.1.weights_seconds"] > 0
    assert found["lanes.1.backward_seconds"] > 0
    assert "lanes.1.weights_seconds" not in Reader(page(about())).numbers


def test_every_section_is_there() -> None:
    """With its heading; and the elements close in order."""
    read = Reader(page(about()))
    assert not read.unbalanced
    sections = [found["id"] for tag, found in read.elements if tag == "section" and "id" in found]
    assert sections == (
        [
            "answer",
            "cluster",
            "timeline",
            "time",
            "memory",
            "families",
            "search",
            "changes",
            "pareto",
            "compare",
            "measured",
            "inputs",
        ]
    )
    links = {found["href"] for tag, found in read.elements if tag == "a"}
    assert links == {f"#{name}" for name in sections}


def test_a_plan_by_hand_has_no_proof() -> None:
    """Sections without data are left out, and nothing is said of a bound."""
    read = Reader(page(plain()))
    sections = {found["id"] for tag, found in read.elements if tag == "section" and "id" in found}
    assert not sections & {"families", "search", "compare", "measured"}
    assert "bound_seconds" not in read.numbers


def test_a_stage_of_one_layer_names_it_once() -> None:
    """As the tables do."""
    drawn = page(about(examples.plan(31)))
    assert "layers 0-30, " in drawn
    assert "layers 31, " in drawn


def test_it_can_be_read_without_seeing_it() -> None:
    """Pictures have words, tables have headings, and the language is known."""
    read = Reader(page(about()))
    tags = [tag for tag, _ in read.elements]
    assert dict(read.elements)["html"]["lang"] == "en"
    assert tags.count("h1") == tags.count("main") == tags.count("nav") == 1
    pictures = [found for _, found in read.elements if found.get("role") == "img"]
    assert pictures
    assert all(found["aria-label"].strip() for found in pictures)
    assert all(
        found.get("role") == "img" or found.get("aria-hidden") == "true"
        for tag, found in read.elements
        if tag == "svg"
    )
    assert tags.count("thead") == tags.count("table") >= 6


def test_it_loads_nothing() -> None:
    """No address but places of its own, and a policy that forbids all others."""
    read = Reader(page(about()))
    for _, found in read.elements:
        assert "src" not in found
        assert found.get("href", "#").startswith(("#", "data:,"))
    policy = next(found["content"] for tag, found in read.elements if tag == "meta" and "http-equiv" in found)
    assert policy.startswith("default-src 'none'")


def test_names_out_of_files_stay_words() -> None:
    """Names, hosts and file names cannot add elements, run, or reorder what is read."""
    cluster = examples.cluster()
    pools = tuple(pool.model_copy(update={"hosts": (EVIL, *pool.hosts[1:])}) for pool in cluster.pools)
    model = examples.model().model_copy(update={"name": EVIL})
    subject = about(cluster=cluster.model_copy(update={"name": EVIL, "pools": pools}), model=model, name=EVIL)
    shown = page(subject)
    read = Reader(shown)
    assert [tag for tag, _ in read.elements].count("script") == 2
    assert not any(tag == "img" or "onerror" in found for tag, found in read.elements)
    assert not set(shown) & {"\u202e", "\x1b"}
    assert "{{ 7 * 7 }}" in read.text
    assert embedded(shown) == json.loads(text(subject.document()))


def test_json_in_a_script_element() -> None:
    """The same JSON, without what ends the element or opens a comment."""
    content = {"a": "</script><!-- & \u2028"}
    shown = in_script(json.dumps(content, ensure_ascii=False))
    assert not set(shown) & set("<>&\u2028")
    assert json.loads(shown) == content


def test_idle_devices_have_their_reason() -> None:
    """What the search said; else what the numbers say, else that the file does not say it."""
    subject = about()
    assert "idle: 4 V100 (v100): using them costs +7 %" in Reader(page(subject)).text
    cluster = subject.saved.cluster
    spare = cluster.pools[1].model_copy(update={"name": "spare", "hosts": ("spare-01",)})
    more = cluster.model_copy(update={"pools": (*cluster.pools, spare)})
    said = Reader(page(about(cluster=more))).text
    assert "idle: 8 V100 (spare): the plan file does not say why" in said


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It writes the page and prints one line, or the document."""
    plan, output = write_plan(tmp_path / "plan.yaml"), tmp_path / "page.html"
    assert run(["report", str(plan), "-o", str(output), "--tokens", "1T"]) == 0
    assert "a step" in " ".join(capsys.readouterr().out.split())
    assert run(["report", str(plan), "-o", str(output), "--compare", str(plan), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert embedded(output.read_text(encoding="utf-8")) == document
    assert len(document["compared"]) == 2
    assert document["pareto"] is None


def test_a_front_that_was_cut_off_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the page, also where it has no point, and in what the command says; after Ctrl-C with its exit code."""
    subject = about()
    assert "9 sub-clusters considered; 3 dominated or with idle devices" in Reader(page(subject)).text
    none = replace(examples.front(), points=(), worth=None)
    shown = Reader(page(replace(subject, front=none))).text
    assert "1 not searched." in shown
    assert "time x cost" not in shown
    monkeypatch.setattr("planner.cli.report.front_around", lambda *_, **__: replace(none, interrupted=True))
    plan, output = write_plan(tmp_path / "plan.yaml"), tmp_path / "page.html"
    assert run(["report", str(plan), "-o", str(output), "--pareto"]) == 130
    assert "! interrupted: 9 sub-clusters considered" in capsys.readouterr().out
    assert "Interrupted: 9 sub-clusters considered" in Reader(output.read_text(encoding="utf-8")).text


@pytest.mark.slow
def test_the_command_finds_the_front(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """And the page has it."""
    plan, output = write_plan(tmp_path / "plan.yaml"), tmp_path / "page.html"
    words = ["report", str(plan), "-o", str(output), "--pareto", "--time-limit", "10", "--json"]
    assert run(words) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["pareto"]["objective"] == "cost"
    assert any(point["front"] for point in document["pareto"]["points"])
    assert 'id="pareto"' in output.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--tokens", "many"], "--tokens: expected a number such as 300B"),
        (["--tokens", "1e99"], "--tokens: expected"),
        (["-o", "."], "is a directory"),
        (["--compare", "nothing.yaml"], "nothing.yaml"),
    ],
)
def test_bad_options(
    options: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One error, exit code 2."""
    plan = write_plan(tmp_path / "plan.yaml")
    assert run(["report", str(plan), "-o", str(tmp_path / "page.html"), *options]) == 2
    assert said in capsys.readouterr().err


def test_a_plan_whose_inputs_were_edited(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The digest shows it, and no page is written."""
    plan, output = write_plan(tmp_path / "plan.yaml"), tmp_path / "page.html"
    edited = plan.read_text(encoding="utf-8").replace("memory_gib: 40.0", "memory_gib: 80.0")
    plan.write_text(edited, encoding="utf-8")
    assert run(["report", str(plan), "-o", str(output)]) == 2
    assert "is not the one that the plan was made for" in capsys.readouterr().err
    assert not output.exists()


def large() -> Any:
    """131,072 devices in two pools, 64 stages of 64 micro-batches."""
    cluster, model = examples.cluster(), examples.model(global_batch=16_384)
    first = cluster.pools[0].model_copy(update={"devices": ("A100",) * 8})
    pools = tuple(
        first.model_copy(update={"name": name, "hosts": tuple(f"{name}-{n:04d}" for n in range(8192))})
        for name in ("east", "west")
    )
    group = ReplicaGroup(pool="east", gpu="A100", tp=8, count=256, local_batch=64, accumulation_steps=64)
    halves = [group] * 32 + [replace(group, pool="west")] * 32
    stages = tuple(Stage(first_layer=n, end_layer=n + 1, replicas=(each,)) for n, each in enumerate(halves))
    plan = Plan(target="megatron", zero=1, stages=stages)
    return about(
        plan,
        cluster.model_copy(update={"pools": pools}),
        model.model_copy(update={"layers": 64, "heads": 32, "kv_heads": 32}),
    )


def test_the_largest_clusters_fit_a_page() -> None:
    """131,072 devices are put together until the page is small; the step is drawn in slices."""
    subject = large()
    assert subject.saved.plan.devices == 131_072
    shown = page(subject)
    assert len(shown.encode()) < 6e6
    read = Reader(shown)
    assert not read.unbalanced
    assert "slices of time" in read.text
    assert "256 x east-0000 .. east-0255" in read.text


def test_slices_hold_what_spans_hold() -> None:
    """The areas of a lane by kind are its seconds, and no slice is more than full."""
    spans = [
        Span("forward" if n % 2 else "backward", n / 1000, (n + 0.75) / 1000, critical=n == 5)
        for n in range(4000)
    ]
    lane = Lane(stage=0, group=None, spans=tuple(spans), collectives=0.0)
    drawing = drawing_of(Step(seconds=4.0, lanes=(lane,)))
    assert drawing.slices is not None
    (strip,) = drawing.strips
    for kind, path in strip.paths:
        pieces = re.findall(r"M(\d+) (\d+)h(\d+)v(\d+)h-\d+z", path)
        assert all(int(top) >= 0 and int(top) + int(height) <= 100 for _, top, _, height in pieces)
        area = sum(int(wide) * int(height) for _, _, wide, height in pieces) / 1e6
        assert area == pytest.approx(lane.seconds(kind) / 4.0, abs=0.02)  # type: ignore[arg-type]
    assert strip.critical.count("M") == 1


def test_round_marks() -> None:
    """Along an axis."""
    marks = time_ticks(6.32, time_unit([6.32]))
    assert [tick.text for tick in marks if not tick.fine] == ["0 s", "2 s", "4 s", "6 s"]
    assert [tick.text for tick in marks if tick.fine][:3] == ["0.2 s", "0.4 s", "0.6 s"]
    assert len({tick.text for tick in marks}) == len(marks)
    assert list(ticks(0.25)) == pytest.approx([0, 0.05, 0.1, 0.15, 0.2, 0.25])


def test_a_tornado_of_decisions() -> None:
    """Each decision has its best, its worst and what does not fit, from the plan's step; all are in the document."""
    subject = about()
    read = Reader(page(subject))
    shown = {int(key.split(".")[1]) for key in read.numbers if key.startswith("neighbours.")}
    around = subject.around
    words = {entry.decision.split()[0] for entry in around}
    assert len(words) > 3
    for word in words:
        own = [number for number, entry in enumerate(around) if entry.decision.split()[0] == word]
        seconds = {number: around[number].scored.estimate.step_seconds for number in own}
        fitting = [number for number in own if around[number].scored.estimate.fits]
        assert {seconds[number] for number in shown & set(own)} >= {
            min(seconds.values()),
            max(seconds.values()),
        }
        assert min(seconds[number] for number in fitting or own) in {
            seconds[each] for each in shown & set(own)
        }


def test_limits_of_a_training() -> None:
    """The page draws the deadline beside the time, says that it is missed, likewise the budget."""
    subject = about()
    read = Reader(page(subject))
    assert read.numbers["deadline_seconds"] == 1e6 < subject.training.seconds
    assert "above the deadline" in read.text
    assert "misses the deadline" in read.text
    assert read.numbers["budget"] == 1e5
    assert "within the budget" in read.text
    unpriced = Reader(page(replace(subject, training=replace(subject.training, price=None))))
    assert "has no price to set against the budget" in unpriced.text
    assert "budget" not in unpriced.numbers
    endless = Reader(page(replace(subject, training=replace(subject.training, seconds=float("inf")))))
    assert "deadline_seconds" not in endless.numbers
    assert "the training misses the deadline" in endless.text
    late = replace(subject, goal=replace(subject.goal, deadline_seconds=2 * subject.training.seconds))
    said = Reader(page(late)).text
    assert "within the deadline" in said
    assert "misses the deadline" not in said


def test_lines_of_a_search() -> None:
    """The best falls and the bound rises in steps, each from where it is known to the end, never past the other."""
    drawn = course([(1.0, 12.0, 0.0), (2.0, 12.0, 8.0), (4.0, 10.0, 10.0)], time_unit([10.0]))
    assert [x for x, _ in drawn.best] == sorted(x for x, _ in drawn.best)
    assert [y for _, y in drawn.best] == sorted((y for _, y in drawn.best), reverse=True)
    assert [y for _, y in drawn.bound] == sorted(y for _, y in drawn.bound)
    assert drawn.bound[0][0] == pytest.approx(2 * drawn.best[0][0])
    assert drawn.best[-1] == drawn.bound[-1]
    assert course([(1.0, 12.0, 0.0)], time_unit([12.0])).bound == ()


def test_bars_of_a_tornado() -> None:
    """From the plan's step to that of the other, within the room; what moves the step most comes first."""
    quick, slow, lost = (
        (0, "fastest", "a", -0.2, False),
        (1, "best", "b", 0.1, True),
        (2, "worst", "c", 9.0, True),
    )
    drawn = tornado([("small", [slow]), ("large", [quick, slow, lost])], 0.3)
    assert [row.name for row in drawn.decisions] == ["large", "small"]
    left, right, far = drawn.decisions[0].ends
    assert left.low + left.width == pytest.approx(drawn.zero) == right.low == far.low
    assert left.width == pytest.approx(2 * right.width)
    assert (drawn.high - drawn.low) == pytest.approx(6 * right.width)
    assert far.beyond
    assert far.low + far.width == pytest.approx(1)
    assert [left.beyond, right.beyond, left.fits] == [False, False, False]
    assert [tick.text for tick in drawn.ticks if tick.at == pytest.approx(drawn.zero)] == ["this plan"]
    assert not tornado([("none", [(0, "best", "a", 0.0, True)])], 0.1).decisions[0].ends[0].width


CUT = """<script>
addEventListener("load", () => {
  const cut = [...document.querySelectorAll(".team")].filter(each => each.scrollWidth > each.clientWidth + 1);
  const wide = document.documentElement.scrollWidth > innerWidth;
  document.body.dataset.cut = `${cut.length} of ${document.querySelectorAll(".team").length}, ${wide}`;
});
</script>"""
"""Says how many teams of devices are cut off at their side, and whether the page is wider than its window."""


@needs_browser
def test_no_device_is_cut_off_on_a_phone(tmp_path: Path) -> None:
    """A replica of 16 devices is wider than the window: it goes on below."""
    where = worlds.cluster(worlds.pool("a", "A100", 1, per_node=16))
    subject = about(worlds.plan("megatron", 1, [4], [(worlds.group("a", "A100", tp=16, count=1),)]), where)
    path = tmp_path / "page.html"
    open_to_scripts = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", page(subject))
    path.write_text(open_to_scripts.replace("</body>", f"{CUT}</body>"), encoding="utf-8")
    seen = browsed(path, tmp_path, "--window-size=360,800")
    assert re.findall(r'data-cut="([^"]*)"', seen.dom) == ["0 of 1, false"]


@needs_browser
@pytest.mark.parametrize("flags", [("--window-size=390,844",), ("--window-size=1440,900",)])
def test_in_a_browser(flags: tuple[str, ...], tmp_path: Path) -> None:
    """No complaint on the console, the script has run, and the numbers in the DOM are those of the document."""
    subject, path = about(), tmp_path / "page.html"
    path.write_text(page(subject), encoding="utf-8")
    seen = browsed(path, tmp_path, *flags)
    assert not seen.console
    read = Reader(seen.dom)
    save = next(found for tag, found in read.elements if found.get("id") == "save")
    assert "hidden" not in save
    document = json.loads(text(subject.document()))
    assert len(read.numbers) > 20
    for key, number in read.numbers.items():
        assert number == value_at(document, key), key
