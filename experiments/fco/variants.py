"""FedAvg with subgradients as the authors' program has it.

From Yuan, Zaheer, Reddi, "Federated Composite Optimization", 2021.
"""

from typing import Any

import fedjax_sim as fs
from fedjax_sim.local import ScalarOrSchedule
from fedjax_sim.types import Scalar


def fedavg_subgradient_of_the_program(
    lr: ScalarOrSchedule, composite: fs.prox.Composite, server_lr: Scalar = 1.0
) -> fs.FedAlgorithm:
    r"""``fedavg_subgradient`` that takes the subgradient after the gradient step.

    .. math:: z = x - \eta\, g(x), \qquad x \leftarrow z - \eta\, s(z)

    The paper takes both at x.
    """
    paper = fs.fedavg_subgradient(lr, composite, server_lr)

    def local(x: Any, state: tuple, oracle: fs.Oracle, work: fs.Work) -> tuple[Any, tuple]:
        eta = fs.local.rate(lr, work)

        def grad(y: Any, k: Any) -> Any:
            g = oracle.grad(y, k)
            return fs.tree.add(g, composite.subgradient(fs.tree.add_scale(y, -eta, g)))

        return fs.fedavg(eta).local(x, state, oracle._replace(grad=grad), work)

    return paper._replace(local=local)
