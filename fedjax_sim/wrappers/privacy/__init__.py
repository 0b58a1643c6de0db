"""Differential privacy of clients: clipping, noise at the server, and accounting."""

from fedjax_sim.wrappers.privacy.accounting import (
    Guarantee,
    epsilon,
    epsilon_per_round,
    noise_multiplier,
)
from fedjax_sim.wrappers.privacy.adaptive import adaptive_clip
from fedjax_sim.wrappers.privacy.banded import amplified_banded, banded, banded_coefficients
from fedjax_sim.wrappers.privacy.central import privatize
from fedjax_sim.wrappers.privacy.events import Mechanism
from fedjax_sim.wrappers.privacy.noise import NoiseLaw, independent
from fedjax_sim.wrappers.privacy.noise_cohort import NoiseCohort, noise_cohort
from fedjax_sim.wrappers.privacy.priv_unit import priv_unit, priv_unit_constants
from fedjax_sim.wrappers.privacy.randomizers import (
    Randomizer,
    local_gaussian,
    local_guarantee,
    local_noise_multiplier,
    randomize_uploads,
)
from fedjax_sim.wrappers.privacy.tree_aggregation import tree_aggregation

__all__ = [
    "Guarantee",
    "Mechanism",
    "NoiseCohort",
    "NoiseLaw",
    "Randomizer",
    "adaptive_clip",
    "amplified_banded",
    "banded",
    "banded_coefficients",
    "epsilon",
    "epsilon_per_round",
    "independent",
    "local_gaussian",
    "local_guarantee",
    "local_noise_multiplier",
    "noise_cohort",
    "noise_multiplier",
    "priv_unit",
    "priv_unit_constants",
    "privatize",
    "randomize_uploads",
    "tree_aggregation",
]
