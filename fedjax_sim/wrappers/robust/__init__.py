"""Robust aggregation: rules instead of the mean of the uploads, for rounds with attackers.

A rule is a value, :class:`Rule`; :func:`aggregate` applies it to an algorithm, and :func:`nnm` and
:func:`bucketing` put a mixing of the uploads in front of it:
``aggregate(fedavg(0.1), nnm(trimmed_mean(f=2)))``.  Attacks are in
:mod:`fedjax_sim.wrappers.robust.attacks`.
"""

from fedjax_sim.wrappers.robust import attacks
from fedjax_sim.wrappers.robust.aggregation import aggregate, stacked
from fedjax_sim.wrappers.robust.clipping import centred_clipping
from fedjax_sim.wrappers.robust.coordinates import mean, median, trimmed_mean
from fedjax_sim.wrappers.robust.geometric import geometric_median, rfa
from fedjax_sim.wrappers.robust.krum import bulyan, krum, multi_krum
from fedjax_sim.wrappers.robust.mixing import bucketing, nnm
from fedjax_sim.wrappers.robust.momentum import worker_momentum
from fedjax_sim.wrappers.robust.rules import Points, Rule

__all__ = [
    "Points",
    "Rule",
    "aggregate",
    "attacks",
    "bucketing",
    "bulyan",
    "centred_clipping",
    "geometric_median",
    "krum",
    "mean",
    "median",
    "multi_krum",
    "nnm",
    "rfa",
    "stacked",
    "trimmed_mean",
    "worker_momentum",
]
