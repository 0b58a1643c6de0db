"""Proofs that a function is constant or affine, from its jaxpr.

Every value of the program has a level: constant, affine in the argument, or neither.  An operation
on values that are not constant keeps the level "affine" only if it is on one of the lists below, so
an unknown operation proves nothing.  Derivatives are no such proof: the slopes of ``abs`` and
``relu`` are constant where they exist.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal

from fedjax_sim.types import PyTree

_CONSTANT, _AFFINE, _NEITHER = range(3)

_LINEAR = frozenset(
    {
        "add", "add_any", "broadcast_in_dim", "concatenate", "copy", "copy_p", "cumsum", "neg",
        "optimization_barrier", "pad", "reduce_sum", "reduce_window_sum", "reshape", "rev",
        "sharding_constraint", "slice", "split", "squeeze", "stack", "sub", "transpose", "unstack",
    }
)  # fmt: skip
"""Linear in all arguments together."""

_BILINEAR = frozenset({"mul", "dot_general", "conv_general_dilated"})
"""Linear in one argument if the others are constant."""

_LINEAR_IN_FIRST = {"div": 1, "gather": 1, "dynamic_slice": 1, "dynamic_update_slice": 2}
"""Linear in the first arguments, as many as given here, if the others are constant."""

_SCATTERS = frozenset({"scatter", "scatter-add", "scatter-sub"})
"""Linear in the operand and the updates if the indices, which are between them, are constant."""

_CALLS = {
    "jit": "jaxpr", "remat2": "jaxpr", "closed_call": "call_jaxpr",
    "custom_jvp_call": "call_jaxpr", "custom_vjp_call": "call_jaxpr",
}  # fmt: skip
"""Calls of one program with the same arguments, and the parameter that holds it."""


def is_constant(function: Callable[..., PyTree], argument: PyTree, *rest: PyTree) -> bool:
    """Returns True for a function proven not to depend on its first argument.

    Example:
        >>> slope = jax.grad(lambda x: 3 * x)
        >>> is_constant(slope, 1.0), is_constant(lambda x, y: x * y, 1.0, 2.0)
        (True, False)
    """
    return _level(function, argument, rest) == _CONSTANT


def is_affine(function: Callable[..., PyTree], argument: PyTree, *rest: PyTree) -> bool:
    """Returns True for a function proven to be affine in its first argument."""
    return _level(function, argument, rest) <= _AFFINE


def _level(function: Callable[..., PyTree], argument: PyTree, rest: tuple[PyTree, ...]) -> int:
    """Returns the highest level of a function's outputs; only its program is traced."""
    program = jax.make_jaxpr(function)(argument, *rest)
    marked = len(jax.tree.leaves(argument))
    unmarked = len(program.jaxpr.invars) - marked
    levels = _levels(program, [_AFFINE] * marked + [_CONSTANT] * unmarked)
    return max(levels, default=_CONSTANT)


def _levels(program: ClosedJaxpr | Jaxpr, inputs: Sequence[int]) -> list[int]:
    """Levels of a program's outputs."""
    jaxpr = _open(program)
    if any(equation.effects for equation in jaxpr.eqns):  # values may pass through references
        return [_NEITHER] * len(jaxpr.outvars)
    levels: dict[Any, int] = dict.fromkeys(jaxpr.constvars, _CONSTANT)
    levels |= dict(zip(jaxpr.invars, inputs, strict=True))

    def read(variables: Sequence[Any]) -> list[int]:
        return [_CONSTANT if isinstance(v, Literal) else levels[v] for v in variables]

    for equation in jaxpr.eqns:
        levels |= zip(equation.outvars, _outputs(equation, read(equation.invars)), strict=True)
    return read(jaxpr.outvars)


def _outputs(equation: JaxprEqn, inputs: list[int]) -> list[int]:
    """Levels of an operation's outputs."""
    name, params = equation.primitive.name, equation.params
    if max(inputs, default=_CONSTANT) == _CONSTANT:
        return [_CONSTANT] * len(equation.outvars)
    if name in _CALLS:
        return _levels(params[_CALLS[name]], inputs)
    if name == "cond":
        branches = [_levels(branch, inputs[1:]) for branch in params["branches"]]
        return [_if_constant(inputs[:1], max(levels)) for levels in zip(*branches, strict=True)]
    if name == "scan":
        return _scan(equation, inputs)
    if name == "while":
        condition, body = params["cond_nconsts"], params["body_nconsts"]
        carry = _loop(params["body_jaxpr"], inputs[condition:], body, len(equation.outvars))
        stops = _levels(params["cond_jaxpr"], [*inputs[:condition], *carry])
        return [_if_constant(stops, level) for level in carry]
    return [_single(equation, inputs)] * len(equation.outvars)


def _scan(equation: JaxprEqn, inputs: list[int]) -> list[int]:
    """Levels of a scan's outputs.

    Versions of JAX store the numbers of its constants and carried values under different names, so
    they are counted: the body has one axis less of what is scanned and of what is stacked.
    """
    body = _open(equation.params["jaxpr"])
    scanned = _with_more_axes(equation.invars, body.invars)
    carried = len(equation.outvars) - _with_more_axes(equation.outvars, body.outvars)
    return _loop(body, inputs, len(inputs) - scanned - carried, carried)


def _with_more_axes(outer: Sequence[Any], inner: Sequence[Any]) -> int:
    pairs = zip(outer, inner, strict=True)
    return sum(len(one.aval.shape) > len(other.aval.shape) for one, other in pairs)


def _open(program: ClosedJaxpr | Jaxpr) -> Jaxpr:
    return program.jaxpr if isinstance(program, ClosedJaxpr) else program


def _loop(
    body: ClosedJaxpr | Jaxpr, inputs: list[int], num_consts: int, num_carry: int
) -> list[int]:
    """Levels of a loop's outputs: those of the carry only rise, until they repeat."""
    consts, carry = inputs[:num_consts], inputs[num_consts : num_consts + num_carry]
    rest = inputs[num_consts + num_carry :]
    while True:
        outputs = _levels(body, [*consts, *carry, *rest])
        raised = [max(pair) for pair in zip(carry, outputs[:num_carry], strict=True)]
        if raised == carry:
            return [*carry, *outputs[num_carry:]]
        carry = raised


def _single(equation: JaxprEqn, inputs: list[int]) -> int:
    """Level of the outputs of an operation without programs of its own."""
    name, level = equation.primitive.name, max(inputs)
    if name in _LINEAR:
        return level
    if name in _BILINEAR:
        return level if sum(x > _CONSTANT for x in inputs) == 1 else _NEITHER
    if name in _LINEAR_IN_FIRST:
        return _if_constant(inputs[_LINEAR_IN_FIRST[name] :], level)
    if name in _SCATTERS:
        return _if_constant(inputs[1:2], level)
    if name == "select_n":
        return _if_constant(inputs[:1], level)
    if name == "integer_pow" and equation.params["y"] == 1:
        return level
    if name == "convert_element_type":
        inexact = jnp.issubdtype(equation.params["new_dtype"], jnp.inexact)
        return level if inexact else _NEITHER  # conversion to integers rounds
    return _NEITHER


def _if_constant(needed: Sequence[int], level: int) -> int:
    return level if max(needed, default=_CONSTANT) == _CONSTANT else _NEITHER
