"""FedAvg with compressed uploads: the methods of the comparison and the bits of their uploads."""

from collections.abc import Callable
from typing import Any

import fedjax_sim as fs

KEEP = 0.02  # fraction of the entries that the sparse codecs send
OMEGA = 1 / KEEP - 1
SHARE = 1 / (1 + OMEGA)  # DIANA's alpha, MARINA's p

Method = Callable[[fs.FedAlgorithm], fs.FedAlgorithm]
METHODS: dict[str, Method] = {
    "FedAvg": lambda plain: plain,
    "top-k": lambda plain: fs.compressed(
        plain, fs.compression.top_k(KEEP), near=fs.compression.zeros
    ),
    "top-k, EF14": lambda plain: fs.ef14(plain, fs.compression.top_k(KEEP)),
    "top-k, EF21": lambda plain: fs.ef21(plain, fs.compression.top_k(KEEP)),
    "random k": lambda plain: fs.compressed(
        plain, fs.compression.random_k(KEEP), near=fs.compression.zeros
    ),
    "random k, DIANA": lambda plain: fs.diana(plain, fs.compression.random_k(KEEP), SHARE),
    "random k, MARINA": lambda plain: fs.marina(plain, fs.compression.random_k(KEEP), SHARE),
    "sign": lambda plain: fs.compressed(
        plain, fs.compression.scaled_sign(), near=fs.compression.zeros
    ),
    "sign, EF14": lambda plain: fs.ef14(plain, fs.compression.scaled_sign()),
    "sign, EF21": lambda plain: fs.ef21(plain, fs.compression.scaled_sign()),
    "PowerSGD, EF14": lambda plain: fs.ef14(plain, fs.compression.power_sgd(rank=1)),
}


def upload_bits(params: Any) -> dict[str, float]:
    """Bits of an upload by method, expected ones for MARINA."""
    sizes = {
        "top-k": fs.compression.top_k(KEEP), "random k": fs.compression.random_k(KEEP),
        "sign": fs.compression.scaled_sign(),
        "PowerSGD": fs.compression.power_sgd(rank=1), "FedAvg": fs.compression.identity(),
    }  # fmt: skip
    bits = {name: float(sizes[name.partition(",")[0]].bits(params)) for name in METHODS}
    whole, sparse = bits["FedAvg"], bits["random k"]
    bits["random k, MARINA"] = float(fs.theory.compression.marina_bits(whole, sparse, SHARE))
    return bits
