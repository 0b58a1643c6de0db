"""``fedjax-sim advise``: what theory says about the task of a comparison."""

import dataclasses

import jax

from fedjax_sim.checks import check_positive
from fedjax_sim.cli.diagnose import is_softmax_regression
from fedjax_sim.data import empirical_task
from fedjax_sim.diagnostics import SOFTMAX, linear_model_bounds
from fedjax_sim.objectives import cross_entropy, with_l2
from fedjax_sim.studies.advice.advise import advise
from fedjax_sim.studies.advice.result import Advice
from fedjax_sim.studies.setups.build import ResolvedRun, one_seed, resolve
from fedjax_sim.studies.setups.config import RunConfig
from fedjax_sim.theory import ProblemConstants
from fedjax_sim.types import Setup

DESCRIPTION = """\
Measures the constants of the task that PRESET, one of {presets} (default quickstart), or a
CONFIG.json describes, and prints which convergence theorems apply, and the rates, numbers of local
steps and rounds that they prescribe. The weight decay of fedavg is part of the objective of
softmax_regression, whose constants then hold at every model. Trains nothing."""


@dataclasses.dataclass(frozen=True)
class AdviseOptions(RunConfig):
    """Options of ``fedjax-sim advise``."""

    target: float | None = None
    """Suboptimality F - F* for which rounds are predicted."""
    gradient_target: float | None = None
    """Squared norm of the gradient for which rounds are predicted."""


def run_advise(
    config: RunConfig, target: float | None = None, gradient_target: float | None = None
) -> Advice:
    """Returns the advice for the first seed of a comparison; writes nothing.

    Args:
        config: the comparison.
        target, gradient_target: as for :func:`fedjax_sim.advise`.

    Raises:
        ValueError: as :func:`fedjax_sim.studies.setups.build.resolve` and
            :func:`fedjax_sim.advise`.
    """
    for name, value in (("target", target), ("gradient_target", gradient_target)):
        if value is not None:  # before the data are loaded
            check_positive(**{name: value})
    comparison = resolve(config)
    with comparison.arithmetic():
        setup, known = _problem(comparison)
        return advise(
            setup,
            jax.random.key(config.seed),
            target=target,
            gradient_target=gradient_target,
            known=known,
            lower_bound=0.0,
            execution=comparison.execution,
        )


def _problem(comparison: ResolvedRun) -> tuple[Setup, ProblemConstants | None]:
    """The setup of one seed, and constants that hold at every model."""
    problem, options = comparison.problem, comparison.options
    setup = one_seed(problem.setup)
    if not is_softmax_regression(problem) or options["num_strata"] is not None:
        return setup, None
    weight = comparison.hyper.get("fedavg", {}).get("weight_decay", 0.0)
    if weight > 0:
        objective = with_l2(cross_entropy(problem.model.apply), weight)
        task = empirical_task(objective, problem.data, problem.batches)
        setup = dataclasses.replace(setup, task=task)
    data = problem.data
    bounds = linear_model_bounds(data.examples["x"], data.offsets, SOFTMAX, l2=weight)
    return setup, bounds.constants(options["batch_size"])
