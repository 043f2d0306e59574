"""The ``--json`` document of every command."""

from __future__ import annotations

from planner.cli.examples import ExamplesDocument
from planner.cli.sweep import SweepDocument
from planner.report.calibrated import (
    CalibrateDocument,
    FittedDocument,
    LossFitDocument,
    TrialDocument,
    VariationDocument,
)
from planner.report.calibration import CalibrationDocument
from planner.report.catalogue import GpusDocument, LinksDocument
from planner.report.document import (
    CheckDocument,
    CompareDocument,
    EmitDocument,
    ExplainDocument,
    PlanDocument,
    PredictDocument,
    SearchDocument,
)
from planner.report.loss import LossDocument, SizesDocument
from planner.report.measured import DeviceDocument, NetworkDocument
from planner.report.observed import ObservedDocument
from planner.report.page.page import ReportDocument
from planner.report.pareto import FrontDocument
from planner.report.poplar import PoplarDocument
from planner.report.rent import RentDocument
from planner.report.replan import ReplanDocument
from planner.report.share import ShareDocument
from planner.report.trace import TraceDocument
from planner.report.validation import ValidationDocument
from planner.report.what_if import WhatIfDocument

DOCUMENTS: dict[str, type] = {
    "search": SearchDocument,
    "search --pareto": FrontDocument,
    "search --objective time-to-loss": LossDocument,
    "search --objective time-to-loss --pareto": SizesDocument,
    "predict": PredictDocument,
    "predict --plans": CompareDocument,
    "show": PlanDocument,
    "explain": ExplainDocument,
    "compare": CompareDocument,
    "check": CheckDocument,
    "emit": EmitDocument,
    "validate": ValidationDocument,
    "show calibration": CalibrationDocument,
    "calibrate import": CalibrateDocument,
    "calibrate merge": CalibrateDocument,
    "calibrate fit": FittedDocument,
    "calibrate loss": LossFitDocument,
    "calibrate device": DeviceDocument,
    "calibrate device --as-poplar": PoplarDocument,
    "calibrate network": NetworkDocument,
    "calibrate run": TrialDocument,
    "calibrate sigma": VariationDocument,
    "compare --log": ObservedDocument,
    "report": ReportDocument,
    "trace": TraceDocument,
    "what-if": WhatIfDocument,
    "replan": ReplanDocument,
    "rent": RentDocument,
    "share": ShareDocument,
    "sweep": SweepDocument,
    "gpus": GpusDocument,
    "links": LinksDocument,
    "examples": ExamplesDocument,
}
"""The class of each command's document, by the command."""
