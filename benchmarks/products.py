"""Matrix products of training a model, and their speed without the rest."""

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.extend.core import jaxprs_in_params


class Product(NamedTuple):
    """``batch`` products ``[rows, inner] x [inner, columns]``."""

    batch: int
    rows: int
    inner: int
    columns: int

    @property
    def flops(self) -> float:
        """Multiply-add = 2."""
        return 2.0 * math.prod(self)


def products(apply: Callable, params: Any, x: Any) -> list[Product]:
    """Returns the products of a model's outputs, in order; a convolution is patches times kernels.

    The model's convolutions must be ``jax.lax.conv_general_dilated``, without groups.
    """
    return list(_within(jax.make_jaxpr(apply)(params, x).jaxpr))


def _within(jaxpr: Any) -> Iterator[Product]:
    for equation in jaxpr.eqns:
        shapes = [v.aval.shape for v in (*equation.invars, *equation.outvars)]
        if equation.primitive.name == "dot_general":
            (inner, _), (batch, _) = equation.params["dimension_numbers"]
            sizes = [math.prod(shapes[0][axis] for axis in axes) for axes in (batch, inner)]
            rows = math.prod(shapes[0]) // math.prod(sizes)
            columns = math.prod(shapes[2]) // (sizes[0] * rows)
            yield Product(sizes[0], rows, sizes[1], columns)
        elif equation.primitive.name == "conv_general_dilated":
            layout = equation.params["dimension_numbers"]
            outputs = shapes[1][layout.rhs_spec[0]]
            yield Product(
                1, math.prod(shapes[2]) // outputs, math.prod(shapes[1]) // outputs, outputs
            )
        times = equation.params["length"] if equation.primitive.name == "scan" else 1
        called_ones = list(jaxprs_in_params(equation.params))
        if equation.primitive.name == "cond":  # of a choice by platform the last one, the default
            called_ones = called_ones[-1:]
        for called in called_ones:
            yield from list(_within(called)) * times


def training_flops(found: Sequence[Product]) -> float:
    """Returns the arithmetic of a training step: each product forward, and for its two gradients.

    The first product has one gradient, since examples have none.
    """
    return 3 * sum(p.flops for p in found) - found[0].flops


def bare(found: Sequence[Product], clients: int) -> tuple[Callable[..., Array], Any]:
    """Returns a function of all products of a training step of ``clients``, and its arguments.

    Every product has a kernel and a gradient of its own, so that XLA merges none.
    """
    key = jax.random.key(0)

    def normal(number: int, *shape: int) -> Array:
        return jax.random.normal(jax.random.fold_in(key, number), shape)

    @functools.cache
    def examples(shape: tuple[int, ...]) -> Array:
        return normal(0, *shape)

    operands = []
    for number, (batch, rows, inner, columns) in enumerate(found):
        batch *= clients
        kernel = normal(2 * number + 1, batch, inner, columns)
        gradient = normal(2 * number + 2, batch, rows, columns)
        operands.append((examples((batch, rows, inner)), kernel, gradient))

    def all_products(operands: list[tuple[Array, Array, Array]]) -> Array:
        outputs = []
        for number, (x, kernel, gradient) in enumerate(operands):
            outputs.append(jnp.einsum("bri,bic->brc", x, kernel))
            outputs.append(jnp.einsum("bri,brc->bic", x, gradient))
            if number:
                outputs.append(jnp.einsum("brc,bic->bri", gradient, kernel))
        # Everything is computed, a number of each is looked at.
        outputs = lax.optimization_barrier(outputs)
        return jnp.stack([output[0, 0, 0] for output in outputs]).sum()

    return all_products, operands
