"""Quantisers of tensors for training in low precision.

For neural gradients: :func:`luq` is unbiased, on a logarithmic grid; :func:`luq_gradient` applies
it in the backward pass. For weights and activations: :func:`symmetric` rounds to the nearest point
of a uniform grid, with a straight-through gradient; a separate function chooses the range
(:func:`mse_clip`, :func:`sawb_clip`). All quantisers act on one tensor, whose statistics determine
the grid, preserve its dtype, and compute in at least float32.
"""

from fedjax_sim.compression.quantizers.logarithmic import luq, luq_gradient
from fedjax_sim.compression.quantizers.rounding import stochastic_round
from fedjax_sim.compression.quantizers.uniform import (
    Clip,
    Levels,
    by_sign,
    mse_clip,
    non_negative,
    sawb_clip,
    signed,
    symmetric,
)
from fedjax_sim.tree import max_magnitude

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
    "stochastic_round",
    "symmetric",
]
