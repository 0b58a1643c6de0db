r"""FedDualAvg whose output is an average of its shadow iterates, as theorems state it.

References:
    Yuan, "On Principled Local Optimization Methods for Federated Learning", 2023, chapter 4,
        whose equations and theorems are cited.
"""

from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from fedjax_sim import tree
from fedjax_sim.algorithms.composite import dual_step, feddualavg, total_rate
from fedjax_sim.local import Rate, local_path, rate
from fedjax_sim.prox.base import like
from fedjax_sim.prox.composite import Composite
from fedjax_sim.typing import FedAlgorithm, Oracle, Params, Round, Scalar, Work


class AveragedDualState(NamedTuple):
    params: Params  # the average so far, which is evaluated
    dual: Params
    elapsed: Array
    num_averaged: Array  # models


class _Path(NamedTuple):
    descent: Params  # [K, ...] start - dual, after 1 .. K steps
    elapsed: Array  # [K] the sum of rates till then


def averaged_feddualavg(
    lr: Rate,
    composite: Composite,
    server_lr: Scalar = 1.0,
    over: Literal["steps", "rounds"] = "steps",
) -> FedAlgorithm:
    r"""FedDualAvg whose model is the mean of all models so far that belong to mean dual states.

    .. math:: \hat x^{(r,k)} = P_{H^{(r,k)}}\Bigl(\sum_i w_i\, y_i^{(r,k)}\Bigr)

    P is not linear, so the clients' dual states are uploaded step by step: a round's upload is as
    many models as a visit has steps.

    ===================  =============================  =========
    result               mean of                        over
    ===================  =============================  =========
    Theorems 4.4, 4.7    all :math:`\hat x^{(r,k)}`     "steps"
    Theorem 4.3          the server's models            "rounds"
    ===================  =============================  =========

    Neither counts the initial model.  Clients' visits have to be equally long for "steps", since a
    client that has finished waits where it is.

    Args:
        lr: eta_c, or a schedule over rounds.
        composite: psi and h.
        server_lr: eta_s, 1 for "steps".
        over: which models are averaged.

    Raises:
        ValueError: another ``over``; a server rate other than 1 with "steps".

    Example:
        >>> from fedjax_sim import prox
        >>> algorithm = averaged_feddualavg(0.01, prox.composite(prox.L1(0.2)))
    """
    if over not in ("steps", "rounds"):
        raise ValueError(f"over is {over!r}; expected 'steps' or 'rounds'")
    if over == "steps" and not (isinstance(server_lr, (int, float)) and server_lr == 1):
        raise ValueError(f"server_lr is {server_lr}; expected 1.0 for a mean over steps")
    plain = feddualavg(lr, composite, server_lr)

    def init(params: Params) -> AveragedDualState:
        state = plain.init(params)
        none = jnp.zeros_like(state.elapsed)
        return AveragedDualState(state.params, state.dual, state.elapsed, none)

    def local(message: tuple, state: tuple, oracle: Oracle, work: Work) -> tuple[_Path, tuple]:
        dual, elapsed = message
        eta = rate(lr, work)
        path = local_path(dual_step(eta, composite, elapsed, oracle), dual, work)
        done = jnp.asarray(work.num_steps)
        steps = jnp.minimum(jnp.arange(1, work.max_steps + 1, dtype=done.dtype), done)
        descent = jax.tree.map(lambda path, y: y - path[1:], path, dual)
        return _Path(descent, total_rate(eta, steps)), state

    def update(state: AveragedDualState, mean: _Path, round: Round) -> AveragedDualState:
        del round
        used = mean if over == "steps" else jax.tree.map(lambda x: x[-1:], mean)

        def shadow(at: _Path) -> tuple[Params, Params, Array]:
            dual = tree.add_scale(state.dual, -server_lr, at.descent)
            elapsed = state.elapsed + like(at.elapsed, server_lr) * at.elapsed
            return composite.argmin(dual, elapsed), dual, elapsed

        models, duals, elapsed = jax.vmap(shadow)(used)
        count = state.num_averaged + elapsed.shape[0]

        def extended(old: Array, models: Array) -> Array:
            # The initial model, which counts 0, drops out.
            return old + (models - old).sum(axis=0) / like(old, count)

        params = jax.tree.map(extended, state.params, models)
        dual, elapsed = jax.tree.map(lambda x: x[-1], (duals, elapsed))
        return AveragedDualState(params, dual, elapsed, count)

    return FedAlgorithm(init, local, update, plain.broadcast)
