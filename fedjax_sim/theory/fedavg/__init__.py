r"""Convergence of FedAvg.

Bounds from Yuan (2023), "On Principled Local Optimization Methods for Federated Learning" (thesis),
Chapter 2 and Appendices A and B.2.  All clients take part in every round.  The shadow iterate
``xbar(r, k)`` is the mean of the clients' iterates after k local steps of round r.

In formulas M is ``clients``, K ``local_steps``, R ``rounds`` and eta ``lr``.
"""

from fedjax_sim.theory.fedavg import (
    convex,
    drift,
    iterate_bias,
    nonconvex,
    strongly_convex,
    third_order,
)

__all__ = ["convex", "drift", "iterate_bias", "nonconvex", "strongly_convex", "third_order"]
