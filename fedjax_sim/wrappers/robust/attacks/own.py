"""Attacks on an attacker's own upload: sign flip, scaling, noise, infinity, corruption.

They replace what single clients send, so they suit any execution and the plain mean.  An upload of
several parts (SCAFFOLD) is attacked as a whole.  The client's state is that of an honest visit, and
a visit without steps stays honest.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fedjax_sim import tree
from fedjax_sim.checks import check_at_least, check_choice, check_is_algorithm, check_positive
from fedjax_sim.tree import normal
from fedjax_sim.types import (
    ClientState,
    FedAlgorithm,
    Message,
    Oracle,
    Scalar,
    Upload,
    Work,
    specified,
)
from fedjax_sim.wrappers.robust.attacks.attackers import (
    Attackers,
    Probability,
    as_attackers,
    checked,
)
from fedjax_sim.wrappers.robust.attacks.colluding import inner_product

Mask = Attackers | Array | np.ndarray

# Branches of the visit's key; the algorithm's own draws use the key itself or small numbers.
_COIN, _NOISE = 2**31 + 9, 2**31 + 10


@specified
def sign_flip(
    algorithm: FedAlgorithm,
    attackers: Mask,
    scale: Scalar = 1.0,
    of: Literal["own", "mean"] = "own",
) -> FedAlgorithm:
    """Sign flip: attackers send their upload times ``-scale``.

    Args:
        algorithm: any algorithm, with a robust rule or not.
        attackers: who attacks.
        scale: at least 0; may be traced.
        of: "own", the attacker's upload; "mean", the mean of the honest uploads of the round, as in
            ByzFL (then it is :func:`inner_product` with ``eps=scale``).

    Raises:
        ValueError: a negative ``scale``, another ``of``, attackers that are no mask; before a run,
            attackers of another number of clients, or more per round than the robust rule is made
            for.

    Example:
        >>> import fedjax_sim as fs
        >>> attackers = fs.robust.attacks.some_clients([0], num_clients=10)
        >>> algorithm = sign_flip(fs.fedavg(lr=0.1), attackers)
    """
    check_at_least(0, scale=scale)
    check_choice(("own", "mean"), of=of)
    if of == "mean":
        return inner_product(algorithm, attackers, eps=scale)
    return _replaced(
        algorithm, attackers, lambda upload, work: tree.scale(-jnp.asarray(scale), upload)
    )


@specified
def scaling(algorithm: FedAlgorithm, attackers: Mask, factor: Scalar = 10.0) -> FedAlgorithm:
    """Scaling: attackers send their upload times ``factor``.

    With poisoned data (:func:`poison`) and the factor of :func:`replacement_factor` it is model
    replacement.

    Args:
        algorithm, attackers: as for :func:`sign_flip`.
        factor: any number; may be traced.

    Raises:
        ValueError: as :func:`sign_flip`.

    Example:
        >>> import fedjax_sim as fs
        >>> attackers = fs.robust.attacks.some_clients([0], num_clients=10)
        >>> algorithm = scaling(fs.fedavg(lr=0.1), attackers, factor=5.0)
    """
    return _replaced(algorithm, attackers, lambda upload, work: tree.scale(factor, upload))


@specified
def gaussian(
    algorithm: FedAlgorithm, attackers: Mask, std: Scalar = 1.0, add: bool = False
) -> FedAlgorithm:
    """Gaussian noise: attackers send independent normal numbers.

    Args:
        algorithm, attackers: as for :func:`sign_flip`.
        std: standard deviation of every entry; may be traced.
        add: add the noise to the upload instead of replacing it.

    Raises:
        ValueError: a negative ``std``, and as :func:`sign_flip`.

    Example:
        >>> import fedjax_sim as fs
        >>> attackers = fs.robust.attacks.some_clients([0], num_clients=10)
        >>> algorithm = gaussian(fs.fedavg(lr=0.1), attackers, std=0.1, add=True)
    """
    check_at_least(0, std=std)

    def forge(upload: Upload, work: Work) -> Upload:
        noise = normal(jax.random.fold_in(work.key, np.uint32(_NOISE)), std, upload)
        return tree.add(upload, noise) if add else noise

    return _replaced(algorithm, attackers, forge)


@specified
def infinity(algorithm: FedAlgorithm, attackers: Mask) -> FedAlgorithm:
    """Infinity: attackers send ``+inf`` in every entry.

    Args:
        algorithm, attackers: as for :func:`sign_flip`.

    Raises:
        ValueError: as :func:`sign_flip`.

    Example:
        >>> import fedjax_sim as fs
        >>> attackers = fs.robust.attacks.some_clients([0], num_clients=10)
        >>> algorithm = infinity(fs.robust.aggregate(fs.fedavg(0.1), fs.robust.median()), attackers)
    """
    return _replaced(algorithm, attackers, lambda upload, work: _filled(upload, jnp.inf))


@specified
def corrupted(
    algorithm: FedAlgorithm, probability: Probability, std: Scalar | None = None
) -> FedAlgorithm:
    """Failures: each upload arrives with wrong values, independently with a probability.

    The draws depend on the run's key, the round and the client, so the uploads that fail at a
    probability contain those at every smaller one.  Uploads that do not arrive are
    :func:`fedjax_sim.timelines.lose_uploads`.

    Args:
        algorithm: any algorithm; ``fs.skip_nonfinite`` around the result leaves NaN out.
        probability: one number, one per client ``[M]``, or a function of the round; may be traced.
        std: add normal numbers of this standard deviation; None: all entries become NaN.

    Raises:
        ValueError: probabilities outside [0, 1], or a negative ``std``.

    Example:
        >>> import fedjax_sim as fs
        >>> algorithm = fs.skip_nonfinite(corrupted(fs.fedavg(lr=0.1), probability=0.05))
    """
    attackers = Attackers(None, probability)
    if std is not None:
        return gaussian(algorithm, attackers, std, add=True)
    return _replaced(algorithm, attackers, lambda upload, work: _filled(upload, jnp.nan))


def replacement_factor(num_uploads: int, num_attackers: int, server_lr: float = 1.0) -> float:
    """Factor of model replacement, ``n / (f server_lr)``.

    The mean of n uploads of which f are scaled by it moves the model to the attackers' mean if the
    honest uploads are small.

    Raises:
        ValueError: numbers that are not positive, or more attackers than uploads.

    References:
        Bagdasaryan, Veit, Hua, Estrin, Shmatikov, "How to Backdoor Federated Learning", 2020.

    Example:
        >>> replacement_factor(num_uploads=10, num_attackers=2)
        5.0
    """
    if not 1 <= num_attackers <= num_uploads:
        raise ValueError(f"num_attackers is {num_attackers}; expected 1 .. {num_uploads}")
    check_positive(server_lr=server_lr)
    return num_uploads / (num_attackers * server_lr)


def _replaced(
    algorithm: FedAlgorithm, attackers: Mask, forge: Callable[[Upload, Work], Upload]
) -> FedAlgorithm:
    """Returns an algorithm whose attackers send ``forge(upload, work)``."""
    check_is_algorithm(algorithm)
    known, inner = as_attackers(attackers), algorithm.local

    def local(
        message: Message, state: ClientState, oracle: Oracle, work: Work
    ) -> tuple[Upload, ClientState]:
        upload, new = inner(message, state, oracle, work.inside())
        coin = jax.random.fold_in(work.key, np.uint32(_COIN))
        attacks = known.attack(work.client, work.round, coin) & (work.num_steps > 0)
        return tree.where(attacks, forge(upload, work), upload), new

    return checked(algorithm._replace(local=local), known)


def _filled(upload: Upload, value: float) -> Upload:
    return jax.tree.map(lambda x: jnp.full_like(x, value), upload)
