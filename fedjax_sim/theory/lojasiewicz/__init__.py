r"""Convergence of FedAvg where every client satisfies an alpha-Lojasiewicz inequality.

Bounds from Labbi, Mangold, Tiapkin and Moulines (2025), "On Global Convergence Rates for Federated
Policy Gradient under Heterogeneous Environment" (arXiv 2505.23459, version 1), Appendix F, with the
corrections in the errata.  The mean of the clients' objectives may violate the inequality

.. math:: \|\nabla f_c(\theta)\|^2 \ge \mu\, (f_c(\theta) - f_c^*)^\alpha, \qquad
    \alpha \in [1, 2],\ f_c^* = \inf f_c

which has no factor 1/2: for alpha = 1, mu is twice the usual Polyak-Lojasiewicz constant.  All
clients take part in every round.  A ``gap`` is ``F(theta) - F*`` with ``F* = (1 / M) sum_c f_c^*``:
it stays above ``min F - F* >= 0``, which is positive unless one model minimises all clients at
once.

In formulas mu is ``constants.lojasiewicz_mu``, alpha ``constants.lojasiewicz_alpha``, zeta
``constants.zeta_mean``, M ``clients``, K ``local_steps`` (the paper's H), R ``rounds`` and eta
``lr``.
"""

from fedjax_sim.theory.lojasiewicz import closed_forms, rounds

__all__ = ["closed_forms", "rounds"]
