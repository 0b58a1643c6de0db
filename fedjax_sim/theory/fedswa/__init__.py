r"""Generalisation and convergence of FedSWA, FedMoSWA and their relatives.

Bounds from Liu et al. (2025), "Improving Generalization in Federated Learning with Highly
Heterogeneous Data via Momentum-Based Stochastic Controlled Weight Averaging" (ICML), Section 5,
Table 1 and Appendices E, F, G, H and I; Appendix G adapts the analysis of SCAFFOLD (Karimireddy et
al., 2020).

In formulas beta is ``constants.L``, L is ``constants.G`` (losses are L-Lipschitz), m is
``clients``, s ``cohort_size``, n ``examples`` (per client), K ``local_steps`` and T ``rounds``;
alpha is the server's rate, gamma the momentum of the control variates and rho the final rate of a
round over its first, as in :func:`fedjax_sim.fedmoswa`.
"""

from fedjax_sim.theory.fedswa import convergence, generalization, stability, table_1

__all__ = ["convergence", "generalization", "stability", "table_1"]
