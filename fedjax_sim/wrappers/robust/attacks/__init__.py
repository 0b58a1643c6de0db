"""Attacks: wrappers of algorithms, and changes of attackers' data.

Attacks on uploads are applied last, after a robust rule:
``attacks.alie(robust.aggregate(fedavg(0.1), robust.median()), attackers)``.  All strengths may be
traced, so a sweep varies them in one program.
"""

from fedjax_sim.wrappers.robust.attacks.attackers import Attackers, random_clients, some_clients
from fedjax_sim.wrappers.robust.attacks.backdoor import Trigger, poison, triggered
from fedjax_sim.wrappers.robust.attacks.colluding import alie, inner_product
from fedjax_sim.wrappers.robust.attacks.labels import flip_labels
from fedjax_sim.wrappers.robust.attacks.mimic import MimicState, mimic
from fedjax_sim.wrappers.robust.attacks.own import (
    corrupted,
    gaussian,
    infinity,
    replacement_factor,
    scaling,
    sign_flip,
)

__all__ = [
    "Attackers",
    "MimicState",
    "Trigger",
    "alie",
    "corrupted",
    "flip_labels",
    "gaussian",
    "infinity",
    "inner_product",
    "mimic",
    "poison",
    "random_clients",
    "replacement_factor",
    "scaling",
    "sign_flip",
    "some_clients",
    "triggered",
]
