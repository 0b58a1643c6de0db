"""FedAc-II as its authors' program has it.

From Yuan and Ma, "Federated Accelerated Stochastic Gradient Descent", 2020.
"""

import fedjax_sim as fs
from fedjax_sim.algorithms.fedac import coupling
from fedjax_sim.types import Scalar


def fedac_ii_of_the_program(lr: Scalar, mu: Scalar, num_steps: Scalar) -> fs.FedAlgorithm:
    r"""FedAc-II with :math:`\beta = 2 \alpha^2 / (\alpha - 1)`, which made the published results.

    The paper and its proofs have :math:`(2 \alpha^2 - 1) / (\alpha - 1)`.
    """
    numbers = coupling(lr, mu, num_steps, "II")
    beta = 2 * numbers.alpha**2 / (numbers.alpha - 1)
    return fs.fedac(lr, mu, num_steps, numbers=numbers._replace(beta=beta))
