"""Regularisers with independent formulas, in NumPy and in exact arithmetic."""

from collections.abc import Callable
from typing import Any, NamedTuple

import hypothesis.extra.numpy
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
from small_problems import compiled

from fedjax_sim import prox

SHAPE = (3, 2)
ROWS = np.array([[0, 0], [1, 1], [2, 2]])
COLUMNS = np.array([[0, 1], [0, 1], [0, 1]])
LABELS = np.array([[0, 5], [5, 0], [0, 2]])  # groups of three, two and one entries
BOUND = 10.0
EPS = np.finfo(np.float64).eps
# A handful of roundings of inner products of two arrays of 6 entries up to 10.
ROUNDING = 20 * EPS * 6 * BOUND**2

# Zeros and ties are where the formulas have branches.
# XLA replaces subnormal numbers by 0.
ENTRIES = st.sampled_from([0.0, 0.5, -0.5, 1.0, -1.0, 3.0]) | st.floats(
    -BOUND, BOUND, allow_subnormal=False
)
POINTS = hypothesis.extra.numpy.arrays(np.float64, SHAPE, elements=ENTRIES)
STEPS = st.sampled_from([0.0, 1.0]) | st.floats(1e-3, 5.0)


def random_point(seed=0, scale=1.0):
    return scale * np.random.default_rng(seed).normal(size=SHAPE)


class Known(NamedTuple):
    r"""A penalty that is ``weight`` times a norm plus ``square`` times :math:`\|x\|_2^2`."""

    psi: Any
    weight: float
    norm: Callable[[np.ndarray], float]
    dual: Callable[[np.ndarray], float]
    square: float = 0.0

    def value(self, x):
        return self.weight * self.norm(x) + self.square * np.sum(x**2)

    def violation(self, g, x, c=1.0):
        r"""Distance of g from the subdifferential of c psi at x.

        g is a subgradient of a norm at x if and only if it is in the ball of the dual norm and
        :math:`\langle g, x \rangle = \|x\|`.
        """
        g = g - 2 * c * self.square * x
        weight = c * self.weight
        return max(self.dual(g) - weight, abs(np.vdot(g, x) - weight * self.norm(x)))


def absolute_sum(x):
    return np.sum(np.abs(x))


def largest(x):
    return np.max(np.abs(x))


def singular_values(x):
    return np.linalg.svd(x, compute_uv=False)


def grouped(psi, labels):
    def norms(x):
        return [np.linalg.norm(x[labels == g]) for g in np.unique(labels)]

    return Known(psi, 0.7, lambda x: np.sum(norms(x)), lambda x: np.max(norms(x)))


PENALTIES = {
    "zero": Known(prox.Zero(), 0.0, absolute_sum, largest),
    "l1": Known(prox.L1(0.7), 0.7, absolute_sum, largest),
    "squared_l2": Known(prox.SquaredL2(0.7), 0.0, absolute_sum, largest, 0.7),
    "elastic_net": Known(prox.ElasticNet(0.7, 0.4), 0.7, absolute_sum, largest, 0.4),
    "rows": grouped(prox.GroupL1(0.7), ROWS),
    "columns": grouped(prox.GroupL1(0.7, axis=-1), COLUMNS),
    "labels": grouped(prox.GroupL1(0.7, labels=jnp.asarray(LABELS, jnp.int32)), LABELS),
    "linf": Known(prox.LInf(0.7), 0.7, largest, absolute_sum),
    "nuclear": Known(
        prox.Nuclear(0.7),
        0.7,
        lambda x: np.sum(singular_values(x)),
        lambda x: np.max(singular_values(x)),
    ),
}

CONSTRAINTS = {
    "l1_ball": prox.L1Ball(1.3),
    "point": prox.L1Ball(0.0),
    "l2_ball": prox.L2Ball(1.3),
    "box": prox.Box(-0.4, 0.9),
    "orthant": prox.Box(0.0),
    "simplex": prox.Simplex(1.3),
}

REGULARIZERS = {name: known.psi for name, known in PENALTIES.items()} | CONSTRAINTS


def outputs(psi, v, c):
    """The prox, the value and, for penalties, the subgradient."""
    results = [psi.prox(v, c), psi.value(v)]
    return [*results, psi.subgradient(v)] if isinstance(psi, prox.Penalty) else results


# One program per class, shape and dtype; all tests share it.
program = compiled(outputs)


def outputs_in_double(psi, v, c):
    """The outputs in double precision, for tests with hypothesis, which cannot use fixtures."""
    with jax.enable_x64(True):
        return [np.asarray(x) for x in program(psi, jnp.asarray(v, jnp.float64), c)]


def in_double(psi, v, c):
    """The prox in double precision."""
    return outputs_in_double(psi, v, c)[0]


def support(psi, g):
    """Largest inner product of g with a point of the set."""
    match psi:
        case prox.L1Ball(radius):
            return radius * largest(g)
        case prox.L2Ball(radius):
            return radius * np.linalg.norm(g)
        case prox.Simplex(total):
            return total * np.max(g)
        case prox.Box(low, high):
            bound = np.where(g > 0, high, np.where(g < 0, low, 0.0))
            return np.sum(g * bound)
    raise AssertionError(psi)


UNIT = 2**1100  # its product with any double-precision number is an integer


def exactly(number):
    numerator, denominator = float(number).as_integer_ratio()
    return numerator * (UNIT // denominator)


def exact_above_level(v, total):
    """max(v - theta, 0) that sums to the total, by sorting, with integers and one rounding.

    theta is the excess of the sum of the largest entries over the total, divided by their number;
    they are the entries that exceed theta.
    """
    v, total = [exactly(entry) for entry in v], exactly(total)
    partial, excess, size = 0, max(v) - total, 1
    for count, entry in enumerate(sorted(v, reverse=True), 1):
        partial += entry
        if entry * count <= partial - total:
            break
        excess, size = partial - total, count
    # The division of integers rounds correctly.
    return np.array([max(entry * size - excess, 0) / (UNIT * size) for entry in v])


def exact_l1_ball(v, radius):
    if sum(exactly(abs(entry)) for entry in v) <= exactly(radius):
        return np.asarray(v, np.float64)
    return np.sign(v) * exact_above_level(np.abs(v), radius)


def numbers(psi):
    """The numbers of a regulariser as a list, and a function that replaces them."""
    leaves, treedef = jax.tree.flatten(psi)
    chosen = [i for i, leaf in enumerate(leaves) if np.asarray(leaf).dtype.kind == "f"]

    def rebuild(values):
        new = dict(zip(chosen, values, strict=True))
        return jax.tree.unflatten(treedef, [new.get(i, leaf) for i, leaf in enumerate(leaves)])

    return [leaves[i] for i in chosen], rebuild


def stacked(psi, factors):
    """Regularisers with scaled numbers, one per factor, and all of them as a batch."""
    values, rebuild = numbers(psi)
    each = [rebuild([factor * value for value in values]) for factor in factors]
    return each, jax.tree.map(lambda *leaves: jnp.stack([jnp.asarray(x) for x in leaves]), *each)


def central_difference(function, x, step=1e-6):
    """Gradient of a scalar function of one array, with error O(step^2) and rounding / step."""
    x = np.asarray(x, np.float64)
    result = np.zeros_like(x)
    for index in np.ndindex(x.shape):
        unit = np.zeros_like(x)
        unit[index] = step
        result[index] = (float(function(x + unit)) - float(function(x - unit))) / (2 * step)
    return result
