r"""Convergence of FAVANO, asynchronous averaging with reweighted progress, on smooth objectives.

Bounds from "FAVANO: Federated AVeraging with Asynchronous Nodes", arXiv:2305.16099, with the
corrections in the errata.

The server contacts s of n clients at each of T server steps; a client does at most K local steps
between two contacts.  ``mu_t`` is the mean of the server's model and of the clients' at their last
contacts (:func:`fedjax_sim.diagnostics.potential.mean_model`); all start from one model.  A client
does ``S = E ^ K = min(E, K)`` steps, drawn independently for every contact, and its progress is
divided by alpha.  ``a`` and ``b`` describe the law of S
(:func:`fedjax_sim.theory.favano.progress.progress_constants`).

In formulas n is ``clients``, s ``cohort_size``, K ``local_steps``, T ``rounds`` (server steps) and
eta ``lr``; G is ``constants.dissimilarity`` and B ``constants.dissimilarity_factor``:
``mean_i ||grad f_i||^2 <= G^2 + B^2 ||grad f||^2`` with ``B >= 1``.  ``Delta = f(mu_0) - inf f``.
"""

from fedjax_sim.theory.favano import progress, rates

__all__ = ["progress", "rates"]
