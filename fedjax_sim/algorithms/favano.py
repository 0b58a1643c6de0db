r"""FAVANO: asynchronous averaging of progress per step.

References:
    Leconte et al., "FAVANO: Federated AVeraging with Asynchronous Nodes", 2023, arXiv 2305.16099.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import jax.numpy as jnp
import numpy as np

from fedjax_sim import tree
from fedjax_sim.algorithms._shared import (
    UPLOADS_MODELS,
    ModelState,
    average_with_server,
    check_none_lost,
    check_per_client,
    real,
)
from fedjax_sim.algorithms.staleness import PerClient, Reweighting
from fedjax_sim.checks import check_choice, check_rates, is_concrete
from fedjax_sim.local import ScalarOrSchedule, local_steps, rate, sgd
from fedjax_sim.types import (
    FedAlgorithm,
    Oracle,
    Params,
    Requires,
    Round,
    Task,
    Timeline,
    Upload,
    Work,
    specified,
)

__all__ = ["favano"]

_UNBIASED = "models whose progress is divided by a weight"


class MeanModelState(NamedTuple):
    params: Params  # mu, the mean of the server's and the clients' models, which is evaluated
    current: Params  # w, the server's model


class _Visit(NamedTuple):
    model: Params  # w_unb
    progress: Params  # w_unb - w_init

    def decoded_near(self, message: Params) -> _Visit:
        """Returns the vector near which codecs decode: the model that the visit starts from."""
        return _Visit(message, tree.zeros_like(self.progress))


@specified
def favano(
    lr: ScalarOrSchedule, alpha: Reweighting, output: Literal["server", "mean"] = "server"
) -> FedAlgorithm:
    r"""FAVANO: averages the clients' progress since their last contact, per step.

    .. math::
        w_i^{unb} = w_i^{init} + \frac{1}{\alpha_i} (w_i - w_i^{init}), \qquad
        w \leftarrow \frac{1}{s + 1} \Bigl(w + \sum_{i \in S} w_i^{unb}\Bigr), \qquad
        w_i, w_i^{init} \leftarrow w \text{ for } i \in S

    Runs on :func:`~fedjax_sim.timelines.contacts` with ``receives="new"``.  Either alpha reduces a
    visit's progress to that of about one step, so rates are not comparable to FedAvg's.

    Args:
        lr: client learning rate, or a schedule over rounds.
        alpha: the weight :math:`\alpha_i` of a visit:
            :func:`~fedjax_sim.algorithms.staleness.expected_steps`,
            :func:`~fedjax_sim.algorithms.staleness.realised_steps`, or a function of the visit's
            :class:`~fedjax_sim.Work`.
        output: the model that is evaluated.  "server" is w; "mean" is the mean model of the
            theorems, :math:`\mu = (w + \sum_i w_i^{init}) / (n + 1)` over all n clients.  The
            mean model follows from the contacted clients' progress (Equation 53) if visits have
            equal weights, so an upload then has two models; the iterates w are the same.

    Raises:
        ValueError: another ``output``; when the run begins, a timeline of
            ``contacts(receives="current")``, an alpha whose vector does not have one entry per
            client or has 0 for a client that does steps, or, with "mean", other weights than equal
            ones or lost uploads.

    References:
        Leconte et al., 2023, Algorithm 1, Equations 3 to 5 and 53.

    Example:
        >>> import jax.numpy as jnp
        >>> from fedjax_sim.algorithms.staleness import realised_steps
        >>> algorithm = favano(lr=0.5, alpha=realised_steps(jnp.full(100, 0.9)))
    """

    check_rates(lr=lr)
    check_choice(("server", "mean"), output=output)

    def local(w_init: Params, state: tuple, oracle: Oracle, work: Work) -> tuple[Upload, tuple]:
        w = local_steps(sgd(rate(lr, work), oracle.grad), w_init, work)
        progress = tree.sub(w, w_init)
        # A visit without steps has no progress to divide: 0 / 0 := 0.
        divisor = jnp.where(work.num_steps > 0, alpha(work), 1)
        return tree.add_scale(w_init, 1 / divisor, progress), state  # w_unb, Algorithm 1

    def check(task: Task, timeline: Timeline) -> None:
        if output == "mean":
            check_none_lost(timeline, "the mean model follows the progress of every visit")
        if isinstance(alpha, PerClient):
            check_per_client(alpha.name, alpha.values, task)
            _check_divisors(alpha, timeline)

    if output == "server":
        return FedAlgorithm(  # Eq. (4)
            ModelState,
            local,
            average_with_server,
            requires=Requires(
                check=check,
                uploads_models=True,
                exact_mean=UPLOADS_MODELS,
                other_uploads=_UNBIASED,
            ),
        )

    def visit(w_init: Params, state: tuple, oracle: Oracle, work: Work) -> tuple[_Visit, tuple]:
        model, state = local(w_init, state, oracle, work)
        return _Visit(model, tree.sub(model, w_init)), state

    def update(state: MeanModelState, mean: _Visit, round: Round) -> MeanModelState:
        w = average_with_server(ModelState(state.current), mean.model, round).params
        share = real(round.num_uploads) / (round.num_clients + 1)
        return MeanModelState(tree.add_scale(state.params, share, mean.progress), w)  # Eq. (53)

    return FedAlgorithm(
        lambda params: MeanModelState(params, params),
        visit,
        update,
        lambda state, round: state.current,
        requires=Requires(
            check=check,
            uniform_weights="the mean model is the unweighted mean of all models",
            uploads_models=True,
            exact_mean=UPLOADS_MODELS,
            other_uploads=_UNBIASED,
        ),
    )


def _check_divisors(alpha: PerClient, timeline: Timeline) -> None:
    """Refuses the entry 0 for a client that does steps; traced values pass."""
    clients, num_steps, mask = timeline.clients, timeline.num_steps, timeline.mask
    if not all(map(is_concrete, (alpha.values, clients, num_steps, mask))):
        return
    active = np.asarray(clients)[np.asarray(mask) & (np.asarray(num_steps) > 0)]
    if (zero := active[np.asarray(alpha.values)[active] == 0]).size:
        raise ValueError(
            f"{alpha.name} is 0 for client {zero[0]}, which does steps in the timeline; expected a "
            "positive number"
        )
