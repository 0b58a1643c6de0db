"""A run's metric as a function of its hyper-parameters, round by round; of the last rounds only."""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.tree_util import Partial

from fedjax_sim import tree
from fedjax_sim.checks import called
from fedjax_sim.engine import (
    Execution,
    RunState,
    advance,
    evaluate,
    evaluation_context,
    first_state,
)
from fedjax_sim.studies.hypergradients.checkpointing import scan_rounds
from fedjax_sim.types import FedAlgorithm, PyTree, Setup, Timeline


class Arrays(NamedTuple):
    """Arrays of a run: arguments of the compiled program."""

    setup: Setup
    key: Array
    metric: Partial | None


class Problem(NamedTuple):
    """A run as a function of its hyper-parameters; has no arrays."""

    name: str | None  # of a metric of the setup; None: a function
    algorithm_of: Callable[[PyTree], FedAlgorithm]
    setup_of: Callable[[PyTree, Setup], Setup]
    execution: Execution
    levels: int

    def value(self, hyper: PyTree, arrays: Arrays, levels: int | None = None) -> Array:
        """Returns the metric after all rounds."""
        state = self.begin(hyper, arrays)

        def step(state: RunState, now: Timeline) -> RunState:
            return self.round(hyper, arrays, state, now)

        levels = self.levels if levels is None else levels
        state = scan_rounds(step, state, arrays.setup.timeline, levels)
        return self.end(hyper, arrays, state)

    def algorithm_for(self, hyper: PyTree) -> FedAlgorithm:
        """Returns the algorithm of hyper-parameters."""
        given, expected = "the hyper-parameters", "a function of (hyper), which may be traced"
        return called("algorithm_of", given, expected, self.algorithm_of, hyper)

    def setup_for(self, hyper: PyTree, setup: Setup) -> Setup:
        """Returns the setup of hyper-parameters."""
        given, expected = "(hyper, setup)", "a function that returns a Setup, which may be traced"
        own = called("setup_of", given, expected, self.setup_of, hyper, setup)
        if not isinstance(own, Setup):
            raise ValueError(f"setup_of returns a {type(own).__name__}; expected a Setup")
        return own

    def begin(self, hyper: PyTree, arrays: Arrays) -> RunState:
        """Returns the state before the first round."""
        return first_state(self.algorithm_for(hyper), self.setup_for(hyper, arrays.setup))

    def round(self, hyper: PyTree, arrays: Arrays, state: RunState, now: Timeline) -> RunState:
        """Returns the state after a round of the engine; ``now`` has leaves ``[S]``."""
        setup = self.setup_for(hyper, arrays.setup)
        one = jax.tree.map(lambda x: x[None], now)
        setup = dataclasses.replace(setup, timeline=one, params=None, eval_fn=None, eval_every=1)
        algorithm = self.algorithm_for(hyper)
        return advance(algorithm, setup, state, arrays.key, execution=self.execution)[0]

    def end(self, hyper: PyTree, arrays: Arrays, state: RunState) -> Array:
        """Returns the metric of the final state; NaN if the run diverged."""
        setup = self.setup_for(hyper, arrays.setup)
        context = evaluation_context(
            self.algorithm_for(hyper), setup.task, setup.timeline, state, arrays.key
        )
        if arrays.metric is not None:
            # As an evaluation, since clients may keep the running statistics of the model.
            own = Partial(lambda metric, params: {"metric": metric(params)}, arrays.metric)
            name, value = "metric", evaluate(own, context)["metric"]
        else:
            assert setup.eval_fn is not None
            values = evaluate(setup.eval_fn, context)
            if self.name not in values:
                raise ValueError(f"metric is {self.name!r}; expected one of {sorted(values)}")
            name, value = f"metric {self.name!r}", values[self.name]
        value = jnp.asarray(value)
        if value.shape or not jnp.issubdtype(value.dtype, jnp.floating):
            raise ValueError(
                f"{name} has shape {value.shape} and dtype {value.dtype}; expected one floating "
                "number"
            )
        # A model of NaN may have a metric, such as the accuracy of one class, without derivatives.
        return value * jnp.where(state.diverged_at == 0, 1, jnp.nan).astype(value.dtype)


class Truncation(NamedTuple):
    r"""Terms that truncation to the last k rounds leaves out.

    With the adjoints :math:`\lambda_t`, the contributions
    :math:`c_t = \lambda_{t+1}^\top b_t` of the rounds and the derivative
    :math:`b_{-1} = \partial s_0 / \partial h` of the initial state, truncation drops
    :math:`\sum_{t<T-k} c_t + \lambda_0^\top b_{-1}`.  From the last k rounds,

    .. math::
        \rho = \Big(\frac{\|\lambda_{T-k}\|}{\|\lambda_T\|}\Big)^{1/k}, \qquad
        \text{bias} = \max_{1 \le s \le k} \frac{\rho^{s} \|c_{T-k+s-1}\|}{1 - \rho}
            + \rho^{T-k} \|\lambda_{T-k}^\top b_{-1}\|,

    infinite if :math:`\rho \ge 1`: the run does not forget.  If earlier Jacobians contract by
    :math:`\rho` and earlier direct terms are no larger than these, it bounds the norm of the
    dropped terms (:math:`\rho^k \max \|b\| / (1 - \rho)` for one state).  It is an estimate, since
    both are measured in the last rounds only.
    """

    contraction: Array  # rho, mean factor of the adjoint's norm per round
    contributions: PyTree  # [k, ...] c_t of the last rounds, per leaf of the hyper-parameters
    bias: PyTree  # estimated norm of the dropped terms, one number per leaf; 0 if k = T


def truncated(
    problem: Problem, hyper: PyTree, arrays: Arrays, last_rounds: int, levels: int
) -> tuple[Array, PyTree, Truncation]:
    """Returns the metric, the derivatives through the last rounds, and what they leave out."""
    timeline = arrays.setup.timeline
    first = timeline.num_rounds - last_rounds

    def step(state: Any, now: Any) -> Any:
        return problem.round(hyper, arrays, state, now)

    def begin(hyper: PyTree) -> tuple[list[Array], Any]:
        state = problem.begin(hyper, arrays)
        return _split(state)[0], state

    _, pull_begin, state = jax.vjp(begin, hyper, has_aux=True)
    if first:
        state = scan_rounds(step, state, timeline[:first], 0)
    # Every round has hyper-parameters of its own, so that the contributions are separate.
    copies = jax.tree.map(lambda x: jnp.broadcast_to(x, (last_rounds, *jnp.shape(x))), hyper)

    def window(copies: PyTree, floats: list[Array]) -> tuple[list[Array], list[Array]]:
        def step(state: Any, now: Any) -> Any:
            copy, part = now
            return problem.round(copy, arrays, state, part)

        start = _join(state, floats, _split(state)[1])
        end = scan_rounds(step, start, (copies, timeline[first:]), levels)
        return _split(end)

    begin_floats, _ = _split(state)
    end_floats, pull_window, end_others = jax.vjp(window, copies, begin_floats, has_aux=True)

    def metric(hyper: PyTree, floats: list[Array]) -> Array:
        return problem.end(hyper, arrays, _join(state, floats, end_others))

    value, pull_metric = jax.vjp(metric, hyper, end_floats)
    direct, end_adjoint = pull_metric(jnp.ones_like(value))
    contributions, begin_adjoint = pull_window(end_adjoint)
    gradient = jax.tree.map(lambda d, c: d + c.sum(axis=0), direct, contributions)
    contraction = _contraction(begin_adjoint, end_adjoint, last_rounds)
    (initial,) = pull_begin(begin_adjoint)
    if first:
        bias = jax.tree.map(lambda c, i: _bias(c, i, contraction, first), contributions, initial)
    else:
        gradient = tree.add(gradient, initial)
        bias = jax.tree.map(lambda c: jnp.zeros(()), contributions)
    return value, gradient, Truncation(contraction, contributions, bias)


def _contraction(begin: PyTree, end: PyTree, rounds: int) -> Array:
    norms = tree.norm(begin), tree.norm(end)
    return jnp.where(norms[1] > 0, norms[0] / jnp.where(norms[1] > 0, norms[1], 1), 0) ** (
        1 / rounds
    )


def _bias(contributions: Array, initial: Array, contraction: Array, first: int) -> Array:
    """Returns the estimate for one leaf from the contributions of the last rounds."""
    count = contributions.shape[0]
    norms = jnp.linalg.norm(contributions.reshape(count, -1), axis=1)
    powers = jnp.arange(1, count + 1).astype(norms.dtype)
    rho = contraction.astype(norms.dtype)
    dropped = jnp.max(rho**powers * norms) / jnp.where(rho < 1, 1 - rho, 1)
    return jnp.where(rho < 1, dropped + rho**first * jnp.linalg.norm(initial.ravel()), jnp.inf)


def _split(state: PyTree) -> tuple[list[Array], list[Array]]:
    """Returns the floating leaves of a state, and the others."""
    leaves = jax.tree.leaves(state)
    floating = [jnp.issubdtype(leaf.dtype, jnp.inexact) for leaf in leaves]
    pairs = list(zip(leaves, floating, strict=True))
    return [x for x, mine in pairs if mine], [x for x, mine in pairs if not mine]


def _join(like: PyTree, floats: list[Array], others: list[Array]) -> PyTree:
    """Returns the state with the structure of ``like`` and these leaves."""
    leaves, structure = jax.tree.flatten(like)
    parts = iter(floats), iter(others)
    return structure.unflatten(
        [next(parts[not jnp.issubdtype(leaf.dtype, jnp.inexact)]) for leaf in leaves]
    )
