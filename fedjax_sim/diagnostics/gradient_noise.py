"""Distributions of gradient noise, with samplers and quadrature rules."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import numpy as np
from jax import Array

from fedjax_sim.checks import check_count, check_positive
from fedjax_sim.types import shown

Sampler = Callable[[Array, tuple[int, ...]], Array]  # (key, shape) -> draws

_MOST_HERMITE = 300  # nodes; NumPy's weights of 400 are NaN
_TAIL = 8.5  # standard deviations; a Gaussian has mass 2e-17 beyond


@shown
class Noise(NamedTuple):
    """A symmetric distribution of gradient noise, with a quadrature rule and a sampler."""

    nodes: np.ndarray  # [Q]
    weights: np.ndarray  # [Q]: E h(xi) is about sum_q weights_q h(nodes_q)
    sample: Sampler
    variance: float


def gaussian(std: float, num_nodes: int = 24, panels: int | None = None) -> Noise:
    """Noise N(0, std^2).

    Args:
        std: standard deviation.
        num_nodes: number of nodes of Gauss-Hermite quadrature, or of Gauss-Legendre per panel.
        panels: number of panels on each side of 0. None selects Gauss-Hermite, which converges
            slowly for gradients with kinks.

    Raises:
        ValueError: a std that is not positive, counts below 1, more than 300 nodes without panels.

    Example:
        >>> noise = gaussian(0.1)
        >>> round(float(noise.weights @ noise.nodes**2), 9)
        0.01
    """
    check_positive(std=std)
    _check_counts(num_nodes, panels)
    if panels is None:
        if num_nodes > _MOST_HERMITE:
            raise ValueError(
                f"num_nodes is {num_nodes}; expected at most {_MOST_HERMITE} without panels, since "
                "further weights are beyond the smallest numbers"
            )
        nodes, weights = np.polynomial.hermite_e.hermegauss(num_nodes)
    else:
        nodes, weights = _composite(_TAIL, num_nodes, panels)
        weights = weights * np.exp(-(nodes**2) / 2)
    return Noise(nodes * std, weights / weights.sum(), _Gaussian(std), std**2)


def uniform(half_width: float, num_nodes: int = 24, panels: int | None = None) -> Noise:
    """Noise U[-w, w] with variance ``w^2 / 3``; see :func:`gaussian` for the arguments.

    Raises:
        ValueError: a half width that is not positive, counts below 1.

    Example:
        >>> noise = uniform(3.0)
        >>> noise.variance, round(float(noise.weights @ noise.nodes**2), 9)
        (3.0, 3.0)
    """
    check_positive(half_width=half_width)
    _check_counts(num_nodes, panels)
    if panels is None:
        nodes, weights = np.polynomial.legendre.leggauss(num_nodes)
    else:
        nodes, weights = _composite(1.0, num_nodes, panels)
    return Noise(
        nodes * half_width, weights / weights.sum(), _Uniform(half_width), half_width**2 / 3
    )


class _Gaussian(NamedTuple):
    std: float

    def __call__(self, key: Array, shape: tuple[int, ...]) -> Array:
        return self.std * jax.random.normal(key, shape)


class _Uniform(NamedTuple):
    half_width: float

    def __call__(self, key: Array, shape: tuple[int, ...]) -> Array:
        return jax.random.uniform(key, shape, minval=-self.half_width, maxval=self.half_width)


def _check_counts(num_nodes: int, panels: int | None) -> None:
    check_count(1, num_nodes=num_nodes)
    if panels is not None:
        check_count(1, panels=panels)


def _composite(width: float, num_nodes: int, panels: int) -> tuple[np.ndarray, np.ndarray]:
    """Gauss-Legendre rule on panels of [-width, width]; 0 is a boundary of two panels."""
    nodes, weights = np.polynomial.legendre.leggauss(num_nodes)
    edges = np.linspace(-width, width, 2 * panels + 1)
    half = width / (2 * panels)
    middles = (edges[1:] + edges[:-1]) / 2
    return (middles[:, None] + half * nodes).ravel(), np.tile(half * weights, 2 * panels)
