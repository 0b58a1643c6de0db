r"""Asynchronous averaging: FAVANO, QuAFL, FedBuff, FedAsync and asynchronous SGD.

Who reports when, how stale and after how many steps is the timeline's business
(:mod:`fedjax_sim.timelines`); the rules here see ``work.num_steps`` and ``work.staleness``.

References:
    "FAVANO: Federated AVeraging with Asynchronous Nodes", arXiv 2305.16099.
    Zakerinia, Talaei, Nadiradze, Alistarh, "QuAFL: Federated Averaging Can Be Both Asynchronous and
        Communication-Efficient", 2022.
    Nguyen et al., "Federated Learning with Buffered Asynchronous Aggregation", 2022 (FedBuff).
    Xie, Koyejo, Gupta, "Asynchronous Federated Optimization", 2019 (FedAsync).
    Koloskova, Stich, Jaggi, "Sharper Convergence Guarantees for Asynchronous SGD for Distributed
        and Federated Learning", 2022.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array

from fedjax_sim import tree
from fedjax_sim.algorithms.fedavg import fedavg
from fedjax_sim.algorithms.staleness import Reweighting, StalenessWeight, constant, real
from fedjax_sim.local import ScalarOrSchedule, local_steps, rate, sgd
from fedjax_sim.transforms import proximal
from fedjax_sim.types import FedAlgorithm, Oracle, Params, PyTree, Round, Scalar, Upload, Work

Through = Callable[[Array, PyTree, PyTree], PyTree]  # (key, sent, receiver's own) -> received


class AsyncState(NamedTuple):
    params: Params


def favano(lr: ScalarOrSchedule, alpha: Reweighting) -> FedAlgorithm:
    r"""FAVANO: what clients have done since their last contact, as if all had done the same.

    .. math::
        w_i^{unb} = w_i^{init} + \frac{1}{\alpha_i} (w_i - w_i^{init}), \qquad
        w \leftarrow \frac{1}{s + 1} \Bigl(w + \sum_{i \in S} w_i^{unb}\Bigr), \qquad
        w_i, w_i^{init} \leftarrow w \text{ for } i \in S

    Runs on :func:`~fedjax_sim.timelines.contacts` with ``receives="new"``.  Either alpha turns the
    steps of a visit into about one, so that rates are not comparable to FedAvg's.

    Args:
        lr: client learning rate.
        alpha: :func:`~fedjax_sim.algorithms.staleness.expected_steps` or
            :func:`~fedjax_sim.algorithms.staleness.realised_steps`.

    References:
        FAVANO, Algorithm 1, Equations 3 and 4.

    Example:
        >>> from fedjax_sim.algorithms.staleness import realised_steps
        >>> algorithm = favano(lr=0.5, alpha=realised_steps(jnp.full(100, 0.9)))
    """

    def local(w_init: Params, state: tuple, oracle: Oracle, work: Work) -> tuple[Upload, tuple]:
        w = local_steps(sgd(rate(lr, work), oracle.grad), w_init, work)
        progress = tree.sub(w, w_init)
        return tree.add_scale(w_init, 1 / alpha(work), progress), state  # w_unb, Algorithm 1

    return FedAlgorithm(AsyncState, local, _join)


def quafl(
    lr: ScalarOrSchedule,
    up: Through | None = None,
    down: Through | None = None,
    *,
    rate_factor: bool = False,
    client_averaging: bool = True,
    server_averaging: bool = True,
) -> FedAlgorithm:
    r"""QuAFL: server and contacted clients each mix in the other's model, as it was before.

    .. math::
        w \leftarrow \frac{1}{s + 1} \Bigl(w + \sum_{i \in S} Q(y_i)\Bigr), \qquad
        w_i \leftarrow \frac{1}{s + 1} \bigl(Q(w^{old}) + s\, y_i\bigr)

    :math:`y_i` being what the client has made of its own model since its last contact.  Runs on
    :func:`~fedjax_sim.timelines.contacts` with ``receives="current"``: the server's model travels
    to the clients, and decodes what they send.

    Args:
        lr: client learning rate.
        up, down: ``(key, sent, receiver's own model) -> received``, e.g. ``Codec.through``;
            default the identity.
        rate_factor: the client rate times ``(s + 1) / s`` where the server averages, as the
            authors' program has it.
        client_averaging: False: the client takes the server's model instead.
        server_averaging: False: the server takes the clients' mean instead.

    References:
        Zakerinia et al., 2022, Algorithm 1; the switches are their program's.

    Example:
        >>> algorithm = quafl(lr=0.5)
    """
    up, down = up or _identity, down or _identity

    def broadcast(state: AsyncState, round: Round) -> tuple[Params, Array]:
        return state.params, real(round.num_uploads)

    def local(
        message: tuple[Params, Array], own: Params, oracle: Oracle, work: Work
    ) -> tuple[Upload, Params]:
        w, s = message
        eta = rate(lr, work)
        if rate_factor and server_averaging:
            # Of an empty round, whose results are dropped, any finite number.
            eta = real(eta) * (s + 1) / jnp.maximum(s, 1)
        y = local_steps(sgd(eta, oracle.grad), own, work)
        up_key, down_key = jax.random.split(work.key)
        received = down(down_key, w, y)
        mixed = tree.divide(tree.add_scale(received, s, y), s + 1)
        return up(up_key, y, w), mixed if client_averaging else received

    def update(state: AsyncState, mean: Upload, round: Round) -> AsyncState:
        return _join(state, mean, round) if server_averaging else AsyncState(mean)

    return FedAlgorithm(
        AsyncState,
        local,
        update,
        broadcast,
        init_client=lambda params: params,
        synchronous_only="a contact mixes the client's own model with the server's at that moment",
    )


def fedbuff(
    lr: ScalarOrSchedule,
    server_lr: Scalar,
    weight: StalenessWeight | None = None,
    *,
    normalised: bool = False,
) -> FedAlgorithm:
    r"""FedBuff: FedAvg at every full buffer, whoever filled it.

    .. math::
        w \leftarrow w - \eta_g \frac{1}{Z} \sum_{i \in buffer} s(\tau_i)\, (w_i^{start} - w_i)

    Runs on :func:`~fedjax_sim.timelines.arrivals`.  The server's rate decides about stability.

    Args:
        lr, server_lr: eta and eta_g.
        weight: s of the staleness; default 1.
            :func:`~fedjax_sim.algorithms.staleness.polynomial` with 1/2 is the paper's.
        normalised: divide by the sum of the weights instead of by Z.

    References:
        Nguyen et al., 2022, Algorithm 1.

    Example:
        >>> from fedjax_sim.algorithms.staleness import polynomial
        >>> algorithm = fedbuff(lr=0.05, server_lr=0.3, weight=polynomial(0.5))
    """
    weight = weight or constant
    base = fedavg(lr, optax.sgd(server_lr))

    def local(x: Params, state: tuple, oracle: Oracle, work: Work) -> tuple[Upload, tuple]:
        delta, state = base.local(x, state, oracle, work)
        s = weight(work.staleness)
        share = jnp.where(work.num_steps > 0, s, 0)
        return (share, tree.scale(s, delta)), state

    def update(state, mean: Upload, round: Round):
        share, delta = mean
        if normalised:
            delta = tree.divide(delta, jnp.where(share > 0, share, 1))
        return base.update(state, delta, round)

    return FedAlgorithm(base.init, local, update)


def fedasync(
    lr: ScalarOrSchedule,
    mix: Scalar = 0.6,
    weight: StalenessWeight | None = None,
    mu: Scalar = 0.0,
) -> FedAlgorithm:
    r"""FedAsync: the server mixes in every model that arrives, less the staler it is.

    .. math:: w \leftarrow (1 - a_t)\, w + a_t\, x_{new}, \qquad a_t = a\, s(t - \tau)

    :math:`x_{new}` being trained on :math:`f_i(x) + \frac{\mu}{2} \|x - w^{\tau}\|^2`.  Runs on
    :func:`~fedjax_sim.timelines.arrivals` with a buffer of 1; several uploads are averaged first.

    Args:
        lr: client learning rate.
        mix: a.
        weight: s, of a staleness that is 0 for a fresh upload: ``constant`` (the default),
            ``polynomial`` or ``hinge`` of :mod:`fedjax_sim.algorithms.staleness`.
        mu: weight of the proximal term.

    References:
        Xie et al., 2019, Algorithm 1 and Section 5.2.

    Example:
        >>> from fedjax_sim.algorithms.staleness import polynomial
        >>> algorithm = fedasync(lr=0.1, weight=polynomial(0.5), mu=0.005)
    """
    weight = weight or constant

    def local(x: Params, state: tuple, oracle: Oracle, work: Work) -> tuple[Upload, tuple]:
        y = local_steps(sgd(rate(lr, work), proximal(oracle, mu, x).grad), x, work)
        share = jnp.where(work.num_steps > 0, real(mix) * weight(work.staleness), 0)
        return (share, tree.scale(share, y)), state

    def update(state: AsyncState, mean: Upload, round: Round) -> AsyncState:
        del round
        share, y = mean
        return AsyncState(tree.add_scale(y, 1 - share, state.params))

    return FedAlgorithm(AsyncState, local, update)


def async_sgd(
    lr: Scalar, *, patience: Scalar | None = None, bound: Scalar | None = None
) -> FedAlgorithm:
    r"""Asynchronous SGD: every gradient is applied as it arrives, to a model that has moved on.

    .. math::
        w \leftarrow w - \eta_t\, g_i(w_{t - \tau}), \qquad
        \eta_t = \begin{cases} \eta & \tau \le \tau_c \\ \min(\eta, c / \tau) & \text{else}
        \end{cases}

    Runs on :func:`~fedjax_sim.timelines.arrivals` with one step a report, and bounded concurrency
    or random assignment as options there.

    Args:
        lr: eta.
        patience, bound: tau_c, and c (the paper's constant over L); both or none.

    Raises:
        ValueError: one of ``patience`` and ``bound`` without the other.

    References:
        Koloskova et al., 2022, Algorithm 2 and Equation 7.

    Example:
        >>> algorithm = async_sgd(lr=0.1, patience=10, bound=1.0)
    """
    if (patience is None) != (bound is None):
        raise ValueError(f"patience is {patience} and bound {bound}; expected both or none")

    def local(x: Params, state: tuple, oracle: Oracle, work: Work) -> tuple[Upload, tuple]:
        eta = real(lr)
        if patience is not None and bound is not None:
            delay = real(work.staleness)
            late = jnp.minimum(eta, real(bound) / jnp.maximum(delay, 1))
            eta = jnp.where(delay <= real(patience), eta, late)
        return tree.sub(local_steps(sgd(eta, oracle.grad), x, work), x), state

    def update(state: AsyncState, step: Upload, round: Round) -> AsyncState:
        del round
        return AsyncState(tree.add(state.params, step))

    return FedAlgorithm(AsyncState, local, update)


def _join(state: AsyncState, mean: Upload, round: Round) -> AsyncState:
    """The server's model is one of those averaged."""
    s = real(round.num_uploads)
    return AsyncState(tree.divide(tree.add_scale(state.params, s, mean), s + 1))  # Eq. (4)


def _identity(key: Array, sent: PyTree, own: PyTree) -> PyTree:
    del key, own
    return sent
