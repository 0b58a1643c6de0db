"""``hypergradient``: derivatives of a run's result with respect to its hyper-parameters."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.tree_util import Partial

from fedjax_sim.checks import (
    check_choice,
    check_count,
    check_is_setup,
    check_keys,
    check_takes,
    is_concrete,
)
from fedjax_sim.engine import (
    NO_PROBES,
    Execution,
    OnHost,
    auto,
    check_last_round,
    check_options,
    check_run,
    first_state,
    is_ragged,
    program_bytes,
)
from fedjax_sim.runs import Forecast, Options, Seconds, forecast
from fedjax_sim.studies.hypergradients.checkpointing import Checkpoint, num_levels, stored_states
from fedjax_sim.studies.hypergradients.problem import Arrays, Problem, Truncation, truncated
from fedjax_sim.types import FedAlgorithm, Params, PyTree, Setup, Timeline

Metric = str | Callable[[Params], Array]
Mode = Literal["auto", "forward", "reverse"]

# Most numbers among the hyper-parameters for which "auto" takes forward mode. Measured, see
# docs/howto/hypergradients.md.
MOST_FORWARD = 4


class Hypergradient(NamedTuple):
    """Value of a metric and its derivatives."""

    value: Array  # the metric of the final model
    gradient: PyTree  # with the structure and shapes of the hyper-parameters
    truncation: Truncation | None = None  # with ``last_rounds``: what it leaves out


def hypergradient(
    metric: Metric,
    algorithm_of: Callable[[PyTree], FedAlgorithm],
    setup: Setup,
    key: Array,
    *,
    setup_of: Callable[[PyTree, Setup], Setup] | None = None,
    mode: Mode = "auto",
    checkpoint: Checkpoint = "sqrt",
    last_rounds: int | None = None,
    execution: Execution | None = None,
) -> HypergradientFunction:
    r"""Returns a function of hyper-parameters: the metric after a whole run, and its derivatives.

    With the state :math:`s_{t+1} = \Phi_t(s_t, h)` of round t and the metric :math:`E(s_T)`,

    .. math::
        \frac{dE}{dh} = \sum_{t<T} \lambda_{t+1}^\top b_t, \qquad
        b_t = \frac{\partial \Phi_t}{\partial h}, \qquad
        \lambda_t = J_t^\top \lambda_{t+1}, \quad J_t = \frac{\partial \Phi_t}{\partial s_t}, \quad
        \lambda_T = \nabla E(s_T).

    The derivatives are those of the program, whatever the algorithm, exact up to rounding.  The
    timeline and the minibatches stay fixed.

    * *Forward mode* carries the derivative of the state with respect to every hyper-parameter: the
      time and the memory of 1 + h runs for h numbers.  It stores no states.
    * *Reverse mode* takes the operations of 3 to 4 runs for any number of hyper-parameters, and one
      run more per level of ``checkpoint``.  With L levels it stores about :math:`L\,T^{1/L}` states
      and the residuals of one round (:mod:`fedjax_sim.studies.hypergradients.checkpointing`).
    * *Truncation* leaves out all rounds but the last k.  It is biased unless the run forgets its
      past; the result's ``truncation`` estimates the norm of the terms that it leaves out.

    Args:
        metric: ``params -> scalar``, a function of the final model (a ``Partial`` if it carries
            data), or the name of a metric of ``setup.eval_fn``.  It must be smooth: a loss rather
            than an accuracy.
        algorithm_of: ``hyper -> FedAlgorithm``, for example ``lambda h: fs.fedavg(h["lr"])``.  A
            vector of rates, one per round, is the schedule ``lambda t: h["lr"][t]``.
        setup: of one run; all rounds of its timeline are differentiated.
        key: the run's key; or n keys ``[n]``, for the mean over n runs with other minibatches.
        setup_of: ``(hyper, setup) -> setup``, for hyper-parameters in the setup: weights of the
            clients (:func:`~fedjax_sim.weight_by_client`), the initial model, the evaluation; not
            the timeline.
        mode: ``"forward"``, ``"reverse"``, or ``"auto"``: forward for up to four numbers.
        checkpoint: states that reverse mode stores: ``"sqrt"`` (two levels), ``"log"``, a number of
            levels, or None for all states and residuals.
        last_rounds: number k of rounds to differentiate, in reverse mode; default: all.
        execution: execution strategy; default :func:`~fedjax_sim.engine.execution.auto`.

    Returns:
        ``hyper -> Hypergradient``, pure: it may be jitted and vmapped.  ``hyper`` is any pytree of
        floating numbers.  Its method ``forecast`` returns the memory that it needs.

    Raises:
        ValueError: contradictory arguments, examples on the host, an unknown policy, or an
            evaluation with a part that skips the last round.

    References:
        Maclaurin et al., "Gradient-based Hyperparameter Optimization through Reversible Learning",
            2015.

    Example:
        >>> import numpy as np
        >>> import fedjax_sim as fs
        >>> data = fs.FederatedData({"y": np.array([0.0, 8.0], np.float32)}, np.array([0, 1, 2]))
        >>> loss = lambda w, batch, key: (w - batch["y"]) ** 2 / 2
        >>> task = fs.empirical_task(loss, data, fs.full_batch(1))
        >>> setup = fs.Setup(task, fs.timelines.full(2, 2, task.num_steps), np.float32(0))
        >>> error = lambda w: (w - 4) ** 2 / 2  # x_2 = 4 (1 - (1 - lr)^2)
        >>> result = hypergradient(error, fs.fedavg, setup, jax.random.key(0))(0.5)
        >>> float(result.value), float(result.gradient)  # 8 (1 - lr)^4 and its derivative
        (0.5, -4.0)
    """
    _check_arguments(metric, algorithm_of, setup, key, setup_of, mode, last_rounds, execution)
    levels = num_levels(checkpoint, setup.timeline.num_rounds)
    problem = Problem(
        metric if isinstance(metric, str) else None,
        algorithm_of,
        setup_of or (lambda hyper, setup: setup),
        execution
        or auto(
            replicas=max(key.size, 1),
            num_clients=setup.task.num_clients,
            ragged=is_ragged(setup.timeline),
        ),
        levels,
    )
    function = None if isinstance(metric, str) else _as_partial(metric)
    return HypergradientFunction(problem, setup, key, function, mode, last_rounds)


def _check_arguments(
    metric: Metric,
    algorithm_of: Callable[[PyTree], FedAlgorithm],
    setup: Setup,
    key: Array,
    setup_of: Callable[[PyTree, Setup], Setup] | None,
    mode: Mode,
    last_rounds: int | None,
    execution: Execution | None,
) -> None:
    """Refuses arguments of :func:`hypergradient` that contradict each other."""
    check_keys(key)
    check_options(execution, NO_PROBES)
    check_is_setup(setup)
    # Only the last round is evaluated, by a metric of the evaluation or by another function.
    evaluated = setup if isinstance(metric, str) else dataclasses.replace(setup, eval_fn=None)
    check_run((), evaluated, None, eval_initial=True, compiled=False)
    if not callable(algorithm_of):
        raise ValueError(
            f"algorithm_of is {algorithm_of!r:.60}; expected a function of the hyper-parameters "
            "that returns an algorithm: fs.fedavg, not fs.fedavg(0.1)"
        )
    check_takes("algorithm_of", algorithm_of, ("hyper",), " -> FedAlgorithm")
    if setup_of is not None:
        check_takes("setup_of", setup_of, ("hyper", "setup"), " -> Setup")
    if isinstance(setup.task.placement, OnHost):
        raise ValueError(
            "setup.task has its examples on the host; expected them on the device, since the "
            "rounds are visited twice"
        )
    if isinstance(metric, str):
        if setup.eval_fn is None:
            raise ValueError(f"metric is {metric!r}; expected setup.eval_fn, which has that metric")
        check_last_round(setup.eval_fn, setup.timeline.num_rounds)
    check_choice(("auto", "forward", "reverse"), mode=mode)
    if last_rounds is not None:
        check_count(1, last_rounds=last_rounds)
        if mode == "forward":
            raise ValueError("last_rounds is given with mode 'forward'; expected 'reverse'")
        if last_rounds > setup.timeline.num_rounds:
            raise ValueError(
                f"last_rounds is {last_rounds}; expected at most the timeline's "
                f"{setup.timeline.num_rounds} rounds"
            )


class HypergradientFunction:
    """A function of hyper-parameters, made by :func:`hypergradient`."""

    def __init__(
        self,
        problem: Problem,
        setup: Setup,
        key: Array,
        metric: Partial | None,
        mode: Mode,
        last_rounds: int | None,
    ):
        self._problem, self._last_rounds = problem, last_rounds
        self._mode: Mode = mode
        self._arrays = Arrays(setup, key, metric)
        self._program = jax.jit(self._differentiated)  # compiled once per shape

    def __call__(self, hyper: PyTree) -> Hypergradient:
        """Returns the metric and its derivatives."""
        self._check(hyper)
        return self._program(hyper, self._arrays)

    def mode(self, hyper: PyTree) -> Literal["forward", "reverse"]:
        """Returns the mode for these hyper-parameters."""
        if self._mode == "auto":
            few = count(hyper) <= MOST_FORWARD and self._last_rounds is None
            return "forward" if few else "reverse"
        return self._mode

    def forecast(self, hyper: PyTree, *, memory: int | None = None) -> Forecast:
        """Returns the memory that a call needs; compiles the program and does not run it.

        Of the parts, ``stored states`` are the states that the policy stores, ``temporaries`` the
        rest of the bytes that XLA reports: the residuals of one round with ``checkpoint``, those of
        all rounds without, the derivatives of the state in forward mode.

        Args:
            hyper: as in a call.
            memory: bytes per device; default
                :func:`~fedjax_sim.engine.execution.devices.memory_limit`.
        """

        self._check(hyper)
        rounds = self._arrays.setup.timeline.num_rounds
        differentiated = 0 if self.mode(hyper) == "forward" else self._last_rounds or rounds
        setup = self._problem.setup_for(hyper, self._arrays.setup)
        return forecast_program(
            self._program.lower(hyper, self._arrays),
            self._problem.algorithm_for(hyper),
            dataclasses.replace(setup, weighting=self._arrays.setup.weighting),
            self._arrays.key.reshape(-1)[0],
            replicas=self._arrays.key.size,
            rounds=differentiated,
            levels=self._problem.levels,
            execution=self._problem.execution,
            memory=memory,
        )

    def _check(self, hyper: PyTree) -> None:
        leaves = jax.tree_util.tree_leaves_with_path(hyper)
        for path, leaf in leaves:
            if not _is_floating(leaf):
                raise ValueError(
                    f"hyper{jax.tree_util.keystr(path)} is {leaf!r:.60}; expected floating numbers"
                )
        if not leaves:
            raise ValueError("hyper has no leaves; expected a pytree of floating numbers")
        problem, setup = self._problem, self._arrays.setup
        algorithm = problem.algorithm_for(hyper)
        own = dataclasses.replace(problem.setup_for(hyper, setup), eval_fn=None)
        if not _is_same(own.timeline, setup.timeline):
            raise ValueError(
                f"setup_of returns another timeline, of {own.timeline.num_rounds} rounds; expected "
                "setup.timeline, whose rounds are differentiated: give hypergradient the setup "
                "with the other one"
            )
        check_run(algorithm, own, None, execution=problem.execution, compiled=False)

    def _differentiated(self, hyper: PyTree, arrays: Arrays) -> Hypergradient:
        if arrays.key.ndim == 0:
            return self._of_one_key(hyper, arrays)
        over_keys = jax.vmap(lambda key: self._of_one_key(hyper, arrays._replace(key=key)))
        return jax.tree.map(lambda x: x.mean(axis=0), over_keys(arrays.key))

    def _of_one_key(self, hyper: PyTree, arrays: Arrays) -> Hypergradient:
        result = self._of_any_run(hyper, arrays)
        # Where the metric does not depend on the model, such as an accuracy, NaN of a diverged run
        # has derivatives of 0.
        return jax.tree.map(lambda x: jnp.where(jnp.isnan(result.value), jnp.nan, x), result)

    def _of_any_run(self, hyper: PyTree, arrays: Arrays) -> Hypergradient:
        problem = self._problem
        if self._last_rounds is not None:
            value, gradient, truncation = truncated(
                problem, hyper, arrays, self._last_rounds, problem.levels
            )
            return Hypergradient(value, gradient, truncation)
        if self.mode(hyper) == "reverse":
            return Hypergradient(*jax.value_and_grad(problem.value)(hyper, arrays))

        def with_value(hyper: PyTree) -> tuple[Array, Array]:
            value = problem.value(hyper, arrays, levels=0)
            return value, value

        gradient, value = jax.jacfwd(with_value, has_aux=True)(hyper)
        return Hypergradient(value, gradient)


def _is_same(timeline: Timeline, other: Timeline) -> bool:
    """Returns True for timelines with the same arrays, or equal ones that are known."""
    leaves, structure = jax.tree.flatten(timeline)
    others, expected = jax.tree.flatten(other)
    return structure == expected and all(
        x is y or (is_concrete(x) and is_concrete(y) and np.array_equal(x, y))
        for x, y in zip(leaves, others, strict=True)
    )


def _is_floating(leaf: Any) -> bool:
    """Returns True for floating numbers; text and other objects are none."""
    try:
        return jnp.issubdtype(jax.typeof(leaf).dtype, jnp.floating)
    except TypeError:
        return False


def count(hyper: PyTree) -> int:
    """Returns how many numbers hyper-parameters have."""
    return sum(jnp.size(leaf) for leaf in jax.tree.leaves(hyper))


def _as_partial(function: Any) -> Partial:
    if isinstance(function, Partial):
        return function
    if not callable(function):
        raise ValueError(
            f"metric is {function!r:.60}; expected a function of the model, or the name of a "
            "metric of setup.eval_fn"
        )
    return Partial(function)


def forecast_program(
    lowered: Any,
    algorithm: FedAlgorithm,
    setup: Setup,
    key: Array,
    *,
    replicas: int,
    rounds: int,
    levels: int,
    execution: Execution,
    memory: int | None,
) -> Forecast:
    """Returns the forecast of a run with the memory of the lowered program of its derivatives.

    ``replicas`` runs are together; ``rounds`` are visited backwards in ``levels`` of scans.
    """
    of_run = forecast(
        algorithm,
        setup,
        key,
        measure=False,
        delta=None,
        options=Options(execution=execution, memory=memory),
    )
    began = time.perf_counter()
    total = program_bytes(lowered.compile(), arguments=False)
    seconds = Seconds(time.perf_counter() - began, math.nan, math.nan)
    state = jax.eval_shape(lambda: first_state(algorithm, setup))
    leaves = [x for x in jax.tree.leaves(state) if jax.numpy.issubdtype(x.dtype, np.inexact)]
    one = sum(x.size * x.dtype.itemsize for x in leaves)
    parts = {
        name: size * (replicas if name in ("client states", "server") else 1)
        for name, size in of_run.parts.items()
    }
    parts["stored states"] = replicas * one * stored_states(rounds, levels)
    resident = sum(parts[name] for name in ("client states", "server", "stored states"))
    parts["temporaries"] = max(total - resident, 0)
    return of_run._replace(parts=parts, seconds=seconds)
