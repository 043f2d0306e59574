"""The ``--json`` documents and their dictionary."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, get_args, get_type_hints

import jsonschema
import pytest

from planner.calibration.values import ASSUMED, Calibration, Constant
from planner.catalog import gpu, link
from planner.cli.catalogue import ExamplesDocument, Listed
from planner.cli.schema import DOCUMENTS, document_schema
from planner.cli.sweep import SweepDocument
from planner.cluster.topology import Topology
from planner.cost.convergence import Convergence, CriticalBatch
from planner.cost.failures import Interruptions
from planner.cost.state import HostMove, LinkMove, Move
from planner.cost.training import training_run
from planner.field_metadata import FORMAT, keys, text
from planner.logs.comparison import Comparison, Deviation
from planner.logs.fits import Trial, Variation
from planner.logs.losses import FittedRun, LossFit
from planner.measure.samples import ProfilePoint, StageProfile
from planner.model.spec import ConvergenceSpec
from planner.plan.file import PlanFile
from planner.report.brief import summary_of
from planner.report.calibrated import (
    LossFitDocument,
    TrialDocument,
    VariationDocument,
    calibrate_document,
    fitted_document,
)
from planner.report.calibration import calibration_document, coverage
from planner.report.catalogue import gpus_document, links_document
from planner.report.compare import Contender
from planner.report.document import (
    EmitDocument,
    PredictDocument,
    check_document,
    compare_document,
    explain_document,
    plan_document,
    search_document,
)
from planner.report.loss import loss_document, sizes_document
from planner.report.measured import device_document, network_document, poplar_document
from planner.report.observed import ObservedRun, observed_document
from planner.report.pareto import front_document
from planner.report.rent import rent_document
from planner.report.replan import ReplanDocument, failure_cost, loss_of
from planner.report.share import share_document
from planner.report.trace import TraceDocument
from planner.report.validation import validation_document
from planner.report.what_if import WhatIfDocument, cases
from planner.search.explain.neighbours import neighbours
from planner.search.objectives.loss import BatchPoint, LossResult, Size, Sizes
from planner.search.objectives.renting import Rent, Rental, RentGoal, Taken, Unable
from planner.search.replan import Replan, Successor
from planner.search.values import OtherFormat, Simpler
from planner.search.what_if import Swing
from planner.share.crossover import CrossoverPair
from planner.share.search import Need, Portion, Share
from tests.measured import examples as measured
from tests.report import examples
from tests.report.pages import about
from tests.report.test_fitted import CALIBRATION, fitted
from tests.report.test_measured_device import told
from tests.report.test_measured_network import ERRORS, LINKS
from tests.report.test_observed import COMPARISON, FOUND, SEEN
from tests.report.test_validation import validation

NOISY = tuple(replace(point, spread=0.5) for point in LINKS)
"""Points of a busy network."""


@cache
def documents() -> dict[str, object]:
    """One document of every command, as full as it gets."""
    cluster, model, scored, result = examples.cluster(), examples.model(), examples.scored(), examples.found()
    around = neighbours(scored.plan, cluster, model, ASSUMED)
    saved = PlanFile(plan=scored.plan, cluster=cluster, model=model, summary=summary_of(result))
    shown = Calibration(link_points=LINKS, curve_errors=ERRORS)
    rental = Rental(
        machines=(Taken(offer="a", machines=2),),
        provider="p",
        region="r",
        seconds=1.0,
        price=1.0,
        price_per_hour=3600.0,
        goodput=1.0,
        gap=0.1,
        numbers=(2,),
        scored=scored,
    )
    rent = Rent(
        status="feasible",
        wanted="money",
        best=rental,
        bound=0.9,
        gap=0.1,
        front=(rental,),
        nearest=(rental,),
        offers=1,
        without_plan=(Unable(offer="old", why="no bf16"),),
        searches=1,
        seconds=1.0,
        interrupted=False,
    )
    simple = Simpler(
        family="a",
        slower=0.01,
        fewer_devices=1,
        fewer_stages=0,
        less_per_hour=None,
        keeps_rdma=False,
        scored=scored,
    )
    portion = Portion(
        job="a",
        hosts=("a-0",),
        devices=(0,),
        parts={"a-0": (0,)},
        gpus=1,
        seconds=1.0,
        of_equal_share=1.0,
        gap=0.1,
        scored=scored,
        cluster=cluster,
        model=model,
        result=result,
    )
    share = Share(
        status="feasible",
        objective="makespan",
        jobs=1,
        value=1.0,
        bound=0.9,
        gap=0.1,
        portions=(portion,),
        idle=("a-1",),
        divided=True,
        conflict=(Need(job="a", gpus=1, reasons=("b",), hints=("c",)),),
        rough=("a",),
        searches=1,
        seconds=1.0,
        interrupted=False,
    )
    crossing = CrossoverPair(
        first="a",
        second="b",
        network_share=0.4,
        idle_share=0.1,
        fits=True,
        first_alone_seconds=1.0,
        second_alone_seconds=1.0,
        first_seconds=1.5,
        second_seconds=1.5,
        gain=1.3,
        both_seconds=2.0,
        in_turn_seconds=3.0,
        plans=(),
    )
    result = replace(
        result,
        goal=replace(result.goal, tokens=1e9),
        other_format=OtherFormat(precision="fp16", lacking="bf16", idle=1, faster=0.1, scored=scored),
        simpler=(simple,),
        tie=simple,
    )
    swing = Swing(
        members=("a",),
        spread=0.3,
        factor=1.3,
        kept_seconds=1.0,
        loses=0.1,
        changes=True,
        plan="torch",
        scored=scored,
    )
    part = {"kept_bytes": 1.0, "moved_bytes": 1.0, "lost_bytes": 1.0}
    moved = Move(
        hosts=(HostMove(host="a-1", pool="a", needed_bytes=3.0, **part),),
        links=(LinkMove(link="ib", moved_bytes=1.0, seconds=1.0),),
    )
    successor = Successor(scored=scored, cluster=cluster, move=moved)
    replanned = Replan(
        without=("a-0",),
        before=scored,
        cluster_devices=16,
        chosen=successor,
        fastest=successor,
        result=result,
    )
    law = Convergence(
        critical=CriticalBatch(tokens=1e6, spread=0.5, source="here"),
        steps_known=100.0,
        batch_tokens=1e6,
        loss=2.5,
    )
    point = BatchPoint(
        batch=8,
        tokens=1e9,
        steps=100.0,
        steps_spread=0.1,
        bound_seconds=1.0,
        scored=scored,
        run=training_run(scored.estimate, 1e9),
    )
    batches = LossResult(
        convergence=law,
        points=(point,),
        best=point,
        model=model,
        search=result,
        bound_seconds=1.0,
        gap=0.1,
        status="feasible",
        best_if_low=8,
        best_if_high=8,
        seconds=1.0,
        interrupted=False,
    )
    sizes = Sizes(
        convergence=law,
        batches=(8,),
        points=(Size(devices={("a", "A100"): 8}, point=point, gap=0.1),),
        priced=True,
        worth=0,
        subclusters=1,
        unfinished=0,
        seconds=1.0,
        interrupted=False,
    )
    ran = FittedRun(file="a.log", source="nanoGPT", batch=8, losses=100, steps=100, last_loss=2.5)
    told_loss = LossFit(runs=(ran,), convergence=ConvergenceSpec(), residual=0.01, told=False)
    return {
        "search": search_document(result, cluster, model),
        "share": share_document(share, [crossing]),
        "search --objective time-to-loss": loss_document(batches, cluster),
        "search --objective time-to-loss --pareto": sizes_document(sizes, cluster, model),
        "calibrate loss": LossFitDocument(command="calibrate loss", file=None, loss=told_loss),
        "rent": rent_document(rent, RentGoal(tokens=1e9, wanted="money")),
        "sweep": SweepDocument(command="sweep", file="r.csv", points=1, kept=0, errors=0, seconds=1.0),
        "search --pareto": front_document(examples.front(), cluster, model),
        "predict": PredictDocument(
            plan=plan_document("predict", scored, cluster, model, None),
            training=training_run(scored.estimate, 1e9),
        ),
        "predict --plans": compare_document(
            [Contender(name="plans[0]", scored=scored, cluster_devices=16)], "predict --plans"
        ),
        "show": plan_document("show", scored, cluster, model, result),
        "explain": explain_document(scored, saved, around, examples.BINDING),
        "compare": compare_document(
            [
                Contender(name="a", scored=scored, cluster_devices=16),
                Contender(name="b", scored=None, cluster_devices=16, note="no"),
            ]
        ),
        "check": check_document(Topology(cluster), model, ["a warning"]),
        "emit": EmitDocument(
            command="emit",
            target="megatron",
            folder=str(examples_folder()),
            files=("README.md",),
            placeholder_hosts=(),
            warnings=(),
        ),
        "validate": validation_document(validation(*measured.several()), 2),
        "calibrate import": calibrate_document(ASSUMED, examples_folder() / "calibration.yaml"),
        "show calibration": calibration_document(
            replace(
                shown,
                constants=(Constant(name="families.A100.kernel_seconds", value=1e-6, provenance="measured"),),
                provenance={"torch": "2.7.0"},
                sources={"m1": {"torch": "2.7.0"}},
            ),
            Path("c.yaml"),
            coverage(shown, ASSUMED, cluster, model),
        ),
        "calibrate merge": calibrate_document(ASSUMED, Path("c.yaml"), "calibrate merge"),
        "calibrate device": device_document(told()),
        "calibrate device --as-poplar": poplar_document(
            [
                StageProfile(
                    zero=0,
                    states_bytes=1.0,
                    estimated=4,
                    micro_batch=4,
                    out_of_memory=5,
                    fastest=4,
                    points=(ProfilePoint(micro_batch=4, seconds=1.0, spread=0.0, used_bytes=1.0),),
                )
            ],
            "A100",
            8,
            Path("c.yaml"),
        ),
        "calibrate run": TrialDocument(
            command="calibrate run",
            file="c.yaml",
            stack="torch",
            trial=Trial(kernels="torch", launches=3.0, before_seconds=1.0, observed_seconds=2.0),
        ),
        "compare --log": observed_document(
            ObservedRun(seen=SEEN, comparison=all_observed(), findings=tuple(FOUND))
        ),
        "calibrate sigma": VariationDocument(
            command="calibrate sigma",
            file="c.yaml",
            variation=Variation(
                family="A100",
                devices=8,
                steps=20,
                spread=0.02,
                work=0.9,
                sigma=0.03,
                replicas=8,
                backups=0,
                backups_gain=0.0,
            ),
        ),
        "calibrate network": network_document(NOISY, 3, Calibration(curve_errors=ERRORS), Path("c.yaml")),
        "report": about().document(),
        "replan": ReplanDocument(
            command="replan",
            losses=(loss_of(replanned),),
            unprepared=("no plan fits",),
            failures=failure_cost(Interruptions(per_gpu_month=1.0, repair_seconds=1e5), 16, model),
        ),
        "what-if": WhatIfDocument(
            command="what-if",
            cases=cases([("", cluster, model), ("-titan", cluster, model)], [result, result]),
            sensitivity=(swing,),
        ),
        "gpus": gpus_document([gpu("A100-SXM-40GB")]),
        "links": links_document([link("nvlink3")]),
        "examples": ExamplesDocument(
            command="examples", folder=None, examples=(Listed(path="a", about="b"),)
        ),
        "trace": TraceDocument(
            command="trace", file="step.json", events=1, processes=1, ranks=1, step_seconds=1.0, measured=None
        ),
        "calibrate fit": fitted_document(fitted(), CALIBRATION, examples_folder() / "calibration.yaml"),
    }


def all_observed() -> Comparison:
    """A comparison that lacks nothing."""
    some = Deviation(predicted=1.0, observed=2.0)
    memory = tuple(replace(entry, states=some, activations=some, fixed=some) for entry in COMPARISON.memory)
    return replace(COMPARISON, rest=some, memory=memory)


def examples_folder() -> Any:
    """Any folder."""
    from pathlib import PurePosixPath

    return PurePosixPath("run")


def paths(value: Any, known: dict[str, str], at: str = "") -> set[str]:
    """Paths of all values, in the spelling of the dictionary; ``.*`` stops the walk."""
    if at in known or at.removesuffix("[]") in known:
        return {at if at in known else at.removesuffix("[]")}
    if f"{at}.*" in known:
        return {f"{at}.*"}
    if isinstance(value, dict) and value:
        return set().union(
            *(paths(entry, known, f"{at}.{key}" if at else key) for key, entry in value.items())
        )
    if isinstance(value, list) and value:
        return set().union(*(paths(entry, known, f"{at}[]") for entry in value))
    return {at}


@pytest.mark.parametrize("command", sorted(DOCUMENTS))
def test_every_key_is_in_the_dictionary(command: str) -> None:
    """No key is undocumented."""
    found = json.loads(text(documents()[command]))
    assert found["format"] == FORMAT
    assert found["command"] == command
    known = keys(DOCUMENTS[command])
    assert all(known.values()), [key for key, text in known.items() if not text]
    undocumented = {path for path in paths(found, known) if path not in known}
    empty = {"diagnosis", "nearest", "idle_costs", "limit_costs", "ratios", "hedge", "plans[].plan"}
    assert undocumented <= empty


def closed(schema: Any) -> Any:
    """The schema without room for keys that it does not name."""
    if isinstance(schema, list):
        return [closed(entry) for entry in schema]
    if not isinstance(schema, dict):
        return schema
    inner = {key: closed(entry) for key, entry in schema.items()}
    return {**inner, "additionalProperties": False} if isinstance(schema.get("required"), list) else inner


@pytest.mark.parametrize("command", sorted(DOCUMENTS))
def test_the_schema_is_that_of_the_document(command: str) -> None:
    """``hetplan schema COMMAND`` takes the document, knows each of its keys, and misses one that goes away."""
    found, schema = json.loads(text(documents()[command])), closed(document_schema(command))
    jsonschema.Draft202012Validator.check_schema(schema)
    checked = jsonschema.Draft202012Validator(schema)
    checked.validate(found)
    if command == "search":
        for each in (examples.infeasible(), examples.out_of_reach()):
            other = search_document(each, examples.cluster(), examples.model())
            checked.validate(json.loads(text(other)))
    document: Any = documents()[command]
    for name, hint in get_type_hints(type(document)).items():
        if type(None) in get_args(hint):
            checked.validate(json.loads(text(replace(document, **{name: None}))))
    for key in found:
        with pytest.raises(jsonschema.ValidationError):
            checked.validate({name: entry for name, entry in found.items() if name != key})


@pytest.mark.parametrize("command", sorted(DOCUMENTS))
def test_every_documented_key_exists(command: str) -> None:
    """The dictionary invents nothing."""
    known = keys(DOCUMENTS[command])
    found = paths(json.loads(text(documents()[command])), known)
    if command in ("search", "search --objective time-to-loss"):
        costly = replace(
            examples.found(),
            idle_costs=examples.IDLE_COSTS,
            limit_costs=examples.LIMIT_COSTS,
            ratios=examples.RATIOS,
            hedge=examples.HEDGE,
        )
        for result in (costly, examples.infeasible(), examples.out_of_reach()):
            document = search_document(result, examples.cluster(), examples.model())
            found |= paths(json.loads(text(document)), known)
    assert set(known) - found <= {"warnings"} if command == "compare" else set(known) <= found


def test_the_contract_of_search() -> None:
    """The keys that the design promises."""
    found = json.loads(text(documents()["search"]))
    promised = {
        "status", "step_seconds", "bound_seconds", "gap", "tokens_per_second", "tflops_per_gpu", "mfu",
        "peak_memory_bytes", "search_seconds", "stages", "breakdown", "warnings",
    }  # fmt: skip
    assert promised <= set(found)
    replica = found["stages"][0]["replicas"][0]
    assert {"pool", "gpu", "tp", "count", "micro_batch", "share", "steps", "memory_bytes"} <= set(replica)
    assert replica["memory_bytes"]["capacity"] == 40 * 2**30
    assert found["stages"][0]["layers"] == 24
    causes = {key: value for key, value in found["breakdown"].items() if key != "hidden_seconds"}
    assert sum(causes.values()) == pytest.approx(found["step_seconds"])


def test_infinite_numbers_become_null() -> None:
    """JSON has no infinity; a search without a plan has the same keys with null."""
    found = json.loads(text(search_document(examples.infeasible(), examples.cluster(), examples.model())))
    assert found["status"] == "infeasible"
    assert found["bound_seconds"] is None
    assert found["step_seconds"] is None
    assert found["stages"] == []
    assert found["diagnosis"]["nearest_miss"] == "ZeRO-3 on 2 devices, short by 39.2 GiB"
    full = json.loads(text(documents()["search"]))
    assert set(found) == set(full)
