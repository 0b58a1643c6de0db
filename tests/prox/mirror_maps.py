"""Mirror maps with their functions in NumPy, and with which regularisers they have closed forms."""

import hypothesis.extra.numpy
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from proximal_points import BOUND
from small_problems import compiled

from fedjax_sim import prox

DIM = 4
SCALES = np.array([0.5, 1.0, 2.0, 4.0])


def p_norm(x, p):
    return np.sum(np.abs(x) ** p) ** (1 / p)


# Each with h.
MIRRORS = {
    "euclidean": (prox.Euclidean(), lambda x: np.sum(x**2) / 2),
    "weighted": (prox.Weighted(jnp.asarray(SCALES, jnp.float32)), lambda x: SCALES @ x**2 / 2),
    "entropy": (prox.Entropy(), lambda x: np.sum(x * np.log(x) - x)),
    "p_norm": (prox.PNorm(1.3), lambda x: p_norm(x, 1.3) ** 2 / 0.6),
    "hypentropy": (
        prox.Hypentropy(0.2),
        lambda x: np.sum(x * np.arcsinh(x / 0.2) - np.sqrt(x**2 + 0.04)),
    ),
}
every_mirror = pytest.mark.parametrize("name", MIRRORS)

# With which of the regularisers that take points of any shape.
CLOSED = {
    "euclidean": "zero l1 squared_l2 elastic_net linf l1_ball l2_ball simplex box orthant".split(),
    "weighted": ["zero", "l1", "squared_l2", "elastic_net", "box", "orthant"],
    "entropy": ["zero", "l1", "l1_ball", "simplex", "box", "orthant"],
    "p_norm": ["zero", "l1"],
    "hypentropy": ["zero", "l1", "box", "orthant"],
}


def inner(name="", seed=0, scale=1.0):
    """A point at which h has a derivative."""
    x = scale * np.random.default_rng(seed).normal(size=DIM)
    return np.abs(x) if name == "entropy" else x


POSITIVE = hypothesis.extra.numpy.arrays(np.float64, DIM, elements=st.floats(1e-3, BOUND))
SIGNED = hypothesis.extra.numpy.arrays(
    np.float64,
    DIM,
    elements=st.sampled_from([0.0, 1.0, -1.0]) | st.floats(-4.0, 4.0, allow_subnormal=False),
)
to_dual = compiled(lambda mirror, x: mirror.to_dual(x))
to_primal = compiled(lambda mirror, y: mirror.to_primal(y))
argmin = compiled(lambda mirror, psi, y, c: mirror.argmin(psi, y, c))
divergence = compiled(prox.divergence)


def double(function, *args):
    """In double precision, arrays included: hypothesis has no use for fixtures."""
    with jax.enable_x64(True):
        return np.asarray(function(*args))
