"""Fits the constants of the cost model to measured runs, from priors.

Every constant starts from a prior (``planner.measured.priors``, or what a calibration says and how sure it is of it)
and moves as far as runs push it: the most likely constants given runs and priors, found by Gauss-Newton steps with
exact derivatives (``planner.measured.dual``). Errors are logarithms of predicted over measured seconds. Runs of one
source share a common error, since they share a machine, a release and the habits of those who measured, so that many
runs of one source weigh little more than some; likewise runs whose layers have one shape. The rest is each run's own.
A run, and a shape, that is far off counts for less (pseudo-Huber). Doubts about a run widen its errors instead of
excluding it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from math import exp, log, sqrt
from statistics import fmean

import numpy as np
from numpy.typing import NDArray

from planner import catalog
from planner.calibration.values import Calibration, Constant, Residual, Work
from planner.cost.estimate import Estimator, work_of
from planner.errors import HetplanError, UsageError
from planner.measured.dual import Dual, slopes_of
from planner.measured.predictions import Estimators
from planner.measured.priors import (
    FAMILY,
    FRAMEWORK,
    NETWORKS,
    PRODUCTS,
    VENDORS_KERNELS,
    best_share,
    catalogue_families,
    family_prior,
    framework_prior,
    kinds_of,
    measured_devices,
    owner_of,
    priors,
    sharing,
)
from planner.measured.values import Run
from planner.targets import target

MOST: dict[str, float] = {
    "families.matmul_efficiency": 0.98,
    "families.vector_efficiency": 0.98,
    "families.attention_efficiency": 0.9,
    "families.memory_efficiency": 0.95,
    "families.link_efficiency": 0.95,
    "frameworks.matmul_factor": 1.0,
    "frameworks.overlap": 0.98,
    "frameworks.link_utilisation": 1.0,
    "links.efficiency": 0.97,
    "links.rail": 1.0,
}
"""Largest value of each kind of constant that is a share: shares end where hardware does."""

GUESSED = (
    "micro-batch",
    "interleaving",
    "global batch",
    "authors warn",
    "second iteration only",
    "formula is not stated",
    "full recomputation assumed",
    "read off a figure",
    "and attention kernel not stated",
    "attention products in fp8",
    "FlashAttention-2 on Hopper",
    "layers of the stages not stated",
    "short runs",
    "mean of a whole training",
    "first releases for",
    "preview of Blackwell",
    "seconds of one digit or two",
    "lanes of",
    "of a node are joined not stated",
    "release not clear",
    "network between the cards not stated",
)
"""Words of doubts that concern the plan or the measurement itself."""


UNSTATED_NETWORK = ("network not stated", "network between nodes not stated", "network assumed")
"""Words of doubts by which the wire between nodes is a guess, which says nothing of its utilisation."""


def kernels_of(run: Run) -> str:
    """The kernel set that a run used."""
    training = run.model.training
    return target(run.plan.target).kernels_of(training.kernels, training.attention)


@dataclass(frozen=True, slots=True)
class Parameter:
    """One constant that is fitted."""

    section: str
    """families, frameworks or links."""
    name: str
    """Of the family (``family.kernels`` for what differs under one kernel set), kernel set or network."""
    constant: str

    @property
    def dotted(self) -> tuple[str, ...]:
        """As in a calibration file; a network stands for several kinds of fabric, a kernel set for older ones too."""
        several = {"links": kinds_of, "frameworks": sharing}
        names = several[self.section](self.name) if self.section in several else (self.name,)
        return tuple(f"{self.section}.{name}.{self.constant}" for name in names)

    @property
    def most(self) -> float:
        """Largest value: no family is faster than the best product measured on it."""
        bound = MOST.get(f"{self.section}.{self.constant}", float("inf"))
        return min(bound, best_share(self.name, self.constant)) if self.constant in PRODUCTS else bound

    def value(self, base: Calibration) -> float:
        """Its value before the fit."""
        if self.section == "families":
            return float(getattr(base.family(*_split(self.name)), self.constant))
        if self.section == "frameworks":
            return float(getattr(base.framework(self.name), self.constant))
        return float(getattr(base.link(kinds_of(self.name)[0]), self.constant))

    def spread(self, base: Calibration) -> float:
        """Its relative standard error before the fit: what the calibration says of it, else that of its prior."""
        said = [
            item.spread for item in base.constants if item.name in self.dotted and item.spread is not None
        ]
        if said:
            return max(said[0], LEAST_SPREAD)
        if self.section == "families":
            return family_prior(self.name, self.constant).spread
        if self.section == "frameworks":
            return framework_prior(self.name, self.constant).spread
        return NETWORKS[self.name][self.constant].spread


LEAST_SPREAD = 0.01
"""No constant is known better."""


def _split(name: str) -> tuple[str, str]:
    family, _, kernels = name.partition(".")
    return family, kernels


def certain(run: Run) -> bool:
    """True for a run whose step time and plan are stated in full."""
    return run.step_seconds is not None and not any(word in run.doubt for word in GUESSED)


def families_of(run: Run) -> frozenset[str]:
    """GPU families of the devices that a run uses."""
    used = {group.gpu for stage in run.plan.stages for group in stage.replicas}
    return frozenset(run.cluster.gpus[name].family for name in used)


def shape_of(run: Run) -> tuple[object, ...]:
    """What decides the products of its layers: source, device, width, length, tp and micro-batch."""
    group, model = run.plan.stages[0].replicas[0], run.model
    return run.source, group.gpu, model.hidden, model.training.sequence_length, group.tp, group.micro_batch


def networks_of(run: Run) -> frozenset[str]:
    """Networks of ``NETWORKS`` that a run's cluster has."""
    kinds = {fabric.kind for fabric in run.cluster.fabrics.values()}
    return frozenset(name for name in NETWORKS if kinds & set(kinds_of(name)))


def parameters_of(runs: Sequence[Run]) -> Iterator[Parameter]:
    """Constants of every family, kernel set and network that a run touches."""
    for family in sorted({name for run in runs for name in families_of(run) if name}):
        for constant in FAMILY:
            yield Parameter("families", family, constant)
    for pair in sorted({pair for run in runs for pair in _pairs(run)}):
        yield Parameter("families", pair, "attention_efficiency")
    for kernels in sorted({owner_of(kernels_of(run)) for run in runs}):
        for constant in FRAMEWORK:
            yield Parameter("frameworks", kernels, constant)
    for network in sorted({name for run in runs for name in networks_of(run)}):
        for constant in NETWORKS[network]:
            yield Parameter("links", network, constant)


def _pairs(run: Run) -> Iterator[str]:
    """Families whose fused attention under the run's kernels is not that of the vendor."""
    if run.model.training.attention == "flash" and kernels_of(run) != VENDORS_KERNELS:
        yield from (f"{family}.{kernels_of(run)}" for family in families_of(run) if family)


def _work_of(run: Run) -> Work:
    return work_of(run.model, target(run.plan.target))


def with_values(base: Calibration, values: Mapping[Parameter, float]) -> Calibration:
    """A calibration in which these constants have these values."""
    families, frameworks, links = dict(base.families), dict(base.frameworks), dict(base.links)
    said = {tuple(item.name.removeprefix("families.").rsplit(".", 1)) for item in base.constants}
    by_owner: dict[tuple[str, str], dict[str, float]] = {}
    for item, value in values.items():
        by_owner.setdefault((item.section, item.name), {})[item.constant] = value
    # What differs under one kernel set comes after its family, and on top of it.
    for (section, name), changes in sorted(by_owner.items()):
        if section == "families":
            above = families.get(name) or families.get(_split(name)[0]) or base.family(name)
            families[name] = replace(above, **changes)
            for other in [known for known in base.families if known.startswith(f"{name}.")]:
                # Runs under other kernels say nothing of what a pair says itself.
                kept = {key: new for key, new in changes.items() if (other, key) not in said}
                families[other] = replace(families[other], **kept)
        elif section == "frameworks":
            for kernels in sharing(name):
                frameworks[kernels] = replace(base.framework(kernels), **changes)
        else:
            links.update({kind: replace(base.link(kind), **changes) for kind in kinds_of(name)})
    return replace(base, families=families, frameworks=frameworks, links=links)


Vector = NDArray[np.float64]
Told = tuple[Vector, Vector]
"""Curvature, [constant, constant], and pull, [constant], of some runs."""
Progress = Callable[[int, float], None]
"""Told after every round: rounds done, mean absolute error of the fitted runs."""

OWN_ERROR = 0.03
"""Error of a run's own: what repeated runs of one setup differ by (1 to 5 %)."""
SHAPE_ERROR = 0.05
"""Error that runs of a source with layers of one shape have in common: library kernels are not smooth in shapes."""
COMMON_ERROR = 0.03
"""Error that all runs of a source have in common: machine, release, habits of those who measured."""
DOUBT_ERROR = 0.25
"""Further error of runs with a doubt about the plan, of each its own and of a source's all in common."""
UNSTATED_ERROR = 0.7
"""Of the rate of a network that is a guess, of a source's runs in common: cards come in doubles."""
HOST_ERROR = 0.3
"""Of the host's time, of a source's runs in common: processors of one year differ by as much in what a thread does."""
ROBUST = 1.5
"""Errors of a run, and of a shape, in units of their size, beyond which they count as outliers."""
SIBLING_SPREAD = 0.10
"""Of it before any run: datasheets of siblings promise clocks that their power allows to a tenth or so."""
FEWEST = 5
"""Runs that a family and framework need for an error bar of their own."""
HELD = 0.6827
"""Share of the runs that an error bar holds: that of a standard error."""
ROUNDS = 12
NEAR = 0.02
"""Largest change of a constant's logarithm in the last round."""
EXACT_ROUNDS = 4
"""Rounds that all have derivatives of their own; later ones every other."""
FULL_STEPS = 4
LARGEST_STEP = 0.5
LARGEST_LEFT_OUT = 1.5
"""Largest change of a logarithm in a round, and of a constant that only one source tells when that is left out."""
TOLD = 0.9
"""A constant is fitted when runs narrow its spread to less than this share of the prior's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """Constants that were fitted, and how well."""

    calibration: Calibration
    runs: tuple[Run, ...]
    """The runs that were fitted to."""
    errors: tuple[float, ...]
    """Logarithm of predicted over measured seconds, [run]."""
    left_out_errors: tuple[float, ...]
    """The same when the run's whole source is left out of the fit, [run]."""
    without: Callable[[Callable[[Run], bool]], Calibration] = field(compare=False, repr=False)
    """The constants when the runs of which this is true are left out: one step back from those of all."""
    warnings: tuple[str, ...]
    """What a reader should doubt: few runs, runs that nothing explains, sources that contradict each other."""

    def foreign(self, left: Callable[[Run], bool]) -> Calibration:
        """What the runs of which this is true are predicted by: constants and bars of all others.

        What families and device types have of their own stays as all runs say.
        """
        constants, whole = self.without(left), self.calibration
        others = [index for index, run in enumerate(self.runs) if not left(run)]
        errors = [self.left_out_errors[index] for index in others]
        residuals, default = _bars([self.runs[index] for index in others], errors, constants.default_spread)
        return replace(
            constants,
            residuals=_joined(constants.residuals, residuals),
            default_spread=default,
            family_spread=whole.family_spread,
            device_spread=whole.device_spread,
            sibling_spread=whole.sibling_spread,
        )


def fit(runs: Sequence[Run], base: Calibration | None = None, progress: Progress | None = None) -> Fit:
    """Fit every constant that the runs touch; raises UsageError when there are fewer than three usable runs.

    So do runs of one's own that are faster than the peak of their devices, or ``FAR_OFF`` than predicted.
    ``base`` is what is known before: the priors when absent.
    """
    problem = _Problem(runs, base or priors(catalogue_families()), progress, published=base is None)
    return problem.fitted(problem.solved())


class _Problem:
    """Runs and priors, and the constants that both make most likely; values are logarithms, [constant]."""

    def __init__(
        self, runs: Sequence[Run], base: Calibration, progress: Progress | None, *, published: bool
    ) -> None:
        self.base, self.progress, self.published = base, progress, published
        # Runs of one's own are of the hosts that the next plan is for.
        self.host_error = HOST_ERROR if published else 0.0
        self.runs: list[Run] = []
        self.estimators: list[Estimator] = []
        estimators = Estimators(base)
        for run in runs:
            if run.step_seconds is not None:
                with suppress(HetplanError):
                    estimator = estimators.of(run.cluster, run.model)
                    estimator.price(run.plan)
                    self.runs.append(run)
                    self.estimators.append(estimator)
        if len(self.runs) < 3:
            raise UsageError(
                f"{len(self.runs)} of {len(runs)} runs can be fitted to, expected at least 3",
                hint="runs need a step time and a plan that their target allows",
            )
        if not published:
            self._require_possible()
        self.parameters = tuple(parameters_of(self.runs))
        self.before: Vector = np.log([item.value(base) for item in self.parameters])
        self.spreads: Vector = np.array([item.spread(base) for item in self.parameters])
        self.most: Vector = np.log([item.most for item in self.parameters])
        self.measured: Vector = np.log([run.step_seconds or 0.0 for run in self.runs])
        self.doubted: Vector = np.array([0.0 if certain(run) else 1.0 for run in self.runs])
        self.unstated: Vector = np.array(
            [float(any(word in run.doubt for word in UNSTATED_NETWORK)) for run in self.runs]
        )
        self.rates = np.array(
            [item.section == "links" and item.constant == "efficiency" for item in self.parameters]
        )
        self.hosts = np.array([item.constant == "launch_seconds" for item in self.parameters])
        shapes = [shape_of(run) for run in self.runs]
        self.shapes = np.array([shapes.index(shape) for shape in shapes])
        self.sources = np.array([run.source for run in self.runs])

    def _require_possible(self) -> None:
        """Raise UsageError for runs that no device is fast enough for, and for those in another unit."""
        too_fast, too_slow = [], []
        for run, estimator in zip(self.runs, self.estimators, strict=True):
            known = estimator.estimate(run.plan)
            slower = (run.step_seconds or known.step_seconds) / known.step_seconds
            if known.mfu > slower:
                too_fast.append(f"{run.id} ({known.mfu / slower:.1f} times it)")
            elif certain(run) and slower > FAR_OFF:
                too_slow.append(f"{run.id} ({slower:.0f} times as long)")
        told = [
            f"{what}: {first_of(found)}"
            for what, found in (
                ("runs faster than the peak of their devices", too_fast),
                ("runs far slower than any constants would make them", too_slow),
            )
            if found
        ]
        if told:
            raise UsageError(
                "; ".join(told),
                hint="check step_seconds, the global batch, the devices and the precision of these rows",
            )

    def solved(self) -> Vector:
        """The most likely constants."""
        values = np.minimum(self.before, self.most)
        for rounds in range(1, ROUNDS + 1):
            if rounds <= EXACT_ROUNDS or rounds % 2 == 0:
                errors, slopes = self.errors_and_slopes(values)
            else:  # nothing moves far any more: the slopes of the round before do, at a third of the time
                errors = self.errors(self.calibration(values), range(len(self.runs)))
            step = self._step(values, list(self._normal(errors, slopes).values()))
            # Late steps are shorter: where the longest path changes, full ones go to and fro.
            change = np.clip(step, -LARGEST_STEP, LARGEST_STEP) * min(1.0, 2.0 ** (FULL_STEPS - rounds))
            values = np.minimum(values + change, self.most)
            if self.progress is not None:
                self.progress(rounds, float(np.mean(np.abs(errors))))
            if float(np.max(np.abs(change))) < NEAR:
                break
        return values

    def _step(self, values: Vector, told: Sequence[Told]) -> Vector:
        """One Gauss-Newton step to the most likely constants, by normal equations of runs and the priors."""
        curvature = np.diag(self.spreads**-2) + sum(item[0] for item in told)
        pull = (self.before - values) * self.spreads**-2 + sum(item[1] for item in told)
        free = np.ones(len(values), dtype=bool)
        # A constant at its bound that would go beyond it stays there, and the others do without it.
        while True:
            step = np.zeros(len(values))
            step[free] = np.linalg.solve(curvature[np.ix_(free, free)], pull[free])
            stuck = free & (values + step > self.most + 1e-12) & (values >= self.most - 1e-12)
            if not stuck.any():
                return step
            free &= ~stuck

    def _normal(self, errors: Vector, slopes: Vector) -> dict[str, Told]:
        """Normal equations of each source's runs."""
        return {
            source: self._told(self.sources == source, errors, slopes) for source in sorted(set(self.sources))
        }

    def _told(self, rows: NDArray[np.bool_], errors: Vector, slopes: Vector) -> Told:
        """Normal equations of runs of one source: curvature, [constant, constant], and pull, [constant]."""
        jacobian, left = slopes[rows], -errors[rows]
        # A wire that is guessed wrong makes all traffic over it as much slower.
        guessed = UNSTATED_ERROR * self.unstated[rows] * jacobian[:, self.rates].sum(axis=1)
        # So does another processor with all that waits for the host.
        waited = self.host_error * jacobian[:, self.hosts].sum(axis=1)
        covariance = self._covariance(rows, left) + np.outer(guessed, guessed) + np.outer(waited, waited)
        whitened = np.linalg.solve(covariance, np.column_stack([jacobian, left]))
        return jacobian.T @ whitened[:, :-1], jacobian.T @ whitened[:, -1]

    def _covariance(self, rows: NDArray[np.bool_], left: Vector) -> Vector:
        """Of the errors of one source's runs: each one's own, those of a layer's shape, those of the whole source."""
        doubted, shapes = self.doubted[rows], self.shapes[rows]
        level = float(np.median(left))
        in_shape = np.zeros(len(left))
        for shape in set(shapes.tolist()):
            in_shape[shapes == shape] = float(np.median(left[shapes == shape])) - level
        own = np.diag(robust_variance(OWN_ERROR, left - level - in_shape))
        alike = np.where(shapes[:, None] == shapes[None, :], robust_variance(SHAPE_ERROR, in_shape), 0.0)
        doubts = DOUBT_ERROR**2 * (np.outer(doubted, doubted) + np.diag(doubted))
        return np.asarray(own + alike + COMMON_ERROR**2 + doubts)

    def errors_and_slopes(self, values: Vector) -> tuple[Vector, Vector]:
        """Logarithm of predicted over measured seconds, [run], and its derivatives, [run, constant]."""
        size = len(values)
        exact = {
            item: Dual(exp(value), row * exp(value))
            for item, value, row in zip(self.parameters, values.tolist(), np.eye(size), strict=True)
        }
        calibration = with_values(self.base, exact)
        errors, slopes = np.empty(len(self.runs)), np.empty((len(self.runs), size))
        for index, seconds in self._step_seconds(calibration, range(len(self.runs))):
            errors[index] = log(seconds) - self.measured[index]
            slopes[index] = slopes_of(seconds, size) / float(seconds)
        return errors, slopes

    def _step_seconds(self, calibration: Calibration, rows: Iterable[int]) -> Iterator[tuple[int, float]]:
        """(run, its predicted seconds) of some runs; those of one cluster and model share what is priced once."""
        made: dict[int, Estimator] = {}
        for index in rows:
            known = self.estimators[index]
            if id(known) not in made:
                made[id(known)] = known.with_calibration(calibration)
            yield index, made[id(known)].step_seconds(self.runs[index].plan)

    def calibration(self, values: Vector) -> Calibration:
        """The constants as a calibration."""
        return with_values(self.base, dict(zip(self.parameters, map(float, np.exp(values)), strict=True)))

    def errors(self, calibration: Calibration, rows: Iterable[int]) -> Vector:
        """Logarithm of predicted over measured seconds of some runs."""
        return np.array(
            [log(seconds) - self.measured[index] for index, seconds in self._step_seconds(calibration, rows)]
        )

    def fitted(self, values: Vector) -> Fit:
        """The result, rounded as it is written; constants that the runs hardly tell keep their provenance."""
        errors_before, slopes = self.errors_and_slopes(values)
        told = self._normal(errors_before, slopes)
        curvature = np.diag(self.spreads**-2) + sum(item[0] for item in told.values())
        after = np.sqrt(np.diag(np.linalg.inv(curvature)))
        kept = {item: float(f"{exp(value):.4g}") for item, value in zip(self.parameters, values, strict=True)}
        calibration = with_values(self.base, kept)
        errors = self.errors(calibration, range(len(self.runs)))
        without = partial(self.without, values, errors_before, slopes, told)
        left_out = self._left_out(without)
        known = {item.name: item.provenance for item in self.base.constants}
        narrowed = {
            name
            for item, now, before in zip(self.parameters, after, self.spreads, strict=True)
            for name in item.dotted
            if now < TOLD * before
        }
        constants = tuple(
            Constant(
                name=name,
                value=kept[item],
                provenance="fitted" if name in narrowed else known.get(name, "assumed"),
                spread=float(f"{now:.2g}"),
            )
            for item, now in zip(self.parameters, after, strict=True)
            for name in item.dotted
        )
        sure = [index for index, run in enumerate(self.runs) if certain(run)]
        sure_runs = [self.runs[index] for index in sure]
        # Of published runs nobody can tell what a source leaves open from what the model lacks; of one's own one can.
        counted = range(len(self.runs)) if self.published else sure
        counted_errors = [float(left_out[index]) for index in counted]
        residuals, foreign = _bars(
            [self.runs[index] for index in counted], counted_errors, self.base.default_spread
        )
        of_families, of_devices = self._family_spreads(without)
        return Fit(
            calibration=replace(
                calibration,
                family_spread=of_families,
                device_spread=of_devices,
                sibling_spread=_sibling_spread(sure_runs, errors[sure], self.base.sibling_spread),
                constants=_united(self.base.constants, constants),
                residuals=_joined(self.base.residuals, residuals),
                # Of kernels that nobody has run no more is known than of a family without runs.
                default_spread=max(foreign, of_families or 0.0),
            ),
            runs=tuple(self.runs),
            errors=tuple(map(float, errors)),
            left_out_errors=tuple(map(float, left_out)),
            without=without,
            warnings=(
                *self._unsettled(self._step(values, list(told.values())), after),
                *(() if self.published else self._unexplained(calibration, errors)),
                *_warnings(self.runs, errors, [item for item in constants if item.name in narrowed]),
            ),
        )

    def _unsettled(self, step: Vector, after: Vector) -> Iterator[str]:
        """Constants that another whole step would move by more than they are known to.

        Rounds end by steps that they shorten themselves, so that alone says little.
        """
        far = np.abs(step) / after
        if len(far) and float(np.max(far)) > 1.0:
            name = self.parameters[int(np.argmax(far))].dotted[0]
            moved = exp(float(step[int(np.argmax(far))])) - 1
            yield f"the fit has not converged: {name} would still move by {moved:+.0%}, beyond its spread"

    def _unexplained(self, calibration: Calibration, errors: Vector) -> Iterator[str]:
        """Runs that the constants miss by several error bars."""
        estimators = Estimators(calibration)
        far = []
        for run, error in zip(self.runs, errors, strict=True):
            known = estimators.of(run.cluster, run.model).estimate(run.plan)
            if certain(run) and abs(error) > OUTLIER * known.spread:
                far.append(f"{run.id} (predicted {exp(error) - 1:+.0%})")
        if far:
            yield f"off by more than {OUTLIER:.0f} error bars after the fit: {first_of(far)}"

    def without(
        self,
        values: Vector,
        errors: Vector,
        slopes: Vector,
        told: Mapping[str, Told],
        left: Callable[[Run], bool],
    ) -> Calibration:
        """The constants without some runs: one Gauss-Newton step from those of all."""
        gone = np.array([left(run) for run in self.runs])
        kept = []
        for source, whole in told.items():
            rows = (self.sources == source) & ~gone
            if rows.any():
                partly = bool(((self.sources == source) & gone).any())
                kept.append(self._told(rows, errors, slopes) if partly else whole)
        # Where the longest path changes the constants of all runs have steps left that are nobody's.
        step = self._step(values, kept) - self._step(values, list(told.values()))
        step = np.clip(step, -LARGEST_LEFT_OUT, LARGEST_LEFT_OUT)
        return self.calibration(np.minimum(values + step, self.most))

    def _left_out(self, without: Callable[[Callable[[Run], bool]], Calibration]) -> Vector:
        """The errors of each source when it is left out."""
        left_out = np.empty(len(self.runs))
        for source in sorted(set(self.sources)):
            own = self.sources == source
            calibration = without(partial(_is_of, source))
            left_out[own] = self.errors(calibration, np.flatnonzero(own))
        return left_out

    def _family_spreads(
        self, without: Callable[[Callable[[Run], bool]], Calibration]
    ) -> tuple[float | None, float]:
        """How far off families are whose runs are left out, under kernels at work that other families tell.

        Roots of the mean squares over families, and their sources: of what holds 68 % of their errors, None where no
        family can be left out; over both, of their median errors, which the family has of its own. As if one more had
        the default.
        """
        before = self.base.device_spread or self.base.default_spread
        whole = self.base.family_spread or self.base.default_spread
        widths: list[list[Vector]] = []
        tested: dict[str, dict[tuple[str, tuple[str, Work]], list[int]]] = {}
        for index, run in enumerate(self.runs):
            for family in families_of(run) if certain(run) else ():
                stack = kernels_of(run), _work_of(run)
                tested.setdefault(family, {}).setdefault((run.source, stack), []).append(index)
        levels = [before]
        for family, groups in sorted(tested.items()):
            elsewhere = {key[1] for name, other in tested.items() if name != family for key in other}
            shared = {key: rows for key, rows in groups.items() if family and key[1] in elsewhere}
            if shared:
                calibration = without(partial(_has_family, family))
                found = [self.errors(calibration, rows) for rows in shared.values()]
                widths.append(found)
                levels += [float(np.median(errors)) for errors in found]
        of_devices = float(f"{sqrt(sum(level**2 for level in levels) / len(levels)):.3g}")
        if not widths:
            return self.base.family_spread, of_devices
        # Every family alike, however many have measured it.
        each = [sum(robust_spread(one) ** 2 for one in found) / len(found) for found in widths]
        return float(f"{sqrt((sum(each) + whole**2) / (len(each) + 1)):.3g}"), of_devices


OUTLIER = 3.0
"""Error bars beyond which a run says that its row is wrong, or that the model misses something."""
FAR_OFF = 100.0
"""Seconds, or bytes, over predicted ones or under them, from which those of one's own are of another unit."""
_NAMED = 3
"""Runs that a warning names."""


def first_of(runs: Sequence[str]) -> str:
    """The first runs of a warning, and how many more there are."""
    more = len(runs) - _NAMED
    return ", ".join(runs[:_NAMED]) + (f" and {more} more" if more > 0 else "")


CONTRADICTION = 3.0
"""Standard errors of two sources' difference beyond which one of them must be wrong, or miss something."""


def _warnings(runs: Sequence[Run], errors: Vector, fitted: Sequence[Constant]) -> Iterator[str]:
    """Fewer runs than constants; sources of one family and kernel set that no constants fit together."""
    if len(runs) < len(fitted):
        yield (
            f"{len(runs)} runs determine {len(fitted)} constants: each also rests on its prior, so that more runs "
            "would move them"
        )
    levels: dict[tuple[str, str], dict[str, list[int]]] = {}
    for index, run in enumerate(runs):
        for family in families_of(run) if certain(run) else ():
            levels.setdefault((family, kernels_of(run)), {}).setdefault(run.source, []).append(index)
    for (family, kernels), sources in sorted(levels.items()):
        known = sorted((float(np.median(errors[rows])), name, rows) for name, rows in sources.items())
        low, high = known[0], known[-1]
        width = sqrt(
            sum(COMMON_ERROR**2 + (OWN_ERROR**2 + SHAPE_ERROR**2) / len(rows) for _, _, rows in (low, high))
        )
        if high[0] - low[0] > CONTRADICTION * width:
            first, last = (
                f"{name} ({runs[rows[0]].id}{' and others' if len(rows) > 1 else ''}, predicted {exp(level) - 1:+.0%})"
                for level, name, rows in (low, high)
            )
            yield f"sources of {family} with {kernels} kernels contradict each other: {first} and {last}"


def robust_variance(error: float, residuals: Vector) -> Vector:
    """Of an error of this size, robust: what was found to be farther off counts for less (pseudo-Huber)."""
    return np.asarray(error**2 * np.sqrt(1.0 + (residuals / (ROBUST * error)) ** 2))


def _has_family(family: str, run: Run) -> bool:
    return family in families_of(run)


def _is_of(source: str, run: Run) -> bool:
    return run.source == source


def _bars(runs: Sequence[Run], left_out: Sequence[float], default: float) -> tuple[list[Residual], float]:
    """Half width that holds 68 % of the errors of each family, kernel set and work; and of those that no run has.

    Errors are those of sources left out, since what is planned next is a source of its own, and every source counts
    alike; all other sources of such layers count as one more. A source that is alone with all three was predicted
    without what it now tells, so that it can narrow their width, but not widen it. Sources whose family, or kernels at
    this work, nobody else has say how far off one without runs may be.
    """
    cells: dict[tuple[str, str, Work], list[tuple[Run, float]]] = {}
    of_family: dict[str, set[str]] = {}
    of_kernels: dict[tuple[str, Work], set[str]] = {}
    for run, error in zip(runs, left_out, strict=True):
        kernels, work = kernels_of(run), _work_of(run)
        for family in filter(None, families_of(run)):
            cells.setdefault((family, kernels, work), []).append((run, abs(error)))
            of_family.setdefault(family, set()).add(run.source)
            of_kernels.setdefault((kernels, work), set()).add(run.source)
    residuals: list[Residual] = []
    alone: list[list[float]] = []
    for (family, kernels, work), known in sorted(cells.items(), key=lambda item: item[0]):
        if 1 in (len(of_family[family]), len(of_kernels[kernels, work])):
            alone += _by_source(known)
        if len(known) < FEWEST:
            continue
        sources = _by_source(known)
        own = {run.source for run, _ in known}
        others = [
            item
            for cell, theirs in cells.items()
            for item in theirs
            if cell[2] == work and item[0].source not in own
        ]
        elsewhere = _of_few(_by_source(others), default)
        spread = _spread(sources, elsewhere)
        devices = {gpu for run in runs if kernels_of(run) == kernels for gpu in _gpus(run, family)}
        residuals.append(
            Residual(
                family=family,
                framework=kernels,
                work=work,
                rows=len(known),
                spread=float(f"{spread if len(sources) > 1 else min(spread, elsewhere):.3g}"),
                devices=tuple(sorted(devices | measured_devices(family))),
            )
        )
    return residuals, float(f"{max(default, _of_few(alone, default)):.3g}")


def _by_source(known: Iterable[tuple[Run, float]]) -> list[list[float]]:
    """Sizes of errors, [source][run]."""
    sources: dict[str, list[float]] = {}
    for run, size in known:
        sources.setdefault(run.source, []).append(size)
    return list(sources.values())


def _gpus(run: Run, family: str) -> set[str]:
    """A run's device types of a family."""
    used = {group.gpu for stage in run.plan.stages for group in stage.replicas}
    return {catalog.name_of(name) for name in used if run.cluster.gpus[name].family == family}


def _sibling_spread(runs: Sequence[Run], errors: Vector, before: float | None) -> float:
    """How far apart device types of one family are in one source, as if one more had been off by ``before``.

    Within a source, machines' makers, releases and habits are alike; levels are medians, their mean counts as one.
    """
    levels: dict[tuple[str, str, str], dict[str, list[float]]] = {}
    for run, error in zip(runs, errors, strict=True):
        for family in families_of(run):
            for gpu in _gpus(run, family) if family else ():
                found = levels.setdefault((run.source, family, kernels_of(run)), {})
                found.setdefault(gpu, []).append(float(error))
    squares, free = (before or SIBLING_SPREAD) ** 2, 1
    for known in levels.values():
        medians = [float(np.median(own)) for own in known.values()]
        squares += sum((level - fmean(medians)) ** 2 for level in medians)
        free += len(medians) - 1
    return float(f"{sqrt(squares / free):.3g}")


def _of_few(sources: Collection[Sequence[float]], default: float) -> float:
    """Where one more source is expected next to these: few say little of how wide they are (Student's t)."""
    if not sources:
        return default
    from scipy.stats import norm, t

    return _spread(sources, default, float(t.ppf(norm.cdf(1.0), len(sources))))


def _spread(sources: Collection[Sequence[float]], default: float, widened: float = 1.0) -> float:
    """What holds 68 % of the sizes of errors, [source][run], each source alike, as if one more had the default.

    ``widened``: by how much what the sources tell is.
    """
    sizes = np.array([size for own in sources for size in own])
    weights = np.array([1.0 / len(own) for own in sources for _ in own])
    order = np.argsort(sizes)
    below = np.cumsum(weights[order]) - 0.5 * weights[order]
    own = float(np.interp(HELD * len(sources), below, sizes[order])) if len(sizes) else 0.0
    return sqrt((len(sources) * (widened * own) ** 2 + default**2) / (len(sources) + 1))


def _united(before: Sequence[Constant], now: Sequence[Constant]) -> tuple[Constant, ...]:
    """Constants of both, the later ones winning."""
    return tuple({item.name: item for item in (*before, *now)}.values())


def _joined(before: Sequence[Residual], now: Sequence[Residual]) -> tuple[Residual, ...]:
    return tuple({item.key: item for item in (*before, *now)}.values())


def robust_spread(errors: Vector) -> float:
    """Half width that holds 68 % of the errors."""
    return float(np.quantile(np.abs(errors), HELD))
