"""Renyi accountant whose bound for sampling without replacement is not above that without sampling.

The bound of Wang, Balle and Kasiviswanathan ("Subsampled Renyi Differential Privacy and Analytical
Moments Accountant", 2019), which dp-accounting computes, assumes a small sampling rate: at 19 of 20
clients it exceeds four times the divergence of the mechanism that everybody enters.
"""

import functools
from typing import Any

import numpy as np

from fedjax_sim.checks import import_extra


def renyi_accountant(relation: Any) -> Any:
    r"""Returns dp-accounting's accountant of Renyi differential privacy with the smaller bound.

    A run with sampled cohorts is a mixture over the cohorts, with the same weights for both
    neighbours.  Renyi divergences are jointly quasi-convex, so that of the mixtures is at most that
    of the worst cohort, :math:`\alpha / (2 \sigma^2)` at every order :math:`\alpha`.
    """
    return _capped()(neighboring_relation=relation)


@functools.cache
def _capped() -> Any:
    dp, rdp = import_extra("dp_accounting", "privacy"), import_extra("dp_accounting.rdp", "privacy")

    class Capped(rdp.RdpAccountant):
        def _maybe_compose(self, event: Any, count: int, do_compose: bool) -> Any:
            before = np.array(self._rdp)
            error = super()._maybe_compose(event, count, do_compose)
            if do_compose and isinstance(event, dp.SampledWithoutReplacementDpEvent):
                sampled, self._rdp = self._rdp, before
                super()._maybe_compose(event.event, count, do_compose)
                self._rdp = np.minimum(sampled, self._rdp)
            return error

    return Capped
