r"""Means over rounds of the server's models: of all rounds alike, or with decaying weights.

The mean is the model that is evaluated and kept; clients receive and compute what they would
without it.  :func:`fedjax_sim.evaluation.inner` evaluates the algorithm's own model in the same
run.

References:
    Izmailov, Podoprikhin, Garipov, Vetrov, Wilson, "Averaging Weights Leads to Wider Optima and
        Better Generalization", 2018, https://arxiv.org/abs/1803.05407 (SWA: the mean of late
        models).
    Yuan, "On Principled Local Optimization Methods for Federated Learning", 2023, Theorem 4.3.
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from fedjax_sim import tree
from fedjax_sim.checks import check_at_least, check_at_most, check_count, check_is_algorithm
from fedjax_sim.types import FedAlgorithm, Params, Round, Scalar, ServerState, Upload, specified
from fedjax_sim.wrappers.received import broadcast_inner

__all__ = ["average_rounds", "ema_rounds"]


class AveragedRoundsState(NamedTuple):
    average: Params  # so far, in single precision at least
    inner: ServerState
    num_averaged: Array  # sum of the weights, in units of the last model's

    @property
    def params(self) -> Params:
        """The average so far, which is evaluated."""
        return tree.cast_like(self.average, self.inner.params)


@specified
def average_rounds(algorithm: FedAlgorithm, start: int = 0) -> FedAlgorithm:
    r"""Makes the mean of the models after all rounds so far the model of an algorithm.

    .. math:: \hat x = \frac{1}{R - s} \sum_{r=s+1}^{R} x^{(r,0)}

    without the initial model.  What clients receive and compute does not change.  With a late
    ``start`` it is stochastic weight averaging (SWA) of the server's models.

    Args:
        algorithm: an algorithm.
        start: number s of rounds before the mean begins; until then the model is the algorithm's.

    Raises:
        ValueError: no algorithm, or a negative ``start``.

    References:
        Yuan, 2023, Theorem 4.3; Izmailov et al., 2018, Algorithm 1.

    Example:
        >>> from fedjax_sim.algorithms import fedavg
        >>> algorithm = average_rounds(fedavg(lr=0.1))
    """
    return ema_rounds(algorithm, 1.0, start)


@specified
def ema_rounds(algorithm: FedAlgorithm, decay: Scalar = 0.99, start: int = 0) -> FedAlgorithm:
    r"""Makes the exponential mean of the models after all rounds the model of an algorithm.

    .. math::
        w \leftarrow \beta w + 1, \qquad
        \hat x \leftarrow \hat x + \frac{x^{(r,0)} - \hat x}{w}, \qquad w = 0 \text{ at first}

    so that after R rounds :math:`\hat x` is the mean of the models with the weights
    :math:`\beta^{R - r}`, divided by their sum.  The initial model has no weight, as in a
    bias-corrected exponential mean.  With :math:`\beta` = 1 it is
    :func:`~fedjax_sim.average_rounds`, with 0 the algorithm itself.  The mean spans about
    :math:`1 / (1 - \beta)` rounds.  What clients receive and compute does not change.

    Directly around another mean over rounds it averages the same models, those of the algorithm
    inside, so that one run has several means of one trajectory.

    Args:
        algorithm: an algorithm.
        decay: :math:`\beta`, in [0, 1]; may be traced.
        start: number of rounds before the mean begins; until then the model is the algorithm's.

    Raises:
        ValueError: no algorithm, a ``decay`` outside of [0, 1], a negative ``start``.

    Example:
        >>> import fedjax_sim as fs
        >>> both = fs.ema_rounds(fs.average_rounds(fs.fedavg(lr=0.1)), decay=0.99)
        >>> server = both.init(jnp.ones(2))
        >>> mean, raw = server.inner, server.inner.inner
        >>> raw.params.tolist()
        [1.0, 1.0]
    """
    check_is_algorithm(algorithm)
    check_at_least(0, decay=decay)
    check_at_most(1, decay=decay)
    check_count(start=start)

    def init(params: Params) -> AveragedRoundsState:
        inner = algorithm.init(params)
        zero = jnp.zeros((), jnp.result_type(float))
        return AveragedRoundsState(tree.wide(_averaged(inner)), inner, zero)

    def update(state: AveragedRoundsState, mean: Upload, round: Round) -> AveragedRoundsState:
        inner = algorithm.update(state.inner, mean, round)
        earlier = jnp.where(round.number <= start, 0, decay * state.num_averaged)
        count = earlier.astype(state.num_averaged.dtype) + 1
        difference = tree.sub(tree.wide(_averaged(inner)), state.average)
        return AveragedRoundsState(
            tree.add(state.average, tree.divide(difference, count)), inner, count
        )

    return algorithm._replace(
        init=init,
        update=update,
        broadcast=broadcast_inner(algorithm),
    )


def _averaged(server: ServerState) -> Params:
    """The model of the algorithm inside of all means."""
    while isinstance(server, AveragedRoundsState):
        server = server.inner
    return server.params
