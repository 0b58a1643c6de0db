"""Tuning: hyper-parameters from a sampler, a batch of configurations in one compiled program.

The samplers are those of Optuna (T. Akiba et al., "Optuna: a next-generation hyperparameter
optimization framework", KDD 2019), which asks for configurations and is told their scores.
"""

from __future__ import annotations

import dataclasses
import functools
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
from jax import Array

from fedjax_sim.checks import check_count, check_is_setup, check_split_keys, import_extra
from fedjax_sim.engine import due, periods_of
from fedjax_sim.runs.callbacks.direction import Mode, sign
from fedjax_sim.runs.events import Callback, notify
from fedjax_sim.runs.history import CLOCK
from fedjax_sim.runs.interrupt import deferred_interrupt
from fedjax_sim.runs.options import DEFAULT_OPTIONS, Options, Storage, storage_of
from fedjax_sim.runs.planning.measuring import metric_shapes, names_of_numbers
from fedjax_sim.runs.sweeps.grid import Configuration, is_same
from fedjax_sim.runs.sweeps.halving import Halving, run_bracket
from fedjax_sim.runs.sweeps.program import Programs
from fedjax_sim.runs.sweeps.result import Sweep, SweepRun
from fedjax_sim.runs.sweeps.slices import RunNumber
from fedjax_sim.runs.sweeps.store import RunKey, mark_finished, run_key
from fedjax_sim.runs.sweeps.sweep import (
    SweepPlan,
    check,
    open_store,
    programs_for,
    result_of,
    run_groups,
)
from fedjax_sim.runs.sweeps.trial import Factory, MakeSetup
from fedjax_sim.types import FedAlgorithm, Setup, Summary, shown

if TYPE_CHECKING:
    import optuna
    import pandas as pd


# Distributions by name, or a function of a trial that returns its configuration.
Space: TypeAlias = (
    "Mapping[str, optuna.distributions.BaseDistribution] | Callable[[optuna.Trial], Configuration]"
)


class Tried(NamedTuple):
    """One configuration that the sampler asked for."""

    configuration: Configuration
    score: float  # mean of the metric over the seeds after `rounds`; worst infinity: diverged
    rounds: int  # after which it ended
    complete: bool  # all rounds


@shown
class Tuning(NamedTuple):
    """A finished or interrupted tuning."""

    metric: str
    mode: str  # "min" or "max"
    tried: list[Tried]  # in the order in which the sampler asked
    sweep: Sweep  # the runs; those of cut configurations end early, and are in frames only
    study: optuna.Study  # for Optuna's figures and its importances of hyper-parameters

    @property
    def best(self) -> Tried:
        """The best configuration that did all rounds; of equal ones the first.

        Raises:
            ValueError: none did all rounds without diverging.
        """
        good = [one for one in self.tried if one.complete and np.isfinite(one.score)]
        if not good:
            raise ValueError(
                f"none of {len(self.tried)} configurations did all rounds without diverging; "
                "expected one: widen the space, or tune longer"
            )
        return (max if self.mode == "max" else min)(good, key=lambda one: one.score)

    def to_frame(self) -> pd.DataFrame:
        """Returns a row per configuration: its values, ``score``, ``rounds``, ``complete``."""
        pd = import_extra("pandas", "cli")
        return pd.DataFrame(
            [{**one.configuration, **one._asdict()} for one in self.tried]
        ).drop(columns="configuration", errors="ignore")  # fmt: skip

    def _summary(self) -> Summary:
        complete = sum(one.complete for one in self.tried)
        title = (
            f"Tuning of {len(self.tried)} configurations for {self.metric} ({self.mode}), of which "
            f"{complete} did all rounds"
        )
        rows = {}
        if any(one.complete and np.isfinite(one.score) for one in self.tried):
            values = ", ".join(f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}"
                               for k, v in self.best.configuration.items())  # fmt: skip
            rows = {"best": values, "score": f"{self.best.score:.6g}"}
        return Summary(title, rows)


def tune(
    factory: Factory,
    setup: Setup | MakeSetup,
    space: Space,
    keys: Array,
    *,
    metric: str,
    mode: Mode = None,
    trials: int,
    batch: int = 8,
    sampler: optuna.samplers.BaseSampler | None = None,
    halving: Halving | None = None,
    callbacks: Sequence[Callback] = (),
    storage: Storage | str | pathlib.Path | None = None,
    options: Options = DEFAULT_OPTIONS,
) -> Tuning:
    """Searches hyper-parameters with a sampler of Optuna; a batch of them is one sweep.

    The sampler proposes ``batch`` configurations, a sweep runs them for every seed, and the sampler
    is told the mean of the metric over the seeds after the last round.  All batches of numbers
    share one compiled program.  A configuration with a diverged seed, or without a finite number as
    its metric, scores infinitely badly.  A configuration that is proposed again is not run again.

    With ``halving``, the best configurations of a batch continue after each rung from the states of
    their runs, and the sampler is told that the others were pruned.

    The score of the best of many configurations is biased: choose on a validation part, and report
    another metric of :attr:`Tuning.sweep`, or runs with other seeds.

    With a folder, a killed call continues, since a seeded sampler proposes the same again: finished
    runs are read, unfinished batches are repeated.  Runs that a rung cut are in sub-folders, as
    sweeps of so many rounds.  With another metric, mode or rungs in the same folder a batch is
    repeated, unless the same runs are cut.

    Args:
        factory, setup, keys, callbacks, storage, options: as in :func:`~fedjax_sim.sweep`.  Events
            and progress are those of the batch.  Objects with a method ``tried`` receive the
            :class:`Tried` of every configuration after its batch.
        space: Optuna's distributions by name of the hyper-parameter, ``{"lr":
            optuna.distributions.FloatDistribution(1e-3, 1.0, log=True)}``.  Names that change
            shapes (parameters of ``setup``, names of choices) make programs of their own.  A
            function of Optuna's trial returns a configuration whose names may depend on its choices
            (``trial.suggest_categorical``).
        metric: a number of every evaluation, such as ``"valid/accuracy"``.
        mode: "min" or "max"; default by the metric's name.
        trials: configurations in all.
        batch: configurations that the sampler proposes at once.  With more of them, fewer know of
            the others' scores.
        sampler: default ``TPESampler(seed=0)``; none of a whole grid, which ``fs.sweep`` runs.
        halving: rounds after which only the best of a batch continue.

    Raises:
        ValueError: as :func:`~fedjax_sim.sweep`; an empty space or configuration, an unknown metric
            or one that is no number, rungs that are no rounds of evaluation, several factories.
        ImportError: Optuna is not installed.

    Example:
        >>> import jax, optuna
        >>> import fedjax_sim as fs
        >>> x = np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32)
        >>> data = fs.FederatedData({"x": x, "y": x.sum(1)}, np.arange(0, 41, 5))  # 8 clients
        >>> loss = lambda w, batch, key: (batch["x"] @ w - batch["y"]) ** 2
        >>> task = fs.empirical_task(loss, data, fs.epochs(2, 5))
        >>> timeline = fs.timelines.uniform(jax.random.key(0), 20, 8, 4, task.num_steps)
        >>> error = lambda w: {"error": abs(w - 1).max()}
        >>> setup = fs.Setup(task, timeline, np.zeros((2, 3), np.float32), error, eval_every=5)
        >>> keys = jax.random.split(jax.random.key(1), 2)
        >>> space = {"lr": optuna.distributions.FloatDistribution(1e-3, 10.0, log=True)}
        >>> found = fs.tune(
        ...     fs.fedavg, setup, space, keys, metric="error", mode="min", trials=16,
        ...     halving=fs.Halving((5,)),
        ... )
        >>> len(found.tried), sum(one.complete for one in found.tried), found.best.score < 1e-3
        (16, 4, True)
    """
    optuna = import_extra("optuna", "tune")
    mode = "max" if sign(metric, mode) > 0 else "min"
    check_count(1, trials=trials, batch=batch)
    check_split_keys(keys)
    _check_space(optuna, space)
    _check_sampler(optuna, sampler)
    if not (halving is None or isinstance(halving, Halving)):
        raise ValueError(f"halving is {halving!r:.60}; expected fs.Halving((10, 30)), or None")
    if isinstance(factory, Mapping):
        raise ValueError(
            "factory is a mapping of algorithms; expected a function of the hyper-parameters: "
            "tune each algorithm by a call of its own, or choose it by a function with a parameter"
        )
    if not isinstance(setup, Setup):  # asked for by every check of every batch
        setup = _remembered(setup, batch * keys.shape[0])

    def planned(configurations: Sequence[Configuration], setup: Setup | MakeSetup) -> SweepPlan:
        return check(factory, setup, configurations, keys, callbacks, storage, options)

    study = _study(optuna, mode, sampler)
    search = _Search(planned, setup, _Goal(metric, 1 if mode == "max" else -1), halving)
    tried: list[Tried] = []
    with deferred_interrupt() as signalled:
        while len(tried) < trials and not (signalled() or search.interrupted):
            asked = [_asked(study, space) for _ in range(min(batch, trials - len(tried)))]
            if not search.run([configuration for _, configuration in asked], batch):
                break
            for trial, configuration in asked:
                for round, score in search.rungs(configuration).items():
                    trial.report(score, round)
                one = search.tried(configuration)
                if one.complete:
                    study.tell(trial, one.score)
                else:
                    study.tell(trial, state=optuna.trial.TrialState.PRUNED)
                tried.append(one)
                notify(callbacks, "tried", one)
    if len(tried) == trials and (folder := storage_of(storage).path) is not None:
        rungs = () if halving is None else halving.rounds
        for one in (folder, *(_rung_folder(folder, end) for end in rungs)):
            mark_finished(one)
    return Tuning(metric, mode, tried, search.result(len(tried) < trials), study)


def _check_space(optuna: Any, space: Space) -> None:
    """Refuses what is no space of configurations."""
    if callable(space):
        return
    if not isinstance(space, Mapping) or not space:
        raise ValueError(
            f"space is {space!r:.60}; expected distributions of Optuna by name, or a function of a "
            "trial"
        )
    for name, distribution in space.items():
        if not isinstance(distribution, optuna.distributions.BaseDistribution):
            raise ValueError(
                f"space[{name!r}] is {distribution!r:.60}; expected a distribution of Optuna, such "
                "as optuna.distributions.FloatDistribution(1e-3, 1.0, log=True)"
            )


def _check_sampler(optuna: Any, sampler: object) -> None:
    """Refuses what is no sampler, and samplers that end a study."""
    samplers = optuna.samplers
    if not (sampler is None or isinstance(sampler, samplers.BaseSampler)):
        raise ValueError(
            f"sampler is {sampler!r:.60}; expected a sampler of Optuna, such as "
            "optuna.samplers.TPESampler(seed=0)"
        )
    if isinstance(sampler, samplers.GridSampler | samplers.BruteForceSampler):
        raise ValueError(
            f"sampler is a {type(sampler).__name__}; expected another one: fs.sweep runs all "
            "configurations of a grid"
        )


def _remembered(setup: MakeSetup, size: int) -> MakeSetup:
    """Returns the function that makes a setup, with its last results by arguments of one kind."""
    if not callable(setup):
        check_is_setup(setup)
    known: list[tuple[Configuration, Setup]] = []

    @functools.wraps(setup)
    def make(**values: Any) -> Setup:
        for other, result in known:
            if is_same(other, values):
                return result
        known.append((values, setup(**values)))
        del known[:-size]
        return known[-1][1]

    return make


def _asked(study: optuna.Study, space: Space) -> tuple[optuna.Trial, Configuration]:
    """Returns a new trial and its configuration."""
    trial = study.ask() if callable(space) else study.ask(dict(space))
    configuration = space(trial) if callable(space) else trial.params
    if not isinstance(configuration, Mapping) or not configuration:
        raise ValueError(
            f"space returned {configuration!r:.60}; expected the values of a configuration by name"
        )
    for name in Tried._fields:
        if name in configuration:
            raise ValueError(
                f"space has {name!r}; expected another name, since the frame of a tuning has a "
                f"column {name!r}: rename the parameter, such as by a lambda"
            )
    return trial, dict(configuration)


def _filled(batch: int, number: int) -> int:
    """Returns the next power of 2, so that groups of all sizes have few programs."""
    return min(1 << (number - 1).bit_length(), batch)


def _study(optuna: Any, mode: str, sampler: Any) -> optuna.Study:
    """Returns an empty study, of which Optuna says nothing."""
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        return optuna.create_study(
            direction="maximize" if mode == "max" else "minimize",
            sampler=sampler or optuna.samplers.TPESampler(seed=0),
        )
    finally:
        optuna.logging.set_verbosity(before)


def _rung_folder(folder: pathlib.Path, end: int) -> pathlib.Path:
    """Folder of the runs that end with a rung."""
    return folder / f"{end}_rounds"


class _Goal(NamedTuple):
    """Metric that is tuned for."""

    metric: str
    sign: int  # 1: larger is better

    def score(self, runs: Sequence[SweepRun], after: int) -> float:
        """Returns the mean over the seeds after a round; infinitely bad if one diverged."""
        values = []
        for run in runs:
            at = np.flatnonzero(np.asarray(run.history.round) <= after)[-1]
            metrics = {name: np.asarray(x)[at] for name, x in run.history.metrics.items()}
            value = float(metrics[self.metric]) if due(metrics, self.metric) else np.nan
            # An infinite metric says as little as a NaN, and the sampler must not learn from it.
            bad = not np.isfinite(value) or 0 < run.diverged_at <= after
            values.append(-self.sign * np.inf if bad else value)
        return float(np.mean(values))

    def scores(self, runs: Mapping[RunNumber, SweepRun], after: int) -> dict[int, float]:
        """Returns scores of configurations of which larger is better."""
        numbers = {i for i, _ in runs}
        own = {i: [run for number, run in runs.items() if number[0] == i] for i in numbers}
        return {i: self.sign * self.score(of, after) for i, of in own.items()}

    def check(self, algorithm: FedAlgorithm, setup: Setup, ends: Sequence[int]) -> None:
        """Refuses a metric that the evaluations after these rounds do not have as a number."""
        if setup.eval_fn is None:
            raise ValueError("setup.eval_fn is None; expected an evaluation with the metric")
        numbers = names_of_numbers(setup.eval_fn, metric_shapes(algorithm, setup))
        if self.metric not in (*numbers, *CLOCK):
            raise ValueError(
                f"metric is {self.metric!r}; expected a number of the evaluation: "
                f"{', '.join(sorted(numbers))}"
            )
        for period in sorted(periods_of(setup.eval_fn, self.metric)):
            if skipped := [end for end in ends if end % period]:
                raise ValueError(
                    f"metric is {self.metric!r}, which is evaluated every {period} rounds; "
                    f"expected one that is evaluated after round {skipped[0]}, where runs are "
                    "scored"
                )


class _Search:
    """Runs of the batches so far, with their programs."""

    def __init__(
        self,
        planned: Callable[[Sequence[Configuration], Setup | MakeSetup], SweepPlan],
        setup: Setup | MakeSetup,
        goal: _Goal,
        halving: Halving | None,
    ):
        self._planned, self._setup, self._goal = planned, setup, goal
        self._halving = halving or Halving(())
        self._programs: Programs | None = None
        self._runs: dict[RunKey, list[SweepRun]] = {}  # by configuration
        self._num_rounds: dict[RunKey, int] = {}  # of the whole setup
        self._results: list[Sweep] = []
        self.interrupted = False

    def run(self, proposed: Sequence[Configuration], batch: int) -> bool:
        """Runs the proposed configurations that are new; returns False if some did not finish."""
        new = {run_key(one, ""): one for one in proposed}
        new = {name: one for name, one in new.items() if name not in self._runs}
        if not new:
            return True
        plan = self._planned(list(new.values()), self._setup)
        num_rounds = self._check(plan)
        rungs = self._halving.rounds
        if self._programs is None:
            notify(plan.callbacks, "begin", "")
            # Groups of choices have other sizes in every batch: filling each would be waste.
            several = len({group.members for group, _ in plan.shares}) > 1
            filled = functools.partial(_filled, batch) if several else int
            if not several and not rungs:
                filled = lambda number: batch  # noqa: E731
            self._programs = programs_for(plan.options, filled, rungs)
        if rungs:
            plans = {end: self._of_rung(plan, end) for end in rungs} | {num_rounds: plan}
            outcome = run_bracket(plans, self._programs, self._goal.scores, self._halving)
        else:
            outcome = run_groups(plan, open_store(plan), self._programs)
        marked = functools.partial(_marked, num_rounds=num_rounds)
        outcome = outcome._replace(found=marked(outcome.found), new=marked(outcome.new))
        self._results.append(result_of(plan, outcome))
        self.interrupted = outcome.interrupted
        runs = outcome.found | outcome.new
        for i, name in enumerate(new):
            self._num_rounds[name] = num_rounds
            self._runs[name] = [runs[number] for number in sorted(runs) if number[0] == i]
        return not outcome.stopped

    def _of_rung(self, plan: SweepPlan, end: int) -> SweepPlan:
        """Returns the sweep of the rounds until a rung, in a folder of its own."""
        short = self._planned(plan.configurations, _shortened(self._setup, end))
        folder = plan.storage.path and _rung_folder(plan.storage.path, end)
        return dataclasses.replace(short, storage=dataclasses.replace(plan.storage, folder=folder))

    def _check(self, plan: SweepPlan) -> int:
        """Returns the number of rounds of the setups; refuses what cannot be tuned."""
        lengths = set()
        for group, numbers in plan.shares:
            seed = plan.values[numbers[0]] if plan.trials.per_seed else None
            setup = plan.trials.make(group.static, seed).setup
            num_rounds = setup.timeline.num_rounds
            self._halving.check(num_rounds, setup.eval_every)
            ends = [*self._halving.rounds, num_rounds]
            self._goal.check(plan.algorithms[group.members[0]], setup, ends)
            lengths.add(num_rounds)
        lengths |= set(self._num_rounds.values())
        if len(lengths) > 1:
            raise ValueError(
                f"setup has {' or '.join(map(str, sorted(lengths)))} rounds; expected one number, "
                "so that scores can be compared"
            )
        return lengths.pop()

    def rungs(self, configuration: Configuration) -> dict[int, float]:
        """Returns the scores of a configuration after the rungs that it reached."""
        runs = self._runs[run_key(configuration, "")]
        last = int(runs[0].history.round[-1])
        reached = [rung for rung in self._halving.rounds if rung <= last]
        return {rung: self._goal.score(runs, rung) for rung in reached}

    def tried(self, configuration: Configuration) -> Tried:
        """Returns the outcome of a configuration."""
        name = run_key(configuration, "")
        last = int(self._runs[name][0].history.round[-1])
        score = self._goal.score(self._runs[name], last)
        return Tried(dict(configuration), score, last, last == self._num_rounds[name])

    def result(self, interrupted: bool) -> Sweep:
        """Returns the runs of all batches as one sweep."""
        if not self._results:
            return Sweep([], interrupted, 0, 0, 0.0, 0.0)
        last = self._results[-1]  # compilations are those of all batches
        return last._replace(
            interrupted=interrupted,
            runs=[run for one in self._results for run in one.runs],
            resumed=sum(one.resumed for one in self._results),
            run_seconds=sum(one.run_seconds for one in self._results),
            missing=sum(one.missing for one in self._results),
        )


def _marked(runs: Mapping[RunNumber, SweepRun], num_rounds: int) -> dict[RunNumber, SweepRun]:
    """Returns the runs of a batch, of which those with fewer rounds were cut."""
    return {
        number: run._replace(cut=int(run.history.round[-1]) < num_rounds)
        for number, run in runs.items()
    }


def _shortened(setup: Setup | MakeSetup, rounds: int) -> Setup | MakeSetup:
    """Returns the setup with its first rounds only, or a function that makes it."""

    def first(setup: Setup) -> Setup:
        return dataclasses.replace(setup, timeline=setup.timeline[:rounds])

    if isinstance(setup, Setup):
        return first(setup)

    @functools.wraps(setup)
    def make(**values: Any) -> Setup:
        return first(setup(**values))

    return make
