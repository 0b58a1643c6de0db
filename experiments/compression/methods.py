"""FedAvg with compressed uploads: the methods of the comparison and the bits of their uploads."""

from collections.abc import Callable
from typing import Any

import fedjax_sim as fs
from fedjax_sim.compression import identity, power_sgd, random_k, scaled_sign, top_k
from fedjax_sim.theory import compression as theory

KEEP = 0.02  # fraction of the entries that the sparse codecs send
OMEGA = 1 / KEEP - 1
SHARE = 1 / (1 + OMEGA)  # DIANA's alpha, MARINA's p

Method = Callable[[fs.FedAlgorithm], fs.FedAlgorithm]
METHODS: dict[str, Method] = {
    "FedAvg": lambda plain: plain,
    "top-k": lambda plain: fs.compressed(plain, top_k(KEEP), near=fs.compression.zeros),
    "top-k, EF14": lambda plain: fs.ef14(plain, top_k(KEEP)),
    "top-k, EF21": lambda plain: fs.ef21(plain, top_k(KEEP)),
    "random k": lambda plain: fs.compressed(plain, random_k(KEEP), near=fs.compression.zeros),
    "random k, DIANA": lambda plain: fs.diana(plain, random_k(KEEP), SHARE),
    "random k, MARINA": lambda plain: fs.marina(plain, random_k(KEEP), SHARE),
    "sign": lambda plain: fs.compressed(plain, scaled_sign(), near=fs.compression.zeros),
    "sign, EF14": lambda plain: fs.ef14(plain, scaled_sign()),
    "sign, EF21": lambda plain: fs.ef21(plain, scaled_sign()),
    "PowerSGD, EF14": lambda plain: fs.ef14(plain, power_sgd(rank=1)),
}


def upload_bits(params: Any) -> dict[str, float]:
    """Bits of an upload by method, expected ones for MARINA."""
    sizes = {
        "top-k": top_k(KEEP), "random k": random_k(KEEP), "sign": scaled_sign(),
        "PowerSGD": power_sgd(rank=1), "FedAvg": identity(),
    }  # fmt: skip
    bits = {name: float(sizes[name.partition(",")[0]].bits(params)) for name in METHODS}
    whole, sparse = bits["FedAvg"], bits["random k"]
    bits["random k, MARINA"] = float(theory.marina_bits(whole, sparse, SHARE))
    return bits
