"""Codecs, which reduce messages to few bits, and algorithms that communicate through codecs."""

from fedjax_sim.compression.channel import (
    coded_part,
    compressed,
    exact_bits,
    own_message,
    same_form,
    with_coded_part,
    zeros,
)
from fedjax_sim.compression.codec import (
    Codec,
    StatefulCodec,
    Unbiased,
    check_unbiased,
    code_bits,
    contractive,
    decoded,
    identity,
    stateful,
)
from fedjax_sim.compression.lattice import lattice
from fedjax_sim.compression.low_rank import gaussian_low_rank, power_sgd
from fedjax_sim.compression.quantizers import (
    Clip,
    by_sign,
    luq_gradient,
    mse_clip,
    signed,
    symmetric,
)
from fedjax_sim.compression.quantizers.rounding import bernoulli
from fedjax_sim.compression.scaled import luq_codec, qsgd, uniform
from fedjax_sim.compression.single_entries import natural, scaled_sign
from fedjax_sim.compression.sparsifiers import random_k, top_k

__all__ = [
    "Codec",
    "StatefulCodec",
    "Unbiased",
    "compressed",
    "contractive",
    "gaussian_low_rank",
    "identity",
    "lattice",
    "luq_codec",
    "natural",
    "own_message",
    "power_sgd",
    "qsgd",
    "random_k",
    "scaled_sign",
    "stateful",
    "top_k",
    "uniform",
    "zeros",
]
