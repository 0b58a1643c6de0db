r"""Convergence of FedDualAvg on composite convex objectives ``Phi = F + psi``.

Bounds from Yuan (2023), "On Principled Local Optimization Methods for Federated Learning" (thesis),
Chapter 4 and Appendix C; first in Yuan, Zaheer and Reddi (2021), "Federated Composite
Optimization".

h is Legendre and 1-strongly convex in a norm; every ``f(.; xi)`` is convex and L-smooth in it.
sigma, zeta and G are measured in the dual norm.  The distance is ``B_h^2 = D_h(x*, x_0)``: for
``h = ||x||^2 / 2`` **half** the squared distance.  All clients take part in every round.  ``xhat``
is the mean over rounds and steps of the models whose dual states are the clients' mean dual states
(Equation 4.9).

In formulas M is ``clients``, K ``local_steps``, R ``rounds`` and eta_c, the client rate, ``lr``
(but see :mod:`~fedjax_sim.theory.feddualavg.small_client_rate`).
"""

from fedjax_sim.theory.feddualavg import bounded_gradients, quadratic, shadow, small_client_rate

__all__ = ["bounded_gradients", "quadratic", "shadow", "small_client_rate"]
