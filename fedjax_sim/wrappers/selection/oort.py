"""Oort: clients with large losses on many examples, fast ones before slow ones.

References:
    Lai, Zhu, Madhyastha, Chowdhury, "Oort: Efficient Federated Learning via Guided Participant
        Selection", OSDI 2021, Algorithm 1.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fedjax_sim.checks import check_at_least, check_at_most, check_count, check_positive
from fedjax_sim.tree import fast, usual
from fedjax_sim.types import (
    Candidates,
    Choice,
    Oracle,
    Params,
    Round,
    Scalar,
    Selector,
    Work,
    specified,
)
from fedjax_sim.wrappers.selection.draws import uniforms
from fedjax_sim.wrappers.selection.scores import mean_over_steps, written

__all__ = ["OortState", "oort"]


class OortState(NamedTuple):
    """Knowledge of Oort's server about the clients."""

    utility: Array  # [M] statistical utility at the last visit
    last: Array  # [M] int    round of the last visit, counted from 1; 0: none
    chosen: Array  # [M] int    visits
    recent: Array  # [2 W] sums of the utilities of the last rounds, the newest last
    preferred: Array  # preferred duration T of a round
    round: Array  # int    rounds so far


@specified(static=("window",))
def oort(
    size: int,
    *,
    durations: np.ndarray | Array | None = None,
    pacer_step: Scalar = 10.0,
    window: int = 20,
    penalty: Scalar = 2.0,
    exploration: Scalar = 0.9,
    decay: Scalar = 0.98,
    least_exploration: Scalar = 0.2,
    cutoff: Scalar = 0.95,
    clip: Scalar = 0.95,
    most_visits: int | None = None,
) -> Selector:
    r"""Returns Oort's selector: ``size`` of the round's candidates by utility and exploration.

    A client i that took part has the statistical utility, of the losses in its last visit,

    .. math:: U_i = |B_i| \sqrt{\tfrac{1}{|B_i|} \sum_{k \in B_i} \mathrm{loss}(k)^2}

    and in round R, with its last visit in round :math:`L_i` and the duration :math:`t_i`,

    .. math:: \mathrm{Util}_i = \Bigl(U_i + \sqrt{0.1 \log R / L_i}\Bigr)
        \Bigl(\tfrac{T}{t_i}\Bigr)^{\alpha\, 1[T < t_i]}

    A share :math:`\epsilon` of the m clients is drawn from those that never took part, in
    proportion to their speeds; the others among clients with at least the cutoff times the utility
    of the last one that would be exploited, in proportion to their utilities.  If the utilities of
    W rounds are less than those of the W rounds before, the preferred duration T grows by
    ``pacer_step``.

    Oort chooses among the candidates that the timeline has in a round; with
    :func:`~fedjax_sim.timelines.full` among all clients, as in the paper.  Candidates receive and
    compute nothing.  A client reports the root of the mean squared loss of the minibatches of its
    visit, at the model that it received, since an oracle has no losses of single examples; for
    minibatches of one example that is the paper's number.

    The authors' program differs: it scales the utilities to [0, 1] before it adds the uncertainty,
    and takes the cutoff from the first client that would not be exploited.

    Args:
        size: m, clients that take part.
        durations: ``[M]`` duration of a visit of every client, known beforehand; None: speed does
            not count.
        pacer_step: :math:`\Delta`, the first T and its growth.
        window: W, rounds.
        penalty: :math:`\alpha`.
        exploration: the first :math:`\epsilon`.
        decay: factor of :math:`\epsilon` per round.
        least_exploration: :math:`\epsilon` does not fall below.
        cutoff: c, the share of the utility that still admits a client.
        clip: quantile of the utilities of clients that took part, above which they are cut.
        most_visits: visits after which a client is chosen no more, if others are left; None: any
            number.

    Raises:
        ValueError: a number out of its range, or durations that are not positive.

    Example:
        >>> oort(10, exploration=0.5).size
        10
    """
    check_count(1, size=size, window=window)
    if most_visits is not None:
        check_count(1, most_visits=most_visits)
    check_positive(pacer_step=pacer_step)
    check_at_least(0, penalty=penalty)
    shares = {
        "exploration": exploration, "decay": decay, "least_exploration": least_exploration,
        "cutoff": cutoff, "clip": clip,
    }  # fmt: skip
    check_at_least(0, **shares)
    check_at_most(1, **shares)
    if durations is not None:
        if np.ndim(durations) != 1:
            raise ValueError(f"durations has shape {np.shape(durations)}; expected [M]")
        check_positive(durations=jnp.min(jnp.asarray(durations)))

    def init(num_clients: int) -> OortState:
        if durations is not None and len(durations) != num_clients:
            raise ValueError(
                f"durations has {len(durations)} entries; expected one per client, {num_clients}"
            )
        none = jnp.zeros(num_clients, jnp.int32)
        zeros = jnp.zeros(num_clients, jnp.result_type(float))
        recent = jnp.zeros(2 * window, zeros.dtype)
        return OortState(zeros, none, none, recent, jnp.asarray(pacer_step, zeros.dtype), none[0])

    def choose(state: OortState, candidates: Candidates, round: Round) -> tuple[Choice, OortState]:
        number = state.round + 1
        before, after = state.recent[:window].sum(), state.recent[window:].sum()
        slower = (number > 2 * window) & (before > after)
        preferred = state.preferred + jnp.where(slower, pacer_step, 0)  # Alg. 1: pacer
        last, utility = state.last[candidates.clients], state.utility[candidates.clients]
        known = candidates.present & (last > 0)
        count = known.sum()
        place = jnp.ceil(clip * count.astype(utility.dtype)).astype(count.dtype) - 1
        ascending = jnp.sort(jnp.where(known, utility, jnp.inf))
        utility = jnp.minimum(utility, ascending[jnp.maximum(place, 0)])
        # Alg. 1, temporal uncertainty: a utility is known less the older it is.
        real = utility.dtype
        since = jnp.maximum(last, 1).astype(real)
        uncertainty = jnp.sqrt(0.1 * jnp.log(number.astype(real)) / since)
        utility = utility + uncertainty
        speed = jnp.ones(last.shape, real)
        if durations is not None:
            duration = jnp.asarray(durations, real)[candidates.clients]
            speed = 1 / duration
            slow = (preferred / duration) ** penalty  # utility of a client, factor of the slow ones
            utility = utility * jnp.where(preferred < duration, slow, 1)
        allowed = candidates.present
        if most_visits is not None:
            free = allowed & (state.chosen[candidates.clients] < most_visits)
            allowed = jnp.where(free.sum() >= size, free, allowed)
        known, fresh = allowed & (last > 0), allowed & (last == 0)
        passed = jnp.asarray(decay, real) ** state.round.astype(real)
        epsilon = jnp.maximum(exploration * passed, least_exploration)
        count = jnp.minimum(size, allowed.sum())
        explored = jnp.minimum(jnp.floor(epsilon * size).astype(count.dtype), fresh.sum())
        exploited = jnp.minimum(count - explored, known.sum())
        explored = count - exploited  # where too few took part before
        # Alg. 1, exploitation: clients above the cutoff, in proportion to their utilities.
        ordered = jnp.sort(jnp.where(known, utility, -jnp.inf))[::-1]
        bound = cutoff * ordered[jnp.maximum(exploited - 1, 0)]
        exploit_key, explore_key = usual(jax.random.split(fast(round.key)))
        admitted = known & (utility >= bound)
        clients = candidates.clients
        chosen = _drawn(exploit_key, clients, utility, admitted, exploited)
        chosen |= _drawn(explore_key, clients, speed, fresh, explored)
        return Choice(chosen), state._replace(preferred=preferred, round=number)

    def report(params: Params, oracle: Oracle, work: Work) -> Array:
        squared = mean_over_steps(jnp.square, params, oracle, work)
        # Statistical utility: |B| sqrt(mean of loss^2).
        return work.num_examples.astype(squared.dtype) * jnp.sqrt(squared)

    def learn(state: OortState, clients: Array, reports: Any, arrived: Array) -> OortState:
        reports = jnp.where(arrived, reports, 0)
        total = jnp.roll(state.recent, -1).at[-1].set(reports.sum())

        return state._replace(
            utility=written(state.utility, clients, reports, arrived),
            last=written(state.last, clients, state.round, arrived),
            chosen=state.chosen.at[clients].add(arrived.astype(jnp.int32)),
            recent=total,
        )

    return Selector(choose, size, init=init, report=report, learn=learn, exact=True)


def _drawn(key: Array, clients: Array, weights: Array, admitted: Array, count: Array) -> Array:
    """Returns ``count`` of the admitted, drawn one after the other in proportion to weights."""
    noise = -jnp.log(-jnp.log(uniforms(key, clients, weights.dtype)))  # of Gumbel's law
    # Admitted ones of weight 0 come after all others.
    logs = jnp.log(jnp.maximum(weights, jnp.finfo(weights.dtype).tiny))
    rank = jnp.argsort(jnp.argsort(jnp.where(admitted, -logs - noise, jnp.inf)))
    return admitted & (rank < count)
