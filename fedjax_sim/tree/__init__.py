"""Trees of arrays: arithmetic that :mod:`optax.tree` lacks, parts of models, means, bits, draws."""

from optax.tree import norm, zeros_like

from fedjax_sim.tree import leaves as leaves
from fedjax_sim.tree.arithmetic import (
    add,
    add_scale,
    all_finite,
    cast_like,
    check_alike,
    clip_factor,
    divide,
    over_norm,
    scale,
    sub,
    take,
    vdot,
    where,
    wide,
)

# For the other packages of this library.
from fedjax_sim.tree.counting import (
    bits_if_all_report,
    bits_of_arrays,
    computed_bits,
    message_bits,
    plain_bits,
    scalar_bits,
    upload_bits,
    with_further_bits,
    with_message_bits,
    with_upload_bits,
)
from fedjax_sim.tree.keys import fast, normal, usual
from fedjax_sim.tree.leaves import (
    OfModel,
    Path,
    Selection,
    Where,
    last_layer,
    names,
    normalisation,
    others,
)
from fedjax_sim.tree.means import (
    all_reduced,
    divide_or_keep,
    mean_from_sum,
    weighted,
    weighted_mean,
    weighted_sum,
)
from fedjax_sim.tree.repeated import Repeated, entries
from fedjax_sim.tree.svd import singular_values, thin_svd
from fedjax_sim.tree.units import in_units, max_magnitude, power_of_two_below, quotient, safe_norm

__all__ = [
    "add",
    "add_scale",
    "all_finite",
    "cast_like",
    "clip_factor",
    "divide",
    "norm",
    "over_norm",
    "scale",
    "sub",
    "take",
    "vdot",
    "where",
    "wide",
    "zeros_like",
]
