r"""FAVANO: asynchronous averaging of progress per step.

References:
    "FAVANO: Federated AVeraging with Asynchronous Nodes", arXiv 2305.16099.
"""

from fedjax_sim import tree
from fedjax_sim.algorithms._shared import (
    ModelState,
    average_with_server,
    check_clients_receive,
    check_per_client,
)
from fedjax_sim.algorithms.staleness import PerClient, Reweighting
from fedjax_sim.local import ScalarOrSchedule, local_steps, rate, sgd
from fedjax_sim.types import FedAlgorithm, Oracle, Params, Task, Timeline, Upload, Work

__all__ = ["favano"]


def favano(lr: ScalarOrSchedule, alpha: Reweighting) -> FedAlgorithm:
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

    Raises:
        ValueError: when the run begins, a timeline of ``contacts(receives="current")``, or an alpha
            whose vector does not have one entry per client.

    References:
        FAVANO, Algorithm 1, Equations 3 and 4.

    Example:
        >>> import jax.numpy as jnp
        >>> from fedjax_sim.algorithms.staleness import realised_steps
        >>> algorithm = favano(lr=0.5, alpha=realised_steps(jnp.full(100, 0.9)))
    """

    def local(w_init: Params, state: tuple, oracle: Oracle, work: Work) -> tuple[Upload, tuple]:
        w = local_steps(sgd(rate(lr, work), oracle.grad), w_init, work)
        progress = tree.sub(w, w_init)
        return tree.add_scale(w_init, 1 / alpha(work), progress), state  # w_unb, Algorithm 1

    def check(task: Task, timeline: Timeline) -> None:
        check_clients_receive(timeline)
        if isinstance(alpha, PerClient):
            check_per_client(alpha.name, alpha.values, task)

    return FedAlgorithm(ModelState, local, average_with_server, check=check)  # Eq. (4)
