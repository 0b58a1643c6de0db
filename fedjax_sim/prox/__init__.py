r"""Regularisers and constraints of composite problems, by their proximal operators.

A regulariser psi acts on one array, whatever its shape, and has

* ``value(x)``: :math:`\psi(x)`; of a constraint 0 inside, infinity outside (to rounding);
* ``prox(v, c)``: :math:`\operatorname{argmin}_x \tfrac12 \|x - v\|^2 + c\,\psi(x)`; of a
  constraint the projection for every c, 0 included;
* ``subgradient(x)``, if psi is finite: the one that is 0 wherever that is possible.

All are pytrees of their numbers, so that weights and radii can be swept and differentiated.
:func:`composite` applies one, with a mirror map, to the leaves of a model.

References:
    Parikh and Boyd, "Proximal Algorithms", 2014.
"""

from fedjax_sim.prox.base import Penalty, Regularizer, soft_threshold
from fedjax_sim.prox.composite import Composite, composite, every_leaf, kernels
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
