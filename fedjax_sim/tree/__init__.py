"""Trees of arrays: arithmetic that :mod:`optax.tree` lacks, parts of models, means, bits, draws."""

from optax.tree import add, norm, sub, zeros_like

from fedjax_sim.tree import leaves as leaves
from fedjax_sim.tree.arithmetic import (
    add_scale,
    all_finite,
    cast_like,
    divide,
    over_norm,
    scale,
    take,
    vdot,
    where,
    wide,
)

# For the other packages of this library.
from fedjax_sim.tree.counting import bits_if_all_report as bits_if_all_report
from fedjax_sim.tree.counting import bits_of_arrays as bits_of_arrays
from fedjax_sim.tree.counting import message_bits as message_bits
from fedjax_sim.tree.counting import plain_bits as plain_bits
from fedjax_sim.tree.counting import scalar_bits as scalar_bits
from fedjax_sim.tree.counting import upload_bits as upload_bits
from fedjax_sim.tree.counting import with_message_bits as with_message_bits
from fedjax_sim.tree.counting import with_upload_bits as with_upload_bits
from fedjax_sim.tree.keys import fast as fast
from fedjax_sim.tree.keys import usual as usual
from fedjax_sim.tree.leaves import OfModel as OfModel
from fedjax_sim.tree.leaves import Path as Path
from fedjax_sim.tree.leaves import Selection as Selection
from fedjax_sim.tree.leaves import Where as Where
from fedjax_sim.tree.leaves import last_layer as last_layer
from fedjax_sim.tree.leaves import names as names
from fedjax_sim.tree.leaves import normalisation as normalisation
from fedjax_sim.tree.leaves import others as others
from fedjax_sim.tree.means import all_reduced as all_reduced
from fedjax_sim.tree.means import mean_from_sum as mean_from_sum
from fedjax_sim.tree.means import weighted as weighted
from fedjax_sim.tree.means import weighted_mean as weighted_mean
from fedjax_sim.tree.means import weighted_sum as weighted_sum
from fedjax_sim.tree.noise import normal as normal
from fedjax_sim.tree.repeated import Repeated as Repeated
from fedjax_sim.tree.repeated import entries as entries
from fedjax_sim.tree.svd import singular_values as singular_values
from fedjax_sim.tree.svd import thin_svd as thin_svd

__all__ = [
    "add",
    "add_scale",
    "all_finite",
    "cast_like",
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
