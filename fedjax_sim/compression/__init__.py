"""Codecs, which reduce messages to few bits, and algorithms that communicate through codecs."""

from fedjax_sim.compression.channel import compressed, own_message, zeros
from fedjax_sim.compression.codec import Codec, identity
from fedjax_sim.compression.lattice import lattice, lattice_decode, lattice_encode
from fedjax_sim.compression.scaled import luq_codec, qsgd, uniform

__all__ = [
    "Codec",
    "compressed",
    "identity",
    "lattice",
    "lattice_decode",
    "lattice_encode",
    "luq_codec",
    "own_message",
    "qsgd",
    "uniform",
    "zeros",
]
