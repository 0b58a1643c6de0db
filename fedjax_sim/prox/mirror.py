r"""Mirror maps: the geometry in which a composite method measures distances.

A distance-generating function h of one array has the methods ``value(x)``; ``to_dual(x)``, the
gradient of h; ``to_primal(y)``, the inverse of that gradient; and the map that all composite
methods use,

.. math:: \text{argmin}(\psi, y, c)
    = \operatorname{argmin}_x h(x) + c\,\psi(x) - \langle y, x\rangle,

in closed form, for the regularisers that have one. For a constraint this is the Bregman projection
of ``to_primal(y)``, for every c.

References:
    Beck and Teboulle, "Mirror Descent and Nonlinear Projected Subgradient Methods", 2003.
    Ghai, Hazan, Singer, "Exponentiated Gradient Meets Gradient Descent", 2020 (hypentropy).
    Yuan, Zaheer, Reddi, "Federated Composite Optimization", 2021.
"""

from __future__ import annotations

import dataclasses
from typing import Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fedjax_sim.checks import check_positive, is_concrete, least_entries
from fedjax_sim.prox.base import Regularizer, like, pytree, soft_threshold, times
from fedjax_sim.prox.constraints import Box, L1Ball, Simplex
from fedjax_sim.prox.penalties import L1, ElasticNet, SquaredL2, Zero
from fedjax_sim.types import Scalar


@runtime_checkable
class Mirror(Protocol):
    """A distance-generating function h of one array; theorems require it 1-strongly convex.

    Example:
        >>> mirror: Mirror = Entropy()
        >>> x = jnp.array([0.25, 0.75])
        >>> mirror.to_primal(mirror.to_dual(x)).tolist()
        [0.25, 0.75]
    """

    def value(self, x: Array) -> Array:
        """h(x)."""
        ...

    def to_dual(self, x: Array) -> Array:
        """The gradient of h."""
        ...

    def to_primal(self, y: Array) -> Array:
        """The gradient of the conjugate of h, the inverse of ``to_dual``."""
        ...

    def argmin(self, psi: Regularizer, y: Array, c: Scalar) -> Array:
        """The minimiser of ``h + c psi - <y, .>``; raises ValueError without a closed form."""
        ...


def divergence(mirror: Mirror, x: Array, z: Array) -> Array:
    r"""The Bregman divergence :math:`h(x) - h(z) - \langle \nabla h(z), x - z \rangle`.

    Example:
        >>> float(divergence(Euclidean(), jnp.array([3.0]), jnp.array([1.0])))
        2.0
    """
    return mirror.value(x) - mirror.value(z) - jnp.vdot(mirror.to_dual(z), x - z)


@pytree
@dataclasses.dataclass(frozen=True)
class Euclidean:
    r""":math:`h(x) = \|x\|_2^2 / 2`: primal and dual are equal, and argmin is the prox of psi.

    Example:
        >>> Euclidean().argmin(L1(1.0), jnp.array([3.0, 0.5]), 1.0).tolist()
        [2.0, 0.0]
    """

    def value(self, x: Array) -> Array:
        return jnp.sum(x**2) / 2

    def to_dual(self, x: Array) -> Array:
        return x

    def to_primal(self, y: Array) -> Array:
        return y

    def argmin(self, psi: Regularizer, y: Array, c: Scalar) -> Array:
        return psi.prox(y, c)


@pytree
@dataclasses.dataclass(frozen=True)
class Weighted:
    r""":math:`h(x) = \tfrac12 \sum_i a_i x_i^2`, ``scales`` being a.

    Raises:
        ValueError: scales that are not positive.

    Example:
        >>> Weighted(jnp.array([1.0, 4.0])).argmin(L1(1.0), jnp.array([3.0, 3.0]), 1.0).tolist()
        [2.0, 0.5]
    """

    scales: Array

    def __post_init__(self) -> None:
        check_positive(**least_entries(scales=self.scales))

    def value(self, x: Array) -> Array:
        return jnp.sum(like(x, self.scales) * x**2) / 2

    def to_dual(self, x: Array) -> Array:
        return like(x, self.scales) * x

    def to_primal(self, y: Array) -> Array:
        return y / like(y, self.scales)

    def argmin(self, psi: Regularizer, y: Array, c: Scalar) -> Array:
        match psi:
            case SquaredL2(weight):
                return y / (like(y, self.scales) + 2 * times(y, c, weight))
            case ElasticNet(l1, l2):
                return self.argmin(SquaredL2(l2), soft_threshold(y, times(y, c, l1)), c)
            case _:
                return _separable(self, psi, y, c)


@pytree
@dataclasses.dataclass(frozen=True)
class Entropy:
    r""":math:`h(x) = \sum_i x_i \log x_i - x_i` for positive x; gives multiplicative updates.

    1-strongly convex in the l1 norm on the simplex. An entry of 0 is replaced by the smallest
    positive number.

    Example:
        >>> Entropy().argmin(Simplex(), jnp.zeros(4), 0.0).tolist()
        [0.25, 0.25, 0.25, 0.25]
    """

    def value(self, x: Array) -> Array:
        return jnp.sum(x * self.to_dual(x) - x)

    def to_dual(self, x: Array) -> Array:
        return jnp.log(jnp.maximum(x, jnp.finfo(x.dtype).tiny))

    def to_primal(self, y: Array) -> Array:
        return jnp.exp(y)

    def argmin(self, psi: Regularizer, y: Array, c: Scalar) -> Array:
        match psi:
            case L1(weight):  # x is positive, so its l1 norm is its sum
                return jnp.exp(y - times(y, c, weight))
            case Simplex(total):
                return _on_simplex(y, total)
            case L1Ball(radius):
                inside = jax.nn.logsumexp(y) <= jnp.log(like(y, radius))
                return jnp.where(inside, jnp.exp(jnp.where(inside, y, 0)), _on_simplex(y, radius))
            case _:
                return _separable(self, psi, y, c)


@pytree
@dataclasses.dataclass(frozen=True)
class PNorm:
    r""":math:`h(x) = \frac{1}{2 (p - 1)} \|x\|_p^2`, 1-strongly convex in the p-norm.

    .. math:: \nabla h(x)_i = \operatorname{sign}(x_i) |x_i|^{p-1} \|x\|_p^{2-p} / (p - 1)

    p = 1 + 1 / log d suits sparse x with d entries.

    Raises:
        ValueError: p outside (1, 2].

    Example:
        >>> PNorm(2.0).argmin(L1(1.0), jnp.array([3.0, -0.5]), 1.0).tolist()
        [2.0, 0.0]
    """

    p: Scalar

    def __post_init__(self) -> None:
        if is_concrete(self.p) and not np.all((np.asarray(self.p) > 1) & (np.asarray(self.p) <= 2)):
            raise ValueError(f"p is {self.p}; expected a number above 1, at most 2")

    def value(self, x: Array) -> Array:
        p = like(x, self.p)
        return _norm(x, p) ** 2 / (2 * (p - 1))

    def to_dual(self, x: Array) -> Array:
        p = like(x, self.p)
        return _norm_gradient(x, p) / (p - 1)

    def to_primal(self, y: Array) -> Array:
        p = like(y, self.p)
        return (p - 1) * _norm_gradient(y, p / (p - 1))

    def argmin(self, psi: Regularizer, y: Array, c: Scalar) -> Array:
        match psi:
            case Zero():
                return self.to_primal(y)
            case L1(weight):  # the gradient of h preserves signs and zeros
                return self.to_primal(soft_threshold(y, times(y, c, weight)))
            case _:
                raise _no_closed_form(self, psi)


@pytree
@dataclasses.dataclass(frozen=True)
class Hypentropy:
    r""":math:`h(x) = \sum_i x_i \operatorname{arsinh}(x_i / b) - \sqrt{x_i^2 + b^2}`.

    For small b it behaves as the entropy, with both signs; for large b as the Euclidean map, up to
    a scale.

    Raises:
        ValueError: b that is not positive.

    Example:
        >>> Hypentropy(0.1).argmin(L1(1.0), jnp.array([0.5, -0.5]), 1.0).tolist()
        [0.0, 0.0]
    """

    b: Scalar

    def __post_init__(self) -> None:
        check_positive(**least_entries(b=self.b))

    def value(self, x: Array) -> Array:
        b = like(x, self.b)
        return jnp.sum(x * jnp.arcsinh(x / b) - jnp.sqrt(x**2 + b**2))

    def to_dual(self, x: Array) -> Array:
        return jnp.arcsinh(x / like(x, self.b))

    def to_primal(self, y: Array) -> Array:
        return like(y, self.b) * jnp.sinh(y)

    def argmin(self, psi: Regularizer, y: Array, c: Scalar) -> Array:
        return _separable(self, psi, y, c)


def _separable(mirror: Mirror, psi: Regularizer, y: Array, c: Scalar) -> Array:
    """argmin for an h that is a sum over entries, with derivatives of the entries' signs."""
    match psi:
        case Zero():
            return mirror.to_primal(y)
        case L1(weight):
            return mirror.to_primal(soft_threshold(y, times(y, c, weight)))
        case Box():  # h is convex in every entry: the minimiser is the nearest feasible value
            return psi.prox(mirror.to_primal(y), c)
        case _:
            raise _no_closed_form(mirror, psi)


def _no_closed_form(mirror: Mirror, psi: Regularizer) -> ValueError:
    return ValueError(
        f"psi is {type(psi).__name__}, mirror {type(mirror).__name__}; expected a pair with a "
        "closed form, such as Euclidean with any regulariser"
    )


def _on_simplex(y: Array, total: Scalar) -> Array:
    return like(y, total) * jax.nn.softmax(y.ravel()).reshape(y.shape)


def _norm(x: Array, p: Array) -> Array:
    """The p-norm without overflow; 0 at 0."""
    largest = jnp.max(jnp.abs(x))
    scale = jnp.where(largest > 0, largest, 1)
    return scale * _power(jnp.sum(_power(jnp.abs(x) / scale, p)), 1 / p)


def _norm_gradient(x: Array, p: Array) -> Array:
    """The gradient of half the squared p-norm; 0 at 0."""
    norm = _norm(x, p)
    safe = jnp.where(norm > 0, norm, 1)
    return jnp.sign(x) * _power(jnp.abs(x) / safe, p - 1) * norm


def _power(x: Array, p: Array) -> Array:
    """x^p of non-negative x, with finite derivatives at 0."""
    positive = x > 0
    return jnp.where(positive, jnp.where(positive, x, 1) ** p, 0)
