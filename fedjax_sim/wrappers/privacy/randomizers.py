r"""Local differential privacy: every client randomises its own upload.

The server then sees nothing else of a client, so no server has to be trusted.  All uploads of a
client are neighbours of each other: the sensitivity is twice the clip.  Sampling of clients
amplifies nothing against the server, which sees who takes part.

References:
    Kairouz, Oh, Viswanath, "The Composition Theorem for Differential Privacy", 2015,
        https://arxiv.org/abs/1311.0776 (randomised response dominates every pure mechanism).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
from jax import Array

from fedjax_sim import tree
from fedjax_sim.checks import (
    check_at_least,
    check_at_most,
    check_count,
    check_is_algorithm,
    check_one_number,
    check_positive,
    import_extra,
)
from fedjax_sim.tree import with_upload_bits
from fedjax_sim.types import (
    ClientState,
    FedAlgorithm,
    Message,
    Oracle,
    Scalar,
    Spec,
    Timeline,
    Upload,
    Work,
    plain_integers,
    shown,
    specified,
    with_spec,
)
from fedjax_sim.wrappers.privacy.accounting import Guarantee
from fedjax_sim.wrappers.privacy.checks import check_admits_noise, guarded
from fedjax_sim.wrappers.privacy.clipping import clip_upload
from fedjax_sim.wrappers.privacy.participation import most_visits

_NOISE = 2**31 + 4  # branch of the visit's key
_LAST = "a wrapper that asks a client twice, such as fs.marina, would cancel the noise"
_UNIFORM = "numbers of examples would reach the server outside the randomiser"


@with_spec
@shown
class Randomizer(NamedTuple):
    """Local randomiser: a random function of one upload.

    ``through(key, upload)`` returns what the server receives, with the form of the upload.
    ``epsilon(visits, delta)`` returns the epsilon of that many visits of one client.

    Example:
        >>> coarse = local_gaussian(clip=1.0, noise_multiplier=2.0)
        >>> coarse.through(jax.random.key(0), {"w": jnp.zeros(3)})["w"].shape
        (3,)
    """

    through: Callable[[Array, Upload], Upload]
    epsilon: Callable[[int, float], float]
    spec: Spec | None = None  # the factory and its arguments


@specified
def randomize_uploads(algorithm: FedAlgorithm, randomizer: Randomizer) -> FedAlgorithm:
    """Local privacy: clients send their uploads through a randomiser.

    All leaves of an upload count as one vector.  The random numbers use the visit's key.  A
    client's state stays with the client and costs nothing, and what the server computes is
    post-processing.  Accounting: :func:`local_guarantee`.

    Args:
        algorithm: an algorithm whose uploads are changes of the model; their parts are bounded
            together.  It may aggregate them by any rule, ``fs.robust.aggregate`` inside, and
            compress them.
        randomizer: :func:`local_gaussian` or :func:`~fedjax_sim.wrappers.privacy.priv_unit`.

    Raises:
        ValueError: no randomiser, uploads that are models (FAVANO, QuAFL), a server that needs the
            exact mean, or a wrapper that must be applied last; when a run begins, weights other
            than uniform ones.

    Example:
        >>> from fedjax_sim.algorithms import fedavg
        >>> algorithm = randomize_uploads(fedavg(lr=0.1), local_gaussian(1.0, noise_multiplier=2.0))
    """
    check_is_algorithm(algorithm)
    if not isinstance(randomizer, Randomizer):
        raise ValueError(
            f"randomizer is {randomizer!r:.60}; expected a privacy.Randomizer, for example "
            "privacy.local_gaussian(1.0, 2.0)"
        )
    check_admits_noise(algorithm._replace(aggregation=None))

    def local(
        message: Message, state: ClientState, oracle: Oracle, work: Work
    ) -> tuple[Upload, ClientState]:
        upload, new = algorithm.local(message, state, oracle, work.inside())
        return randomizer.through(jax.random.fold_in(work.key, _NOISE), upload), new

    # An upload with noise is no code of a codec inside, so all its entries are sent.
    private = with_upload_bits(algorithm, None)._replace(local=local)
    private = private.requiring(uniform_weights=_UNIFORM)
    return guarded(private, lambda task, timeline: None, None, "randomize_uploads", _LAST)


@specified
def local_gaussian(clip: Scalar, noise_multiplier: Scalar) -> Randomizer:
    r"""Clips an upload to the norm C and adds :math:`N(0, (2 C \sigma)^2 I)`.

    Uploads with NaN or Inf count as 0.

    Args:
        clip: C; may be traced.
        noise_multiplier: :math:`\sigma`, noise over sensitivity; may be traced.
            :func:`local_noise_multiplier` finds it for a target.

    Raises:
        ValueError: a clip that is not positive and finite, or a negative noise multiplier.

    Example:
        >>> sent = local_gaussian(clip=2.0, noise_multiplier=0.0)
        >>> sent.through(jax.random.key(0), jnp.array([6.0, 8.0])).tolist()
        [1.2..., 1.6...]
    """
    check_positive(clip=clip)
    check_at_most(float(np.finfo(np.float32).max), clip=clip)
    check_at_least(0.0, noise_multiplier=noise_multiplier)

    def through(key: Array, x: Array) -> Array:
        std = 2 * jnp.asarray(clip, x.dtype) * jnp.asarray(noise_multiplier, x.dtype)
        return clip_upload(x, clip) + std * jax.random.normal(key, x.shape, jnp.float32).astype(
            x.dtype
        )

    def epsilon(visits: int, delta: float) -> float:
        if not visits:
            return 0.0
        return import_extra("dp_accounting", "privacy").get_epsilon_gaussian(
            float(noise_multiplier) / math.sqrt(visits), delta
        )

    return Randomizer(vector_randomizer(through), epsilon)


@plain_integers
def local_noise_multiplier(epsilon: float, delta: float, visits: int = 1) -> float:
    r"""Returns the noise multiplier :math:`\sigma` of :func:`local_gaussian` for a target.

    A composition of k Gaussian mechanisms is one with :math:`\sigma / \sqrt k`.

    Args:
        epsilon: target for all visits of one client.
        delta: target, in (0, 1).
        visits: k, the largest number of visits of one client.

    Raises:
        ValueError: a target that is not positive, a delta outside (0, 1), or no visits.

    Example:
        >>> round(local_noise_multiplier(1.0, 1e-5), 6), round(local_noise_multiplier(8, 1e-5), 6)
        (3.730632, 0.600229)
    """
    check_positive(epsilon=epsilon)
    check_count(1, visits=visits)
    check_delta(delta)
    return import_extra("dp_accounting", "privacy").get_sigma_gaussian(epsilon, delta) * math.sqrt(
        visits
    )


def local_guarantee(randomizer: Randomizer, timeline: Timeline, delta: float) -> Guarantee:
    """Returns the local privacy of the clients on a timeline.

    The number of visits is the largest of one client.  Nothing is amplified by sampling: the server
    sees who takes part.

    Args:
        randomizer: that of :func:`randomize_uploads`.
        timeline: concrete, ``[T, S]`` or one per seed ``[n, T, S]``.
        delta: in (0, 1).

    Raises:
        ValueError: a delta outside (0, 1).
        ImportError: dp-accounting is not installed.

    Example:
        >>> from fedjax_sim.timelines import cyclic
        >>> timeline = cyclic(6, num_clients=4, cohort_size=2, num_steps=1)
        >>> print(local_guarantee(local_gaussian(1.0, 10.0), timeline, delta=1e-5))
        epsilon 0.62 at delta 1e-05 (replace_one; local randomiser, at most 3 visits ...; pld)
    """
    check_delta(delta)
    visits = most_visits(timeline)
    rule = f"local randomiser, at most {visits} visits per client, no amplification"
    return Guarantee(randomizer.epsilon(visits, delta), delta, "replace_one", "pld", rule)


def pure_epsilon(epsilon: float, visits: int, delta: float) -> float:
    """Returns the epsilon of several visits to a mechanism of pure epsilon.

    Randomised response dominates every such mechanism.
    """
    dp = import_extra("dp_accounting", "privacy")
    if not visits:
        return 0.0
    accountant = dp.pld.PLDAccountant(neighboring_relation=dp.NeighboringRelation.REPLACE_ONE)
    response = dp.RandomizedResponseDpEvent(2 / (1 + math.exp(epsilon)), 2)
    # A list: this accountant of dp-accounting 0.6 ignores the count of a randomised response.
    accountant.compose(dp.ComposedDpEvent([response] * visits))
    # Discretised losses may end slightly below; the sum of the visits is always a bound.
    return min(accountant.get_epsilon(delta), epsilon * visits)


def check_delta(delta: float) -> None:
    """Raises ValueError for a delta outside (0, 1)."""
    check_one_number(delta=delta)
    if not 0 < delta < 1:
        raise ValueError(f"delta is {delta}; expected a number in (0, 1)")


def vector_randomizer(
    through: Callable[[Array, Array], Array],
) -> Callable[[Array, Upload], Upload]:
    """Returns a randomiser of pytrees from one of vectors ``[d]`` in at least single precision.

    An upload with NaN or Inf becomes 0 before.
    """

    @functools.wraps(through)
    def of_tree(key: Array, upload: Upload) -> Upload:
        upload = tree.where(tree.all_finite(upload), upload, tree.zeros_like(upload))
        vector, unravel = jax.flatten_util.ravel_pytree(tree.wide(upload))
        sent = unravel(through(key, vector))
        return jax.tree.map(lambda x, y: x.astype(y.dtype), sent, upload)

    return of_tree
