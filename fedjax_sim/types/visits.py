"""Views of a run that an algorithm has: a client's data, its visit, a round, all uploads."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fedjax_sim.types.aliases import Params, Step, Upload
from fedjax_sim.types.summaries import shown


@shown
class Oracle(NamedTuple):
    """Access to one client's data during one visit.

    The same ``step`` always gives the same minibatch, so a method that takes two gradients at one
    step (SAM) or revisits a step uses the same examples.

    Example:
        >>> quadratic = Oracle(grad=lambda w, step: w - 3, loss=lambda w, step: (w - 3) ** 2 / 2,
        ...                    full_grad=lambda w: w - 3)
        >>> w = 0.0
        >>> for step in range(2):
        ...     w = w - 0.5 * quadratic.grad(w, step)
        >>> w
        2.25
    """

    grad: Callable[[Params, Step], Params]  # gradient on the step's minibatch
    loss: Callable[[Params, Step], Array]  # loss on the step's minibatch
    full_grad: Callable[[Params], Params]  # gradient on the whole local data set
    # Loss on the whole local data set; None: the task has none. The package's tasks have it.
    full_loss: Callable[[Params], Array] | None = None
    # (function, step) -> (*models) -> mean of function(*models, examples, key), values [B, ...],
    # over the step's minibatch; without a step over the whole local data set.  The function is the
    # objective's form with any number of models; arrays that it needs are in a Partial.  None: the
    # task has no examples.
    mean: Callable[..., Callable[..., Array]] | None = None


@shown
class Work(NamedTuple):
    """One client's visit.

    ``max_steps`` is a Python int, the bound of the local loop; all other fields may be traced.

    Example:
        >>> from fedjax_sim.local import rate
        >>> zero, steps, examples = jnp.array(0), jnp.array(3), jnp.array(30)
        >>> work = Work(zero, zero, steps, examples, zero, jax.random.key(0), max_steps=5)
        >>> float(rate(lambda round: 0.5 / (1 + round), work))  # a schedule of learning rates
        0.5
    """

    round: Array  # int    server update that this visit reports to
    client: Array  # int    number of the client; of one that never trains (evaluation), from M on
    num_steps: Array  # int    local steps, <= max_steps
    num_examples: Array  # int    size of the client's data set
    staleness: Array  # int    server updates since the client's download; 0 when synchronous
    key: Array  # PRNG key of this visit, independent of the minibatches
    max_steps: int  # bound of the local loop

    def inside(self) -> Work:
        """Returns the visit with another key, for the algorithm inside a wrapper that draws.

        The draws of two wrappers of the same kind, one inside the other, are then independent.

        Example:
            >>> zero, key = jnp.array(0), jax.random.key(0)
            >>> work = Work(zero, zero, zero, zero, zero, key, max_steps=1)
            >>> bool(work.inside().key == key)
            False
        """
        return self._replace(key=_inside(self.key))


EvalFn: TypeAlias = Callable[[Params], Mapping[str, Array]]
Weighting: TypeAlias = Callable[[Work], Array]  # a batched Work [S] -> weights [S]


@shown
class Round(NamedTuple):
    """One server update.

    Example:
        >>> number, uploads = jnp.array(7), jnp.array(2)
        >>> round = Round(number, uploads, num_clients=8, key=jax.random.key(0))
        >>> float(round.participation)
        0.25
    """

    number: Array  # int    server updates before this one
    # int    clients that report in this round; float inside of wrappers: the public number of
    # privatize, the part of skip_nonfinite
    num_uploads: Array
    num_clients: int  # population
    key: Array  # PRNG key of the server in this round
    # int    num_uploads at the broadcast, where that of the update differs; None: the same
    at_broadcast: Array | None = None
    # float  part of all clients' weight that reports; None: equal weights, or nobody needs it
    share: Array | None = None

    @property
    def participation(self) -> Array:
        r"""Part of the clients that reports, by weight: :math:`\sum_{i \in S} w_i / \sum_i w_i`.

        A server adds this part of the mean change of the clients' states to their mean over all
        clients.  Weights other than equal ones count with ``requires.mean_of_states``.
        """
        return self.num_uploads / self.num_clients if self.share is None else self.share

    @property
    def announced_uploads(self) -> Array:
        """Number of uploads that clients know from the broadcast, which wrappers do not change."""
        return jnp.asarray(self.num_uploads if self.at_broadcast is None else self.at_broadcast)

    def counting(self, num_uploads: Array, share: Array | None) -> Round:
        """Returns the round of an update whose mean has other uploads: their number and share.

        Example:
            >>> round = Round(jnp.array(0), jnp.array(8), 8, jax.random.key(0))
            >>> fewer = round.counting(jnp.array(5), share=None)
            >>> int(fewer.num_uploads), int(fewer.announced_uploads)
            (5, 8)
        """
        announced = self.announced_uploads
        return self._replace(num_uploads=num_uploads, at_broadcast=announced, share=share)

    def inside(self) -> Round:
        """Returns the round with another key, for the algorithm inside a wrapper that draws.

        Example:
            >>> round = Round(jnp.array(0), jnp.array(2), 8, jax.random.key(0))
            >>> bool(round.inside().key == round.key)
            False
        """
        return self._replace(key=_inside(self.key))


def _inside(key: Array) -> Array:
    return jax.random.fold_in(key, np.uint32(2**31 + 16))


@shown
class Stack(NamedTuple):
    """All uploads of a round, as a server without a mean receives them.

    Example:
        >>> yes = jnp.array([True, False])
        >>> stack = Stack(jnp.array([[2.0], [0.0]]), None, yes, jnp.array([7, 3]))
        >>> stack.mean_weights.tolist()
        [1.0, 0.0]
    """

    uploads: Upload  # [S, ...]; without meaning where nothing arrived
    weights: Array | None  # [S]; None: equal
    arrived: Array  # [S] bool    slots whose upload reaches the server
    clients: Array  # [S] int

    @property
    def mean_weights(self) -> Array:
        """Weights of the mean, ``[S]``: 0 where nothing arrived."""
        weights = self.arrived if self.weights is None else self.weights
        return jnp.where(self.arrived, weights.astype(jnp.result_type(float)), 0)
