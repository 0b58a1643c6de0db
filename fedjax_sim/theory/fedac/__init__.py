r"""Convergence of FedAc.

Bounds from Yuan (2023), "On Principled Local Optimization Methods for Federated Learning" (thesis),
Chapter 3 and Appendix B; also Yuan and Ma (2020), "Federated Accelerated Stochastic Gradient
Descent".  All clients have one objective and take part in every round.  The potentials are

* FedAc-I: ``Psi = mean_m F(x_ag,m) - F* + mu / 2 ||xbar - x*||^2``,
* FedAc-II: ``Phi = F(xbar_ag) - F* + mu / 6 ||xbar - x*||^2``.

Both are at least the error of the model.  ``potential`` is the value at the initial model, at most
``L B^2``; by default it is ``Delta + mu / 2 B^2``, FedAc-I's and more than FedAc-II's.  ``gamma``,
alpha and beta are those of :func:`fedjax_sim.algorithms.fedac.coupling`.

Functions need L and sigma, and FedAc-II with a known Q also sigma4; on strongly convex objectives
mu and, for the default potential, Delta and B; on others B.

The numbers in the bounds, up to e^19, are those of the proofs and make the bounds far larger than
measured errors; :func:`fedjax_sim.theory.orders.table_rate` has the rates with all numbers 1.

In formulas M is ``clients``, K ``local_steps``, R ``rounds``, eta ``lr`` and lambda
``augmentation``.
"""

from fedjax_sim.theory.fedac import convex, stability, strongly_convex

__all__ = ["convex", "stability", "strongly_convex"]
