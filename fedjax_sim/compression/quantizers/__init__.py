"""Quantisers of tensors for training in low precision.

Neural gradients: :func:`luq`, unbiased, on a logarithmic grid; :func:`luq_gradient` puts it into
the backward pass.  Weights and activations: :func:`symmetric`, round to nearest on a uniform grid
with a straight-through gradient; the range is a rule of its own (:func:`mse_clip`,
:func:`sawb_clip`).  All act on one tensor, whose statistics set the grid, keep its dtype, and
compute in at least float32.
"""

from fedjax_sim.compression.quantizers.logarithmic import luq, luq_gradient
from fedjax_sim.compression.quantizers.rounding import max_magnitude, stochastic_round
from fedjax_sim.compression.quantizers.uniform import (
    Clip,
    Levels,
    by_sign,
    mse_clip,
    non_negative,
    sawb_clip,
    signed,
    signed_excess,
    symmetric,
)

__all__ = [
    "Clip",
    "Levels",
    "by_sign",
    "luq",
    "luq_gradient",
    "max_magnitude",
    "mse_clip",
    "non_negative",
    "sawb_clip",
    "signed",
    "signed_excess",
    "stochastic_round",
    "symmetric",
]
