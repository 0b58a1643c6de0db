r"""PrivUnit: a local randomiser of pure epsilon that sends one random unit vector.

References:
    Bhowmick, Duchi, Freudiger, Kapoor, Rogers, "Protection Against Reconstruction and Its
        Applications in Private Federated Learning", 2018, https://arxiv.org/abs/1812.00984.
"""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fedjax_sim import tree
from fedjax_sim.checks import check_positive, import_extra, is_concrete
from fedjax_sim.types import Scalar, specified
from fedjax_sim.wrappers.privacy.randomizers import Randomizer, pure_epsilon, vector_randomizer

_NODES = 4097  # of the table of quantiles; cubic interpolation is then exact in single precision
_DEEPEST_DRAW = 37.0  # an exponential variate drawn with 52 bits stays below it
_SMALLEST_CAP = 1e-290  # whose inverse is representable
_INVALID = 700.0  # log of kappa where no bound holds; exp of it is representable
_FEWEST = 2  # entries of an upload: the sphere in one dimension has no caps


class PrivUnitConstants(NamedTuple):
    """Constants of PrivUnit for one dimension and one epsilon."""

    gamma: float  # height of the cap <V, v> >= gamma
    cap_probability: float  # p: the client sends a vector of the cap
    cap_mass: float  # 1 - I: share of the cap in the sphere
    kappa: float  # length of the vector that is sent, over the clip


@specified(static=["epsilon"])
def priv_unit(clip: Scalar, epsilon: float, *, tight: bool = False) -> Randomizer:
    r"""PrivUnit: sends a random vector of length :math:`C \kappa` with the upload as its mean.

    For an upload u of d entries, with :math:`v = u / \|u\|`, whose sign is flipped with probability
    :math:`\frac12 (1 - \|u\| / C)` if :math:`\|u\| < C`,

    .. math::
        V \sim \begin{cases}
            \text{uniform on } \{\langle V, v \rangle \ge \gamma\} & \text{with probability } p \\
            \text{uniform on } \{\langle V, v \rangle < \gamma\} & \text{otherwise}
        \end{cases}
        \qquad \text{the client sends } C \kappa V

    For :math:`\|u\| \le C` the mean is u and the expected squared error
    :math:`C^2 \kappa^2 - \|u\|^2`, which is :math:`C^2 (\kappa^2 - 1)` on the sphere of radius C.
    Longer uploads count as clipped to C; an upload of zeros, and one with NaN or Inf, as a uniform
    direction.

    Args:
        clip: C.
        epsilon: pure epsilon of one visit; concrete.
        tight: :func:`priv_unit_constants`.

    Raises:
        ValueError: a clip or an epsilon that is not positive, a traced epsilon; an upload of one
            entry, when the visit is traced.

    References:
        Bhowmick et al., 2018, Algorithm 1.

    Example:
        >>> randomizer = priv_unit(clip=1.0, epsilon=10.0)
        >>> sent = jax.jit(randomizer.through)(jax.random.key(0), {"w": jnp.eye(100)[0]})
        >>> round(float(jnp.linalg.norm(sent["w"])), 4)
        3.3357
    """
    check_positive(clip=clip)
    _check_epsilon(epsilon)
    epsilon = float(epsilon)

    def through(key: Array, x: Array) -> Array:
        return _draw(key, x, clip, epsilon, tight)

    return Randomizer(vector_randomizer(through), functools.partial(pure_epsilon, epsilon))


@functools.cache
def priv_unit_constants(
    dimension: int, epsilon: float, *, tight: bool = False
) -> PrivUnitConstants:
    r"""Returns the constants of PrivUnit with the smallest :math:`\kappa`, in double precision.

    With :math:`\alpha = (d - 1) / 2`, :math:`I = I_{(1 + \gamma) / 2}(\alpha, \alpha)`,

    .. math::
        p = \frac{1}{1 + e^{-(\varepsilon - \varepsilon_1(\gamma))}}, \qquad
        \frac1\kappa = \frac{(1 - \gamma^2)^\alpha}{2^{d - 2} (d - 1) B(\alpha, \alpha)}
            \Big( \frac{p}{1 - I} - \frac{1 - p}{I} \Big)

    The ratio of the densities inside and outside the cap is :math:`p I / ((1 - p)(1 - I))`, which
    is at most :math:`e^\varepsilon` if :math:`\varepsilon_1 \ge \ln \frac{I}{1 - I}`.

    Args:
        dimension: d.
        epsilon: pure epsilon of one visit.
        tight: False: :math:`\varepsilon_1` is the paper's upper bound, or
            :math:`\ln \frac{I}{1 - I}` where the paper's is smaller, as for large caps in two
            dimensions.  True: it is :math:`\ln \frac{I}{1 - I}` itself; kappa is then smaller at
            the same epsilon.

    Raises:
        ValueError: fewer than 2 dimensions, or an epsilon that is not positive or too small.

    Example:
        >>> paper = priv_unit_constants(1000, 10.0)
        >>> round(paper.gamma, 4), round(paper.kappa, 4)
        (0.0965, 10.3465)
        >>> priv_unit_constants(1000, 10.0, tight=True).kappa < paper.kappa
        True
    """
    if dimension < _FEWEST:
        raise ValueError(f"dimension is {dimension}; expected at least {_FEWEST} entries")
    _check_epsilon(epsilon)
    bounds = [_exact_epsilon_1] if tight else [_epsilon_1_of_large_caps, _epsilon_1_of_small_caps]
    candidates = [_smallest_kappa(dimension, epsilon, bound) for bound in bounds]
    best = min(candidates, key=lambda constants: constants.kappa)
    if not best.cap_probability > best.cap_mass:
        raise ValueError(
            f"epsilon is {epsilon:g}; expected a larger one for {dimension} entries: no cap of a "
            "representable height has it"
        )
    return best


def _smallest_kappa(dimension: int, epsilon: float, bound) -> PrivUnitConstants:
    """Minimises kappa where a bound of epsilon_1 is valid: on a grid, then around its best node."""

    expit = import_extra("scipy.special", "privacy").expit

    def log_kappa(gamma):
        p = expit(epsilon - bound(gamma, dimension))
        cap = _cap_mass(gamma, dimension)
        alpha = (dimension - 1) / 2
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = np.log(p / cap - (1 - p) / (1 - cap))
        scale = alpha * np.log1p(-gamma * gamma) - np.log(dimension - 1)
        valid = np.isfinite(ratio) & (cap > _SMALLEST_CAP)
        return np.where(valid, -(scale + _log_unit(dimension) + ratio), _INVALID)

    grid = np.geomspace(1e-4, 1, 2001)[:-1] / max(1.0, math.sqrt(dimension) / 40)
    nodes = np.concatenate([grid, np.linspace(grid[-1], 1, 2001)[1:-1]])
    best = int(np.argmin(log_kappa(nodes)))
    around = nodes[max(best - 1, 0)], nodes[min(best + 1, len(nodes) - 1)]
    result = import_extra("scipy.optimize", "privacy").minimize_scalar(
        log_kappa, bounds=around, method="bounded", options={"xatol": 1e-12}
    )
    gamma = float(result.x)
    p = float(expit(epsilon - bound(np.array(gamma), dimension)))
    cap = float(_cap_mass(gamma, dimension))
    return PrivUnitConstants(gamma, p, cap, float(np.exp(log_kappa(np.array(gamma)))))


def _epsilon_1_of_large_caps(gamma, dimension: int):
    alpha = (dimension - 1) / 2
    with np.errstate(divide="ignore"):
        value = np.log(dimension) / 2 + np.log(6) - alpha * np.log1p(-gamma * gamma)
        return np.where(gamma >= np.sqrt(2 / dimension), value + np.log(gamma), np.inf)


def _epsilon_1_of_small_caps(gamma, dimension: int):
    g = gamma * np.sqrt(2 * (dimension - 1) / np.pi)
    value = np.where(g < 1, 2 * np.arctanh(np.minimum(g, 1 - 1e-15)), np.inf)
    # On the circle the density of <V, v> is largest at its ends, and large caps exceed the bound.
    return np.maximum(value, _exact_epsilon_1(gamma, dimension))


def _exact_epsilon_1(gamma, dimension: int):
    cap = _cap_mass(gamma, dimension)
    with np.errstate(divide="ignore"):
        return np.log1p(-cap) - np.log(cap)


def _cap_mass(gamma, dimension: int):
    """Returns 1 - I, the share of the cap in the sphere."""
    alpha = (dimension - 1) / 2
    return import_extra("scipy.special", "privacy").betainc(alpha, alpha, (1 - gamma) / 2)


def _log_unit(dimension: int) -> float:
    """Returns the log of 1 / (2^(d - 2) B(alpha, alpha)), the density of <V, v> at 0."""
    alpha = (dimension - 1) / 2
    return -(dimension - 2) * math.log(2) - float(
        import_extra("scipy.special", "privacy").betaln(alpha, alpha)
    )


def _draw(key: Array, x: Array, clip: Scalar, epsilon: float, tight: bool) -> Array:
    """Returns the vector that is sent for an upload ``[d]``."""
    constants = priv_unit_constants(x.size, epsilon, tight=tight)
    keys = jax.random.split(key, 4)
    bound = jnp.asarray(clip, x.dtype)
    # The squares of small or large entries would underflow or overflow, and the length of what is
    # sent must not depend on x.
    some = tree.max_magnitude(x) >= jnp.finfo(x.dtype).tiny
    scaled, unit_length = tree.in_units(x)
    inverse = tree.over_norm(1.0, scaled)
    v = scaled * inverse
    # Drawn in single precision, so that runs in double precision see the same draws.
    coin, cap_coin = (jax.random.uniform(k, (), jnp.float32).astype(x.dtype) for k in keys[:2])
    norm_over_clip = unit_length / bound / inverse
    v = jnp.where(coin < (1 - norm_over_clip) / 2, -v, v)
    depth = jax.random.exponential(keys[2], (), jnp.float32).astype(x.dtype)
    height = _height(depth, cap_coin < constants.cap_probability, constants, x.size)
    normal = jax.random.normal(keys[3], x.shape, jnp.float32).astype(x.dtype)
    across = normal
    for _ in range(2):  # twice, since the first difference may be small
        across = across - jnp.vdot(across, v) * v
    unit = height * v + jnp.sqrt(1 - height**2) * across / jnp.linalg.norm(across)
    # Without a direction the result is uniform on the sphere, whatever the cap.
    unit = jnp.where(some, unit / jnp.linalg.norm(unit), normal / jnp.linalg.norm(normal))
    return bound * constants.kappa * unit


def _height(
    exponential: Array, in_cap: Array, constants: PrivUnitConstants, dimension: int
) -> Array:
    """Returns <V, v> of a vector of the cap, or of its complement, by inversion."""
    cap, rest = constants.cap_mass, 1 - constants.cap_mass
    values, slopes, width = _quantiles(dimension, _DEEPEST_DRAW - math.log(2 * cap))

    def quantile(depth: Array) -> Array:  # of P(<V, v> >= t) = exp(-depth) / 2, for depth >= 0
        place = depth / width
        node = jnp.clip(place.astype(jnp.int32), 0, _NODES - 2)
        s = place - node.astype(place.dtype)
        left, right = (jnp.asarray(values, s.dtype)[node + i] for i in (0, 1))
        rise = tuple(jnp.asarray(slopes, s.dtype)[node + i] * width for i in (0, 1))
        # Cubic Hermite interpolation.
        return (
            left
            + s * s * (3 - 2 * s) * (right - left)
            + s * (1 - s) * ((1 - s) * rise[0] - s * rise[1])
        )

    in_cap_depth = exponential - math.log(2 * cap)
    # Outside the cap the distribution function is rest * exp(-exponential).
    below = exponential - math.log(2 * rest)  # depth of the lower tail, if it is one
    above = -jnp.log(2 * (cap - rest * jnp.expm1(-exponential)))
    outside_depth = jnp.where(below >= 0, below, above)
    height = quantile(jnp.maximum(jnp.where(in_cap, in_cap_depth, outside_depth), 0))
    return jnp.where(~in_cap & (below >= 0), -height, height)


@functools.lru_cache(maxsize=32)
def _quantiles(dimension: int, deepest: float) -> tuple[np.ndarray, np.ndarray, float]:
    """Returns heights t with P(<V, v> >= t) = exp(-depth) / 2, their slopes, and the depths' step.

    ``<V, v>`` is 2 Beta(alpha, alpha) - 1 for a uniform V.
    """
    # On the host and in double precision, since JAX has no inverse of the incomplete beta function.
    alpha = (dimension - 1) / 2
    depths = np.linspace(0, deepest, _NODES)
    tails = np.exp(-depths) / 2
    x = import_extra("scipy.special", "privacy").betaincinv(alpha, alpha, tails)  # (1 - t) / 2
    with np.errstate(divide="ignore", invalid="ignore"):
        log_density = (alpha - 1) * np.log(4 * x * (1 - x)) + _log_unit(dimension)
        slopes = np.nan_to_num(np.exp(-depths - math.log(2) - log_density))
    return 1 - 2 * x, slopes, float(depths[1])


def _check_epsilon(epsilon: float) -> None:
    if not is_concrete(epsilon):
        raise ValueError(
            f"epsilon is {epsilon!r:.60}; expected a concrete number, since the cap of PrivUnit is "
            "chosen before compilation"
        )
    if not 0 < float(epsilon) < math.inf:
        raise ValueError(f"epsilon is {epsilon}; expected a positive number")
