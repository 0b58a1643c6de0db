r"""Predicts where local SGD and SCAFFOLD settle, to first order in the third derivative.

Clients have equal data and draw examples independently.  With deviations from the optimum, rate
:math:`\eta`, and one client's second moment :math:`C_j` after j local steps,

.. math::
    C_{j+1} = (I - \eta H) C_j (I - \eta H)
        + \eta^2 (\Sigma + \operatorname{E}(H_i - H) C_j (H_i - H)), \qquad
    m_{j+1} = (I - \eta H) m_j - \tfrac{\eta}{2} \nabla^3 F [C_j].

Moments of two clients have no noise.  The server's moment and mean are the fixed points over a
visit of K steps.  For a small :math:`\eta K H` and infinitely many clients this becomes

.. math:: m = -\tfrac14 \eta^2 (K - 1) H^{-1} \nabla^3 F[\Sigma],

the generator argument of Yuan, 2023, section 2.4.2, in d dimensions and at the fixed point:
against the gradient of :math:`\operatorname{tr}(\Sigma \nabla^2 F)`, so towards flat models.
For one client it is the limit of SGD with a constant rate (Dieuleveut, Durmus and Bach, 2020).

SCAFFOLD's controls with option II are the means of the gradients of the visit before.  Their
noise of covariance :math:`\Sigma / K` stays the same for a whole visit, which adds
:math:`\eta^2 j^2 \Sigma / K` to the j-th moment.
"""

import numpy as np

from experiments.questions.averaging_problem import Moments


def small_step_limit(moments: Moments, lr: float, num_steps: int) -> np.ndarray:
    """The mean for infinitely many clients at small steps, ``[d]``."""
    drift = moments.bend(moments.noise)
    return -0.25 * lr**2 * (num_steps - 1) * np.linalg.solve(moments.hessian, drift)


def scaffold_ratio(num_steps: int) -> float:
    """SCAFFOLD's displacement over FedAvg's, for many clients and small steps.

    ``sum (j + j^2 / K) / sum j`` over the steps j < K of a visit; 5/3 for many steps.
    """
    return 1 + (2 * num_steps - 1) / (3 * num_steps)


def limit(
    moments: Moments, lr: float, num_steps: int, num_clients: float, *, scaffold: bool = False
) -> np.ndarray:
    """The mean of the server's model less the optimum, ``[d]``, after infinitely many rounds."""
    identity = np.eye(len(moments.noise))
    whole = np.linalg.matrix_power(identity - lr * moments.hessian, num_steps)
    pull = -np.linalg.solve(moments.hessian, identity - whole)  # of a control's error
    kept = identity + pull / (lr * num_steps)
    server, control = np.zeros_like(moments.noise), np.zeros_like(moments.noise)
    change = np.inf
    while change > 1e-12:
        _, noise = _visit(moments, lr, num_steps, server, control)
        # The controls' errors add up to 0 over clients, so they do not move the server.
        new = [whole @ server @ whole + noise / num_clients, control]
        if scaffold:
            added = (1 - 1 / num_clients) * noise / (lr * num_steps) ** 2
            new[1] = kept @ control @ kept + added
        old, (server, control) = (server, control), new
        change = max(np.abs(a - b).max() for a, b in zip(old, new, strict=True))
        change /= np.abs(noise).max()
    drift, _ = _visit(moments, lr, num_steps, server, control)
    return np.linalg.solve(identity - whole, drift)


def _visit(
    moments: Moments, lr: float, num_steps: int, server: np.ndarray, control: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The mean after a visit from 0, ``[d]``, and the second moment of its own noise."""
    contraction = np.eye(len(server)) - lr * moments.hessian
    own, noise, cross, drift = server, 0 * server, 0 * server, np.zeros(len(server))
    for _ in range(num_steps):
        drift = contraction @ drift - lr / 2 * moments.bend(own)
        added = lr**2 * (moments.noise + moments.scattered(own))
        with_control = lr * contraction @ cross
        own = contraction @ own @ contraction + added
        own += lr**2 * control - with_control - with_control.T
        cross = contraction @ cross - lr * control
        noise = contraction @ noise @ contraction + added
    return drift, noise
