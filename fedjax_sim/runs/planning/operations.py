"""Floating-point operations of a program, with the bodies of its loops as often as they run."""

from collections.abc import Callable
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr, jaxpr_as_fun

from fedjax_sim.engine import inner_programs


def operations(function: Callable[..., Any], *arguments: Any) -> float:
    """Returns XLA's count before optimization, times the lengths of loops.

    XLA counts the body of a loop once.  Here it counts as often as it runs, if that is known before
    the run (``scan``, ``map``, ``fori_loop`` with concrete bounds); other loops count once.  Of
    branches the longest one counts.

    Example:
        >>> import jax.numpy as jnp
        >>> square = lambda x: jax.lax.scan(lambda y, _: (y @ x, None), x, length=5)[0]
        >>> round(operations(square, jnp.ones((10, 10))), -1)  # 5 products of 2 * 10^3
        10000.0
    """
    # A function of its own, since JAX keeps weak references, which NamedTuples do not have.
    program = jax.make_jaxpr(lambda *arguments: function(*arguments))(*arguments)
    return _once(program) + _repeated(program.jaxpr)


def _once(program: ClosedJaxpr) -> float:
    """Returns XLA's count, with the bodies of loops once."""
    shapes = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in program.in_avals]
    analysis = jax.jit(jaxpr_as_fun(program)).lower(*shapes).cost_analysis()
    return max(float((analysis or {}).get("flops", 0.0)), 0.0)


def _repeated(program: Jaxpr) -> float:
    """Returns the operations of all runs of loop bodies but the first."""
    total = 0.0
    for eqn in program.eqns:
        if eqn.primitive.name == "scan":
            body = eqn.params["jaxpr"]
            once = _once(body)
            total += eqn.params["length"] * (once + _repeated(body.jaxpr)) - once
            continue
        inner = [
            _repeated(part.jaxpr if isinstance(part, ClosedJaxpr) else part)
            for part in inner_programs(eqn.params)
        ]
        total += max(inner, default=0.0) if eqn.primitive.name == "cond" else sum(inner)
    return total
