"""Conditions of theorems that a setup and its measured constants decide."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fedjax_sim.checks import is_traced
from fedjax_sim.engine import check_run
from fedjax_sim.studies.advice.measurement import Measurement
from fedjax_sim.studies.advice.sources import value_of
from fedjax_sim.timelines import Sampling
from fedjax_sim.types import Setup, shown, uniform_weights, weight_by_examples

FULL = "all clients take part in every round"
UNIFORM = "cohorts are drawn uniformly without replacement"
EQUAL_STEPS = "all visits have the same number of local steps"
SYNCHRONOUS = "clients start from the current model and every upload arrives"
EQUAL_WEIGHTS = "all clients have the same weight"
INDEPENDENT = "minibatches are independent and unbiased"
CONVEX = "every client's objective is convex"
STRONGLY_CONVEX = "F is strongly convex"
ONE_OBJECTIVE = "all clients have one objective"


@shown
class Condition(NamedTuple):
    """A condition of a theorem on a setup.

    Example:
        >>> Condition(FULL, False, "rounds have 2 of 8 clients").text
        'all clients take part in every round: rounds have 2 of 8 clients'
    """

    name: str
    holds: bool | None  # None: undecided; the reason says what is known
    reason: str

    @property
    def text(self) -> str:
        """Condition and reason."""
        return f"{self.name}: {self.reason}"


@shown
class Sizes(NamedTuple):
    """Numbers of a setup that enter bounds."""

    clients: int  # M
    cohort_size: int  # S, the uploads per round
    local_steps: int  # K, the largest if visits differ
    rounds: int  # R


def sizes_of(setup: Setup) -> Sizes:
    """Returns the numbers of a setup of one run; refuses setups that cannot be measured."""
    check_run((), setup, None, compiled=False)
    timeline = setup.timeline
    if is_traced(setup):
        raise ValueError("setup is traced; expected concrete arrays: call advise outside of jit")
    if setup.task.placement is not None:
        raise ValueError(
            f"task.placement is a {type(setup.task.placement).__name__}; expected None: constants "
            "are measured on all clients' data at once"
        )
    steps = np.asarray(timeline.num_steps)[np.asarray(timeline.mask)]
    uploads = np.asarray(timeline.arrived).sum(axis=1)
    if not uploads.max(initial=0) or not steps.max(initial=0):
        raise ValueError("timeline has no upload with local steps; expected some")
    size, most = int(uploads.max()), int(steps.max())
    return Sizes(setup.task.num_clients, size, most, timeline.num_rounds)


def conditions_of(setup: Setup, measurement: Measurement) -> dict[str, Condition]:
    """Returns all conditions by name."""
    every = [*_of_run(setup), _independent(measurement), *_of_problem(measurement)]
    return {condition.name: condition for condition in every}


def constant_condition(name: str, measurement: Measurement) -> Condition:
    """Returns the condition that a constant is known, or that its estimate holds everywhere."""
    source = measurement.sources[name]
    if source.kind == "unknown":
        return Condition(f"{name} is known", False, source.note)
    if source.kind == "estimate":
        value = value_of(measurement.constants, name)
        side = "at least" if name in ("mu", "lojasiewicz_mu") else "at most"
        return Condition(f"{name} is {side} {value:.3g} at every model", None, source.note)
    return Condition(f"{name} is known", True, source.note)


def _of_run(setup: Setup) -> list[Condition]:
    timeline, clients = setup.timeline, setup.task.num_clients
    mask, arrived = np.asarray(timeline.mask), np.asarray(timeline.arrived)
    uploads = arrived.sum(axis=1)
    fewest, most = int(uploads.min()), int(uploads.max())
    share = f"{fewest}" if fewest == most else f"{fewest} to {most}"
    full = fewest == clients  # the clients of a round are distinct
    rule = timeline.sampling
    drawn = Sampling("without_replacement", float(most), clients, most)
    uniform = full or (rule == drawn and fewest == most)
    undecided = rule is None and fewest == most and not full
    kind = "unknown" if rule is None else rule.kind
    steps = np.unique(np.asarray(timeline.num_steps)[mask])
    equal = len(steps) == 1
    count = f"{steps[0]}" if equal else f"{steps[0]} to {steps[-1]}"
    versions = np.asarray(timeline.version) == np.arange(timeline.num_rounds)[:, None]
    current = bool(versions[mask].all()) and not timeline.own_models
    lost = int(mask.sum() - arrived.sum())
    examples = np.unique(np.asarray(setup.task.num_examples))
    weighting = setup.weighting
    same = weighting is uniform_weights or (weighting is weight_by_examples and len(examples) == 1)
    named = getattr(weighting, "__name__", repr(weighting))  # partials have no name
    late = f"{lost} uploads are lost" if lost else "some clients start from earlier models"
    return [
        Condition(FULL, full, f"rounds have {share} of {clients} clients"),
        Condition(
            UNIFORM,
            None if undecided else uniform,
            f"rule {kind}, {share} of {clients}",
        ),
        Condition(EQUAL_STEPS, equal, f"{count} local steps"),
        Condition(SYNCHRONOUS, current and not lost, "yes" if current and not lost else late),
        Condition(EQUAL_WEIGHTS, same, f"weighting is {named}"),
    ]


def _independent(measurement: Measurement) -> Condition:
    if measurement.deterministic:
        return Condition(INDEPENDENT, True, "gradients have no noise")
    reason = "not checked; with_replacement satisfies it, epochs do not"
    return Condition(INDEPENDENT, None, reason)


def _of_problem(measurement: Measurement) -> list[Condition]:
    constants, sources, convex = measurement.constants, measurement.sources, measurement.convex
    decided = {"unknown": False, "estimate": None}
    mu, zeta = value_of(constants, "mu"), value_of(constants, "zeta")
    strongly = decided.get(sources["mu"].kind, True) if mu else False
    shown = "" if mu is None else f"mu is {mu:.3g}, "
    one = decided.get(sources["zeta"].kind, True) if zeta == 0 else False
    return [
        Condition(CONVEX, decided.get(convex.kind, True), convex.note),
        Condition(STRONGLY_CONVEX, strongly, shown + sources["mu"].note),
        Condition(ONE_OBJECTIVE, one, f"zeta is {zeta:.3g}, {sources['zeta'].note}"),
    ]
