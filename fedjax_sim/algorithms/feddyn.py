r"""FedDyn: dynamic regularisation.

References:
    Acar et al., "Federated Learning Based on Dynamic Regularization", 2021.
"""

from __future__ import annotations

from typing import NamedTuple

from fedjax_sim import tree
from fedjax_sim.algorithms._shared import MEAN_OF_ALL
from fedjax_sim.checks import check_positive, check_rates
from fedjax_sim.local import ScalarOrSchedule, corrected, local_steps, proximal, rate, sgd
from fedjax_sim.types import FedAlgorithm, Oracle, Params, Round, Scalar, Upload, Work, specified

__all__ = ["feddyn"]


class FedDynState(NamedTuple):
    params: Params  # x
    dual: Params  # h, the mean of all clients' duals


@specified
def feddyn(lr: ScalarOrSchedule, mu: Scalar = 0.01) -> FedAlgorithm:
    r"""FedDyn: proximal visits with a linear term per client, so that drift vanishes in the limit.

    With clients' duals :math:`u_i` and the server's h from zero, M clients:

    .. math::
        y &\leftarrow y - \eta\,(g_i(y) - u_i + \mu\,(y - x)), \qquad y_0 = x \\
        u_i &\leftarrow u_i - \mu\,(y_{K_i} - x), \qquad
        h \leftarrow h - \tfrac{\mu}{M} \textstyle\sum_{i \in S} (y_{K_i} - x) \\
        x &\leftarrow \operatorname{mean}_{i \in S} y_{K_i} - h / \mu

    The visit's local steps solve the proximal problem inexactly.  A client's state is :math:`u_i`.

    A client receives no confirmation: after a lost upload
    (:func:`~fedjax_sim.timelines.lose_uploads`) its :math:`u_i` has moved and h has not.  Nothing
    corrects the difference later, and the limit is no longer the optimum: the mean gradient there
    is the mean of the :math:`u_i` minus h.

    With weights :math:`w_i` of the setup, :math:`1 / M` becomes :math:`w_i / \sum_j w_j`, the mean
    is weighted, and the limit is the optimum of the weighted objective.

    Args:
        lr: client learning rate :math:`\eta`, or a schedule over rounds.
        mu: weight of the proximal term, positive, the paper's :math:`\alpha`.

    Raises:
        ValueError: a number outside its range; at the start of the run, a client with another
            weight in some round than in others.

    References:
        Acar et al., 2021, Algorithm 1.

    Example:
        >>> algorithm = feddyn(lr=0.1, mu=0.01)
    """

    check_rates(lr=lr)
    check_positive(mu=mu)

    def init(params: Params) -> FedDynState:
        return FedDynState(params, tree.zeros_like(params))

    def local(x: Params, dual: Params, oracle: Oracle, work: Work) -> tuple[Upload, Params]:
        dynamic = corrected(proximal(oracle, mu, x), tree.scale(-1, dual))
        delta = tree.sub(x, local_steps(sgd(rate(lr, work), dynamic.grad), x, work))
        return delta, tree.add_scale(dual, mu, delta)

    def update(state: FedDynState, delta: Upload, round: Round) -> FedDynState:
        dual = tree.add_scale(state.dual, mu, tree.scale(round.participation, delta))
        average = tree.sub(state.params, delta)
        return FedDynState(tree.add_scale(average, -1 / mu, dual), dual)

    return FedAlgorithm(init, local, update, init_client=tree.zeros_like, requires=MEAN_OF_ALL)
