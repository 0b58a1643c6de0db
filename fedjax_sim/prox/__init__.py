r"""Regularisers and constraints of composite problems, given by their proximal operators.

A regulariser psi acts on one array of any shape. Its methods are

* ``value(x)``: :math:`\psi(x)`. A constraint has the value 0 inside the set and infinity outside,
  up to rounding.
* ``prox(v, c)``: :math:`\operatorname{argmin}_x \tfrac12 \|x - v\|^2 + c\,\psi(x)`. For a
  constraint this is the projection, for every c including 0.
* ``subgradient(x)``, only if psi is finite: the subgradient that is 0 wherever possible.

All regularisers are pytrees of their numbers, so weights and radii can be swept and differentiated.
:func:`composite` applies a regulariser and a mirror map to the leaves of a model.

References:
    Parikh and Boyd, "Proximal Algorithms", 2014.
"""

from fedjax_sim.prox.base import Penalty, Regularizer, like, soft_threshold
from fedjax_sim.prox.composite import (
    Composite,
    Where,
    check_composite,
    composite,
    every_leaf,
    kernels,
)
from fedjax_sim.prox.constraints import Box, L1Ball, L2Ball, Simplex
from fedjax_sim.prox.mirror import (
    Entropy,
    Euclidean,
    Hypentropy,
    Mirror,
    PNorm,
    Weighted,
    divergence,
)
from fedjax_sim.prox.penalties import L1, ElasticNet, GroupL1, LInf, Nuclear, SquaredL2, Zero

__all__ = [
    "L1",
    "Box",
    "Composite",
    "ElasticNet",
    "Entropy",
    "Euclidean",
    "GroupL1",
    "Hypentropy",
    "L1Ball",
    "L2Ball",
    "LInf",
    "Mirror",
    "Nuclear",
    "PNorm",
    "Penalty",
    "Regularizer",
    "Simplex",
    "SquaredL2",
    "Weighted",
    "Zero",
    "composite",
    "divergence",
    "every_leaf",
    "kernels",
    "soft_threshold",
]
