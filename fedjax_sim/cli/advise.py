"""``fedjax-sim advise``: what theory says about the task of a comparison."""

import dataclasses
from typing import Annotated

import jax

from fedjax_sim.cli.diagnose import is_softmax_regression
from fedjax_sim.data import empirical_task
from fedjax_sim.diagnostics import SOFTMAX, linear_model_bounds
from fedjax_sim.objectives import cross_entropy, with_l2
from fedjax_sim.studies.advice.advise import advise
from fedjax_sim.studies.advice.result import Advice
from fedjax_sim.studies.setups import (
    OPEN,
    Positive,
    ResolvedRun,
    Run,
    group,
    one_seed,
)
from fedjax_sim.theory import ProblemConstants
from fedjax_sim.types import Setup

DESCRIPTION = """\
Measures the constants of the task that PRESET, one of {presets} (default quickstart), or a
CONFIG.json describes, and prints which convergence theorems apply, and the rates, numbers of local
steps and rounds that they prescribe. The weight decay of fedavg is part of the objective of
softmax_regression, whose constants then hold at every model. Trains nothing."""


@group
class AdviseOptions:
    """Options of ``fedjax-sim advise``."""

    run: Annotated[Run, OPEN]

    target: Positive | None = None
    """Suboptimality F - F* for which rounds are predicted."""
    gradient_target: Positive | None = None
    """Squared norm of the gradient for which rounds are predicted."""


def run_advise(
    comparison: ResolvedRun, target: float | None = None, gradient_target: float | None = None
) -> Advice:
    """Returns the advice for the first seed of a comparison; writes nothing."""
    with comparison.arithmetic():
        setup, known = _problem(comparison)
        return advise(
            setup,
            jax.random.key(int(comparison.seeds[0])),
            target=target,
            gradient_target=gradient_target,
            known=known,
            lower_bound=0.0,
            execution=comparison.execution,
        )


def _problem(comparison: ResolvedRun) -> tuple[Setup, ProblemConstants | None]:
    """The setup of one seed, and constants that hold at every model."""
    problem = comparison.problem
    setup, parts = one_seed(problem.setup), problem.parts
    known = is_softmax_regression(problem) and comparison.computed.num_strata is None
    if parts is None or not known:
        return setup, None
    weight = comparison.hyper.get("fedavg", {}).get("weight_decay", 0.0)
    if weight > 0:
        objective = with_l2(cross_entropy(parts.model.apply), weight)
        task = empirical_task(objective, parts.data, parts.batches)
        setup = dataclasses.replace(setup, task=task)
    data = parts.data
    bounds = linear_model_bounds(data.examples["x"], data.offsets, SOFTMAX, l2=weight)
    return setup, bounds.constants(comparison.batch_size)
