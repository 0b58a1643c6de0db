"""Weights of clients as hyper-parameters."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp
import numpy as np
from jax import Array

from fedjax_sim.checks import check_at_least, check_is_setup, is_concrete, least_entries
from fedjax_sim.types import Setup, Work


def weight_by_client(setup: Setup, weights: Array) -> Setup:
    r"""Returns the setup in which client i's uploads have the weight :math:`w_i`.

    A round's mean is :math:`\sum_{i \in S_t} w_i u_i / \sum_{i \in S_t} w_i`, so only ratios of
    weights matter and :math:`\sum_i w_i\, \partial / \partial w_i = 0`.  The weights may be traced
    and differentiated.  A client of weight 0 is left out of every mean, and the derivative with
    respect to its weight is returned as 0: differentiate at positive weights.

    Args:
        setup: of one run; its weighting is replaced.
        weights: ``[M]``, not negative, and not all 0.

    Raises:
        ValueError: weights of another shape, negative ones, or none that is positive.

    Example:
        >>> import jax
        >>> import numpy as np
        >>> import fedjax_sim as fs
        >>> data = fs.FederatedData({"y": np.array([0.0, 8.0], np.float32)}, np.array([0, 1, 2]))
        >>> loss = lambda w, batch, key: (w - batch["y"]) ** 2 / 2
        >>> task = fs.empirical_task(loss, data, fs.full_batch(1))
        >>> setup = fs.Setup(task, fs.timelines.full(1, 2, task.num_steps), np.float32(0))
        >>> weighted = weight_by_client(setup, jnp.array([3.0, 1.0]))
        >>> state, _ = fs.run(fs.fedavg(1.0), weighted, jax.random.key(0))
        >>> float(state.server.params)
        2.0
    """
    check_is_setup(setup)
    expected = (setup.task.num_clients,)
    try:
        weights = jnp.asarray(weights)  # a list would pass the checks
    except (TypeError, ValueError) as error:
        raise ValueError(f"weights is {weights!r:.60}; expected numbers {expected}") from error
    if jnp.shape(weights) != expected:
        raise ValueError(
            f"weights has shape {jnp.shape(weights)}; expected {expected}, one per client"
        )
    check_at_least(0, **least_entries(weights=weights))
    if is_concrete(weights) and not np.asarray(weights).any():
        raise ValueError(f"weights is {weights}; expected a positive one, or no round has a mean")

    def weighting(work: Work) -> Array:
        return weights[work.client]

    return dataclasses.replace(setup, weighting=weighting)
